package leasehold

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

const (
	// sightingTime bounds the search for a sandbox whose creation was not answered. The API inserts it before it does
	// anything slow, so one that is not visible by then is left to [Provider.Inspect].
	sightingTime = 15 * time.Second
	// renameLimit is how many names, taken by foreign sandboxes, an acquisition gives up before it fails. Names are
	// random, so one is already a sign that something is wrong.
	renameLimit = 3
	// compensationTime is kept back, at the end of the budget, for deleting what was made: at most this, and at most a
	// quarter of the budget.
	compensationTime = 30 * time.Second
	// expirySlack is how far behind the requested lifetime a confirmed expiry may lie: the provider counts from its own
	// insertion, which is later than its creation stamp by up to this.
	expirySlack = time.Minute
)

// AcquireRequest asks for a lease.
type AcquireRequest struct {
	// Scope is whose the sandbox is. Each acquisition makes one of its own, of the same scope too.
	Scope Scope
	// Snapshot or Image is what the sandbox is made from, in place of what [Config] says of both and of Resources. With
	// neither, Resources are in place of Config's, for its Image.
	Snapshot  string
	Image     string
	Resources Resources
	// Reuse makes release stop the sandbox, so that resume can start it again. False: as Config.Reuse says.
	Reuse bool
	// ExpiresAt is when the provider must destroy the sandbox at the latest, in whatever state it is then, even if it
	// never hears from this process again. What is left until then when the creation is sent is rounded down to whole
	// minutes; under one minute, nothing is sent. The earlier of it and Config.TTL applies. Zero: Config.TTL alone.
	ExpiresAt time.Time
	// Labels are put on the sandbox beside the library's own, of which there are six to eight; together there may be 16.
	// Keys are 1 to 63 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit, and must not start with
	// Config.LabelPrefix; values are identifiers like those of a [Scope].
	Labels map[string]string
}

// origin is what the sandbox is made from, given what the configuration says.
func (r *AcquireRequest) origin(configured origin) origin {
	switch {
	case r.Snapshot != "" || r.Image != "":
		return origin{r.Snapshot, r.Image, r.Resources}
	case r.Resources != Resources{}:
		configured.resources = r.Resources
	}
	return configured
}

func (p *provider) checkRequest(op string, request AcquireRequest) error {
	var bad problems
	request.Scope.check(&bad, "AcquireRequest.Scope")
	request.origin(p.cfg.origin()).check(&bad, "AcquireRequest")
	if request.Reuse && *p.cfg.AutoDeleteMinutes == 0 {
		bad.add("AcquireRequest.Reuse", "contradicts Config.AutoDeleteMinutes 0, which deletes a sandbox when it stops")
	}
	checkLabels(&bad, "AcquireRequest.Labels", request.Labels)
	own := len(p.newCreation(request.Scope, false, nil).Labels)
	if n := len(request.Labels); n <= maxLabels && n+own > maxLabels {
		bad.add("AcquireRequest.Labels", "has over %d entries, which with the library's own makes over %d", maxLabels-own, maxLabels)
	}
	for key := range request.Labels {
		switch {
		case len(request.Labels) > maxLabels || !labelKeyForm.MatchString(key): // of any number and length, and reported
		case strings.HasPrefix(key, p.cfg.LabelPrefix):
			bad.add("AcquireRequest.Labels."+key, "starts with the prefix of the library's own labels")
		case key == daytona.LanguageLabel:
			bad.add("AcquireRequest.Labels."+key, "is the provider's own label")
		}
	}
	if !request.ExpiresAt.IsZero() && time.Until(request.ExpiresAt) < time.Minute {
		bad.add("AcquireRequest.ExpiresAt", "is under one minute away")
	}
	return bad.err(op)
}

// Acquire implements [Provider].
func (p *provider) Acquire(ctx context.Context, request AcquireRequest) (*Lease, error) {
	return p.acquire(ctx, "acquire", request, p.cfg.Reuse || request.Reuse)
}

