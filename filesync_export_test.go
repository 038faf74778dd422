//go:build unix

package leasehold

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// noise writes a file of random bytes, which no hole and no compression makes smaller.
func noise(t testing.TB, path string, size int64) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), size); err != nil {
		t.Fatal(err)
	}
}

func sameFile(t testing.TB, want, got string) {
	t.Helper()
	a, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(got)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("%s has %d bytes, %v, want the %d bytes of %s", got, len(b), err, len(a), want)
	}
}

// An archive of many pieces needs no more of the sandbox's disk than four, whatever its size, and few requests.
func TestF3ExportInPieces(t *testing.T) {
	t.Parallel()
	size := int64(40 << 20) // two pieces; how many are there at a time is seen of smaller ones, and of more
	if os.Getenv("LEASEHOLD_LONG") == "1" {
		size = 1 << 30
	}
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	source, dest := filepath.Join(l.Ref().Workspace, "big"), filepath.Join(t.TempDir(), "dest")
	noise(t, filepath.Join(source, "f"), size)
	if _, err := l.toolbox(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.server.ResetRequests()
	own := filepath.Join(l.Ref().Workspace, sentinelDir)
	var most int64
	watch := func(Progress) {
		var now int64
		err := filepath.WalkDir(own, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if fi, err := d.Info(); err == nil {
					now += fi.Size()
				}
			}
			return nil // it is being removed
		})
		if err != nil {
			t.Error(err)
		}
		most = max(most, now)
	}
	result, err := l.Exporter().Dir(t.Context(), "big", dest, ExportOptions{Progress: watch})
	if err != nil {
		t.Fatal(err)
	}
	sameFile(t, filepath.Join(source, "f"), filepath.Join(dest, "f"))
	if limit := int64(archive.PieceCount*archive.PieceSize + 64<<10); most > limit || most == 0 {
		t.Errorf("the archive took %d bytes of the sandbox's disk, want at most %d", most, limit)
	}
	pieces := int(size/archive.PieceSize) + 1
	if got := len(r.requests()); got > 2*pieces+2 {
		t.Errorf("%d requests for %d pieces, want at most two for each and two more:\n%v", got, pieces, r.count())
	}
	if result.Route != RouteFiles || result.Bytes != size {
		t.Errorf("result %+v, want %d bytes through files", result, size)
	}
	wantNoScratch(t, l)
}

// A host that is slow with its pieces, however slow, says every minute that it is there.
func TestF2ExportToASlowHost(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newBubbleRig(t, dir)
		const size = 1 << 20
		noise(t, filepath.Join(r.lease.Ref().Workspace, "big", "f"), size)
		tr, err := r.lease.transfer("export")
		if err != nil {
			t.Fatal(err)
		}
		defer tr.done()
		if err := tr.connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		request := archive.RemoteExport{
			Scratch: filepath.Join(tr.own(), archive.StageName()), Dir: filepath.Join(r.lease.Ref().Workspace, "big"), PieceSize: 64 << 10,
		}
		p, err := tr.openPieces(t.Context(), request, func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		time.Sleep(time.Second) // what there is room for is made, and asked for
		before := len(r.requests())
		time.Sleep(10 * time.Minute)
		if got := len(r.requests()) - before; got != 10 {
			t.Errorf("%d requests in ten minutes, want one in each", got)
		}
		n, err := io.Copy(io.Discard, p)
		if err != nil || n < size {
			t.Errorf("read %d bytes, %v, want %d and more", n, err, size)
		}
	})
}

