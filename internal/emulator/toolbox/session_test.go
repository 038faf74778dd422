//go:build unix

package toolbox

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// swift takes out the waiting that a test is not about.
func swift(o *Options) {
	o.Quirks.SessionDeleteDelay = -1
	o.Quirks.SyncExecPoll = time.Millisecond
	o.Quirks.FollowLinger = -1
	o.Quirks.ExitCodeWindow = -1
}

const sessions = "/process/session"

func sessionPath(id string) string { return sessions + "/" + url.PathEscape(id) }

func commandPath(session, command string) string {
	return sessionPath(session) + "/command/" + url.PathEscape(command)
}

func (w *wire) createSession(id string) {
	w.t.Helper()
	w.do("POST", sessions, asJSON(w.t, map[string]string{"sessionId": id})).wantEmpty(w.t, http.StatusCreated)
}

func (w *wire) submit(session, command string, more ...string) reply {
	w.t.Helper()
	body := map[string]any{"command": command}
	for _, name := range more {
		body[name] = true
	}
	return w.do("POST", sessionPath(session)+"/exec", asJSON(w.t, body))
}

// start starts an asynchronous command and returns its id.
func (w *wire) start(session, command string, more ...string) string {
	w.t.Helper()
	r := w.submit(session, command, append(more, "runAsync")...)
	r.want(w.t, http.StatusAccepted)
	return decode[sessionExecuteResponse](w.t, r).CommandID
}

// whole asks until the daemon does not look while an exit is being recorded: see TestExitCodeWindow.
func (w *wire) whole(ask func() reply) (r reply) {
	w.t.Helper()
	until(w.t, "the exit is written", func() bool {
		r = ask()
		return r.status != http.StatusInternalServerError || !strings.Contains(r.body, "failed to convert exit code to int")
	})
	return r
}

// status returns a command's exit code, or nil.
func (w *wire) status(session, command string) *int {
	w.t.Helper()
	r := w.whole(func() reply { return w.do("GET", commandPath(session, command), nil) })
	r.want(w.t, http.StatusOK)
	return decode[commandView](w.t, r).ExitCode
}

// exitCode waits for it.
func (w *wire) exitCode(session, command string) (code int) {
	w.t.Helper()
	until(w.t, "the exit code is recorded", func() bool {
		c := w.status(session, command)
		if c != nil {
			code = *c
		}
		return c != nil
	})
	return code
}

// log returns a command's log with marks.
func (w *wire) log(session, command string) string {
	w.t.Helper()
	r := w.do("GET", commandPath(session, command)+"/logs", nil, "X-Daytona-Split-Output", "true")
	r.want(w.t, http.StatusOK)
	return r.body
}

// output runs a command to its end and returns its log with marks.
func (w *wire) output(session, command string) string {
	w.t.Helper()
	id := w.start(session, command)
	w.exitCode(session, id)
	return w.log(session, id)
}

const (
	out = stdoutMark
	err = stderrMark
)

func TestSessionLife(t *testing.T) {
	w := serve(t, swift)
	for name, body := range map[string]string{"empty id": `{"sessionId":""}`, "no id": `{}`, "the entrypoint's id": `{"sessionId":"entrypoint"}`, "no JSON": `x`} {
		t.Run(name, func(t *testing.T) {
			wantError(t, w.do("POST", sessions, strings.NewReader(body)), http.StatusBadRequest, "BAD_REQUEST", "bad request: ", sessions)
		})
	}
	for _, id := range []string{"s", "with space", "..x", ".hidden", "ä", "100%"} {
		t.Run(id, func(t *testing.T) {
			w.createSession(id)
			wantError(t, w.do("POST", sessions, asJSON(t, map[string]string{"sessionId": id})), http.StatusConflict, "CONFLICT", "conflict: ", sessions)
			r := w.do("GET", sessions, nil)
			r.want(t, http.StatusOK)
			if diff := cmp.Diff([]sessionView{{id, []commandView{}}}, decode[[]sessionView](t, r)); diff != "" {
				t.Errorf("list mismatch (-want +got):\n%s", diff)
			}
			command := w.start(id, "exit_with() { return $1; }; exit_with 3")
			w.exitCode(id, command)
			r = w.do("GET", sessionPath(id), nil)
			r.want(t, http.StatusOK)
			three := 3
			want := sessionView{id, []commandView{{command, "exit_with() { return $1; }; exit_with 3", &three}}}
			if diff := cmp.Diff(want, decode[sessionView](t, r)); diff != "" {
				t.Errorf("session mismatch (-want +got):\n%s", diff)
			}
			w.do("DELETE", sessionPath(id), nil).wantEmpty(t, http.StatusNoContent)
			for _, r := range []reply{w.do("DELETE", sessionPath(id), nil), w.do("GET", sessionPath(id), nil)} {
				wantError(t, r, http.StatusNotFound, "NOT_FOUND", "not found: ", sessions+"/"+id)
			}
			left, _ := os.ReadDir(w.at(".daytona/sessions"))
			if len(left) > 0 {
				t.Errorf("left in the state folder: %v", left)
			}
		})
	}
	if got := w.do("GET", sessions, nil).body; got != "[]" {
		t.Errorf("list = %s, want []", got)
	}
}

