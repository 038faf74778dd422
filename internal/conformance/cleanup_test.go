package conformance_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// envelope is what an acquisition of the lease would have left, had it failed after its creation was sent.
func envelope(ref leasehold.LeaseRef) leasehold.CleanupEnvelope {
	return leasehold.CleanupEnvelope{
		Version: 1, Name: ref.Name, Attempt: ref.Attempt, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential, Phase: leasehold.PhaseCreate,
	}
}

// storedEnvelope takes an envelope to where a host keeps it, and back.
func storedEnvelope(t *testing.T, e leasehold.CleanupEnvelope) leasehold.CleanupEnvelope {
	t.Helper()
	return throughJSON(t, e, leasehold.ParseCleanupEnvelope)
}

// entry returns what the list has of a lease.
func (b *backend) entry(t *testing.T, ref leasehold.LeaseRef) (leasehold.Entry, bool) {
	t.Helper()
	entries, err := b.list.entries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(entries, func(e leasehold.Entry) bool { return e.Record.Envelope.Attempt == ref.Attempt })
	if i < 0 {
		return leasehold.Entry{}, false
	}
	return entries[i], true
}

// vanish ends a host that has the lease as if it had been killed: it gives nothing back, and the time for which it could be
// taken to live is over. The next one sweeps.
func (h *host) vanish(t *testing.T, ref leasehold.LeaseRef) {
	t.Helper()
	e, found := h.b.entry(t, ref)
	if !found || !e.Alive || e.Record.State != leasehold.StateLeased {
		t.Fatalf("the list has %+v of the lease, want it to be held", e)
	}
	h.b.vanishing.Lock()
	defer h.b.vanishing.Unlock()
	h.end(t)
	if err := h.b.list.Renew(t.Context(), e.Owner, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	h.begin(t)
	// All that runs have created is on one list. What else is due there is of runs that were killed.
	sweeper, err := leasehold.NewSweeper(h.Provider, leasehold.SweeperOptions{OnOrphan: func(_ context.Context, r leasehold.Record) leasehold.Disposition {
		if r.Envelope.Attempt == ref.Attempt {
			return r.Orphan
		}
		return leasehold.OrphanDestroy
	}})
	if err != nil {
		t.Fatal(err)
	}
	if report, err := sweeper.Sweep(t.Context()); err != nil {
		t.Fatalf("Sweep() = %+v, %v", report, err)
	}
}

// whenSent is a transport that calls a function when a request of this kind is sent.
type whenSent struct {
	http.RoundTripper
	method, suffix string
	call           func()
}

func (w whenSent) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == w.method && strings.HasSuffix(q.URL.Path, w.suffix) {
		w.call()
	}
	return w.RoundTripper.RoundTrip(q)
}

// cleanupCases account for what was not given back.
var cleanupCases = []behaviour{
	{name: "an envelope is inspected, and cleaned up", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		l := h.acquire(t)
		e := storedEnvelope(t, envelope(l.Ref()))
		_, err := h.Cleanup(t.Context(), e)
		wantError(t, "Cleanup() before Inspect", err, leasehold.ErrUncertain)
		says(t, l, "true") // it is still there
		found, err := h.Inspect(t.Context(), e)
		if err != nil || found.Observed != l.Ref().Sandbox || found.Account == "" {
			t.Fatalf("Inspect() = %+v, %v; want the sandbox %s", found, err, l.Ref().Sandbox)
		}
		for range 2 {
			receipt, err := h.Cleanup(t.Context(), storedEnvelope(t, found))
			wantReceipt(t, receipt, err, l.Ref(), leasehold.ReceiptDestroyed)
		}
		_, err = h.Resume(t.Context(), l.Ref())
		wantError(t, "Resume() of what was cleaned up", err, leasehold.ErrGone)
	}},
	{name: "a creation that nobody has seen", test: func(t *testing.T, s *scene) {
		e := envelope(s.lease.Ref())
		attempt := uuid.NewString()
		e.Name = strings.Replace(e.Name, e.Attempt, attempt, 1)
		e.Labels["leasehold-attempt"], e.Attempt = attempt, attempt
		_, err := s.host.Inspect(t.Context(), storedEnvelope(t, e))
		wantError(t, "Inspect() of a name that is not there", err, leasehold.ErrUncertain)
		e.Observed = s.lease.Ref().Sandbox
		_, err = s.host.Cleanup(t.Context(), storedEnvelope(t, e))
		wantError(t, "Cleanup() of a sandbox that was made by another attempt", err, leasehold.ErrNotOwned)
		says(t, s.lease, "true")
	}},
	{name: "an acquisition whose caller leaves", leases: 1, test: func(t *testing.T, s *scene) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		h := s.newHost(t, func(c *leasehold.Config) {
			base := c.Transport
			if base == nil {
				own := &http.Transport{Proxy: http.ProxyFromEnvironment}
				t.Cleanup(own.CloseIdleConnections)
				base = own
			}
			c.Transport = whenSent{base, http.MethodPost, "/sandbox", leave}
		})
		l, err := h.Acquire(ctx, s.request())
		if err == nil {
			t.Cleanup(func() { h.Destroy(detached(t), l.Ref()) })
		}
		e := wantError(t, "Acquire()", err, leasehold.ErrCanceled)
		if e.Cleanup == nil || e.Dispatched == leasehold.DispatchedNo {
			t.Fatalf("the error %+v has no envelope", e)
		}
		patience, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		for idle := range h.IdleChanges(patience) { // it is undone in the background
			if idle {
				break
			}
		}
		if patience.Err() != nil {
			t.Fatalf("what it began is not undone: %+v", h.Idle().Active)
		}
		if left, found := s.entry(t, leasehold.LeaseRef{Attempt: e.Cleanup.Attempt}); found {
			t.Errorf("the list still has %+v", left.Record)
		}
	}},
	{name: "of a host that vanished, a lease is destroyed", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		l := h.acquire(t)
		h.vanish(t, l.Ref())
		if e, found := s.entry(t, l.Ref()); found {
			t.Errorf("the list still has %+v", e.Record)
		}
		_, err := h.Resume(t.Context(), l.Ref())
		wantError(t, "Resume() of what was swept", err, leasehold.ErrGone)
	}},
	{name: "of a host that vanished, a lease to be used again is stopped", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		says(t, l, "echo kept >file")
		h.vanish(t, l.Ref())
		e, found := s.entry(t, l.Ref())
		if !found || e.Record.State != leasehold.StateStopped || e.Record.Lease == nil {
			t.Fatalf("the list has %+v, want the lease, stopped", e.Record)
		}
		if got := says(t, h.resume(t, *e.Record.Lease), "cat file"); got != "kept" {
			t.Errorf("the file holds %q, want kept", got)
		}
	}},
}
