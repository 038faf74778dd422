package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// secretWords stand in every error body of the matrix: provider text, which must not come back out.
const secretWords = "secret words of the provider"

// world is the emulator of one cell, in virtual time, and what happened on it. Its toolbox runs nothing: it answers the
// scripts of set-up and verification itself.
type world struct {
	*rig

	mu        sync.Mutex
	arrivals  []string       // route of every request since the operation began
	names     map[string]int // creations sent, by name
	content   string         // of the sentinel
	onArrival func(position int)
}

var (
	ownMark    = regexp.MustCompile(`leasehold-[A-Z2-7]{26}`)
	ownContent = regexp.MustCompile(`printf %s '([^']*)' >`)
)

func newWorld(t *testing.T, cfg Config) *world {
	cfg.Timeout, cfg.CallTimeout = 30*time.Second, 5*time.Second
	w := &world{names: make(map[string]int)}
	w.rig = newRig(t, cfg, emulator.Options{InMemory: true, Middleware: w.middleware, Toolbox: http.HandlerFunc(w.toolbox)})
	return w
}

func (w *world) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		w.mu.Lock()
		w.arrivals = append(w.arrivals, route(q.Method, q.URL.Path))
		position, arrived := len(w.arrivals), w.onArrival
		if q.Method == "POST" && q.URL.Path == "/api/sandbox" {
			body, _ := io.ReadAll(q.Body)
			q.Body = io.NopCloser(strings.NewReader(string(body)))
			var creation struct {
				Name string `json:"name"`
			}
			_ = json.Unmarshal(body, &creation)
			w.names[creation.Name]++
		}
		w.mu.Unlock()
		if arrived != nil {
			arrived(position)
		}
		next.ServeHTTP(rw, q)
	})
}

// toolbox answers as the scripts would.
func (w *world) toolbox(rw http.ResponseWriter, q *http.Request) {
	var body struct {
		Command string `json:"command"`
	}
	if err := json.NewDecoder(q.Body).Decode(&body); err != nil || q.URL.Path != "/process/execute" {
		panic(http.ErrAbortHandler)
	}
	mark := "\n" + ownMark.FindString(body.Command)
	w.mu.Lock()
	defer w.mu.Unlock()
	output := mark + " content " + w.content + "\n"
	if content := ownContent.FindStringSubmatch(body.Command); content != nil {
		w.content = content[1]
		output = mark + " workspace ok\n" + mark + " shell sh\n" + mark + " sentinel ok\n" + mark + " path /home/daytona/workspace\n"
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{"exitCode": 0, "result": output})
}

// begin forgets what happened so far and calls f for each request to come.
func (w *world) begin(f func(position int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrivals, w.onArrival = nil, f
	clear(w.names)
}

func (w *world) arrived() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.arrivals)
}

// route is a request with its ids replaced.
func route(method, path string) string {
	segments := strings.Split(path, "/")
	for i := range segments {
		if i > 0 && (segments[i-1] == "sandbox" || segments[i-1] == "toolbox" || segments[i-1] == "autodelete") && segments[i] != "paginated" {
			segments[i] = "*"
		}
	}
	return method + " " + strings.Join(segments, "/")
}

// outcome is what an operation returned.
type outcome struct {
	lease    *Lease
	receipt  Receipt
	envelope CleanupEnvelope
	err      error
}

// operation is one row of the matrix.
type operation struct {
	name string
	cfg  Config
	// prepare returns what the operation works on; its requests meet no fault.
	prepare func(*testing.T, *world) (LeaseRef, CleanupEnvelope)
	run     func(context.Context, Provider, LeaseRef, CleanupEnvelope) outcome
	// want is the state in which a receipt finds the sandbox; "" where there is none.
	want ReceiptState
}

