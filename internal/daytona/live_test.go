package daytona

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// live is an emulated Daytona with a client of it.
type live struct {
	*emulator.Server
	*Client
	observed *observed
}

func newLive(t *testing.T, opt emulator.Options) *live {
	t.Helper()
	s, err := emulator.Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the emulator: %v", err)
		}
	})
	var seen observed
	c := newClient(t, Config{APIURL: s.URL(), APIKey: s.APIKey(), Transport: s.Transport(), Observe: seen.add})
	return &live{s, c, &seen}
}

// started returns a started sandbox.
func (l *live) started(t *testing.T) *Sandbox {
	t.Helper()
	sb, err := l.Create(t.Context(), CreateRequest{Name: fmt.Sprintf("box-%d", time.Now().UnixNano())})
	if err != nil {
		t.Fatal(err)
	}
	return l.await(t, sb.ID, StateStarted)
}

// await reads a sandbox until it has settled, and wants it in a state.
func (l *live) await(t *testing.T, id string, want State) *Sandbox {
	t.Helper()
	l.Server.Sandbox(id).Settle(time.Minute)
	sb, err := l.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if sb.State != want {
		t.Fatalf("state %q, want %q", sb.State, want)
	}
	return sb
}

func (l *live) box(t *testing.T) *Toolbox {
	t.Helper()
	needProcesses(t)
	return l.Toolbox(l.started(t))
}

