package leasehold

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// ignoreTime leaves out of a comparison of results what differs from run to run.
var ignoreTime = cmpopts.IgnoreFields(Result{}, "Duration", "Delivery", "StdinSize")

// finished is the result of a command that ended on its own, with both streams captured.
func finished(code int, stdout, stderr string) Result {
	r := Result{
		ExitCode: code, Exited: true, Complete: true, Dispatched: DispatchedYes, StdoutSize: int64(len(stdout)), StderrSize: int64(len(stderr)),
	}
	if stdout != "" {
		r.Stdout = []byte(stdout)
	}
	if stderr != "" {
		r.Stderr = []byte(stderr)
	}
	return r
}

// on is the result on a transport.
func (r Result) on(tr Transport) Result {
	r.Transport, r.Fidelity = tr, FidelityExact
	if tr == TransportSession {
		r.Fidelity = FidelityLines
	}
	return r
}

// transportOf holds, for each lease of these tests, the transport of its commands.
var transportOf sync.Map

// on chooses the transport.
func (c Command) on(l *Lease) Command {
	if tr, ok := transportOf.Load(l); ok && c.Transport == TransportDefault {
		c.Transport = tr.(Transport)
	}
	return c
}

// eachTransport runs a test on both.
func eachTransport(t *testing.T, f func(t *testing.T, tr Transport)) {
	for _, tr := range []Transport{TransportJournal, TransportSession} {
		t.Run(string(tr), func(t *testing.T) { f(t, tr) })
	}
}

// mustRun runs a command that must end on its own, and compares the result.
func mustRun(t *testing.T, l *Lease, cmd Command, want Result) {
	t.Helper()
	cmd = cmd.on(l)
	got, err := l.Executor().Run(t.Context(), cmd)
	if err != nil {
		t.Errorf("Run(%+v) = %v", cmd, err)
	}
	if diff := cmp.Diff(want.on(cmd.Transport), got, ignoreTime); diff != "" {
		t.Errorf("Run(%+v) mismatch (-want +got):\n%s", cmd, diff)
	}
}

// runFails runs a command that must fail with a kind, and returns the result.
func runFails(t *testing.T, ctx context.Context, l *Lease, cmd Command, want Kind, dispatched Dispatch) (Result, *Error) {
	t.Helper()
	cmd = cmd.on(l)
	got, err := l.Executor().Run(ctx, cmd)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("Run(%+v) = %+v, %v; want an error of kind %s", cmd, got, err, want)
	}
	if e.Kind != want || e.Dispatched != dispatched || got.Dispatched != dispatched || e.Op != "run" || e.Sandbox == "" {
		t.Fatalf("Run(%+v) = %+v, %+v; want kind %s, dispatched %s", cmd, got, e, want, dispatched)
	}
	return got, e
}

// execRig returns a lease whose commands take a transport, unless they ask for one.
func execRig(t *testing.T, tr Transport) (*rig, *Lease) {
	t.Helper()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	transportOf.Store(l, tr)
	return r, l
}

