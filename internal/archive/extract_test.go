package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// arena is a directory with a destination that holds earlier content, and something outside of it to attack.
type arena struct{ base, dest string }

func newArena(t testing.TB) arena {
	t.Helper()
	base := t.TempDir()
	a := arena{base, filepath.Join(base, "in", "dest")}
	a.lay(t)
	return a
}

// lay puts there what an arena holds in the beginning.
func (a arena) lay(t testing.TB) {
	t.Helper()
	for name, body := range map[string]string{"outside.txt": "untouched", "in/dest/old.txt": "earlier"} {
		path := filepath.Join(a.base, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// outsideIntact checks that nothing but the destination was touched.
func (a arena) outsideIntact(t testing.TB) {
	t.Helper()
	onlyEntries(t, a.base, "in", "outside.txt")
	onlyEntries(t, filepath.Join(a.base, "in"), "dest")
	if data, err := os.ReadFile(filepath.Join(a.base, "outside.txt")); err != nil || string(data) != "untouched" {
		t.Errorf("outside.txt is %q, %v, want it untouched", data, err)
	}
}

// unchanged checks that the destination is as it was.
func (a arena) unchanged(t testing.TB) {
	t.Helper()
	a.outsideIntact(t)
	onlyEntries(t, a.dest, "old.txt")
	if data, err := os.ReadFile(filepath.Join(a.dest, "old.txt")); err != nil || string(data) != "earlier" {
		t.Errorf("old.txt is %q, %v, want the earlier content", data, err)
	}
}

func (a arena) extract(data []byte, opt ExtractOptions) (Summary, error) {
	return Extract(context.Background(), bytes.NewReader(data), a.dest, opt)
}

func TestF1UnsafeMembersAreRefused(t *testing.T) {
	dir := func(name string) entry { return entry{kind: tar.TypeDir, name: name} }
	link := func(name, target string) entry { return entry{kind: tar.TypeSymlink, name: name, link: target} }
	hard := func(name, target string) entry { return entry{kind: tar.TypeLink, name: name, link: target} }
	for name, entries := range map[string][]entry{
		"absolute name":                      {{name: "/etc/x"}},
		"double slash":                       {{name: "//x"}},
		"dot-dot":                            {{name: "../outside.txt", body: "owned"}},
		"dot-dot inside":                     {{name: "a/../../outside.txt", body: "owned"}},
		"harmless dot-dot":                   {{name: "a/../b"}},
		"only dot-dot":                       {dir("..")},
		"file over the root":                 {{name: "."}},
		"link over the root":                 {link("./", "/")},
		"absolute link":                      {link("l", "/etc/passwd")},
		"empty target":                       {hard("l", "")},
		"empty link":                         {link("l", "")},
		"link out":                           {link("l", "../outside.txt")},
		"link out from below":                {dir("a/"), link("a/l", "../../x")},
		"link with dot-dot after a name":     {dir("a/"), link("l", "a/../../outside.txt")},
		"link chain":                         {dir("a/"), dir("a/b/"), dir("x/"), link("a/b/l", "../../x"), link("a/b/m", "l/../../outside.txt")},
		"write through a link":               {dir("a/"), link("l", "a"), {name: "l/x"}},
		"write through a link to the root":   {link("l", "."), {name: "l/x"}},
		"write through a dangling link":      {link("l", "nowhere"), {name: "l/x"}},
		"directory through a link":           {dir("a/"), link("l", "a"), dir("l/d/")},
		"hard link through a link":           {dir("a/"), {name: "a/f"}, link("l", "a"), hard("h", "l/f")},
		"link as a directory member":         {link("l", "a"), dir("l/")},
		"hard link out":                      {hard("h", "../../outside.txt")},
		"hard link absolute":                 {hard("h", "/etc/passwd")},
		"hard link to what is not there yet": {hard("h", "f"), {name: "f"}},
		"hard link to a link, further up":    {link("d/l", "../f"), hard("h", "d/l")},
		"hard link to a directory":           {dir("d/"), hard("h", "d")},
		"hard link to itself":                {{name: "f"}, hard("f", "f")},
		"hard link to earlier content":       {hard("h", "old.txt")},
		"file over a directory":              {dir("d/"), {name: "d/f"}, {name: "d"}},
		"link over a directory":              {dir("d/"), link("d", "x")},
		"directory over a file":              {{name: "f"}, dir("f/")},
		"below a file":                       {{name: "f"}, {name: "f/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			// The bad member comes last, after one that is fine.
			data := tarball(t, append([]entry{{name: "fine", body: "fine"}}, entries...)...)
			_, err := a.extract(data, ExtractOptions{})
			wantKind(t, err, ErrUnsafe)
			a.unchanged(t)
		})
	}
}

func TestUnsafeLinksCanBeLeftOutAndAreListed(t *testing.T) {
	a := newArena(t)
	data := tarball(t,
		entry{kind: tar.TypeDir, name: "./"},
		entry{kind: tar.TypeSymlink, name: "tools/pnpm", link: "/usr/bin/pnpm"},
		entry{kind: tar.TypeSymlink, name: "tool -> decoy", link: "../../outside.txt"},
		entry{kind: tar.TypeLink, name: "hard", link: "../../outside.txt"},
		entry{name: "kept", body: "k"},
		entry{kind: tar.TypeSymlink, name: "ok", link: "kept"},
		entry{kind: tar.TypeSymlink, name: "d/ok", link: "../kept"},
	)
	sum, err := a.extract(data, ExtractOptions{Links: LinksOmit})
	if err != nil {
		t.Fatal(err)
	}
	want := []Skipped{{"tools/pnpm", ReasonLink}, {"tool -> decoy", ReasonLink}, {"hard", ReasonLink}}
	if diff := cmp.Diff(want, sum.Skipped); diff != "" || sum.SkippedCount != 3 || sum.Entries != 3 {
		t.Errorf("skipped mismatch (-want +got):\n%s\ncount %d, entries %d", diff, sum.SkippedCount, sum.Entries)
	}
	onlyEntries(t, a.dest, "d", "kept", "ok")
	a.outsideIntact(t)
}

// A hard link is another name of something: of a file, of a symbolic link, of what was listed, or of what was excluded.
func TestOtherNamesShareTheFateOfTheFirst(t *testing.T) {
	hard := func(name, target string) entry { return entry{kind: tar.TypeLink, name: name, link: target} }
	data := tarball(t,
		entry{name: "a", body: "a"}, hard("a2", "a"),
		entry{kind: tar.TypeSymlink, name: "d/l", link: "../a"}, hard("d/l2", "d/l"), hard("e/l3", "d/l"),
		entry{kind: tar.TypeSymlink, name: "out", link: "/etc"}, hard("out2", "out"),
		entry{kind: tar.TypeFifo, name: "fifo"}, hard("fifo2", "fifo"))
	want := []string{`-rw-r--r-- "a" "a"`, `-rw-r--r-- "a2" "a"`, `"d/l" -> ../a`, `"d/l2" -> ../a`, `"e/l3" -> ../a`}
	skipped := []Skipped{{"out", ReasonLink}, {"out2", ReasonLink}, {"fifo", ReasonFIFO}, {"fifo2", ReasonFIFO}}
	opt := ExtractOptions{Links: LinksOmit}
	check := func(sum Summary, err error, dir string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(skipped, sum.Skipped); diff != "" {
			t.Errorf("skipped mismatch (-want +got):\n%s", diff)
		}
		got := strings.Join(describe(t, dir), "\n")
		for _, line := range want {
			if !strings.Contains(got, line) {
				t.Errorf("%s is missing in:\n%s", line, got)
			}
		}
	}
	a := newArena(t)
	sum, err := a.extract(data, opt)
	check(sum, err, a.dest)
	var out bytes.Buffer
	sum, err = Copy(t.Context(), bytes.NewReader(data), &out, opt)
	if _, err := a.extract(out.Bytes(), ExtractOptions{}); err != nil {
		t.Fatalf("the copy is no whole archive: %v", err)
	}
	check(sum, err, a.dest)

	exclude, err := NewMatcher([]string{"cache/"})
	if err != nil {
		t.Fatal(err)
	}
	data = tarball(t, entry{name: "cache/blob"}, hard("lib/blob", "cache/blob"), entry{kind: tar.TypeSymlink, name: "l", link: "cache"}, hard("m", "l"))
	_, err = a.extract(data, ExtractOptions{Exclude: exclude})
	_, err2 := Copy(t.Context(), bytes.NewReader(data), io.Discard, ExtractOptions{Exclude: exclude})
	for _, err := range []error{err, err2} {
		if wantKind(t, err, ErrUnsafe); !strings.Contains(err.Error(), linkToExcluded) {
			t.Errorf("error %v, want one that says why", err)
		}
	}
}

func TestDevicesAndFIFOsAreListedNotMade(t *testing.T) {
	a := newArena(t)
	data := tarball(t,
		entry{kind: tar.TypeFifo, name: "fifo"}, entry{kind: tar.TypeChar, name: "null"},
		entry{kind: tar.TypeBlock, name: "disk"}, entry{kind: 'Z', name: "odd"}, entry{name: "f"})
	sum, err := a.extract(data, ExtractOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Skipped{{"fifo", ReasonFIFO}, {"null", ReasonDevice}, {"disk", ReasonDevice}, {"odd", ReasonUnknown}}
	if diff := cmp.Diff(want, sum.Skipped); diff != "" {
		t.Errorf("skipped mismatch (-want +got):\n%s", diff)
	}
	onlyEntries(t, a.dest, "f")
}

func TestF2CutArchiveIsNeverTakenForAWholeOne(t *testing.T) {
	whole := tarball(t, entry{kind: tar.TypeDir, name: "d/"}, entry{name: "d/a", body: strings.Repeat("a", 512)},
		entry{name: "d/b", body: strings.Repeat("\x00", 2048)}, entry{name: strings.Repeat("long/", 30) + "c", body: "c"})
	for _, padding := range []int{0, 512, 9216} {
		data := append(bytes.Clone(whole), make([]byte, padding)...)
		for cut := 0; cut < len(whole); cut++ {
			if cut%512 > 2 && cut%512 < 510 && cut%97 != 0 {
				continue // boundaries, their neighbours and a few more
			}
			a := arena{dest: filepath.Join(t.TempDir(), "dest")}
			if _, err := a.extract(data[:cut], ExtractOptions{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("cut at %d of %d: error %v, want one that is %q", cut, len(whole), err, ErrCorrupt)
			}
			onlyEntries(t, filepath.Dir(a.dest))
		}
		a := newArena(t)
		if _, err := a.extract(data, ExtractOptions{}); err != nil {
			t.Errorf("whole archive with %d bytes of padding: %v", padding, err)
		}
	}
}

func TestF2TrailingDataIsJudged(t *testing.T) {
	data := tarball(t, entry{name: "f", body: "x"})
	for name, data := range map[string][]byte{
		"garbage after the end": append(bytes.Clone(data), "garbage"...),
		"another archive":       append(bytes.Clone(data), data...),
		"not an archive":        []byte(strings.Repeat("no tar", 1000)),
		"empty":                 nil,
		"endless padding":       append(bytes.Clone(data), make([]byte, maxPadding+4096)...),
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			_, err := a.extract(data, ExtractOptions{})
			wantKind(t, err, ErrCorrupt)
			a.unchanged(t)
		})
	}
}

func TestF2FailuresKeepTheEarlierContent(t *testing.T) {
	data := tarball(t, entry{name: "a", body: strings.Repeat("a", 4096)}, entry{name: "b", body: "b"})
	broken := errors.New("connection reset")
	t.Run("reader fails", func(t *testing.T) {
		a := newArena(t)
		_, err := Extract(context.Background(), io.MultiReader(bytes.NewReader(data[:1024]), iotest.ErrReader(broken)), a.dest, ExtractOptions{})
		wantKind(t, err, ErrRead)
		wantKind(t, err, broken)
		a.unchanged(t)
	})
	t.Run("context ends", func(t *testing.T) {
		a := newArena(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		opt := ExtractOptions{Progress: func(entries, _ int64) {
			if entries == 1 {
				cancel(broken)
			}
		}}
		_, err := Extract(ctx, bytes.NewReader(data), a.dest, opt)
		wantKind(t, err, broken)
		a.unchanged(t)
	})
	t.Run("no space", func(t *testing.T) {
		if _, ok := freeSpace(mustRoot(t, t.TempDir())); !ok {
			t.Skip("this system does not tell the free space")
		}
		a := newArena(t)
		_, err := a.extract(data, ExtractOptions{Reserve: 1 << 60})
		wantKind(t, err, ErrSpace)
		a.unchanged(t)
	})
	for name, opt := range map[string]ExtractOptions{
		"entries": {MaxEntries: 1}, "bytes": {MaxBytes: 4096}, "name": {MaxName: 2}, "depth": {MaxDepth: 1},
	} {
		t.Run("limit of "+name, func(t *testing.T) {
			a := newArena(t)
			_, err := a.extract(tarball(t, entry{name: "a", body: strings.Repeat("a", 4096)}, entry{name: "b/c", body: "b"}), opt)
			wantKind(t, err, ErrLimit)
			a.unchanged(t)
		})
	}
	t.Run("claimed size", func(t *testing.T) {
		a := newArena(t)
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: "huge", Size: 1 << 50, Mode: 0o600, Format: tar.FormatGNU}); err != nil {
			t.Fatal(err)
		}
		_, err := a.extract(b.Bytes(), ExtractOptions{})
		wantKind(t, err, ErrLimit)
		a.unchanged(t)
	})
}

func mustRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestF2DestinationIsReplacedAsAWhole(t *testing.T) {
	a := newArena(t)
	sealed := filepath.Join(a.dest, "sealed", "inner")
	if err := os.MkdirAll(sealed, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sealed, "f"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{sealed, filepath.Dir(sealed)} {
		if err := os.Chmod(d, 0o555); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(a.dest, 0o710); err != nil {
		t.Fatal(err)
	}
	sum, err := a.extract(tarball(t, entry{kind: tar.TypeDir, name: "./", mode: 0o777}, entry{name: "new", body: "n"}), ExtractOptions{})
	if err != nil || sum.Leftover != "" {
		t.Fatalf("%v, leftover %q", err, sum.Leftover)
	}
	a.outsideIntact(t)
	onlyEntries(t, a.dest, "new")
	if fi, err := os.Stat(a.dest); err != nil || !windows && fi.Mode().Perm() != 0o710 {
		t.Errorf("mode of the destination is %v, %v, want the earlier 0710", fi.Mode(), err)
	}
	if _, err := a.extract(tarball(t), ExtractOptions{Mode: 0o700}); err != nil {
		t.Fatal(err)
	}
	onlyEntries(t, a.dest)
	if fi, err := os.Stat(a.dest); err != nil || !windows && fi.Mode().Perm() != 0o700 {
		t.Errorf("mode of the destination is %v, %v, want 0700", fi.Mode(), err)
	}
}

func TestDestinationOfAnotherKindIsRefused(t *testing.T) {
	a := newArena(t)
	link, file := filepath.Join(a.base, "in", "link"), filepath.Join(a.base, "outside.txt")
	if err := os.Symlink("dest", link); err != nil {
		t.Fatal(err)
	}
	data := tarball(t, entry{name: "f", body: "f"})
	for _, dest := range []string{link, file, string(filepath.Separator)} {
		_, err := Extract(context.Background(), bytes.NewReader(data), dest, ExtractOptions{})
		wantKind(t, err, ErrType)
	}
	for _, dest := range []string{link, a.dest} {
		_, err := extractFile(context.Background(), bytes.NewReader(data), dest, ExtractOptions{})
		wantKind(t, err, ErrType)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	a.unchanged(t)
}

func TestMembersComeInAnyOrderAndReplaceEachOther(t *testing.T) {
	a := newArena(t)
	old := time.Unix(1_000_000_000, 0)
	data := tarball(t,
		entry{name: "x/y/deep", body: "1"}, // before its directories
		entry{kind: tar.TypeDir, name: "x/", mode: 0o500, time: old},
		entry{kind: tar.TypeDir, name: "x/y/", mode: 0o511, time: old},
		entry{name: "top"},
		entry{name: "x/y/again", body: "2"}, // into a directory that was left read-only
		entry{name: "f", body: "first"},
		entry{kind: tar.TypeLink, name: "h", link: "./f"},
		entry{name: "f", body: "second"}, // h keeps the first
		entry{kind: tar.TypeSymlink, name: "l", link: "f"},
		entry{name: "l", body: "third"}, // over the link, not through it
	)
	sum, err := a.extract(data, ExtractOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, a.dest) })
	for name, want := range map[string]string{"x/y/deep": "1", "x/y/again": "2", "f": "second", "h": "first", "l": "third"} {
		if got, err := os.ReadFile(filepath.Join(a.dest, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]fs.FileMode{"x": 0o500, "x/y": 0o511} {
		fi, err := os.Stat(filepath.Join(a.dest, name))
		if err != nil || !windows && fi.Mode().Perm() != want || !fi.ModTime().Equal(old) {
			t.Errorf("%s is %v of %v, %v, want mode %o of %v", name, fi.Mode(), fi.ModTime(), err, want, old)
		}
	}
	if sum.Entries != 6 { // x/y/deep, top, x/y/again, f, h, l; implied directories are not members
		t.Errorf("entries %d, want 6", sum.Entries)
	}
	a.outsideIntact(t)
}

func TestModesAreAppliedWithoutSpecialBits(t *testing.T) {
	if windows {
		t.Skip("no such modes")
	}
	a := newArena(t)
	data := tarball(t, entry{name: "suid", mode: 0o6755}, entry{kind: tar.TypeDir, name: "sticky/", mode: 0o3777}, entry{name: "none", mode: 0o1000})
	if _, err := a.extract(data, ExtractOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"suid": 0o755, "sticky": 0o777 | fs.ModeDir, "none": 0} {
		if fi, err := os.Lstat(filepath.Join(a.dest, name)); err != nil || fi.Mode() != want {
			t.Errorf("%s is %v, %v, want %v", name, fi.Mode(), err, want)
		}
	}
}

func TestNamesThatTheHostCannotTellApartAreRefused(t *testing.T) {
	probe := t.TempDir()
	if err := os.WriteFile(filepath.Join(probe, "A"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := os.Stat(filepath.Join(probe, "a"))
	folds := err == nil
	a := newArena(t)
	_, err = a.extract(tarball(t, entry{name: "Makefile", body: "1"}, entry{name: "makefile", body: "2"}), ExtractOptions{})
	if folds {
		wantKind(t, err, ErrUnsafe)
		a.unchanged(t)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	onlyEntries(t, a.dest, "Makefile", "makefile")
}

func TestDepthIsBoundedAndDeepTreesWork(t *testing.T) {
	a := newArena(t)
	deep := strings.Repeat("d/", 2*openLinks) + "f"
	if _, err := a.extract(tarball(t, entry{name: deep, body: "x"}), ExtractOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := a.extract(tarball(t, entry{name: strings.Repeat("d/", MaxDepth) + "f"}), ExtractOptions{})
	wantKind(t, err, ErrLimit)
	// A directory that no member names counts, too.
	_, err = a.extract(tarball(t, entry{name: deep}), ExtractOptions{MaxEntries: 2 * openLinks})
	wantKind(t, err, ErrLimit)
	if _, err := os.Stat(filepath.Join(a.dest, deep)); err != nil {
		t.Errorf("the earlier content is gone: %v", err)
	}
}

func TestArchivesOfTarToolsAreUnderstood(t *testing.T) {
	for _, tool := range [][]string{{"tar"}, {"tar", "--format=posix"}, {"tar", "--format=oldgnu"}, {"tar", "-S"}, {"busybox", "tar"}, {"bsdtar"}} {
		t.Run(strings.Join(tool, " "), func(t *testing.T) {
			needTool(t, tool[0])
			src, a := t.TempDir(), newArena(t)
			oddTree(t, src)
			cmd := exec.Command(tool[0], append(tool[1:], "-c", "-f", "-", "-C", src, ".")...)
			data, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			sum, err := a.extract(data, ExtractOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeAll(t, a.dest) })
			if diff := cmp.Diff(describe(t, src), describe(t, a.dest)); diff != "" {
				t.Errorf("tree mismatch (-want +got):\n%s", diff)
			}
			if want := len(describe(t, src)); sum.Entries != int64(want) {
				t.Errorf("%d entries, want %d", sum.Entries, want)
			}
		})
	}
}

func TestSingleFileIsPublishedByRename(t *testing.T) {
	a := newArena(t)
	at := time.Unix(1_000_000_000, 0)
	dest := filepath.Join(a.dest, "old.txt")
	good := tarball(t, entry{name: "./whatever", body: "new", mode: 0o4750, time: at})
	for name, tc := range map[string]struct {
		data []byte
		kind error
	}{
		"no member":     {tarball(t), ErrUnsafe},
		"link":          {tarball(t, entry{kind: tar.TypeSymlink, name: "x", link: "/etc/passwd"}), ErrUnsafe},
		"directory":     {tarball(t, entry{kind: tar.TypeDir, name: "x/"}), ErrUnsafe},
		"second member": {tarball(t, entry{name: "x"}, entry{name: "y"}), ErrUnsafe},
		"cut":           {good[:len(good)-1024], ErrCorrupt},
		"cut in data":   {good[:514], ErrCorrupt},
	} {
		_, err := extractFile(context.Background(), bytes.NewReader(tc.data), dest, ExtractOptions{})
		if !errors.Is(err, tc.kind) {
			t.Errorf("%s: error %v, want one that is %q", name, err, tc.kind)
		}
		a.unchanged(t)
	}
	sum, err := extractFile(context.Background(), bytes.NewReader(good), dest, ExtractOptions{})
	if err != nil || sum.Entries != 1 || sum.Bytes != 3 {
		t.Fatalf("%+v, %v", sum, err)
	}
	fi, err := os.Stat(dest)
	if err != nil || !windows && fi.Mode() != 0o750 || !fi.ModTime().Equal(at) {
		t.Errorf("%v of %v, %v, want mode 0750 of %v", fi.Mode(), fi.ModTime(), err, at)
	}
	onlyEntries(t, a.dest, "old.txt")
	if _, err := extractFile(context.Background(), bytes.NewReader(good), filepath.Join(a.dest, "a", "b"), ExtractOptions{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
}

func TestExcludedMembersAreLeftOut(t *testing.T) {
	a := newArena(t)
	m, err := NewMatcher([]string{"/.leasehold", "*.log"})
	if err != nil {
		t.Fatal(err)
	}
	data := tarball(t, entry{name: "./.leasehold/x"}, entry{name: "a.log"}, entry{name: "./d/b.log"}, entry{name: "./d/c"})
	sum, err := a.extract(data, ExtractOptions{Exclude: m})
	if err != nil || sum.Entries != 1 || sum.SkippedCount != 0 {
		t.Fatalf("%+v, %v", sum, err)
	}
	onlyEntries(t, a.dest, "d")
}

// largeArchive is an archive of one large file, made as it is read.
func largeArchive(t testing.TB, size int64) io.Reader {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "big", Size: size, Mode: 0o600, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return io.MultiReader(&b, io.LimitReader(xs{}, size), bytes.NewReader(make([]byte, 1024)))
}

// xs is an endless row of x.
type xs struct{}

func (xs) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestF3MemoryDoesNotGrowWithTheArchive(t *testing.T) {
	allocated := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	const size = 256 << 20
	dest := filepath.Join(t.TempDir(), "dest")
	got := allocated(func() {
		if _, err := Extract(context.Background(), largeArchive(t, size), dest, ExtractOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	if got > 4<<20 {
		t.Errorf("extracting %d bytes allocated %d bytes, want at most 4 MiB", size, got)
	}
	src := open(t, dest)
	got = allocated(func() {
		if _, err := writeTree(context.Background(), io.Discard, src, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	if got > 4<<20 {
		t.Errorf("writing %d bytes allocated %d bytes, want at most 4 MiB", size, got)
	}
}

// FuzzExtract feeds anything to Extract: nothing outside the destination may change, a failure leaves the destination
// as it was, and after a success no link leads out.
func FuzzExtract(f *testing.F) {
	f.Add(tarball(f, entry{kind: tar.TypeDir, name: "d/"}, entry{name: "d/f", body: "x"}, entry{kind: tar.TypeSymlink, name: "l", link: "d/f"}), true)
	f.Add(tarball(f, entry{kind: tar.TypeSymlink, name: "l", link: "../x"}, entry{name: "l/f", body: "x"}), true)
	f.Add(tarball(f, entry{name: "f", body: "x"}, entry{kind: tar.TypeLink, name: "h", link: "f"}, entry{name: "../f"}), false)
	f.Add(tarball(f, entry{name: strings.Repeat("long/", 40) + "f"}, entry{kind: tar.TypeSymlink, name: "l", link: strings.Repeat("../", 60)}), false)
	a := newArena(f) // for all: most inputs fail, and leave it as it was
	f.Fuzz(func(t *testing.T, data []byte, omit bool) {
		opt := ExtractOptions{MaxEntries: 50, MaxBytes: 1 << 20, MaxDepth: 20}
		if omit {
			opt.Links = LinksOmit
		}
		if _, err := a.extract(data, opt); err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("error of another type: %v", err)
			}
			a.unchanged(t)
			return
		}
		unlockAll(t, a.dest)
		a.outsideIntact(t)
		err := filepath.WalkDir(a.dest, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink == 0 {
				return err
			}
			if end, err := filepath.EvalSymlinks(path); err == nil {
				if rel, err := filepath.Rel(mustEval(t, a.dest), end); err != nil || !filepath.IsLocal(rel) {
					return fmt.Errorf("%q leads to %q", path, end)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(a.dest); err != nil {
			t.Fatal(err)
		}
		a.lay(t)
	})
}

func mustEval(t testing.TB, path string) string {
	t.Helper()
	end, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return end
}
