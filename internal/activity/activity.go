// Package activity keeps account of what is alive, so that it can be said, and proved, that nothing is.
//
// Two things are counted, each under its subject, and each subject under its scope. An [Entry] is something under way in
// this process, and ends when it ends. A mark is something that may be alive elsewhere, with nobody here to see its end:
// it stays until somebody knows better. Whoever looks elsewhere takes [Evidence] before, and clears the subject's marks
// with it after: which fails if anything of the subject was, or came, in between.
//
// Time is monotonic: a host clock that is set changes nothing.
package activity

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// stripeCount is over how many locks the entries are spread, so that calls do not wait for each other. A power of two.
const stripeCount = 32

// Tracker is an account. S tells scopes apart, and D is what somebody needs to know who goes to look at a subject. It is
// safe for concurrent use. No method blocks for longer than it computes.
type Tracker[S comparable, D any] struct {
	epoch   time.Time
	stripes [stripeCount]stripe[S, D]
	live    atomic.Int64  // entries and marks
	turns   atomic.Uint64 // how often live became zero, or ceased to be

	mu       sync.Mutex // guards what follows; taken before the locks of stripes
	subjects map[subjectKey[S]]weak.Pointer[Subject[S, D]]
	scopes   map[S]weak.Pointer[scope]
	sweepAt  int // how many subjects there are when those that nobody uses are dropped
	marks    map[*Subject[S, D]]map[markKey]*mark[D]

	watching  atomic.Int32
	watchMu   sync.Mutex
	watchings map[chan struct{}]struct{}
}

type subjectKey[S comparable] struct {
	scope S
	name  string
}

// stripe is a share of the entries. It fills a cache line of its own.
type stripe[S comparable, D any] struct {
	mu    sync.Mutex
	first *Entry[S, D]
	_     [48]byte
}

// tally counts, in one word, the entries that are under way, but for observers, and the changes: what began, ended, was
// marked or unmarked. Two that are equal have seen nothing in between.
type tally struct{ atomic.Uint64 }

const (
	oneActive = 1
	oneChange = 1 << 24
)

// active returns how many entries a tally's value counts.
func active(value uint64) uint64 { return value % oneChange }

// scope is what subjects have in common.
type scope struct{ tally }

// Subject is what activities are of. There is one for each scope and name, for as long as anybody knows it.
type Subject[S comparable, D any] struct {
	t      *Tracker[S, D]
	key    subjectKey[S]
	scope  *scope
	tally  tally
	clears atomic.Uint64
}

// Entry is something under way.
type Entry[S comparable, D any] struct {
	subject  *Subject[S, D]
	kind, op string
	since    time.Duration // after the epoch
	observer bool
	ended    atomic.Bool

	stripe     *stripe[S, D] // whose lock guards what follows
	prev, next *Entry[S, D]
}

// markKey tells the marks of a subject apart.
type markKey struct{ kind, id string }

type mark[D any] struct {
	op     string // of the first
	since  time.Duration
	count  int
	detail D
}

// New returns an empty account.
func New[S comparable, D any]() *Tracker[S, D] {
	return &Tracker[S, D]{
		epoch: time.Now(), sweepAt: 64,
		subjects: make(map[subjectKey[S]]weak.Pointer[Subject[S, D]]), scopes: make(map[S]weak.Pointer[scope]),
		marks: make(map[*Subject[S, D]]map[markKey]*mark[D]), watchings: make(map[chan struct{}]struct{}),
	}
}

// Subject returns the one subject of a scope and name.
func (t *Tracker[S, D]) Subject(of S, name string) *Subject[S, D] {
	key := subjectKey[S]{of, name}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.subjects[key].Value(); s != nil {
		return s
	}
	if len(t.subjects) >= t.sweepAt {
		t.sweep()
	}
	c := t.scopes[of].Value()
	if c == nil {
		c = new(scope)
		t.scopes[of] = weak.Make(c)
	}
	s := &Subject[S, D]{t: t, key: key, scope: c}
	t.subjects[key] = weak.Make(s)
	return s
}

// sweep drops the places of subjects and scopes that nobody holds any more. t.mu is held.
func (t *Tracker[S, D]) sweep() {
	for key, s := range t.subjects {
		if s.Value() == nil {
			delete(t.subjects, key)
		}
	}
	for key, c := range t.scopes {
		if c.Value() == nil {
			delete(t.scopes, key)
		}
	}
	t.sweepAt = max(64, 2*len(t.subjects))
}

// Begin counts something under way, until [Entry.End].
func (s *Subject[S, D]) Begin(kind, op string) *Entry[S, D] {
	e := new(Entry[S, D])
	s.BeginIn(e, kind, op)
	return e
}

