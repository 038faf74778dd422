package leasehold

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
)

// transport is a way to run one command. An execution calls prepare and dispatch once each, in this order, then observe,
// settle and report. It may call stop and exited at any time after prepare, while another of them is under way.
type transport interface {
	// prepare does what must be done before the command's lifetime begins. After an error nothing else is called.
	prepare(ctx context.Context) error
	// dispatch hands the command to the sandbox, at most once, and notes in execution.dispatched what is known of that.
	// Nil means that it can be observed, and errNoJournal that another transport may try.
	dispatch(life context.Context) error
	// observe delivers the output until the end is proved, or what can be known of it is known. Ctx bounds it. Once life
	// has ended, and the command is being stopped, it begins nothing new.
	observe(life, ctx context.Context) error
	// stop ends the command, however far it has come, and reports whether it is confirmed that nothing of it runs.
	stop(ctx context.Context) bool
	// exited asks the sandbox whether the command has ended, which an observation that a writer keeps waiting learns later. What
	// is not known is no.
	exited(ctx context.Context) bool
	// settle gives back what the transport holds. Its error is about a command that was observed to its end.
	settle() error
	// unstarted is the error of a command whose shell has ended, and did not come to it. Nil if that is not known.
	unstarted() error
	// report adds what is known to the result.
	report(*Result)
	// refer adds what another host needs to go on.
	refer(*CommandRef)
}

// errNoJournal is a dispatch that provably started nothing, for lack of room.
var errNoJournal = errors.New("there is no room for a journal")

// overTime bounds the look whether a command whose time is over has ended.
const overTime = 2 * time.Second

// errLifetime is the cause of a context that ended because Command.Timeout was over.
var errLifetime = errors.New("Command.Timeout was over")

const (
	// resolveTime bounds the attempts to find out whether a dispatch whose reply was lost has arrived.
	resolveTime = 15 * time.Second
	// resolveCall bounds each request of it.
	resolveCall = 5 * time.Second
	// maxRefusals is how many refusals end them.
	maxRefusals = 3
	// replayTime is how soon a proxy that has nowhere to pass a dispatch on to says so.
	replayTime = 2 * time.Second
)

// blindTime is how long every read may fail before a command counts as lost from sight.
const blindTime = 5 * time.Minute

// execution is one command, whatever its transport: check it, dispatch it once, observe it, stop it if need be, and say
// what is known.
type execution struct {
	l              *Lease
	op             string
	cmd            Command
	login          script.Login
	stdout, stderr *output

	input    *input        // the command's, read ahead; nil: none
	detached bool          // Run is not waiting: the dispatch is to return soon
	running  chan struct{} // closed when the command was dispatched; nil: nobody waits for that
	halted   chan struct{} // closed when a stop was tried; nil: nobody waits for that
	ref      *CommandRef   // the command was dispatched before, and output is delivered
	from     Offsets       // from here on
	over     atomic.Bool   // the exit was seen: the command's time is of no interest any more

	box       *daytona.Toolbox
	transport transport

	abort         context.CancelCauseFunc // ends the command's life
	dispatched    Dispatch
	began         time.Time
	stopped       bool // the command's end was asked for
	stopConfirmed bool
	timedOut      bool
	left          bool // it was detached, and must be left alone
	duration      time.Duration
}

func newExecution(l *Lease, op string, cmd Command) (*execution, error) {
	x := &execution{l: l, op: op, cmd: cmd, dispatched: DispatchedNo, stdout: newOutput(cmd.Stdout, cmd.CaptureLimit), stderr: newOutput(cmd.Stderr, cmd.CaptureLimit)}
	var p problems
	x.login = x.cmd.check(&p, "Command", l)
	if x.cmd.Timeout == 0 && usesNetwork(x.cmd.Args) {
		x.cmd.Timeout = gitTimeout
	}
	return x, p.err(op)
}

// failure is err as the public calls return it.
func (x *execution) failure(err error) *Error {
	e := failed(x.op, err)
	e.Op, e.Dispatched = x.op, x.dispatched
	if x.ref != nil { // of a command that was dispatched; to attach again does nothing to it
		e.Dispatched = DispatchedYes
	} else {
		e.Retryable = e.Retryable && x.dispatched == DispatchedNo
	}
	if e.Sandbox == "" {
		e.Sandbox = x.l.ref.Sandbox
	}
	return e
}

// run runs the command.
func (x *execution) run(ctx context.Context) error {
	var err error
	early, end := x.l.whileOpen(ctx)
	defer end()
	if x.box, err = x.l.toolbox(early); err != nil {
		return x.unbegun(early, err)
	}
	if x.ref == nil {
		x.login.Bwrap = x.l.wrapper(early, &x.cmd)
	}
	if x.cmd.Stdin != nil {
		x.input = newInput(x.cmd.Stdin)
		defer close(x.input.quit)
	}
	if x.cmd.Transport.journals() {
		err = x.attempt(ctx, newJournalRun(x))
		if err != errNoJournal {
			return err
		}
		if x.cmd.Transport == TransportJournal {
			return &Error{Op: x.op, Kind: KindUnavailable, Message: "the sandbox has no room for the command's journal; it was not started"}
		}
	}
	return x.attempt(ctx, newSessionRun(x))
}

