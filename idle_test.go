package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// idleRig is a rig for virtual time.
func idleRig(t *testing.T, cfg Config, options emulator.Options) *rig {
	t.Helper()
	options.InMemory, options.Toolbox = true, http.HandlerFunc((&world{}).toolbox)
	return newRig(t, cfg, options)
}

// activities returns what is active as "kind op", with "?" for what is unwatched and the number of requests, sorted.
func activities(report IdleReport) []string {
	var lines []string
	for _, a := range report.Active {
		line := string(a.Kind) + " " + a.Op
		if a.Unwatched {
			line += "?"
		}
		if a.Requests > 0 {
			line += fmt.Sprint(" ", a.Requests)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

func wantActive(t *testing.T, report IdleReport, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, activities(report)); diff != "" {
		t.Errorf("activities mismatch (-want +got):\n%s", diff)
	}
	if report.Idle != (len(want) == 0) {
		t.Errorf("Idle = %t with %d activities", report.Idle, len(report.Active))
	}
}

// wantProof fails the test unless a proof finds exactly that, and no error.
func (r *rig) wantProof(t *testing.T, want ...string) {
	t.Helper()
	report, err := r.ProveIdle(t.Context())
	if err != nil {
		t.Errorf("ProveIdle() = %v", err)
	}
	wantActive(t, report, want...)
	wantActive(t, r.Idle(), want...)
}

// lateHandler passes chosen requests on long after their connection broke.
type lateHandler struct {
	method, suffix string
	count          int // how many are late
	after          time.Duration
	done           sync.WaitGroup
}

func (h *lateHandler) wrap(next http.Handler) http.Handler {
	var mu sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		late := q.Method == h.method && strings.HasSuffix(q.URL.Path, h.suffix) && h.count > 0
		if late {
			h.count--
		}
		mu.Unlock()
		if !late {
			next.ServeHTTP(w, q)
			return
		}
		body, _ := io.ReadAll(q.Body)
		again := q.Clone(context.WithoutCancel(q.Context()))
		again.Body = io.NopCloser(bytes.NewReader(body))
		h.done.Go(func() {
			time.Sleep(h.after)
			next.ServeHTTP(httptest.NewRecorder(), again)
		})
		<-q.Context().Done() // no answer: the caller's time runs out
		panic(http.ErrAbortHandler)
	})
}

func TestI1AnUnusedProviderIsIdleWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		r := idleRig(t, Config{CallTimeout: time.Second}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				requests.Add(1)
				next.ServeHTTP(w, q)
			})
		}})
		wantActive(t, r.Idle())
		r.wantProof(t)
		if n := requests.Load(); n != 0 {
			t.Errorf("%d requests of an unused provider, want none", n)
		}
		// One that only ever read is idle, too, whatever became of its reads.
		creation := r.newCreation(request().Scope, false, nil)
		envelope := *creation.envelope(PhaseCreate, "")
		r.server.SetFaults(emulator.Fault{Method: "GET", Count: -1, Action: emulator.DelayRequest, Delay: time.Hour})
		if _, err := r.Inspect(t.Context(), envelope); !errors.Is(err, ErrTimeout) {
			t.Errorf("Inspect() = %v, want ErrTimeout", err)
		}
		requests.Store(0)
		wantActive(t, r.Idle())
		r.wantProof(t)
		if n := requests.Load(); n != 0 {
			t.Errorf("%d requests of a provider that only read, want none", n)
		}
	})
}

