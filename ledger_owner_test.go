package leasehold

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// wantHeld fails unless the one record is of a lease in use, held by the provider.
func wantHeld(t *testing.T, s Store, by *provider) {
	t.Helper()
	entries, err := s.List(t.Context(), "", 10)
	if err != nil || len(entries) != 1 || entries[0].Owner != by.ledger.owner || !entries[0].Alive || entries[0].Record.State != StateLeased {
		t.Errorf("List() = %+v, %v, want the lease held by %s", entries, err, by.ledger.owner)
	}
}

// TestDebtsAreToldWithTheirClaim: what a host could not tell the store about a lease while it was down does not become
// true of the host that has taken the lease over since.
func TestDebtsAreToldWithTheirClaim(t *testing.T) {
	for name, giveUp := range map[string]func(t *testing.T, w *world, ref LeaseRef){
		"released": func(t *testing.T, w *world, ref LeaseRef) {
			if receipt, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
				t.Errorf("Release() with the store down = %+v, %v", receipt, err)
			}
		},
		"released after it was only bound": func(t *testing.T, w *world, ref LeaseRef) {
			w.ledger.drop(w.ledger.claims[ref.Attempt])
			if receipt, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
				t.Errorf("Release() with the store down = %+v, %v", receipt, err)
			}
		},
		"left": func(t *testing.T, w *world, ref LeaseRef) { w.ledger.leave(t.Context(), ref.Attempt) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				down := false
				inner := newMemoryStore()
				store := &hookStore{Store: inner, before: func(string, string) error {
					if down {
						return errDown
					}
					return nil
				}}
				w := newWorld(t, Config{Store: store, Reuse: true})
				l, err := w.Acquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				store.change(func() { down = true })
				giveUp(t, w, l.Ref())
				next := rigProvider(t, w.server, Config{Store: inner, Reuse: true, Timeout: w.cfg.Timeout, CallTimeout: w.cfg.CallTimeout})
				defer func() { _ = next.Close(context.Background()) }()
				if _, err := next.Resume(t.Context(), l.Ref()); err != nil {
					t.Fatal(err)
				}
				store.change(func() { down = false })
				time.Sleep(2 * w.cfg.ClaimTime)
				wantHeld(t, inner, next)
				if report := sweep(t, sweeper(t, next, SweeperOptions{})); report != (SweepReport{}) {
					t.Errorf("Sweep() beside the living = %+v, want nothing", report)
				}
			})
		})
	}
}

// TestMistakenReferencesTakeNothing: a reference of which something was changed ends nobody's lease, however often it is
// tried, and the lease's host goes on.
func TestMistakenReferencesTakeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemoryStore()
		w := newWorld(t, Config{Store: store})
		l, err := w.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		changed := l.Ref()
		changed.Sandbox = "another"
		envelope := leaseRecord(changed).Envelope
		other := w.another(t, Config{})
		for range 2 {
			_, resume := other.Resume(t.Context(), changed)
			_, release := other.Release(t.Context(), changed, ReleaseOptions{})
			_, destroy := other.Destroy(t.Context(), changed)
			_, cleanup := other.Cleanup(t.Context(), envelope)
			for name, err := range map[string]error{"Resume": resume, "Release": release, "Destroy": destroy, "Cleanup": cleanup} {
				if !errors.Is(err, ErrNotOwned) {
					t.Errorf("%s(a changed reference) = %v, want ErrNotOwned", name, err)
				}
			}
		}
		if report := sweep(t, sweeper(t, other, SweeperOptions{})); report != (SweepReport{}) {
			t.Errorf("Sweep() = %+v, want nothing", report)
		}
		w.wantSandboxes(t, 1)
		if receipt, err := w.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Release() by the host = %+v, %v", receipt, err)
		}
		wantRecords(t, store, 0)
	})
}