func TestRun(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		workspace := l.Ref().Workspace
		tests := map[string]struct {
			cmd  Command
			want Result
		}{
			"arguments":         {Command{Args: []string{"printf", "<%s>", "a b", "", "'\"$x`", "\xff\n"}}, finished(0, "<a b><><'\"$x`><\xff\n>", "")},
			"script":            {Command{Script: "echo out; echo err >&2; exit 7"}, finished(7, "out\n", "err\n")},
			"no newline":        {Command{Script: "printf 'a\nb'; printf c >&2"}, finished(0, "a\nb", "c")},
			"newlines only":     {Command{Script: "printf '\n\n'; printf '\n' >&2"}, finished(0, "\n\n", "\n")},
			"no output":         {Command{Args: []string{"true"}}, finished(0, "", "")},
			"failure":           {Command{Args: []string{"false"}}, finished(1, "", "")},
			"no input":          {Command{Args: []string{"cat"}}, finished(0, "", "")},
			"workspace":         {Command{Args: []string{"pwd"}}, finished(0, workspace+"\n", "")},
			"absolute dir":      {Command{Args: []string{"pwd"}, Dir: "/"}, finished(0, "/\n", "")},
			"relative dir":      {Command{Script: "mkdir -p 'a b' && cd 'a b' && pwd"}, finished(0, workspace+"/a b\n", "")},
			"environment":       {Command{Script: `printf %s "$A|$GIT_ASKPASS"`, Env: map[string]string{"A": "it's\n$x"}}, finished(0, "it's\n$x|echo", "")},
			"without profiles":  {Command{Script: "echo ok", Profiles: ProfilesNone}, finished(0, "ok\n", "")},
			"input":             {Command{Args: []string{"od", "-An", "-c"}, Stdin: strings.NewReader("a\x00\xff\nb")}, finished(0, "   a  \\0 377  \\n   b\n", "")},
			"input with a dash": {Command{Args: []string{"od", "-An", "-c"}, Stdin: strings.NewReader("-a\x00b")}, finished(0, "   -   a  \\0   b\n", "")},
			"input not read":    {Command{Args: []string{"echo", "x"}, Stdin: strings.NewReader("ignored")}, finished(0, "x\n", "")},
			"empty input":       {Command{Args: []string{"cat"}, Stdin: strings.NewReader("")}, finished(0, "", "")},
			"death by a signal": {Command{Script: "kill -9 $$"}, finished(137, "", "")},
		}
		for name, tt := range tests {
			t.Run(name, func(t *testing.T) { mustRun(t, l, tt.cmd, tt.want) })
		}
	})
}

func TestRunRefusesWhatCannotRun(t *testing.T) {
	r, l := execRig(t, TransportSession)
	for name, tt := range map[string]struct {
		cmd     Command
		fields  string
		message string // part of it
	}{
		"nothing":          {Command{}, "Command", "neither"},
		"both":             {Command{Args: []string{"true"}, Script: "true"}, "Command", "both"},
		"NUL in argument":  {Command{Args: []string{"echo", "a\x00b"}}, "Command.Args", "Command.Args holds a NUL byte in argument 1"},
		"NUL in script":    {Command{Script: "a\x00b"}, "Command.Script", "Command.Script holds a NUL byte"},
		"NUL in directory": {Command{Script: "true", Dir: "a\x00b"}, "Command.Dir", "Command.Dir holds a NUL byte"},
		"NUL in value":     {Command{Script: "true", Env: map[string]string{"A": "a\x00b"}}, "Command.Env", "in the value of A"},
		"environment key":  {Command{Args: []string{"true"}, Env: map[string]string{"A-B": "x"}}, "Command.Env", `"A-B"`},
		"negative timeout": {Command{Args: []string{"true"}, Timeout: -1}, "Command.Timeout", "negative"},
		"policy":           {Command{Args: []string{"true"}, Profiles: "some"}, "Command.Profiles", "not a policy"},
		"too long a word":  {Command{Args: []string{"echo", strings.Repeat("x", 128<<10)}}, "Command.Args", "131071"},
		"everything": {
			Command{Args: []string{"-x"}, Script: "\x00", Dir: "\x00", Env: map[string]string{"A-B": "", "C D": ""}, Timeout: -1},
			"Command Command.Timeout Command.Dir Command.Env Command.Env Command.Args Command.Script", `"C D"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := runFails(t, t.Context(), l, tt.cmd, KindInvalid, DispatchedNo)
			if got := fieldsOf(err); got != tt.fields || !strings.Contains(err.Message, tt.message) {
				t.Errorf("got %v of %s, want %s of %s", err, got, tt.message, tt.fields)
			}
		})
	}
	r.wantRequests(t)
}

// fieldsOf returns the names of the fields of an invalid input.
func fieldsOf(err *Error) string {
	var fields []string
	for _, f := range err.Fields {
		fields = append(fields, f.Field)
	}
	return strings.Join(fields, " ")
}

// wantNoCommand fails the test if a command counts as active: one that was not started does not.
func wantNoCommand(t *testing.T, r *rig) {
	t.Helper()
	for _, a := range r.Idle().Active {
		if a.Kind == ActivityCommand {
			t.Errorf("active is %+v", a)
		}
	}
}

func TestAMissingDirectoryIsAnError(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		got, e := runFails(t, t.Context(), l, Command{Args: []string{"true"}, Dir: "no/such"}, KindNotFound, DispatchedYes)
		if want := strconv.Quote(path.Join(l.Ref().Workspace, "no/such")); !strings.Contains(e.Message, want) {
			t.Errorf("message %q, want it to name %s", e.Message, want)
		}
		if got.Exited || got.ExitCode != -1 || got.StderrSize == 0 {
			t.Errorf("got %+v, want no exit, and the shell's reason on stderr", got)
		}
		wantNoCommand(t, r)
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
}

func TestAProfileThatReplacesTheShellIsAnError(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		mustRun(t, l, Command{Profiles: ProfilesNone, Script: `echo 'exec true' >"$HOME/.profile"`}, finished(0, "", ""))
		got, _ := runFails(t, t.Context(), l, Command{Args: []string{"echo", "x"}}, KindRefused, DispatchedYes)
		if got.Exited || got.ExitCode != -1 {
			t.Errorf("got %+v, want no exit", got)
		}
		wantNoCommand(t, r)
		mustRun(t, l, Command{Profiles: ProfilesNone, Args: []string{"echo", "x"}}, finished(0, "x\n", ""))
	})
}

func TestAProfileThatExitsBeforeALongCommand(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		mustRun(t, l, Command{Profiles: ProfilesNone, Script: `echo 'exit 4' >"$HOME/.profile"`}, finished(0, "", ""))
		long := strings.Repeat("x", 100<<10) // twice more than an argument of a process holds
		mustRun(t, l, Command{Script: `cat; echo ${#A} ${#B}; exit 3`, Env: map[string]string{"A": long, "B": long}, Stdin: strings.NewReader("in\n")}, finished(3, "in\n102400 102400\n", ""))
	})
}

func TestCaptureLimit(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		cmd := Command{Script: "printf 0123456789; printf abc >&2", CaptureLimit: 4}
		want := finished(0, "0123", "abc")
		want.StdoutSize, want.Truncated = 10, true
		mustRun(t, l, cmd, want)
		cmd.CaptureLimit = -1
		want.Stdout, want.Stderr = nil, nil
		mustRun(t, l, cmd, want)
	})
}

