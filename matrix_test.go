//go:build unix

package leasehold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
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

// cell is one case of the matrix: an operation, and a fault that meets one of its requests.
type cell struct {
	op       *operation
	position int    // of the first request that is met, from 1
	at       string // its route
	mischief mischief
	extent   string
	late     bool // the caller's patience ended: what was cut off then may be handled when nobody looks any more
}

func (c cell) String() string {
	return fmt.Sprintf("%s, request %d (%s): %s, %s", c.op.name, c.position, c.at, c.mischief.name, c.extent)
}

// realPatience is how long the caller of an operation in real time waits, and graceTime how much longer the operation may
// take to stop what it began.
const (
	realPatience = 2 * time.Second
	graceTime    = 10 * time.Second
)

// newStage makes a world with a bystander, and prepares the operation.
func newStage(t *testing.T, op *operation) *stage {
	t.Helper()
	cfg := op.cfg
	if op.listed {
		cfg.Store = newMemoryStore()
	}
	var w *world
	if op.real {
		shell := ""
		if op.shell != nil {
			shell = op.shell(t)
		}
		w = newRealWorld(t, cfg, shell)
	} else {
		w = newWorld(t, cfg)
	}
	bystander := plant(t, w.server, w.server.APIKey(), "leasehold-create-"+uuid.NewString())
	w.server.Sandbox(bystander).Settle(time.Minute)
	w.mu.Lock()
	w.bystander = bystander
	w.mu.Unlock()
	s := &stage{world: w, host: w.provider}
	op.prepare(t, s)
	return s
}

// close gives back what the stage has open.
func (s *stage) close() {
	for _, f := range slices.Backward(s.end) {
		f()
	}
}

// quiet waits until nothing of the hosts goes on in the background.
func (s *stage) quiet(t *testing.T) {
	for _, p := range []*provider{s.host, s.provider} {
		p.tasks.Wait()
		p.streams.Wait()
		p.mu.Lock()
		leases := slices.Collect(maps.Values(p.leases))
		p.mu.Unlock()
		for _, l := range leases {
			drained(t, l)
		}
	}
}

// ask runs the operation in its budget.
func (c *cell) ask(ctx context.Context, t *testing.T, o *oracle, s *stage) outcome {
	most := 2 * s.host.cfg.Timeout
	if c.op.real {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, realPatience)
		defer cancel()
		most = realPatience + graceTime
	} else if c.op.name != "probe" { // which is an acquisition and a deletion
		most = s.host.cfg.Timeout
	}
	began := time.Now()
	got := c.op.run(ctx, s)
	took := time.Since(began)
	if c.late = c.op.real && took >= realPatience; took > most {
		o.wrong("it took %v, over the budget of %v", took, most)
	}
	return got
}

// play plays cells of one operation in one world, one after the other, and returns in how many the request was not made.
func play(t *testing.T, cells []cell) (unmet int) {
	s := newStage(t, cells[0].op)
	defer s.close()
	for i, c := range cells {
		at := s
		if c.op.shares { // each asks a host of its own, which has the reference alone
			host := rigProvider(t, s.server, s.world.cfg)
			at = s.by(host)
			at.turn = 2*i + 1
		}
		if !c.play(t, at) {
			unmet++
		}
		if at != s {
			_ = at.host.Close(context.Background())
		}
	}
	if c := cells[0]; c.op.shares && !cells[0].mischief.spoils() {
		o := &oracle{world: s.world}
		next := s.world.next(t)
		defer func() { _ = next.Close(context.Background()) }()
		if _, err := next.Resume(t.Context(), s.ref); err != nil {
			o.wrong("L5: the sandbox was not kept: Resume() = %v", err)
		}
		o.settle(t.Context(), next, []LeaseRef{s.ref}, nil)
		o.report(t, c.op.name)
	}
	return unmet
}

// spoils reports that no other cell can be played in the world after the fault.
func (m mischief) spoils() bool {
	return m.host != nil || m.fault.Action == emulator.LoseContainer || m.fault.Action == emulator.StallChange
}