// TestWhatIsRetainedIsRecordedFirst: the sweep would delete what the store knows only as a lease to be deleted.
func TestWhatIsRetainedIsRecordedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		store := &hookStore{Store: newMemoryStore(), before: func(string, string) error {
			if down {
				return errDown
			}
			return nil
		}}
		w := newWorld(t, Config{Store: store})
		l, err := w.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		store.change(func() { down = true })
		_, err = w.Release(t.Context(), l.Ref(), ReleaseOptions{Retain: true})
		if e := wantError(t, err, KindStore); e.Dispatched != DispatchedNo || !e.Retryable {
			t.Errorf("error = %+v, want not dispatched, retryable", e)
		}
		store.change(func() { down = false })
		if receipt, err := w.Release(t.Context(), l.Ref(), ReleaseOptions{Retain: true}); err != nil || receipt.State != ReceiptStopped {
			t.Errorf("Release() again = %+v, %v", receipt, err)
		}
		time.Sleep(2 * w.cfg.ClaimTime)
		if report := sweep(t, sweeper(t, w.provider, SweeperOptions{})); report != (SweepReport{}) {
			t.Errorf("Sweep() = %+v, want nothing", report)
		}
		w.wantSandboxes(t, 1)
	})
}

// TestATakeoverThatIsNotRecorded: a host that took a lease over from a living one, and could not write what it wanted with
// it, keeps the lease from the sweep.
func TestATakeoverThatIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		store := &hookStore{Store: newMemoryStore(), before: func(call, _ string) error {
			if down && call == "update" {
				return errDown
			}
			return nil
		}}
		w := newWorld(t, Config{Store: store})
		ref := w.acquired(t).Ref()
		other := w.another(t, Config{})
		store.change(func() { down = true })
		_, err := other.Release(t.Context(), ref, ReleaseOptions{Retain: true})
		wantError(t, err, KindStore)
		store.change(func() { down = false })
		time.Sleep(2 * w.cfg.ClaimTime)
		wantHeld(t, store, other)
		if report := sweep(t, sweeper(t, w.provider, SweeperOptions{})); report != (SweepReport{}) {
			t.Errorf("Sweep() = %+v, want nothing", report)
		}
		if receipt, err := other.Release(t.Context(), ref, ReleaseOptions{Retain: true}); err != nil || receipt.State != ReceiptStopped {
			t.Errorf("Release() again = %+v, %v", receipt, err)
		}
		w.wantSandboxes(t, 1)
	})
}

// TestFirstUseOfWhatIsNotThere: a bound lease whose sandbox turns out to be gone, or another's, leaves no record, whether
// the first look was answered or not.
func TestFirstUseOfWhatIsNotThere(t *testing.T) {
	gone := emulator.Fault{Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Sandbox with ID or name x not found")}
	foreign := emulator.Fault{Action: emulator.MergeReply, Body: `{"name":"another"}`}
	for name, first := range firstUses {
		for kind, found := range map[Kind]emulator.Fault{KindGone: gone, KindNotOwned: foreign} {
			t.Run(name+" "+string(kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Config{Store: newMemoryStore(), Reuse: true})
					ref := w.acquired(t).Ref()
					if kind == KindNotOwned { // else the record is the dead host's
						if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					l, err := w.another(t, Config{}).Bind(ref)
					if err != nil {
						t.Fatal(err)
					}
					down := emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: readAttempts, Action: emulator.StatusBefore, Status: 502}
					w.server.SetFaults(down)
					if err := first(t.Context(), l); !errors.Is(err, ErrUnavailable) {
						t.Errorf("the first use = %v, want ErrUnavailable", err)
					}
					found.Method, found.Path = "GET", "/api/sandbox/"+ref.Sandbox
					w.server.SetFaults(found)
					wantError(t, first(t.Context(), l), kind)
					wantRecords(t, w.cfg.Store, 0)
				})
			})
		}
	}
}

// TestAWrongAnswerLaterKeepsTheRecord: once a look proved the sandbox ours, one that says another's takes nothing off the list.
func TestAWrongAnswerLaterKeepsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore(), Reuse: true})
		ref := w.acquired(t).Ref()
		if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		w.server.Sandbox(ref.Sandbox).Force(emulator.StateStarted, "", false)
		l, err := w.another(t, Config{}).Bind(ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.toolbox(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantRecords(t, w.cfg.Store, 1)
		w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/" + ref.Sandbox, Action: emulator.MergeReply, Body: `{"name":"another"}`})
		_, err = l.Endpoint(t.Context(), 80)
		wantError(t, err, KindNotOwned)
		wantRecords(t, w.cfg.Store, 1)
	})
}

