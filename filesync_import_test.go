//go:build unix

package leasehold

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestImportOfAFileSystem(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := sampleTree(t)
	at := time.Unix(1_000_000_000, 0)
	_, err := l.Importer().FS(t.Context(), os.DirFS(local), "dirfs", ImportOptions{})
	if e := wantError(t, err, KindIO); !strings.Contains(e.Error(), `"invalid \xff"`) { // an fs.FS has no such names
		t.Errorf("%q does not name the file", e.Error())
	}
	if err := os.Remove(filepath.Join(local, "invalid \xff")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Importer().FS(t.Context(), os.DirFS(local), "dirfs", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, local, filepath.Join(l.Ref().Workspace, "dirfs"))

	memory := fstest.MapFS{"d/f": {Data: []byte("x"), Mode: 0o640, ModTime: at}, "e": {Mode: fs.ModeDir | 0o750}}
	result, err := l.Importer().FS(t.Context(), memory, "memory", ImportOptions{})
	if err != nil || result.Entries != 3 || result.Bytes != 1 {
		t.Fatalf("%+v, %v, want 3 entries of 1 byte", result, err)
	}
	want := map[string]string{"d": "dr-xr-xr-x", "d/f": "-rw-r----- x", "e": "drwxr-x---"}
	if diff := cmp.Diff(want, tree(t, filepath.Join(l.Ref().Workspace, "memory"))); diff != "" {
		t.Errorf("tree mismatch (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(filepath.Join(l.Ref().Workspace, "memory/d/f")); err != nil || !fi.ModTime().Equal(at) {
		t.Errorf("time %v, %v, want %v", fi.ModTime(), err, at)
	}
	wantNoScratch(t, l)
}

func TestImportOfManyFilesIsOneUpload(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	disk := filepath.Join(t.TempDir(), "another file system")
	tinyDisk(t, disk, "20m")
	writeFiles(t, local, map[string]string{"a": "A", "b": "B", "large": ""})
	if err := errors.Join(os.Truncate(filepath.Join(local, "large"), 9<<20), os.Chmod(filepath.Join(local, "b"), 0o751),
		os.MkdirAll(filepath.Join(ws, "real"), 0o755), os.Symlink("real", filepath.Join(ws, "link"))); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(local, name) }
	r.server.ResetRequests()
	result, err := l.Importer().Files(t.Context(), []FileMapping{
		{file("a"), "x/one", 0}, {file("a"), "x/-two", 0o600}, {file("b"), "y/z/b", 0}, {file("b"), "link/b", 0}, {file("a"), "real/a", 0},
		{file("large"), disk + "/large", 0}, {file("a"), disk + "/a'\n", 0},
	}, ImportOptions{Mode: 0o644})
	if err != nil || result.Entries != 7 || result.Bytes != 9<<20+6 {
		t.Fatalf("%+v, %v, want 7 entries", result, err)
	}
	r.wantRequests(t, "POST /toolbox/*/files/bulk-upload", "POST /toolbox/*/process/execute")
	want := map[string]string{
		"x": "drwxr-xr-x", "x/one": "-rw-r--r-- A", "x/-two": "-rw------- A", "y": "drwxr-xr-x", "y/z": "drwxr-xr-x", "y/z/b": "-rw-r--r-- B",
		"link": "-> real", "real": "drwxr-xr-x", "real/b": "-rw-r--r-- B", "real/a": "-rw-r--r-- A",
	}
	if diff := cmp.Diff(want, tree(t, ws)); diff != "" {
		t.Errorf("workspace mismatch (-want +got):\n%s", diff)
	}
	want = map[string]string{"large": "-rw-r--r-- 9437184 bytes", "a'\n": "-rw-r--r-- A"}
	if diff := cmp.Diff(want, tree(t, disk)); diff != "" {
		t.Errorf("disk mismatch (-want +got):\n%s", diff)
	}

	// One of them is in conflict, or cannot be read: none of them is put in its place.
	before := tree(t, ws)
	for name, tc := range map[string]struct {
		last FileMapping
		want Kind
	}{
		"conflict": {FileMapping{file("a"), "y/z", 0}, KindConflict},
		"missing":  {FileMapping{file("missing"), "z", 0}, KindIO},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := l.Importer().Files(t.Context(), []FileMapping{{file("b"), "x/one", 0}, tc.last}, ImportOptions{})
			wantError(t, err, tc.want)
			if diff := cmp.Diff(before, tree(t, ws)); diff != "" {
				t.Errorf("workspace mismatch (-before +after):\n%s", diff)
			}
		})
	}
	wantNoScratch(t, l, disk, ws+"/x", ws+"/y", ws+"/y/z", ws+"/real")
	if result, err := l.Importer().Files(t.Context(), nil, ImportOptions{}); err != nil || result.Entries != 0 {
		t.Errorf("no files: %+v, %v", result, err)
	}
}

