package leasehold

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func lost(id string) string {
	return "not found: failed to inspect sandbox container " + id + ": Error response from daemon: No such container: " + id
}

// TestL5Resume states, for each condition a lease's sandbox can be found in, whether the lease goes on (no kind), is
// proved gone, or fails with its sandbox kept.
func TestL5Resume(t *testing.T) {
	t.Parallel()
	force := func(state emulator.State, reason string, recoverable bool) func(*testing.T, *rig, LeaseRef) {
		return func(_ *testing.T, r *rig, ref LeaseRef) {
			r.server.Sandbox(ref.Sandbox).Force(state, strings.ReplaceAll(reason, "ID", ref.Sandbox), recoverable)
		}
	}
	fault := func(f emulator.Fault) func(*testing.T, *rig, LeaseRef) {
		return func(_ *testing.T, r *rig, _ LeaseRef) {
			if f.Method == "" {
				f.Method, f.Path = "GET", "/api/sandbox/*"
			}
			r.server.SetFaults(f)
		}
	}
	tests := []struct {
		name    string
		arrange func(*testing.T, *rig, LeaseRef)
		kind    Kind // empty: resumed
		reason  Reason
	}{
		{"started", force(emulator.StateStarted, "", false), "", ""},
		{"stopped", force(emulator.StateStopped, "", false), "", ""},
		{"archived", force(emulator.StateArchived, "", false), "", ""},
		{"errored and recoverable", force(emulator.StateError, "timeout while starting", true), "", ""},
		{"errored", force(emulator.StateError, "disk failure", false), KindBroken, ""},
		{"build failed", force("build_failed", "no such base", false), KindBroken, ""},
		{"container lost", force(emulator.StateError, lost("ID"), false), KindGone, ReasonContainerLost},
		{"container of another id lost", force(emulator.StateError, lost("other"), false), KindBroken, ""},
		{"container lost, with more words", force(emulator.StateError, lost("ID")+".", false), KindBroken, ""},
		{"container lost, but recoverable", force(emulator.StateError, lost("ID"), true), "", ""},
		{"container lost on one read only", fault(emulator.Fault{Action: emulator.MergeReply, Body: `{"state":"error","recoverable":false,"errorReason":"x"}`}), KindBroken, ""},
		{"creating, for ever", force(emulator.StateCreating, "", false), KindTimeout, ""},
		{"starting, for ever", force("starting", "", false), KindTimeout, ""},
		{"stopping, for ever", force("stopping", "", false), KindTimeout, ""},
		{"restoring, for ever", force("restoring", "", false), KindTimeout, ""},
		{"archiving, for ever", force("archiving", "", false), KindTimeout, ""},
		{"pending build, for ever", force("pending_build", "", false), KindTimeout, ""},
		{"building, for ever", force("building_snapshot", "", false), KindTimeout, ""},
		{"pulling, for ever", force("pulling_snapshot", "", false), KindTimeout, ""},
		{"resizing, for ever", force("resizing", "", false), KindTimeout, ""},
		{"snapshotting, for ever", force("snapshotting", "", false), KindTimeout, ""},
		{"forking, for ever", force("forking", "", false), KindTimeout, ""},
		{"pausing, for ever", force("pausing", "", false), KindTimeout, ""},
		{"resuming, for ever", force("resuming", "", false), KindTimeout, ""},
		{"unknown, for ever", force("unknown", "", false), KindTimeout, ""},
		{"a state of the future, for ever", force("hibernating", "", false), KindTimeout, ""},
		{"destroying, for ever", force("destroying", "", false), KindTimeout, ""},
		{"destroyed", func(t *testing.T, r *rig, ref LeaseRef) {
			if _, err := r.Destroy(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}, KindGone, ReasonNotFound},
		{"extra JSON fields and an unknown state, once", fault(emulator.Fault{Action: emulator.MergeReply, Body: `{"state":"hibernating","future":{"a":[1]}}`}), "", ""},
		{"a pending change, once", func(t *testing.T, r *rig, ref LeaseRef) {
			force(emulator.StateStopped, "", false)(t, r, ref)
			r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.StatusBefore, Status: 409, Body: structured(409, "Sandbox state change in progress")})
		}, "", ""},
		{"start answered with 502, though it was done", func(t *testing.T, r *rig, ref LeaseRef) {
			force(emulator.StateStopped, "", false)(t, r, ref)
			r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.StatusAfter, Status: 502})
		}, "", ""},
		{"start not answered, though it was done", func(t *testing.T, r *rig, ref LeaseRef) {
			force(emulator.StateStopped, "", false)(t, r, ref)
			r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.DropAfter})
		}, "", ""},
		{"start refused by quota", func(t *testing.T, r *rig, ref LeaseRef) {
			force(emulator.StateStopped, "", false)(t, r, ref)
			r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Count: -1, Action: emulator.StatusBefore, Status: 400, Body: structured(400, "Total CPU limit exceeded. Maximum allowed: 10.")})
		}, KindQuota, ""},
		{"401", fault(emulator.Fault{Action: emulator.StatusBefore, Status: 401, Body: structured(401, "Invalid credentials")}), KindAuth, ""},
		{"403", fault(emulator.Fault{Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")}), KindAuth, ""},
		{"404 of a proxy, once", fault(emulator.Fault{Action: emulator.StatusBefore, Status: 404, Body: "<html>404</html>"}), "", ""},
		{"404 without a body, for ever", fault(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 404}), KindUnavailable, ""},
		{"404 for a path that is not served", fault(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Cannot GET /api/sandbox/x")}), KindUnavailable, ""},
		{"429 twice", fault(emulator.Fault{Count: 2, Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"0.01"}}, Body: structured(429, "slow down")}), "", ""},
		{"502 with an empty body, twice", fault(emulator.Fault{Count: 2, Action: emulator.StatusBefore, Status: 502}), "", ""},
		{"500 for ever", fault(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 500, Body: structured(500, "secret words")}), KindUnavailable, ""},
		{"read dropped, once", fault(emulator.Fault{Count: 2, Action: emulator.DropBefore}), "", ""},
		{"reply that is no JSON", fault(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 200, Body: "<html>welcome</html>"}), KindProtocol, ""},
		{"sentinel missing", func(t *testing.T, r *rig, ref LeaseRef) {
			if err := os.Remove(filepath.Join(ref.Workspace, sentinelFile)); err != nil {
				t.Fatal(err)
			}
		}, KindGone, ReasonSentinelMissing},
		{"workspace missing", func(t *testing.T, r *rig, ref LeaseRef) {
			if err := os.RemoveAll(ref.Workspace); err != nil {
				t.Fatal(err)
			}
		}, KindGone, ReasonSentinelMissing},
		{"sentinel of another lease", func(t *testing.T, r *rig, ref LeaseRef) {
			content := `{"version":1,"token":"` + strings.Repeat("0", 64) + `"}`
			if err := os.WriteFile(filepath.Join(ref.Workspace, sentinelFile), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}, KindGone, ReasonSentinelDiffers},
		{"sentinel that is garbage", func(t *testing.T, r *rig, ref LeaseRef) {
			if err := os.WriteFile(filepath.Join(ref.Workspace, sentinelFile), []byte("\x00{"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, KindGone, ReasonSentinelDiffers},
		{"toolbox down, for ever", fault(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Count: -1, Action: emulator.StatusBefore, Status: 502}), KindTimeout, ""},
		{"toolbox down, twice", fault(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Count: 2, Action: emulator.StatusBefore, Status: 502}), "", ""},
		{"sentinel read delivered twice", fault(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Action: emulator.Duplicate}), "", ""},
		{"sentinel read that says nothing", fault(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Count: -1, Action: emulator.StatusBefore, Status: 200, Body: `{"exitCode":0,"result":""}`}), KindProtocol, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{Reuse: true, Timeout: time.Minute, AutoStopMinutes: new(0)}, emulator.Options{})
			ref := r.acquired(t).Ref()
			before := workspaceFiles(t, ref)
			tt.arrange(t, r, ref)
			switch {
			case tt.kind == KindTimeout && len(r.server.Faults()) > 0: // which must be reached
				r.cfg.Timeout = 5 * time.Second
			case tt.kind == KindTimeout:
				r.cfg.Timeout = 400 * time.Millisecond
			case tt.kind == KindUnavailable: // after a first answer
				r.cfg.CallTimeout = 2 * time.Second
			}
			changed := workspaceFiles(t, ref)
			r.server.ResetRequests()
			l, err := r.Resume(t.Context(), ref)
			r.wantHits(t)
			if tt.kind == "" {
				if err != nil {
					t.Fatalf("Resume() = %v, want a lease", err)
				}
				if _, err := l.toolbox(t.Context()); err != nil {
					t.Errorf("toolbox() = %v", err)
				}
				if after := workspaceFiles(t, ref); after != before {
					t.Errorf("the workspace was changed from %s to %s", before, after)
				}
			} else {
				e := wantError(t, err, tt.kind)
				if e.Reason != tt.reason {
					t.Errorf("reason = %q, want %q", e.Reason, tt.reason)
				}
				if after := workspaceFiles(t, ref); after != changed {
					t.Errorf("something was written before the sentinel matched: %s became %s", changed, after)
				}
				if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), r.server.APIKey()) {
					t.Errorf("S1: %v", err)
				}
			}
			r.wantNothingDeleted(t)
			if tt.reason != ReasonNotFound && r.server.Sandbox(ref.Sandbox).State() == "destroyed" {
				t.Error("the sandbox is destroyed")
			}
		})
	}
}