func prepareLease(stopped bool) func(*testing.T, *world) (LeaseRef, CleanupEnvelope) {
	return func(t *testing.T, w *world) (LeaseRef, CleanupEnvelope) {
		l, err := w.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		ref := l.Ref()
		if stopped {
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		creation := CreationOperation{Attempt: ref.Attempt, Name: ref.Name, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential, Account: w.account.known()}
		return ref, *creation.envelope(PhaseCreate, "")
	}
}

func releaseWith(options ReleaseOptions) func(context.Context, Provider, LeaseRef, CleanupEnvelope) outcome {
	return func(ctx context.Context, p Provider, ref LeaseRef, _ CleanupEnvelope) outcome {
		receipt, err := p.Release(ctx, ref, options)
		return outcome{receipt: receipt, err: err}
	}
}

func operations() []operation {
	resume := func(ctx context.Context, p Provider, ref LeaseRef, _ CleanupEnvelope) outcome {
		l, err := p.Resume(ctx, ref)
		return outcome{lease: l, err: err}
	}
	nothing := func(*testing.T, *world) (LeaseRef, CleanupEnvelope) { return LeaseRef{}, CleanupEnvelope{} }
	reuse := Config{Reuse: true}
	return []operation{
		{"acquire", Config{TTL: time.Hour}, nothing, func(ctx context.Context, p Provider, _ LeaseRef, _ CleanupEnvelope) outcome {
			l, err := p.Acquire(ctx, request())
			return outcome{lease: l, err: err}
		}, ""},
		{"probe", Config{}, nothing, func(ctx context.Context, p Provider, _ LeaseRef, _ CleanupEnvelope) outcome {
			_, err := p.Probe(ctx, request())
			return outcome{err: err}
		}, ""},
		{"resume a running one", reuse, prepareLease(false), resume, ""},
		{"resume a stopped one", reuse, prepareLease(true), resume, ""},
		{"release and delete", Config{}, prepareLease(false), releaseWith(ReleaseOptions{}), ReceiptDestroyed},
		{"release and stop", reuse, prepareLease(false), releaseWith(ReleaseOptions{}), ReceiptStopped},
		{"release and retain", Config{}, prepareLease(false), releaseWith(ReleaseOptions{Retain: true}), ReceiptStopped},
		{"release and archive", reuse, prepareLease(false), releaseWith(ReleaseOptions{Archive: true}), ReceiptStopped},
		{"destroy", Config{}, prepareLease(false), func(ctx context.Context, p Provider, ref LeaseRef, _ CleanupEnvelope) outcome {
			receipt, err := p.Destroy(ctx, ref)
			return outcome{receipt: receipt, err: err}
		}, ReceiptDestroyed},
		{"inspect", Config{}, prepareLease(false), func(ctx context.Context, p Provider, _ LeaseRef, e CleanupEnvelope) outcome {
			e, err := p.Inspect(ctx, e)
			return outcome{envelope: e, err: err}
		}, ""},
		{"cleanup", Config{}, prepareLease(false), func(ctx context.Context, p Provider, ref LeaseRef, e CleanupEnvelope) outcome {
			e.Observed = ref.Sandbox
			receipt, err := p.Cleanup(ctx, e)
			return outcome{receipt: receipt, err: err}
		}, ReceiptDestroyed},
	}
}

// mischief is one column of the matrix: a fault of the emulator, or something that the host does meanwhile.
type mischief struct {
	name  string
	fault emulator.Fault
	host  func(cancel context.CancelCauseFunc, p *provider) // if set, called when the request arrives
}

var errHost = errors.New("the host's own reason")

func mischiefs() []mischief {
	status := func(action emulator.Action, code int, body string, retryAfter string) mischief {
		f := emulator.Fault{Action: action, Status: code, Body: body}
		name := fmt.Sprintf("%s %d", action, code)
		if strings.HasPrefix(body, "{") {
			name += " structured"
		}
		if retryAfter != "" {
			f.Header = http.Header{"Retry-After": {retryAfter}}
			name += " after " + retryAfter
		}
		return mischief{name: name, fault: f}
	}
	list := []mischief{
		status(emulator.StatusBefore, 204, "", ""),
		status(emulator.StatusBefore, 302, "", ""),
		status(emulator.StatusBefore, 400, structured(400, secretWords), ""),
		status(emulator.StatusBefore, 400, secretWords, ""),
		status(emulator.StatusBefore, 401, structured(401, "Invalid credentials"), ""),
		status(emulator.StatusBefore, 200, `{"hello":"`+secretWords+`"}`, ""),
		status(emulator.StatusBefore, 403, "<html>"+secretWords, ""),
		status(emulator.StatusBefore, 408, structured(408, secretWords), ""),
		status(emulator.StatusBefore, 503, "", "2"),
		status(emulator.StatusBefore, 429, structured(429, secretWords), "3600"),
	}
	for _, action := range []emulator.Action{emulator.StatusBefore, emulator.StatusAfter} {
		list = append(list,
			status(action, 200, "<html>"+secretWords, ""),
			status(action, 404, "<html>"+secretWords, ""),
			status(action, 409, structured(409, "Sandbox state change in progress"), ""),
			status(action, 429, structured(429, secretWords), "1"),
			status(action, 500, structured(500, secretWords), ""),
			status(action, 502, "", ""),
		)
	}
	for _, merge := range []string{
		`{"state":"hibernating","future":{"a":[1]}}`, `{"state":null}`, `{"id":"another"}`, `{"id":"../another"}`, `{"name":"another"}`, `{"labels":{}}`, `{"labels":null}`,
		`{"organizationId":"another"}`, `{"organizationId":null}`, `{"autoDestroyAt":"9999-12-31T23:59:59-23:59"}`, `{"autoDestroyAt":null}`, `{"createdAt":null}`,
		`{"autoDeleteInterval":0}`, `{"toolboxProxyUrl":null}`, `{"toolboxProxyUrl":"http://[::1"}`,
		`{"state":"error","recoverable":false,"errorReason":"` + secretWords + `"}`,
		`{"state":"error","recoverable":true,"errorReason":"` + secretWords + `"}`,
		`{"state":"destroyed"}`, `{"state":"stopped"}`, `{"state":"started"}`,
		`{"result":"` + secretWords + `","exitCode":-1}`,
	} {
		list = append(list, mischief{name: "merge " + merge, fault: emulator.Fault{Action: emulator.MergeReply, Body: merge}})
	}
	for _, f := range []emulator.Fault{
		{Action: emulator.DropBefore},
		{Action: emulator.DropAfter},
		{Action: emulator.TruncateBody, Bytes: 10},
		{Action: emulator.ResetReply, Bytes: 1},
		{Action: emulator.ResetUpload, Bytes: 10},
		{Action: emulator.Duplicate},
		{Action: emulator.SkewClock, Delay: 24 * time.Hour},
		{Action: emulator.SkewClock, Delay: -24 * time.Hour},
		{Action: emulator.SilentSocket},
		{Action: emulator.CloseSocket},
		{Action: emulator.ReplayPrefix, Bytes: 5},
		{Action: emulator.StaleList},
		{Action: emulator.LoseContainer},
		{Action: emulator.DiskFull},
		{Action: emulator.RunnerFailure, Body: secretWords},
		{Action: emulator.RunnerFailure, Body: secretWords, Code: 200},
		{Action: emulator.StallChange},
		{Action: emulator.StallChange, Delay: 12 * time.Second},
		{Action: emulator.DelayRequest, Delay: time.Second},
		{Action: emulator.DelayRequest, Delay: 12 * time.Second},
	} {
		list = append(list, mischief{name: strings.TrimSuffix(fmt.Sprintf("%s %v", f.Action, f.Delay+time.Duration(f.Code)), " 0s"), fault: f})
	}
	return append(list,
		mischief{name: "the caller cancels", host: func(cancel context.CancelCauseFunc, _ *provider) { cancel(errHost) }},
		mischief{name: "the caller cancels because another lease is gone", host: func(cancel context.CancelCauseFunc, _ *provider) {
			cancel(&Error{Op: "resume", Kind: KindGone, Reason: ReasonNotFound, Sandbox: "another"})
		}},
		mischief{name: "the provider is closed", host: func(_ context.CancelCauseFunc, p *provider) {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			go func() { _ = p.Close(ended) }()
		}},
	)
}

// lies reports that an answer, which has everything right that the provider's own has, says what is not so: a state,
// the id of what was created, or that a creation was held back by a rate limit. To believe it is no fault of ours.
func (m mischief) lies() bool {
	switch m.fault.Action {
	case emulator.MergeReply:
		return m.fault.Body == `{"state":"stopped"}` || m.fault.Body == `{"id":"another"}`
	case emulator.StatusAfter:
		return m.fault.Status == 429
	}
	return false
}

// worthIt reports whether a fault of that extent at that request differs from a shorter one.
func (m mischief) worthIt(extent, at string) bool {
	switch action := m.fault.Action; extent {
	case "once":
		return true
	case "twice": // the client below us repeats reads that meet a connection's end by itself
		return action == emulator.DropBefore || action == emulator.DropAfter || action == emulator.ResetReply
	case "for ever": // what the reply to a change says of the sandbox is not read
		return m.host == nil && (strings.HasPrefix(at, "GET ") || action != emulator.MergeReply && action != emulator.SkewClock)
	}
	switch m.fault.Action { // everywhere: an outage
	case emulator.StatusBefore, emulator.DropBefore, emulator.DropAfter, emulator.SilentSocket, emulator.TruncateBody:
		return true
	}
	return false
}

// extents are how long a fault lasts.
var extents = []string{"once", "twice", "for ever", "for ever, everywhere"}

// TestFaultMatrix: every operation, with every fault at each of its requests, keeps the invariants: nothing leaks without
// an envelope that finds it (L1, L2, L7), a receipt is a fact (L4), nobody is told that a living sandbox is gone (L5), the
// budget holds, a caller's cancellation is followed at once, and errors say what they must and nothing else (S1).
func TestFaultMatrix(t *testing.T) {
	// Thousands of small worlds, each garbage when the next begins: the collector would be half of the work.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	type cell struct {
		position int
		mischief mischief
		extent   string
	}
	t.Run("cells", func(t *testing.T) {
		for _, op := range operations() {
			var healthy []string
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, op.cfg)
				ref, envelope := op.prepare(t, w)
				w.begin(nil)
				if got := op.run(t.Context(), w.rig, ref, envelope); got.err != nil {
					t.Fatalf("%s without a fault = %v", op.name, got.err)
				}
				healthy = w.arrived()
			})
			if len(healthy) == 0 {
				t.Fatalf("%s: no requests", op.name)
			}
			var cells []cell
			for position := 1; position <= len(healthy); position++ {
				for _, m := range mischiefs() {
					for _, extent := range extents {
						if m.worthIt(extent, healthy[position-1]) {
							cells = append(cells, cell{position, m, extent})
						}
					}
				}
			}
			cells = sampled(t, cells, func(c cell) string { return c.mischief.name })
			for position := 1; position <= len(healthy); position++ {
				at := healthy[position-1]
				t.Run(fmt.Sprintf("%s/%d %s", op.name, position, at), func(t *testing.T) {
					t.Parallel()
					for _, c := range cells {
						if c.position == position {
							synctest.Test(t, func(t *testing.T) { matrixCell(t, op, position, at, c.mischief, c.extent) })
						}
					}
				})
			}
		}
	})
}

