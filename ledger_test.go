package leasehold

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

var errDown = errors.New("the database's own words")

// one returns the only record of a store.
func one(t *testing.T, s Store) Record {
	t.Helper()
	records := listed(t, s)
	for _, r := range records {
		if len(records) == 1 {
			return r
		}
	}
	t.Fatalf("the store holds %d records, want 1", len(records))
	return Record{}
}

func wantRecords(t *testing.T, s Store, want int) {
	t.Helper()
	if got := listed(t, s); len(got) != want {
		t.Errorf("the store holds %d records, want %d: %+v", len(got), want, got)
	}
}

// die ends a provider as far as its store can tell, as a kill would.
func (p *provider) die() {
	p.ledger.mu.Lock()
	defer p.ledger.mu.Unlock()
	p.ledger.start()
	p.ledger.beats()
}

// TestL1RecordedBeforeTheRequest: the record is there before the creation is sent, is the lease's while it is in use, and
// is gone with the receipt.
func TestL1RecordedBeforeTheRequest(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemoryStore()
			w := newWorld(t, Config{Store: store, Reuse: reuse})
			var creating []Record
			w.begin(func(int) {
				if a := w.arrivals[len(w.arrivals)-1]; a == "POST /api/sandbox" {
					creating = append(creating, one(t, store))
				}
			})
			l, err := w.Acquire(t.Context(), request())
			if err != nil {
				t.Fatal(err)
			}
			ref := l.Ref()
			if len(creating) != 1 || creating[0].State != StateCreating || creating[0].Envelope.Name != ref.Name || creating[0].Envelope.Observed != "" {
				t.Fatalf("at the creation the store held %+v, want the record of %s, unseen", creating, ref.Name)
			}
			leased := one(t, store)
			if leased.State != StateLeased || leased.Lease == nil || leased.Envelope.Observed != ref.Sandbox {
				t.Fatalf("after the acquisition the store holds %+v, want the lease", leased)
			}
			if diff := cmp.Diff(ref, *leased.Lease); diff != "" {
				t.Errorf("recorded lease mismatch (-want +got):\n%s", diff)
			}
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
			wantRecords(t, store, 0)
			if reuse {
				if _, err := w.Resume(t.Context(), ref); err != nil {
					t.Fatal(err)
				}
				if r := one(t, store); r.State != StateLeased || r.Orphan != OrphanStop || !cmp.Equal(ref, *r.Lease) {
					t.Errorf("after Resume() the store holds %+v, want the lease, to be stopped", r)
				}
			}
			if _, err := w.Destroy(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			wantRecords(t, store, 0)
			if _, err := w.Probe(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			wantRecords(t, store, 0)
		})
	}
}

// TestL1NothingIsSentUnrecorded: a store that fails fails the acquisition, before anything is sent. A record whose
// answer was lost does not stay.
func TestL1NothingIsSentUnrecorded(t *testing.T) {
	for name, fail := range map[string]func(*hookStore, *bool){
		"it is down": func(s *hookStore, down *bool) {
			s.before = func(string, string) error {
				if *down {
					return errDown
				}
				return nil
			}
		},
		"its answers are lost": func(s *hookStore, down *bool) {
			s.after = func(_, _ string, err error) error {
				if *down {
					return errDown
				}
				return err
			}
		},
		"it hears the renewal only": func(s *hookStore, down *bool) {
			s.after = func(call, _ string, err error) error {
				if *down && call != "renew" {
					return errDown
				}
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				down := true
				inner := newMemoryStore()
				store := &hookStore{Store: inner}
				fail(store, &down)
				w := newWorld(t, Config{Store: store})
				_, err := w.Acquire(t.Context(), request())
				e := wantError(t, err, KindStore)
				if e.Dispatched != DispatchedNo || !e.Retryable || e.Phase != PhaseCreate || e.Cleanup != nil || e.Budget == 0 {
					t.Errorf("error = %+v, want not dispatched, retryable, phase create, no envelope", e)
				}
				if strings.Contains(e.Error(), errDown.Error()) || !errors.Is(err, errDown) {
					t.Errorf("error %q has the store's words, or does not unwrap to it", e)
				}
				if got := w.count()["POST /api/sandbox"]; got != 0 {
					t.Errorf("%d creations were sent, want 0", got)
				}
				store.change(func() { down = false })
				time.Sleep(w.cfg.ClaimTime)
				wantRecords(t, inner, 0)
				if _, err := w.Probe(t.Context(), request()); err != nil {
					t.Errorf("Probe() with the store back = %v", err)
				}
				wantRecords(t, inner, 0)
			})
		})
	}
}

