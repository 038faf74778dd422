package emulator

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Action is what a [Fault] does to a request.
type Action string

// The actions. Each waits for Fault.Delay first, except where Delay means something else.
const (
	DelayRequest  Action = "delay"          // only the wait. It is the zero value's action too
	DropBefore    Action = "drop-before"    // the connection ends; nothing was processed
	DropAfter     Action = "drop-after"     // processed; the connection ends without a reply
	StatusBefore  Action = "status-before"  // not processed; the reply is Status, Header and Body
	StatusAfter   Action = "status-after"   // processed; the reply is Status, Header and Body
	TruncateBody  Action = "truncate"       // the reply announces its length, and ends after Bytes of its body
	ResetReply    Action = "reset-reply"    // the connection is reset after Bytes of the reply's body, or of a socket's frames
	ResetUpload   Action = "reset-upload"   // the connection is reset after Bytes of the request's body were processed
	Duplicate     Action = "duplicate"      // see Fault.duplicate
	MergeReply    Action = "merge"          // the members of the JSON object in Body replace or join those of the reply, and of each of its items
	SkewClock     Action = "clock-skew"     // every time in the reply is off by Delay
	SilentSocket  Action = "silent"         // a socket delivers nothing after Bytes; with negative Bytes, and for other requests, there is no reply at all
	CloseSocket   Action = "close-socket"   // a socket closes with Code and the reason Body after Bytes; Code 0 drops it
	ReplayPrefix  Action = "replay-prefix"  // the first Bytes (in a socket: whole frames) are delivered twice
	StaleList     Action = "stale-list"     // a list shows what was there Delay ago; without a Delay, when the fault was set
	LoseContainer Action = "lose-container" // the container and files vanish before the request is processed
	DiskFull      Action = "disk-full"      // the sandbox's disk has no room while the request is processed
	RunnerFailure Action = "runner-failure" // a creation is inserted, and ends as "error" with the reason Body; Code 200 makes it recoverable
	StallChange   Action = "stall-change"   // the state change takes Delay; without a Delay it never ends, as far as the control plane has no limit for it
)

// replayLimit is the largest body that the proxy keeps to deliver it again.
const replayLimit = 256 << 10

// Fault is one thing that goes wrong. Faults are tried in order; the first that takes a request is the only one that
// sees it, so later ones do not count it. A Go client repeats an idempotent request by itself when a connection that it
// used before ends without a reply: to lose such a request for good, let Count cover the repetition.
type Fault struct {
	// Method and Path choose the requests. Empty means all. Path is compared with the path after the server's root,
	// segment by segment: "*" stands for one segment, though not for the word "paginated" of the list of sandboxes, "**"
	// at the end for any number of them. Examples:
	// "/api/sandbox/*/start", "/toolbox/*/process/session/*/exec", "/toolbox/**".
	Method, Path string
	// Nth is the first of them that is hit, counted from 1. 0 means 1.
	Nth int
	// Count is how many are hit. 0 means 1, -1 all.
	Count int
	// Probability of a hit for those that may be hit. 0 means certainty. The sequence depends on Options.Seed only.
	Probability float64

	Action Action
	Delay  time.Duration
	Status int
	Header http.Header
	Body   string // a body that begins with { is sent as JSON
	Bytes  int64
	Code   int
}

// FaultState is a fault and what it has done so far.
type FaultState struct {
	Fault
	Seen int // requests that matched
	Hits int // requests that were hit
}

// faultPlan decides which fault hits a request.
type faultPlan struct {
	mu      sync.Mutex // guards the fields below
	plan    []FaultState
	random  *rand.Rand
	version uint64 // of the control plane when the plan was set
}

func (p *faultPlan) set(faults []Fault, seed, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = make([]FaultState, len(faults))
	for i, f := range faults {
		p.plan[i].Fault = f
	}
	p.random = rand.New(rand.NewPCG(seed, 0))
	p.version = version
}

// match counts a request and returns the fault that hits it, or nil.
func (p *faultPlan) match(r *http.Request) *faultHit {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.plan {
		f := &p.plan[i]
		if !f.matches(r) {
			continue
		}
		f.Seen++
		switch {
		case f.Seen < f.Nth,
			f.Count == 0 && f.Hits >= 1,
			f.Count > 0 && f.Hits >= f.Count,
			f.Probability > 0 && p.random.Float64() >= f.Probability:
			continue
		}
		f.Hits++
		return &faultHit{Fault: f.Fault, version: p.version, at: time.Now()}
	}
	return nil
}

func (f *Fault) matches(r *http.Request) bool {
	return (f.Method == "" || f.Method == r.Method) && matchPath(f.Path, r.URL.EscapedPath())
}

