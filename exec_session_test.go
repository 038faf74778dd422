package leasehold

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/script"
)

// shellOf returns the process of the shell of the lease's one idle session.
func shellOf(t *testing.T, l *Lease) int {
	t.Helper()
	got, err := l.Executor().Run(t.Context(), Command{Script: "echo $PPID"}.on(l))
	pid, bad := strconv.Atoi(strings.TrimSpace(string(got.Stdout)))
	if err != nil || bad != nil {
		t.Fatalf("Run() = %+v, %v; want the shell's process", got, err)
	}
	exitsRecorded(t, l) // a shell that is killed before that leaves a session for which nobody waits
	return pid
}

// signalProcess sends a signal to a process of the sandbox.
func signalProcess(t *testing.T, l *Lease, name string, pid int) {
	t.Helper()
	if got, err := l.resolved().Execute(t.Context(), fmt.Sprintf("kill -%s %d", name, pid), 0); err != nil || got.ExitCode != 0 {
		t.Fatalf("kill -%s: %+v, %v", name, got, err)
	}
}

// processEnded reports whether a process runs no more.
func processEnded(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestASessionWhoseShellDiedIsReplaced(t *testing.T) {
	r, l := execRig(t, TransportSession)
	pid := shellOf(t, l)
	signalProcess(t, l, "KILL", pid)
	eventually(t, "the session takes no command", func() bool { // the emulator knows of the end a moment later
		_, err := l.resolved().StartCommand(t.Context(), sessionIDs(l)[0], "true")
		return err != nil
	})
	r.server.ResetRequests()
	c := newCounter(t)
	mustRun(t, l, Command{Script: c.script()}, finished(3, "ran\n", ""))
	c.want(t, 1)
	if got := r.count(); got["POST /toolbox/*/process/session"] != 1 || got["POST "+execPath] != 2 {
		t.Errorf("requests: %v; want another session and two dispatches", got)
	}
	eventually(t, "the dead session is deleted", func() bool { return len(sessionIDs(l)) == 1 })
}

func TestE1ABrokenPipeIsNoProofThatNothingRan(t *testing.T) {
	tests := map[string]struct {
		twins      []string
		accepted   bool
		dispatches int
		kind       Kind // none: the command ran
		dispatched Dispatch
	}{
		"one delivery, not accepted":    {[]string{"cmd"}, false, 2, "", DispatchedYes},
		"one delivery, accepted":        {[]string{"cmd"}, true, 1, KindUncertain, DispatchedYes},
		"two deliveries, none accepted": {[]string{"a", "b"}, false, 1, KindUncertain, DispatchedUnknown},
		"two deliveries, one accepted":  {[]string{"a", "b"}, true, 1, KindUncertain, DispatchedYes},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				s := &scripted{onFollow: closeCleanly, onList: func(w http.ResponseWriter, r *http.Request, s *scripted) { s.list(w, r, tt.twins...) }}
				s.onDispatch = func(w http.ResponseWriter, _ *http.Request, s *scripted) {
					if n++; n > 1 {
						s.begin()
						s.end(3)
						s.record(3)
						s.took(w)
						return
					}
					if tt.accepted {
						s.begin()
					}
					brokenPipe(w)
				}
				l := newScripted(t, s)
				began := time.Now()
				got, err := s.run(t, l, Command{}, nil)
				if tt.kind == "" {
					wantFinished(t, got, err, finished(3, "", ""))
				} else if e := failed("", err); e == nil || e.Kind != tt.kind || e.Dispatched != tt.dispatched || got.Exited {
					t.Errorf("Run() = %+v, %v; want %s, dispatched %s, no exit", got, err, tt.kind, tt.dispatched)
				}
				if got := len(s.at("dispatch")); got != tt.dispatches {
					t.Errorf("%d dispatches, want %d", got, tt.dispatches)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestALostSandboxEndsTheSearchForADispatch(t *testing.T) {
	var r *rig
	var l *Lease
	var deleted sync.Once
	r = newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/exec") {
				deleted.Do(func() {
					if err := r.client.Delete(req.Context(), l.Ref().Sandbox); err != nil {
						t.Error(err)
					}
				})
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, req)
		})
	}})
	l = r.acquired(t)
	transportOf.Store(l, TransportSession)
	began := time.Now()
	got, err := l.Executor().Run(t.Context(), Command{Args: []string{"true"}}.on(l))
	if e := failed("", err); e == nil || e.Kind != KindGone && e.Kind != KindNotRunning || got.Dispatched != DispatchedUnknown {
		t.Errorf("Run() = %+v, %v; want gone or not running, dispatched unknown", got, err)
	}
	if took := time.Since(began); took > resolveTime/2 {
		t.Errorf("it took %v", took)
	}
}

