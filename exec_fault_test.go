package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

const (
	logsPath    = "/toolbox/*/process/session/*/command/*/logs"
	statusPath  = "/toolbox/*/process/session/*/command/*"
	sessionPath = "/toolbox/*/process/session/*"
)

// eventually waits, without sleeping between two looks, until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
	}
}

// running is a command that has begun.
type running struct {
	result Result
	err    error
	done   chan struct{}

	mu    sync.Mutex
	out   strings.Builder
	begun chan struct{} // closed when the first line has arrived
	once  sync.Once
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if bytes.IndexByte(p, '\n') >= 0 { // it may come in pieces
		r.once.Do(func() { close(r.begun) })
	}
	return r.out.Write(p)
}

func (r *running) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// startRunning starts a command, and returns when its first line has arrived.
func startRunning(t *testing.T, ctx context.Context, l *Lease, cmd Command) *running {
	t.Helper()
	run := &running{done: make(chan struct{}), begun: make(chan struct{})}
	cmd.Script = "echo begun\n" + cmd.Script
	cmd.Stdout = run
	go func() {
		defer close(run.done)
		run.result, run.err = l.Executor().Run(ctx, cmd.on(l))
	}()
	t.Cleanup(func() { <-run.done })
	select {
	case <-run.begun:
	case <-run.done:
		select {
		case <-run.begun: // both have come
		default:
			t.Fatalf("Run() = %+v, %v before any output", run.result, run.err)
		}
	}
	return run
}

// sessionIDs returns the ids of the lease's sessions.
func sessionIDs(l *Lease) []string {
	l.sessions.mu.Lock()
	defer l.sessions.mu.Unlock()
	return slices.Collect(maps.Keys(l.sessions.all))
}

// wait returns the error, which must have a kind.
func (r *running) wait(t *testing.T, want Kind) {
	t.Helper()
	<-r.done
	var e *Error
	if !errors.As(r.err, &e) || e.Kind != want {
		t.Errorf("Run() = %+v, %v; want kind %s", r.result, r.err, want)
	}
}

// TestE3FaultsOfTheObservationLoseNothing breaks each way of observing a command that ends on its own. The result must be
// the whole one.
func TestE3FaultsOfTheObservationLoseNothing(t *testing.T) {
	t.Parallel()
	always := func(f emulator.Fault) emulator.Fault { f.Count = -1; return f }
	get := func(path string, f emulator.Fault) emulator.Fault { f.Method, f.Path = "GET", path; return f }
	tests := map[string][]emulator.Fault{
		"none":                        nil,
		"first snapshot lost":         {get(logsPath, emulator.Fault{Action: emulator.DropBefore})},
		"first snapshot 502":          {get(logsPath, emulator.Fault{Action: emulator.StatusBefore, Status: 502})},
		"first snapshot truncated":    {get(logsPath, emulator.Fault{Action: emulator.TruncateBody, Bytes: 7})},
		"first snapshot is stuck":     {get(logsPath, emulator.Fault{Action: emulator.SilentSocket, Bytes: -1})},
		"socket refused":              {get(logsPath, emulator.Fault{Action: emulator.StatusBefore, Status: 502, Nth: 2})},
		"socket closed at once, 1000": {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Code: 1000, Nth: 2})},
		"socket closed early, 1000":   {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Code: 1000, Bytes: 50, Nth: 2})},
		"socket closed early, 1001":   {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Code: 1001, Bytes: 60, Nth: 2})},
		"socket closed early, 1011":   {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Code: 1011, Bytes: 70, Nth: 2})},
		"socket dropped, 1006":        {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Bytes: 80, Nth: 2})},
		"socket reset":                {get(logsPath, emulator.Fault{Action: emulator.ResetReply, Bytes: 90, Nth: 2})},
		"both sockets closed":         {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Code: 1000, Bytes: 50, Nth: 2, Count: 2})},
		"both sockets dropped":        {get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Bytes: 50, Nth: 2, Count: 2})},
		"replayed prefix":             {get(logsPath, emulator.Fault{Action: emulator.ReplayPrefix, Bytes: 100, Nth: 2})},
		"status always 500":           {always(get(statusPath, emulator.Fault{Action: emulator.StatusBefore, Status: 500})), get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Bytes: 50, Nth: 2})},
		"status in the exit window": {
			always(get(statusPath, emulator.Fault{Action: emulator.StatusBefore, Status: 500, Body: `{"statusCode":500,"message":"failed to convert exit code to int: strconv.Atoi: parsing \"\": invalid syntax","timestamp":"0001-01-01T00:00:00Z","path":""}`})),
			get(logsPath, emulator.Fault{Action: emulator.CloseSocket, Bytes: 50, Nth: 2}),
		},
		"polls fail at first": {get(logsPath, emulator.Fault{Action: emulator.StatusBefore, Status: 502, Count: 4}), get(statusPath, emulator.Fault{Action: emulator.StatusBefore, Status: 503, Count: 5})},
	}
	for name, faults := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := execRig(t, TransportSession)
			c := newCounter(t)
			r.server.SetFaults(faults...)
			// The exit falls behind the first snapshot, and the socket where that is to fail.
			g := newGate(t)
			script := "echo one; " + g.wait() + "echo two >&2; printf 'three\nfour'; sleep 0.2; printf five >&2; " + c.script()
			var run sync.WaitGroup
			run.Go(func() { mustRun(t, l, Command{Script: script}, finished(3, "one\nthree\nfourran\n", "two\nfive")) })
			ofLogs := len(faults) > 0 && faults[len(faults)-1].Path == logsPath
			if ofLogs {
				eventually(t, "the log is read", func() bool { return r.server.Faults()[len(faults)-1].Hits > 0 })
			}
			g.open(t)
			run.Wait()
			if ofLogs {
				r.wantHits(t)
			}
			c.want(t, 1)
			mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
		})
	}
}

