//go:build unix

package archive

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/script"
)

// largeTree fills dir with files that are sent by themselves, in places that make it hard.
func largeTree(t testing.TB, dir string) {
	t.Helper()
	old := time.Unix(1_000_000_000, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{
		"plain": 0o644, "-rf": 0o755, "o'clock\n$(x) \xff": 0o600, "read only/deep/er/f": 0o444, "private/f": 0o640, "private/g": 0o400,
	} {
		path := filepath.Join(dir, name)
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(name), 0o600))
		must(os.Truncate(path, LargeFile+int64(len(name))))
		must(os.Chmod(path, mode))
		must(os.Chtimes(path, old, old))
	}
	must(os.WriteFile(filepath.Join(dir, "private", "small"), nil, 0o600))
	must(os.Link(filepath.Join(dir, "plain"), filepath.Join(dir, "zz second name")))
	must(os.Link(filepath.Join(dir, "-rf"), filepath.Join(dir, "private", "third name")))
	for name, mode := range map[string]fs.FileMode{"read only/deep/er": 0o555, "read only/deep": 0o511, "read only": 0o555, "private": 0o700} {
		must(os.Chmod(filepath.Join(dir, name), mode))
		must(os.Chtimes(filepath.Join(dir, name), old, old))
	}
	t.Cleanup(func() { removeAll(t, dir) })
}

// loaded uploads a load of src, as the daemon stores it.
func loaded(t testing.TB, src, dest string) RemoteImport {
	t.Helper()
	load, err := LoadTree(t.Context(), open(t, src), WriteOptions{RepeatDirs: true})
	if err != nil {
		t.Fatal(err)
	}
	defer load.Close()
	scratch := StageName()
	var sum Summary
	for _, part := range load.Parts() {
		path := filepath.Join(dest, scratch, part.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		one, err := part.Write(t.Context(), f, nil)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		sum.Add(one)
	}
	if sum.Entries != load.Total.Entries || sum.Bytes != load.Total.Bytes {
		t.Errorf("sent %+v, want the totals of the walk, %+v", sum, load.Total)
	}
	return RemoteImport{Scratch: scratch, Own: filepath.Join(dest, ".leasehold"), Stages: []RemoteStage{load.Stage(dest, sum.Archive)}}
}

func TestLargeFilesGoBesideTheArchiveToTheirPlaces(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, dest := t.TempDir(), t.TempDir()
			largeTree(t, src)
			r := loaded(t, src, dest)
			if r.Stages[0].Bytes > LargeFile {
				t.Errorf("the archive has %d bytes: the large files are in it", r.Stages[0].Bytes)
			}
			if got := deliver(t, path, r.Script(), r.Scratch); got.Word != WordOK {
				t.Fatalf("word %q, want ok", got.Word)
			}
			t.Cleanup(func() { removeAll(t, dest) })
			want, have := describe(t, src), describe(t, dest)
			if kind == "busybox" { // it makes hard links last of all, after it has set the directory's time
				if err := os.Chtimes(filepath.Join(dest, "private"), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
					t.Fatal(err)
				}
				have = describe(t, dest)
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("tree mismatch (-want +got):\n%s", diff)
			}
			for _, names := range [][2]string{{"plain", "zz second name"}, {"-rf", "private/third name"}} {
				a, err1 := os.Stat(filepath.Join(dest, names[0]))
				b, err2 := os.Stat(filepath.Join(dest, names[1]))
				if err1 != nil || err2 != nil || !os.SameFile(a, b) {
					t.Errorf("%q are two files (%v, %v)", names, err1, err2)
				}
			}
		})
	}
}

