//go:build unix

package toolbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
)

func TestTerminalRunsAnInteractiveLoginShell(t *testing.T) {
	w := serve(t)
	s := w.terminalOn("one")
	s.send("echo \"[$-] [$TERM] [$PWD] [$HOME]\"; stty size; tty; test -t 0 -a -t 1 -a -t 2 && echo ALL THREE\n")
	got := s.expect(`\[(.*)\] \[(.*)\] \[(.*)\] \[(.*)\]\r\n(.*)\r\n(.*)\r\n(.*)\r\n`)
	if !strings.Contains(got[1], "i") {
		t.Errorf("shell options = %q, want an interactive shell", got[1])
	}
	want := []string{"xterm-256color", w.home, w.home, "24 80", got[6], "ALL THREE"}
	if diff := cmp.Diff(want, got[2:]); diff != "" {
		t.Errorf("terminal, directories, size and streams mismatch (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(got[6], "/dev/") {
		t.Errorf("tty = %q, want a device", got[6])
	}
}

func TestTerminalTakesDirectoryEnvironmentAndSize(t *testing.T) {
	w := serve(t, func(o *Options) { o.Env = map[string]string{"OF_SANDBOX": "yes"} })
	if err := os.MkdirAll(w.at("sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := w.terminalOn("one", "cwd", "sub", "envs", map[string]string{"ADDED": "a b", "TERM": "vt100"}, "cols", 132, "rows", 50)
	s.send("echo \"[$PWD] [$ADDED] [$TERM] [$OF_SANDBOX]\"; stty size\n")
	got := s.expect(`\[(.*)\] \[(.*)\] \[(.*)\] \[(.*)\]\r\n(.*)\r\n`)
	if diff := cmp.Diff([]string{w.at("sub"), "a b", "vt100", "yes", "50 132"}, got[1:]); diff != "" {
		t.Errorf("directory, environment and size mismatch (-want +got):\n%s", diff)
	}
}

func TestTerminalsAreDescribed(t *testing.T) {
	w := serve(t)
	if r := w.do("GET", "/process/pty", nil); r.body != `{"sessions":[]}` {
		t.Errorf("list = %s, want no sessions", r.body)
	}
	r := w.do("POST", "/process/pty", asJSON(t, map[string]any{"id": "one", "envs": map[string]string{"A": "b"}}))
	r.want(t, http.StatusCreated)
	if r.body != `{"sessionId":"one"}` {
		t.Errorf("answer = %s", r.body)
	}
	w.do("POST", "/process/pty", asJSON(t, map[string]any{"id": "two", "lazyStart": true, "cols": 1, "rows": 1000})).want(t, http.StatusCreated)

	described := decode[map[string]any](t, w.do("GET", "/process/pty/one", nil))
	created, err := time.Parse(time.RFC3339Nano, fmt.Sprint(described["createdAt"]))
	if err != nil || time.Since(created) > time.Minute {
		t.Errorf("createdAt = %v, %v", described["createdAt"], err)
	}
	delete(described, "createdAt")
	want := map[string]any{
		"id": "one", "cwd": w.home, "envs": map[string]any{"A": "b", "TERM": "xterm-256color"},
		"cols": 80.0, "rows": 24.0, "active": true, "lazyStart": false,
	}
	if diff := cmp.Diff(want, described); diff != "" {
		t.Errorf("description mismatch (-want +got):\n%s", diff)
	}
	if two := w.terminal("two"); two.Active || !two.LazyStart || two.Cols != 1 || two.Rows != 1000 {
		t.Errorf("description of a lazy session = %+v", two)
	}
	var ids []string
	for _, s := range decode[struct{ Sessions []ptyInfo }](t, w.do("GET", "/process/pty", nil)).Sessions {
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	if diff := cmp.Diff([]string{"one", "two"}, ids); diff != "" {
		t.Errorf("ids mismatch (-want +got):\n%s", diff)
	}
}

func TestTerminalErrorsAreNamed(t *testing.T) {
	w := serve(t)
	w.do("POST", "/process/pty", asJSON(t, map[string]any{"id": "taken", "lazyStart": true})).want(t, http.StatusCreated)
	tests := []struct {
		name, method, path, body string
		want                     int
		message                  string
	}{
		{"no id", "POST", "", `{"cwd":"/"}`, 400, "session ID is required"},
		{"bad JSON", "POST", "", `{`, 400, ""},
		{"no body", "POST", "", ``, 400, ""},
		{"negative size", "POST", "", `{"id":"x","cols":-1}`, 400, ""},
		{"too many columns", "POST", "", `{"id":"x","cols":1001}`, 400, "invalid value for cols - must be less than 1000"},
		{"too many rows", "POST", "", `{"id":"x","rows":1001}`, 400, "invalid value for rows - must be less than 1000"},
		{"taken", "POST", "", `{"id":"taken"}`, 409, "PTY session with ID 'taken' already exists"},
		{"missing directory", "POST", "", `{"id":"x","cwd":"/no/such/directory"}`, 500, "failed to start PTY session"},
		{"get of nothing", "GET", "/x", "", 404, "PTY session not found"},
		{"delete of nothing", "DELETE", "/x", "", 404, "PTY session not found"},
		{"resize of nothing", "POST", "/x/resize", `{"cols":80,"rows":24}`, 410, "PTY session x not found"},
		{"resize before the start", "POST", "/taken/resize", `{"cols":80,"rows":24}`, 500, "cannot resize inactive PTY session"},
		{"resize to too many columns", "POST", "/taken/resize", `{"cols":1001,"rows":24}`, 400, "cols must be from 1 to 1000"},
		{"resize to too many rows", "POST", "/taken/resize", `{"cols":80,"rows":1001}`, 400, "rows must be from 1 to 1000"},
		{"resize to nothing", "POST", "/taken/resize", `{"cols":80}`, 400, "rows must be from 1 to 1000"},
		{"resize with bad JSON", "POST", "/taken/resize", `{`, 400, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := w.do(test.method, "/process/pty"+test.path, strings.NewReader(test.body))
			r.want(t, test.want)
			body := decode[map[string]string](t, r)
			if len(body) != 1 || body["error"] == "" || test.message != "" && body["error"] != test.message {
				t.Errorf("body = %s, want the error %q", r.body, test.message)
			}
		})
	}
	// A session that did not start has left its id free.
	w.do("GET", "/process/pty/x", nil).want(t, http.StatusNotFound)
}

func TestTerminalTellsItsExit(t *testing.T) {
	w := serve(t)
	tests := []struct {
		input  string
		code   websocket.StatusCode
		reason string
	}{
		{"exit 0", 1000, `{"exitCode":0}`},
		{"exec true", 1000, `{"exitCode":0}`},
		{"exit 3", 1011, `{"exitCode":3,"exitReason":"non-zero exit"}`},
		{"exit 130", 1011, `{"exitCode":130,"exitReason":"Ctrl+C"}`},
		{"exit 137", 1011, `{"exitCode":137,"exitReason":"SIGKILL"}`},
		{"exit 143", 1011, `{"exitCode":143,"exitReason":"SIGTERM"}`},
		{"exit 129", 1011, `{"exitCode":129,"exitReason":"signal 1"}`},
		{"kill -9 $$", 1011, `{"exitCode":-1,"exitReason":"non-zero exit"}`},
	}
	for i, test := range tests {
		t.Run(test.input, func(t *testing.T) {
			w := w.in(t)
			id := "exit" + strconv.Itoa(i)
			s := w.terminalOn(id)
			other := w.look(id)
			s.send(test.input + "\n")
			s.wantEnd(test.code, test.reason)
			other.wantEnd(test.code, test.reason)
			// It is gone at once, and its id is free.
			w.do("GET", "/process/pty/"+id, nil).want(t, http.StatusNotFound)
			w.do("DELETE", "/process/pty/"+id, nil).want(t, http.StatusNotFound)
			w.do("POST", "/process/pty/"+id+"/resize", strings.NewReader(`{"cols":80,"rows":24}`)).want(t, http.StatusGone)
			w.do("POST", "/process/pty", asJSON(t, map[string]any{"id": id, "lazyStart": true})).want(t, http.StatusCreated)
		})
	}
}

// clients returns how many clients a session has, and whether output waits for one of them.
func (w *wire) clients(id string) (n int, waits bool) {
	session := w.toolbox.ptys.get(id)
	session.mu.Lock()
	defer session.mu.Unlock()
	for c := range session.clients {
		waits = waits || len(c.queue) > 0
	}
	return len(session.clients), waits
}

// behind connects a client whose connection holds few bytes, and which reads nothing. It sees all that is printed from now on.
func (w *wire) behind(id string) *websocket.Conn {
	w.t.Helper()
	before, _ := w.clients(id)
	conn := w.narrow().dial(id)
	until(w.t, "the client is attached", func() bool { // which comes after the handshake
		n, _ := w.clients(id)
		return n > before
	})
	return conn
}

// TestTerminalExitComesAfterTheOutput has a client that is behind when the shell exits.
func TestTerminalExitComesAfterTheOutput(t *testing.T) {
	w := serve(t)
	driver := w.terminalOn("one")
	behind := w.behind("one")
	// The shell prints until output waits for the client, and no more: how many frames the output makes is the machine's, and the
	// queue is not long. It exits when its terminal was read: the system itself loses what was not.
	part := strings.Repeat("x", 20_000) + "PART"
	driver.send(fmt.Sprintf("while head -c %d /dev/zero | tr '\\0' x; printf 'PA''RT'; read answer; [ -z \"$answer\" ]; do :; done; exit 0\n", len(part)-len("PART")))
	printed := 0
	for waits := false; !waits; _, waits = w.clients("one") {
		if printed > 0 {
			driver.send("\n")
		}
		printed++
		driver.await("the next part", func() bool { return bytes.Count(driver.output, []byte("PART")) == printed })
	}
	driver.send("over\n")
	driver.wantEnd(1000, `{"exitCode":0}`)
	var output []byte
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		kind, data, err := behind.Read(ctx)
		cancel()
		if err != nil {
			if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
				t.Errorf("the client that is behind ended with %v, want 1000", err)
			}
			break
		}
		if kind == websocket.MessageBinary {
			output = append(output, data...)
		}
		if len(data) > 32<<10 {
			t.Errorf("a frame of %d bytes, want at most 32 KiB", len(data))
		}
	}
	output = bytes.ReplaceAll(output, []byte("\r\n"), nil) // a line editor's echo of the answers
	if !bytes.Contains(output, []byte(strings.Repeat(part, printed))) {
		t.Errorf("the client that is behind saw %d bytes, %q, want %d", len(output), abbreviate(string(output)), printed*len(part))
	}
}

func TestTerminalLosesItsTailOnDemand(t *testing.T) {
	w := serve(t, func(o *Options) { o.Quirks.PTYTailLoss = func() bool { return true } })
	tries := 0
	until(t, "the terminal loses its tail", func() bool { // which is no tail any more if the shell's exit takes a busy machine long
		tries++
		s := w.terminalOn("try" + strconv.Itoa(tries))
		// What the client has seen is not lost any more: a shell that waits for an answer to its last line is safe.
		s.send("echo SEE''N; read answer; exec echo LAS''T\n")
		s.expect("SEEN\r\n")
		s.send("yes\n")
		s.wantEnd(1000, `{"exitCode":0}`)
		return !strings.Contains(s.shown(), "LAST")
	})
}

func TestDeletedTerminalDiesWithItsDescendants(t *testing.T) {
	w := serve(t)
	s := w.terminalOn("one")
	s.send("sleep 1000 & sh -c 'trap \"\" HUP TERM; sleep 1001 & echo PIDS $PPID $$ $!; wait'\n")
	var pids []int
	for _, text := range s.expect(`PIDS (\d+) (\d+) (\d+)\r\n`)[1:] {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	r := w.do("DELETE", "/process/pty/one", nil)
	r.want(t, http.StatusOK)
	if r.body != `{"message":"PTY session deleted"}` {
		t.Errorf("body = %s", r.body)
	}
	s.wantEnd(1011, `{"exitCode":137,"exitReason":"SIGKILL"}`)
	for _, pid := range pids {
		until(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !alive(pid) })
	}
	w.do("DELETE", "/process/pty/one", nil).want(t, http.StatusNotFound)

	w.do("POST", "/process/pty", strings.NewReader(`{"id":"lazy","lazyStart":true}`)).want(t, http.StatusCreated)
	w.do("DELETE", "/process/pty/lazy", nil).want(t, http.StatusOK)
	w.do("GET", "/process/pty/lazy", nil).want(t, http.StatusNotFound)
}

func TestTerminalIsSharedWithoutReplay(t *testing.T) {
	w := serve(t)
	first := w.terminalOn("one")
	first.send("echo EAR''LY\n")
	first.expect("EARLY\r\n")
	second := w.look("one")
	second.send("echo LA''TE\n")
	first.expect("LATE\r\n")
	second.expect("LATE\r\n")
	if strings.Contains(second.shown(), "EARLY") {
		t.Errorf("the second client saw what came before it: %q", second.shown())
	}
	// One that leaves does not end the session, and the others go on.
	if err := second.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("closing the second client: %v", err)
	}
	first.send("echo AL''ONE\n")
	first.expect("ALONE\r\n")
	first.conn.CloseNow()
	third := w.look("one")
	third.send("echo AG''AIN\n")
	third.expect("AGAIN\r\n")
	if !w.terminal("one").Active {
		t.Error("the terminal is not active any more")
	}
}

