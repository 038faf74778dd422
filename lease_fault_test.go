package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestL1NameConflict: our own attempt, seen because a request was delivered twice, is adopted; a foreign sandbox of the
// same name makes us take another one, and is left alone.
func TestL1NameConflict(t *testing.T) {
	t.Run("our own attempt", func(t *testing.T) {
		r := newRig(t, Config{}, emulator.Options{Faults: []emulator.Fault{{Method: "POST", Path: "/api/sandbox", Action: emulator.Duplicate}}})
		l, err := r.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		r.wantHits(t)
		r.wantSandboxes(t, 1)
		if r.server.Sandboxes()[0] != l.Ref().Sandbox {
			t.Errorf("leased %s, want %s", l.Ref().Sandbox, r.server.Sandboxes()[0])
		}
	})
	t.Run("a foreign sandbox", func(t *testing.T) {
		var squat sync.Once
		r := newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.Method == "POST" && q.URL.Path == "/api/sandbox" {
					squat.Do(func() {
						body, err := io.ReadAll(q.Body)
						if err != nil {
							t.Error(err)
						}
						foreign := q.Clone(q.Context())
						foreign.Body = io.NopCloser(strings.NewReader(strings.ReplaceAll(string(body), `"acme"`, `"somebody-else"`)))
						foreign.ContentLength = -1
						next.ServeHTTP(discard{http.Header{}}, foreign)
						q.Body = io.NopCloser(strings.NewReader(string(body)))
					})
				}
				next.ServeHTTP(w, q)
			})
		}})
		l, err := r.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		r.wantSandboxes(t, 2)
		foreign := r.server.Sandbox(slices.DeleteFunc(r.server.Sandboxes(), func(id string) bool { return id == l.Ref().Sandbox })[0])
		if got := foreign.Labels()["leasehold-tenant"]; got != "somebody-else" || foreign.State() != emulator.StateStarted {
			t.Errorf("the foreign sandbox: tenant %q, state %q", got, foreign.State())
		}
		if foreign.Name() == l.Ref().Name {
			t.Errorf("both are called %q", foreign.Name())
		}
	})
}

// discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// TestL2UncertainCreation: a creation whose reply is lost is found by its name and adopted; one that cannot be found is
// neither repeated nor forgotten.
func TestL2UncertainCreation(t *testing.T) {
	create := func(f emulator.Fault) emulator.Fault {
		f.Method, f.Path = "POST", "/api/sandbox"
		return f
	}
	for _, tt := range []struct {
		name  string
		fault emulator.Fault
	}{
		{"reply lost", create(emulator.Fault{Action: emulator.DropAfter})},
		{"reply cut short", create(emulator.Fault{Action: emulator.TruncateBody, Bytes: 20})},
		{"reply reset", create(emulator.Fault{Action: emulator.ResetReply, Bytes: 1})},
		{"502 with an empty body after it was processed", create(emulator.Fault{Action: emulator.StatusAfter, Status: 502})},
		{"500 of the API's after it was processed", create(emulator.Fault{Action: emulator.StatusAfter, Status: 500, Body: structured(500, "Internal server error")})},
		{"404 page of a proxy after it was processed", create(emulator.Fault{Action: emulator.StatusAfter, Status: 404, Body: "<html>not here</html>"})},
		{"200 with nonsense", create(emulator.Fault{Action: emulator.StatusAfter, Status: 200, Body: `{"hello":1}`})},
		{"200 about another sandbox", create(emulator.Fault{Action: emulator.MergeReply, Body: `{"id":"another","name":"another"}`})},
	} {
		t.Run(tt.name+": adopted", func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{Faults: []emulator.Fault{tt.fault}})
			l, err := r.Acquire(t.Context(), request())
			if err != nil {
				t.Fatal(err)
			}
			r.wantHits(t)
			r.wantSandboxes(t, 1)
			if got := r.count()["POST /api/sandbox"]; got != 1 {
				t.Errorf("%d creations were sent, want 1", got)
			}
			if l.Ref().Sandbox != r.server.Sandboxes()[0] {
				t.Errorf("leased %s, want %s", l.Ref().Sandbox, r.server.Sandboxes()[0])
			}
		})
	}

	t.Run("never seen", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{InMemory: true, Faults: []emulator.Fault{create(emulator.Fault{Action: emulator.DropBefore})}})
			began := time.Now()
			_, err := r.Acquire(t.Context(), request())
			e := wantError(t, err, KindUncertain)
			if e.Cleanup == nil || e.Phase != PhaseCreate || e.Dispatched != DispatchedUnknown || e.Retryable {
				t.Errorf("error = %+v, want an envelope, phase create, dispatched unknown, not retryable", e)
			}
			if took := time.Since(began); took < sightingTime || took > 2*sightingTime {
				t.Errorf("gave up after %v, want about %v", took, sightingTime)
			}
			if got := r.count()["POST /api/sandbox"]; got != 1 {
				t.Errorf("%d creations were sent, want 1", got)
			}
			_, err = r.Inspect(t.Context(), *e.Cleanup)
			wantError(t, err, KindUncertain)
			_, err = r.Cleanup(t.Context(), *e.Cleanup)
			wantError(t, err, KindUncertain)
			r.wantNothingDeleted(t)
		})
	})

	t.Run("seen only later", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{InMemory: true})
			r.server.SetFaults(
				emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.DropAfter},
				emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 503},
			)
			_, err := r.Acquire(t.Context(), request())
			e := wantError(t, err, KindUncertain)
			r.wantHits(t)
			r.server.SetFaults()
			if receipt := r.settle(t, e.Cleanup); receipt.State != ReceiptDestroyed {
				t.Errorf("receipt = %+v, want destroyed", receipt)
			}
			r.wantSandboxes(t, 0)
		})
	})
}

