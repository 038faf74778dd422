//go:build unix

package leasehold

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// aliases makes links in the sandbox to the workspace, and to the directory that it lies in, and returns their paths.
func aliases(t testing.TB, l *Lease) (alias, above string) {
	t.Helper()
	ws, dir := l.Ref().Workspace, t.TempDir()
	alias, above = filepath.Join(dir, "alias"), filepath.Join(dir, "above")
	if err := errors.Join(os.Symlink(ws, alias), os.Symlink(filepath.Dir(ws), above)); err != nil {
		t.Fatal(err)
	}
	return alias, above
}

// An import that reaches the lease's own directory by another name of the workspace does not touch it: it does without, or is
// refused, names the path, and changes nothing.
func TestImportsByAnotherNameOfTheWorkspace(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	alias, above := aliases(t, l)
	ws, name, local, in, ctx := l.Ref().Workspace, filepath.Base(l.Ref().Workspace), t.TempDir(), l.Importer(), t.Context()
	sentinel := filepath.Join(ws, sentinelFile)
	before, err := os.ReadFile(sentinel)
	if err != nil {
		t.Fatal(err)
	}
	one := filepath.Join(local, "f")
	writeFiles(t, local, map[string]string{"f": "new", "own/" + sentinelFile: "forged", "deep/" + name + "/" + sentinelFile: "forged", "d/f": "new"})
	writeFiles(t, ws, map[string]string{"old": "old"})
	healthy := func(t *testing.T) {
		t.Helper()
		wantNoScratch(t, l)
		if after, err := os.ReadFile(sentinel); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the sentinel is %q, %v", after, err)
		}
		if _, err := r.Resume(ctx, l.Ref()); err != nil {
			t.Errorf("the lease's sentinel did not survive: %v", err)
		}
	}
	for what, tc := range map[string]struct {
		path string // that the error names
		do   func(path string) error
	}{
		"a bundle of the workspace": {above + "/" + name, func(path string) error {
			_, err := in.Dir(ctx, local+"/d", path, ImportOptions{Access: AccessReadOnly})
			return err
		}},
		"a bundle in it": {alias + "/" + sentinelDir + "/b", func(path string) error {
			_, err := in.Dir(ctx, local+"/d", path, ImportOptions{Access: AccessReadOnly})
			return err
		}},
		"a directory": {alias + "/" + sentinelDir, func(path string) error {
			_, err := in.Dir(ctx, local+"/d", path, ImportOptions{})
			return err
		}},
		"a directory, compared": {alias + "/" + sentinelDir, func(path string) error {
			_, err := in.Dir(ctx, local+"/d", path, ImportOptions{Delta: DeltaTimes, Delete: true})
			return err
		}},
		"an entry": {alias, func(path string) error {
			_, err := in.Dir(ctx, local+"/own", path, ImportOptions{})
			return err
		}},
		"an entry, compared": {alias, func(path string) error {
			_, err := in.Dir(ctx, local+"/own", path, ImportOptions{Delta: DeltaDigests, Delete: true})
			return err
		}},
		"an entry further down": {above, func(path string) error {
			_, err := in.FS(ctx, os.DirFS(local+"/deep"), path, ImportOptions{})
			return err
		}},
		"an entry of a stream": {alias, func(path string) error {
			_, err := in.Tar(ctx, bytes.NewReader(pack(t, file(sentinelFile, "forged"))), path, ImportOptions{})
			return err
		}},
		"a file": {alias + "/" + sentinelDir, func(path string) error {
			_, err := in.File(ctx, one, path+"/lease.json", ImportOptions{})
			return err
		}},
		"one of several files": {alias + "/" + sentinelDir, func(path string) error {
			_, err := in.Files(ctx, []FileMapping{{Local: one, Remote: "another"}, {Local: one, Remote: path + "/lease.json"}}, ImportOptions{})
			return err
		}},
		"a file in its place": {alias, func(path string) error {
			_, err := in.File(ctx, one, path+"/"+sentinelDir, ImportOptions{})
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			err := tc.do(tc.path)
			if wantError(t, err, KindRefused); !strings.Contains(err.Error(), `"`+tc.path+`"`) {
				t.Errorf("%v does not name %s", err, tc.path)
			}
			if diff := cmp.Diff(map[string]string{"old": "-rw-r--r-- old"}, tree(t, ws)); diff != "" {
				t.Errorf("workspace mismatch (-want +got):\n%s", diff)
			}
			healthy(t)
		})
	}

	for _, delta := range []Delta{DeltaTimes, DeltaDigests} {
		for _, path := range []string{alias, above + "/" + name} {
			writeFiles(t, ws, map[string]string{"old": "old", "sub/old": "old"})
			r.server.ResetRequests()
			result, err := in.Dir(ctx, local+"/d", path, ImportOptions{Delta: delta, Delete: true})
			if err != nil || result.Removed < 3 {
				t.Errorf("%+v, %v, want at least 3 entries removed", result, err)
			}
			if n := len(r.requests()); n > 4 {
				t.Errorf("%d requests: %v", n, r.requests())
			}
			wantTree(t, local+"/d", ws)
			healthy(t)
		}
	}
	// What lies beside it may be called whatever leads there.
	for _, err := range []error{
		drop(in.Dir(ctx, local+"/d", alias, ImportOptions{})),
		drop(in.Dir(ctx, local+"/own", alias+"/sub", ImportOptions{})),
		drop(in.Dir(ctx, local+"/own", above+"/"+name+"/sub", ImportOptions{Delta: DeltaTimes, Delete: true})),
		drop(in.Dir(ctx, local+"/d", alias+"/bundle", ImportOptions{Access: AccessReadOnly})),
		drop(in.Dir(ctx, local+"/d", above+"/"+name+"/bundle", ImportOptions{Access: AccessReadOnly})),
		drop(in.File(ctx, one, alias+"/sub/f", ImportOptions{})),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"f": "-rw-r--r-- new", "sub": "drwxr-xr-x", "sub/f": "-rw-r--r-- new", "sub/" + sentinelDir: "drwxr-xr-x", "sub/" + sentinelFile: "-rw-r--r-- forged",
		"bundle": "dr-xr-xr-x", "bundle/f": "-r--r--r-- new",
	}
	if diff := cmp.Diff(want, tree(t, ws)); diff != "" {
		t.Errorf("workspace mismatch (-want +got):\n%s", diff)
	}
	healthy(t)
}