func TestExportOfManyFiles(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, host := l.Ref().Workspace, t.TempDir()
	writeFiles(t, ws, map[string]string{"a": "one", "d/a": "two", "d/it's -x": "three", "odd\nname": "four"})
	at := time.Unix(1_000_000_000, 0)
	if err := errors.Join(os.Link(filepath.Join(ws, "a"), filepath.Join(ws, "d", "again")), os.Chmod(filepath.Join(ws, "d", "a"), 0o750),
		os.Chtimes(filepath.Join(ws, "a"), at, at), os.Symlink("a", filepath.Join(ws, "link")), os.Mkdir(filepath.Join(ws, "dir"), 0o755)); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, host, map[string]string{"x/1": "earlier", "y/2": "earlier"})
	files := []FileMapping{
		{Remote: "a", Local: host + "/x/1"}, {Remote: "d/a", Local: host + "/y/2"}, {Remote: "d/it's -x", Local: host + "/new/3", Mode: 0o600},
		{Remote: ws + "/odd\nname", Local: host + "/4"}, {Remote: "d/again", Local: host + "/5"}, {Remote: "a", Local: host + "/6"},
	}
	want := map[string]string{
		"x": "drwxr-xr-x", "y": "drwxr-xr-x", "new": "drwxr-xr-x", "x/1": "-rw-r--r-- one", "y/2": "-rwxr-x--- two", "new/3": "-rw------- three",
		"4": "-rw-r--r-- four", "5": "-rw-r--r-- one", "6": "-rw-r--r-- one",
	}
	if _, err := l.toolbox(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := tree(t, host)
	// Whichever of them cannot be had, none is published.
	for name, tc := range map[string]struct {
		bad  FileMapping
		want Kind
	}{
		"missing":             {FileMapping{Remote: "nope", Local: host + "/7"}, KindNotFound},
		"link":                {FileMapping{Remote: "link", Local: host + "/7"}, KindUnsafe},
		"directory":           {FileMapping{Remote: "dir", Local: host + "/7"}, KindConflict},
		"over a directory":    {FileMapping{Remote: "a", Local: host + "/x"}, KindConflict},
		"local path twice":    {FileMapping{Remote: "d/a", Local: host + "/y/../x/1"}, KindInvalid},
		"no local path":       {FileMapping{Remote: "d/a"}, KindInvalid},
		"the own directory":   {FileMapping{Remote: sentinelDir + "/lease.json", Local: host + "/7"}, KindInvalid},
		"no name of a source": {FileMapping{Remote: "", Local: host + "/7"}, KindInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := l.Exporter().Files(t.Context(), append(slices.Clone(files), tc.bad), ExportOptions{})
			e := wantError(t, err, tc.want)
			if tc.want == KindNotFound && !strings.Contains(e.Error(), "nope") {
				t.Errorf("%q does not name the file", e.Error())
			}
			after := tree(t, host)
			maps.DeleteFunc(after, func(name, _ string) bool { return name == "new" }) // parents stay
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("host mismatch (-before +after):\n%s", diff)
			}
			wantNoScratch(t, l, host, host+"/x", host+"/y")
		})
	}
	r.server.ResetRequests()
	result, err := l.Exporter().Files(t.Context(), files, ExportOptions{})
	if err != nil || result.Entries != 6 {
		t.Fatalf("%+v, %v, want 6 files", result, err)
	}
	r.wantRequests(t, "POST /toolbox/*/process/execute", "GET /toolbox/*/files/download", "POST /toolbox/*/process/execute")
	if diff := cmp.Diff(want, tree(t, host)); diff != "" {
		t.Errorf("host mismatch (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(host + "/x/1"); err != nil || !fi.ModTime().Equal(at) {
		t.Errorf("time %v, %v, want %v", fi.ModTime(), err, at)
	}
	r.server.ResetRequests()
	if _, err := l.Exporter().Files(t.Context(), nil, ExportOptions{}); err != nil {
		t.Errorf("no files: %v", err)
	}
	_, err = l.Exporter().Files(t.Context(), make([]FileMapping, MaxExportFiles+1), ExportOptions{})
	wantError(t, err, KindInvalid)
	r.wantRequests(t)
	wantNoScratch(t, l, host, host+"/x", host+"/y", host+"/new")
}

// members lists a tar stream: name, type, mode, and target or content.
func members(t testing.TB, data []byte) []string {
	t.Helper()
	var got []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %o %s %s%s", h.Typeflag, h.Mode, h.Name, h.Linkname, body))
		if h.Uid+h.Gid != 0 || h.Uname+h.Gname != "" {
			t.Errorf("%s has an owner", h.Name)
		}
	}
}

