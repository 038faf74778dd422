//go:build unix

package leasehold

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestReadOnlyBundleIsSentOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	l := r.acquired(t)
	local := t.TempDir()
	writeFiles(t, local, map[string]string{"bin/tool": "v1", "doc": "text", "large": "x", "d/e/f": "x"})
	if err := errors.Join(os.Truncate(filepath.Join(local, "large"), 9<<20), os.Chmod(filepath.Join(local, "bin/tool"), 0o755), os.Symlink("tool", filepath.Join(local, "bin/alias"))); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(l.Ref().Workspace, "bundles", "tools")
	sent := func(l *Lease, what string, want int, o ImportOptions) TransferResult {
		t.Helper()
		r.server.ResetRequests()
		o.Access = AccessReadOnly
		result, err := l.Importer().Dir(t.Context(), local, "bundles/tools", o)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := r.count()["POST /toolbox/*/files/bulk-upload"]; got != want {
			t.Errorf("%s: %d uploads, want %d", what, got, want)
		}
		return result
	}
	content := map[string]string{
		"bin": "dr-xr-xr-x", "bin/tool": "-r-xr-xr-x v1", "bin/alias": "-> tool", "doc": "-r--r--r-- text", "large": "-r--r--r-- 9437184 bytes",
		"d": "dr-xr-xr-x", "d/e": "dr-xr-xr-x", "d/e/f": "-r--r--r-- x",
	}
	holds := func(what string) {
		t.Helper()
		if diff := cmp.Diff(content, tree(t, bundle)); diff != "" {
			t.Errorf("%s: bundle mismatch (-want +got):\n%s", what, diff)
		}
	}
	sent(l, "first", 1, ImportOptions{})
	holds("first")
	again := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(local, "doc"), again, again); err != nil {
		t.Fatal(err)
	}
	if result := sent(l, "again, with another time", 0, ImportOptions{}); result.Unchanged != 8 || result.Entries != 0 {
		t.Errorf("%+v, want 8 entries unchanged", result)
	}
	r.wantRequests(t, "POST /toolbox/*/process/execute")

	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := r.Resume(t.Context(), l.Ref())
	if err != nil {
		t.Fatal(err)
	}
	sent(l, "resumed", 0, ImportOptions{})

	// Corrupted, with the same size and time.
	doc := filepath.Join(bundle, "doc")
	fi, err := os.Stat(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(doc, 0o644), os.WriteFile(doc, []byte("TEXT"), 0o644), os.Chmod(doc, 0o444), os.Chtimes(doc, fi.ModTime(), fi.ModTime())); err != nil {
		t.Fatal(err)
	}
	sent(l, "corrupted", 1, ImportOptions{})
	holds("corrupted")
	for what, harm := range map[string]func() error{
		"an entry more": func() error { return os.WriteFile(filepath.Join(bundle, "more"), nil, 0o600) },
		"one less":      func() error { return os.Remove(doc) },
		"moved away":    func() error { return os.Rename(bundle, bundle+".away") },
		"linked": func() error {
			return errors.Join(os.Rename(bundle, bundle+".real"), os.Symlink("tools.real", bundle))
		},
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		if what == "linked" {
			_, err := l.Importer().Dir(t.Context(), local, "bundles/tools", ImportOptions{Access: AccessReadOnly})
			wantError(t, err, KindConflict)
			if err := os.Remove(bundle); err != nil {
				t.Fatal(err)
			}
		}
		sent(l, what, 1, ImportOptions{})
		holds(what)
	}

	// Another content replaces the bundle as a whole.
	if err := errors.Join(os.RemoveAll(filepath.Join(local, "d")), os.WriteFile(filepath.Join(local, "bin/tool"), []byte("v2"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"d", "d/e", "d/e/f"} {
		delete(content, name)
	}
	content["bin/tool"] = "-r-xr-xr-x v2"
	sent(l, "changed", 1, ImportOptions{})
	holds("changed")
	r.server.SetFaults(emulator.Fault{Path: executePath, Action: emulator.SilentSocket, Bytes: -1, Count: 2}) // a busy machine may measure first
	_, err = l.Importer().Dir(t.Context(), local, "bundles/tools", ImportOptions{Access: AccessReadOnly, StallTimeout: 300 * time.Millisecond})
	wantError(t, err, KindTimeout)
	wantNoScratch(t, l, filepath.Dir(bundle))
	for _, dest := range []string{"", "/", ".."} {
		_, err := l.Importer().Dir(t.Context(), local, dest, ImportOptions{Access: AccessReadOnly})
		wantError(t, err, KindInvalid)
	}
}
