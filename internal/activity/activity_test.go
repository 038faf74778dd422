package activity

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type tracker = Tracker[string, int]

func anyScope(string) bool { return true }

// names returns what is alive, the oldest first.
func names(t *tracker) (all []string) {
	for _, i := range t.Alive(anyScope) {
		all = append(all, fmt.Sprint(i.Scope, "/", i.Name, " ", i.Kind, " ", i.Op, " ", i.ID, " ", i.Age, " ", i.Count, " ", i.Detail))
	}
	return all
}

func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New[string, int]()
		if !a.Idle() || len(names(a)) != 0 {
			t.Fatalf("a new account has %q", names(a))
		}
		one, two := a.Subject("s", "1"), a.Subject("s", "2")
		if a.Subject("s", "1") != one || a.Subject("t", "1") == one {
			t.Error("subjects are not told apart by scope and name")
		}
		first := one.Begin("call", "run")
		time.Sleep(time.Second)
		second := two.Observe("request", "get")
		one.Mark("request", "stop", "stop", 7)
		one.Mark("request", "again", "stop", 8)
		one.Mark("command", "run", "x", 9)
		time.Sleep(time.Second)
		want := []string{"s/1 call run  2s 0 0", "s/1 command run x 1s 1 9", "s/1 request stop stop 1s 2 8", "s/2 request get  1s 0 0"}
		if got := names(a); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("Alive() = %q, want %q", got, want)
		}
		if got := a.Alive(func(s string) bool { return s == "t" }); got != nil {
			t.Errorf("Alive() of a scope without anything = %+v", got)
		}
		first.End()
		first.End()
		second.End()
		one.Amend("command", "y", 1)
		one.Amend("command", "x", 10)
		if got := a.Alive(anyScope)[0]; len(a.Alive(anyScope)) != 2 || got.Detail != 10 {
			t.Errorf("after Amend() there is %q", names(a))
		}
		one.Unmark("command", "y")
		one.Unmark("command", "x")
		if a.Idle() {
			t.Error("idle with a mark")
		}
		one.UnmarkAll()
		if !a.Idle() || len(names(a)) != 0 {
			t.Errorf("at the end there is %q", names(a))
		}
	})
}

func TestEvidence(t *testing.T) {
	for _, tt := range []struct {
		name         string
		before       func(s, other *Subject[string, int])
		meanwhile    func(s, other *Subject[string, int])
		narrow, wide bool
	}{
		{"nothing", nil, nil, true, true},
		{"a look", nil, func(s, _ *Subject[string, int]) { s.Observe("", "").End() }, true, true},
		{"an entry", nil, func(s, _ *Subject[string, int]) { s.Begin("", "").End() }, false, false},
		{"an entry that goes on", func(s, _ *Subject[string, int]) { s.Begin("", "") }, nil, false, false},
		{"an entry that began", nil, func(s, _ *Subject[string, int]) { s.Begin("", "") }, false, false},
		{"another one of the scope", nil, func(_, o *Subject[string, int]) { o.Begin("", "").End() }, true, false},
		{"another one of the scope that goes on", func(_, o *Subject[string, int]) { o.Begin("", "") }, nil, true, false},
		{"the same mark again", nil, func(s, _ *Subject[string, int]) { s.Mark("kind", "", "", 0) }, false, false},
		{"another scope", nil, func(s, _ *Subject[string, int]) { s.t.Subject("else", "s").Begin("", "") }, true, true},
	} {
		for _, wide := range []bool{false, true} {
			a := New[string, int]()
			s, other := a.Subject("scope", "s"), a.Subject("scope", "other")
			own := s.Begin("own", "")
			s.Mark("kind", "", "", 0)
			other.Mark("kind", "", "", 0)
			if tt.before != nil {
				tt.before(s, other)
			}
			e := s.Evidence(own, wide)
			if tt.meanwhile != nil {
				tt.meanwhile(s, other)
			}
			want := tt.narrow
			if wide {
				want = tt.wide
			}
			if got := e.Clear(); got != want {
				t.Errorf("%s, wide %t: Clear() = %t, want %t", tt.name, wide, got, want)
			}
			marked := map[*Subject[string, int]]bool{}
			for _, i := range a.Alive(anyScope) {
				marked[i.Subject] = marked[i.Subject] || i.Marked
			}
			if marked[s] == want || !marked[other] {
				t.Errorf("%s, wide %t: marks %v, %v after Clear() = %t", tt.name, wide, marked[s], marked[other], want)
			}
		}
	}
	// Without the entry under which the look is made, that entry is somebody else's.
	a := New[string, int]()
	s := a.Subject("scope", "s")
	s.Begin("", "")
	if s.Evidence(nil, false).Quiet() {
		t.Error("quiet with an entry")
	}
	// To clear one subject does not void the evidence of another one of the scope.
	one, two := a.Subject("next", "1"), a.Subject("next", "2")
	one.Mark("", "", "", 0)
	two.Mark("", "", "", 0)
	e, f := one.Evidence(nil, true), two.Evidence(nil, true)
	if !e.Clear() || !f.Clear() {
		t.Error("two looks at one scope void each other")
	}
}

