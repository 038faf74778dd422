package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
)

const (
	// waitTime is how long a request waits in the sandbox for news of a command.
	waitTime = 10 * time.Second
	// replyTime is how much longer its reply may take, and how long a download may deliver nothing.
	replyTime = 15 * time.Second
	// paceTime is the least time from one request for news to the next, unless the last one brought much.
	paceTime = 40 * time.Millisecond
	// muchOutput is what is fetched without a pause.
	muchOutput = 256 << 10
	// endTime is how long the end of a stream may be missing once the exit is recorded.
	endTime = 10 * time.Second
	// stopTime bounds a stop: the sandbox takes up to six seconds of it.
	stopTime = 8 * time.Second
)

// journalRun is one command on the journal transport: one script starts it, at most once whatever happens to the request,
// and keeps its record and its output in files. Each request of it, the first included, waits in the sandbox for news and
// brings them along; what does not fit, or is not text, is read from the files.
type journalRun struct {
	feeder
	born    string // the journal by which the sandbox's directory of them was made, as far as known before the dispatch
	dir     string // of the journals
	begun   atomic.Bool
	process atomic.Pointer[script.Process]

	out, errs *journalStream
	lostWaits atomic.Int32 // requests without a reply: they may still be waiting
	record    script.Frame // the last one
	exitSeen  time.Time    // when the exit was first seen in it
	ended     bool         // no more will be known
	inline    int64        // bytes of the input that the dispatch carried
	feeding   bool         // the input is delivered while the command runs
	followed  bool         // it took more than the dispatch
	stopFrame *script.Frame
	stopFrom  [2]int64 // the offsets that stopFrame begins at

	first func(context.Context) error // takes in what the frame held that told of the dispatch
}

func newJournalRun(x *execution) *journalRun {
	r := &journalRun{born: x.l.journals.known()}
	r.execution, r.journal = x, script.Journal{ID: strings.ToLower(rand.Text()), Mark: "lh" + strings.ToLower(rand.Text())}
	if x.ref != nil {
		r.journal.ID, r.journal.Mark = x.ref.ID, x.ref.Mark
	}
	r.out = newJournalStream(x.stdout, r.journal, ".o", x.from.Stdout)
	r.errs = newJournalStream(x.stderr, r.journal, ".e", x.from.Stderr)
	return r
}

func (r *journalRun) prepare(ctx context.Context) error {
	if err := r.readInput(ctx); err != nil {
		return err
	}
	return r.l.journals.enter(r.execution)
}

// dispatch submits the command, and takes in what became of it meanwhile.
func (r *journalRun) dispatch(life context.Context) error {
	if r.ref != nil {
		return r.attach(life)
	}
	start := script.Start{Login: r.login}
	if r.input != nil {
		if start.Feed = !r.input.ended || len(r.input.ahead) > maxInline; !start.Feed {
			start.Stdin = r.input.ahead
		}
	}
	r.inline, r.feeding = int64(len(start.Stdin)), start.Feed
	limit := waitTime
	if r.detached || start.Feed {
		limit = script.Tick // a short command's result comes along nevertheless
	}
	start.Wait = r.wait(limit)
	start.Wait.Inline = script.Inline
	chores := r.l.journals.chores()
	start.Drop, start.Sweep = chores.drop, chores.sweep
	sent := time.Now()
	frame, err := r.ask(life, r.journal.Start(start), start.Wait)
	if err != nil || frame.State != script.StateRunning && frame.State != script.StateLost {
		r.l.journals.undone(chores)
	}
	if err != nil {
		if r.notPassedOn(err, sent) {
			return r.l.observe(r.op, err)
		}
		r.dispatched, r.followed = DispatchedUnknown, true
		return r.resolve(life, err)
	}
	switch {
	case noRoom(frame):
		return errNoJournal
	case frame.State == script.StateNoneAgain: // another delivery's command may have done that
		r.dispatched = DispatchedUnknown
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the directory of the journals was taken away: whether the command was started is not known"}
	case frame.State == script.StateUnwritable:
		r.dispatched = DispatchedUnknown
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the sandbox has no room for the command's journal: whether a copy of its dispatch started it, or will, is not known"}
	case frame.State != script.StateRunning && frame.State != script.StateLost:
		r.dispatched = DispatchedUnknown
		return &Error{Op: r.op, Kind: KindProtocol, Message: "the reply to the command's dispatch makes no sense"}
	}
	r.begin(frame, start.Wait)
	return nil
}

// begin notes that the dispatch is known to have arrived. What the frame holds is left to observe: a host may begin to read
// the output only once it knows that the command was dispatched.
func (r *journalRun) begin(frame script.Frame, wait script.Wait) {
	r.dispatched = DispatchedYes
	r.begun.Store(true)
	r.first = func(ctx context.Context) error { return own(r.take(ctx, frame, wait)) }
}

// noRoom reports that the command was not started, and will not be, for lack of room: for the journal, or, when the exit
// is that of what should have become the command, for the record of its process.
func noRoom(f script.Frame) bool {
	return f.State == script.StateFull || f.Exited && f.Process.ID == 0
}

