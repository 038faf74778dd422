//go:build unix

package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

const (
	uploadPath   = "/toolbox/*/files/bulk-upload"
	downloadPath = "/toolbox/*/files/download"
)

// writeFiles makes files below dir.
func writeFiles(t testing.TB, dir string, files map[string]string) {
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

// fillFile makes a file of zeros that has no holes.
func fillFile(t testing.TB, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.CopyN(f, zeros{}, size)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// tree returns what is below dir: mode, size or target, and content of small files, by name. Directories and the
// library's own files are left out.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == sentinelDir {
			return fs.SkipDir
		}
		fi, err := d.Info()
		if err != nil || rel == "." {
			return err
		}
		switch {
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			got[rel] = "-> " + target
			return err
		case fi.IsDir():
			got[rel] = fi.Mode().String()
		case fi.Size() > 100:
			got[rel] = fmt.Sprintf("%v %d bytes", fi.Mode(), fi.Size())
		default:
			data, err := os.ReadFile(path)
			got[rel] = fmt.Sprintf("%v %s", fi.Mode(), data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// wantTree compares what is below two directories.
func wantTree(t testing.TB, want, got string) {
	t.Helper()
	if diff := cmp.Diff(tree(t, want), tree(t, got)); diff != "" {
		t.Errorf("tree mismatch (-want +got):\n%s", diff)
	}
}

// wantNoScratch fails the test if a transfer left anything in the sandbox. What is removed in the background is waited for.
func wantNoScratch(t testing.TB, l *Lease, dirs ...string) {
	t.Helper()
	drained(t, l)
	ws := l.Ref().Workspace
	for _, dir := range append(dirs, ws, filepath.Join(ws, sentinelDir)) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".leasehold-xfer-") {
				t.Errorf("scratch is left in %s: %s", dir, e.Name())
			}
		}
	}
}

func sampleTree(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"go.mod": "module x", "cmd/main.go": strings.Repeat("x", 5000), "empty": "", "a b/line\nbreak": "odd", "-rf": "dash",
		"invalid \xff": "bytes", strings.Repeat("long/", 60) + "x": "deep",
	})
	if err := os.Chmod(filepath.Join(dir, "cmd", "main.go"), 0o751); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("cmd/main.go", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "empty dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestF2TreeGoesInAndComesOutTheSame(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local, back := sampleTree(t), filepath.Join(t.TempDir(), "new", "back")
	if _, err := l.toolbox(t.Context()); err != nil { // the first use of a lease reads the sandbox
		t.Fatal(err)
	}
	r.server.ResetRequests()

	in, err := l.Importer().Dir(t.Context(), local, "", ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t, "POST /toolbox/*/files/bulk-upload", "POST /toolbox/*/process/execute")
	wantTree(t, local, l.Ref().Workspace)
	r.server.ResetRequests()

	out, err := l.Exporter().Dir(t.Context(), "", back, ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.wantRequests(t, "POST /toolbox/*/process/execute", "GET /toolbox/*/files/download", "POST /toolbox/*/process/execute")
	wantTree(t, local, back)
	if in.Entries != out.Entries || in.Bytes != out.Bytes || in.SkippedCount+out.SkippedCount != 0 {
		t.Errorf("import %+v, export %+v, want the same counts", in, out)
	}
	wantNoScratch(t, l)
	if _, err := r.Resume(t.Context(), l.Ref()); err != nil { // verifies the sentinel
		t.Errorf("the lease's sentinel did not survive: %v", err)
	}
}

func TestF2SingleFileGoesInAndComesOutTheSame(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"-tool": "#!/bin/sh\n", "out/back": "earlier"})
	local, back := filepath.Join(dir, "-tool"), filepath.Join(dir, "out", "back")
	at := time.Unix(1_000_000_000, 0)
	if err := errors.Join(os.Chmod(local, 0o750), os.Chtimes(local, at, at)); err != nil {
		t.Fatal(err)
	}
	in, err := l.Importer().File(t.Context(), local, "new dir/-tool", ImportOptions{})
	if err != nil || in.Entries != 1 || in.Bytes != 10 {
		t.Fatalf("%+v, %v", in, err)
	}
	out, err := l.Exporter().File(t.Context(), "new dir/-tool", back, ExportOptions{})
	if err != nil || out.Entries != 1 || out.Bytes != 10 {
		t.Fatalf("%+v, %v", out, err)
	}
	fi, err := os.Stat(back)
	if data, _ := os.ReadFile(back); err != nil || string(data) != "#!/bin/sh\n" || fi.Mode() != 0o750 || !fi.ModTime().Equal(at) {
		t.Errorf("%q, %v, %v, %v", data, fi.Mode(), fi.ModTime(), err)
	}
	mode := fs.FileMode(0o600)
	if _, err := l.Importer().File(t.Context(), local, "secret", ImportOptions{Mode: mode}); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(l.Ref().Workspace, "secret")); err != nil || fi.Mode() != mode {
		t.Errorf("mode %v, %v, want %v", fi.Mode(), err, mode)
	}
	wantNoScratch(t, l, filepath.Join(l.Ref().Workspace, "new dir"))
}

