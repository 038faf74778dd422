//go:build unix

package toolbox

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// follower reads a log over a socket.
type follower struct {
	t        *testing.T
	conn     *websocket.Conn
	ended    chan error // the close frame, or io.ErrUnexpectedEOF when there was none
	protocol string

	mu      sync.Mutex
	got     []byte
	largest int
	closed  time.Time
}

// socket opens a socket on a command's log, and reads it to its end.
func (w *wire) socket(session, command, query string, protocols ...string) *follower {
	w.t.Helper()
	f := w.slowSocket(session, command, query, protocols...)
	go f.read(func() {})
	return f
}

// slowSocket opens a socket without reading it.
func (w *wire) slowSocket(session, command, query string, protocols ...string) *follower {
	w.t.Helper()
	address := w.url + commandPath(session, command) + "/logs" + query
	conn, _, err := websocket.Dial(w.t.Context(), address, &websocket.DialOptions{HTTPClient: w.client, Subprotocols: protocols})
	if err != nil {
		w.t.Fatalf("dial: %v", err)
	}
	conn.SetReadLimit(-1)
	f := &follower{t: w.t, conn: conn, ended: make(chan error, 1), protocol: conn.Subprotocol()}
	w.t.Cleanup(func() { _ = conn.CloseNow() })
	return f
}

func (w *wire) follow(session, command string) *follower {
	w.t.Helper()
	return w.socket(session, command, "?follow=true")
}

func (f *follower) read(before func()) {
	for {
		before()
		kind, frame, err := f.conn.Read(context.Background())
		if err != nil {
			var closed websocket.CloseError
			if !errors.As(err, &closed) {
				err = io.ErrUnexpectedEOF
			} else {
				err = closed
			}
			f.mu.Lock()
			f.closed = time.Now()
			f.mu.Unlock()
			f.ended <- err
			return
		}
		if kind != websocket.MessageBinary {
			f.t.Errorf("frame of kind %v", kind)
		}
		f.mu.Lock()
		f.got = append(f.got, frame...)
		f.largest = max(f.largest, len(frame))
		f.mu.Unlock()
	}
}

func (f *follower) bytes() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got
}

// wait waits until these bytes, and no others, have come.
func (f *follower) wait(want string) {
	f.t.Helper()
	until(f.t, "the follower has it all", func() bool { return len(f.bytes()) >= len(want) })
	if got := string(f.bytes()); got != want {
		f.t.Errorf("followed %q, want %q", abbreviate(got), abbreviate(want))
	}
}

// wantClose waits for the close frame.
func (f *follower) wantClose(code websocket.StatusCode) {
	f.t.Helper()
	select {
	case end := <-f.ended:
		if want := (websocket.CloseError{Code: code}); end != want {
			f.t.Errorf("end of the socket = %v, want %v", end, want)
		}
	case <-time.After(patience):
		f.t.Fatal("the socket stays open")
	}
}

func TestFollowSendsTheLogAsItGrows(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	w.gate("first gate")
	w.gate("second gate")
	id := w.start("s", "echo one; read x <'first gate'; echo two; read x <'second gate'; seq 1000")
	first := w.follow("s", id)
	first.wait(out + "one\n")
	w.open("first gate")
	first.wait(out + "one\n" + out + "two\n")
	// Each socket begins at the first byte.
	second := w.socket("s", id, "?follow=true", "other", "X-Daytona-SDK-Version~0.170.0")
	if second.protocol != "X-Daytona-SDK-Version~0.170.0" {
		t.Errorf("subprotocol = %q, want the version", second.protocol)
	}
	second.wait(out + "one\n" + out + "two\n")
	w.open("second gate")
	w.exitCode("s", id)
	log := w.log("s", id)
	late := w.follow("s", id)
	for _, f := range []*follower{first, second, late} {
		f.wantClose(websocket.StatusNormalClosure)
		f.wait(log)
		if f.largest > 1024 {
			t.Errorf("largest frame = %d bytes, want at most 1024", f.largest)
		}
	}
}

func TestFollowClosesOneSecondLate(t *testing.T) {
	w := serve(t, swift, func(o *Options) { o.Quirks.FollowLinger = 0 })
	w.createSession("s")
	for _, command := range []string{"echo hello", "true"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			w.createSession(command)
			w.gate("gate " + command)
			id := w.start(command, "read x <'gate "+command+"'; "+command)
			early := w.follow(command, id)
			w.open("gate " + command)
			w.exitCode(command, id)
			opened := time.Now()
			late := w.follow(command, id)
			for _, f := range []*follower{early, late} {
				f.wantClose(websocket.StatusNormalClosure)
				f.wait(w.log(command, id))
			}
			// Fifty pauses of 20 ms since the last byte; with no output at all the count may have begun before the exit.
			if took := late.closed.Sub(opened); took < 900*time.Millisecond || took > patience {
				t.Errorf("a late follower was closed after %v, want about 1s", took)
			}
		})
	}
}

