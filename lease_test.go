package leasehold

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestRequestsOfAHealthyLife states what each step of a lease costs.
func TestRequestsOfAHealthyLife(t *testing.T) {
	const (
		create  = "POST /api/sandbox"
		get     = "GET /api/sandbox/*"
		list    = "GET /api/sandbox/paginated"
		remove  = "DELETE /api/sandbox/*"
		stop    = "POST /api/sandbox/*/stop"
		revoke  = "DELETE /api/sandbox/*/ssh-access"
		start   = "POST /api/sandbox/*/start"
		execute = "POST /toolbox/*/process/execute"
	)
	r := newRig(t, Config{Reuse: true}, emulator.Options{Timing: emulator.Timing{Stop: -1, Start: -1, Destroy: -1, Create: -1}})
	if _, err := r.Acquire(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t, list, create, get, execute) // the list once only: it attests the account

	r.server.ResetRequests()
	l, err := r.Acquire(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t, create, get, execute)

	r.server.ResetRequests()
	if _, err := r.Bind(l.Ref()); err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t)

	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	r.wantSteps(t, get, stop, get, revoke)

	r.server.ResetRequests()
	if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t, get, start, get, execute)

	r.server.ResetRequests()
	if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t, get, execute)

	r.server.ResetRequests()
	if _, err := r.Destroy(t.Context(), l.Ref()); err != nil {
		t.Fatal(err)
	}
	r.wantSteps(t, get, remove, get, list)
}

func TestL1NameAndLabels(t *testing.T) {
	r := newRig(t, Config{LabelPrefix: "acme-"}, emulator.Options{})
	q := AcquireRequest{
		Scope:  Scope{Tenant: "acme", Environment: "test", Run: "run-1", Agent: "a1", Workspace: "w1"},
		Labels: map[string]string{"team": "core"},
	}
	before := map[string]string{"team": "core"}
	l, err := r.Acquire(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, q.Labels); diff != "" {
		t.Errorf("the caller's labels were changed (-want +got):\n%s", diff)
	}
	ref := l.Ref()
	sb := r.server.Sandbox(ref.Sandbox)
	if want := "acme-create-" + ref.Attempt; sb.Name() != want || ref.Name != want {
		t.Errorf("names: sandbox %q, ref %q, want %q", sb.Name(), ref.Name, want)
	}
	want := map[string]string{
		"acme-provider": "daytona", "acme-tenant": "acme", "acme-environment": "test", "acme-run": "run-1",
		"acme-agent": "a1", "acme-workspace": "w1", "acme-reuse": "false", "acme-attempt": ref.Attempt,
		"team": "core", "code-toolbox-language": "python",
	}
	if diff := cmp.Diff(want, sb.Labels()); diff != "" {
		t.Errorf("labels mismatch (-want +got):\n%s", diff)
	}
}

func TestAcquireMakesTheWorkspace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b'\n\"c$x")
	for name, workspace := range map[string]string{"relative": "sub/work", "absolute with odd characters": dir} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Workspace: workspace}, emulator.Options{})
			l := r.acquired(t)
			ref := l.Ref()
			want := workspace
			if !filepath.IsAbs(workspace) {
				want = filepath.Join(r.server.Sandbox(ref.Sandbox).Home(), workspace)
			}
			if ref.Workspace != want {
				t.Errorf("Workspace = %q, want %q", ref.Workspace, want)
			}
			data, err := os.ReadFile(filepath.Join(want, sentinelFile))
			if err != nil {
				t.Fatal(err)
			}
			var s sentinel
			if err := json.Unmarshal(data, &s); err != nil || s.Token != ref.Sentinel {
				t.Errorf("sentinel %s, %v, want token %s", data, err, ref.Sentinel)
			}
			if _, err := r.Resume(t.Context(), ref); err != nil {
				t.Errorf("Resume() = %v", err)
			}
		})
	}
}