func TestImportMergesAndKeepsTheLeasesDirectory(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	writeFiles(t, ws, map[string]string{"kept": "old", "d/kept": "old", "d/f": "old"})
	writeFiles(t, local, map[string]string{"d/f": "new", sentinelDir + "/lease.json": "forged", "skip.o": "x", "d/skip.o": "x"})
	result, err := l.Importer().Dir(t.Context(), local, ws, ImportOptions{Exclude: []string{"*.o"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"kept": "-rw-r--r-- old", "d": "drwxr-xr-x", "d/kept": "-rw-r--r-- old", "d/f": "-rw-r--r-- new"}
	if diff := cmp.Diff(want, tree(t, ws)); diff != "" {
		t.Errorf("workspace mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]SkippedEntry{{sentinelDir, "reserved name"}}, result.Skipped); diff != "" {
		t.Errorf("skipped mismatch (-want +got):\n%s", diff)
	}
	if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
		t.Errorf("the lease's sentinel did not survive: %v", err)
	}
}

func TestImportRefusesConflictsBeforeItChangesAnything(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws, local := l.Ref().Workspace, t.TempDir()
	writeFiles(t, ws, map[string]string{"a": "old", "d": "a file"})
	writeFiles(t, local, map[string]string{"a": "new", "d/f": "new"})
	for _, dest := range []string{"", "a", "a/b/c"} {
		_, err := l.Importer().Dir(t.Context(), local, dest, ImportOptions{})
		wantError(t, err, KindConflict)
	}
	_, err := l.Importer().Files(t.Context(), []FileMapping{{Local: "go.mod", Remote: "0/x"}, {Local: "go.mod", Remote: "a/x"}}, ImportOptions{})
	wantError(t, err, KindConflict)
	if err := os.Remove(ws + "/0"); err != nil { // which is empty
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "-rw-r--r-- old", "d": "-rw-r--r-- a file"}, tree(t, ws)); diff != "" {
		t.Errorf("workspace mismatch (-want +got):\n%s", diff)
	}
	wantNoScratch(t, l)
}

func TestTransferInputIsCheckedBeforeAnyRequest(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	dir := sampleTree(t)
	ctx := t.Context()
	own := filepath.Join(l.Ref().Workspace, sentinelDir)
	missing := filepath.Join(dir, "missing")
	if _, err := l.toolbox(ctx); err != nil {
		t.Fatal(err)
	}
	r.server.ResetRequests()
	for name, tc := range map[string]struct {
		do   func() error
		want Kind
	}{
		"zero byte":      {func() error { _, err := l.Importer().Dir(ctx, dir, "a\x00b", ImportOptions{}); return err }, KindInvalid},
		"not UTF-8":      {func() error { _, err := l.Exporter().Dir(ctx, "a\xff", missing, ExportOptions{}); return err }, KindInvalid},
		"own directory":  {func() error { _, err := l.Importer().Dir(ctx, dir, own+"/x", ImportOptions{}); return err }, KindInvalid},
		"own by detour":  {func() error { _, err := l.Importer().Dir(ctx, dir, "x/../"+sentinelDir, ImportOptions{}); return err }, KindInvalid},
		"own, to export": {func() error { _, err := l.Exporter().Dir(ctx, sentinelDir, missing, ExportOptions{}); return err }, KindInvalid},
		"bad exclude": {func() error {
			_, err := l.Importer().Dir(ctx, dir, "", ImportOptions{Exclude: []string{"["}})
			return err
		}, KindInvalid},
		"file, no name": {func() error { _, err := l.Importer().File(ctx, dir+"/go.mod", "x/", ImportOptions{}); return err }, KindInvalid},
		"file with exclude": {func() error {
			_, err := l.Exporter().File(ctx, "x", missing, ExportOptions{Exclude: []string{"y"}})
			return err
		}, KindInvalid},
		"negative limit": {func() error { _, err := l.Exporter().Dir(ctx, "", missing, ExportOptions{MaxBytes: -1}); return err }, KindInvalid},
		"unknown policy": {func() error { _, err := l.Exporter().Dir(ctx, "", missing, ExportOptions{UnsafeLinks: 7}); return err }, KindInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, tc.do(), tc.want)
			r.wantRequests(t)
		})
	}
}

func TestSourcesThatCannotBeTransferredAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	dir := sampleTree(t)
	missing := filepath.Join(dir, "missing")
	ctx := t.Context()
	writeFiles(t, l.Ref().Workspace, map[string]string{"file": "x"})
	if err := os.Symlink("file", filepath.Join(l.Ref().Workspace, "link")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		do   func() error
		want Kind
	}{
		"local directory missing":  {func() error { _, err := l.Importer().Dir(ctx, missing, "", ImportOptions{}); return err }, KindIO},
		"local file missing":       {func() error { _, err := l.Importer().File(ctx, missing, "f", ImportOptions{}); return err }, KindIO},
		"local directory as file":  {func() error { _, err := l.Importer().File(ctx, dir, "f", ImportOptions{}); return err }, KindIO},
		"local device":             {func() error { _, err := l.Importer().File(ctx, os.DevNull, "f", ImportOptions{}); return err }, KindIO},
		"remote directory missing": {func() error { _, err := l.Exporter().Dir(ctx, "nope", missing, ExportOptions{}); return err }, KindNotFound},
		"remote file missing":      {func() error { _, err := l.Exporter().File(ctx, "nope", missing, ExportOptions{}); return err }, KindNotFound},
		"remote file as directory": {func() error { _, err := l.Exporter().Dir(ctx, "file", missing, ExportOptions{}); return err }, KindConflict},
		"remote directory as file": {func() error { _, err := l.Exporter().File(ctx, "/", missing, ExportOptions{}); return err }, KindInvalid},
		"remote link as file":      {func() error { _, err := l.Exporter().File(ctx, "link", missing, ExportOptions{}); return err }, KindUnsafe},
		"local file for directory": {func() error { _, err := l.Exporter().Dir(ctx, "", dir+"/go.mod", ExportOptions{}); return err }, KindConflict},
		"local link for directory": {func() error { _, err := l.Exporter().Dir(ctx, "", dir+"/link", ExportOptions{}); return err }, KindConflict},
		"local directory for file": {func() error { _, err := l.Exporter().File(ctx, "file", dir+"/cmd", ExportOptions{}); return err }, KindConflict},
	} {
		t.Run(name, func(t *testing.T) {
			before := tree(t, dir)
			wantError(t, tc.do(), tc.want)
			if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
				t.Errorf("the host's files changed (-before +after):\n%s", diff)
			}
			wantNoScratch(t, l)
		})
	}
}

func TestF1ExportRefusesOrOmitsUnsafeLinks(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	ws := l.Ref().Workspace
	writeFiles(t, ws, map[string]string{"result": "done"})
	for name, target := range map[string]string{"tool": "/usr/bin/pnpm", "up": "../../outside", "ok": "result", "x -> y": "/etc/passwd"} {
		if err := os.Symlink(target, filepath.Join(ws, name)); err != nil {
			t.Fatal(err)
		}
	}
	local := t.TempDir()
	writeFiles(t, local, map[string]string{"dest/earlier": "kept"})
	dest := filepath.Join(local, "dest")
	_, err := l.Exporter().Dir(t.Context(), "", dest, ExportOptions{})
	wantError(t, err, KindUnsafe)
	if diff := cmp.Diff(map[string]string{"dest": "drwxr-xr-x", "dest/earlier": "-rw-r--r-- kept"}, tree(t, local)); diff != "" {
		t.Errorf("host mismatch (-want +got):\n%s", diff)
	}
	result, err := l.Exporter().Dir(t.Context(), "", dest, ExportOptions{UnsafeLinks: LinksOmit})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"dest": "drwxr-xr-x", "dest/result": "-rw-r--r-- done", "dest/ok": "-> result"}
	if diff := cmp.Diff(want, tree(t, local)); diff != "" {
		t.Errorf("host mismatch (-want +got):\n%s", diff)
	}
	if result.SkippedCount != 3 || len(result.Skipped) != 3 || result.Entries != 2 {
		t.Errorf("result %+v, want 2 entries and 3 skipped links", result)
	}
	wantNoScratch(t, l)
}

