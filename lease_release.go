package leasehold

import (
	"context"
	"errors"
	"time"
)

// drainTime bounds the wait for commands and transfers that are under way when their lease is given back.
const drainTime = 10 * time.Second

// ReceiptState is what a fresh read showed of a sandbox.
type ReceiptState string

// The receipts.
const (
	ReceiptStopped   ReceiptState = "stopped"   // stopped, or archived
	ReceiptDestroyed ReceiptState = "destroyed" // the API no longer knows its id
)

// Receipt is issued after a read that showed the state, never for a request that was merely accepted.
type Receipt struct {
	Sandbox string       `json:"sandbox"` // id
	State   ReceiptState `json:"state"`
	At      time.Time    `json:"at"` // when it was read, by the host's clock
}

// receiptTime is now, in the form that survives JSON.
func receiptTime() time.Time { return time.Now().UTC().Round(0) }

// ReleaseOptions change what [Provider.Release] does. The zero value stops a reusable sandbox and deletes another one.
type ReleaseOptions struct {
	// Retain stops the sandbox even if it is not reusable, after having switched off its automatic deletion and read
	// that back: it stays until it is resumed or destroyed, or its lifetime ends. With Config.Store it fails with
	// [ErrStore], and leaves the sandbox running, if the store cannot be told that a sandbox that was to be deleted is to be
	// kept.
	Retain bool
	// Archive moves the stopped sandbox to cold storage, where it does not count against the storage quota. The
	// receipt says stopped: it does not wait for the move to end.
	Archive bool
}

// Release implements [Provider].
func (p *provider) Release(ctx context.Context, ref LeaseRef, options ReleaseOptions) (_ Receipt, err error) {
	how, first := OrphanDestroy, PhaseDelete
	switch {
	case options.Retain:
		how, first = OrphanRetain, PhaseRetain
	case options.Archive:
		how, first = OrphanStop, PhaseArchive
	case ref.Reuse:
		how, first = OrphanStop, PhaseStop
	}
	return p.giveBack(ctx, "release", ref, how, first, func(work context.Context, op string, ref LeaseRef) (Receipt, error) {
		if options.Retain {
			if receipt, err := p.retain(work, op, ref); err != nil || receipt.State != "" {
				return receipt, err
			}
		}
		switch {
		case options.Archive:
			return p.stop(work, op, ref, goalArchived, PhaseArchive)
		case options.Retain || ref.Reuse:
			return p.stop(work, op, ref, goalStopped, PhaseStop)
		}
		return p.delete(work, op, ref.target())
	})
}

// Destroy implements [Provider].
func (p *provider) Destroy(ctx context.Context, ref LeaseRef) (_ Receipt, err error) {
	return p.giveBack(ctx, "destroy", ref, OrphanDestroy, PhaseDelete, func(work context.Context, op string, ref LeaseRef) (Receipt, error) {
		return p.delete(work, op, ref.target())
	})
}

// ending brings the sandbox of a reference to its end.
type ending func(work context.Context, op string, ref LeaseRef) (Receipt, error)

// giveBack ends the lease's activities and then its sandbox. Once it has begun to, the lease is closed whatever comes of it:
// giving back can be repeated, using the lease cannot be resumed but by [Provider.Resume]. first is the first phase of end, for what fails
// before it.
func (p *provider) giveBack(ctx context.Context, op string, ref LeaseRef, how Disposition, first Phase, end ending) (_ Receipt, err error) {
	ctx, span := p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := ref.check(op); err != nil {
		return Receipt{}, err
	}
	ref = ref.clone() // the work may go on without the caller, whose labels they are
	work, finish, err := p.start(ctx, op, p.about(ref.target()))
	if err != nil {
		return Receipt{}, err
	}
	return background(ctx, op, ref.Sandbox, func() (_ Receipt, err error) {
		defer finish()
		defer func() { err = inPhase(first, ofSandbox(ref.Sandbox, err)) }()
		l, unlock, err := p.lockLifecycle(work, op, ref)
		if err != nil {
			return Receipt{}, err
		}
		defer unlock()
		// Nothing of the sandbox is touched, its sessions and its record included, before it is known to be ours, and the lease
		// not before its sandbox is known to be one that can be stopped.
		err = p.proveOurs(work, op, ref.target())
		if err == nil && (how == OrphanStop || l.hasClosers()) {
			limit := p.cfg.CallTimeout
			if !l.hasClosers() { // to refuse at once is worth a look, and not the wait for who does not answer
				limit /= 5
			}
			looking, cancel := context.WithTimeout(work, limit)
			sb, look := p.read(looking, op, ref.target())
			cancel()
			switch {
			case errors.Is(look, ErrNotOwned):
				err = look
			case look == nil && how == OrphanStop:
				if err := refuseStop(op, ref.target(), sb, next(goalStopped, sb.State, sb.Recoverable)); err != nil {
					p.log(failed(op, err))
					return Receipt{}, err
				}
			} // else the closers and the end of the sandbox will tell
		}
		defer func() {
			if err != nil && !errors.Is(err, ErrNotOwned) {
				p.uncleaned(op, ref.target())
			}
		}()
		defer p.forget(l)
		if err != nil && !errors.Is(err, ErrGone) {
			l.abandon()
			p.log(failed(op, err))
			return Receipt{}, err
		}
		drain, cancel := context.WithTimeout(work, min(drainTime, p.cfg.Timeout/4)) // most of the budget is for the sandbox
		defer cancel()
		l.close(drain)
		added, err := p.ledger.end(work, op, ref, how)
		if err != nil {
			p.log(failed(op, err))
			// Else giving back is better than waiting for the store; but what is to be kept, and is recorded as to be
			// deleted, is not given to the sweep.
			if !errors.Is(err, ErrStore) || how != OrphanDestroy && !ref.Reuse {
				return Receipt{}, err
			}
		}
		receipt, err := end(work, op, ref)
		if err != nil {
			p.log(failed(op, err))
			if added && errors.Is(err, ErrNotOwned) { // nobody could ever settle the record
				p.ledger.settle(work, ref.Attempt, false)
			} else {
				p.ledger.leaveAs(work, ref.Attempt, func(r *Record) { r.State, r.Orphan = StateEnding, how }) // if it is not so yet
			}
			return receipt, err
		}
		p.ledger.settle(work, ref.Attempt, receipt.State == ReceiptDestroyed)
		return receipt, nil
	})
}

