package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// modelStore is a store in memory that remembers which sandboxes' ids it ever held.
type modelStore struct {
	*memoryStore
	mu     sync.Mutex
	stored map[string]bool
}

func (s *modelStore) note(r Record, err error) {
	if err == nil && r.Envelope.Observed != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stored[r.Envelope.Observed] = true
	}
}

func (s *modelStore) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored[id]
}

func (s *modelStore) Put(ctx context.Context, r Record, owner string) (Claim, error) {
	claim, err := s.memoryStore.Put(ctx, r, owner)
	s.note(r, err)
	return claim, err
}

func (s *modelStore) Update(ctx context.Context, claim Claim, r Record) error {
	err := s.memoryStore.Update(ctx, claim, r)
	s.note(r, err)
	return err
}

func (s *modelStore) Release(ctx context.Context, claim Claim, r Record, wait time.Duration) error {
	err := s.memoryStore.Release(ctx, claim, r, wait)
	s.note(r, err)
	return err
}

// modelCreation is what became of the requests for one name.
type modelCreation struct {
	requests  int  // not counting those that a rate limit refused
	processed bool // the provider saw it
	refused   bool // the host was told that it made nothing
}

// middleware watches what the provider is asked to do.
func (m *model) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		parts := strings.Split(q.URL.Path, "/") // "", api, sandbox, id, action
		switch {
		case q.Method == "POST" && q.URL.Path == "/api/sandbox" && q.Header.Get("Foreign") == "":
			m.creation(w, q, next)
			return
		case q.Method != "GET" && len(parts) > 3 && parts[1] == "api" && parts[2] == "sandbox":
			m.change(q, parts[3])
		}
		next.ServeHTTP(w, q)
	})
}

// change checks a request that changes a sandbox.
func (m *model) change(q *http.Request, id string) {
	m.mu.Lock()
	foreign, user := m.foreign[id], ""
	for _, l := range m.leases {
		if l.ref.Sandbox == id && l.holder != nil && !l.busy {
			user = l.holder.name
		}
	}
	m.mu.Unlock()
	m.logf("%s %s", q.Method, q.URL.Path)
	if foreign {
		m.wrong("L3: a foreign sandbox was touched: %s %s", q.Method, q.URL.Path)
	}
	if user != "" && (q.Method == "DELETE" || strings.HasSuffix(q.URL.Path, "/stop")) {
		m.wrong("%s %s: it is in use by %s", q.Method, q.URL.Path, user)
	}
	if q.Method == "DELETE" && !m.store.has(id) {
		m.wrong("L3: sandbox %s is deleted before its id was stored", id)
	}
}

// creation passes a creation on, perhaps much later, and notes what became of it.
func (m *model) creation(w http.ResponseWriter, q *http.Request, next http.Handler) {
	body, _ := io.ReadAll(q.Body)
	var creation struct {
		Name   string
		Labels map[string]string
	}
	_ = json.Unmarshal(body, &creation)
	m.mu.Lock()
	late := m.lateness
	m.lateness, m.slowest = 0, max(m.slowest, late)
	c := m.sent[creation.Name]
	if c == nil {
		c = &modelCreation{}
		m.sent[creation.Name] = c
	}
	m.mu.Unlock()
	deliver := func(w http.ResponseWriter, q *http.Request) {
		q.Body = io.NopCloser(bytes.NewReader(body))
		reply := httptest.NewRecorder()
		defer func() {
			seen := slices.ContainsFunc(m.server.Sandboxes(), func(id string) bool {
				sb := m.server.Sandbox(id)
				return sb != nil && sb.Labels()["leasehold-attempt"] == creation.Labels["leasehold-attempt"]
			})
			m.mu.Lock()
			c.processed = c.processed || seen
			c.refused = !seen && 400 <= reply.Code && reply.Code < 500 && reply.Code != 408 && reply.Header().Get("Content-Type") != ""
			if reply.Code != http.StatusTooManyRequests {
				c.requests++
			}
			m.mu.Unlock()
			m.logf("POST /api/sandbox %s: %d, there: %t", creation.Name, reply.Code, seen)
		}()
		next.ServeHTTP(&teeWriter{ResponseWriter: w, copy: reply}, q)
	}
	if late == 0 {
		deliver(w, q)
		return
	}
	m.logf("POST /api/sandbox %s: to be seen in %s", creation.Name, late)
	again := q.Clone(context.Background())
	m.later.Go(func() {
		time.Sleep(late)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		again = again.WithContext(ctx)
		defer func() { _ = recover() }() // a fault that drops the connection, which nobody holds any more
		deliver(httptest.NewRecorder(), again)
	})
	panic(http.ErrAbortHandler)
}

var (
	modelSandbox   = regexp.MustCompile(`"sandbox":"([^"]*)"`)
	modelWorkspace = regexp.MustCompile(`ws='?([^'\n]+)'?\nf=`)
)

// toolbox answers the scripts of set-up and verification. Each sandbox has a workspace of its own path.
func (m *model) toolbox(rw http.ResponseWriter, q *http.Request) {
	var body struct{ Command string }
	if err := json.NewDecoder(q.Body).Decode(&body); err != nil || q.URL.Path != "/process/execute" {
		panic(http.ErrAbortHandler)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var workspace string
	if content := sentinelSet(body.Command); content != "" {
		workspace = "/home/" + modelSandbox.FindStringSubmatch(content)[1]
		m.sentinels[workspace] = content
	} else {
		workspace = modelWorkspace.FindStringSubmatch(body.Command)[1]
	}
	output := answerScript(body.Command, workspace, m.sentinels[workspace])
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{"exitCode": 0, "result": output})
}