func TestI1ALeaseIsActiveUntilItsReceipt(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse=%t", reuse), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := idleRig(t, Config{Reuse: reuse}, emulator.Options{})
				l := r.acquired(t)
				wantActive(t, r.Idle(), "allocation acquire?")
				a := r.Idle().Active[0]
				if a.Scope != l.ref.Scope || a.Sandbox != l.ref.Sandbox || a.Attempt != l.ref.Attempt || a.Account != l.ref.Account {
					t.Errorf("activity %+v does not name the lease %+v", a, l.ref)
				}
				time.Sleep(time.Minute)
				if age := time.Since(a.Since); age < time.Minute || age > 2*time.Minute {
					t.Errorf("active for %s, want about a minute", age)
				}
				done, err := l.begin("import")
				if err != nil {
					t.Fatal(err)
				}
				r.server.ResetRequests()
				r.wantProof(t, "allocation acquire?", "call import")
				r.wantRequests(t) // what is in use is not asked about
				done()
				r.wantProof(t, "allocation acquire?")
				r.wantRequests(t, "GET /api/sandbox/*")
				receipt, err := r.Release(t.Context(), l.ref, ReleaseOptions{})
				if err != nil {
					t.Fatalf("Release() = %+v, %v", receipt, err)
				}
				r.server.ResetRequests()
				wantActive(t, r.Idle())
				r.wantProof(t)
				r.wantRequests(t)
				if !reuse {
					return
				}
				if _, err := r.Resume(t.Context(), l.ref); err != nil {
					t.Fatal(err)
				}
				wantActive(t, r.Idle(), "allocation resume?")
				time.Sleep(30 * time.Minute) // the provider stops it
				wantActive(t, r.Idle(), "allocation resume?")
				r.wantProof(t)
				if receipt, err := r.Destroy(t.Context(), l.ref); err != nil {
					t.Errorf("Destroy() = %+v, %v", receipt, err)
				}
				wantActive(t, r.Idle())
			})
		})
	}
}

// TestI1AnotherHostStartsTheSandboxAgain: it was seen at rest, and what this host does in it then counts as at first.
func TestI1AnotherHostStartsTheSandboxAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := idleRig(t, Config{Reuse: true}, emulator.Options{})
		l := r.acquired(t)
		use := func() error {
			done, err := l.begin("use")
			if err != nil {
				return err
			}
			defer done()
			_, err = l.toolbox(t.Context())
			return err
		}
		if err := use(); err != nil {
			t.Fatal(err)
		}
		r.server.Sandbox(l.ref.Sandbox).Force(emulator.StateStopped, "", false)
		r.wantProof(t)
		if err := use(); !errors.Is(err, ErrNotRunning) {
			t.Errorf("using a sandbox that was seen at rest: %v, want ErrNotRunning", err)
		}
		if _, err := l.AttachTerminal(t.Context(), "one"); !errors.Is(err, ErrNotRunning) {
			t.Errorf("AttachTerminal() = %v, want ErrNotRunning", err)
		}
		wantActive(t, r.Idle())
		r.server.Sandbox(l.ref.Sandbox).Force(emulator.StateStarted, "", false)
		r.server.ResetRequests()
		for range 2 {
			if err := use(); err != nil {
				t.Fatal(err)
			}
			wantActive(t, r.Idle(), "allocation resolve?")
		}
		r.wantRequests(t, "GET /api/sandbox/*") // once
		r.wantProof(t, "allocation resolve?")
	})
}

// TestI1LostReplies: whatever reply is lost, the receipt's own reads settle it.
func TestI1LostReplies(t *testing.T) {
	for _, fault := range []emulator.Fault{
		{Method: "POST", Path: "/api/sandbox", Action: emulator.DropAfter},
		{Method: "POST", Path: "/toolbox/*/process/execute", Action: emulator.DropAfter},
		{Method: "POST", Path: "/api/sandbox/*/stop", Action: emulator.DropAfter},
		{Method: "POST", Path: "/api/sandbox/*/stop", Action: emulator.DropBefore},
		{Method: "POST", Path: "/api/sandbox/*/stop", Action: emulator.StatusAfter, Status: 504},
		{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.DropAfter, Count: 2},
		{Method: "GET", Path: "/api/sandbox/*", Action: emulator.DropAfter, Count: 2},
		{Path: "/**", Action: emulator.SkewClock, Delay: 400 * 24 * time.Hour, Count: -1},
		{Path: "/**", Action: emulator.SkewClock, Delay: -400 * 24 * time.Hour, Count: -1},
	} {
		t.Run(fmt.Sprint(fault.Method, fault.Path, fault.Action, fault.Delay), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := idleRig(t, Config{Reuse: true, CallTimeout: 5 * time.Second}, emulator.Options{Faults: []emulator.Fault{fault}})
				l, err := r.Acquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				if r.Idle().Idle {
					t.Error("idle with a lease")
				}
				if _, err := r.Release(t.Context(), l.ref, ReleaseOptions{}); err != nil {
					t.Fatal(err)
				}
				wantActive(t, r.Idle())
				if _, err := r.Destroy(t.Context(), l.ref); err != nil {
					t.Fatal(err)
				}
				wantActive(t, r.Idle())
				r.wantHits(t)
			})
		})
	}
}