func TestTerminalInputHasALimit(t *testing.T) {
	w := serve(t)
	s := w.terminalOn("one")
	s.send(fmt.Sprintf("stty raw; echo R''AW; head -c %d | wc -c; stty cooked; echo CO''OKED\n", 65536+5))
	s.expect("RAW")
	s.send(strings.Repeat("x", 65536))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.conn.Write(ctx, websocket.MessageText, []byte("any f")); err != nil { // text frames are input, too
		t.Fatal(err)
	}
	s.expect(strconv.Itoa(65536+5) + `\s`)
	s.expect(`COOKED\r\n`)

	s.send(strings.Repeat("x", 65537))
	if code, _ := s.end(); code != websocket.StatusMessageTooBig {
		t.Errorf("close code after 65537 bytes in one frame = %d, want 1009", code)
	}
	again := w.look("one")
	again.send("echo AL''IVE\n")
	again.expect(`ALIVE\r\n`)
}

func TestSlowTerminalClientIsCutOff(t *testing.T) {
	w := serve(t)
	s := w.terminalOn("one")
	s.conn.CloseNow()
	<-s.done
	until(t, "nobody looks any more", func() bool { n, _ := w.clients("one"); return n == 0 })
	slow := w.behind("one")
	driver := w.look("one")
	driver.send("echo >begun; yes | head -c 3000000; touch finished; echo FIN''ISHED\n")
	until(t, "the input has arrived", func() bool { return w.exists("begun") })
	driver.conn.CloseNow() // it would have to keep up
	until(t, "the slow client is cut off", func() bool { n, _ := w.clients("one"); return n == 0 })
	received := 0
	var err error
	for err == nil {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var data []byte
		_, data, err = slow.Read(ctx)
		received += len(data)
		cancel()
	}
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.StatusPolicyViolation || closed.Reason != "slow consumer" {
		t.Errorf("the slow client ended with %v, want 1008 slow consumer", err)
	}
	if received == 0 || received >= 4500000 { // each newline became two bytes
		t.Errorf("the slow client received %d bytes, want some and not all", received)
	}
	until(t, "the output is over", func() bool {
		_, err := os.Stat(w.at("finished"))
		return err == nil
	})
	again := w.look("one")
	again.send("echo AL''IVE\n")
	again.expect(`ALIVE\r\n`)
}

