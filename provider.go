package leasehold

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/leasehold-go/leasehold/internal/activity"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Provider gives and takes back leases. It is safe for concurrent use. Every method but Close returns promptly when ctx
// ends; what it began by then is finished or undone in the background, bounded by [Config.Timeout]. Errors are [*Error].
type Provider interface {
	// Acquire creates a sandbox and returns when its workspace is ready. A failure leaves no sandbox behind, or says
	// so: then Error.Cleanup is what to Inspect, to store as Inspect returns it, and then to Cleanup.
	//
	// It fails, before anything is sent, with [ErrInvalid], with [ErrClosed], and with [ErrStore] if the creation cannot be
	// recorded; with [ErrQuota], [ErrAuth] or [ErrRefused] where the provider refuses it, also an expiry; with
	// [ErrRateLimited] or [ErrUnavailable], which may pass; with [ErrTimeout] or [ErrCanceled]; with [ErrUncertain] if the
	// creation was not answered; with [ErrProtocol] if it was not understood; with [ErrFenced] if a sweep has taken it over.
	Acquire(ctx context.Context, request AcquireRequest) (*Lease, error)
	// Resume starts the lease's sandbox if it does not run, proves that its workspace is the lease's, and returns the
	// lease. It fails with [ErrGone] only if the loss is proved; after every other error the sandbox is kept, and
	// Resume may be called again. Concurrent calls for one lease share one attempt.
	Resume(ctx context.Context, ref LeaseRef) (*Lease, error)
	// Bind returns the lease for a stored reference without any request. The first use of the lease reads the sandbox
	// and verifies that it is ours; it does not start it. It fails with [ErrClosed] if [Config.Store] has the lease as one that
	// is being given back: nothing but Resume takes that back.
	Bind(ref LeaseRef) (*Lease, error)
	// Release gives the lease back: a reusable sandbox is stopped, another one deleted, unless options say otherwise.
	// The receipt is issued after a fresh read that shows it; the SSH accesses of a stopped one are revoked by then, whoever
	// opened them. With it the record leaves [Config.Store]: of a sandbox that was stopped, ref is all that is left, so
	// store it before. After an error call it again: with Config.Store a [Sweeper] does so too, but only once the release is
	// recorded, which no error tells.
	//
	// The [Lease] is closed, and its commands, terminals and transfers are ended, before the sandbox is stopped or deleted: an
	// error, too, may leave it closed, with the sandbox running. To go on with the sandbox after all, Resume ref and use what
	// that returns. Bind does as well, unless the release was recorded.
	//
	// It fails with [ErrInvalid] or [ErrNotOwned] without having done anything, and with [ErrConflict] if the sandbox is set to
	// be deleted when it stops, so that it can be retained or destroyed, or another process is giving it back; with [ErrBroken] if the sandbox cannot be stopped any
	// more; with [ErrUncertain] if what was to be proved could not be; with [ErrStore] as ReleaseOptions says, and
	// [ErrFenced]; with [ErrTimeout], [ErrCanceled], [ErrUnavailable], [ErrRateLimited], [ErrAuth] and [ErrRefused], and
	// [ErrClosed] of the provider. A sandbox that is gone is no error.
	Release(ctx context.Context, ref LeaseRef, options ReleaseOptions) (Receipt, error)
	// Destroy deletes the lease's sandbox, whatever its state, and returns when a fresh read shows that it is gone. It closes the
	// [Lease], and fails, as Release does, but for [ErrBroken].
	Destroy(ctx context.Context, ref LeaseRef) (Receipt, error)
	// Probe proves that leases can be had: it acquires one, and destroys it. It reports where it failed, and fails as these two
	// do, with Error.Cleanup as of Acquire if a sandbox is perhaps left.
	Probe(ctx context.Context, request AcquireRequest) (ProbeReport, error)
	// Inspect looks, without changing anything, for the sandbox of a creation that could not be accounted for. Store the
	// envelope it returns, which holds the sandbox's id, and the account if the API attests it by now, before calling
	// Cleanup. While no sandbox of the name was ever seen it fails with [ErrUncertain]: one may still appear.
	Inspect(ctx context.Context, envelope CleanupEnvelope) (CleanupEnvelope, error)
	// Cleanup deletes the sandbox that Inspect observed, and returns when a fresh read shows that it is gone. It fails
	// with [ErrUncertain] for an envelope without an observed id, without having deleted anything.
	Cleanup(ctx context.Context, envelope CleanupEnvelope) (Receipt, error)
	// Idle reports what is active: calls, requests, commands, terminals and channels that are under way, sandboxes that may
	// run, and what was left without a proof of its end. It reports on the scopes given, in which an empty field stands for
	// any value; without any, on all. It makes no request and does not wait. It knows of what this provider has done, not of
	// what an earlier process left behind: that is in references, in envelopes and on the durable list. A provider that was
	// not used, or only ever read with, is idle.
	Idle(scopes ...Scope) IdleReport
	// ProveIdle looks at every sandbox, of the scopes given or of all, that is active with nobody here to see its end, and
	// then reports as Idle does. It only reads, which keeps no sandbox awake, and does not ask about what is in use: where
	// there is nothing to look at it makes no request. A sandbox that is seen stopped, or proved gone, is active no longer,
	// and what was left running or unanswered in it with it; unless anything of its scope was under way, began or ended
	// before the answer: then it counts until the next proof. A creation whose sandbox was never seen is proved to have made
	// none only if each of its requests was refused and its name is not found.
	//
	// The report is good whatever the error, which says, if the report is not idle, why a sandbox could not be looked at.
	ProveIdle(ctx context.Context, scopes ...Scope) (IdleReport, error)
	// IdleChanges yields whether the provider is idle, as Idle reports it of all scopes: once at the beginning, and again
	// whenever that has changed, until the loop is left, ctx ends or the provider was closed. It waits without polling,
	// makes no request and starts no goroutine. Nothing waits for the body of the loop, which may call any method, Close
	// included. What changes while the body runs is told once, after it: true may follow true, and says that the provider
	// was active meanwhile. Any number of loops may run.
	//
	//	for idle := range provider.IdleChanges(ctx) {
	//		host.MaySleep(idle)
	//	}
	IdleChanges(ctx context.Context) iter.Seq[bool]
	// Close refuses new calls, of its leases too, waits until ctx ends for acquisitions, releases and the like, cancels
	// the rest, and closes idle connections. Calls that it does not wait for fail with [ErrClosed]: terminals, channels and
	// transfers end, while commands go on, as after [Process.Detach]. It releases no lease: a lease outlives its host, but
	// with [Config.Store] is an orphan unless a host resumes it, or uses it, within [Config.ClaimTime]. A local provider also
	// ends its backend: every process in it is killed and every sandbox stopped, or removed, see [LocalConfig].Dir. When ctx has ended it still waits for what it cancelled to tidy
	// up, and tells the store what that is owed, for up to [Config.CallTimeout] each. Later calls return nil.
	Close(ctx context.Context) error
}

