package leasehold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// model is one schedule: two hosts that share a store and an account, what goes wrong, and what must hold.
type model struct {
	t      *testing.T
	r      *rand.Rand
	server *emulator.Server
	store  *modelStore
	hosts  [2]*modelHost
	later  sync.WaitGroup // creations that the provider has yet to see

	mu        sync.Mutex
	leases    []*modelLease
	envelopes []CleanupEnvelope
	foreign   map[string]bool   // by id
	sentinels map[string]string // contents, by the workspace they lie in
	sent      map[string]*modelCreation
	lateness  time.Duration // of the next creation; 0: in time
	slowest   time.Duration // of all that were late
	flaky     float64       // how often a call of the store fails
	began     time.Time
	log       []string
	problems  []string
}

// modelLease is a lease that somebody has the reference of.
type modelLease struct {
	ref     LeaseRef
	holder  *modelHost          // who uses it; nil: nobody, or nobody knows
	known   map[*modelHost]bool // who has used it: further uses need no look at the store
	vague   map[*modelHost]bool // whose last call failed: they may have taken it over, and may know it or not
	retain  bool                // it may be kept stopped
	busy    bool                // a call about it is under way
	unclear bool                // a call was given up, and may still go on
	blind   bool                // the store failed in a call, and a host may hold the record without knowing it, while it lives
}

func (m *model) logf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, fmt.Sprintf("%12s  ", time.Since(m.began))+fmt.Sprintf(format, args...))
}

