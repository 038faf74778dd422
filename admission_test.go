package leasehold

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// crowd acquires n leases at once, each of its own run, and returns the errors in the order of the requests.
func crowd(t *testing.T, r *rig, n int) []error {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			q := request()
			q.Scope.Run = fmt.Sprintf("run-%d", i)
			_, errs[i] = r.Acquire(t.Context(), q)
		})
	}
	wg.Wait()
	return errs
}

// statuses counts the answers to creations.
func (r *rig) statuses() map[int]int {
	counts := make(map[int]int)
	for _, q := range r.server.Requests() {
		if q.Method == "POST" && q.Path == "/api/sandbox" {
			counts[q.Status]++
		}
	}
	return counts
}

// TestManyAcquisitionsUnderRateLimit: 100 at once, where the server admits 12 in each minute and answers the others with
// 429. All succeed, in about the time that the server's windows take, with few refusals more than windows.
func TestManyAcquisitionsUnderRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window, each, total = time.Minute, 12, 100
		w := &world{}
		r := newRig(t, Config{Timeout: 30 * time.Minute}, emulator.Options{
			InMemory: true, Toolbox: http.HandlerFunc(w.toolbox), Limits: emulator.Limits{CreateRate: each, Window: window},
		})
		began := time.Now()
		for i, err := range crowd(t, r, total) {
			if err != nil {
				t.Errorf("acquisition %d: %v", i, err)
			}
		}
		took, fewest := time.Since(began), (total-1)/each*window
		got := r.statuses()
		t.Logf("%d acquisitions in %v of virtual time, where the windows alone take %v: creations by answer %v", total, took, fewest, got)
		if took < fewest || took > fewest*5/4 {
			t.Errorf("took %v, want %v to %v", took, fewest, fewest*5/4)
		}
		if most := DefaultMaxCreations + 2*total/each; got[200] != total || got[429] > most {
			t.Errorf("creations by answer = %v, want %d admitted, and at most %d refused", got, total, most)
		}
		r.wantSandboxes(t, total)
	})
}

// TestRefusalsWithoutALimit: a provider that refuses 88 creations, however slowly they come, gets each of them once more,
// one after another, and is then no longer spared.
func TestRefusalsWithoutALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		r := newRig(t, Config{}, emulator.Options{InMemory: true, Toolbox: http.HandlerFunc(w.toolbox), Faults: []emulator.Fault{
			{Method: "POST", Path: "/api/sandbox", Nth: 13, Count: 88, Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"1"}}, Body: structured(429, "Rate limit exceeded")},
		}})
		began := time.Now()
		for i, err := range crowd(t, r, 100) {
			if err != nil {
				t.Errorf("acquisition %d: %v", i, err)
			}
		}
		took := time.Since(began)
		t.Logf("88 refusals, each for a second, took %v of virtual time", took)
		if most := 2 * 88 * time.Second; took > most {
			t.Errorf("took %v, want at most %v", took, most)
		}
		r.wantHits(t)
		if got := r.statuses(); got[200] != 100 || got[429] != 88 {
			t.Errorf("creations by answer = %v, want 100 admitted and 88 refused", got)
		}
		r.wantSandboxes(t, 100)
	})
}

// TestRateLimitAndBudgets: each acquisition ends by its own budget. Who got a sandbox has it, who did not knows why, and
// nothing is left over.
func TestRateLimitAndBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 150 * time.Second
		w := &world{}
		r := newRig(t, Config{Timeout: budget}, emulator.Options{
			InMemory: true, Toolbox: http.HandlerFunc(w.toolbox), Limits: emulator.Limits{CreateRate: 12, Window: time.Minute},
		})
		began := time.Now()
		leased := 0
		for i, err := range crowd(t, r, 100) {
			if err == nil {
				leased++
				continue
			}
			e := wantError(t, err, KindRateLimited)
			if !e.Retryable || e.RetryAfter <= 0 || e.Cleanup != nil || e.Dispatched != DispatchedNo || e.Phase != PhaseCreate {
				t.Errorf("acquisition %d: %+v, want retryable, with the time to wait, nothing sent and no envelope", i, e)
			}
		}
		if took := time.Since(began); took > budget {
			t.Errorf("took %v, over the budget of %v", took, budget)
		}
		if leased < 12+6 || leased > 2*12 {
			t.Errorf("%d were leased, want those of one window of 12 and most of another: the rest of the budget is kept for compensation", leased)
		}
		r.wantSandboxes(t, leased)
	})
}