// pack makes a tar stream.
func pack(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		body := h.PAXRecords["body"]
		h.PAXRecords, h.Size = nil, int64(len(body))
		if err := errors.Join(w.WriteHeader(&h), func() error { _, err := io.WriteString(w, body); return err }()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, body string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, PAXRecords: map[string]string{"body": body}}
}
func symlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}
func hardLink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}
func folder(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}

func TestF1ImportOfAStreamRefusesEscapes(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws := l.Ref().Workspace
	outside := filepath.Join(filepath.Dir(ws), "outside")
	writeFiles(t, ws, map[string]string{"earlier": "kept"})
	before := tree(t, filepath.Dir(ws))
	for name, headers := range map[string][]tar.Header{
		"absolute":                       {file(outside, "x")},
		"dot-dot":                        {file("../outside", "x")},
		"dot-dot inside":                 {file("a/../../outside", "x")},
		"symlink, then write through it": {symlink("l", "."), file("l/x", "x")},
		"symlink out of the tree":        {symlink("l", "../outside")},
		"absolute symlink":               {symlink("l", outside)},
		"symlink chain":                  {folder("d/", 0o755), symlink("d/up", ".."), symlink("d/up/up", "..")},
		"hard link outside":              {hardLink("h", "../outside")},
		"hard link to a link":            {symlink("l", "f"), hardLink("h", "l"), file("f", "x")},
		"hard link to what is there":     {hardLink("h", "earlier")},
		"dangling directory link":        {symlink("d", "nowhere"), file("d/x", "x")},
		"link swapped during extraction": {folder("d/", 0o755), file("d/f", "x"), symlink("d", "..")},
		"directory over a link":          {symlink("d", "e"), folder("d/", 0o755)},
		"file as a directory":            {file("f", "x"), file("f/x", "x")},
		"empty name":                     {file("", "x")},
		"dot name":                       {file(".", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			headers = append([]tar.Header{file("first", "x")}, headers...)
			_, err := l.Importer().Tar(t.Context(), bytes.NewReader(pack(t, headers...)), "", ImportOptions{})
			if e := wantError(t, err, KindUnsafe); e.Retryable {
				t.Error("the error says that the same call may succeed later")
			}
			if diff := cmp.Diff(before, tree(t, filepath.Dir(ws))); diff != "" {
				t.Errorf("sandbox mismatch (-before +after):\n%s", diff)
			}
			wantNoScratch(t, l)
		})
	}
}