// wrong notes a broken invariant. The caller holds no lock.
func (m *model) wrong(format string, args ...any) {
	m.logf("WRONG: "+format, args...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

// pick takes a lease that no call is about, or returns nil.
func (m *model) pick() *modelLease {
	m.mu.Lock()
	defer m.mu.Unlock()
	var free []*modelLease
	for _, l := range m.leases {
		if !l.busy {
			free = append(free, l)
		}
	}
	if len(free) == 0 {
		return nil
	}
	l := free[m.r.IntN(len(free))]
	l.busy = true
	return l
}

// done ends a host's call about a lease, with its new holder.
func (m *model) done(l *modelLease, h, holder *modelHost, err error, impatient bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if holder != nil && holder.dead.Load() || l.unclear || impatient { // what was given up may take it over yet
		holder = nil
	}
	l.holder, l.vague[h] = holder, err != nil
	l.busy, l.unclear = false, l.unclear || impatient
	l.blind = l.blind || errors.Is(err, ErrStore) || m.flaky > 0 // giving back goes on without the store
}

// operation returns a random call of a host, to be made by whoever runs it.
func (m *model) operation() func() {
	h := m.hosts[m.r.IntN(len(m.hosts))]
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	impatient := m.r.IntN(6) == 0
	if impatient {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(m.r.IntN(3000))*time.Millisecond)
	}
	call := func(name string, l *modelLease, f func(context.Context) (*modelHost, error)) func() {
		return func() {
			defer cancel()
			if l != nil {
				name += " " + l.ref.Sandbox
			}
			m.logf("%s: %s", h.name, name)
			holder, err := f(ctx)
			m.logf("%s: %s = %v", h.name, name, err)
			if e := (*Error)(nil); err != nil && !errors.As(err, &e) {
				m.wrong("%s: %T is no *Error", name, err)
			}
			if l != nil {
				m.done(l, h, holder, err, impatient)
			}
		}
	}
	switch kind := m.r.IntN(20); {
	case kind < 5:
		if m.r.IntN(5) == 0 {
			m.mu.Lock()
			m.lateness = []time.Duration{time.Second, time.Minute, 24 * time.Hour}[m.r.IntN(3)]
			m.mu.Unlock()
		}
		return call("acquire", nil, func(ctx context.Context) (*modelHost, error) {
			l, err := h.Acquire(ctx, request())
			m.mu.Lock()
			defer m.mu.Unlock()
			if err == nil {
				lease := &modelLease{ref: l.Ref(), known: map[*modelHost]bool{h: true}, vague: make(map[*modelHost]bool)}
				if !h.dead.Load() {
					lease.holder = h
				}
				m.leases = append(m.leases, lease)
			} else if e := failed("", err); e.Cleanup != nil {
				m.envelopes = append(m.envelopes, *e.Cleanup)
			}
			return nil, err
		})
	case kind < 8:
		return call("sweep", nil, func(ctx context.Context) (*modelHost, error) {
			report, err := h.sweeper.Sweep(ctx)
			m.logf("%s: %+v", h.name, report)
			return nil, err
		})
	case kind < 9:
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.envelopes) == 0 {
			return nil
		}
		envelope := m.envelopes[m.r.IntN(len(m.envelopes))]
		return call("cleanup "+envelope.Name, nil, func(ctx context.Context) (*modelHost, error) {
			observed, err := h.Inspect(ctx, envelope)
			if err != nil {
				return nil, err
			}
			if observed.Observed == "" {
				m.wrong("L2: Inspect() = %+v without an id, nor an error", observed)
			}
			receipt, err := h.Cleanup(ctx, observed)
			m.receipt("Cleanup()", observed.Observed, receipt, err, true)
			return nil, err
		})
	}
	l := m.pick()
	if l == nil {
		return nil
	}
	m.mu.Lock()
	before, mine, vague := l.holder, l.known[h], l.vague[h]
	l.known[h] = true
	m.mu.Unlock()
	forgotten := func() { // a lease that was given back is known no more
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(l.known, h)
	}
	switch kind := m.r.IntN(10); {
	case kind < 3:
		options := ReleaseOptions{Retain: m.r.IntN(4) == 0, Archive: m.r.IntN(6) == 0}
		l.retain = l.retain || options.Retain || options.Archive
		return call(fmt.Sprintf("release %+v", options), l, func(ctx context.Context) (*modelHost, error) {
			defer forgotten()
			receipt, err := h.Release(ctx, l.ref, options)
			m.receipt("Release()", l.ref.Sandbox, receipt, err, !l.unclear)
			return nil, err
		})
	case kind < 5:
		return call("destroy", l, func(ctx context.Context) (*modelHost, error) {
			defer forgotten()
			receipt, err := h.Destroy(ctx, l.ref)
			m.receipt("Destroy()", l.ref.Sandbox, receipt, err, !l.unclear)
			return nil, err
		})
	case kind < 8:
		return call("resume", l, func(ctx context.Context) (*modelHost, error) {
			if _, err := h.Resume(ctx, l.ref); err != nil {
				if errors.Is(err, ErrGone) && m.there(l.ref.Sandbox) {
					m.wrong("L5: Resume() = %v, and sandbox %s is there", err, l.ref.Sandbox)
				}
				return nil, err
			}
			return h, nil
		})
	}
	return call("use", l, func(ctx context.Context) (*modelHost, error) {
		bound, err := h.Bind(l.ref)
		if err == nil {
			_, err = bound.toolbox(ctx)
		}
		switch {
		case vague:
			return nil, err
		case mine: // it needed no look, and changed nothing
			return before, err
		case err != nil:
			return nil, err
		}
		return h, nil
	})
}

// there reports whether a sandbox is not destroyed, nor on its way to that.
func (m *model) there(id string) bool {
	sb := m.server.Sandbox(id)
	return sb != nil && sb.State() != emulator.StateDestroyed && sb.State() != emulator.StateDestroying
}

// receipt checks that a receipt says what is so.
func (m *model) receipt(what, id string, receipt Receipt, err error, alone bool) {
	if err != nil {
		return
	}
	state := emulator.StateDestroyed
	if sb := m.server.Sandbox(id); sb != nil {
		state = sb.State()
	}
	switch {
	case receipt.State == ReceiptDestroyed && state == emulator.StateDestroyed:
	case receipt.State == ReceiptDestroyed && what == "Release()" && state == emulator.StateDestroying && !alone:
	case receipt.State == ReceiptStopped && (resting(state) || !alone):
	default:
		m.wrong("L4: %s of sandbox %s = %+v, and it is %q", what, id, receipt, state)
	}
}

func resting(state emulator.State) bool {
	return state == emulator.StateStopped || state == emulator.StateArchived || state == emulator.StateArchiving
}