// provider is the one implementation of [Provider].
type provider struct {
	cfg     Config
	client  *daytona.Client
	tracer  trace.Tracer
	account *account
	admit   *admission
	ledger  *ledger
	idle    *activity.Tracker[tenancy, target]
	onClose func() error // ends the embedded backend; nil without one

	// embedded is the origin of the embedded backend, such as http://127.0.0.1:1234: the one that endpoints reach in clear
	// text. Empty without one.
	embedded string

	everything *subject           // of no scope
	proving    chan struct{}      // holds one token: taken by whoever proves idleness
	resumes    singleflight.Group // by LeaseRef.key

	work   context.Context // parent of everything that outlives a call; ended by Close, with errProviderClosed
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup
	// streams are transfers, and the goroutines of open terminals and channels, which the end of work ends.
	streams sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	leases    map[string]*Lease // by LeaseRef.key
	sightings map[string]string // by attempt: ids seen after the caller of an acquisition had left
	seen      []string          // the attempts in sightings and some that were dropped from it, oldest first
}

// maxSightings bounds what is remembered for envelopes that perhaps nobody kept. An envelope whose sighting was dropped
// stays uncertain, unless its sandbox is still found by name.
const maxSightings = 1000

// New returns a provider on the Daytona control plane at config's URL. It sends nothing. It fails with [ErrInvalid], naming
// every problem of config.
func New(config Config) (Provider, error) {
	return newProvider(config)
}

func newProvider(config Config) (*provider, error) {
	cfg, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &provider{
		cfg:    cfg,
		tracer: noop.NewTracerProvider().Tracer(""),
		admit:  &admission{limit: cfg.MaxCreations},
		idle:   activity.New[tenancy, target](), proving: make(chan struct{}, 1),
		leases: make(map[string]*Lease), sightings: make(map[string]string),
	}
	if cfg.TracerProvider != nil {
		p.tracer = cfg.TracerProvider.Tracer("github.com/leasehold-go/leasehold")
	}
	p.client, err = daytona.New(daytona.Config{APIURL: cfg.APIURL, APIKey: cfg.APIKey, Transport: cfg.Transport, Observe: p.logRequest, Track: p.requested})
	if err != nil {
		return nil, &Error{Op: "configure", Kind: KindInvalid, Dispatched: DispatchedNo, Message: "the client could not be made"}
	}
	if cfg.Store != nil {
		p.cfg.Store = promptStore{cfg.Store}
	}
	p.account = newAccount(cfg.APIURL, cfg.APIKey)
	p.cfg.APIKey = "" // the client has it, where no print of a value that holds a provider reaches
	p.everything = p.idle.Subject(tenancy{}, "")
	p.ledger = newLedger(&p.cfg, p.everything)
	p.work, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// Close implements [Provider].
func (p *provider) Close(ctx context.Context) error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	p.mu.Unlock()
	if again {
		return nil
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		p.tasks.Wait()
	}()
	var err error
	select {
	case <-settled:
	case <-ctx.Done():
		err = failed("close", ctxError(ctx))
	}
	p.cancel(errProviderClosed)
	p.awaitRest(ctx, settled)
	p.ledger.close(ctx)
	p.client.Close()
	if p.onClose != nil {
		if closeErr := p.onClose(); err == nil && closeErr != nil {
			err = &Error{Op: "close", Kind: KindIO, Message: "the embedded backend did not end cleanly", cause: closeErr}
		}
	}
	return err
}