func TestImportOfAStream(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws := l.Ref().Workspace
	in := func(stream io.Reader, dest string, o ImportOptions) (TransferResult, error) {
		t.Helper()
		return l.Importer().Tar(t.Context(), stream, dest, o)
	}
	t.Run("what tar writes", func(t *testing.T) {
		local := sampleTree(t)
		if err := os.Link(filepath.Join(local, "go.mod"), filepath.Join(local, "zz")); err != nil {
			t.Fatal(err)
		}
		data, err := exec.Command("tar", "-c", "-f", "-", "-C", local, ".").Output()
		if err != nil {
			t.Fatal(err)
		}
		r.server.ResetRequests()
		result, err := in(bytes.NewReader(data), "whole", ImportOptions{})
		if err != nil || result.Entries == 0 {
			t.Fatalf("%+v, %v", result, err)
		}
		r.wantRequests(t, "POST /toolbox/*/files/bulk-upload", "POST /toolbox/*/process/execute")
		wantTree(t, local, filepath.Join(ws, "whole"))
		a, err1 := os.Stat(filepath.Join(ws, "whole/go.mod"))
		b, err2 := os.Stat(filepath.Join(ws, "whole/zz"))
		if err1 != nil || err2 != nil || !os.SameFile(a, b) {
			t.Errorf("a hard link became two files (%v, %v)", err1, err2)
		}
		for _, cut := range []int{0, 1, 511, 512, 513, len(data) / 2, bytes.LastIndexFunc(data, func(r rune) bool { return r != 0 }) + 1} {
			_, err := in(bytes.NewReader(data[:cut]), "cut", ImportOptions{})
			wantError(t, err, KindIO)
			if got, err := os.ReadDir(filepath.Join(ws, "cut")); len(got) > 0 {
				t.Errorf("a stream cut after %d bytes left %v, %v", cut, got, err)
			}
		}
		broken := errors.New("the caller's own")
		_, err = in(io.MultiReader(bytes.NewReader(data[:2000]), failingReader{broken}), "cut", ImportOptions{})
		if wantError(t, err, KindIO); !errors.Is(err, broken) {
			t.Errorf("%v does not hold the reader's error", err)
		}
	})
	t.Run("modes, parents, duplicates, exclusions, devices and own names", func(t *testing.T) {
		result, err := in(bytes.NewReader(pack(t, folder("./", 0o700), file("missing/parent/f", "1"), file("f", "old"), file("f", "new"),
			tar.Header{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o6755}, tar.Header{Name: "null", Typeflag: tar.TypeChar},
			tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, file("skip.o", "x"), file(".leasehold-xfer-modes", "exit 1"), folder("sealed/", 0o555), file("sealed/f", "s"),
			symlink("ok", "f"), hardLink("hard", "f"), symlink("abs", "/usr/bin/env"))), "odd", ImportOptions{Exclude: []string{"*.o"}, UnsafeLinks: LinksKeepAbsolute})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"missing": "drwxr-xr-x", "missing/parent": "drwxr-xr-x", "missing/parent/f": "-rw-r--r-- 1", "f": "-rw-r--r-- new", "suid": "-rwxr-xr-x ",
			"sealed": "dr-xr-xr-x", "sealed/f": "-rw-r--r-- s", "ok": "-> f", "hard": "-rw-r--r-- new", "abs": "-> /usr/bin/env",
		}
		if diff := cmp.Diff(want, tree(t, filepath.Join(ws, "odd"))); diff != "" {
			t.Errorf("tree mismatch (-want +got):\n%s", diff)
		}
		if fi, err := os.Stat(filepath.Join(ws, "odd")); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("mode of the root %v, %v, want it untouched", fi.Mode(), err)
		}
		skipped := []SkippedEntry{{"null", "device"}, {"fifo", "fifo"}, {".leasehold-xfer-modes", "reserved name"}}
		if diff := cmp.Diff(skipped, result.Skipped); diff != "" {
			t.Errorf("skipped mismatch (-want +got):\n%s", diff)
		}
	})
	t.Run("unsafe links left out", func(t *testing.T) {
		result, err := in(bytes.NewReader(pack(t, symlink("l", "/etc/passwd"), hardLink("h", "/etc/passwd"), file("f", "x"))), "omit", ImportOptions{UnsafeLinks: LinksOmit})
		if err != nil || result.SkippedCount != 2 || result.Entries != 1 {
			t.Errorf("%+v, %v, want 1 entry and 2 skipped links", result, err)
		}
	})
	wantNoScratch(t, l, ws+"/cut", ws+"/odd")
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestImportFollowsLinks(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := t.TempDir()
	writeFiles(t, local, map[string]string{"tree/d/f": "in", "common/skill/s": "out", "common/big": "", "tree/x.tmp": "x"})
	if err := os.Truncate(filepath.Join(local, "common/big"), 9<<20); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(local, "tree")
	link := func(name, target string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(src, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("file", "d/f")
	link("dir", "../common/skill")
	link("d/big", "../../common/big")
	link("gone.tmp", "nowhere")
	o := ImportOptions{FollowLinks: true, Exclude: []string{"*.tmp"}}
	if _, err := l.Importer().Dir(t.Context(), src, "", o); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"d": "drwxr-xr-x", "d/f": "-rw-r--r-- in", "d/big": "-rw-r--r-- 9437184 bytes", "file": "-rw-r--r-- in", "dir": "drwxr-xr-x", "dir/s": "-rw-r--r-- out"}
	if diff := cmp.Diff(want, tree(t, l.Ref().Workspace)); diff != "" {
		t.Errorf("tree mismatch (-want +got):\n%s", diff)
	}
	for name, target := range map[string]string{"loop": ".", "up": "../tree", "dangling": "nowhere"} {
		link(name, target)
		_, err := l.Importer().Dir(t.Context(), src, "", o)
		if e := wantError(t, err, KindIO); !strings.Contains(e.Error(), name) {
			t.Errorf("%q does not name %s", e.Error(), name)
		}
		if err := os.Remove(filepath.Join(src, name)); err != nil {
			t.Fatal(err)
		}
	}
	wantNoScratch(t, l)
}

func TestCommandsAfterAnImport(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	writeFiles(t, local, map[string]string{"f": "x"})
	o := ImportOptions{After: []Command{{Args: []string{"cp", "f", "copy"}, Dir: "d"}, {Script: "cat copy f >both", Dir: "d"}}}
	if _, err := l.Importer().Dir(t.Context(), local, "d", o); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(ws, "d/both")); err != nil || string(data) != "xx" {
		t.Errorf("%q, %v, want what the second command wrote", data, err)
	}
	for name, tc := range map[string]struct {
		cmd  Command
		kind Kind
		exit int
	}{
		"exit code": {Command{Script: "echo out; exit 7"}, KindRefused, 7},
		"too long":  {Command{Script: "sleep 60", Timeout: 5 * time.Second}, KindTimeout, -1},
	} {
		t.Run(name, func(t *testing.T) {
			o := ImportOptions{After: []Command{{Script: ":"}, tc.cmd, {Script: "touch never"}}}
			result, err := l.Importer().Dir(t.Context(), local, name, o)
			e := wantError(t, err, tc.kind)
			var after *AfterError
			if !errors.As(err, &after) || after.Index != 1 || (tc.exit > 0 && after.Result.ExitCode != tc.exit) {
				t.Fatalf("%v holds %+v, want the second command, with exit code %d", err, after, tc.exit)
			}
			if e.Op != "import directory" || e.Retryable || e.Dispatched != DispatchedYes || result.Entries != 1 {
				t.Errorf("%+v, %+v, want the result of a finished import", e, result)
			}
			if _, err := os.Stat(filepath.Join(ws, name, "f")); err != nil {
				t.Errorf("the file did not stay: %v", err)
			}
			if _, err := os.Stat(filepath.Join(ws, "never")); err == nil {
				t.Error("a later command ran")
			}
		})
	}
	// The command was never sent, but the import has been done.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := l.Importer().Dir(ctx, local, "canceled", ImportOptions{After: []Command{{Script: "touch never"}}, Progress: func(p Progress) {
		if p.Done {
			cancel()
		}
	}})
	if e := wantError(t, err, KindCanceled); e.Dispatched != DispatchedYes || e.Retryable {
		t.Errorf("%+v, want an error that says that something was done", e)
	}
	if _, err := os.Stat(filepath.Join(ws, "canceled", "f")); err != nil {
		t.Errorf("the file did not stay: %v", err)
	}
	r.server.ResetRequests()
	_, err = l.Importer().Dir(t.Context(), local, "d", ImportOptions{After: []Command{{}}})
	wantError(t, err, KindInvalid)
	r.wantRequests(t)
}

func TestReadWriteDestinationsAreRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	writeFiles(t, local, map[string]string{"f": "x"})
	outside := t.TempDir()
	dirs := func(want ...string) {
		t.Helper()
		got, err := l.WritableDirs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]string{ws}, want...), got); diff != "" {
			t.Errorf("writable directories mismatch (-want +got):\n%s", diff)
		}
	}
	dirs()
	in := func(dest string, access Access) {
		t.Helper()
		if _, err := l.Importer().Dir(t.Context(), local, dest, ImportOptions{Access: access}); err != nil {
			t.Fatal(err)
		}
	}
	odd := outside + "/odd\n\\'\"é"
	in(outside+"/plain", AccessDefault)
	in(outside+"/a/b", AccessReadWrite)
	in(outside+"/a/b", AccessReadWrite)
	in("inside", AccessReadWrite)
	in(odd, AccessReadWrite)
	if _, err := l.Importer().Dir(t.Context(), local, "staged", ImportOptions{Access: AccessReadWrite, Writable: outside + "/final"}); err != nil {
		t.Fatal(err)
	}
	in(outside+"/a.b", AccessReadWrite)
	if _, err := l.Importer().Files(t.Context(), []FileMapping{{local + "/f", outside + "/of/f", 0}, {local + "/f", outside + "/files/f", 0}}, ImportOptions{Access: AccessReadWrite}); err != nil {
		t.Fatal(err)
	}
	result, err := l.Importer().Dir(t.Context(), local, outside+"/plain", ImportOptions{Access: AccessReadWrite, Delta: DeltaTimes})
	if err != nil || result.Entries != 0 || result.Unchanged != 1 {
		t.Fatalf("%+v, %v, want nothing to send", result, err)
	}
	dirs(outside+"/a.b", outside+"/a/b", outside+"/files", outside+"/final", odd, outside+"/of", outside+"/plain")
	in(outside+"/a", AccessReadWrite)
	dirs(outside+"/a", outside+"/a.b", outside+"/files", outside+"/final", odd, outside+"/of", outside+"/plain")
	data, err := os.ReadFile(filepath.Join(ws, sentinelDir, "writable"))
	if err != nil || strings.Count(string(data), "a/b") != 1 {
		t.Errorf("%q, %v, want each directory once", data, err)
	}

	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	if l, err = r.Resume(t.Context(), l.Ref()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ws, sentinelDir, "writable"), append(data, "\n\"/cut off\n\"relative\"\n\"/x/../y\"\n\"/last\""...), 0o600); err != nil {
		t.Fatal(err)
	}
	dirs("/last", outside+"/a", outside+"/a.b", outside+"/files", outside+"/final", odd, outside+"/of", outside+"/plain")
}

func TestDeltaSendsWhatChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	writeFiles(t, local, map[string]string{"same": "same", "d/changed": "old", "d/sub/f": "x", "-rf": "x", "line\nbreak": "x", "invalid \xff": "x", "large": "x", "zz": "x"})
	if err := errors.Join(os.Truncate(filepath.Join(local, "large"), 9<<20), os.Link(filepath.Join(local, "zz"), filepath.Join(local, "zz2")),
		os.Mkdir(filepath.Join(local, "empty"), 0o755)); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(ws, "dest")
	in := func(o ImportOptions) TransferResult {
		t.Helper()
		r.server.ResetRequests()
		result, err := l.Importer().Dir(t.Context(), local, "dest", o)
		if err != nil {
			t.Fatal(err)
		}
		wantTree(t, local, dest)
		wantNoScratch(t, l, dest)
		return result
	}
	for _, delta := range []Delta{DeltaTimes, DeltaDigests} {
		t.Run(string(delta), func(t *testing.T) {
			if err := os.RemoveAll(dest); err != nil {
				t.Fatal(err)
			}
			if result := in(ImportOptions{Delta: delta}); result.Entries != 12 || result.Unchanged != 0 { // nothing is there
				t.Errorf("%+v, want 12 entries", result)
			}
			// All but the file with two names.
			if result := in(ImportOptions{Delta: delta}); result.Entries != 2 || result.Unchanged != 10 || result.Bytes != 1 {
				t.Errorf("%+v, want 2 entries sent", result)
			}
			if err := os.WriteFile(filepath.Join(local, "d/changed"), []byte(delta), 0o644); err != nil {
				t.Fatal(err)
			}
			var last Progress
			result := in(ImportOptions{Delta: delta, Progress: func(p Progress) { last = p }})
			if result.Entries != 3 || result.Unchanged != 9 || result.Bytes != int64(len(delta))+1 || last.TotalEntries != 3 {
				t.Errorf("%+v, progress %+v, want 3 entries sent", result, last)
			}
		})
	}

	// The same size and time, and another content: times cannot tell, digests do.
	same := filepath.Join(local, "same")
	fi, err := os.Stat(same)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(same, []byte("SAME"), 0o644), os.Chtimes(same, fi.ModTime(), fi.ModTime())); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Importer().Dir(t.Context(), local, "dest", ImportOptions{Delta: DeltaTimes}); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(filepath.Join(dest, "same")); string(data) != "same" {
		t.Errorf("%q was sent although its time says that it is the same", data)
	}
	in(ImportOptions{Delta: DeltaDigests})

	// Without anything to send there is no upload. What the source does not have goes, but for what is excluded.
	if err := errors.Join(os.Remove(filepath.Join(local, "zz")), os.Remove(filepath.Join(local, "zz2"))); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dest, map[string]string{"gone/a/b": "x", "gone/c": "x", "keep/cache.o": "x", "-n\n'": "x", "invalid \xfe": "x"})
	if err := os.Symlink("/etc", filepath.Join(dest, "l")); err != nil {
		t.Fatal(err)
	}
	for _, removed := range []int64{9, 0} {
		r.server.ResetRequests()
		result, err := l.Importer().Dir(t.Context(), local, "dest", ImportOptions{Delta: DeltaTimes, Delete: true, Exclude: []string{"*.o"}})
		if err != nil {
			t.Fatal(err)
		}
		if result.Removed != removed {
			t.Errorf("%+v, want %d entries removed", result, removed)
		}
	}
	r.wantRequests(t, "POST /toolbox/*/process/execute", "GET /toolbox/*/files/download", "POST /toolbox/*/process/execute")
	want := tree(t, local)
	want["keep"], want["keep/cache.o"] = "drwxr-xr-x", "-rw-r--r-- x"
	if diff := cmp.Diff(want, tree(t, dest)); diff != "" {
		t.Errorf("tree mismatch (-want +got):\n%s", diff)
	}
	if result := in(ImportOptions{Delta: DeltaTimes, Delete: true}); result.Removed != 2 || result.Entries != 0 {
		t.Errorf("%+v, want 2 entries removed", result)
	}
	if err := syscall.Mkfifo(filepath.Join(local, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := l.Importer().Dir(t.Context(), local, "dest", ImportOptions{Delta: DeltaTimes})
	if err != nil || result.Entries != 0 || !slices.Equal(result.Skipped, []SkippedEntry{{"fifo", "fifo"}}) || result.SkippedCount != 1 {
		t.Errorf("%+v, %v, want nothing sent, and what was left out", result, err)
	}
	if err := os.Remove(filepath.Join(local, "fifo")); err != nil {
		t.Fatal(err)
	}
	if result := in(ImportOptions{Delta: DeltaTimes, Delete: true}); result.Removed != 0 || result.Unchanged != 10 {
		t.Errorf("%+v, want nothing sent or removed", result)
	}
	r.wantRequests(t, "POST /toolbox/*/process/execute", "GET /toolbox/*/files/download", "POST /toolbox/*/process/execute")

	// The workspace itself: the lease's own directory stays.
	if _, err := l.Importer().Dir(t.Context(), local, "", ImportOptions{Delta: DeltaTimes, Delete: true}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, local, ws)
	if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
		t.Errorf("the lease's sentinel did not survive: %v", err)
	}
}