func TestSessionFolderStaysInItsPlace(t *testing.T) {
	for id, want := range map[string]string{"s-1_a": "s-1_a", "..": "%2E.", ".": "%2E", "../../up": "%2E.%2F..%2Fup", "/abs": "%2Fabs", "a/b": "a%2Fb"} {
		if got := folderName(id); got != want {
			t.Errorf("folderName(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestEntrypointSession(t *testing.T) {
	w := serve(t, swift)
	r := w.do("GET", sessions+"/entrypoint", nil)
	r.want(t, http.StatusOK)
	if got, want := r.body, `{"sessionId":"entrypoint","commands":[]}`; got != want {
		t.Errorf("session = %s, want %s", got, want)
	}
	r = w.do("GET", sessions+"/entrypoint/logs", nil, "X-Daytona-SDK-Version", "0.170.0")
	r.want(t, http.StatusOK)
	if got, want := r.body, `{"output":"","stdout":"","stderr":""}`; got != want {
		t.Errorf("logs = %s, want %s", got, want)
	}
	w.do("DELETE", sessions+"/entrypoint", nil).want(t, http.StatusBadRequest)
	w.submit("entrypoint", "true").want(t, http.StatusBadRequest)
}

func TestSessionCommandExitCodes(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	for name, test := range map[string]struct {
		command string
		code    int
		log     string
	}{
		"success":                 {"true", 0, ""},
		"failure":                 {"false", 1, ""},
		"return":                  {"return 6", 6, ""},
		"subshell":                {"(exit 3)", 3, ""},
		"unknown command":         {"no-such-command-here 2>/dev/null", 127, ""},
		"child by a signal":       {"exec 3>&2 2>/dev/null; sh -c 'kill -9 $$'; code=$?; exec 2>&3 3>&-; return $code", 137, ""},
		"both streams":            {"echo a; echo b >&2", 0, out + "a\n" + err + "b\n"},
		"comment at the end":      {"echo a # no newline after this", 0, out + "a\n"},
		"several lines":           {"if true\nthen\n\techo a\nfi", 0, out + "a\n"},
		"streams closed":          {"exec >&- 2>&-", 0, ""},
		"output after that is ok": {"echo still there", 0, out + "still there\n"},
	} {
		t.Run(name, func(t *testing.T) {
			id := w.start("s", test.command)
			if got := w.exitCode("s", id); got != test.code {
				t.Errorf("exit code = %d, want %d", got, test.code)
			}
			if got := inOrder(w.log("s", id)); got != test.log {
				t.Errorf("log = %q, want %q", got, test.log)
			}
		})
	}
}

// inOrder puts the lines of stdout before those of stderr, whose order in a log means nothing.
func inOrder(log string) string {
	lines := slices.Collect(strings.Lines(log))
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(a[:min(3, len(a))], b[:min(3, len(b))]) })
	return strings.Join(lines, "")
}

func TestSyntaxErrorInBash(t *testing.T) {
	needs(t, "bash")
	w := serve(t, swift, func(o *Options) { o.Shell = "bash" })
	w.createSession("s")
	id := w.start("s", "if then")
	if got := w.exitCode("s", id); got != 2 {
		t.Errorf("exit code = %d, want 2", got)
	}
	if log := w.log("s", id); !strings.Contains(log, "syntax error") {
		t.Errorf("log = %q, want the reason", log)
	}
	// A command that is killed is told by the shell, on the stream of errors of the command.
	if log := w.output("s", "sh -c 'kill -9 $$'"); !strings.HasPrefix(log, err) || !strings.Contains(log, "Killed") {
		t.Errorf("log = %q, want Killed on stderr", log)
	}
}

func TestSessionKeepsState(t *testing.T) {
	w := serve(t, swift)
	if err := os.Mkdir(w.at("sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.createSession("s")
	w.createSession("other")
	w.output("s", "cd sub; A=1; export B=2; f() { echo f$1; }; printf() { echo mine; }")
	if got, want := w.output("s", "pwd -P; echo $A; sh -c 'echo $B'; f 3; printf x"),
		out+w.at("sub")+"\n"+out+"1\n"+out+"2\n"+out+"f3\n"+out+"mine\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	if got, want := w.output("other", "pwd -P; echo $A$B"), out+w.home+"\n"+out+"\n"; got != want {
		t.Errorf("log of another session = %q, want %q", got, want)
	}
}

func TestSessionOfAnOldClientStartsAtHome(t *testing.T) {
	w := serve(t, swift)
	w.toolbox.opts.WorkDir = t.TempDir()
	for version, want := range map[string]string{"0.102.9": w.home, "v0.103.0": w.toolbox.opts.WorkDir, "0.170.0": w.toolbox.opts.WorkDir} {
		t.Run(version, func(t *testing.T) {
			w.do("POST", sessions, asJSON(t, map[string]string{"sessionId": version}), "X-Daytona-SDK-Version", version).want(t, http.StatusCreated)
			if got := w.output(version, "pwd -P"); got != out+want+"\n" {
				t.Errorf("directory = %q, want %q", got, want)
			}
		})
	}
}

func TestAsynchronousAnswerHasNulls(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	for _, name := range []string{"runAsync", "async"} {
		r := w.submit("s", "true", name)
		r.want(t, http.StatusAccepted)
		got := decode[map[string]any](t, r)
		if id, _ := got["cmdId"].(string); id == "" {
			t.Errorf("%s: cmdId = %v", name, got["cmdId"])
		}
		delete(got, "cmdId")
		want := map[string]any{"output": nil, "stdout": nil, "stderr": nil, "exitCode": nil}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: answer mismatch (-want +got):\n%s", name, diff)
		}
	}
}

func TestSynchronousCommand(t *testing.T) {
	w := serve(t)
	w.createSession("s")
	start := time.Now()
	r := w.whole(func() reply { return w.submit("s", `echo a; printf b >&2; read x || echo end; return 4`) })
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("took %v, want at least the poll of 50ms", took)
	}
	r.want(t, http.StatusOK)
	got := decode[sessionExecuteResponse](t, r)
	if got.CommandID == "" || *got.Stdout != "a\nend\n" || *got.Stderr != "b\n" || *got.ExitCode != 4 || strings.ContainsAny(*got.Output, "\x01\x02") {
		t.Errorf("answer = %s", r.body)
	}
	r = w.whole(func() reply {
		return w.do("POST", sessionPath("s")+"/exec", asJSON(t, map[string]any{"command": "echo a"}), "X-Daytona-SDK-Version", "v0.170.0")
	})
	r.want(t, http.StatusOK)
	if got, want := *decode[sessionExecuteResponse](t, r).Output, out+"a\n"; got != want {
		t.Errorf("output for a newer client = %q, want %q", got, want)
	}
}