// workspaceFiles lists the workspace with times, so that any write shows.
func workspaceFiles(t *testing.T, ref LeaseRef) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(ref.Workspace, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %d %s\n", path, info.Size(), info.ModTime().Format(time.RFC3339Nano))
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return b.String()
}

// TestL5NotFoundUnderAnotherCredential: the API masks what a key may not see as not-found, so without an attested account
// it proves nothing.
func TestL5NotFoundUnderAnotherCredential(t *testing.T) {
	var home string
	options := emulator.Options{APIKey: "first", Organization: "home", Keys: map[string]string{"rotated": "home", "foreign": "elsewhere"}}
	r := newRig(t, Config{Reuse: true}, options)
	ref := r.acquired(t).Ref()
	home = ref.Account
	with := func(t *testing.T, key string) *rig {
		other := &rig{provider: rigProvider(t, r.server, Config{APIKey: key, Reuse: true}), server: r.server}
		t.Cleanup(func() {
			if err := other.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return other
	}

	rotated := with(t, "rotated")
	if l, err := rotated.Resume(t.Context(), ref); err != nil {
		t.Errorf("Resume() with a rotated key = %v", err)
	} else if l.Ref().Account != home {
		t.Error("the account changed with the key")
	}
	foreign := with(t, "foreign")
	_, err := foreign.Resume(t.Context(), ref)
	wantError(t, err, KindUncertain)
	_, err = foreign.Release(t.Context(), ref, ReleaseOptions{})
	wantError(t, err, KindUncertain)
	_, err = foreign.Destroy(t.Context(), ref)
	wantError(t, err, KindUncertain)
	if got := r.server.Sandbox(ref.Sandbox).State(); got != emulator.StateStarted {
		t.Fatalf("state = %q after a foreign key's attempts, want started", got)
	}

	if _, err := r.Destroy(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	_, err = with(t, "rotated").Resume(t.Context(), ref)
	wantError(t, err, KindUncertain) // nothing is left in the account by which it could be attested
	keep := r.acquired(t).Ref()
	_, err = with(t, "rotated").Resume(t.Context(), ref)
	wantError(t, err, KindGone)
	_, err = with(t, "foreign").Resume(t.Context(), keep)
	wantError(t, err, KindUncertain)
}

// TestL3ForeignSandboxIsNotTouched.
func TestL3ForeignSandboxIsNotTouched(t *testing.T) {
	for _, label := range []string{"leasehold-tenant", "leasehold-run", "leasehold-attempt", "leasehold-provider", "leasehold-environment", "leasehold-reuse"} {
		t.Run(label, func(t *testing.T) {
			r := newRig(t, Config{Reuse: true}, emulator.Options{})
			l := r.acquired(t)
			ref := l.Ref()
			touched := false
			if !l.onClose(func(context.Context) { touched = true }) {
				t.Fatal("onClose() = false")
			}
			labels := r.server.Sandbox(ref.Sandbox).Labels()
			labels[label] = "changed"
			r.server.Sandbox(ref.Sandbox).SetLabels(labels)
			r.server.ResetRequests()
			_, err := r.Resume(t.Context(), ref)
			wantError(t, err, KindNotOwned)
			_, err = r.Release(t.Context(), ref, ReleaseOptions{})
			wantError(t, err, KindNotOwned)
			_, err = r.Release(t.Context(), ref, ReleaseOptions{Retain: true})
			wantError(t, err, KindNotOwned)
			_, err = r.Destroy(t.Context(), ref)
			wantError(t, err, KindNotOwned)
			fresh, err := r.Bind(ref)
			if err != nil {
				t.Fatal(err)
			}
			_, err = fresh.toolbox(t.Context())
			wantError(t, err, KindNotOwned)
			r.wantNothingDone(t)
			if touched {
				t.Error("the lease's own work in the sandbox was ended: it may be somebody else's by now")
			}
		})
	}
}

func TestUnknownLease(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	ref := r.acquired(t).Ref()
	ref.Sandbox = "00000000-0000-4000-8000-000000000000"
	_, err := r.Resume(t.Context(), ref)
	wantError(t, err, KindGone)
	l, err := r.Bind(ref)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.toolbox(t.Context())
	wantError(t, err, KindGone)
	r.wantNothingDone(t)
	_, err = r.Resume(t.Context(), LeaseRef{})
	wantError(t, err, KindInvalid)
}

// TestTwelveResumesAreOne: one start, one handle, no goroutine more than before.
func TestTwelveResumesAreOne(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{Timing: emulator.Timing{Start: 50 * time.Millisecond}})
	ref := r.acquired(t).Ref()
	if _, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	r.server.ResetRequests()
	before := runtime.NumGoroutine()
	leases := make([]*Lease, 12)
	var wg sync.WaitGroup
	for i := range leases {
		wg.Go(func() {
			var err error
			if leases[i], err = r.Resume(t.Context(), ref); err != nil {
				t.Errorf("resume %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i, l := range leases {
		if l != leases[0] {
			t.Errorf("resume %d returned another handle", i)
		}
	}
	if got := r.count()["POST /api/sandbox/*/start"]; got != 1 {
		t.Errorf("%d starts, want 1", got)
	}
	r.client.Close() // its idle connections have goroutines
	deadline := time.After(time.Minute)
	for runtime.NumGoroutine() > before+2 {
		select {
		case <-deadline:
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		default:
			runtime.Gosched()
		}
	}
}

// TestResumeAndReleaseAtOnce: they take turns, and a receipt is still a fact when it is issued.
func TestResumeAndReleaseAtOnce(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	ref := r.acquired(t).Ref()
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := r.Resume(t.Context(), ref); err != nil {
				t.Errorf("Resume() = %v", err)
			}
		})
		wg.Go(func() {
			if receipt, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
				t.Errorf("Release() = %+v, %v", receipt, err)
			}
		})
	}
	wg.Wait()
	r.wantSandboxes(t, 1)
}

// TestOneCallersCancellationLeavesTheOthersResume.
func TestOneCallersCancellationLeavesTheOthersResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Reuse: true})
		ref := w.acquired(t).Ref()
		if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		w.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.DelayRequest, Delay: 3 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(2*time.Second, cancel).Stop() // when both wait for that
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := w.Resume(ctx, ref)
			if e := wantError(t, err, KindCanceled); e.Dispatched != DispatchedUnknown || e.Sandbox != ref.Sandbox {
				t.Errorf("error = %+v, want one that leaves open what was sent about %s", e, ref.Sandbox)
			}
		})
		wg.Go(func() {
			if _, err := w.Resume(t.Context(), ref); err != nil {
				t.Errorf("Resume() = %v", err)
			}
		})
		wg.Wait()
		w.wantHits(t)
	})
}