func TestF1ExportAsATarStream(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws := l.Ref().Workspace
	writeFiles(t, ws, map[string]string{"t/f": "content", "t/d/skip.o": "x", "t/d/g": "", "t/" + strings.Repeat("long/", 60) + "h": "deep"})
	if err := errors.Join(os.Link(ws+"/t/f", ws+"/t/zhard"), os.Symlink("d/g", ws+"/t/link"), os.Chmod(ws+"/t/f", 0o4711),
		syscall.Mkfifo(ws+"/t/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	result, err := l.Exporter().Tar(t.Context(), "t", &out, ExportOptions{Exclude: []string{"*.o", "long", ".*"}})
	if err != nil {
		t.Fatal(err)
	}
	got := members(t, out.Bytes())
	slices.Sort(got)
	// Which of the two names of one file comes first is the file system's.
	want := []string{"0 711 f content", "0 644 d/g ", "1 711 zhard f", "2 777 link d/g", "5 755 d/ "}
	if slices.Contains(got, "0 711 zhard content") {
		want[0], want[2] = "0 711 zhard content", "1 711 f zhard"
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]SkippedEntry{{"fifo", "fifo"}}, result.Skipped); diff != "" || result.Entries != 5 {
		t.Errorf("result %+v, want 5 entries (-want +got):\n%s", result, diff)
	}
	// The whole workspace, without the lease's own directory.
	out.Reset()
	if _, err := l.Exporter().Tar(t.Context(), "", &out, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range members(t, out.Bytes()) {
		if strings.Contains(m, sentinelDir) {
			t.Errorf("the stream has %q", m)
		}
	}
	// What fails leaves no archive: the end is missing.
	if err := os.Symlink("/etc/passwd", ws+"/t/zz"); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	_, err = l.Exporter().Tar(t.Context(), "t", &out, ExportOptions{})
	wantError(t, err, KindUnsafe)
	if bytes.HasSuffix(out.Bytes(), make([]byte, 1024)) {
		t.Error("a stream that failed has the end of an archive")
	}
	refusing := errors.New("the pipe is closed")
	_, err = l.Exporter().Tar(t.Context(), "t", failingWriter{refusing}, ExportOptions{UnsafeLinks: LinksOmit})
	if wantError(t, err, KindIO); !errors.Is(err, refusing) {
		t.Errorf("%v does not hold the writer's error", err)
	}
	_, err = l.Exporter().Tar(t.Context(), "t", nil, ExportOptions{})
	wantError(t, err, KindInvalid)
	wantNoScratch(t, l)
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestF1AbsoluteLinksAreKeptAndNeverFollowed(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, host := l.Ref().Workspace, t.TempDir()
	outside := filepath.Join(host, "outside")
	writeFiles(t, outside, map[string]string{"f": "untouched"})
	writeFiles(t, ws, map[string]string{"t/f": "x"})
	if err := errors.Join(os.Symlink("/usr/bin/env", ws+"/t/tool"), os.Symlink(outside, ws+"/t/dir")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces what has links out of it
		if _, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", ExportOptions{UnsafeLinks: LinksKeepAbsolute}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"f": "-rw-r--r-- x", "tool": "-> /usr/bin/env", "dir": "-> " + outside}
		if diff := cmp.Diff(want, tree(t, host+"/dest")); diff != "" {
			t.Errorf("host mismatch (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(map[string]string{"f": "-rw-r--r-- untouched"}, tree(t, outside)); diff != "" {
		t.Errorf("what a link leads to changed (-want +got):\n%s", diff)
	}
	if err := os.Symlink("../../up", ws+"/t/up"); err != nil {
		t.Fatal(err)
	}
	_, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", ExportOptions{UnsafeLinks: LinksKeepAbsolute})
	wantError(t, err, KindUnsafe)
}

func TestExportLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, host := l.Ref().Workspace, t.TempDir()
	writeFiles(t, ws, map[string]string{"t/a": strings.Repeat("x", 5000), "t/d/e/b": "y"})
	sparse := filepath.Join(ws, "t", "hole")
	if err := errors.Join(os.WriteFile(sparse, []byte("head"), 0o644), os.Truncate(sparse, 64<<20)); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
	for name, options := range map[string]ExportOptions{
		"entries": {MaxEntries: 3}, "bytes": {MaxBytes: 4000}, "name": {MaxName: 4}, "depth": {MaxDepth: 2}, "ratio": {MaxRatio: 100},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", options)
			wantError(t, err, KindLimit)
			_, err = l.Exporter().Tar(t.Context(), "t", io.Discard, options)
			wantError(t, err, KindLimit)
			if diff := cmp.Diff(map[string]string{"earlier": "-rw-r--r-- kept"}, tree(t, host+"/dest")); diff != "" {
				t.Errorf("host mismatch (-want +got):\n%s", diff)
			}
			wantNoScratch(t, l, host)
		})
	}
	for _, options := range []ExportOptions{{MaxName: -1}, {MaxDepth: -1}, {MaxRatio: -1}, {UnsafeLinks: -1}} {
		_, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", options)
		wantError(t, err, KindInvalid)
	}
}

// The holes of a sparse file are neither sent nor written.
func TestF3SparseFilesStaySparse(t *testing.T) {
	size := int64(1 << 30)
	if os.Getenv("LEASEHOLD_LONG") == "1" {
		size = 10 << 30
	}
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	sparse, dest := filepath.Join(l.Ref().Workspace, "t", "f"), filepath.Join(t.TempDir(), "dest")
	writeFiles(t, filepath.Dir(sparse), map[string]string{"f": "head"})
	f, err := os.OpenFile(sparse, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("middle"), size/2)
	if err = errors.Join(err, f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	result, err := l.Exporter().Dir(t.Context(), "t", dest, ExportOptions{})
	if err != nil || result.Bytes != size {
		t.Fatalf("%+v, %v, want %d bytes", result, err, size)
	}
	got, err := os.Open(filepath.Join(dest, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	for at, want := range map[int64]string{0: "head\x00", size / 2: "middle\x00", size - 2: "\x00\x00"} {
		have := make([]byte, len(want))
		if _, err := got.ReadAt(have, at); err != nil || string(have) != want {
			t.Errorf("at %d: %q, %v, want %q", at, have, err, want)
		}
	}
	fi, err := got.Stat()
	if err != nil || fi.Size() != size || fi.Sys().(*syscall.Stat_t).Blocks > 4096 {
		t.Errorf("size %d, %d blocks, %v, want %d and few blocks", fi.Size(), fi.Sys().(*syscall.Stat_t).Blocks, err, size)
	}
}

// Something else lies about the length of a piece, or about how much of it came.
func TestF2WrongAndMissingContentLength(t *testing.T) {
	t.Parallel()
	var lie func(http.Header)
	r := newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if lie != nil && strings.HasSuffix(q.URL.Path, "/files/download") {
				w = &lyingWriter{w, lie, false}
			}
			next.ServeHTTP(w, q)
		})
	}})
	l := r.acquired(t)
	host := t.TempDir()
	writeFiles(t, l.Ref().Workspace, map[string]string{"t/f": strings.Repeat("x", 9000)})
	writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
	length := func(change int) func(http.Header) {
		return func(h http.Header) {
			n, err := strconv.Atoi(h.Get("Content-Length"))
			if err != nil {
				t.Errorf("no length to lie about: %v", err)
			}
			h.Set("Content-Length", strconv.Itoa(n+change))
		}
	}
	for name, tc := range map[string]func(http.Header){
		"none": func(h http.Header) { h.Del("Content-Length") }, "too long": length(512), "too short": length(-512), "zero": length(-10240),
	} {
		lie = tc
		_, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", ExportOptions{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: error %v, want an *Error", name, err)
		}
		if diff := cmp.Diff(map[string]string{"earlier": "-rw-r--r-- kept"}, tree(t, host+"/dest")); diff != "" {
			t.Errorf("%s: host mismatch (-want +got):\n%s", name, diff)
		}
		wantNoScratch(t, l, host)
	}
}

