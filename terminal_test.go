//go:build unix

package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// leavesNoGoroutine fails the test if one of its goroutines outlives it. It must be called first, and not by parallel tests.
func leavesNoGoroutine(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func openTerminal(t *testing.T, l *Lease, options TerminalOptions) *Terminal {
	t.Helper()
	term, err := l.OpenTerminal(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := term.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return term
}

func shell(script string) []string { return []string{"sh", "-c", script} }

// readUntil reads until want has come, and returns all that did.
func readUntil(t *testing.T, r io.Reader, want string) string {
	t.Helper()
	var got []byte
	buf := make([]byte, 4096)
	for !strings.Contains(string(got), want) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	return string(got)
}

func typeText(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Fatalf("Write(%q) = %d, %v", text, n, err)
	}
}

func wantExit(t *testing.T, w interface {
	Wait(context.Context) (Exit, error)
}, want Exit) {
	t.Helper()
	if got, err := w.Wait(t.Context()); got != want || err != nil {
		t.Errorf("Wait() = %+v, %v, want %+v", got, err, want)
	}
}

// wantKilled waits for the end of a channel that has been closed on this side, which began then, and reports whether its exit
// came. That may be missing only if the sandbox took longer than is waited for it.
func wantKilled(t *testing.T, ch *Channel, began time.Time) bool {
	t.Helper()
	late := time.Since(began) >= killTime
	got, err := ch.Wait(t.Context())
	if late && errors.Is(err, ErrClosed) && got == (Exit{State: ExitUnknown, Code: -1}) {
		return false
	}
	if want := (Exit{State: ExitExited, Code: 137, Signal: "KILL"}); got != want || err != nil {
		t.Errorf("Wait() = %+v, %v, want %+v", got, err, want)
	}
	return true
}

// What a program finds on its terminal, whatever the sandbox's shell is. Nothing of the login shell's is in its output.
func TestTerminalRunsAProgram(t *testing.T) {
	for _, sh := range []string{"bash", "zsh", "dash", "busybox"} {
		t.Run(sh, func(t *testing.T) {
			leavesNoGoroutine(t)
			r := newRig(t, Config{}, emulator.Options{Shell: sandboxShell(t, sh)})
			l := r.acquired(t)
			dir := filepath.Join(l.Ref().Workspace, "a dir's \xc3\xa9")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			term := openTerminal(t, l, TerminalOptions{
				Args: []string{"sh", "-c", `stty size; pwd; echo "$TERM $V"; printf '%s|' "$@"; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && exit 3`, "sh", "a b", "it's", "", "\xff\n"},
				Dir:  "a dir's \xc3\xa9", Env: map[string]string{"V": "x  y'\n"}, Cols: 100, Rows: 30,
			})
			got, err := io.ReadAll(term)
			if want := "30 100\r\n" + dir + "\r\nxterm-256color x  y'\r\n\r\na b|it's||\xff\r\n|"; string(got) != want || err != nil {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
			wantExit(t, term, Exit{State: ExitExited, Code: 3})
			if requests := r.requests(); len(requests) > 3 {
				t.Errorf("requests %v, want one that creates the terminal and one that connects", requests)
			}
			wantNoTerminals(t, r, l)
		})
	}
}

// sandboxShell returns the path of a shell, of one that is all BusyBox for that.
func sandboxShell(t *testing.T, name string) string {
	t.Helper()
	if name == "busybox" {
		return busyBoxShell(t)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name+" is missing")
	}
	return path
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// busyBoxShell is BusyBox's shell where /bin/sh and every tool are BusyBox's too.
func busyBoxShell(t *testing.T) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		missing(t, "busybox is missing")
	}
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bwrap", "--dev-bind", "/", "/", "--ro-bind", busybox, sh, "/bin/sh", "-c", "true").CombinedOutput(); err != nil {
		missing(t, fmt.Sprintf("bwrap does not work here: %v: %s", err, out))
	}
	dir := t.TempDir()
	out, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(out)) {
		if err := os.Symlink(busybox, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "shell")
	text := fmt.Sprintf("#!/bin/bash\nexport PATH=%s\nexec %s --dev-bind / / --ro-bind %s %s %s/ash \"$@\"\n", dir, mustLook("bwrap"), busybox, sh, dir)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustLook(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		panic(err)
	}
	return path
}

