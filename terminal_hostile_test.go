//go:build unix

package leasehold

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// fills waits until as much as is kept has come, and nobody reads. It reports false if the daemon has dropped the client before.
func fills(t *testing.T, f *inflow) bool {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.pauses%2 == 0 {
		if f.err != nil {
			t.Logf("it ended with %v before it was full", f.err)
			return false
		}
		f.cond.Broadcast()
		f.mu.Unlock()
		select {
		case <-t.Context().Done():
			f.mu.Lock()
			t.Fatal("it never came to a stop")
		case <-time.After(time.Millisecond):
		}
		f.mu.Lock()
	}
	return true
}

// floods has f print without end, by a script, until what is kept is full: the daemon drops a client that is 256 messages behind,
// and a busy host soon is, so it is printed in pieces, more slowly each time.
func floods(t *testing.T, f func(flood string) (full bool)) {
	t.Helper()
	for pause := 0.005; !f(fmt.Sprintf("some=$(yes | head -c 8192); while :; do echo \"$some\"; sleep %g; done", pause)); pause *= 3 {
		if pause > 1 {
			t.Fatal("it never came to a stop")
		}
	}
}

// Whoever ends a terminal that prints without end, and that nobody reads, is not kept waiting by that.
func TestTerminalThatIsNotReadEnds(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *rig, *Lease, *Terminal){
		"by its id": func(t *testing.T, _ *rig, l *Lease, term *Terminal) {
			if err := l.CloseTerminal(t.Context(), term.ID()); err != nil {
				t.Errorf("CloseTerminal() = %v", err)
			}
		},
		"by another connection": func(t *testing.T, _ *rig, l *Lease, term *Terminal) {
			again, err := l.AttachTerminal(t.Context(), term.ID())
			if err != nil {
				t.Fatalf("AttachTerminal() = %v", err)
			}
			if err := again.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		},
		"with the lease": func(t *testing.T, r *rig, l *Lease, _ *Terminal) {
			if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
				t.Errorf("Release() = %v", err)
			}
		},
		"with the provider": func(t *testing.T, r *rig, _ *Lease, _ *Terminal) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := r.Close(ctx); err != nil {
				t.Errorf("Close() = %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
			l := r.acquired(t)
			var term *Terminal
			floods(t, func(flood string) bool {
				var err error
				if term, err = l.OpenTerminal(t.Context(), TerminalOptions{ID: "flood", Args: shell(flood)}); err != nil {
					t.Fatal(err)
				}
				full := fills(t, term.c.in)
				if !full {
					_ = l.CloseTerminal(t.Context(), "flood")
				}
				return full
			})
			end(t, r, l, term)
			got, err := io.ReadAll(term) // what was kept
			if err == nil || len(got) < maxUnread || len(got) > 2*maxUnread {
				t.Errorf("%d bytes, %v, want those that were kept, %d at least, and an error", len(got), err, maxUnread)
			}
		})
	}
}

// takesItsTerminal is the beginning of a program of a channel that takes the terminal from under its parent, and writes there as
// much as it likes.
const takesItsTerminal = "read go; exec >/proc/$PPID/fd/3; "

// Nor is whoever ends a channel whose program does that.
func TestChannelThatIsNotReadEnds(t *testing.T) {
	for name, end := range map[string]func(*rig, *Lease) error{
		"by its id": func(_ *rig, l *Lease) error { return l.CloseChannel(t.Context(), "flood") },
		"with the lease": func(r *rig, l *Lease) error {
			_, err := r.Destroy(t.Context(), l.Ref())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
			l := r.acquired(t)
			var ch *Channel
			floods(t, func(flood string) bool {
				var err error
				if ch, err = l.OpenChannel(t.Context(), ChannelOptions{ID: "flood", Args: shell(takesItsTerminal + flood)}); err != nil {
					t.Fatal(err)
				}
				typeText(t, ch, "go\n")
				full := fills(t, ch.c.in)
				if !full {
					_ = l.CloseChannel(t.Context(), "flood")
				}
				return full
			})
			if err := end(r, l); err != nil {
				t.Error(err)
			}
			got, err := io.ReadAll(ch) // what was kept
			if err == nil || len(got) < maxUnread || len(got) > 2*maxUnread {
				t.Errorf("%d bytes, %v, want those that were kept, %d at least, and an error", len(got), err, maxUnread)
			}
		})
	}
}

// A login shell that is killed leaves the terminal to a process group that is no more. Its exit is known all the same.
func TestTerminalWhoseShellIsKilled(t *testing.T) {
	leavesNoGoroutine(t)
	for _, shell := range []string{"bash", "zsh"} {
		r := newRig(t, Config{}, emulator.Options{Shell: shell})
		term := openTerminal(t, r.acquired(t), TerminalOptions{Env: map[string]string{"PS1": "$ "}})
		typeText(t, term, "echo ready$((1+1)); kill -KILL $$\r")
		readUntil(t, term, "ready2")
		if _, err := io.Copy(io.Discard, term); err != nil {
			t.Errorf("%s: reading: %v", shell, err)
		}
		wantExit(t, term, Exit{State: ExitExited, Code: 137, Signal: "KILL"})
	}
}

