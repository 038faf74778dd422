package conformance_test

import (
	"encoding/json"
	"errors"
	"maps"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// says runs a script that must end with 0, and returns what it printed, without the last newline.
func says(t *testing.T, l *leasehold.Lease, script string) string {
	t.Helper()
	return saysBy(t, l, leasehold.Command{Script: script})
}

// saysUnwrapped is says for what writes outside the workspace, which the wrapper is to prevent.
func saysUnwrapped(t *testing.T, l *leasehold.Lease, script string) string {
	t.Helper()
	return saysBy(t, l, leasehold.Command{Script: script, NoBwrap: true})
}

func saysBy(t *testing.T, l *leasehold.Lease, cmd leasehold.Command) string {
	t.Helper()
	cmd.Timeout = 2 * time.Minute
	got, err := l.Executor().Run(t.Context(), cmd)
	if err != nil || got.ExitCode != 0 {
		t.Fatalf("%q: exit %d, %q, %v", cmd.Script, got.ExitCode, got.Stderr, err)
	}
	return strings.TrimSuffix(string(got.Stdout), "\n")
}

// wantError fails the test unless err is of this kind.
func wantError(t *testing.T, what string, err, want error) *leasehold.Error {
	t.Helper()
	var e *leasehold.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Fatalf("%s = %v, want %v", what, err, want)
	}
	return e
}

// wantReceipt fails the test unless it is that of the lease, fresh.
func wantReceipt(t *testing.T, got leasehold.Receipt, err error, ref leasehold.LeaseRef, want leasehold.ReceiptState) {
	t.Helper()
	if err != nil || got.Sandbox != ref.Sandbox || got.State != want || time.Since(got.At).Abs() > 10*time.Minute {
		t.Fatalf("got %+v, %v; want a receipt that %s is %s", got, err, ref.Sandbox, want)
	}
}

// stored takes a reference to where a host keeps it, and back.
func stored(t *testing.T, ref leasehold.LeaseRef) leasehold.LeaseRef {
	t.Helper()
	return throughJSON(t, ref, leasehold.ParseLeaseRef)
}

// throughJSON encodes a plain value and parses it again.
func throughJSON[T any](t *testing.T, value T, parse func([]byte) (T, error)) T {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(data)
	if err != nil {
		t.Fatalf("%s is not parsed: %v", data, err)
	}
	if diff := cmp.Diff(value, got); diff != "" {
		t.Fatalf("the value changed on its way through JSON (-want +got):\n%s", diff)
	}
	return got
}

// resume goes on with a lease.
func (h *host) resume(t *testing.T, ref leasehold.LeaseRef) *leasehold.Lease {
	t.Helper()
	l, err := h.Resume(t.Context(), ref)
	if err != nil {
		t.Fatalf("Resume() = %v", err)
	}
	return l
}

// release gives a lease back, and fails the test unless the receipt is this one.
func (h *host) release(t *testing.T, l *leasehold.Lease, options leasehold.ReleaseOptions, want leasehold.ReceiptState) {
	t.Helper()
	receipt, err := h.Release(t.Context(), l.Ref(), options)
	wantReceipt(t, receipt, err, l.Ref(), want)
}

