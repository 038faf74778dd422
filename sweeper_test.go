package leasehold

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// another returns a second provider, on the same backend and store, as another host would be. It ends with the test.
func (w *world) another(t *testing.T, cfg Config) *provider {
	t.Helper()
	cfg.Store, cfg.Timeout, cfg.CallTimeout = w.cfg.Store, w.cfg.Timeout, w.cfg.CallTimeout
	p := rigProvider(t, w.server, cfg)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestSweepOfADeadHost: what a killed host had in use is given back when its claim time has passed, and not before.
func TestSweepOfADeadHost(t *testing.T) {
	for _, tt := range []struct {
		name     string
		cfg      Config
		orphan   func(context.Context, Record) Disposition
		want     SweepReport
		then     SweepReport // a day later
		sandbox  string      // its state in the end; empty: gone
		recorded RecordState // empty: not at all
	}{
		{name: "not reusable", want: SweepReport{Destroyed: 1}},
		{name: "reusable", cfg: Config{Reuse: true}, want: SweepReport{Stopped: 1}, then: SweepReport{Kept: 1}, sandbox: "archived", recorded: StateStopped},
		{name: "to be destroyed", cfg: Config{Reuse: true}, orphan: func(context.Context, Record) Disposition { return OrphanDestroy }, want: SweepReport{Destroyed: 1}},
		{name: "to be kept", orphan: func(context.Context, Record) Disposition { return OrphanKeep }, want: SweepReport{Kept: 1}, then: SweepReport{Kept: 1}, sandbox: "started", recorded: StateLeased},
		{name: "to be retained", orphan: func(context.Context, Record) Disposition { return OrphanRetain }, want: SweepReport{Stopped: 1}, then: SweepReport{Kept: 1}, sandbox: "archived", recorded: StateStopped},
		{name: "who knows", orphan: func(context.Context, Record) Disposition { return "?" }, want: SweepReport{Kept: 1}, then: SweepReport{Kept: 1}, sandbox: "started", recorded: StateLeased},
		{name: "first in use, then stopped for good", cfg: Config{Reuse: true}, orphan: func(_ context.Context, r Record) Disposition {
			if r.State == StateStopped {
				return OrphanDestroy
			}
			return OrphanStop
		}, want: SweepReport{Stopped: 1}, then: SweepReport{Destroyed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				never := 0
				tt.cfg.Store, tt.cfg.AutoStopMinutes = newMemoryStore(), &never
				w := newWorld(t, tt.cfg)
				host := w.another(t, tt.cfg)
				l, err := host.Acquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				s := sweeper(t, w.provider, SweeperOptions{OnOrphan: tt.orphan})
				time.Sleep(24 * time.Hour)
				if got := sweep(t, s); got != (SweepReport{}) {
					t.Errorf("Sweep() beside a living host = %+v, want nothing", got)
				}
				host.die()
				time.Sleep(w.cfg.ClaimTime / 2)
				if got := sweep(t, s); got != (SweepReport{}) {
					t.Errorf("Sweep() before the claim time had passed = %+v, want nothing", got)
				}
				time.Sleep(w.cfg.ClaimTime)
				if got := sweep(t, s); got != tt.want {
					t.Errorf("Sweep() = %+v, want %+v", got, tt.want)
				}
				if got := sweep(t, s); got != (SweepReport{}) {
					t.Errorf("Sweep() again = %+v, want nothing", got)
				}
				time.Sleep(24 * time.Hour)
				if got := sweep(t, s); got != tt.then {
					t.Errorf("Sweep() a day later = %+v, want %+v", got, tt.then)
				}
				state := ""
				if sb := w.server.Sandbox(l.Ref().Sandbox); sb != nil && sb.State() != "destroyed" {
					state = string(sb.State())
				}
				if state != tt.sandbox {
					t.Errorf("the sandbox is %q, want %q", state, tt.sandbox)
				}
				if tt.recorded == "" {
					wantRecords(t, w.cfg.Store, 0)
				} else if r := one(t, w.cfg.Store); r.State != tt.recorded || r.Lease == nil {
					t.Errorf("the store holds %+v, want the lease, %s", r, tt.recorded)
				}
			})
		})
	}
}