func (r *rig) wantNothingDeleted(t *testing.T) {
	t.Helper()
	if got := r.count()["DELETE /api/sandbox/*"]; got != 0 {
		t.Errorf("%d deletions, want none", got)
	}
}

func TestAcquireRefused(t *testing.T) {
	tests := []struct {
		name    string
		cfg     Config
		options emulator.Options
		kind    Kind
	}{
		{"unknown snapshot", Config{Snapshot: "nowhere"}, emulator.Options{}, KindRefused},
		{"inactive snapshot", Config{Snapshot: "old"}, emulator.Options{Snapshots: []emulator.Snapshot{{Name: "old", State: "inactive"}}}, KindRefused},
		{"quota", Config{}, emulator.Options{Limits: emulator.Limits{Disk: 1}}, KindQuota},
		{"quota of one sandbox", Config{Image: "debian", Resources: Resources{CPU: 64}}, emulator.Options{Limits: emulator.Limits{SandboxCPU: 4}}, KindQuota},
		{"no runner", Config{}, emulator.Options{Limits: emulator.Limits{NoRunners: true}}, KindUnavailable},
		{"suspended organisation", Config{}, emulator.Options{Limits: emulator.Limits{Suspended: true}}, KindAuth},
		{"unknown region", Config{Target: "mars"}, emulator.Options{}, KindNotFound},
		{"bad key", Config{APIKey: "wrong"}, emulator.Options{}, KindAuth},
		{"runner failure leaves an errored sandbox", Config{Snapshot: "bad"}, emulator.Options{Snapshots: []emulator.Snapshot{{Name: "bad", Failure: "disk of runner full"}}}, KindRefused},
		{"image that does not build", Config{Image: "bad"}, emulator.Options{Snapshots: []emulator.Snapshot{{Name: "bad", State: "build_failed", Failure: "no such base"}}}, KindRefused},
		{"403 without a body", Config{}, emulator.Options{Faults: []emulator.Fault{{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden resource")}}}, KindAuth},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.cfg, tt.options)
			_, err := r.Acquire(t.Context(), request())
			var e *Error
			if !errors.As(err, &e) || e.Kind != tt.kind && !(tt.kind == KindRefused && e.Kind == KindBroken) {
				t.Fatalf("Acquire() = %v, want kind %q", err, tt.kind)
			}
			if e.Phase != PhaseCreate || e.Cleanup != nil || e.Budget == 0 {
				t.Errorf("error = %+v, want phase create, no envelope and a budget", e)
			}
			for _, asked := range []string{tt.cfg.Snapshot, tt.cfg.Target} {
				if !strings.Contains(e.Message, asked) {
					t.Errorf("message %q, want it to name %q", e.Message, asked)
				}
			}
			r.wantSandboxes(t, 0)
			for _, secret := range []string{r.server.APIKey(), "disk of runner", "no such base", "Did you add it"} {
				if strings.Contains(fmt.Sprintf("%+v", err), secret) {
					t.Errorf("S1: error has %q: %+v", secret, err)
				}
			}
		})
	}
}

// TestL7SetUpFailureIsCompensated: whatever step fails, no sandbox is left, and the phase is that of the failure.
func TestL7SetUpFailureIsCompensated(t *testing.T) {
	tests := []struct {
		name  string
		cfg   Config
		fault emulator.Fault
		phase Phase
		kind  Kind
	}{
		{"workspace cannot be made", Config{Workspace: "/proc/nowhere/work"}, emulator.Fault{}, PhaseWorkspace, KindRefused},
		{"toolbox refuses", Config{}, emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Count: -1, Action: emulator.StatusBefore, Status: 403}, PhaseWorkspace, KindAuth},
		{"expiry not confirmed", Config{TTL: time.Hour}, emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Action: emulator.MergeReply, Body: `{"autoDestroyAt":null}`}, PhaseExpiry, KindRefused},
		{"expiry later than asked for", Config{TTL: time.Hour}, emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Action: emulator.MergeReply, Body: `{"autoDestroyAt":"2999-01-01T00:00:00Z"}`}, PhaseExpiry, KindRefused},
		{"403 on the first read", Config{}, emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")}, PhaseCreate, KindAuth},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var faults []emulator.Fault
			if tt.fault.Path != "" {
				faults = append(faults, tt.fault)
			}
			r := newRig(t, tt.cfg, emulator.Options{Faults: faults})
			_, err := r.Acquire(t.Context(), request())
			e := wantError(t, err, tt.kind)
			if e.Phase != tt.phase || e.Cleanup != nil {
				t.Errorf("phase %q, envelope %v, want phase %q and none", e.Phase, e.Cleanup, tt.phase)
			}
			r.wantHits(t)
			r.wantSandboxes(t, 0)
		})
	}
}

