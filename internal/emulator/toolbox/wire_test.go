package toolbox

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator/proc"
)

// patience bounds every wait of a test for something that happens at once on an idle machine.
const patience = time.Minute

// umask is what the system takes away from the mode of new files.
var umask = func() os.FileMode {
	dir, err := os.MkdirTemp("", "umask")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "open"), 0o777); err != nil {
		panic(err)
	}
	info, err := os.Stat(filepath.Join(dir, "open"))
	if err != nil {
		panic(err)
	}
	return 0o777 &^ info.Mode().Perm()
}()

// wire is a toolbox behind a real HTTP server.
type wire struct {
	t       *testing.T
	toolbox *Toolbox
	group   *proc.Group
	url     string
	home    string
	client  *http.Client
}

// serve starts a toolbox whose home is an empty directory.
func serve(t *testing.T, change ...func(*Options)) *wire {
	t.Helper()
	supervisor := proc.NewSupervisor()
	t.Cleanup(func() {
		if err := supervisor.Close(); err != nil {
			t.Errorf("closing the supervisor: %v", err)
		}
	})
	options := Options{Home: t.TempDir(), TempDir: t.TempDir(), Group: supervisor.Group("sandbox")}
	for _, f := range change {
		f(&options)
	}
	toolbox := New(options)
	server := httptest.NewServer(toolbox)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		toolbox.Close()
		server.Close()
	})
	return &wire{t: t, toolbox: toolbox, group: options.Group, url: server.URL, home: options.Home, client: client}
}

// in returns the same toolbox for a subtest, whose failures are its own.
func (w *wire) in(t *testing.T) *wire {
	c := *w
	c.t = t
	return &c
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request and reads the whole answer.
func (w *wire) do(method, path string, body io.Reader, header ...string) reply {
	w.t.Helper()
	response, err := w.client.Do(w.request(method, path, body, header...))
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatalf("%s %s: reading the body: %v", method, path, err)
	}
	return reply{response.StatusCode, response.Header, string(content)}
}

func (w *wire) request(method, path string, body io.Reader, header ...string) *http.Request {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	return request
}

// query builds the query of a path out of names and values.
func query(path string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return path + "?" + values.Encode()
}

func asJSON(t *testing.T, v any) io.Reader {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(text)
}

// decode reads a JSON answer.
func decode[T any](t *testing.T, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("body %q: %v", r.body, err)
	}
	return v
}

// want fails unless the answer has this status and, for an error of a file endpoint, no body.
func (r reply) want(t *testing.T, status int) {
	t.Helper()
	if r.status != status {
		t.Fatalf("status = %d, want %d; body %q", r.status, status, r.body)
	}
}

func (r reply) wantEmpty(t *testing.T, status int) {
	t.Helper()
	r.want(t, status)
	if r.body != "" {
		t.Errorf("body = %q, want none", r.body)
	}
}

// field is one field of a form; a file when filename is set.
type field struct{ name, filename, content string }

func form(t *testing.T, fields ...field) (body io.Reader, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		var part io.Writer
		var err error
		if f.filename == "" {
			part, err = w.CreateFormField(f.name)
		} else {
			part, err = w.CreateFormFile(f.name, f.filename)
		}
		if err == nil {
			_, err = io.WriteString(part, f.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b, w.FormDataContentType()
}

func (w *wire) postForm(path string, fields ...field) reply {
	w.t.Helper()
	body, contentType := form(w.t, fields...)
	return w.do("POST", path, body, "Content-Type", contentType)
}

// put makes a file of the sandbox, with its directories, and returns its absolute path.
func (w *wire) put(name, content string, mode os.FileMode) string {
	w.t.Helper()
	p := w.at(name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), mode); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *wire) at(name string) string { return filepath.Join(w.home, name) }

func (w *wire) content(name string) string {
	w.t.Helper()
	content, err := os.ReadFile(w.at(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(content)
}

func (w *wire) mode(name string) string {
	w.t.Helper()
	info, err := os.Lstat(w.at(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return info.Mode().String()
}

// wantFile fails unless the file holds exactly this.
func (w *wire) wantFile(name, want string) {
	w.t.Helper()
	if got := w.content(name); got != want {
		w.t.Errorf("%s holds %q, want %q", name, abbreviate(got), abbreviate(want))
	}
}

// wantMode fails unless the entry has this mode, less what the umask takes away.
func (w *wire) wantMode(name string, want os.FileMode) {
	w.t.Helper()
	want &^= umask
	if got := w.mode(name); got != want.String() {
		w.t.Errorf("mode of %s = %s, want %s", name, got, want)
	}
}

func abbreviate(s string) string {
	if len(s) <= 200 {
		return s
	}
	return s[:100] + "…" + s[len(s)-100:]
}

// until waits for a condition, which it looks at often.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("did not come true in %v: %s", patience, what)
		}
	}
}

// needs skips the test when a program of the machine is missing.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return
	}
	skip(t, "not installed: "+strings.Join(missing, ", "))
}

// skip skips the test for a missing capability, which is a failure where all of them must be there.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}