// TestRetryAfterForms: the pause is what the provider asks for in seconds or as a date, and grows where it does not say.
func TestRetryAfterForms(t *testing.T) {
	for _, tt := range []struct {
		name        string
		header      func() string
		least, most time.Duration // of the time until the third refusal was overcome
	}{
		{"seconds", func() string { return "20" }, 60 * time.Second, 66 * time.Second},
		{"date", func() string { return time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat) }, 57 * time.Second, 66 * time.Second},
		{"absent", func() string { return "" }, 7 * time.Second, 8 * time.Second},
		{"nonsense", func() string { return "soon" }, 7 * time.Second, 8 * time.Second},
		{"zero", func() string { return "0" }, 7 * time.Second, 8 * time.Second},
		{"negative", func() string { return "-5" }, 7 * time.Second, 8 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				var refusals atomic.Int32
				r := newRig(t, Config{}, emulator.Options{InMemory: true, Toolbox: http.HandlerFunc(w.toolbox), Middleware: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
						if q.Method != "POST" || q.URL.Path != "/api/sandbox" || refusals.Add(1) > 3 {
							next.ServeHTTP(rw, q)
							return
						}
						if v := tt.header(); v != "" {
							rw.Header().Set("Retry-After", v)
						}
						rw.WriteHeader(429) // as a proxy says it
					})
				}})
				began := time.Now()
				if _, err := r.Acquire(t.Context(), request()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < tt.least || took > tt.most {
					t.Errorf("three refusals took %v, want %v to %v", took, tt.least, tt.most)
				}
				r.wantSandboxes(t, 1)
			})
		})
	}
}

// TestQuotaIsNotRetried: one creation is sent, and the error says that waiting does not help.
func TestQuotaIsNotRetried(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{Limits: emulator.Limits{Sandboxes: 1}, Toolbox: http.HandlerFunc((&world{}).toolbox)})
	r.acquired(t)
	_, err := r.Acquire(t.Context(), request())
	if e := wantError(t, err, KindQuota); e.Retryable || e.Cleanup != nil {
		t.Errorf("error = %+v, want not retryable, no envelope", e)
	}
	if got := r.count()["POST /api/sandbox"]; got != 1 {
		t.Errorf("%d creations were sent, want 1", got)
	}
	r.wantSandboxes(t, 1)
}

// admissions is an admission in virtual time, and who was let through.
type admissions struct {
	*admission
	wg    sync.WaitGroup
	mu    sync.Mutex
	order []int
	times []time.Duration
	began time.Time
}

func newAdmissions(limit int) *admissions {
	return &admissions{admission: &admission{limit: limit}, began: time.Now()}
}

// queue starts one acquisition that waits, and calls then when it may create.
func (a *admissions) enqueue(ctx context.Context, i int, then func(*ticket)) <-chan error {
	done := make(chan error, 1)
	place := a.ticket()
	a.wg.Go(func() {
		err := a.enter(ctx, place)
		if err == nil {
			a.mu.Lock()
			a.order, a.times = append(a.order, i), append(a.times, time.Since(a.began).Round(time.Millisecond))
			a.mu.Unlock()
			then(place)
		}
		done <- err
	})
	synctest.Wait()
	return done
}