// TestL7CompensationThatFailsKeepsTheEnvelope.
func TestL7CompensationThatFailsKeepsTheEnvelope(t *testing.T) {
	synctest.Test(t, compensationThatFails)
}

func compensationThatFails(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{InMemory: true, Toolbox: http.HandlerFunc((&world{}).toolbox), Faults: []emulator.Fault{
		{Method: "POST", Path: "/toolbox/**", Count: -1, Action: emulator.StatusBefore, Status: 400, Body: `{"statusCode":400,"message":"secret words","code":"BAD_REQUEST","timestamp":"2026-01-01T00:00:00Z","path":"/process/execute","method":"POST"}`},
		{Method: "DELETE", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 500, Body: structured(500, "secret words")},
	}})
	_, err := r.Acquire(t.Context(), request())
	e := wantError(t, err, KindRefused)
	if e.Phase != PhaseWorkspace || e.Cleanup == nil || e.Cleanup.Observed == "" || e.Cleanup.Phase != PhaseWorkspace {
		t.Fatalf("error = %+v, want phase workspace and an envelope with the id", e)
	}
	r.wantHits(t)
	r.server.SetFaults()
	if receipt := r.settle(t, e.Cleanup); receipt.State != ReceiptDestroyed {
		t.Errorf("receipt = %+v, want destroyed", receipt)
	}
	r.wantSandboxes(t, 0)
}

// TestL7OneDeadline: the budget ends the acquisition whatever hangs, and the first failure's phase and time stay.
func TestL7OneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 40 * time.Second
		r := newRig(t, Config{Timeout: budget}, emulator.Options{InMemory: true, Timing: emulator.Timing{Create: time.Hour}})
		began := time.Now()
		_, err := r.Acquire(t.Context(), request())
		e := wantError(t, err, KindTimeout)
		if e.Phase != PhaseCreate || e.Cleanup == nil || e.Budget != budget || e.Elapsed != budget-budget/4 {
			t.Errorf("error = %+v, want phase create, an envelope, budget %v and elapsed what is not kept for the compensation", e, budget)
		}
		if took := time.Since(began); took != budget {
			t.Errorf("took %v, want %v", took, budget)
		}
		if e.Cleanup.Observed == "" {
			t.Error("the envelope lacks the id that was observed")
		}
	})
}

