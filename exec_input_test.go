package leasehold

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestASmallInputTakesNoRequest(t *testing.T) {
	r, l := execRig(t, TransportJournal)
	mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
	want := finished(0, strings.Repeat("x", 64<<10), "")
	want.StdinSize = 64 << 10
	r.atLast(t, func() bool {
		mustRun(t, l, Command{Args: []string{"cat"}, Stdin: strings.NewReader(strings.Repeat("x", 64<<10))}, want)
		return r.took("POST /toolbox/*/process/execute", "GET /toolbox/*/files/download") // the output is a byte too long
	})
}

// TestAConversation answers what the command says, which it could not if its input were sent in advance. A session's log
// brings whole lines alone.
func TestAConversation(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		more := "more"
		if tr == TransportSession {
			more = "more\n"
		}
		_, l := execRig(t, tr)
		in, w := io.Pipe()
		out := make(arrivals, 8)
		p := started(t, t.Context(), l, Command{Script: "echo name?; read n; echo hello $n; cat; echo end", Stdin: in, Stdout: out})
		for _, step := range []struct{ hear, say string }{{"name?\n", "bob\n"}, {"hello bob\n", more}, {more, ""}} {
			out.want(t, step.hear)
			if step.say == "" {
				w.Close()
			} else if _, err := io.WriteString(w, step.say); err != nil {
				t.Fatal(err)
			}
		}
		out.want(t, "end\n")
		size := int64(len("bob\n" + more))
		if got, err := p.Wait(); err != nil || got.StdinSize != size || got.ExitCode != 0 || got.Transport != tr {
			t.Errorf("Wait() = %+v, %v; want exit 0 after %d bytes on the %s", got, err, size, tr)
		}
	})
}

// numbered is an input of n bytes, no two parts of which are alike.
func numbered(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d\x00\xff", i)
	}
	return b.Bytes()[:n]
}

func TestAnInputArrivesOnceWhateverIsLost(t *testing.T) {
	t.Parallel()
	execute := "/toolbox/*/process/execute"
	for name, f := range map[string]emulator.Fault{
		"nothing":         {Path: "/none"},
		"delivered twice": {Path: execute, Action: emulator.Duplicate, Count: -1},
		"replies lost":    {Path: execute, Action: emulator.DropAfter, Nth: 2, Count: 3},
		"502 after":       {Path: execute, Action: emulator.StatusAfter, Status: 502, Nth: 3, Count: 2},
		"lost before":     {Path: execute, Action: emulator.DropBefore, Nth: 2, Count: 3},
		"first reply":     {Path: execute, Action: emulator.DropAfter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := execRig(t, TransportJournal)
			r.server.SetFaults(f)
			content := numbered(500_000)
			want := fmt.Sprintf("%x  -\n", sha256.Sum256(content))
			got, err := l.Executor().Run(t.Context(), Command{Args: []string{"sha256sum"}, Stdin: bytes.NewReader(content), Transport: TransportJournal, Timeout: time.Minute})
			if err != nil || string(got.Stdout) != want || got.StdinSize != int64(len(content)) {
				t.Errorf("Run() = %+v, %v; want %s", got, err, want)
			}
			if f.Action != "" {
				r.wantHits(t)
			}
		})
	}
}

func TestAnInputThatIsNotRead(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportJournal)
	endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
	t.Run("command ends", func(t *testing.T) {
		got, err := l.Executor().Run(t.Context(), Command{Script: "head -c 100000 | wc -c; exit 3", Stdin: endless, Transport: TransportJournal})
		if err != nil || got.ExitCode != 3 || string(got.Stdout) != "100000\n" || got.StdinSize < 72<<10 {
			t.Errorf("Run() = %+v, %v", got, err)
		}
	})
	t.Run("command closes it", func(t *testing.T) {
		got, err := l.Executor().Run(t.Context(), Command{Script: "exec <&-; sleep 0.3; exit 4", Stdin: endless, Transport: TransportJournal})
		if err != nil || got.ExitCode != 4 {
			t.Errorf("Run() = %+v, %v", got, err)
		}
	})
	t.Run("time is over", func(t *testing.T) {
		got, _ := runFails(t, t.Context(), l, Command{Script: "sleep 60", Stdin: endless, Timeout: 5 * time.Second}, KindTimeout, DispatchedYes)
		if !got.StopConfirmed {
			t.Errorf("got %+v, want a confirmed stop", got)
		}
	})
	t.Run("reader blocks for ever", func(t *testing.T) {
		in, w := io.Pipe()
		got, err := l.Executor().Run(t.Context(), Command{Script: "echo x; exit 5", Stdin: in, Transport: TransportJournal})
		if err != nil || got.ExitCode != 5 {
			t.Errorf("Run() = %+v, %v", got, err)
		}
		w.Close() // lets the last Read return
	})
}

// TestAnInputThatBreaksOffIsNoEnd kills who writes the input for the sandbox, in the middle of it.
func TestAnInputThatBreaksOffIsNoEnd(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		t.Parallel()
		_, l := execRig(t, tr)
		kill := `dd bs=1 count=1 2>/dev/null; for p in /proc/[0-9]*; do if [ $p/fd/1 -ef /proc/self/fd/0 ]; then kill -9 ${p#/proc/}; fi; done; `
		got, err := runFails(t, t.Context(), l, Command{Script: kill + "cat >/dev/null; echo end", Stdin: bytes.NewReader(numbered(200_000)), Timeout: 2 * time.Minute}, KindUncertain, DispatchedYes)
		if !strings.Contains(err.Message, "input") || !got.StopConfirmed || strings.Contains(string(got.Stdout), "end") {
			t.Errorf("Run() = %+v, %v; want a command that was stopped while it read", got, err)
		}
	})
}

func TestAReaderThatFailsStopsTheCommand(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	broken := errors.New("broken")
	in := io.MultiReader(bytes.NewReader(numbered(100_000)), readerFunc(func([]byte) (int, error) { return 0, broken }))
	got, err := runFails(t, t.Context(), l, Command{Script: "cat >/dev/null; sleep 60", Stdin: in}, KindIO, DispatchedYes)
	if !errors.Is(err, broken) || !got.StopConfirmed || got.StdinSize == 0 {
		t.Errorf("Run() = %+v, %v; want the reader's error and a confirmed stop", got, err)
	}
}
