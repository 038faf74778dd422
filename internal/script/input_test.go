//go:build unix

package script_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/script"
)

// feeding starts a command of a journal that is fed.
func feeding(t *testing.T, j journals, id, command string) (dir string) {
	t.Helper()
	s := start(command)
	s.Feed, s.Wait.Limit = true, script.Tick
	got := j.run(t, journal(id).Start(s))
	if got.State != script.StateRunning {
		t.Fatalf("got %+v, want a running command", got)
	}
	return got.Dir
}

// TestE1AChunkIsWrittenOnce delivers chunks again, when it is known no more by a file that they were written.
func TestE1AChunkIsWrittenOnce(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		dir := feeding(t, j, "once", "cat")
		var want strings.Builder
		feed := func(n int, end bool) script.State {
			line := fmt.Sprintf("line %d\n", n)
			if end {
				line = ""
			}
			return j.run(t, journal("once").Feed(n, []byte(line), end, patient)).State
		}
		const last = 66
		for n := range last {
			fmt.Fprintf(&want, "line %d\n", n)
			if got := feed(n, false); got != script.StateFed {
				t.Fatalf("chunk %d: %s, want that it was written", n, got)
			}
			if n == 0 || n >= 64 {
				feed(0, false)
				feed(n, false)
			}
		}
		if files, err := filepath.Glob(filepath.Join(dir, "once.n*")); err != nil || len(files) > 2 {
			t.Errorf("%d files are left of the chunks (%v), want no more than those of the last ones", len(files), err)
		}
		feed(63, false)
		if got := feed(last, true); got != script.StateFed {
			t.Errorf("the end: %s, want that it was given", got)
		}
		j.wantFrame(t, j.run(t, journal("once").Observe(patient)), ended(0, want.String(), ""))
	})
}

// TestE3AChunksWriterThatFailsIsNoEnd: a writer that is missing, dies, or is killed with the shell that waits for it.
func TestE3AChunksWriterThatFailsIsNoEnd(t *testing.T) {
	t.Parallel()
	needsProc(t)
	eachJournal(t, func(t *testing.T, j journals) {
		for id, writer := range map[string]string{"missing": "", "dies": "kill -9 $$", "nobody": "kill -9 $PPID $$"} {
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				j := j
				j.home = t.TempDir()
				path := without(t, "base64")
				if writer != "" {
					if err := os.WriteFile(filepath.Join(path, "base64"), []byte("#!/bin/sh\n"+writer+"\n"), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				j.env = []string{"PATH=" + path}
				feeding(t, j, id, "cat >/dev/null; echo end")
				for range 2 { // whoever asks is told
					if got := j.run(t, journal(id).Feed(0, []byte("data"), true, patient)); got.State != script.StateBroken {
						t.Errorf("got %+v, want that the writer failed", got)
					}
				}
				if got := j.stopped(t, id); got.Exit != 143 || strings.Contains(got.Stdout.Bytes, "end") {
					t.Errorf("got %+v, want a command that was stopped while it read", got)
				}
			})
		}
	})
}