// TestOtherAccountsLeasesAreNotTaken: a key of another organisation takes no record from a living host, whatever it is
// asked to do; one that was rotated does.
func TestOtherAccountsLeasesAreNotTaken(t *testing.T) {
	t.Parallel()
	store := newMemoryStore()
	home, with := tenants(t, Config{Reuse: true, Store: store})
	ref := home.acquired(t).Ref()
	wantHeld(t, store, home.provider)
	foreign := with("foreign-key")
	bound, err := foreign.Bind(ref)
	if err != nil {
		t.Fatal(err)
	}
	_, use := bound.toolbox(t.Context())
	_, resume := foreign.Resume(t.Context(), ref)
	_, release := foreign.Release(t.Context(), ref, ReleaseOptions{})
	_, destroy := foreign.Destroy(t.Context(), ref)
	_, cleanup := foreign.Cleanup(t.Context(), leaseRecord(ref).Envelope)
	for name, err := range map[string]error{"use": use, "Resume": resume, "Release": release, "Destroy": destroy, "Cleanup": cleanup} {
		if err == nil || errors.Is(err, ErrGone) {
			t.Errorf("%s under another account = %v, want an error that proves nothing", name, err)
		}
	}
	wantHeld(t, store, home.provider)
	rotated := with("rotated-key")
	if _, err := rotated.Resume(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, store, rotated.provider)
}

// TestSweepAttestsWhenItCan: a sweeper with a rotated key that could not ask for its organisation when it began asks
// again, and goes on with its organisation's records.
func TestSweepAttestsWhenItCan(t *testing.T) {
	t.Parallel()
	store := newMemoryStore()
	home, with := tenants(t, Config{Store: store})
	home.acquired(t) // by which the organisation can be attested
	home.acquired(t)
	home.die()
	if err := store.Renew(t.Context(), home.ledger.owner, 0); err != nil {
		t.Fatal(err)
	}
	rotated := with("rotated-key")
	s := sweeper(t, rotated.provider, SweeperOptions{})
	rotated.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/paginated", Count: -1, Action: emulator.StatusBefore, Status: 503})
	if got, want := sweep(t, s), (SweepReport{Refused: 2}); got != want {
		t.Errorf("Sweep() of who knows what account = %+v, want %+v", got, want)
	}
	rotated.server.SetFaults()
	if got, want := sweep(t, s), (SweepReport{Destroyed: 2}); got != want {
		t.Errorf("Sweep() once the account is known = %+v, want %+v", got, want)
	}
	wantRecords(t, store, 0)
}

// TestSweepThatCannotKeepItsClaims: a sweep that cannot tell the store that it lives stops before another host may take
// what it is deleting.
func TestSweepThatCannotKeepItsClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewals := 0
		store := &hookStore{Store: newMemoryStore()}
		w := newWorld(t, Config{Store: store})
		w.dead(t, 1)
		const claimTime = 6 * time.Second
		s := sweeper(t, w.another(t, Config{ClaimTime: claimTime}), SweeperOptions{})
		store.change(func() {
			store.before = func(call, _ string) error {
				if call == "renew" {
					if renewals++; renewals > 1 {
						return errDown
					}
				}
				return nil
			}
		})
		w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StallChange})
		began := time.Now()
		report, err := s.Sweep(t.Context())
		wantError(t, err, KindStore)
		if want := (SweepReport{Deferred: 1}); report != want {
			t.Errorf("Sweep() = %+v, want %+v", report, want)
		}
		if took := time.Since(began); took >= claimTime {
			t.Errorf("the pass went on for %s, want under the claim time, %s", took, claimTime)
		}
	})
}

