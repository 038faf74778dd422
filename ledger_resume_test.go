package leasehold

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// resumingBeside runs f while the world's host waits for the provider to start the sandbox of a lease that it resumes, and
// returns what that came to.
func resumingBeside(t *testing.T, f func(other *provider, ref LeaseRef)) (*world, error) {
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
	w.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.DelayRequest, Delay: 2 * time.Second})
	resumed := make(chan error, 1)
	go func() { _, err := w.Resume(t.Context(), ref); resumed <- err }()
	time.Sleep(time.Second) // virtual
	f(other, ref)
	return w, <-resumed
}

// TestResumeBesideARelease: another host gives a lease back while its sandbox is being started. What runs then is recorded.
func TestResumeBesideARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lease LeaseRef
		w, err := resumingBeside(t, func(other *provider, ref LeaseRef) {
			lease = ref
			if _, err := other.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := one(t, w.cfg.Store); r.State != StateLeased || r.Lease.Sandbox != lease.Sandbox {
			t.Errorf("the store holds %+v, want the lease", r)
		}
	})
}

// TestL7LateResumeIsFenced: while a host waits for the provider another one resumes the lease: it is that host's.
func TestL7LateResumeIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owner string
		w, err := resumingBeside(t, func(other *provider, ref LeaseRef) {
			owner = other.ledger.owner
			if _, err := other.Resume(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		})
		wantError(t, err, KindFenced)
		if entries, err := w.cfg.Store.List(t.Context(), "", 10); err != nil || len(entries) != 1 || entries[0].Owner != owner {
			t.Errorf("List() = %+v, %v, want the lease in the hands of the host that resumed it last", entries, err)
		}
	})
}
