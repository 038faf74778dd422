//go:build unix

package archive

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/script"
)

// sandboxes are the kinds of userland that the scripts must work with.
var sandboxes = []string{"dash", "bash", "busybox", "bsdtar"}

// userland makes a PATH for one of them: "sh" and "tar" in it are of that kind.
func userland(t testing.TB, kind string) string {
	t.Helper()
	bin := t.TempDir()
	link := func(name, tool string) {
		if err := os.Symlink(needTool(t, tool), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	switch kind {
	case "busybox":
		for _, name := range strings.Fields("sh tar find mv rm dd grep wc mkdir mkfifo cksum tail cut sed cat chmod sleep kill printf touch stat sha256sum du ls sort rmdir date") {
			link(name, "busybox")
		}
		return bin
	case "bsdtar":
		link("tar", "bsdtar")
	default:
		link("sh", kind)
	}
	return bin + ":" + os.Getenv("PATH")
}

// deliver runs a script as the daemon does: as the standard input of a shell.
func deliver(t testing.TB, path, text, scratch string) Reply {
	t.Helper()
	return deliverAs(t, nil, path, text, scratch)
}

func deliverAs(t testing.TB, user *syscall.SysProcAttr, path, text, scratch string) Reply {
	t.Helper()
	cmd := exec.Command("sh")
	cmd.SysProcAttr = user
	cmd.Stdin = strings.NewReader(text + "echo the rest of the input is not read by the script\n")
	cmd.Env = []string{"PATH=" + path, "LANG=en_US.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("shell: %v: %s", err, out)
	}
	if !bytes.Contains(out, []byte("the rest of the input")) {
		t.Errorf("the script read its own input: %s", out)
	}
	reply, ok := ParseReply(string(out), scratch)
	if !ok {
		t.Errorf("no word in %q", out)
	}
	return reply
}

// uploaded puts an archive of src where an import expects it.
func uploaded(t testing.TB, src, dest string) RemoteImport {
	t.Helper()
	return uploadedWith(t, src, dest, WriteOptions{RepeatDirs: true})
}

func uploadedWith(t testing.TB, src, dest string, opt WriteOptions) RemoteImport {
	t.Helper()
	data, _ := pack(t, src, opt)
	r := RemoteImport{Scratch: StageName(), Own: filepath.Join(dest, ".leasehold"), Stages: []RemoteStage{{Dir: dest, Bytes: int64(len(data))}}}
	if err := os.MkdirAll(filepath.Dir(upload(r)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(upload(r), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return r
}

// upload is where the archive of the one stage lies.
func upload(r RemoteImport) string {
	return filepath.Join(Stage(r.Stages[0].Dir, r.Scratch, 0), RemoteArchive)
}

func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if d.Type()&os.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			got[rel] = "-> " + target
			return err
		}
		data, err := os.ReadFile(path)
		got[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestImportScriptPublishesTheTree(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, dest := t.TempDir(), filepath.Join(t.TempDir(), "it's a $dest")
			oddTree(t, src)
			if err := os.Remove(filepath.Join(src, ".hidden", "up")); err != nil { // see TestTarToolsExtractTheTree
				t.Fatal(err)
			}
			if err := os.Chtimes(filepath.Join(src, ".hidden"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
			r := uploaded(t, src, dest)
			if got := deliver(t, path, r.Script(), r.Scratch); got.Word != WordOK {
				t.Fatalf("word %q, want ok", got.Word)
			}
			t.Cleanup(func() { removeAll(t, dest) })
			if diff := cmp.Diff(describe(t, src), describe(t, dest)); diff != "" {
				t.Errorf("tree mismatch (-want +got):\n%s", diff)
			}
			if got := deliver(t, path, r.Script(), r.Scratch); got.Word != WordGone {
				t.Errorf("a second delivery says %q, want gone", got.Word)
			}
		})
	}
}

// What is sent in segments is joined, modes and times included, and is never mixed with what is there.
func TestImportScriptJoinsSegments(t *testing.T) {
	for _, kind := range sandboxes {
		for name, opt := range map[string]WriteOptions{
			"two levels": {RepeatDirs: true, Segment: 2}, "short paths": {RepeatDirs: true, Segment: 1000, MaxName: segmentSlack + 36},
		} {
			if kind == "bsdtar" && opt.Segment > 2 || kind == "bash" {
				continue // the same shell, and the same tar
			}
			t.Run(kind+", "+name, func(t *testing.T) {
				path := userland(t, kind)
				src, dest := t.TempDir(), filepath.Join(t.TempDir(), "it's a $dest")
				oddTree(t, src)
				put(t, src, map[string]string{"a/b/c/d/e/f/g": "deep", "a/b/c/$(odd)/'e'\n/f/g": "odd"})
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				must(os.Remove(filepath.Join(src, ".hidden", "up"))) // see TestTarToolsExtractTheTree
				must(os.Link(filepath.Join(src, "plain.txt"), filepath.Join(src, "a/b/c/d/e/hard")))
				must(os.Symlink("f/g", filepath.Join(src, "a/b/c/d/e/link")))
				removeAfter(t, src)
				removeAfter(t, dest)
				for dir := "a/b/c/d/e/f"; dir != "."; dir = filepath.Dir(dir) {
					must(os.Chmod(filepath.Join(src, dir), 0o555))
					must(os.Chtimes(filepath.Join(src, dir), time.Unix(1e9, 0), time.Unix(1e9, 0)))
				}
				must(os.Chtimes(filepath.Join(src, ".hidden"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
				for _, want := range []Word{WordOK, WordDeep} {
					r := uploadedWith(t, src, dest, opt)
					got := deliver(t, path, r.Script(), r.Scratch)
					if got.Word != want || want == WordDeep && got.Name == "" {
						t.Fatalf("word %q %q, want %q", got.Word, got.Name, want)
					}
					if diff := cmp.Diff(describe(t, src), describe(t, dest)); diff != "" {
						t.Errorf("tree mismatch (-want +got):\n%s", diff)
					}
				}
			})
		}
	}
}

func removeAfter(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() { removeAll(t, dir) })
}

func TestImportScriptMergesDirectories(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, dest := t.TempDir(), t.TempDir()
			put(t, src, map[string]string{"a": "new", "d/b": "new", "d/e/f": "new", "fresh/x": "new", ".dot/y": "new"})
			put(t, dest, map[string]string{"a": "old", "kept": "old", "d/kept": "old", "d/e/f": "old", ".dot/..kept": "old", ".leasehold/lease.json": "mine"})
			many := map[string]string{}
			for i := range 150 { // more than one batch of renames
				many[fmt.Sprintf("d/many %d", i)] = "new"
			}
			put(t, src, many)
			if err := os.Symlink("/etc/passwd", filepath.Join(dest, "d", "b")); err != nil {
				t.Fatal(err)
			}
			r := uploaded(t, src, dest)
			if got := deliver(t, path, r.Script(), r.Scratch); got.Word != WordOK {
				t.Fatalf("word %q, want ok", got.Word)
			}
			want := map[string]string{
				"a": "new", "kept": "old", "d/b": "new", "d/kept": "old", "d/e/f": "new", "fresh/x": "new", ".dot/y": "new", ".dot/..kept": "old",
				".leasehold/lease.json": "mine",
			}
			for name, body := range many {
				want[name] = body
			}
			if diff := cmp.Diff(want, contents(t, dest)); diff != "" {
				t.Errorf("destination mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestF2ImportScriptRefusesBeforeItPublishes(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(src, dest string, r *RemoteImport) error
		want    Word
	}{
		"short":            {func(_, _ string, r *RemoteImport) error { return os.Truncate(upload(*r), r.Stages[0].Bytes-512) }, WordShort},
		"long":             {func(_, _ string, r *RemoteImport) error { return os.Truncate(upload(*r), r.Stages[0].Bytes+512) }, WordShort},
		"missing":          {func(_, _ string, r *RemoteImport) error { return os.Remove(upload(*r)) }, WordMissing},
		"scratch vanished": {func(_, _ string, r *RemoteImport) error { return os.RemoveAll(filepath.Dir(upload(*r))) }, WordGone},
		"damaged": {func(_, _ string, r *RemoteImport) error {
			return os.WriteFile(upload(*r), bytes.Repeat([]byte("damage"), int(r.Stages[0].Bytes/6+1))[:r.Stages[0].Bytes], 0o600)
		}, WordExtract},
		"directory over a file": {func(_, dest string, _ *RemoteImport) error { return os.WriteFile(filepath.Join(dest, "d"), nil, 0o600) }, WordConflict},
		"directory over a link": {func(_, dest string, _ *RemoteImport) error { return os.Symlink(".", filepath.Join(dest, "d")) }, WordConflict},
		"file over a directory": {func(_, dest string, _ *RemoteImport) error {
			return os.MkdirAll(filepath.Join(dest, "d", "deep"), 0o700)
		}, WordConflict},
		"cleanup was faster": {func(_, _ string, r *RemoteImport) error {
			return os.Mkdir(filepath.Join(filepath.Dir(upload(*r)), "gate"), 0o700)
		}, WordCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			src, dest := t.TempDir(), t.TempDir()
			put(t, src, map[string]string{"a": "new", "d/deep": "new", "z": "new"})
			put(t, dest, map[string]string{"a": "old"})
			r := uploaded(t, src, dest)
			if err := tc.prepare(src, dest, &r); err != nil {
				t.Fatal(err)
			}
			if got := deliver(t, os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != tc.want {
				t.Errorf("word %q, want %q", got.Word, tc.want)
			}
			if got := contents(t, dest)["a"]; got != "old" {
				t.Errorf("a is %q, want the earlier content", got)
			}
			if _, err := os.Lstat(filepath.Join(dest, "z")); err == nil {
				t.Error("something was published")
			}
			if _, err := os.Lstat(filepath.Join(dest, r.Scratch)); err == nil {
				t.Error("the scratch directory is left")
			}
		})
	}
}

// aliased makes a workspace with a lease's own directory, and returns it and other names, of it and of the directory above it.
func aliased(t testing.TB) (ws, alias, above string) {
	t.Helper()
	base := t.TempDir()
	ws, alias, above = filepath.Join(base, "it's *\n[u]", "ws"), filepath.Join(base, "alias"), filepath.Join(base, "above")
	put(t, ws, map[string]string{".leasehold/lease.json": "mine", "kept": "kept"})
	if err := errors.Join(os.Symlink(ws, alias), os.Symlink(filepath.Dir(ws), above)); err != nil {
		t.Fatal(err)
	}
	return ws, alias, above
}

// What would reach the lease's own directory by another name of what it lies in is refused before anything is published, and
// nothing else is.
func TestImportScriptProtectsTheLeasesDirectory(t *testing.T) {
	const remove = "rm -f -- './.leasehold/lease.json' || exit 1\n"
	for _, kind := range append([]string{"zsh"}, sandboxes...) {
		path := userland(t, kind)
		for name, tc := range map[string]struct {
			alias, above      string // destination, below one of these
			entry             string
			bundle, gone, own string // own as the list of what is gone leaves it out
			want              Word
		}{
			"replaced":              {alias: ".", entry: ".leasehold/lease.json", want: WordReserved},
			"replaced by a file":    {alias: ".", entry: ".leasehold", want: WordReserved},
			"replaced from above":   {above: ".", entry: "ws/.leasehold/lease.json", want: WordReserved},
			"removed":               {alias: ".", entry: "x", gone: remove, want: WordReserved},
			"removed from above":    {above: ".", entry: "x", gone: remove, own: ".leasehold", want: WordReserved},
			"within a bundle":       {above: ".", entry: "x", bundle: "ws", want: WordReserved},
			"filled":                {alias: ".leasehold", entry: "lease.json", want: WordReserved},
			"filled further down":   {alias: ".leasehold/bundles", entry: "x", want: WordReserved},
			"a bundle in it":        {alias: ".leasehold", entry: "x", bundle: "b", want: WordReserved},
			"beside it":             {alias: ".", entry: "x", want: WordOK},
			"beside it, from above": {above: ".", entry: "ws/x", want: WordOK},
			"below the workspace":   {above: "ws/d", entry: ".leasehold", want: WordOK},
			"a bundle beside it":    {alias: ".", entry: "x", bundle: "b", want: WordOK},
			"left out of the list":  {alias: ".", entry: "x", gone: "rm -f -- './kept' || exit 1\n", own: ".leasehold", want: WordOK},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				ws, alias, above := aliased(t)
				dest := filepath.Join(alias, tc.alias)
				if tc.above != "" {
					dest = filepath.Join(above, tc.above)
				}
				src, before := t.TempDir(), contents(t, ws)
				put(t, src, map[string]string{tc.entry: "forged"})
				opt := WriteOptions{}
				if tc.bundle != "" {
					opt.Prefix = tc.bundle + "/"
				}
				r := uploadedWith(t, src, dest, opt)
				r.Own, r.Bundle, r.Marker = filepath.Join(ws, ".leasehold"), tc.bundle, filepath.Join(ws, ".leasehold", "bundles", "x")
				r.Stages[0].Gone, r.Stages[0].Spared = int64(len(tc.gone)), tc.own
				put(t, filepath.Dir(upload(r)), map[string]string{"gone": tc.gone})
				got := deliver(t, path, r.Script(), r.Scratch)
				if got.Word != tc.want || tc.want == WordReserved && filepath.Clean(got.Name) != filepath.Join(dest, tc.bundle) {
					t.Errorf("word %q of %q, want %q", got.Word, got.Name, tc.want)
				}
				after := contents(t, ws)
				if tc.want == WordReserved {
					if diff := cmp.Diff(before, after); diff != "" {
						t.Errorf("workspace mismatch (-want +got):\n%s", diff)
					}
				} else if body, _ := os.ReadFile(filepath.Join(dest, tc.bundle, tc.entry)); string(body) != "forged" || after[".leasehold/lease.json"] != "mine" {
					t.Errorf("%q was published, beside %q", body, after)
				}
			})
		}
	}
}

// What the modes of an upload hide from the sandbox's user is found all the same.
func TestImportScriptProtectsTheLeasesDirectoryFromShutOnes(t *testing.T) {
	ws, _, above := aliased(t)
	data := tarball(t, entry{kind: '5', name: "ws/", mode: 0o200}, entry{name: "ws/.leasehold/lease.json", body: "forged"})
	r := RemoteImport{Scratch: StageName(), Own: filepath.Join(ws, ".leasehold"), Stages: []RemoteStage{{Dir: above, Bytes: int64(len(data))}}}
	put(t, filepath.Dir(upload(r)), map[string]string{RemoteArchive: string(data)})
	var user *syscall.SysProcAttr // from whom a mode can hide something
	if os.Geteuid() == 0 {
		user = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := exec.Command("sh", "-c", `chmod 755 "$1" && chown -R 65534:65534 "$1"`, "sh", filepath.Dir(filepath.Dir(above))).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if got := deliverAs(t, user, os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != WordReserved {
		t.Errorf("word %q, want reserved", got.Word)
	}
	if diff := cmp.Diff(map[string]string{".leasehold/lease.json": "mine", "kept": "kept"}, contents(t, ws)); diff != "" {
		t.Errorf("workspace mismatch (-want +got):\n%s", diff)
	}
}

// Two deliveries at once: one works, neither reports a failure, the result is whole.
func TestImportScriptBearsConcurrentDeliveries(t *testing.T) {
	for range 2 {
		src, dest := t.TempDir(), t.TempDir()
		oddTree(t, src)
		r := uploaded(t, src, dest)
		var words [2]Word
		var wg sync.WaitGroup
		for i := range words {
			wg.Go(func() { words[i] = deliver(t, os.Getenv("PATH"), r.Script(), r.Scratch).Word })
		}
		wg.Wait()
		t.Cleanup(func() { removeAll(t, dest) })
		if !(words[0] == WordOK && words[1] == WordGone || words[0] == WordGone && words[1] == WordOK) {
			t.Errorf("words %q, want one ok and one gone", words)
		}
		if diff := cmp.Diff(len(describe(t, src)), len(describe(t, dest))); diff != "" {
			t.Errorf("number of entries mismatch (-want +got):\n%s", diff)
		}
	}
}

// A delivery that comes while the other one removes its scratch has come too late.
func TestImportScriptBearsADeliveryAtItsEnd(t *testing.T) {
	bin, src, dest := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, src, map[string]string{"a": "new"})
	r := uploaded(t, src, dest)
	late := filepath.Join(bin, "late")
	if err := os.WriteFile(late, []byte(r.Script()), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, bin, "rm", `for s; do :; done
if [ "$1" = -rf ] && [ -d "$s/run" ]; then
REAL -rf "$s/run"
PATH=`+script.Quote(os.Getenv("PATH"))+` sh <`+late+` >`+late+`.out
fi
exec REAL "$@"`)
	if got := deliver(t, bin+":"+os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != WordOK {
		t.Errorf("the first says %q, want ok", got.Word)
	}
	output, err := os.ReadFile(late + ".out")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ParseReply(string(output), r.Scratch); got.Word != WordGone {
		t.Errorf("the late one says %q, want gone", got.Word)
	}
	if diff := cmp.Diff(map[string]string{"a": "new"}, contents(t, dest)); diff != "" {
		t.Errorf("destination mismatch (-want +got):\n%s", diff)
	}
}

// tool puts a script in the place of a program; REAL in its text stands for the program.
func tool(t testing.TB, bin, name, text string) {
	t.Helper()
	text = "#!/bin/sh\n" + strings.ReplaceAll(text, "REAL", needTool(t, name)) + "\n"
	if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A cleanup that comes while the tree is published waits, however long that takes.
func TestF2CleanupLetsPublishingEnd(t *testing.T) {
	bin, src, dest := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, src, map[string]string{"a": "new", "d/b": "new"})
	put(t, dest, map[string]string{"d/c": "old"})
	r := uploaded(t, src, dest)
	scratch := Stage(dest, r.Scratch, 0)
	// The names are given only after the cleanup has waited ten times, or has removed them.
	tool(t, bin, "sleep", `echo >>`+bin+`/slept; exec REAL 0.01`)
	tool(t, bin, "mv", `case "$1 $2" in "-f --")
echo >`+bin+`/publishing
while [ "$(wc -l 2>/dev/null <`+bin+`/slept)" -lt 10 ] && [ -d `+scratch+`/new ]; do `+needTool(t, "sleep")+` 0.01; done
esac
exec REAL "$@"`)
	if err := os.WriteFile(bin+"/slept", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := bin + ":" + os.Getenv("PATH")
	published := make(chan Reply)
	go func() { published <- deliver(t, path, r.Script(), r.Scratch) }()
	eventually(t, "publishing", func() bool {
		_, err := os.Lstat(bin + "/publishing")
		return err == nil
	})
	if got := deliver(t, path, RemoteCleanup(scratch, 0), scratch); got.Word != WordOK {
		t.Errorf("cleanup says %q, want ok", got.Word)
	}
	if got := <-published; got.Word != WordOK {
		t.Errorf("word %q, want ok", got.Word)
	}
	if diff := cmp.Diff(map[string]string{"a": "new", "d/b": "new", "d/c": "old"}, contents(t, dest)); diff != "" {
		t.Errorf("destination mismatch (-want +got):\n%s", diff)
	}
}

// A number that another process has got by now does not keep a cleanup for ever.
func TestCleanupDoesNotWaitForAStranger(t *testing.T) {
	bin, top := t.TempDir(), filepath.Join(t.TempDir(), StageName())
	tool(t, bin, "sleep", "exit 0")
	put(t, top, map[string]string{"gate/x": "", "run/pid": fmt.Sprint(os.Getpid())})
	if got := deliver(t, bin+":"+os.Getenv("PATH"), RemoteCleanup(top, 0), top); got.Word != WordOK {
		t.Errorf("cleanup says %q, want ok", got.Word)
	}
	if _, err := os.Lstat(top); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Lstat() = %v, want that nothing is left", err)
	}
}

// An import gives its scratch another name before it removes it. That is work, and is not left behind either.
func TestScratchThatIsBeingRemovedCounts(t *testing.T) {
	top := filepath.Join(t.TempDir(), StageName())
	put(t, top+"-gone", map[string]string{"old/a": strings.Repeat("x", 100_000)})
	got := deliver(t, os.Getenv("PATH"), RemoteProbe(filepath.Base(top), []string{top}), filepath.Base(top))
	if got.Word != WordOK || got.Bytes == 0 {
		t.Errorf("the probe says %q, %d, want that there is something", got.Word, got.Bytes)
	}
	if got := deliver(t, os.Getenv("PATH"), RemoteCleanup(top, 0), top); got.Word != WordOK {
		t.Errorf("cleanup says %q, want ok", got.Word)
	}
	if _, err := os.Lstat(top + "-gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Lstat() = %v, want that nothing is left", err)
	}
}

func TestImportScriptRecordsDirectories(t *testing.T) {
	src, dest := t.TempDir(), t.TempDir()
	put(t, src, map[string]string{"a": "new"})
	r := uploaded(t, src, dest)
	for i := range 40 { // more than one argument may have
		r.Record = append(r.Record, fmt.Sprintf(`"/%d/%s"`, i, strings.Repeat("it's $x ", 500)))
	}
	list := filepath.Join(r.Own, Writable)
	put(t, r.Own, map[string]string{Writable: r.Record[3] + "\n"})
	if got := deliver(t, os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != WordOK {
		t.Fatalf("word %q, want ok", got.Word)
	}
	data, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range r.Record {
		if n := strings.Count("\n"+string(data), "\n"+line+"\n"); n != 1 {
			t.Errorf("%.20s is recorded %d times, want once", line, n)
		}
	}
	// A list that cannot be written, with room enough.
	if err := errors.Join(os.Remove(list), os.Mkdir(list, 0o700)); err != nil {
		t.Fatal(err)
	}
	again := uploaded(t, src, dest)
	again.Record = r.Record[:1]
	if got := deliver(t, os.Getenv("PATH"), again.Script(), again.Scratch); got.Word != WordScratch {
		t.Errorf("word %q, want scratch", got.Word)
	}
	onlyEntries(t, r.Own, Writable)
	onlyEntries(t, dest, ".leasehold", "a")
}

// A disk of 1 MiB: neither side may publish anything, and both say why.
func TestScriptsSayThatTheDiskIsFull(t *testing.T) {
	disk := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "leasehold", disk).CombinedOutput(); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatalf("no tmpfs can be mounted: %s", out)
		}
		t.Skip("no tmpfs can be mounted: needs root")
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
	src := t.TempDir()
	put(t, src, map[string]string{"a": "small", "b": strings.Repeat("x", 800<<10)})
	r := uploaded(t, src, disk) // fits once, but not twice
	if got := deliver(t, os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != WordNoSpace {
		t.Errorf("import says %q, want nospace", got.Word)
	}
	onlyEntries(t, disk)
	put(t, src, map[string]string{"c": strings.Repeat("x", 800<<10)})
	x := RemoteExport{Scratch: filepath.Join(disk, "own", StageName()), Dir: src}
	if got := deliver(t, os.Getenv("PATH"), x.Make(), x.Scratch); got.Word != WordNoSpace {
		t.Errorf("export says %q, want nospace", got.Word)
	}
	onlyEntries(t, filepath.Join(disk, "own"))
}

func TestMissingTarIsNamed(t *testing.T) {
	bin := t.TempDir()
	for _, name := range strings.Fields("sh find mv rm dd grep wc mkdir mkfifo cksum cat chmod sleep") {
		if err := os.Symlink(needTool(t, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	src, dest := t.TempDir(), t.TempDir()
	r := uploaded(t, src, dest)
	if got := deliver(t, bin, r.Script(), r.Scratch); got.Word != WordNoTar {
		t.Errorf("import says %q, want notar", got.Word)
	}
	x := RemoteExport{Scratch: filepath.Join(dest, StageName()), Dir: src}
	if got := deliver(t, bin, x.Make(), x.Scratch); got.Word != WordNoTar {
		t.Errorf("export says %q, want notar", got.Word)
	}
	onlyEntries(t, dest)
}