func TestE3ARecordedExitWithAnUnreadableLogEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := func(w http.ResponseWriter, _ *http.Request, _ *scripted) { w.WriteHeader(http.StatusBadGateway) }
		s := &scripted{onFollow: closeCleanly, onLogs: dead}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() { s.begin(); s.end(3); s.record(3) })
		if e := failed("", err); e == nil || e.Kind != KindUncertain || !got.Exited || got.ExitCode != 3 || got.Complete {
			t.Errorf("Run() = %+v, %v; want exit 3, incomplete, and uncertain", got, err)
		}
		wantBetween(t, "duration", got.Duration, unreadTime, unreadTime+2*silenceTime)
	})
}

func TestAWriterThatDoesNotReturnStopsTheCommand(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		for name, leave := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
			t.Run(name, func(t *testing.T) {
				_, l := execRig(t, tr)
				alive := filepath.Join(t.TempDir(), "pid")
				done := make(chan any)
				go func() {
					defer func() { done <- recover() }()
					cmd := Command{Script: "echo $$ >" + alive + "; echo x; sleep 68", Stdout: writerFunc(func([]byte) (int, error) { leave(); return 0, nil })}
					_, _ = l.Executor().Run(t.Context(), cmd.on(l))
				}()
				if got := <-done; (got != nil) != (name == "panic") {
					t.Errorf("recovered %v", got)
				}
				wantDead(t, alive)
				mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
			})
		}
		t.Run("goexit under Start", func(t *testing.T) {
			_, l := execRig(t, tr)
			p, err := l.Executor().Start(t.Context(), Command{Script: "echo x; sleep 68", Stdout: writerFunc(func([]byte) (int, error) { runtime.Goexit(); return 0, nil })}.on(l))
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Wait()
			wantError(t, err, KindUncertain)
			if got.Dispatched != DispatchedYes || !got.StopConfirmed || got.Complete || got.ExitCode == 0 {
				t.Errorf("got %+v, want a confirmed stop, and no output or exit that was not seen", got)
			}
		})
	})
}

func TestE2WhatAWriterDidNotTakeIsNotComplete(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		broken := writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe })
		for name, cmd := range map[string]Command{"stdout": {Script: "echo x", Stdout: broken}, "stderr": {Script: "echo x >&2", Stderr: broken}} {
			if got, _ := runFails(t, t.Context(), l, cmd, KindIO, DispatchedYes); got.Complete {
				t.Errorf("%s: got %+v, want what is not complete", name, got)
			}
		}
	})
}

// TestAContextsCauseIsNotAWriters: it may be an error of this package's, from another command of an errgroup.
func TestAContextsCauseIsNotAWriters(t *testing.T) {
	sibling := &Error{Op: "run", Kind: KindIO}
	if err := (&daytona.Error{Reason: daytona.ReasonCanceled, Cause: sibling}); isOwn(err) || !isOwn(sibling) {
		t.Error("the error of another command passes for that of a writer")
	}
}

