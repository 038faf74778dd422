package leasehold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
)

// Process is a command that was started by [Executor.Start], or found again by [Executor.Attach]. Its methods are safe for
// concurrent use.
type Process struct {
	x      *execution
	done   chan struct{} // closed when result and err are final
	result Result
	err    error
}

// What ends a command's life from the host's side, as causes of its context.
var (
	errKilled   = errors.New("the command was killed")
	errDetached = errors.New("the command was left to itself")
)

// Start starts a command and returns once it is known to have been dispatched. Its output is delivered meanwhile, whether or
// not anybody waits: to a writer as it arrives, while output that is captured is fetched less often and may be behind the
// command when [Process.Detach] ends it. Command.Stdin is read meanwhile, too: it may be the reading end of an [io.Pipe].
//
// Ctx bounds the whole command, and not the start alone: when it ends the command is stopped, as with Run. A command that was
// started must be waited for. The errors are those of Run that can occur before the command runs.
func (x *Executor) Start(ctx context.Context, cmd Command) (*Process, error) {
	const op = "start"
	r, err := newExecution(x.l, op, cmd)
	if err != nil {
		return nil, r.failure(err)
	}
	r.detached = true
	return x.begin(ctx, op, r)
}

// Offsets are how many bytes of each stream a host has taken.
type Offsets struct {
	Stdout, Stderr int64
}

// Attachment says what [Executor.Attach] does with the output. The zero value captures it from its beginning.
type Attachment struct {
	From           Offsets   // where the output begins, not beyond its end: what an earlier host delivered is left out
	Stdout, Stderr io.Writer // as in [Command]
	CaptureLimit   int64     // as in [Command]
}

// Attach goes on with a command that this host, before it restarted, or another one started, and whose reference it kept.
// The sizes of the result count what is delivered from the offsets on: the next offsets are these sizes beyond From. When
// ctx ends the command is stopped; one that has ended before leaves it alone. What remains of Command.Timeout goes on; an
// exit that is recorded by now is had after it, too.
//
// It fails with [ErrInvalid] if ref is not of this lease. So does [Process.Wait] if the offsets turn out to be beyond the end
// of the output. It fails with [ErrNotFound] if the sandbox has nothing of the command any more: its
// result was taken some time ago, or is older than a day, or the files were lost. Its errors say of the command that it was
// dispatched.
//
// It cannot go on with Command.Stdin. An input whose host has died stays open, and a command that reads on waits until it is
// stopped: an end that nobody sent would pass for that of the whole input.
//
// Two hosts may be attached at once, but the first that has the whole result has it removed from the sandbox, with a later
// command or at the end of the lease, as [TransportJournal] says: until then it can be had again.
func (x *Executor) Attach(ctx context.Context, ref CommandRef, a Attachment) (*Process, error) {
	const op = "attach"
	r := &execution{l: x.l, op: op, cmd: Command{Stdout: a.Stdout, Stderr: a.Stderr, CaptureLimit: a.CaptureLimit, Transport: ref.Transport}, dispatched: DispatchedNo}
	r.stdout, r.stderr = newOutput(a.Stdout, a.CaptureLimit), newOutput(a.Stderr, a.CaptureLimit)
	var p problems
	ref.problems(&p)
	if len(p) == 0 && (ref.Sandbox != x.l.ref.Sandbox || ref.Attempt != x.l.ref.Attempt) {
		p.add("CommandRef", "is not of this lease")
	}
	if a.From.Stdout < 0 || a.From.Stderr < 0 {
		p.add("Attachment.From", "has a negative offset")
	}
	if err := p.err(op); err != nil {
		return nil, r.failure(err)
	}
	r.ref, r.from, r.detached = &ref, a.From, true
	return x.begin(ctx, op, r)
}

// begin runs the execution in the background, and returns when it is dispatched.
func (x *Executor) begin(ctx context.Context, op string, r *execution) (*Process, error) {
	h, err := x.l.hold(ActivityCommand, op)
	if err != nil {
		return nil, r.failure(err)
	}
	p := &Process{x: r, done: make(chan struct{})}
	r.running, r.halted = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(p.done)
		defer r.letGo(h)
		ctx, span := x.l.p.span(ctx, op)
		// Unless run returns: a writer may end its goroutine.
		err := error(&Error{Kind: KindUncertain, Message: "a writer ended the goroutine that observed the command: how it ended is not known"})
		defer func() {
			if err != nil {
				p.err = r.failure(err)
			}
			p.result = r.result()
			endSpan(span, p.err)
		}()
		err = r.run(ctx)
	}()
	select {
	case <-r.running:
		return p, nil
	case <-p.done:
		select {
		case <-r.running:
			return p, nil
		default:
			return nil, p.err
		}
	}
}

