package leasehold

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// FaultAction is what a [Fault] does to a request.
type FaultAction string

// The actions. Each waits for Fault.Delay first, except where Delay means something else.
const (
	FaultDelay         FaultAction = "delay"          // only the wait; the zero value's action too
	FaultDropBefore    FaultAction = "drop-before"    // the connection ends; nothing was processed
	FaultDropAfter     FaultAction = "drop-after"     // processed; the connection ends without a reply
	FaultStatusBefore  FaultAction = "status-before"  // not processed; the reply is Status, Header and Body
	FaultStatusAfter   FaultAction = "status-after"   // processed; the reply is Status, Header and Body
	FaultTruncateBody  FaultAction = "truncate"       // the reply announces its length, and ends after Bytes of its body
	FaultResetReply    FaultAction = "reset-reply"    // the connection is reset after Bytes of the reply's body, or of a WebSocket's frames
	FaultResetUpload   FaultAction = "reset-upload"   // the connection is reset after Bytes of the request's body were processed
	FaultDuplicate     FaultAction = "duplicate"      // the request is delivered twice, as Daytona's proxy does; the reply is the second's
	FaultMergeReply    FaultAction = "merge"          // the members of the JSON object in Body replace or join those of the reply
	FaultSkewClock     FaultAction = "clock-skew"     // every time in the reply is off by Delay
	FaultSilentSocket  FaultAction = "silent"         // a WebSocket delivers nothing after Bytes; with negative Bytes, and for other requests, there is no reply at all
	FaultCloseSocket   FaultAction = "close-socket"   // a WebSocket closes with Code and the reason Body after Bytes; Code 0 drops it
	FaultReplayPrefix  FaultAction = "replay-prefix"  // the first Bytes are delivered twice
	FaultStaleList     FaultAction = "stale-list"     // a list shows what was there Delay ago; without a Delay, when the fault was set
	FaultLoseContainer FaultAction = "lose-container" // the sandbox's container and files vanish before the request is processed
	FaultDiskFull      FaultAction = "disk-full"      // the sandbox's disk has no room for the request's files
	FaultRunnerFailure FaultAction = "runner-failure" // a creation ends as an errored sandbox with the reason Body; Code 200 makes it recoverable
	FaultStallChange   FaultAction = "stall-change"   // the state change takes Delay; without a Delay it never ends
)

// Fault is one thing that goes wrong on a local backend. Faults are tried in order; the first that takes a request is the
// only one that sees it.
type Fault struct {
	// Method and Path choose the requests; empty means all. Path is compared segment by segment with the path on the
	// server: "*" stands for one segment (not for "paginated", which is the list of sandboxes), "**" at the end for any
	// number of them, such as "/api/sandbox/*/start", "/toolbox/*/process/session/*/exec", "/toolbox/**".
	Method, Path string
	// Nth is the first of them that is hit, counted from 1. 0 means 1.
	Nth int
	// Count is how many are hit. 0 means 1, -1 all.
	Count int
	// Probability of a hit for those that may be hit. 0 means certainty. The sequence depends on the plan's seed only.
	Probability float64

	// Action is what happens. The rest are its parameters: each action's comment names those that it uses.
	Action FaultAction
	Delay  time.Duration
	Status int // of the reply; 0 means 500
	Header http.Header
	Body   string // one that begins with { is sent as JSON
	Bytes  int64
	Code   int // close code of a WebSocket
}

// FaultState is a fault, and what it has done since it was set.
type FaultState struct {
	Fault
	Seen int // requests that matched
	Hits int // requests that were hit
}

// FaultPlan makes a local backend misbehave, in the same way on each run with the same seed and requests. Give it to
// [NewLocal]. It is safe for concurrent use.
type FaultPlan struct {
	seed uint64

	mu     sync.Mutex
	server *emulator.Server // nil until NewLocal
	faults []Fault          // until then
}

// NewFaultPlan returns a plan. The seed decides about faults with a probability.
func NewFaultPlan(seed uint64, faults ...Fault) *FaultPlan {
	return &FaultPlan{seed: seed, faults: cloneFaults(faults)}
}

// Set replaces the faults. Counters and the sequence of probabilities begin anew.
func (p *FaultPlan) Set(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = cloneFaults(faults)
	if p.server != nil {
		p.server.SetFaults(wireFaults(faults)...)
	}
}

// State returns the faults with their counters, in the order in which they were set.
func (p *FaultPlan) State() []FaultState {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := make([]FaultState, len(p.faults))
	for i, f := range cloneFaults(p.faults) {
		states[i].Fault = f
	}
	if p.server != nil {
		for i, s := range p.server.Faults() {
			states[i].Seen, states[i].Hits = s.Seen, s.Hits
		}
	}
	return states
}

// attach hands the plan to the backend that will follow it.
func (p *FaultPlan) attach(server *emulator.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
	server.SetFaults(wireFaults(p.faults)...)
}

// cloneFaults returns a copy that shares nothing.
func cloneFaults(faults []Fault) []Fault {
	faults = slices.Clone(faults)
	for i := range faults {
		faults[i].Header = faults[i].Header.Clone()
	}
	return faults
}

func wireFaults(faults []Fault) []emulator.Fault {
	wire := make([]emulator.Fault, len(faults))
	for i, f := range faults {
		wire[i] = emulator.Fault{
			Method: f.Method, Path: f.Path, Nth: f.Nth, Count: f.Count, Probability: f.Probability,
			Action: emulator.Action(f.Action), Delay: f.Delay, Status: f.Status, Header: f.Header.Clone(),
			Body: f.Body, Bytes: f.Bytes, Code: f.Code,
		}
	}
	return wire
}
