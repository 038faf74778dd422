//go:build unix

package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/script"
)

// ptyBox is a toolbox for virtual time whose terminals are functions.
type ptyBox struct {
	http.Handler // for everything else

	create   func(r *http.Request)                                       // before the creation of a terminal is answered; nil: nothing
	describe func(w http.ResponseWriter, r *http.Request) (refused bool) // before a terminal is described; nil: nothing
	remove   func(w http.ResponseWriter, r *http.Request) (refused bool) // and before one is removed
	terminal func(conn *ptyBoxConn)

	over context.Context // ends with the test

	mu      sync.Mutex
	marks   map[string]string // by name, of those there are
	envs    map[string]map[string]string
	removed []string
}

// ptyBoxConn is a terminal's connection.
type ptyBoxConn struct {
	*websocket.Conn
	ctx  context.Context
	mark string
}

func (c *ptyBoxConn) connected() {
	_ = c.Write(c.ctx, websocket.MessageText, []byte(`{"type":"control","status":"connected"}`))
}

// say sends what the script of a terminal says.
func (c *ptyBoxConn) say(words string) {
	c.send([]byte(script.Terminal{Mark: c.mark}.Say() + " " + words + "\r\n"))
}

func (c *ptyBoxConn) send(p []byte) { _ = c.Write(c.ctx, websocket.MessageBinary, p) }

// started does what a terminal's begin takes.
func (c *ptyBoxConn) started() {
	c.connected()
	if _, line, err := c.Read(c.ctx); err == nil && string(line) == script.TerminalLine {
		c.say("started 1")
	}
}

// drain reads, and so answers pings, until the connection ends.
func (c *ptyBoxConn) drain() {
	for {
		if _, _, err := c.Read(c.ctx); err != nil {
			return
		}
	}
}

// stare does not read.
func (c *ptyBoxConn) stare() { <-c.ctx.Done() }

// takes makes a terminal of this id, and reports whether there is one already.
func (b *ptyBox) takes(id string, env map[string]string) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken = b.marks[id]; !taken {
		b.marks[id], b.envs[id] = script.CarriedMark(env), env
	}
	return taken
}

func (b *ptyBox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.Handle("/", b.Handler)
	mux.HandleFunc("POST /process/pty", func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			ID   string
			Envs map[string]string
		}
		_ = json.NewDecoder(r.Body).Decode(&request)
		taken := b.takes(request.ID, request.Envs)
		if b.create != nil {
			b.create(r)
		}
		if taken {
			answerJSON(w, http.StatusConflict, map[string]string{"error": "PTY session with ID '" + request.ID + "' already exists"})
			return
		}
		answerJSON(w, http.StatusCreated, map[string]string{"sessionId": request.ID})
	})
	mux.HandleFunc("GET /process/pty/{id}", func(w http.ResponseWriter, r *http.Request) {
		if b.describe != nil && b.describe(w, r) {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, there := b.marks[r.PathValue("id")]; !there {
			answerJSON(w, http.StatusNotFound, map[string]string{"error": "PTY session not found"})
			return
		}
		answerJSON(w, http.StatusOK, map[string]any{"id": r.PathValue("id"), "envs": b.envs[r.PathValue("id")]})
	})
	mux.HandleFunc("DELETE /process/pty/{id}", func(w http.ResponseWriter, r *http.Request) {
		if b.remove != nil && b.remove(w, r) {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.marks, r.PathValue("id"))
		b.removed = append(b.removed, r.PathValue("id"))
		answerJSON(w, http.StatusOK, map[string]string{"message": "PTY session deleted"})
	})
	mux.HandleFunc("GET /process/pty/{id}/connect", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		b.mu.Lock()
		mark := b.marks[r.PathValue("id")]
		b.mu.Unlock()
		b.terminal(&ptyBoxConn{conn, b.over, mark})
	})
	mux.ServeHTTP(w, r)
}