func matrixCell(t *testing.T, op operation, position int, at string, m mischief, extent string) {
	cell := m.name + ", " + extent
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s", cell, fmt.Sprintf(format, args...))
	}
	w := newWorld(t, op.cfg)
	ref, envelope := op.prepare(t, w)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)

	var left time.Time // when the host did its mischief
	w.begin(func(arrived int) {
		if arrived != position {
			return
		}
		if m.host != nil {
			left = time.Now()
			m.host(cancel, w.provider)
			<-time.After(time.Second) // virtual: the answer comes after it
			return
		}
		f := m.fault
		switch extent {
		case "once":
			f.Count = 1
		case "twice":
			f.Count = 2
		case "for ever":
			f.Count = -1
		case "for ever, everywhere":
			f.Count = -1
			w.server.SetFaults(f)
			return
		}
		f.Method, f.Path, _ = strings.Cut(at, " ")
		w.server.SetFaults(f)
	})
	began := time.Now()
	got := op.run(ctx, w.rig, ref, envelope)
	ended := time.Now()
	if took, most := ended.Sub(began), w.cfg.Timeout; op.name == "probe" && took > 2*most || op.name != "probe" && took > most {
		fail("took %v, over the budget of %v", took, most)
	}
	if m.host != nil && got.err != nil && ended.Sub(left) > 0 {
		fail("returned %v after the host's end of it", ended.Sub(left))
	}
	var e *Error
	if got.err != nil {
		e = checkMatrixError(t, cell, w, got.err)
	}
	// What goes on in the background has its own budget; then the faults end, and the host looks after what is left.
	w.tasks.Wait()
	checkReceipt(t, cell, w, op, ref, m, got)
	for name, sent := range w.names {
		if sent > 1 && m.fault.Status != 429 {
			fail("L2: %d creations of %s were sent", sent, name)
		}
	}
	if n := len(w.alive()); n > 1 {
		fail("L2: %d sandboxes of one acquisition", n)
	}
	w.server.SetFaults()
	w.begin(nil)
	next := &rig{provider: rigProvider(t, w.server, w.cfg), server: w.server}
	defer func() { _ = next.Close(context.Background()) }()
	lost := m.fault.Action == emulator.LoseContainer
	stalled := m.fault.Action == emulator.StallChange && m.fault.Delay == 0
	switch {
	case op.name == "acquire" && got.err == nil:
		if alive := w.alive(); !slices.Equal(alive, []string{got.lease.Ref().Sandbox}) {
			fail("leased %s, and %v are there", got.lease.Ref().Sandbox, alive)
		}
		data, err := json.Marshal(got.lease.Ref())
		if err != nil {
			fail("the lease has no JSON form: %v", err)
		} else if _, err := ParseLeaseRef(data); err != nil {
			fail("the lease's JSON form: %v", err)
		}
	case op.name == "acquire" || op.name == "probe":
		if got.err == nil {
			e = &Error{}
		}
		if stalled {
			return
		}
		settleMatrix(t, cell, w, next, m, e)
	case e != nil && e.Kind == KindGone:
		if !lost {
			fail("L5: told that the sandbox is gone: %v", e)
		}
	case op.name == "inspect" && m.lies():
	case strings.HasPrefix(op.name, "resume") && !stalled && !lost:
		if _, err := next.Resume(t.Context(), ref); err != nil {
			fail("L5: the sandbox was not kept: Resume() = %v, after %v", err, got.err)
		}
	case op.name == "inspect":
		if got.err == nil && got.envelope.Observed != ref.Sandbox {
			fail("observed %q, want %q", got.envelope.Observed, ref.Sandbox)
		}
		if got.err != nil && errors.Is(got.err, ErrGone) {
			fail("gone: %v", got.err)
		}
	case got.err != nil && !stalled && !lost: // giving back can be repeated
		again := op.run(t.Context(), next, ref, envelope)
		if again.err != nil {
			fail("repeated after %v: %v", got.err, again.err)
		}
		checkReceipt(t, cell, w, op, ref, m, again)
	}
}

