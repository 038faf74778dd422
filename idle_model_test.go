package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// idleModel is the provider of a random schedule, and the plain truth of what is alive on it. It answers no request by
// itself: the schedule says when one is handled, and when, or whether, it is answered. A request whose caller has left may
// be handled long after.
type idleModel struct {
	t    *testing.T
	r    *rand.Rand
	host *idleHost
	dead sync.WaitGroup // what calls have begun, and hosts that were killed
	most int            // calls at once: a scope in which something is always under way is never proved to be idle

	mu       sync.Mutex
	auto     bool // every request is handled and answered at once
	boxes    map[string]*idleBox
	pending  []*idleRequest
	log      []string
	problems []string
}

// idleHost is one life of the host.
type idleHost struct {
	*provider
	life      context.Context // ends when it is killed
	kill      context.CancelFunc
	calls     map[Scope]int // under way
	holds     []*idleHold
	refs      []LeaseRef
	envelopes []CleanupEnvelope
}

type idleHold struct {
	*holding
	scope Scope
	id    string
}

// idleBox is a sandbox.
type idleBox struct {
	id, name string
	labels   map[string]string
	state    string             // started or stopped; empty: gone
	users    map[*idleHost]bool // who started it, or found it started, since it was at rest
	sentinel string
}

type idleRequest struct {
	host         *idleHost
	method, path string
	body         []byte
	answer       chan idleAnswer
	left         bool           // nobody waits for the answer
	resp         *http.Response // it was handled, and this is on its way back
}

// tell answers, if anybody waits.
func (q *idleRequest) tell(a idleAnswer) {
	select {
	case q.answer <- a:
	default: // it was told that the connection broke
	}
}

type idleAnswer struct {
	resp *http.Response
	err  error
}

func (b *idleBox) scope() Scope {
	return Scope{Tenant: b.labels["leasehold-tenant"], Environment: b.labels["leasehold-environment"], Run: b.labels["leasehold-run"]}
}

// isCreation reports whether a request is one, and of which scope.
func (q *idleRequest) isCreation() (Scope, bool) {
	var creation struct{ Labels map[string]string }
	if q.method != "POST" || q.path != "/api/sandbox" || json.Unmarshal(q.body, &creation) != nil {
		return Scope{}, false
	}
	return (&idleBox{labels: creation.Labels}).scope(), true
}

// roundTrip is the transport of a host.
type roundTrip struct {
	m    *idleModel
	host *idleHost
}

func (rt roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	q := &idleRequest{host: rt.host, method: r.Method, path: r.URL.Path, answer: make(chan idleAnswer, 1)}
	if r.Body != nil {
		q.body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	m := rt.m
	m.mu.Lock()
	if m.auto {
		defer m.mu.Unlock()
		return m.handle(q), nil
	}
	m.pending = append(m.pending, q)
	m.mu.Unlock()
	select {
	case a := <-q.answer:
		return a.resp, a.err
	case <-r.Context().Done():
		m.mu.Lock()
		defer m.mu.Unlock()
		q.left = true
		return nil, r.Context().Err()
	}
}

func reply(status int, body any) *http.Response {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)), ContentLength: int64(len(data))}
}

func refuse(status int, message string) *http.Response {
	return reply(status, json.RawMessage(structured(status, message)))
}

// handle does what a request asks for. m.mu is held.
func (m *idleModel) handle(q *idleRequest) *http.Response {
	parts := strings.Split(q.path, "/") // "", api, sandbox, id, action
	m.logf("handled %s %s left=%t", q.method, q.path, q.left)
	switch {
	case parts[1] == "toolbox":
		return m.execute(q, parts[2])
	case q.path == "/api/sandbox/paginated":
		return reply(200, map[string]any{"items": []any{map[string]any{"id": "any", "organizationId": "org"}}, "totalPages": 1})
	case q.path == "/api/sandbox" && q.method == "POST":
		b := &idleBox{state: "started", users: map[*idleHost]bool{q.host: true}}
		var creation struct {
			Name   string
			Labels map[string]string
		}
		if err := json.Unmarshal(q.body, &creation); err != nil {
			panic(err)
		}
		b.id, b.name, b.labels = "id-"+strings.TrimPrefix(creation.Name, "leasehold-create-"), creation.Name, creation.Labels
		if m.boxes[b.id] != nil {
			return refuse(409, "Sandbox with name "+b.name+" already exists")
		}
		m.boxes[b.id] = b
		return m.record(b)
	}
	b := m.find(parts[3])
	if b == nil {
		return refuse(404, "Sandbox with ID or name "+parts[3]+" not found")
	}
	switch {
	case q.method == "DELETE" && len(parts) == 4:
		m.rest(b, "")
		return reply(200, nil)
	case q.method == "GET":
		if b.state == "stopped" {
			// The changes of a sandbox are done in their order: a start that was sent before is not done after this.
			m.pending = slices.DeleteFunc(m.pending, func(p *idleRequest) bool { return p.left && p.resp == nil && p.path == "/api/sandbox/"+b.id+"/start" })
		}
	case parts[4] == "stop":
		m.rest(b, "stopped")
	case parts[4] == "start":
		b.state, b.users[q.host] = "started", true
	}
	return m.record(b)
}

