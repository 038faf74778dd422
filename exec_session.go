package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

const (
	// resolveTime bounds the attempts to find out whether a dispatch whose reply was lost has arrived.
	resolveTime = 15 * time.Second
	// resolveCall bounds each request of it.
	resolveCall = 5 * time.Second
	// scratchTime bounds the removal of a scratch file.
	scratchTime = 10 * time.Second
)

// errLifetime is the cause of a context that ended because Command.Timeout was over.
var errLifetime = errors.New("the command's timeout was over")

// sessionRun is one command on the session transport: prepare it, dispatch it once, observe it, stop it if need be, and
// say what is known.
type sessionRun struct {
	l              *Lease
	op             string
	cmd            Command
	login          script.Login
	stdout, stderr *output

	box     *daytona.Toolbox
	id      string // names the command in the session's list
	mark    script.Mark
	scratch string // directory of the uploaded stdin, "" without
	session *session
	command string // the daemon's id of the dispatch that is observed

	dispatched    Dispatch
	began         time.Time
	log           *stream.Log
	recorded      *int // the exit code that the daemon recorded, if that was seen
	stopped       bool // the command's end was asked for
	stopConfirmed bool
	timedOut      bool
	duration      time.Duration
}

// prepare checks the command, without a request.
func (r *sessionRun) prepare() error {
	var err error
	r.login, err = r.cmd.check(r.op, r.l.ref.Workspace)
	r.id, r.mark = "leasehold-command-"+uuid.NewString(), script.NewMark(rand.Text()+rand.Text())
	r.log = r.newLog()
	return err
}

func (r *sessionRun) newLog() *stream.Log {
	return stream.New(string(r.mark), func(s stream.Stream, p []byte) error {
		o := r.stdout
		if s == stream.Stderr {
			o = r.stderr
		}
		if err := o.write(p); err != nil {
			return &Error{Op: r.op, Kind: KindIO, Message: "a writer failed, and the command was stopped", cause: err}
		}
		return nil
	})
}

// run runs the command.
func (r *sessionRun) run(ctx context.Context) error {
	var err error
	if r.box, err = r.l.toolbox(ctx); err != nil {
		return err
	}
	if err := r.upload(ctx); err != nil {
		return err
	}
	defer r.sweep()
	if r.session, err = r.l.sessions.take(ctx, r.l, r.box); err != nil {
		return err
	}

	// From here on the command may run: its lifetime begins, and whatever ends ctx must end it too, at once, even while
	// a writer keeps the observation waiting.
	r.began = time.Now()
	defer func() { r.duration = time.Since(r.began) }()
	life, endLife := ctx, context.CancelFunc(func() {})
	if r.cmd.Timeout > 0 {
		life, endLife = context.WithTimeoutCause(ctx, r.cmd.Timeout, errLifetime)
	}
	defer endLife()
	watch, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatch()
	settled := make(chan struct{})
	disarm := context.AfterFunc(life, func() {
		defer close(settled)
		defer endWatch()
		r.stop(watch)
	})
	err = r.dispatch(life)
	if err == nil {
		err = r.observeTwins(life, watch)
	}
	if !disarm() {
		<-settled
	} else if err != nil && r.dispatched != DispatchedNo {
		r.stop(watch) // nobody will learn what becomes of it
	}
	return r.settle(life, err)
}

// upload brings stdin into a private file. The reader may take its time; the provider may not.
func (r *sessionRun) upload(ctx context.Context) error {
	if r.cmd.Stdin == nil {
		return nil
	}
	limit := r.l.p.cfg.CallTimeout
	callCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(limit, func() { cancel(errStalled) })
	defer stall.Stop()
	r.scratch = "/tmp/.leasehold-" + uuid.NewString()
	const private fs.FileMode = 0o700
	err := r.box.MakeDir(callCtx, r.scratch, private)
	if err == nil {
		err = r.box.Upload(callCtx, daytona.File{Path: r.stdinFile(), Content: &unhurried{r: r.cmd.Stdin, stall: stall, limit: limit}})
	}
	if err == nil {
		return nil
	}
	r.sweep()
	if context.Cause(callCtx) == errStalled {
		return &Error{Op: r.op, Kind: KindTimeout, Retryable: true, Message: "the provider did not take the command's input"}
	}
	return r.l.observe(r.op, err)
}