// TestSweepThatMayNotStop: an orphan that would vanish when it stops is not stopped in order to be kept. It stays a lease, so that
// whoever decides is asked again, and told of it.
func TestSweepThatMayNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		host := w.another(t, Config{AutoDeleteMinutes: new(0), AutoStopMinutes: new(0)})
		l, err := host.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		host.die()
		time.Sleep(2 * w.cfg.ClaimTime)
		disposition, escalated := OrphanStop, 0
		s := sweeper(t, w.provider, SweeperOptions{
			EscalateAfter: 2,
			OnEscalate:    func(Record) { escalated++ },
			OnOrphan: func(_ context.Context, r Record) Disposition {
				if r.State != StateLeased || r.Orphan != OrphanDestroy {
					t.Errorf("asked about %+v, want the lease as its host left it", r)
				}
				return disposition
			},
		})
		for n := 1; n <= 2; n++ {
			if got, want := sweep(t, s), (SweepReport{Failed: 1, Escalated: n / 2}); got != want {
				t.Errorf("Sweep() = %+v, want %+v", got, want)
			}
			if r := one(t, w.cfg.Store); r.State != StateLeased || r.Orphan != OrphanDestroy || r.Failures != n || r.Outcome != KindConflict {
				t.Errorf("the store holds %+v, want the lease, and its failures", r)
			}
			time.Sleep(time.Minute)
		}
		if state := w.server.Sandbox(l.ref.Sandbox).State(); state != emulator.StateStarted || escalated != 1 {
			t.Errorf("the sandbox is %s, and somebody was told %d times, want it started, and once", state, escalated)
		}
		disposition = OrphanRetain
		if got, want := sweep(t, s), (SweepReport{Stopped: 1}); got != want {
			t.Errorf("Sweep() that retains = %+v, want %+v", got, want)
		}
	})
}

// TestSweepAfterAReleaseThatMayNotStop: the provider was down when a release looked, so that it is on the list by the time that it is
// refused. The sweep gives it back to be decided about.
func TestSweepAfterAReleaseThatMayNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{AutoDeleteMinutes: new(0), Store: newMemoryStore()})
		ref := w.acquired(t).Ref()
		w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: readAttempts, Action: emulator.StatusBefore, Status: 503})
		_, err := w.Release(t.Context(), ref, ReleaseOptions{Archive: true})
		wantError(t, err, KindConflict)
		if r := one(t, w.cfg.Store); r.State != StateEnding || r.Orphan != OrphanStop {
			t.Errorf("the store holds %+v, want the release", r)
		}
		disposition := OrphanKeep
		s := sweeper(t, w.provider, SweeperOptions{OnOrphan: func(context.Context, Record) Disposition { return disposition }})
		if got, want := sweep(t, s), (SweepReport{Failed: 1}); got != want {
			t.Errorf("Sweep() = %+v, want %+v", got, want)
		}
		time.Sleep(time.Minute)
		disposition = OrphanDestroy
		if got, want := sweep(t, s), (SweepReport{Destroyed: 1}); got != want {
			t.Errorf("Sweep() that destroys = %+v, want %+v", got, want)
		}
		wantRecords(t, w.cfg.Store, 0)
	})
}

// TestSweepOfStoppedOrphans: one stays on the list, with its reference, until it is resumed or gone.
func TestSweepOfStoppedOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore(), Reuse: true})
		host := w.another(t, Config{Reuse: true})
		if _, err := host.Acquire(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		host.die()
		time.Sleep(2 * w.cfg.ClaimTime)
		s := sweeper(t, w.provider, SweeperOptions{})
		if got, want := sweep(t, s), (SweepReport{Stopped: 1}); got != want {
			t.Fatalf("Sweep() = %+v, want %+v", got, want)
		}
		ref := *one(t, w.cfg.Store).Lease
		if _, err := w.Resume(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if r := one(t, w.cfg.Store); r.State != StateLeased || r.Orphan != OrphanStop {
			t.Errorf("after Resume() the store holds %+v, want the lease, to be stopped", r)
		}
		w.die()
		time.Sleep(2 * w.cfg.ClaimTime)
		third := sweeper(t, w.another(t, Config{Reuse: true}), SweeperOptions{})
		if got, want := sweep(t, third), (SweepReport{Stopped: 1}); got != want {
			t.Fatalf("Sweep() = %+v, want %+v", got, want)
		}
		time.Sleep(8 * 24 * time.Hour) // the provider deletes it
		if got, want := sweep(t, third), (SweepReport{Destroyed: 1}); got != want {
			t.Errorf("Sweep() after the automatic deletion = %+v, want %+v", got, want)
		}
		wantRecords(t, w.cfg.Store, 0)
	})
}