func TestADeadSessionIsNotGivenBack(t *testing.T) {
	r, l := execRig(t, TransportSession)
	signalProcess(t, l, "KILL", shellOf(t, l))
	eventually(t, "the session takes no command", func() bool {
		_, err := l.resolved().StartCommand(t.Context(), sessionIDs(l)[0], "true")
		return err != nil
	})
	r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/session", Action: emulator.StatusBefore, Status: 502, Count: -1})
	runFails(t, t.Context(), l, Command{Args: []string{"true"}}, KindUnavailable, DispatchedNo)
	l.sessions.mu.Lock()
	idle := len(l.sessions.idle)
	l.sessions.mu.Unlock()
	if idle != 0 {
		t.Errorf("%d sessions wait for commands, and the only one is dead", idle)
	}
	r.wantHits(t)
	r.server.SetFaults()
}

// TestAReferenceIsReadAtAnyTime is for the race detector: a delivery is chosen while the command is observed.
func TestAReferenceIsReadAtAnyTime(t *testing.T) {
	_, l := execRig(t, TransportSession)
	r := newSessionRun(&execution{l: l, ref: &CommandRef{}, stdout: newOutput(nil, 0), stderr: newOutput(nil, 0)})
	var wg sync.WaitGroup
	wg.Go(func() { r.observing("twin") })
	wg.Go(func() { r.use(&session{id: "other"}) })
	r.refer(new(CommandRef))
	wg.Wait()
}

// TestE3TheStatusOfAStoppedShellIsNoExit has the daemon record a status of what was stopped: of the profiles, perhaps.
func TestE3TheStatusOfAStoppedShellIsNoExit(t *testing.T) {
	_, l := execRig(t, TransportSession)
	for started, want := range map[bool]int{false: -1, true: 143} {
		status := 143
		r := newSessionRun(&execution{l: l, stopped: true, dispatched: DispatchedYes, stdout: newOutput(nil, 0), stderr: newOutput(nil, 0)})
		r.transport, r.recorded = r, &status
		log := "\x01\x01\x01" + string(r.mark) + "a\n"
		if started {
			log += string(r.mark) + "s\n"
		}
		if _, err := r.log.Open().Write([]byte(log)); err != nil || !r.log.Accepted() || r.log.Started() != started {
			t.Fatalf("%v, accepted %v, started %v: the log is not read as it is meant", err, r.log.Accepted(), r.log.Started())
		}
		if got := r.result(); got.Exited != started || got.ExitCode != want {
			t.Errorf("started %v: got %+v, want the exit code %d", started, got, want)
		}
	}
}

// TestGivingBackEndsWithItsContext: so does what is done in the background then.
func TestGivingBackEndsWithItsContext(t *testing.T) {
	_, l := execRig(t, TransportSession)
	l.sessions.later(l, func(ctx context.Context) { <-ctx.Done() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	l.sessions.close(ctx, l)
	if took := time.Since(began); took >= deleteTime {
		t.Errorf("it took %v", took)
	}
}

func TestALeaseIsGivenBackWithoutWaitingForInput(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		in, out := io.Pipe()
		asked, done := make(chan struct{}), make(chan struct{})
		var once sync.Once
		reader := readerFunc(func(p []byte) (int, error) {
			once.Do(func() { close(asked) })
			return in.Read(p)
		})
		var got Result
		var err error
		go func() {
			defer close(done)
			got, err = l.Executor().Run(t.Context(), Command{Args: []string{"cat"}, Stdin: reader}.on(l))
		}()
		<-asked
		began := time.Now()
		if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		<-done
		if took := time.Since(began); took >= drainTime {
			t.Errorf("it took %v", took)
		}
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Run() = %+v, %v; want closed", got, err)
		}
		out.Close()
	})
}