// arrivals is a writer that tells what it was given.
type arrivals chan string

func (a arrivals) Write(p []byte) (int, error) {
	a <- string(p)
	return len(p), nil
}

// want takes as much as the text is long, in however many pieces it arrives, and compares that.
func (a arrivals) want(t *testing.T, text string) {
	t.Helper()
	got := ""
	for len(got) < len(text) {
		got += <-a
	}
	if got != text {
		t.Errorf("%q arrived, want %q", got, text)
	}
}

func TestOutputArrivesWhileTheCommandRuns(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		gate := filepath.Join(t.TempDir(), "gate")
		out := make(arrivals)
		done := make(chan error)
		go func() {
			_, err := l.Executor().Run(t.Context(), Command{Script: "echo first; until [ -e " + gate + " ]; do sleep 0.01; done; echo second", Stdout: out}.on(l))
			done <- err
		}()
		for got := ""; got != "first\n"; {
			select {
			case s := <-out:
				got += s
			case err := <-done:
				t.Fatalf("Run() = %v before the first line arrived", err)
			}
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		out.want(t, "second\n")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAFailingWriterStopsTheCommand(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		full := errors.New("full")
		r, w := io.Pipe()
		r.CloseWithError(full)
		got, err := runFails(t, t.Context(), l, Command{Script: "echo x; sleep 60", Stdout: w}, KindIO, DispatchedYes)
		if !errors.Is(err, full) || !got.StopConfirmed || got.Exited != (tr == TransportJournal) || got.Complete {
			t.Errorf("got %+v, %v; want the writer's error and a confirmed stop, of which a journal tells more", got, err)
		}
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
}

func TestAFailingReaderStartsNothing(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		broken := errors.New("broken")
		_, err := runFails(t, t.Context(), l, Command{Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("x"), readerFunc(func([]byte) (int, error) { return 0, broken }))}, KindIO, DispatchedNo)
		if !errors.Is(err, broken) {
			t.Errorf("%v is not the reader's error", err)
		}
		if n := r.count()["POST /toolbox/*/process/session/*/exec"]; n != 0 {
			t.Errorf("%d dispatches, want none", n)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestFilesAreRemovedOnEveryPath(t *testing.T) {
	r, l := execRig(t, TransportSession)
	place, err := l.Executor().Run(t.Context(), Command{Script: `printf %s "${TMPDIR:-/tmp}/.leasehold-$(id -u)"`}.on(l))
	if err != nil {
		t.Fatal(err)
	}
	dir := string(place.Stdout)
	content := strings.Repeat("input\n", 20_000)
	stdin := func() io.Reader { return strings.NewReader(content) }
	mustRun(t, l, Command{Args: []string{"cat"}, Stdin: stdin()}, finished(0, content, ""))
	mustRun(t, l, Command{Script: "exit 3 #" + content, Stdin: stdin()}, finished(3, "", ""))
	runFails(t, t.Context(), l, Command{Args: []string{"cat"}, Dir: "none", Stdin: stdin()}, KindNotFound, DispatchedYes)
	for timeout := 2 * time.Second; ; timeout *= 2 { // until it is more than a busy machine takes to begin the command
		got, err := l.Executor().Run(t.Context(), Command{Args: []string{"sleep", "60"}, Stdin: stdin(), Timeout: timeout}.on(l))
		wantError(t, err, KindTimeout)
		if got.Dispatched == DispatchedYes {
			break
		} else if timeout > 20*time.Second {
			t.Fatalf("dispatched %s after %v, want yes", got.Dispatched, timeout)
		}
	}
	r.server.SetFaults(emulator.Fault{Path: execPath, Action: emulator.DropBefore})
	if _, err := l.Executor().Run(t.Context(), Command{Args: []string{"cat"}, Stdin: stdin()}.on(l)); err == nil {
		t.Error("a command whose dispatch was lost ran")
	}
	r.wantHits(t)
	var names []string
	defer func() {
		if len(names) > 0 {
			t.Logf("left: %q", names)
		}
	}()
	eventually(t, "no file is left", func() bool {
		var err error
		names, err = filepath.Glob(filepath.Join(dir, "leasehold-command-*"))
		return err == nil && len(names) == 0
	})
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("%v: there were no files, the test proves nothing", err)
	}
}

// counter is a command that appends a line to a file each time it is started.
type counter struct{ file string }

func newCounter(t *testing.T) counter { return counter{filepath.Join(t.TempDir(), "starts")} }

func (c counter) script() string { return "echo x >>" + c.file + "; echo ran; exit 3" }

func (c counter) want(t *testing.T, want int) {
	t.Helper()
	data, err := os.ReadFile(c.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if got := bytes.Count(data, []byte("\n")); got != want {
		t.Errorf("the command was started %d times, want %d", got, want)
	}
}

const execPath = "/toolbox/*/process/session/*/exec"

// dispatchPath is where a transport's dispatches go.
func dispatchPath(tr Transport) string {
	if tr == TransportJournal {
		return "/toolbox/*/process/execute"
	}
	return execPath
}

// TestE1ACommandStartsAtMostOnce loses, refuses and doubles the dispatch in every way.
func TestE1ACommandStartsAtMostOnce(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		tests := map[string]struct {
			fault      emulator.Fault
			starts     int
			dispatched Dispatch // when it fails
		}{
			"delivered twice":         {emulator.Fault{Action: emulator.Duplicate}, 1, ""},
			"reply lost":              {emulator.Fault{Action: emulator.DropAfter}, 1, ""},
			"reply replaced by 502":   {emulator.Fault{Action: emulator.StatusAfter, Status: 502}, 1, ""},
			"reply replaced by 500":   {emulator.Fault{Action: emulator.StatusAfter, Status: 500}, 1, ""},
			"reply replaced by 408":   {emulator.Fault{Action: emulator.StatusAfter, Status: 408}, 1, ""},
			"reply truncated":         {emulator.Fault{Action: emulator.TruncateBody, Bytes: 10}, 1, ""},
			"reply reset":             {emulator.Fault{Action: emulator.ResetReply, Bytes: 5}, 1, ""},
			"lost before":             {emulator.Fault{Action: emulator.DropBefore}, 0, DispatchedNo},
			"502 before":              {emulator.Fault{Action: emulator.StatusBefore, Status: 502}, 0, DispatchedNo},
			"503 before":              {emulator.Fault{Action: emulator.StatusBefore, Status: 503}, 0, DispatchedNo},
			"429 before":              {emulator.Fault{Action: emulator.StatusBefore, Status: 429}, 0, DispatchedNo},
			"401 before":              {emulator.Fault{Action: emulator.StatusBefore, Status: 401}, 0, DispatchedNo},
			"400 before":              {emulator.Fault{Action: emulator.StatusBefore, Status: 400}, 0, DispatchedNo},
			"a late reply, delivered": {emulator.Fault{Action: emulator.DelayRequest, Delay: 300 * time.Millisecond}, 1, ""},
		}
		for name, tt := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, l := execRig(t, tr)
				c := newCounter(t)
				tt.fault.Path = dispatchPath(tr)
				r.server.SetFaults(tt.fault)
				if tt.dispatched == "" {
					mustRun(t, l, Command{Script: c.script()}, finished(3, "ran\n", ""))
				} else if got, err := l.Executor().Run(t.Context(), Command{Script: c.script()}.on(l)); err == nil || got.Dispatched != tt.dispatched || got.Exited || got.ExitCode != -1 {
					t.Errorf("Run() = %+v, %v; want an error, dispatched %s, no exit", got, err, tt.dispatched)
				}
				r.wantHits(t)
				c.want(t, tt.starts)
				mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
				c.want(t, tt.starts)
			})
		}
	})
}