// rest stops or deletes a sandbox. m.mu is held.
func (m *idleModel) rest(b *idleBox, state string) {
	if b.state != "" {
		b.state = state
	}
	clear(b.users)
}

func (m *idleModel) find(idOrName string) *idleBox {
	for _, b := range m.boxes {
		if (b.id == idOrName || b.name == idOrName) && b.state != "" {
			return b
		}
	}
	return nil
}

func (m *idleModel) record(b *idleBox) *http.Response {
	return reply(200, map[string]any{
		"id": b.id, "name": b.name, "organizationId": "org", "state": b.state, "desiredState": b.state, "labels": b.labels,
		"toolboxProxyUrl": "http://daytona.test/toolbox", "createdAt": "2026-01-01T00:00:00Z", "autoDeleteInterval": 100,
	})
}

// execute answers the scripts of set-up and verification.
func (m *idleModel) execute(q *idleRequest, id string) *http.Response {
	b := m.find(id)
	if b == nil || b.state != "started" {
		return refuse(404, "not running")
	}
	var body struct{ Command string }
	if err := json.Unmarshal(q.body, &body); err != nil {
		panic(err)
	}
	if content := sentinelSet(body.Command); content != "" {
		b.sentinel = content
	}
	return reply(200, map[string]any{"exitCode": 0, "result": answerScript(body.Command, "/workspace", b.sentinel)})
}

func (m *idleModel) logf(format string, args ...any) {
	if m.log = append(m.log, fmt.Sprintf(format, args...)); len(m.log) > 200 {
		m.log = m.log[100:]
	}
}

