package leasehold

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold-go/leasehold/internal/activity"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// ActivityKind says what kind of thing is active.
type ActivityKind string

// The kinds of activities. The first are under way in this process, where their end is seen; with Activity.Unwatched, they
// may go on in the sandbox, or at the provider, with nobody here to see it. The others are never seen to end by themselves.
const (
	ActivityCall     ActivityKind = "call"     // a call of the library, or what it goes on with in the background
	ActivityRequest  ActivityKind = "request"  // a request to the provider, an open WebSocket included
	ActivityCommand  ActivityKind = "command"  // a command in the sandbox
	ActivityTerminal ActivityKind = "terminal" // an open terminal
	ActivityChannel  ActivityKind = "channel"  // an open channel
	ActivityEndpoint ActivityKind = "endpoint" // a request, reply or WebSocket through an endpoint

	// ActivityAllocation is a sandbox that runs, or may run, and with it whatever commands left running in it.
	ActivityAllocation ActivityKind = "allocation"
	// ActivityCreation is a creation that was sent, and of which no sandbox was seen yet.
	ActivityCreation ActivityKind = "creation"
	// ActivityCleanup is a sandbox that was to be given back, without a receipt, or a record of which the store could not
	// be told that it is settled; the latter is of no scope.
	ActivityCleanup ActivityKind = "cleanup"
)

// Activity is something that is alive, or cannot be proved not to be.
type Activity struct {
	Kind    ActivityKind `json:"kind"`
	Op      string       `json:"op"`                // the operation or request that began it, such as "run" or "stop"
	Scope   Scope        `json:"scope"`             // the zero value: of no scope, such as a sweep
	Account string       `json:"account,omitempty"` // fingerprint of endpoint and organisation, else of endpoint and credential; empty: of no scope
	Sandbox string       `json:"sandbox,omitempty"` // the provider's id; empty: not known yet, or of no sandbox
	Attempt string       `json:"attempt,omitempty"` // of the sandbox's creation; empty: of no sandbox
	// Since is when it began, or was first lost from sight. It is made from how long that is ago: what a setting of the
	// host's clock does to it, it does to time.Now as well.
	Since time.Time `json:"since"`
	// Unwatched reports that nobody here will see it end: it counts until a receipt or [Provider.ProveIdle] shows the
	// sandbox stopped or gone.
	Unwatched bool `json:"unwatched,omitempty"`
	// Requests is how many requests of this Op were left without an answer, for one that is Unwatched. A timeout does not
	// settle the request behind it.
	Requests int `json:"requests,omitempty"`
}

// String returns the kind, the operation, the sandbox and since when it is active.
func (a Activity) String() string {
	s := fmt.Sprintf("%s %q", a.Kind, a.Op)
	if a.Sandbox != "" {
		s += " in sandbox " + a.Sandbox
	}
	s += " since " + a.Since.UTC().Format(time.RFC3339)
	if a.Unwatched {
		s += ", unwatched"
	}
	return s
}

// IdleReport says whether anything is active, and what.
type IdleReport struct {
	Idle   bool       `json:"idle"`             // Active is empty
	Active []Activity `json:"active,omitempty"` // the oldest first
}

// String returns "idle", or what is active.
func (r IdleReport) String() string {
	if r.Idle {
		return "idle"
	}
	lines := make([]string, len(r.Active))
	for i, a := range r.Active {
		lines[i] = a.String()
	}
	return "active: " + strings.Join(lines, "; ")
}

// Idle implements [Provider].
func (p *provider) Idle(scopes ...Scope) IdleReport {
	now := time.Now()
	items := p.idle.Alive(ofScopes(scopes))
	report := IdleReport{Idle: len(items) == 0}
	for _, item := range items {
		attempt, id, _ := strings.Cut(item.Name, "/")
		a := Activity{
			Kind: ActivityKind(item.Kind), Op: item.Op, Scope: item.Scope.Scope, Account: item.Scope.credential,
			Sandbox: id, Attempt: attempt, Since: now.Add(-item.Age), Unwatched: item.Marked,
		}
		if a.Account == p.account.credential {
			a.Account = p.account.recorded()
		}
		if item.Marked && a.Kind == ActivityRequest {
			a.Requests = item.Count
		}
		report.Active = append(report.Active, a)
	}
	return report
}

// ofScopes returns what tells whether something is of one of the scopes, of which an empty field stands for any value;
// without any scope, everything is.
func ofScopes(scopes []Scope) func(tenancy) bool {
	return func(of tenancy) bool {
		return len(scopes) == 0 || slices.ContainsFunc(scopes, func(s Scope) bool { return s.covers(of.Scope) })
	}
}

