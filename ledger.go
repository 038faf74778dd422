package leasehold

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// storeAttempts bounds the repeats of one write to the store.
const storeAttempts = 3

// ledger is a provider's hold on its records. It keeps their claims, keeps the provider alive as their owner, and goes on
// trying where the store could not be told that a record is settled. Without a store its methods do nothing.
type ledger struct {
	store   Store // nil: none
	owner   string
	ttl     time.Duration // of the owner, for each renewal
	timeout time.Duration // of one call of the store
	debts   *subject      // what the store could not be told yet is counted under

	mu      sync.Mutex
	claims  map[string]Claim         // by attempt: what we hold, with the record as it was written last
	loose   map[string]debt          // by attempt: what the store could not be told yet
	doubts  map[string]bool          // by attempt: whose last write was not answered, see doubt
	busy    map[string]chan struct{} // by attempt: closed when who changes the record of a lease, or pays, is done with it
	renewed time.Time                // when the last renewal that succeeded was begun
	beats   context.CancelFunc
	beating sync.WaitGroup
}

// debt is what the store is still to be told of a record that we are done with.
type debt struct {
	removed bool   // it is settled: remove it; else it is to be swept
	record  Record // as it is to be left, unless it is removed; the zero value: as it is found
}

func newLedger(cfg *Config, debts *subject) *ledger {
	return &ledger{
		debts: debts, store: cfg.Store, owner: "host-" + uuid.NewString(), ttl: cfg.ClaimTime, timeout: cfg.CallTimeout,
		claims: make(map[string]Claim), loose: make(map[string]debt), doubts: make(map[string]bool),
		busy: make(map[string]chan struct{}),
	}
}

// open records a creation before it is sent.
func (g *ledger) open(ctx context.Context, op string, record Record) error {
	if g.store == nil {
		return nil
	}
	attempt := record.Envelope.Attempt
	claim, err := g.put(ctx, op, record)
	if err != nil {
		g.owe(attempt, debt{removed: true}) // it may be there, and would be swept for as long as nobody saw its sandbox
		mapped := storeError(op, err)
		mapped.Dispatched = DispatchedNo
		mapped.Message = strings.TrimSuffix("the creation could not be recorded, so it was not sent: "+mapped.Message, ": ")
		return mapped
	}
	g.hold(claim)
	return nil
}

// put adds a record. A put whose answer was lost is found again by the repeat.
func (g *ledger) put(ctx context.Context, op string, record Record) (claim Claim, err error) {
	err = g.try(ctx, func(ctx context.Context, again bool) error {
		claim, err = g.store.Put(ctx, record, g.owner)
		if again && errors.Is(err, ErrConflict) {
			claim, err = g.store.Claim(ctx, record.Envelope.Attempt, g.owner)
		}
		return err
	})
	if err != nil {
		g.doubt(record.Envelope.Attempt, err)
	}
	return claim, err
}

// adopt makes a lease ours that another host, or an earlier life of this one, may have acquired. It reports whether there
// was no record of it. That we hold it already proves nothing: another host may have taken it over since. One that is being
// given back is left to that, unless it is to be revived.
func (g *ledger) adopt(ctx context.Context, op string, ref LeaseRef, revive bool) (added bool, err error) {
	if g.store == nil {
		return false, nil
	}
	err = g.change(ctx, op, ref, func(r *Record, isNew bool) error {
		switch added = isNew; {
		case r.State == StateEnding && !revive:
			return errGivenBack
		case added: // somebody kept it, with its reference: that the host dies does not make it worthless
			r.Orphan = OrphanStop
		case r.State == StateEnding && r.Orphan == OrphanDestroy && ref.Reuse: // it was not destroyed
			r.Orphan = OrphanStop
		}
		r.State, r.Failures, r.Outcome, r.Status, r.TriedAt = StateLeased, 0, "", 0, time.Time{}
		return nil
	})
	return added, err
}