func TestSandboxLifecycle(t *testing.T) {
	l := newLive(t, emulator.Options{})
	ptr := func(n int) *int { return &n }
	ctx := t.Context()
	created, err := l.Create(ctx, CreateRequest{
		Name: "one", Labels: map[string]string{"team": "a"}, Env: map[string]string{"K": "V"},
		AutoStop: ptr(7), AutoArchive: ptr(8), AutoDelete: ptr(-1), TTL: 60,
	})
	if err != nil {
		t.Fatal(err)
	}
	if created.State != StateCreating {
		t.Errorf("state at creation %q, want %q", created.State, StateCreating)
	}
	sb := l.await(t, created.ID, StateStarted)
	if diff := cmp.Diff(map[string]string{"team": "a", LanguageLabel: "python"}, sb.Labels); diff != "" {
		t.Errorf("labels mismatch (-want +got):\n%s", diff)
	}
	if sb.Name != "one" || sb.OrganizationID != l.Organization() || *sb.AutoStop != 7 || *sb.AutoArchive != 8 || *sb.AutoDelete != -1 || sb.ToolboxURL == "" {
		t.Errorf("sandbox = %+v", sb)
	}
	if left := time.Until(sb.AutoDestroyAt); left < 55*time.Minute || left > 61*time.Minute {
		t.Errorf("expires in %v, want about an hour", left)
	}
	byName, err := l.Get(ctx, "one")
	if err != nil || byName.ID != sb.ID {
		t.Errorf("Get by name = %+v, %v", byName, err)
	}

	_, err = l.Create(ctx, CreateRequest{Name: "one"})
	if e := failure(t, err); !e.NameTaken() || e.Dispatch != DispatchYes {
		t.Errorf("second creation = %+v, want a taken name", e)
	}

	if err := l.SetAutoDelete(ctx, sb.ID, 5); err != nil {
		t.Error(err)
	}
	if sb := l.await(t, sb.ID, StateStarted); *sb.AutoDelete != 5 {
		t.Errorf("after the change: %+v", sb)
	}

	if err := l.Stop(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	l.await(t, sb.ID, StateStopped)
	if e := failure(t, l.Stop(ctx, sb.ID)); e.Status != 400 {
		t.Errorf("second stop = %+v, want a 400", e)
	}
	_, err = l.Toolbox(sb).Execute(ctx, "true", 0)
	if e := failure(t, err); !e.NotStarted() {
		t.Errorf("toolbox of a stopped sandbox = %+v, want not started", e)
	}
	if err := l.Start(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	l.await(t, sb.ID, StateStarted)
	if err := l.Stop(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	l.await(t, sb.ID, StateStopped)
	if err := l.Archive(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	l.await(t, sb.ID, StateArchived)

	if err := l.Delete(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if handle := l.Server.Sandbox(sb.ID); handle != nil {
		handle.Settle(time.Minute)
	}
	_, err = l.Get(ctx, sb.ID)
	if e := failure(t, err); !e.NotFound() {
		t.Errorf("Get of a destroyed sandbox = %+v, want not found", e)
	}
	_, err = l.Toolbox(sb).Execute(ctx, "true", 0)
	if e := failure(t, err); !e.Unauthorized() || e.NotFound() {
		t.Errorf("toolbox of a destroyed sandbox = %+v, want 401", e)
	}
}

func TestRefusalsOfTheControlPlane(t *testing.T) {
	l := newLive(t, emulator.Options{
		Limits:    emulator.Limits{CPU: 4, Memory: 100, Disk: 100},
		Snapshots: []emulator.Snapshot{{Name: "good"}, {Name: "broken", Failure: "the runner said something"}},
	})
	ctx := t.Context()

	_, err := l.Create(ctx, CreateRequest{Name: "quota", Image: "debian", Resources: Resources{CPU: 5}})
	if e := failure(t, err); !e.Quota() {
		t.Errorf("beyond the quota = %+v, want quota", e)
	}
	_, err = l.Create(ctx, CreateRequest{Name: "none", Snapshot: "missing"})
	if e := failure(t, err); e.Status != 400 || e.NotFound() || e.StartFailed() {
		t.Errorf("missing snapshot = %+v, want a plain 400", e)
	}
	_, err = l.Create(ctx, CreateRequest{Name: "fails", Snapshot: "broken"})
	if e := failure(t, err); !e.StartFailed() {
		t.Errorf("failing runner = %+v, want start failed", e)
	}
	left, err := l.Get(ctx, "fails")
	if err != nil || left.State != StateError || left.ErrorReason != "the runner said something" {
		t.Errorf("left behind: %+v, %v", left, err)
	}
	if e := failure(t, l.Start(ctx, left.ID)); e.Status != 400 {
		t.Errorf("start of an errored sandbox = %+v, want a 400", e)
	}
	if e := failure(t, l.Recover(ctx, left.ID)); e.Status != 400 {
		t.Errorf("recover = %+v, want 400", e)
	}

	stranger := newClient(t, Config{APIURL: l.URL(), APIKey: "not-a-key", Transport: l.Transport()})
	_, err = stranger.Get(ctx, left.ID)
	if e := failure(t, err); !e.Unauthorized() || e.NotFound() {
		t.Errorf("another key = %+v, want 401", e)
	}
	lost := newClient(t, Config{APIURL: l.URL() + "/v9", APIKey: l.APIKey(), Transport: l.Transport()})
	_, err = lost.Get(ctx, left.ID)
	if e := failure(t, err); e.Status != 404 || e.NotFound() {
		t.Errorf("wrong base = %+v, want a 404 that proves nothing", e)
	}
}

func TestFaultsOfTheControlPlane(t *testing.T) {
	tests := []struct {
		name  string
		fault emulator.Fault
		check func(*Error) bool
	}{
		{"429", emulator.Fault{Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"4"}}},
			func(e *Error) bool { return e.RateLimited() && e.RetryAfter == 4*time.Second }},
		{"502 without a body", emulator.Fault{Action: emulator.StatusBefore, Status: 502},
			func(e *Error) bool { return e.Status == 502 && !e.Structured && e.Dispatch == DispatchYes }},
		{"404 of a proxy", emulator.Fault{Action: emulator.StatusBefore, Status: 404, Body: "<html>404</html>"},
			func(e *Error) bool { return e.Status == 404 && !e.NotFound() }},
		{"dropped before", emulator.Fault{Action: emulator.DropBefore},
			func(e *Error) bool { return e.Reason == ReasonLost && e.Dispatch == DispatchUnknown }},
		{"dropped after", emulator.Fault{Action: emulator.DropAfter},
			func(e *Error) bool { return e.Reason == ReasonLost && e.Dispatch == DispatchUnknown }},
		{"truncated", emulator.Fault{Action: emulator.TruncateBody, Bytes: 20},
			func(e *Error) bool { return e.Reason == ReasonLost && e.Dispatch == DispatchYes && e.Status == 200 }},
		{"no reply", emulator.Fault{Action: emulator.SilentSocket, Bytes: -1},
			func(e *Error) bool { return e.Reason == ReasonTimeout && e.Dispatch == DispatchUnknown }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLive(t, emulator.Options{InMemory: true})
				test.fault.Method, test.fault.Path = "POST", "/api/sandbox"
				l.SetFaults(test.fault)
				_, err := l.Create(within(t, 5*time.Second), CreateRequest{Name: "x"})
				if e := failure(t, err); !test.check(e) {
					t.Errorf("Create() = %+v", e)
				}
				if hits := l.Faults()[0].Hits; hits != 1 {
					t.Errorf("the fault hit %d times, want 1", hits)
				}
				if got := len(l.Requests()); got != 1 {
					t.Errorf("%d requests, want 1", got)
				}
			})
		})
	}
}

