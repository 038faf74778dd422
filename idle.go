package leasehold

import "sync"

// ActivityKind says what kind of thing is active.
type ActivityKind string

// The kinds of activities.
const (
	ActivityCall     ActivityKind = "call"     // a call of the library, or what it goes on with in the background
	ActivityCommand  ActivityKind = "command"  // a command in the sandbox
	ActivityTerminal ActivityKind = "terminal" // an open terminal
	ActivityChannel  ActivityKind = "channel"  // an open channel
)

// holding is something that is open on a lease. It ends once, by end or by leave; what is called after that does nothing.
type holding struct {
	l    *Lease
	kind ActivityKind
	op   string
	once sync.Once
}

// hold counts something that is open on the lease, such as a terminal, until it ends. Whoever opens something calls it
// before the first request, and then
//
//   - end, once nothing of it is left in the sandbox: its end was confirmed there, or it never began, or
//   - leave, when it is watched no longer and may go on there: then it counts until the sandbox is proved to be stopped or
//     gone.
//
// Giving the lease back waits for either, for a while; what is to be closed then registers with onClose. hold fails with
// [ErrClosed] once the lease is being given back. A call that holds nothing open uses begin.
func (l *Lease) hold(kind ActivityKind, op string) (*holding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &Error{Op: op, Kind: KindClosed, Sandbox: l.ref.Sandbox, Dispatched: DispatchedNo, Message: "the lease was given back"}
	}
	l.active++
	return &holding{l: l, kind: kind, op: op}, nil
}

// end says that nothing is left.
func (h *holding) end() { h.once.Do(h.l.end) }

// leave says that something may go on in the sandbox. The id tells it from others of its kind, such as the id of a
// terminal; it is never sent.
func (h *holding) leave(id string) { h.once.Do(h.l.end) }
