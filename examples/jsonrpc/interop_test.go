//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// publishedHost is a published host's own worker handle, in a Node process that does what it is told: see
// testdata/host/driver.mjs.
type publishedHost struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	log     io.Writer
	began   time.Time
	last    int
	replies map[int]chan driverLine
	logs    map[int][]executeLog
	session map[string]chan sessionEvent
	seen    []driverLine // events
}

// driverLine is one line of the driver: the end of a command, a piece of streamed output, something of a session, or an
// event of the handle.
type driverLine struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *rpcError       `json:"error"`

	Log    int    `json:"log"`
	Stream string `json:"stream"`
	Chunk  string `json:"chunk"`

	Session string          `json:"session"`
	Data    []byte          `json:"data"`
	Exit    json.RawMessage `json:"exit"`

	Event  string          `json:"event"`
	Detail json.RawMessage `json:"detail"`
}

// installed returns where the published host is, as testdata/host/install.sh says.
func installed(t *testing.T) string {
	dir := os.Getenv("LEASEHOLD_JSONRPC_HOST")
	if dir == "" {
		const missing = "LEASEHOLD_JSONRPC_HOST is not set: LEASEHOLD_JSONRPC_HOST=$(testdata/host/install.sh) go test ."
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return dir
}

// buildWorker builds the worker as an operator would.
func buildWorker(t *testing.T) string {
	binary := filepath.Join(t.TempDir(), "leasehold-worker")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// startPublishedHost starts the driver. What it is told, and what it tells, is kept in the log.
func startPublishedHost(t *testing.T, dir string) *publishedHost {
	told, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	artifacts := os.Getenv("LEASEHOLD_ARTIFACTS")
	if artifacts == "" {
		artifacts = t.ArtifactDir()
	}
	log, err := os.Create(filepath.Join(artifacts, "jsonrpc-host.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log("the log of the host:", log.Name())
	cmd := exec.Command(filepath.Join(dir, "node_modules/.bin/node"), "testdata/host/driver.mjs", dir, must1(filepath.Abs("plugin")))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NODE_ENV=production", "PAPERCLIP_LOG_LEVEL=silent", "HOME=" + t.TempDir()}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{tell}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tell.Close()
	h := &publishedHost{
		cmd: cmd, in: in, log: log, began: time.Now(),
		replies: make(map[int]chan driverLine), logs: make(map[int][]executeLog), session: make(map[string]chan sessionEvent),
	}
	deadline := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	read := make(chan struct{})
	go func() {
		defer close(read)
		h.read(told)
	}()
	t.Cleanup(func() {
		_ = in.Close() // the driver ends, and the worker with it
		<-read
		_ = cmd.Wait()
		deadline.Stop()
		_ = told.Close()
		_ = log.Close()
	})
	return h
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (h *publishedHost) read(told io.Reader) {
	lines := bufio.NewReader(told)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var line driverLine
		_ = json.Unmarshal(text, &line)
		h.mu.Lock()
		h.record("<-", text)
		switch {
		case line.Log != 0:
			h.logs[line.Log] = append(h.logs[line.Log], executeLog{line.Stream, line.Chunk})
		case line.Session != "":
			h.session[line.Session] <- sessionEvent{line.Data, line.Exit}
		case line.Event != "":
			h.seen = append(h.seen, line)
		default:
			h.replies[line.ID] <- line
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, reply := range h.replies {
		close(reply)
	}
	h.replies = nil
}

func (h *publishedHost) record(arrow string, line []byte) {
	if line = []byte(strings.TrimSpace(string(line))); len(line) > 2000 {
		line = append(line[:2000:2000], "…"...)
	}
	_, _ = fmt.Fprintf(h.log, "%8.3f %s %s\n", time.Since(h.began).Seconds(), arrow, line)
}

// do gives the driver a command, and returns a channel for its end.
func (h *publishedHost) do(t testing.TB, command string, more object) (int, <-chan driverLine) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replies == nil {
		t.Fatal("the driver has ended")
	}
	h.last++
	reply := make(chan driverLine, 1)
	h.replies[h.last] = reply
	line := object{"id": h.last, "do": command}
	for key, value := range more {
		line[key] = value
	}
	encoded, err := json.Marshal(line) // with U+2028 escaped
	if err != nil {
		t.Fatal(err)
	}
	h.record("->", encoded)
	if _, err := h.in.Write(append(encoded, '\n')); err != nil {
		t.Fatal(err)
	}
	return h.last, reply
}

func (h *publishedHost) end(t testing.TB, command string, reply <-chan driverLine) driverLine {
	t.Helper()
	select {
	case line, ok := <-reply:
		if !ok {
			t.Fatalf("%s: the driver ended", command)
		}
		return line
	case <-time.After(time.Minute):
		t.Fatalf("%s was not answered", command)
	}
	return driverLine{}
}

// done gives the driver a command that succeeds.
func (h *publishedHost) done(t testing.TB, command string, more object) json.RawMessage {
	t.Helper()
	_, reply := h.do(t, command, more)
	line := h.end(t, command, reply)
	if line.Error != nil {
		t.Fatalf("%s: %+v", command, line.Error)
	}
	return line.Result
}

func (h *publishedHost) call(t testing.TB, method string, params any) (json.RawMessage, []executeLog, *rpcError) {
	t.Helper()
	id, reply := h.do(t, "call", object{"method": method, "params": params, "watch": true})
	line := h.end(t, method, reply)
	h.mu.Lock()
	defer h.mu.Unlock()
	return line.Result, h.logs[id], line.Error
}

func (h *publishedHost) openDuplex(t testing.TB, input object) (*testSession, *rpcError) {
	return h.open(t, "openDuplex", input, func(data []byte) object { return object{"data": data} })
}

func (h *publishedHost) openLogin(t testing.TB, input object) (*testSession, *rpcError) {
	return h.open(t, "openLogin", input, func(data []byte) object { return object{"text": string(data)} })
}

func (h *publishedHost) open(t testing.TB, command string, input object, encode func([]byte) object) (*testSession, *rpcError) {
	t.Helper()
	events := make(chan sessionEvent, 10_000)
	h.mu.Lock()
	name := fmt.Sprintf("%s-%d", command, len(h.session))
	h.session[name] = events
	h.mu.Unlock()
	_, reply := h.do(t, command, object{"name": name, "input": input})
	if line := h.end(t, command, reply); line.Error != nil {
		return nil, line.Error
	}
	on := func(command string, more object) {
		more["name"] = name
		h.done(t, command, more)
	}
	return &testSession{
		events: events,
		write:  func(data []byte) { on("write", encode(data)) },
		stop:   func() { on("kill", object{}) },
		close:  func() { on("close", object{}) },
	}, nil
}

// startWorker has the host start the worker, and returns its process id.
func (h *publishedHost) startWorker(t testing.TB, binary, sandboxes string) (pid int, supported []string) {
	t.Helper()
	var started struct {
		SupportedMethods []string
		PID              int
	}
	result := h.done(t, "start", object{"env": object{"LEASEHOLD_WORKER": binary, "LEASEHOLD_LOCAL_DIR": sandboxes}})
	if err := json.Unmarshal(result, &started); err != nil {
		t.Fatal(err)
	}
	return started.PID, started.SupportedMethods
}

// TestPublishedHost runs the worker under a published host's own code: what the host sees is what counts.
func TestPublishedHost(t *testing.T) {
	t.Parallel()
	dir, binary := installed(t), buildWorker(t)
	h := startPublishedHost(t, dir)
	t.Run("Life", func(t *testing.T) { hostLife(t, h, binary) })
	t.Run("Kill", func(t *testing.T) { hostKillsWorker(t, h, binary) })
	t.Run("Orphan", func(t *testing.T) { hostDies(t, h, binary) })
}

// hostLife: a start, everything that a worker does, and a stop.
func hostLife(t *testing.T, h *publishedHost, binary string) {
	pid, supported := h.startWorker(t, binary, t.TempDir())

	for _, want := range []string{"environmentExecute", "environmentSyncIn", "environmentStopLease", "loginPtyInput", "duplexChannelWrite", "shutdown"} {
		if !slices.Contains(supported, want) {
			t.Errorf("supported methods %q, want %s among them", supported, want)
		}
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe != binary {
		t.Errorf("process %d runs %s, want %s: the entry became the worker", pid, exe, binary)
	}
	if got := must[struct{ Status string }](t, h, "health", object{}); got.Status != "ok" {
		t.Errorf("health = %+v", got)
	}
	t.Run("Checks", func(t *testing.T) { checkWorker(t, h) })
	var now struct{ PID int }
	if state := h.done(t, "state", nil); json.Unmarshal(state, &now) != nil || now.PID != pid {
		t.Errorf("after the checks: %s, want process %d still: what the host takes for a violation, it answers by killing the worker", state, pid)
	}
	t.Run("HostTimeout", func(t *testing.T) { checkHostTimeout(t, h) })
	t.Run("TwoCompanies", func(t *testing.T) { checkTwoCompanies(t, h) })

	h.done(t, "stop", nil) // a worker that does not come to its end in time exits with 1
	if got := h.events("exit"); !strings.Contains(got, `"code":0`) {
		t.Errorf("exit events %s, want one with code 0", got)
	}
}

func (h *publishedHost) events(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var details []string
	for _, line := range h.seen {
		if line.Event == name {
			details = append(details, string(line.Detail))
		}
	}
	return strings.Join(details, " ")
}

// checkHostTimeout: the host gives up, and hears nothing more of the call; the next one works.
func checkHostTimeout(t *testing.T, h *publishedHost) {
	lease := reusing.acquire(t, h)
	id, reply := h.do(t, "call", object{"method": "environmentExecute", "watch": true, "timeoutMs": 300, "params": reusing.script(lease, "sleep 1; echo late", nil)})
	if got := h.end(t, "execute", reply); got.Error == nil || got.Error.Code != -32003 {
		t.Errorf("execute = %+v, want the host's timeout", got)
	}
	if got := must[executeResult](t, h, "environmentExecute", reusing.script(lease, "sleep 1; echo next", nil)); got.Stdout != "next\n" {
		t.Errorf("the next command = %+v", got)
	}
	h.mu.Lock()
	if late := h.logs[id]; len(late) > 0 {
		t.Errorf("streamed after the timeout: %q", late)
	}
	h.mu.Unlock()
	must[receipt](t, h, "environmentDestroyLease", reusing.give(lease, nil))
}

// checkTwoCompanies: both results are complete. The host cuts the streaming then.
func checkTwoCompanies(t *testing.T, h *publishedHost) {
	var both sync.WaitGroup
	for _, company := range []string{"company-3", "company-4"} {
		both.Go(func() {
			n := tenant{company, reusing.config}
			lease := n.acquire(t, h)
			if got := must[executeResult](t, h, "environmentExecute", n.script(lease, "sleep 0.3; echo "+company, nil)); got.Stdout != company+"\n" {
				t.Errorf("%s: %+v, want its own output", company, got)
			}
			must[receipt](t, h, "environmentDestroyLease", n.give(lease, nil))
		})
	}
	both.Wait()
}

// hostKillsWorker: the worker is killed during a command. The host starts another, which goes on with the lease by what
// the host stored.
func hostKillsWorker(t *testing.T, h *publishedHost, binary string) {
	sandboxes := t.TempDir()
	pid, _ := h.startWorker(t, binary, sandboxes)
	lease := reusing.acquire(t, h)
	must[any](t, h, "environmentExecute", reusing.script(lease, "echo kept >file", nil))

	_, reply := h.do(t, "call", object{"method": "environmentExecute", "params": reusing.script(lease, "exec sleep 60", nil)})
	must[any](t, h, "health", object{}) // by now the command was sent to the worker
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := h.end(t, "execute", reply); got.Error == nil || got.Error.Code != -32000 {
		t.Errorf("the command under way = %+v, want the host's -32000", got)
	}

	again, _ := h.startWorker(t, binary, sandboxes)
	if again == pid {
		t.Errorf("process %d twice", pid)
	}
	resumed := must[heldLease](t, h, "environmentResumeLease", reusing.give(lease, nil))
	if resumed.ID == nil || *resumed.ID != *lease.ID {
		t.Fatalf("resume = %+v, want the lease", resumed)
	}
	if got := must[executeResult](t, h, "environmentExecute", reusing.script(resumed, "cat file", nil)); got.Stdout != "kept\n" {
		t.Errorf("after the restart: %+v, want the file", got)
	}
	must[receipt](t, h, "environmentDestroyLease", reusing.give(resumed, nil))
	h.done(t, "stop", nil)
}

// hostDies: the host is killed, and says nothing. The end of its input ends the worker.
func hostDies(t *testing.T, h *publishedHost, binary string) {
	pid, _ := h.startWorker(t, binary, t.TempDir())
	lease := reusing.acquire(t, h)
	_, _ = h.do(t, "call", object{"method": "environmentExecute", "params": reusing.script(lease, "exec sleep 60", nil)})
	must[any](t, h, "health", object{})
	worker, err := unix.PidfdOpen(pid, 0) // readable once the process has ended
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(worker)
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended, err := 0, error(unix.EINTR)
	for err == unix.EINTR { // the runtime's own signals
		ended, err = unix.Poll([]unix.PollFd{{Fd: int32(worker), Events: unix.POLLIN}}, 20_000)
	}
	if err != nil || ended == 0 {
		t.Fatalf("the worker, process %d, outlived its host: %v", pid, err)
	}
}