func TestSessionExecRefuses(t *testing.T) {
	w := serve(t, swift)
	wantUnmapped(t, w.submit("missing", "true"), "failed to execute command: not found: session not found")
	w.createSession("s")
	w.submit("s", " \n").wantEmpty(t, http.StatusBadRequest)
	w.submit("s", "").wantEmpty(t, http.StatusBadRequest)
	for _, path := range []string{commandPath("s", "missing"), commandPath("missing", "missing"), commandPath("s", "missing") + "/logs"} {
		wantError(t, w.do("GET", path, nil), http.StatusNotFound, "NOT_FOUND", "not found: ", path)
	}
}

func TestSessionRunsOneCommandAfterAnother(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	w.gate("gate")
	first := w.start("s", "echo first >order; read x <gate")
	second := w.start("s", "echo second >>order")
	third := w.start("s", "echo third >>order")
	until(t, "the first runs", func() bool { return w.exists("order") })
	// A command that waits for its turn has no input yet.
	r := w.do("POST", commandPath("s", second)+"/input", strings.NewReader(`{"data":"x"}`))
	r.want(t, http.StatusInternalServerError)
	if got := w.log("s", third); got != "" {
		t.Errorf("log of a waiting command = %q", got)
	}
	for _, id := range []string{first, second, third} {
		if code := w.status("s", id); code != nil {
			t.Errorf("exit code = %d before the first has ended", *code)
		}
	}
	w.open("gate")
	w.exitCode("s", third)
	w.wantFile("order", "first\nsecond\nthird\n")
}

