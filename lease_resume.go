package leasehold

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Resume implements [Provider].
func (p *provider) Resume(ctx context.Context, ref LeaseRef) (_ *Lease, err error) {
	const op = "resume"
	ctx, span := p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := ref.check(op); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, failed(op, ctxError(ctx))
	}
	ref = ref.clone() // the work may go on without the caller, whose labels they are
	for {
		shared := p.resumes.DoChan(ref.key(), func() (any, error) {
			work, finish, err := p.start(context.WithoutCancel(ctx), op, p.about(ref.target()))
			if err != nil {
				return nil, err
			}
			defer finish()
			return p.resume(work, op, ref)
		})
		select {
		case result := <-shared:
			if result.Err != nil {
				return nil, failed(op, result.Err)
			}
			l := result.Val.(*Lease)
			if done, err := l.begin(op); err == nil {
				done()
				return l, nil
			} // else another caller, who shared the attempt, gave the lease back since
		case <-ctx.Done():
			return nil, departed(ctx, op, ref.Sandbox)
		}
	}
}

// resume proves each thing before the next: that the sandbox is there and ours, that it runs, and that its workspace is
// the lease's. Until then nothing is written to it, and whatever fails, it is kept.
func (p *provider) resume(work context.Context, op string, ref LeaseRef) (*Lease, error) {
	l, release, err := p.lockLifecycle(work, op, ref)
	if err != nil {
		return nil, inPhase(PhaseStart, ofSandbox(ref.Sandbox, err))
	}
	defer release()
	began := time.Now()
	added := false // to the store, by this call
	fail := func(phase Phase, err error) (*Lease, error) {
		mapped := failed(op, ofSandbox(ref.Sandbox, err))
		mapped.Phase, mapped.Elapsed, mapped.Budget = phase, time.Since(began), p.cfg.Timeout
		p.log(mapped)
		if !p.unlist(work, ref, added, mapped) && (mapped.Kind == KindGone || mapped.Kind == KindNotOwned) {
			p.ledger.leave(work, ref.Attempt) // of no use, and still to be given back
		}
		if mapped.absent() || mapped.Kind == KindNotOwned { // nothing is left to release
			l.abandon()
			p.forget(l)
		}
		return nil, mapped
	}
	if err := p.proveOurs(work, op, ref.target()); err != nil {
		return fail(PhaseStart, err)
	}
	if added, err = p.ledger.adopt(work, op, ref, true); err != nil {
		return fail(PhaseStart, err)
	}
	again := false
	start := func(ctx context.Context) (*daytona.Sandbox, error) {
		sb, put, err := p.startRecorded(ctx, op, ref, again)
		added, again = added || put, true
		return sb, err
	}
	sb, err := start(work)
	if err != nil {
		return fail(PhaseStart, err)
	}
	box := l.client.Toolbox(sb)
	found, err := p.verify(work, op, box, ref, start)
	if err != nil {
		return fail(PhaseSentinel, err)
	}
	l.bwrap.find(found)
	l.bwrap.listChanged() // by another host, perhaps
	l.connected(op, box)
	return l, nil
}

// startRecorded has the sandbox of a lease run, and recorded if it runs or may: while this waits, another host may give the
// lease back, and remove its record. If it is done again, nothing is written unless the sandbox had to be started again. It
// reports whether it added a record.
func (p *provider) startRecorded(ctx context.Context, op string, ref LeaseRef, again bool) (sb *daytona.Sandbox, added bool, err error) {
	sb, sent, err := p.drive(ctx, op, ref.target(), goalStarted)
	if err == nil {
		p.allocated(op, ref.target()) // it may have run before
		if again && sent == DispatchedNo {
			return sb, false, nil
		}
		added, err = p.ledger.confirm(ctx, op, ref, sent)
		return sb, added, err
	}
	if e := failed(op, err); sent == DispatchedNo || e.absent() || e.Kind == KindNotOwned { // nothing was started
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.CallTimeout)
	defer cancel()
	added, unrecorded := p.ledger.confirm(ctx, op, ref, sent)
	if unrecorded != nil {
		p.log(failed(op, unrecorded))
	}
	return nil, added, err
}

// unlist removes the record of a lease whose sandbox err proves not to exist, or to be another's: a record that was added
// for that nobody could ever settle. It reports whether it was one of these.
func (p *provider) unlist(ctx context.Context, ref LeaseRef, added bool, err *Error) bool {
	if !err.absent() && (!added || err.Kind != KindNotOwned) {
		return false
	}
	p.ledger.settle(ctx, ref.Attempt, err.absent())
	return true
}

// absent reports whether the error proves that the sandbox does not exist any more.
func (e *Error) absent() bool { return e.Reason == ReasonNotFound || e.Reason == ReasonExpired }

// lockLifecycle returns the open lease of ref, with the right to start, stop or delete its sandbox until release is
// called.
func (p *provider) lockLifecycle(ctx context.Context, op string, ref LeaseRef) (l *Lease, release func(), err error) {
	for {
		l := p.bind(ref)
		select {
		case l.lifecycle <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, failed(op, ctxError(ctx))
		}
		l.mu.Lock()
		closed := l.closed
		l.mu.Unlock()
		if !closed {
			return l, func() { <-l.lifecycle }, nil
		}
		<-l.lifecycle // it was given back while we waited: the next bind makes a new one
	}
}