func drop(_ TransferResult, err error) error { return err }

// By another name of the workspace, too, the lease's own directory is left out of an export, and what lies in it is refused.
func TestExportsByAnotherNameOfTheWorkspace(t *testing.T) {
	t.Parallel()
	needTerminal(t)
	const secret = sentinelDir + "/filler" // which fills the disk of a full one
	for _, route := range []Route{RouteFiles, RouteTerminal} {
		t.Run(string(route), func(t *testing.T) {
			var l *Lease
			if route == RouteTerminal {
				_, l = fullLease(t, emulator.Options{Shell: "bash"})
			} else {
				l = newRig(t, Config{}, emulator.Options{}).acquired(t)
				writeFiles(t, l.Ref().Workspace, map[string]string{secret: "mine"})
			}
			alias, above := aliases(t, l)
			ws, host, out, ctx := l.Ref().Workspace, t.TempDir(), l.Exporter(), t.Context()
			writeFiles(t, ws, map[string]string{"f": "f", "sub/" + sentinelFile: "mine"})
			for i, path := range []string{alias, above, alias + "/sub"} {
				dest := filepath.Join(host, string(rune('a'+i)))
				result, err := out.Dir(ctx, path, dest, ExportOptions{})
				if err != nil || result.Route != route {
					t.Errorf("%s: route %q, %v", path, result.Route, err)
				}
				if path == above {
					dest = filepath.Join(dest, filepath.Base(ws))
				}
				if path == alias+"/sub" {
					ws += "/sub"
				} else if _, err := os.Lstat(filepath.Join(dest, sentinelDir)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: the lease's own directory was exported: %v", path, err)
				}
				wantTree(t, ws, dest)
			}
			var b bytes.Buffer
			if _, err := out.Tar(ctx, alias, &b, ExportOptions{}); err != nil || bytes.Count(b.Bytes(), []byte("lease.json")) != 1 {
				t.Errorf("%v, %d files of that name, want the one below", err, bytes.Count(b.Bytes(), []byte("lease.json")))
			}
			if _, err := out.File(ctx, alias+"/sub/"+sentinelFile, host+"/file", ExportOptions{}); err != nil {
				t.Error(err)
			}
			for path, err := range map[string]error{
				alias + "/" + sentinelDir: drop(out.Dir(ctx, alias+"/"+sentinelDir, host+"/own", ExportOptions{})),
				alias + "/" + secret:      drop(out.File(ctx, alias+"/"+secret, host+"/own", ExportOptions{})),
			} {
				if wantError(t, err, KindRefused); !strings.Contains(err.Error(), `"`+path+`"`) {
					t.Errorf("%v does not name %s", err, path)
				}
			}
			if _, err := os.Lstat(host + "/own"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("Lstat() = %v, want that nothing was exported", err)
			}
			wantNoScratch(t, l, host)
		})
	}
}
