package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold"
)

// service is the state of the process. What must outlive it is on the disk.
type service struct {
	provider leasehold.Provider
	tenants  tenants
	limits   limits
	log      *slog.Logger
	leases   registry

	ending  atomic.Bool // nothing new is begun
	keeping atomic.Bool // and commands go on without this process
	// commands ends to stop what runs in the sandboxes, requests a moment later to end what is asked of the service.
	commands, requests       context.Context
	endCommands, endRequests context.CancelFunc
	background               sync.WaitGroup
}

// newService returns a service that goes on with what it finds in dir.
func newService(p leasehold.Provider, dir string, tenants tenants, l limits, log *slog.Logger) (*service, error) {
	s := &service{provider: p, tenants: tenants, limits: l, log: log}
	s.commands, s.endCommands = context.WithCancel(context.Background())
	s.requests, s.endRequests = context.WithCancel(context.Background())
	if err := s.leases.load(dir, l.output); err != nil {
		return nil, err
	}
	s.goOn()
	return s, nil
}

// server returns the HTTP server of the service. Its bounds are those of a server that strangers can reach: headers in time,
// bodies and responses in time (see onTime), no connection without end.
func (s *service) server() *http.Server {
	return &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return s.requests },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// stopWork refuses what is new, stops the commands, or with keep lets go of them, and then ends the requests. Streams of
// events have told the end of their commands by then.
func (s *service) stopWork(keep bool) {
	s.ending.Store(true)
	s.keeping.Store(keep)
	if keep {
		s.leases.each(func(l *lease) { l.detach() })
	} else {
		s.endCommands()
	}
	s.leases.each(func(l *lease) { l.settle() })
	s.endRequests()
}

// writeFile replaces a file as a whole, on the disk, or not at all.
func writeFile(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes sure that what was renamed in a directory stays so when the power fails. Windows cannot.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readFile is the way back.
func readFile(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, value)
}

// decode reads a JSON body. No body is an empty object.
func (s *service) decode(w http.ResponseWriter, r *http.Request, value any) error {
	decoder := json.NewDecoder(s.timed(w, r, s.limits.body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(value)
	if err == nil {
		_, err = decoder.Token() // nothing may follow
		if err == nil {
			return invalid("the body is more than one JSON value")
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return err
	}
	return invalid("the body is not the JSON that this takes")
}

const (
	// readTime is how long a client may send nothing of a body.
	readTime = 30 * time.Second
	// writeTime is how long a client may take nothing of what it is sent. It is longer than readTime: the server waits for
	// what a handler leaves of a body, and then sends the answer.
	writeTime = readTime + 15*time.Second
)

// onTime gives each request a clock. What a handler leaves of a body is read by the server itself, by that clock; a handler
// that reads it uses timed.
func onTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := timedWriter{w, http.NewResponseController(w)}
		if r.Body == http.NoBody {
			next.ServeHTTP(response, r)
			return
		}
		_ = response.connection.SetReadDeadline(time.Now().Add(readTime))
		if r.Method == http.MethodGet { // its response may take long, and the clock of its body would end that
			writeProblem(response, errBody)
			return
		}
		next.ServeHTTP(response, r)
	})
}

// timed returns the body of a request, of at most limit bytes, which fails when the client sends nothing for a while.
func (s *service) timed(w http.ResponseWriter, r *http.Request, limit int64) io.Reader {
	return timedReader{http.MaxBytesReader(w, r.Body, limit), http.NewResponseController(w)}
}

type timedReader struct {
	body       io.Reader
	connection *http.ResponseController
}

func (t timedReader) Read(p []byte) (int, error) {
	if err := t.connection.SetReadDeadline(time.Now().Add(readTime)); err != nil {
		return 0, err
	}
	n, err := t.body.Read(p)
	if errors.Is(err, io.EOF) { // now the server reads on, to notice if the client goes away
		_ = t.connection.SetReadDeadline(time.Time{})
	}
	return n, err
}

// timedWriter writes a response, however long it takes, and fails when the client takes nothing of it for a while. The server
// itself takes the deadline back when the response has ended.
type timedWriter struct {
	http.ResponseWriter
	connection *http.ResponseController
}

// Unwrap is how [http.ResponseController] finds the connection.
func (t timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t timedWriter) WriteHeader(status int) {
	_ = t.connection.SetWriteDeadline(time.Now().Add(writeTime))
	t.ResponseWriter.WriteHeader(status)
}

func (t timedWriter) Write(p []byte) (int, error) {
	if err := t.connection.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	return t.ResponseWriter.Write(p)
}