// resolve makes a lease ours, if nothing says that it is already, or that it is being given back: then it fails with
// [KindClosed]. It reports whether there was no record of it.
func (g *ledger) resolve(ctx context.Context, op string, ref LeaseRef) (added bool, err error) {
	g.mu.Lock()
	claim, held := g.claims[ref.Attempt]
	_, owed := g.loose[ref.Attempt]
	doubtful := g.doubts[ref.Attempt]
	g.mu.Unlock()
	if held && !owed && !doubtful && claim.Record.State == StateLeased && claim.of(ref) {
		return false, nil
	}
	return g.adopt(ctx, op, ref, false)
}

// confirm sees to it that a lease whose sandbox was just started, or may have been, is recorded. Another host may have given
// the lease back meanwhile, and removed its record: then it is added. If another host has it now it is that host's, and this
// fails with [KindFenced]. It reports whether it added the record. Of the start, sent is what an error says.
func (g *ledger) confirm(ctx context.Context, op string, ref LeaseRef, sent Dispatch) (added bool, err error) {
	if g.store == nil {
		return false, nil
	}
	err = g.note(ctx, op, ref.Attempt, sent, func(*Record) {})
	if !errors.Is(err, ErrFenced) {
		return false, err
	}
	record := leaseRecord(ref)
	record.Orphan = OrphanStop
	claim, putErr := g.put(ctx, op, record)
	switch {
	case putErr == nil:
		g.hold(claim)
		return true, nil
	case errors.Is(putErr, ErrConflict):
		return false, err
	}
	mapped := storeError(op, putErr)
	mapped.Sandbox, mapped.Dispatched = ref.Sandbox, sent
	return false, mapped
}

// end records, before anything is done about it, that a lease is to be given back, and how. It reports whether there was no
// record of it.
func (g *ledger) end(ctx context.Context, op string, ref LeaseRef, how Disposition) (added bool, err error) {
	if g.store == nil {
		return false, nil
	}
	var pause backoff
	for {
		err := g.change(ctx, op, ref, func(r *Record, isNew bool) error {
			added, r.State, r.Orphan = isNew, StateEnding, how
			return nil
		})
		if !errors.Is(err, ErrConflict) || pause.wait(ctx, 0) != nil { // a sweep has it, which will come to an end
			return added, err
		}
	}
}

// revision is a change of a lease's record, or why there is none.
type revision func(r *Record, added bool) error

// change writes the record of a lease: the one that we hold, else another host's, which is taken over, else a new one. If
// that fails, what was owed of the record is owed again.
func (g *ledger) change(ctx context.Context, op string, ref LeaseRef, f revision) error {
	owed, owes, done, err := g.redeem(ctx, ref.Attempt)
	if err != nil {
		return ofSandbox(ref.Sandbox, failed(op, err))
	}
	defer done()
	held, err := g.rewrite(ctx, op, ref, owed, f)
	if errors.Is(err, ErrFenced) { // the caller, who has the reference, takes it back
		held, owes = false, false // what was owed of it was another's to settle
	}
	if !held {
		var left bool
		left, err = g.takeOver(ctx, op, ref, f)
		owes = owes && !left
		if errors.Is(err, ErrNotFound) {
			err = g.add(ctx, op, ref, f)
		}
	}
	if err == nil {
		return nil
	}
	mapped := failed(op, err)
	if mapped.Kind != KindNotOwned {
		mapped = storeError(op, err)
	}
	if owes && mapped.Kind != KindFenced && mapped.Kind != KindNotFound {
		g.owe(ref.Attempt, owed)
	}
	mapped.Sandbox, mapped.Dispatched = ref.Sandbox, DispatchedNo
	if mapped.Kind == KindConflict {
		mapped.Retryable, mapped.Message = true, "another process is giving the sandbox back"
	}
	return mapped
}

// rewrite writes the record of a lease if we hold it, as far as we know, and reports whether we do. What it is to be left as
// counts, and not what the store was told last.
func (g *ledger) rewrite(ctx context.Context, op string, ref LeaseRef, owed debt, f revision) (held bool, err error) {
	g.mu.Lock()
	claim, held := g.claims[ref.Attempt]
	g.mu.Unlock()
	switch {
	case !held:
		return false, nil
	case !claim.of(ref):
		return true, othersRecord(op, ref.Sandbox)
	}
	if owed.record.Version != 0 {
		claim.Record = owed.record
	}
	claim.Record = claim.Record.clone()
	if err := f(&claim.Record, false); err != nil {
		return true, err
	}
	return true, g.update(ctx, claim)
}