func TestE1ADoubledDispatchIsFollowedLive(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportSession)
	gate := filepath.Join(t.TempDir(), "gate")
	r.server.SetFaults(emulator.Fault{Path: execPath, Action: emulator.Duplicate})
	out := make(arrivals, 8)
	done := make(chan error)
	go func() {
		_, err := l.Executor().Run(t.Context(), Command{Script: "echo live; until [ -e " + gate + " ]; do sleep 0.01; done", Stdout: out}.on(l))
		done <- err
	}()
	// The reply names the second delivery, which waits behind the first in the session.
	select {
	case got := <-out:
		if got != "live\n" {
			t.Errorf("got %q", got)
		}
	case err := <-done:
		t.Fatalf("Run() = %v before its output arrived", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.wantHits(t)
}

func TestE1WithoutAnyAnswerTheDispatchIsUnknown(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		c := newCounter(t)
		mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
		r.server.SetFaults(
			emulator.Fault{Path: dispatchPath(tr), Action: emulator.DropAfter, Count: -1},
			emulator.Fault{Method: "GET", Path: "/toolbox/**", Action: emulator.StatusBefore, Status: 502, Count: -1},
		)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var asking sync.WaitGroup
		asking.Go(func() {
			defer cancel()
			eventually(t, "the dispatch is lost, and asking for it in vain", func() bool {
				dispatches, looks := r.server.Faults()[0].Hits, r.server.Faults()[1].Hits
				return dispatches > 0 && looks > 0 || tr == TransportJournal && dispatches > 1 // where both have one path
			})
		})
		got, _ := runFails(t, ctx, l, Command{Script: c.script()}, KindCanceled, DispatchedUnknown)
		asking.Wait()
		// A session is deleted by another request, but what the command left in its group, if it began, is not known.
		if got.Exited || got.ExitCode != -1 || got.StopConfirmed {
			t.Errorf("got %+v, want neither exit nor stop confirmed", got)
		}
		if tr == TransportSession {
			r.wantHits(t)
		}
	})
}