// TestI1ATimedOutStopIsProcessedLate: its timeout settles nothing. What does is a look that finds the sandbox stopped.
func TestI1ATimedOutStopIsProcessedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := &lateHandler{method: "POST", suffix: "/stop", count: 3, after: 10 * time.Minute}
		r := idleRig(t, Config{Reuse: true, CallTimeout: 20 * time.Second, Timeout: time.Minute}, emulator.Options{Middleware: late.wrap})
		l := r.acquired(t)
		if _, err := r.Release(t.Context(), l.ref, ReleaseOptions{}); !errors.Is(err, ErrTimeout) {
			t.Fatalf("Release() = %v, want ErrTimeout", err)
		}
		want := []string{"allocation acquire?", "cleanup release?", "request stop? 3"}
		wantActive(t, r.Idle(), want...)
		r.server.ResetRequests()
		r.wantProof(t, want...)
		r.wantRequests(t, "GET /api/sandbox/*")
		time.Sleep(15 * time.Minute)
		late.done.Wait()
		wantActive(t, r.Idle(), want...) // nobody has looked
		r.wantProof(t)
		if r.server.Sandbox(l.ref.Sandbox).State() != emulator.StateStopped {
			t.Errorf("the sandbox is %s: a proof only reads", r.server.Sandbox(l.ref.Sandbox).State())
		}
	})
}

// TestI1AnUncertainCreation counts until its sandbox was seen, and then until that is gone. That it is not there proves
// nothing.
func TestI1AnUncertainCreation(t *testing.T) {
	for _, proved := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen by a proof=%t", proved), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				late := &lateHandler{method: "POST", suffix: "/api/sandbox", count: 1, after: time.Hour}
				r := idleRig(t, Config{Timeout: 2 * time.Minute, AutoStopMinutes: new(int)}, emulator.Options{Middleware: late.wrap})
				_, err := r.Acquire(t.Context(), request())
				e := wantError(t, err, KindUncertain)
				want := []string{"creation acquire?", "request create? 1"}
				wantActive(t, r.Idle(), want...)
				r.wantProof(t, want...)
				if e.Cleanup == nil {
					t.Fatal("no envelope")
				}
				if _, err := r.Inspect(t.Context(), *e.Cleanup); !errors.Is(err, ErrUncertain) {
					t.Errorf("Inspect() = %v, want ErrUncertain", err)
				}
				r.wantProof(t, want...)
				time.Sleep(2 * time.Hour)
				late.done.Wait()
				if proved {
					r.wantProof(t, "allocation prove idle?")
					if id := r.Idle().Active[0].Sandbox; id == "" {
						t.Error("the sandbox that was seen is not named")
					}
				}
				if receipt := r.settle(t, e.Cleanup); receipt.State != ReceiptDestroyed {
					t.Errorf("Cleanup() = %+v", receipt)
				}
				wantActive(t, r.Idle())
				r.server.ResetRequests()
				r.wantProof(t)
				r.wantRequests(t)
			})
		})
	}
}

// TestI1ARefusedCreationIsNone: the provider's own refusal, and that the name is not found, settle a creation.
func TestI1ARefusedCreationIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := idleRig(t, Config{}, emulator.Options{Faults: []emulator.Fault{
			{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 400, Body: structured(400, "no")},
		}})
		_, err := r.Acquire(t.Context(), request())
		wantError(t, err, KindRefused)
		wantActive(t, r.Idle())

		// Where the name cannot be looked for, the next proof does.
		r.server.SetFaults(
			emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 400, Body: structured(400, "no")},
			emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Action: emulator.StatusBefore, Status: 503, Count: -1},
		)
		_, err = r.Acquire(t.Context(), request())
		wantError(t, err, KindRefused)
		wantActive(t, r.Idle(), "creation acquire?")
		report, err := r.ProveIdle(t.Context())
		wantError(t, err, KindUnavailable)
		wantActive(t, report, "creation acquire?")
		r.server.SetFaults()
		r.wantProof(t)
	})
}

