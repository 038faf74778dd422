package toolbox

import (
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// serveUnprivileged is serve for a toolbox that may not read everything. Root may, so that its requests are handled on
// threads that act on files as nobody.
func serveUnprivileged(t *testing.T) *wire {
	w := serve(t)
	if os.Getuid() != 0 {
		return w
	}
	const nobody = 65534
	for dir := w.home; strings.HasPrefix(dir, os.TempDir()) && dir != os.TempDir(); dir = dir[:strings.LastIndexByte(dir, '/')] {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(nobody); err != nil {
			t.Error(err)
		}
		defer func() {
			if err := unix.Setfsuid(0); err != nil {
				t.Error(err)
			}
		}()
		w.toolbox.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func TestDeniedFilesAreForbidden(t *testing.T) {
	w := serveUnprivileged(t)
	w.put("secret", "x", 0o600)
	w.put("closed/file", "x", 0o644)
	w.put("open/file", "x", 0o644)
	for path, mode := range map[string]os.FileMode{"closed": 0o700, "open": 0o555, "secret": 0o600} {
		if os.Getuid() != 0 {
			mode &^= 0o700 // the test's own user is the one to be kept out
			if path == "open" {
				mode = 0o555
			}
		}
		if err := os.Chmod(w.at(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		os.Chmod(w.at("closed"), 0o755)
		os.Chmod(w.at("open"), 0o755)
	})
	if r := w.do("GET", query("/files/download", "path", "open/file"), nil); r.status != http.StatusOK {
		t.Fatalf("download of an open file = %d, want 200: the test's directories are in the way", r.status)
	}
	for name, path := range map[string][2]string{
		"download":                  {"GET", query("/files/download", "path", "secret")},
		"download below a closed":   {"GET", query("/files/download", "path", "closed/file")},
		"info below a closed":       {"GET", query("/files/info", "path", "closed/file")},
		"list of a closed":          {"GET", query("/files", "path", "closed")},
		"delete without permission": {"DELETE", query("/files", "path", "open/file")},
		"move from a closed":        {"POST", query("/files/move", "source", "closed/file", "destination", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			w.do(path[0], path[1], nil).wantEmpty(t, http.StatusForbidden)
		})
	}
	r := w.do("POST", "/files/bulk-download", asJSON(t, map[string]any{"paths": []string{"secret"}}))
	if !strings.Contains(r.body, "FILE_ACCESS_DENIED") || !strings.Contains(r.body, `"statusCode":403`) {
		t.Errorf("bulk download of a secret = %q", r.body)
	}
	// What may not be entered is left out of a walk.
	if r := w.do("GET", query("/files/search", "path", ".", "pattern", "file"), nil); r.body != `{"files":["open/file"]}` {
		t.Errorf("search = %s, want the open file only", r.body)
	}
}
