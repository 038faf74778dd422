package leasehold

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
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

// processEnded reports whether a process runs no more.
func processEnded(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestASessionWhoseShellDiedIsReplaced(t *testing.T) {
	r, l := execRig(t, TransportSession)
	pid := shellOf(t, l)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
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