func TestL8ExpiryIsRoundedDownAndReadBack(t *testing.T) {
	tests := []struct {
		name    string
		ttl     time.Duration
		expires time.Duration // of the request; 0: none
		minutes int
	}{
		{"configured", 90*time.Minute + 59*time.Second, 0, 90},
		{"requested earlier", 90 * time.Minute, 30*time.Minute + 30*time.Second, 30},
		{"requested later than configured", 10 * time.Minute, time.Hour, 10},
		{"requested alone", 0, 5*time.Minute + 30*time.Second, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{TTL: tt.ttl, Reuse: true}, emulator.Options{})
			q := request()
			if tt.expires != 0 {
				q.ExpiresAt = time.Now().Add(tt.expires)
			}
			l, err := r.Acquire(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			at := r.server.Sandbox(l.Ref().Sandbox).DestroyAt()
			if got := time.Until(at); got > time.Duration(tt.minutes)*time.Minute || got < time.Duration(tt.minutes)*time.Minute-30*time.Second {
				t.Errorf("destroyed in %v, want %d minutes", got, tt.minutes)
			}
			if got := l.Ref().ExpiresAt.Sub(at).Abs(); got > time.Second {
				t.Errorf("ExpiresAt is %v off the provider's", got)
			}
			if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
				t.Fatal(err)
			}
			if again := r.server.Sandbox(l.Ref().Sandbox).DestroyAt(); !again.Equal(at) {
				t.Errorf("the expiry moved from %v to %v", at, again)
			}
		})
	}
	t.Run("a server without lifetimes", func(t *testing.T) {
		r := newRig(t, Config{TTL: time.Hour}, emulator.Options{Legacy: true})
		_, err := r.Acquire(t.Context(), request())
		if e := wantError(t, err, KindRefused); e.Phase != PhaseExpiry {
			t.Errorf("phase = %q, want expiry", e.Phase)
		}
		r.wantSandboxes(t, 0)
	})
}

// TestL8WaitingExtendsNothing: what an acquisition waits before its creation is sent is not added to the lifetime.
func TestL8WaitingExtendsNothing(t *testing.T) {
	const pause = 90 * time.Second
	for _, tt := range []struct {
		name    string
		expires time.Duration
		leased  int
	}{
		{"enough is left", 4*time.Minute + 30*time.Second, 1},
		{"too little is left", 2 * time.Minute, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{}, emulator.Options{InMemory: true, Toolbox: http.HandlerFunc((&world{}).toolbox)})
				r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 429,
					Header: http.Header{"Retry-After": {strconv.Itoa(int(pause.Seconds()))}}, Body: structured(429, "slow down")})
				q := request()
				q.ExpiresAt = time.Now().Add(tt.expires)
				l, err := r.Acquire(t.Context(), q)
				r.wantHits(t)
				r.wantSandboxes(t, tt.leased)
				if got := r.count()["POST /api/sandbox"]; got != 1+tt.leased {
					t.Errorf("%d creations were sent, want %d", got, 1+tt.leased)
				}
				if tt.leased == 0 {
					if e := wantError(t, err, KindTimeout); e.Dispatched != DispatchedNo || e.Retryable || e.Cleanup != nil || e.Phase != PhaseCreate {
						t.Errorf("error = %+v, want not dispatched, and nothing to clean up", e)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if at := r.server.Sandbox(l.Ref().Sandbox).DestroyAt(); at.After(q.ExpiresAt) || at.Before(q.ExpiresAt.Add(-time.Minute)) {
					t.Errorf("destroyed %v after the requested expiry, want up to a minute before it", at.Sub(q.ExpiresAt))
				}
			})
		})
	}
}