// errStalled is the cause of an upload's end that the provider did not go on with.
var errStalled = errors.New("the upload stalled")

// unhurried stops a clock while its reader is waited for.
type unhurried struct {
	r     io.Reader
	stall *time.Timer
	limit time.Duration
}

func (u *unhurried) Read(p []byte) (int, error) {
	u.stall.Stop()
	defer u.stall.Reset(u.limit)
	return u.r.Read(p)
}

func (r *sessionRun) stdinFile() string {
	if r.scratch == "" {
		return ""
	}
	return r.scratch + "/stdin"
}

// sweep removes the scratch directory, unless the command's own wrapper has done that before it started the command.
func (r *sessionRun) sweep() {
	if r.scratch == "" || r.log.Started() {
		return
	}
	work, finish, err := r.l.p.start(context.Background(), r.op)
	if err != nil {
		return
	}
	defer finish()
	ctx, cancel := context.WithTimeout(work, scratchTime)
	defer cancel()
	for pause := (backoff{}); ; {
		err := r.box.Remove(ctx, r.scratch, true)
		var remote *daytona.Error
		if err == nil || errors.As(err, &remote) && remote.Status == http.StatusNotFound || pause.wait(ctx, 0) != nil {
			return
		}
	}
}

// dispatch submits the command, once. It returns nil if one of the session's commands is the one to observe.
func (r *sessionRun) dispatch(life context.Context) error {
	text := script.Session{ID: r.id, Fence: r.session.nextFence(), Login: r.login, Mark: r.mark, Stdin: r.stdinFile(), Scratch: r.scratch}.Text()
	callCtx, cancel := context.WithTimeout(life, r.l.p.cfg.CallTimeout)
	defer cancel()
	command, err := r.box.StartCommand(callCtx, r.session.id, text)
	if err == nil {
		r.command, r.dispatched = command, DispatchedYes
		return nil
	}
	if e := failed(r.op, err); e.Dispatched == DispatchedNo || e.Kind == KindAuth || e.Kind == KindRateLimited || e.Kind == KindNotRunning || e.Kind == KindInvalid {
		return r.l.observe(r.op, err) // the proxy said so before it passed anything on
	}
	r.dispatched = DispatchedUnknown
	return r.resolve(life, err)
}

// resolve finds out what became of a dispatch whose reply was lost, or came from something on the way. The session's list
// shows it if it arrived. If it does not, it may still be on its way: a fence, once the session's shell has run it, makes
// the shell refuse whatever arrives later, so that a list read after that is proof.
func (r *sessionRun) resolve(life context.Context, lost error) error {
	ctx, cancel := context.WithTimeout(life, resolveTime)
	defer cancel()
	unknown := &Error{Op: r.op, Kind: KindUncertain, HTTPStatus: failed(r.op, lost).HTTPStatus, Message: "no answer to the command's dispatch: whether it was started is not known"}
	fence := ""
	for pause := (backoff{}); ; {
		fenced := false
		callCtx, cancel := context.WithTimeout(ctx, resolveCall)
		if fence == "" {
			fence, _ = r.box.StartCommand(callCtx, r.session.id, script.Fence(r.id+"-fence", r.session.nextFence()))
		} else if c, err := r.box.Command(callCtx, r.session.id, fence); err == nil {
			fenced = c.ExitCode != nil
		}
		cancel()
		twins, err := r.twins(ctx)
		switch {
		case len(twins) > 0:
			r.command, r.dispatched = twins[0], DispatchedYes
			return nil
		case err == nil && fenced:
			r.dispatched, r.session.last = DispatchedNo, ""
			return &Error{Op: r.op, Kind: KindUnavailable, HTTPStatus: unknown.HTTPStatus, Retryable: true, Message: "the command's dispatch was lost on the way, and it will not be started"}
		case sessionLost(err):
			return unknown
		}
		if pause.wait(ctx, 0) != nil {
			return unknown
		}
	}
}

