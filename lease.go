package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Scope is the tenancy of a lease. It is written on the sandbox as labels, and everything the library caches or counts
// is keyed by it, so that one tenant's sandbox is never handed to another. Values are 1 to 200 of A-Z a-z 0-9 _ -.
type Scope struct {
	Tenant      string `json:"tenant"`
	Environment string `json:"environment"`
	Run         string `json:"run"`
	Agent       string `json:"agent,omitempty"`     // optional
	Workspace   string `json:"workspace,omitempty"` // optional: which workspace of the tenant, not a directory
}

func (s Scope) check(p *problems, field string) {
	checkIdentifier(p, field+".Tenant", s.Tenant, true)
	checkIdentifier(p, field+".Environment", s.Environment, true)
	checkIdentifier(p, field+".Run", s.Run, true)
	checkIdentifier(p, field+".Agent", s.Agent, false)
	checkIdentifier(p, field+".Workspace", s.Workspace, false)
}

// leaseRefVersion is the version of [LeaseRef] that this package writes and reads.
const leaseRefVersion = 1

// LeaseRef is a lease as a plain value: with the provider's configuration, all that is needed to go on with it in
// another process. It has no secrets. Store its JSON form; [ParseLeaseRef] reads it back.
type LeaseRef struct {
	Version    int               `json:"version"`
	Sandbox    string            `json:"sandbox"`    // the provider's id
	Name       string            `json:"name"`       // chosen by the library before the creation
	Scope      Scope             `json:"scope"`      // as it was acquired for
	Attempt    string            `json:"attempt"`    // UUID of the creation, part of the name and a label
	Labels     map[string]string `json:"labels"`     // every label recorded at the creation
	Account    string            `json:"account"`    // fingerprint of endpoint and organisation, as the API attested it; until it has: Credential
	Credential string            `json:"credential"` // fingerprint of endpoint and credential at the acquisition
	Workspace  string            `json:"workspace"`  // absolute directory in the sandbox
	Sentinel   string            `json:"sentinel"`   // token of the file that proves the workspace to be this lease's
	Shell      string            `json:"shell"`      // bash, or sh where there is no bash
	Reuse      bool              `json:"reuse"`      // release stops, rather than deletes
	ExpiresAt  time.Time         `json:"expiresAt,omitzero"`
	CreatedAt  time.Time         `json:"createdAt"`
	// Bwrap is what the last probe found. It is advice, and no part of the lease's identity.
	Bwrap
}

// ParseLeaseRef decodes a stored reference and validates every field. Unknown fields are ignored. It fails with
// [ErrInvalid].
func ParseLeaseRef(data []byte) (LeaseRef, error) {
	return parse[LeaseRef]("parse lease", "LeaseRef", data)
}

func (r LeaseRef) check(op string) error {
	var p problems
	r.problems(&p)
	return p.err(op)
}

func (r LeaseRef) problems(p *problems) {
	if r.Version != leaseRefVersion {
		p.add("LeaseRef.Version", "is %d: this package reads %d", r.Version, leaseRefVersion)
		return
	}
	checkIdentifier(p, "LeaseRef.Sandbox", r.Sandbox, true)
	checkIdentifier(p, "LeaseRef.Name", r.Name, true)
	checkIdentifier(p, "LeaseRef.Attempt", r.Attempt, true)
	r.Scope.check(p, "LeaseRef.Scope")
	checkLabels(p, "LeaseRef.Labels", r.Labels)
	checkCreationLabels(p, "LeaseRef", r.Name, r.Attempt, r.Scope, r.Labels)
	checkFingerprint(p, "LeaseRef.Account", r.Account)
	checkFingerprint(p, "LeaseRef.Credential", r.Credential)
	checkFingerprint(p, "LeaseRef.Sentinel", r.Sentinel)
	if !validWorkspace(r.Workspace) {
		p.add("LeaseRef.Workspace", "is not a clean absolute path that text can hold")
	}
	for _, at := range []struct {
		field string
		time  time.Time
	}{{"ExpiresAt", r.ExpiresAt}, {"CreatedAt", r.CreatedAt}} {
		if year := at.time.UTC().Year(); year < 0 || year > 9999 {
			p.add("LeaseRef."+at.field, "is not a time that JSON can hold")
		}
	}
	r.Bwrap.check(p, "LeaseRef")
	if r.Shell != "bash" && r.Shell != "sh" {
		p.add("LeaseRef.Shell", "is neither bash nor sh")
	}
}

// maxPath bounds a workspace's path in the sandbox, where Linux does.
const maxPath = 4096

// validWorkspace reports whether a path is absolute, clean and survives as text.
func validWorkspace(dir string) bool {
	return path.IsAbs(dir) && path.Clean(dir) == dir && len(dir) < maxPath &&
		utf8.ValidString(dir) && !strings.ContainsAny(dir, "\x00\uFFFD")
}