// stop stops the sandbox. One that turns out to be gone is as good as destroyed, and the receipt says so.
func (p *provider) stop(ctx context.Context, op string, ref LeaseRef, g goal, phase Phase) (Receipt, error) {
	sb, _, err := p.drive(ctx, op, ref.target(), g)
	if errors.Is(err, ErrGone) {
		return Receipt{Sandbox: ref.Sandbox, State: ReceiptDestroyed, At: receiptTime()}, nil
	}
	if err != nil {
		return Receipt{}, inPhase(phase, err)
	}
	return Receipt{Sandbox: sb.ID, State: ReceiptStopped, At: receiptTime()}, nil
}

// retain switches off automatic deletion, and believes only a fresh read of it.
func (p *provider) retain(ctx context.Context, op string, ref LeaseRef) (Receipt, error) {
	const never = -1
	var pause backoff
	var refusal *Error // of the last request
	for attempt := 1; ; attempt++ {
		sb, err := p.read(ctx, op, ref.target())
		switch {
		case errors.Is(err, ErrGone):
			return Receipt{Sandbox: ref.Sandbox, State: ReceiptDestroyed, At: receiptTime()}, nil
		case err != nil:
			return Receipt{}, inPhase(PhaseRetain, err)
		case sb.AutoDelete != nil && *sb.AutoDelete == never:
			return Receipt{}, nil
		case attempt > readAttempts:
			return Receipt{}, &Error{Op: op, Kind: KindUncertain, Phase: PhaseRetain, Sandbox: ref.Sandbox, Dispatched: DispatchedYes, Message: "the provider did not confirm that automatic deletion is off; the sandbox was not stopped"}
		case attempt > 1:
			var wish time.Duration
			if refusal != nil {
				wish = refusal.RetryAfter
			}
			if err := pause.wait(ctx, wish); err != nil {
				if refusal == nil { // it was accepted, and is not to be seen yet
					refusal = failed(op, err)
					refusal.Sandbox, refusal.Dispatched = ref.Sandbox, DispatchedYes
				}
				return Receipt{}, inPhase(PhaseRetain, outOfTime(ctx, refusal, sb))
			}
		}
		callCtx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
		err = p.clientFor(ref.target()).SetAutoDelete(callCtx, ref.Sandbox, never)
		cancel()
		refusal = failed(op, ofSandbox(ref.Sandbox, err))
		if refusal != nil && !refusal.Retryable && refusal.Kind != KindConflict && refusal.Kind != KindNotFound { // else the next read tells
			return Receipt{}, inPhase(PhaseRetain, refusal)
		}
	}
}

// ProbeReport is what a probe found.
type ProbeReport struct {
	Sandbox   string // id
	Workspace string // absolute directory in the sandbox
	Shell     string // bash or sh
	Acquire   time.Duration
	Destroy   time.Duration
	Bwrap
}

// Probe implements [Provider].
func (p *provider) Probe(ctx context.Context, request AcquireRequest) (ProbeReport, error) {
	const op = "probe"
	var report ProbeReport
	began := time.Now()
	l, err := p.acquire(ctx, op, request, false)
	report.Acquire = time.Since(began)
	if err != nil {
		return report, err
	}
	ref := l.Ref()
	report.Sandbox, report.Workspace, report.Shell, report.Bwrap = ref.Sandbox, ref.Workspace, ref.Shell, ref.Bwrap
	began = time.Now()
	// The sandbox is nobody's but the probe's: the caller's end must not leave it behind.
	_, err = background(ctx, op, ref.Sandbox, func() (Receipt, error) { return p.Destroy(context.WithoutCancel(ctx), ref) })
	report.Destroy = time.Since(began)
	if err != nil {
		mapped := failed(op, err)
		mapped.Cleanup = (creationOperation{Attempt: ref.Attempt, Name: ref.Name, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential, Account: p.account.known()}).envelope(PhaseSentinel, ref.Sandbox)
		return report, mapped
	}
	return report, nil
}
