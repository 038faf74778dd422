//go:build unix

package leasehold

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestOddNamesSurviveAnImport(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := t.TempDir()
	writeFiles(t, local, map[string]string{
		"-C": "", "--safe [file].txt": "", "line\nbreak\n": "", "$(not-a-command)": "", "`x`": "", "o'clock \"x\"": "", "\\": "", "*": "", "?": "", " ": "",
		"~": "", "evil -> decoy": "", "...": "", ".hidden/..dots": "", "invalid \xff\xfe": "", "\x01\x7f": "", "e\u0301": "decomposed", "\u00e9": "composed",
		strings.Repeat("n", 255): "longest", strings.Repeat("d", 147) + "/" + strings.Repeat("f", 90): "ustar split", "CASE": "upper", "case": "lower",
	})
	for range 2 { // new, and over itself
		if _, err := l.Importer().Dir(t.Context(), local, "dir with 'quotes'\nand more", ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		wantTree(t, local, filepath.Join(l.Ref().Workspace, "dir with 'quotes'\nand more"))
	}
}

// deep makes so many directories of a name in each other, and a file in the last one.
func deep(t *testing.T, dir string, levels int, name, body string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	for range levels {
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		above := root
		root, err = above.OpenRoot(name)
		above.Close()
	}
	if err == nil {
		err = errors.Join(root.WriteFile("f", []byte(body), 0o644), root.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeepTreesAreMergedOrRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	r.server.ResetRequests()
	if long() {
		local := t.TempDir()
		deep(t, local, archive.MaxDepth, "d", "x") // the file is one level deeper
		_, err := l.Importer().Dir(t.Context(), local, "deep", ImportOptions{})
		if wantError(t, err, KindLimit); !strings.Contains(err.Error(), `d/f"`) {
			t.Errorf("%v does not name the file", err)
		}
	}
	local := t.TempDir()
	deep(t, local, 150, strings.Repeat("n", 255), "x") // 38,400 bytes of path
	_, err := l.Importer().Dir(t.Context(), local, "deep", ImportOptions{})
	if wantError(t, err, KindLimit); !strings.Contains(err.Error(), `nnn"`) {
		t.Errorf("%v does not name the directory", err)
	}
	long := strings.Repeat(strings.Repeat("d", 199)+"/", 20)[:3900-len(l.Ref().Workspace)] // the path is legal, not that in the scratch directory
	_, err = l.Importer().File(t.Context(), "filesync.go", long+"/"+strings.Repeat("n", 170), ImportOptions{})
	wantError(t, err, KindLimit)
	r.wantRequests(t)
	local = t.TempDir()
	const levels = maxMergeDepth - 1
	for _, body := range []string{"first", "second"} {
		deep(t, local, levels, "d", body)
		if _, err := l.Importer().Dir(t.Context(), local, "deep", ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(l.Ref().Workspace, "deep", strings.Repeat("d/", levels), "f"))
		if err != nil || string(got) != body {
			t.Errorf("%q, %v, want %q", got, err, body)
		}
	}
	wantNoScratch(t, l, l.Ref().Workspace+"/deep")
}

// A tree whose paths are longer than the system takes goes in and comes out the same.
func TestF2TreeDeeperThanAnyPath(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local, dest, levels, name := t.TempDir(), filepath.Join(t.TempDir(), "dest"), 400, "a directory"
	if long() {
		levels, name = 4000, "d"
	}
	deep(t, local, levels, name, "bottom")
	deep(t, local, maxMergeDepth+1, name, "middle")
	want := treeDigest(t, local)
	result, err := l.Importer().Dir(t.Context(), local, "deep", ImportOptions{})
	if err != nil || result.Entries != int64(levels)+2 {
		t.Fatalf("%+v, %v, want %d entries", result, err, levels+2)
	}
	result, err = l.Exporter().Dir(t.Context(), "deep", dest, ExportOptions{})
	if err != nil || result.Entries != int64(levels)+2 {
		t.Fatalf("%+v, %v, want %d entries", result, err, levels+2)
	}
	if got := treeDigest(t, dest); got != want {
		t.Errorf("the host got another tree")
	}
	if long() {
		reimportDeep(t, l, local, name, want)
	}
	wantNoScratch(t, l, filepath.Dir(dest), l.Ref().Workspace+"/deep")
}

// reimportDeep imports a deep tree over itself, and through a stream.
func reimportDeep(t *testing.T, l *Lease, local, name, want string) {
	_, err := l.Importer().Dir(t.Context(), local, "deep", ImportOptions{})
	if wantError(t, err, KindConflict); !strings.Contains(err.Error(), "/"+name+`"`) {
		t.Errorf("%v does not name the directory", err)
	}
	var stream bytes.Buffer
	if _, err = l.Exporter().Tar(t.Context(), "deep", &stream, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Importer().Tar(t.Context(), &stream, "streamed", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"deep", "streamed"} {
		if got := treeDigest(t, filepath.Join(l.Ref().Workspace, dir)); got != want {
			t.Errorf("%s in the sandbox is another tree", dir)
		}
	}
}

// treeDigest is a digest of all that an archive says of a tree.
func treeDigest(t *testing.T, dir string) string {
	t.Helper()
	src, err := archive.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	load, err := archive.LoadTree(t.Context(), src, archive.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer load.Close()
	sum := sha256.New()
	for _, part := range load.Parts() {
		if _, err := part.Write(t.Context(), sum, nil); err != nil {
			t.Fatal(err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func TestF2UploadCutAfterSomeBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := t.TempDir()
	writeFiles(t, local, map[string]string{"d/f": strings.Repeat("x", 5000), "g": "y"})
	r.server.ResetRequests()
	if _, err := l.Importer().Dir(t.Context(), local, "whole", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	total := r.server.Requests()[0].Received
	for _, k := range []int64{0, 1, 511, 512, 513, total / 2, total - 1} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			dest := filepath.Join(l.Ref().Workspace, fmt.Sprint("cut ", k))
			writeFiles(t, dest, map[string]string{"d/f": "old"})
			before := tree(t, dest)
			r.server.SetFaults(emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: k, Count: -1})
			_, err := l.Importer().Dir(t.Context(), local, dest, ImportOptions{})
			// What was cut off may be no more than the end of the form: the sandbox then has proved that the files are whole.
			whole := err == nil && k == total-1 && cmp.Equal(tree(t, local), tree(t, dest))
			if e, ok := err.(*Error); !whole && (!ok || e.Kind != KindUnavailable && e.Kind != KindUncertain || !e.Retryable) {
				t.Errorf("always cut: %v, want an error that may be repeated", err)
			}
			if diff := cmp.Diff(before, tree(t, dest)); diff != "" && !whole {
				t.Errorf("always cut: tree mismatch (-before +after):\n%s", diff)
			}
			r.wantHits(t)
			r.server.SetFaults(emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: k})
			if _, err := l.Importer().Dir(t.Context(), local, dest, ImportOptions{}); err != nil {
				t.Fatalf("cut once: %v", err)
			}
			wantTree(t, local, dest)
			// A stream cannot be read again.
			r.server.SetFaults(emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: k})
			_, err = l.Importer().Tar(t.Context(), strings.NewReader(string(pack(t, file("g", strings.Repeat("z", int(total)))))), dest, ImportOptions{})
			if e, ok := err.(*Error); !ok || e.Retryable {
				t.Errorf("a stream: %v, want an error that says that the same call will not succeed", err)
			}
			wantTree(t, local, dest)
			r.server.SetFaults()
			wantNoScratch(t, l, dest)
		})
	}
}

func TestF2SandboxWithNothingFree(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	writeFiles(t, local, map[string]string{"d/f": strings.Repeat("x", 5000), "g": "y"})
	for name, options := range map[string]string{"bytes": "64k", "inodes": "64k,nr_inodes=4"} {
		t.Run(name, func(t *testing.T) {
			disk := filepath.Join(ws, "no "+name)
			tinyDisk(t, disk, options)
			writeFiles(t, disk, map[string]string{"earlier": "kept", "fill": ""})
			if name == "bytes" {
				fill, err := os.OpenFile(filepath.Join(disk, "fill"), os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(fill, zeros{}); err == nil {
					t.Fatal("the disk does not fill")
				}
				fill.Close()
			} else {
				writeFiles(t, disk, map[string]string{"last": ""})
			}
			before := tree(t, disk)
			for what, do := range map[string]func() error{
				"directory": func() error { _, err := l.Importer().Dir(t.Context(), local, disk, ImportOptions{}); return err },
				"file": func() error {
					_, err := l.Importer().File(t.Context(), local+"/g", disk+"/g", ImportOptions{})
					return err
				},
				"delta": func() error {
					_, err := l.Importer().Dir(t.Context(), local, disk, ImportOptions{Delta: DeltaTimes, Delete: true})
					return err
				},
				"bundle": func() error {
					_, err := l.Importer().Dir(t.Context(), local, disk+"/b", ImportOptions{Access: AccessReadOnly})
					return err
				},
			} {
				if e := wantError(t, do(), KindQuota); e.Retryable {
					t.Errorf("%s: the error says that it may be repeated", what)
				}
				if diff := cmp.Diff(before, tree(t, disk)); diff != "" {
					t.Errorf("%s: disk mismatch (-before +after):\n%s", what, diff)
				}
			}
			wantNoScratch(t, l, disk)
		})
	}
}

func TestFilesThatChangeUnderAnImport(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	in := func(dir, name string) string { return filepath.Join(dir, name) }
	for name, tc := range map[string]struct {
		large  bool // with files that are sent by themselves, before the others
		change func(dir string) error
	}{
		"shrinks while it is read":     {false, func(dir string) error { return os.Truncate(in(dir, "a"), 1<<20) }},
		"grows while it is read":       {false, func(dir string) error { return os.Truncate(in(dir, "a"), 20<<20) }},
		"vanishes before it is read":   {false, func(dir string) error { return os.Remove(in(dir, "b")) }},
		"directory is moved away":      {false, func(dir string) error { return os.Rename(in(dir, "z"), in(dir, "zz")) }},
		"large file grows":             {true, func(dir string) error { return os.Truncate(in(dir, "y"), 20<<20) }},
		"large file is moved away":     {true, func(dir string) error { return os.Rename(in(dir, "y"), in(dir, "yy")) }},
		"large file becomes a link":    {true, func(dir string) error { return errors.Join(os.Remove(in(dir, "y")), os.Symlink("a", in(dir, "y"))) }},
		"large file, swapped in place": {true, func(dir string) error { return os.Rename(in(dir, "b"), in(dir, "y")) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeFiles(t, dir, map[string]string{"a": "", "b": "x", "z/f": "x"})
			sizes := map[string]int64{"a": 7 << 20}
			if tc.large {
				sizes = map[string]int64{"a": 9 << 20, "y": 10 << 20}
				writeFiles(t, dir, map[string]string{"y": ""})
			}
			for file, size := range sizes {
				fillFile(t, in(dir, file), size)
			}
			var once atomic.Bool
			progress := func(p Progress) {
				if p.Bytes > 0 && !p.Done && once.CompareAndSwap(false, true) { // the first file is being read
					if err := tc.change(dir); err != nil {
						t.Error(err)
					}
				}
			}
			dest := filepath.Join(l.Ref().Workspace, name)
			_, err := l.Importer().Dir(t.Context(), dir, dest, ImportOptions{Progress: progress})
			wantError(t, err, KindIO)
			if !once.Load() {
				t.Error("nothing was changed: the test proves nothing")
			}
			wantNoScratch(t, l, dest)
			if left, err := os.ReadDir(dest); len(left) > 0 {
				t.Errorf("the destination has %v, %v", left, err)
			}
		})
	}
}

func TestStalledImportsEndAndSlowOnesDoNot(t *testing.T) {
	t.Parallel()
	type held struct { // requests that get no answer
		path    string // its end
		release chan struct{}
	}
	var hold atomic.Pointer[held]
	r := newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if h := hold.Load(); h != nil && strings.HasSuffix(r.URL.Path, h.path) {
				<-h.release
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	l := r.acquired(t)
	local := t.TempDir()
	writeFiles(t, local, map[string]string{"f": "x", "large": ""})
	if err := os.Truncate(filepath.Join(local, "large"), 64<<20); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/files/bulk-upload", "/process/execute"} {
		h := &held{path, make(chan struct{})}
		hold.Store(h)
		_, err := l.Importer().Dir(t.Context(), local, "", ImportOptions{StallTimeout: 300 * time.Millisecond})
		hold.Store(nil)
		close(h.release)
		if e := wantError(t, err, KindTimeout); !e.Retryable || errors.Is(err, ErrCanceled) {
			t.Errorf("%s: %+v, want an error that may be repeated", path, e)
		}
		wantNoScratch(t, l)
	}
	// Slower as a whole than the time without progress.
	slow := &slowReader{data: pack(t, file("f", strings.Repeat("x", 4000))), every: time.NewTicker(500 * time.Millisecond)}
	defer slow.every.Stop()
	const stall = 5 * time.Second
	start := time.Now()
	if _, err := l.Importer().Tar(t.Context(), slow, "", ImportOptions{StallTimeout: stall}); err != nil {
		t.Errorf("a slow import ended: %v", err)
	}
	if took := time.Since(start); took < stall {
		t.Errorf("took %v: the test proves nothing", took)
	}
}

type slowReader struct {
	data  []byte
	every *time.Ticker
}

func (s *slowReader) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	<-s.every.C
	n := copy(p, s.data[:min(len(s.data), 400)])
	s.data = s.data[n:]
	return n, nil
}

// The sizes that take minutes.
func TestF3HugeImports(t *testing.T) {
	files, sparse := 1000, int64(1<<30)
	if long() {
		files, sparse = 100_000, 10<<30
	}
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	t.Run("small files", func(t *testing.T) {
		local := t.TempDir()
		manyFiles(t, local, files, 10)
		r.server.ResetRequests()
		result, err := l.Importer().Dir(t.Context(), local, "many", ImportOptions{})
		if err != nil || result.Bytes != int64(files)*10 {
			t.Fatalf("%+v, %v, want %d files", result, err, files)
		}
		if n := r.count()["POST /toolbox/*/files/bulk-upload"]; n != 1 { // a long silence of the sandbox is asked about
			t.Errorf("%d uploads, want 1", n)
		}
		wantTree(t, local, filepath.Join(l.Ref().Workspace, "many"))
		result, err = l.Importer().Dir(t.Context(), local, "many", ImportOptions{Delta: DeltaTimes, Delete: true})
		if err != nil || result.Entries != 0 || result.Removed != 0 {
			t.Errorf("%+v, %v, want nothing to send or remove", result, err)
		}
	})
	t.Run("sparse file", func(t *testing.T) {
		local := t.TempDir()
		sparseFile(t, filepath.Join(local, "sparse"), sparse)
		if _, err := l.Importer().Dir(t.Context(), local, "sparse", ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		got := filepath.Join(l.Ref().Workspace, "sparse", "sparse")
		wantSparse(t, got, sparse)
	})
	wantNoScratch(t, l)
}

// sparseFile makes a file with a few bytes at its start, in its middle and at its end.
func sparseFile(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{0, size / 2, size - 4} {
		if _, err := f.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
}

// wantSparse looks for them again, and for the holes between them.
func wantSparse(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || fi.Size() != size {
		t.Fatalf("size %d, %v, want %d", fi.Size(), err, size)
	}
	var buf [4]byte
	for at, want := range map[int64]string{0: "data", size / 2: "data", size - 4: "data", size / 4: "\x00\x00\x00\x00"} {
		if _, err := f.ReadAt(buf[:], at); err != nil || string(buf[:]) != want {
			t.Errorf("%q at %d, %v, want %q", buf, at, err, want)
		}
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); runtime.GOOS == "linux" && (!ok || st.Blocks*512 > 1<<20) {
		t.Errorf("%d bytes on the disk: the holes were filled", st.Blocks*512)
	}
}

// emptyFS is a file system whose files return nothing, and no error either.
type emptyFS struct{ fs.FS }

type emptyFile struct{ fs.File }

func (f emptyFS) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if fi, statErr := fs.Stat(f.FS, name); err != nil || statErr != nil || fi.IsDir() {
		return file, err
	}
	return emptyFile{file}, nil
}

func (emptyFile) Read([]byte) (int, error) { return 0, nil }

func TestAReaderThatReturnsNothingEndsTheCall(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportJournal)
	empty := readerFunc(func([]byte) (int, error) { return 0, nil })
	run := func(cmd Command) func() error {
		return func() error { return second(l.Executor().Run(t.Context(), cmd)) }
	}
	importFS := func(size int, options ImportOptions) func() error {
		fsys := emptyFS{fstest.MapFS{"f": {Data: make([]byte, size), Mode: 0o644, ModTime: time.Unix(1, 0)}}}
		return func() error { return second(l.Importer().FS(t.Context(), fsys, "in", options)) }
	}
	mustRun(t, l, Command{Script: "mkdir in && printf x >in/f && chmod 644 in/f"}, finished(0, "", ""))
	for name, call := range map[string]func() error{
		"journal":       run(Command{Args: []string{"cat"}, Stdin: empty, Transport: TransportJournal}),
		"session":       run(Command{Args: []string{"cat"}, Stdin: empty, Transport: TransportSession}),
		"after a while": run(Command{Args: []string{"cat"}, Stdin: io.MultiReader(bytes.NewReader(numbered(100_000)), empty)}),
		"channel": func() error {
			ch := openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
			defer ch.Close()
			_, err := io.Copy(ch, empty)
			return err
		},
		"tar":          func() error { return second(l.Importer().Tar(t.Context(), empty, "in", ImportOptions{})) },
		"files":        importFS(1, ImportOptions{}),
		"large files":  importFS(16<<20, ImportOptions{}),
		"file digests": importFS(1, ImportOptions{Delta: DeltaDigests}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := call(); !errors.Is(err, io.ErrNoProgress) || name != "channel" && !errors.Is(err, ErrIO) {
				t.Errorf("error = %v, want io.ErrNoProgress", err)
			}
		})
	}
}