// TestL3StoredBeforeDeleted: whenever a deletion is sent, the store holds the id that it names, as ending.
func TestL3StoredBeforeDeleted(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, w *world){
		"compensation": func(t *testing.T, w *world) {
			w.server.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/**", Action: emulator.StatusBefore, Status: 400, Body: structured(400, "no"), Count: -1})
			if _, err := w.Acquire(t.Context(), request()); err == nil {
				t.Error("Acquire() succeeded")
			}
		},
		"lost reply": func(t *testing.T, w *world) {
			w.server.SetFaults(
				emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.DropAfter},
				emulator.Fault{Method: "POST", Path: "/toolbox/**", Action: emulator.StatusBefore, Status: 400, Body: structured(400, "no"), Count: -1},
			)
			if _, err := w.Acquire(t.Context(), request()); err == nil {
				t.Error("Acquire() succeeded")
			}
		},
		"destroy": func(t *testing.T, w *world) {
			l, err := w.Acquire(t.Context(), request())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Destroy(t.Context(), l.Ref()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemoryStore()
				w := newWorld(t, Config{Store: store})
				deletions := 0
				w.begin(func(int) {
					if w.arrivals[len(w.arrivals)-1] != "DELETE /api/sandbox/*" {
						return
					}
					deletions++
					if r := one(t, store); r.State != StateEnding || r.Orphan != OrphanDestroy || r.Envelope.Observed != w.server.Sandboxes()[0] {
						t.Errorf("at the deletion the store held %+v, want the id, ending", r)
					}
				})
				run(t, w)
				if deletions == 0 {
					t.Error("nothing was deleted: the test proves nothing")
				}
				w.wantSandboxes(t, 0)
				wantRecords(t, store, 0)
			})
		})
	}
}

// TestL3NotStoredNotDeleted: an id that cannot be stored is not deleted by. The record stays for the sweep, which does.
func TestL3NotStoredNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		inner := newMemoryStore()
		store := &hookStore{Store: inner, before: func(call, _ string) error {
			if call == "put" {
				down = true
				return nil
			}
			if down {
				return errDown
			}
			return nil
		}}
		w := newWorld(t, Config{Store: store})
		_, err := w.Acquire(t.Context(), request())
		e := wantError(t, err, KindStore)
		if e.Cleanup == nil || e.Cleanup.Observed != w.server.Sandboxes()[0] {
			t.Errorf("error = %+v, want an envelope with the id", e)
		}
		if got := w.count()["DELETE /api/sandbox/*"]; got != 0 {
			t.Errorf("%d deletions were sent, want 0", got)
		}
		if r := one(t, inner); r.State != StateCreating || r.Envelope.Observed != "" {
			t.Errorf("the store holds %+v, want the creation, unseen", r)
		}
		store.change(func() { store.before = nil })
		time.Sleep(w.cfg.ClaimTime) // the provider gets to hand its record over, and does not keep it for its own lifetime
		s := sweeper(t, w.provider, SweeperOptions{})
		if report := sweep(t, s); report.Destroyed != 1 {
			t.Errorf("Sweep() = %+v, want one destroyed", report)
		}
		w.wantSandboxes(t, 0)
		wantRecords(t, inner, 0)
	})
}

// TestL7LateCompletionsAreFenced: a host that was stopped for too long goes on, and finds its record in other hands: it
// admits no lease, and deletes nothing.
func TestL7LateCompletionsAreFenced(t *testing.T) {
	for _, at := range []string{"POST /api/sandbox", "POST /toolbox/*/process/execute"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemoryStore()
				w := newWorld(t, Config{Store: store})
				var taken []Claim
				w.begin(func(int) {
					if w.arrivals[len(w.arrivals)-1] != at || taken != nil {
						return
					}
					_ = store.Renew(t.Context(), w.ledger.owner, 0) // as if its claim time had passed
					_ = store.Renew(t.Context(), "other", time.Hour)
					taken, _ = store.ClaimDue(t.Context(), "other", 1)
				})
				_, err := w.Acquire(t.Context(), request())
				if len(taken) != 1 {
					t.Fatalf("the record was not taken: %v", taken)
				}
				e := wantError(t, err, KindFenced)
				if e.Cleanup == nil || e.Cleanup.Observed == "" {
					t.Errorf("error = %+v, want an envelope with the id", e)
				}
				if got := w.count()["DELETE /api/sandbox/*"]; got != 0 {
					t.Errorf("%d deletions were sent, want 0", got)
				}
				if err := store.Update(t.Context(), taken[0], taken[0].Record); err != nil {
					t.Errorf("the new owner was fenced: %v", err)
				}
			})
		})
	}
}

