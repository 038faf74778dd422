package daytona

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// socketServer is a server whose every answer is a websocket that talk serves.
func socketServer(t *testing.T, talk func(ctx context.Context, c *websocket.Conn)) *fake {
	return newFake(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		talk(r.Context(), c)
	})
}

// drop ends the connection of a websocket without a close frame.
func drop(_ context.Context, c *websocket.Conn) { c.CloseNow() }

func TestFollowDeliversTheRawBytes(t *testing.T) {
	frames := []string{"\x01\x01", "\x01a\x00\xff", "", "\n\x02", "\x02\x02" + strings.Repeat("é", 5_000)}
	f := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
		for _, frame := range frames {
			c.Write(ctx, websocket.MessageBinary, []byte(frame))
		}
		c.Close(websocket.StatusNormalClosure, "")
	})
	for _, size := range []int{1, 3, 1 << 20} {
		l, err := f.toolbox(t).Follow(t.Context(), "s", "c")
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		buf := make([]byte, size)
		for err == nil {
			var n int
			n, err = l.Read(buf)
			got = append(got, buf[:n]...)
		}
		if want := strings.Join(frames, ""); err != io.EOF || string(got) != want {
			t.Errorf("reads of %d: %d bytes, %v, want %d, EOF", size, len(got), err, len(want))
		}
		if n, err := l.Read(buf); n != 0 || err != io.EOF {
			t.Errorf("after the end: %d, %v", n, err)
		}
		l.Close()
	}
	if q := f.seen()[0].URL; q.Path != "/toolbox/box/process/session/s/command/c/logs" || q.RawQuery != "follow=true" {
		t.Errorf("asked for %v", q)
	}
}

func TestFollowEnds(t *testing.T) {
	closeWith := func(code websocket.StatusCode, reason string) func(context.Context, *websocket.Conn) {
		return func(_ context.Context, c *websocket.Conn) { c.Close(code, reason) }
	}
	tests := []struct {
		name   string
		talk   func(context.Context, *websocket.Conn)
		reason Reason // empty: io.EOF
		code   int
	}{
		{"normally", closeWith(1000, ""), "", 0},
		{"going away", closeWith(1001, "restart"), ReasonEnded, 1001},
		{"a read error of the daemon", closeWith(1011, "secret"), ReasonEnded, 1011},
		{"without a close frame", drop, ReasonLost, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l, err := socketServer(t, test.talk).toolbox(t).Follow(t.Context(), "s", "c")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			_, err = io.ReadAll(l)
			if test.reason == "" {
				if err != nil {
					t.Errorf("ended with %v, want EOF", err)
				}
				return
			}
			if e := failure(t, err); e.Reason != test.reason || e.CloseCode != test.code || e.Dispatch != DispatchYes || strings.Contains(e.Error(), "secret") {
				t.Errorf("ended with %+v, want %s, code %d", e, test.reason, test.code)
			}
		})
	}
}