// TestI1ProofsAreVoid if anything of the scope begins and ends before the answer.
func TestI1ProofsAreVoid(t *testing.T) {
	for _, tt := range []struct {
		name string
		meanwhile
		want bool
	}{
		{"nothing", func(t *testing.T, r *rig, l, other *Lease) {}, true},
		{"a call", func(t *testing.T, r *rig, l, other *Lease) { begun(t, l)() }, false},
		{"a call of another sandbox of the scope", func(t *testing.T, r *rig, l, other *Lease) { begun(t, other)() }, false},
		{"a terminal that is left", func(t *testing.T, r *rig, l, other *Lease) {
			h, err := l.hold(ActivityTerminal, "terminal")
			if err != nil {
				t.Fatal(err)
			}
			h.leave("one")
		}, false},
		{"a call of another scope", func(t *testing.T, r *rig, l, other *Lease) {
			ref := newCreationRef(r, Scope{Tenant: "acme", Environment: "test", Run: "run-2"})
			bound, err := r.Bind(ref)
			if err != nil {
				t.Fatal(err)
			}
			begun(t, bound)()
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, answer := make(chan struct{}, 1), make(chan struct{})
				var holds sync.Mutex
				hold := ""
				r := idleRig(t, Config{Reuse: true}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
						next.ServeHTTP(w, q)
						holds.Lock()
						held := hold != "" && strings.HasSuffix(q.URL.Path, hold)
						holds.Unlock()
						if held { // it was read by now, and the answer is on its way
							asked <- struct{}{}
							<-answer
						}
					})
				}})
				l, other := r.acquired(t), r.acquired(t)
				if _, err := r.Release(t.Context(), other.ref, ReleaseOptions{}); err != nil {
					t.Fatal(err)
				}
				other = r.bind(other.ref)
				time.Sleep(30 * time.Minute)
				holds.Lock()
				hold = l.ref.Sandbox
				holds.Unlock()
				var report IdleReport
				var err error
				var proving sync.WaitGroup
				proving.Go(func() { report, err = r.ProveIdle(t.Context()) })
				<-asked
				wantActive(t, r.Idle(), "allocation acquire?", "request get")
				tt.meanwhile(t, r, l, other)
				holds.Lock()
				hold = ""
				holds.Unlock()
				close(answer)
				proving.Wait()
				if report.Idle != tt.want || err != nil {
					t.Errorf("ProveIdle() = %+v, %v, want idle %t", report, err, tt.want)
				}
				r.wantProof(t) // a quiet one
			})
		})
	}
}

type meanwhile func(t *testing.T, r *rig, l, other *Lease)

func begun(t *testing.T, l *Lease) (done func()) {
	t.Helper()
	done, err := l.begin("meanwhile")
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// newCreationRef is a reference to a sandbox that does not exist.
func newCreationRef(r *rig, scope Scope) LeaseRef {
	creation := r.newCreation(scope, true, nil)
	ref := LeaseRef{
		Version: leaseRefVersion, Sandbox: "00000000-0000-4000-8000-000000000000", Name: creation.Name, Scope: scope, Attempt: creation.Attempt,
		Labels: creation.Labels, Account: creation.Credential, Credential: creation.Credential, Workspace: "/w", Shell: "sh", Reuse: true,
	}
	ref.Sentinel = sentinelToken(ref)
	return ref
}

// TestI1ScopesSideBySide: what is proved of one says nothing of the other, and asks nothing about it.
func TestI1ScopesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := idleRig(t, Config{Reuse: true}, emulator.Options{})
		one, two := request(), request()
		two.Scope.Agent = "another"
		a, err := r.Acquire(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		b, err := r.Acquire(t.Context(), two)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Release(t.Context(), a.ref, ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		other := one.Scope
		other.Agent = "a third"
		wantActive(t, r.Idle(other))
		wantActive(t, r.Idle(two.Scope), "allocation acquire?")
		wantActive(t, r.Idle(other, two.Scope), "allocation acquire?")
		wantActive(t, r.Idle(Scope{Tenant: "acme"}), "allocation acquire?")
		wantActive(t, r.Idle(one.Scope), "allocation acquire?") // of the run, whatever the agent
		wantActive(t, r.Idle(Scope{Tenant: "another"}))
		r.server.ResetRequests()
		report, err := r.ProveIdle(t.Context(), other)
		if err != nil {
			t.Error(err)
		}
		wantActive(t, report)
		r.wantRequests(t)
		r.wantProof(t, "allocation acquire?")
		r.wantRequests(t, "GET /api/sandbox/*")
		if _, err := r.Destroy(t.Context(), b.ref); err != nil {
			t.Fatal(err)
		}
		wantActive(t, r.Idle())
	})
}

