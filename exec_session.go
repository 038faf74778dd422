package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// sessionRun is one command on the session transport: dispatched once to a session's shell, and observed in its log. An input
// that does not fit into the dispatch is fed into a pipe beside it.
type sessionRun struct {
	feeder

	id      string // names the command in the session's list
	mark    script.Mark
	sent    script.Session // the dispatch, but for its fence
	files   bool           // it needs files in the sandbox
	session *session       // see use
	command string         // the daemon's id of the dispatch that is observed
	sentAt  time.Time      // when it was dispatched

	mu      sync.Mutex
	deleted string         // id of the session that the stop deleted
	process stream.Process // the command's, once the log has told it

	told      chan struct{} // closed then
	log       *stream.Log
	recorded  *int // the exit code that the daemon recorded, if that was seen
	delivered Delivery
}

func newSessionRun(x *execution) *sessionRun {
	r := &sessionRun{id: "leasehold-command-" + uuid.NewString(), mark: script.NewMark(rand.Text() + rand.Text()), told: make(chan struct{}), delivered: DeliverySnapshot}
	r.execution = x
	if x.ref != nil {
		r.id, r.mark, r.command = x.ref.ID, script.Mark(x.ref.Mark), x.ref.Command
		r.session = &session{id: x.ref.Session}
	}
	r.journal = script.Journal{ID: r.id, Mark: "lh" + rand.Text() + rand.Text()}
	r.log = r.newLog()
	return r
}

func (r *sessionRun) newLog() *stream.Log {
	r.stdout.skip, r.stderr.skip = r.from.Stdout, r.from.Stderr // of a log that is read from its beginning
	return stream.New(string(r.mark), func(s stream.Stream, p []byte) error {
		r.meet()
		if s == stream.Stderr {
			return r.write(r.stderr, p)
		}
		return r.write(r.stdout, p)
	})
}

// prepare looks whether the input rides in the dispatch, and takes a session.
func (r *sessionRun) prepare(ctx context.Context) error {
	if r.ref != nil {
		if !r.l.sessions.note(r.l, r.session.id) {
			return &Error{Kind: KindClosed, Message: "the lease was given back"}
		}
		return nil
	}
	if err := r.readInput(ctx); err != nil {
		return err
	}
	r.sent = script.Session{ID: r.id, Login: r.login, Mark: r.mark}
	if r.input != nil {
		if r.sent.Feed = !r.input.ended || len(r.input.ahead) > maxInline; !r.sent.Feed {
			r.sent.Stdin = r.input.ahead
		}
	}
	r.files = r.sent.Files()
	session, err := r.l.sessions.take(ctx, r.l, r.box)
	r.use(session)
	return err
}

// use chooses the session. The stop may read it at the same time; whoever else does follows the choice.
func (r *sessionRun) use(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
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
		r.session.dead = true
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
	if r.notPassedOn(err, r.sentAt) {
		return r.l.observe(r.op, err)
	}
	r.dispatched = DispatchedUnknown
	return r.resolve(life, err)
}

// submit sends the command to the session.
func (r *sessionRun) submit(life context.Context) error {
	r.sent.Fence = r.session.nextFence()
	text := r.sent.Text()
	ctx, cancel := context.WithTimeout(life, r.l.p.cfg.CallTimeout)
	defer cancel()
	r.sentAt = time.Now()
	command, err := r.box.StartCommand(ctx, r.session.id, text)
	if err == nil {
		r.observing(command)
	}
	return err
}