func (s Scope) covers(of Scope) bool {
	one := func(pattern, value string) bool { return pattern == "" || pattern == value }
	return one(s.Tenant, of.Tenant) && one(s.Environment, of.Environment) && one(s.Run, of.Run) &&
		one(s.Agent, of.Agent) && one(s.Workspace, of.Workspace)
}

// proofsAtOnce bounds the sandboxes that a proof looks at at the same time.
const proofsAtOnce = 8

// ProveIdle implements [Provider].
func (p *provider) ProveIdle(ctx context.Context, scopes ...Scope) (_ IdleReport, err error) {
	const op = "prove idle"
	ctx, span := p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	work, finish, err := p.open(ctx, ctx, op, p.cfg.Timeout) // it changes nothing that must be finished without the caller
	if err != nil {
		return p.Idle(scopes...), err
	}
	scopes = slices.Clone(scopes) // the work may go on without the caller
	_, err = background(ctx, op, "", func() (struct{}, error) {
		defer finish()
		return struct{}{}, p.proveAll(work, op, scopes)
	})
	report := p.Idle(scopes...)
	if report.Idle {
		err = nil
	}
	return report, err
}

// proveAll looks at all that is unwatched.
func (p *provider) proveAll(ctx context.Context, op string, scopes []Scope) error {
	select {
	case p.proving <- struct{}{}: // one after the other, else each would be something active to the other
		defer func() { <-p.proving }()
	case <-ctx.Done():
		return failed(op, ctxError(ctx))
	}
	looks := make(map[*subject]target)
	for _, item := range p.idle.Alive(ofScopes(scopes)) {
		if item.Marked && item.Detail.name != "" {
			looks[item.Subject] = item.Detail
		}
	}
	var group errgroup.Group
	group.SetLimit(proofsAtOnce)
	for s, t := range looks {
		group.Go(func() error { return p.prove(ctx, op, s, t) })
	}
	return group.Wait()
}

// prove looks at what is unwatched of a sandbox. What is in use is not asked about: that would prove nothing.
func (p *provider) prove(ctx context.Context, op string, s *subject, t target) error {
	if !s.Evidence(nil, true).Quiet() {
		return nil
	}
	sb, err := p.look(ctx, op, t, true)
	if err == nil && t.id == "" { // the creation has become a sandbox, which may be at rest already
		t.id = sb.ID
		_, err = p.look(ctx, op, t, true)
	}
	e := failed(op, err)
	switch {
	case e == nil, e.Kind == KindGone:
		return nil
	case t.id == "" && absentByName(e):
		if t.refused {
			p.unmarkCreation(t)
		} // else what was never seen may still appear
		return nil
	}
	return e
}

// IdleChanges implements [Provider].
func (p *provider) IdleChanges(ctx context.Context) iter.Seq[bool] {
	return func(yield func(bool) bool) { p.idle.Watch(yield, ctx.Done(), p.work.Done()) }
}

// What is counted is counted under its sandbox, and that under its scope and account. The credential under which a
// creation was sent stands for the account: it is recorded with everything from the first, and never changes.
type (
	tenancy struct {
		Scope
		credential string
	}
	subject       = activity.Subject[tenancy, target]
	activityEntry = activity.Entry[tenancy, target]
)

// about returns what activities of the target are counted under. As long as only its name is known, that is the creation
// alone.
func (p *provider) about(t target) *subject {
	return p.idle.Subject(tenancy{t.scope, t.credential}, t.attempt+"/"+t.id)
}

// aboutScope returns what activities of a scope are counted under that are of no sandbox.
func (p *provider) aboutScope(s Scope) *subject {
	return p.idle.Subject(tenancy{s, p.account.credential}, "")
}

// allocated counts the target's sandbox as one that may run.
func (p *provider) allocated(op string, t target) {
	p.about(t).Mark(string(ActivityAllocation), op, "", t)
}

// uncleaned counts a sandbox that was to be given back and perhaps was not.
func (p *provider) uncleaned(op string, t target) {
	p.about(t).Mark(string(ActivityCleanup), op, "", t)
}

// markCreation counts a creation as one that may make a sandbox.
func (p *provider) markCreation(op string, creation creationOperation) {
	t := creation.target()
	p.about(t).Mark(string(ActivityCreation), op, "", t)
}

// markRefused notes of a creation, if it is still counted, that each of its requests was refused.
func (p *provider) markRefused(creation creationOperation) {
	t := creation.target()
	t.refused = true
	p.about(t).Amend(string(ActivityCreation), "", t)
}

