package toolbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const (
	logFrame     = 1024                  // the most that one frame of a socket carries
	emptyPause   = 20 * time.Millisecond // between reads at the end of a log
	versionProto = "X-Daytona-SDK-Version~"

	// farewell is how long a deleted session waits for a socket whose client does not read.
	farewell = time.Second
)

func (t *Toolbox) routeLogs(mux *http.ServeMux) {
	mux.HandleFunc("GET /process/session/entrypoint/logs", t.entrypointLogs)
	mux.HandleFunc("GET /process/session/{session}/command/{command}/logs", t.commandLogs)
}

// logSource is a log that may still grow.
type logSource struct {
	open   func() (io.ReadCloser, error)
	exited func() bool     // nothing will be added
	ctx    context.Context // ends when the log vanishes
}

func (t *Toolbox) commandLogs(w http.ResponseWriter, r *http.Request) {
	c := t.find(w, r)
	if c == nil {
		return
	}
	t.serveLog(w, r, logSource{
		open:   func() (io.ReadCloser, error) { return os.Open(c.file("output.log")) },
		exited: c.exited,
		ctx:    c.session.ctx,
	})
}

// entrypointLogs serves the log of the entrypoint session, which is empty and never ends.
func (t *Toolbox) entrypointLogs(w http.ResponseWriter, r *http.Request) {
	t.serveLog(w, r, logSource{
		open:   func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil },
		exited: func() bool { return false },
		ctx:    t.ctx,
	})
}

func (c *command) readLog() ([]byte, error) { return os.ReadFile(c.file("output.log")) }

// serveLog answers with the log: over a WebSocket, byte for byte, as long as follow asks for; or at once, in the format
// that the headers ask for. Whether the log exists is settled before a socket is accepted.
func (t *Toolbox) serveLog(w http.ResponseWriter, r *http.Request, source logSource) {
	if !t.work.enter() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer t.work.leave()
	log, err := source.open()
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			notFound(w, r, "command log not found")
		} else {
			unmapped(w, err)
		}
		return
	}
	defer log.Close()

	follow := r.URL.Query().Get("follow") == "true"
	switch {
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		t.serveSocket(w, r, source, log, follow)
	case follow:
		t.serveStream(w, r, source, log)
	default:
		serveSnapshot(w, r, log)
	}
}

// logsView is the answer of newer clients' snapshots (schema SessionCommandLogsResponse).
type logsView struct {
	Output string `json:"output"` // with marks
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

func newLogsView(log []byte) logsView {
	stdout, stderr := split(log)
	return logsView{string(log), string(stdout), string(stderr)}
}

// serveSnapshot answers with what the log holds. The format depends on the client's version alone: JSON from 0.167,
// text with marks from 0.27 or on request, else text without.
func serveSnapshot(w http.ResponseWriter, r *http.Request, log io.Reader) {
	content, err := io.ReadAll(log)
	if err != nil {
		unmapped(w, err)
		return
	}
	if v, ok := sdkVersion(r); ok && v.atLeast(0, 167) {
		writeJSON(w, http.StatusOK, newLogsView(content))
		return
	}
	if combined(r) {
		content = unmark(content)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	_, _ = w.Write(content)
}

// serveStream follows the log over plain HTTP. The daemon itself does not do this; the runner in front of it turns the
// daemon's socket into a stream, and asks without a version, so that the streams are merged and the marks gone.
func (t *Toolbox) serveStream(w http.ResponseWriter, r *http.Request, source logSource, log io.Reader) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := http.NewResponseController(w)
	_ = out.Flush()
	var clean unmarker
	_ = t.tail(r.Context(), source, log, true, func(piece []byte) error {
		if _, err := w.Write(clean.next(piece)); err != nil {
			return err
		}
		return out.Flush()
	})
	_, _ = w.Write(clean.rest())
}

// serveSocket sends the log in binary frames from its first byte on. With follow it goes on until a second after the
// exit, closes with 1000, and does the same at once when the session is deleted. It never pings. A client that reads
// slowly is waited for, and loses nothing. Without follow it closes at the end that the log has now.
func (t *Toolbox) serveSocket(w http.ResponseWriter, r *http.Request, source logSource, log io.Reader, follow bool) {
	options := &websocket.AcceptOptions{
		OriginPatterns:  []string{"*"}, // who may connect is decided by the proxy in front
		CompressionMode: websocket.CompressionDisabled,
	}
	if proto := versionProtocol(r); proto != "" {
		options.Subprotocols = []string{proto}
	}
	conn, err := websocket.Accept(w, r, options)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	// The end of the toolbox is the death of the daemon: no close frame.
	defer context.AfterFunc(t.ctx, func() { _ = conn.CloseNow() })()

	client, cancel := context.WithCancel(context.Background())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer cancel()
		discardMessages(conn)
	}()
	defer func() {
		_ = conn.CloseNow()
		<-read
	}()
	// A frame that the client does not take holds up the end of the session for a moment only.
	defer context.AfterFunc(source.ctx, func() {
		timer := time.NewTimer(farewell)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-client.Done():
		}
	})()

	forget := t.opts.Quirks.FollowNeverCloses
	if follow && forget != nil && forget() {
		source.exited = func() bool { return false }
	}
	send := func(piece []byte) error { return conn.Write(client, websocket.MessageBinary, piece) }
	if lose := t.opts.Quirks.SnapshotTailLoss; !follow && lose != nil && lose() {
		send = delayed(send)
	}
	switch err := t.tail(client, source, log, follow, send); {
	case t.ctx.Err() != nil:
	case err == nil:
		_ = conn.Close(websocket.StatusNormalClosure, "")
	case client.Err() == nil:
		_ = conn.Close(websocket.StatusInternalError, err.Error())
	}
}