// teeWriter notes the status of a reply.
type teeWriter struct {
	http.ResponseWriter
	copy *httptest.ResponseRecorder
}

func (w *teeWriter) WriteHeader(status int) {
	if ct := w.Header().Get("Content-Type"); strings.Contains(ct, "json") {
		w.copy.Header().Set("Content-Type", ct)
	}
	w.copy.WriteHeader(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *teeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// plant makes a foreign sandbox, which looks like ours.
func (m *model) plant(key, name string) { m.foreign[plant(m.t, m.server, key, name)] = true }

// faults is a random plan.
func (m *model) faults() []emulator.Fault {
	type requests struct{ method, path string }
	var plan []emulator.Fault
	for range m.r.IntN(4) {
		where := []requests{
			{"POST", "/api/sandbox"}, {"POST", "/api/sandbox"}, {"GET", "/api/sandbox/*"}, {"GET", "/api/sandbox/paginated"}, {"DELETE", "/api/sandbox/*"},
			{"POST", "/api/sandbox/*/stop"}, {"POST", "/api/sandbox/*/start"}, {"", "/toolbox/**"}, {"", ""},
		}[m.r.IntN(9)]
		f := emulator.Fault{Method: where.method, Path: where.path, Nth: m.r.IntN(3), Count: 1 + m.r.IntN(3)}
		if m.r.IntN(3) == 0 {
			f.Count, f.Probability = -1, 0.1+m.r.Float64()/2
		}
		switch m.r.IntN(12) {
		case 0:
			f.Action = emulator.DropBefore
		case 1:
			f.Action = emulator.DropAfter
		case 2:
			f.Action, f.Status, f.Body = emulator.StatusBefore, 429, structured(429, "ThrottlerException: Too Many Requests")
			f.Header = http.Header{"Retry-After": {strconv.Itoa(1 + m.r.IntN(20))}}
		case 3:
			f.Action, f.Status, f.Body = emulator.StatusBefore, 500, structured(500, "Internal server error")
		case 4:
			f.Action, f.Status, f.Body = emulator.StatusAfter, 500, structured(500, "Internal server error")
		case 5:
			f.Action, f.Status = emulator.StatusAfter, 502
		case 6:
			f.Action, f.Status, f.Body = emulator.StatusBefore, 503, "<html>no</html>"
		case 7:
			f.Action, f.Status, f.Body = emulator.StatusBefore, 404, "<html>not here</html>"
		case 8:
			f.Action, f.Bytes = emulator.SilentSocket, -1
		case 9:
			f.Action, f.Bytes = emulator.TruncateBody, int64(m.r.IntN(40))
		case 10:
			f.Action, f.Delay = emulator.StaleList, time.Duration(m.r.IntN(3600))*time.Second
		case 11:
			f.Action, f.Delay = emulator.DelayRequest, time.Duration(m.r.IntN(10_000))*time.Millisecond
		}
		plan = append(plan, f)
	}
	return plan
}

// modelHost is one life of a host.
type modelHost struct {
	*provider
	name    string
	sweeper *Sweeper
	dead    atomic.Bool
	renewal bool // the last renewal failed: the next one does not, or the host would be as good as dead
}

var errHostDead = errors.New("the host is dead")

// start begins a life of a host.
func (m *model) start(slot int, reuse bool) {
	h := &modelHost{name: fmt.Sprintf("host %d.%d", slot, m.r.IntN(1000))}
	store := &hookStore{Store: m.store}
	odds := rand.New(rand.NewPCG(m.r.Uint64(), 0))
	fault := func(call string) error { // called one at a time
		if h.dead.Load() {
			return errHostDead
		}
		m.mu.Lock()
		flaky := m.flaky
		m.mu.Unlock()
		fails := odds.Float64() < flaky
		if call == "renew" {
			fails = fails && !h.renewal
			h.renewal = fails
		}
		if fails {
			return errDown
		}
		return nil
	}
	store.before = func(call, _ string) error { return fault(call) }
	store.after = func(call, _ string, err error) error {
		if call == "renew" && !h.dead.Load() {
			return err
		}
		return cmpErr(fault(call), err)
	}
	inner := m.server.Transport()
	never := 0
	h.provider = rigProvider(m.t, m.server, Config{
		Store: store, Reuse: reuse, Timeout: 30 * time.Second, CallTimeout: 5 * time.Second, AutoStopMinutes: &never,
		Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
			if h.dead.Load() {
				return nil, errHostDead
			}
			reply, err := inner.RoundTrip(q)
			if err == nil && h.dead.Load() {
				_ = reply.Body.Close()
				return nil, errHostDead
			}
			return reply, err
		}),
	})
	h.sweeper = sweeper(m.t, h.provider, SweeperOptions{})
	m.hosts[slot] = h
	m.logf("%s starts, reuse %t", h.name, reuse)
}

// kill ends a host: it sends and hears nothing from now on, nor does the store.
func (m *model) kill(h *modelHost) {
	m.logf("%s is killed", h.name)
	m.mu.Lock()
	h.dead.Store(true)
	for _, l := range m.leases {
		if l.holder == h {
			l.holder = nil
		}
	}
	m.mu.Unlock()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = h.Close(ended)
}
