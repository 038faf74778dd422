package conformance_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// unique returns a name in the sandbox that is this case's own.
func unique(what string) string { return what + "-" + uuid.NewString()[:8] }

// put writes a file of the host, with its parents.
func put(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600), os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
}

// describe describes a tree: for each path its type, mode, time in seconds, link target, names in the same file and content.
func describe(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	var files []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		line := info.Mode().String()
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			tree[rel] = "link to " + target
			return err
		case info.Mode().IsRegular():
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", info.ModTime().Unix(), sha256.Sum256(content))
			for _, other := range files {
				if before, err := os.Lstat(filepath.Join(root, other)); err == nil && os.SameFile(before, info) {
					line += " the same as " + other
				}
			}
			files = append(files, rel)
		}
		if rel != "." {
			tree[rel] = line
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// wantTree fails the test unless two trees of the host are the same.
func wantTree(t *testing.T, got, want string) {
	t.Helper()
	if diff := cmp.Diff(describe(t, want), describe(t, got)); diff != "" {
		t.Errorf("tree mismatch (-want +got):\n%s", diff)
	}
}

// oddNames are names of files that are hard to bear for what takes them apart.
var oddNames = []string{
	" ", "a b", " lead", "trail ", "-rf", "--", "*", "?", "[a]", "~", "$HOME", "`id`", "'", `"`, `\`, `\n`, "a\nb", "\t", "#", "%s", "é", "日本", "e\u0301", ".hidden", "...", "a:b", "a;b", "a&b", "a|b", "(", "{a,b}", "=", "@", "!",
	"\x01", "\x7f", strings.Repeat("n", 255),
}

// hostTree makes a tree with everything that is kept.
func hostTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	put(t, at("plain"), "content\n", 0o644)
	put(t, at("empty"), "", 0o644)
	put(t, at("bytes"), everyByte()+everyByte(), 0o640)
	put(t, at("run"), "#!/bin/sh\necho ran\n", 0o755)
	put(t, at("private"), "x", 0o600)
	put(t, at("read only"), "x", 0o444)
	put(t, at("some/where/deep"), "deep", 0o644)
	names := oddNames
	if runtime.GOOS == "linux" {
		names = append(slices.Clone(names), "\xff\xfe", "caf\xe9")
	}
	for _, name := range names {
		put(t, filepath.Join(root, "odd", name), name, 0o644)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.MkdirAll(at("empty directory"), 0o755))
	check(os.Mkdir(at("closed"), 0o755))
	put(t, at("closed/in"), "in", 0o600)
	check(os.Chmod(at("closed"), 0o700))
	check(os.Symlink("plain", at("link")))
	check(os.Symlink("some/where", at("link to directory")))
	check(os.Symlink("nowhere", at("broken link")))
	check(os.Symlink("../plain", at("some/up")))
	check(os.Link(at("plain"), at("some/hard")))
	then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	check(os.Chtimes(at("plain"), then, then))
	return root
}

// tarOf writes an archive.
func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		content := h.Name
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// tarNames returns the names of an archive, and their contents or targets.
func tarNames(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	found := map[string]string{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg || h.Linkname != "" {
			found[strings.TrimPrefix(h.Name, "./")] = string(content) + h.Linkname
		}
	}
}

// imported copies a directory of the host into the sandbox.
func imported(t *testing.T, l *leasehold.Lease, local, remote string, options leasehold.ImportOptions) leasehold.TransferResult {
	t.Helper()
	got, err := l.Importer().Dir(t.Context(), local, remote, options)
	if err != nil {
		t.Fatalf("Importer.Dir() = %v", err)
	}
	return got
}

// exported copies a directory of the sandbox into a new one of the host, which it returns.
func exported(t *testing.T, l *leasehold.Lease, remote string, options leasehold.ExportOptions) (string, leasehold.TransferResult) {
	t.Helper()
	local := filepath.Join(t.TempDir(), "export")
	got, err := l.Exporter().Dir(t.Context(), remote, local, options)
	if err != nil {
		t.Fatalf("Exporter.Dir() = %v", err)
	}
	return local, got
}

// fileCases move files. They prove what is there by commands in the sandbox, or by what comes back.
var fileCases = []behaviour{
	{name: "a directory, there and back", test: func(t *testing.T, s *scene) {
		local, remote := hostTree(t), unique("tree")
		var last leasehold.Progress
		there := imported(t, s.lease, local, remote, leasehold.ImportOptions{Progress: func(p leasehold.Progress) { last = p }})
		if !last.Done || last.Bytes != there.Bytes || there.Entries == 0 || there.SkippedCount != 0 {
			t.Errorf("the import moved %+v, and reported %+v at last", there, last)
		}
		if got, want := says(t, s.lease, `cd `+remote+`; ./run; cat link; stat -c '%a %Y' plain run private closed 'read only'; readlink some/up; [ plain -ef some/hard ] && echo hard`),
			"ran\ncontent\n644 981173106\n755 "; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "../plain\nhard") {
			t.Errorf("in the sandbox there is %q", got)
		}
		back, result := exported(t, s.lease, remote, leasehold.ExportOptions{})
		wantTree(t, back, local)
		if result.Entries != there.Entries || result.Bytes != there.Bytes || result.Route != leasehold.RouteFiles {
			t.Errorf("the export moved %+v, the import %+v", result, there)
		}
	}},
	{name: "a file, there and back", test: func(t *testing.T, s *scene) {
		dir, remote := t.TempDir(), unique("file")+"/it's\nhere"
		local, back := filepath.Join(dir, "in"), filepath.Join(dir, "out", "file")
		put(t, local, everyByte(), 0o640)
		for _, mode := range []fs.FileMode{0, 0o755} {
			if got, err := s.lease.Importer().File(t.Context(), local, remote, leasehold.ImportOptions{Mode: mode}); err != nil || got.Entries != 1 || got.Bytes != 256 {
				t.Fatalf("Importer.File() = %+v, %v", got, err)
			}
			if got, err := s.lease.Exporter().File(t.Context(), remote, back, leasehold.ExportOptions{}); err != nil || got.Entries != 1 || got.Bytes != 256 {
				t.Fatalf("Exporter.File() = %+v, %v", got, err)
			}
			content, err := os.ReadFile(back)
			info, statErr := os.Stat(back)
			if err := errors.Join(err, statErr); err != nil {
				t.Fatal(err)
			}
			if want := max(mode, 0o640); string(content) != everyByte() || info.Mode() != want {
				t.Errorf("it came back as %d bytes with mode %v, want 256 with %v", len(content), info.Mode(), want)
			}
		}
	}},
	{name: "empty ones", test: func(t *testing.T, s *scene) {
		local, remote := t.TempDir(), unique("empty")
		put(t, filepath.Join(local, "file"), "", 0o644)
		if _, err := s.lease.Importer().File(t.Context(), filepath.Join(local, "file"), remote+"/file", leasehold.ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		back, _ := exported(t, s.lease, remote, leasehold.ExportOptions{})
		wantTree(t, back, local)
		imported(t, s.lease, t.TempDir(), remote+"/directory", leasehold.ImportOptions{})
		back, result := exported(t, s.lease, remote+"/directory", leasehold.ExportOptions{})
		if found := describe(t, back); len(found) != 0 || result.Entries != 0 {
			t.Errorf("the export of an empty directory is %v, %+v", found, result)
		}
	}},
	{name: "several files at once", test: func(t *testing.T, s *scene) {
		dir, remote := t.TempDir(), unique("files")
		var there, back []leasehold.FileMapping
		for i, name := range []string{"a", "b/c", "b/d e", "../" + remote + "/x/y"} {
			local := filepath.Join(dir, fmt.Sprint(i))
			put(t, local, name, 0o600)
			there = append(there, leasehold.FileMapping{Local: local, Remote: remote + "/" + name, Mode: 0o644})
			back = append(back, leasehold.FileMapping{Local: filepath.Join(dir, "back", fmt.Sprint(i)), Remote: remote + "/" + name})
		}
		if got, err := s.lease.Importer().Files(t.Context(), there, leasehold.ImportOptions{}); err != nil || got.Entries != 4 {
			t.Fatalf("Importer.Files() = %+v, %v", got, err)
		}
		if got, err := s.lease.Exporter().Files(t.Context(), back, leasehold.ExportOptions{}); err != nil || got.Entries != 4 {
			t.Fatalf("Exporter.Files() = %+v, %v", got, err)
		}
		for i, f := range there {
			got, err := os.ReadFile(back[i].Local)
			want, _ := os.ReadFile(f.Local)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s came back as %q, %v; want %q", f.Remote, got, err, want)
			}
		}
	}},
	{name: "a file system", test: func(t *testing.T, s *scene) {
		remote := unique("fs")
		fsys := fstest.MapFS{"a": {Data: []byte("A"), Mode: 0o644}, "b/run": {Data: []byte("#!/bin/sh\necho $0"), Mode: 0o755}, "c": {Mode: fs.ModeDir | 0o700}}
		if got, err := s.lease.Importer().FS(t.Context(), fsys, remote, leasehold.ImportOptions{}); err != nil || got.Entries != 4 {
			t.Fatalf("Importer.FS() = %+v, %v", got, err)
		}
		if got, want := says(t, s.lease, "cd "+remote+"; cat a; b/run; stat -c %a c"), "Ab/run\n700"; got != want {
			t.Errorf("in the sandbox there is %q, want %q", got, want)
		}
	}},
	{name: "a tar stream, there and back", test: func(t *testing.T, s *scene) {
		remote := unique("tar")
		names := slices.Concat(oddNames, []string{"\xff\xfe", "caf\xe9", "d/e/f"})
		var headers []tar.Header
		want := map[string]string{"to": "d/e/f"}
		for _, name := range names {
			headers = append(headers, tar.Header{Name: name, Format: tar.FormatGNU})
			want[name] = name
		}
		headers = append(headers, tar.Header{Name: "to", Linkname: "d/e/f", Typeflag: tar.TypeSymlink})
		if _, err := s.lease.Importer().Tar(t.Context(), tarOf(t, headers...), remote, leasehold.ImportOptions{}); err != nil {
			t.Fatalf("Importer.Tar() = %v", err)
		}
		var back bytes.Buffer
		if _, err := s.lease.Exporter().Tar(t.Context(), remote, &back, leasehold.ExportOptions{}); err != nil {
			t.Fatalf("Exporter.Tar() = %v", err)
		}
		if diff := cmp.Diff(want, tarNames(t, &back)); diff != "" {
			t.Errorf("archive mismatch (-want +got):\n%s", diff)
		}
	}},
	{name: "directories merge, and files are replaced", test: func(t *testing.T, s *scene) {
		remote, local := unique("merge"), t.TempDir()
		says(t, s.lease, "mkdir -p "+remote+"/both "+remote+"/conflict; cd "+remote+"; echo old >both/new; echo other >both/other; ln -s other both/link")
		put(t, filepath.Join(local, "both/new"), "new\n", 0o644)
		put(t, filepath.Join(local, "both/link"), "no link\n", 0o644)
		imported(t, s.lease, local, remote, leasehold.ImportOptions{})
		if got, want := says(t, s.lease, "cd "+remote+"/both; cat new other link; [ -L link ] || echo replaced"), "new\nother\nno link\nreplaced"; got != want {
			t.Errorf("in the sandbox there is %q, want %q", got, want)
		}
		put(t, filepath.Join(local, "conflict"), "a file", 0o644)
		put(t, filepath.Join(local, "both/new"), "newer\n", 0o644)
		_, err := s.lease.Importer().Dir(t.Context(), local, remote, leasehold.ImportOptions{})
		wantError(t, "a file over a directory", err, leasehold.ErrConflict)
		if got := says(t, s.lease, "cat "+remote+"/both/new"); got != "new" {
			t.Errorf("the import that failed changed something: %q", got)
		}
	}},
	{name: "to be written to", test: func(t *testing.T, s *scene) {
		remote, local := "/tmp/"+unique("writable"), t.TempDir()
		put(t, filepath.Join(local, "file"), "x", 0o644)
		imported(t, s.lease, local, remote, leasehold.ImportOptions{Access: leasehold.AccessReadWrite})
		t.Cleanup(func() {
			// With the wrapper on it is a mount point, which nobody removes from within.
			got, err := s.lease.Executor().Run(detached(t), leasehold.Command{Args: []string{"rm", "-r", remote}, NoBwrap: true})
			if err != nil || got.ExitCode != 0 {
				t.Errorf("removing %s: %+v, %v", remote, got, err)
			}
		})
		got, err := s.lease.WritableDirs(t.Context())
		if err != nil || len(got) < 2 || got[0] != s.lease.Ref().Workspace || !slices.Contains(got, remote) {
			t.Errorf("WritableDirs() = %q, %v; want the workspace, and %s", got, err, remote)
		}
	}},
	{name: "a bundle to be read", test: func(t *testing.T, s *scene) {
		remote, local := unique("bundle"), t.TempDir()
		put(t, filepath.Join(local, "a"), "A", 0o644)
		put(t, filepath.Join(local, "b/run"), "#!/bin/sh\necho ran\n", 0o755)
		bundle := leasehold.ImportOptions{Access: leasehold.AccessReadOnly}
		first := imported(t, s.lease, local, remote, bundle)
		t.Cleanup(func() { // what comes after may not be able to remove it
			s.lease.Executor().Run(detached(t), leasehold.Command{Args: []string{"chmod", "-R", "u+w", remote}})
		})
		if got := says(t, s.lease, "cd "+remote+"; stat -c %a . a b b/run; b/run"); got != "555\n444\n555\n555\nran" {
			t.Errorf("modes and output are %q", got)
		}
		if again := imported(t, s.lease, local, remote, bundle); first.Unchanged != 0 || again.Entries != 0 || again.Unchanged != first.Entries {
			t.Errorf("the same bundle moved %+v, after %+v; want nothing moved", again, first)
		}
		put(t, filepath.Join(local, "a"), "another", 0o644)
		if err := os.RemoveAll(filepath.Join(local, "b")); err != nil {
			t.Fatal(err)
		}
		imported(t, s.lease, local, remote, bundle)
		if got := says(t, s.lease, "cd "+remote+"; cat a; ls"); got != "anothera" {
			t.Errorf("the bundle was replaced by %q", got)
		}
	}},
	{name: "what has changed", test: func(t *testing.T, s *scene) {
		for _, delta := range []leasehold.Delta{leasehold.DeltaTimes, leasehold.DeltaDigests} {
			remote, local := unique("delta"), t.TempDir()
			for _, name := range []string{"same", "changed", "dir/same", "dir/gone"} {
				put(t, filepath.Join(local, name), name, 0o644)
			}
			first := imported(t, s.lease, local, remote, leasehold.ImportOptions{Delta: delta})
			put(t, filepath.Join(local, "changed"), "longer than before", 0o644)
			if err := os.Remove(filepath.Join(local, "dir/gone")); err != nil {
				t.Fatal(err)
			}
			says(t, s.lease, "echo kept >"+remote+"/extra.keep; echo lost >"+remote+"/extra")
			second := imported(t, s.lease, local, remote, leasehold.ImportOptions{Delta: delta, Delete: true, Exclude: []string{"*.keep"}})
			if first.Entries != 5 || second.Bytes != int64(len("longer than before")) || second.Unchanged < 2 || second.Removed != 2 {
				t.Errorf("%s: at first %+v, then %+v; want one file sent and two removed", delta, first, second)
			}
			if got, want := says(t, s.lease, "cd "+remote+"; find . -type f | sort; cat changed"), "./changed\n./dir/same\n./extra.keep\n./same\nlonger than before"; got != want {
				t.Errorf("%s: in the sandbox there is %q, want %q", delta, got, want)
			}
		}
	}},
	{name: "what is excluded", test: func(t *testing.T, s *scene) {
		remote, local := unique("exclude"), t.TempDir()
		for _, name := range []string{"keep.c", "drop.o", "deep/drop.o", "deep/keep", "node_modules/x", "deep/node_modules/x", "build/x", "deep/build/x"} {
			put(t, filepath.Join(local, name), name, 0o644)
		}
		exclude := []string{"*.o", "node_modules/", "/build"}
		imported(t, s.lease, local, remote+"/part", leasehold.ImportOptions{Exclude: exclude})
		if got, want := says(t, s.lease, "cd "+remote+"/part; find . -type f | sort"), "./deep/build/x\n./deep/keep\n./keep.c"; got != want {
			t.Errorf("the import brought %q, want %q", got, want)
		}
		imported(t, s.lease, local, remote+"/whole", leasehold.ImportOptions{})
		all, _ := exported(t, s.lease, remote+"/part", leasehold.ExportOptions{})
		part, _ := exported(t, s.lease, remote+"/whole", leasehold.ExportOptions{Exclude: exclude})
		wantTree(t, part, all)
	}},
	{name: "links out of the tree", test: func(t *testing.T, s *scene) {
		remote := unique("links")
		says(t, s.lease, "mkdir -p "+remote+"/d; cd "+remote+"; echo x >file; ln -s ../../up out; ln -s /etc/hostname absolute; ln -s ../file d/inside")
		local := filepath.Join(t.TempDir(), "export")
		put(t, filepath.Join(local, "earlier"), "kept", 0o644)
		_, err := s.lease.Exporter().Dir(t.Context(), remote, local, leasehold.ExportOptions{})
		wantError(t, "an export with links out of it", err, leasehold.ErrUnsafe)
		if _, kept := describe(t, local)["earlier"]; !kept {
			t.Error("the export that failed changed the directory")
		}
		_, err = s.lease.Exporter().Dir(t.Context(), remote, local, leasehold.ExportOptions{UnsafeLinks: leasehold.LinksKeepAbsolute})
		wantError(t, "an export with a relative link out of it", err, leasehold.ErrUnsafe)
		got, err := s.lease.Exporter().Dir(t.Context(), remote, local, leasehold.ExportOptions{UnsafeLinks: leasehold.LinksOmit})
		if err != nil || got.SkippedCount != 2 {
			t.Fatalf("Dir() without unsafe links = %+v, %v; want two left out", got, err)
		}
		if found := describe(t, local); found["d/inside"] != "link to ../file" || len(found) != 3 {
			t.Errorf("the export is %v", found)
		}
		says(t, s.lease, "rm "+remote+"/out")
		if _, err = s.lease.Exporter().Dir(t.Context(), remote, local, leasehold.ExportOptions{UnsafeLinks: leasehold.LinksKeepAbsolute}); err != nil {
			t.Fatal(err)
		}
		if found := describe(t, local); found["absolute"] != "link to /etc/hostname" {
			t.Errorf("the export is %v", found)
		}
		_, err = s.lease.Exporter().File(t.Context(), remote+"/absolute", local+".file", leasehold.ExportOptions{})
		wantError(t, "the export of a link as a file", err, leasehold.ErrUnsafe)
	}},
	{name: "what is no file is left out and listed", test: func(t *testing.T, s *scene) {
		remote := unique("special")
		says(t, s.lease, "mkdir "+remote+"; cd "+remote+"; mkfifo pipe; echo x >file")
		back, got := exported(t, s.lease, remote, leasehold.ExportOptions{})
		if diff := cmp.Diff([]leasehold.SkippedEntry{{Name: "pipe", Reason: "fifo"}}, got.Skipped); diff != "" || len(describe(t, back)) != 1 {
			t.Errorf("the export is %v; left out (-want +got):\n%s", describe(t, back), diff)
		}
	}},
	{name: "holes", test: func(t *testing.T, s *scene) {
		if runtime.GOOS != "linux" {
			missing(t, "only a Linux host knows of holes")
		}
		const size = 32 << 20
		local, remote := t.TempDir(), unique("sparse")
		name := filepath.Join(local, "sparse")
		put(t, name, "begin", 0o644)
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte("end"), size-3)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		imported(t, s.lease, local, remote, leasehold.ImportOptions{})
		var blocks, blockSize int64
		if _, err := fmt.Sscan(says(t, s.lease, "stat -c '%b %B' "+remote+"/sparse"), &blocks, &blockSize); err != nil || blocks*blockSize > size/4 {
			t.Errorf("it takes %d bytes in the sandbox, %v; want a hole", blocks*blockSize, err)
		}
		back, got := exported(t, s.lease, remote, leasehold.ExportOptions{})
		wantTree(t, back, local)
		if got.Bytes != size {
			t.Errorf("the export moved %d bytes, want %d", got.Bytes, size)
		}
	}},
	{name: "unsafe archives", test: func(t *testing.T, s *scene) {
		remote := unique("unsafe")
		says(t, s.lease, "mkdir "+remote)
		for name, headers := range map[string][]tar.Header{
			"up":                     {{Name: "good"}, {Name: "../" + remote + "-up"}},
			"absolute":               {{Name: "/tmp/" + remote + "-absolute"}},
			"up in the middle":       {{Name: "a/../../" + remote + "-middle"}},
			"through a link":         {{Name: "l", Linkname: "/tmp", Typeflag: tar.TypeSymlink}, {Name: "l/" + remote + "-through"}},
			"a link out":             {{Name: "l", Linkname: "../..", Typeflag: tar.TypeSymlink}},
			"an absolute link":       {{Name: "l", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}},
			"a hard link out":        {{Name: "l", Linkname: "../x", Typeflag: tar.TypeLink}},
			"a hard link to nothing": {{Name: "l", Linkname: "nothing", Typeflag: tar.TypeLink}},
		} {
			_, err := s.lease.Importer().Tar(t.Context(), tarOf(t, headers...), remote, leasehold.ImportOptions{})
			if !errors.Is(err, leasehold.ErrUnsafe) {
				t.Errorf("%s: %v, want ErrUnsafe", name, err)
			}
		}
		whole := tarOf(t, tar.Header{Name: "a"}, tar.Header{Name: "b"}).Bytes()
		_, err := s.lease.Importer().Tar(t.Context(), bytes.NewReader(whole[:1500]), remote, leasehold.ImportOptions{})
		wantError(t, "a cut archive", err, leasehold.ErrIO)
		// A wrapped command has a /tmp of its own.
		if got := saysUnwrapped(t, s.lease, "ls -A "+remote+"; ls -d "+remote+"-* /tmp/"+remote+"-* 2>/dev/null || true"); got != "" {
			t.Errorf("of archives that were refused there is left %q", got)
		}
	}},
	{name: "limits of an export", test: func(t *testing.T, s *scene) {
		remote := unique("limits")
		says(t, s.lease, "mkdir "+remote+"; cd "+remote+"; for i in 1 2 3 4; do echo 0123456789 >$i; done")
		for name, options := range map[string]leasehold.ExportOptions{"entries": {MaxEntries: 3}, "bytes": {MaxBytes: 40}} {
			local := filepath.Join(t.TempDir(), "export")
			_, err := s.lease.Exporter().Dir(t.Context(), remote, local, options)
			if _, found := os.Lstat(local); !errors.Is(err, leasehold.ErrLimit) || !errors.Is(found, fs.ErrNotExist) {
				t.Errorf("%s: %v, and %v; want ErrLimit and nothing", name, err, found)
			}
		}
	}},
	{name: "commands after an import", test: func(t *testing.T, s *scene) {
		remote, local := unique("after"), t.TempDir()
		put(t, filepath.Join(local, "file"), "x", 0o644)
		_, err := s.lease.Importer().Dir(t.Context(), local, remote, leasehold.ImportOptions{After: []leasehold.Command{
			{Script: "cp file copy", Dir: remote}, {Script: "echo why >&2; exit 3", Dir: remote}, {Script: "touch never", Dir: remote},
		}})
		var after *leasehold.AfterError
		if !errors.As(err, &after) || after.Index != 1 || after.Result.ExitCode != 3 || string(after.Result.Stderr) != "why\n" {
			t.Errorf("Dir() = %v, want the exit of the second command", err)
		}
		if got := says(t, s.lease, "ls "+remote); got != "copy\nfile" {
			t.Errorf("in the sandbox there is %q", got)
		}
	}},
	{name: "what is not there, or in the way", test: func(t *testing.T, s *scene) {
		local, remote := t.TempDir(), unique("way")
		put(t, filepath.Join(local, "file"), "x", 0o644)
		says(t, s.lease, "mkdir "+remote+"; echo x >"+remote+"/file")
		ctx, in, out := t.Context(), s.lease.Importer(), s.lease.Exporter()
		_, err := out.Dir(ctx, remote+"/no", filepath.Join(local, "no"), leasehold.ExportOptions{})
		wantError(t, "the export of a directory that is not there", err, leasehold.ErrNotFound)
		_, err = out.File(ctx, remote+"/no", filepath.Join(local, "no"), leasehold.ExportOptions{})
		wantError(t, "the export of a file that is not there", err, leasehold.ErrNotFound)
		_, err = out.Dir(ctx, remote+"/file", filepath.Join(local, "no"), leasehold.ExportOptions{})
		wantError(t, "the export of a file as a directory", err, leasehold.ErrConflict)
		_, err = out.File(ctx, remote, filepath.Join(local, "no"), leasehold.ExportOptions{})
		wantError(t, "the export of a directory as a file", err, leasehold.ErrConflict)
		_, err = out.Dir(ctx, remote, filepath.Join(local, "file"), leasehold.ExportOptions{})
		wantError(t, "the export of a directory over a file", err, leasehold.ErrConflict)
		_, err = in.Dir(ctx, filepath.Join(local, "no"), remote, leasehold.ImportOptions{})
		wantError(t, "the import of a directory that is not there", err, leasehold.ErrIO)
		_, err = in.Dir(ctx, local, ".leasehold/x", leasehold.ImportOptions{})
		if e := wantError(t, "an import into the lease's own directory", err, leasehold.ErrInvalid); e.Dispatched != leasehold.DispatchedNo {
			t.Errorf("dispatched %s, want no", e.Dispatched)
		}
		if found := describe(t, local); len(found) != 1 {
			t.Errorf("what failed left %v", found)
		}
	}},
	{name: "the lease's own directory stays at home", test: func(t *testing.T, s *scene) {
		var back bytes.Buffer
		exclude := []string{"?*-*", "child*", "together*", "gate-*", "x-*", "a b*"} // what other cases have there
		if _, err := s.lease.Exporter().Tar(t.Context(), "", &back, leasehold.ExportOptions{Exclude: exclude, AllowChanges: true}); err != nil {
			t.Fatal(err)
		}
		for name := range tarNames(t, &back) {
			if strings.HasPrefix(name, ".leasehold") {
				t.Errorf("the export of the workspace has %s", name)
			}
		}
	}},
	{name: "a big file, there and back", test: func(t *testing.T, s *scene) {
		size := int64(9 << 20) // which is sent by itself
		if long() {
			size = 1 << 30
		}
		local, remote := t.TempDir(), unique("big")
		f, err := os.Create(filepath.Join(local, "big"))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		_, err = io.CopyN(io.MultiWriter(f, sum), rand.Reader, size)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%x", sum.Sum(nil))
		if got := imported(t, s.lease, local, remote, leasehold.ImportOptions{}); got.Bytes != size {
			t.Errorf("the import moved %d bytes, want %d", got.Bytes, size)
		}
		if got, _, _ := strings.Cut(says(t, s.lease, "sha256sum "+remote+"/big"), " "); got != want {
			t.Errorf("its digest is %s in the sandbox, want %s", got, want)
		}
		back, _ := exported(t, s.lease, remote, leasehold.ExportOptions{})
		says(t, s.lease, "rm -r "+remote)
		f, err = os.Open(filepath.Join(back, "big"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		sum.Reset()
		if _, err := io.Copy(sum, f); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sum.Sum(nil)); got != want {
			t.Errorf("its digest is %s as it came back, want %s", got, want)
		}
	}},
}
