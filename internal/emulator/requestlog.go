package emulator

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Request is one request in the log.
type Request struct {
	Start     time.Time
	Method    string
	Path      string // after the server's root, such as /api/sandbox; escaped
	Query     string
	Status    int   // 0: not answered, or not yet
	Received  int64 // bytes of the body; of a socket, everything after the handshake
	Sent      int64 // the same in the other direction
	WebSocket bool
	Done      bool
	Duration  time.Duration // until now, if not Done
	Fault     Action        // the fault that hit it, or empty
}

// keptRequests bounds the log: beyond it, the oldest half is forgotten.
const keptRequests = 50_000

type requestLog struct {
	mu      sync.Mutex // guards the fields below
	entries []*entry
}

// entry is a Request that is still being written.
type entry struct {
	request  Request // its constant fields
	sent     atomic.Int64
	received atomic.Int64
	status   atomic.Int64
	socket   atomic.Bool
	done     atomic.Int64 // duration plus one
	fault    atomic.Value // Action
}

func (e *entry) read() Request {
	q := e.request
	q.Sent, q.Received, q.Status, q.WebSocket = e.sent.Load(), e.received.Load(), int(e.status.Load()), e.socket.Load()
	q.Fault, _ = e.fault.Load().(Action)
	if done := e.done.Load(); done > 0 {
		q.Done, q.Duration = true, time.Duration(done-1)
	} else {
		q.Duration = time.Since(q.Start)
	}
	return q
}

// Requests returns the log in the order of arrival, requests that are not answered yet included. It keeps the last 25,000
// requests at least.
func (s *Server) Requests() []Request {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	requests := make([]Request, len(s.record.entries))
	for i, e := range s.record.entries {
		requests[i] = e.read()
	}
	return requests
}

// ResetRequests empties the log.
func (s *Server) ResetRequests() {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	s.record.entries = nil
}

type entryKey struct{}

// noteFault records which fault hit the request.
func noteFault(r *http.Request, action Action) {
	if e, ok := r.Context().Value(entryKey{}).(*entry); ok {
		if action == "" {
			action = DelayRequest
		}
		e.fault.Store(action)
	}
}

// logged passes a request on and records it.
func (s *Server) logged(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	start := time.Now()
	e := &entry{request: Request{Start: start, Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery}}
	s.record.mu.Lock()
	if len(s.record.entries) >= keptRequests {
		s.record.entries = append([]*entry(nil), s.record.entries[keptRequests/2:]...)
	}
	s.record.entries = append(s.record.entries, e)
	s.record.mu.Unlock()
	defer func() { e.done.Store(int64(time.Since(start)) + 1) }()
	r = r.WithContext(context.WithValue(r.Context(), entryKey{}, e))
	r.Body = &countedBody{r.Body, e}
	lw := &logWriter{ResponseWriter: w, e: e}
	next(lw, r)
	lw.status(http.StatusOK)
}

type countedBody struct {
	io.ReadCloser
	e *entry
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.e.received.Add(int64(n))
	return n, err
}

// logWriter counts a reply.
type logWriter struct {
	http.ResponseWriter
	e *entry
}

func (w *logWriter) status(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.e.status.CompareAndSwap(0, int64(status))
	}
}

func (w *logWriter) WriteHeader(status int) {
	w.status(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.status(http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.e.sent.Add(int64(n))
	return n, err
}

func (w *logWriter) ReadFrom(src io.Reader) (int64, error) {
	w.status(http.StatusOK)
	n, err := io.Copy(w.ResponseWriter, src)
	w.e.sent.Add(n)
	return n, err
}

func (w *logWriter) FlushError() error {
	w.status(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *logWriter) Flush() { w.FlushError() }

func (w *logWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *logWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.status(http.StatusSwitchingProtocols)
	w.e.socket.Store(true)
	counted := &countedConn{conn, w.e}
	return counted, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(counted)), nil
}

type countedConn struct {
	net.Conn
	e *entry
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.e.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.e.sent.Add(int64(n))
	return n, err
}