// A file system that knows no times, as an embed.FS does, is the same the next time. Its large files are of 1970, as the small ones.
func TestDeltaOfAFileSystemWithoutTimes(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	fsys := fstest.MapFS{"small": {Data: []byte("x"), Mode: 0o444}, "large": {Data: make([]byte, archive.LargeFile), Mode: 0o444}}
	for _, entries := range []int64{2, 0} {
		result, err := l.Importer().FS(t.Context(), fsys, "d", ImportOptions{Delta: DeltaTimes})
		if err != nil || result.Entries != entries {
			t.Errorf("%+v, %v, want %d entries sent", result, err, entries)
		}
	}
	for name := range fsys {
		if fi, err := os.Stat(filepath.Join(l.Ref().Workspace, "d", name)); err != nil || fi.ModTime().Unix() != 0 {
			t.Errorf("%s is of %v, %v", name, fi.ModTime(), err)
		}
	}
}

func TestImportOptionsThatMakeNoSense(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l, err := rigProvider(t, r.server, Config{}).Bind(r.acquired(t).Ref()) // nothing is known of the sandbox yet
	if err != nil {
		t.Fatal(err)
	}
	local := sampleTree(t)
	r.server.ResetRequests()
	dir := func(o ImportOptions, remote ...string) error {
		_, err := l.Importer().Dir(t.Context(), local, strings.Join(append(remote, "d"), ""), o)
		return err
	}
	one := func(o ImportOptions) error {
		_, err := l.Importer().File(t.Context(), local+"/go.mod", "f", o)
		return err
	}
	stream := func(o ImportOptions) error {
		_, err := l.Importer().Tar(t.Context(), failingReader{io.EOF}, "d", o)
		return err
	}
	_, noStream := l.Importer().Tar(t.Context(), nil, "d", ImportOptions{})
	_, noFS := l.Importer().FS(t.Context(), nil, "d", ImportOptions{})
	many := func(remote ...string) error {
		var files []FileMapping
		for _, name := range remote {
			files = append(files, FileMapping{Local: local + "/go.mod", Remote: name})
		}
		_, err := l.Importer().Files(t.Context(), files, ImportOptions{})
		return err
	}
	for name, tc := range map[string]struct {
		err   error
		field string
	}{
		"access":                 {dir(ImportOptions{Access: "x"}), "ImportOptions.Access"},
		"delta":                  {dir(ImportOptions{Delta: "x"}), "ImportOptions.Delta"},
		"delete without a delta": {dir(ImportOptions{Delete: true}), "ImportOptions.Delete"},
		"policy":                 {stream(ImportOptions{UnsafeLinks: 9}), "ImportOptions.UnsafeLinks"},
		"policy for a directory": {dir(ImportOptions{UnsafeLinks: LinksOmit}), "ImportOptions.UnsafeLinks"},
		"mode of a directory":    {dir(ImportOptions{Mode: 0o600}), "ImportOptions.Mode"},
		"pattern":                {dir(ImportOptions{Exclude: []string{"["}}), "ImportOptions.Exclude"},
		"delta of a bundle":      {dir(ImportOptions{Access: AccessReadOnly, Delta: DeltaTimes}), "ImportOptions.Delta"},
		"writable by itself":     {dir(ImportOptions{Writable: "x"}), "ImportOptions.Writable"},
		"writable, too long":     {dir(ImportOptions{Access: AccessReadWrite, Writable: strings.Repeat("x/", 3000)}), "ImportOptions.Writable"},
		"writable own directory": {dir(ImportOptions{Access: AccessReadWrite, Writable: ".leasehold"}), "ImportOptions.Writable"},
		"exclude of a file":      {one(ImportOptions{Exclude: []string{"x"}}), "ImportOptions.Exclude"},
		"delta of a file":        {one(ImportOptions{Delta: DeltaTimes}), "ImportOptions.Delta"},
		"links of a file":        {one(ImportOptions{FollowLinks: true}), "ImportOptions.FollowLinks"},
		"policy of a file":       {one(ImportOptions{UnsafeLinks: LinksOmit}), "ImportOptions.UnsafeLinks"},
		"bundle of a file":       {one(ImportOptions{Access: AccessReadOnly}), "ImportOptions.Access"},
		"delta of a stream":      {stream(ImportOptions{Delta: DeltaTimes}), "ImportOptions.Delta"},
		"bundle of a stream":     {stream(ImportOptions{Access: AccessReadOnly}), "ImportOptions.Access"},
		"links of a stream":      {stream(ImportOptions{FollowLinks: true}), "ImportOptions.FollowLinks"},
		"no stream":              {noStream, "stream"},
		"no file system":         {noFS, "fsys"},
		"mode of a stream":       {stream(ImportOptions{Mode: 0o600}), "ImportOptions.Mode"},
		"twice the same":         {many("a", "x/../a"), "FileMapping.Remote"},
		"one in another":         {many("a/b/c", "a"), "FileMapping.Remote"},
		"own scratch":            {many(".leasehold-xfer-modes"), "FileMapping.Remote"},
	} {
		t.Run(name, func(t *testing.T) {
			if e := wantError(t, tc.err, KindInvalid); len(e.Fields) != 1 || e.Fields[0].Field != tc.field || e.Dispatched != DispatchedNo {
				t.Errorf("got %+v, want the field %s", e, tc.field)
			}
		})
	}
	for want, err := range map[string]error{
		"remoteDir ImportOptions.UnsafeLinks ImportOptions.Mode ImportOptions.Delete ImportOptions.After[1]": dir(ImportOptions{
			UnsafeLinks: LinksOmit, Mode: 0o600, Delete: true, After: []Command{{Script: "true"}, {}}}, "x\x00"),
		"ImportOptions.Exclude FileMapping.Local FileMapping.Remote FileMapping.Remote": func() error {
			files := []FileMapping{{Remote: "a"}, {Local: local, Remote: "a"}, {Local: local, Remote: "b/"}}
			_, err := l.Importer().Files(t.Context(), files, ImportOptions{Exclude: []string{"x"}})
			return err
		}(),
		"remoteDir ExportOptions.Exclude ExportOptions.MaxBytes ExportOptions.MaxDepth": func() error {
			_, err := l.Exporter().Dir(t.Context(), "\xff", local, ExportOptions{Exclude: []string{"["}, MaxBytes: -1, MaxDepth: -1})
			return err
		}(),
	} {
		if e := wantError(t, err, KindInvalid); fieldsOf(e) != want {
			t.Errorf("%v names %s, want %s", e, fieldsOf(e), want)
		}
	}
	r.wantRequests(t)
}

// blockedReader blocks until it is closed.
type blockedReader struct{ done chan struct{} }

func (r blockedReader) Read([]byte) (int, error) {
	<-r.done
	return 0, io.EOF
}

func TestF3StreamThatBlocksIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	for name, tc := range map[string]struct {
		stall time.Duration
		want  Kind
	}{"cancelled": {0, KindCanceled}, "stalled": {300 * time.Millisecond, KindTimeout}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			defer close(done)
			stream := io.MultiReader(bytes.NewReader(pack(t, file("f", "x"))[:1024]), readerFunc(func([]byte) (int, error) {
				if tc.stall == 0 {
					cancel()
				}
				return 0, io.EOF
			}), blockedReader{done})
			_, err := l.Importer().Tar(ctx, stream, "", ImportOptions{StallTimeout: tc.stall})
			wantError(t, err, tc.want)
			wantNoScratch(t, l)
			if got := tree(t, l.Ref().Workspace); len(got) > 0 {
				t.Errorf("the workspace holds %v", got)
			}
		})
	}
}
