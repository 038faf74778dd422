package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/script"
)

// bubbleBox is a toolbox for virtual time whose shells are real. A shell runs to its end while time stands still, since
// the goroutine that waits for it is not blocked as far as the bubble is concerned. What a session's command has written
// then appears in its log as virtual time passes, and so does its exit. Any wrapper of the library's works in it.
type bubbleBox struct {
	dir   string // of everything
	shell string
	path  string // in front of PATH
	word  string // a request to run something that holds it is a dispatch

	// The log of a session's command shows a part of what it wrote after each of these times, all of it after the last
	// one, and a little later the daemon records the exit.
	steps  []time.Duration
	ends   func()              // called when the exit is recorded; nil: nobody wants to know
	frame  int                 // bytes of a socket's frame; 0: 1024
	filter func([]byte) []byte // what becomes of a log on its way; nil: nothing
	fault  func(kind string, r *http.Request) bubbleFault

	mu       sync.Mutex
	sessions map[string]*bubbleSession
	sockets  map[*websocket.Conn]struct{}
	count    int // of files
}

// bubbleFault takes a request, and may pass it on. Nil: none.
type bubbleFault func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc)

type bubbleSession struct {
	mu       sync.Mutex // one command after another
	shell    *exec.Cmd
	stdin    *os.File
	reports  *os.File
	dead     bool
	commands []*bubbleCommand
	gone     chan struct{} // closed when the session was deleted, or the daemon restarted
	crashed  bool          // the latter
}

type bubbleCommand struct {
	id, text string
	began    time.Time
	log      []byte
	exit     int // -1: never
}

func newBubbleBox(dir string) *bubbleBox {
	shell := "bash"
	if _, err := exec.LookPath(shell); err != nil {
		shell = "sh"
	}
	for _, sub := range []string{"home", "tmp", "work", "scripts"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			panic(err)
		}
	}
	return &bubbleBox{
		dir: dir, shell: shell, word: "leaseholdcommand", steps: []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond},
		sessions: make(map[string]*bubbleSession), sockets: make(map[*websocket.Conn]struct{}),
	}
}

// recordTime is how long after the last output the daemon records an exit.
const recordTime = 10 * time.Millisecond

// kindOf names a request.
func kindOf(r *http.Request) string {
	_, at, found := strings.Cut(r.URL.Path, "/process/")
	switch {
	case strings.Contains(r.URL.Path, "/files/download"):
		return "download"
	case !found:
		return "other"
	case at == "execute":
		return "execute"
	case strings.HasSuffix(at, "/logs") && r.URL.Query().Has("follow"):
		return "socket"
	case strings.HasSuffix(at, "/logs"):
		return "snapshot"
	case strings.HasSuffix(at, "/input"):
		return "input"
	case strings.Contains(at, "/command/"):
		return "status"
	case strings.HasSuffix(at, "/exec"):
		return "exec"
	case r.Method == http.MethodDelete:
		return "delete"
	case r.Method == http.MethodPost:
		return "session"
	default:
		return "list"
	}
}

func (b *bubbleBox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	kind := kindOf(r)
	if bytes.Contains(body, []byte(b.word)) && (kind == "exec" || kind == "execute") {
		kind = "dispatch"
	}
	serve := func(w http.ResponseWriter, r *http.Request) { b.serve(w, r, body) }
	if b.fault != nil {
		if f := b.fault(kind, r); f != nil {
			f(w, r, serve)
			return
		}
	}
	serve(w, r)
}

func (b *bubbleBox) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /work-dir", func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, 200, map[string]any{"dir": b.dir}) })
	mux.HandleFunc("POST /process/execute", func(w http.ResponseWriter, _ *http.Request) { b.execute(w, body) })
	mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, r *http.Request) {
		file, err := os.Open(r.URL.Query().Get("path"))
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		defer file.Close()
		http.ServeContent(w, r, "", time.Time{}, file)
	})
	mux.HandleFunc("POST /process/session", func(w http.ResponseWriter, _ *http.Request) { b.create(w, body) })
	mux.HandleFunc("GET /process/session/{session}", b.list)
	mux.HandleFunc("DELETE /process/session/{session}", b.delete)
	mux.HandleFunc("POST /process/session/{session}/exec", func(w http.ResponseWriter, r *http.Request) { b.submit(w, r, body) })
	mux.HandleFunc("GET /process/session/{session}/command/{command}", b.status)
	mux.HandleFunc("GET /process/session/{session}/command/{command}/logs", b.logs)
	mux.ServeHTTP(w, r)
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// daemonError answers as the daemon does.
func daemonError(w http.ResponseWriter, status int, message string) {
	answerJSON(w, status, map[string]any{"statusCode": status, "message": message, "timestamp": "0001-01-01T00:00:00Z", "path": ""})
}