// TestEvidenceOfOneWhoIsGone: who looks on after its own end does not stand for somebody else.
func TestEvidenceOfOneWhoIsGone(t *testing.T) {
	a := New[string, int]()
	s := a.Subject("s", "1")
	s.Mark("command", "run", "x", 0)
	own := s.Begin("call", "release")
	own.End()
	other := s.Begin("call", "run")
	if e := s.Evidence(own, false); e.Quiet() || e.Clear() || s.Clears() != 0 {
		t.Errorf("cleared %d times while another call is under way: %q", s.Clears(), names(a))
	}
	other.End()
	if !s.Evidence(own, false).Clear() || !a.Idle() || s.Clears() != 1 {
		t.Errorf("cleared %d times, want once: %q", s.Clears(), names(a))
	}
}

func TestMoveLeavesNoGap(t *testing.T) {
	a := New[string, int]()
	from, to := a.Subject("s", "from"), a.Subject("s", "to")
	from.Move(to, "kind", "op", 1)
	if !a.Idle() {
		t.Error("nothing was moved, and something came of it")
	}
	before := a.turns.Load()
	from.Mark("a", "", "", 0)
	from.Mark("b", "", "", 0)
	from.Move(to, "kind", "op", 1)
	if got := names(a); len(got) != 1 || a.turns.Load() != before+1 {
		t.Errorf("after Move() there is %q, and it was idle in between: %t", got, a.turns.Load() != before+1)
	}
}

func TestMarksAreBounded(t *testing.T) {
	a := New[string, int]()
	s := a.Subject("s", "s")
	for i := range 5 * maxMarks {
		s.Mark("command", "run", fmt.Sprint(i), 0)
	}
	if got := len(a.Alive(anyScope)); got > maxMarks+1 {
		t.Errorf("%d marks are kept, want at most %d", got, maxMarks+1)
	}
	if !s.Evidence(nil, true).Clear() || !a.Idle() {
		t.Error("they are not cleared as one")
	}
}

// TestSubjectsAreForgotten once nobody knows them, but not while anything is counted under them.
func TestSubjectsAreForgotten(t *testing.T) {
	a := New[string, int]()
	kept := a.Subject("kept", "")
	a.Subject("marked", "").Mark("", "", "", 0)
	a.Subject("begun", "").Begin("", "")
	for i := range 10_000 {
		a.Subject(fmt.Sprint("scope", i), "").Begin("", "").End()
		if i%1000 == 0 {
			runtime.GC()
		}
	}
	if len(a.subjects) > 4000 || len(a.scopes) > 4000 {
		t.Errorf("%d subjects and %d scopes are remembered of 10,000 that nobody knows", len(a.subjects), len(a.scopes))
	}
	if a.Subject("kept", "") != kept || len(names(a)) != 2 {
		t.Errorf("what is known was forgotten, or what is counted: %q", names(a))
	}
}

// TestConcurrent: an entry and a mark of the same thing overlap, so there is never nothing, whoever looks and whenever.
func TestConcurrent(t *testing.T) {
	a := New[string, int]()
	s := a.Subject("s", "s")
	held := s.Begin("held", "")
	var stop atomic.Bool
	var workers, lookers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 2000 {
				e := s.Begin("call", "")
				s.Mark("left", "", "x", 0)
				e.End()
				s.Evidence(nil, true).Clear()
				s.Unmark("left", "x")
			}
		})
	}
	for range 2 {
		lookers.Go(func() {
			for !stop.Load() {
				if a.Idle() || len(a.Alive(anyScope)) == 0 {
					t.Error("idle while an entry is held")
					return
				}
			}
		})
	}
	changes := make(chan struct{})
	go func() {
		a.Watch(func(idle bool) bool { return !idle }, nil, nil)
		close(changes)
	}()
	workers.Wait()
	stop.Store(true)
	lookers.Wait()
	held.End()
	<-changes // or the watcher never hears of it
	if !a.Idle() || active(s.tally.Load()) != 0 || active(s.scope.Load()) != 0 {
		t.Errorf("at the end: %q, %d and %d active", names(a), active(s.tally.Load()), active(s.scope.Load()))
	}
}