// Each fault hits once, and the transfer is complete nevertheless.
func TestF2TransfersRideOutOneFault(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := sampleTree(t)
	writeFiles(t, local, map[string]string{"big": strings.Repeat("0123456789", 60_000)})
	if _, err := l.Importer().Dir(t.Context(), local, "source", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		fault    emulator.Fault
		isExport bool
	}{
		"upload refused":          {emulator.Fault{Path: uploadPath, Action: emulator.DropBefore}, false},
		"upload reply lost":       {emulator.Fault{Path: uploadPath, Action: emulator.DropAfter}, false},
		"upload reset at 0":       {emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: 0}, false},
		"upload reset at 1":       {emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: 1}, false},
		"upload reset half way":   {emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: 300_000}, false},
		"upload 502":              {emulator.Fault{Path: uploadPath, Action: emulator.StatusBefore, Status: 502}, false},
		"upload 502 after":        {emulator.Fault{Path: uploadPath, Action: emulator.StatusAfter, Status: 502}, false},
		"script refused":          {emulator.Fault{Path: executePath, Action: emulator.DropBefore}, false},
		"script reply lost":       {emulator.Fault{Path: executePath, Action: emulator.DropAfter}, false},
		"script delivered twice":  {emulator.Fault{Path: executePath, Action: emulator.Duplicate}, false},
		"script reply truncated":  {emulator.Fault{Path: executePath, Action: emulator.TruncateBody, Bytes: 10}, false},
		"archive reply lost":      {emulator.Fault{Path: executePath, Action: emulator.DropAfter}, true},
		"archive made twice":      {emulator.Fault{Path: executePath, Action: emulator.Duplicate}, true},
		"cleanup refused":         {emulator.Fault{Path: executePath, Nth: 2, Action: emulator.DropBefore, Count: 2}, true},
		"cleanup reply lost":      {emulator.Fault{Path: executePath, Nth: 2, Action: emulator.DropAfter}, true},
		"download refused":        {emulator.Fault{Path: downloadPath, Action: emulator.DropBefore}, true},
		"download 503":            {emulator.Fault{Path: downloadPath, Action: emulator.StatusBefore, Status: 503}, true},
		"download 429":            {emulator.Fault{Path: downloadPath, Action: emulator.StatusBefore, Status: 429}, true},
		"download reset at 0":     {emulator.Fault{Path: downloadPath, Action: emulator.ResetReply, Bytes: 0}, true},
		"download reset at 511":   {emulator.Fault{Path: downloadPath, Action: emulator.ResetReply, Bytes: 511}, true},
		"download reset at 513":   {emulator.Fault{Path: downloadPath, Action: emulator.ResetReply, Bytes: 513}, true},
		"download cut at 512":     {emulator.Fault{Path: downloadPath, Action: emulator.TruncateBody, Bytes: 512}, true},
		"download cut half way":   {emulator.Fault{Path: downloadPath, Action: emulator.TruncateBody, Bytes: 300_000}, true},
		"download cut many times": {emulator.Fault{Path: downloadPath, Action: emulator.ResetReply, Bytes: 100_000, Count: 4}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r.server.SetFaults(tc.fault)
			remote, dest := filepath.Join(l.Ref().Workspace, name), filepath.Join(t.TempDir(), "dest")
			if tc.isExport {
				if _, err := l.Exporter().Dir(t.Context(), "source", dest, ExportOptions{}); err != nil {
					t.Fatalf("Exporter.Dir() = %v", err)
				}
			} else {
				dest = remote
				if _, err := l.Importer().Dir(t.Context(), local, remote, ImportOptions{}); err != nil {
					t.Fatalf("Importer.Dir() = %v", err)
				}
			}
			wantTree(t, local, dest)
			r.wantHits(t)
			wantNoScratch(t, l, filepath.Dir(dest), dest)
		})
	}
}