func (p *provider) acquire(ctx context.Context, op string, request AcquireRequest, reuse bool) (_ *Lease, err error) {
	ctx, span := p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := p.checkRequest(op, request); err != nil {
		return nil, err
	}
	request.Labels = maps.Clone(request.Labels) // the work may go on without the caller
	work, finish, err := p.start(ctx, op, p.aboutScope(request.Scope))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	a := &acquisition{
		p: p, op: op, request: request, reuse: reuse, began: began, phase: PhaseCreate,
		until:    began.Add(p.cfg.Timeout - min(compensationTime, p.cfg.Timeout/4)),
		creation: p.newCreation(request.Scope, reuse, request.Labels),
	}
	lease := make(chan *Lease)       // received: the caller has the lease
	failure := make(chan *Error, 1)  // the acquisition's own end, compensated as far as it goes
	abandoned := make(chan struct{}) // closed: nobody will take the lease
	ended := make(chan struct{})     // closed: the call counts no longer
	go func() {
		defer close(ended)
		defer finish()
		limited, expire := context.WithDeadline(work, a.until)
		defer expire()
		step, cancel := until(limited, ctx)
		defer cancel()
		ref, sb, err := a.run(work, step)
		if err == nil {
			select {
			case lease <- p.fresh(op, ref, sb):
				return
			case <-abandoned:
				p.forget(p.bind(ref))
				err = failed(op, context.Canceled)
			}
		}
		failure <- a.compensate(work, err)
	}()
	select {
	case l := <-lease:
		<-ended
		return l, nil
	case err := <-failure:
		<-ended
		return nil, err
	case <-ctx.Done():
	}
	select {
	case err := <-failure: // ended by itself just now, and knows more
		return nil, err
	default:
	}
	left := a.abandon(failed(op, ctxError(ctx))) // before anything fails because of it
	close(abandoned)
	return nil, left
}

// acquisition is one acquisition under way.
type acquisition struct {
	p       *provider
	op      string
	request AcquireRequest
	reuse   bool
	ttl     int // minutes, as sent last; 0: none
	began   time.Time
	until   time.Time // when what is left of the budget is kept for the compensation

	mu        sync.Mutex // guards what follows: the caller may leave, and take a record with it, at any time
	creation  creationOperation
	submitted bool   // the last creation request may have been sent, and may have made something
	refused   bool   // it was refused, by an answer in the provider's own shape
	earlier   bool   // one before it was
	observed  string // id of the sandbox, once seen with name and labels right
	phase     Phase  // under way
	first     *Error // the first failure, with its phase and time
	left      bool   // the caller has gone, with an envelope that may lack the id
}

func (a *acquisition) enter(phase Phase) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase = phase
}

// see remembers the id of the sandbox, for an envelope.
func (a *acquisition) see(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.observed, a.creation.Account = id, a.p.account.known()
	a.p.found(a.op, a.creation.target(), id)
	if a.left {
		a.p.sighted(a.creation.Attempt, id)
	}
}

// run creates the sandbox and makes it a lease. The creation itself is on work, which the caller's cancellation does
// not end: aborting the request would only lose its reply. All that follows is on step, which it ends. It returns the
// sandbox as it was last read.
func (a *acquisition) run(work, step context.Context) (LeaseRef, *daytona.Sandbox, error) {
	a.p.attestOnce(work)
	a.mu.Lock()
	a.creation.Account = a.p.account.known()
	a.mu.Unlock()
	if err := a.commit(step); err != nil {
		return LeaseRef{}, nil, err
	}
	id, err := a.create(work, step)
	if err != nil {
		return LeaseRef{}, nil, err
	}
	if err := a.observe(step, id); err != nil {
		return LeaseRef{}, nil, err
	}
	a.mu.Lock()
	creation := a.creation
	a.mu.Unlock()
	t := creation.target()
	t.id = id
	sb, _, err := a.p.drive(step, a.op, t, goalStarted)
	if err != nil {
		return LeaseRef{}, nil, err
	}
	ref := LeaseRef{
		Version: leaseRefVersion, Sandbox: id, Name: creation.Name, Scope: creation.Scope, Attempt: creation.Attempt,
		Labels: creation.Labels, Account: a.p.account.recorded(), Credential: creation.Credential,
		Reuse: a.reuse, CreatedAt: a.began.UTC().Round(0),
	}
	a.enter(PhaseExpiry)
	if ref.ExpiresAt, err = a.confirmExpiry(sb); err != nil {
		return LeaseRef{}, nil, err
	}
	ref.Sentinel = sentinelToken(ref)
	setup, err := a.p.setUp(step, a.op, a.p.clientFor(t).Toolbox(sb), ref, a.enter)
	if err != nil {
		return LeaseRef{}, nil, err
	}
	ref.Workspace, ref.Shell, ref.Bwrap = setup.workspace, setup.shell, setup.bwrap
	if ref.check(a.op) != nil { // it could not be read back
		return LeaseRef{}, nil, &Error{Op: a.op, Kind: KindProtocol, Sandbox: id, Dispatched: DispatchedYes, Message: "the provider gave a sandbox that no reference can describe"}
	}
	return ref, sb, a.p.ledger.note(step, a.op, ref.Attempt, DispatchedYes, func(r *Record) {
		lease := ref.clone()
		r.State, r.Lease, r.Envelope.Account = StateLeased, &lease, a.p.account.known()
		if a.reuse {
			r.Orphan = OrphanStop
		}
	})
}