// Interactive programs on real terminals.
func TestTerminalIsInteractive(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	l := r.acquired(t)
	t.Run("login shell", func(t *testing.T) {
		term := openTerminal(t, l, TerminalOptions{})
		typeText(t, term, "shopt -q login_shell && echo login$((1+1)); stty size; tty\r")
		if got := readUntil(t, term, "/dev/pts/"); !strings.Contains(got, "login2\r\n24 80\r\n") {
			t.Errorf("%q, want a login shell on 80 columns", got)
		}
		typeText(t, term, "sh -c 'kill -STOP $$; echo resu''med'\r") // what Ctrl-Z does
		readUntil(t, term, "Stopped")
		typeText(t, term, "fg\r")
		readUntil(t, term, "resumed\r\n")
		typeText(t, term, "exit 5\r")
		wantExit(t, term, Exit{State: ExitExited, Code: 5})
	})
	t.Run("full screen", func(t *testing.T) {
		term := openTerminal(t, l, TerminalOptions{Args: shell(`
			draw() { printf '\033[2J<%s>' "$(stty size)"; }
			trap draw WINCH
			stty raw -echo; printf '\033[?1049h'; draw
			while [ "$(dd bs=1 count=1 2>/dev/null)" != q ]; do :; done
			printf '\033[?1049l'`), Cols: 90, Rows: 20})
		readUntil(t, term, "\x1b[2J<20 90>")
		for _, size := range [][2]int{{120, 40}, {1, 1}, {1000, 1000}} {
			if err := term.Resize(t.Context(), size[0], size[1]); err != nil {
				t.Fatal(err)
			}
			typeText(t, term, "x") // a shell's trap waits for the foreground
			readUntil(t, term, fmt.Sprintf("\x1b[2J<%d %d>", size[1], size[0]))
		}
		for _, size := range [][2]int{{0, 24}, {80, 0}, {1001, 24}, {80, 1001}, {-1, 24}} {
			wantError(t, term.Resize(t.Context(), size[0], size[1]), KindInvalid)
		}
		typeText(t, term, "q")
		readUntil(t, term, "\x1b[?1049l")
		wantExit(t, term, Exit{State: ExitExited})
		r.server.ResetRequests()
		wantError(t, term.Resize(t.Context(), 80, 24), KindClosed)
		r.wantRequests(t)
		_, err := term.Write([]byte("x"))
		if wantError(t, err, KindClosed); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v is not io.ErrClosedPipe", err)
		}
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		term := openTerminal(t, l, TerminalOptions{Args: shell("echo ready; exec sleep 100")})
		readUntil(t, term, "ready")
		typeText(t, term, "\x03")
		wantExit(t, term, Exit{State: ExitExited, Code: 130, Signal: "INT"})
	})
	t.Run("Ctrl-C that is caught", func(t *testing.T) {
		term := openTerminal(t, l, TerminalOptions{Args: shell(`trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.02; done`)})
		readUntil(t, term, "ready")
		typeText(t, term, "\x03")
		readUntil(t, term, "caught")
		wantExit(t, term, Exit{State: ExitExited, Code: 9})
	})
	t.Run("password", func(t *testing.T) {
		term := openTerminal(t, l, TerminalOptions{Args: shell(`stty -echo; printf 'Password: '; read -r p; stty echo; printf '\n%s\n' "${#p} characters"`)})
		got := readUntil(t, term, "Password: ")
		typeText(t, term, "secret\r")
		if got += readUntil(t, term, "characters\r\n"); got != "Password: \r\n6 characters\r\n" {
			t.Errorf("%q: the password was echoed, or not read", got)
		}
		wantExit(t, term, Exit{State: ExitExited})
	})
	t.Run("raw", func(t *testing.T) {
		const size = 1 << 20
		term := openTerminal(t, l, TerminalOptions{Args: shell("stty raw -echo; echo ready; head -c " + strconv.Itoa(size))})
		readUntil(t, term, "ready\n")
		want := allBytes(size)
		go func() { _, _ = term.Write(want) }()
		got, err := io.ReadAll(term)
		if !bytes.Equal(got, want) || err != nil {
			t.Errorf("%d bytes, %v, want the %d that were typed", len(got), err, len(want))
		}
		wantExit(t, term, Exit{State: ExitExited})
	})
	t.Run("input that is not read", func(t *testing.T) {
		term := openTerminal(t, l, TerminalOptions{Args: shell("echo ready; read -r line; exit 4")})
		readUntil(t, term, "ready\r\n")
		typeText(t, term, "line\r\x04half a line")
		wantExit(t, term, Exit{State: ExitExited, Code: 4})
	})
	wantNoTerminals(t, r, l)
}