func TestAcquireRefusesBadRequestsBeforeSending(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	many := map[string]string{}
	for _, c := range "abcdefghijk" {
		many[string(c)] = "x"
	}
	tests := []struct {
		name    string
		request AcquireRequest
		field   string
	}{
		{"no scope", AcquireRequest{}, "AcquireRequest.Scope.Tenant"},
		{"tenant with a slash", AcquireRequest{Scope: Scope{Tenant: "a/b", Environment: "e", Run: "r"}}, "AcquireRequest.Scope.Tenant"},
		{"label of the library's", AcquireRequest{Scope: request().Scope, Labels: map[string]string{"leasehold-run": "x"}}, "AcquireRequest.Labels.leasehold-run"},
		{"label of the provider's", AcquireRequest{Scope: request().Scope, Labels: map[string]string{"code-toolbox-language": "x"}}, "AcquireRequest.Labels.code-toolbox-language"},
		{"label that ends with a dot", AcquireRequest{Scope: request().Scope, Labels: map[string]string{"team.": "x"}}, "AcquireRequest.Labels"},
		{"too many labels", AcquireRequest{Scope: request().Scope, Labels: many}, "AcquireRequest.Labels"},
		{"expiry in the past", AcquireRequest{Scope: request().Scope, ExpiresAt: time.Now().Add(-time.Hour)}, "AcquireRequest.ExpiresAt"},
		{"image and snapshot", AcquireRequest{Scope: request().Scope, Image: "debian", Snapshot: "small"}, "AcquireRequest.Image"},
		{"resources of a snapshot", AcquireRequest{Scope: request().Scope, Snapshot: "small", Resources: Resources{CPU: 1}}, "AcquireRequest.Resources"},
		{"resources of nothing", AcquireRequest{Scope: request().Scope, Resources: Resources{CPU: 1}}, "AcquireRequest.Resources"},
		{"expiry in 59 s", AcquireRequest{Scope: request().Scope, ExpiresAt: time.Now().Add(59 * time.Second)}, "AcquireRequest.ExpiresAt"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := r.Acquire(t.Context(), tt.request)
			if e := wantError(t, err, KindInvalid); e.Fields[0].Field != tt.field {
				t.Errorf("field = %q, want %q", e.Fields[0].Field, tt.field)
			}
		})
	}
	r.wantRequests(t)
}

func TestL4ReceiptsFollowFreshReads(t *testing.T) {
	tests := []struct {
		name    string
		reuse   bool
		options ReleaseOptions
		state   ReceiptState
		left    emulator.State // empty: no sandbox
	}{
		{"reusable", true, ReleaseOptions{}, ReceiptStopped, emulator.StateStopped},
		{"not reusable", false, ReleaseOptions{}, ReceiptDestroyed, ""},
		{"retained", false, ReleaseOptions{Retain: true}, ReceiptStopped, emulator.StateStopped},
		{"archived", false, ReleaseOptions{Archive: true}, ReceiptStopped, emulator.StateArchived},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{Reuse: tt.reuse}, emulator.Options{})
			l := r.acquired(t)
			receipt, err := r.Release(t.Context(), l.Ref(), tt.options)
			if err != nil {
				t.Fatal(err)
			}
			if receipt.State != tt.state || receipt.Sandbox != l.Ref().Sandbox || receipt.At.IsZero() {
				t.Errorf("receipt = %+v, want state %q of %s", receipt, tt.state, l.Ref().Sandbox)
			}
			got := slices.DeleteFunc(r.requests(), func(q string) bool { return strings.HasSuffix(q, "/ssh-access") }) // which changes no state
			if !strings.HasPrefix(got[len(got)-1], "GET /api/sandbox/") {
				t.Errorf("the last request is %q, want a read", got[len(got)-1])
			}
			if tt.left == "" {
				r.wantSandboxes(t, 0)
				return
			}
			sb := r.server.Sandbox(l.Ref().Sandbox)
			if got := sb.Settle(5 * time.Second); got != tt.left {
				t.Errorf("state = %q, want %q", got, tt.left)
			}
			if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
				t.Errorf("Resume() = %v", err)
			}
		})
	}
}

func TestL6RetainConfirmsThatDeletionIsOffBeforeItStops(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{Retain: true}); err != nil {
		t.Fatal(err)
	}
	got := r.requests()
	want := []string{"GET /api/sandbox/*", "POST /api/sandbox/*/autodelete/*", "GET /api/sandbox/*", "GET /api/sandbox/*", "POST /api/sandbox/*/stop"}
	if len(got) < len(want) || !cmp.Equal(got[:len(want)], want) {
		t.Errorf("requests = %q, want them to start with %q", got, want)
	}

	t.Run("not confirmed", func(t *testing.T) {
		r := newRig(t, Config{}, emulator.Options{Faults: []emulator.Fault{
			{Method: "POST", Path: "/api/sandbox/*/autodelete/*", Count: -1, Action: emulator.StatusBefore, Status: 200, Body: "{}"},
		}})
		l := r.acquired(t)
		_, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{Retain: true})
		if e := wantError(t, err, KindUncertain); e.Phase != PhaseRetain {
			t.Errorf("phase = %q, want %q", e.Phase, PhaseRetain)
		}
		if got := r.server.Sandbox(l.Ref().Sandbox).State(); got != emulator.StateStarted {
			t.Errorf("state = %q, want it not stopped", got)
		}
		r.wantHits(t)
	})
}