// unseen leaves a record of a creation whose reply was lost, and whose sandbox is not visible while the fault is set.
func unseen(t *testing.T, w *world) {
	t.Helper()
	w.server.SetFaults(
		emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.DropAfter},
		emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Sandbox with ID or name x not found")},
	)
	_, err := w.Acquire(t.Context(), request())
	wantError(t, err, KindUncertain)
	w.server.ResetRequests()
}

// TestL2NeverSeenIsNeverAbsent: a creation that is not visible is looked for as long as it takes, ever more seldom, and
// somebody is told; a day later it is there, and deleted. The creation is never sent again.
func TestL2NeverSeenIsNeverAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := 0
		w := newWorld(t, Config{Store: newMemoryStore(), AutoStopMinutes: &never})
		unseen(t, w)
		var escalated []Record
		s := sweeper(t, w.provider, SweeperOptions{OnEscalate: func(r Record) { escalated = append(escalated, r) }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		r := one(t, w.cfg.Store)
		if r.State != StateCreating || r.Outcome != KindUncertain || r.Status != 404 || r.TriedAt.IsZero() || time.Since(r.CreatedAt) < 24*time.Hour ||
			r.Envelope.Name == "" || r.Envelope.Scope != request().Scope || len(r.Envelope.Labels) == 0 {
			t.Errorf("a day later the store holds %+v, want the creation, unresolved", r)
		}
		if r.Failures < 48 || r.Failures > 120 { // one every 15 to 30 minutes
			t.Errorf("%d attempts in a day, want 48 to 120", r.Failures)
		}
		var at []int
		for _, e := range escalated {
			at = append(at, e.Failures)
		}
		if want := []int{5, 10, 20, 40, 80}; !slices.Equal(at, want) && !slices.Equal(at, want[:4]) {
			t.Errorf("escalated after %v failures, want %v", at, want)
		}
		if got := w.count(); got["DELETE /api/sandbox/*"] != 0 || got["POST /api/sandbox"] != 0 {
			t.Errorf("requests %v, want reads only", got)
		}
		w.server.SetFaults()
		time.Sleep(time.Hour)
		synctest.Wait()
		wantRecords(t, w.cfg.Store, 0)
		w.wantSandboxes(t, 0)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v, want context.Canceled", err)
		}
	})
}

// TestSweepWaitsAcrossRestarts: the wait after a failure is stored; a new sweeper keeps to it.
func TestSweepWaitsAcrossRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		unseen(t, w)
		waits := []time.Duration{}
		last := time.Now()
		for failures := 0; failures < 12; {
			got := sweep(t, sweeper(t, w.provider, SweeperOptions{})) // a new one each time
			if got.Unresolved == 1 {
				waits = append(waits, time.Since(last).Round(time.Second))
				last = time.Now()
				failures++
			}
			time.Sleep(time.Second)
		}
		for i, wait := range waits[1:] {
			longest := min(DefaultSweepBaseDelay<<i, DefaultSweepMaxDelay)
			if wait < longest/2 || wait > longest+2*time.Second {
				t.Errorf("wait %d was %s, want %s to %s", i, wait, longest/2, longest)
			}
		}
	})
}