// alive lists the sandboxes that are not destroyed, once pending changes have ended.
func (w *world) alive() []string {
	for _, id := range w.server.Sandboxes() {
		w.server.Sandbox(id).Settle(time.Minute)
	}
	return w.server.Sandboxes()
}

func checkMatrixError(t *testing.T, cell string, w *world, err error) *Error {
	t.Helper()
	e, ok := err.(*Error)
	if !ok || sentinels[e.Kind] == nil || e.Op == "" {
		t.Errorf("%s: error %T %v is no *Error with an operation and a kind", cell, err, err)
		return &Error{}
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", *e), fmt.Sprint(errors.Unwrap(err))} {
		for _, secret := range []string{w.server.APIKey(), secretWords, "hibernating", "<html>"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: S1: %q in %s", cell, secret, text)
			}
		}
	}
	if e.Cleanup != nil {
		if data, err := json.Marshal(e.Cleanup); err != nil {
			t.Errorf("%s: envelope: %v", cell, err)
		} else if _, err := ParseCleanupEnvelope(data); err != nil {
			t.Errorf("%s: envelope: %v", cell, err)
		}
	}
	switch e.Op {
	case "acquire", "resume", "release", "destroy", "cleanup":
		if e.Phase == "" && e.Kind != KindCanceled && e.Kind != KindClosed && e.Kind != KindNotOwned {
			t.Errorf("%s: no phase: %+v", cell, e)
		}
	}
	return e
}