// boot starts a host's life.
func (m *idleModel) boot() {
	h := &idleHost{calls: make(map[Scope]int)}
	h.life, h.kill = context.WithCancel(context.Background())
	p, err := newProvider(Config{
		APIKey: "key", APIURL: "http://daytona.test/api", Transport: roundTrip{m, h}, Reuse: true, Timeout: 2 * time.Minute, CallTimeout: 15 * time.Second,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	h.provider = p
	m.host = h
}

// restart kills the host, with all it has under way, and starts another one, which knows some of the references.
func (m *idleModel) restart() {
	old := m.host
	m.boot()
	m.mu.Lock()
	m.host.refs, m.host.envelopes = slices.Clone(old.refs), slices.Clone(old.envelopes)
	m.logf("restart")
	m.mu.Unlock()
	old.kill()
	m.dead.Go(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = old.Close(ended)
	})
}

// alive says what is alive of a scope, by the truth.
func (m *idleModel) alive(h *idleHost, s Scope) (all []string) {
	if n := h.calls[s]; n > 0 {
		all = append(all, fmt.Sprint(n, " calls"))
	}
	for _, held := range h.holds {
		if held.scope == s {
			all = append(all, "a "+string(held.kind))
		}
	}
	for _, b := range m.boxes {
		if b.state == "started" && b.users[h] && b.scope() == s {
			all = append(all, "sandbox "+b.id)
		}
	}
	for _, q := range m.pending {
		if scope, ok := q.isCreation(); ok && q.resp == nil && q.host == h && scope == s {
			all = append(all, "a creation on its way")
		}
	}
	return all
}

// check compares what the host says with the truth.
func (m *idleModel) check() {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.host
	var total []string
	for _, s := range modelScopes {
		alive := m.alive(h, s)
		if total = append(total, alive...); h.Idle(s).Idle && len(alive) > 0 {
			m.problems = append(m.problems, fmt.Sprintf("scope %s is said to be idle, with %q", s.Run, alive))
		}
	}
	if h.Idle().Idle && len(total) > 0 {
		m.problems = append(m.problems, fmt.Sprintf("the provider is said to be idle, with %q", total))
	}
}

var modelScopes = []Scope{{Tenant: "acme", Environment: "test", Run: "one"}, {Tenant: "acme", Environment: "test", Run: "two"}}

// call makes a call of the host, which its caller may give up.
func (m *idleModel) call(name string, scope Scope, f func(ctx context.Context, h *idleHost) error) {
	h := m.host
	ctx, cancel := context.WithCancel(h.life)
	if m.r.IntN(2) == 0 {
		ctx, cancel = context.WithTimeout(h.life, time.Duration(1+m.r.IntN(100))*time.Second)
	}
	m.mu.Lock()
	h.calls[scope]++
	m.mu.Unlock()
	m.dead.Go(func() {
		defer cancel()
		err := f(ctx, h)
		m.mu.Lock()
		defer m.mu.Unlock()
		h.calls[scope]--
		m.logf("%s: %v", name, err)
		var e *Error
		if errors.As(err, &e) && e.Cleanup != nil {
			h.envelopes = append(h.envelopes, *e.Cleanup)
		}
	})
}

// used notes that the host uses a sandbox that it found started.
func (m *idleModel) used(h *idleHost, id string, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; err == nil && b != nil && b.state == "started" {
		b.users[h] = true
	}
	return err
}

// step makes one random step.
func (m *idleModel) step() {
	m.mu.Lock()
	refs, envelopes := m.host.refs, m.host.envelopes
	calls := 0
	for _, n := range m.host.calls {
		calls += n
	}
	m.mu.Unlock()
	scope := modelScopes[m.r.IntN(len(modelScopes))]
	kind := m.r.IntN(100)
	switch {
	case kind < 60:
		m.answer()
		return
	case kind < 68:
		longest := 500 // milliseconds
		if m.r.IntN(5) == 0 {
			longest = 20_000
		}
		time.Sleep(time.Duration(m.r.IntN(longest)) * time.Millisecond)
		return
	case kind < 70:
		m.mu.Lock()
		for _, id := range slices.Sorted(maps.Keys(m.boxes)) { // the provider stops what is not used
			if b := m.boxes[id]; b.state == "started" && m.r.IntN(3) == 0 {
				m.rest(b, "stopped")
			}
		}
		m.mu.Unlock()
		return
	case kind < 78:
		m.endHold()
		return
	case kind == 78 && m.r.IntN(10) == 0:
		m.restart()
		return
	case calls >= m.most && kind != 82 && kind != 83:
		return
	case kind < 82 && len(refs) < 6:
		m.call("acquire", scope, func(ctx context.Context, h *idleHost) error {
			l, err := h.Acquire(ctx, AcquireRequest{Scope: scope})
			if err == nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				h.refs = append(h.refs, l.Ref())
			}
			return err
		})
		return
	case kind < 84:
		// A proof is no activity of its own, and not counted as one.
		h := m.host
		m.dead.Go(func() { _, _ = h.ProveIdle(h.life) })
		return
	case kind < 86 && len(envelopes) > 0:
		envelope := envelopes[m.r.IntN(len(envelopes))]
		m.call("cleanup", envelope.Scope, func(ctx context.Context, h *idleHost) error {
			observed, err := h.Inspect(ctx, envelope)
			if err == nil {
				_, err = h.Cleanup(ctx, observed)
			}
			return err
		})
		return
	}
	if len(refs) == 0 {
		return
	}
	ref := refs[m.r.IntN(len(refs))]
	switch {
	case kind < 90:
		m.call("release", ref.Scope, func(ctx context.Context, h *idleHost) error {
			_, err := h.Release(ctx, ref, ReleaseOptions{})
			return err
		})
	case kind < 92:
		m.call("destroy", ref.Scope, func(ctx context.Context, h *idleHost) error {
			_, err := h.Destroy(ctx, ref)
			return err
		})
	case kind < 95:
		m.call("resume", ref.Scope, func(ctx context.Context, h *idleHost) error {
			_, err := h.Resume(ctx, ref)
			return m.used(h, ref.Sandbox, err)
		})
	default:
		m.call("use", ref.Scope, func(ctx context.Context, h *idleHost) error {
			l, err := h.Bind(ref)
			if err != nil {
				return err
			}
			held, err := l.hold([]ActivityKind{ActivityCommand, ActivityTerminal, ActivityChannel}[len(ref.Attempt+ref.Sandbox)%3], "use")
			if err != nil {
				return err
			}
			if _, err := l.toolbox(ctx); err != nil {
				held.end()
				return err
			}
			_ = m.used(h, ref.Sandbox, nil)
			m.mu.Lock()
			defer m.mu.Unlock()
			h.holds = append(h.holds, &idleHold{held, ref.Scope, fmt.Sprint(len(m.log))})
			return nil
		})
	}
}