var leaseCases = []behaviour{
	{name: "what a reference says", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		request := s.request()
		request.Labels = map[string]string{"purpose": "conformance"}
		l, err := h.Acquire(t.Context(), request)
		if err != nil {
			t.Fatalf("Acquire() = %v", err)
		}
		ref := stored(t, l.Ref())
		t.Cleanup(func() {
			if _, err := h.Destroy(detached(t), ref); err != nil {
				t.Errorf("Destroy() = %v", err)
			}
		})
		if ref.Sandbox == "" || ref.Scope != request.Scope || ref.Reuse || !path.IsAbs(ref.Workspace) || !strings.HasSuffix(ref.Name, ref.Attempt) {
			t.Errorf("the reference is %+v, of the request %+v", ref, request)
		}
		want := map[string]string{
			"purpose": "conformance", "leasehold-provider": "daytona", "leasehold-tenant": ref.Scope.Tenant, "leasehold-environment": ref.Scope.Environment,
			"leasehold-run": ref.Scope.Run, "leasehold-agent": ref.Scope.Agent, "leasehold-workspace": ref.Scope.Workspace,
			"leasehold-reuse": "false", "leasehold-attempt": ref.Attempt,
		}
		if diff := cmp.Diff(want, ref.Labels); diff != "" {
			t.Errorf("labels mismatch (-want +got):\n%s", diff)
		}
		if got := says(t, l, `pwd -P; ls; test -w . && echo writable`); got != ref.Workspace+"\nwritable" {
			t.Errorf("the workspace is %q, want an empty, writable %s", got, ref.Workspace)
		}
	}},
	{name: "a lifetime", needs: []feature{lifetimes}, leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, func(c *leasehold.Config) { c.TTL = lifetime })
		began := time.Now()
		ref := h.acquire(t).Ref()
		// The provider counts it from its own insertion, by its own clock.
		if least, most := began.Add(lifetime-2*time.Minute), time.Now().Add(lifetime+time.Minute); ref.ExpiresAt.Before(least) || ref.ExpiresAt.After(most) {
			t.Errorf("it expires at %v, want %v to %v", ref.ExpiresAt, least, most)
		}
	}},
	{name: "a sandbox has files of its own", needs: []feature{apart}, leases: 1, test: func(t *testing.T, s *scene) {
		name := unique("apart")
		saysUnwrapped(t, s.lease, ": >~/"+name)
		if got := saysUnwrapped(t, s.host.acquire(t), "ls ~/"+name+" 2>/dev/null || echo none"); got != "none" {
			t.Errorf("another sandbox has the file: %q", got)
		}
	}},
	{name: "one lease, however it is come by", test: func(t *testing.T, s *scene) {
		ref := stored(t, s.lease.Ref())
		bound, err := s.host.Bind(ref)
		if err != nil || bound != s.lease {
			t.Errorf("Bind() = %p, %v; want the lease itself, %p", bound, err, s.lease)
		}
		if resumed := s.host.resume(t, ref); resumed != s.lease {
			t.Errorf("Resume() = %p, want the lease itself, %p", resumed, s.lease)
		}
	}},
	{name: "another host binds a reference", needs: []feature{hosts}, test: func(t *testing.T, s *scene) {
		other := s.newHost(t, reusable)
		l, err := other.Bind(stored(t, s.lease.Ref()))
		if err != nil {
			t.Fatal(err)
		}
		if got := says(t, l, "pwd -P"); got != s.lease.Ref().Workspace {
			t.Errorf("it works in %q, want %q", got, s.lease.Ref().Workspace)
		}
		says(t, s.lease, "true") // and the first host takes it back
	}},
	{name: "a lease survives its host", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		says(t, l, "echo kept >file")
		h.restart(t)
		_, err := l.Executor().Run(t.Context(), leasehold.Command{Script: "true"})
		wantError(t, "Run() after Close", err, leasehold.ErrClosed)
		again := h.resume(t, stored(t, l.Ref()))
		if got := says(t, again, "cat file"); got != "kept" || again.Ref().Sandbox != l.Ref().Sandbox {
			t.Errorf("the file holds %q in %s, want kept in %s", got, again.Ref().Sandbox, l.Ref().Sandbox)
		}
	}},
	{name: "released, it is gone", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		l := h.acquire(t)
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptDestroyed)
		_, err := l.Executor().Run(t.Context(), leasehold.Command{Script: "true"})
		wantError(t, "Run() after the release", err, leasehold.ErrClosed)
		_, err = h.Resume(t.Context(), l.Ref())
		if e := wantError(t, "Resume() of what is gone", err, leasehold.ErrGone); e.Reason != leasehold.ReasonNotFound {
			t.Errorf("it is gone for the reason %q, want %q", e.Reason, leasehold.ReasonNotFound)
		}
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptDestroyed) // as often as one likes
	}},
	{name: "released to be used again, it stops", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		says(t, l, "echo kept >file")
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		_, err := l.Executor().Run(t.Context(), leasehold.Command{Script: "true"})
		wantError(t, "Run() after the release", err, leasehold.ErrClosed)
		bound, err := h.Bind(l.Ref())
		if err != nil {
			t.Fatal(err)
		}
		_, err = bound.Executor().Run(t.Context(), leasehold.Command{Script: "true"})
		wantError(t, "Run() of a lease that is bound and not resumed", err, leasehold.ErrNotRunning)
		again := h.resume(t, stored(t, l.Ref()))
		if got := says(t, again, "cat file"); got != "kept" {
			t.Errorf("the file holds %q, want kept", got)
		}
		receipt, err := h.Destroy(t.Context(), again.Ref())
		wantReceipt(t, receipt, err, again.Ref(), leasehold.ReceiptDestroyed)
	}},
	{name: "a stop ends what runs", needs: []feature{stopping}, leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		says(t, l, "setsid sh -c 'sleep 600; :' outlives >/dev/null 2>&1 </dev/null & echo $! >pid")
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		if got := says(t, h.resume(t, l.Ref()), `case $(tr '\0' ' ' <"/proc/$(cat pid)/cmdline" 2>/dev/null) in *outlives*) echo runs ;; *) echo ended ;; esac`); got != "ended" {
			t.Errorf("a process that the stop should have ended %s", got)
		}
	}},
	{name: "retained, although it was not to be used again", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		l := h.acquire(t)
		says(t, l, "echo kept >file")
		h.release(t, l, leasehold.ReleaseOptions{Retain: true}, leasehold.ReceiptStopped)
		if got := says(t, h.resume(t, l.Ref()), "cat file"); got != "kept" {
			t.Errorf("the file holds %q, want kept", got)
		}
	}},
	{name: "archived, and back", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, func(c *leasehold.Config) { c.Reuse, c.Timeout = true, 15*time.Minute })
		l := h.acquire(t)
		says(t, l, "echo kept >file")
		h.release(t, l, leasehold.ReleaseOptions{Archive: true}, leasehold.ReceiptStopped)
		if got := says(t, h.resume(t, l.Ref()), "cat file"); got != "kept" {
			t.Errorf("the file holds %q, want kept", got)
		}
	}},
	{name: "destroyed while it is stopped", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		receipt, err := h.Destroy(t.Context(), l.Ref())
		wantReceipt(t, receipt, err, l.Ref(), leasehold.ReceiptDestroyed)
		_, err = h.Resume(t.Context(), l.Ref())
		wantError(t, "Resume() of what is gone", err, leasehold.ErrGone)
	}},
	{name: "probe", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		report, err := h.Probe(t.Context(), s.request())
		if err != nil || report.Sandbox == "" || !path.IsAbs(report.Workspace) || report.Shell == "" || report.Acquire <= 0 || report.Destroy <= 0 {
			t.Errorf("Probe() = %+v, %v", report, err)
		}
		if idle := h.Idle(); !idle.Idle {
			t.Errorf("after the probe there is left %+v", idle.Active)
		}
	}},
	{name: "a workspace without its mark is another's", leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		says(t, l, "rm -r .leasehold")
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		_, err := h.Resume(t.Context(), l.Ref())
		if e := wantError(t, "Resume() without a mark", err, leasehold.ErrGone); e.Reason != leasehold.ReasonSentinelMissing || e.Phase != leasehold.PhaseSentinel {
			t.Errorf("it is gone for the reason %q in phase %q, want %q", e.Reason, e.Phase, leasehold.ReasonSentinelMissing)
		}
	}},
	{name: "another's sandbox is not touched", test: func(t *testing.T, s *scene) {
		// A reference that is sound in itself, but whose sandbox was made for another attempt.
		forged := s.lease.Ref()
		attempt := uuid.NewString()
		forged.Name = strings.Replace(forged.Name, forged.Attempt, attempt, 1)
		forged.Labels["leasehold-attempt"] = attempt
		forged.Attempt, forged.Reuse = attempt, false
		_, err := s.host.Resume(t.Context(), forged)
		wantError(t, "Resume()", err, leasehold.ErrNotOwned)
		_, err = s.host.Release(t.Context(), forged, leasehold.ReleaseOptions{})
		wantError(t, "Release()", err, leasehold.ErrNotOwned)
		_, err = s.host.Destroy(t.Context(), forged)
		wantError(t, "Destroy()", err, leasehold.ErrNotOwned)
		l, err := s.host.Bind(forged)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Executor().Run(t.Context(), leasehold.Command{Script: "touch mine-now"})
		wantError(t, "Run()", err, leasehold.ErrNotOwned)
		if got := says(t, s.lease, "test -e mine-now || echo untouched"); got != "untouched" {
			t.Errorf("the sandbox was touched: %q", got)
		}
	}},
	{name: "a bad request sends nothing", test: func(t *testing.T, s *scene) {
		scope := leasehold.Scope{Tenant: "a", Environment: "b", Run: "c"}
		for field, request := range map[string]leasehold.AcquireRequest{
			"AcquireRequest.Scope.Tenant":       {Scope: leasehold.Scope{Environment: "b", Run: "c"}},
			"AcquireRequest.Scope.Run":          {Scope: leasehold.Scope{Tenant: "a", Environment: "b", Run: "c d"}},
			"AcquireRequest.Labels.leasehold-x": {Scope: scope, Labels: map[string]string{"leasehold-x": "y"}},
		} {
			_, err := s.host.Acquire(t.Context(), request)
			e := wantError(t, "Acquire()", err, leasehold.ErrInvalid)
			if len(e.Fields) != 1 || e.Fields[0].Field != field || e.Dispatched != leasehold.DispatchedNo {
				t.Errorf("Acquire() = %+v, want the field %s, and nothing sent", e, field)
			}
		}
		changed := s.lease.Ref()
		changed.Labels = maps.Clone(changed.Labels)
		changed.Labels["leasehold-tenant"] = "another"
		_, err := s.host.Resume(t.Context(), changed)
		wantError(t, "Resume() of a reference that contradicts itself", err, leasehold.ErrInvalid)
	}},
}
