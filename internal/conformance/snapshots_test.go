package conformance_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// snapshotCases make templates, and sandboxes of them.
var snapshotCases = []behaviour{
	{name: "captured, and used", needs: []feature{snapshots}, leases: 2, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, func(c *leasehold.Config) { c.Reuse, c.Timeout = true, 15*time.Minute })
		l := h.acquire(t)
		saysUnwrapped(t, l, "echo captured >~/captured")
		ref, err := h.snapshots(t).Capture(t.Context(), l, h.plan(t, "Conformance, captured"))
		h.note(t, ref)
		if err != nil {
			t.Fatalf("Capture() = %v", err)
		}
		info, err := h.snapshots(t).Inspect(t.Context(), ref)
		if err != nil || info.State != leasehold.SnapshotReady || info.Ref.Name != ref.Name || info.Ref.ID == "" {
			t.Errorf("Inspect() = %+v, %v; want %s, ready", info, err, ref.Name)
		}
		if got := saysUnwrapped(t, l, "cat ~/captured"); got != "captured" {
			t.Errorf("after the capture the lease's file holds %q", got)
		}
		h.config.Snapshot = ref.Name
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		h.restart(t)
		copied := h.acquire(t)
		if got := saysUnwrapped(t, copied, "cat ~/captured"); got != "captured" || copied.Ref().Sandbox == l.Ref().Sandbox {
			t.Errorf("in a sandbox of the snapshot the file holds %q", got)
		}
		// The workspace's mark came along, and has been replaced: the copy is a lease of its own.
		h.resume(t, stored(t, copied.Ref()))
	}},
	{name: "built, found again, and deleted", needs: []feature{snapshots}, test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		all := h.snapshots(t)
		planned := h.plan(t, "Conformance, built")
		build := leasehold.BuildRequest{Image: "debian:12.9-slim"}
		ref, err := all.Build(t.Context(), planned, build)
		h.note(t, ref)
		if err != nil || ref.ID == "" {
			t.Fatalf("Build() = %+v, %v", ref, err)
		}
		if again, err := all.Build(t.Context(), planned, build); err != nil || again != ref {
			t.Errorf("Build() of the same plan = %+v, %v; want %+v", again, err, ref)
		}
		if err := all.Delete(t.Context(), ref); err != nil {
			t.Fatalf("Delete() = %v", err)
		}
		_, err = all.Inspect(t.Context(), ref)
		wantError(t, "Inspect() of a snapshot that was deleted", err, leasehold.ErrGone)
	}},
}
