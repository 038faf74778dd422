package leasehold

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

const (
	// replyHold is how long the API may hold the reply to a creation or a start until the sandbox runs.
	replyHold = 30 * time.Second
	// readAttempts bounds the repeats of one read that fails in a way that a repeat may mend.
	readAttempts = 4
	// refusalLimit is how many refusals of an action in a row, each followed by a fresh read that still asks for it,
	// end the attempt. One refusal can be the answer to a state that has changed by the time it is read.
	refusalLimit = 2
)

// goal is the state that a sandbox is driven to.
type goal int

const (
	goalStarted goal = iota
	goalStopped
	goalArchived
	goalDestroyed
)

// step is what is to be done next about a sandbox.
type step int

const (
	stepWait step = iota // for the provider
	stepDone
	stepFail // no way from here to the goal
	stepStart
	stepRecover
	stepStop
	stepArchive
	stepRevoke
	stepDelete
)

// next is the state machine of all operations: what to do about a sandbox in this state to bring it to the goal. A state
// it does not know is waited for.
func next(g goal, state daytona.State, recoverable bool) step {
	switch state {
	case daytona.StateDestroying, daytona.StateDestroyed:
		return stepWait // until the API no longer knows the id, which ends every goal
	}
	if g == goalDestroyed {
		return stepDelete
	}
	switch state {
	case daytona.StateError:
		if g == goalStarted && recoverable {
			return stepRecover
		}
		return stepFail
	case daytona.StateBuildFailed:
		return stepFail
	case daytona.StateStarted:
		if g == goalStarted {
			return stepDone
		}
		return stepStop
	case daytona.StatePaused:
		if g == goalStarted {
			return stepStart
		}
		return stepStop // a paused sandbox holds its memory
	case daytona.StateStopped:
		switch g {
		case goalStarted:
			return stepStart
		case goalArchived:
			return stepArchive
		}
		return stepDone
	case daytona.StateArchived:
		if g == goalStarted {
			return stepStart
		}
		return stepDone
	case daytona.StateArchiving:
		if g == goalStarted {
			return stepWait
		}
		return stepDone // stopped, and on its way to cold storage
	}
	return stepWait
}

// target is a sandbox, with everything recorded about it that must match before it is touched.
type target struct {
	id         string // empty: only the name is known
	name       string
	attempt    string // of its creation
	scope      Scope
	labels     map[string]string
	account    string // empty: not attested yet
	credential string
	expires    time.Time
	refused    bool // its creation was, whenever it was sent: not-found of its name confirms that
}

func (r LeaseRef) target() target {
	return target{id: r.Sandbox, name: r.Name, attempt: r.Attempt, scope: r.Scope, labels: r.Labels, account: r.Account, credential: r.Credential, expires: r.ExpiresAt}
}

// label returns what the target is called in errors.
func (t target) label() string {
	if t.id != "" {
		return t.id
	}
	return t.name
}