// TestGivingBackDoesNotWaitForTheStore: a sandbox costs money; a store that is down keeps nobody from ending it. Its
// record goes when the store is back.
func TestGivingBackDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		inner := newMemoryStore()
		store := &hookStore{Store: inner, before: func(string, string) error {
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
		if receipt, err := w.Destroy(t.Context(), l.Ref()); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Destroy() with the store down = %+v, %v", receipt, err)
		}
		w.wantSandboxes(t, 0)
		store.change(func() { down = false })
		time.Sleep(w.cfg.ClaimTime)
		wantRecords(t, inner, 0)
	})
}

// TestLeasesAreTakenOver: who has the reference goes on with a lease, from the first use of a bound one on, whether its
// last host lives or not, but not while a sweep is ending it.
func TestLeasesAreTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemoryStore()
		w := newWorld(t, Config{Store: store})
		l, err := w.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		ref := l.Ref()
		next := &rig{provider: rigProvider(t, w.server, Config{Store: store, Timeout: time.Minute, CallTimeout: 5 * time.Second}), server: w.server}
		defer func() { _ = next.Close(context.Background()) }()
		bound, err := next.Bind(ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bound.toolbox(t.Context()); err != nil {
			t.Fatal(err)
		}
		held := func(want *provider) {
			t.Helper()
			entries, err := store.List(t.Context(), "", 10)
			if err != nil || len(entries) != 1 || entries[0].Owner != want.ledger.owner || !entries[0].Alive || entries[0].Record.State != StateLeased {
				t.Errorf("List() = %+v, %v, want the lease held by %s", entries, err, want.ledger.owner)
			}
		}
		held(next.provider)
		if _, err := w.Resume(t.Context(), ref); err != nil { // this one does not know yet that it lost it
			t.Fatal(err)
		}
		time.Sleep(2 * w.cfg.ClaimTime)
		if report := sweep(t, sweeper(t, w.provider, SweeperOptions{})); report != (SweepReport{}) {
			t.Errorf("Sweep() beside a living host = %+v, want nothing", report)
		}
		claim, err := store.Claim(t.Context(), ref.Attempt, "sweeper")
		if err != nil {
			t.Fatal(err)
		}
		claim.Record.State = StateEnding
		if err := errors.Join(store.Renew(t.Context(), "sweeper", 30*time.Second), store.Update(t.Context(), claim, claim.Record)); err != nil {
			t.Fatal(err)
		}
		third := rigProvider(t, w.server, Config{Store: store, Timeout: time.Minute, CallTimeout: 5 * time.Second})
		defer func() { _ = third.Close(context.Background()) }()
		_, err = third.Resume(t.Context(), ref)
		if e := wantError(t, err, KindConflict); e.Dispatched != DispatchedNo || !e.Retryable {
			t.Errorf("error = %+v, want not dispatched, retryable", e)
		}
		began := time.Now() // the sweeper dies, and the release goes on
		if receipt, err := third.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Release() beside a sweep = %+v, %v", receipt, err)
		}
		if waited := time.Since(began); waited < 30*time.Second {
			t.Errorf("Release() waited %s for the sweep, want until its claim lapsed", waited)
		}
		wantRecords(t, store, 0)
	})
}

