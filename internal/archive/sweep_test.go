//go:build unix

package archive

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// sweeping runs extract while other extractions into the same directory begin, which sweep it.
func sweeping(t *testing.T, dir string, extract func()) {
	t.Helper()
	var sweeper sync.WaitGroup
	done := make(chan struct{})
	sweeper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Error(err)
				return
			}
			sweepStages(root)
			root.Close()
		}
	})
	extract()
	close(done)
	sweeper.Wait()
}

// What an extraction is about to publish, and what it is about to replace, is not swept, however old it says it is.
func TestF2NothingInUseIsSwept(t *testing.T) {
	old := time.Unix(1_000_000_000, 0)
	t.Run("files", func(t *testing.T) {
		dir := t.TempDir()
		var members []entry
		var targets []Target
		for i := range 20 {
			name := fmt.Sprint("f", i)
			members = append(members, entry{name: "./" + name, body: "x", time: old})
			targets = append(targets, Target{Name: "./" + name, Path: filepath.Join(dir, name)})
		}
		data := tarball(t, members...)
		sweeping(t, dir, func() {
			for range 3 {
				if _, err := ExtractFiles(t.Context(), bytes.NewReader(data), targets, ExtractOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	})
	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		dest := filepath.Join(dir, "dest")
		var members []entry
		for i := range 20 {
			members = append(members, entry{name: fmt.Sprintf("d%d/f", i), time: old})
		}
		data := tarball(t, members...)
		sweeping(t, dir, func() {
			for range 5 {
				sum, err := Extract(t.Context(), bytes.NewReader(data), dest, ExtractOptions{})
				if err != nil || sum.Leftover != "" {
					t.Errorf("error %v, %q was left", err, sum.Leftover)
					return
				}
				if err := os.Chtimes(dest, old, old); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// Where two names cannot be exchanged, a process may be killed when the earlier content has lost its name and the new one
// has not got it yet. The next extraction does not take it for something that nobody wants.
func TestF2EarlierContentOfAKilledProcessIsNotSwept(t *testing.T) {
	dir := t.TempDir()
	dest := filepath.Join(dir, "dest")
	put(t, dest, map[string]string{"f": "earlier"})
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(dest, old, old); err != nil {
		t.Fatal(err)
	}
	killed, err := newStage(dest, true)
	if err != nil {
		t.Fatal(err)
	}
	name, err := killed.aside()
	if err != nil {
		t.Fatal(err)
	}
	killed.parent.Close()
	if _, err := Extract(t.Context(), bytes.NewReader(tarball(t)), filepath.Join(dir, "other"), ExtractOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, name, "f")); err != nil || string(got) != "earlier" {
		t.Errorf("the earlier content is %q, %v", got, err)
	}
}