// takeOver claims the record of a lease from whoever has it, and writes it. If it cannot be written it is as it was, and
// the sweep's, but for that of a lease: see giveUp. It reports whether it was claimed, and left as it was because it is not
// to be written.
func (g *ledger) takeOver(ctx context.Context, op string, ref LeaseRef, f revision) (left bool, err error) {
	var claim Claim
	err = g.try(ctx, func(ctx context.Context, _ bool) (err error) {
		claim, err = g.store.Claim(ctx, ref.Attempt, g.owner)
		return err
	})
	if err != nil {
		g.doubt(ref.Attempt, err)
		return false, err
	}
	was := claim
	lease := ref.clone()
	claim.Record = was.Record.clone()
	claim.Record.Lease, claim.Record.Envelope.Observed = &lease, ref.Sandbox
	if !was.of(ref) {
		err = othersRecord(op, ref.Sandbox)
	} else {
		err = f(&claim.Record, false)
	}
	if err != nil {
		g.giveUp(ctx, was)
		return true, err
	}
	g.hold(was)
	if reflect.DeepEqual(claim.Record, was.Record) { // the claim is all that changes
		return false, nil
	}
	err = g.update(ctx, claim)
	if err != nil && !errors.Is(err, ErrFenced) && was.Record.State != StateLeased {
		g.owe(ref.Attempt, debt{record: was.Record})
	}
	return false, err
}

// add adds a record of a lease that has none.
func (g *ledger) add(ctx context.Context, op string, ref LeaseRef, f revision) error {
	record := leaseRecord(ref)
	if err := f(&record, true); err != nil {
		return err
	}
	claim, err := g.put(ctx, op, record)
	if err == nil {
		g.hold(claim)
	}
	return err
}

// othersRecord is why a record is not touched: it is not of the sandbox that it was looked up for.
func othersRecord(op, sandbox string) *Error {
	return &Error{Op: op, Kind: KindNotOwned, Sandbox: sandbox, Dispatched: DispatchedNo, Message: "its durable record is of another sandbox"}
}

// reclaim takes the record of an envelope to delete its sandbox, and reports whether there is one.
func (g *ledger) reclaim(ctx context.Context, op string, e CleanupEnvelope) (recorded bool, err error) {
	if g.store == nil {
		return false, nil
	}
	g.mu.Lock()
	claim, held := g.claims[e.Attempt]
	g.mu.Unlock()
	if !held {
		err := g.try(ctx, func(ctx context.Context, _ bool) (err error) {
			claim, err = g.store.Claim(ctx, e.Attempt, g.owner)
			return err
		})
		if errors.Is(err, ErrNotFound) {
			return false, nil
		}
		if err != nil {
			mapped := storeError(op, err)
			if mapped.Kind == KindStore { // it may be ours now, and nobody else can have it then while we live
				g.owe(e.Attempt, debt{})
			}
			mapped.Sandbox, mapped.Dispatched = e.Observed, DispatchedNo
			if mapped.Kind == KindConflict {
				mapped.Retryable, mapped.Message = true, "another process is cleaning it up"
			}
			return true, mapped
		}
	}
	if r := claim.Record.Envelope; r.Name != e.Name || r.Scope != e.Scope || r.Credential != e.Credential || !maps.Equal(r.Labels, e.Labels) ||
		r.Observed != "" && r.Observed != e.Observed {
		if !held {
			g.giveUp(ctx, claim)
		}
		return true, othersRecord(op, e.Observed)
	}
	g.hold(claim)
	err = g.note(ctx, op, e.Attempt, DispatchedNo, func(r *Record) {
		r.State, r.Orphan, r.Envelope.Observed = StateEnding, OrphanDestroy, e.Observed
	})
	if err != nil && !held {
		g.giveUp(ctx, claim)
	}
	return true, err
}