// file makes a file of the box.
func (b *bubbleBox) file(content []byte) string {
	b.mu.Lock()
	b.count++
	name := filepath.Join(b.dir, "scripts", strconv.Itoa(b.count))
	b.mu.Unlock()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		panic(err)
	}
	return name
}

func (b *bubbleBox) command(env map[string]string) *exec.Cmd {
	cmd := exec.Command(b.shell)
	cmd.Dir = b.dir
	cmd.Env = []string{"PATH=" + b.path + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + b.dir + "/home", "TMPDIR=" + b.dir + "/tmp", "LC_ALL=C"}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

func (b *bubbleBox) execute(w http.ResponseWriter, body []byte) {
	var request struct {
		Command string
		Envs    map[string]string
	}
	if err := json.Unmarshal(body, &request); err != nil {
		daemonError(w, 400, "bad request")
		return
	}
	if b.looksAtCommand(request.Command) {
		answerJSON(w, 200, map[string]any{"exitCode": 0, "result": script.LookAlive + "\n"})
		return
	}
	in, err := os.Open(b.file([]byte(request.Command)))
	if err != nil {
		panic(err)
	}
	defer in.Close()
	out, err := os.OpenFile(b.file(nil), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		panic(err)
	}
	defer out.Close()
	cmd := b.command(request.Envs)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out // files, so that nothing waits for who else holds them
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		panic(err)
	}
	output, err := os.ReadFile(out.Name())
	if err != nil {
		panic(err)
	}
	answerJSON(w, 200, map[string]any{"exitCode": cmd.ProcessState.ExitCode(), "result": string(output)})
}

func (b *bubbleBox) create(w http.ResponseWriter, body []byte) {
	var request struct{ SessionID string }
	if err := json.Unmarshal(body, &request); err != nil {
		daemonError(w, 400, "bad request")
		return
	}
	b.mu.Lock()
	_, taken := b.sessions[request.SessionID]
	b.mu.Unlock()
	if taken {
		daemonError(w, http.StatusConflict, "conflict: session already exists")
		return
	}
	s := &bubbleSession{gone: make(chan struct{})}
	in, stdin, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	reports, out, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	defer in.Close()
	defer out.Close()
	s.shell, s.stdin, s.reports = b.command(nil), stdin, reports
	s.shell.Stdin, s.shell.Stdout = in, out
	if err := s.shell.Start(); err != nil {
		panic(err)
	}
	b.mu.Lock()
	b.sessions[request.SessionID] = s
	b.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
}

// end ends a session's shell. Like the daemon, it kills what runs in it: nothing does.
func (s *bubbleSession) end(crashed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashed = crashed
	close(s.gone)
	_ = s.shell.Process.Kill()
	_ = s.shell.Wait()
	s.stdin.Close()
	s.reports.Close()
}

// restart loses every session, as a restart of the daemon does.
func (b *bubbleBox) restart(crashed bool) {
	b.mu.Lock()
	sessions := b.sessions
	b.sessions = make(map[string]*bubbleSession)
	b.mu.Unlock()
	for _, s := range sessions {
		s.end(crashed)
	}
}

func (b *bubbleBox) session(w http.ResponseWriter, r *http.Request) *bubbleSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[r.PathValue("session")]
	if s == nil {
		status, message := http.StatusNotFound, "not found: session not found"
		if kindOf(r) == "exec" {
			status, message = http.StatusInternalServerError, "failed to execute command: not found: session not found"
		}
		daemonError(w, status, message)
	}
	return s
}

func (b *bubbleBox) list(w http.ResponseWriter, r *http.Request) {
	s := b.session(w, r)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	commands := []map[string]any{}
	for _, c := range s.commands {
		commands = append(commands, b.record(c))
	}
	answerJSON(w, 200, map[string]any{"sessionId": r.PathValue("session"), "commands": commands})
}

func (b *bubbleBox) record(c *bubbleCommand) map[string]any {
	record := map[string]any{"id": c.id, "command": c.text}
	if _, recorded := b.visible(c); recorded {
		record["exitCode"] = c.exit
	}
	return record
}

