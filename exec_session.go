package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
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
	// maxRefusals is how many refusals end them.
	maxRefusals = 3
	// scratchTime bounds the removal of a scratch file.
	scratchTime = 10 * time.Second
)

// sessionRun is one command on the session transport: dispatched once to a session's shell, and observed in its log.
type sessionRun struct {
	*execution

	id      string // names the command in the session's list
	mark    script.Mark
	scratch string     // directory of the uploaded stdin, "" without
	stdin   *unhurried // which it came from
	session *session   // see use
	command string     // the daemon's id of the dispatch that is observed

	mu      sync.Mutex
	deleted string // id of the session that the stop deleted

	log       *stream.Log
	recorded  *int // the exit code that the daemon recorded, if that was seen
	delivered Delivery
}

func newSessionRun(x *execution) *sessionRun {
	r := &sessionRun{execution: x, id: "leasehold-command-" + uuid.NewString(), mark: script.NewMark(rand.Text() + rand.Text()), delivered: DeliverySnapshot}
	if x.ref != nil {
		r.id, r.mark, r.command = x.ref.ID, script.Mark(x.ref.Mark), x.ref.Command
		r.session = &session{id: x.ref.Session}
	}
	r.log = r.newLog()
	return r
}

func (r *sessionRun) newLog() *stream.Log {
	r.stdout.skip, r.stderr.skip = r.from.Stdout, r.from.Stderr // of a log that is read from its beginning
	return stream.New(string(r.mark), func(s stream.Stream, p []byte) error {
		if s == stream.Stderr {
			return r.write(r.stderr, p)
		}
		return r.write(r.stdout, p)
	})
}

// prepare brings the input into the sandbox, and takes a session.
func (r *sessionRun) prepare(ctx context.Context) error {
	if r.ref != nil {
		if !r.l.sessions.note(r.l, r.session.id) {
			return &Error{Kind: KindClosed, Message: "the lease was given back"}
		}
		return nil
	}
	if err := r.login.CheckWord(); err != nil {
		return &Error{Op: r.op, Kind: KindInvalid, Message: "a session cannot take the command: " + err.Error()}
	}
	if err := r.upload(ctx); err != nil {
		return err
	}
	session, err := r.l.sessions.take(ctx, r.l, r.box)
	if err != nil {
		r.sweep()
	}
	r.use(session)
	return err
}

// use chooses the session. The stop may read it at the same time; whoever else does follows the choice.
func (r *sessionRun) use(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
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
	r.stdin = &unhurried{r: r.cmd.Stdin, stall: stall, limit: limit}
	const private fs.FileMode = 0o700
	err := r.box.MakeDir(callCtx, r.scratch, private)
	if err == nil {
		err = r.box.Upload(callCtx, daytona.File{Path: r.stdinFile(), Content: r.stdin})
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
	n     int64 // read
}

func (u *unhurried) Read(p []byte) (int, error) {
	u.stall.Stop()
	defer u.stall.Reset(u.limit)
	n, err := u.r.Read(p)
	u.n += int64(n)
	return n, err
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
	if r.ref != nil {
		return r.attach(life)
	}
	err := r.submit(life)
	if shellGone(err) {
		// Such a session starts nothing any more: if the command did not run, another session may run it, once.
		if err := r.mourn(life, err); err != nil {
			return err
		}
		r.l.sessions.discard(r.l, r.box, r.session.id)
		session, failure := r.l.sessions.create(life, r.l, r.box)
		if failure != nil {
			return failure
		}
		r.use(session)
		err = r.submit(life)
	}
	if err == nil {
		r.dispatched = DispatchedYes
		return nil
	}
	if e := failed(r.op, err); e.Dispatched == DispatchedNo || e.Kind == KindNotRunning || e.Kind == KindInvalid {
		return r.l.observe(r.op, err) // nothing was sent, or there was nowhere to pass it on to
	}
	r.dispatched = DispatchedUnknown
	return r.resolve(life, err)
}

// submit sends the command to the session.
func (r *sessionRun) submit(life context.Context) error {
	text := script.Session{ID: r.id, Fence: r.session.nextFence(), Login: r.login, Mark: r.mark, Stdin: r.stdinFile(), Scratch: r.scratch}.Text()
	ctx, cancel := context.WithTimeout(life, r.l.p.cfg.CallTimeout)
	defer cancel()
	command, err := r.box.StartCommand(ctx, r.session.id, text)
	if err == nil {
		r.command = command
	}
	return err
}

// shellGone reports the daemon's word that the session's shell is dead.
func shellGone(err error) bool {
	var remote *daytona.Error
	return errors.As(err, &remote) && remote.ShellGone()
}

// mourn is called when the session's shell was found dead, and returns nil if the command was not started. The daemon
// lists every delivery, also one that it could not pass on. If there is only one, it is the one that failed; a pipe that
// breaks has not carried the whole of it, and no shell runs a part. If there are more, an earlier one may have run and
// killed the shell.
func (r *sessionRun) mourn(life context.Context, lost error) error {
	r.dispatched = DispatchedUnknown
	unknown := &Error{Op: r.op, Kind: KindUncertain, HTTPStatus: failed(r.op, lost).HTTPStatus, Message: "the session's shell died at the command's dispatch: whether it was started is not known"}
	twins, err := r.allTwins(life)
	if err != nil {
		return unknown
	}
	for _, id := range twins {
		r.command, r.log = id, r.newLog()
		err := r.readOnce(life)
		switch {
		case isOwn(err):
			r.dispatched = DispatchedYes
			return err
		case r.log.Accepted():
			r.dispatched = DispatchedYes
			if r.log.Complete() {
				return nil
			}
			return r.dead()
		case err != nil:
			return unknown
		}
	}
	r.command, r.log = "", r.newLog()
	if len(twins) > 1 {
		return unknown // what a dying shell has printed may still be on its way into the log
	}
	r.dispatched = DispatchedNo
	return nil
}

// dead is the end of a command whose shell is dead: nobody is left to record its exit.
func (r *sessionRun) dead() error {
	return &Error{Op: r.op, Kind: KindUncertain, Message: "the session's shell died under the command: how it ended is not known"}
}

// readOnce reads the log, and tries that for a while.
func (r *sessionRun) readOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	for pause := (backoff{}); ; {
		err := r.snapshot(ctx, resolveCall)
		if err == nil || isOwn(err) || sessionLost(err) || pause.wait(ctx, 0) != nil {
			return err
		}
	}
}