// of reports whether the claim is that of a lease, as far as its record says.
func (c Claim) of(ref LeaseRef) bool {
	return c.Record.Lease == nil || c.Record.Lease.key() == ref.key()
}

// giveUp leaves a record to the sweep, as it was when it was claimed. That of a lease may have been taken from a living
// host: it stays ours, so that no sweep ends what is in use, until that host, or whoever has the reference, takes it back.
func (g *ledger) giveUp(ctx context.Context, claim Claim) {
	g.hold(claim)
	if claim.Record.State != StateLeased {
		g.leave(ctx, claim.Record.Envelope.Attempt)
	}
}

// leaseRecord returns the record of a lease that has none.
func leaseRecord(ref LeaseRef) Record {
	creation := creationOperation{Attempt: ref.Attempt, Name: ref.Name, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential}
	if ref.Account != ref.Credential {
		creation.Account = ref.Account
	}
	lease := ref.clone()
	return Record{
		Version: recordVersion, State: StateLeased, Envelope: *creation.envelope(PhaseCreate, ref.Sandbox), Lease: &lease,
		Orphan: OrphanDestroy, CreatedAt: ref.CreatedAt,
	}
}

// note writes a change of a record that we hold. It fails with [KindFenced] if somebody else has taken it. What it is
// written for was sent by then, or not: an error says so.
func (g *ledger) note(ctx context.Context, op, attempt string, sent Dispatch, f func(*Record)) error {
	if g.store == nil {
		return nil
	}
	g.mu.Lock()
	claim, held := g.claims[attempt]
	g.mu.Unlock()
	err := ErrFenced
	if held {
		claim.Record = claim.Record.clone()
		f(&claim.Record)
		err = g.update(ctx, claim)
	}
	if err == nil {
		return nil
	}
	mapped := storeError(op, err)
	mapped.Sandbox, mapped.Dispatched = claim.Record.Envelope.Observed, sent
	return mapped
}

// update writes a claim's record.
func (g *ledger) update(ctx context.Context, claim Claim) error {
	err := g.try(ctx, func(ctx context.Context, _ bool) error { return g.store.Update(ctx, claim, claim.Record) })
	if err == nil {
		g.hold(claim)
		return nil
	}
	if errors.Is(err, ErrFenced) {
		g.drop(claim)
	}
	g.doubt(claim.Record.Envelope.Attempt, err)
	return err
}

// settle removes the record of a sandbox that is accounted for: it is gone, or was never asked for, or else it is given
// back and waits for the next to use it. Then a record that is not ours is not ours to remove: another host may have the
// lease by now. What the store cannot be told now it is told later.
func (g *ledger) settle(ctx context.Context, attempt string, gone bool) {
	if g.store == nil {
		return
	}
	g.mu.Lock()
	_, held := g.claims[attempt]
	g.mu.Unlock()
	switch {
	case held:
		ctx, cancel := g.detached(ctx)
		defer cancel()
		g.pay(ctx, attempt, debt{removed: true})
	case gone:
		g.owe(attempt, debt{removed: true})
	}
}

// leave leaves a record to the sweep.
func (g *ledger) leave(ctx context.Context, attempt string) {
	g.leaveAs(ctx, attempt, func(*Record) {})
}

// leaveAs leaves a record, changed, to the sweep.
func (g *ledger) leaveAs(ctx context.Context, attempt string, f func(*Record)) {
	if g.store == nil {
		return
	}
	g.mu.Lock()
	claim, held := g.claims[attempt]
	g.mu.Unlock()
	if held {
		ctx, cancel := g.detached(ctx)
		defer cancel()
		record := claim.Record.clone()
		f(&record)
		g.pay(ctx, attempt, debt{record: record})
	}
}

// detached returns a bounded context that does not end with an operation: that its budget has ended, or its provider is
// being closed, is no reason to keep a record from others.
func (g *ledger) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), g.timeout)
}