// key identifies the lease among all that a provider handles: the whole reference, so that one whose fields were
// changed is never taken for the one that was issued. What a probe found may differ each time, and is left out. The
// reference must have passed check.
func (r LeaseRef) key() string {
	r.Bwrap = Bwrap{}
	r.ExpiresAt, r.CreatedAt = r.ExpiresAt.UTC(), r.CreatedAt.UTC()
	data, err := json.Marshal(r)
	if err != nil {
		panic("leasehold: a LeaseRef is always JSON: " + err.Error())
	}
	return string(data)
}

// clone returns a copy that shares nothing.
func (r LeaseRef) clone() LeaseRef {
	r.Labels = maps.Clone(r.Labels)
	return r
}

// Lease is the right to use one sandbox, until it is given back with [Provider.Release] or [Provider.Destroy]. Its methods and
// the values they return are safe for concurrent use. Within one provider, each lease has one Lease, until it is given back,
// or that was tried: that Lease, and what was made of it, then fails with [ErrClosed] for good. Of a sandbox that was stopped,
// [Provider.Resume] returns a new one. A Lease whose sandbox a use finds to exist no more fails with [ErrGone]; the provider
// keeps it no longer.
type Lease struct {
	p      *provider
	ref    LeaseRef
	about  *subject        // what its activities are counted under
	client *daytona.Client // whose requests are, too

	lifecycle chan struct{} // holds one token: taken by whoever resumes, releases or destroys the sandbox

	mu      sync.Mutex
	closed  bool             // given back: no new activity
	active  int              // activities under way
	drained chan struct{}    // closed when active falls to zero; nil while nobody waits
	box     *daytona.Toolbox // nil until the sandbox was resolved, and after it was found not running
	boxOf   uint64           // about.Clears() when box was set
	added   bool             // claim added the durable record, and no look has proved the sandbox ours since
	closers []func(context.Context)

	open context.Context         // ends when the lease begins to be given back, with errGivenBack; see ended
	shut context.CancelCauseFunc // ends it

	resolving chan struct{} // holds one token: taken by whoever resolves box

	sessions sessionPool // in which commands run, and
	journals journalPool // which they keep
	consoles consoleSet  // terminals and channels
	bwrap    bwrapState
}

// errGivenBack is the cause of the end of what a lease that was given back was used for.
var errGivenBack = errors.New("the lease was given back")

func newLease(p *provider, ref LeaseRef) *Lease {
	open, shut := context.WithCancelCause(context.Background()) // the provider does not keep every lease
	ref = ref.clone()
	return &Lease{
		p: p, ref: ref, about: p.about(ref.target()), client: p.clientFor(ref.target()), bwrap: bwrapState{probe: ref.Bwrap},
		lifecycle: make(chan struct{}, 1), resolving: make(chan struct{}, 1), open: open, shut: shut,
	}
}

// Ref returns the lease as a plain value. The caller may change it.
func (l *Lease) Ref() LeaseRef {
	ref := l.ref.clone()
	ref.Bwrap = l.bwrap.found()
	return ref
}

// Format writes which sandbox the lease is of, whatever the verb, and nothing of what runs there.
func (l *Lease) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "lease of sandbox %s", l.ref.Sandbox) }

// begin counts a call on the lease until done is called. It fails with [ErrClosed] once the lease is being given back.
// What stays open after the call, such as a terminal, is held instead: see hold.
func (l *Lease) begin(op string) (done func(), err error) {
	h, err := l.hold(ActivityCall, op)
	if err != nil {
		return nil, err
	}
	return h.end, nil
}

func (l *Lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.active == 0 && l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
}

// onClose registers f to run once, when the lease is given back, with a bounded context that is not the caller's. It
// reports false, and does not register, if that has already begun.
func (l *Lease) onClose(f func(context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closers = append(l.closers, f)
	return true
}

func (l *Lease) hasClosers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.closers) > 0
}

// abandon ends admission and nothing else: the sandbox is not ours to touch.
func (l *Lease) abandon() {
	l.mu.Lock()
	l.closed = true
	l.closers = nil
	l.mu.Unlock()
	l.shut(errGivenBack)
	l.consoles.abandon()
}

// whileOpen returns a context that also ends when the lease begins to be given back, with errGivenBack as its cause, or when
// the provider is closed, with errProviderClosed. It is for what has not yet changed anything in the sandbox.
func (l *Lease) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, untie := until(ctx, l.open)
	ctx, end := l.p.untilClosed(ctx)
	return ctx, func() {
		end()
		untie()
	}
}

// ended returns why the lease is of no use any more, errGivenBack or errProviderClosed, and nil while it is.
func (l *Lease) ended() error {
	if err := context.Cause(l.open); err != nil {
		return err
	}
	return context.Cause(l.p.work)
}

