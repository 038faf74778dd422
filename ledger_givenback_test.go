package leasehold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// firstUses are what a bound lease may be used for first.
var firstUses = map[string]func(context.Context, *Lease) error{
	"toolbox":  func(ctx context.Context, l *Lease) error { _, err := l.toolbox(ctx); return err },
	"endpoint": func(ctx context.Context, l *Lease) error { _, err := l.Endpoint(ctx, 80); return err },
}

// bound returns the lease of a reference, which nothing of the provider has used yet.
func (p *provider) bound(t *testing.T, ref LeaseRef) *Lease {
	t.Helper()
	l, err := p.Bind(ref)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// wantGivenBack fails unless err says that the lease was given back, and the one record that it is to be, by whom it is.
func wantGivenBack(t *testing.T, s Store, owner string, err error) {
	t.Helper()
	if e := wantError(t, err, KindClosed); e.Retryable || e.Dispatched != DispatchedNo || e.Sandbox == "" || e.Message != errGivenBack.Error() {
		t.Errorf("error = %+v, want it to say for good that the lease was given back, and nothing sent", e)
	}
	entries, err := s.List(t.Context(), "", 10)
	if err != nil || len(entries) != 1 || entries[0].Record.State != StateEnding || entries[0].Record.Orphan != OrphanDestroy || entries[0].Owner != owner {
		t.Errorf("List() = %+v, %v, want the lease, to be destroyed, held by %q", entries, err, owner)
	}
}

// undestroyed returns the reference of a lease whose destruction is recorded, and failed.
func (w *world) undestroyed(t *testing.T) LeaseRef {
	t.Helper()
	ref := w.acquired(t).Ref()
	w.failToDestroy(t, w.provider, ref)
	return ref
}

func (w *world) failToDestroy(t *testing.T, by *provider, ref LeaseRef) {
	t.Helper()
	w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden"), Count: -1})
	_, err := by.Destroy(t.Context(), ref)
	wantError(t, err, KindAuth)
	w.wantHits(t)
	w.server.SetFaults()
}

// TestFirstUseRevivesNothing: a lease that is recorded as given back is not in use again by being used, on whatever host:
// the sweep goes on with it.
func TestFirstUseRevivesNothing(t *testing.T) {
	for name, use := range firstUses {
		for host, of := range map[string]func(*testing.T, *world) *provider{
			"another host":  func(t *testing.T, w *world) *provider { return w.another(t, Config{}) },
			"the same host": func(_ *testing.T, w *world) *provider { return w.provider },
		} {
			t.Run(name+", "+host, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Config{Store: newMemoryStore()})
					l := of(t, w).bound(t, w.undestroyed(t))
					for range 2 {
						wantGivenBack(t, w.cfg.Store, "", use(t.Context(), l))
					}
					time.Sleep(2 * w.cfg.ClaimTime)
					if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Destroyed: 1}); got != want {
						t.Errorf("Sweep() = %+v, want %+v", got, want)
					}
					w.wantSandboxes(t, 0)
					wantError(t, use(t.Context(), l), KindGone)
					wantRecords(t, w.cfg.Store, 0)
				})
			})
		}
	}
}

// TestResumeRevives: what a first use does not, a resume does.
func TestResumeRevives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		ref := w.undestroyed(t)
		other := w.another(t, Config{})
		l := other.bound(t, ref)
		_, err := l.toolbox(t.Context())
		wantGivenBack(t, w.cfg.Store, "", err)
		resumed, err := other.Resume(t.Context(), ref)
		if err != nil || resumed != l {
			t.Fatalf("Resume() = %p, %v, want %p", resumed, err, l)
		}
		if _, err := l.toolbox(t.Context()); err != nil {
			t.Error(err)
		}
		wantHeld(t, w.cfg.Store, other)
		if got := sweep(t, sweeper(t, w.provider, SweeperOptions{})); got != (SweepReport{}) {
			t.Errorf("Sweep() = %+v, want nothing", got)
		}
	})
}

// TestFirstUseKeepsDebts: nor does a first use make the host forget what it could not tell the store of the lease, be it that
// the sweep is to go on with it, or that it was given back at all.
func TestFirstUseKeepsDebts(t *testing.T) {
	for name, calls := range map[string][]string{"left": {"release"}, "given back": {"update", "release"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &hookStore{Store: newMemoryStore()}
				w := newWorld(t, Config{Store: store})
				ref := w.acquired(t).Ref()
				store.change(func() { store.before = failing(calls...) })
				w.failToDestroy(t, w.provider, ref)
				store.change(func() { store.before = nil })
				for range 2 {
					_, err := w.bound(t, ref).toolbox(t.Context())
					e := wantError(t, err, KindClosed)
					if e.Message != errGivenBack.Error() {
						t.Errorf("error = %+v, want it to say that the lease was given back", e)
					}
				}
				time.Sleep(w.cfg.ClaimTime)
				if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Destroyed: 1}); got != want {
					t.Errorf("Sweep() = %+v, want %+v", got, want)
				}
				w.wantSandboxes(t, 0)
			})
		})
	}
}