// step does one random thing.
func (m *model) step() {
	switch kind := m.r.IntN(20); {
	case kind < 3:
		m.server.SetFaults(m.faults()...)
		var plan []string
		for _, f := range m.server.Faults() {
			plan = append(plan, fmt.Sprintf("%s %d on %s %s (%d, %d, %.1f)", f.Action, f.Status, f.Method, f.Path, f.Nth, f.Count, f.Probability))
		}
		m.mu.Lock()
		m.flaky = []float64{0, 0, 0, 0.05, 0.3}[m.r.IntN(5)]
		flaky := m.flaky
		m.mu.Unlock()
		m.logf("faults %v, store %.2f", plan, flaky)
	case kind < 5:
		time.Sleep([]time.Duration{100 * time.Millisecond, 3 * time.Second, time.Minute, DefaultClaimTime + time.Minute, 2 * time.Hour}[m.r.IntN(5)])
	case kind < 6:
		slot := m.r.IntN(len(m.hosts))
		m.kill(m.hosts[slot])
		m.start(slot, m.r.IntN(2) == 0)
	default:
		var running sync.WaitGroup
		for range 1 + m.r.IntN(3)/2 {
			if f := m.operation(); f != nil {
				running.Go(f)
			}
		}
		if m.r.IntN(8) == 0 { // in the middle of it all
			slot := m.r.IntN(len(m.hosts))
			time.Sleep(time.Duration(m.r.IntN(400)) * time.Millisecond / 10)
			m.kill(m.hosts[slot])
			m.start(slot, m.r.IntN(2) == 0)
		}
		running.Wait()
	}
}

// settle lets time pass, without faults, until every late creation was seen and swept, and checks what is left: first
// beside hosts that live, then without them.
func (m *model) settle() {
	m.logf("no more faults")
	m.server.SetFaults()
	m.mu.Lock()
	m.flaky, m.lateness = 0, 0
	m.mu.Unlock()
	if m.r.IntN(2) == 0 {
		m.kill(m.hosts[1])
		m.start(1, false)
	}
	time.Sleep(time.Minute) // what was given up by its caller ends
	m.sweeps(m.slowest + 3*time.Hour)
	m.later.Wait()
	m.check()
	m.logf("no host lives on")
	for slot, h := range m.hosts {
		m.kill(h)
		m.start(slot, false)
	}
	time.Sleep(2 * DefaultClaimTime)
	m.sweeps(2 * time.Hour)
	m.check()
}

// sweeps lets time pass, and hosts sweep now and then.
func (m *model) sweeps(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); {
		h := m.hosts[m.r.IntN(len(m.hosts))]
		report, err := h.sweeper.Sweep(context.Background())
		if err != nil {
			m.wrong("Sweep() without faults = %v", err)
		}
		if report != (SweepReport{}) {
			m.logf("%s: %+v", h.name, report)
		}
		time.Sleep(20 * time.Minute)
	}
}

// check looks whether everything is accounted for.
func (m *model) check() {
	entries, err := m.store.List(context.Background(), "", 1000)
	if err != nil {
		m.t.Fatal(err)
	}
	m.mu.Lock()
	leases, foreign, sent := slices.Clone(m.leases), maps.Clone(m.foreign), maps.Clone(m.sent)
	m.mu.Unlock()
	byAttempt, byName, kept, blind := make(map[string]Entry), make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, e := range entries {
		byAttempt[e.Record.Envelope.Attempt], byName[e.Record.Envelope.Name] = e, true
	}
	for _, l := range leases {
		kept[l.ref.Sandbox] = kept[l.ref.Sandbox] || l.retain
		blind[l.ref.Attempt] = l.blind
		if l.holder == nil {
			continue
		}
		e := byAttempt[l.ref.Attempt]
		if !m.there(l.ref.Sandbox) || e.Record.State != StateLeased || e.Owner != l.holder.ledger.owner || !e.Alive {
			m.wrong("the lease of sandbox %s is in use by %s (%s), and recorded as %+v", l.ref.Sandbox, l.holder.name, l.holder.ledger.owner, e)
		}
	}
	alive := make(map[string]bool) // attempts
	for _, id := range m.server.Sandboxes() {
		sb := m.server.Sandbox(id)
		state, attempt := sb.Settle(time.Minute), sb.Labels()["leasehold-attempt"]
		if foreign[id] {
			if state != emulator.StateStarted {
				m.wrong("L3: foreign sandbox %s is %q", id, state)
			}
			delete(foreign, id)
			continue
		}
		alive[attempt] = true
		e, recorded := byAttempt[attempt]
		switch {
		case recorded && e.Alive && (e.Record.State == StateLeased || blind[attempt]):
		case recorded && e.Record.State == StateStopped && resting(state):
		case !recorded && resting(state) && (kept[id] || sb.Labels()["leasehold-reuse"] == "true"):
		default:
			m.wrong("sandbox %s (%s) is left, %q, recorded as %+v", id, attempt, state, e)
		}
	}
	for id := range foreign {
		m.wrong("L3: foreign sandbox %s is gone", id)
	}
	for _, e := range entries {
		r := e.Record
		c := sent[r.Envelope.Name]
		switch {
		case alive[r.Envelope.Attempt]:
		case e.Alive && (r.State == StateLeased || blind[r.Envelope.Attempt]): // whoever failed to resume it may try again
		case r.State == StateCreating && r.Envelope.Observed == "" && (c == nil || !c.processed):
		default:
			m.wrong("a record is left: %+v", e)
		}
	}
	for name, c := range sent {
		if c.requests > 1 {
			m.wrong("L1: creation %s was submitted %d times", name, c.requests)
		}
		if !c.processed && !c.refused && !byName[name] {
			m.wrong("L2: creation %s was never seen, and is on no list", name)
		}
	}
}