// commit records the creation durably, before it is sent.
func (a *acquisition) commit(ctx context.Context) error {
	a.mu.Lock()
	creation := a.creation
	a.mu.Unlock()
	return a.p.ledger.open(ctx, a.op, Record{
		Version: recordVersion, State: StateCreating, Envelope: *creation.envelope(PhaseCreate, ""), Orphan: OrphanDestroy,
		CreatedAt: a.began.UTC().Round(0),
	})
}

// observe records the id of the sandbox durably, before anything may be deleted by it.
func (a *acquisition) observe(ctx context.Context, id string) error {
	a.see(id)
	a.mu.Lock()
	creation := a.creation
	a.mu.Unlock()
	return a.p.ledger.note(ctx, a.op, creation.Attempt, DispatchedYes, func(r *Record) {
		r.Envelope.Observed, r.Envelope.Account = id, creation.Account
	})
}

// confirmExpiry returns the expiry that the provider reported, by its own clock. It fails closed: a lifetime that was
// asked for and not confirmed would be a sandbox that nobody ends.
func (a *acquisition) confirmExpiry(sb *daytona.Sandbox) (time.Time, error) {
	if a.ttl == 0 {
		return sb.AutoDestroyAt, nil
	}
	latest := time.Duration(a.ttl)*time.Minute + expirySlack
	switch {
	case sb.AutoDestroyAt.IsZero() || sb.CreatedAt.IsZero(): // without the second, the first cannot be judged
		return time.Time{}, &Error{Op: a.op, Kind: KindRefused, Sandbox: sb.ID, Dispatched: DispatchedYes, Message: "the provider did not confirm the requested expiry"}
	case sb.AutoDestroyAt.Sub(sb.CreatedAt) > latest:
		return time.Time{}, &Error{Op: a.op, Kind: KindRefused, Sandbox: sb.ID, Dispatched: DispatchedYes, Message: "the provider confirmed a later expiry than the requested one"}
	}
	return sb.AutoDestroyAt, nil
}

// create submits the creation, and returns the id of the sandbox that it made. Only an answer that proves that this
// request made nothing (rate limit, foreign name) leads to another one.
func (a *acquisition) create(work, step context.Context) (id string, err error) {
	place := a.p.admit.ticket()
	for renames := 0; ; {
		if err := a.p.admit.enter(step, place); err != nil {
			return "", failed(a.op, err)
		}
		sb, err := a.submit(work)
		refusal, ok := err.(*daytona.Error)
		if ok && refusal.RateLimited() {
			a.settled(true)
			a.p.admit.refused(place, refusal.RetryAfter)
			continue
		}
		a.p.admit.leave(place)
		if err == nil {
			return a.created(work, sb)
		}
		if !ok {
			return "", failed(a.op, err)
		}
		switch {
		case refusal.Dispatch == daytona.DispatchNo:
			a.settled(false)
			return "", failed(a.op, err)
		case refusal.NameTaken():
			sb, err := a.sight(work, sightingTime)
			switch {
			case err == nil:
				return sb.ID, nil // our own attempt: its reply was lost on the way, or the request delivered twice
			case !errors.Is(err, ErrNotOwned) || renames == renameLimit:
				return "", err
			}
			renames++
			a.mu.Lock()
			refused := a.creation
			a.creation = a.p.newCreation(a.request.Scope, a.reuse, a.request.Labels)
			a.submitted = false
			a.mu.Unlock()
			a.p.unmarkCreation(refused.target())
			a.p.ledger.settle(work, refused.Attempt, true)
			if err := a.commit(step); err != nil {
				return "", err
			}
		case refusal.Structured && (refusal.Unauthorized() || refusal.Forbidden()):
			a.settled(false) // refused before the request was looked at; a look at the name would be, too
			return "", failed(a.op, err)
		case refusal.Structured && refusal.StartFailed(): // a sandbox was made, and is left behind
			broken := failed(a.op, err)
			broken.Message = "the provider could not start " + a.wanted()
			return "", broken
		case refusal.Structured && refusal.Status < 500 && refusal.Status != 408:
			a.mu.Lock()
			a.refused = true
			a.mu.Unlock()
			refused := failed(a.op, err)
			if refused.Kind == KindRefused || refused.Kind == KindNotFound {
				refused.Message = "the provider refused to make " + a.wanted()
			}
			return "", refused
		default: // no answer, or one that does not say what happened
			sb, sightErr := a.sight(work, sightingTime)
			if sightErr == nil {
				return sb.ID, nil
			}
			if errors.Is(sightErr, ErrNotOwned) {
				return "", sightErr
			}
			uncertain := failed(a.op, err)
			uncertain.Kind, uncertain.Retryable = KindUncertain, false
			uncertain.Message = "the creation was not answered, and no sandbox of its name is visible yet"
			return "", uncertain
		}
	}
}