// Faults that do not end: the transfer is an error, and neither side shows anything of it.
func TestF2TransferIsCompleteOrAnError(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault    emulator.Fault
		isExport bool
		want     Kind
	}{
		"upload always reset":      {emulator.Fault{Path: uploadPath, Action: emulator.ResetUpload, Bytes: 1000}, false, KindUnavailable},
		"upload to a full disk":    {emulator.Fault{Path: uploadPath, Action: emulator.DiskFull}, false, KindQuota},
		"upload not authorised":    {emulator.Fault{Path: uploadPath, Action: emulator.StatusBefore, Status: 401}, false, KindAuth},
		"download always cut":      {emulator.Fault{Path: downloadPath, Action: emulator.ResetReply, Bytes: 0}, true, KindUnavailable},
		"download not found":       {emulator.Fault{Path: downloadPath, Action: emulator.StatusBefore, Status: 404}, true, KindUnavailable},
		"download forbidden":       {emulator.Fault{Path: downloadPath, Action: emulator.StatusBefore, Status: 403}, true, KindAuth},
		"script of another answer": {emulator.Fault{Path: executePath, Action: emulator.StatusBefore, Status: 200, Body: `{"exitCode":0,"result":"done"}`, Count: 1}, true, KindProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{})
			l := r.acquired(t)
			local, host := sampleTree(t), t.TempDir()
			writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
			ws := l.Ref().Workspace
			writeFiles(t, ws, map[string]string{"earlier": "kept"})
			if tc.fault.Count == 0 {
				tc.fault.Count = -1
			}
			r.server.SetFaults(tc.fault)
			var err error
			if tc.isExport {
				_, err = l.Exporter().Dir(t.Context(), "", filepath.Join(host, "dest"), ExportOptions{})
			} else {
				_, err = l.Importer().Dir(t.Context(), local, "", ImportOptions{})
			}
			e := wantError(t, err, tc.want)
			if e.Sandbox != l.Ref().Sandbox {
				t.Errorf("the error names sandbox %q, want %q", e.Sandbox, l.Ref().Sandbox)
			}
			r.wantHits(t)
			if diff := cmp.Diff(map[string]string{"earlier": "-rw-r--r-- kept"}, tree(t, ws)); diff != "" {
				t.Errorf("workspace mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]string{"dest": "drwxr-xr-x", "dest/earlier": "-rw-r--r-- kept"}, tree(t, host)); diff != "" {
				t.Errorf("host mismatch (-want +got):\n%s", diff)
			}
			wantNoScratch(t, l)
		})
	}
}

func TestF3CancelledTransfersReturnAtOnceAndLeaveNothing(t *testing.T) {
	t.Parallel()
	for name, isExport := range map[string]bool{"import": false, "export": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := newHoldup()
			r := newRig(t, Config{}, emulator.Options{Middleware: slow.wrap})
			l := r.acquired(t)
			ws, host := l.Ref().Workspace, t.TempDir()
			big := filepath.Join(host, "big")
			if err := os.WriteFile(big, bytes.Repeat([]byte("no hole "), 8<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			cause := errors.New("the user left")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			// The removal of the scratch files is slow: the caller does not wait for it. The request for the next piece, which ends
			// with the context and may arrive just then, is none.
			const removal = "%s left"
			stop := func(p Progress) {
				if p.Bytes > 1<<20 {
					slow.hold("POST "+executePath, removal)
					cancel(cause)
				}
			}
			var err error
			if isExport {
				writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
				if err := os.Rename(big, filepath.Join(ws, "big")); err != nil {
					t.Fatal(err)
				}
				_, err = l.Exporter().Dir(ctx, "", filepath.Join(host, "dest"), ExportOptions{Progress: stop})
				if diff := cmp.Diff(map[string]string{"dest": "drwxr-xr-x", "dest/earlier": "-rw-r--r-- kept"}, tree(t, host)); diff != "" {
					t.Errorf("host mismatch (-want +got):\n%s", diff)
				}
			} else {
				_, err = l.Importer().Dir(ctx, host, "", ImportOptions{Progress: stop})
				if diff := cmp.Diff(map[string]string{}, tree(t, ws)); diff != "" && !strings.Contains(diff, "leasehold-xfer") {
					t.Errorf("workspace mismatch (-want +got):\n%s", diff)
				}
			}
			slow.open()
			wantError(t, err, KindCanceled)
			if !errors.Is(err, cause) {
				t.Errorf("%v does not hold the context's cause", err)
			}
			wantNoScratch(t, l)
			slow.wantPatience(t)
		})
	}
}

