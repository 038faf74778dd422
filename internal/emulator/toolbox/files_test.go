package toolbox

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFileInfoDescribesAFile(t *testing.T) {
	w := serve(t)
	p := w.put("dir/file.txt", "12345", 0o640)
	modified := time.Date(2024, 2, 3, 4, 5, 6, 789, time.Local)
	if err := os.Chtimes(p, modified, modified); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dir/file.txt", w.at("link")); err != nil {
		t.Fatal(err)
	}
	owner, group := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	want := map[string]any{
		"name": "file.txt", "size": 5.0, "mode": "-rw-r-----", "modTime": modified.String(),
		"modifiedAt": modified.Format(time.RFC3339Nano), "isDir": false, "owner": owner, "group": group, "permissions": "0640",
	}
	for name, path := range map[string]string{"absolute": p, "relative": "dir/file.txt"} {
		t.Run(name, func(t *testing.T) {
			r := w.do("GET", query("/files/info", "path", path), nil)
			r.want(t, http.StatusOK)
			if diff := cmp.Diff(want, decode[map[string]any](t, r)); diff != "" {
				t.Errorf("info mismatch (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("link", func(t *testing.T) {
		got := decode[fileInfo](t, w.do("GET", query("/files/info", "path", "link"), nil))
		if got.Name != "link" || got.Mode != "-rw-r-----" || got.Size != 5 {
			t.Errorf("info of a link = %+v, want its own name and the file's mode and size", got)
		}
	})
	t.Run("directory", func(t *testing.T) {
		got := decode[fileInfo](t, w.do("GET", query("/files/info", "path", "dir"), nil))
		if !got.IsDir || got.Mode != "drwxr-xr-x" || got.Permissions != "0755" {
			t.Errorf("info of a directory = %+v", got)
		}
	})
}

func TestListShowsWhatADirectoryHolds(t *testing.T) {
	w := serve(t)
	w.put("d/b", "bb", 0o644)
	w.put("d/a name\nwith lines", "", 0o600)
	w.put("d/sub/inner", "x", 0o644)
	for name, target := range map[string]string{"good": "b", "broken": "nothing"} {
		if err := os.Symlink(target, w.at("d/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	names := func(r reply) []string {
		t.Helper()
		r.want(t, http.StatusOK)
		names := []string{}
		for _, info := range decode[[]fileInfo](t, r) {
			names = append(names, info.Name)
		}
		return names
	}
	// The broken link is left out without a word.
	want := []string{"a name\nwith lines", "b", "good", "sub"}
	if diff := cmp.Diff(want, names(w.do("GET", query("/files", "path", "d"), nil))); diff != "" {
		t.Errorf("names mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"d"}, names(w.do("GET", "/files", nil))); diff != "" {
		t.Errorf("names in the working directory mismatch (-want +got):\n%s", diff)
	}
	if err := os.Mkdir(w.at("empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := w.do("GET", query("/files", "path", "empty"), nil); r.body != "[]" {
		t.Errorf("list of an empty directory = %q, want []", r.body)
	}
}

func TestFileErrorsHaveNoBody(t *testing.T) {
	w := serve(t)
	w.put("file", "x", 0o644)
	w.put("full/file", "x", 0o644)
	if err := os.Symlink("nothing", w.at("broken")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, method, path string
		want               int
	}{
		{"info without path", "GET", "/files/info", 400},
		{"info of nothing", "GET", query("/files/info", "path", "no"), 404},
		{"info of a broken link", "GET", query("/files/info", "path", "broken"), 404},
		{"info below a file", "GET", query("/files/info", "path", "file/x"), 400},
		{"info of an impossible path", "GET", query("/files/info", "path", "a\x00b"), 400},
		{"list of nothing", "GET", query("/files", "path", "no"), 404},
		{"list of a file", "GET", query("/files", "path", "file"), 400},
		{"folder without path", "POST", "/files/folder", 400},
		{"folder with a bad mode", "POST", query("/files/folder", "path", "new", "mode", "9"), 400},
		{"folder below a file", "POST", query("/files/folder", "path", "file/x", "mode", "755"), 400},
		{"folder at a file", "POST", query("/files/folder", "path", "file", "mode", "755"), 400},
		{"permissions without path", "POST", "/files/permissions", 400},
		{"permissions of nothing", "POST", query("/files/permissions", "path", "no", "mode", "644"), 404},
		{"permissions with a bad mode", "POST", query("/files/permissions", "path", "file", "mode", "rw"), 400},
		{"permissions for nobody known", "POST", query("/files/permissions", "path", "file", "owner", "no such user"), 400},
		{"permissions for no group known", "POST", query("/files/permissions", "path", "file", "group", "no such group"), 400},
		{"move without source", "POST", query("/files/move", "destination", "x"), 400},
		{"move without destination", "POST", query("/files/move", "source", "file"), 400},
		{"move of nothing", "POST", query("/files/move", "source", "no", "destination", "x"), 404},
		{"move into nothing", "POST", query("/files/move", "source", "file", "destination", "no/x"), 404},
		{"move onto a file", "POST", query("/files/move", "source", "full", "destination", "file"), 409},
		{"move onto a directory", "POST", query("/files/move", "source", "file", "destination", "full"), 409},
		{"move into itself", "POST", query("/files/move", "source", "full", "destination", "full/x"), 400},
		{"delete without path", "DELETE", "/files", 400},
		{"delete of nothing", "DELETE", query("/files", "path", "no"), 404},
		{"delete of a broken link", "DELETE", query("/files", "path", "broken"), 404},
		{"delete of a directory", "DELETE", query("/files", "path", "full"), 400},
		{"download without path", "GET", "/files/download", 400},
		{"download of nothing", "GET", query("/files/download", "path", "no"), 404},
		{"download of a directory", "GET", query("/files/download", "path", "full"), 400},
		{"search without pattern", "GET", query("/files/search", "path", "full"), 400},
		{"search without path", "GET", query("/files/search", "pattern", "*"), 400},
		{"find without pattern", "GET", query("/files/find", "path", "full"), 400},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w.do(test.method, test.path, nil).wantEmpty(t, test.want)
		})
	}
	w.wantFile("file", "x")
	w.wantFile("full/file", "x")
}

func TestFolderIsMadeWithItsParents(t *testing.T) {
	w := serve(t)
	for _, mode := range []string{"777", "0777", "4777"} {
		path := "m" + mode + "/b/c"
		w.do("POST", query("/files/folder", "path", path, "mode", mode), nil).wantEmpty(t, http.StatusCreated)
		w.wantMode("m"+mode, os.ModeDir|0o777)
		w.wantMode(path, os.ModeDir|0o777)
	}
	w.do("POST", query("/files/folder", "path", "plain"), nil).wantEmpty(t, http.StatusCreated)
	w.wantMode("plain", os.ModeDir|0o755)
	// One that exists keeps its mode.
	w.do("POST", query("/files/folder", "path", "plain", "mode", "700"), nil).wantEmpty(t, http.StatusCreated)
	w.wantMode("plain", os.ModeDir|0o755)
}

func TestPermissionsLoseTheSpecialBits(t *testing.T) {
	w := serve(t)
	w.put("file", "", 0o600)
	for mode, want := range map[string]string{"644": "-rw-r--r--", "04755": "-rwxr-xr-x", "1777": "-rwxrwxrwx", "0": "----------"} {
		w.do("POST", query("/files/permissions", "path", "file", "mode", mode), nil).wantEmpty(t, http.StatusOK)
		if got := w.mode("file"); got != want {
			t.Errorf("mode after %s = %s, want %s", mode, got, want)
		}
	}
	before := w.mode("file")
	w.do("POST", query("/files/permissions", "path", "file"), nil).wantEmpty(t, http.StatusOK)
	if got := w.mode("file"); got != before {
		t.Errorf("mode after no mode = %s, want %s", got, before)
	}
}

func TestPermissionsChangeOwnerAndGroup(t *testing.T) {
	if os.Getuid() != 0 {
		skip(t, "only root gives files away")
	}
	w := serve(t)
	w.put("file", "", 0o600)
	steps := []struct{ owner, group, wantOwner, wantGroup string }{
		{"12345", "", "12345", "0"},
		{"", "54321", "12345", "54321"},
		{"root", "root", "0", "0"},
	}
	for _, s := range steps {
		w.do("POST", query("/files/permissions", "path", "file", "owner", s.owner, "group", s.group), nil).wantEmpty(t, http.StatusOK)
		got := decode[fileInfo](t, w.do("GET", query("/files/info", "path", "file"), nil))
		if got.Owner != s.wantOwner || got.Group != s.wantGroup {
			t.Errorf("owner and group after %+v = %s, %s", s, got.Owner, got.Group)
		}
	}
}

func TestMoveRenames(t *testing.T) {
	w := serve(t)
	w.put("a", "file", 0o751)
	w.put("dir/inner", "inside", 0o644)
	if err := os.Mkdir(w.at("to"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.do("POST", query("/files/move", "source", "a", "destination", "to/b"), nil).wantEmpty(t, http.StatusOK)
	w.do("POST", query("/files/move", "source", "dir", "destination", w.at("to/dir")), nil).wantEmpty(t, http.StatusOK)
	w.wantFile("to/b", "file")
	w.wantFile("to/dir/inner", "inside")
	if got := w.mode("to/b"); got != "-rwxr-x--x" {
		t.Errorf("mode after the move = %s", got)
	}
	for _, gone := range []string{"a", "dir"} {
		if _, err := os.Lstat(w.at(gone)); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
}

func TestMoveToAnotherFileSystemCopies(t *testing.T) {
	w := serve(t)
	w.put("dir/sub/file", "inside", 0o640)
	other, err := os.MkdirTemp("/dev/shm", "toolbox")
	if err != nil {
		skip(t, "no second file system: "+err.Error())
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	if err := os.Rename(w.at("dir/sub/file"), filepath.Join(other, "file")); err == nil {
		skip(t, "the temporary directory and /dev/shm are one file system")
	}
	w.do("POST", query("/files/move", "source", "dir", "destination", filepath.Join(other, "dir")), nil).wantEmpty(t, http.StatusOK)
	copied := filepath.Join(other, "dir/sub/file")
	content, err := os.ReadFile(copied)
	if err != nil || string(content) != "inside" {
		t.Fatalf("moved file = %q, %v", content, err)
	}
	if info, _ := os.Stat(copied); info.Mode().Perm() != 0o640 {
		t.Errorf("mode of the moved file = %s", info.Mode())
	}
	if _, err := os.Lstat(w.at("dir")); err == nil {
		t.Error("the source is still there")
	}
}

func TestDeleteRemovesFilesLinksAndTrees(t *testing.T) {
	w := serve(t)
	w.put("file", "x", 0o644)
	w.put("dir/a/b", "x", 0o644)
	w.put("kept/file", "x", 0o644)
	if err := os.Symlink("kept", w.at("link")); err != nil {
		t.Fatal(err)
	}
	w.do("DELETE", query("/files", "path", "file"), nil).wantEmpty(t, http.StatusNoContent)
	w.do("DELETE", query("/files", "path", "dir", "recursive", "true"), nil).wantEmpty(t, http.StatusNoContent)
	// A link to a directory counts as a directory, and only the link goes.
	w.do("DELETE", query("/files", "path", "link"), nil).wantEmpty(t, http.StatusBadRequest)
	w.do("DELETE", query("/files", "path", "link", "recursive", "true"), nil).wantEmpty(t, http.StatusNoContent)
	for _, gone := range []string{"file", "dir", "link"} {
		if _, err := os.Lstat(w.at(gone)); err == nil {
			t.Errorf("%s is still there", gone)
		}
		w.do("DELETE", query("/files", "path", gone), nil).wantEmpty(t, http.StatusNotFound)
	}
	w.wantFile("kept/file", "x")
}

func TestSearchMatchesBaseNames(t *testing.T) {
	w := serve(t)
	for _, p := range []string{"s/a.go", "s/b.txt", "s/sub/c.go", "s/go"} {
		w.put(p, "", 0o644)
	}
	for _, test := range []struct {
		path, pattern string
		want          []string
	}{
		{"s", "*.go", []string{"s/a.go", "s/sub/c.go"}},
		{w.at("s"), "*.go", []string{w.at("s/a.go"), w.at("s/sub/c.go")}},
		{"s", "sub", []string{"s/sub"}},
		{"s", "[", []string{}},
		{"missing", "*", []string{}},
	} {
		r := w.do("GET", query("/files/search", "path", test.path, "pattern", test.pattern), nil)
		r.want(t, http.StatusOK)
		if diff := cmp.Diff(map[string][]string{"files": test.want}, decode[map[string][]string](t, r)); diff != "" {
			t.Errorf("search of %s in %s mismatch (-want +got):\n%s", test.pattern, test.path, diff)
		}
	}
}

func TestFindListsLinesOfTextFiles(t *testing.T) {
	w := serve(t)
	w.put("f/one", "first\nneedle [1]\n\nanother needle", 0o644)
	w.put("f/sub/two", "needle\r\n", 0o644)
	w.put("f/binary", "needle\x00\nneedle", 0o644)
	w.put("f/long", strings.Repeat("x", 70<<10)+"\nneedle\n", 0o644)
	if err := os.Symlink("one", w.at("f/link")); err != nil {
		t.Fatal(err)
	}
	r := w.do("GET", query("/files/find", "path", "f", "pattern", "needle"), nil)
	r.want(t, http.StatusOK)
	want := []match{{"f/one", 2, "needle [1]"}, {"f/one", 4, "another needle"}, {"f/sub/two", 1, "needle"}}
	if diff := cmp.Diff(want, decode[[]match](t, r)); diff != "" {
		t.Errorf("matches mismatch (-want +got):\n%s", diff)
	}
	// The pattern is text, not an expression.
	if r := w.do("GET", query("/files/find", "path", "f", "pattern", "nee.le"), nil); r.body != "[]" {
		t.Errorf("matches = %s, want []", r.body)
	}
}

func TestReplaceReportsEachFile(t *testing.T) {
	w := serve(t)
	w.put("one", "a.b a.b axb", 0o600)
	w.put("two", "nothing", 0o644)
	r := w.do("POST", "/files/replace", asJSON(t, map[string]any{
		"files": []string{"one", "missing", "two"}, "pattern": "a.b", "newValue": "",
	}))
	r.want(t, http.StatusOK)
	results := decode[[]replaceResult](t, r)
	if len(results) != 3 {
		t.Fatalf("results = %+v, want three", results)
	}
	for i, want := range []replaceResult{{File: "one", Success: true}, {File: "missing"}, {File: "two", Success: true}} {
		got := results[i]
		if got.File != want.File || got.Success != want.Success || (got.Error == "") != want.Success {
			t.Errorf("result %d = %+v, want %+v", i, got, want)
		}
	}
	w.wantFile("one", "  axb")
	w.wantFile("two", "nothing")
	if got := w.mode("one"); got != "-rw-------" {
		t.Errorf("mode after the replacement = %s", got)
	}
	for _, body := range []string{`{`, `{"files":["one"],"newValue":"x"}`, `{"pattern":"a","newValue":"x"}`, `{"files":["one"],"pattern":"a"}`} {
		w.do("POST", "/files/replace", strings.NewReader(body)).wantEmpty(t, http.StatusBadRequest)
	}
	w.wantFile("one", "  axb")
}

func TestFullDiskFailsEveryWrite(t *testing.T) {
	full := false
	w := serve(t, func(o *Options) { o.Quirks.DiskFull = func() bool { return full } })
	w.put("old", "old content", 0o644)
	w.put("text", "replace me", 0o644)
	full = true

	w.postForm(query("/files/upload", "path", "old"), field{"file", "f", "new content"}).wantEmpty(t, http.StatusBadRequest)
	w.wantFile("old", "") // truncated before the write failed
	w.postForm(query("/files/upload", "path", "empty"), field{"file", "f", ""}).wantEmpty(t, http.StatusOK)
	w.do("POST", query("/files/folder", "path", "dir"), nil).wantEmpty(t, http.StatusBadRequest)
	w.do("POST", query("/files/folder", "path", "."), nil).wantEmpty(t, http.StatusCreated)

	r := w.postForm("/files/bulk-upload", field{"files[0].path", "", "none"}, field{"files[0].file", "f", ""},
		field{"files[1].path", "", "some"}, field{"files[1].file", "f", "some"})
	r.want(t, http.StatusBadRequest)
	got := decode[bulkReply](t, r)
	if len(got.Errors) != 1 || !strings.Contains(got.Errors[0], "no space left on device") {
		t.Errorf("errors = %q, want one about the space", got.Errors)
	}
	if diff := cmp.Diff([]uploaded{{"none", 0}}, got.Files); diff != "" {
		t.Errorf("stored files mismatch (-want +got):\n%s", diff)
	}

	results := decode[[]replaceResult](t, w.do("POST", "/files/replace", asJSON(t, map[string]any{
		"files": []string{"text"}, "pattern": "replace", "newValue": "lose",
	})))
	if len(results) != 1 || results[0].Success {
		t.Errorf("replacement on a full disk = %+v, want a failure", results)
	}

	full = false
	w.postForm(query("/files/upload", "path", "old"), field{"file", "f", "new content"}).wantEmpty(t, http.StatusOK)
	w.wantFile("old", "new content")
}