// play lets the fault strike, and judges what comes of it: then, when all is quiet, and when the faults are over. It reports
// whether the request was made at all.
func (c cell) play(t *testing.T, s *stage) (met bool) {
	action, delay := c.mischief.fault.Action, c.mischief.fault.Delay
	o := &oracle{
		world: s.world, lied: c.mischief.lies(c.at), forged: c.mischief.forges(), lost: action == emulator.LoseContainer, broken: action == emulator.RunnerFailure,
		stalled: action == emulator.StallChange && delay == 0, limited: c.mischief.limits(c.at, c.extent),
	}
	defer o.report(t, c.String())
	var scratch map[string]bool
	if c.op.real {
		scratch = o.scratch(s.ref.Workspace)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)

	var hit atomic.Bool
	var mu sync.Mutex
	var left time.Time // when the host did its mischief
	s.begin(func(arrived int) {
		if arrived != c.position || hit.Swap(true) {
			return
		}
		if c.mischief.host == nil {
			c.mischief.set(s.world, c.at, c.extent)
			return
		}
		mu.Lock()
		left = time.Now()
		mu.Unlock()
		c.mischief.host(cancel, s.host)
		if !c.op.real {
			<-time.After(time.Second) // virtual: the answer comes after it
		}
	})
	got := c.ask(ctx, t, o, s)
	mu.Lock()
	if after := time.Since(left); !left.IsZero() && got.err != nil && !c.op.real && after > 0 {
		o.wrong("it returned %v after the host's end of it", after)
	}
	mu.Unlock()
	e := o.judge(s, got)
	if !errors.Is(got.err, errVanishes) { // else the lease goes on, with what is open
		s.quiet(t)
	}
	if s.host == s.provider && !o.stalled { // it has begun all there is
		idle := s.host.Idle()
		o.judgeIdle(&idle)
	}
	var refs []LeaseRef
	var envelopes []CleanupEnvelope
	var known []string
	if s.ref.Sandbox != "" {
		refs = append(refs, s.ref)
	}
	if got.lease != nil && got.lease.Ref().Sandbox != s.ref.Sandbox {
		refs = append(refs, got.lease.Ref())
	}
	if e != nil && e.Cleanup != nil {
		envelopes, known = append(envelopes, *e.Cleanup), append(known, e.Cleanup.Name)
	}
	for _, ref := range refs {
		known = append(known, ref.Sandbox)
	}
	for _, entry := range s.entries(t) {
		known = append(known, entry.Record.Envelope.Name)
	}
	if !o.stalled {
		o.judgeWorld(known...)
	}
	if c.extent == "once" && c.op.real && !c.late {
		o.judgeScratch(s.ref.Workspace, scratch)
	}

	if hit.Load() && c.mischief.host == nil && s.server.Faults()[0].Hits == 0 && !c.overtaken(s.arrived()) {
		o.wrong("the fault struck nothing: the cell proves nothing")
	}
	s.server.SetFaults()
	s.begin(nil)
	if o.stalled {
		return hit.Load()
	}
	next := s.world.next(t)
	defer func() { _ = next.Close(context.Background()) }()
	if c.op.listed { // the next host may have it when the first is dead
		_, _ = s.host.Close(context.Background()), s.provider.Close(context.Background())
		time.Sleep(2 * DefaultClaimTime) // virtual
	}
	c.afterwards(t, o, s, next, got)
	o.judgeStarts()
	if c.op.listed {
		o.sweepAll(t, next)
		return hit.Load()
	}
	if !o.lied && (!c.op.shares || c.mischief.spoils()) {
		o.settle(t.Context(), next, refs, envelopes)
	}
	return hit.Load()
}

// overtaken reports that requests at once came in another order than in the run without faults.
func (c cell) overtaken(arrived []string) bool {
	return arrived[c.position-1] != c.at && (c.op.real || slices.Contains(arrived, c.at))
}

// entries are what is on the list of the world's store.
func (s *stage) entries(t *testing.T) []Entry {
	if s.world.cfg.Store == nil {
		return nil
	}
	entries, err := s.world.cfg.Store.List(context.Background(), "", 1000)
	if err != nil {
		t.Error(err)
	}
	return entries
}

// afterwards lets another host go on with the lease, without faults: what failed succeeds, and what is kept can be used.
func (c cell) afterwards(t *testing.T, o *oracle, s *stage, next *provider, got outcome) {
	if s.ref.Sandbox == "" || got.receipt.State == ReceiptDestroyed {
		return
	}
	if got.receipt.State == "" && !c.op.once && !c.op.listed {
		after := s.by(next)
		again := c.op.run(t.Context(), after)
		o.judge(after, again)
		if again.err != nil && !o.excuses(again.err) {
			o.wrong("repeated without a fault = %v, after %v", again.err, got.err)
		}
		if got = again; got.receipt.State == ReceiptDestroyed {
			return
		}
	}
	if c.op.listed || c.op.shares || o.state(s.ref.Sandbox) == emulator.StateDestroyed && strings.Contains(c.op.name, "sweep") {
		return
	}
	if _, err := next.Resume(t.Context(), s.ref); err != nil && !o.excuses(err) {
		o.wrong("L5: the sandbox was not kept: Resume() = %v, after %v", err, got.err)
	}
}

// sweepAll sweeps as time passes, until the list is empty, and nothing is left that was on it.
func (o *oracle) sweepAll(t *testing.T, next *provider) {
	sweeper, err := NewSweeper(next, SweeperOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := sweeper.Sweep(t.Context()); err != nil {
			o.wrong("Sweep() without faults = %v", err)
		}
		time.Sleep(30 * time.Minute) // virtual
	}
	entries, err := next.cfg.Store.List(t.Context(), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !o.lied && (entry.Record.Envelope.Observed != "" || entry.Record.State != StateCreating) {
			o.wrong("L2: a record is left: %+v", entry)
		}
	}
	if left := o.world.alive(); len(left) > 0 && !o.lied {
		o.wrong("%d sandboxes are left after the sweep: %v", len(left), left)
	}
}