func TestF2LargeFilesThatDidNotArriveWhole(t *testing.T) {
	for name, tc := range map[string]struct {
		harm func(scratch string) error
		want Word
	}{
		"file short":      {func(s string) error { return os.Truncate(filepath.Join(s, "large", "0"), LargeFile) }, WordShort},
		"file missing":    {func(s string) error { return os.Remove(filepath.Join(s, "large", "1")) }, WordShort},
		"list short":      {func(s string) error { return os.Truncate(filepath.Join(s, "large", "places"), 30) }, WordShort},
		"list missing":    {func(s string) error { return os.Remove(filepath.Join(s, "large", "places")) }, WordShort},
		"all missing":     {func(s string) error { return os.RemoveAll(filepath.Join(s, "large")) }, WordMissing},
		"archive missing": {func(s string) error { return os.Remove(filepath.Join(s, RemoteArchive)) }, WordMissing},
	} {
		t.Run(name, func(t *testing.T) {
			src, dest := t.TempDir(), t.TempDir()
			largeTree(t, src)
			r := loaded(t, src, dest)
			if err := tc.harm(filepath.Join(dest, r.Scratch)); err != nil {
				t.Fatal(err)
			}
			if got := deliver(t, os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != tc.want {
				t.Errorf("word %q, want %q", got.Word, tc.want)
			}
			onlyEntries(t, dest)
		})
	}
}

func TestF2LargeFileThatChangesAfterTheWalkEndsTheImport(t *testing.T) {
	for name, change := range map[string]func(file string) error{
		"grew":     func(file string) error { return os.Truncate(file, LargeFile+1) },
		"shrank":   func(file string) error { return os.Truncate(file, 1) },
		"vanished": os.Remove,
		"touched":  func(file string) error { return os.Chtimes(file, time.Unix(5, 0), time.Unix(5, 0)) },
		"became a link": func(file string) error {
			return errors.Join(os.Rename(file, file+"x"), os.Symlink("/etc/passwd", file))
		},
		"became another":  func(file string) error { return errors.Join(os.Rename(file, file+"x"), os.WriteFile(file, nil, 0o600)) },
		"became a FIFO":   func(file string) error { return errors.Join(os.Remove(file), makeFIFO(file)) },
		"became a folder": func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, sent := range []bool{false, true} { // before or after its content was sent
				dir := t.TempDir()
				file := filepath.Join(dir, "large")
				if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, LargeFile)); err != nil {
					t.Fatal(err)
				}
				load, err := LoadTree(t.Context(), open(t, dir), WriteOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer load.Close()
				if !sent {
					if err := change(file); err != nil {
						t.Fatal(err)
					}
				}
				var failure error
				for i, part := range load.Parts() {
					var b bytes.Buffer
					if _, failure = part.Write(context.Background(), &b, nil); failure != nil {
						break
					}
					if sent && i == 0 {
						if err := change(file); err != nil {
							t.Fatal(err)
						}
					}
				}
				if !errors.Is(failure, ErrChanged) && !errors.Is(failure, ErrSource) {
					t.Errorf("changed after it was sent %v: error %v, want one that is %q or %q", sent, failure, ErrChanged, ErrSource)
				}
			}
		})
	}
}

func TestStagesOfKilledProcessesAreSwept(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * stageUnlocked)
	abandoned, used, young := filepath.Join(dir, StageName()), filepath.Join(dir, StageName()), filepath.Join(dir, StageName())
	for _, stage := range []string{abandoned, used, young} {
		if err := os.MkdirAll(filepath.Join(stage, "sealed"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(stage, "sealed", "f"), nil, 0o400); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(stage, "sealed"), 0o500); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, StageName())
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, stage := range []string{abandoned, used, file} {
		if err := os.Chtimes(stage, old, old); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	lock := holdStage(root, filepath.Base(used))
	if lock == nil {
		t.Fatalf("%s cannot be held", used)
	}
	defer lock.Close()
	if _, err := Extract(t.Context(), bytes.NewReader(tarball(t, entry{name: "f"})), filepath.Join(dir, "dest"), ExtractOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, dir) })
	onlyEntries(t, dir, "dest", filepath.Base(used), filepath.Base(young))
}

func TestImportScriptSweepsWhatAKilledHostLeft(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			src, dest := t.TempDir(), t.TempDir()
			put(t, src, map[string]string{"f": "x"})
			old, young := StageName(), StageName()
			put(t, dest, map[string]string{old + "/tree.tar": "x", young + "/tree.tar": "x"})
			ended, making := StageName(), StageName() // of exports
			put(t, dest, map[string]string{".leasehold/" + ended + "/ended": "", ".leasehold/" + making + "/0": "x"})
			for name, age := range map[string]time.Duration{old: 25 * time.Hour, ".leasehold/" + ended: 2 * time.Hour, ".leasehold/" + making: 2 * time.Hour} {
				at := time.Now().Add(-age)
				if err := os.Chtimes(filepath.Join(dest, name), at, at); err != nil {
					t.Fatal(err)
				}
			}
			r := uploaded(t, src, dest)
			if got := deliver(t, userland(t, kind), r.Script(), r.Scratch); got.Word != WordOK {
				t.Fatalf("word %q, want ok", got.Word)
			}
			onlyEntries(t, dest, young, "f", ".leasehold")
			onlyEntries(t, filepath.Join(dest, ".leasehold"), making)
		})
	}
}