// TestAdmissionIsFair: creations are sent in the order of the acquisitions, also after a refusal, and one that does not
// wait any longer gives its place up at once.
func TestAdmissionIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmissions(1)
		hold := make(chan struct{})
		a.enqueue(t.Context(), 0, func(p *ticket) {
			<-hold
			a.refused(p, time.Second)
			if err := a.enter(t.Context(), p); err != nil {
				t.Error(err)
			}
			a.mu.Lock()
			a.order = append(a.order, 10)
			a.mu.Unlock()
			a.leave(p)
		})
		ctx, cancel := context.WithCancel(t.Context())
		var left <-chan error
		for i := 1; i <= 4; i++ {
			if i == 2 {
				left = a.enqueue(ctx, i, a.leave)
				continue
			}
			a.enqueue(t.Context(), i, a.leave)
		}
		cancel()
		synctest.Wait()
		select {
		case err := <-left:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("enter() = %v, want canceled", err)
			}
		default:
			t.Error("who does not wait any longer is still waiting")
		}
		close(hold)
		a.wg.Wait()
		if got, want := fmt.Sprint(a.order), "[0 10 1 3 4]"; got != want {
			t.Errorf("order = %s, want %s", got, want)
		}
		if a.active != 0 || len(a.queue) != 0 {
			t.Errorf("%d under way and %d waiting at the end, want none", a.active, len(a.queue))
		}
	})
}

// TestAdmissionAfterAPause: those that waited do not come all at once when the pause ends.
func TestAdmissionAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmissions(8)
		for i := range 4 { // admitted, in no time
			a.enqueue(t.Context(), i, a.leave)
		}
		a.enqueue(t.Context(), 4, func(p *ticket) { a.refused(p, 20*time.Second) })
		for i := 5; i < 9; i++ {
			a.enqueue(t.Context(), i, a.leave)
		}
		a.wg.Wait()
		for i, at := range a.times[5:] {
			// Four in the first era of 20 to 22 s: one each 5 s or a little less from then on.
			least, most := 20*time.Second+time.Duration(i)*4500*time.Millisecond, 22*time.Second+time.Duration(i)*5500*time.Millisecond
			if at < least || at > most {
				t.Errorf("creation %d after the pause was sent at %v, want %v to %v", i+1, at, least, most)
			}
		}
		t.Logf("sent at %v", a.times)
		<-time.After(2 * paceMemory)
		a.began = time.Now()
		a.times = nil
		for i := range 4 {
			a.enqueue(t.Context(), i, a.leave)
		}
		a.wg.Wait()
		if got, want := fmt.Sprint(a.times), "[0s 0s 0s 0s]"; got != want {
			t.Errorf("long after the pause creations are sent at %s, want %s", got, want)
		}
	})
}

// TestAdmissionRefusalsOfOneBurst: refusals of creations that were under way together are one lesson.
func TestAdmissionRefusalsOfOneBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmissions(8)
		refuse := make(chan struct{})
		for i := range 8 {
			a.enqueue(t.Context(), i, func(p *ticket) {
				<-refuse
				a.refused(p, 10*time.Second)
			})
		}
		close(refuse)
		a.wg.Wait()
		if a.era != 1 || a.interval != cautiousInterval {
			t.Errorf("after 8 refusals of one burst: era %d, interval %v, want era 1 and %v", a.era, a.interval, cautiousInterval)
		}
	})
}

// TestAdmissionOutlasted: who cannot outlast the pause is told so at once, whether it comes before or after the refusal.
func TestAdmissionOutlasted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmissions(1)
		hold := make(chan struct{})
		a.enqueue(t.Context(), 0, func(p *ticket) {
			<-hold
			a.refused(p, 24*time.Hour)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		before := a.enqueue(ctx, 1, a.leave)
		close(hold)
		synctest.Wait()
		after := a.enqueue(ctx, 2, a.leave)
		for name, done := range map[string]<-chan error{"before": before, "after": after} {
			select {
			case err := <-done:
				if e := wantError(t, err, KindRateLimited); e.RetryAfter > longestPause+longestJitter || e.RetryAfter < longestPause {
					t.Errorf("%s: wait %v, want the longest pause, %v", name, e.RetryAfter, longestPause)
				}
			default:
				t.Errorf("%s the refusal: still waiting for a pause that outlasts it", name)
			}
		}
		a.wg.Wait()
	})
}

// BenchmarkAdmission is what the queue costs a creation that need not wait.
func BenchmarkAdmission(b *testing.B) {
	a := &admission{limit: 8}
	for b.Loop() {
		place := a.ticket()
		if err := a.enter(b.Context(), place); err != nil {
			b.Fatal(err)
		}
		a.leave(place)
	}
}