func TestPendingChangesAreConflicts(t *testing.T) {
	l := newLive(t, emulator.Options{Timing: emulator.Timing{Stop: time.Hour}})
	sb := l.started(t)
	if err := l.Stop(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	for op, call := range map[string]func(context.Context, string) error{OpStart: l.Start, OpStop: l.Stop, OpDelete: l.Delete} {
		if e := failure(t, call(t.Context(), sb.ID)); e.Op != op || !e.Pending() {
			t.Errorf("%s = %+v, want pending", op, e)
		}
	}
}

func TestUnknownStatesAreKept(t *testing.T) {
	l := newLive(t, emulator.Options{})
	sb := l.started(t)
	l.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.MergeReply, Body: `{"state":"hibernating","extra":{"a":1}}`})
	got, err := l.Get(t.Context(), sb.ID)
	if err != nil || got.State != "hibernating" {
		t.Errorf("Get() = %+v, %v, want state hibernating", got, err)
	}
}

func TestLostContainers(t *testing.T) {
	t.Run("before the control plane noticed", func(t *testing.T) {
		l := newLive(t, emulator.Options{Timing: emulator.Timing{Cron: time.Hour}})
		sb := l.started(t)
		l.Server.Sandbox(sb.ID).LoseContainer()
		_, err := l.Toolbox(sb).Execute(t.Context(), "true", 0)
		if e := failure(t, err); !e.ContainerGone() || e.NotFound() {
			t.Errorf("toolbox = %+v, want container gone", *e)
		}
	})
	t.Run("afterwards", func(t *testing.T) {
		l := newLive(t, emulator.Options{Timing: emulator.Timing{Cron: 5 * time.Millisecond}})
		sb := l.started(t)
		l.Server.Sandbox(sb.ID).LoseContainer()
		eventually(t, func() bool {
			var err error
			if sb, err = l.Get(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			return sb.State == StateError
		})
		if !sb.ContainerLost() {
			t.Errorf("ContainerLost() = false for %+v", sb)
		}
	})
}

func TestQuietCallsDoNotCountAsActivity(t *testing.T) {
	l := newLive(t, emulator.Options{})
	sb := l.started(t)
	box := l.Toolbox(sb)
	before := l.Server.Sandbox(sb.ID).LastActive()
	look := func(ctx context.Context) {
		t.Helper()
		if _, err := box.ReadFile(ctx, "none", 1); !failure(t, err).NotFound() {
			t.Fatal(err)
		}
	}
	look(Quiet(t.Context()))
	if got := l.Server.Sandbox(sb.ID).LastActive(); !got.Equal(before) {
		t.Errorf("active at %v after a quiet call, want %v", got, before)
	}
	look(t.Context())
	if got := l.Server.Sandbox(sb.ID).LastActive(); !got.After(before) {
		t.Errorf("active at %v after a call, want later than %v", got, before)
	}
}

func TestPreviewURLOfALiveSandbox(t *testing.T) {
	l := newLive(t, emulator.Options{})
	sb := l.started(t)
	address, token, err := l.PreviewURL(t.Context(), sb.ID, 8080)
	if err != nil || address == "" || token == "" {
		t.Errorf("PreviewURL() = %q, %q, %v", address, token, err)
	}
}
