//go:build unix

package toolbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
)

// screen is a client of a terminal that reads everything.
type screen struct {
	t    *testing.T
	conn *websocket.Conn
	done chan struct{} // closed when the socket ended

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something arrived
	output  []byte
	text    []string // text frames
	err     error    // why the socket ended
}

// dial opens the socket of a session and reads nothing.
func (w *wire) dial(id string) *websocket.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(w.url, "http")+"/process/pty/"+id+"/connect",
		&websocket.DialOptions{HTTPClient: w.client})
	if err != nil {
		w.t.Fatalf("connecting to terminal %s: %v", id, err)
	}
	conn.SetReadLimit(-1)
	w.t.Cleanup(func() { conn.CloseNow() })
	return conn
}

// look connects to a session and waits for the first frame, which must say that it is connected.
func (w *wire) look(id string) *screen {
	w.t.Helper()
	s := &screen{t: w.t, conn: w.dial(id), done: make(chan struct{}), changed: make(chan struct{})}
	go s.read()
	w.t.Cleanup(func() {
		s.conn.CloseNow()
		<-s.done
	})
	s.await("the first frame", func() bool { return len(s.text) > 0 || len(s.output) > 0 || s.err != nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff([]string{`{"type":"control","status":"connected"}`}, s.text); diff != "" {
		w.t.Fatalf("text frames at the start mismatch (-want +got):\n%s", diff)
	}
	return s
}

func (s *screen) read() {
	defer close(s.done)
	for {
		kind, data, err := s.conn.Read(context.Background())
		s.mu.Lock()
		switch {
		case err != nil:
			s.err = err
		case kind == websocket.MessageText:
			s.text = append(s.text, string(data))
			if len(s.output) > 0 {
				s.err = errors.New("a text frame after output")
			}
		default:
			s.output = append(s.output, data...)
		}
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits until a condition on the screen's fields is true.
func (s *screen) await(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		yes, changed := ok(), s.changed
		output, err := string(s.output), s.err
		s.mu.Unlock()
		switch {
		case yes:
			return
		case err != nil:
			s.t.Fatalf("the socket ended with %v while waiting for %s; output %q", err, what, abbreviate(output))
		}
		select {
		case <-changed:
		case <-deadline.C:
			s.t.Fatalf("no %s in %v; output %q", what, patience, abbreviate(output))
		}
	}
}

// expect waits until the output matches, and returns what the groups of the expression matched.
func (s *screen) expect(expression string) []string {
	s.t.Helper()
	r := regexp.MustCompile(expression)
	var found []string
	s.await(fmt.Sprintf("output like %q", expression), func() bool {
		found = r.FindStringSubmatch(string(s.output))
		return found != nil
	})
	return found
}

// shown is the output so far.
func (s *screen) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.output)
}

// send types without waiting for anything.
func (s *screen) send(input string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.conn.Write(ctx, websocket.MessageBinary, []byte(input)); err != nil {
		s.t.Fatalf("typing %q: %v", abbreviate(input), err)
	}
}

// end waits for the end of the socket: the close code, or -1 without a close frame, and the reason.
func (s *screen) end() (websocket.StatusCode, string) {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatalf("the socket did not end in %v; output %q", patience, abbreviate(s.shown()))
	}
	var closed websocket.CloseError
	if errors.As(s.err, &closed) {
		return closed.Code, closed.Reason
	}
	return -1, s.err.Error()
}

func (s *screen) wantEnd(code websocket.StatusCode, reason string) {
	s.t.Helper()
	if gotCode, gotReason := s.end(); gotCode != code || gotReason != reason {
		s.t.Errorf("socket ended with %d %q, want %d %q; output %q", gotCode, gotReason, code, reason, abbreviate(s.shown()))
	}
}

// terminalOn creates a terminal and looks at it. Its shell says READY when it reads commands.
func (w *wire) terminalOn(id string, pairs ...any) *screen {
	w.t.Helper()
	request := map[string]any{"id": id}
	for i := 0; i+1 < len(pairs); i += 2 {
		request[pairs[i].(string)] = pairs[i+1]
	}
	w.do("POST", "/process/pty", asJSON(w.t, request)).want(w.t, http.StatusCreated)
	s := w.look(id)
	s.send("stty -echo; echo REA''DY\n")
	s.expect(`READY\r\n`)
	return s
}

func (w *wire) terminal(id string) ptyInfo {
	w.t.Helper()
	r := w.do("GET", "/process/pty/"+id, nil)
	r.want(w.t, http.StatusOK)
	return decode[ptyInfo](w.t, r)
}

// alive reports whether a process runs: not gone, and not a zombie.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

// narrow returns the same toolbox over connections that hold few bytes.
func (w *wire) narrow() *wire {
	w.t.Helper()
	const few = 16 << 10
	server := httptest.NewUnstartedServer(w.toolbox)
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if err := conn.(*net.TCPConn).SetWriteBuffer(few); err != nil {
			w.t.Error(err)
		}
		return ctx
	}
	server.Start()
	w.t.Cleanup(server.Close)
	n := w.in(w.t)
	n.url = server.URL
	n.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(few)
			}
			return conn, err
		},
	}}
	return n
}