// inPTYBox runs f in a bubble with a lease whose terminals are these.
func inPTYBox(t *testing.T, b *ptyBox, f func(t *testing.T, r *bubbleRig)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		box := newBubbleBox(dir)
		b.Handler, b.marks, b.envs = box, make(map[string]string), make(map[string]map[string]string)
		r := newBubbleRigOn(t, box, b)
		over, end := context.WithCancel(context.Background())
		defer end()
		b.over = over
		f(t, r)
	})
}

// A connection whose other side does not answer is given up within the time of two pings.
func TestTerminalWithADeadPeer(t *testing.T) {
	b := &ptyBox{terminal: func(c *ptyBoxConn) {
		c.started()
		c.stare()
	}}
	inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
		term, err := r.lease.OpenTerminal(t.Context(), TerminalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		exit, err := term.Wait(t.Context())
		if wantError(t, err, KindUnavailable); exit.State != ExitDisconnected || exit.Code != -1 {
			t.Errorf("Wait() = %+v, want %q", exit, ExitDisconnected)
		}
		if took := time.Since(began); took != 2*pingTime {
			t.Errorf("given up after %v, want %v", took, 2*pingTime)
		}
		if err := term.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A terminal that ends while it is opened is open, and has ended, unless it was closed.
func TestTerminalThatEndsAsItIsOpened(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(c *console)
		want Kind
	}{
		"by itself":         {end: func(c *console) { c.hang(io.EOF) }},
		"with a lost line":  {end: func(c *console) { c.hang(errDeadPeer) }},
		"closed":            {func(c *console) { c.hang(errHungUp) }, KindClosed},
		"with the provider": {func(c *console) { c.l.p.cancel(errProviderClosed) }, KindClosed},
	} {
		t.Run(name, func(t *testing.T) {
			inPTYBox(t, new(ptyBox), func(t *testing.T, r *bubbleRig) {
				c, opened, err := r.lease.newConsole(ActivityTerminal, "open terminal", "x", "mark", func(*console) {})
				if err != nil {
					t.Fatal(err)
				}
				defer opened()
				defer c.held.end()
				err = c.opening(t.Context(), func(context.Context) error {
					tc.end(c)
					synctest.Wait() // for all that hangs on it
					return nil
				})
				if tc.want != "" {
					wantError(t, err, tc.want)
				} else if err != nil {
					t.Errorf("opening() = %v", err)
				}
				c.l.consoles.remove(c)
			})
		})
	}
}

// A channel whose beginning is delivered twice, and with it what the program wrote, has not come whole.
func TestChannelThatBeginsTwice(t *testing.T) {
	b := &ptyBox{terminal: func(c *ptyBoxConn) {
		c.started()
		c.send([]byte("once"))
		c.say("started 1")
		c.send([]byte("once"))
		c.say("exit 0")
		c.send([]byte(script.Terminal{Mark: c.mark}.End()))
		c.drain()
	}}
	inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
		ch, err := r.lease.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat"}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(ch)
		if wantError(t, err, KindProtocol); string(got) != "once" {
			t.Errorf("read %q, want %q", got, "once")
		}
		_, err = ch.Wait(t.Context())
		wantError(t, err, KindProtocol)
		if err := ch.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A ping that a write keeps from being sent is not answered. A terminal's program may be what keeps it, a channel's is not.
func TestAWriteIsInThePingsWay(t *testing.T) {
	b := &ptyBox{terminal: func(c *ptyBoxConn) {
		c.started()
		c.stare()
	}}
	for name, tc := range map[string]struct {
		open func(context.Context, *Lease) (opened, error)
		want Kind
		took time.Duration
	}{
		"terminal": {func(ctx context.Context, l *Lease) (opened, error) { return l.OpenTerminal(ctx, TerminalOptions{}) }, KindTimeout, time.Hour},
		"channel": {func(ctx context.Context, l *Lease) (opened, error) {
			return l.OpenChannel(ctx, ChannelOptions{Args: []string{"cat"}})
		}, KindUnavailable, 2 * pingTime},
	} {
		t.Run(name, func(t *testing.T) {
			inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
				c, err := tc.open(t.Context(), r.lease)
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = c.Write(make([]byte, 1<<20)) }()
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err = c.Wait(ctx)
				wantError(t, err, tc.want)
				if took := time.Since(began); took != tc.took {
					t.Errorf("it ended after %v, want %v", took, tc.took)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A quiet terminal stays, and so does one that nobody reads, of which no answer can be expected.
func TestTerminalThatIsLeftAlone(t *testing.T) {
	const much = 3 * maxUnread
	for name, tc := range map[string]struct {
		send int
	}{"quiet": {}, "not read": {much}} {
		t.Run(name, func(t *testing.T) {
			b := &ptyBox{terminal: func(c *ptyBoxConn) {
				c.started()
				go func() {
					for range tc.send / 4096 {
						c.send(make([]byte, 4096))
					}
					c.say("exit 3")
				}()
				c.drain()
			}}
			inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
				term, err := r.lease.OpenTerminal(t.Context(), TerminalOptions{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if tc.send > 0 {
					_, err := term.Wait(ctx)
					wantError(t, err, KindTimeout)
					term.c.in.mu.Lock()
					held := len(term.c.in.data)
					term.c.in.mu.Unlock()
					if most := maxUnread + 64<<10; held > most {
						t.Errorf("%d bytes are held, want at most %d", held, most)
					}
				}
				n, err := io.Copy(io.Discard, term)
				if err != nil || n != int64(tc.send/4096*4096) {
					t.Errorf("%d bytes, %v, want %d", n, err, tc.send)
				}
				if exit, err := term.Wait(t.Context()); err != nil || exit.Code != 3 {
					t.Errorf("Wait() = %+v, %v, want exit 3", exit, err)
				}
				if err := term.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// However far an opening comes, it ends with the time of a call, or with its context, says whether the terminal was asked
// for, and removes it.
func TestTerminalThatIsNotOpened(t *testing.T) {
	hang := func(r *http.Request) { <-r.Context().Done() }
	for name, tc := range map[string]struct {
		create   func(r *http.Request)
		terminal func(c *ptyBoxConn)
	}{
		"no sandbox":    {},
		"no answer":     {create: hang},
		"no connection": {create: func(*http.Request) { panic(http.ErrAbortHandler) }}, // for the second request
		"no upgrade":    {terminal: (*ptyBoxConn).stare},
		"no word":       {terminal: func(c *ptyBoxConn) { c.connected(); c.drain() }},
		"only noise":    {terminal: func(c *ptyBoxConn) { c.connected(); c.send([]byte("Welcome!\r\n$ ")); c.drain() }},
		"no such word":  {terminal: func(c *ptyBoxConn) { c.connected(); c.say("begun"); c.drain() }},
		"endless noise": {terminal: func(c *ptyBoxConn) {
			c.connected()
			for range 2 * maxTerminalNoise / 4096 {
				c.send(make([]byte, 4096))
			}
			c.drain()
		}},
	} {
		for _, leave := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				want, took := KindTimeout, 30*time.Second
				sent := map[string]Dispatch{"no sandbox": DispatchedNo, "no answer": DispatchedUnknown, "no connection": DispatchedUnknown}[name]
				if sent == "" {
					sent = DispatchedYes
				}
				switch {
				case name == "no such word", name == "endless noise":
					want, took = KindProtocol, 0
				case name == "no connection":
					want, took = KindUnavailable, 0
				case leave:
					want, took = KindCanceled, time.Second
				}
				b := &ptyBox{create: tc.create, terminal: tc.terminal}
				inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
					if name == "no sandbox" {
						r.lease.box = nil
						r.server.SetFaults(emulator.Fault{Path: "/api/sandbox/*", Action: emulator.SilentSocket, Count: -1})
					}
					if name == "no connection" {
						var asked atomic.Int64
						r.host.refuse = func(q *http.Request) bool { return q.Method == http.MethodPost && asked.Add(1) > 1 }
					}
					ctx, cancel := context.WithCancelCause(t.Context())
					if leave {
						time.AfterFunc(time.Second, func() { cancel(errors.New("the user left")) })
					}
					began := time.Now()
					_, err := r.lease.OpenTerminal(ctx, TerminalOptions{ID: "x"})
					if e := wantError(t, err, want); e.Dispatched != sent {
						t.Errorf("dispatched %q, want %q", e.Dispatched, sent)
					}
					r.server.SetFaults()
					if took != time.Since(began) {
						t.Errorf("it took %v, want %v", time.Since(began), took)
					}
					drained(t, r.lease)
					b.mu.Lock()
					defer b.mu.Unlock()
					if (len(b.removed) == 0) != (sent == DispatchedNo) || len(b.marks) > 0 {
						t.Errorf("removed %v, left %v", b.removed, b.marks)
					}
					cancel(nil)
				})
			})
		}
	}
}

// Giving a lease back closes its terminals side by side, and one that hangs keeps nobody waiting for long.
func TestTerminalsThatHangWhenTheLeaseEnds(t *testing.T) {
	b := &ptyBox{terminal: func(c *ptyBoxConn) { c.started(); c.drain() }}
	var at []time.Duration
	var began time.Time
	b.remove = func(_ http.ResponseWriter, r *http.Request) bool {
		b.mu.Lock()
		at = append(at, time.Since(began))
		b.mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "hangs") {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		return false
	}
	inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
		for _, id := range []string{"a", "hangs", "b"} {
			if _, err := r.lease.OpenTerminal(t.Context(), TerminalOptions{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		began = time.Now()
		if _, err := r.Release(t.Context(), r.lease.Ref(), ReleaseOptions{}); err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, when := range at[:min(3, len(at))] {
			if when > 0 {
				t.Errorf("removals began after %v, want all at once", at)
			}
		}
		if took := time.Since(began); len(at) < 3 || len(b.removed) != 2 || took < terminalCleanupTimeout || took > 2*terminalCleanupTimeout {
			t.Errorf("removals began after %v, and %v were removed, after %v, want 2 within %v", at, b.removed, took, 2*terminalCleanupTimeout)
		}
	})
}

// A terminal of which the host never learnt, and which it could not remove either, is closed by its id. Until then it counts.
// That there is nothing to remove only the daemon can say.
func TestTerminalOfALostOpening(t *testing.T) {
	refusal := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, refuse := range map[string]func(http.ResponseWriter){
		"no answer":              func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"a proxy's page":         refusal(http.StatusNotFound, "<html>not found</html>"),
		"nothing at all":         refusal(http.StatusNotFound, ""),
		"the container is lost":  refusal(http.StatusNotFound, `{"statusCode":404,"message":"sandbox container not found"}`),
		"a path nobody knows of": refusal(http.StatusNotFound, `{"statusCode":404,"message":"Cannot DELETE /x","error":"Not Found"}`),
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			broken.Store(true)
			b := &ptyBox{
				terminal: func(c *ptyBoxConn) { c.connected(); c.say("missing stty"); c.drain() },
				remove: func(w http.ResponseWriter, _ *http.Request) bool {
					if broken.Load() {
						refuse(w)
						return true
					}
					return false
				},
			}
			inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
				began := time.Now()
				_, err := r.lease.OpenTerminal(t.Context(), TerminalOptions{ID: "lost"})
				wantError(t, err, KindRefused)
				if took := time.Since(began); took > terminalCleanupTimeout {
					t.Errorf("it took %v, want at most %v", took, terminalCleanupTimeout)
				}
				counted := func() bool {
					return slices.ContainsFunc(r.Idle().Active, func(a Activity) bool { return a.Kind == ActivityTerminal && a.Unwatched })
				}
				wantOp(t, wantError(t, r.lease.CloseTerminal(t.Context(), "lost"), KindUnavailable), "close terminal")
				if !counted() {
					t.Errorf("active: %+v, want an unwatched terminal", r.Idle().Active)
				}
				broken.Store(false)
				for range 2 {
					if err := r.lease.CloseTerminal(t.Context(), "lost"); err != nil {
						t.Errorf("CloseTerminal() = %v", err)
					}
				}
				if counted() || len(b.marks) > 0 {
					t.Errorf("active: %+v, left: %v, want no terminal", r.Idle().Active, b.marks)
				}
			})
		})
	}
}

// A terminal that has ended by the time it is connected to is not found, and counts no longer.
func TestTerminalThatEndsWhileItIsFound(t *testing.T) {
	b := new(ptyBox)
	b.terminal = func(c *ptyBoxConn) { c.started(); c.drain() }
	inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
		term, err := r.lease.OpenTerminal(t.Context(), TerminalOptions{ID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		term.c.leave() // as if this host had died
		if !hasActivity(r.Idle(), ActivityTerminal) {
			t.Errorf("active: %+v, want a terminal", r.Idle().Active)
		}
		b.terminal = func(c *ptyBoxConn) {
			_ = c.Write(c.ctx, websocket.MessageText, []byte(`{"type":"control","status":"error","error":"PTY session not found"}`))
		}
		_, err = r.lease.AttachTerminal(t.Context(), "x")
		if e := wantError(t, err, KindNotFound); e.Dispatched != DispatchedYes {
			t.Errorf("dispatched %q, want yes", e.Dispatched)
		}
		if hasActivity(r.Idle(), ActivityTerminal) {
			t.Errorf("active: %+v, want no terminal", r.Idle().Active)
		}
	})
}

// A terminal that another host has opened under the same id is never removed, whatever becomes of the question whose it is.
func TestTerminalOfAnotherHost(t *testing.T) {
	const name = "leasehold-terminal-x"
	hang := func(r *http.Request) { <-r.Context().Done() }
	refuse := func(times int, status int, body any) func(http.ResponseWriter, *http.Request) bool {
		var asked atomic.Int64
		return func(w http.ResponseWriter, _ *http.Request) bool {
			if asked.Add(1) > int64(times) {
				return false
			}
			answerJSON(w, status, body)
			return true
		}
	}
	for about, tc := range map[string]struct {
		create   func(*http.Request)
		describe func(http.ResponseWriter, *http.Request) bool
		want     Kind
		counted  bool // as one that may be left
	}{
		"its mark is another":   {want: KindConflict},
		"no answer":             {create: hang, want: KindCanceled},
		"asked again":           {describe: refuse(1, 502, nil), want: KindUnavailable},
		"not answered any more": {describe: refuse(1000, 502, nil), want: KindUnavailable, counted: true},
		"asked until the end":   {describe: func(_ http.ResponseWriter, r *http.Request) bool { hang(r); return true }, want: KindCanceled, counted: true},
		"gone by then":          {describe: refuse(1000, 404, map[string]string{"error": "PTY session not found"}), want: KindConflict},
	} {
		t.Run(about, func(t *testing.T) {
			b := &ptyBox{create: tc.create, describe: tc.describe}
			inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
				b.marks[name] = "theirs"
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.want == KindCanceled {
					time.AfterFunc(time.Second, cancel)
				}
				_, err := r.lease.OpenTerminal(ctx, TerminalOptions{ID: "x"})
				wantError(t, err, tc.want)
				drained(t, r.lease)
				if left := hasActivity(r.Idle(), ActivityTerminal); left != tc.counted {
					t.Errorf("active: %+v, want a terminal: %v", r.Idle().Active, tc.counted)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if len(b.removed) > 0 {
					t.Errorf("removed %v, want nothing", b.removed)
				}
			})
		})
	}
}

// A removal that the end of the provider cut short may have arrived.
func TestTerminalIsClosedWithTheProvider(t *testing.T) {
	var reached chan struct{}
	b := &ptyBox{remove: func(_ http.ResponseWriter, r *http.Request) bool {
		close(reached)
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}}
	inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
		reached = make(chan struct{})
		go func() {
			<-reached
			_ = r.Close(t.Context())
		}()
		if e := wantError(t, r.lease.CloseTerminal(t.Context(), "x"), KindClosed); e.Dispatched != DispatchedUnknown || e.Retryable {
			t.Errorf("%+v, want one that may have been dispatched", e)
		}
	})
}
