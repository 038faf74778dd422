//go:build unix

package leasehold

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestFileStoreFullDisk: on a full disk a write fails, and every record is as it was; with space again, all goes on.
func TestFileStoreFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "disk")
	tinyDisk(t, dir, "64k")
	var reports unreadable
	s := fileStore(t, dir, reports.options())
	if err := s.Renew(t.Context(), "o", time.Hour); err != nil {
		t.Fatal(err)
	}
	want := make(map[string]Record)
	var claims []Claim
	for {
		r := storedRecord()
		claim, err := s.Put(t.Context(), r, "o")
		if err != nil {
			if e := wantError(t, err, KindStore); !errors.Is(e, syscall.ENOSPC) || !e.Retryable {
				t.Fatalf("Put() on a full disk = %+v, want ENOSPC, to be retried", e)
			}
			break
		}
		want[r.Envelope.Attempt] = claim.Record
		claims = append(claims, claim)
	}
	if len(claims) < 2 {
		t.Fatalf("%d records fit, want some", len(claims))
	}
	intact := func() {
		t.Helper()
		if diff := cmp.Diff(want, listed(t, s)); diff != "" {
			t.Errorf("records mismatch (-want +got):\n%s", diff)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".tmp-*")); len(left) > 0 {
			t.Errorf("temporary files were left: %v", left)
		}
	}
	intact()
	for i, claim := range claims {
		changed := claim.Record
		changed.Envelope.Observed = "seen"
		if err := s.Update(t.Context(), claim, changed); !errors.Is(err, ErrStore) {
			t.Errorf("Update() %d on a full disk = %v, want ErrStore", i, err)
		}
		if err := s.Release(t.Context(), claim, changed, 0); !errors.Is(err, ErrStore) {
			t.Errorf("Release() %d on a full disk = %v, want ErrStore", i, err)
		}
		if _, err := s.Claim(t.Context(), claim.Record.Envelope.Attempt, "o"); !errors.Is(err, ErrStore) {
			t.Errorf("Claim() %d on a full disk = %v, want ErrStore", i, err)
		}
	}
	if err := s.Renew(t.Context(), "o", time.Hour); !errors.Is(err, ErrStore) {
		t.Errorf("Renew() on a full disk = %v, want ErrStore", err)
	}
	intact()
	for _, claim := range claims[:2] { // a removal needs no space
		if err := s.Delete(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		delete(want, claim.Record.Envelope.Attempt)
	}
	intact()
	last := claims[len(claims)-1]
	changed := last.Record
	changed.Envelope.Observed = "seen"
	if err := s.Update(t.Context(), last, changed); err != nil {
		t.Errorf("Update() with space again = %v", err)
	}
	want[changed.Envelope.Attempt] = changed
	intact()
	reports.want(t)
}
