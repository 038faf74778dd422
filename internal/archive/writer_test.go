package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTreeSurvivesARoundTrip(t *testing.T) {
	for _, repeat := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeat directories %v", repeat), func(t *testing.T) {
			src, dest := t.TempDir(), filepath.Join(t.TempDir(), "copy")
			oddTree(t, src)
			data, wrote := pack(t, src, WriteOptions{RepeatDirs: repeat})
			modes, err := NewMatcher([]string{Literal(ModesMember)})
			if err != nil {
				t.Fatal(err)
			}
			sum, err := Extract(context.Background(), bytes.NewReader(data), dest, ExtractOptions{Exclude: modes})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeAll(t, dest) })
			if diff := cmp.Diff(describe(t, src), describe(t, dest)); diff != "" {
				t.Errorf("tree mismatch (-want +got):\n%s", diff)
			}
			if sum.Entries != wrote.Entries || sum.Bytes != wrote.Bytes || sum.Archive != int64(len(data)) || wrote.Archive != sum.Archive {
				t.Errorf("wrote %+v, extracted %+v, archive of %d bytes", wrote, sum, len(data))
			}
			a, err1 := os.Stat(filepath.Join(dest, "plain.txt"))
			b, err2 := os.Stat(filepath.Join(dest, "zz hard link"))
			if err1 != nil || err2 != nil || !os.SameFile(a, b) {
				t.Errorf("the hard link became a file of its own (%v, %v)", err1, err2)
			}
		})
	}
}

// unlockAll makes directories accessible, for whoever looks at them.
func unlockAll(t testing.TB, dir string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return err
	})
}

// removeAll removes what [testing.T.TempDir] could not.
func removeAll(t testing.TB, dir string) {
	t.Helper()
	root, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return
	}
	defer root.Close()
	_ = removeTree(root, filepath.Base(dir))
}

