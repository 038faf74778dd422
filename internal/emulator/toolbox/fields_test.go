//go:build unix

package toolbox

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRepliesHaveTheDocumentedFields compares names of fields with the schemas of the toolbox's OpenAPI document, and
// with what was measured where the document has none.
func TestRepliesHaveTheDocumentedFields(t *testing.T) {
	w := serve(t)
	w.put("dir/file", "needle", 0o644)
	fileFields := "group isDir modTime mode modifiedAt name owner permissions size"
	ptyFields := "active cols createdAt cwd envs id lazyStart rows"
	tests := []struct {
		method, path, body string
		at                 string // the part of the answer to look at: names of fields; "0" is the first of a list
		want               string
	}{
		{"GET", query("/files/info", "path", "dir"), "", "", fileFields},
		{"GET", query("/files", "path", "dir"), "", "0", fileFields},
		{"GET", query("/files/search", "path", "dir", "pattern", "*"), "", "", "files"},
		{"GET", query("/files/find", "path", "dir", "pattern", "needle"), "", "0", "content file line"},
		{"POST", "/files/replace", `{"files":["dir/file"],"pattern":"x","newValue":"y"}`, "0", "file success"},
		{"POST", "/files/replace", `{"files":["missing"],"pattern":"x","newValue":"y"}`, "0", "error file success"},
		{"POST", "/files/bulk-download", `{"paths":[]}`, "", "error"},
		{"POST", "/files/bulk-upload", ``, "", "errors"},
		{"POST", "/process/pty", `{"id":"one"}`, "", "sessionId"},
		{"POST", "/process/pty", `{"id":"one"}`, "", "error"},
		{"GET", "/process/pty", "", "", "sessions"},
		{"GET", "/process/pty", "", "sessions 0", ptyFields},
		{"GET", "/process/pty/one", "", "", ptyFields},
		{"POST", "/process/pty/one/resize", `{"cols":90,"rows":30}`, "", ptyFields},
		{"DELETE", "/process/pty/one", "", "", "message"},
		{"DELETE", "/process/pty/one", "", "", "error"},
		{"POST", "/process/pty/one/resize", `{"cols":90,"rows":30}`, "", "error"},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			r := w.in(t).do(test.method, test.path, strings.NewReader(test.body))
			if got := r.header.Get("Content-Type"); got != "application/json; charset=utf-8" {
				t.Errorf("Content-Type = %q", got)
			}
			value := decode[any](t, r)
			for _, name := range strings.Fields(test.at) {
				switch v := value.(type) {
				case []any:
					if len(v) == 0 {
						t.Fatalf("body %s has an empty list at %q", r.body, test.at)
					}
					value = v[0]
				case map[string]any:
					value = v[name]
				}
			}
			object, ok := value.(map[string]any)
			if !ok {
				t.Fatalf("body %s has no object at %q", r.body, test.at)
			}
			if diff := cmp.Diff(strings.Fields(test.want), slices.Sorted(maps.Keys(object))); diff != "" {
				t.Errorf("fields mismatch (-want +got):\n%s", diff)
			}
		})
	}
	// A part of a bulk download that could not be read.
	r := w.do("POST", "/files/bulk-download", strings.NewReader(`{"paths":["missing"]}`))
	_, problem, _ := strings.Cut(r.body, "\r\n\r\n")
	problem, _, _ = strings.Cut(problem, "\r\n--")
	var object map[string]any
	if err := json.Unmarshal([]byte(problem), &object); err != nil {
		t.Fatalf("error part %q: %v", problem, err)
	}
	if diff := cmp.Diff([]string{"code", "message", "statusCode"}, slices.Sorted(maps.Keys(object))); diff != "" {
		t.Errorf("fields of an error part mismatch (-want +got):\n%s", diff)
	}
}