// TestStopThatNeverEnds: no receipt, the sandbox is kept, and the error says that the change was asked for.
func TestStopThatNeverEnds(t *testing.T) {
	for name, give := range map[string]func(*world, context.Context, LeaseRef) (Receipt, error){
		"release": func(w *world, ctx context.Context, ref LeaseRef) (Receipt, error) {
			return w.Release(ctx, ref, ReleaseOptions{})
		},
		"destroy": func(w *world, ctx context.Context, ref LeaseRef) (Receipt, error) { return w.Destroy(ctx, ref) },
		"cleanup": func(w *world, ctx context.Context, ref LeaseRef) (Receipt, error) {
			return w.Cleanup(ctx, leaseRecord(ref).Envelope)
		},
		"resume": func(w *world, ctx context.Context, ref LeaseRef) (Receipt, error) {
			w.server.Sandbox(ref.Sandbox).Force(emulator.StateStopped, "", false)
			_, err := w.Resume(ctx, ref)
			return Receipt{}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Reuse: true})
				l, err := w.Acquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				ref := l.Ref()
				w.cfg.Timeout = 300 * time.Millisecond
				w.server.SetFaults(
					emulator.Fault{Method: "POST", Path: "/api/sandbox/*/stop", Action: emulator.StallChange},
					emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.StallChange},
					emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StallChange},
				)
				receipt, err := give(w, t.Context(), ref)
				e := wantError(t, err, KindTimeout)
				if receipt != (Receipt{}) {
					t.Errorf("receipt = %+v for a change that did not end", receipt)
				}
				sent := DispatchedYes
				if name == "resume" {
					sent = DispatchedUnknown // the reply to a start is held until the sandbox runs
				}
				if !errors.Is(err, context.DeadlineExceeded) || e.Phase == "" || e.Dispatched != sent || e.Sandbox != ref.Sandbox {
					t.Errorf("error = %+v, want a phase, dispatched %s, and DeadlineExceeded inside", e, sent)
				}
				if state := w.server.Sandbox(ref.Sandbox).State(); name == "release" && state != emulator.StateStopping {
					t.Errorf("the sandbox is %s, want it kept", state)
				}
			})
		})
	}
}