// attach looks whether the session knows the command.
func (r *sessionRun) attach(life context.Context) error {
	err := r.status(life, r.l.p.cfg.CallTimeout)
	switch {
	case sessionLost(err):
		return &Error{Op: r.op, Kind: KindNotFound, Message: "the sandbox has nothing of the command any more"}
	case err != nil:
		return r.l.observe(r.op, err)
	}
	r.dispatched = DispatchedYes
	return nil
}

// resolve finds out what became of a dispatch whose reply was lost, or came from something on the way. The session's list
// shows it if it arrived. If it does not, it may still be on its way: a fence, once the session's shell has run it, makes
// the shell refuse whatever arrives later, so that a list read after that is proof.
func (r *sessionRun) resolve(life context.Context, lost error) error {
	ctx, cancel := context.WithTimeout(life, resolveTime)
	defer cancel()
	e := failed(r.op, lost)
	unknown := &Error{Op: r.op, Kind: KindUncertain, HTTPStatus: e.HTTPStatus, Message: "no answer to the command's dispatch: whether it was started is not known"}
	fence := ""
	refusals := 0
	for pause := (backoff{}); ; {
		fenced := false
		callCtx, cancel := context.WithTimeout(ctx, resolveCall)
		if fence == "" {
			var err error
			fence, err = r.box.StartCommand(callCtx, r.session.id, script.Fence(r.id+"-fence", r.session.nextFence()))
			fenced = shellGone(err)
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
			if refused(lost) {
				return r.l.observe(r.op, lost)
			}
			return &Error{Op: r.op, Kind: KindUnavailable, HTTPStatus: unknown.HTTPStatus, Retryable: true, Message: "the command's dispatch was lost on the way, and it will not be started"}
		case sessionLost(err):
			return unknown
		case refused(err):
			if refusals++; refusals == maxRefusals {
				return r.l.observe(r.op, err)
			}
		}
		if err != nil {
			if err := r.lost(ctx, err, 0); err != nil {
				return err // the sandbox, and with it every answer
			}
		}
		if pause.wait(ctx, 0) != nil {
			return unknown
		}
	}
}

// refused reports an answer of the proxy's by which it keeps a request to itself. In place of a dispatch's reply it proves
// nothing, since the request may have been delivered once before.
func refused(err error) bool {
	var remote *daytona.Error
	return errors.As(err, &remote) && (remote.Unauthorized() || remote.Forbidden() || remote.RateLimited())
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

// stop deletes the session, and with it the command and what descends from it.
func (r *sessionRun) stop(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	r.mu.Lock()
	id := r.session.id
	r.deleted = id
	r.mu.Unlock()
	return r.l.sessions.delete(ctx, r.box, id)
}

// settle gives the session back, and removes what the command did not.
func (r *sessionRun) settle() error {
	if r.left {
		r.l.sessions.forget(r.session.id) // another host may go on with it
		return nil
	}
	clean := r.log.Complete() || r.dispatched == DispatchedNo
	if !r.stopped && (!clean || !r.release()) || r.stopped && (!r.stopConfirmed || r.deleted != r.session.id) {
		r.l.sessions.discard(r.l, r.box, r.session.id)
	}
	r.sweep()
	switch {
	case r.log.NoDirectory():
		return r.noDirectory()
	case r.log.Complete() && !r.log.Started():
		return r.replaced()
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

// report says what is known.
func (r *sessionRun) report(result *Result) {
	result.Transport, result.Fidelity, result.Delivery = TransportSession, FidelityLines, r.delivered
	result.Complete = r.log.Complete() && r.log.Started()
	if r.log.Damaged() {
		result.Fidelity = FidelityDamaged
	}
	if r.stdin != nil && r.dispatched != DispatchedNo {
		result.StdinSize = r.stdin.n
	}
	code, known := r.log.Exit()
	switch {
	case known && r.log.Started():
		result.Exited, result.ExitCode = true, code
	case r.recorded != nil && *r.recorded != script.RefusedStatus && !r.log.NoDirectory() && !known:
		// Without the wrapper's marks a refused dispatch could be taken for the command, but for its status.
		result.Exited, result.ExitCode = true, *r.recorded
	}
}

func (r *sessionRun) refer(ref *CommandRef) {
	ref.Transport, ref.ID, ref.Session, ref.Command, ref.Mark = TransportSession, r.id, r.session.id, r.command, string(r.mark)
}