// The extractors of sandboxes read what WriteTree writes.
func TestTarToolsExtractTheTree(t *testing.T) {
	for _, tool := range [][]string{{"tar"}, {"busybox", "tar"}, {"bsdtar"}} {
		t.Run(tool[0], func(t *testing.T) {
			needTool(t, tool[0])
			src, dest := t.TempDir(), t.TempDir()
			oddTree(t, src)
			data, _ := pack(t, src, WriteOptions{RepeatDirs: true})
			cmd := exec.Command("sh", append([]string{"-c", `umask 0; exec "$@"`, "sh"}, append(tool, "-x", "-p", "-o", "-f", "-", "-C", dest)...)...)
			cmd.Stdin = bytes.NewReader(data)
			cmd.Env = append(os.Environ(), "EXTRACT_UNSAFE_SYMLINKS=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			cmd = exec.Command("sh", "-e", "./"+ModesMember)
			cmd.Dir = dest
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := os.Remove(filepath.Join(dest, ModesMember)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeAll(t, dest) })
			if tool[0] == "busybox" {
				// It makes links with ".." last of all, after it has set the directory's time.
				old := time.Unix(1_000_000_000, 0)
				if err := os.Chtimes(filepath.Join(dest, ".hidden"), old, old); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(describe(t, src), describe(t, dest)); diff != "" {
				t.Errorf("tree mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEmptyTreeIsAnArchiveWithAnEnd(t *testing.T) {
	data, sum := pack(t, t.TempDir(), WriteOptions{})
	if len(data) != 1024 || sum.Entries != 0 {
		t.Fatalf("%d bytes, %d entries, want 1024 and 0", len(data), sum.Entries)
	}
	dest := filepath.Join(t.TempDir(), "new")
	if _, err := Extract(context.Background(), bytes.NewReader(data), dest, ExtractOptions{}); err != nil {
		t.Fatal(err)
	}
	onlyEntries(t, dest)
}

func TestSetIDAndStickyBitsAreNotWritten(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tool")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	data, _ := pack(t, dir, WriteOptions{})
	h, err := tar.NewReader(bytes.NewReader(data)).Next()
	if err != nil || h.Mode != 0o755 {
		t.Errorf("mode %o, error %v, want 755", h.Mode, err)
	}
}

func TestSpecialFilesAreListedNotSent(t *testing.T) {
	dir := t.TempDir()
	if err := makeFIFO(filepath.Join(dir, "pipe")); err != nil {
		t.Skipf("no FIFOs here: %v", err)
	}
	// A socket's path is limited to about 100 bytes, which a test's directory may exceed.
	t.Chdir(dir)
	l, err := net.Listen("unix", "sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, sum := pack(t, dir, WriteOptions{})
	want := []Skipped{{"pipe", ReasonFIFO}, {"sock", ReasonSocket}}
	if diff := cmp.Diff(want, sum.Skipped); diff != "" || sum.SkippedCount != 2 || sum.Entries != 0 {
		t.Errorf("skipped mismatch (-want +got):\n%s\ncount %d, entries %d", diff, sum.SkippedCount, sum.Entries)
	}
}

// changing calls a function in the middle of the archive.
type changing struct {
	after int
	do    func()
	buf   bytes.Buffer
}

func (c *changing) Write(p []byte) (int, error) {
	n, err := c.buf.Write(p)
	if c.do != nil && c.buf.Len() >= c.after {
		c.do()
		c.do = nil
	}
	return n, err
}

func TestF2SourceThatChangesEndsTheArchive(t *testing.T) {
	const size = 4 << 20
	for name, change := range map[string]func(file string) error{
		"shrinks":  func(file string) error { return os.Truncate(file, size/2) },
		"grows":    func(file string) error { return os.Truncate(file, size+1) },
		"vanishes": func(file string) error { return os.Remove(filepath.Join(filepath.Dir(file), "later")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "file")
			for _, f := range []string{file, filepath.Join(dir, "later")} {
				if err := os.WriteFile(f, make([]byte, size), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var failure error
			w := &changing{after: 1 << 20, do: func() { failure = change(file) }}
			_, err := writeTree(context.Background(), w, open(t, dir), WriteOptions{})
			if failure != nil {
				t.Fatal(failure)
			}
			wantKind(t, err, ErrChanged)
			var e *Error
			if !errors.As(err, &e) || e.Name == "" || !strings.Contains(err.Error(), e.Name) {
				t.Errorf("the error %q does not name the file", err)
			}
			dest := filepath.Join(t.TempDir(), "dest")
			if _, err := Extract(context.Background(), &w.buf, dest, ExtractOptions{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("the archive is taken for a whole one: %v", err)
			}
		})
	}
}

func TestWriteErrorsAndContextEndTheWriting(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("sink broke")
	_, err := writeTree(context.Background(), failingWriter{broken}, open(t, dir), WriteOptions{})
	wantKind(t, err, ErrWrite)
	wantKind(t, err, broken)

	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	w := &changing{after: 1, do: func() { cancel(cause) }}
	_, err = writeTree(ctx, w, open(t, dir), WriteOptions{})
	wantKind(t, err, cause)
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

func TestFileSystemsOtherThanTheHostsAreArchived(t *testing.T) {
	at := time.Unix(1_500_000_000, 0)
	fsys := fstest.MapFS{
		"a/b.txt": {Data: []byte("b"), Mode: 0o640, ModTime: at},
		"a/ln":    {Data: []byte("b.txt"), Mode: 0o777 | os.ModeSymlink, ModTime: at},
		"top":     {Data: []byte("t"), Mode: 0o600, ModTime: at},
	}
	var b bytes.Buffer
	sum, err := writeTree(context.Background(), &b, FS(fsys), WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	r := tar.NewReader(&b)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %s %s", h.Typeflag, h.Name, h.Linkname))
	}
	want := []string{"5 a/ ", "0 a/b.txt ", "2 a/ln b.txt", "0 top "}
	if diff := cmp.Diff(want, got); diff != "" || sum.Entries != 4 {
		t.Errorf("members mismatch (-want +got):\n%s\nentries %d", diff, sum.Entries)
	}
}

func TestWalkPredictsTheSummary(t *testing.T) {
	dir := t.TempDir()
	oddTree(t, dir)
	exclude, err := NewMatcher([]string{"big"})
	if err != nil {
		t.Fatal(err)
	}
	opt := WriteOptions{Exclude: exclude}
	load, err := LoadTree(context.Background(), open(t, dir), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer load.Close()
	count := load.Total
	_, sum := pack(t, dir, opt)
	if count.Entries != sum.Entries || count.Bytes != sum.Bytes {
		t.Errorf("counted %d entries and %d bytes, wrote %d and %d", count.Entries, count.Bytes, sum.Entries, sum.Bytes)
	}
}

func TestExcludePatterns(t *testing.T) {
	for _, tc := range []struct {
		patterns string
		name     string
		dir      bool
		want     bool
	}{
		{"*.o", "a.o", false, true}, {"*.o", "x/y/a.o", false, true}, {"*.o", "a.oo", false, false},
		{"node_modules", "a/node_modules", true, true}, {"node_modules", "a/node_modules/b/c", false, true},
		{"/build", "build", true, true}, {"/build", "a/build", true, false}, {"/build", "build/x", false, true},
		{"docs/*.pdf", "docs/a.pdf", false, true}, {"docs/*.pdf", "docs/x/a.pdf", false, false}, {"docs/*.pdf", "x/docs/a.pdf", false, false},
		{"src/**/testdata", "src/testdata", true, true}, {"src/**/testdata", "src/a/b/testdata/x", false, true},
		{"**/x", "a/b/x", false, true}, {"a/**", "a/b", false, true}, {"a/**", "ab", false, false}, {"**", "anything", false, true},
		{"tmp/", "tmp", false, false}, {"tmp/", "tmp", true, true}, {"tmp/", "a/tmp/x", false, true},
		{"*", ".hidden", false, true}, {"[ab]", "b", false, true}, {`\*`, "*", false, true}, {`\*`, "x", false, false},
		{Literal("a*[x]?/b"), "a*[x]?/b", false, true}, {Literal("a*"), "ab", false, false},
	} {
		m, err := NewMatcher([]string{tc.patterns})
		if err != nil {
			t.Errorf("NewMatcher(%q): %v", tc.patterns, err)
			continue
		}
		if got := m.MatchBelow(tc.name, tc.dir); got != tc.want {
			t.Errorf("%q matches %q (directory %v): %v, want %v", tc.patterns, tc.name, tc.dir, got, tc.want)
		}
	}
	for _, bad := range []string{"", "/", "[", "a//b", "../x", "./x", "!keep", "a\x00"} {
		if _, err := NewMatcher([]string{bad}); err == nil {
			t.Errorf("NewMatcher(%q) takes it", bad)
		}
	}
	const want = `"[" is malformed; "!keep" is a negation, which is not supported`
	if _, err := NewMatcher([]string{"[", "good", "!keep"}); err == nil || err.Error() != want {
		t.Errorf("NewMatcher() of several bad patterns = %v, want %s", err, want)
	}
	_, err := NewMatcher(slices.Repeat([]string{"[" + strings.Repeat("x", 1000)}, 1000))
	if err == nil || !strings.HasSuffix(err.Error(), "; and 990 more") || len(err.Error()) > 3000 {
		t.Errorf("NewMatcher() of 1,000 bad patterns = %v, want ten of them, cut off", err)
	}
}