// delayed sends each piece when the next one comes, so that the last one is lost.
func delayed(send func([]byte) error) func([]byte) error {
	var held []byte
	return func(piece []byte) (err error) {
		if held != nil {
			err = send(held)
		}
		held = bytes.Clone(piece)
		return err
	}
}

// discardMessages reads until the client has gone.
func discardMessages(conn *websocket.Conn) {
	conn.SetReadLimit(-1)
	for {
		_, message, err := conn.Reader(context.Background())
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, message); err != nil {
			return
		}
	}
}

// tail sends the log in pieces of at most a frame. At the end of the log it returns nil, or, if it follows, reads again
// every 20 ms. After fifty empty reads in a row, or as FollowLinger says, it looks for the exit, and starts to count again
// if there is none. It returns nil too when the log vanishes, and an error when the client has gone or the log cannot be read.
func (t *Toolbox) tail(client context.Context, source logSource, log io.Reader, follow bool, send func([]byte) error) error {
	pause, patience := emptyPause, 1
	if linger := t.opts.Quirks.FollowLinger; linger > 0 {
		pause = min(pause, max(linger/50, time.Millisecond))
		patience = int(linger / pause)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	buf := make([]byte, logFrame)
	for empty := 0; ; {
		if source.ctx.Err() != nil {
			return nil
		}
		n, err := log.Read(buf)
		if n > 0 {
			empty = 0
			if err := send(buf[:n]); err != nil {
				return err
			}
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !follow {
			return nil
		}
		if empty++; empty >= patience {
			if source.exited() {
				return nil
			}
			empty = 0
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-source.ctx.Done():
		case <-client.Done():
			return client.Err()
		}
	}
}

// A version is the SDK's, as far as the daemon looks at it.
type version struct{ major, minor int }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// sdkVersion returns the version that the client says it is, in a header or, over a socket, in a subprotocol; with or
// without a v in front.
func sdkVersion(r *http.Request) (version, bool) {
	text := r.Header.Get("X-Daytona-SDK-Version")
	if text == "" {
		text = strings.TrimPrefix(versionProtocol(r), versionProto)
	}
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 3)
	if len(parts) < 3 {
		return version{}, false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return version{}, false
	}
	minor, err := strconv.Atoi(parts[1])
	return version{major, minor}, err == nil
}

func versionProtocol(r *http.Request) string {
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for proto := range strings.SplitSeq(header, ",") {
			if proto = strings.TrimSpace(proto); strings.HasPrefix(proto, versionProto) {
				return proto
			}
		}
	}
	return ""
}

// combined says whether the client gets merged output without marks: a very old one, or one without a version that
// does not ask for marks.
func combined(r *http.Request) bool {
	if v, ok := sdkVersion(r); ok {
		return !v.atLeast(0, 27)
	}
	return r.Header.Get("X-Daytona-Split-Output") != "true"
}