// TestL8LaterRequestsExtendNothing: the expiry of the creation stays, whatever another host's configuration asks for.
func TestL8LaterRequestsExtendNothing(t *testing.T) {
	r := newRig(t, Config{TTL: 30 * time.Minute, Reuse: true}, emulator.Options{})
	ref := r.acquired(t).Ref()
	if _, err := r.Release(t.Context(), ref, ReleaseOptions{Retain: true}); err != nil {
		t.Fatal(err)
	}
	other := &rig{provider: rigProvider(t, r.server, Config{TTL: 48 * time.Hour, Reuse: true}), server: r.server}
	defer func() { _ = other.Close(context.Background()) }()
	l, err := other.Resume(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.server.Sandbox(ref.Sandbox).DestroyAt(); !l.Ref().ExpiresAt.Equal(ref.ExpiresAt) || got.Sub(ref.ExpiresAt).Abs() > time.Second {
		t.Errorf("the sandbox ends at %v, and the reference says %v, want %v", got, l.Ref().ExpiresAt, ref.ExpiresAt)
	}
	for _, q := range r.requests() {
		if strings.Contains(q, "/ttl/") {
			t.Errorf("the lifetime was changed: %s", q)
		}
	}
}

// TestL8EveryCreationSaysHowItEnds: those of probes too carry the lifetime and all three intervals, and a probe whose
// expiry is not confirmed fails, and leaves nothing.
func TestL8EveryCreationSaysHowItEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		want map[string]float64
	}{
		{"defaults", Config{TTL: time.Hour + 59*time.Second}, map[string]float64{"ttlMinutes": 60, "autoStopInterval": 15, "autoArchiveInterval": 60, "autoDeleteInterval": 10080}},
		{"explicit zeros", Config{AutoStopMinutes: new(0), AutoArchiveMinutes: new(0), AutoDeleteMinutes: new(0)}, map[string]float64{"autoStopInterval": 0, "autoArchiveInterval": 0, "autoDeleteInterval": 0}},
		{"never deleted", Config{AutoDeleteMinutes: new(-1)}, map[string]float64{"autoStopInterval": 15, "autoArchiveInterval": 60, "autoDeleteInterval": -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			var bodies []map[string]any
			r := newRig(t, tt.cfg, emulator.Options{Toolbox: http.HandlerFunc((&world{}).toolbox), Middleware: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if q.Method == "POST" && q.URL.Path == "/api/sandbox" {
						text, _ := io.ReadAll(q.Body)
						q.Body = io.NopCloser(strings.NewReader(string(text)))
						var body map[string]any
						_ = json.Unmarshal(text, &body)
						mu.Lock()
						bodies = append(bodies, body)
						mu.Unlock()
					}
					next.ServeHTTP(w, q)
				})
			}})
			r.acquired(t)
			if _, err := r.Probe(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			for i, body := range bodies {
				got := make(map[string]float64)
				for _, key := range []string{"ttlMinutes", "autoStopInterval", "autoArchiveInterval", "autoDeleteInterval"} {
					if v, ok := body[key].(float64); ok {
						got[key] = v
					}
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("creation %d mismatch (-want +got):\n%s", i, diff)
				}
			}
			if len(bodies) != 2 {
				t.Errorf("%d creations, want 2", len(bodies))
			}
		})
	}
	t.Run("a probe that is not confirmed", func(t *testing.T) {
		r := newRig(t, Config{TTL: time.Hour}, emulator.Options{Legacy: true})
		_, err := r.Probe(t.Context(), request())
		if e := wantError(t, err, KindRefused); e.Phase != PhaseExpiry || e.Cleanup != nil {
			t.Errorf("error = %+v, want phase expiry and no envelope", e)
		}
		r.wantSandboxes(t, 0)
	})
}

