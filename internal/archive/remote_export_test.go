//go:build unix

package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestExportScriptMakesAnArchive(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, dest := t.TempDir(), filepath.Join(t.TempDir(), "dest")
			oddTree(t, src)
			put(t, src, map[string]string{"node_modules/x": "x", "a/b.log": "log", "logs/z.log": "z", ".leasehold/lease.json": "mine"})
			exclude, err := NewMatcher([]string{"node_modules", "a/*.log", "/.leasehold"})
			if err != nil {
				t.Fatal(err)
			}
			r := RemoteExport{Scratch: filepath.Join(src, ".leasehold", StageName()), Dir: src, Exclude: exclude}
			reply := deliver(t, path, r.Make(), r.Scratch)
			if reply.Word != WordOK {
				t.Fatalf("word %q, want ok", reply.Word)
			}
			if _, err := os.Lstat(filepath.Join(r.Scratch, "tar")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the number of a tar that has ended is there: %v", err)
			}
			if diff := cmp.Diff(reply, deliver(t, path, r.Make(), r.Scratch)); diff != "" {
				t.Errorf("a second delivery has another answer (-first +second):\n%s", diff)
			}
			data := pieces(t, r, reply)
			if int64(len(data)) != reply.Bytes {
				t.Fatalf("%d bytes, want %d", len(data), reply.Bytes)
			}
			if _, err := Extract(context.Background(), bytes.NewReader(data), dest, ExtractOptions{Exclude: exclude}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeAll(t, dest) })
			if got := deliver(t, path, RemoteCleanup(r.Scratch, 0), r.Scratch); got.Word != WordOK {
				t.Errorf("cleanup says %q, want ok", got.Word)
			}
			if _, err := os.Lstat(r.Scratch); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the scratch directory is left: %v", err)
			}
			for _, gone := range []string{"node_modules", "a/b.log", ".leasehold"} {
				if err := os.RemoveAll(filepath.Join(src, gone)); err != nil {
					t.Fatal(err)
				}
			}
			// Removing them changed the times of the directories they were in.
			if err := os.Chtimes(filepath.Join(src, "a"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(filepath.Join(dest, "a"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(describe(t, src), describe(t, dest)); diff != "" {
				t.Errorf("tree mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// Whichever of a file's names the sandbox's tar meets first: if that is excluded, the others are whole.
func TestF2ExportOfFilesWithSeveralNames(t *testing.T) {
	src, base := t.TempDir(), t.TempDir()
	put(t, src, map[string]string{"cache/blob": "x", "lib/f": "y"})
	for _, names := range [][2]string{{"cache/blob", "lib/blob"}, {"lib/blob", "zz/blob"}, {"lib/f", "lib/g"}, {"lib/l", "lib/m"}} {
		from, to := filepath.Join(src, names[0]), filepath.Join(src, names[1])
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if names[0] == "lib/l" {
			if err := os.Symlink("f", from); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(from, to); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, several := range map[string]bool{"cache/": false, "c?che": false, "[c]ache": false, "zz/**": false, "cache": true, ".*": true} {
		exclude, err := NewMatcher([]string{pattern})
		if err != nil {
			t.Fatal(err)
		}
		want := contents(t, src)
		for name := range want {
			if exclude.MatchBelow(name, false) {
				delete(want, name)
			}
		}
		r := RemoteExport{Scratch: filepath.Join(base, StageName()), Dir: src, Exclude: exclude}
		data := pieces(t, r, deliver(t, os.Getenv("PATH"), r.Make(), r.Scratch))
		var copied bytes.Buffer
		if _, err := Copy(t.Context(), bytes.NewReader(data), &copied, ExtractOptions{Exclude: exclude}); err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		for what, data := range map[string][]byte{"made": data, "copied": copied.Bytes()} {
			dest := filepath.Join(base, "dest")
			if _, err := Extract(t.Context(), bytes.NewReader(data), dest, ExtractOptions{Exclude: exclude}); err != nil {
				t.Fatalf("%s, %s: %v", pattern, what, err)
			}
			if diff := cmp.Diff(want, contents(t, dest)); diff != "" {
				t.Errorf("%s, %s: tree mismatch (-want +got):\n%s", pattern, what, diff)
			}
			f, err1 := os.Stat(filepath.Join(dest, "lib/f"))
			g, err2 := os.Stat(filepath.Join(dest, "lib/g"))
			if errors.Join(err1, err2) != nil || os.SameFile(f, g) != several {
				t.Errorf("%s, %s: two names are one file: %v, %v, %v, want %v", pattern, what, !several, err1, err2, several)
			}
		}
	}
}

// pieces reads the pieces that a reply speaks of, and checks their sums.
func pieces(t testing.TB, r RemoteExport, reply Reply) []byte {
	t.Helper()
	var all []byte
	for _, p := range reply.Pieces {
		data, err := os.ReadFile(r.Path(p.Number))
		if err != nil {
			t.Fatal(err)
		}
		var sum Sum
		sum.Write(data)
		if p.Summed && sum.Sum32() != p.Sum || int64(len(data)) != p.Size {
			t.Errorf("piece %d has sum %d and %d bytes, the script says %+v", p.Number, sum.Sum32(), len(data), p)
		}
		all = append(all, data...)
	}
	return all
}

// A host that is busy with a piece asks now and then, and the pieces stay for as long as it does.
func TestExportScriptIsPatientWithASlowHost(t *testing.T) {
	bin, src := t.TempDir(), t.TempDir()
	put(t, src, map[string]string{"f": strings.Repeat("0123456789abcdef", 100_000)})
	// The maker's sleeps pass as the test says.
	for _, name := range []string{"go", "done"} {
		if err := syscall.Mkfifo(filepath.Join(bin, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(bin, name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	pass, passed := open("go"), open("done")
	defer pass.Close()
	defer passed.Close()
	tool(t, bin, "sleep", `[ "$1" = 0.05 ] || exec REAL "$@"; read -r _ <`+bin+`/go; echo >`+bin+`/done`)
	path := bin + ":" + os.Getenv("PATH")
	r := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Dir: src, PieceSize: 64 << 10, Patience: 1}
	deliver(t, path, r.Make(), r.Scratch)
	deliver(t, path, r.Take(PieceCount-1, 0), r.Scratch)                        // there is no room for more
	if err := passed.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // a guard against a maker that has given up
		t.Fatal(err)
	}
	wait := func(sleeps int) {
		for range sleeps {
			if _, err := pass.WriteString("\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := passed.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		wait(15) // of 20
		if got := deliver(t, path, r.Take(0, 0), r.Scratch); len(got.Pieces) != PieceCount {
			t.Fatalf("%+v, want all pieces", got)
		}
	}
	wait(19)
	if _, err := pass.WriteString("\n\n\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the script, for nobody asks any more", func() bool {
		_, err := os.Lstat(r.Scratch)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestExportScriptRefuses(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"file": "x", "-dash": "y"})
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		source string
		file   bool
		want   Word
	}{
		{"file", false, WordNotDir}, {"missing", false, WordNoSource}, {"missing", true, WordNoSource},
		{".", true, WordNotFile}, {"link", true, WordSymlink}, {"file", true, WordOK}, {"-dash", true, WordOK}, {"/dev/null", true, WordNotFile},
	} {
		source := tc.source
		if !filepath.IsAbs(source) {
			source = filepath.Join(dir, source)
		}
		r := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Dir: source}
		if tc.file {
			r.Files = []string{source}
		}
		if got := deliver(t, os.Getenv("PATH"), r.Make(), r.Scratch); got.Word != tc.want {
			t.Errorf("export of %q (file %v) says %q, want %q", tc.source, tc.file, got.Word, tc.want)
		}
		if tc.want != WordOK {
			onlyEntries(t, filepath.Dir(r.Scratch))
		}
	}
}

// What may not be looked at is not said to be missing.
func TestExportScriptOfWhatCannotBeSeen(t *testing.T) {
	dir := t.TempDir()
	var user *syscall.SysProcAttr // who is refused
	if os.Geteuid() == 0 {
		user = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	put(t, dir, map[string]string{"sealed/d/f": "x", "f": "x"})
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777), os.Chmod(filepath.Join(dir, "sealed"), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "sealed"), 0o700) })
	for name, want := range map[string]Word{"sealed/d": WordDenied, "sealed/d/f": WordDenied, "d/d": WordNoSource, "f/d": WordNoSource, "sealed": WordDenied} {
		for _, r := range []RemoteExport{{Dir: filepath.Join(dir, name)}, {Files: []string{filepath.Join(dir, name)}, Root: dir}} {
			r.Scratch = filepath.Join(dir, StageName())
			if name == "sealed" && r.Files != nil {
				want = WordNotFile
			}
			if got := deliverAs(t, user, os.Getenv("PATH"), r.Make(), r.Scratch); got.Word != want {
				t.Errorf("export of %q (file %v) says %q, want %q", name, r.Files != nil, got.Word, want)
			}
		}
	}
}

// A directory that leads elsewhere by the time it is archived is named by its own file.
func TestF1ExportScriptOfADirectoryThatIsSwapped(t *testing.T) {
	bin, root, outside := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, root, map[string]string{"a": "a", "b": "b", "d/c": "c"})
	put(t, outside, map[string]string{"c": "secret"})
	tool(t, bin, "tar", `[ "$1" = --version ] && exec REAL --version
REAL "$@"
mv `+root+`/d `+root+`/e; ln -s `+outside+` `+root+`/d`)
	r := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Root: root}
	for _, name := range []string{"a", "b", "d/c"} {
		r.Files = append(r.Files, filepath.Join(root, name))
	}
	if got := deliver(t, bin+":"+os.Getenv("PATH"), r.Make(), r.Scratch); got.Word != WordOutside || got.Bytes != 2 {
		t.Errorf("%+v, want that the file of index 2 is outside", got)
	}
}

func TestExportNoticesChangesAndListsSockets(t *testing.T) {
	src := t.TempDir()
	put(t, src, map[string]string{"a": strings.Repeat("x", 1<<20)})
	// A tar that changes a file after it was archived, and before the exit status is decided.
	bin := t.TempDir()
	wrapper := "#!/bin/sh\n[ \"$1\" = --version ] && exec " + needTool(t, "tar") + " --version\n" + needTool(t, "tar") + " \"$@\"\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "tar"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	path := bin + ":" + os.Getenv("PATH")
	r := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Dir: src}
	if got := deliver(t, path, r.Make(), r.Scratch); got.Word != WordChanged {
		t.Errorf("word %q, want changed", got.Word)
	}
	// Of files, too: those of the directories behind the one in which some changed are not forgotten.
	put(t, src, map[string]string{"d/b": "b"})
	files := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Files: []string{filepath.Join(src, "a"), filepath.Join(src, "d/b")}, Root: src}
	if got := deliver(t, path, files.Make(), files.Scratch); got.Word != WordChanged {
		t.Errorf("word %q, want changed", got.Word)
	}
	files.Live = true
	got := deliver(t, path, files.Make(), files.Scratch)
	if data := pieces(t, files, got); got.Word != WordOK || bytes.Count(data, []byte("./")) != 2 {
		t.Errorf("word %q with %d files, want ok with 2", got.Word, bytes.Count(data, []byte("./")))
	}
	// A socket's path is limited to about 100 bytes, which a test's directory may exceed.
	t.Chdir(src)
	l, err := net.Listen("unix", "s o c k")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.Live = true
	if got := deliver(t, path, r.Make(), r.Scratch); got.Word != WordOK || fmt.Sprint(got.Sockets) != "[s o c k]" {
		t.Errorf("reply %+v, want ok, for changes were allowed, and one socket", got)
	}
}

// By another name of what it lies in, the lease's own directory is left out, or the export is refused where tar cannot leave
// it out. Nothing that lies in it is exported.
func TestExportScriptLeavesTheLeasesDirectoryOut(t *testing.T) {
	for _, kind := range append([]string{"zsh"}, sandboxes...) {
		path := userland(t, kind)
		ws, alias, above := aliased(t)
		top := filepath.Join(t.TempDir(), "top")
		if err := os.Symlink(filepath.Dir(alias), top); err != nil {
			t.Fatal(err)
		}
		put(t, ws, map[string]string{"d/.leasehold/f": "f"})
		refused := WordOK
		if kind == "busybox" || kind == "bsdtar" {
			refused = WordReserved
		}
		for _, tc := range []struct {
			dir  string
			want Word
		}{
			{ws, WordOK}, {alias, refused}, {above, refused}, {top, refused}, {alias + "/d", WordOK}, {alias + "/d/.leasehold", WordOK},
			{alias + "/.leasehold", WordReserved}, {above + "/ws/.leasehold/bundles", WordReserved},
		} {
			t.Run(kind+", "+filepath.Base(tc.dir), func(t *testing.T) {
				put(t, ws, map[string]string{".leasehold/bundles/b": "mine"})
				r := RemoteExport{Scratch: filepath.Join(ws, ".leasehold", StageName()), Dir: tc.dir}
				got := deliver(t, path, r.Make(), r.Scratch)
				if got.Word != tc.want {
					t.Fatalf("word %q, want %q", got.Word, tc.want)
				}
				if got.Word != WordOK || tc.dir == ws && refused != WordOK { // whose name tells the host what to leave out
					return
				}
				data := pieces(t, r, got)
				if bytes.Contains(data, []byte("lease.json")) || bytes.Contains(data, []byte("mine")) {
					t.Error("the lease's own directory was archived")
				}
				if f := []byte("f\x00"); !bytes.Contains(data, f) {
					t.Error("what is to be archived is missing")
				}
			})
		}
		t.Run(kind+", files", func(t *testing.T) {
			r := RemoteExport{Scratch: filepath.Join(ws, ".leasehold", StageName()), Root: ws}
			r.Files = []string{filepath.Join(ws, "kept"), filepath.Join(alias, "d/.leasehold/f"), filepath.Join(alias, ".leasehold/lease.json")}
			if got := deliver(t, path, r.Make(), r.Scratch); got.Word != WordReserved || got.Bytes != 2 {
				t.Errorf("%+v, want that the file of index 2 is reserved", got)
			}
			if r.Files = r.Files[:2]; deliver(t, path, r.Make(), r.Scratch).Word != WordOK {
				t.Error("other files are refused")
			}
		})
	}
}
