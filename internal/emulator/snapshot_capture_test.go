//go:build unix

package emulator

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestACopyLeavesOutWhatVanishes removes what a directory was read to hold before it is copied.
func TestACopyLeavesOutWhatVanishes(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := errors.Join(
		os.Mkdir(filepath.Join(from, "dir"), 0o700), os.WriteFile(filepath.Join(from, "file"), nil, 0o600), os.Symlink("file", filepath.Join(from, "link")),
	); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil || len(entries) != 3 {
		t.Fatalf("ReadDir() = %v, %v", entries, err)
	}
	c := treeCopy{to: to, from: from}
	for _, entry := range entries {
		path := filepath.Join(from, entry.Name())
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := c.visit(path, entry, nil); err != nil && err != fs.SkipDir {
			t.Errorf("%s: %v", entry.Name(), err)
		}
	}
	if err := copyTree(filepath.Join(to, "copy"), filepath.Join(from, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing at all: %v, want it not to exist", err)
	}
}

// TestACopyIsLikeTheOriginal, whatever the umask: permissions, and times, those of directories too.
func TestACopyIsLikeTheOriginal(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	dir, file := filepath.Join(from, "dir"), filepath.Join(from, "dir", "file")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_000_000_000, 0)
	t.Cleanup(func() { _, _ = os.Chmod(dir, 0o700), os.Chmod(filepath.Join(to, "dir"), 0o700) }) // so that they can be removed
	if err := errors.Join(os.Chmod(file, 0o666), os.Chtimes(file, at, at), os.Chmod(dir, 0o577), os.Chtimes(dir, at, at)); err != nil {
		t.Fatal(err)
	}
	if err := copyTree(to, from); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir", "dir/file"} {
		want, err := os.Stat(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.Stat(filepath.Join(to, name))
		if err != nil {
			t.Fatal(err)
		}
		if got.Mode() != want.Mode() || !got.ModTime().Equal(want.ModTime()) {
			t.Errorf("%s: %v of %v, want %v of %v", name, got.Mode(), got.ModTime(), want.Mode(), want.ModTime())
		}
	}
}