// TestAcquireCancelled: at each step the call returns at once, and the sandbox is deleted in the background.
func TestAcquireCancelled(t *testing.T) {
	for _, path := range []string{"POST /api/sandbox", "GET /api/sandbox/*", "POST /toolbox/*/process/execute"} {
		t.Run(path, func(t *testing.T) {
			method, pattern, _ := strings.Cut(path, " ")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			reason := errors.New("the user pressed a key")
			reached := make(chan struct{})
			var once sync.Once
			proceed := make(chan struct{})
			r := newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if q.Method == method && matches(pattern, q.URL.Path) {
						once.Do(func() {
							close(reached)
							<-proceed // the request is answered only after the caller has left
						})
					}
					next.ServeHTTP(w, q)
				})
			}})
			go func() {
				<-reached
				cancel(reason)
			}()
			_, err := r.Acquire(ctx, request())
			e := wantError(t, err, KindCanceled)
			if !errors.Is(err, context.Canceled) || !errors.Is(err, reason) {
				t.Errorf("error %v does not wrap the context's end and its cause", err)
			}
			if e.Cleanup == nil {
				t.Fatal("no envelope for a creation that was sent")
			}
			close(proceed)
			r.tasks.Wait()
			r.wantSandboxes(t, 0)
			if receipt := r.settle(t, e.Cleanup); receipt.State != ReceiptDestroyed {
				t.Errorf("receipt = %+v, want destroyed", receipt)
			}
		})
	}
	t.Run("before anything was sent", func(t *testing.T) {
		r := newRig(t, Config{}, emulator.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := r.Acquire(ctx, request())
		if e := wantError(t, err, KindCanceled); e.Dispatched != DispatchedNo || e.Cleanup != nil {
			t.Errorf("error = %+v, want dispatched no and no envelope", e)
		}
		r.wantRequests(t)
	})
}

func matches(pattern, path string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	return slices.EqualFunc(want, have, func(w, h string) bool { return w == "*" && h != "paginated" || w == h })
}

// TestAcquireDeadline: that of the caller is a time-out, whoever notices first that it has passed.
func TestAcquireDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.server.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/**", Count: -1, Action: emulator.DelayRequest, Delay: 2 * time.Second})
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := w.Acquire(ctx, request())
			cancel()
			if wantError(t, err, KindTimeout); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %v, want DeadlineExceeded inside", err)
			}
		}
	})
	told, tell := context.WithCancelCause(t.Context())
	tell(context.DeadlineExceeded) // as an acquisition's steps are
	for _, err := range []error{ctxError(told), &daytona.Error{Reason: daytona.ReasonCanceled, Cause: context.Cause(told)}} {
		if e := failed("acquire", err); e.Kind != KindTimeout {
			t.Errorf("failed(%v) = %+v, want a time-out", err, e)
		}
	}
}

func TestAcquireWithoutAServer(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	p, err := newProvider(Config{APIKey: "key", APIURL: "http://127.0.0.1:1/api"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	_, err = p.Acquire(t.Context(), request())
	if e := wantError(t, err, KindUnavailable); e.Dispatched != DispatchedNo || e.Cleanup != nil || !e.Retryable {
		t.Errorf("error = %+v, want dispatched no, retryable, no envelope", e)
	}
	r.wantRequests(t)
}

// TestRetryAfterIsObeyed: nobody creates before the provider's time has come, and who cannot wait that long is told so.
func TestRetryAfterIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{Timeout: time.Minute}, emulator.Options{InMemory: true, Faults: []emulator.Fault{
			{Method: "POST", Path: "/api/sandbox", Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"20"}}, Body: structured(429, "Rate limit exceeded")},
			{Method: "POST", Path: "/api/sandbox", Count: -1, Action: emulator.StatusBefore, Status: 400, Body: structured(400, "Snapshot x not found")},
		}})
		began := time.Now()
		_, err := r.Acquire(t.Context(), request())
		wantError(t, err, KindRefused)
		if took := time.Since(began); took < 20*time.Second || took > 23*time.Second {
			t.Errorf("the second creation came after %v, want 20 s", took)
		}
		r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox", Count: -1, Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"3600"}}, Body: structured(429, "Rate limit exceeded")})
		began = time.Now()
		for range 2 {
			_, err = r.Acquire(t.Context(), request())
			if e := wantError(t, err, KindRateLimited); e.RetryAfter < 3500*time.Second || e.Cleanup != nil || !e.Retryable {
				t.Errorf("error = %+v, want an hour, retryable, no envelope", e)
			}
		}
		if took := time.Since(began); took > cautiousInterval {
			t.Errorf("two acquisitions that cannot succeed took %v, want no more than the pace", took)
		}
	})
}
