package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestMain(m *testing.M) {
	flag.Parse()
	set := func(name, value string) {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	// Most tests wait for processes: more of them can run beside each other than there are processors.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		set(parallel.Name, strconv.Itoa(max(4, runtime.GOMAXPROCS(0))))
	}
	// The go command must not remember a result: it depends on the machine's programs and kernel, which it does not look at.
	set("test.testlogfile", "")
	goleak.VerifyTestMain(m)
}

// rig is a provider and the emulator it works on.
type rig struct {
	*provider
	server *emulator.Server
}

// newRig starts both; they end with the test.
func newRig(t testing.TB, cfg Config, options emulator.Options) *rig {
	t.Helper()
	server, err := emulator.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{provider: rigProvider(t, server, cfg), server: server}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if err := server.Close(); err != nil {
			t.Errorf("closing the emulator: %v", err)
		}
	})
	return r
}

func rigProvider(t testing.TB, server *emulator.Server, cfg Config) *provider {
	t.Helper()
	if cfg.APIKey == "" {
		cfg.APIKey = server.APIKey()
	}
	cfg.APIURL = server.URL()
	// Sandboxes are directories below /tmp, as a rule, in which tests look for what commands wrote: see asUser.
	cfg.NoBwrap = cfg.NoBwrap || os.Getenv("LEASEHOLD_BWRAP_USER") == ""
	if cfg.Transport == nil {
		cfg.Transport = server.Transport()
	}
	p, err := newProvider(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.embedded = strings.TrimSuffix(server.URL(), "/api")
	return p
}

// acquired returns a lease, with an empty request log and no faults.
func (r *rig) acquired(t testing.TB) *Lease {
	t.Helper()
	l, err := r.Acquire(t.Context(), request())
	if err != nil {
		t.Fatalf("Acquire() = %v", err)
	}
	r.server.ResetRequests()
	return l
}

func request() AcquireRequest {
	return AcquireRequest{Scope: Scope{Tenant: "acme", Environment: "test", Run: "run-1"}}
}

// requests are the routes of the requests in the log.
func (r *rig) requests() []string {
	var lines []string
	for _, q := range r.server.Requests() {
		lines = append(lines, route(q.Method, q.Path))
	}
	return lines
}

// count returns how many requests there were of each kind.
func (r *rig) count() map[string]int {
	counts := make(map[string]int)
	for _, line := range r.requests() {
		counts[line]++
	}
	return counts
}

// wantRequests compares the log with what is wanted, in any order.
func (r *rig) wantRequests(t *testing.T, want ...string) {
	t.Helper()
	got := r.requests()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests mismatch (-want +got):\n%s", diff)
	}
}

// atLast repeats a command, with an empty log, until it took as few requests as it can. Where many processes come and go, its
// end is now and then not noticed in time for that, or not certain.
func (r *rig) atLast(t *testing.T, fewest func() bool) {
	t.Helper()
	for range 20 {
		r.server.ResetRequests()
		if fewest() {
			return
		}
	}
	t.Errorf("each of 20 commands took more requests than it must, the last one %q", r.requests())
}

// took reports whether these are the requests in the log.
func (r *rig) took(requests ...string) bool { return slices.Equal(r.requests(), requests) }

// wantSteps compares the log with what is wanted, in order. Reads in a row count as one: how many it takes until the
// provider is done with a change is the provider's.
func (r *rig) wantSteps(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, slices.Compact(r.requests())); diff != "" {
		t.Errorf("requests mismatch (-want +got):\n%s", diff)
	}
}

// wantNothingDone fails the test if anything was deleted, stopped or started.
func (r *rig) wantNothingDone(t *testing.T) {
	t.Helper()
	for line := range maps.Keys(r.count()) {
		if !strings.HasPrefix(line, "GET ") {
			t.Errorf("a foreign sandbox was touched: %s", line)
		}
	}
}

// holdup keeps requests from the server, as its middleware, from hold on until open.
type holdup struct {
	held           atomic.Pointer[heldRequests]
	opened         chan struct{}
	passed, gaveUp atomic.Int32
}

