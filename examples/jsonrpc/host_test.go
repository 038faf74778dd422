package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"
)

// testHost is what drives a worker: a few pipes in this process, or the published host's own code.
type testHost interface {
	// call makes a call, and returns its result, and for environmentExecute what was streamed before it.
	call(t testing.TB, method string, params any) (json.RawMessage, []executeLog, *rpcError)
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
	p := n.params(object{"lease": l, "command": "sh", "args": []string{"-c", script}, "env": object{}, "timeoutMs": 20_000})
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
	notes   chan message            // other notifications
	watch   func(executeLog)        // called with the next chunk
}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// startWorker starts a worker on the embedded backend, after prepare, if any, has changed it.
func startWorker(t testing.TB, prepare func(*worker)) *pipeHost {
	workerIn, in := io.Pipe()
	out, workerOut := io.Pipe()
	h := &pipeHost{
		in: in, served: make(chan error, 1), replies: make(map[string]chan message), logs: make(map[string][]executeLog),
		notes: make(chan message, 10_000),
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
		case m.Method != "":
			h.notes <- m
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

func (h *pipeHost) call(t testing.TB, method string, params any) (json.RawMessage, []executeLog, *rpcError) {
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