// TestSweepDuringOutages: while the provider or the store is down no attempt is used up, and the pass ends early. A rate
// limit is kept to.
func TestSweepDuringOutages(t *testing.T) {
	const records = 20
	for _, tt := range []struct {
		name  string
		fault emulator.Fault
		tried int // records, at most, before the pass ends
		retry time.Duration
	}{
		{name: "503", fault: emulator.Fault{Action: emulator.StatusBefore, Status: 503}, tried: 2 * DefaultSweepConcurrency},
		{name: "no connection", fault: emulator.Fault{Action: emulator.DropBefore}, tried: 2 * DefaultSweepConcurrency},
		{name: "silence", fault: emulator.Fault{Action: emulator.SilentSocket, Bytes: -1}, tried: 2 * DefaultSweepConcurrency},
		{
			name:  "429",
			fault: emulator.Fault{Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"7200000"}}, Body: structured(429, "slow down")},
			tried: DefaultSweepConcurrency, retry: time.Hour,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Store: newMemoryStore()})
				w.dead(t, records)
				tt.fault.Method, tt.fault.Path, tt.fault.Count = "GET", "/api/sandbox/*", -1
				w.server.SetFaults(tt.fault)
				w.server.ResetRequests()
				s := sweeper(t, w.provider, SweeperOptions{Concurrency: DefaultSweepConcurrency})
				got := sweep(t, s)
				if got.Deferred == 0 || got.Failed+got.Unresolved+got.Destroyed != 0 || got.RetryAfter != tt.retry {
					t.Errorf("Sweep() = %+v, want all deferred, and a wish of %s", got, tt.retry)
				}
				if got.Deferred > tt.tried {
					t.Errorf("the pass tried %d records, want at most %d", got.Deferred, tt.tried)
				}
				if reads := len(w.requests()); tt.retry > 0 && reads > tt.tried+1 { // one for the account
					t.Errorf("the pass made %d requests after it was told to wait, want at most %d", reads, tt.tried+1)
				}
				for _, r := range listed(t, w.cfg.Store) {
					if r.Failures != 0 {
						t.Errorf("an outage used up %d attempts of a record", r.Failures)
					}
				}
				w.server.SetFaults()
				time.Sleep(max(time.Minute, tt.retry+time.Minute))
				if got := sweep(t, s); got.Destroyed != records {
					t.Errorf("Sweep() after the outage = %+v, want %d destroyed", got, records)
				}
				wantRecords(t, w.cfg.Store, 0)
				w.wantSandboxes(t, 0)
			})
		})
	}
	t.Run("the store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner := newMemoryStore()
			store := &hookStore{Store: inner}
			w := newWorld(t, Config{Store: store})
			w.dead(t, records)
			for _, failing := range []string{"renew", "claim due", "update", "release", "delete"} {
				store.change(func() {
					store.before = func(call, _ string) error {
						if call == failing {
							return errDown
						}
						return nil
					}
				})
				s := sweeper(t, w.provider, SweeperOptions{})
				if _, err := s.Sweep(t.Context()); err != nil && (!errors.Is(err, ErrStore) || strings.Contains(err.Error(), errDown.Error())) {
					t.Errorf("Sweep() while %s fails = %v, want ErrStore without the store's words", failing, err)
				}
				for _, r := range listed(t, inner) {
					if r.Failures != 0 {
						t.Errorf("while %s failed %d attempts of a record were used up", failing, r.Failures)
					}
				}
				time.Sleep(2 * w.cfg.ClaimTime)
			}
			store.change(func() { store.before = nil })
			sweep(t, sweeper(t, w.provider, SweeperOptions{}))
			wantRecords(t, inner, 0)
			w.wantSandboxes(t, 0)
		})
	})
}

// dead leaves n sandboxes of a host that is dead.
func (w *world) dead(t *testing.T, n int) {
	t.Helper()
	host := w.another(t, Config{MaxCreations: 4})
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := host.Acquire(t.Context(), request()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	host.die()
	time.Sleep(2 * w.cfg.ClaimTime)
}

// TestSweepersShare: several sweepers of several hosts share one list: each sandbox is deleted once.
func TestSweepersShare(t *testing.T) {
	const records, sweepers = 30, 4
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		w.dead(t, records)
		w.server.ResetRequests()
		var wg sync.WaitGroup
		reports := make([]SweepReport, sweepers)
		for i := range sweepers {
			s := sweeper(t, w.another(t, Config{}), SweeperOptions{Concurrency: 3})
			wg.Go(func() { reports[i] = sweep(t, s) })
		}
		wg.Wait()
		total, busy := 0, 0
		for _, r := range reports {
			total += r.Destroyed
			if r.Destroyed > 0 {
				busy++
			}
			if r.Lost+r.Failed+r.Deferred > 0 {
				t.Errorf("a sweeper reports %+v, want destroyed ones only", r)
			}
		}
		if total != records || busy < 2 {
			t.Errorf("%d sweepers destroyed %d, want several, and %d", busy, total, records)
		}
		if got := w.count()["DELETE /api/sandbox/*"]; got != records {
			t.Errorf("%d deletions were sent, want %d", got, records)
		}
		wantRecords(t, w.cfg.Store, 0)
	})
}