// observing chooses the delivery of the dispatch that is observed, of which nothing is known yet. The stop may read the choice at
// the same time.
func (r *sessionRun) observing(command string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.command = command
	r.recorded, r.log = nil, r.newLog()
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
		r.observing(id)
		err := r.readLog(life)
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
	r.observing("")
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

// readLog reads the log, and tries that for up to resolveTime.
func (r *sessionRun) readLog(ctx context.Context) error {
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
	if deadline := r.ref.Deadline; !r.over.Load() && !deadline.IsZero() && time.Until(deadline) <= 0 {
		ctx, cancel := context.WithTimeout(life, r.l.p.cfg.CallTimeout)
		defer cancel()
		gone, ran, err := r.gone(ctx)
		if err != nil {
			return r.l.observe(r.op, err) // nothing is taken over, and so nothing is ended
		}
		if r.over.Store(gone); ran != r.command {
			r.observing(ran) // at once: it is about to be stopped
		}
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
			r.observing(twins[0])
			r.dispatched = DispatchedYes
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

// twins returns the daemon's ids of this command in the session's list: more than one if the dispatch was delivered more
// than once.
func (r *sessionRun) twins(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveCall)
	defer cancel()
	r.mu.Lock()
	session := r.session.id
	r.mu.Unlock()
	commands, err := r.box.SessionCommands(ctx, session)
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

// stop ends the command's process group, and then deletes the session, and with it what descends from the command: the daemon
// leaves those of its group alone whose parents have ended, and ends the others in any order, so that a command could see an
// end of its input that is none, because who holds its pipe is dead already. It is confirmed if both are done. A command
// whose process is not known may have begun: the deletion ends what it can find, and that is no proof.
func (r *sessionRun) stop(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, deleteTime)
	defer cancel()
	r.mu.Lock()
	id := r.session.id
	r.deleted = id
	r.mu.Unlock()
	process, known := r.findProcess(ctx)
	if process.ID != 0 {
		known = r.stopGroup(ctx, process)
	}
	return r.l.sessions.delete(ctx, r.box, id) && known
}

// exited asks, and tries that for a while.
func (r *sessionRun) exited(ctx context.Context) bool {
	for pause := (backoff{}); ; {
		gone, _, err := r.gone(ctx)
		if err == nil || !failed(r.op, err).Retryable || pause.wait(ctx, 0) != nil {
			return gone
		}
	}
}

// gone looks whether the command has ended: at its process, since the daemon records an exit only once nobody holds the output
// any more, and one that may be the wrapper's own proves nothing. If the log has not told the process yet, a recorded exit that is
// known to be the command's will do. It returns the delivery that it looked at, too.
func (r *sessionRun) gone(ctx context.Context) (gone bool, command string, err error) {
	r.mu.Lock()
	process, session, command := r.process, r.session.id, r.command
	r.mu.Unlock()
	if command == "" {
		return false, command, nil
	}
	if process.ID == 0 {
		code, err := r.exitCode(ctx, session, command)
		if err != nil || isExit(code) {
			return err == nil, command, err
		}
		log, ran, err := r.glimpse(ctx, session, command)
		if command, process = ran, log.Process(); process.ID == 0 {
			return log.Complete(), command, err
		}
	}
	said, err := r.lookAt(ctx, process)
	return said == script.LookGone, command, err
}

// isExit reports that a code which the daemon recorded is that of a command which ran, as far as that tells.
func isExit(recorded *int) bool { return recorded != nil && *recorded != script.RefusedStatus }

// findProcess returns the command's process, if there is one, and whether that is known: the daemon writes the log a moment after
// the command, and on a full disk never. It does not wait for the observation, which a writer may keep waiting.
func (r *sessionRun) findProcess(ctx context.Context) (process stream.Process, known bool) {
	r.mu.Lock()
	process, session, command := r.process, r.session.id, r.command
	r.mu.Unlock()
	if process.ID != 0 {
		return process, true
	}
	if command == "" {
		return process, false
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTime)
	defer cancel()
	for pause := (backoff{}); ; {
		log, _, err := r.glimpse(ctx, session, command)
		process, known = log.Process(), log.Process().ID != 0 || log.Complete()
		if err != nil || known || pause.wait(ctx, 0) != nil {
			return process, known
		}
	}
}

// glimpse reads as much of the log as tells the command's process, or that it has ended without one, and delivers nothing. If the
// session's shell refused the delivery, or has not come to it, it reads the logs of the others, up to that of the one that runs. It
// returns the delivery whose log it is.
func (r *sessionRun) glimpse(ctx context.Context, session, command string) (*stream.Log, string, error) {
	log, err := r.peruse(ctx, session, command)
	if err != nil || log.Accepted() {
		return log, command, err
	}
	twins, err := r.twins(ctx)
	for _, id := range twins {
		if id == command {
			continue
		}
		other, err := r.peruse(ctx, session, id)
		if err != nil || other.Accepted() {
			return other, id, err
		}
	}
	return log, command, err
}

// peruse does that with one delivery.
func (r *sessionRun) peruse(ctx context.Context, session, command string) (*stream.Log, error) {
	log := stream.New(string(r.mark), func(stream.Stream, []byte) error { return nil })
	body, err := r.box.Logs(ctx, session, command)
	if err != nil {
		return log, err
	}
	defer body.Close()
	read, buf := log.Open(), make([]byte, 32<<10)
	for log.Process().ID == 0 && !log.Complete() {
		n, err := body.Read(buf)
		_, _ = read.Write(buf[:n])
		if err == io.EOF {
			return log, nil
		}
		if err != nil {
			return log, err
		}
	}
	return log, nil
}

// stopGroup ends the command's process group, and reports whether it is confirmed to be empty. It leaves time for the
// deletion, which ends most commands, too.
func (r *sessionRun) stopGroup(ctx context.Context, process stream.Process) bool {
	ctx, cancel := context.WithTimeout(ctx, deleteTime*3/4)
	defer cancel()
	stop := script.Session{ID: r.id}.StopGroup(process.ID, process.Start)
	for pause := (backoff{}); ; {
		reply, err := r.box.ExecuteEnv(ctx, stop.Command, stop.Env, 0)
		if err == nil {
			return strings.TrimSpace(reply.Output) == script.LookGone
		}
		if !failed(r.op, err).Retryable || pause.wait(ctx, 0) != nil {
			return false
		}
	}
}

// settle gives the session back, and removes the command's files.
func (r *sessionRun) settle() error {
	if r.left {
		r.l.sessions.forget(r.session.id) // another host may go on with it
		return nil
	}
	if r.log.NoRoom() {
		r.dispatched = DispatchedNo
	}
	if r.login.Bwrap != nil && r.log.Started() && !r.log.Wrapped() {
		r.l.unwrapped(r.log.Stale())
	}
	clean := r.log.Complete() || r.dispatched == DispatchedNo
	gone := r.session.dead || r.stopConfirmed && r.deleted == r.session.id
	// The session of another host's command stays until the lease is given back: that host may go on with it, and only it
	// knows the fence of the last dispatch.
	kept := !gone && !r.stopped && clean && (r.ref != nil || r.release())
	if !gone && !kept {
		r.l.sessions.discard(r.l, r.box, r.session.id)
	}
	if r.files && r.dispatched != DispatchedNo && (r.log.Complete() || r.stopConfirmed) { // else they are swept one day
		r.l.sessions.clear(r.l, r.box, r.sent.Remove())
	}
	if r.log.NoRoom() {
		return r.noRoom()
	}
	if err := r.unstarted(); err != nil {
		return err
	}
	switch {
	case !r.log.Complete():
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the command's exit is recorded, but not that all of its output was seen"}
	case r.stdout.skip > 0 || r.stderr.skip > 0:
		return r.beyond()
	}
	return nil
}

func (r *sessionRun) unstarted() error {
	switch {
	case r.log.NoDirectory():
		return r.noDirectory()
	case r.log.Complete() && !r.log.Started():
		return r.replaced()
	}
	return nil
}

// noRoom is the error of a command that was not started for lack of room for its files.
func (r *sessionRun) noRoom() error {
	what := fmt.Sprintf("a command of more than %d bytes (MAX_ARG_STRLEN)", script.MaxWord)
	if r.sent.Feed {
		what = fmt.Sprintf("the command's input, of which %d bytes were taken", r.input.read.Load())
	}
	return &Error{Op: r.op, Kind: KindUnavailable, Message: "the sandbox has no writable directory for " + what + "; it was not started"}
}

// release gives the session back to the pool. It reports false if the pool has enough.
func (r *sessionRun) release() bool {
	if r.dispatched == DispatchedYes && r.recorded == nil && !r.log.Free() {
		r.session.last = r.command
	}
	return r.l.sessions.put(r.session)
}

// report says what is known.
func (r *sessionRun) report(result *Result) {
	result.Transport, result.Fidelity, result.Delivery = TransportSession, FidelityLines, r.delivered
	result.Complete = r.log.Complete() && r.log.Started() && !r.stdout.failed && !r.stderr.failed
	result.Wrapped = r.log.Wrapped()
	if r.log.Damaged() {
		result.Fidelity = FidelityDamaged
	}
	if r.dispatched == DispatchedYes {
		result.StdinSize = r.taken.Load() + int64(len(r.sent.Stdin))
	}
	code, known := r.log.Exit()
	switch {
	case known && r.log.Started():
		result.Exited, result.ExitCode = true, code
	case isExit(r.recorded) && !r.log.NoDirectory() && !known && (r.log.Started() || !r.stopped):
		// Without the wrapper's marks a refused dispatch, or one that came to nothing, could be taken for the command, but for its
		// status. A stop may have ended the profiles, and its status tells nothing.
		result.Exited, result.ExitCode = true, *r.recorded
	}
}

func (r *sessionRun) refer(ref *CommandRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref.Transport, ref.ID, ref.Session, ref.Command, ref.Mark = TransportSession, r.id, r.session.id, r.command, string(r.mark)
}