// runModel runs one schedule and returns what went wrong, and what happened.
func runModel(t *testing.T, seed uint64, steps int) (problems, log []string) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{
			t: t, r: rand.New(rand.NewPCG(seed, 0)), foreign: make(map[string]bool), sentinels: make(map[string]string), sent: make(map[string]*modelCreation), began: time.Now(),
			store: &modelStore{memoryStore: newMemoryStore(), stored: make(map[string]bool)},
		}
		const other = "key-of-another-account"
		var err error
		m.server, err = emulator.Start(emulator.Options{
			InMemory: true, Middleware: m.middleware, Toolbox: http.HandlerFunc(m.toolbox), Seed: seed,
			Keys: map[string]string{other: uuid.NewString()}, Timing: emulator.Timing{Cron: time.Minute},
		})
		if err != nil {
			t.Fatal(err)
		}
		m.plant(m.server.APIKey(), "leasehold-create-"+uuid.NewString())
		m.plant(other, "leasehold-create-"+uuid.NewString())
		m.start(0, true)
		m.start(1, false)
		for range steps {
			m.step()
		}
		m.settle()
		for _, h := range m.hosts {
			m.kill(h)
		}
		if err := m.server.Close(); err != nil {
			t.Error(err)
		}
		problems, log = m.problems, m.log
	})
	return problems, log
}

// modelSteps is the length of a schedule.
const modelSteps = 30

// TestOwnershipModel runs random schedules of calls, faults, kills and late creations on two hosts that share a store, in
// virtual time. When all has come to rest every sandbox is in use by a living host, gone, stopped for whoever has its
// reference, or on the list. LEASEHOLD_SEED repeats a schedule, as far as it depends on chance alone and not on which of
// two goroutines comes first; LEASEHOLD_LONG=1 runs ten thousand.
func TestOwnershipModel(t *testing.T) {
	first, schedules := seeds(t, anySeed(), 240/oneIn, 10_000)
	var next atomic.Uint64
	var runs []func()
	for worker := range min(4, schedules) {
		runs = append(runs, func() {
			t.Run(fmt.Sprint("worker ", worker), func(t *testing.T) {
				for !t.Failed() {
					seed := first + next.Add(1) - 1
					if seed >= first+schedules {
						return
					}
					problems, log := runModel(t, seed, modelSteps)
					if len(problems) == 0 {
						continue
					}
					steps := modelSteps
					for n := 1; n < modelSteps; n++ { // the shortest beginning that fails
						if p, l := runModel(t, seed, n); len(p) > 0 {
							steps, problems, log = n, p, l
							break
						}
					}
					t.Errorf("LEASEHOLD_SEED=%d fails after %d steps with\n\t%s\nin\n\t%s", seed, steps, strings.Join(problems, "\n\t"), strings.Join(log, "\n\t"))
				}
			})
		})
	}
	atOnce(runs)
}
