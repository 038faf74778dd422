package leasehold

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// event is one thing that goes wrong with the requests of a command.
type event struct {
	kind   string // of requests; empty: all
	nth    int    // of them, from the dispatch on, counted from 0
	count  int    // how many in a row
	action string
	n      int // the action's parameter
}

func (e event) String() string {
	return fmt.Sprintf("%s of %q %d..%d (%d)", e.action, e.kind, e.nth, e.nth+e.count-1, e.n)
}

// schedule is what happens to one command.
type schedule struct {
	transport Transport
	frame     int // of the socket
	steps     []time.Duration
	prefix    string        // of the output's lines
	cancel    time.Duration // when the caller gives up; 0: never
	events    []event
}

func (s schedule) String() string {
	lines := []string{fmt.Sprintf("%s, frames of %d, output at %v, lines begin with %q, canceled after %v", s.transport, s.frame, s.steps, s.prefix, s.cancel)}
	for _, e := range s.events {
		lines = append(lines, e.String())
	}
	return strings.Join(lines, "\n\t")
}

// propertyActions are what may happen to a request. What they take is a number from 0 to 999.
var propertyActions = map[string]func(n int) bubbleFault{
	"drop before": func(int) bubbleFault { return dropBefore },
	"drop after":  func(int) bubbleFault { return dropAfter },
	"hold before": func(int) bubbleFault { return holdBefore },
	"hold after":  func(int) bubbleFault { return holdAfter },
	"truncated":   func(int) bubbleFault { return truncated },
	"repeated":    func(int) bubbleFault { return repeated },
	"status before": func(n int) bubbleFault {
		return statusBefore([]int{400, 401, 403, 404, 408, 409, 429, 500, 502, 503, 504}[n%11])
	},
	"status after": func(n int) bubbleFault {
		return statusAfter([]int{400, 401, 403, 404, 408, 409, 429, 500, 502, 503, 504}[n%11])
	},
	"slow": func(n int) bubbleFault {
		return func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
			select {
			case <-time.After(time.Duration(n) * 20 * time.Millisecond):
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
			next(w, r)
		}
	},
	// The client learns nothing, and the request is processed afterwards.
	"late": func(n int) bubbleFault {
		return func(_ http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
			if kindOf(r) != "socket" {
				late := r.Clone(context.WithoutCancel(r.Context()))
				time.AfterFunc(time.Duration(n)*20*time.Millisecond, func() { next(httptest.NewRecorder(), late) })
			}
			panic(http.ErrAbortHandler)
		}
	},
}

// lateTime is when everything that is late has happened.
const lateTime = 21 * time.Second

func newSchedule(seed uint64) schedule {
	random := rand.New(rand.NewPCG(seed, 7))
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	s := schedule{
		transport: Transport(pick(string(TransportJournal), string(TransportSession))),
		frame:     []int{0, 0, 0, 1000, 37, 7}[random.IntN(6)],
		prefix:    pick("", "", "\x01\x01\x01", "\x02\x02\x02\x01é", "\xc3"),
	}
	at := time.Duration(0)
	for range 1 + random.IntN(4) {
		s.steps = append(s.steps, at)
		at += time.Duration(random.IntN(900)) * time.Millisecond
	}
	if random.IntN(6) == 0 {
		s.cancel = time.Duration(1+random.IntN(1500)) * time.Millisecond
	}
	actions := slices.Sorted(mapKeys(propertyActions))
	for range random.IntN(6) {
		e := event{kind: pick("", "", "dispatch", "execute", "download", "status", "snapshot", "socket", "list", "exec", "session", "delete"), nth: random.IntN(6), count: 1, n: random.IntN(1000), action: pick(actions...)}
		switch {
		case e.kind == "dispatch":
			e.nth = 0
		case random.IntN(4) == 0:
			e.count = 1 + random.IntN(12)
		}
		s.events = append(s.events, e)
	}
	return s
}

func mapKeys[M ~map[string]V, V any](m M) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// run runs a command under the schedule, in virtual time, and returns what was wrong.
func (s schedule) run(t *testing.T, dir string) (problems []string) {
	synctest.Test(t, func(t *testing.T) {
		x := &tableCell{bubbleRig: newBubbleRig(t, dir), transport: s.transport, at: positions, dir: dir, prefix: s.prefix}
		x.box.frame, x.box.steps = s.frame, s.steps
		var mu sync.Mutex
		seen := make(map[string]int)
		x.box.fault = func(kind string, _ *http.Request) bubbleFault {
			mu.Lock()
			defer mu.Unlock()
			at, all := seen[kind], seen[""]
			seen[kind]++
			seen[""]++
			for _, e := range s.events {
				n := at
				if e.kind == "" {
					n = all
				}
				if (e.kind == "" || e.kind == kind) && n >= e.nth && n < e.nth+e.count {
					return propertyActions[e.action](e.n)
				}
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if s.cancel > 0 {
			time.AfterFunc(s.cancel, cancel)
		}
		var errs collector
		began := time.Now()
		got, err := x.lease.Executor().Run(ctx, Command{Script: x.script(), Stdout: x, Stderr: &errs, Transport: s.transport, Profiles: ProfilesNone})
		if took := time.Since(began); took > blindTime+2*time.Minute {
			problems = append(problems, fmt.Sprintf("it took %v", took))
		}
		time.Sleep(lateTime) // virtual
		problems = append(problems, x.violations(got, err, errs.bytes())...)
		if len(problems) > 0 {
			problems = append(problems, fmt.Sprintf("Run() = %+v, %v", got, err))
		}
	})
	return problems
}

// shrunk is a schedule that fails as well, and of which nothing can be left out.
func (s schedule) shrunk(fails func(schedule) bool) schedule {
	for again := true; again; {
		again = false
		var smaller []schedule
		for i := range s.events {
			less := s
			less.events = slices.Delete(slices.Clone(s.events), i, i+1)
			smaller = append(smaller, less)
			if s.events[i].count > 1 {
				less = s
				less.events = slices.Clone(s.events)
				less.events[i].count = 1
				smaller = append(smaller, less)
			}
		}
		for _, change := range []func(*schedule){
			func(s *schedule) { s.cancel = 0 },
			func(s *schedule) { s.prefix = "" },
			func(s *schedule) { s.frame = 0 },
			func(s *schedule) { s.steps = s.steps[:1] },
		} {
			less := s
			change(&less)
			if less.String() != s.String() {
				smaller = append(smaller, less)
			}
		}
		for _, less := range smaller {
			if fails(less) {
				s, again = less, true
				break
			}
		}
	}
	return s
}

// TestRandomFaults runs commands under random schedules of faults. LEASEHOLD_SEED repeats one of them, LEASEHOLD_LONG=1
// runs thousands.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	root := scratchRoot(t)
	first, n := seeds(t, anySeed(), 60/oneIn, 4000)
	var runs []func()
	for seed := first; seed < first+n; seed++ {
		runs = append(runs, func() {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				attempt := 0
				run := func(s schedule) []string {
					attempt++
					return s.run(t, filepath.Join(root, fmt.Sprint(seed, "-", attempt)))
				}
				s := newSchedule(seed)
				problems := run(s)
				if len(problems) == 0 {
					return
				}
				least := s.shrunk(func(s schedule) bool { return len(run(s)) > 0 })
				t.Errorf("LEASEHOLD_SEED=%d\n%s\nfails with\n\t%s\nand the least that does, with\n\t%s\n%s", seed, s, strings.Join(problems, "\n\t"), strings.Join(run(least), "\n\t"), least)
			})
		})
	}
	atOnce(runs)
}