func TestE3WithoutARecordedExitThereIsNone(t *testing.T) {
	t.Parallel()
	t.Run("session deleted under the command", func(t *testing.T) {
		r, l := execRig(t, TransportSession)
		run := startRunning(t, t.Context(), l, Command{Script: "sleep 60"})
		for _, id := range sessionIDs(l) {
			if err := l.resolved().DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		run.wait(t, KindUncertain)
		wantNoExit(t, run)
		r.wantSandboxes(t, 1)
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
	t.Run("shell killed by the command", func(t *testing.T) {
		_, l := execRig(t, TransportSession)
		run := startRunning(t, t.Context(), l, Command{Script: "kill -9 $PPID; sleep 60", Timeout: 5 * time.Second})
		run.wait(t, KindTimeout)
		wantNoExit(t, run)
		if !run.result.TimedOut || !run.result.StopConfirmed {
			t.Errorf("got %+v, want a timeout and a confirmed stop", run.result)
		}
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
	t.Run("sandbox stopped under the command", func(t *testing.T) {
		r, l := execRig(t, TransportSession)
		run := startRunning(t, t.Context(), l, Command{Script: "sleep 60"})
		if err := r.client.Stop(t.Context(), l.Ref().Sandbox); err != nil {
			t.Fatal(err)
		}
		run.wait(t, KindNotRunning)
		wantNoExit(t, run)
		runFails(t, t.Context(), l, Command{Args: []string{"true"}}, KindNotRunning, DispatchedNo)
		if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
			t.Fatal(err)
		}
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
	t.Run("sandbox deleted under the command", func(t *testing.T) {
		r, l := execRig(t, TransportSession)
		run := startRunning(t, t.Context(), l, Command{Script: "sleep 60"})
		if err := r.client.Delete(t.Context(), l.Ref().Sandbox); err != nil {
			t.Fatal(err)
		}
		<-run.done
		if !errors.Is(run.err, ErrGone) && !errors.Is(run.err, ErrNotRunning) {
			t.Errorf("Run() = %v, want gone or not running", run.err)
		}
		wantNoExit(t, run)
	})
	t.Run("lease given back under the command", func(t *testing.T) {
		r, l := execRig(t, TransportSession)
		run := startRunning(t, t.Context(), l, Command{Script: "sleep 60"})
		if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		run.wait(t, KindClosed)
		wantNoExit(t, run)
		runFails(t, t.Context(), l, Command{Args: []string{"true"}}, KindClosed, DispatchedNo)
	})
}

func wantNoExit(t *testing.T, run *running) {
	t.Helper()
	if got := run.result; got.Exited || got.ExitCode != -1 || got.Complete || run.output() != "begun\n" || got.Dispatched != DispatchedYes {
		t.Errorf("got %+v and %q, want no exit, the output so far, and dispatched yes", got, run.output())
	}
}

func TestE3AnExitWithoutTheWholeOutputSaysSo(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportSession)
	// A log of which only the beginning can be read, and a recorded exit.
	r.server.SetFaults(
		emulator.Fault{Method: "GET", Path: logsPath, Action: emulator.StatusAfter, Status: 200, Body: "\x01\x01\x01stray\n", Count: -1},
	)
	got, err := l.Executor().Run(t.Context(), Command{Script: "echo x; exit 9"}.on(l))
	if !errors.Is(err, ErrUncertain) || !got.Exited || got.ExitCode != 9 || got.Complete {
		t.Errorf("Run() = %+v, %v; want exit 9, incomplete, and uncertain", got, err)
	}
	// What the wrapper itself ended with is no exit of the command.
	got, err = l.Executor().Run(t.Context(), Command{Script: "exit 9", Dir: "none"}.on(l))
	if !errors.Is(err, ErrUncertain) || got.Exited || got.ExitCode != -1 || got.Complete {
		t.Errorf("Run() = %+v, %v; want no exit, incomplete, and uncertain", got, err)
	}
	r.wantHits(t)
}

func TestE4NothingACommandDoesHarmsTheNext(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		for name, tt := range map[string]struct {
			script string
			want   Result
		}{
			"exit":             {"exit 3", finished(3, "", "")},
			"exec":             {"exec sh -c 'echo y; exit 4'", finished(4, "y\n", "")},
			"set -e":           {"set -e; false; echo no", finished(1, "", "")},
			"kill itself":      {"kill $$", finished(143, "", "")},
			"kill its group":   {"kill -9 0", finished(137, "", "")},
			"close everything": {"exec <&- >&- 2>&-; exit 5", finished(5, "", "")},
			"change directory": {"cd /; export A=1; umask 777", finished(0, "", "")},
		} {
			t.Run(name, func(t *testing.T) {
				mustRun(t, l, Command{Script: tt.script}, tt.want)
				mustRun(t, l, Command{Script: `echo "next$A"; pwd`}, finished(0, "next\n"+l.Ref().Workspace+"\n", ""))
			})
		}
		t.Run("syntax error", func(t *testing.T) {
			got, err := l.Executor().Run(t.Context(), Command{Script: "echo a\nif (; then"}.on(l))
			if err != nil || got.ExitCode != 2 || string(got.Stdout) != "a\n" || got.StderrSize == 0 {
				t.Errorf("Run() = %+v, %v; want exit 2 and a reason on stderr", got, err)
			}
			mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
		})
	})
}

func TestE4ABackgroundChildNeitherBlocksNorDies(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		gate := filepath.Join(t.TempDir(), "gate")
		survived := filepath.Join(t.TempDir(), "survived")
		script := fmt.Sprintf("(until [ -e %s ]; do sleep 0.01; done; : >%s) & echo started", gate, survived)
		for range 2 {
			mustRun(t, l, Command{Script: script}, finished(0, "started\n", ""))
			mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the child ends on its own", func() bool {
			_, err := os.Stat(survived)
			return err == nil
		})
	})
}