func TestCommandsAreListedInRandomOrder(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	want := map[string]bool{}
	for range 6 {
		want[w.start("s", "true")] = true
	}
	orders := map[string]bool{}
	until(t, "two orders were seen", func() bool {
		var ids []string
		for _, c := range decode[sessionView](t, w.do("GET", sessionPath("s"), nil)).Commands {
			ids = append(ids, c.ID)
		}
		got := map[string]bool{}
		for _, id := range ids {
			got[id] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("commands mismatch (-want +got):\n%s", diff)
		}
		orders[strings.Join(ids, " ")] = true
		return len(orders) > 1
	})
}

// The end of the shell is the end of the session's work, and nobody is told.
func TestCommandThatEndsTheShellHangsTheSession(t *testing.T) {
	for name, command := range map[string]string{
		"exit":   "echo before; exit 3",
		"exec":   "echo before; exec true",
		"set -e": "echo before; set -e; false; echo after",
		"kill":   "echo before; kill -9 $$",
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, swift)
			w.createSession("s")
			w.gate("gate")
			id := w.start("s", "read x <gate; "+command)
			queued := w.start("s", "echo never >never")
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			unanswered := make(chan error, 1)
			request := w.request("POST", sessionPath("s")+"/exec", asJSON(t, map[string]any{"command": "true"})).WithContext(ctx)
			go func() {
				response, err := w.client.Do(request)
				if err == nil {
					response.Body.Close()
				}
				unanswered <- err
			}()
			follower := w.follow("s", id)
			until(t, "the synchronous command is queued", func() bool {
				return len(decode[sessionView](t, w.do("GET", sessionPath("s"), nil)).Commands) == 3
			})
			w.open("gate")
			until(t, "further commands break the pipe", func() bool { return w.submit("s", "true", "runAsync").status == http.StatusInternalServerError })
			wantUnmapped(t, w.submit("s", "true", "runAsync"), "failed to execute command: write |1: broken pipe")
			wantUnmapped(t, w.submit("s", "true"), "failed to execute command: write |1: broken pipe")

			follower.wait(out + "before\n")
			select {
			case end := <-follower.ended:
				t.Errorf("the follow socket ended: %v", end)
			case err := <-unanswered:
				t.Errorf("the synchronous command was answered: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			for _, id := range []string{id, queued} {
				if code := w.status("s", id); code != nil {
					t.Errorf("exit code = %d, want none", *code)
				}
			}
			leave()
			<-unanswered
			if w.exists("never") {
				t.Error("the queued command ran")
			}
			w.do("DELETE", sessionPath("s"), nil).wantEmpty(t, http.StatusNoContent)
			follower.wantClose(1000)
		})
	}
}

func TestExitCodeComesWhenTheStreamsHaveNoHolder(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	w.gate("gate")
	id := w.start("s", "(read x <gate; echo late) & echo early")
	next := w.start("s", "echo next")
	until(t, "the early output is there", func() bool { return w.log("s", id) == out+"early\n" })
	if code := w.status("s", id); code != nil {
		t.Errorf("exit code = %d while stdout has a holder", *code)
	}
	if log := w.log("s", next); log != "" {
		t.Errorf("the next command wrote %q while stdout has a holder", log)
	}
	w.open("gate")
	if code := w.exitCode("s", id); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	if got, want := w.log("s", id), out+"early\n"+out+"late\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	w.exitCode("s", next)
}

