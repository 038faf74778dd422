//go:build unix

package leasehold

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// allBytes returns n bytes, of every value, in no order.
func allBytes(n int) []byte {
	p := make([]byte, n)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(p)
	for i := range min(n, 256) {
		p[i] = byte(i)
	}
	return p
}

func openChannel(t *testing.T, l *Lease, options ChannelOptions) *Channel {
	t.Helper()
	ch, err := l.OpenChannel(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ch.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return ch
}

// send writes p in pieces of odd sizes, and ends the input.
func send(t *testing.T, ch *Channel, p []byte) (sent func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for size := 1; len(p) > 0; size = size*3%100_003 + 1 {
			n := min(len(p), size)
			if m, err := ch.Write(p[:n]); m != n || err != nil {
				t.Errorf("Write(%d bytes) = %d, %v", n, m, err)
				return
			}
			p = p[n:]
		}
		if err := ch.CloseWrite(); err != nil {
			t.Errorf("CloseWrite() = %v", err)
		}
	}()
	return func() { <-done }
}

// Every byte arrives, both ways at once, standard error apart, whatever the sandbox's shell and tools are.
func TestChannelCarriesEveryByte(t *testing.T) {
	for _, sh := range []string{"bash", "zsh", "dash", "busybox"} {
		t.Run(sh, func(t *testing.T) {
			leavesNoGoroutine(t)
			r := newRig(t, Config{}, emulator.Options{Shell: sandboxShell(t, sh)})
			l := r.acquired(t)
			var stderr bytes.Buffer
			ch := openChannel(t, l, ChannelOptions{Args: shell("tee /dev/stderr; exit 7"), Stderr: &stderr})
			want := allBytes(600_000)
			defer send(t, ch, want)()
			got, err := io.ReadAll(ch)
			if !bytes.Equal(got, want) || err != nil {
				t.Errorf("%d bytes, %v, want the %d that were sent", len(got), err, len(want))
			}
			wantExit(t, ch, Exit{State: ExitExited, Code: 7})
			if !bytes.Equal(stderr.Bytes(), want) {
				t.Errorf("standard error has %d bytes, want the %d that were sent", stderr.Len(), len(want))
			}
			wantNoTerminals(t, r, l)
		})
	}
}

// A gibibyte each way, at once.
func TestChannelCarriesMuch(t *testing.T) {
	if !long() {
		t.Skip("with LEASEHOLD_LONG=1")
	}
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	ch := openChannel(t, r.acquired(t), ChannelOptions{Args: []string{"cat"}})
	const size = 1 << 30
	sent, got := sha256.New(), sha256.New()
	go func() {
		_, err := io.Copy(io.MultiWriter(ch, sent), io.LimitReader(rand.NewChaCha8([32]byte{2}), size))
		if err = errors.Join(err, ch.CloseWrite()); err != nil {
			t.Error(err)
		}
	}()
	n, err := io.Copy(got, ch)
	if n != size || err != nil || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes, %v, %x, want %d, %x", n, err, got.Sum(nil), size, sent.Sum(nil))
	}
	wantExit(t, ch, Exit{State: ExitExited})
}

func TestChannelPrograms(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	l := r.acquired(t)
	for name, tc := range map[string]struct {
		args   []string
		stdin  string
		stdout string
		stderr string
		want   Exit
	}{
		"conversation":     {shell(`while read -r x; do echo "<$x>"; done; echo end`), "a\nb\n", "<a>\n<b>\nend\n", "", Exit{ExitExited, 0, ""}},
		"no terminal":      {shell(`for i in 0 1 2; do [ ! -t $i ] || echo $i; done; (: </dev/tty) 2>/dev/null && echo tty; echo none`), "", "none\n", "", Exit{ExitExited, 0, ""}},
		"own descriptors":  {shell(`for i in 3 4 5 6 7 8 9; do if (: <&$i) || (: >&$i); then echo $i; fi; done 2>/dev/null`), "", "", "", Exit{ExitExited, 0, ""}},
		"own signals":      {shell(`for s in HUP INT QUIT PIPE TERM; do sh -c "kill -$s \$\$; echo ignored $s"; done 2>/dev/null`), "", "", "", Exit{ExitExited, 143, "TERM"}},
		"arguments":        {[]string{"printf", "%s|", "a b", "it's", "", "-n", "\xff\n", "$HOME"}, "", "a b|it's||-n|\xff\n|$HOME|", "", Exit{ExitExited, 0, ""}},
		"not found":        {[]string{"/no/such/program"}, "", "", "not found", Exit{ExitExited, 127, ""}},
		"signal":           {shell("kill -TERM $$"), "", "", "", Exit{ExitExited, 143, "TERM"}},
		"kills its group":  {shell("echo dying; kill -KILL 0"), "", "dying\n", "", Exit{ExitExited, 137, "KILL"}},
		"child goes on":    {shell("sleep 30 & echo parent; exit 2"), "", "parent\n", "", Exit{ExitExited, 2, ""}},
		"does not read":    {shell("exec <&-; echo deaf"), strings.Repeat("x", 300), "deaf\n", "", Exit{ExitExited, 0, ""}},
		"only errors":      {shell("echo oops >&2; exit 1"), "", "", "oops\n", Exit{ExitExited, 1, ""}},
		"no output at all": {[]string{"true"}, "", "", "", Exit{ExitExited, 0, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			ch := openChannel(t, l, ChannelOptions{Args: tc.args, Stderr: &stderr})
			_, _ = io.WriteString(ch, tc.stdin) // some read none
			if err := ch.CloseWrite(); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			got, err := io.ReadAll(ch)
			if string(got) != tc.stdout || err != nil {
				t.Errorf("%q, %v, want %q", got, err, tc.stdout)
			}
			wantExit(t, ch, tc.want)
			if !strings.Contains(stderr.String(), tc.stderr) || tc.stderr == "" && stderr.Len() > 0 {
				t.Errorf("standard error %q, want %q", stderr.String(), tc.stderr)
			}
		})
	}
	wantNoTerminals(t, r, l)
}

