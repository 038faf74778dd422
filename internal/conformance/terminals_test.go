package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// terminal opens a terminal, which the end of the test closes.
func terminal(t *testing.T, l *leasehold.Lease, options leasehold.TerminalOptions) *leasehold.Terminal {
	t.Helper()
	term, err := l.OpenTerminal(t.Context(), options)
	if err != nil {
		t.Fatalf("OpenTerminal() = %v", err)
	}
	t.Cleanup(func() { closed(t, term.Close) })
	return term
}

// closed closes what must be known to be gone then. A sandbox that is busy may need longer than one call waits.
func closed(t *testing.T, closing func() error) {
	t.Helper()
	err := closing()
	for range 5 {
		if !errors.Is(err, leasehold.ErrTimeout) {
			break
		}
		err = closing()
	}
	if err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func shell(script string, args ...string) []string {
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

// readUntil reads until want has come, and returns what came before it.
func readUntil(t *testing.T, r io.Reader, want string) string {
	t.Helper()
	var got []byte
	for p := make([]byte, 1); ; {
		n, err := r.Read(p)
		if got = append(got, p[:n]...); bytes.HasSuffix(got, []byte(want)) {
			return string(got[:len(got)-len(want)])
		}
		if err != nil {
			t.Fatalf("read %q and then %v, want %q", got, err, want)
		}
	}
}

// enter types.
func enter(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Fatalf("Write(%.40q) = %d, %v", text, n, err)
	}
}

// waiter is what has an exit.
type waiter interface {
	Wait(context.Context) (leasehold.Exit, error)
}

func wantExit(t *testing.T, w waiter, code int, signal string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	want := leasehold.Exit{State: leasehold.ExitExited, Code: code, Signal: signal}
	if got, err := w.Wait(ctx); got != want || err != nil {
		t.Errorf("Wait() = %+v, %v; want %+v", got, err, want)
	}
}

// gone waits, in the sandbox, until a process is not there any more.
func gone(t *testing.T, l *leasehold.Lease, pid string) {
	t.Helper()
	says(t, l, "n=0; while kill -0 "+pid+" 2>/dev/null; do n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.05; done")
}

// terminalCases are about programs on terminals.
var terminalCases = []behaviour{
	{name: "a program and its surroundings", test: func(t *testing.T, s *scene) {
		dir := unique("a dir's é")
		says(t, s.lease, `mkdir "`+dir+`"`)
		term := terminal(t, s.lease, leasehold.TerminalOptions{
			Args: shell(`stty size; pwd -P; echo "$TERM $V"; printf '%s|' "$@"; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && exit 3`, "a b", "it's", "", "\xff\n"),
			Dir:  dir, Env: map[string]string{"V": "x  y'\n"}, Cols: 100, Rows: 30,
		})
		got, err := io.ReadAll(term)
		if want := "30 100\r\n" + path.Join(s.lease.Ref().Workspace, dir) + "\r\nxterm-256color x  y'\r\n\r\na b|it's||\xff\r\n|"; string(got) != want || err != nil {
			t.Errorf("it printed %q, %v; want %q", got, err, want)
		}
		wantExit(t, term, 3, "")
	}},
	{name: "a login shell", test: func(t *testing.T, s *scene) {
		term := terminal(t, s.lease, leasehold.TerminalOptions{})
		enter(t, term, "echo so\\me'thing' in $((6*7)); stty size; exit 5\r")
		readUntil(t, term, "something in 42\r\n24 80\r\n")
		if _, err := io.Copy(io.Discard, term); err != nil {
			t.Errorf("its output ended with %v", err)
		}
		wantExit(t, term, 5, "")
	}},
	{name: "ends", test: func(t *testing.T, s *scene) {
		for _, c := range []struct {
			script, signal string
			code           int
		}{
			{"exit 0", "", 0}, {"exit 255", "", 255}, {"no-such-command-anywhere", "", 127}, {"kill -TERM $$", "TERM", 143}, {"kill -9 $$", "KILL", 137},
		} {
			term := terminal(t, s.lease, leasehold.TerminalOptions{Args: shell(`i=0; while [ $i -lt 200 ]; do echo "line $i"; i=$((i+1)); done; echo END; ` + c.script)})
			got, err := io.ReadAll(term)
			if tail := string(got); err != nil || !strings.Contains(tail, "line 0\r\n") || !strings.Contains(tail, "line 199\r\nEND\r\n") {
				t.Errorf("%s: the output ends with %q, %v", c.script, tail[max(0, len(tail)-40):], err)
			}
			wantExit(t, term, c.code, c.signal)
		}
		term := terminal(t, s.lease, leasehold.TerminalOptions{Args: []string{"no-such-program-anywhere"}})
		wantExit(t, term, 127, "")
	}},
	{name: "resize", test: func(t *testing.T, s *scene) {
		term := terminal(t, s.lease, leasehold.TerminalOptions{Args: shell(`trap 'stty size' WINCH; echo ready; while [ -z "$done" ]; do read -r done; done`)})
		readUntil(t, term, "ready\r\n")
		for _, size := range [][2]int{{132, 50}, {1, 1}, {1000, 1000}} {
			if err := term.Resize(t.Context(), size[0], size[1]); err != nil {
				t.Fatalf("Resize%v = %v", size, err)
			}
			readUntil(t, term, fmt.Sprintf("%d %d\r\n", size[1], size[0]))
		}
		for _, size := range [][2]int{{0, 10}, {10, 0}, {1001, 1}, {-1, 1}} {
			wantError(t, fmt.Sprintf("Resize%v", size), term.Resize(t.Context(), size[0], size[1]), leasehold.ErrInvalid)
		}
		enter(t, term, "done\r")
		wantExit(t, term, 0, "")
		wantError(t, "Resize() of a terminal that has ended", term.Resize(t.Context(), 80, 24), leasehold.ErrClosed)
	}},
	{name: "bytes, both ways", test: func(t *testing.T, s *scene) {
		term := terminal(t, s.lease, leasehold.TerminalOptions{Args: shell("stty raw -echo; echo ready; exec cat")})
		readUntil(t, term, "ready\n")
		content := strings.Repeat(everyByte(), 600)
		writing := make(chan error, 1)
		go func() {
			_, err := io.WriteString(term, content)
			writing <- err
		}()
		got := make([]byte, len(content))
		if _, err := io.ReadFull(term, got); err != nil || string(got) != content {
			t.Errorf("%d bytes came back otherwise, %v", len(content), err)
		}
		if err := <-writing; err != nil {
			t.Errorf("Write() = %v", err)
		}
	}},
	{name: "interrupt", test: func(t *testing.T, s *scene) {
		term := terminal(t, s.lease, leasehold.TerminalOptions{Args: shell("trap 'echo interrupted; exit 9' INT; echo ready; sleep 60 & wait")})
		readUntil(t, term, "ready\r\n")
		enter(t, term, "\x03")
		readUntil(t, term, "interrupted\r\n")
		wantExit(t, term, 9, "")
	}},
	{name: "close", test: func(t *testing.T, s *scene) {
		id := unique("t")
		term := terminal(t, s.lease, leasehold.TerminalOptions{ID: id, Args: shell("trap '' HUP TERM; echo pid $$; exec sleep 600")})
		readUntil(t, term, "pid ")
		pid := strings.TrimSpace(readUntil(t, term, "\r\n"))
		_, err := s.lease.OpenTerminal(t.Context(), leasehold.TerminalOptions{ID: id})
		wantError(t, "a second terminal of the same id", err, leasehold.ErrConflict)
		closed(t, term.Close)
		closed(t, term.Close)
		gone(t, s.lease, pid)
		if _, err := term.Read(make([]byte, 1)); !errors.Is(err, leasehold.ErrClosed) {
			t.Errorf("Read() after Close = %v, want ErrClosed", err)
		}
		if got, err := term.Wait(t.Context()); err == nil && got.State != leasehold.ExitExited || err != nil && got.Code != -1 {
			t.Errorf("Wait() after Close = %+v, %v", got, err)
		}
	}},
	{name: "close by id", test: func(t *testing.T, s *scene) {
		id := unique("t")
		if err := s.lease.CloseTerminal(t.Context(), id); err != nil {
			t.Errorf("CloseTerminal() of none = %v", err)
		}
		term := terminal(t, s.lease, leasehold.TerminalOptions{ID: id, Args: shell("echo pid $$; exec cat")})
		if term.ID() != id {
			t.Errorf("ID() = %q, want %q", term.ID(), id)
		}
		readUntil(t, term, "pid ")
		pid := strings.TrimSpace(readUntil(t, term, "\r\n"))
		for range 2 {
			if err := s.lease.CloseTerminal(t.Context(), id); err != nil {
				t.Errorf("CloseTerminal() = %v", err)
			}
		}
		gone(t, s.lease, pid)
		terminal(t, s.lease, leasehold.TerminalOptions{ID: id, Args: shell("exit 0")}) // the id is free again
	}},
	{name: "attach", test: func(t *testing.T, s *scene) {
		id := unique("t")
		first := terminal(t, s.lease, leasehold.TerminalOptions{ID: id, Args: shell(`echo ready; while read -r line; do [ "$line" = bye ] && exit 6; echo "<$line>"; done`)})
		readUntil(t, first, "ready\r\n")
		second, err := s.lease.AttachTerminal(t.Context(), id)
		if err != nil {
			t.Fatalf("AttachTerminal() = %v", err)
		}
		enter(t, second, "again\r")
		readUntil(t, second, "<again>\r\n")
		if got, err := first.Wait(t.Context()); err == nil || got.State == leasehold.ExitExited {
			t.Errorf("Wait() of the connection that was left = %+v, %v; want no exit", got, err)
		}
		enter(t, second, "bye\r")
		wantExit(t, second, 6, "")
		_, err = s.lease.AttachTerminal(t.Context(), unique("t"))
		wantError(t, "AttachTerminal() of none", err, leasehold.ErrNotFound)
	}},
	{name: "another host attaches", needs: []feature{hosts}, test: func(t *testing.T, s *scene) {
		id := unique("t")
		first := terminal(t, s.lease, leasehold.TerminalOptions{ID: id, Args: shell(`echo ready; read -r line; echo "<$line>"; exit 8`)})
		readUntil(t, first, "ready\r\n")
		l, err := s.newHost(t, reusable).Bind(s.lease.Ref())
		if err != nil {
			t.Fatal(err)
		}
		second, err := l.AttachTerminal(t.Context(), id)
		if err != nil {
			t.Fatalf("AttachTerminal() = %v", err)
		}
		enter(t, second, "there\r")
		readUntil(t, second, "<there>\r\n")
		wantExit(t, second, 8, "")
		says(t, s.lease, "true") // and the first host takes the lease back
	}},
	{name: "options that cannot be had", test: func(t *testing.T, s *scene) {
		for field, options := range map[string]leasehold.TerminalOptions{
			"TerminalOptions.Args": {Args: []string{}}, "TerminalOptions.ID": {ID: "a b"}, "TerminalOptions.Cols": {Cols: 1001}, "TerminalOptions.Env": {Env: map[string]string{"A-B": ""}},
		} {
			_, err := s.lease.OpenTerminal(t.Context(), options)
			if e := wantError(t, field, err, leasehold.ErrInvalid); e.Dispatched != leasehold.DispatchedNo || len(e.Fields) != 1 {
				t.Errorf("%s: %+v, want one field, and nothing sent", field, e)
			}
		}
		_, err := s.lease.OpenTerminal(t.Context(), leasehold.TerminalOptions{Dir: "no/such/directory"})
		wantError(t, "a directory that is not there", err, leasehold.ErrNotFound)
	}},
}

// channel opens a channel, which the end of the test closes.
func channel(t *testing.T, l *leasehold.Lease, options leasehold.ChannelOptions) *leasehold.Channel {
	t.Helper()
	ch, err := l.OpenChannel(t.Context(), options)
	if err != nil {
		t.Fatalf("OpenChannel() = %v", err)
	}
	t.Cleanup(func() { closed(t, ch.Close) })
	return ch
}

// channelCases are about programs at the end of a pipe.
var channelCases = []behaviour{
	{name: "bytes, both ways", test: func(t *testing.T, s *scene) {
		ch := channel(t, s.lease, leasehold.ChannelOptions{Args: []string{"cat"}})
		content := strings.Repeat(everyByte(), 1200) // more than is held on the way
		writing := make(chan error, 1)
		go func() {
			_, err := io.Copy(ch, strings.NewReader(content))
			writing <- errors.Join(err, ch.CloseWrite())
		}()
		got, err := io.ReadAll(ch)
		if err := errors.Join(err, <-writing); err != nil || string(got) != content {
			t.Errorf("%d bytes came back as %d, %v", len(content), len(got), err)
		}
		wantExit(t, ch, 0, "")
	}},
	{name: "streams apart, and surroundings", test: func(t *testing.T, s *scene) {
		var stderr bytes.Buffer
		ch := channel(t, s.lease, leasehold.ChannelOptions{
			Args: shell(`printf '%s|' "$V" "$@" "$PWD"; printf 'to \0err' >&2; cat; exit 4`, "a b", "\xff"), Dir: "/", Env: map[string]string{"V": "x\n'y"}, Stderr: &stderr,
		})
		enter(t, ch, "in\x00put")
		if err := ch.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(ch)
		if want := "x\n'y|a b|\xff|/|in\x00put"; string(got) != want || err != nil {
			t.Errorf("it wrote %q, %v; want %q", got, err, want)
		}
		wantExit(t, ch, 4, "")
		if stderr.String() != "to \x00err" {
			t.Errorf("standard error is %q", &stderr)
		}
	}},
	{name: "a conversation", test: func(t *testing.T, s *scene) {
		ch := channel(t, s.lease, leasehold.ChannelOptions{Args: shell(`while read -r line; do echo "<$line>"; done; echo over; exit 2`)})
		for i := range 20 {
			enter(t, ch, fmt.Sprintf("%d\n", i))
			if before := readUntil(t, ch, fmt.Sprintf("<%d>\n", i)); before != "" {
				t.Errorf("before the answer to %d came %q", i, before)
			}
		}
		if err := ch.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		readUntil(t, ch, "over\n")
		wantExit(t, ch, 2, "")
		if _, err := ch.Write([]byte("x")); !errors.Is(err, leasehold.ErrClosed) {
			t.Errorf("Write() after the end = %v, want ErrClosed", err)
		}
	}},
	{name: "ends", test: func(t *testing.T, s *scene) {
		for code, args := range map[int][]string{0: {"true"}, 7: shell("exit 7"), 127: {"no-such-program-anywhere"}, 137: shell("kill -9 $$")} {
			signal := map[int]string{137: "KILL"}[code]
			wantExit(t, channel(t, s.lease, leasehold.ChannelOptions{Args: args}), code, signal)
		}
	}},
	{name: "close", test: func(t *testing.T, s *scene) {
		id := unique("c")
		ch := channel(t, s.lease, leasehold.ChannelOptions{ID: id, Args: shell("trap '' HUP TERM PIPE; echo $$; exec sleep 600")})
		pid := readUntil(t, ch, "\n")
		_, err := s.lease.OpenChannel(t.Context(), leasehold.ChannelOptions{ID: id, Args: []string{"cat"}})
		wantError(t, "a second channel of the same id", err, leasehold.ErrConflict)
		closed(t, ch.Close)
		closed(t, ch.Close)
		gone(t, s.lease, pid)
	}},
	{name: "close by id", test: func(t *testing.T, s *scene) {
		id := unique("c")
		ch := channel(t, s.lease, leasehold.ChannelOptions{ID: id, Args: shell("echo $$; exec cat")})
		pid := readUntil(t, ch, "\n")
		for range 2 {
			if err := s.lease.CloseChannel(t.Context(), id); err != nil {
				t.Errorf("CloseChannel() = %v", err)
			}
		}
		gone(t, s.lease, pid)
	}},
	{name: "options that cannot be had", test: func(t *testing.T, s *scene) {
		_, err := s.lease.OpenChannel(t.Context(), leasehold.ChannelOptions{})
		wantError(t, "no program", err, leasehold.ErrInvalid)
		_, err = s.lease.OpenChannel(t.Context(), leasehold.ChannelOptions{Args: []string{"cat"}, Dir: "no/such/directory"})
		wantError(t, "a directory that is not there", err, leasehold.ErrNotFound)
	}},
}
