package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
)

const (
	// pingTime is how often an idle stream of events shows that it is alive.
	pingTime = 15 * time.Second
	// endOfEvents is what the id of a command's last event ends in.
	endOfEvents = "-end"
)

// events streams a command's output as server-sent events, from its beginning or from behind the event of the header
// Last-Event-ID. An id is how many bytes of each stream a client has with that event, so that no byte is missed or sent
// twice, whatever was cut in between, this service included.
//
//	id: 11-0
//	event: stdout
//	data: aGVsbG8gd29ybGQ=
func (s *service) events(w http.ResponseWriter, r *http.Request, t *tenant) error {
	_, c, err := s.command(r, t)
	if err != nil {
		return err
	}
	last := r.Header.Get("Last-Event-ID")
	if strings.HasSuffix(last, endOfEvents) {
		w.WriteHeader(http.StatusNoContent) // by which a client knows not to ask again
		return nil
	}
	from, err := parseEventID(last)
	if err != nil {
		return err
	}
	if !t.streams.take() {
		return tooMany("streams of events")
	}
	defer t.streams.free()
	file, err := os.Open(outputFile(c.dir))
	if errors.Is(err, os.ErrNotExist) { // its lease was given back just now
		return errNoCommand
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()

	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // or proxies hold it back
	stream := eventStream{w, http.NewResponseController(w)}
	// A client that takes nothing, or has gone, is noticed by its writes and by its context; there is nobody to tell.
	_ = stream.follow(r, c, logReader{file: file, from: from})
	return nil
}

func parseEventID(id string) (leasehold.Offsets, error) {
	if id == "" {
		return leasehold.Offsets{}, nil
	}
	out, errs, _ := strings.Cut(id, "-")
	stdout, err1 := strconv.ParseUint(out, 10, 62)
	stderr, err2 := strconv.ParseUint(errs, 10, 62)
	if err1 != nil || err2 != nil {
		return leasehold.Offsets{}, invalid("Last-Event-ID is not of this service")
	}
	return leasehold.Offsets{Stdout: int64(stdout), Stderr: int64(stderr)}, nil
}

func eventID(o leasehold.Offsets) string { return fmt.Sprintf("%d-%d", o.Stdout, o.Stderr) }

type eventStream struct {
	http.ResponseWriter
	connection *http.ResponseController
}

// follow sends what there is, and then what comes, until the command has ended.
func (e eventStream) follow(r *http.Request, c *command, log logReader) error {
	ping := time.NewTicker(pingTime)
	defer ping.Stop()
	for {
		size, record, changed := c.progress()
		if record.State.final() { // the log does not grow any more
			info, err := log.file.(*os.File).Stat()
			if err != nil {
				return err
			}
			size = info.Size()
		}
		if err := e.copy(&log, size); err != nil {
			return err
		}
		if record.State.final() {
			data, err := json.Marshal(c.view())
			if err != nil {
				return err
			}
			return e.send(fmt.Sprintf("id: %s%s\nevent: end\ndata: %s\n\n", eventID(log.bytes), endOfEvents, data))
		}
		select {
		case <-changed:
		case <-ping.C:
			if err := e.send(":\n\n"); err != nil {
				return err
			}
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// copy sends the frames up to size.
func (e eventStream) copy(log *logReader, size int64) error {
	for {
		f, err := log.next(size)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF: // a part of a frame is all that a full disk took of it
			return e.send("") // answers who asked for a command that says nothing yet
		case err != nil:
			return err
		case len(f.data) == 0:
			continue
		}
		name := "stdout"
		if f.stream == streamErr {
			name = "stderr"
		}
		err = e.send(fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", eventID(f.end), name, base64.StdEncoding.EncodeToString(f.data)))
		if err != nil {
			return err
		}
	}
}

func (e eventStream) send(event string) error {
	if _, err := e.Write([]byte(event)); err != nil {
		return err
	}
	return e.connection.Flush()
}