// TestSweepOfAClosedProvider: a provider that is being closed does not wait for the whole list to be looked at.
func TestSweepOfAClosedProvider(t *testing.T) {
	const records = 30
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		w.dead(t, records)
		host := w.another(t, Config{})
		closed := make(chan error, 1)
		w.begin(func(position int) {
			if position == 3 {
				go func() { closed <- host.Close(context.Background()) }()
				synctest.Wait()
			}
		})
		report, err := sweeper(t, host, SweeperOptions{}).Sweep(t.Context())
		if !errors.Is(err, ErrClosed) || report.Deferred == 0 || report.Deferred > 2*DefaultSweepConcurrency || report.Destroyed > records/2 {
			t.Errorf("Sweep() while the provider is closed = %+v, %v, want it to end soon", report, err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestL2AFailedStartIsNoRefusal: the answer says that a sandbox was made. One that is not visible is not absent.
func TestL2AFailedStartIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		w.server.SetFaults(
			emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.RunnerFailure, Body: "no disk"},
			emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Sandbox with ID or name x not found")},
		)
		_, err := w.Acquire(t.Context(), request())
		if e := wantError(t, err, KindRefused); e.Cleanup == nil || e.Cleanup.Observed != "" {
			t.Errorf("error = %+v, want an envelope without an id", e)
		}
		wantRecords(t, w.cfg.Store, 1)
		w.server.SetFaults()
		time.Sleep(time.Minute)
		if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Destroyed: 1}); got != want {
			t.Errorf("Sweep() = %+v, want %+v", got, want)
		}
		if left := w.alive(); len(left) > 0 {
			t.Errorf("sandboxes left: %v", left)
		}
		wantRecords(t, w.cfg.Store, 0)
	})
}

// TestFirstUseUnderARotatedKeyEnds within the budget, whatever a rate limit wishes for: the caller's context may have no end.
func TestFirstUseUnderARotatedKeyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore(), Reuse: true})
		ref := w.acquired(t).Ref()
		w.server.SetKey("rotated-key", emulator.Key{Organization: w.server.Organization()})
		l, err := w.another(t, Config{APIKey: "rotated-key"}).Bind(ref)
		if err != nil {
			t.Fatal(err)
		}
		w.server.SetFaults(emulator.Fault{Path: "/api/**", Count: -1, Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"86400"}}})
		began := time.Now()
		_, err = l.toolbox(t.Context())
		wantError(t, err, KindRateLimited)
		if took := time.Since(began); took > w.cfg.Timeout {
			t.Errorf("the first use took %s, want at most %s", took, w.cfg.Timeout)
		}
		w.server.SetFaults()
		if _, err := l.toolbox(t.Context()); err != nil {
			t.Errorf("the first use once the limit is over: %v", err)
		}
	})
}

// TestFirstUseOfWhatIsBeingGivenBack: a lease that is given back while the store is asked for its record is closed, and
// nobody's context was cancelled.
func TestFirstUseOfWhatIsBeingGivenBack(t *testing.T) {
	for name, first := range map[string]func(context.Context, *Lease) error{
		"Dir": func(ctx context.Context, l *Lease) error {
			_, err := l.Importer().Dir(ctx, ".", "src", ImportOptions{})
			return err
		},
		"CloseTerminal": func(ctx context.Context, l *Lease) error { return l.CloseTerminal(ctx, "one") },
		"Endpoint":      func(ctx context.Context, l *Lease) error { _, err := l.Endpoint(ctx, 80); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, answer := make(chan struct{}), make(chan struct{})
				answered := sync.OnceFunc(func() { close(answer) })
				defer answered()
				store := &hookStore{Store: newMemoryStore()}
				w := newWorld(t, Config{Store: store, Reuse: true})
				ref := w.acquired(t).Ref()
				other := w.another(t, Config{})
				l, err := other.Bind(ref)
				if err != nil {
					t.Fatal(err)
				}
				store.change(func() {
					store.before = func(call, _ string) error {
						if call == "claim" && asked != nil {
							close(asked)
							asked = nil
							<-answer
						}
						return nil
					}
				})
				waits := asked
				used, released := make(chan error, 1), make(chan error, 1)
				go func() { used <- first(t.Context(), l) }()
				<-waits
				go func() { _, err := other.Release(t.Context(), ref, ReleaseOptions{}); released <- err }()
				wantError(t, <-used, KindClosed)
				answered()
				if err := <-released; err != nil {
					t.Errorf("Release() = %v", err)
				}
				wantRecords(t, store, 0)
			})
		})
	}
}