// TestRetainReportsARateLimit: one that outlasts the budget is told as such, with the time to wait, and nothing is stopped.
func TestRetainReportsARateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		ref := w.acquired(t).Ref()
		w.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/autodelete/*", Count: -1, Action: emulator.StatusBefore, Status: 429,
			Header: http.Header{"Retry-After": {"100"}}, Body: structured(429, "slow down")})
		_, err := w.Release(t.Context(), ref, ReleaseOptions{Retain: true})
		e := wantError(t, err, KindRateLimited)
		if !e.Retryable || e.RetryAfter != 100*time.Second || e.Phase != PhaseRetain || e.Sandbox != ref.Sandbox || e.Dispatched != DispatchedYes {
			t.Errorf("error = %+v, want retryable after 100 s, sent, with phase and sandbox", e)
		}
		if got := w.server.Sandbox(ref.Sandbox).State(); got != emulator.StateStarted {
			t.Errorf("state = %q, want it not stopped", got)
		}
	})
}

// TestStoppingDoesNotDelete: what would vanish when it stops is not stopped in order to be kept.
func TestStoppingDoesNotDelete(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{AutoDeleteMinutes: new(0), Store: newMemoryStore()}, emulator.Options{})
	l := r.acquired(t)
	stdin, hold := io.Pipe()
	p, err := l.Executor().Start(t.Context(), Command{Args: []string{"cat"}, Stdin: stdin})
	if err != nil {
		t.Fatal(err)
	}
	ref := l.Ref()
	_, err = r.Release(t.Context(), ref, ReleaseOptions{Archive: true})
	if e := wantError(t, err, KindConflict); e.Phase != PhaseArchive || e.Sandbox != ref.Sandbox {
		t.Errorf("Release() = %+v, want the phase and the sandbox", e)
	}
	if got := r.server.Sandbox(ref.Sandbox).State(); got != emulator.StateStarted {
		t.Errorf("state = %q, want started", got)
	}
	hold.Close()
	if result, err := p.Wait(); err != nil || !result.Exited || result.ExitCode != 0 {
		t.Errorf("Wait() = %+v, %v, want a command that was not stopped", result, err)
	}
	if record := one(t, r.cfg.Store); record.State != StateLeased || record.Orphan != OrphanDestroy {
		t.Errorf("the record is %+v, want that of the lease", record)
	}
	for _, active := range r.Idle().Active {
		if active.Kind == ActivityCleanup {
			t.Errorf("active: %+v, want no cleanup", active)
		}
	}
	if receipt, err := r.Release(t.Context(), ref, ReleaseOptions{Archive: true, Retain: true}); err != nil || receipt.State != ReceiptStopped {
		t.Errorf("Release() with Retain = %+v, %v, want stopped", receipt, err)
	}
}

func TestProbe(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	report, err := r.Probe(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	if report.Sandbox == "" || report.Workspace == "" || report.Shell == "" || report.Acquire <= 0 || report.Destroy <= 0 {
		t.Errorf("report = %+v, want every field", report)
	}
	r.wantSandboxes(t, 0)
}

func TestReleasedLeaseIsClosed(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	l := r.acquired(t)
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := l.begin("run")
	wantError(t, err, KindClosed)
	again, err := r.Resume(t.Context(), l.Ref())
	if err != nil {
		t.Fatal(err)
	}
	if again == l {
		t.Error("Resume() returned the lease that was given back")
	}
	done, err := again.begin("run")
	if err != nil {
		t.Errorf("begin() on the resumed lease = %v", err)
	}
	done()
}

func TestReleaseCanBeRepeated(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	ref := r.acquired(t).Ref()
	for range 2 {
		if receipt, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
			t.Errorf("Release() = %+v, %v, want stopped", receipt, err)
		}
	}
	for range 2 {
		if receipt, err := r.Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Destroy() = %+v, %v, want destroyed", receipt, err)
		}
	}
	if receipt, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Release() of a destroyed lease = %+v, %v, want destroyed", receipt, err)
	}
}

func TestClosedProviderRefuses(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	ref := r.acquired(t).Ref()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Acquire(t.Context(), request())
	wantError(t, err, KindClosed)
	_, err = r.Resume(t.Context(), ref)
	wantError(t, err, KindClosed)
	_, err = r.Bind(ref)
	wantError(t, err, KindClosed)
	_, err = r.Release(t.Context(), ref, ReleaseOptions{})
	wantError(t, err, KindClosed)
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("second Close() = %v", err)
	}
	r.wantRequests(t)
}