// meeting is where n commands wait for each other: in a queue none would ever end.
type meeting struct {
	n        int
	dir      string
	entrance *os.File // a pipe: whoever has come reads a line from it
}

func newMeeting(t *testing.T, n int) *meeting {
	t.Helper()
	m := &meeting{n: n, dir: t.TempDir()}
	path := filepath.Join(m.dir, "entrance")
	if out, err := exec.Command("mkfifo", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var err error
	if m.entrance, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.entrance.Close() })
	return m
}

// script is what the i-th does.
func (m *meeting) script(i int) string {
	return fmt.Sprintf(": >%s/%d; read line <%s", m.dir, i, m.entrance.Name())
}

// await lets all go on once all have come.
func (m *meeting) await(t *testing.T) {
	t.Helper()
	eventually(t, "all run", func() bool {
		entries, err := os.ReadDir(m.dir)
		return err == nil && len(entries) == m.n+1
	})
	if _, err := m.entrance.WriteString(strings.Repeat("\n", m.n)); err != nil {
		t.Fatal(err)
	}
}

func TestE4ConcurrentCommandsRunConcurrently(t *testing.T) {
	r, l := execRig(t, TransportSession)
	const n = 64
	meet := newMeeting(t, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			script := fmt.Sprintf("%s; echo out %d; echo err %d >&2; exit %d", meet.script(i), i, i, i)
			mustRun(t, l, Command{Script: script, Profiles: ProfilesNone, Timeout: 2 * time.Minute}, finished(i, fmt.Sprintf("out %d\n", i), fmt.Sprintf("err %d\n", i)))
		})
	}
	meet.await(t)
	wg.Wait()
	eventually(t, "the pool shrinks", func() bool { // but for deletions that take too long, which are tried once more in the end
		asked, slow := 0, 0
		for _, q := range r.server.Requests() {
			if q.Method == "DELETE" {
				asked++
				if q.Duration > deleteTime/2 {
					slow++
				}
			}
		}
		return asked >= n-maxIdleSessions && len(sessionIDs(l)) <= maxIdleSessions+slow
	})
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Error(err)
	}
	if left := sessionIDs(l); len(left) != 0 {
		t.Errorf("sessions are left: %v", left)
	}
}