// lateDelivery loses the first dispatch it sees, and can deliver it later.
type lateDelivery struct {
	next http.Handler
	path string             // how the paths of dispatches end; set once there is a lease
	lost chan *http.Request // holds the dispatch
}

func (d *lateDelivery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.path != "" && strings.HasSuffix(r.URL.Path, d.path) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		again := r.Clone(context.Background())
		again.Body = io.NopCloser(bytes.NewReader(body))
		select {
		case d.lost <- again:
			panic(http.ErrAbortHandler)
		default:
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
	}
	d.next.ServeHTTP(w, r)
}

func TestE1ADispatchThatArrivesLateIsRefused(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		late := &lateDelivery{lost: make(chan *http.Request, 1)}
		r := newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler { late.next = next; return late }})
		l := r.acquired(t)
		transportOf.Store(l, tr)
		late.path = strings.TrimPrefix(dispatchPath(tr), "/toolbox/*/process")
		late.path = late.path[strings.LastIndex(late.path, "/"):]
		c := newCounter(t)
		_, err := runFails(t, t.Context(), l, Command{Script: c.script()}, KindUnavailable, DispatchedNo)
		if !err.Retryable {
			t.Error("what is proved not to start may be repeated")
		}
		reply := httptest.NewRecorder()
		dispatch := <-late.lost
		late.next.ServeHTTP(reply, dispatch)
		late.lost <- nil // lose no more
		if reply.Code != http.StatusAccepted && reply.Code != http.StatusOK {
			t.Fatalf("the late delivery was answered with %d %s: the test proves nothing", reply.Code, reply.Body)
		}
		// It went to the one session there is, which runs what it is sent in order.
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
		c.want(t, 0)
		if n := len(sessionIDs(l)); tr == TransportSession && n != 1 {
			t.Errorf("%d sessions, want 1", n)
		}
	})
}

