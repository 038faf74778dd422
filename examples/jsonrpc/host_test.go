package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// testHost is what drives a worker: a few pipes in this process, or the published host's own code.
type testHost interface {
	// call makes a call, and returns its result, and for environmentExecute what was streamed before it.
	call(t testing.TB, method string, params any) (json.RawMessage, []executeLog, *rpcError)

	// openDuplex and openLogin open a session as a host does, with the company's own route.
	openDuplex(t testing.TB, input object) (*testSession, *rpcError)
	openLogin(t testing.TB, input object) (*testSession, *rpcError)
}

// testSession is a terminal or channel, as a host has it.
type testSession struct {
	events      <-chan sessionEvent
	write       func(data []byte)
	stop, close func()
}

type sessionEvent struct {
	data []byte
	exit json.RawMessage // of the last event
}

// until returns what the session printed up to where it holds want, or to its end, and how that was.
func (s *testSession) until(t testing.TB, want string) (got string, exit string) {
	t.Helper()
	late := time.After(time.Minute)
	for want == "" || !strings.Contains(got, want) {
		select {
		case e := <-s.events:
			if got += string(e.data); e.exit != nil {
				return got, string(e.exit)
			}
		case <-late:
			t.Fatalf("the session printed %.200q, and not %q or its end", got, want)
		}
	}
	return got, ""
}

// must makes a call that succeeds.
func must[R any](t testing.TB, h testHost, method string, params any) R {
	t.Helper()
	raw, _, failed := h.call(t, method, params)
	if failed != nil {
		t.Fatalf("%s: %d %s", method, failed.Code, failed.Message)
	}
	var result R
	if err := json.Unmarshal(raw, &result); err != nil {
		t.Fatalf("%s: %v in %s", method, err, raw)
	}
	return result
}

// refused makes a call that fails.
func refused(t testing.TB, h testHost, method string, params any) *rpcError {
	t.Helper()
	raw, _, failed := h.call(t, method, params)
	if failed == nil {
		t.Fatalf("%s succeeded: %s", method, raw)
	}
	return failed
}

type object = map[string]any

// heldLease is a lease as a host keeps it: the worker's result, as it came.
type heldLease struct {
	ID        *string         `json:"providerLeaseId"`
	Metadata  json.RawMessage `json:"metadata"`
	ExpiresAt *string         `json:"expiresAt"`
}

func (l heldLease) workspace(t testing.TB) string {
	var m struct{ RemoteCwd string }
	if err := json.Unmarshal(l.Metadata, &m); err != nil || m.RemoteCwd == "" {
		t.Fatalf("no workspace in %s: %v", l.Metadata, err)
	}
	return m.RemoteCwd
}

// tenant is one company's environment at the host.
type tenant struct {
	company string
	config  object
}

func (n tenant) params(more object) object {
	p := object{"driverKey": driverKey, "companyId": n.company, "environmentId": "env-1", "issueId": nil, "config": n.config}
	maps.Copy(p, more)
	return p
}

func (n tenant) acquire(t testing.TB, h testHost) heldLease {
	t.Helper()
	return must[heldLease](t, h, "environmentAcquireLease", n.params(object{"runId": "run-1", "agentId": "agent-1", "executionWorkspaceId": nil, "adapterType": "codex_local"}))
}

// give are the parameters of a release, a destruction or a resume.
func (n tenant) give(l heldLease, more object) object {
	p := n.params(object{"providerLeaseId": l.ID, "leaseMetadata": l.Metadata})
	maps.Copy(p, more)
	return p
}

func (n tenant) script(l heldLease, script string, more object) object {
	p := n.params(object{"lease": l, "command": "sh", "args": []string{"-c", script}, "env": object{}, "timeoutMs": 60_000})
	maps.Copy(p, more)
	return p
}

var reusing = tenant{"company-1", object{"timeoutMs": 60_000, "reuseLease": true}}

// pipeHost is a worker in this process, at the other end of two pipes.
type pipeHost struct {
	in     *io.PipeWriter
	served chan error

	mu      sync.Mutex
	last    int
	replies map[string]chan message
	logs    map[string][]executeLog // by invocation
	routes  map[string]chan sessionEvent
	watch   func(executeLog) // called with the next chunk
}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// startWorker starts a worker on the embedded backend, after prepare, if any, has changed it.
func startWorker(t testing.TB, prepare func(*worker)) *pipeHost {
	workerIn, in := io.Pipe()
	out, workerOut := io.Pipe()
	h := &pipeHost{
		in: in, served: make(chan error, 1), replies: make(map[string]chan message), logs: make(map[string][]executeLog),
		routes: make(map[string]chan sessionEvent),
	}
	w := newWorker(workerOut, options{localDir: t.TempDir(), log: quietLog()})
	if prepare != nil {
		prepare(w)
	}
	go func() {
		err := w.serve(t.Context(), workerIn)
		_ = workerOut.Close()
		h.served <- err
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		h.read(t, newLineReader(out, maxLine))
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-read
	})
	return h
}