// attach looks whether there is a journal.
func (r *journalRun) attach(life context.Context) error {
	wait := r.wait(0)
	frame, err := r.ask(life, r.journal.Observe(wait), wait)
	switch {
	case err != nil:
		return r.l.observe(r.op, err)
	case frame.State == script.StateGone || !frame.Claimed:
		return &Error{Op: r.op, Kind: KindNotFound, Message: "the sandbox has nothing of the command any more"}
	}
	r.followed = true
	r.over.Store(frame.Exited || frame.State == script.StateLost)
	r.begin(frame, wait)
	return nil
}

// resolve finds out what became of a dispatch without a reply, or with one that came from something on the way. If it has
// not arrived by now, it will not start anything any more.
func (r *journalRun) resolve(life context.Context, lost error) error {
	ctx, cancel := context.WithTimeout(life, resolveTime)
	defer cancel()
	unknown := &Error{Op: r.op, Kind: KindUncertain, HTTPStatus: failed(r.op, lost).HTTPStatus, Message: "no answer to the command's dispatch: whether it was started is not known"}
	refusals := 0
	for pause := (backoff{}); ; {
		wait := r.wait(time.Second)
		callCtx, cancel := context.WithTimeout(ctx, resolveCall) // one that is never answered leaves time for another
		frame, err := r.ask(callCtx, r.journal.Settle(wait), wait)
		cancel()
		switch {
		case refused(err):
			if refusals++; refusals == maxRefusals {
				return r.l.observe(r.op, err)
			}
		case err != nil:
			if err := r.lost(ctx, err, 0); err != nil {
				return err // the sandbox, and with it every answer
			}
		case r.neverStarted(frame):
			r.dispatched = DispatchedNo
			if refused(lost) {
				return r.l.observe(r.op, lost)
			}
			return &Error{Op: r.op, Kind: KindUnavailable, HTTPStatus: unknown.HTTPStatus, Retryable: true, Message: "the command's dispatch was lost on the way, and it will not be started"}
		case noRoom(frame):
			r.dispatched = DispatchedNo
			return errNoJournal
		case frame.Process.ID != 0:
			r.begin(frame, wait)
			return nil
		case frame.State != script.StateRunning && frame.State != script.StateUnwritable:
			return unknown // it will not be started from now on, and may have been before
		}
		if pause.wait(ctx, 0) != nil {
			return unknown
		}
	}
}

// wait is a wait from the offsets reached.
func (r *journalRun) wait(limit time.Duration) script.Wait {
	return script.Wait{
		Limit: limit, Output: r.cmd.Stdout != nil || r.cmd.Stderr != nil,
		Stdout: r.out.at.Load(), Stderr: r.errs.at.Load(), Inline: script.InlineMore, Lost: int(r.lostWaits.Load()),
	}
}

// ask runs one of the journal's scripts.
func (r *journalRun) ask(ctx context.Context, s script.Script, wait script.Wait) (script.Frame, error) {
	frame, err := r.execution.ask(ctx, r.journal.Mark, s, wait)
	if err == nil {
		r.l.journals.know(frame.Born)
		if frame.Process.ID != 0 {
			r.process.Store(&frame.Process)
		}
	}
	return frame, err
}

// observe asks for news until the command has ended and everything is delivered. A request without a reply is repeated:
// asking changes nothing, and starts from the offsets reached. A command whose journal was removed under it is an error:
// it is not to go on unseen.
func (r *journalRun) observe(life, ctx context.Context) error {
	if r.feeding {
		feedCtx, cancel := context.WithCancel(life)
		var feeding sync.WaitGroup
		feeding.Go(func() { r.feed(feedCtx) })
		defer feeding.Wait()
		defer cancel()
	}
	if err := r.first(life); err != nil {
		return err
	}
	var blind time.Time // since when nothing could be read
	var pause backoff
	for !r.ended {
		if life.Err() != nil {
			return life.Err()
		}
		r.followed = true
		next, before := time.Now().Add(paceTime), r.size()
		wait := r.wait(waitTime)
		if r.record.Exited {
			wait.Ends, wait.Output = true, true
			wait.Limit = min(waitTime, max(endTime-time.Since(r.exitSeen), 0))
		}
		frame, err := r.ask(ctx, r.journal.Observe(wait), wait)
		if err != nil {
			r.lostWaits.Add(1)
		} else {
			err = r.take(ctx, frame, wait)
		}
		switch {
		case isOwn(err):
			return err
		case err == nil:
			blind, pause = time.Time{}, backoff{}
			if r.size()-before < muchOutput && !r.ended {
				if err := sleep(life, time.Until(next)); err != nil {
					return err
				}
			}
		case life.Err() != nil:
			return life.Err()
		default:
			if blind.IsZero() {
				blind = time.Now()
			}
			if err := r.lost(ctx, err, time.Since(blind)); err != nil {
				return err
			}
			if err := pause.wait(life, failed(r.op, err).RetryAfter); err != nil {
				return err
			}
		}
	}
	if r.record.State == script.StateGone {
		return r.gone()
	}
	return nil
}

func (r *journalRun) gone() error {
	return &Error{Op: r.op, Kind: KindUncertain, Message: "the command's journal is gone: how it ended is not known"}
}

