package leasehold

import (
	"context"
	"errors"
	"maps"
)

const envelopeVersion = 1

// CleanupEnvelope is a creation that could not be accounted for. It is plain data without secrets: store its JSON form
// until [Provider.Cleanup] has returned a receipt for it. With [Config.Store] a record of it is kept already, for a [Sweeper].
type CleanupEnvelope struct {
	Version    int               `json:"version"`
	Name       string            `json:"name"`
	Attempt    string            `json:"attempt"`
	Scope      Scope             `json:"scope"`
	Labels     map[string]string `json:"labels"`             // at most 16
	Credential string            `json:"credential"`         // fingerprint of endpoint and credential
	Account    string            `json:"account,omitempty"`  // fingerprint of endpoint and organisation, if the API attested it by then
	Observed   string            `json:"observed,omitempty"` // the sandbox's id, once it was seen with every label right
	Phase      Phase             `json:"phase"`              // the step that failed first, for people: nothing depends on it
}

// ParseCleanupEnvelope decodes a stored envelope. One bad value voids it: then it fails with [ErrInvalid]. Unknown
// fields are ignored.
func ParseCleanupEnvelope(data []byte) (CleanupEnvelope, error) {
	return parse[CleanupEnvelope]("parse envelope", "CleanupEnvelope", data)
}

func (e CleanupEnvelope) check(op string) error {
	var p problems
	e.problems(&p)
	return p.err(op)
}

func (e CleanupEnvelope) problems(p *problems) {
	if e.Version != envelopeVersion {
		p.add("CleanupEnvelope.Version", "is %d: this package reads %d", e.Version, envelopeVersion)
		return
	}
	checkIdentifier(p, "CleanupEnvelope.Name", e.Name, true)
	checkIdentifier(p, "CleanupEnvelope.Attempt", e.Attempt, true)
	e.Scope.check(p, "CleanupEnvelope.Scope")
	checkLabels(p, "CleanupEnvelope.Labels", e.Labels)
	checkCreationLabels(p, "CleanupEnvelope", e.Name, e.Attempt, e.Scope, e.Labels)
	checkFingerprint(p, "CleanupEnvelope.Credential", e.Credential)
	if e.Account != "" {
		checkFingerprint(p, "CleanupEnvelope.Account", e.Account)
	}
	checkIdentifier(p, "CleanupEnvelope.Observed", e.Observed, false)
	switch e.Phase {
	case PhaseCreate, PhaseWorkspace, PhaseShell, PhaseExpiry, PhaseSentinel:
	default:
		p.add("CleanupEnvelope.Phase", "is not a phase of an acquisition")
	}
}

// clone returns a copy that shares nothing.
func (e CleanupEnvelope) clone() CleanupEnvelope {
	e.Labels = maps.Clone(e.Labels)
	return e
}

func (e CleanupEnvelope) target() target {
	return target{id: e.Observed, name: e.Name, attempt: e.Attempt, scope: e.Scope, labels: e.Labels, account: e.Account, credential: e.Credential}
}

// Inspect implements [Provider].
func (p *provider) Inspect(ctx context.Context, envelope CleanupEnvelope) (_ CleanupEnvelope, err error) {
	const op = "inspect"
	ctx, span := p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := p.checkEnvelope(op, envelope); err != nil {
		return envelope, err
	}
	own := envelope.clone() // what is known of its sandbox outlives the call, and both envelopes are the caller's
	work, finish, err := p.start(ctx, op, p.about(own.target()))
	if err != nil {
		return envelope, err
	}
	found, err := background(ctx, op, own.target().label(), func() (CleanupEnvelope, error) {
		defer finish()
		found := own
		if found.Observed == "" {
			found.Observed = p.sighting(found.Attempt)
		}
		sb, err := p.read(work, op, found.target())
		switch {
		case err == nil:
			found.Observed = sb.ID
			if found.Account == "" {
				found.Account = p.account.known()
			}
		case found.Observed != "" && errors.Is(err, ErrGone):
			err = nil // Cleanup will say so, with a receipt
		}
		return found, err
	})
	if found.Version != 0 { // else the caller left before
		envelope.Observed, envelope.Account = found.Observed, found.Account
	}
	return envelope, err
}

// Cleanup implements [Provider].
func (p *provider) Cleanup(ctx context.Context, envelope CleanupEnvelope) (_ Receipt, err error) {
	const op = "cleanup"
	ctx, span := p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := p.checkEnvelope(op, envelope); err != nil {
		return Receipt{}, err
	}
	if envelope.Observed == "" {
		return Receipt{}, &Error{Op: op, Kind: KindUncertain, Sandbox: envelope.Name, Dispatched: DispatchedNo, Message: "no sandbox was observed yet: inspect first, and store what it returns"}
	}
	envelope = envelope.clone() // the work may go on without the caller, whose labels they are
	work, finish, err := p.start(ctx, op, p.about(envelope.target()))
	if err != nil {
		return Receipt{}, err
	}
	return background(ctx, op, envelope.Observed, func() (_ Receipt, err error) {
		defer finish()
		defer func() {
			err = inPhase(PhaseDelete, ofSandbox(envelope.Observed, err))
			if err != nil && !errors.Is(err, ErrNotOwned) {
				p.uncleaned(op, envelope.target())
			}
		}()
		if err := p.proveOurs(work, op, envelope.target()); err != nil && !errors.Is(err, ErrGone) {
			p.log(failed(op, err))
			return Receipt{}, err
		}
		recorded, err := p.ledger.reclaim(work, op, envelope)
		if err != nil {
			p.log(failed(op, err))
			return Receipt{}, err // the record would be looked for by its name for ever, if it never learnt the id
		}
		receipt, err := p.delete(work, op, envelope.target())
		if err != nil {
			p.log(failed(op, err))
			p.ledger.leave(work, envelope.Attempt)
			return Receipt{}, err
		}
		p.accounted(envelope)
		if recorded {
			p.ledger.settle(work, envelope.Attempt, true)
		}
		return receipt, nil
	})
}

// checkEnvelope refuses an envelope that is malformed, or whose account cannot be ours: it names no organisation, and
// another credential. Whether an organisation is ours the API attests, with what it answers.
func (p *provider) checkEnvelope(op string, e CleanupEnvelope) error {
	if err := e.check(op); err != nil {
		return err
	}
	if e.Account == "" && e.Credential != p.account.credential {
		return &Error{Op: op, Kind: KindNotOwned, Sandbox: e.Name, Dispatched: DispatchedNo, Message: "the envelope was made under another endpoint or credential"}
	}
	return nil
}

// delete deletes the target and proves it. The target's id must be stored by now, wherever the caller keeps it.
func (p *provider) delete(ctx context.Context, op string, t target) (Receipt, error) {
	_, _, err := p.drive(ctx, op, t, goalDestroyed)
	if errors.Is(err, ErrGone) {
		return Receipt{Sandbox: t.id, State: ReceiptDestroyed, At: receiptTime()}, nil
	}
	if err == nil { // nothing but not-found ends this goal
		err = &Error{Op: op, Kind: KindProtocol, Sandbox: t.id}
	}
	return Receipt{}, err
}