// TestI1AnotherAccount neither proves anything of ours, nor is made active by it.
func TestI1AnotherAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := idleRig(t, Config{APIKey: "home-key", Reuse: true}, emulator.Options{
			APIKey: "home-key", Organization: "home", Keys: map[string]string{"foreign-key": "elsewhere", "rotated-key": "home"},
		})
		with := func(key string) *rig {
			r := &rig{provider: rigProvider(t, home.server, Config{APIKey: key, Reuse: true}), server: home.server}
			t.Cleanup(func() {
				if err := r.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			return r
		}
		foreign, rotated := with("foreign-key"), with("rotated-key")
		own, err := foreign.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		l := home.acquired(t)
		if _, err := foreign.Destroy(t.Context(), l.ref); !errors.Is(err, ErrNotOwned) {
			t.Errorf("Destroy() under another account = %v, want ErrNotOwned", err)
		}
		wantActive(t, foreign.Idle(), "allocation acquire?")
		if foreign.Idle().Active[0].Account == home.Idle().Active[0].Account {
			t.Error("two accounts have one fingerprint")
		}
		if _, err := foreign.Destroy(t.Context(), own.ref); err != nil {
			t.Fatal(err)
		}
		wantActive(t, foreign.Idle())
		wantActive(t, home.Idle(), "allocation acquire?")

		// The key is moved to another organisation, which does not see our sandbox: that is no proof.
		other, err := foreign.Acquire(t.Context(), request()) // by which to tell the organisation
		if err != nil {
			t.Fatal(err)
		}
		home.server.SetKey("home-key", emulator.Key{Organization: "elsewhere"})
		report, err := home.ProveIdle(t.Context())
		wantError(t, err, KindNotOwned)
		wantActive(t, report, "allocation acquire?")
		home.server.SetKey("home-key", emulator.Key{Organization: "home"})
		home.wantProof(t, "allocation acquire?")

		// A rotated key of our organisation takes it over.
		bound, err := rotated.Bind(l.ref)
		if err != nil {
			t.Fatal(err)
		}
		wantActive(t, rotated.Idle())
		if _, err := bound.toolbox(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantActive(t, rotated.Idle(), "allocation resolve?")
		if _, err := rotated.Destroy(t.Context(), l.ref); err != nil {
			t.Fatal(err)
		}
		wantActive(t, rotated.Idle())
		home.wantProof(t)
		if _, err := foreign.Destroy(t.Context(), other.ref); err != nil {
			t.Fatal(err)
		}
	})
}

// TestI1ARequestOutlivesItsCaller: the caller has left, and the transport is not done with the request.
func TestI1ARequestOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stubborn := &stubbornTransport{suffix: "/stop", released: make(chan struct{})}
		r := idleRig(t, Config{Reuse: true, CallTimeout: time.Second, Timeout: 4 * time.Second, Transport: stubborn}, emulator.Options{})
		stubborn.base = r.server.Transport()
		l := r.acquired(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Release(ctx, l.ref, ReleaseOptions{}); !errors.Is(err, ErrTimeout) {
			t.Fatalf("Release() = %v, want ErrTimeout", err)
		}
		time.Sleep(time.Hour)
		r.wantProof(t, "allocation acquire?", "call release", "request stop")
		close(stubborn.released)
		synctest.Wait()
		if report := r.Idle(); report.Idle {
			t.Errorf("Idle() = %+v, before anybody has looked", report)
		}
		r.wantProof(t)
	})
}