// TestCleanupWithAStore: an envelope's cleanup takes its record over from the dead, and not from a sweep at work.
func TestCleanupWithAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		w.server.SetFaults(
			emulator.Fault{Method: "POST", Path: "/toolbox/**", Action: emulator.StatusBefore, Status: 400, Body: structured(400, "no"), Count: -1},
			emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden"), Count: -1},
		)
		_, err := w.Acquire(t.Context(), request())
		var e *Error
		if !errors.As(err, &e) || e.Cleanup == nil || e.Cleanup.Observed == "" {
			t.Fatalf("Acquire() = %v, want an envelope with an id", err)
		}
		if r := one(t, w.cfg.Store); r.State != StateEnding || r.Envelope.Observed != e.Cleanup.Observed || r.Envelope.Phase != e.Phase {
			t.Errorf("the store holds %+v, want the envelope %+v, ending", r, *e.Cleanup)
		}
		w.server.SetFaults()
		if err := w.cfg.Store.Renew(t.Context(), "sweeper", time.Hour); err != nil {
			t.Fatal(err)
		}
		claims, err := w.cfg.Store.ClaimDue(t.Context(), "sweeper", 10)
		if err != nil || len(claims) != 1 {
			t.Fatalf("ClaimDue() = %v, %v, want what the acquisition left", claims, err)
		}
		_, err = w.Cleanup(t.Context(), *e.Cleanup)
		if e := wantError(t, err, KindConflict); e.Dispatched != DispatchedNo || !e.Retryable {
			t.Errorf("Cleanup() beside a sweep = %+v, want not dispatched, retryable", e)
		}
		if err := w.cfg.Store.Renew(t.Context(), "sweeper", 0); err != nil {
			t.Fatal(err)
		}
		if receipt := w.settle(t, e.Cleanup); receipt.State != ReceiptDestroyed {
			t.Errorf("Cleanup() = %+v, want destroyed", receipt)
		}
		wantRecords(t, w.cfg.Store, 0)
	})
}

