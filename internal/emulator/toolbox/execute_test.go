//go:build unix

package toolbox

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func (w *wire) execute(request executeRequest) reply {
	w.t.Helper()
	return w.do("POST", "/process/execute", asJSON(w.t, request))
}

func TestExecute(t *testing.T) {
	t.Setenv("LEASEHOLD_TEST_SECRET", "of the host")
	w := serve(t, func(o *Options) { o.Env = map[string]string{"OF_SANDBOX": "yes", "TZ": "Asia/Tokyo"} })
	if err := os.MkdirAll(w.at("sub/deeper"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		request executeRequest
		want    executeResponse
	}{
		"success":                      {executeRequest{Command: "echo hello"}, executeResponse{0, "hello\n"}},
		"no output":                    {executeRequest{Command: "true"}, executeResponse{0, ""}},
		"exit code":                    {executeRequest{Command: "exit 42"}, executeResponse{42, ""}},
		"unknown command":              {executeRequest{Command: "no-such-command-here 2>/dev/null"}, executeResponse{127, ""}},
		"merged output":                {executeRequest{Command: "echo a; echo b >&2; echo c"}, executeResponse{0, "a\nb\nc\n"}},
		"no newline is added":          {executeRequest{Command: "printf hello"}, executeResponse{0, "hello"}},
		"the shell by a signal":        {executeRequest{Command: "echo a; kill -9 $$"}, executeResponse{-1, "a\n"}},
		"a child by a signal":          {executeRequest{Command: "exec 2>/dev/null; sh -c 'kill -9 $$'"}, executeResponse{137, ""}},
		"cat prints the script":        {executeRequest{Command: "cat\necho X"}, executeResponse{0, "echo X"}},
		"read eats a line":             {executeRequest{Command: "read x\neaten\necho \"[$x]\""}, executeResponse{0, "[eaten]\n"}},
		"input from elsewhere":         {executeRequest{Command: "cat </dev/null\necho X"}, executeResponse{0, "X\n"}},
		"home is the working place":    {executeRequest{Command: "pwd -P; echo $HOME"}, executeResponse{0, w.home + "\n" + w.home + "\n"}},
		"directory":                    {executeRequest{Command: "pwd -P", Cwd: w.at("sub")}, executeResponse{0, w.at("sub") + "\n"}},
		"relative directory":           {executeRequest{Command: "pwd -P", Cwd: "sub/deeper"}, executeResponse{0, w.at("sub/deeper") + "\n"}},
		"environment":                  {executeRequest{Command: "echo $A$B", Envs: map[string]string{"A": "1 $B", "B": "2"}}, executeResponse{0, "1 $B2\n"}},
		"environment of the sandbox":   {executeRequest{Command: "echo $OF_SANDBOX $TZ"}, executeResponse{0, "yes Asia/Tokyo\n"}},
		"request over sandbox":         {executeRequest{Command: "echo $OF_SANDBOX", Envs: map[string]string{"OF_SANDBOX": "no"}}, executeResponse{0, "no\n"}},
		"nothing of the host":          {executeRequest{Command: "echo \"[$LEASEHOLD_TEST_SECRET]\""}, executeResponse{0, "[]\n"}},
		"invalid UTF-8":                {executeRequest{Command: `printf 'a\377b\300\257'`}, executeResponse{0, "a\ufffdb\ufffd\ufffd"}},
		"NUL":                          {executeRequest{Command: `printf 'a\000b'`}, executeResponse{0, "a\x00b"}},
		"marks are nothing special":    {executeRequest{Command: `printf '\001\001\001a\002\002\002'`}, executeResponse{0, "\x01\x01\x01a\x02\x02\x02"}},
		"timeout that is not reached":  {executeRequest{Command: "echo in time", Timeout: 60}, executeResponse{0, "in time\n"}},
		"a background process is free": {executeRequest{Command: "sleep 1000 >/dev/null 2>&1 & echo started"}, executeResponse{0, "started\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.execute(test.request)
			r.want(t, http.StatusOK)
			if diff := cmp.Diff(test.want, decode[executeResponse](t, r)); diff != "" {
				t.Errorf("answer mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExecuteInBadDirectory(t *testing.T) {
	w := serve(t)
	r := w.execute(executeRequest{Command: "true", Cwd: "/no/such/directory"})
	r.want(t, http.StatusOK)
	got := decode[executeResponse](t, r)
	if got.ExitCode != -1 || !strings.Contains(got.Result, "no such file or directory") {
		t.Errorf("answer = %+v, want -1 and the reason", got)
	}
}

func TestExecuteRefuses(t *testing.T) {
	w := serve(t)
	for name, body := range map[string]string{
		"no command":       `{}`,
		"empty command":    `{"command":""}`,
		"blank command":    `{"command":" \n\t"}`,
		"no JSON":          `command`,
		"wrong type":       `{"command":1}`,
		"bad name":         `{"command":"true","envs":{"1A":"x"}}`,
		"name with equals": `{"command":"true","envs":{"A=B":"x"}}`,
		"empty name":       `{"command":"true","envs":{"":"x"}}`,
		"name with dash":   `{"command":"true","envs":{"A-B":"x"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := w.do("POST", "/process/execute", strings.NewReader(body))
			wantError(t, r, http.StatusBadRequest, "BAD_REQUEST", "bad request: ", "/process/execute")
		})
	}
}

// wantError checks an error of six fields.
func wantError(t *testing.T, r reply, status int, code, prefix, path string) {
	t.Helper()
	r.want(t, status)
	got := decode[map[string]any](t, r)
	message, _ := got["message"].(string)
	if !strings.HasPrefix(message, prefix) {
		t.Errorf("message = %q, want one that begins with %q", message, prefix)
	}
	stamp, err := time.Parse(time.RFC3339, got["timestamp"].(string))
	if err != nil || time.Since(stamp).Abs() > time.Hour {
		t.Errorf("timestamp = %v, want now", got["timestamp"])
	}
	delete(got, "message")
	delete(got, "timestamp")
	delete(got, "method")
	want := map[string]any{"statusCode": float64(status), "code": code, "path": path}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("error mismatch (-want +got):\n%s", diff)
	}
}

// wantUnmapped checks an error that the daemon has no type for.
func wantUnmapped(t *testing.T, r reply, message string) {
	t.Helper()
	r.want(t, http.StatusInternalServerError)
	got := decode[map[string]any](t, r)
	want := map[string]any{"statusCode": 500.0, "message": message, "timestamp": "0001-01-01T00:00:00Z", "path": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("error mismatch (-want +got):\n%s", diff)
	}
}

func TestExecuteTimeoutKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	w := serve(t)
	start := time.Now()
	r := w.execute(executeRequest{Command: "echo lost\necho $$ >shell\nsleep 1000 & echo $! >child\nsleep 1000", Timeout: 5})
	took := time.Since(start)
	wantError(t, r, http.StatusRequestTimeout, "REQUEST_TIMEOUT", "request timeout: ", "/process/execute")
	if strings.Contains(r.body, "lost") {
		t.Errorf("body = %q, want no output", r.body)
	}
	if took < 5*time.Second {
		t.Errorf("took %v, want at least 5s", took)
	}
	for _, name := range []string{"shell", "child"} {
		until(t, "the "+name+" is dead", func() bool { return !w.alive(name) })
	}
}

// alive says whether the process lives whose pid is in a file.
func (w *wire) alive(name string) bool {
	w.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(w.content(name)))
	if err != nil {
		w.t.Fatal(err)
	}
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func TestExecuteTimeoutWaitsForAHolderOutsideTheGroup(t *testing.T) {
	needs(t, "setsid")
	t.Parallel()
	w := serve(t)
	w.gate("gate")
	replied := make(chan reply)
	go func() {
		replied <- w.execute(executeRequest{Command: "setsid sh -c 'echo >holding; read x <gate' </dev/null &\necho $$ >shell; sleep 1000", Timeout: 5})
	}()
	until(t, "the holder runs", func() bool { return w.exists("holding") && w.exists("shell") })
	until(t, "the group was killed", func() bool { return !w.alive("shell") })
	select {
	case r := <-replied:
		t.Fatalf("answer while the output has a holder: %+v", r)
	case <-time.After(200 * time.Millisecond):
	}
	w.open("gate")
	(<-replied).want(t, http.StatusRequestTimeout)
}

// gate makes a named pipe that lets a process wait for open.
func (w *wire) gate(name string) {
	w.t.Helper()
	if err := makePipe(w.at(name)); err != nil {
		w.t.Fatal(err)
	}
}

// open lets one process through a gate. It waits until the process is there.
func (w *wire) open(name string) {
	w.t.Helper()
	var f *os.File
	until(w.t, "a process waits at "+name, func() (ok bool) {
		var err error
		f, err = openPipe(w.at(name), os.O_WRONLY)
		return err == nil
	})
	defer f.Close()
	if _, err := f.WriteString("\n"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) exists(name string) bool {
	info, err := os.Stat(w.at(name))
	return err == nil && info.Size() > 0
}

func TestExecuteWaitsForHoldersOfItsOutput(t *testing.T) {
	w := serve(t)
	w.gate("gate")
	replied := make(chan reply)
	go func() {
		replied <- w.execute(executeRequest{Command: "(echo >waiting; read x <gate; echo late) & echo early"})
	}()
	until(t, "the background process runs", func() bool { return w.exists("waiting") })
	select {
	case r := <-replied:
		t.Fatalf("answer while the output has a holder: %+v", r)
	case <-time.After(100 * time.Millisecond):
	}
	w.open("gate")
	r := <-replied
	if got, want := decode[executeResponse](t, r), (executeResponse{0, "early\nlate\n"}); got != want {
		t.Errorf("answer = %+v, want %+v", got, want)
	}
}

func TestExecuteSurvivesItsClient(t *testing.T) {
	w := serve(t)
	w.gate("gate")
	ctx, cancel := context.WithCancel(t.Context())
	request := w.request("POST", "/process/execute", asJSON(t, executeRequest{Command: "echo >waiting; read x <gate; echo >done"})).WithContext(ctx)
	failed := make(chan error)
	go func() {
		response, err := w.client.Do(request)
		if err == nil {
			response.Body.Close()
		}
		failed <- err
	}()
	until(t, "the command runs", func() bool { return w.exists("waiting") })
	cancel()
	if err := <-failed; err == nil {
		t.Error("the cancelled request was answered")
	}
	w.open("gate")
	until(t, "the command has gone on", func() bool { return w.exists("done") })
}

func TestExecuteLargeScriptAndOutput(t *testing.T) {
	w := serve(t)
	// More than a pipe holds, so that a shell that exits early leaves some of it.
	script := "exit 7\n" + strings.Repeat("# filler\n", 40_000)
	if got, want := decode[executeResponse](t, w.execute(executeRequest{Command: script})), (executeResponse{7, ""}); got != want {
		t.Errorf("answer = %+v, want %+v", got, want)
	}
	got := decode[executeResponse](t, w.execute(executeRequest{Command: "head -c 8000000 /dev/zero | tr '\\0' x"}))
	if want := strings.Repeat("x", 8_000_000); got.ExitCode != 0 || got.Result != want {
		t.Errorf("exit code %d, %d bytes; want 0 and %d bytes of x", got.ExitCode, len(got.Result), len(want))
	}
}

func TestCloseEndsRunningCommands(t *testing.T) {
	w := serve(t)
	ended := make(chan error)
	go func() {
		response, err := w.client.Do(w.request("POST", "/process/execute", asJSON(t, executeRequest{Command: "echo $$ >shell; sleep 1000"})))
		if err == nil {
			response.Body.Close()
		}
		ended <- err
	}()
	until(t, "the command runs", func() bool { return w.exists("shell") })
	w.toolbox.Close()
	<-ended
	if w.alive("shell") {
		t.Error("the command is alive after Close")
	}
	w.execute(executeRequest{Command: "true"}).wantEmpty(t, http.StatusBadGateway)
}

func TestExecuteAfterKill(t *testing.T) {
	w := serve(t)
	if err := w.group.Kill(); err != nil {
		t.Fatal(err)
	}
	wantUnmapped(t, w.execute(executeRequest{Command: "true"}), "proc: the group was killed")
}

func TestServer(t *testing.T) {
	w := serve(t, func(o *Options) { o.WorkDir = "/some/where" })
	for path, want := range map[string]map[string]string{
		"/work-dir":      {"dir": "/some/where"},
		"/project-dir":   {"dir": "/some/where"},
		"/user-home-dir": {"dir": w.home},
		"/version":       {"version": Version},
	} {
		r := w.do("GET", path, nil)
		r.want(t, http.StatusOK)
		if diff := cmp.Diff(want, decode[map[string]string](t, r)); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", path, diff)
		}
		if r.header.Get("X-Request-Id") == "" {
			t.Errorf("%s has no X-Request-Id", path)
		}
	}
	w.do("POST", "/init", strings.NewReader(`{"token":"t"}`)).want(t, http.StatusOK)
	w.do("POST", "/init", strings.NewReader(`{}`)).want(t, http.StatusBadRequest)
	r := w.do("GET", "/nothing/here", nil, "X-Request-Id", "mine")
	r.want(t, http.StatusNotFound)
	if got := r.header.Get("X-Request-Id"); got != "mine" {
		t.Errorf("X-Request-Id = %q, want the request's own", got)
	}
	w.do("DELETE", "/version", nil).want(t, http.StatusNotFound)
}