func TestLazyTerminalStartsWithItsFirstClient(t *testing.T) {
	w := serve(t)
	for _, name := range []string{".profile", ".bash_profile", ".zprofile"} {
		w.put(name, "echo FIRST WORD\n", 0o644)
	}
	w.do("POST", "/process/pty", strings.NewReader(`{"id":"lazy","lazyStart":true}`)).want(t, http.StatusCreated)
	if w.terminal("lazy").Active {
		t.Error("the terminal is active before anybody looks")
	}
	s := w.look("lazy")
	s.expect(`^FIRST WORD\r\n`)
	if info := w.terminal("lazy"); !info.Active || !info.LazyStart {
		t.Errorf("description after the start = %+v", info)
	}
	s.send("exit 4\n")
	s.wantEnd(1011, `{"exitCode":4,"exitReason":"non-zero exit"}`)
	w.do("GET", "/process/pty/lazy", nil).want(t, http.StatusNotFound)
}

func TestConnectingToNothingSaysSoInAControlFrame(t *testing.T) {
	w := serve(t)
	w.do("POST", "/process/pty", strings.NewReader(`{"id":"lazy","lazyStart":true,"cwd":"/no/such/directory"}`)).want(t, http.StatusCreated)
	for id, want := range map[string]string{
		"missing": "Failed to connect to PTY session: PTY session missing not found",
		"lazy":    "Failed to connect to PTY session: failed to start PTY session: ",
	} {
		t.Run(id, func(t *testing.T) {
			conn := w.in(t).dial(id)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			kind, data, err := conn.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var frame struct{ Type, Status, Error string }
			if err := json.Unmarshal(data, &frame); err != nil {
				t.Fatalf("frame %q: %v", data, err)
			}
			if kind != websocket.MessageText || frame.Type != "control" || frame.Status != "error" || !strings.HasPrefix(frame.Error, want) {
				t.Errorf("first frame = %q, want the error %q", data, want)
			}
			if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != -1 {
				t.Errorf("then came %v, want no close frame", err)
			}
		})
	}
}

