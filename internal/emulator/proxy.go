package emulator

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// skipActivity is the header of a request that must not keep its sandbox awake.
const skipActivity = "X-Daytona-Skip-Last-Activity-Update"

// proxy serves the toolbox proxy: /toolbox/{id}/... to the daemon of a started sandbox.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request) {
	id, rest, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/toolbox/"), "/")
	if !found || rest == "" {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	key, ok := s.authenticate(r)
	s.mu.Lock()
	sb := s.sandboxes[id]
	known := ok && !key.Masked && sb != nil && sb.Organization == key.Organization && sb.visible()
	s.mu.Unlock()
	if !known {
		proxyError(w, r, http.StatusUnauthorized, "UNAUTHORIZED", "unauthorized: authentication failed: Bearer token is invalid")
		return
	}
	if faultOf(r).is(DiskFull) {
		sb.fullFor.Add(1)
		defer sb.fullFor.Add(-1)
	}
	s.through(w, r, sb, func(w *proxyWriter, r *http.Request, m *machine) {
		inner := withoutPrefix(r, "/toolbox/"+id)
		if s.opt.Toolbox != nil {
			if m.enter(w) {
				defer m.leave(w)
				s.opt.Toolbox.ServeHTTP(w, inner)
			}
			return
		}
		daemon := m.open(w)
		if daemon == nil {
			return
		}
		defer m.leave(w)
		daemon.ServeHTTP(w, inner)
	})
}

// through runs a proxied request while it counts as activity of its sandbox, or refuses it if the sandbox does not run.
// A request that the sandbox's end cuts off is answered with 502 and no body, or dropped if its reply had begun.
func (s *Server) through(w http.ResponseWriter, r *http.Request, sb *sandbox, serve func(*proxyWriter, *http.Request, *machine)) {
	if faultOf(r).is(LoseContainer) {
		s.lose(sb)
	}
	s.thawed(r.Context(), sb)
	s.mu.Lock()
	m := sb.machine
	if m == nil || sb.State != StateStarted || sb.Desired != StateStarted {
		s.mu.Unlock()
		proxyError(w, r, http.StatusBadRequest, "BAD_REQUEST", "bad request: no IP address found. Is the Sandbox started?")
		return
	}
	if r.Header.Get(skipActivity) != "true" {
		a := &activity{since: time.Now()}
		sb.ActiveAt = a.since
		sb.open[a] = struct{}{}
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			sb.ActiveAt = sb.lastActive(time.Now())
			delete(sb.open, a)
		}()
	}
	s.mu.Unlock()
	if m.isLost() {
		proxyError(w, r, http.StatusNotFound, "NOT_FOUND", "sandbox container not found")
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	pw := &proxyWriter{ResponseWriter: w, cancel: cancel}
	serve(pw, r.WithContext(ctx), m)
	pw.finish()
}

// thawed waits while a snapshot is made of the sandbox: its container is paused, and nothing in it answers.
func (s *Server) thawed(ctx context.Context, sb *sandbox) {
	for {
		s.mu.Lock()
		frozen, changed := sb.State == StateSnapshotting, sb.changed
		s.mu.Unlock()
		if !frozen {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func proxyError(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	writeBody(w, status, daemonErrorBody(r, status, code, message, now(r)))
}

// withoutPrefix is the request as the one behind a proxy sees it.
func withoutPrefix(r *http.Request, prefix string) *http.Request {
	r2 := r.WithContext(r.Context())
	r2.URL = new(url.URL)
	*r2.URL = *r.URL
	r2.URL.Path = strings.TrimPrefix(r.URL.Path, prefix)
	r2.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, prefix)
	if r2.URL.Path == "" {
		r2.URL.Path, r2.URL.RawPath = "/", ""
	}
	return r2
}

// proxyWriter is a reply that can be cut off while its handler runs.
type proxyWriter struct {
	http.ResponseWriter
	cancel func() // ends the request's context

	mu     sync.Mutex // guards the fields below
	dead   bool
	wrote  bool
	hijack net.Conn
}

var errCut = errors.New("the sandbox is gone")

// begin notes that the reply begins; it fails once the reply was cut off.
func (w *proxyWriter) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errCut
	}
	w.wrote = true
	return nil
}

func (w *proxyWriter) WriteHeader(status int) {
	if w.begin() == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *proxyWriter) Write(p []byte) (int, error) {
	if err := w.begin(); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

// ReadFrom lets the kernel copy files where the writer below can.
func (w *proxyWriter) ReadFrom(src io.Reader) (int64, error) {
	if err := w.begin(); err != nil {
		return 0, err
	}
	return io.Copy(w.ResponseWriter, src)
}

func (w *proxyWriter) FlushError() error {
	if err := w.begin(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *proxyWriter) Flush() { w.FlushError() }

func (w *proxyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *proxyWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, nil, errCut
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.wrote, w.hijack = true, conn
	}
	return conn, rw, err
}

// cut makes every further write fail and unblocks what is under way.
func (w *proxyWriter) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	w.cancel()
	if w.hijack != nil {
		w.hijack.Close()
		return
	}
	past := time.Unix(1, 0)
	control := http.NewResponseController(w.ResponseWriter)
	control.SetReadDeadline(past)
	if w.wrote {
		control.SetWriteDeadline(past)
	}
}

// finish ends a reply that was cut off, after its handler has returned.
func (w *proxyWriter) finish() {
	w.mu.Lock()
	dead, wrote, hijacked := w.dead, w.wrote, w.hijack != nil
	w.mu.Unlock()
	switch {
	case !dead || hijacked:
	case wrote:
		panic(http.ErrAbortHandler)
	default:
		clear(w.ResponseWriter.Header())
		w.ResponseWriter.Header().Set("Connection", "close")
		w.ResponseWriter.WriteHeader(http.StatusBadGateway)
	}
}