// attempt runs the command on one transport.
func (x *execution) attempt(ctx context.Context, t transport) error {
	var lifetime sync.WaitGroup
	defer lifetime.Wait()
	ctx, x.abort = context.WithCancelCause(ctx)
	defer x.abort(nil)
	abort := x.abort // of this attempt
	defer context.AfterFunc(x.l.p.work, func() { abort(errProviderClosed) })()
	x.transport = t
	early, end := x.l.whileOpen(ctx)
	defer end()
	if err := t.prepare(early); err != nil {
		return x.unbegun(early, err)
	}
	// From here on the command may run: its lifetime begins, and whatever ends ctx must end it too, at once, even while
	// a writer keeps the observation waiting.
	x.began = time.Now()
	defer func() { x.duration = time.Since(x.began) }()
	life := ctx
	if x.cmd.Timeout > 0 {
		lifetime.Go(func() { x.expire(life, abort, x.cmd.Timeout) })
	}
	watch, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatch()
	stop := func() { // the observation may end with life before disarm has heard of it
		if !leaves(context.Cause(life)) {
			x.stop(watch)
		}
	}
	settled := make(chan struct{})
	disarm := context.AfterFunc(life, func() {
		defer close(settled)
		defer endWatch()
		stop()
	})
	observed := false
	defer func() {
		if observed {
			return
		}
		// A panic of a writer, or the end of its goroutine: nobody will learn what becomes of the command.
		if disarm() {
			stop()
		} else {
			<-settled
		}
		_ = t.settle()
	}()
	err := t.dispatch(life)
	if err == nil {
		if x.ref != nil && !x.ref.Deadline.IsZero() {
			lifetime.Go(func() { x.expire(life, abort, time.Until(x.ref.Deadline)) })
		}
		if x.running != nil {
			close(x.running)
		}
		err = t.observe(life, watch)
	}
	observed = true
	if !disarm() {
		<-settled
	} else if err != nil && x.dispatched != DispatchedNo {
		stop() // nobody will learn what becomes of it
	}
	return x.verdict(life, err)
}

// expire ends the life of a command once its time is over, unless the command has ended by then: what it has written is still
// to be delivered, however long that takes.
func (x *execution) expire(life context.Context, abort context.CancelCauseFunc, after time.Duration) {
	if sleep(life, after) != nil || x.over.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(life, overTime)
	defer cancel()
	if !x.transport.exited(ctx) && !x.over.Load() {
		abort(errLifetime)
	}
}

// letGo ends the accounting of the command. One whose end is not proved is left to go on; what an ended one has left
// running is a matter of its sandbox.
func (x *execution) letGo(h *holding) {
	if x.dispatched == DispatchedNo { // or it was looked for, in vain: then it is what it was
		h.end()
		return
	}
	var ref CommandRef
	x.transport.refer(&ref)
	switch {
	case !x.result().Exited && !x.stopConfirmed && x.transport.unstarted() == nil:
		h.leave(ref.ID)
	case x.ref != nil:
		h.ended(ref.ID)
	}
	h.end()
}

// unbegun is the error of a command that was not dispatched because of err.
func (x *execution) unbegun(early context.Context, err error) error {
	if cause := context.Cause(early); cause == errGivenBack || cause == errProviderClosed {
		return &Error{Op: x.op, Kind: KindClosed, Message: cause.Error()}
	}
	return err
}

// stop does not depend on the caller's context.
func (x *execution) stop(ctx context.Context) {
	confirmed := x.transport.stop(ctx)
	x.stopped, x.stopConfirmed = true, confirmed
	if x.halted != nil {
		close(x.halted)
	}
}

// verdict turns what was observed into the error that Run returns.
func (x *execution) verdict(life context.Context, err error) error {
	x.timedOut = x.stopped && errors.Is(context.Cause(life), errLifetime)
	x.left = leaves(context.Cause(life)) && !x.stopped
	settled := x.transport.settle()
	own, _ := err.(*Error)
	switch {
	case err == errNoJournal && !x.stopped:
		return err
	case own != nil && own.Kind == KindIO && !x.left:
		return err
	case context.Cause(life) == errInput:
		return &Error{Op: x.op, Kind: KindIO, Message: "the command's input could not be read, and the command was stopped", cause: x.input.err}
	case context.Cause(life) == errUnfed:
		return &Error{Op: x.op, Kind: KindUncertain, Message: errUnfed.Error() + ", how much of it arrived is not known, and the command was stopped"}
	case x.timedOut:
		return &Error{Op: x.op, Kind: KindTimeout, Message: errLifetime.Error()}
	case x.left && context.Cause(life) == errDetached:
		return &Error{Op: x.op, Kind: KindCanceled, Message: errDetached.Error()}
	case x.left:
		return &Error{Op: x.op, Kind: KindClosed, Message: "the provider was closed while the command ran, which was left to itself"}
	case x.stopped && context.Cause(life) == errGivenBack, err != nil && x.l.isClosed():
		return &Error{Op: x.op, Kind: KindClosed, Message: "the lease was given back while the command ran"}
	case x.stopped && life.Err() != nil && !leaves(context.Cause(life)):
		return failed(x.op, ctxError(life))
	case err != nil:
		return err
	}
	return settled
}