// errProviderClosed ends the work that Close did not wait for.
var errProviderClosed = errors.New("the provider was closed")

// awaitRest waits for what was cancelled, and for what transfers, terminals and channels still have to tidy up, which is
// bounded, but not for a writer or a reader of the caller's that blocks.
func (p *provider) awaitRest(ctx context.Context, settled <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.CallTimeout)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-settled
		p.streams.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// until returns a context that also ends with end, and then with the cause of that.
func until(ctx, end context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	disarm := context.AfterFunc(end, func() { cancel(context.Cause(end)) })
	return ctx, func() {
		disarm()
		cancel(nil)
	}
}

// untilClosed returns a context that also ends, with errProviderClosed as its cause, when the provider is closed.
func (p *provider) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	return until(ctx, p.work)
}

// start admits a call, counts it under what it is about, and returns the context of its work: it keeps ctx's values, ends
// after the provider's budget or with the provider, and not with ctx. finish must be called when the work is done.
func (p *provider) start(ctx context.Context, op string, about *subject) (work context.Context, finish func(), err error) {
	return p.begin(ctx, context.WithoutCancel(ctx), op, about, p.cfg.Timeout)
}

// begin does the work of start, for a context that ends with parent, or after limit.
func (p *provider) begin(ctx, parent context.Context, op string, about *subject, limit time.Duration) (work context.Context, finish func(), err error) {
	work, shut, err := p.open(ctx, parent, op, limit)
	if err != nil {
		return nil, nil, err
	}
	entry := about.Begin(string(ActivityCall), op)
	return context.WithValue(work, ownKey{}, entry), func() {
		entry.End()
		shut()
	}, nil
}

// open does the work of begin, but for the counting.
func (p *provider) open(ctx, parent context.Context, op string, limit time.Duration) (work context.Context, shut func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, &Error{Op: op, Kind: KindClosed, Dispatched: DispatchedNo, Message: "the provider is closed"}
	}
	if ctx.Err() != nil {
		return nil, nil, failed(op, ctxError(ctx))
	}
	p.tasks.Add(1)
	work, end := p.untilClosed(parent)
	work, cancel := context.WithTimeout(work, limit)
	return work, sync.OnceFunc(func() {
		cancel()
		end()
		p.tasks.Done()
	}), nil
}

func (p *provider) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// admitStream counts a transfer, or a terminal or channel that is about to be opened, unless the provider is closed.
func (p *provider) admitStream() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.streams.Add(1)
	return true
}

// bind returns the one lease of ref, making it if there is none.
func (p *provider) bind(ref LeaseRef) *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.leases[ref.key()]
	if l == nil {
		l = newLease(p, ref)
		p.leases[ref.key()] = l
	}
	return l
}

// fresh is bind for a lease that was acquired just now: its sandbox runs, and no import has named a writable directory yet.
func (p *provider) fresh(op string, ref LeaseRef, sb *daytona.Sandbox) *Lease {
	l := p.bind(ref)
	l.bwrap.know(&writableList{})
	l.connected(op, l.client.Toolbox(sb))
	return l
}

// forget drops a lease that was given back, so that a later resume makes a new one.
func (p *provider) forget(l *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leases[l.ref.key()] == l {
		delete(p.leases, l.ref.key())
	}
}

// Bind implements [Provider].
func (p *provider) Bind(ref LeaseRef) (*Lease, error) {
	if err := ref.check("bind"); err != nil {
		return nil, err
	}
	if p.isClosed() {
		return nil, &Error{Op: "bind", Kind: KindClosed, Sandbox: ref.Sandbox, Dispatched: DispatchedNo, Message: "the provider is closed"}
	}
	return p.bind(ref), nil
}

// sighted remembers the id of a sandbox that was seen, with every label right, after the caller had left with an
// envelope: not-found of that id is proof, where not-found of the name alone would never be.
func (p *provider) sighted(attempt, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sightings[attempt] = id
	if p.seen = append(p.seen, attempt); len(p.seen) > maxSightings {
		delete(p.sightings, p.seen[0])
		p.seen = p.seen[1:]
	}
}

// sighting returns the id remembered for an attempt, or nothing.
func (p *provider) sighting(attempt string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sightings[attempt]
}

// accounted forgets an attempt whose sandbox is gone.
func (p *provider) accounted(e CleanupEnvelope) {
	p.unmarkCreation(e.target())
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sightings, e.Attempt)
}

// background runs f, which is about the sandbox, to its end, and returns what it returned or, once ctx ends, why ctx ended.
func background[T any](ctx context.Context, op, sandbox string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done: // ended just now, and is not to be lost
		return r.value, r.err
	default:
		var none T
		return none, departed(ctx, op, sandbox)
	}
}