// Every exit comes with the last byte, although the daemon loses the end of what it is told to lose.
func TestTerminalKeepsTheTail(t *testing.T) {
	rounds := 40
	if long() {
		rounds = 1000
	}
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh", Quirks: emulator.Quirks{PTYTailLoss: func() bool { return true }}})
	l := r.acquired(t)
	var wg sync.WaitGroup
	next := make(chan int)
	for range 4 {
		wg.Go(func() {
			for i := range next {
				term, err := l.OpenTerminal(t.Context(), TerminalOptions{Args: shell(`read -r n; printf 'the last bytes of %s' "$n"; exit $((n%200))`)})
				if err != nil {
					t.Error(err)
					continue
				}
				_, err = fmt.Fprintf(term, "%d\r", i)
				got, readErr := io.ReadAll(term)
				if want := fmt.Sprintf("%d\r\nthe last bytes of %[1]d", i); string(got) != want || err != nil || readErr != nil {
					t.Errorf("round %d: %q, %v, %v, want %q", i, got, err, readErr, want)
				}
				if exit, err := term.Wait(t.Context()); exit.State != ExitExited || exit.Code != i%200 || err != nil {
					t.Errorf("round %d: Wait() = %+v, %v", i, exit, err)
				}
				if err := term.Close(); err != nil {
					t.Errorf("round %d: Close() = %v", i, err)
				}
			}
		})
	}
	for i := range rounds {
		next <- i
	}
	close(next)
	wg.Wait()
	wantNoTerminals(t, r, l)
}

func TestTerminalRefusesBadInput(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	for name, options := range map[string]TerminalOptions{
		"TerminalOptions.Cols": {Cols: 1001},
		"TerminalOptions.Rows": {Rows: -1},
		"TerminalOptions.Args": {Args: []string{}},
		"TerminalOptions.ID":   {ID: "a/b"},
	} {
		_, err := l.OpenTerminal(t.Context(), options)
		wantField(t, err, name)
	}
	for name, options := range map[string]ChannelOptions{
		"ChannelOptions.Args": {},
		"ChannelOptions.ID":   {Args: []string{"cat"}, ID: strings.Repeat("x", 101)},
	} {
		_, err := l.OpenChannel(t.Context(), options)
		wantField(t, err, name)
	}
	_, err := l.OpenTerminal(t.Context(), TerminalOptions{Args: []string{"echo", "a\x00b"}})
	wantField(t, err, "TerminalOptions.Args")
	_, err = l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat", "\x00"}})
	wantField(t, err, "ChannelOptions.Args")
	_, err = l.OpenTerminal(t.Context(), TerminalOptions{Dir: "a\x00b"})
	wantField(t, err, "TerminalOptions.Dir")
	_, err = l.OpenTerminal(t.Context(), TerminalOptions{Env: map[string]string{"a-b": ""}})
	wantField(t, err, "TerminalOptions.Env")
	_, err = l.OpenTerminal(t.Context(), TerminalOptions{Args: []string{"echo", strings.Repeat("x", 120<<10), strings.Repeat("y", 20<<10)}})
	wantField(t, err, "TerminalOptions.Args")
	_, err = l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"echo", strings.Repeat("'", 60<<10)}})
	wantField(t, err, "ChannelOptions.Args")
	_, err = l.AttachTerminal(t.Context(), "")
	wantField(t, err, "id")
	wantField(t, l.CloseTerminal(t.Context(), "a b"), "id")
	wantField(t, l.CloseChannel(t.Context(), ""), "id")
	r.wantRequests(t)

	_, err = l.OpenTerminal(t.Context(), TerminalOptions{Dir: "nowhere"})
	wantError(t, err, KindNotFound)
	_, err = l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat"}, Dir: "nowhere"})
	wantError(t, err, KindNotFound)
	_, err = l.AttachTerminal(t.Context(), "nowhere")
	wantError(t, err, KindNotFound)
	if hasActivity(r.Idle(), ActivityTerminal) {
		t.Errorf("active: %+v, want no terminal", r.Idle().Active)
	}
	for _, err := range []error{l.CloseTerminal(t.Context(), "nowhere"), l.CloseChannel(t.Context(), "nowhere")} {
		if err != nil {
			t.Errorf("closing what is not there: %v", err)
		}
	}
	wantNoTerminals(t, r, l)
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	if e := wantError(t, err, KindInvalid); len(e.Fields) == 0 || e.Fields[0].Field != field || e.Dispatched == DispatchedYes {
		t.Errorf("%v names %v, want %s", e, e.Fields, field)
	}
}