func TestE5TheEndOfTheContextStopsTheCommand(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		boom := errors.New("boom")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		alive := filepath.Join(t.TempDir(), "pid")
		run := startRunning(t, ctx, l, Command{Script: "sleep 61 & echo $! >" + alive + "; echo more; wait"})
		eventually(t, "the child runs", func() bool { data, _ := os.ReadFile(alive); return len(data) > 0 })
		began := time.Now()
		cancel(boom)
		run.wait(t, KindCanceled)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v to return", took)
		}
		if !errors.Is(run.err, boom) || !errors.Is(run.err, context.Canceled) {
			t.Errorf("%v does not wrap the cause", run.err)
		}
		got := run.result
		if !got.StopConfirmed || got.TimedOut || tr == TransportJournal && !got.Exited || got.Exited && got.ExitCode != 143 {
			t.Errorf("got %+v, want a confirmed stop, and the exit that it brought about, which a session may lose", got)
		}
		wantDead(t, alive)
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
}

// wantDead fails the test if the process whose id is in the file still runs.
func wantDead(t *testing.T, file string) {
	t.Helper()
	if pid := processIn(t, file); !processEnded(pid) {
		t.Errorf("process %d still runs", pid)
	}
}

// wantAlive fails the test if the process whose id is in the file, which a command left in the background, has ended. It ends
// it then.
func wantAlive(t *testing.T, file string) {
	t.Helper()
	pid := processIn(t, file)
	if processEnded(pid) {
		t.Errorf("process %d, which the command left in the background, was ended", pid)
	}
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

func processIn(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return pid
}

func TestE5TheTimeoutIsTheCommandsLifetime(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportSession)
	alive := filepath.Join(t.TempDir(), "pid")
	// Not even a dead connection prolongs it.
	r.server.SetFaults(emulator.Fault{Method: "GET", Path: logsPath, Action: emulator.SilentSocket, Bytes: -1, Count: -1})
	var began time.Time
	var got Result
	for timeout := 3 * time.Second; ; timeout *= 2 { // until it is more than a busy machine takes to begin the command
		began = time.Now()
		var err error
		got, err = l.Executor().Run(t.Context(), Command{Script: "echo $$ >" + alive + "; sleep 620", Timeout: timeout}.on(l))
		wantError(t, err, KindTimeout)
		if data, _ := os.ReadFile(alive); len(data) > 0 || timeout > 20*time.Second {
			break
		}
	}
	if got.Dispatched != DispatchedYes {
		t.Errorf("dispatched %s, want yes", got.Dispatched)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v to return", took)
	}
	// Which group the command has only the log tells.
	if !got.TimedOut || got.StopConfirmed || got.Exited || got.ExitCode != -1 {
		t.Errorf("got %+v, want a timeout, and neither stop nor exit confirmed", got)
	}
	wantDead(t, alive)
}