// TestL3SweepRefusesOthers: the records of another account, and sandboxes that are not what was recorded, are left.
func TestL3SweepRefusesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		foreign := leasedRecord()
		if _, err := w.cfg.Store.Put(t.Context(), foreign, "dead"); err != nil {
			t.Fatal(err)
		}
		w.dead(t, 2)
		changed := w.server.Sandboxes()[0]
		w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/" + changed, Count: -1, Action: emulator.MergeReply, Body: `{"labels":{"leasehold-tenant":"somebody-else"}}`})
		w.server.ResetRequests()
		s := sweeper(t, w.provider, SweeperOptions{})
		got := sweep(t, s)
		if want := (SweepReport{Destroyed: 1, Failed: 1, Refused: 1}); got != want {
			t.Errorf("Sweep() = %+v, want %+v", got, want)
		}
		for _, line := range w.server.Requests() {
			if line.Method != "GET" && strings.Contains(line.Path, changed) {
				t.Errorf("a foreign sandbox was touched: %s %s", line.Method, line.Path)
			}
		}
		records := listed(t, w.cfg.Store)
		if r := records[foreign.Envelope.Attempt]; len(records) != 2 || r.Failures != 0 || r.State != StateLeased {
			t.Errorf("the store holds %+v, want the foreign record as it was, and the changed one", records)
		}
		for attempt, r := range records {
			if attempt != foreign.Envelope.Attempt && (r.Outcome != KindNotOwned || r.Failures != 1) {
				t.Errorf("the changed one is recorded as %+v, want not owned", r)
			}
		}
	})
}

// TestSweepEndsCleanly: when ctx ends or the provider is closed in the middle of a pass, what is under way goes back to
// the list, and the next pass goes on with it.
func TestSweepEndsCleanly(t *testing.T) {
	for _, how := range []string{"context", "close"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const records = 12
				w := newWorld(t, Config{Store: newMemoryStore()})
				w.dead(t, records)
				host := w.another(t, Config{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var once sync.Once
				w.begin(func(position int) {
					if position == 9 {
						once.Do(func() {
							if how == "context" {
								cancel()
								return
							}
							ended, end := context.WithCancel(context.Background())
							end()
							_ = host.Close(ended)
						})
					}
				})
				report, err := sweeper(t, host, SweeperOptions{}).Sweep(ctx)
				if want := map[string]error{"context": context.Canceled, "close": ErrClosed}[how]; !errors.Is(err, want) {
					t.Errorf("Sweep() = %v, want %v", err, want)
				}
				if report.Failed+report.Unresolved > 0 || report.Destroyed == records {
					t.Errorf("Sweep() = %+v, want it to be cut off, and nothing failed", report)
				}
				w.begin(nil)
				entries, err := w.cfg.Store.List(t.Context(), "", 100)
				if err != nil || len(entries) != records-report.Destroyed {
					t.Errorf("%d records, %v, after %+v", len(entries), err, report)
				}
				for _, e := range entries {
					if e.Alive || e.Record.Failures != 0 {
						t.Errorf("a record is held by a pass that ended, or lost an attempt: %+v", e)
					}
				}
				if got := sweep(t, sweeper(t, w.provider, SweeperOptions{})); got.Destroyed != len(entries) {
					t.Errorf("the next pass = %+v, want %d destroyed", got, len(entries))
				}
				w.wantSandboxes(t, 0)
			})
		})
	}
}

// TestSweepStuckInDestroying: the provider accepts a deletion that never ends: no receipt, no end of the attempts.
func TestSweepStuckInDestroying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		w.dead(t, 1)
		w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StallChange})
		s := sweeper(t, w.provider, SweeperOptions{})
		for range 4 {
			if got, want := sweep(t, s), (SweepReport{Failed: 1}); got != want {
				t.Errorf("Sweep() = %+v, want %+v", got, want)
			}
			time.Sleep(DefaultSweepMaxDelay)
		}
		if r := one(t, w.cfg.Store); r.State != StateEnding || r.Failures != 4 || r.Outcome != KindTimeout {
			t.Errorf("the store holds %+v, want it ending, after 4 timeouts", r)
		}
	})
}