// TestModel drives an account at random, and compares it with a list of what is alive after each step.
func TestModel(t *testing.T) {
	steps := 20_000
	if os.Getenv("LEASEHOLD_LONG") == "1" {
		steps = 1_000_000
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	a := New[string, int]()
	type thing struct {
		entry    *Entry[string, int]
		observer bool
	}
	type proof struct {
		e     Evidence[string, int]
		s     int
		wide  bool
		valid bool
	}
	const subjects = 6 // two to a scope
	at := func(i int) *Subject[string, int] { return a.Subject(fmt.Sprint(i/2), fmt.Sprint(i)) }
	entries := map[int][]thing{}
	marks := map[int]map[string]bool{}
	var proofs []*proof
	void := func(s int) {
		for _, p := range proofs {
			if p.s == s || p.wide && p.s/2 == s/2 {
				p.valid = false
			}
		}
	}
	busy := func(s int) bool {
		for _, e := range entries[s] {
			if !e.observer {
				return true
			}
		}
		return false
	}
	for step := range steps {
		s := r.IntN(subjects)
		if marks[s] == nil {
			marks[s] = map[string]bool{}
		}
		id := fmt.Sprint(r.IntN(3))
		switch r.IntN(9) {
		case 0:
			entries[s] = append(entries[s], thing{at(s).Begin("call", ""), false})
			void(s)
		case 1:
			entries[s] = append(entries[s], thing{at(s).Observe("look", ""), true})
		case 2, 3:
			if n := len(entries[s]); n > 0 {
				i := r.IntN(n)
				e := entries[s][i]
				e.entry.End()
				entries[s] = append(entries[s][:i], entries[s][i+1:]...)
				if !e.observer {
					void(s)
				}
			}
		case 4:
			at(s).Mark("left", "", id, step)
			marks[s][id] = true
			void(s)
		case 5:
			at(s).Unmark("left", id)
			if marks[s][id] {
				void(s)
			}
			delete(marks[s], id)
		case 6:
			wide := r.IntN(2) == 0
			quiet := !busy(s) && !(wide && busy(s^1))
			proofs = append(proofs, &proof{at(s).Evidence(nil, wide), s, wide, quiet})
		default:
			if len(proofs) == 0 {
				break
			}
			i := r.IntN(len(proofs))
			p := proofs[i]
			proofs = append(proofs[:i], proofs[i+1:]...)
			if got := p.e.Clear(); got != p.valid {
				t.Fatalf("seed %d, step %d: Clear() = %t, want %t", seed, step, got, p.valid)
			}
			if p.valid {
				clear(marks[p.s])
			}
		}
		want := 0
		for i := range subjects {
			want += len(entries[i]) + len(marks[i])
		}
		if got := a.live.Load(); got != int64(want) || a.Idle() != (want == 0) {
			t.Fatalf("seed %d, step %d: %d alive, want %d", seed, step, got, want)
		}
		if step%64 == 0 {
			if got := len(a.Alive(anyScope)); got != want {
				t.Fatalf("seed %d, step %d: Alive() has %d, want %d", seed, step, got, want)
			}
		}
	}
}

// BenchmarkBegin is what it costs a call to be counted. The goal is 200 ns.
func BenchmarkBegin(b *testing.B) {
	b.Run("alone", func(b *testing.B) {
		s := New[string, int]().Subject("scope", "sandbox")
		b.ReportAllocs()
		var e Entry[string, int]
		for b.Loop() {
			s.BeginIn(&e, "call", "run")
			e.End()
		}
	})
	for _, shared := range []bool{true, false} {
		b.Run(fmt.Sprintf("64 goroutines/one subject=%t", shared), func(b *testing.B) {
			a := New[string, int]()
			all := a.Subject("scope", "sandbox")
			b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			var n atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				s := all
				if !shared {
					s = a.Subject("scope", fmt.Sprint(n.Add(1)))
				}
				var e Entry[string, int]
				for pb.Next() {
					s.BeginIn(&e, "call", "run")
					e.End()
				}
			})
		})
	}
}
