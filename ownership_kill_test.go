//go:build unix

package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// killVariable makes the test binary a host that carries out a [killOrder].
const killVariable = "LEASEHOLD_TEST_KILL"

// killOrder tells a host what to do, and at which point of it to die.
type killOrder struct {
	URL, Key, Dir string
	Operation     string
	Point         int // counted from 1, over everything that changes a state; beyond the last one it lives
}

func init() {
	if text := os.Getenv(killVariable); text != "" {
		var order killOrder
		err := json.Unmarshal([]byte(text), &order)
		if err == nil {
			err = order.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "host:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// executioner kills this process at one of the points that it passes.
type executioner struct {
	armed  atomic.Bool
	passed atomic.Int64
	point  int64
}

func (x *executioner) pass(what string) {
	if !x.armed.Load() {
		return
	}
	n := x.passed.Add(1)
	if n == x.point {
		fmt.Fprint(os.Stdout, what)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// RoundTrip makes every request three points: before it is sent, once it is sent, and once it is answered.
func (x *executioner) RoundTrip(q *http.Request) (*http.Response, error) {
	what := route(q.Method, q.URL.Path)
	x.pass("before " + what)
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { x.pass("sent " + what) }}
	reply, err := http.DefaultTransport.RoundTrip(q.WithContext(httptrace.WithClientTrace(q.Context(), trace)))
	x.pass("answered " + what)
	return reply, err
}

// killOperations are what a host does: first, unharmed, it prepares what the operation needs.
var killOperations = map[string]struct {
	reuse   bool
	prepare func(context.Context, *provider) (LeaseRef, error)
	run     func(context.Context, *provider, LeaseRef) error
}{
	"acquire": {run: func(ctx context.Context, p *provider, _ LeaseRef) error {
		_, err := p.Acquire(ctx, request())
		return err
	}},
	"release": {reuse: true, prepare: killLease, run: func(ctx context.Context, p *provider, ref LeaseRef) error {
		_, err := p.Release(ctx, ref, ReleaseOptions{})
		return err
	}},
	"retain": {reuse: true, prepare: killLease, run: func(ctx context.Context, p *provider, ref LeaseRef) error {
		_, err := p.Release(ctx, ref, ReleaseOptions{Retain: true})
		return err
	}},
	"destroy": {prepare: killLease, run: func(ctx context.Context, p *provider, ref LeaseRef) error {
		_, err := p.Destroy(ctx, ref)
		return err
	}},
	"resume": {reuse: true, prepare: func(ctx context.Context, p *provider) (LeaseRef, error) {
		ref, err := killLease(ctx, p)
		if err == nil {
			_, err = p.Release(ctx, ref, ReleaseOptions{})
		}
		return ref, err
	}, run: func(ctx context.Context, p *provider, ref LeaseRef) error {
		_, err := p.Resume(ctx, ref)
		return err
	}},
	"cleanup": {prepare: killLease, run: func(ctx context.Context, p *provider, ref LeaseRef) error {
		_, err := p.Cleanup(ctx, leaseRecord(ref).Envelope)
		return err
	}},
	"sweep": {reuse: true, run: func(ctx context.Context, p *provider, _ LeaseRef) error {
		s, err := NewSweeper(p, SweeperOptions{Concurrency: 1, BaseDelay: time.Millisecond, MaxDelay: time.Millisecond})
		if err == nil {
			_, err = s.Sweep(ctx)
		}
		return err
	}},
}

func killLease(ctx context.Context, p *provider) (LeaseRef, error) {
	l, err := p.Acquire(ctx, request())
	if err != nil {
		return LeaseRef{}, err
	}
	return l.Ref(), nil
}

// run is the life of a host.
func (o killOrder) run() error {
	ctx := context.Background()
	x := &executioner{point: int64(o.Point)}
	store, err := NewFileStore(o.Dir, FileStoreOptions{})
	if err != nil {
		return err
	}
	store.onStep = func(step string) { x.pass("disk " + step) }
	hooked := &hookStore{Store: store,
		before: func(call, _ string) error { x.pass("before " + call); return nil },
		after:  func(call, _ string, err error) error { x.pass("after " + call); return err },
	}
	operation := killOperations[o.Operation]
	p, err := newProvider(Config{APIURL: o.URL, APIKey: o.Key, Store: hooked, Transport: x, Reuse: operation.reuse, ClaimTime: time.Hour})
	if err != nil {
		return err
	}
	var ref LeaseRef
	if operation.prepare != nil {
		if ref, err = operation.prepare(ctx, p); err != nil {
			return err
		}
	}
	x.armed.Store(true)
	return operation.run(ctx, p, ref)
}

// scene is one round: a control plane with foreign sandboxes, a directory, and a host that lives.
type scene struct {
	*rig   // the host that lives, and later sweeps
	dir    string
	store  *FileStore
	living LeaseRef

	mu        sync.Mutex
	creations map[string]int  // requests, by the name in them
	foreign   map[string]bool // sandboxes, by id
}

func newScene(t *testing.T) *scene {
	t.Helper()
	const otherAccount = "key-of-another-account"
	s := &scene{dir: memoryDir(t), creations: make(map[string]int), foreign: make(map[string]bool)}
	var err error
	if s.store, err = NewFileStore(s.dir, FileStoreOptions{}); err != nil {
		t.Fatal(err)
	}
	w := &world{}
	s.rig = newRig(t, Config{Store: s.store, ClaimTime: time.Hour}, emulator.Options{
		Middleware: s.middleware, Toolbox: http.HandlerFunc(w.toolbox), Keys: map[string]string{otherAccount: uuid.NewString()},
	})
	l, err := s.Acquire(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	s.living = l.Ref()
	// What looks like ours, and is not: our scope and another attempt; a name that a deletion gave; another account's.
	labels := maps.Clone(s.living.Labels)
	labels["leasehold-attempt"] = uuid.NewString()
	s.plant(t, s.server.APIKey(), "leasehold-create-"+uuid.NewString(), labels)
	s.plant(t, s.server.APIKey(), "DESTROYED_"+s.living.Name+"_1", s.living.Labels)
	s.plant(t, otherAccount, s.living.Name, s.living.Labels)
	return s
}

// memoryDir is a directory on tmpfs where there is one: a kill loses nothing that was written, flushed or not.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "leasehold")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// plant makes a foreign sandbox.
func (s *scene) plant(t *testing.T, key, name string, labels map[string]string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"name": name, "labels": labels, "autoStopInterval": 0})
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), "POST", s.server.URL()+"/sandbox", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+key)
	q.Header.Set("Foreign", "yes")
	reply, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var made struct{ ID string }
	if err := json.NewDecoder(reply.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatalf("planting a foreign sandbox: status %d, %v", reply.StatusCode, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foreign[made.ID] = true
}

// middleware counts creations by name. For each it plants a twin: a sandbox with every label of ours, under another name.
func (s *scene) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == "POST" && q.URL.Path == "/api/sandbox" && q.Header.Get("Foreign") == "" {
			body, _ := io.ReadAll(q.Body)
			var creation struct{ Name string }
			_ = json.Unmarshal(body, &creation)
			twin := q.Clone(context.Background()) // the host may die
			twin.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(creation.Name), []byte("copy-of-"+creation.Name))))
			reply := httptest.NewRecorder()
			next.ServeHTTP(reply, twin)
			var made struct{ ID string }
			_ = json.Unmarshal(reply.Body.Bytes(), &made)
			s.mu.Lock()
			s.creations[creation.Name]++
			s.foreign[made.ID] = true
			s.mu.Unlock()
			q.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(w, q)
	})
}