func checkReceipt(t *testing.T, cell string, w *world, op operation, ref LeaseRef, m mischief, got outcome) {
	t.Helper()
	if got.err != nil {
		if got.receipt != (Receipt{}) {
			t.Errorf("%s: L4: receipt %+v with error %v", cell, got.receipt, got.err)
		}
		return
	}
	if op.want == "" || m.lies() {
		return
	}
	var state emulator.State = "destroyed"
	if sb := w.server.Sandbox(ref.Sandbox); sb != nil {
		state = sb.State()
	}
	switch got.receipt.State {
	case ReceiptDestroyed:
		if state != "destroyed" {
			t.Errorf("%s: L4: receipt %q, and the sandbox is %q", cell, got.receipt.State, state)
		}
	case ReceiptStopped:
		if state != "stopped" && state != "archived" && state != "archiving" {
			t.Errorf("%s: L4: receipt %q, and the sandbox is %q", cell, got.receipt.State, state)
		}
	default:
		t.Errorf("%s: no receipt", cell)
	}
}

// settleMatrix fails the test unless no sandbox is left after the error's envelope was looked after.
func settleMatrix(t *testing.T, cell string, w *world, next *rig, m mischief, e *Error) {
	t.Helper()
	alive := w.alive()
	if e.Cleanup == nil {
		if len(alive) > 0 && !m.lies() {
			t.Errorf("%s: leaked %v (%s) without an envelope: %+v", cell, alive, w.server.Sandbox(alive[0]).State(), e)
		}
		return
	}
	observed, err := next.Inspect(t.Context(), *e.Cleanup)
	if len(alive) == 0 {
		if err == nil {
			_, err = next.Cleanup(t.Context(), observed)
		}
		if err != nil && !errors.Is(err, ErrUncertain) {
			t.Errorf("%s: envelope without a sandbox: %v", cell, err)
		}
		return
	}
	if err != nil || observed.Observed != alive[0] {
		t.Errorf("%s: Inspect() = %q, %v, want %q; acquisition: %+v", cell, observed.Observed, err, alive[0], e)
		return
	}
	if receipt, err := next.Cleanup(t.Context(), observed); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("%s: Cleanup() = %+v, %v", cell, receipt, err)
	}
	if alive := w.alive(); len(alive) > 0 {
		t.Errorf("%s: leaked %v after the cleanup", cell, alive)
	}
}