// batchSize is how many cells share a world.
const batchSize = 10

// batches are the cells that are played in one world.
func batches(cells []cell) (all [][]cell) {
	open := make(map[*operation]int) // index of the batch that takes more
	for _, c := range cells {
		i, found := open[c.op]
		switch alone := !c.op.shares || c.mischief.spoils(); {
		case alone:
			all = append(all, []cell{c})
		case found && len(all[i]) < batchSize:
			all[i] = append(all[i], c)
		default:
			open[c.op] = len(all)
			all = append(all, []cell{c})
		}
	}
	return all
}

// atOnceReal is how many cells in real time run at once.
const atOnceReal = 12

// TestFaultMatrix: every request that the library makes, by operation and position, with every action of the fault plan and
// what a host may do meanwhile. The requests are those of a run without faults, so a new one is met by itself. What comes of
// a cell is judged by the invariants alone: see oracle. Operations on leases run in virtual time, of which an ordinary run
// takes a share; those that need processes run over the loopback, and not in an ordinary run. LEASEHOLD_LONG=1 runs all of it,
// and LEASEHOLD_CELL those that match a regular expression, as the failure of a cell names it.
func TestFaultMatrix(t *testing.T) {
	// Thousands of small worlds, each garbage when the next begins: the collector would be half of the work.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	all := slices.Concat(operations(), sandboxOperations())
	var only *regexp.Regexp // cells by their String
	if pattern := os.Getenv("LEASEHOLD_CELL"); pattern != "" {
		only = regexp.MustCompile(pattern)
	}
	var mu sync.Mutex
	total, ran, unmet := make(map[string]int), make(map[string]int), 0
	count := func(op *operation, cells, without int) {
		mu.Lock()
		defer mu.Unlock()
		ran[op.name] += cells
		unmet += without
	}
	t.Run("cells", func(t *testing.T) {
		var slow []cell
		for i := range all {
			op := &all[i]
			var healthy []string
			discover := func(t *testing.T) {
				patient := *op
				patient.cfg.Timeout, patient.cfg.CallTimeout = time.Minute, 30*time.Second
				s := newStage(t, &patient)
				defer s.close()
				if op.shares {
					s = s.by(rigProvider(t, s.server, s.world.cfg))
					defer func() { _ = s.host.Close(context.Background()) }()
				}
				s.begin(nil)
				o := &oracle{world: s.world}
				got := op.run(t.Context(), s)
				if got.err != nil {
					t.Fatalf("%s without a fault = %v", op.name, got.err)
				}
				o.judge(s, got)
				healthy = s.arrived()
				s.quiet(t)
				o.judgeStarts()
				o.report(t, op.name+" without a fault")
			}
			if op.real {
				discover(t)
			} else {
				synctest.Test(t, discover)
			}
			if len(healthy) == 0 {
				t.Fatalf("%s: no requests", op.name)
			}
			var cells []cell
			for position, at := range healthy {
				for _, m := range mischiefs(op.real) {
					for _, extent := range extents {
						if m.worthIt(extent, at, op.real) {
							cells = append(cells, cell{op: op, position: position + 1, at: at, mischief: m, extent: extent})
						}
					}
				}
			}
			total[op.name] = len(cells)
			cells = slices.DeleteFunc(cells, func(c cell) bool { return only != nil && !only.MatchString(c.String()) })
			if op.real {
				if long() || only != nil { // each takes real processes, and its time
					slow = append(slow, cells...)
				}
				continue
			}
			if only == nil {
				cells = sampledOf(t, unlessLong(2*oneIn), cells, func(c cell) string { return string(c.mischief.fault.Action) })
			}
			for position, at := range healthy {
				t.Run(fmt.Sprintf("%s/%d %s", op.name, position+1, at), func(t *testing.T) {
					t.Parallel()
					for _, c := range cells {
						if c.position == position+1 {
							synctest.Test(t, func(t *testing.T) {
								count(op, 1, play(t, []cell{c}))
							})
						}
					}
				})
			}
		}
		t.Run("in real time", func(t *testing.T) {
			t.Parallel()
			var runs []func()
			for _, cells := range batches(slow) {
				runs = append(runs, func() {
					t.Run(fmt.Sprintf("%s from request %d", cells[0].op.name, cells[0].position), func(t *testing.T) {
						count(cells[0].op, len(cells), play(t, cells))
					})
				})
			}
			someAtOnce(atOnceReal, runs)
		})
	})
	cells, taken := 0, 0
	for _, op := range all {
		t.Logf("%5d of %5d cells  %s", ran[op.name], total[op.name], op.name)
		cells, taken = cells+total[op.name], taken+ran[op.name]
	}
	t.Logf("%5d of %5d cells; in %d of them the request was not made", taken, cells, unmet)
}