type lyingWriter struct {
	http.ResponseWriter
	lie  func(http.Header)
	told bool
}

func (w *lyingWriter) WriteHeader(status int) {
	if !w.told {
		w.told = true
		w.lie(w.Header())
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *lyingWriter) Write(p []byte) (int, error) {
	if !w.told {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

func (w *lyingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A connection that is cut, at each of these places of the first piece, for good: an error, and nothing is left.
// Cut once, the rest is fetched.
func TestF2ConnectionCutAfterKBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	host := t.TempDir()
	writeFiles(t, l.Ref().Workspace, map[string]string{"t/f": strings.Repeat("x", 9000)})
	const size = 10240
	for _, k := range []int64{0, 1, 511, 512, 513, size / 2, size - 1} {
		for _, action := range []emulator.Action{emulator.TruncateBody, emulator.ResetReply} {
			r.server.SetFaults(emulator.Fault{Path: downloadPath, Action: action, Bytes: k})
			if _, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", ExportOptions{}); err != nil {
				t.Errorf("%s after %d bytes: %v", action, k, err)
			}
			r.wantHits(t)
			wantTree(t, l.Ref().Workspace+"/t", host+"/dest")
		}
	}
	r.server.SetFaults()
	wantNoScratch(t, l, host)
}

// What stands still is ended, what is slow is not.
func TestF3ExportThatStalls(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]emulator.Fault{
		"download that brings nothing": {Path: downloadPath, Action: emulator.SilentSocket, Bytes: -1, Count: -1},
		"archive that is not made":     {Path: executePath, Action: emulator.SilentSocket, Bytes: -1, Count: 2}, // a busy machine may measure first
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{}, emulator.Options{})
			l := r.acquired(t)
			writeFiles(t, l.Ref().Workspace, map[string]string{"t/f": "x"})
			host := t.TempDir()
			writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
			r.server.SetFaults(fault)
			_, err := l.Exporter().Dir(t.Context(), "t", host+"/dest", ExportOptions{StallTimeout: 500 * time.Millisecond})
			if e := wantError(t, err, KindTimeout); !e.Retryable {
				t.Errorf("%v is not said to be retryable", e)
			}
			r.server.SetFaults()
			if diff := cmp.Diff(map[string]string{"earlier": "-rw-r--r-- kept"}, tree(t, host+"/dest")); diff != "" {
				t.Errorf("host mismatch (-want +got):\n%s", diff)
			}
			wantNoScratch(t, l, host)
		})
	}
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		// A tar that takes longer than may pass without progress.
		slow := shim("tar", `[ "$1" = --version ] && exec REAL --version; REAL "$@" | { i=0; while [ $i -lt 11 ]; do dd bs=10240 count=8 iflag=fullblock 2>/dev/null; sleep 1; i=$((i+1)); done; cat; }`)
		r := newRig(t, Config{}, emulator.Options{Shell: shellWith(t, slow)})
		l := r.acquired(t)
		noise(t, l.Ref().Workspace+"/t/f", 1<<20)
		dest := filepath.Join(t.TempDir(), "dest")
		if _, err := l.Exporter().Dir(t.Context(), "t", dest, ExportOptions{StallTimeout: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		sameFile(t, l.Ref().Workspace+"/t/f", dest+"/f")
	})
}

