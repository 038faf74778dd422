package leasehold

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// resumingBeside runs f while the world's host, which resumes a lease, waits for a request to arrive, and returns what the
// resume came to.
func resumingBeside(t *testing.T, late string, f func(w *world, other *provider, ref LeaseRef)) (*world, error) {
	t.Helper()
	w := newWorld(t, Config{Store: newMemoryStore(), Reuse: true})
	l, err := w.Acquire(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	ref := l.Ref()
	if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	other := w.another(t, Config{Reuse: true})
	w.server.SetFaults(emulator.Fault{Method: "POST", Path: late, Action: emulator.DelayRequest, Delay: 2 * time.Second})
	resumed := make(chan error, 1)
	go func() { _, err := w.Resume(t.Context(), ref); resumed <- err }()
	time.Sleep(time.Second) // virtual
	f(w, other, ref)
	return w, <-resumed
}

// Routes of requests.
const (
	startPath   = "/api/sandbox/*/start"
	executePath = "/toolbox/*/process/execute"
)

// TestResumeBesideARelease: another host gives a lease back while its sandbox is being started or, started, is looked at, for
// which it is started once more. What runs then is recorded, even if nobody learns that it does.
func TestResumeBesideARelease(t *testing.T) {
	for name, tt := range map[string]struct {
		late   string
		faults []emulator.Fault // from then on
		want   Kind
	}{
		"while it is started":             {late: startPath},
		"while it is looked at":           {late: executePath},
		"while it is started, and unseen": {startPath, []emulator.Fault{{Method: "GET", Path: "/api/sandbox/*", Action: emulator.StatusBefore, Status: 502, Count: -1}}, KindUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lease LeaseRef
				w, err := resumingBeside(t, tt.late, func(w *world, other *provider, ref LeaseRef) {
					lease = ref
					if _, err := other.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
						t.Fatal(err)
					}
					w.server.SetFaults(tt.faults...)
				})
				if tt.want == "" && err != nil {
					t.Fatal(err)
				} else if tt.want != "" {
					wantError(t, err, tt.want)
				}
				if state := w.server.Sandbox(lease.Sandbox).State(); state != "started" {
					t.Fatalf("the sandbox is %s: the test proves nothing", state)
				}
				if r := one(t, w.cfg.Store); r.State != StateLeased || r.Lease.Sandbox != lease.Sandbox {
					t.Errorf("the store holds %+v, want the lease", r)
				}
			})
		})
	}
}

// TestL7LateResumeIsFenced: while a host waits for the provider another one resumes the lease: it is that host's.
func TestL7LateResumeIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owner string
		w, err := resumingBeside(t, startPath, func(_ *world, other *provider, ref LeaseRef) {
			owner = other.ledger.owner
			if _, err := other.Resume(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		})
		if e := wantError(t, err, KindFenced); e.Dispatched != DispatchedYes {
			t.Errorf("error = %+v, want dispatched: it was started", e)
		}
		if entries, err := w.cfg.Store.List(t.Context(), "", 10); err != nil || len(entries) != 1 || entries[0].Owner != owner {
			t.Errorf("List() = %+v, %v, want the lease in the hands of the host that resumed it last", entries, err)
		}
	})
}

// TestI1AResumeThatIsNotRecordedCounts: a sandbox that was seen running is no proof of idleness, whatever the store does.
func TestI1AResumeThatIsNotRecordedCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hookStore{Store: newMemoryStore()}
		w := newWorld(t, Config{Store: store, Reuse: true})
		ref := w.acquired(t).Ref()
		other := w.another(t, Config{Reuse: true})
		store.change(func() {
			store.before = func(call, _ string) error {
				if call == "update" {
					return errors.New("down")
				}
				return nil
			}
		})
		_, err := other.Resume(t.Context(), ref)
		if e := wantError(t, err, KindStore); e.Dispatched != DispatchedNo {
			t.Errorf("error = %+v, want not dispatched: it ran before", e)
		}
		if report := other.Idle(); report.Idle {
			t.Errorf("Idle() = %+v beside a sandbox that runs", report)
		}
		store.change(func() { store.before = nil })
	})
}