// found counts the sandbox of a creation in its stead, if that was still counted.
func (p *provider) found(op string, t target, id string) {
	creation := t
	creation.id = ""
	t.id = id
	p.about(creation).Move(p.about(t), string(ActivityAllocation), op, t)
}

// unmarkCreation counts a creation no longer: it made nothing, or what it made is accounted for.
func (p *provider) unmarkCreation(t target) {
	t.id = ""
	p.about(t).UnmarkAll()
}

// rests reports whether nothing runs in a sandbox, nor is about to.
func rests(sb *daytona.Sandbox) bool {
	return next(goalStopped, sb.State, false) == stepDone && sb.DesiredState != daytona.StateStarted
}

// ownKey finds the entry of the call that a context belongs to.
type ownKey struct{}

func ownEntry(ctx context.Context) *activityEntry {
	e, _ := ctx.Value(ownKey{}).(*activityEntry)
	return e
}

// requestOwner says what a request is about.
type requestOwner struct {
	about *subject // nil: what its call is about
	t     target
	looks bool // it is a look, which voids no evidence
}

// clientFor returns the client for requests about the target.
func (p *provider) clientFor(t target) *daytona.Client {
	return p.client.For(&requestOwner{about: p.about(t), t: t})
}

// looking returns the client for reads of the target; of the zero value, for those that tell what a read means.
func (p *provider) looking(t target) *daytona.Client {
	owner := &requestOwner{t: t, looks: true}
	if t.name != "" {
		owner.about = p.about(t)
	}
	return p.client.For(owner)
}

// requested counts a request. One that may still have an effect when the transport is done with it is left to the next
// look at its sandbox.
func (p *provider) requested(ctx context.Context, r daytona.Request) (end func(settled bool)) {
	owner, _ := r.Owner.(*requestOwner)
	if owner == nil {
		owner = new(requestOwner)
	}
	about := owner.about
	if about == nil {
		if about = p.everything; ownEntry(ctx) != nil {
			about = ownEntry(ctx).Subject()
		}
	}
	begin := about.Begin
	if owner.looks {
		begin = about.Observe
	}
	e := begin(string(ActivityRequest), r.Op)
	return func(settled bool) {
		if !settled && owner.about != nil {
			about.Mark(string(ActivityRequest), r.Op, r.Op, owner.t)
		}
		e.End()
	}
}

// holding is something that is open on a lease. It ends once, by end or by leave; what is called after that does nothing.
type holding struct {
	l     *Lease
	kind  ActivityKind
	op    string
	entry activityEntry
	over  atomic.Bool
}

// hold counts something that is open on the lease, such as a terminal, until it ends. Whoever opens something calls it
// before the first request, and then
//
//   - end, once nothing of it is left in the sandbox: its end was confirmed there, or it never began, or
//   - leave, when it is watched no longer and may go on there: then it counts until the sandbox is proved to be stopped or
//     gone, or until somebody who found it again calls ended.
//
// Giving the lease back waits for either, for a while; what is to be closed then registers with onClose. hold fails with
// [ErrClosed] once the lease is being given back, or the provider closed. A call that holds nothing open uses begin.
func (l *Lease) hold(kind ActivityKind, op string) (*holding, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &Error{Op: op, Kind: KindClosed, Sandbox: l.ref.Sandbox, Dispatched: DispatchedNo, Message: errGivenBack.Error()}
	}
	if l.p.isClosed() {
		return nil, &Error{Op: op, Kind: KindClosed, Sandbox: l.ref.Sandbox, Dispatched: DispatchedNo, Message: errProviderClosed.Error()}
	}
	l.active++
	h := &holding{l: l, kind: kind, op: op}
	l.about.BeginIn(&h.entry, string(kind), op)
	return h, nil
}

// end says that nothing is left.
func (h *holding) end() {
	if !h.over.Swap(true) {
		h.entry.End() // before the lease is drained: then nothing of it must void the proof
		h.l.end()
	}
}

// leave says that something may go on in the sandbox. The id tells it from others of its kind.
func (h *holding) leave(id string) {
	if !h.over.Swap(true) {
		h.l.about.Mark(string(h.kind), h.op, id, h.l.ref.target()) // first: there is no moment without it
		h.entry.End()
		h.l.end()
	}
}

// ended says that what was left under this id, by this host, has been seen to end.
func (h *holding) ended(id string) { h.l.about.Unmark(string(h.kind), id) }