// twins returns the daemon's ids of this command in the session's list: more than one if the dispatch was delivered more
// than once.
func (r *sessionRun) twins(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveCall)
	defer cancel()
	commands, err := r.box.SessionCommands(ctx, r.session.id)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, c := range commands {
		if strings.HasPrefix(c.Command, ": "+r.id+"\n") {
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

// sessionLost reports that the daemon itself no longer knows the session.
func sessionLost(err error) bool {
	var remote *daytona.Error
	return errors.As(err, &remote) && (remote.NotFound() || remote.SessionMissing())
}

// stop deletes the session, and with it the command and what descends from it. It does not depend on the caller's
// context.
func (r *sessionRun) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	r.stopped = true
	r.stopConfirmed = r.l.sessions.delete(ctx, r.box, r.session.id)
}

// settle gives the session back, and turns what was observed into the error that Run returns.
func (r *sessionRun) settle(life context.Context, err error) error {
	r.timedOut = r.stopped && errors.Is(context.Cause(life), errLifetime)
	clean := r.log.Complete() || r.dispatched == DispatchedNo
	if !r.stopped && (!clean || !r.release()) || r.stopped && !r.stopConfirmed {
		r.l.sessions.discard(r.l, r.box, r.session.id)
	}
	var own *Error
	switch {
	case errors.As(err, &own) && own.Kind == KindIO:
		return err
	case r.timedOut:
		return &Error{Op: r.op, Kind: KindTimeout, Message: "the command's timeout was over"}
	case r.stopped && life.Err() != nil:
		return failed(r.op, ctxError(life))
	case err != nil && r.l.sessions.isClosed():
		return &Error{Op: r.op, Kind: KindClosed, Message: "the lease was given back while the command ran"}
	case err != nil:
		return err
	case r.log.NoDirectory():
		return &Error{Op: r.op, Kind: KindNotFound, Message: "the command's directory cannot be entered; it was not started"}
	case r.log.Complete() && !r.log.Started():
		return &Error{Op: r.op, Kind: KindRefused, Message: "the command was not started: its input was lost, or a start-up file replaced the shell"}
	case !r.log.Complete():
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the command's exit is recorded, but not that all of its output was seen"}
	}
	return nil
}

// release gives the session back to the pool. It reports false if the pool has enough.
func (r *sessionRun) release() bool {
	if r.dispatched == DispatchedYes && r.recorded == nil {
		r.session.last = r.command
	}
	return r.l.sessions.put(r.session)
}

// result says what is known.
func (r *sessionRun) result() Result {
	result := Result{
		ExitCode: -1, Complete: r.log.Complete() && r.log.Started(), Dispatched: r.dispatched,
		TimedOut: r.timedOut, StopConfirmed: r.stopConfirmed,
		Stdout: r.stdout.captured, Stderr: r.stderr.captured, StdoutSize: r.stdout.size, StderrSize: r.stderr.size,
		Truncated: r.stdout.truncated || r.stderr.truncated,
		Duration:  r.duration, Transport: TransportSession, Fidelity: FidelityLines,
	}
	if r.log.Damaged() {
		result.Fidelity = FidelityDamaged
	}
	code, known := r.log.Exit()
	switch {
	case known && r.log.Started():
		result.Exited, result.ExitCode = true, code
	case r.recorded != nil && *r.recorded != script.RefusedStatus && !r.log.NoDirectory() && !known:
		// Without the wrapper's marks a refused dispatch could be taken for the command, but for its status.
		result.Exited, result.ExitCode = true, *r.recorded
	}
	return result
}