// TestReleaseCancelled: the caller leaves at once, and the sandbox is still given back.
func TestReleaseCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		ref := w.acquired(t).Ref()
		w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.DelayRequest, Delay: 3 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(2*time.Second, cancel).Stop() // while that is delayed
		_, err := w.Release(ctx, ref, ReleaseOptions{})
		if e := wantError(t, err, KindCanceled); e.Dispatched != DispatchedUnknown || e.Sandbox != ref.Sandbox {
			t.Errorf("error = %+v, want one that leaves open what was sent about %s", e, ref.Sandbox)
		}
		w.wantHits(t)
		w.tasks.Wait()
		w.wantSandboxes(t, 0)
	})
}

// TestDestroyTakesPartInNobodysRace: deletions that meet a pending change, or whose reply is lost, end all the same.
func TestDestroyFaults(t *testing.T) {
	t.Parallel()
	for _, f := range []emulator.Fault{
		{Action: emulator.StatusBefore, Status: 409, Body: structured(409, "Sandbox state change in progress"), Count: 3},
		{Action: emulator.StatusBefore, Status: 409, Body: structured(409, "Sandbox was modified by another operation")},
		{Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"0.01"}}, Body: structured(429, "slow down"), Count: 2},
		{Action: emulator.StatusBefore, Status: 502, Count: 2},
		{Action: emulator.StatusBefore, Status: 404, Body: "<html>"},
		{Action: emulator.StatusAfter, Status: 500, Body: structured(500, "oops")},
		{Action: emulator.StatusAfter, Status: 200, Body: "not json"},
		{Action: emulator.DropAfter},
		{Action: emulator.DropBefore, Count: 2},
		{Action: emulator.Duplicate},
	} {
		t.Run(fmt.Sprintf("%s %d", f.Action, f.Status), func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{})
			ref := r.acquired(t).Ref()
			f.Method, f.Path = "DELETE", "/api/sandbox/*"
			r.server.SetFaults(f)
			if receipt, err := r.Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
				t.Errorf("Destroy() = %+v, %v, want destroyed", receipt, err)
			}
			r.wantHits(t)
			r.wantSandboxes(t, 0)
		})
	}
}