func (h *pipeHost) read(t testing.TB, r *lineReader) {
	for {
		line, err := r.next()
		if errors.Is(err, io.EOF) {
			return
		}
		var m message
		if err == nil {
			err = json.Unmarshal(line, &m)
		}
		if err != nil {
			t.Errorf("a line of the worker: %v", err)
			return
		}
		h.mu.Lock()
		switch {
		case m.Method == "execute.log":
			var chunk executeLog
			_ = json.Unmarshal(m.Params, &chunk)
			h.logs[m.InvocationID] = append(h.logs[m.InvocationID], chunk)
			if h.watch != nil {
				h.watch(chunk)
				h.watch = nil
			}
		case strings.HasPrefix(m.Method, "duplexChannel."), strings.HasPrefix(m.Method, "loginPty."):
			h.route(t, m)
		case m.Method != "": // for the host's log
		default:
			h.replies[string(m.ID)] <- m
		}
		h.mu.Unlock()
	}
}

// onLog calls f with the first chunk of output that is streamed from now on.
func (h *pipeHost) onLog(f func(executeLog)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watch = f
}

func (h *pipeHost) route(t testing.TB, m message) {
	var p struct {
		Route string `json:"hostRouteId"`
		ID    string `json:"workerSessionId"`
		Chunk string
	}
	_ = json.Unmarshal(m.Params, &p)
	event := sessionEvent{data: []byte(p.Chunk)}
	switch m.Method {
	case "duplexChannel.data":
		decoded, err := base64.StdEncoding.DecodeString(p.Chunk)
		if err != nil {
			t.Error(err)
		}
		event.data = decoded
	case "duplexChannel.exit", "loginPty.exit":
		event = sessionEvent{exit: m.Params}
	}
	if p.ID == "" || h.routes[p.Route] == nil {
		t.Errorf("%s for an unknown session: %s", m.Method, m.Params)
		return
	}
	h.routes[p.Route] <- event
}

func (h *pipeHost) openDuplex(t testing.TB, input object) (*testSession, *rpcError) {
	return h.open(t, "duplexChannel", input, "Write", func(data []byte) any { return data })
}

func (h *pipeHost) openLogin(t testing.TB, input object) (*testSession, *rpcError) {
	return h.open(t, "loginPty", input, "Input", func(data []byte) any { return string(data) })
}

func (h *pipeHost) open(t testing.TB, prefix string, input object, write string, encode func([]byte) any) (*testSession, *rpcError) {
	t.Helper()
	events := make(chan sessionEvent, 10_000)
	h.mu.Lock()
	route := prefix + "-" + strconv.Itoa(len(h.routes))
	h.routes[route] = events
	h.mu.Unlock()
	params := object{"hostRouteId": route}
	maps.Copy(params, input)
	raw, _, failed := h.call(t, prefix+"Open", params)
	if failed != nil {
		return nil, failed
	}
	var opened duplexPair
	if err := json.Unmarshal(raw, &opened); err != nil || opened.ID == "" || prefix == "duplexChannel" && opened.Route != route {
		t.Fatalf("%sOpen = %s, want both names", prefix, raw)
	}
	pair := object{"hostRouteId": route, "workerSessionId": opened.ID}
	return &testSession{
		events: events,
		write: func(data []byte) {
			h.send(t, prefix+write, object{"hostRouteId": route, "workerSessionId": opened.ID, "data": encode(data)})
		},
		stop: func() { must[any](t, h, prefix+"Stop", pair) },
		close: func() {
			if got := must[duplexPair](t, h, prefix+"Close", object{"hostRouteId": route}); got.Route != route || prefix == "duplexChannel" && got.ID != opened.ID {
				t.Errorf("close = %+v, want %v", got, pair)
			}
		},
	}, nil
}

func (h *pipeHost) call(t testing.TB, method string, params any) (json.RawMessage, []executeLog, *rpcError) {
	t.Helper()
	id, reply := h.send(t, method, params)
	select {
	case m := <-reply:
		h.mu.Lock()
		defer h.mu.Unlock()
		return m.Result, h.logs["i-"+id], m.Error
	case <-time.After(time.Minute):
		t.Fatalf("%s was not answered", method)
	}
	return nil, nil, nil
}

// send sends a request, and returns what its reply will come on.
func (h *pipeHost) send(t testing.TB, method string, params any) (string, <-chan message) {
	t.Helper()
	encoded, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.last++
	id := strconv.Itoa(h.last)
	reply := make(chan message, 1)
	h.replies[id] = reply
	h.mu.Unlock()
	line, _ := json.Marshal(message{JSONRPC: "2.0", ID: json.RawMessage(id), Method: method, Params: encoded, Invocation: &invocation{ID: "i-" + id}})
	if _, err := h.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	return id, reply
}