func TestFilesThatChangeWhileTheyAreReadEndTheImport(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "growing.log")
	fillFile(t, file, 16<<20)
	grow := func(p Progress) {
		if p.Bytes > 0 && !p.Done {
			if err := os.Truncate(file, 17<<20); err != nil {
				t.Error(err)
			}
		}
	}
	_, err := l.Importer().Dir(t.Context(), dir, "", ImportOptions{Progress: grow})
	e := wantError(t, err, KindIO)
	if !strings.Contains(e.Error(), "growing.log") {
		t.Errorf("%q does not name the file", e.Error())
	}
	if diff := cmp.Diff(map[string]string{}, tree(t, l.Ref().Workspace)); diff != "" {
		t.Errorf("workspace mismatch (-want +got):\n%s", diff)
	}
	wantNoScratch(t, l)
}

func TestTransfersOfAClosedOrStoppedLeaseAreRefused(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := l.Importer().Dir(t.Context(), t.TempDir(), "", ImportOptions{})
	wantError(t, err, KindClosed)
	_, err = l.Exporter().Dir(t.Context(), "", filepath.Join(t.TempDir(), "x"), ExportOptions{})
	wantError(t, err, KindClosed)
}

func TestProgressReachesItsTotals(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := sampleTree(t)
	writeFiles(t, local, map[string]string{"big": strings.Repeat("x", 4<<20)})
	var reports []Progress
	record := func(p Progress) { reports = append(reports, p) }
	check := func(what string, entries int64, err error) {
		t.Helper()
		if err != nil || len(reports) < 2 {
			t.Fatalf("%s: %v, %d reports", what, err, len(reports))
		}
		last := reports[len(reports)-1]
		if !last.Done || last.Bytes != last.TotalBytes || last.Entries != last.TotalEntries || last.Entries != entries {
			t.Errorf("%s: last report %+v, want everything done with %d entries", what, last, entries)
		}
		for _, p := range reports[:len(reports)-1] {
			if p.Done || p.TotalBytes == 0 || p.Bytes > p.TotalBytes {
				t.Errorf("%s: report %+v before the end", what, p)
			}
		}
		reports = nil
	}
	in, err := l.Importer().Dir(t.Context(), local, "", ImportOptions{Progress: record})
	check("import", in.Entries, err)
	out, err := l.Exporter().Dir(t.Context(), "", filepath.Join(t.TempDir(), "x"), ExportOptions{Progress: record})
	check("export", out.Entries, err)
}

func TestManyFilesAndAnEmptyDirectory(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local, empty := t.TempDir(), t.TempDir()
	manyFiles(t, local, 400, 512)
	if _, err := l.Importer().Dir(t.Context(), local, "many", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Importer().Dir(t.Context(), local, "many", ImportOptions{}); err != nil { // over itself
		t.Fatal(err)
	}
	back := filepath.Join(t.TempDir(), "back")
	out, err := l.Exporter().Dir(t.Context(), "many", back, ExportOptions{})
	if err != nil || out.Bytes != 400*512 {
		t.Fatalf("%+v, %v", out, err)
	}
	wantTree(t, local, back)
	if _, err := l.Importer().Dir(t.Context(), empty, "a/b", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exporter().Dir(t.Context(), "a/b", back, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, empty, back)
	wantNoScratch(t, l, filepath.Join(l.Ref().Workspace, "many"), filepath.Join(l.Ref().Workspace, "a", "b"))
}

// manyFiles makes files in directories of 50.
func manyFiles(t testing.TB, dir string, count, size int) {
	t.Helper()
	files := map[string]string{}
	for i := range count {
		files[fmt.Sprintf("d%03d/f%02d", i/50, i%50)] = strings.Repeat(string(rune('a'+i%26)), size)
	}
	writeFiles(t, dir, files)
}

func TestF3MemoryDoesNotGrowWithTheTransfer(t *testing.T) {
	notRaced(t)
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	host := t.TempDir()
	size := int64(256 << 20)
	if long() {
		size = 1 << 30
	}
	big := filepath.Join(host, "big")
	fillFile(t, big, size)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var most uint64
	sample := func(Progress) {
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapSys-now.HeapReleased)
	}
	if _, err := l.Importer().Dir(t.Context(), host, "", ImportOptions{Progress: sample}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Exporter().Dir(t.Context(), "", filepath.Join(host, "back"), ExportOptions{Progress: sample}); err != nil {
		t.Fatal(err)
	}
	base := before.HeapSys - before.HeapReleased
	if most > base+64<<20 { // of this process: the library and the emulator
		t.Errorf("the heap grew from %d to %d bytes during a transfer of %d, want at most 64 MiB more", base, most, size)
	}
	if fi, err := os.Stat(filepath.Join(host, "back", "big")); err != nil || fi.Size() != size {
		t.Errorf("%v, %v", fi, err)
	}
}