// A terminal is found again by its id, by the process that opened it or by another one, and its exit with it.
func TestTerminalIsFoundAgain(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	l := r.acquired(t)
	gate := filepath.Join(t.TempDir(), "gate")
	if out, err := exec.Command("mkfifo", gate).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	term := openTerminal(t, l, TerminalOptions{ID: "login", Args: shell("read -r a; echo got $a; read -r b <" + gate + "; exit 6")})
	_, err := l.OpenTerminal(t.Context(), TerminalOptions{ID: "login"})
	wantError(t, err, KindConflict)

	again, err := l.AttachTerminal(t.Context(), "login")
	if err != nil {
		t.Fatal(err)
	}
	exit, err := term.Wait(t.Context())
	if wantError(t, err, KindClosed); exit.State != ExitUnknown {
		t.Errorf("Wait() = %+v, want %q", exit, ExitUnknown)
	}
	if err := term.Close(); err != nil { // it is not that one's any more
		t.Error(err)
	}
	typeText(t, again, "x\r")
	readUntil(t, again, "got x\r\n")

	other := &rig{provider: rigProvider(t, r.server, Config{}), server: r.server}
	defer other.Close(t.Context())
	theirs, err := other.Bind(l.Ref())
	if err != nil {
		t.Fatal(err)
	}
	_, err = theirs.OpenTerminal(t.Context(), TerminalOptions{ID: "login"})
	wantError(t, err, KindConflict)
	again.c.leave()                                               // as if this host had died
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil { // it exits while nobody is connected
		t.Fatal(err)
	}
	third, err := theirs.AttachTerminal(t.Context(), "login")
	if err != nil {
		t.Fatal(err)
	}
	wantExit(t, third, Exit{State: ExitExited, Code: 6})
	if err := third.Close(); err != nil {
		t.Error(err)
	}
	wantNoTerminals(t, r, l)
}