// TestWhatCouldNotBeRecordedIsLeftAsGivenBack: a lease of which the store could be told, only after its destruction had failed,
// that it was to be, is left to the sweep as that, and not as one in use.
func TestWhatCouldNotBeRecordedIsLeftAsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hookStore{Store: newMemoryStore()}
		w := newWorld(t, Config{Store: store, Reuse: true})
		ref := w.acquired(t).Ref()
		store.change(func() { store.before = failing("update") })
		w.failToDestroy(t, w.provider, ref)
		store.change(func() { store.before = nil })
		_, err := w.another(t, Config{}).bound(t, ref).toolbox(t.Context())
		wantGivenBack(t, store, "", err)
		if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Destroyed: 1}); got != want {
			t.Errorf("Sweep() = %+v, want %+v", got, want)
		}
		w.wantSandboxes(t, 0)
	})
}

// TestFirstUseBesideASweep: a first use takes nothing from a sweep at work, and finds nothing after it.
func TestFirstUseBesideASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		l := w.another(t, Config{}).bound(t, w.undestroyed(t))
		var beside []error
		w.begin(func(int) {
			if w.arrivals[len(w.arrivals)-1] == "DELETE /api/sandbox/*" {
				_, err := l.toolbox(context.Background())
				beside = append(beside, err)
			}
		})
		if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Destroyed: 1}); got != want {
			t.Errorf("Sweep() = %+v, want %+v", got, want)
		}
		if len(beside) != 1 {
			t.Fatalf("%d uses beside the sweep, want 1", len(beside))
		}
		if e := wantError(t, beside[0], KindConflict); !e.Retryable || e.Dispatched != DispatchedNo {
			t.Errorf("error = %+v, want not dispatched, retryable", e)
		}
		_, err := l.toolbox(t.Context())
		wantError(t, err, KindGone)
		w.wantSandboxes(t, 0)
		wantRecords(t, w.cfg.Store, 0)
	})
}

// TestFirstUseBesideAResume: what a first use leaves as it found it, late, does not undo what a resume wrote meanwhile.
func TestFirstUseBesideAResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemoryStore()
		w := newWorld(t, Config{Store: inner})
		ref := w.undestroyed(t)
		store := &slowStore{Store: inner, release: make(chan time.Duration, 1)}
		host := rigProvider(t, w.server, Config{Store: store, Timeout: w.cfg.Timeout, CallTimeout: w.cfg.CallTimeout})
		defer func() { _ = host.Close(context.Background()) }()
		l := host.bound(t, ref)
		store.release <- 3 * time.Second
		used := make(chan error, 1)
		go func() { _, err := l.toolbox(t.Context()); used <- err }()
		synctest.Wait()
		if _, err := host.Resume(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if err := <-used; !errors.Is(err, ErrClosed) {
			t.Errorf("the first use = %v, want ErrClosed", err)
		}
		wantHeld(t, inner, host)
		if got := sweep(t, sweeper(t, w.provider, SweeperOptions{})); got != (SweepReport{}) {
			t.Errorf("Sweep() = %+v, want nothing", got)
		}
		w.wantSandboxes(t, 1)
	})
}

// TestAFirstUseTrustsNoClaimInDoubt: a release that could not be recorded, of a lease that another host is destroying, leaves a
// claim that says nothing any more. What comes next asks the store.
func TestAFirstUseTrustsNoClaimInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hookStore{Store: newMemoryStore()}
		w := newWorld(t, Config{Store: store})
		ref := w.acquired(t).Ref()
		other := w.another(t, Config{})
		w.failToDestroy(t, other, ref)
		store.change(func() { store.before = failing("update") })
		_, err := w.Release(t.Context(), ref, ReleaseOptions{Retain: true})
		wantError(t, err, KindStore)
		store.change(func() { store.before = nil })
		_, err = w.bound(t, ref).toolbox(t.Context())
		wantGivenBack(t, store, "", err)
	})
}

// TestAClaimThatMayBeOursIsKept: a host that took a lease from one that goes on with it, and was not told so, stays alive for it:
// a sweep would destroy what is in use.
func TestAClaimThatMayBeOursIsKept(t *testing.T) {
	for name, use := range map[string]func(context.Context, *provider, LeaseRef) error{
		"first use": func(ctx context.Context, p *provider, ref LeaseRef) error {
			_, err := p.bind(ref).toolbox(ctx)
			return err
		},
		"resume": func(ctx context.Context, p *provider, ref LeaseRef) error { _, err := p.Resume(ctx, ref); return err },
		"retain": func(ctx context.Context, p *provider, ref LeaseRef) error {
			_, err := p.Release(ctx, ref, ReleaseOptions{Retain: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &hookStore{Store: newMemoryStore()}
				w := newWorld(t, Config{Store: store})
				l := w.acquired(t)
				other := w.another(t, Config{})
				store.change(func() {
					store.after = func(call, _ string, err error) error {
						if call == "claim" && err == nil {
							store.before = failing("claim") // the repeats are not answered either
							return errDown
						}
						return err
					}
				})
				wantError(t, use(t.Context(), other, l.Ref()), KindStore)
				store.change(func() { store.before, store.after = nil, nil })
				time.Sleep(2 * w.cfg.ClaimTime)
				if got := sweep(t, sweeper(t, w.another(t, Config{}), SweeperOptions{})); got != (SweepReport{}) {
					t.Errorf("Sweep() = %+v, want nothing", got)
				}
				w.wantSandboxes(t, 1)
				if _, err := other.Destroy(t.Context(), l.Ref()); err != nil { // which settles the doubt, too
					t.Error(err)
				}
				if len(other.ledger.doubts) > 0 {
					t.Errorf("the ledger doubts %v, want nothing", other.ledger.doubts)
				}
			})
		})
	}
}