type heldRequests struct{ kind, text string }

func newHoldup() *holdup { return &holdup{opened: make(chan struct{})} }

func (h *holdup) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if held := h.held.Load(); held != nil && route(q.Method, q.URL.EscapedPath()) == held.kind {
			body, _ := io.ReadAll(q.Body) // before that, it is not noticed that the client leaves
			q.Body = io.NopCloser(bytes.NewReader(body))
			if bytes.Contains(body, []byte(held.text)) {
				h.wait(q.Context())
			}
		}
		next.ServeHTTP(w, q)
	})
}

func (h *holdup) wait(ctx context.Context) {
	select {
	case <-h.opened:
		h.passed.Add(1)
	case <-ctx.Done():
		h.gaveUp.Add(1)
	case <-time.After(time.Minute):
		h.gaveUp.Add(1)
	}
}

// hold begins to hold requests of this kind, such as "DELETE /api/sandbox/*", with this text in their bodies.
func (h *holdup) hold(kind, text string) { h.held.Store(&heldRequests{kind, text}) }

func (h *holdup) open() { close(h.opened) }

// wantPatience fails the test unless requests were held, and let pass in the end.
func (h *holdup) wantPatience(t *testing.T) {
	t.Helper()
	if passed, gaveUp := h.passed.Load(), h.gaveUp.Load(); passed == 0 || gaveUp > 0 {
		t.Errorf("%d requests passed when they were let, and %d had been given up by then", passed, gaveUp)
	}
}

// wantSandboxes fails the test unless that many sandboxes are left.
func (r *rig) wantSandboxes(t *testing.T, want int) {
	t.Helper()
	for _, id := range r.server.Sandboxes() {
		r.server.Sandbox(id).Settle(5 * time.Second) // an errored one is gone for the API before it is for the runner
	}
	if got := r.server.Sandboxes(); len(got) != want {
		t.Errorf("%d sandboxes are left, want %d: %v", len(got), want, got)
	}
}

// wantHits fails the test unless every fault of the plan was hit.
func (r *rig) wantHits(t *testing.T) {
	t.Helper()
	for _, f := range r.server.Faults() {
		if f.Hits == 0 {
			t.Errorf("fault %s on %s %s never hit: the test proves nothing", f.Action, f.Method, f.Path)
		}
	}
}

// wantError fails the test unless err is an *Error of that kind, and returns it.
func wantError(t *testing.T, err error, kind Kind) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("error = %v (%+v), want kind %q", err, e, kind)
	}
	if !errors.Is(err, sentinels[kind]) {
		t.Errorf("errors.Is(%v, sentinel of %q) is false", err, kind)
	}
	return e
}

// settle takes an envelope through JSON, Inspect, JSON and Cleanup, as a host that keeps it would.
func (r *rig) settle(t *testing.T, envelope *CleanupEnvelope) Receipt {
	t.Helper()
	stored := func(e CleanupEnvelope) CleanupEnvelope {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		e, err = ParseCleanupEnvelope(data)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	observed, err := r.Inspect(t.Context(), stored(*envelope))
	if err != nil {
		t.Fatalf("Inspect() = %v", err)
	}
	receipt, err := r.Cleanup(t.Context(), stored(observed))
	if err != nil {
		t.Fatalf("Cleanup() = %v", err)
	}
	return receipt
}

// structured is a body in the API's own shape.
func structured(status int, message string) string {
	data, err := json.Marshal(map[string]any{
		"path": "/api/sandbox", "timestamp": "2026-01-01T00:00:00.000Z", "statusCode": status, "error": "Error", "message": message,
	})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// drained waits until no activity is under way on the lease.
func drained(t testing.TB, l *Lease) {
	t.Helper()
	l.mu.Lock()
	done := make(chan struct{})
	switch {
	case l.active == 0:
		close(done)
	case l.drained != nil:
		done = l.drained
	default:
		l.drained = done
	}
	l.mu.Unlock()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("an activity on the lease has not ended after a minute")
	}
}