func TestE5AnUnconfirmedStopSaysSo(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportSession)
	r.server.SetFaults(emulator.Fault{Method: "DELETE", Path: sessionPath, Action: emulator.StatusBefore, Status: 403})
	got, _ := runFails(t, t.Context(), l, Command{Script: "sleep 63", Timeout: 5 * time.Second}, KindTimeout, DispatchedYes)
	if !got.TimedOut || got.StopConfirmed {
		t.Errorf("got %+v, want a timeout and no confirmed stop", got)
	}
	r.wantHits(t)
}

func TestE5ALostReplyOfTheStopIsNoFailure(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportSession)
	r.server.SetFaults(emulator.Fault{Method: "DELETE", Path: sessionPath, Action: emulator.DropAfter})
	got, _ := runFails(t, t.Context(), l, Command{Script: "sleep 64", Timeout: 5 * time.Second}, KindTimeout, DispatchedYes)
	if !got.TimedOut || !got.StopConfirmed {
		t.Errorf("got %+v, want a timeout and a confirmed stop", got)
	}
	r.wantHits(t)
}

func TestHealthyCommandsTakeFewRequests(t *testing.T) {
	r, l := execRig(t, TransportSession)
	for range 3 {
		mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
		exitsRecorded(t, l) // else the next one would take another session
	}
	got := r.count()
	// How many early status reads there are depends on how fast the machine is.
	delete(got, "GET /toolbox/*/process/session/*/command/*")
	want := map[string]int{
		"POST /toolbox/*/process/session":                 1,
		"POST /toolbox/*/process/session/*/exec":          3,
		"GET /toolbox/*/process/session/*/command/*/logs": 6, // a snapshot and a socket each
	}
	if logs := "GET /toolbox/*/process/session/*/command/*/logs"; got[logs] >= 3 && got[logs] <= 9 {
		want[logs] = got[logs] // some had ended by the snapshot, some before the socket told
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests mismatch (-want +got):\n%s", diff)
	}
	r.server.ResetRequests()
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Error(err)
	}
	if n := r.count()["DELETE /toolbox/*/process/session/*"]; n != 1 {
		t.Errorf("%d sessions deleted on release, want 1", n)
	}
}

// rested waits until a session is free for the next command. The looks that this takes are made in the background.
func rested(t *testing.T, l *Lease) {
	t.Helper()
	eventually(t, "a session is free", func() bool {
		l.sessions.mu.Lock()
		defer l.sessions.mu.Unlock()
		return len(l.sessions.idle) > 0
	})
}

// exitsRecorded waits until the daemon has recorded the exit of the last command of each idle session, of which there is one.
func exitsRecorded(t *testing.T, l *Lease) {
	t.Helper()
	rested(t, l)
	eventually(t, "the exits are recorded", func() bool {
		l.sessions.mu.Lock()
		defer l.sessions.mu.Unlock()
		for _, s := range l.sessions.idle {
			if s.last == "" {
				continue
			}
			if c, err := l.resolved().Command(t.Context(), s.id, s.last); err != nil || c.ExitCode == nil {
				return false
			}
		}
		return true
	})
}

// age makes the lease's idle sessions old enough to be looked at.
func age(l *Lease) {
	l.sessions.mu.Lock()
	defer l.sessions.mu.Unlock()
	for _, s := range l.sessions.idle {
		s.put = s.put.Add(-2 * freshTime)
	}
}

func TestADeadSessionIsReplaced(t *testing.T) {
	r, l := execRig(t, TransportSession)
	mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
	for _, id := range sessionIDs(l) {
		if err := l.resolved().DeleteSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	age(l)
	c := newCounter(t)
	mustRun(t, l, Command{Script: c.script()}, finished(3, "ran\n", ""))
	c.want(t, 1)
	if got := r.count(); got["POST /toolbox/*/process/session"] != 2 || got["POST "+execPath] != 2 {
		t.Errorf("requests: %v; want two sessions and two dispatches", got)
	}
}

func TestACreatedSessionMayBeCreatedTwice(t *testing.T) {
	r, l := execRig(t, TransportSession)
	r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/session", Action: emulator.Duplicate})
	mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
	r.wantHits(t)
}