// wanted says what was asked for, in the caller's words.
func (a *acquisition) wanted() string {
	text := "a sandbox of " + a.request.origin(a.p.cfg.origin()).String()
	if target := a.p.cfg.Target; target != "" {
		text += " in region " + quoted(target)
	}
	return text
}

// settled records that the request that was submitted last made nothing. A refusal says so of the one delivery that it
// answers: the provider's proxy may have delivered the request before, so the name is looked for once more in the end.
func (a *acquisition) settled(refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.submitted, a.refused = false, a.refused || refused
}

// limit sets the lifetime that is left to a sandbox whose creation is sent now, however long it had to wait for that.
func (a *acquisition) limit() error {
	ttl := a.p.cfg.TTL
	if at := a.request.ExpiresAt; !at.IsZero() {
		left := time.Until(at)
		if left < time.Minute {
			return &Error{Op: a.op, Kind: KindTimeout, Dispatched: DispatchedNo, Message: "under one minute was left until the requested expiry when the creation could be sent"}
		}
		if ttl == 0 || left < ttl {
			ttl = left
		}
	}
	a.ttl = int(ttl / time.Minute)
	return nil
}

// submit sends the creation, unless the caller has left: what it took with it says that nothing was sent.
func (a *acquisition) submit(work context.Context) (*daytona.Sandbox, error) {
	cfg, origin := &a.p.cfg, a.request.origin(a.p.cfg.origin())
	if err := a.limit(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	left, creation := a.left, a.creation
	if a.submitted = !left; !left {
		a.earlier, a.refused = a.earlier || a.refused, false // that says nothing of this one
		a.p.markCreation(a.op, creation)
	}
	a.mu.Unlock()
	if left {
		return nil, &Error{Op: a.op, Kind: KindCanceled, Dispatched: DispatchedNo}
	}
	ctx, cancel := context.WithTimeout(work, min(replyHold+cfg.CallTimeout, time.Until(a.until)))
	defer cancel()
	return a.p.clientFor(creation.target()).Create(ctx, daytona.CreateRequest{
		Name: creation.Name, Snapshot: origin.snapshot, Image: origin.image, Language: daytona.Language(cfg.Language),
		Target: cfg.Target, Labels: creation.Labels,
		Resources: daytona.Resources{CPU: origin.resources.CPU, GPU: origin.resources.GPU, Memory: origin.resources.Memory, Disk: origin.resources.Disk},
		AutoStop:  cfg.AutoStopMinutes, AutoArchive: cfg.AutoArchiveMinutes, AutoDelete: cfg.AutoDeleteMinutes,
		TTL: a.ttl,
	})
}

// created checks the reply of the creation: it must be about the sandbox that was asked for.
func (a *acquisition) created(work context.Context, sb *daytona.Sandbox) (id string, err error) {
	a.mu.Lock()
	t := a.creation.target()
	a.mu.Unlock()
	if t.describes(sb) {
		a.p.account.learn(a.p.account.of(sb.OrganizationID))
		return sb.ID, nil
	}
	if sb, err := a.sight(work, sightingTime); err == nil {
		return sb.ID, nil
	}
	return "", &Error{Op: a.op, Kind: KindUncertain, Dispatched: DispatchedYes, Message: "the creation was answered with a sandbox that was not asked for"}
}

// sight looks for the creation's sandbox by its name, for up to patience.
func (a *acquisition) sight(work context.Context, patience time.Duration) (*daytona.Sandbox, error) {
	ctx, cancel := context.WithTimeout(work, max(patience, a.p.cfg.CallTimeout))
	defer cancel()
	a.mu.Lock()
	t := a.creation.target()
	a.mu.Unlock()
	until := time.Now().Add(patience)
	var pause backoff
	for {
		sb, err := a.p.read(ctx, a.op, t)
		if err == nil || errors.Is(err, ErrNotOwned) {
			return sb, err
		}
		if !time.Now().Before(until) || pause.wait(ctx, 0) != nil {
			return nil, err
		}
	}
}

// compensate deletes what the acquisition made, on what is left of its budget, and returns the first failure. Where the
// sandbox could not be proved gone, the error carries the envelope. Not-found of the name proves nothing by itself; with
// the provider's own refusal it confirms that.
func (a *acquisition) compensate(work context.Context, err error) *Error {
	first := a.fail(failed(a.op, err))
	defer func() { a.p.log(first) }()
	a.mu.Lock()
	submitted, refused, observed, creation := a.submitted, a.refused, a.observed, a.creation
	made := submitted || refused || a.earlier // something, perhaps
	a.mu.Unlock()
	if !made {
		a.p.unmarkCreation(creation.target())
		a.p.ledger.settle(work, creation.Attempt, true)
		return first
	}
	if observed == "" {
		sb, err := a.sight(work, 0)
		if err != nil {
			refused = refused || !submitted
			if refused && absentByName(err) {
				a.p.unmarkCreation(creation.target())
				a.p.ledger.settle(work, creation.Attempt, true)
				return first
			}
			if submitted {
				first.Cleanup = a.envelope(first.Phase)
			}
			if refused {
				a.p.markRefused(creation)
			}
			a.p.ledger.leaveAs(work, creation.Attempt, func(r *Record) {
				r.Refused, r.Envelope.Account = refused, a.p.account.known()
			})
			return first
		}
		observed = sb.ID
	}
	err = a.observe(work, observed)
	if err == nil {
		err = a.p.ledger.note(work, a.op, creation.Attempt, DispatchedYes, func(r *Record) {
			r.State, r.Orphan, r.Envelope.Phase = StateEnding, OrphanDestroy, first.Phase
		})
	}
	t := creation.target()
	t.id = observed
	if err == nil {
		_, err = a.p.delete(work, a.op, t)
	}
	if err != nil { // what another process has taken over is in its hands, and what cannot be recorded is not deleted
		a.p.uncleaned(a.op, t)
		first.Cleanup = a.envelope(first.Phase)
		a.p.ledger.leave(work, creation.Attempt)
		return first
	}
	a.p.ledger.settle(work, creation.Attempt, true)
	return first
}

// absentByName reports whether err is the provider's own not-found of a name.
func absentByName(err error) bool {
	e := failed("", err)
	return e.Kind == KindUncertain && e.HTTPStatus == 404
}

// fail fixes the first failure: whatever comes later, its phase and time stay. It returns a copy.
func (a *acquisition) fail(err *Error) *Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first == nil {
		err.Op, err.Phase, err.Elapsed, err.Budget = a.op, a.phase, time.Since(a.began), a.p.cfg.Timeout
		if err.Sandbox == "" {
			err.Sandbox = a.creation.Name
		}
		if a.observed != "" {
			err.Sandbox = a.observed
		}
		a.first = err
	}
	first := *a.first
	return &first
}

// envelope returns what is needed to account for the creation, with what is known of it by now.
func (a *acquisition) envelope(phase Phase) *CleanupEnvelope {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.envelopeLocked(phase)
}

// envelopeLocked is envelope for a caller that has the lock.
func (a *acquisition) envelopeLocked(phase Phase) *CleanupEnvelope {
	a.creation.Account = a.p.account.known() // another acquisition may have learnt it
	return a.creation.envelope(phase, a.observed)
}

// abandon returns the error for a caller that leaves: the compensation goes on without it.
func (a *acquisition) abandon(err *Error) *Error {
	first := a.fail(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = true
	if a.submitted {
		first.Cleanup = a.envelopeLocked(first.Phase)
		if first.Dispatched == "" || first.Dispatched == DispatchedNo {
			first.Dispatched = DispatchedUnknown
		}
	}
	return first
}