// TestExpiredLease: what the provider destroyed at its lifetime's end is gone, and the reason says expired.
func TestExpiredLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{Reuse: true}, emulator.Options{InMemory: true})
		ref := validRef()
		ref.Credential = r.account.credential
		ref.ExpiresAt = time.Now().Add(time.Hour)
		_, err := r.Resume(t.Context(), ref)
		if e := wantError(t, err, KindGone); e.Reason != ReasonNotFound {
			t.Errorf("reason = %q before the expiry, want %q", e.Reason, ReasonNotFound)
		}
		<-time.After(time.Hour) // virtual
		_, err = r.Resume(t.Context(), ref)
		if e := wantError(t, err, KindGone); e.Reason != ReasonExpired {
			t.Errorf("reason = %q after the expiry, want %q", e.Reason, ReasonExpired)
		}
	})
}

// TestALeaseOfWhatIsGoneIsForgotten: whatever use finds that out, the provider does not keep the Lease for its own life.
func TestALeaseOfWhatIsGoneIsForgotten(t *testing.T) {
	for name, use := range map[string]func(context.Context, *Lease) error{
		"command": func(ctx context.Context, l *Lease) error {
			_, err := l.Executor().Run(ctx, Command{Script: "true"})
			return err
		},
		"endpoint":   func(ctx context.Context, l *Lease) error { _, err := l.Endpoint(ctx, 80); return err },
		"ssh revoke": func(ctx context.Context, l *Lease) error { return l.RevokeSSH(ctx) },
		"capture": func(ctx context.Context, l *Lease) error {
			s := &Snapshots{l.p}
			_, err := s.Capture(ctx, l, s.Plan("gone"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				ref := w.acquired(t).Ref()
				other := w.another(t, Config{})
				l, err := other.Bind(ref)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.Destroy(t.Context(), ref); err != nil {
					t.Fatal(err)
				}
				for range 2 { // the Lease says so each time
					wantError(t, use(t.Context(), l), KindGone)
				}
				if len(other.leases) > 0 {
					t.Errorf("the provider keeps %d leases, want none", len(other.leases))
				}
				var freed atomic.Bool
				runtime.SetFinalizer(l.open, func(context.Context) { freed.Store(true) }) // its context is no more kept than itself
				l = nil
				eventually(t, "what is kept of the lease", func() bool { runtime.GC(); return freed.Load() })
			})
		})
	}
}