// pay tells the store, once it can be reached, that we are done with a record. Until then the claim is kept: a new one
// could be taken from a host that has taken the lease over.
func (g *ledger) pay(ctx context.Context, attempt string, d debt) {
	g.mu.Lock()
	claim, held := g.claims[attempt]
	delete(g.loose, attempt)
	g.mu.Unlock()
	err := g.try(ctx, func(ctx context.Context, _ bool) (err error) {
		if !held {
			if claim, err = g.store.Claim(ctx, attempt, g.owner); err != nil {
				return err
			}
			held = true
			g.hold(claim)
		}
		if d.removed {
			return g.store.Delete(ctx, claim)
		}
		if d.record.Version == 0 {
			return g.store.Release(ctx, claim, claim.Record, 0)
		}
		return g.store.Release(ctx, claim, d.record, 0)
	})
	if err != nil && !errors.Is(err, ErrFenced) && !errors.Is(err, ErrNotFound) {
		g.owe(attempt, d)
		return
	}
	g.drop(claim)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.doubts, attempt)
	g.unmark()
}

// redeem takes what is owed off the list, for a caller who sees to the record itself, and alone until it calls done. It
// waits for who does so now: what that finds, and leaves as it was, must not undo what the next has written.
func (g *ledger) redeem(ctx context.Context, attempt string) (owed debt, owes bool, done func(), err error) {
	for {
		g.mu.Lock()
		busy := g.busy[attempt]
		if busy == nil {
			owed, owes = g.loose[attempt]
			delete(g.loose, attempt)
			done = g.occupy(attempt)
			g.mu.Unlock()
			return owed, owes, done, nil
		}
		g.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return debt{}, false, nil, ctxError(ctx)
		}
	}
}

// occupy keeps a record to the caller, who has the lock and calls done without it.
func (g *ledger) occupy(attempt string) (done func()) {
	free := make(chan struct{})
	g.busy[attempt] = free
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.busy, attempt)
		g.unmark()
		close(free)
	}
}

// owe puts down what the store could not be told. However much it is, it counts as one: see unmark.
func (g *ledger) owe(attempt string, d debt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loose[attempt] = d
	g.debts.Mark(string(ActivityCleanup), "record", "", target{})
	g.start()
}

// unmark counts nothing as owed, once nothing is, nor is about to be again. The caller has the lock.
func (g *ledger) unmark() {
	if len(g.loose)+len(g.busy) == 0 {
		g.debts.Unmark(string(ActivityCleanup), "")
	}
}

// doubt notes that a write of a record failed. If nothing answered it may have happened: the record may be ours, and we stay
// alive for that, and what we know of it may be out of date.
func (g *ledger) doubt(attempt string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if storeAnswered(err) {
		delete(g.doubts, attempt)
	} else {
		g.doubts[attempt] = true
	}
}

func (g *ledger) hold(claim Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	attempt := claim.Record.Envelope.Attempt
	if held, ok := g.claims[attempt]; !ok || held.Token <= claim.Token {
		g.claims[attempt] = claim
		delete(g.doubts, attempt)
	}
}

func (g *ledger) drop(claim Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	attempt := claim.Record.Envelope.Attempt
	if held, ok := g.claims[attempt]; ok && held.Token <= claim.Token {
		delete(g.claims, attempt)
	}
}

// payAll tries once more to tell the store what it could not be told.
func (g *ledger) payAll(ctx context.Context) {
	g.mu.Lock()
	loose := slices.Collect(maps.Keys(g.loose))
	g.mu.Unlock()
	for _, attempt := range loose {
		g.mu.Lock()
		d, owed := g.loose[attempt]
		if !owed || g.busy[attempt] != nil {
			g.mu.Unlock()
			continue
		}
		done := g.occupy(attempt)
		g.mu.Unlock()
		g.pay(ctx, attempt, d)
		done()
	}
}

// close stops renewing, after a last, bounded try to pay what is owed, even if ctx has ended. What we hold stays ours until
// the claim time has passed: a host that is restarted takes it up again.
func (g *ledger) close(ctx context.Context) {
	g.mu.Lock()
	stop := g.beats
	g.beats = func() {} // it does not begin any more
	g.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	g.beating.Wait()
	ctx, cancel := g.detached(ctx)
	defer cancel()
	g.payAll(ctx)
}