// host runs a host to its end, and returns the point at which it was killed, or nothing if it lived on.
func (s *scene) host(t *testing.T, operation string, point int) (killedAt string) {
	t.Helper()
	order, err := json.Marshal(killOrder{URL: s.server.URL(), Key: s.server.APIKey(), Dir: s.dir, Operation: operation, Point: point})
	if err != nil {
		t.Fatal(err)
	}
	host := exec.Command(os.Args[0])
	host.Env = []string{killVariable + "=" + string(order), "GOGC=off"}
	var out, complaint bytes.Buffer
	host.Stdout, host.Stderr = &out, &complaint
	err = host.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			return out.String()
		}
	}
	if err != nil {
		t.Fatalf("%s, point %d: the host ended with %v: %s", operation, point, err, complaint.String())
	}
	return ""
}

// bury lets the claims of everybody but the living host lapse, as their claim time would.
func (s *scene) bury(t *testing.T) {
	t.Helper()
	entries, err := s.store.List(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Owner != "" && e.Owner != s.ledger.owner {
			if err := s.store.Renew(t.Context(), e.Owner, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// leftovers gives a sweep something to do: a lease of a dead host, a reusable one, and a creation whose reply was lost.
func (s *scene) leftovers(t *testing.T) {
	t.Helper()
	for _, reuse := range []bool{false, true} {
		dead := rigProvider(t, s.server, Config{Store: s.store, ClaimTime: time.Hour, Reuse: reuse})
		if _, err := killLease(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		if reuse {
			creation := dead.newCreation(request().Scope, false, nil)
			record := Record{
				Version: recordVersion, State: StateCreating, Envelope: *creation.envelope(PhaseCreate, ""), Orphan: OrphanDestroy, CreatedAt: receiptTime(),
			}
			if _, err := s.store.Put(t.Context(), record, dead.ledger.owner); err != nil {
				t.Fatal(err)
			}
			a := &acquisition{p: dead, op: "acquire", until: time.Now().Add(time.Minute), creation: creation}
			if _, err := a.submit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		dead.die()
		if err := dead.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.bury(t)
}

// converge sweeps, as the hosts that live on would, until everything is accounted for, and fails the test if that does
// not come to pass. reusable is how many sandboxes may be kept stopped.
func (s *scene) converge(t *testing.T, killedAt string, reusable int) {
	t.Helper()
	sweeper := sweeper(t, s.provider, SweeperOptions{BaseDelay: time.Millisecond, MaxDelay: time.Millisecond})
	for until := time.Now().Add(time.Minute); ; {
		s.bury(t)
		sweep(t, sweeper)
		problems := s.problems(t, reusable)
		if len(problems) == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("killed at %q, and swept:\n%s", killedAt, strings.Join(problems, "\n"))
		}
	}
}

// problems returns what is not accounted for.
func (s *scene) problems(t *testing.T, reusable int) (problems []string) {
	t.Helper()
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.creations {
		if n != 1 {
			wrong("L1: creation %s was submitted %d times, want once", name, n)
		}
	}
	stopped := 0
	for _, id := range s.server.Sandboxes() {
		switch state := s.server.Sandbox(id).State(); {
		case s.foreign[id]:
		case id == s.living.Sandbox:
			if state != emulator.StateStarted {
				wrong("the living host's sandbox is %q", state)
			}
		case state == emulator.StateStopped && s.server.Sandbox(id).Labels()["leasehold-reuse"] == "true":
			stopped++
		default:
			wrong("sandbox %s is left, %q, and not in use", id, state)
		}
	}
	if stopped > reusable {
		wrong("%d sandboxes are kept stopped, want at most %d", stopped, reusable)
	}
	for id := range s.foreign {
		if sb := s.server.Sandbox(id); sb == nil || sb.State() != emulator.StateStarted {
			wrong("L3: foreign sandbox %s is gone, or not as it was", id)
		}
	}
	for _, q := range s.server.Requests() {
		if parts := strings.Split(q.Path, "/"); len(parts) > 3 && s.foreign[parts[3]] {
			wrong("L3: a foreign sandbox was touched: %s %s", q.Method, q.Path)
		}
	}
	entries, err := s.store.List(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	kept := false
	for _, e := range entries {
		r := e.Record
		sb := s.server.Sandbox(r.Envelope.Observed)
		switch {
		case r.Envelope.Attempt == s.living.Attempt:
			kept = e.Alive && e.Owner == s.ledger.owner && r.State == StateLeased
		case r.State == StateStopped && sb != nil && sb.State() == emulator.StateStopped:
		case r.State == StateCreating && r.Envelope.Observed == "" && s.creations[r.Envelope.Name] == 0: // never seen: never forgotten
		default:
			wrong("record %s is left in state %s (%s), of a creation that was sent %d times", r.Envelope.Attempt, r.State, r.Outcome, s.creations[r.Envelope.Name])
		}
	}
	if !kept {
		wrong("the living host's lease is not in its hands any more")
	}
	return problems
}

// everyPoint runs f for every step-th point at which a host can be killed, several at a time, until one is not reached. It
// returns how many were.
func everyPoint(t *testing.T, step int, f func(t *testing.T, point int) (killedAt string)) (points int) {
	var next, reached atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !over.Load() && !t.Failed() {
				point := int(next.Add(int64(step)))
				t.Run(strconv.Itoa(point), func(t *testing.T) {
					if f(t, point) != "" {
						reached.Add(1)
					} else {
						over.Store(true)
					}
				})
			}
		})
	}
	wg.Wait()
	return int(reached.Load())
}

// TestKilledAnywhere: a host is killed at every point at which it changes a state, by itself, with SIGKILL: before, after
// and between the steps of each write to its store, before and after each request is sent, and when the reply is there.
// A sweep by a host that lives then leaves nothing of ours that is not in use, touches nothing foreign, and sends no
// creation again. An ordinary run takes a share of the many points of a sweep, and under the race detector, which says
// nothing of a process that is killed, of all. LEASEHOLD_LONG=1 kills the sweep that follows, too, at each of its points.
func TestKilledAnywhere(t *testing.T) {
	operations := []string{"acquire", "release", "destroy", "sweep"}
	if long() {
		operations = slices.Sorted(maps.Keys(killOperations))
	}
	points, rounds := 0, 0
	for _, operation := range operations {
		t.Run(operation, func(t *testing.T) {
			reusable := 0
			if killOperations[operation].reuse {
				reusable = 1
			}
			round := func(t *testing.T, point, then int) (at, andThen string) {
				s := newScene(t)
				if operation == "sweep" {
					s.leftovers(t)
				}
				at = s.host(t, operation, point)
				if then > 0 {
					s.bury(t)
					andThen = s.host(t, "sweep", then)
				}
				s.converge(t, at+", "+andThen, reusable)
				return at, andThen
			}
			step := unlessLong(oneIn)
			switch {
			case operation == "sweep":
			case raced:
				step = 7
			default:
				step = 1
			}
			n := everyPoint(t, step, func(t *testing.T, point int) string {
				at, _ := round(t, point, 0)
				return at
			})
			if most := (n+1)*step - 1; most < 15 { // the next one that was tried was not reached
				t.Errorf("at most %d points: the test proves little", most)
			}
			points, rounds = points+n, rounds+n
			if long() {
				for point := range n {
					rounds += everyPoint(t, 1, func(t *testing.T, then int) string {
						_, andThen := round(t, point+1, then)
						return andThen
					})
				}
			}
			t.Logf("%s: %d points, one in %d, %d rounds so far", operation, n, step, rounds)
		})
	}
	t.Logf("%d kill points, %d rounds, each followed by a recovery", points, rounds)
}