func TestADeadShellEndsTheRunAfterALook(t *testing.T) {
	tests := map[string]struct {
		look      func(w http.ResponseWriter, _ *http.Request, _ *scripted)
		log       []string
		low, high time.Duration
	}{ // the looks at the shell, and, while it lives, at the command
		"gone":              {say("gone"), []string{"o:@a", "o:@p:77", "o:@s"}, silenceTime, silenceTime + 2*time.Second},
		"gone later":        {say("alive", "alive", "alive", "alive", "gone"), []string{"o:@a", "o:@p:77", "o:@g:78:9", "o:@s"}, silenceTime + 2*shellTime, silenceTime + 2*shellTime + 3*time.Second},
		"stopped for good":  {say("alive", "alive", "stopped", "alive", "stopped"), []string{"o:@a", "o:@p:77", "o:@g:78:9", "o:@s"}, silenceTime + 2*shellTime, silenceTime + 2*shellTime + 3*time.Second},
		"before the accept": {nil, nil, silenceTime, silenceTime + 2*time.Second},
		"the log is full":   {say("alive", "gone", "alive", "gone"), []string{"o:@a", "o:@p:77", "o:@g:78:9", "o:@s", "o:x"}, silenceTime + shellTime, silenceTime + 2*shellTime + 3*time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				s := &scripted{onExecute: tt.look}
				s.onDispatch = func(w http.ResponseWriter, _ *http.Request, s *scripted) {
					if n++; n > 1 {
						brokenPipe(w)
						return
					}
					s.write(tt.log...)
					s.took(w)
				}
				l := newScripted(t, s)
				got, err := s.run(t, l, Command{}, nil)
				if e := failed("", err); e == nil || e.Kind != KindUncertain || e.Dispatched != DispatchedYes || got.Exited {
					t.Errorf("Run() = %+v, %v; want uncertain, dispatched, no exit", got, err)
				}
				wantBetween(t, "duration", got.Duration, tt.low, tt.high)
			})
		})
	}
	t.Run("alive, or stopped for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{onExecute: say("stopped", "alive", "alive", "alive", "stopped", "alive")}
			l := newScripted(t, s)
			got, err := s.run(t, l, Command{}, func() {
				s.write("o:@a", "o:@p:77", "o:@g:78:9", "o:@s")
				time.Sleep(10 * time.Minute) // virtual
				s.end(0)
				s.record(0)
			})
			wantFinished(t, got, err, finished(0, "", ""))
			if n := len(s.at("execute")); n < 36 || n > 42 {
				t.Errorf("%d looks in ten minutes, want one each %v at the shell, and one at the command", n, shellTime)
			}
		})
	})
}

func TestALookTellsWhetherAShellLives(t *testing.T) {
	_, l := execRig(t, TransportSession)
	pid := shellOf(t, l)
	look := func() string {
		got, err := l.resolved().Execute(t.Context(), script.Look(pid, ""), 0)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(got.Output)
	}
	if got := look(); got != script.LookAlive {
		t.Errorf("%q, want alive", got)
	}
	signalProcess(t, l, "STOP", pid)
	eventually(t, "stopped", func() bool { return look() == script.LookStopped })
	signalProcess(t, l, "KILL", pid)
	eventually(t, "gone", func() bool { return look() == script.LookGone })
}