// BeginIn does what Begin does in the memory of the caller, who does not touch it before the end.
func (s *Subject[S, D]) BeginIn(e *Entry[S, D], kind, op string) { s.begin(e, kind, op, false) }

// Observe counts a look at the subject, which voids no evidence: it is what the evidence is for.
func (s *Subject[S, D]) Observe(kind, op string) *Entry[S, D] {
	e := new(Entry[S, D])
	s.begin(e, kind, op, true)
	return e
}

func (s *Subject[S, D]) begin(e *Entry[S, D], kind, op string, observer bool) {
	t := s.t
	e.subject, e.kind, e.op, e.observer = s, kind, op, observer
	e.since, e.stripe = time.Since(t.epoch), &t.stripes[rand.Uint32()%stripeCount]
	e.ended.Store(false)
	e.stripe.mu.Lock()
	t.add(1)
	if !observer {
		s.count(oneChange + oneActive)
	}
	if e.next = e.stripe.first; e.next != nil {
		e.next.prev = e
	}
	e.stripe.first = e
	e.stripe.mu.Unlock()
}

// End says that it is over. It may be called more than once.
func (e *Entry[S, D]) End() {
	if e.ended.Swap(true) {
		return
	}
	e.stripe.mu.Lock()
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		e.stripe.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	if !e.observer {
		e.subject.count(oneChange - oneActive)
	}
	e.subject.t.add(-1)
	e.stripe.mu.Unlock()
}

// Subject returns what the entry is of.
func (e *Entry[S, D]) Subject() *Subject[S, D] { return e.subject }

func (s *Subject[S, D]) count(n uint64) {
	s.tally.Add(n)
	s.scope.Add(n)
}

// Mark counts something that may be alive, until it is unmarked, or cleared with evidence. What is marked already is
// counted by how often. The detail replaces that of before.
func (s *Subject[S, D]) Mark(kind, op, id string, detail D) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.mark(markKey{kind, id}, op, detail)
}

// maxMarks bounds the marks of a subject that have an id. Beyond it they are counted as one, which only evidence ends.
const maxMarks = 1000

// mark does the work of Mark. t.mu is held.
func (s *Subject[S, D]) mark(key markKey, op string, detail D) {
	t := s.t
	marks := t.marks[s]
	if marks == nil {
		marks = make(map[markKey]*mark[D])
		t.marks[s] = marks
	}
	if marks[key] == nil && len(marks) >= maxMarks {
		key.id = ""
	}
	m := marks[key]
	if m == nil {
		m = &mark[D]{op: op, since: time.Since(t.epoch)}
		marks[key] = m
		t.add(1)
	}
	m.count++
	m.detail = detail
	s.count(oneChange)
}

// Amend replaces the detail of a mark, if it is still there.
func (s *Subject[S, D]) Amend(kind, id string, detail D) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if m := s.t.marks[s][markKey{kind, id}]; m != nil {
		m.detail = detail
	}
}

// Unmark ends the marks of a kind and id, which somebody knows to be over.
func (s *Subject[S, D]) Unmark(kind, id string) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.drop(func(key markKey) bool { return key.kind == kind && key.id == id }) {
		s.count(oneChange)
	}
}

// UnmarkAll ends every mark of the subject.
func (s *Subject[S, D]) UnmarkAll() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.drop(everyMark) {
		s.count(oneChange)
	}
}

// Move ends every mark of the subject, if there is any, with another one on another subject in their place.
func (s *Subject[S, D]) Move(to *Subject[S, D], kind, op string, detail D) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if len(s.t.marks[s]) == 0 {
		return
	}
	to.mark(markKey{kind: kind}, op, detail) // first: there is no moment without any
	s.drop(everyMark)
	s.count(oneChange)
}

func everyMark(markKey) bool { return true }

// drop ends marks, and reports whether there were any. t.mu is held.
func (s *Subject[S, D]) drop(which func(markKey) bool) (any bool) {
	marks := s.t.marks[s]
	for key := range marks {
		if which(key) {
			delete(marks, key)
			s.t.add(-1)
			any = true
		}
	}
	if len(marks) == 0 {
		delete(s.t.marks, s)
	}
	return any
}

// Evidence is what was alive of a subject at one moment.
type Evidence[S comparable, D any] struct {
	s     *Subject[S, D]
	tally *tally // the subject's or its scope's
	value uint64 // of it, before the look
	quiet bool   // nothing but who looks was active
}