// A terminal whose shell ends at once is reported as such, and leaves nothing behind.
func TestTerminalThatDiesAtOnce(t *testing.T) {
	for name, text := range map[string]string{
		"at once": "exit 1", "after a word": "echo cannot run; exit 3", "killed": "kill -9 $$",
	} {
		t.Run(name, func(t *testing.T) {
			leavesNoGoroutine(t)
			path := filepath.Join(t.TempDir(), "shell")
			if err := os.WriteFile(path, []byte("#!/bin/sh\ncase $* in *-i*) "+text+";; esac\nexec sh \"$@\"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			r := newRig(t, Config{}, emulator.Options{Shell: path})
			l := r.acquired(t)
			_, err := l.OpenTerminal(t.Context(), TerminalOptions{})
			wantError(t, err, KindRefused)
			_, err = l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat"}})
			if e := wantError(t, err, KindRefused); e.Dispatched != DispatchedYes {
				t.Errorf("dispatched %q, want yes", e.Dispatched)
			}
			wantNoTerminals(t, r, l)
		})
	}
}

// What becomes of a terminal, and of a channel, whose connection ends in any of the ways there are.
func TestTerminalConnections(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	l := r.acquired(t)
	program := shell("head -c 200000 /dev/zero; read x; exit 7")
	type connection struct {
		name  string
		fault emulator.Fault
		kind  Kind
		state ExitState
	}
	for _, tc := range sampled(t, []connection{
		{"drop", emulator.Fault{Action: emulator.CloseSocket}, KindUnavailable, ExitDisconnected},
		{"reset", emulator.Fault{Action: emulator.ResetReply}, KindUnavailable, ExitDisconnected},
		{"1000", emulator.Fault{Action: emulator.CloseSocket, Code: 1000}, KindUnavailable, ExitDisconnected},
		{"1000 and 0", emulator.Fault{Action: emulator.CloseSocket, Code: 1000, Body: `{"exitCode":0}`}, KindUncertain, ExitUnknown},
		{"1001", emulator.Fault{Action: emulator.CloseSocket, Code: 1001, Body: "going away"}, KindUnavailable, ExitDisconnected},
		{"1008", emulator.Fault{Action: emulator.CloseSocket, Code: 1008, Body: "slow consumer"}, KindLimit, ExitDisconnected},
		{"1009", emulator.Fault{Action: emulator.CloseSocket, Code: 1009}, KindUnavailable, ExitDisconnected},
		{"1011", emulator.Fault{Action: emulator.CloseSocket, Code: 1011}, KindUnavailable, ExitDisconnected},
		{"1011 and 3", emulator.Fault{Action: emulator.CloseSocket, Code: 1011, Body: `{"exitCode":3,"exitReason":"non-zero exit"}`}, KindUncertain, ExitUnknown},
	}, func(c connection) string { return string(c.kind) }) {
		tc.fault.Path, tc.fault.Bytes = connectPath, 100_000
		t.Run(tc.name, func(t *testing.T) {
			r.server.SetFaults(tc.fault)
			term := openTerminal(t, l, TerminalOptions{Args: program})
			_, err := io.Copy(io.Discard, term)
			wantOp(t, wantError(t, err, tc.kind), "read")
			exit, err := term.Wait(t.Context())
			wantOp(t, wantError(t, err, tc.kind), "wait")
			if e := wantError(t, err, tc.kind); exit != (Exit{State: tc.state, Code: -1}) || e.Dispatched != DispatchedYes {
				t.Errorf("Wait() = %+v, %+v, want %q", exit, e, tc.state)
			}
			_, err = term.Write([]byte("x"))
			wantError(t, err, KindClosed)
			r.wantHits(t)

			r.server.SetFaults(tc.fault)
			ch := openChannel(t, l, ChannelOptions{Args: program, Stderr: io.Discard})
			n, err := io.Copy(io.Discard, ch)
			wantOp(t, wantError(t, err, tc.kind), "read")
			if n >= 200_000 {
				t.Errorf("%d bytes came, want fewer than 200000", n)
			}
			exit, err = ch.Wait(t.Context())
			wantOp(t, wantError(t, err, tc.kind), "wait")
			if exit != (Exit{State: tc.state, Code: -1}) {
				t.Errorf("Wait() = %+v, want %q", exit, tc.state)
			}
			_, err = ch.Write([]byte("x"))
			wantError(t, err, KindClosed)
			r.wantHits(t)
			r.server.SetFaults()
		})
	}
	for name, fault := range map[string]emulator.Fault{
		"refused":         {Path: connectPath, Action: emulator.StatusBefore, Status: 403},
		"no such runner":  {Path: connectPath, Action: emulator.StatusBefore, Status: 502},
		"closed at first": {Path: connectPath, Action: emulator.CloseSocket, Code: 1011},
		"not created":     {Method: "POST", Path: "/toolbox/*/process/pty", Action: emulator.StatusBefore, Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			r.server.SetFaults(fault)
			defer r.server.SetFaults()
			_, err := l.OpenTerminal(t.Context(), TerminalOptions{})
			want := KindUnavailable
			if fault.Status == 403 {
				want = KindAuth
			}
			wantError(t, err, want)
			r.wantHits(t)
		})
	}
	drained(t, l)
	wantNoTerminals(t, r, l)
}

func wantOp(t *testing.T, e *Error, op string) {
	t.Helper()
	if e.Op != op {
		t.Errorf("%v is of %q, want %q", e, e.Op, op)
	}
}

// Lost and repeated requests neither leave a terminal behind nor open two.
func TestTerminalRequestsThatAreLost(t *testing.T) {
	const created, removed = "/toolbox/*/process/pty", "/toolbox/*/process/pty/*"
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	for name, faults := range map[string][]emulator.Fault{
		"creation":          {{Method: "POST", Path: created, Action: emulator.DropAfter}},
		"creation repeated": {{Method: "POST", Path: created, Action: emulator.Duplicate}},
		"creation refused":  {{Method: "POST", Path: created, Action: emulator.StatusAfter, Status: 502}},
		"removal":           {{Method: "DELETE", Path: removed, Action: emulator.DropAfter, Count: 2}},
		"removal refused":   {{Method: "DELETE", Path: removed, Action: emulator.StatusBefore, Status: 503, Count: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			r.server.SetFaults(faults...)
			defer r.server.SetFaults()
			term := openTerminal(t, l, TerminalOptions{Args: []string{"cat"}})
			typeText(t, term, "x\r")
			readUntil(t, term, "x\r\nx\r\n")
			for range 2 {
				if err := term.Close(); err != nil {
					t.Errorf("Close() = %v", err)
				}
			}
			r.wantHits(t)
			wantNoTerminals(t, r, l)
		})
	}
}

// Giving a lease back ends exactly its terminals and channels.
func TestTerminalsEndWithTheirLease(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l, other := r.acquired(t), r.acquired(t)
	open := func(l *Lease) (*Terminal, *Channel) {
		return openTerminal(t, l, TerminalOptions{Args: []string{"cat"}}), openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
	}
	term, ch := open(l)
	theirTerm, theirCh := open(other)
	if report := r.Idle(); !hasActivity(report, ActivityTerminal) || !hasActivity(report, ActivityChannel) {
		t.Errorf("active: %+v, want a terminal and a channel", report.Active)
	}
	began := time.Now()
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	wantKilled(t, ch, began)
	exit, err := term.Wait(t.Context())
	if wantError(t, err, KindClosed); exit.State != ExitUnknown {
		t.Errorf("Wait() = %+v, want %q", exit, ExitUnknown)
	}
	_, err = ch.Write([]byte("x"))
	wantError(t, err, KindClosed)
	_, err = l.OpenTerminal(t.Context(), TerminalOptions{})
	wantError(t, err, KindClosed)
	_, err = l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat"}})
	wantError(t, err, KindClosed)

	typeText(t, theirTerm, "still\r")
	readUntil(t, theirTerm, "still\r\nstill\r\n")
	typeText(t, theirCh, "here\n")
	readUntil(t, theirCh, "here\n")

	// A sandbox that is stopped by somebody else takes them along.
	if err := r.client.Stop(t.Context(), other.Ref().Sandbox); err != nil {
		t.Fatal(err)
	}
	if exit, err := theirTerm.Wait(t.Context()); err == nil || exit.State == ExitExited {
		t.Errorf("Wait() = %+v, %v, want no exit", exit, err)
	}
	if exit, err := theirCh.Wait(t.Context()); err == nil || exit.State == ExitExited {
		t.Errorf("Wait() = %+v, %v, want no exit", exit, err)
	}
}

// A lease whose sandbox turns out to be another's does nothing to it, and nor does whoever closes what was open there.
func TestL3TerminalsOfAForeignSandbox(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	term, ch := openTerminal(t, l, TerminalOptions{Args: []string{"cat"}}), openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
	r.server.ResetRequests()
	r.server.SetFaults(emulator.Fault{Path: "/api/sandbox/*", Action: emulator.MergeReply, Body: `{"name":"other"}`, Count: -1})
	_, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{})
	wantError(t, err, KindNotOwned)
	for _, c := range []opened{term, ch} {
		_, err := c.Wait(t.Context())
		wantError(t, err, KindClosed)
		if err := c.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
	drained(t, l)
	r.wantNothingDone(t)
}

func hasActivity(report IdleReport, kind ActivityKind) bool {
	for _, a := range report.Active {
		if a.Kind == kind {
			return true
		}
	}
	return false
}

// A terminal whose output nobody reads ends when the daemon gives it up; what was kept until then is read first.
func TestTerminalThatIsNotRead(t *testing.T) {
	leavesNoGoroutine(t)
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	gate := filepath.Join(t.TempDir(), "gate")
	if out, err := exec.Command("mkfifo", gate).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const size = 64 << 20 // more than all buffers on the way
	term := openTerminal(t, l, TerminalOptions{Args: shell(fmt.Sprintf("read x; read x; head -c %d /dev/zero; echo done >%s; read x", size, gate))})
	typeText(t, term, "first\r")
	eventually(t, "something has come, and is kept", func() bool { // nobody is dropped before that
		term.c.in.mu.Lock()
		defer term.c.in.mu.Unlock()
		return len(term.c.in.data) > 0
	})
	typeText(t, term, "go\r")
	if _, err := os.ReadFile(gate); err != nil { // the daemon has thrown it away
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, term)
	if !errors.Is(err, ErrLimit) && !errors.Is(err, ErrUnavailable) || n == 0 || n >= size {
		t.Errorf("%d bytes, %v, want those that came before the daemon gave up, and then the end of the connection", n, err)
	}
	if exit, err := term.Wait(t.Context()); err == nil || exit.State != ExitDisconnected {
		t.Errorf("Wait() = %+v, %v, want %q", exit, err, ExitDisconnected)
	}
	again, err := l.AttachTerminal(t.Context(), term.ID())
	if err != nil {
		t.Fatal(err)
	}
	typeText(t, again, "x\r")
	wantExit(t, again, Exit{State: ExitExited})
}