// TestL5ResumeWithAStore: what resume finds decides about the record: a sandbox that is gone has none, one that is of no
// use any more is left to the sweep, and one that perhaps is stays the host's.
func TestL5ResumeWithAStore(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spoil  func(w *world, id string)
		want   Kind
		alive  bool // the record is there, and the host holds it
		closed bool // the lease that was open
		swept  SweepReport
	}{
		{name: "deleted", spoil: func(w *world, id string) {
			w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/" + id, Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Sandbox with ID or name x not found"), Count: -1})
		}, want: KindGone, closed: true},
		{name: "another workspace", spoil: func(w *world, _ string) { w.content = "{}" }, want: KindGone, swept: SweepReport{Destroyed: 1}},
		{name: "an outage", spoil: func(w *world, id string) {
			w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/" + id, Action: emulator.StatusBefore, Status: 503, Count: -1})
		}, want: KindUnavailable, alive: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Store: newMemoryStore()})
				l, err := w.Acquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				tt.spoil(w, l.Ref().Sandbox)
				_, err = w.Resume(t.Context(), l.Ref())
				wantError(t, err, tt.want)
				closed := func() bool {
					done, err := l.begin("use")
					if err == nil {
						done()
					}
					return errors.Is(err, ErrClosed)
				}
				if closed() != tt.closed {
					t.Errorf("the lease that was open is closed: %t, want %t", !tt.closed, tt.closed)
				}
				w.server.SetFaults()
				entries, err := w.cfg.Store.List(t.Context(), "", 10)
				if err != nil {
					t.Fatal(err)
				}
				if held := len(entries) == 1 && entries[0].Alive; held != tt.alive {
					t.Errorf("the store holds %+v, want it held by the host: %t", entries, tt.alive)
				}
				if got := sweep(t, sweeper(t, w.provider, SweeperOptions{})); got != tt.swept {
					t.Errorf("Sweep() = %+v, want %+v", got, tt.swept)
				}
				if _, err := w.Destroy(t.Context(), l.Ref()); err != nil || !closed() {
					t.Errorf("Destroy() = %v, want the lease that was open closed: %t", err, closed())
				}
			})
		})
	}
}

// TestNoStoreNoGoroutine: without a store nothing renews.
func TestNoStoreNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		if _, err := w.Probe(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		if w.ledger.beats != nil {
			t.Error("a provider without a store renews")
		}
	})
}

// TestIdleHostsRenewNothing: a host that holds nothing writes nothing.
func TestIdleHostsRenewNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewals atomic.Int64
		store := &hookStore{Store: newMemoryStore(), before: func(call, _ string) error {
			if call == "renew" {
				renewals.Add(1)
			}
			return nil
		}}
		w := newWorld(t, Config{Store: store})
		l, err := w.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		renewals.Store(0)
		time.Sleep(10*w.cfg.ClaimTime + time.Second)
		if renewals.Load() != 30 {
			t.Errorf("a lease made %d renewals in ten claim times, want 30", renewals.Load())
		}
		if _, err := w.Destroy(t.Context(), l.Ref()); err != nil {
			t.Fatal(err)
		}
		renewals.Store(0)
		time.Sleep(10 * w.cfg.ClaimTime)
		if renewals.Load() != 0 {
			t.Errorf("nothing made %d renewals, want 0", renewals.Load())
		}
	})
}

// TestAcquireWithEveryStoreFault: whichever single call of the store fails, before or after it happened, the acquisition
// and the release leave nothing behind once the sweep has been.
func TestAcquireWithEveryStoreFault(t *testing.T) {
	runs := 0
	for _, lost := range []bool{false, true} {
		for _, every := range []bool{false, true} { // from the nth on for a minute, or the nth alone
			for n := 1; ; n++ {
				calls, faults := 0, 0
				runs++
				synctest.Test(t, func(t *testing.T) {
					inner := newMemoryStore()
					var until time.Time
					store := &hookStore{Store: inner}
					fail := func() error {
						if calls++; calls == n {
							until = time.Now().Add(time.Minute)
						}
						if calls == n || every && calls > n && time.Now().Before(until) {
							faults++
							return errDown
						}
						return nil
					}
					if lost {
						store.after = func(_, _ string, err error) error { return cmpErr(fail(), err) }
					} else {
						store.before = func(string, string) error { return fail() }
					}
					w := newWorld(t, Config{Store: store})
					l, err := w.Acquire(t.Context(), request())
					if err == nil {
						_, err = w.Release(t.Context(), l.Ref(), ReleaseOptions{})
					}
					if err != nil && !errors.Is(err, ErrStore) {
						t.Errorf("call %d: error = %v, want ErrStore", n, err)
					}
					store.change(func() { store.before, store.after = nil, nil })
					s := sweeper(t, w.provider, SweeperOptions{})
					for range 3 {
						time.Sleep(w.cfg.ClaimTime)
						sweep(t, s)
					}
					w.wantSandboxes(t, 0)
					wantRecords(t, inner, 0)
					if got := w.count()["POST /api/sandbox"]; got > 1 {
						t.Errorf("call %d: %d creations, want at most 1", n, got)
					}
				})
				if faults == 0 {
					if n < 6 {
						t.Errorf("only %d calls of the store, want more", n-1)
					}
					break
				}
			}
		}
	}
	t.Logf("%d runs", runs)
}