func TestExitCodeWindow(t *testing.T) {
	t.Parallel()
	const message = `failed to convert exit code to int: strconv.Atoi: parsing "": invalid syntax`
	t.Run("open", func(t *testing.T) {
		t.Parallel()
		w := serve(t, swift, func(o *Options) { o.Quirks.ExitCodeWindow = 5 * time.Second })
		w.createSession("s")
		id := w.start("s", "return 5")
		var r reply
		until(t, "the status is an error", func() bool {
			r = w.do("GET", commandPath("s", id), nil)
			return r.status != http.StatusOK
		})
		wantUnmapped(t, r, message)
		wantUnmapped(t, w.do("GET", sessionPath("s"), nil), message)
		wantUnmapped(t, w.do("GET", sessions, nil), message)
		until(t, "the exit code is there", func() bool { return w.do("GET", commandPath("s", id), nil).status == http.StatusOK })
		if code := w.exitCode("s", id); code != 5 {
			t.Errorf("exit code = %d, want 5", code)
		}
		wantUnmapped(t, w.submit("s", "true"), "failed to execute command: "+message)
	})
	t.Run("seen by default", func(t *testing.T) {
		w := serve(t, swift, func(o *Options) { o.Quirks.ExitCodeWindow = 0 })
		w.createSession("s")
		until(t, "a status read hits the window", func() bool {
			id := w.start("s", "true")
			for {
				r := w.do("GET", commandPath("s", id), nil)
				if r.status == http.StatusInternalServerError {
					return true
				}
				if decode[commandView](t, r).ExitCode != nil {
					return false
				}
			}
		})
	})
	t.Run("never", func(t *testing.T) {
		w := serve(t, swift)
		w.createSession("s")
		for range 50 {
			w.exitCode("s", w.start("s", "true")) // fails for a status other than 200
		}
	})
}

func TestFullDisk(t *testing.T) {
	var mu sync.Mutex
	full := false
	fill := func(v bool) {
		mu.Lock()
		defer mu.Unlock()
		full = v
	}
	w := serve(t, swift, func(o *Options) {
		o.Quirks.DiskFull = func() bool {
			mu.Lock()
			defer mu.Unlock()
			return full
		}
	})
	w.createSession("s")
	w.gate("gate")
	id := w.start("s", "echo kept; read x <gate; echo lost")
	until(t, "the first line is there", func() bool { return w.log("s", id) == out+"kept\n" })
	fill(true)
	r := w.submit("s", "true")
	r.want(t, http.StatusInternalServerError)
	if !strings.Contains(r.body, "no space left on device") {
		t.Errorf("body = %s, want the reason", r.body)
	}
	w.open("gate")
	until(t, "the exit code is empty", func() bool { return w.do("GET", commandPath("s", id), nil).status == http.StatusInternalServerError })
	fill(false)
	if got, want := w.log("s", id), out+"kept\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	// What needs no disk still works.
	w.execute(executeRequest{Command: "true"}).want(t, http.StatusOK)
	if got, want := w.output("s", "echo again"), out+"again\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

// The shell is found on the machine. What sessions need of it, every Bourne shell has.
func TestSessionsInOtherShells(t *testing.T) {
	for _, name := range []string{"sh", "dash", "bash", "zsh", "ksh"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := serve(t, swift)
			w.toolbox.sh = func() string { return path }
			w.createSession("s")
			id := w.start("s", "cd /; A=1; echo a; printf b >&2; return 6")
			if code := w.exitCode("s", id); code != 6 {
				t.Errorf("exit code = %d, want 6", code)
			}
			if got, want := inOrder(w.log("s", id)), out+"a\n"+stderrMark+"b\n"; got != want {
				t.Errorf("log = %q, want %q", got, want)
			}
			if got, want := *decode[sessionExecuteResponse](t, w.whole(func() reply { return w.submit("s", "echo $A; pwd; cat") })).Stdout, "1\n/\n"; got != want {
				t.Errorf("stdout = %q, want %q", got, want)
			}
			w.start("s", "exit 1")
			until(t, "further commands break the pipe", func() bool { return w.submit("s", "true", "runAsync").status == http.StatusInternalServerError })
			r := w.execute(executeRequest{Command: "echo a; exit 9"})
			if got, want := decode[executeResponse](t, r), (executeResponse{9, "a\n"}); got != want {
				t.Errorf("execute = %+v, want %+v", got, want)
			}
		})
	}
}