// Wait waits for the command to end, and returns what [Executor.Run] would. It may be called more than once.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return p.result, p.err
}

// Signal sends a signal, named as kill names it ("INT", "TERM", "USR1"), with or without SIG, to the command's process
// group. It returns when the signal was sent, which may wait for the command to begin, or when ctx ends. It fails with
// [ErrNotFound], whose cause is [os.ErrProcessDone], if the command has ended, with [ErrRefused] if the command runs as
// another user, as by sudo, with [ErrUncertain] if the sandbox has nothing of the command any more, and with [ErrClosed] once
// the lease was given back. Other names, those of real-time signals included, are [ErrInvalid], and so is a command on a
// session, which cannot pass on signals.
func (p *Process) Signal(ctx context.Context, name string) error {
	const op = "signal"
	if p.ended() {
		return p.signalError(errEnded())
	}
	done, err := p.x.l.begin(op)
	if err != nil {
		return p.signalError(err)
	}
	defer done()
	var bad problems
	r, ok := p.x.transport.(*journalRun)
	if !ok {
		bad.add("Command.Transport", "is a session, which cannot pass on signals")
	}
	signal := strings.TrimPrefix(name, "SIG")
	if !slices.Contains(script.Signals, signal) {
		bad.add("name", "is %.20q, and must be one of %s", name, strings.Join(script.Signals, ", "))
	}
	if err := bad.err(op); err != nil {
		return p.signalError(err)
	}
	// The process may not have made itself known yet.
	for pause := (backoff{}); ; {
		frame, err := r.ask(ctx, r.journal.Signal(signal, r.known()), script.Wait{})
		switch {
		case err != nil:
			return p.signalError(p.x.l.observe(op, err))
		case frame.State == script.StateSent:
			return nil
		case frame.State == script.StateRefused:
			return p.signalError(&Error{Kind: KindRefused, Message: "the signal could not be sent to the command's process group: it may run as another user"})
		case frame.Exited || frame.Process.ID != 0:
			return p.signalError(errEnded())
		case !frame.Claimed:
			return p.signalError(&Error{Kind: KindUncertain, Message: "the command's journal is gone: whether it runs is not known"})
		}
		if err := pause.wait(ctx, 0); err != nil {
			return p.signalError(err)
		}
	}
}

// ended reports that the command is known not to run any more. Its observation may have ended without that: it was left to
// itself, or a stop was tried and not confirmed.
func (p *Process) ended() bool {
	select {
	case <-p.done:
		return p.result.Exited || p.result.StopConfirmed || p.result.Dispatched == DispatchedNo || !p.x.left && !p.x.stopped
	default:
		return false
	}
}

func errEnded() *Error {
	return &Error{Kind: KindNotFound, Message: "the command has ended", cause: os.ErrProcessDone}
}

func (p *Process) signalError(err error) error {
	e := failed("signal", err)
	e.Op, e.Sandbox = "signal", p.x.l.ref.Sandbox
	return e
}

// Kill ends the command at once. On the journal transport it sends the signal KILL, and Wait returns the exit that follows.
// On a session the command is stopped: Kill waits for that, for 8 s at most, and Wait fails with [ErrCanceled]. If
// it is not confirmed that it runs no more, Kill fails with [ErrUncertain], and can be tried again. Otherwise the errors are
// those of Signal.
func (p *Process) Kill(ctx context.Context) error {
	if _, ok := p.x.transport.(*journalRun); ok {
		return p.Signal(ctx, "KILL")
	}
	if p.ended() {
		return p.signalError(errEnded())
	}
	if err := unsent(ctx, "signal", p.x.l.ref.Sandbox); err != nil {
		return err
	}
	done, err := p.x.l.begin("signal")
	if err != nil {
		return p.signalError(err)
	}
	defer done()
	confirmed, err := p.stop(ctx)
	switch {
	case err != nil:
		return p.signalError(err)
	case !confirmed:
		return p.signalError(&Error{Kind: KindUncertain, Message: "it is not confirmed that the command runs no more"})
	}
	return nil
}