func TestHandshakesThatFail(t *testing.T) {
	tests := []struct {
		name    string
		handler http.HandlerFunc
		check   func(*Error) bool
	}{
		{"404 of the daemon", answer(404, daemonNotFound), func(e *Error) bool { return e.NotFound() && e.Reason == ReasonStatus }},
		{"401", answer(401, ""), func(e *Error) bool { return e.Unauthorized() }},
		{"no upgrade", answer(200, "{}"), func(e *Error) bool { return e.Reason == ReasonDecode && e.Status == 200 }},
		{"a dropped connection", breakAfterRequest, func(e *Error) bool { return e.Reason == ReasonLost && e.Dispatch == DispatchUnknown }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			box := newFake(t, test.handler).toolbox(t)
			_, err1 := box.Follow(t.Context(), "s", "c")
			_, err2 := box.ConnectPTY(t.Context(), "p")
			for _, err := range []error{err1, err2} {
				// A terminal's errors have another shape.
				if e := failure(t, err); !test.check(e) && !(e.Op == OpConnectPTY && e.Status == 404) {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

func TestStreamsAreFreedAtOnce(t *testing.T) {
	silent := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
		c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"connected"}`))
		c.Read(context.Background()) // until the client is gone
	})
	body := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("x"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	cause := errors.New("the host's reason")
	open := map[string]func(context.Context) (io.ReadCloser, error){
		"follow": func(ctx context.Context) (io.ReadCloser, error) {
			l, err := silent.toolbox(t).Follow(ctx, "s", "c")
			if err == nil {
				// The control frame of the fake is data to a log.
				_, err = io.ReadFull(l, make([]byte, len(`{"type":"control","status":"connected"}`)))
			}
			return l, err
		},
		"terminal": func(ctx context.Context) (io.ReadCloser, error) { return silent.toolbox(t).ConnectPTY(ctx, "p") },
		"logs": func(ctx context.Context) (io.ReadCloser, error) {
			b, err := body.toolbox(t).Logs(ctx, "s", "c")
			if err == nil {
				_, err = io.ReadFull(b, make([]byte, 1))
			}
			return b, err
		},
	}
	ends := map[string]func(t *testing.T, s io.Closer, cancel context.CancelCauseFunc) Reason{
		"close": func(t *testing.T, s io.Closer, _ context.CancelCauseFunc) Reason { s.Close(); return ReasonClosed },
		"cancel": func(t *testing.T, _ io.Closer, cancel context.CancelCauseFunc) Reason {
			cancel(cause)
			return ReasonCanceled
		},
	}
	for what, open := range open {
		for how, end := range ends {
			t.Run(what+" "+how, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s, err := open(ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				read := make(chan error, 1)
				go func() {
					_, err := s.Read(make([]byte, 10))
					read <- err
				}()
				want := end(t, s, cancel)
				select {
				case err := <-read:
					e := failure(t, err)
					if e.Reason != want || want == ReasonCanceled && !errors.Is(err, cause) {
						t.Errorf("Read() = %+v (%v), want %s", e, e.Cause, want)
					}
				case <-time.After(time.Minute):
					t.Error("the read was not freed")
				}
			})
		}
	}
}

func TestAnAbandonedStreamHoldsNothing(t *testing.T) {
	// Nobody reads; the context alone ends it. What is left would be found by the leak check of this package.
	f := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
		c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"connected"}`))
		c.Read(context.Background())
	})
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := f.toolbox(t).ConnectPTY(ctx, "p"); err != nil {
		t.Fatal(err)
	}
	cancel()
	// The server's handler ends with the connection; without it, closing the server would wait for ever.
}