// listSegment stands in the list's path where other paths have a sandbox's id.
const listSegment = "paginated"

func matchPath(pattern, path string) bool {
	if pattern == "" {
		return true
	}
	wants, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i, want := range wants {
		switch {
		case want == "**" && i == len(wants)-1:
			return true
		case i >= len(have), want != have[i] && (want != "*" || have[i] == listSegment):
			return false
		}
	}
	return len(wants) == len(have)
}

// SetFaults replaces the fault plan. Counters and the sequence of probabilities begin anew.
func (s *Server) SetFaults(faults ...Fault) {
	s.mu.Lock()
	version := s.version
	s.mu.Unlock()
	s.faults.set(faults, s.opt.Seed, version)
}

// Faults returns the plan with its counters.
func (s *Server) Faults() []FaultState {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return append([]FaultState(nil), s.faults.plan...)
}

// faultHit is the fault of one request. Its methods may be called on nil: no fault.
type faultHit struct {
	Fault
	version uint64
	at      time.Time
}

type faultKey struct{}

func faultOf(r *http.Request) *faultHit {
	hit, _ := r.Context().Value(faultKey{}).(*faultHit)
	return hit
}

func (h *faultHit) is(a Action) bool { return h != nil && h.Action == a }

// reason is the errorReason of a RunnerFailure.
func (h *faultHit) reason() string {
	if h.Body != "" {
		return h.Body
	}
	return "failed to create container"
}

// stall is how long a StallChange takes, 0 being for ever, or nil.
func (h *faultHit) stall() *time.Duration {
	if !h.is(StallChange) {
		return nil
	}
	return &h.Delay
}

func skewOf(r *http.Request) time.Duration {
	if h := faultOf(r); h.is(SkewClock) {
		return h.Delay
	}
	return 0
}

// delays tells whether Delay is a wait before the action.
func (h *faultHit) delays() bool {
	switch h.Action {
	case Duplicate, SkewClock, StaleList, StallChange:
		return false
	}
	return h.Delay > 0
}

// faulted passes a request on, through the fault that hits it.
func (s *Server) faulted(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	hit := s.faults.match(r)
	if hit == nil {
		next(w, r)
		return
	}
	noteFault(r, hit.Action)
	r = r.WithContext(context.WithValue(r.Context(), faultKey{}, hit))
	if hit.delays() {
		timer := time.NewTimer(hit.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	switch hit.Action {
	case DropBefore:
		panic(http.ErrAbortHandler)
	case DropAfter:
		next(newCapture(), r)
		panic(http.ErrAbortHandler)
	case StatusBefore:
		hit.write(w)
	case StatusAfter:
		next(newCapture(), r)
		hit.write(w)
	case TruncateBody:
		truncate(w, r, next, hit.Bytes)
	case ResetReply:
		next(&resetWriter{ResponseWriter: w, r: r, left: hit.Bytes}, r)
	case ResetUpload:
		r.Body = &resetBody{ReadCloser: r.Body, left: hit.Bytes}
		next(newCapture(), r)
		reset(r)
	case Duplicate:
		s.duplicate(w, r, next, hit.Delay)
	case MergeReply:
		mergeReply(w, r, next, hit.Body)
	case SilentSocket:
		if !isUpgrade(r) || hit.Bytes < 0 {
			hold(r)
		}
		next(&socketWriter{ResponseWriter: w, server: s, hit: hit}, r)
	case CloseSocket:
		next(&socketWriter{ResponseWriter: w, server: s, hit: hit}, r)
	case ReplayPrefix:
		if isUpgrade(r) {
			next(&socketWriter{ResponseWriter: w, server: s, hit: hit}, r)
			return
		}
		replay(w, r, next, hit.Bytes)
	default:
		next(w, r)
	}
}

// write is the reply of StatusBefore and StatusAfter.
func (h *faultHit) write(w http.ResponseWriter) {
	for name, values := range h.Header {
		w.Header()[http.CanonicalHeaderKey(name)] = values
	}
	if strings.HasPrefix(h.Body, "{") && w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
	}
	status := h.Status
	if status == 0 {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	w.Write([]byte(h.Body))
}

// merged joins the members of one JSON object into another, and into each of its items.
func merged(reply []byte, extra string) []byte {
	var object, more map[string]json.RawMessage
	if json.Unmarshal(reply, &object) != nil || json.Unmarshal([]byte(extra), &more) != nil || object == nil {
		return reply
	}
	var items []json.RawMessage
	if json.Unmarshal(object["items"], &items) == nil {
		for i := range items {
			items[i] = merged(items[i], extra)
		}
		object["items"] = encode(items)
	} else {
		for name, value := range more {
			object[name] = value
		}
	}
	return encode(object)
}