// Files that grow, shrink, vanish, and turn into links out of the tree while they are read: the export is whole, or an
// error, and nothing from outside is ever in it.
func TestF1SandboxUserWhoSwapsPathsDuringTheExport(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, host := l.Ref().Workspace, t.TempDir()
	secret := filepath.Join(host, "secret")
	writeFiles(t, secret, map[string]string{"f": "secret"})
	manyFiles(t, ws+"/t", 300, 2000)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			dir, file := fmt.Sprintf("%s/t/d%03d", ws, i%6), fmt.Sprintf("%s/t/d%03d/f%02d", ws, i%6, i%50)
			// The file: longer, shorter, gone, a link, and back. The directory: a link, and back.
			os.WriteFile(file, bytes.Repeat([]byte("g"), i%5000), 0o644)
			os.Remove(file)
			os.Symlink(secret+"/f", file)
			os.Rename(dir, dir+".aside")
			os.Symlink(secret, dir)
			os.Remove(dir)
			os.Rename(dir+".aside", dir)
			os.Remove(file)
			os.WriteFile(file, []byte("back"), 0o644)
		}
	}()
	count := 8
	if os.Getenv("LEASEHOLD_LONG") == "1" {
		count = 200
	}
	for i := range count {
		dest := filepath.Join(host, "dest")
		_, err := l.Exporter().Dir(t.Context(), "t", dest, ExportOptions{AllowChanges: i%2 == 0, UnsafeLinks: LinksOmit})
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("error %v, want an *Error", err)
		}
		_, err = l.Exporter().File(t.Context(), "t/d000/f00", host+"/file", ExportOptions{})
		if err != nil && !errors.As(err, &e) {
			t.Errorf("error %v, want an *Error", err)
		}
		for name, text := range tree(t, host) {
			if strings.HasPrefix(name, "secret") {
				continue
			}
			if strings.Contains(text, "secret") {
				t.Errorf("%s is %q: the export followed a link", name, text)
			}
		}
	}
	close(stop)
	<-done
	wantNoScratch(t, l, host)
}

func TestAnEmptyPathOfTheHostIsInvalid(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	r.server.ResetRequests()
	for _, local := range []string{"", "a\x00b"} {
		for field, do := range map[string]func() (TransferResult, error){
			"localDir": func() (TransferResult, error) { return l.Importer().Dir(t.Context(), local, "d", ImportOptions{}) },
			"localDir of an export": func() (TransferResult, error) {
				return l.Exporter().Dir(t.Context(), "d", local, ExportOptions{})
			},
			"FileMapping.Local": func() (TransferResult, error) {
				return l.Importer().File(t.Context(), local, "f", ImportOptions{})
			},
			"FileMapping.Local of an export": func() (TransferResult, error) {
				return l.Exporter().File(t.Context(), "f", local, ExportOptions{})
			},
		} {
			_, err := do()
			field, _, _ = strings.Cut(field, " ")
			if e := wantError(t, err, KindInvalid); fieldsOf(e) != field || e.Dispatched != DispatchedNo {
				t.Errorf("%v names %s, want %s, and nothing sent", e, fieldsOf(e), field)
			}
		}
	}
	r.wantRequests(t)
}