func TestNewSweeperProblems(t *testing.T) {
	p, err := newProvider(Config{APIKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(t.Context()) }()
	_, err = NewSweeper(p, SweeperOptions{Interval: -1, Concurrency: -1, BaseDelay: time.Hour, MaxDelay: time.Minute, EscalateAfter: -1})
	e := wantError(t, err, KindInvalid)
	var fields []string
	for _, f := range e.Fields {
		fields = append(fields, f.Field)
	}
	if want := []string{"p", "SweeperOptions.Interval", "SweeperOptions.MaxDelay", "SweeperOptions.Concurrency", "SweeperOptions.EscalateAfter"}; !slices.Equal(fields, want) {
		t.Errorf("problems of %v, want %v", fields, want)
	}
	if _, err := NewSweeper(nil, SweeperOptions{}); err == nil {
		t.Error("NewSweeper(nil) succeeded")
	}
}

func TestEscalationIsNoFlood(t *testing.T) {
	s := &sweepPass{Sweeper: &Sweeper{options: SweeperOptions{EscalateAfter: 3}}}
	var got []int
	for n := range 200 {
		if s.escalates(n) {
			got = append(got, n)
		}
	}
	if want := []int{3, 6, 12, 24, 48, 96, 192}; !slices.Equal(got, want) {
		t.Errorf("escalates after %v failures, want %v", got, want)
	}
}

// TestL2AnEarlierRefusalProvesNothing: a creation that a rate limit refused was sent again and not answered: that it is
// not visible does not make it absent.
func TestL2AnEarlierRefusalProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		w.server.SetFaults(
			emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 429, Body: structured(429, "slow down"), Header: http.Header{"Retry-After": {"1"}}},
			emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.DropBefore, Count: -1},
		)
		_, err := w.Acquire(t.Context(), request())
		if e := wantError(t, err, KindUncertain); e.Cleanup == nil {
			t.Errorf("error = %+v, want an envelope", e)
		}
		if r := one(t, w.cfg.Store); r.State != StateCreating {
			t.Errorf("the store holds %+v, want the creation, unresolved", r)
		}
	})
}

// TestL2ARefusedCreationIsSettledLater: a creation that was refused, and whose name could not be looked for then, is off the
// list once it was looked for.
func TestL2ARefusedCreationIsSettledLater(t *testing.T) {
	limited := emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 429, Body: structured(429, "slow down"), Header: http.Header{"Retry-After": {"10"}}}
	down := emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 503}
	refused := emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 400, Body: structured(400, "no")}
	for name, tt := range map[string]struct {
		faults []emulator.Fault
		closed bool // while the acquisition waits
		want   Kind
	}{
		"refused":                {[]emulator.Fault{refused, down}, false, KindRefused},
		"limited, and refused":   {[]emulator.Fault{limited, refused, down}, false, KindRefused},
		"limited, and then left": {[]emulator.Fault{limited}, true, KindClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Store: newMemoryStore()})
				host := w.another(t, Config{})
				w.server.SetFaults(tt.faults...)
				ended := make(chan error, 1)
				go func() { _, err := host.Acquire(t.Context(), request()); ended <- err }()
				if tt.closed {
					time.Sleep(time.Second)
					now, cancel := context.WithCancel(t.Context())
					cancel()
					_ = host.Close(now) // which waits for nothing
				}
				wantError(t, <-ended, tt.want)
				w.wantHits(t)
				s := sweeper(t, w.provider, SweeperOptions{})
				if got, want := sweep(t, s), (SweepReport{Deferred: 1}); !tt.closed && got != want {
					t.Errorf("Sweep() while nothing can be looked for = %+v, want %+v", got, want)
				}
				w.server.SetFaults()
				time.Sleep(time.Minute)
				sweep(t, s)
				wantRecords(t, w.cfg.Store, 0)
				w.wantSandboxes(t, 0)
			})
		})
	}
}