// leaves reports whether what ended the observation leaves the command alone.
func leaves(cause error) bool { return cause == errDetached || cause == errProviderClosed }

// isClosed reports that the lease is being given back.
func (l *Lease) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// beyond is the error of an attachment whose offsets are not in the output.
func (x *execution) beyond() error {
	return problems{{Field: "Attachment.From", Problem: "is beyond the end of the output"}}.err(x.op)
}

func (x *execution) noDirectory() error {
	which := "directory"
	if dir := x.login.Dir; dir != "" { // another host's command does not tell
		which += " " + quoted(dir)
	}
	return &Error{Op: x.op, Kind: KindNotFound, Message: "the command's " + which + " cannot be entered; it was not started"}
}

func (x *execution) replaced() error {
	const message = "the command was not started: its input was lost, a start-up file replaced the shell, or a signal ended it meanwhile"
	return &Error{Op: x.op, Kind: KindRefused, Message: message}
}

// write delivers output. Its error is isOwn.
func (x *execution) write(o *output, p []byte) error {
	if err := o.write(p); err != nil {
		return &Error{Op: x.op, Kind: KindIO, Message: "a writer failed, and the command was stopped", cause: err}
	}
	return nil
}

// isOwn reports that err was made here, as write does, and is not the provider's, in whose chain there may be an [*Error] of
// another operation, as the cause of a context.
func isOwn(err error) bool {
	_, own := err.(*Error)
	return own
}

// own returns err if it is a writer's.
func own(err error) error {
	if isOwn(err) {
		return err
	}
	return nil
}

// refused reports an answer of the proxy's by which it keeps a request to itself. In place of a dispatch's reply it proves
// nothing, since the request may have been delivered once before.
func refused(err error) bool {
	var remote *daytona.Error
	return errors.As(err, &remote) && (remote.Unauthorized() || remote.Forbidden() || remote.RateLimited())
}

// notPassedOn reports that a dispatch was not sent, or was refused for what it is, or that the proxy said at once that the sandbox
// is not started. If it says so later, it may be of a second delivery: the proxy makes one when the sandbox ended under the first.
func (x *execution) notPassedOn(err error, sent time.Time) bool {
	e := failed(x.op, err)
	return e.Dispatched == DispatchedNo || e.Kind == KindInvalid || e.Kind == KindNotRunning && time.Since(sent) < replayTime
}

// ask runs a script that prints a frame with this mark.
func (x *execution) ask(ctx context.Context, mark string, s script.Script, wait script.Wait) (script.Frame, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit+replyTime)
	defer cancel()
	reply, err := x.box.ExecuteEnv(ctx, s.Command, s.Env, 0)
	if err != nil {
		return script.Frame{}, err
	}
	frame, err := script.ReadFrame(mark, reply.Output, wait.Inline)
	if err != nil {
		return frame, &daytona.Error{Op: daytona.OpExecute, Reason: daytona.ReasonDecode, Status: 200, Dispatch: daytona.DispatchYes}
	}
	return frame, nil
}

// lost judges a failed read, when none has succeeded for some time. It returns nil if the next one may succeed.
func (x *execution) lost(ctx context.Context, err error, blind time.Duration) error {
	_ = x.l.observe(x.op, err) // makes the next line read the sandbox
	_, err = x.l.toolbox(ctx)
	if errors.Is(err, ErrGone) || errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotOwned) || errors.Is(err, ErrAuth) {
		return err
	}
	if blind >= blindTime {
		return &Error{Op: x.op, Kind: KindUncertain, Message: "the command could not be observed any more: how it ended is not known"}
	}
	return nil
}

// result says what is known.
func (x *execution) result() Result {
	result := Result{
		ExitCode: -1, Dispatched: x.dispatched, TimedOut: x.timedOut, StopConfirmed: x.stopConfirmed,
		Stdout: x.stdout.captured, Stderr: x.stderr.captured, StdoutSize: x.stdout.size, StderrSize: x.stderr.size,
		Truncated: x.stdout.truncated || x.stderr.truncated,
		Duration:  x.duration,
	}
	if x.transport != nil {
		x.transport.report(&result)
	}
	return result
}