// endHold ends something that is open, or leaves it.
func (m *idleModel) endHold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.host
	if len(h.holds) == 0 {
		return
	}
	i := m.r.IntN(len(h.holds))
	held := h.holds[i]
	h.holds = slices.Delete(h.holds, i, i+1)
	if m.r.IntN(2) == 0 {
		held.leave(held.id)
	} else {
		held.end()
	}
}

// answer handles a request that is on its way, and answers it, or loses either. A creation is never lost on its way: one
// that was could never be told from one that is still to come.
func (m *idleModel) answer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) == 0 {
		return
	}
	i := m.r.IntN(len(m.pending))
	q := m.pending[i]
	if q.resp != nil {
		if m.r.IntN(4) > 0 {
			return
		}
		m.pending = slices.Delete(m.pending, i, i+1)
		q.tell(idleAnswer{resp: q.resp})
		return
	}
	_, creation := q.isCreation()
	lost := idleAnswer{err: errors.New("connection reset")}
	switch fate := m.r.IntN(20); {
	case fate == 0: // the caller hears that the connection broke, and the request goes on
		q.left = true
		q.tell(lost)
		return
	case fate == 1 && !creation:
		m.pending = slices.Delete(m.pending, i, i+1)
		q.tell(lost)
		return
	case fate < 4 && creation: // later
		return
	}
	resp := m.handle(q)
	if m.r.IntN(5) == 0 {
		q.resp = resp
		return
	}
	m.pending = slices.DeleteFunc(m.pending, func(p *idleRequest) bool { return p == q })
	switch fate := m.r.IntN(20); fate {
	case 0:
		q.tell(lost)
	case 1:
		q.tell(idleAnswer{resp: reply(504, "gateway timeout")})
	default:
		q.tell(idleAnswer{resp: resp})
	}
}

// finish lets everything come to its end, and wants the host to be idle then.
func (m *idleModel) finish() {
	m.mu.Lock()
	m.auto = true
	for len(m.pending) > 0 {
		q := m.pending[0]
		m.pending = m.pending[1:]
		if q.resp == nil {
			q.resp = m.handle(q)
		}
		q.tell(idleAnswer{resp: q.resp})
	}
	m.mu.Unlock()
	time.Sleep(10 * time.Minute) // every budget is over
	m.check()
	h := m.host
	for len(h.holds) > 0 {
		m.endHold()
	}
	if _, err := h.ProveIdle(m.t.Context()); err != nil { // which sees what late creations have made
		m.problems = append(m.problems, fmt.Sprintf("ProveIdle() = %v", err))
	}
	m.mu.Lock()
	for _, b := range m.boxes {
		if m.r.IntN(2) == 0 {
			m.rest(b, "")
		} else {
			m.rest(b, "stopped")
		}
	}
	m.mu.Unlock()
	report, err := h.ProveIdle(m.t.Context())
	if err != nil || !report.Idle {
		m.problems = append(m.problems, fmt.Sprintf("at the end: ProveIdle() = %q, %v; sandboxes %v", activities(report), err, report.Active))
	}
	h.kill()
	if err := h.Close(m.t.Context()); err != nil {
		m.problems = append(m.problems, fmt.Sprintf("Close() = %v", err))
	}
	m.dead.Wait()
}

// TestI1Model runs random schedules of calls, requests that are lost, late or unanswered, things that are held and left,
// and killed hosts. A host is never said to be idle while anything of it is alive, and always is in the end.
func TestI1Model(t *testing.T) {
	const steps = 500
	schedules := 8
	if long() {
		schedules = 300
	}
	for n := range schedules {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			m := &idleModel{t: t, r: rand.New(rand.NewPCG(seed, 0)), most: 1 + n%6, boxes: make(map[string]*idleBox)}
			m.boot()
			for range steps {
				m.step()
				synctest.Wait()
				if m.check(); len(m.problems) > 0 {
					break
				}
			}
			m.finish()
			if len(m.problems) > 0 {
				t.Errorf("schedule %d, seed %d: %s\n%s", n, seed, strings.Join(m.problems, "\n"), strings.Join(m.log, "\n"))
			}
		})
		if t.Failed() {
			return
		}
	}
}