// known is the command's process, if any frame told it.
func (r *journalRun) known() (p script.Process) {
	if q := r.process.Load(); q != nil {
		p = *q
	}
	return p
}

// stop ends the command, and keeps what the reply says of it.
func (r *journalRun) stop(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	for pause := (backoff{}); ; {
		wait := r.wait(0)
		wait.Inline = script.Inline // there is no other chance
		frame, err := r.ask(ctx, r.journal.Stop(wait, r.known()), wait)
		if err == nil {
			r.stopFrame, r.stopFrom = &frame, [2]int64{wait.Stdout, wait.Stderr}
			return frame.State == script.StateStopped || r.neverStarted(frame)
		}
		var remote *daytona.Error
		if !errors.As(err, &remote) || !failed(r.op, err).Retryable && remote.Reason != daytona.ReasonDecode || pause.wait(ctx, 0) != nil {
			return false
		}
	}
}

// exited asks for the record.
func (r *journalRun) exited(ctx context.Context) bool {
	for pause := (backoff{}); ; {
		wait := script.Wait{Stdout: script.Done, Stderr: script.Done}
		frame, err := r.ask(ctx, r.journal.Observe(wait), wait)
		if err == nil || !failed(r.op, err).Retryable || pause.wait(ctx, 0) != nil {
			return err == nil && frame.Exited
		}
	}
}

// neverStarted reports that the script took the record for itself, which proves that nobody can start the command from now
// on, and that nobody has started it before either. The latter takes more than that there was no record, since one may
// have been removed meanwhile with its directory, by a restart or by whoever cleans up: then the command would be reported
// as not dispatched although it ran. Records alone are only emptied, or swept hours later. So
//
//   - the directory is the one that this host saw before it dispatched: it tells by which journal it was made; or
//   - the script made the directory, of which this host had seen none, and the sandbox knows of none either: it notes each
//     in memory, apart from the directory. A dispatch that arrived would have made the directory and the note.
func (r *journalRun) neverStarted(f script.Frame) bool {
	if r.begun.Load() {
		return false
	}
	return f.State == script.StateNone && r.born != "" && f.Born == r.born || f.State == script.StateNoneNew && r.born == ""
}

// settle takes in what the stop found, and lets the journal be removed.
func (r *journalRun) settle() error {
	r.l.journals.leave(r.execution)
	if f := r.stopFrame; f != nil {
		r.takeStop(*f)
	}
	if r.login.Bwrap != nil && r.record.Started && !r.record.Wrapped {
		r.l.unwrapped(r.record.Stale)
	}
	// The note that keeps a command from beginning must stay.
	forestalled := r.stopFrame != nil && r.stopFrame.State == script.StateStopped && r.stopFrame.Process.ID == 0
	if (r.ended || r.stopConfirmed) && !forestalled && !r.left && !r.out.beyond() && !r.errs.beyond() {
		r.l.journals.done(r.journal.ID, r.size())
	}
	if err := r.unstarted(); err != nil {
		return err
	}
	switch {
	case r.record.State == script.StateGone:
		return r.gone()
	case !r.record.Exited:
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the command is gone, and how it ended was not recorded"}
	case r.out.cut || r.errs.cut:
		return &Error{Op: r.op, Kind: KindQuota, Message: "the sandbox's disk was full, or a quota or file-size limit was reached: the end of the output is lost"}
	case r.out.beyond() || r.errs.beyond():
		return r.beyond()
	case !r.complete():
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the command has ended, and the end of its output is missing in the sandbox"}
	}
	return nil
}

func (r *journalRun) unstarted() error {
	switch {
	case r.record.NoDir:
		return r.noDirectory()
	case r.record.Exited && !r.record.Started:
		return r.replaced()
	}
	return nil
}

// takeStop takes in the frame of a stop, as far as that needs no request and no writer failed.
func (r *journalRun) takeStop(f script.Frame) {
	switch {
	case r.neverStarted(f):
		r.dispatched = DispatchedNo
		return
	case f.Process.ID == 0:
		return
	}
	r.dispatched = DispatchedYes
	if r.ended {
		return
	}
	r.record = f
	if r.stdout.failed || r.stderr.failed {
		return
	}
	if r.piece(r.out, f.Stdout, r.stopFrom[0]) == nil {
		_ = r.piece(r.errs, f.Stderr, r.stopFrom[1])
	}
}

// report says what is known.
func (r *journalRun) report(result *Result) {
	result.Transport, result.Fidelity, result.Delivery, result.Wrapped = TransportJournal, FidelityExact, DeliveryReply, r.record.Wrapped
	if r.dispatched == DispatchedYes {
		result.StdinSize = r.inline + r.taken.Load()
	}
	if r.followed {
		result.Delivery = DeliveryFiles
	}
	if r.record.Exited && r.record.Started {
		result.Exited, result.ExitCode = true, r.record.Exit
		result.Complete = r.complete()
	}
}

func (r *journalRun) refer(ref *CommandRef) {
	ref.Transport, ref.ID, ref.Mark = TransportJournal, r.journal.ID, r.journal.Mark
}