func TestPTYEnds(t *testing.T) {
	tests := []struct {
		name   string
		code   websocket.StatusCode
		reason string
		exit   *PTYExit
	}{
		{"exit 0", 1000, `{"exitCode":0}`, &PTYExit{}},
		{"exit 3", 1011, `{"exitCode":3,"exitReason":"non-zero exit"}`, &PTYExit{3, "non-zero exit"}},
		{"killed", 1011, `{"exitCode":-1,"exitReason":"signal 9"}`, &PTYExit{-1, "signal 9"}},
		{"deleted", 1011, `{"exitCode":137,"exitReason":"SIGKILL"}`, &PTYExit{137, "SIGKILL"}},
		{"a proxy restarts", 1001, "", nil},
		{"a proxy closes", 1000, "", nil},
		{"no JSON", 1000, "bye", nil},
		{"no code", 1011, `{"exitReason":"SIGKILL"}`, nil},
		{"a null code", 1000, `{"exitCode":null}`, nil},
		{"a code that is no number", 1000, `{"exitCode":"0"}`, nil},
		{"a slow consumer", 1008, "slow consumer", nil},
		{"too much input", 1009, "", nil},
		{"an exit in another code", 1008, `{"exitCode":0}`, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
				c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"connected"}`))
				c.Write(ctx, websocket.MessageBinary, []byte("out"))
				c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"exited"}`))
				c.Write(ctx, websocket.MessageBinary, []byte("put"))
				c.Close(test.code, test.reason)
			})
			p, err := f.toolbox(t).ConnectPTY(t.Context(), "p")
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			out, err := io.ReadAll(p)
			if string(out) != "output" {
				t.Errorf("read %q, want %q", out, "output")
			}
			exit, ok := p.Exit()
			if test.exit != nil {
				if err != nil || !ok || exit != *test.exit {
					t.Errorf("ended with %v, exit %+v, %v, want %+v", err, exit, ok, *test.exit)
				}
				return
			}
			if e := failure(t, err); ok || e.Reason != ReasonEnded || e.CloseCode != int(test.code) {
				t.Errorf("ended with %+v, exit known: %v, want code %d, unknown", e, ok, test.code)
			}
		})
	}
	t.Run("without a close frame", func(t *testing.T) {
		f := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
			c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"connected"}`))
			drop(ctx, c)
		})
		p, err := f.toolbox(t).ConnectPTY(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, err = io.ReadAll(p)
		if e := failure(t, err); e.Reason != ReasonLost || e.CloseCode != 0 {
			t.Errorf("ended with %+v, want lost", e)
		}
	})
}

func TestConnectPTYAwaitsTheControlFrame(t *testing.T) {
	tests := []struct {
		name   string
		talk   func(context.Context, *websocket.Conn)
		reason Reason
	}{
		{"an error", func(ctx context.Context, c *websocket.Conn) {
			c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"error","error":"PTY session not found"}`))
		}, ReasonEnded},
		{"output first", func(ctx context.Context, c *websocket.Conn) {
			c.Write(ctx, websocket.MessageBinary, []byte(`{"type":"control","status":"connected"}`))
		}, ReasonDecode},
		{"something else", func(ctx context.Context, c *websocket.Conn) { c.Write(ctx, websocket.MessageText, []byte(`hello`)) }, ReasonDecode},
		{"a close frame", func(_ context.Context, c *websocket.Conn) { c.Close(1000, `{"exitCode":0}`) }, ReasonEnded},
		{"the end", drop, ReasonLost},
		{"silence", func(_ context.Context, c *websocket.Conn) { c.Read(context.Background()) }, ReasonTimeout},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx := within(t, time.Minute)
			if test.reason == ReasonTimeout {
				ctx = untilSent()
			}
			_, err := socketServer(t, test.talk).toolbox(t).ConnectPTY(ctx, "p")
			if e := failure(t, err); e.Reason != test.reason || e.Op != OpConnectPTY {
				t.Errorf("ConnectPTY() = %+v, want %s", e, test.reason)
			}
		})
	}
}

func TestPTYWritesAreChunkedAndNotMixed(t *testing.T) {
	const writers, size = 4, 100_000
	got := make(chan []byte, 1)
	f := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
		c.Write(ctx, websocket.MessageText, []byte(`{"type":"control","status":"connected"}`))
		c.SetReadLimit(64 << 10)
		var all []byte
		for len(all) < writers*size {
			kind, frame, err := c.Read(ctx)
			if err != nil || kind != websocket.MessageBinary || len(frame) > ptyChunk {
				got <- fmt.Appendf(nil, "%v frame of %d: %v", kind, len(frame), err)
				return
			}
			all = append(all, frame...)
		}
		got <- all
		c.Close(1000, `{"exitCode":0}`)
	})
	p, err := f.toolbox(t).ConnectPTY(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			n, err := p.Write(bytes.Repeat([]byte{byte('a' + i)}, size))
			if n != size || err != nil {
				t.Errorf("Write() = %d, %v", n, err)
			}
		})
	}
	all.Wait()
	input := <-got
	if len(input) != writers*size {
		t.Fatalf("%.200q", input)
	}
	for i := 0; i < len(input); i += size {
		if block := input[i : i+size]; !bytes.Equal(block, bytes.Repeat(block[:1], size)) {
			t.Errorf("the input of several writers is mixed in block %d", i/size)
		}
	}
	if _, err := io.ReadAll(p); err != nil {
		t.Error(err)
	}
	if _, err := p.Write([]byte("x")); err == nil {
		t.Error("a write after the end succeeded")
	}
}

func TestSocketsAreObservedWhenTheyEnd(t *testing.T) {
	f := socketServer(t, func(ctx context.Context, c *websocket.Conn) {
		c.Write(ctx, websocket.MessageBinary, []byte("0123456789"))
		c.Close(1000, "")
	})
	var seen observed
	box := f.client(t, seen.add).Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL})
	l, err := box.Follow(t.Context(), "s", "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := seen.all(); len(got) != 0 {
		t.Errorf("observed %+v before the end", got)
	}
	io.ReadAll(l)
	l.Close()
	got := seen.all()
	if len(got) != 1 || got[0].Op != OpFollow || !got[0].WebSocket || got[0].Status != 101 || got[0].Received < 10 || got[0].Err != nil {
		t.Errorf("observed %+v, want one socket with its bytes", got)
	}
}

func TestTLSWithHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			if r.ProtoMajor != 2 {
				t.Errorf("%s came through %s, want HTTP/2", r.URL, r.Proto)
			}
			hang(w, r)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		c.Write(r.Context(), websocket.MessageBinary, []byte("log"))
		c.Close(1000, "")
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	c := newClient(t, Config{APIURL: s.URL, APIKey: testKey, Transport: s.Client().Transport})
	// The dispatch proof does not depend on the protocol.
	for range 2 {
		_, err := c.Create(untilSent(), CreateRequest{Name: "x"})
		if e := failure(t, err); e.Dispatch != DispatchUnknown || e.Reason != ReasonTimeout {
			t.Errorf("Create() = %+v, want timeout, dispatch unknown", *e)
		}
	}
	l, err := c.Toolbox(&Sandbox{ID: "box", ToolboxURL: s.URL}).Follow(t.Context(), "s", "c")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got, err := io.ReadAll(l); string(got) != "log" || err != nil {
		t.Errorf("followed %q, %v", got, err)
	}
	untrusted := newClient(t, Config{APIURL: s.URL, APIKey: testKey})
	_, err = untrusted.Create(t.Context(), CreateRequest{Name: "x"})
	if e := failure(t, err); e.Dispatch != DispatchNo || e.Reason != ReasonConnect {
		t.Errorf("Create() to an unknown certificate = %+v, want connect, not dispatched", *e)
	}
}

func TestLogsOfTheEmulatorAreFollowed(t *testing.T) {
	l := newLive(t, emulator.Options{})
	box := l.box(t)
	ctx := within(t, time.Minute)
	if err := box.CreateSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	id, err := box.StartCommand(ctx, "s", "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo end >&2")
	if err != nil {
		t.Fatal(err)
	}
	s, err := box.Follow(ctx, "s", id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	followed, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	b, err := box.Logs(ctx, "s", id)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	snapshot, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(followed, snapshot) || !bytes.Contains(snapshot, []byte("\x01\x01\x01line 1999\n")) || !bytes.Contains(snapshot, []byte("\x02\x02\x02end\n")) {
		t.Errorf("followed %d bytes, snapshot %d, %v", len(followed), len(snapshot), err)
	}
	_, err = box.Follow(ctx, "s", "none")
	if e := failure(t, err); !e.NotFound() || e.Status != 404 {
		t.Errorf("unknown command = %+v, want the handshake's 404", e)
	}
	if err := box.DeleteSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
}

func TestTheClientWorksInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := emulator.Start(emulator.Options{InMemory: true, Timing: emulator.Timing{Create: time.Minute, CreateHold: 30 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c, err := New(Config{APIURL: s.URL(), APIKey: s.APIKey(), Transport: s.Transport()})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		sb, err := c.Create(t.Context(), CreateRequest{Name: "x"})
		if err != nil || sb.State != StateCreating {
			t.Fatalf("Create() = %+v, %v", sb, err)
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("held for %v, want 30 s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Create(ctx, CreateRequest{Name: "y"})
		if e := failure(t, err); e.Reason != ReasonTimeout || e.Dispatch != DispatchUnknown {
			t.Errorf("Create() = %+v, want timeout, unknown", e)
		}
	})
}

func FuzzPTYExit(f *testing.F) {
	for _, reason := range []string{"", `{"exitCode":0}`, `{"exitCode":3,"exitReason":"non-zero exit"}`, `{"exitCode":1e3}`, `{"exitCode":99999999999}`, "[]", "null"} {
		f.Add(1000, reason)
		f.Add(1011, reason)
	}
	f.Fuzz(func(t *testing.T, code int, reason string) {
		exit, ok := parsePTYExit(code, reason)
		if !ok && exit != (PTYExit{}) {
			t.Errorf("unknown, and yet %+v", exit)
		}
		if ok && (code != 1000 && code != 1011 || !strings.Contains(reason, "{")) {
			t.Errorf("exit %+v from code %d, reason %q", exit, code, reason)
		}
		if len(exit.Reason) > 130 {
			t.Errorf("reason of %d bytes", len(exit.Reason))
		}
	})
}