// Programs that do to their channel what nobody expects.
func TestChannelHostilePrograms(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	t.Run("kills its parent", func(t *testing.T) {
		for _, stderr := range []io.Writer{nil, io.Discard} {
			ch := openChannel(t, l, ChannelOptions{Args: shell("echo alive; kill -KILL $PPID"), Stderr: stderr})
			got, err := io.ReadAll(ch)
			if wantError(t, err, KindUncertain); string(got) != "alive\n" {
				t.Errorf("%q, want what it wrote", got)
			}
			exit, err := ch.Wait(t.Context())
			if wantError(t, err, KindUncertain); exit != (Exit{State: ExitUnknown, Code: -1}) {
				t.Errorf("Wait() = %+v, want unknown", exit)
			}
		}
	})
	t.Run("floods the host", func(t *testing.T) {
		var ch *Channel
		floods(t, func(flood string) bool {
			ch = openChannel(t, l, ChannelOptions{Args: shell(takesItsTerminal + flood)})
			typeText(t, ch, "go\n")
			return fills(t, ch.c.in)
		})
		ch.c.in.mu.Lock()
		held := len(ch.c.in.data)
		ch.c.in.mu.Unlock()
		if held > 2*maxUnread {
			t.Errorf("%d bytes are held, want at most %d", held, 2*maxUnread)
		}
	})
	t.Run("exits upon its input", func(t *testing.T) {
		for range 20 {
			ch := openChannel(t, l, ChannelOptions{Args: shell("read x; exit 3")})
			typeText(t, ch, "quit\n")
			wantExit(t, ch, Exit{State: ExitExited, Code: 3})
		}
	})
	t.Run("odd environment", func(t *testing.T) {
		env := map[string]string{"A": "-n\nb='c' \"d\" $(false) `false` \\ %s", "B": "", "IFS": "x", "PS4": "$(echo no)", "_mark": "m", "_command": "c", "_dir": "d"}
		ch := openChannel(t, l, ChannelOptions{Args: shell(`printf '%s|%s|%s|%s|%s' "$A" "$B" "$_mark" "$_command" "$_dir"`), Env: env})
		got, err := io.ReadAll(ch)
		if want := env["A"] + "||m|c|d"; string(got) != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
		term := openTerminal(t, l, TerminalOptions{Args: shell(`printf '%s|%s|%s' "$A" "$B" "$_mark"; exit 4`), Env: env})
		got, err = io.ReadAll(term)
		if want := strings.ReplaceAll(env["A"], "\n", "\r\n") + "||m"; string(got) != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
		wantExit(t, term, Exit{State: ExitExited, Code: 4})
	})
	wantNoTerminals(t, r, l)
}

// Whatever waits is released by Close, which any number may call.
func TestChannelIsClosedByMany(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	var stderr bytes.Buffer
	ch := openChannel(t, l, ChannelOptions{ID: "x", Args: []string{"sleep", "60"}, Stderr: &stderr})
	for range 3 { // refused before anything is begun, and it leaves nothing
		_, err := l.OpenChannel(t.Context(), ChannelOptions{ID: "x", Args: []string{"true"}, Stderr: &stderr})
		wantError(t, err, KindConflict)
	}
	var waiting, closing sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			_, err := ch.Read(make([]byte, 1))
			wantError(t, err, KindClosed)
		})
		waiting.Go(func() {
			_, err := ch.Write(make([]byte, 1<<20))
			wantError(t, err, KindClosed)
		})
		waiting.Go(func() { _, _ = ch.Wait(context.Background()) })
	}
	for range 8 {
		closing.Go(func() {
			if err := ch.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
	}
	closing.Wait()
	waiting.Wait()
	if n, err := ch.Write(nil); n != 0 || err == nil {
		t.Errorf("Write() = %d, %v after Close, want an error", n, err)
	}
	wantNoTerminals(t, r, l)
}

// One that is closed while it is opened is removed.
func TestTerminalThatIsClosedWhileItIsOpened(t *testing.T) {
	var reached chan struct{}
	b := &ptyBox{terminal: func(c *ptyBoxConn) { close(reached); c.stare() }}
	inPTYBox(t, b, func(t *testing.T, r *bubbleRig) {
		reached = make(chan struct{})
		var closer sync.WaitGroup
		closer.Go(func() {
			<-reached
			if err := r.lease.CloseTerminal(t.Context(), "x"); err != nil {
				t.Errorf("CloseTerminal() = %v", err)
			}
		})
		_, err := r.lease.OpenTerminal(t.Context(), TerminalOptions{ID: "x"})
		wantError(t, err, KindClosed)
		closer.Wait()
		drained(t, r.lease)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.marks) > 0 {
			t.Errorf("left: %v, want no terminal", b.marks)
		}
	})
}