// close ends admission, runs the closers side by side and waits for the activities that are under way, both until ctx
// ends: a dead connection must not prevent the provider from ending the sandbox.
func (l *Lease) close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	closers := l.closers
	l.closers = nil
	drained := make(chan struct{})
	if l.active == 0 {
		close(drained)
	} else if l.drained != nil {
		drained = l.drained
	} else {
		l.drained = drained
	}
	l.mu.Unlock()
	l.shut(errGivenBack) // what waits before its first request to the sandbox need not be waited for

	var wg sync.WaitGroup
	for _, f := range closers {
		wg.Go(func() { f(ctx) })
	}
	wg.Wait()
	select {
	case <-drained:
	case <-ctx.Done():
	}
}

// toolbox returns the connection to the running sandbox. The first use after [Provider.Bind], and the first after the
// sandbox was found not running, reads the sandbox and verifies that it is ours; it starts nothing. All of that takes no
// longer than Config.Timeout: see read.
func (l *Lease) toolbox(ctx context.Context) (*daytona.Toolbox, error) {
	if err := unsent(ctx, "", l.ref.Sandbox); err != nil {
		return nil, err
	}
	if box := l.resolved(); box != nil {
		return box, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.Timeout)
	defer cancel()
	select {
	case l.resolving <- struct{}{}:
		defer func() { <-l.resolving }()
	case <-ctx.Done():
		return nil, ofSandbox(l.ref.Sandbox, failed("resolve", ctxError(ctx)))
	}
	if box := l.resolved(); box != nil {
		return box, nil
	}
	if err := l.claim(ctx); err != nil {
		return nil, err
	}
	sb, err := l.read(ctx, "resolve")
	if err != nil {
		return nil, err
	}
	if sb.State != daytona.StateStarted {
		return nil, &Error{Op: "resolve", Kind: KindNotRunning, Sandbox: l.ref.Sandbox, Dispatched: DispatchedNo, Message: "the sandbox is not started: resume the lease"}
	}
	box := l.client.Toolbox(sb)
	l.connected("resolve", box)
	return box, nil
}

// connected keeps the connection to the sandbox, which runs, and counts that.
func (l *Lease) connected(op string, box *daytona.Toolbox) {
	l.p.allocated(op, l.ref.target())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.box, l.boxOf = box, l.about.Clears()
}

// claim makes the durable record of the lease ours, before its first use here.
func (l *Lease) claim(ctx context.Context) error {
	if err := l.p.proveOurs(ctx, "resolve", l.ref.target()); err != nil {
		return err
	}
	if l.ended() != nil { // it is being given back, which is recorded as that
		return nil
	}
	open, done := l.whileOpen(ctx)
	defer done()
	added, err := l.p.ledger.resolve(open, "resolve", l.ref)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added = l.added || added
	if err != nil {
		return l.orClosed(failed("resolve", err))
	}
	return nil
}

// read reads the lease's sandbox and verifies that it is ours. It takes no longer than Config.Timeout: the call that it is for
// may have no deadline, and a provider that limits the rate may wish for hours.
func (l *Lease) read(ctx context.Context, op string) (*daytona.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.Timeout)
	defer cancel()
	sb, err := l.p.read(ctx, op, l.ref.target())
	if err != nil {
		l.disclaim(ctx, failed(op, err))
		return nil, err
	}
	l.proved()
	return sb, nil
}

// disclaim takes off the list what a look failed with a proof for that there is nothing to give back. A lease whose sandbox is
// gone is of no more use: whoever has it is told so each time, and the provider keeps it no longer.
func (l *Lease) disclaim(ctx context.Context, err *Error) {
	l.mu.Lock()
	added := l.added
	l.mu.Unlock()
	l.p.unlist(ctx, l.ref, added, err)
	if err.absent() {
		l.p.forget(l)
	}
}

// proved notes that a look after claim proved the sandbox ours: the record is as good as that of an acquisition.
func (l *Lease) proved() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added = false
}

// resolved returns the connection, if it is of use. It is not once the sandbox was seen at rest: if it runs again, then
// because somebody else has started it, and its use must count that.
func (l *Lease) resolved() *daytona.Toolbox {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.boxOf != l.about.Clears() {
		return nil
	}
	return l.box
}

// observe looks at an error of the toolbox: one that a stopped, lost or replaced sandbox also gives makes the next use
// read the sandbox again. It returns err, mapped.
func (l *Lease) observe(op string, err error) error {
	if err == nil {
		return nil
	}
	mapped := failed(op, err)
	if mapped.Sandbox == "" {
		mapped.Sandbox = l.ref.Sandbox
	}
	switch mapped.Kind {
	case KindNotRunning, KindAuth, KindUnavailable, KindNotFound:
		l.mu.Lock()
		l.box = nil
		l.mu.Unlock()
	}
	return mapped
}