// Another import makes the same directories between the look for conflicts and the first rename.
func TestImportScriptsShareNewDirectories(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, dest := t.TempDir(), t.TempDir()
			put(t, src, map[string]string{"d/e/f": "mine", "d/both": "mine", "top": "mine"})
			mv := needTool(t, "mv")
			if kind == "busybox" {
				mv = needTool(t, "busybox") + " mv"
			}
			bin := t.TempDir()
			wrapper := `[ "$1" != -f ] || [ -d "$DEST/d" ] || { mkdir -p "$DEST/d/e"; echo theirs >"$DEST/d/e/g"; echo theirs >"$DEST/d/both"; }
exec ` + mv + ` "$@"
`
			if err := os.WriteFile(filepath.Join(bin, "mv"), []byte("#!/bin/sh\nDEST="+script.Quote(dest)+"; export DEST; PATH="+script.Quote(os.Getenv("PATH"))+"\n"+wrapper), 0o755); err != nil {
				t.Fatal(err)
			}
			r := uploaded(t, src, dest)
			if got := deliver(t, bin+":"+path, r.Script(), r.Scratch); got.Word != WordOK {
				t.Errorf("word %q, want ok", got.Word)
			}
			want := map[string]string{"d/e/f": "mine", "d/e/g": "theirs\n", "d/both": "mine", "top": "mine"}
			if diff := cmp.Diff(want, contents(t, dest)); diff != "" {
				t.Errorf("destination mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// The one that another import made meanwhile is one that its owner may not list: what is in it is published all the same.
func TestF2ImportScriptSharesADirectoryThatCannotBeListed(t *testing.T) {
	bin, src, dest := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, src, map[string]string{"d/f": "mine"})
	tool(t, bin, "mkdir", `case $1 in */gate) REAL `+script.Quote(filepath.Join(dest, "d"))+` || exit ;; esac; exec REAL "$@"`)
	var user *syscall.SysProcAttr // for whom permissions count
	if os.Geteuid() == 0 {
		user = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if err := os.Chmod(filepath.Join(src, "d"), 0o311); err != nil {
		t.Fatal(err)
	}
	r := uploaded(t, src, dest)
	if err := errors.Join(os.Chmod(filepath.Dir(dest), 0o755), os.Chmod(dest, 0o777), os.Chmod(filepath.Dir(upload(r)), 0o777)); err != nil {
		t.Fatal(err)
	}
	if got := deliverAs(t, user, bin+":"+os.Getenv("PATH"), r.Script(), r.Scratch); got.Word != WordOK {
		t.Errorf("word %q, want ok", got.Word)
	}
	if got, err := os.ReadFile(filepath.Join(dest, "d", "f")); err != nil || string(got) != "mine" {
		t.Errorf("d/f is %q, %v, want what was sent", got, err)
	}
}

func TestHolesAreKept(t *testing.T) {
	const size = 40<<20 + 123
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, dest := t.TempDir(), t.TempDir()
			for name, at := range map[string][]int64{"empty": nil, "first": {0}, "middle": {9<<20 + 5, 9<<20 + 50<<10, 20 << 20}, "last": {1, size - 3}} {
				f, err := os.Create(filepath.Join(src, name))
				if err != nil {
					t.Fatal(err)
				}
				for _, offset := range at {
					if _, err := f.WriteAt([]byte("abc"), offset); err != nil {
						t.Fatal(err)
					}
				}
				if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
					t.Fatal(err)
				}
			}
			if fi, err := os.Stat(filepath.Join(src, "empty")); err != nil || !hasHoles(fi) {
				t.Skip("this system knows no holes")
			}
			r := loaded(t, src, dest)
			if got := deliver(t, path, r.Script(), r.Scratch); got.Word != WordOK {
				t.Fatalf("word %q, want ok", got.Word)
			}
			for _, name := range []string{"empty", "first", "middle", "last"} {
				want, err1 := os.ReadFile(filepath.Join(src, name))
				got, err2 := os.ReadFile(filepath.Join(dest, name))
				fi, err3 := os.Stat(filepath.Join(dest, name))
				if err := errors.Join(err1, err2, err3); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(want, got) {
					t.Errorf("%s: the content differs", name)
				}
				if !hasHoles(fi) {
					t.Errorf("%s: the holes were filled", name)
				}
			}
		})
	}
}

func TestExtentsAreAlignedAndFew(t *testing.T) {
	const mib = 1 << 20
	var many []extent
	for i := range int64(1000) {
		many = append(many, extent{i * 3 * mib, 10})
	}
	for name, tc := range map[string]struct {
		data []extent
		size int64
		want []extent
	}{
		"nothing":       {nil, 10 * mib, []extent{}},
		"aligned":       {[]extent{{4097, 1}}, 10 * mib, []extent{{4096, 4096}}},
		"end":           {[]extent{{9 * mib, mib + 5}}, 10*mib + 5, []extent{{9 * mib, mib + 5}}},
		"small hole":    {[]extent{{0, 5 * mib}, {5*mib + 4096, 5*mib - 4096}}, 10 * mib, nil},
		"joined":        {[]extent{{0, 1}, {mib / 2, 1}, {9 * mib, 1}}, 10 * mib, []extent{{0, mib/2 + 4096}, {9 * mib, 4096}}},
		"no hole":       {[]extent{{0, 10 * mib}}, 10 * mib, nil},
		"too many":      {many, 2998 * mib, nil},
		"in one corner": {many, 9000 * mib, []extent{{0, 2997*mib + 4096}}},
	} {
		got := extents(tc.data, tc.size)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(extent{})); diff != "" {
			t.Errorf("%s: extents mismatch (-want +got):\n%s", name, diff)
		}
	}
}