// Calls out of order, and many at once.
func TestChannelCalls(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	t.Run("concurrent writers", func(t *testing.T) {
		ch := openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
		const writers, records, size = 6, 8, 3001
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range records {
					if _, err := ch.Write(bytes.Repeat([]byte{'a' + byte(w)}, size)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() {
			wg.Wait()
			if err := ch.CloseWrite(); err != nil {
				t.Error(err)
			}
		}()
		got, err := io.ReadAll(ch)
		if len(got) != writers*records*size || err != nil {
			t.Fatalf("%d bytes, %v, want %d", len(got), err, writers*records*size)
		}
		for i := 0; i < len(got); i += size {
			if want := bytes.Repeat(got[i:i+1], size); !bytes.Equal(got[i:i+size], want) {
				t.Fatalf("the record at %d is interrupted", i)
			}
		}
	})
	t.Run("many small ones", func(t *testing.T) {
		ch := openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
		const records = 3000 // more than the sandbox reads one by one
		go func() {
			for i := range records {
				if _, err := fmt.Fprintln(ch, i); err != nil {
					t.Error(err)
				}
			}
		}()
		readUntil(t, ch, fmt.Sprintf("\n%d\n", records-1))
	})
	t.Run("after the end of the input", func(t *testing.T) {
		ch := openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
		for range 2 {
			if err := ch.CloseWrite(); err != nil {
				t.Errorf("CloseWrite() = %v", err)
			}
		}
		_, err := ch.Write([]byte("x"))
		if wantError(t, err, KindClosed); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v is not io.ErrClosedPipe", err)
		}
		wantExit(t, ch, Exit{State: ExitExited})
	})
	t.Run("after Close", func(t *testing.T) {
		ch := openChannel(t, l, ChannelOptions{Args: []string{"cat"}, ID: "once"})
		_, err := l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat"}, ID: "once"})
		wantError(t, err, KindConflict)
		reading := make(chan error)
		go func() {
			_, err := ch.Read(make([]byte, 10))
			reading <- err
		}()
		if err := ch.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		wantError(t, <-reading, KindClosed)
		_, err = ch.Write([]byte("x"))
		wantError(t, err, KindClosed)
		_, err = ch.Read(make([]byte, 10))
		wantError(t, err, KindClosed)
		if err := l.CloseChannel(t.Context(), ch.ID()); err != nil {
			t.Error(err)
		}
	})
	t.Run("a program that stops reading", func(t *testing.T) {
		ch := openChannel(t, l, ChannelOptions{Args: shell("exec <&-; echo closed; exec sleep 100")})
		readUntil(t, ch, "closed")
		var err error
		for err == nil {
			_, err = ch.Write(make([]byte, 1000))
		}
		wantError(t, err, KindClosed)
	})
	t.Run("a program that does not read", func(t *testing.T) {
		ch := openChannel(t, l, ChannelOptions{Args: shell("echo ready; exec sleep 100")})
		readUntil(t, ch, "ready")
		wrote := make(chan int)
		go func() {
			n, err := ch.Write(make([]byte, 10<<20))
			if err == nil {
				t.Error("a program that does not read took 10 MiB")
			}
			wrote <- n
		}()
		ch.events.input.mu.Lock()
		for ch.events.input.waiting < inputWindow {
			ch.events.input.mu.Unlock()
			ch.events.input.mu.Lock()
		}
		ch.events.input.mu.Unlock()
		if err := ch.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if n := <-wrote; n > 1<<20 {
			t.Errorf("%d bytes were on their way to a program that does not read", n)
		}
	})
	for name, tc := range map[string]struct {
		late func(*Channel, chan error) // once the connection has ended
		want Kind
	}{
		"the writer fails late": {func(_ *Channel, gives chan error) { gives <- errors.New("broken") }, KindIO},
		"the writer is stuck":   {func(ch *Channel, gives chan error) { _ = ch.Close(); close(gives) }, KindClosed},
	} {
		t.Run(name, func(t *testing.T) {
			gives := make(chan error)
			ch := openChannel(t, l, ChannelOptions{Args: shell("echo oops >&2; exit 3"), Stderr: writerFunc(func(p []byte) (int, error) { return len(p), <-gives })})
			<-ch.c.finished
			tc.late(ch, gives)
			exit, err := ch.Wait(t.Context())
			if wantError(t, err, tc.want); exit != (Exit{State: ExitExited, Code: 3}) {
				t.Errorf("Wait() = %+v, want the exit", exit)
			}
		})
	}
	t.Run("the writer fails", func(t *testing.T) {
		broken := errors.New("broken")
		ch := openChannel(t, l, ChannelOptions{Args: shell("echo oops >&2; exec cat"), Stderr: writerFunc(func([]byte) (int, error) { return 0, broken })})
		_, err := io.ReadAll(ch)
		if wantError(t, err, KindIO); !errors.Is(err, broken) {
			t.Errorf("%v does not hold the writer's error", err)
		}
		_, err = ch.Wait(t.Context())
		wantError(t, err, KindIO)
	})
	drained(t, l)
	wantNoTerminals(t, r, l)
}

// A host that does not read makes the program wait, and holds little meanwhile: nobody closes the connection.
func TestChannelThatIsNotRead(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	const size = 3 << 20
	hold := make(chan struct{})
	var stderr bytes.Buffer
	ch := openChannel(t, l, ChannelOptions{
		Args:   shell(fmt.Sprintf("head -c %d /dev/zero >&2 & head -c %[1]d /dev/zero; wait", size)),
		Stderr: writerFunc(func(p []byte) (int, error) { <-hold; return stderr.Write(p) }),
	})
	for both := false; !both; { // rounds of standard output have come, and no third one will
		ch.events.mu.Lock()
		both = len(ch.events.rounds[stream.Stdout]) == 2
		ch.events.mu.Unlock()
		select {
		case <-ch.c.finished:
			t.Fatal("the connection has ended")
		default:
			runtime.Gosched()
		}
	}
	ch.c.in.mu.Lock()
	held := len(ch.c.in.data)
	ch.c.in.mu.Unlock()
	if most := 2 * 6 * 32 << 10; held > most {
		t.Errorf("%d bytes are held, want at most %d", held, most)
	}
	if exit, err := ch.Wait(closedContext(t)); !errors.Is(err, ErrCanceled) {
		t.Errorf("Wait() = %+v, %v, want the context's end", exit, err)
	}
	close(hold)
	n, err := io.Copy(io.Discard, ch)
	if n != size || err != nil {
		t.Errorf("%d bytes, %v, want %d", n, err, size)
	}
	wantExit(t, ch, Exit{State: ExitExited})
	if stderr.Len() != size {
		t.Errorf("standard error has %d bytes, want %d", stderr.Len(), size)
	}
}

func closedContext(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// A program that is killed with its channel does not take that for the end of its input.
func TestChannelThatBreaksIsNotAnEnd(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	known := 0
	for i := 0; i < 20 && known < 10; i++ {
		marker := fmt.Sprint("ended-", i)
		ch := openChannel(t, l, ChannelOptions{ID: "victim", Args: shell("echo ready; cat >/dev/null; echo >>" + marker)})
		readUntil(t, ch, "ready")
		if _, err := ch.Write(allBytes(5000)); err != nil {
			t.Fatal(err)
		}
		var err error
		began := time.Now()
		if i%2 == 0 {
			err = ch.Close()
		} else {
			err = l.CloseChannel(t.Context(), "victim")
		}
		if err != nil {
			t.Fatal(err)
		}
		if !wantKilled(t, ch, began) {
			continue // the kill may have come too late, and proves nothing
		}
		known++
		if _, err := os.Stat(filepath.Join(l.Ref().Workspace, marker)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a program took its death for the end of its input: %v", err)
		}
	}
	if known == 0 {
		t.Error("no exit is known of any program")
	}
}