func TestFollowOfADeletedSessionCloses(t *testing.T) {
	w := serve(t, swift, func(o *Options) { o.Quirks.FollowLinger = time.Hour })
	w.createSession("s")
	id := w.start("s", "echo hello; sleep 1000")
	f := w.follow("s", id)
	f.wait(out + "hello\n")
	w.do("DELETE", sessionPath("s"), nil).want(t, http.StatusNoContent)
	f.wantClose(websocket.StatusNormalClosure)
	f.wait(out + "hello\n")
}

func TestFollowThatNobodyReadsEndsWithItsSession(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	id := w.start("s", "head -c 20000000 /dev/zero | tr '\\0' '\\n'")
	w.slowSocket("s", id, "?follow=true")
	w.exitCode("s", id)
	w.do("DELETE", sessionPath("s"), nil).want(t, http.StatusNoContent)
	// The toolbox waits for the socket's goroutines.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		w.toolbox.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("Close hangs")
	}
}

func TestFollowKnowsNoSuchCommand(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	for _, path := range []string{commandPath("s", "missing"), commandPath("missing", "missing")} {
		_, response, err := websocket.Dial(t.Context(), w.url+path+"/logs?follow=true", &websocket.DialOptions{HTTPClient: w.client})
		if err == nil {
			t.Fatalf("%s was upgraded", path)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, reply{response.StatusCode, response.Header, string(body)}, http.StatusNotFound, "NOT_FOUND", "not found: ", path+"/logs")
	}
}

func TestSlowFollowerLosesNothing(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	id := w.start("s", "seq -f '%.0f of a log that is larger than every buffer on its way' 330000; echo end >&2")
	f := w.slowSocket("s", id, "?follow=true")
	// Nothing is read before the command has ended, and then with breaks.
	w.exitCode("s", id)
	reads := 0
	go f.read(func() {
		if reads++; reads%5000 == 0 {
			<-time.After(10 * time.Millisecond)
		}
	})
	f.wantClose(websocket.StatusNormalClosure)
	log, err := os.ReadFile(w.at(".daytona/sessions/s/" + id + "/output.log"))
	if err != nil {
		t.Fatal(err)
	}
	if len(log) < 19_000_000 {
		t.Fatalf("the log has %d bytes only", len(log))
	}
	if got := f.bytes(); sha256.Sum256(got) != sha256.Sum256(log) {
		t.Errorf("followed %d bytes that are not the log's %d", len(got), len(log))
	}
}

func TestSocketWithoutFollow(t *testing.T) {
	for name, lose := range map[string]bool{"complete": false, "without its tail": true} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, swift, func(o *Options) {
				if lose {
					o.Quirks.SnapshotTailLoss = func() bool { return true }
				}
			})
			w.createSession("s")
			w.gate("gate")
			id := w.start("s", "seq 1000; echo >printed; read x <gate")
			until(t, "all is printed", func() bool { return w.exists("printed") && strings.HasSuffix(w.log("s", id), "\n"+out+"1000\n") })
			f := w.socket("s", id, "")
			f.wantClose(websocket.StatusNormalClosure) // though the command runs
			want := w.log("s", id)
			if lose {
				want = want[:(len(want)-1)/1024*1024]
			}
			f.wait(want)
			w.open("gate")
			w.exitCode("s", id)
		})
	}
}

func TestFollowThatForgetsToClose(t *testing.T) {
	w := serve(t, swift, func(o *Options) { o.Quirks.FollowNeverCloses = func() bool { return true } })
	w.createSession("s")
	id := w.start("s", "echo hello")
	f := w.follow("s", id)
	w.exitCode("s", id)
	f.wait(out + "hello\n")
	select {
	case end := <-f.ended:
		t.Errorf("the socket ended: %v", end)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestPlainFollowStreamsWithoutMarks(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	w.gate("gate")
	id := w.start("s", `printf 'one\n'; read x <gate; echo two >&2`)
	response, err := w.client.Do(w.request("GET", commandPath("s", id)+"/logs?follow=true", nil, "X-Daytona-SDK-Version", "0.170.0"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.ContentLength != -1 {
		t.Errorf("status %d, length %d; want 200 and none", response.StatusCode, response.ContentLength)
	}
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); line != "one\n" {
		t.Fatalf("first line = %q, %v", line, err)
	}
	w.open("gate")
	rest, err := io.ReadAll(lines)
	if err != nil || string(rest) != "two\n" {
		t.Errorf("rest = %q, %v; want %q", rest, err, "two\n")
	}
}

func TestFollowersThatLeaveFreeTheirGoroutines(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	id := w.start("s", "echo hello; sleep 1000")
	for range 20 {
		f := w.follow("s", id)
		f.wait(out + "hello\n")
		_ = f.conn.CloseNow()
		<-f.ended
	}
	until(t, "no follower is left", func() bool {
		w.toolbox.work.mu.Lock()
		defer w.toolbox.work.mu.Unlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.toolbox.work.wg.Wait()
		}()
		select {
		case <-done:
			return true
		case <-time.After(patience):
			return false
		}
	})
}