func TestADaemonOfAProfileDoesNotHoldTheSession(t *testing.T) {
	r, l := execRig(t, TransportSession)
	mustRun(t, l, Command{Profiles: ProfilesNone, Script: `echo 'sleep 600 &' >"$HOME/.profile"`}, finished(0, "", ""))
	exitsRecorded(t, l)
	for range 4 {
		mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
		exitsRecorded(t, l)
	}
	if n := r.count()["POST /toolbox/*/process/session"]; n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

func TestHeldSessionsAreLimited(t *testing.T) {
	_, l := execRig(t, TransportSession)
	var p sessionPool
	p.closed = true // nothing is deleted
	for i := range maxHeldSessions + 3 {
		p.hold(l, nil, &session{id: strconv.Itoa(i)})
	}
	if len(p.held) != maxHeldSessions || p.held[0].id != "3" {
		t.Errorf("%d held, the oldest %s; want %d and 3", len(p.held), p.held[0].id, maxHeldSessions)
	}
}

func TestAShortCommandTakesTwoRequestsOfASession(t *testing.T) {
	tests := map[string]struct {
		free bool
		want []string
	}{
		"nothing left behind":   {true, []string{"dispatch", "snapshot"}},
		"something may be left": {false, []string{"status", "dispatch", "snapshot"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{}
				s.onDispatch = func(w http.ResponseWriter, _ *http.Request, s *scripted) {
					s.mu.Lock()
					s.log = nil
					s.mu.Unlock()
					s.begin()
					if tt.free {
						s.write("o:@f")
					}
					s.end(0)
					s.record(0)
					s.took(w)
				}
				l := newScripted(t, s)
				for range 2 {
					s.mu.Lock()
					s.events = nil
					s.mu.Unlock()
					got, err := s.run(t, l, Command{}, nil)
					wantFinished(t, got, err, finished(0, "", ""))
				}
				var got []string
				for _, e := range s.events {
					got = append(got, strings.Fields(e)[1])
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("requests of the second command (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// recordedFirst holds the reply of each dispatch back until the daemon has recorded the command's exit, and counts the reads
// that it takes to know that.
func recordedFirst(t *testing.T, reads *atomic.Int64) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			session, found := strings.CutSuffix(r.URL.Path, "/exec")
			if !found {
				next.ServeHTTP(w, r)
				return
			}
			reply := httptest.NewRecorder()
			next.ServeHTTP(reply, r)
			var taken struct {
				ID string `json:"cmdId"`
			}
			if err := json.Unmarshal(reply.Body.Bytes(), &taken); err != nil {
				t.Error(err)
			}
			status := r.Clone(r.Context())
			status.Method, status.URL.Path, status.Body = http.MethodGet, session+"/command/"+taken.ID, http.NoBody
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for recorded := false; !recorded && r.Context().Err() == nil; <-tick.C {
				got := httptest.NewRecorder()
				next.ServeHTTP(got, status)
				reads.Add(1)
				recorded = strings.Contains(got.Body.String(), `"exitCode":0`)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(reply.Code)
			_, _ = w.Write(reply.Body.Bytes())
		})
	}
}

// TestARealCommandThatHasEndedTakesTwoRequests: one that the wrapper is sure to have left nothing behind.
func TestARealCommandThatHasEndedTakesTwoRequests(t *testing.T) {
	var reads atomic.Int64
	r := newRig(t, Config{}, emulator.Options{Middleware: recordedFirst(t, &reads)})
	l := r.acquired(t)
	transportOf.Store(l, TransportSession)
	r.atLast(t, func() bool {
		reads.Store(0)
		mustRun(t, l, Command{Args: []string{"true"}, Profiles: ProfilesNone}, finished(0, "", ""))
		return len(r.requests())-int(reads.Load()) == 2
	})
}

func TestE5AnOrphanOfTheGroupIsStoppedToo(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatal("there is no /proc")
		}
		t.Skip("there is no /proc to find processes in")
	}
	for name, script := range map[string]string{
		"leader runs":  "sh -c 'sleep 65 & echo $! >%s'; echo more; exec sleep 66",
		"leader ended": "kill -STOP $PPID; sh -c 'sleep 65 & echo $! >%s'; kill -9 $$",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, l := execRig(t, TransportSession)
			orphan := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run := startRunning(t, ctx, l, Command{Script: fmt.Sprintf(script, orphan)})
			eventually(t, "the orphan runs", func() bool { data, _ := os.ReadFile(orphan); return len(data) > 0 })
			cancel()
			run.wait(t, KindCanceled)
			if !run.result.StopConfirmed {
				t.Errorf("got %+v, want a confirmed stop", run.result)
			}
			wantDead(t, orphan)
		})
	}
	t.Run("not proved empty", func(t *testing.T) {
		t.Parallel()
		r, l := execRig(t, TransportSession)
		r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/process/execute", Count: -1, Action: emulator.StatusBefore, Status: 403})
		got, _ := runFails(t, t.Context(), l, Command{Script: "echo x; sleep 67", Timeout: 5 * time.Second}, KindTimeout, DispatchedYes)
		if got.StopConfirmed {
			t.Errorf("got %+v, want no confirmed stop", got)
		}
		r.wantHits(t)
	})
}