// stop ends a session's command, and reports whether that is confirmed.
func (p *Process) stop(ctx context.Context) (confirmed bool, err error) {
	select {
	case <-p.done: // the session is still the command's, see ended
		return p.x.transport.stop(ctx), nil
	default:
	}
	p.x.abort(errKilled)
	limit := time.NewTimer(deleteTime)
	defer limit.Stop()
	select {
	case <-p.x.halted:
		return p.x.stopConfirmed, nil
	case <-p.done: // without a stop
		if p.ended() {
			return false, errEnded()
		}
		return false, nil
	case <-limit.C: // a writer holds up what follows a Detach
		return false, nil
	case <-ctx.Done():
		return false, ctxError(ctx)
	}
}

// Detach ends the observation and leaves the command alone: Wait returns what is known by then, with [ErrCanceled]. A host
// that is about to restart does so, and attaches again later.
//
// What is left of Command.Stdin by then never arrives, and neither does its end: a command that reads on waits until it is
// stopped. Result.StdinSize says how far it got.
//
// A command that nobody observes is no activity to the provider: the sandbox is stopped under it after
// [Config.AutoStopMinutes], unless something else is asked of it meanwhile.
func (p *Process) Detach() { p.x.abort(errDetached) }

// Format writes where the command runs, and nothing of what it was given.
func (p *Process) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "command of sandbox %s", p.x.l.ref.Sandbox)
}

// Ref returns what [Executor.Attach] needs, in another process too.
func (p *Process) Ref() CommandRef {
	ref := CommandRef{Version: commandRefVersion, Sandbox: p.x.l.ref.Sandbox, Attempt: p.x.l.ref.Attempt}
	if p.x.ref != nil {
		ref.Deadline = p.x.ref.Deadline
	} else if p.x.cmd.Timeout > 0 {
		ref.Deadline = p.x.began.Add(p.x.cmd.Timeout).Round(0).UTC()
	}
	p.x.transport.refer(&ref)
	return ref
}

// commandRefVersion is the version of [CommandRef] that this package writes and reads.
const commandRefVersion = 1

// CommandRef is a command as a plain value, without secrets. Store its JSON form; [ParseCommandRef] reads it back.
type CommandRef struct {
	Version   int       `json:"version"`
	Sandbox   string    `json:"sandbox"`   // the provider's id
	Attempt   string    `json:"attempt"`   // of the lease
	Transport Transport `json:"transport"` // by which it runs
	ID        string    `json:"id"`        // of the journal, or in the session's list
	Session   string    `json:"session,omitempty"`
	Command   string    `json:"command,omitempty"` // the daemon's id of it
	Mark      string    `json:"mark"`              // ends the streams
	Deadline  time.Time `json:"deadline,omitzero"` // by the host's clock; zero: none
}

// ParseCommandRef decodes a stored reference and validates every field. Unknown fields are ignored. It fails with
// [ErrInvalid].
func ParseCommandRef(data []byte) (CommandRef, error) {
	return parse[CommandRef]("parse command", "CommandRef", data)
}

// The forms of what this package puts into references. A journal's id is the name of files.
var (
	journalID   = regexp.MustCompile(`^[a-z2-7]{26}$`)
	journalMark = regexp.MustCompile(`^lh[a-z2-7]{26}$`)
	markText    = regexp.MustCompile(`^~lh[A-Za-z0-9]{32,128}$`)
)

func (r CommandRef) check(op string) error {
	var p problems
	r.problems(&p)
	return p.err(op)
}

func (r CommandRef) problems(p *problems) {
	if r.Version != commandRefVersion {
		p.add("CommandRef.Version", "is %d: this package reads %d", r.Version, commandRefVersion)
		return
	}
	checkIdentifier(p, "CommandRef.Sandbox", r.Sandbox, true)
	checkIdentifier(p, "CommandRef.Attempt", r.Attempt, true)
	switch r.Transport {
	case TransportJournal:
		if !journalID.MatchString(r.ID) {
			p.add("CommandRef.ID", "is not a journal's")
		}
		if !journalMark.MatchString(r.Mark) {
			p.add("CommandRef.Mark", "is not a journal's")
		}
		if r.Session != "" || r.Command != "" {
			p.add("CommandRef.Session", "does not go with a journal")
		}
	case TransportSession:
		checkIdentifier(p, "CommandRef.ID", r.ID, true)
		checkIdentifier(p, "CommandRef.Session", r.Session, true)
		checkIdentifier(p, "CommandRef.Command", r.Command, true)
		if !markText.MatchString(r.Mark) {
			p.add("CommandRef.Mark", "is not a mark")
		}
	default:
		p.add("CommandRef.Transport", "is not a transport")
	}
	if year := r.Deadline.UTC().Year(); year < 0 || year > 9999 {
		p.add("CommandRef.Deadline", "is not a time that JSON can hold")
	}
}