func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

func sweeper(t *testing.T, p *provider, options SweeperOptions) *Sweeper {
	t.Helper()
	s, err := NewSweeper(p, options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sweep(t *testing.T, s *Sweeper) SweepReport {
	t.Helper()
	report, err := s.Sweep(t.Context())
	if err != nil {
		t.Errorf("Sweep() = %v", err)
	}
	return report
}

// TestResumeTakesOverEvenWhatWasOurs: a host that resumes a lease holds it, though another host had taken it over since it
// first held it, and has died.
func TestResumeTakesOverEvenWhatWasOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		l, err := w.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		other := w.another(t, Config{})
		for _, p := range []*provider{other, w.provider} {
			if _, err := p.Resume(t.Context(), l.Ref()); err != nil {
				t.Fatal(err)
			}
		}
		other.die()
		time.Sleep(2 * w.cfg.ClaimTime)
		if report := sweep(t, sweeper(t, w.provider, SweeperOptions{})); report != (SweepReport{}) {
			t.Errorf("Sweep() beside the host that resumed the lease last = %+v, want nothing", report)
		}
		w.wantSandboxes(t, 1)
	})
}

// TestDebtsTakeNothingOver: a host that could not give a record up does not take it, later, from one that uses the lease.
func TestDebtsTakeNothingOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemoryStore()
		down := false
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
		if _, err := w.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		next := rigProvider(t, w.server, Config{Store: inner, Timeout: time.Minute, CallTimeout: 5 * time.Second})
		defer func() { _ = next.Close(context.Background()) }()
		if _, err := next.Resume(t.Context(), l.Ref()); err != nil {
			t.Fatal(err)
		}
		store.change(func() { down = false })
		time.Sleep(2 * w.cfg.ClaimTime)
		entries, err := inner.List(t.Context(), "", 10)
		if err != nil || len(entries) != 1 || entries[0].Owner != next.ledger.owner {
			t.Errorf("List() = %+v, %v, want the lease in the hands of the host that resumed it", entries, err)
		}
	})
}

// TestLostClaimsOfACleanup: a record that is ours without our having heard of it is given up again, as is one that could not
// be written. Nothing was deleted by then, and the error says so.
func TestLostClaimsOfACleanup(t *testing.T) {
	for _, answers := range []string{"claim update release", "update"} {
		synctest.Test(t, func(t *testing.T) {
			inner := newMemoryStore()
			lost := false
			store := &hookStore{Store: inner, after: func(call, _ string, err error) error {
				if lost && strings.Contains(answers, call) {
					return errDown
				}
				return err
			}}
			w := newWorld(t, Config{Store: store})
			unseen(t, w)
			w.server.SetFaults()
			envelope, err := w.Inspect(t.Context(), one(t, inner).Envelope)
			if err != nil {
				t.Fatal(err)
			}
			store.change(func() { lost = true })
			_, err = w.Cleanup(t.Context(), envelope)
			if e := wantError(t, err, KindStore); e.Dispatched != DispatchedNo {
				t.Errorf("error = %+v, want not dispatched", e)
			}
			store.change(func() { lost = false })
			time.Sleep(w.cfg.ClaimTime)
			if entries, err := inner.List(t.Context(), "", 10); err != nil || len(entries) != 1 || entries[0].Owner != "" {
				t.Errorf("List() = %+v, %v, want the record, held by nobody", entries, err)
			}
			w.wantNothingDone(t)
		})
	}
}