func (b *bubbleBox) delete(w http.ResponseWriter, r *http.Request) {
	s := b.session(w, r)
	if s == nil {
		return
	}
	b.mu.Lock()
	delete(b.sessions, r.PathValue("session"))
	b.mu.Unlock()
	s.end(false)
	w.WriteHeader(http.StatusNoContent)
}

// submit runs a command to its end.
func (b *bubbleBox) submit(w http.ResponseWriter, r *http.Request, body []byte) {
	s := b.session(w, r)
	if s == nil {
		return
	}
	var request struct{ Command string }
	if err := json.Unmarshal(body, &request); err != nil {
		daemonError(w, 400, "bad request")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text, out, errs := b.file([]byte(request.Command)), b.file(nil), b.file(nil)
	c := &bubbleCommand{id: filepath.Base(text), text: request.Command, began: time.Now(), exit: -1}
	s.commands = append(s.commands, c)
	if s.dead {
		daemonError(w, 500, "failed to execute command: write |1: broken pipe")
		return
	}
	if _, err := fmt.Fprintf(s.stdin, ". '%s' </dev/null >>'%s' 2>>'%s'; echo $?\n", text, out, errs); err != nil {
		panic(err)
	}
	var report []byte
	for one := make([]byte, 1); ; {
		n, err := s.reports.Read(one)
		if n == 0 || err != nil {
			s.dead = true
			break
		}
		if one[0] == '\n' {
			code, err := strconv.Atoi(string(report))
			if err != nil {
				panic(err)
			}
			c.exit = code
			break
		}
		report = append(report, one[0])
	}
	c.log = labelled(out, errs)
	if isCommand := strings.Contains(c.text, b.word); isCommand && b.ends != nil && c.exit >= 0 {
		time.AfterFunc(b.steps[len(b.steps)-1]+recordTime, b.ends)
	}
	answerJSON(w, http.StatusAccepted, map[string]any{"cmdId": c.id})
}

// labelled is the log that the daemon makes of two streams, line by line.
func labelled(out, errs string) []byte {
	lines := func(file, label string) (lines []string) {
		content, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		for line := range strings.Lines(strings.ReplaceAll(string(content), "\x00", "")) {
			lines = append(lines, label+strings.TrimSuffix(line, "\n")+"\n")
		}
		return lines
	}
	o, e := lines(out, "\x01\x01\x01"), lines(errs, "\x02\x02\x02")
	var log []byte
	for i := range max(len(o), len(e)) {
		if i < len(o) {
			log = append(log, o[i]...)
		}
		if i < len(e) {
			log = append(log, e[i]...)
		}
	}
	return log
}

// looksAtCommand reports that a script looks at the process of a command whose exit is not recorded yet. It has ended, but
// in virtual time it still runs.
func (b *bubbleBox) looksAtCommand(text string) bool {
	b.mu.Lock()
	sessions := slices.Collect(maps.Values(b.sessions))
	b.mu.Unlock()
	running := false
	for _, s := range sessions {
		s.mu.Lock()
		if text == script.Look(s.shell.Process.Pid, "") {
			s.mu.Unlock()
			return false
		}
		for _, c := range s.commands {
			_, recorded := b.visible(c)
			running = running || !recorded && c.exit >= 0
		}
		s.mu.Unlock()
	}
	return running && strings.HasPrefix(text, script.Look(0, "")[:20])
}

// visible is the part of the log that there is by now, and whether the exit is recorded.
func (b *bubbleBox) visible(c *bubbleCommand) (log []byte, recorded bool) {
	log = c.log
	if !strings.Contains(c.text, b.word) {
		return log, c.exit >= 0
	}
	after := time.Since(c.began)
	for i, step := range b.steps {
		if after < step {
			return log[:len(log)*i/len(b.steps)], false
		}
	}
	return log, c.exit >= 0 && after >= b.steps[len(b.steps)-1]+recordTime
}

func (b *bubbleBox) find(w http.ResponseWriter, r *http.Request) (*bubbleSession, *bubbleCommand) {
	s := b.session(w, r)
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		if c.id == r.PathValue("command") {
			return s, c
		}
	}
	daemonError(w, 404, "not found: command not found")
	return nil, nil
}

func (b *bubbleBox) status(w http.ResponseWriter, r *http.Request) {
	if _, c := b.find(w, r); c != nil {
		answerJSON(w, 200, b.record(c))
	}
}