// Evidence is taken before a look at the subject. Own is the entry under which the looking is done, nil if there is none.
// If wide, whatever of the whole scope is active, begins or ends voids it, else what is of the subject.
func (s *Subject[S, D]) Evidence(own *Entry[S, D], wide bool) Evidence[S, D] {
	e := Evidence[S, D]{s: s, tally: &s.tally}
	if wide {
		e.tally = &s.scope.tally
	}
	e.value = e.tally.Load()
	var looking uint64
	if own != nil && !own.ended.Load() && (own.subject == s || wide && own.subject.scope == s.scope) {
		looking = 1
	}
	e.quiet = active(e.value) == looking
	return e
}

// Quiet reports that the evidence was not void from the beginning.
func (e Evidence[S, D]) Quiet() bool { return e.quiet }

// Clear ends every mark of the subject, because the look has shown that nothing of it is alive. It does nothing, and
// reports false, if the evidence is void.
func (e Evidence[S, D]) Clear() bool {
	e.s.t.mu.Lock()
	defer e.s.t.mu.Unlock()
	if !e.quiet || e.tally.Load() != e.value {
		return false
	}
	// No change is counted: what ends here was dead before, and voids nobody else's evidence.
	e.s.drop(everyMark)
	e.s.clears.Add(1)
	return true
}

// Clears returns how often the marks were cleared with evidence. What somebody knew of the subject before is out of date.
func (s *Subject[S, D]) Clears() uint64 { return s.clears.Load() }

// Item is something alive, or perhaps alive.
type Item[S comparable, D any] struct {
	Subject  *Subject[S, D]
	Scope    S
	Name     string // of the subject
	Kind, Op string
	ID       string        // of a mark
	Age      time.Duration // since it began, or was marked first
	Marked   bool          // a mark
	Count    int           // how often it was marked
	Detail   D             // of a mark
}

// Alive returns all there is at one moment, of the scopes that are wanted, the oldest first.
func (t *Tracker[S, D]) Alive(wanted func(S) bool) []Item[S, D] {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.stripes {
		t.stripes[i].mu.Lock()
	}
	defer func() {
		for i := range t.stripes {
			t.stripes[i].mu.Unlock()
		}
	}()
	now := time.Since(t.epoch)
	var items []Item[S, D]
	for i := range t.stripes {
		for e := t.stripes[i].first; e != nil; e = e.next {
			if key := e.subject.key; wanted(key.scope) {
				items = append(items, Item[S, D]{Subject: e.subject, Scope: key.scope, Name: key.name, Kind: e.kind, Op: e.op, Age: now - e.since})
			}
		}
	}
	for s, marks := range t.marks {
		if !wanted(s.key.scope) {
			continue
		}
		for key, m := range marks {
			items = append(items, Item[S, D]{
				Subject: s, Scope: s.key.scope, Name: s.key.name, Kind: key.kind, Op: m.op, ID: key.id,
				Age: now - m.since, Marked: true, Count: m.count, Detail: m.detail,
			})
		}
	}
	slices.SortFunc(items, func(a, b Item[S, D]) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Op, b.Op), cmp.Compare(a.ID, b.ID))
	})
	return items
}

// Idle reports that there is nothing at all.
func (t *Tracker[S, D]) Idle() bool { return t.live.Load() == 0 }

// add changes the number of what is alive, and tells those who watch when it becomes zero, or ceases to be.
func (t *Tracker[S, D]) add(n int64) {
	if now := t.live.Add(n); now != 0 && now-n != 0 {
		return
	}
	t.turns.Add(1)
	if t.watching.Load() == 0 {
		return
	}
	t.watchMu.Lock()
	defer t.watchMu.Unlock()
	for wake := range t.watchings {
		select {
		case wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// Watch calls yield with whether the account is idle, now and whenever that has changed since, until yield returns false
// or one of the channels is closed. What changes during a call of yield is told after it, at once: how it is by then, be
// it the same as before.
func (t *Tracker[S, D]) Watch(yield func(idle bool) bool, done, closed <-chan struct{}) {
	wake := make(chan struct{}, 1)
	t.watchMu.Lock()
	t.watchings[wake] = struct{}{}
	t.watchMu.Unlock()
	t.watching.Add(1)
	defer func() {
		t.watching.Add(-1)
		t.watchMu.Lock()
		defer t.watchMu.Unlock()
		delete(t.watchings, wake)
	}()
	for told, first := uint64(0), true; ; {
		select {
		case <-done:
			return
		case <-closed:
			return
		default:
		}
		if turns := t.turns.Load(); first || turns != told {
			told, first = turns, false
			if !yield(t.Idle()) {
				return
			}
			continue
		}
		select {
		case <-wake:
		case <-done:
			return
		case <-closed:
			return
		}
	}
}
