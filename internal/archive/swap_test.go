//go:build unix

package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Somebody on the host swaps a directory that is being filled for a link out of the tree: what comes later never goes
// through it, for each directory is held open.
func TestF1DirectorySwappedForALinkDuringTheExtraction(t *testing.T) {
	parent, outside := t.TempDir(), t.TempDir()
	put(t, outside, map[string]string{"kept": "kept"})
	data := tarball(t, entry{kind: tar.TypeDir, name: "d/"}, entry{name: "d/a", body: "a"}, entry{name: "d/b", body: "b"},
		entry{name: "d/e/c", body: "c"}, entry{name: "z", body: "z"}, entry{name: "d/late", body: "late"})
	for at := range int64(6) {
		swapped := false
		_, err := Extract(context.Background(), bytes.NewReader(data), filepath.Join(parent, "dest"), ExtractOptions{Progress: func(entries, _ int64) {
			if entries != at || swapped {
				return
			}
			for _, stage := range glob(t, filepath.Join(parent, StagePrefix+"*")) {
				if os.Rename(filepath.Join(stage, "d"), filepath.Join(stage, "aside")) == nil {
					swapped = true
					if err := os.Symlink(outside, filepath.Join(stage, "d")); err != nil {
						t.Error(err)
					}
				}
			}
		}})
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("swapped after %d entries: error %v of another type", at, err)
		}
		if !swapped && at > 0 {
			t.Errorf("nothing was swapped after %d entries: the test proves nothing", at)
		}
		if diff := cmp.Diff(map[string]string{"kept": "kept"}, contents(t, outside)); diff != "" {
			t.Errorf("swapped after %d entries: outside mismatch (-want +got):\n%s", at, diff)
		}
		if left := glob(t, filepath.Join(parent, StagePrefix+"*")); len(left) > 0 {
			t.Errorf("swapped after %d entries: %q is left", at, left)
		}
		if err := os.RemoveAll(filepath.Join(parent, "dest")); err != nil {
			t.Fatal(err)
		}
	}
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}
