package leasehold

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
	eventually(t, "the shell is dead", func() bool { return processEnded(pid) })
	c := newCounter(t)
	mustRun(t, l, Command{Script: c.script()}, finished(3, "ran\n", ""))
	c.want(t, 1)
	if got := r.count(); got["POST /toolbox/*/process/session"] != 2 || got["POST "+execPath] != 3 {
		t.Errorf("requests: %v; want two sessions and three dispatches", got)
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
	})
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
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Run() = %+v, %v; want closed", got, err)
		}
		out.Close()
	})
}

func TestADeadShellEndsTheRunAfterALook(t *testing.T) {
	say := func(what ...string) func(w http.ResponseWriter, _ *http.Request, _ *scripted) {
		n := 0
		return func(w http.ResponseWriter, _ *http.Request, _ *scripted) {
			word := what[min(n, len(what)-1)]
			n++
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"exitCode":0,"result":"%s\n"}`, word)
		}
	}
	tests := map[string]struct {
		look      func(w http.ResponseWriter, _ *http.Request, _ *scripted)
		log       []string
		low, high time.Duration
	}{
		"gone":              {say("gone"), []string{"o:@a", "o:@p:77", "o:@s"}, silenceTime, silenceTime + 2*time.Second},
		"gone later":        {say("alive", "alive", "gone"), []string{"o:@a", "o:@p:77", "o:@s"}, silenceTime + 2*shellTime, silenceTime + 2*shellTime + 3*time.Second},
		"stopped for good":  {say("alive", "stopped"), []string{"o:@a", "o:@p:77", "o:@s"}, silenceTime + 2*shellTime, silenceTime + 2*shellTime + 3*time.Second},
		"before the accept": {nil, nil, silenceTime, silenceTime + 2*time.Second},
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
			s := &scripted{onExecute: say("stopped", "alive", "stopped", "alive")}
			l := newScripted(t, s)
			got, err := s.run(t, l, Command{}, func() {
				s.write("o:@a", "o:@p:77", "o:@s")
				time.Sleep(10 * time.Minute) // virtual
				s.end(0)
				s.record(0)
			})
			wantFinished(t, got, err, finished(0, "", ""))
			if n := len(s.at("execute")); n < 18 || n > 21 {
				t.Errorf("%d looks in ten minutes, want one each %v", n, shellTime)
			}
		})
	})
}

func TestALookTellsWhetherAShellLives(t *testing.T) {
	_, l := execRig(t, TransportSession)
	pid := shellOf(t, l)
	look := func() string {
		got, err := l.resolved().Execute(t.Context(), script.Look(pid), 0)
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
	mustRun(t, l, Command{Profiles: ProfilesNone, Script: `echo 'sleep 20 &' >"$HOME/.profile"`}, finished(0, "", ""))
	for range 4 {
		mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
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