// TestE2OutputIsByteExact prints from a file, so that the log, not the shell, is what is tested.
func TestE2OutputIsByteExact(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		every := make([]byte, 0, 255)
		for b := 1; b < 256; b++ {
			every = append(every, byte(b))
		}
		for name, content := range fewer(map[string]string{
			"every byte but NUL":  string(every),
			"invalid UTF-8":       "\xff\xfe\n\x80\xc3",
			"marker bytes":        "\x01\x01\x01a\n\x02\x02\x02b\nc\x02\x02\x02d\x01\x01\x01\n\x01\n\x02\x02",
			"newlines":            "\n\n\na\n\n",
			"NUL":                 "\x00a\x00\n\x00",
			"replacement runes":   "\uFFFD\n\uFFFD",
			"more than a reply":   strings.Repeat("0123456789abcde\n", 8<<10),
			"a rune at the limit": strings.Repeat("x", 64<<10-1) + "\u00e9\n",
			"carriage returns":    "a\r\nb\r",
			"no newline":          "abc",
			"many short lines":    strings.Repeat("line\n", 5000),
			"backslashes, blanks": " \\a \\\n\t\\\\ \n ",
		}) {
			t.Run(name, func(t *testing.T) {
				if tr == TransportSession && strings.ContainsRune(content, 0) {
					return // which the log drops
				}
				file := filepath.Join(t.TempDir(), "content")
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				mustRun(t, l, Command{Script: "cat " + file + "; cat " + file + " >&2"}, finished(0, content, content))
			})
		}
	})
}

func TestE2LongLinesAreExactOrSaidNotToBe(t *testing.T) {
	_, l := execRig(t, TransportSession)
	// 64 KiB lines, which the log takes in pieces.
	got, err := l.Executor().Run(t.Context(), Command{Script: `line=$(printf '%065535d' 0); for i in 1 2 3 4 5; do echo "$line"; echo "$line" >&2; done; printf %s "$line"; printf %s "$line" >&2`}.on(l))
	line := strings.Repeat("0", 65535)
	want := strings.Repeat(line+"\n", 5) + line
	exact := string(got.Stdout) == want && string(got.Stderr) == want
	if err != nil || !got.Exited || !exact && got.Fidelity != FidelityDamaged {
		t.Errorf("Run() = exit %d, %v, exact %v, fidelity %s", got.ExitCode, err, exact, got.Fidelity)
	}
}
