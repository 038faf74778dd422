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
	"sort"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needTool skips the test when a program is missing, unless everything is required.
func needTool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatalf("%s is missing", name)
		}
		t.Skipf("%s is missing", name)
	}
	return path
}

// entry is a member of a hand-made archive.
type entry struct {
	kind byte // 0 is a regular file
	name string
	body string
	link string
	mode int64 // 0 is 0644, or 0755 for a directory
	time time.Time
}

// tarball makes an archive of members, with its end.
func tarball(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Mode: e.mode, ModTime: e.time, Format: tar.FormatGNU}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
			h.Size = int64(len(e.body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if e.kind == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("header of %q: %v", e.name, err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// describe returns a line for each entry below dir: kind, permissions, size or target, name, content, seconds of the
// time of files and directories.
func describe(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == "." {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %q", fi.Mode(), rel)
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if len(data) > 64 {
				data = fmt.Appendf(nil, "%d bytes", len(data))
			}
			line += fmt.Sprintf(" %q %d", data, fi.ModTime().Unix())
		case fi.IsDir():
			line += fmt.Sprintf(" %d", fi.ModTime().Unix())
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return lines
}

// oddTree fills dir with everything that must survive.
func oddTree(t testing.TB, dir string) {
	t.Helper()
	if windows {
		t.Skip("this system cannot hold such names")
	}
	old := time.Unix(1_000_000_000, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, body string, mode fs.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(body), 0o600))
		must(os.Chmod(path, mode))
		must(os.Chtimes(path, old, old))
	}
	write("plain.txt", "hello\n", 0o644)
	write("empty", "", 0o600)
	write("run.sh", "#!/bin/sh\n", 0o755)
	write("shared", "group", 0o666)
	write("read only", "x", 0o444)
	write("-C", "dash", 0o644)
	write("--safe [file].txt", "glob", 0o644)
	write("line\nbreak", "newline", 0o644)
	write("$(not-a-command)", "dollar", 0o644)
	write("o'clock \"x\"", "quotes", 0o644)
	write("evil -> decoy", "arrow", 0o644)
	write(".hidden/..dots/...", "dots", 0o644)
	write("e\u0301", "decomposed", 0o644)
	write("\u00e9", "composed", 0o644)
	write(strings.Repeat("d", 147)+"/"+strings.Repeat("f", 90), "ustar split", 0o644)
	write(strings.Repeat("n", 255), "long", 0o644)
	write(strings.Repeat("deep directory name/", 30)+"leaf", "over 255 bytes", 0o644)
	write("big", strings.Repeat("0123456789abcdef", 64<<10), 0o640)
	write("invalid \xff\xfe utf-8", "bytes", 0o644)
	write(`back\slash`, "backslash", 0o644)
	must(os.Mkdir(filepath.Join(dir, "empty dir"), 0o700))
	must(os.Symlink("plain.txt", filepath.Join(dir, "link")))
	must(os.Symlink("../plain.txt", filepath.Join(dir, ".hidden", "up")))
	must(os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(os.Symlink(strings.Repeat("long target/", 30), filepath.Join(dir, "long link")))
	must(os.Link(filepath.Join(dir, "plain.txt"), filepath.Join(dir, "zz hard link")))
	write("sealed/inner/file", "sealed", 0o400)
	must(os.Chmod(filepath.Join(dir, "sealed", "inner"), 0o555))
	must(os.Chmod(filepath.Join(dir, "sealed"), 0o555))
	t.Cleanup(func() {
		_ = os.Chmod(filepath.Join(dir, "sealed"), 0o755)
		_ = os.Chmod(filepath.Join(dir, "sealed", "inner"), 0o755)
	})
	for _, d := range []string{"sealed/inner", "sealed", "empty dir", ".hidden/..dots", ".hidden"} {
		must(os.Chtimes(filepath.Join(dir, d), old, old))
	}
}

func open(t testing.TB, dir string) Source {
	t.Helper()
	src, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

func pack(t testing.TB, dir string, opt WriteOptions) ([]byte, Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := writeTree(context.Background(), &b, open(t, dir), opt)
	if err != nil {
		t.Fatalf("writing: %v", err)
	}
	return b.Bytes(), sum
}

// wantKind fails the test unless err is of the kind.
func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want one that is %q", err, kind)
	}
}

// onlyEntries fails the test when a directory has anything but these entries.
func onlyEntries(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	sort.Strings(want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

// writeTree writes the whole of a source as one archive.
func writeTree(ctx context.Context, w io.Writer, src Source, opt WriteOptions) (Summary, error) {
	t := newTreeWriter(ctx, w, opt)
	return t.finish(t.tree(src))
}

// extractFile extracts the one file of an archive.
func extractFile(ctx context.Context, r io.Reader, file string, opt ExtractOptions) (Summary, error) {
	return ExtractFiles(ctx, r, []Target{{Path: file, Mode: opt.Mode}}, opt)
}

// Size returns how much was written.
func (s *Sum) Size() int64 { return s.size }

// eventually waits for what a script brings about.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}
