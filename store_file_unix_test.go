//go:build unix

package leasehold

import (
	"errors"
	"os"
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

// TestFileStoreThatCannotLook: what could not be looked at, as when no file can be opened any more, is neither dead nor
// absent: a living host's record is not taken, and no list is short.
func TestFileStoreThatCannotLook(t *testing.T) {
	for _, blind := range []string{"owners", "locks"} {
		t.Run(blind, func(t *testing.T) {
			dir := t.TempDir()
			var reports unreadable
			s := fileStore(t, dir, reports.options())
			if err := s.Renew(t.Context(), "living", time.Hour); err != nil {
				t.Fatal(err)
			}
			r := storedRecord()
			claim, err := s.Put(t.Context(), r, "living")
			if err != nil {
				t.Fatal(err)
			}
			away, path := filepath.Join(t.TempDir(), blind), filepath.Join(dir, blind)
			if err := errors.Join(os.Rename(path, away), os.WriteFile(path, nil, 0o600)); err != nil { // now opening anything in it fails
				t.Fatal(err)
			}
			if claims, err := s.ClaimDue(t.Context(), "sweeper", 1); !errors.Is(err, ErrStore) || len(claims) != 0 {
				t.Errorf("ClaimDue() = %v, %v, want ErrStore", claims, err)
			}
			if claim, err := s.Claim(t.Context(), r.Envelope.Attempt, "sweeper"); !errors.Is(err, ErrStore) {
				t.Errorf("Claim() = %v, %v, want ErrStore", claim, err)
			}
			if entries, err := s.List(t.Context(), "", 10); !errors.Is(err, ErrStore) {
				t.Errorf("List() = %v, %v, want ErrStore", entries, err)
			}
			if err := errors.Join(os.Remove(path), os.Rename(away, path)); err != nil {
				t.Fatal(err)
			}
			if err := s.Update(t.Context(), claim, r); err != nil {
				t.Errorf("Update() by the living = %v", err)
			}
			reports.want(t)
		})
	}
}

// TestReadRegularIsNotFooled: what takes the place of a regular file between the look and the opening is not waited for
// and not followed.
func TestReadRegularIsNotFooled(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(pipe, os.O_RDONLY|openFileOnly, 0)
		opened <- errors.Join(err, f.Close())
	}()
	select {
	case err := <-opened:
		if err != nil {
			t.Errorf("opening a pipe = %v, want it open at once", err)
		}
	case <-time.After(time.Minute):
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // lets it go
		t.Fatalf("opening a pipe waits for its other end (%v)", errors.Join(err, w.Close()))
	}
	if f, err := os.OpenFile(link, os.O_RDONLY|openFileOnly, 0); err == nil {
		t.Errorf("a link was followed: %v", f.Close())
	}
}