func (b *bubbleBox) seen(c *bubbleCommand) (log []byte, recorded bool) {
	log, recorded = b.visible(c)
	if b.filter != nil {
		log = b.filter(log)
	}
	return log, recorded
}

func (b *bubbleBox) logs(w http.ResponseWriter, r *http.Request) {
	s, c := b.find(w, r)
	if c == nil {
		return
	}
	if !r.URL.Query().Has("follow") {
		log, _ := b.seen(c)
		w.Header().Set("Content-Length", strconv.Itoa(len(log)))
		_, _ = w.Write(log)
		return
	}
	b.follow(w, r, s, c, -1, 0)
}

// follow serves a socket as the daemon does, but ends it after some bytes with a code, or without one, if limit is not
// negative.
func (b *bubbleBox) follow(w http.ResponseWriter, r *http.Request, s *bubbleSession, c *bubbleCommand, limit, code int) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.sockets[conn] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.sockets, conn)
		b.mu.Unlock()
		conn.CloseNow()
	}()
	ctx := conn.CloseRead(r.Context())
	frame := b.frame
	if frame == 0 {
		frame = 1024
	}
	sent := 0
	for quiet := 0; ; {
		log, recorded := b.seen(c)
		for sent < len(log) && (limit < 0 || sent < limit) {
			end := min(sent+frame, len(log))
			if limit >= 0 {
				end = min(end, limit)
			}
			if conn.Write(ctx, websocket.MessageBinary, log[sent:end]) != nil {
				return
			}
			sent, quiet = end, 0
		}
		switch {
		case limit >= 0 && sent >= limit:
			if code != 0 {
				_ = conn.Close(websocket.StatusCode(code), "")
			}
			return
		case recorded && quiet >= 50:
			_ = conn.Close(websocket.StatusNormalClosure, "")
			return
		}
		quiet++
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return
		case <-s.gone:
			if !s.crashed {
				_ = conn.Close(websocket.StatusNormalClosure, "")
			}
			return
		}
	}
}

// drop drops every socket.
func (b *bubbleBox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.sockets {
		conn.CloseNow()
	}
}

// host is a host's way to the emulator, which a test may break.
type host struct {
	base, none *http.Transport
	refuse     func(r *http.Request) bool

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func newHost(server *emulator.Server) *host {
	h := &host{none: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}}}
	dial := (&net.Dialer{}).DialContext
	if server.Transport() != nil { // it is in memory
		dial = server.Dial
	}
	h.base = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			h.mu.Lock()
			h.conns = append(h.conns, conn)
			h.mu.Unlock()
		}
		return conn, err
	}}
	return h
}

// RoundTrip implements [http.RoundTripper].
func (h *host) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	dead := h.dead
	h.mu.Unlock()
	if dead || h.refuse != nil && h.refuse(r) {
		return h.none.RoundTrip(r)
	}
	return h.base.RoundTrip(r)
}

// die ends every connection of the host, for good.
func (h *host) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = true
	for _, c := range h.conns {
		c.Close()
	}
	h.conns = nil
}

// bubbleRig is a provider on an emulator in memory, with a lease whose sandbox is a bubbleBox.
type bubbleRig struct {
	*rig
	box   *bubbleBox
	host  *host
	lease *Lease
}

// newBubbleRig must be called in a bubble, with a directory from outside.
func newBubbleRig(t *testing.T, dir string) *bubbleRig {
	t.Helper()
	box := newBubbleBox(dir)
	return newBubbleRigOn(t, box, box)
}

// newBubbleRigOn is newBubbleRig for a box behind something else.
func newBubbleRigOn(t *testing.T, box *bubbleBox, toolbox http.Handler) *bubbleRig {
	t.Helper()
	server, err := emulator.Start(emulator.Options{InMemory: true, Toolbox: toolbox})
	if err != nil {
		t.Fatal(err)
	}
	b := &bubbleRig{box: box, host: newHost(server)}
	zero := 0
	b.rig = &rig{server: server, provider: rigProvider(t, server, Config{Transport: b.host, Workspace: filepath.Join(box.dir, "work"), AutoStopMinutes: &zero})}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil && !b.host.dead {
			t.Errorf("Close() = %v", err)
		}
		b.host.die()
		b.host.base.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Errorf("closing the emulator: %v", err)
		}
		box.restart(false)
	})
	b.lease = b.acquired(t)
	return b
}