// stubbornTransport does not honour the contexts of some requests.
type stubbornTransport struct {
	base     http.RoundTripper
	suffix   string
	released chan struct{}
}

func (s *stubbornTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if strings.HasSuffix(q.URL.Path, s.suffix) {
		<-s.released
		resp, err := s.base.RoundTrip(q.Clone(context.WithoutCancel(q.Context())))
		if err == nil {
			resp.Body.Close()
			err = q.Context().Err()
		}
		return nil, err
	}
	return s.base.RoundTrip(q)
}

// TestI1CommandsThatWereLeft count until somebody sees their end, or the sandbox is proved to be at rest.
func TestI1CommandsThatWereLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	x := l.Executor()
	p, err := x.Start(t.Context(), Command{Script: "read line; exit 3", Stdin: bytes.NewReader(bytes.Repeat([]byte("x\n"), 10))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	wantActive(t, r.Idle(), "allocation acquire?")
	sleeper, err := x.Start(t.Context(), Command{Script: "while [ ! -e go ]; do sleep 0.02; done"})
	if err != nil {
		t.Fatal(err)
	}
	if got := activities(r.Idle()); !slices.Contains(got, "command start") {
		t.Errorf("active: %q, without the command that runs", got)
	}
	sleeper.Detach()
	_, _ = sleeper.Wait()
	// The request that was waiting for news of it may count, too: nobody waited for its answer.
	commands := func(want ...string) {
		t.Helper()
		report, err := r.ProveIdle(t.Context())
		got := slices.DeleteFunc(activities(report), func(line string) bool { return strings.HasPrefix(line, "request ") })
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("activities mismatch (-want +got), error %v:\n%s", err, diff)
		}
	}
	commands("allocation acquire?", "command start?")
	again, err := x.Attach(t.Context(), sleeper.Ref(), Attachment{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Run(t.Context(), Command{Script: ": >go"}); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Wait(); err != nil {
		t.Fatal(err)
	}
	commands("allocation acquire?")

	// What a command leaves in the background nobody sees: the sandbox counts for it.
	if _, err := x.Run(t.Context(), Command{Script: "sleep 600 >/dev/null 2>&1 &"}); err != nil {
		t.Fatal(err)
	}
	commands("allocation acquire?")
	left, err := x.Start(t.Context(), Command{Script: "sleep 600"})
	if err != nil {
		t.Fatal(err)
	}
	left.Detach()
	_, _ = left.Wait()
	commands("allocation acquire?", "command start?")
	if _, err := r.Destroy(t.Context(), l.ref); err != nil {
		t.Fatal(err)
	}
	wantActive(t, r.Idle())
}

// TestI1NothingStaysCounted: each operation of each kind ends its requests and calls.
func TestI1NothingStaysCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	for _, transport := range []Transport{TransportJournal, TransportSession} {
		if _, err := l.Executor().Run(t.Context(), Command{Script: "sleep 0.3; printf x", Transport: transport, Stdout: io.Discard}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Executor().Run(t.Context(), Command{Script: "sleep 5", Transport: transport, Timeout: 100 * time.Millisecond}); !errors.Is(err, ErrTimeout) {
			t.Fatal(err)
		}
	}
	if _, err := l.Importer().Dir(t.Context(), "internal/stream", "in", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exporter().Dir(t.Context(), "in", t.TempDir(), ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exporter().File(t.Context(), "in/log.go", t.TempDir()+"/log.go", ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, a := range r.Idle().Active {
		if !a.Unwatched && a.Kind == ActivityCommand {
			t.Errorf("after every command has ended: %+v", a)
		}
	}
	if _, err := r.Destroy(t.Context(), l.ref); err != nil { // which waits for what goes on in the background
		t.Fatal(err)
	}
	r.wantProof(t)
}