func TestResizeReachesTheTerminal(t *testing.T) {
	w := serve(t)
	s := w.terminalOn("one")
	s.send("trap 'echo WIN''CH' WINCH; echo SE''T\n")
	s.expect("SET\r\n")
	r := w.do("POST", "/process/pty/one/resize", strings.NewReader(`{"cols":1000,"rows":7}`))
	r.want(t, http.StatusOK)
	if info := decode[ptyInfo](t, r); info.Cols != 1000 || info.Rows != 7 || info.ID != "one" || !info.Active {
		t.Errorf("answer = %+v", info)
	}
	s.send("\nstty size\n")
	s.expect("WINCH\r\n")
	s.expect("7 1000\r\n")
	if info := w.terminal("one"); info.Cols != 1000 || info.Rows != 7 {
		t.Errorf("description = %+v", info)
	}
}

func TestManyTerminalsRunSideBySide(t *testing.T) {
	w := serve(t)
	var screens []*screen
	for i := range 8 {
		screens = append(screens, w.terminalOn("t"+strconv.Itoa(i)))
	}
	var wg sync.WaitGroup
	for i, s := range screens {
		wg.Go(func() {
			for j := range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				// The quotes keep what a line editor echoes apart from what the command says.
				if err := s.conn.Write(ctx, websocket.MessageBinary, fmt.Appendf(nil, "echo '<%d''-%d>'\n", i, j)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i, s := range screens {
		s.expect(fmt.Sprintf("<%d-19>\r\n", i))
		found := regexp.MustCompile(`<\d+-\d+>`).FindAllString(s.shown(), -1)
		for j := range 20 {
			if want := fmt.Sprintf("<%d-%d>", i, j); j >= len(found) || found[j] != want {
				t.Fatalf("terminal %d shows %q, want %s at place %d", i, found, want, j)
			}
		}
	}
}

func TestClosingTheToolboxDropsItsTerminals(t *testing.T) {
	w := serve(t)
	s := w.terminalOn("one")
	s.send("sleep 1000 & echo PIDS $$ $!\n")
	pids := s.expect(`PIDS (\d+) (\d+)\r\n`)[1:]
	w.do("POST", "/process/pty", strings.NewReader(`{"id":"lazy","lazyStart":true}`)).want(t, http.StatusCreated)
	unstarted := w.dial("one")
	w.toolbox.Close()
	if code, reason := s.end(); code != -1 {
		t.Errorf("the socket ended with %d %q, want no close frame", code, reason)
	}
	unstarted.CloseNow()
	for _, text := range pids {
		pid, _ := strconv.Atoi(text)
		until(t, "process "+text+" is gone", func() bool { return !alive(pid) })
	}
}