func TestASessionsInputIsStreamed(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportSession)
	t.Run("every byte", func(t *testing.T) {
		content := numbered(300_000)
		want := fmt.Sprintf("%x  -\n", sha256.Sum256(content))
		got, err := l.Executor().Run(t.Context(), Command{Args: []string{"sha256sum"}, Stdin: bytes.NewReader(content), Transport: TransportSession})
		if err != nil || string(got.Stdout) != want || got.StdinSize != int64(len(content)) {
			t.Errorf("Run() = %+v, %v; want %s", got, err, want)
		}
	})
	t.Run("short and binary", func(t *testing.T) {
		got, err := l.Executor().Run(t.Context(), Command{Script: "od -An -tx1 | tr -d ' \\n'", Stdin: strings.NewReader("\x00\xff\n"), Transport: TransportSession})
		if err != nil || string(got.Stdout) != "00ff0a" || got.StdinSize != 3 {
			t.Errorf("Run() = %+v, %v; want 3 bytes", got, err)
		}
	})
	endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
	for name, script := range map[string]string{"ended early": "head -c 100000 | wc -c; exit 3", "closed": "exec <&-; echo 100000; sleep 0.3; exit 3"} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			got, err := l.Executor().Run(t.Context(), Command{Script: script, Stdin: endless, Transport: TransportSession})
			if err != nil || got.ExitCode != 3 || string(got.Stdout) != "100000\n" || got.StdinSize > 8<<20 {
				t.Errorf("Run() = %+v, %v; want exit 3 and an input held back", got, err)
			}
			if took := time.Since(began); took > waitTime {
				t.Errorf("it took %v to stop feeding", took)
			}
		})
	}
	t.Run("reader fails", func(t *testing.T) {
		broken := errors.New("broken")
		in := io.MultiReader(bytes.NewReader(numbered(100_000)), readerFunc(func([]byte) (int, error) { return 0, broken }))
		got, err := runFails(t, t.Context(), l, Command{Script: "cat >/dev/null; sleep 60", Stdin: in}, KindIO, DispatchedYes)
		if !errors.Is(err, broken) || !got.StopConfirmed || got.StdinSize == 0 {
			t.Errorf("Run() = %+v, %v; want the reader's error and a confirmed stop", got, err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		_, l := execRig(t, TransportSession)
		mustRun(t, l, Command{Script: `d="${TMPDIR:-/tmp}/.leasehold-$(id -u)"; rm -rf "$d"; : >"$d"`}, finished(0, "", ""))
		got, err := runFails(t, t.Context(), l, Command{Args: []string{"cat"}, Stdin: bytes.NewReader(numbered(100_000))}, KindUnavailable, DispatchedNo)
		taken := regexp.MustCompile(` ([0-9]+) bytes were taken`).FindStringSubmatch(err.Message)
		if taken == nil || got.StdinSize != 0 {
			t.Errorf("Run() = %+v, %v; want to know how much was taken", got, err)
		} else if n, _ := strconv.Atoi(taken[1]); n <= maxInline || n > 100_000 { // what is more than a dispatch carries was read, and perhaps the rest
			t.Errorf("%v; want more than %d bytes, and at most 100000", err, maxInline)
		}
		_, err = runFails(t, t.Context(), l, Command{Script: "true #" + strings.Repeat("x", 200_000)}, KindUnavailable, DispatchedNo)
		if !strings.Contains(err.Message, "131071") {
			t.Errorf("%q does not name the limit", err.Message)
		}
		mustRun(t, l, Command{Args: []string{"cat"}, Stdin: strings.NewReader("short")}, finished(0, "short", ""))
	})
}

func TestASessionCarriesLargeCommands(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportSession)
	mustRun(t, l, Command{Script: "# " + strings.Repeat("x", 3<<20) + "\necho end; exit 7"}, finished(7, "end\n", ""))
	word := strings.Repeat("y", 100_000)
	env := map[string]string{}
	for i := range 12 {
		env[fmt.Sprint("V", i)] = word
	}
	mustRun(t, l, Command{Args: []string{"sh", "-c", "echo ${#V0} ${#V11}"}, Env: env}, finished(0, "100000 100000\n", ""))
}