// describes reports whether a sandbox that the API returned is the target: the id, the name and every recorded label. A
// deletion that was accepted changes the name to DESTROYED_<name>_<milliseconds>. An id that cannot be recorded is not
// ours.
func (t target) describes(sb *daytona.Sandbox) bool {
	renamed := sb.State == daytona.StateDestroying || sb.State == daytona.StateDestroyed
	switch {
	case t.id != "" && sb.ID != t.id, !identifierForm.MatchString(sb.ID):
		return false
	case sb.Name != t.name && !(renamed && strings.HasPrefix(sb.Name, "DESTROYED_"+t.name+"_")):
		return false
	}
	for key, value := range t.labels {
		if got, ok := sb.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// read reads the target by id (else by name) and verifies that it is ours. Not-found of an id under the account that
// the target belongs to, which is attested anew for it, is [KindGone]; not-found that proves nothing is [KindUncertain].
// What a repeat may mend is repeated a few times, and not after Config.CallTimeout without an answer: a provider that
// swallows requests costs one CallTimeout, and not one for each attempt.
//
// What it sees at rest, or gone, is no longer counted as active, unless something else of the sandbox is, or comes, while
// it looks.
func (p *provider) read(ctx context.Context, op string, t target) (*daytona.Sandbox, error) {
	return p.look(ctx, op, t, false)
}

// look does the work of read. If wide, what is active in the target's whole scope counts as something else, too.
func (p *provider) look(ctx context.Context, op string, t target, wide bool) (*daytona.Sandbox, error) {
	var pause backoff
	heard := time.Now() // when the provider was last known to answer
	for attempt := 1; ; attempt++ {
		sb, err := p.lookOnce(ctx, op, t, wide)
		if err == nil {
			return sb, nil
		}
		if err.Kind == KindRateLimited {
			heard = time.Now()
		}
		if !err.Retryable || attempt == readAttempts || time.Since(heard) >= p.cfg.CallTimeout {
			return nil, err
		}
		if pause.wait(ctx, err.RetryAfter) != nil {
			return nil, err
		}
	}
}

// lookOnce is one attempt of look.
func (p *provider) lookOnce(ctx context.Context, op string, t target, wide bool) (*daytona.Sandbox, *Error) {
	evidence := p.about(t).Evidence(ownEntry(ctx), wide)
	sb, err := p.readOnce(ctx, t)
	if err == nil {
		if attested := p.account.of(sb.OrganizationID); t.describes(sb) && p.account.owns(t, attested) {
			p.account.learn(attested)
			if p.found(op, t, sb.ID); t.id != "" && rests(sb) {
				evidence.Clear()
			}
			return sb, nil
		}
		return nil, &Error{Op: op, Kind: KindNotOwned, Sandbox: t.label(), Dispatched: DispatchedYes, Message: "its name, labels or account differ from the recorded ones: nothing was done to it"}
	}
	mapped := failed(op, err)
	if mapped.Kind == KindNotFound {
		if mapped = p.absent(ctx, op, t); mapped.Kind == KindGone {
			evidence.Clear()
		}
	}
	mapped.Sandbox = t.label()
	return nil, mapped
}

func (p *provider) readOnce(ctx context.Context, t target) (*daytona.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	id := t.id
	if id == "" {
		id = t.name
	}
	return p.looking(t).Get(ctx, id)
}

// absent says what the API's own not-found means for the target. The API masks what our credential may not see as
// not-found, so it is proof only if the API attests, after it, that our credential is good and of the sandbox's account.
func (p *provider) absent(ctx context.Context, op string, t target) *Error {
	e := &Error{Op: op, Kind: KindUncertain, HTTPStatus: 404, Dispatched: DispatchedYes}
	if t.id == "" {
		e.Message = "no sandbox of that name is visible, which does not prove that none will appear"
		return e
	}
	attested, err := p.attest(ctx)
	switch {
	case err != nil:
		e = failed(op, err)
		e.Message = "not found, and the account in which it was looked for could not be attested"
	case p.account.proves(t, attested):
		e.Kind, e.Reason, e.Message = KindGone, ReasonNotFound, "the sandbox no longer exists"
		if !t.expires.IsZero() && !time.Now().Before(t.expires) {
			e.Reason = ReasonExpired
		}
	case t.attested() && attested != "":
		e.Kind, e.Message = KindNotOwned, "the credential is of another account than the sandbox: nothing was done to it"
	default:
		e.Message = "not found, under a credential that is not proved to be of the sandbox's account"
	}
	return e
}

// drive brings the target to the goal and returns the fresh read that shows it there. Each round reads the sandbox,
// verifies that it is ours, and takes the one step that its state asks for; an answer to that step is never taken for
// the fact. A sandbox that is kept has its SSH accesses revoked, once it is at rest: they would open it again when it
// runs again, and nobody but their openers knows of them. It ends with [KindGone] when the sandbox is proved lost, with
// [KindTimeout] when ctx ends first, and with the last error when the provider gave no useful answer for
// Config.CallTimeout: that is an outage, which the caller had better know of. It returns whether the provider was asked
// for any step; if so, Error.Dispatched says that, and not whether the read was sent that failed.
func (p *provider) drive(ctx context.Context, op string, t target, g goal) (_ *daytona.Sandbox, sent Dispatch, _ error) {
	sent = DispatchedNo
	var (
		pause    backoff
		accepted step // the action that the provider accepted last; stepWait: none yet
		refusals int
		losses   int // consecutive reads that said the container is lost
		last     *daytona.Sandbox
		heard    = time.Now() // when the provider was last known to answer
		action   step         // what it is asked for in this round
	)
	fail := func(err *Error) *Error {
		e := outOfTime(ctx, failed(op, afterwards(sent, err)), last)
		if action == stepRevoke {
			e.Message = "the sandbox is at rest, and its SSH accesses were not revoked"
		}
		return e
	}
	for {
		action = stepWait
		sb, err := p.read(ctx, op, t)
		if err != nil {
			mapped := failed(op, err)
			if mapped.Kind == KindRateLimited {
				heard = time.Now()
			}
			if !mapped.Retryable || time.Since(heard) >= p.cfg.CallTimeout {
				return nil, sent, fail(mapped)
			}
			if pause.wait(ctx, mapped.RetryAfter) != nil {
				return nil, sent, fail(mapped)
			}
			continue
		}
		last, heard = sb, time.Now()
		if g == goalStarted && sb.ContainerLost() {
			if losses++; losses > 1 {
				return nil, sent, &Error{Op: op, Kind: KindGone, Reason: ReasonContainerLost, Sandbox: t.label(), Dispatched: DispatchedYes, Message: "the provider lost the sandbox's container"}
			}
			continue // a fresh read must confirm it
		}
		losses = 0
		action = next(g, sb.State, sb.Recoverable)
		if action == stepDone && g != goalStarted {
			action = stepRevoke
		}
		var refusal *Error
		switch action {
		case stepDone:
			return sb, sent, nil
		case stepFail:
			return sb, sent, &Error{Op: op, Kind: KindBroken, Sandbox: t.label(), Dispatched: DispatchedYes, Message: "the sandbox is in an error state that it cannot leave; it was kept"}
		case stepWait:
		default:
			if err := refuseStop(op, t, sb, action); err != nil {
				return sb, sent, err
			}
			err := p.act(ctx, op, t, action)
			sent = asked(sent, failed(op, err))
			if err == nil && action == stepRevoke {
				return sb, sent, nil
			}
			if err == nil {
				refusals = 0
				if action != accepted { // else it had no effect yet, and is not to be sent for as fast as it is accepted
					pause, accepted = backoff{}, action
					continue
				}
				break
			}
			refusal = failed(op, err)
			refusal.Sandbox = t.label()
			switch {
			case refusal.Kind == KindConflict, refusal.Kind == KindNotFound, refusal.Retryable: // the next read tells what became of it
			case refusal.Kind == KindRefused && refusals+1 < refusalLimit:
				refusals++
			default:
				return sb, sent, fail(refusal)
			}
		}
		var wish time.Duration
		if refusal != nil {
			wish = refusal.RetryAfter
		}
		if err := pause.wait(ctx, wish); err != nil {
			if refusal == nil {
				refusal = failed(op, err)
				refusal.Sandbox = t.label()
			}
			return sb, sent, fail(refusal)
		}
	}
}

// errVanishes is the cause of the error of a stop that was refused, and is refused for as long as nobody decides otherwise.
var errVanishes = errors.New("the sandbox is set to be deleted when it stops")

// refuseStop refuses the step if it is the stop of a sandbox that its provider would delete then: it was to be kept.
func refuseStop(op string, t target, sb *daytona.Sandbox, action step) error {
	if action != stepStop || sb.AutoDelete == nil || *sb.AutoDelete != 0 {
		return nil
	}
	return &Error{Op: op, Kind: KindConflict, Sandbox: t.label(), Dispatched: DispatchedNo, cause: errVanishes, Message: errVanishes.Error() + "; it was left running: retain it, or destroy it"}
}

// act asks the provider for one step. The reply says that the request was accepted, at most.
func (p *provider) act(ctx context.Context, op string, t target, action step) error {
	limit := p.cfg.CallTimeout
	if action == stepStart || action == stepRecover {
		limit += replyHold
		p.allocated(op, t)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client := p.clientFor(t)
	switch action {
	case stepStart:
		return client.Start(ctx, t.id)
	case stepRecover:
		return client.Recover(ctx, t.id)
	case stepStop:
		return client.Stop(ctx, t.id)
	case stepArchive:
		return client.Archive(ctx, t.id)
	case stepRevoke:
		return client.RevokeSSH(ctx, t.id, "")
	case stepDelete:
		return client.Delete(ctx, t.id)
	}
	return nil
}

// outOfTime turns err into a timeout that names the last known state, if it is the end of ctx that ended the attempt.
func outOfTime(ctx context.Context, err *Error, last *daytona.Sandbox) *Error {
	if ctx.Err() == nil {
		return err
	}
	timeout := failed(err.Op, ctxError(ctx))
	timeout.Sandbox, timeout.Dispatched = err.Sandbox, err.Dispatched
	if last != nil && timeout.Kind == KindTimeout {
		timeout.Sandbox = last.ID
		timeout.Message = "the sandbox was still " + knownState(last.State) + " when the budget ended"
	}
	return timeout
}

// knownState returns a state for a message. A state that the library does not know is the provider's own text.
func knownState(s daytona.State) string {
	switch s {
	case daytona.StateCreating, daytona.StateRestoring, daytona.StateDestroyed, daytona.StateDestroying,
		daytona.StateStarted, daytona.StateStopped, daytona.StateStarting, daytona.StateStopping, daytona.StateError,
		daytona.StateBuildFailed, daytona.StatePendingBuild, daytona.StateBuildingSnapshot, daytona.StateUnknown,
		daytona.StatePullingSnapshot, daytona.StateArchived, daytona.StateArchiving, daytona.StateResizing,
		daytona.StateSnapshotting, daytona.StateForking, daytona.StatePausing, daytona.StatePaused,
		daytona.StateResuming:
		return string(s)
	}
	return "in a state this version does not know"
}
