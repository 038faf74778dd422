package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"path"
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
	// stopTime bounds a stop: the sandbox takes up to four seconds of it.
	stopTime = 8 * time.Second
)

// journalRun is one command on the journal transport: one script starts it, at most once whatever happens to the request,
// and keeps its record and its output in files. Each request of it, the first included, waits in the sandbox for news and
// brings them along; what does not fit, or is not text, is read from the files.
type journalRun struct {
	feeder
	dir   string      // of the journals
	begun atomic.Bool // the dispatch is known to have arrived
	knew  bool        // the sandbox had journals before

	stdoutAt, stderrAt atomic.Int64 // delivered
	lostWaits          atomic.Int32 // requests without a reply: they may still be waiting
	record             script.Frame // the last one
	complete           bool         // the exit is recorded, and everything up to it delivered
	ended              bool         // no more will be known
	feeding            bool         // the input is delivered while the command runs
	followed           bool         // it took more than the dispatch
	stopFrame          *script.Frame
	stopFrom           [2]int64 // the offsets that stopFrame begins at
}

func newJournalRun(x *execution) *journalRun {
	r := &journalRun{knew: x.l.journals.known()}
	r.execution, r.journal = x, script.Journal{ID: strings.ToLower(rand.Text()), Mark: "lh" + rand.Text() + rand.Text()}
	if x.ref != nil {
		r.journal.ID = x.ref.ID
		r.stdoutAt.Store(x.from.Stdout)
		r.stderrAt.Store(x.from.Stderr)
	}
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
	limit := waitTime
	if r.detached || start.Feed {
		limit = script.Tick // a short command's result comes along nevertheless
	}
	start.Wait = r.wait(limit)
	start.Wait.Inline = script.Inline
	start.Drop, start.Sweep = r.l.journals.chores()
	frame, err := r.ask(life, r.journal.Start(start), start.Wait)
	if err != nil {
		e := failed(r.op, err)
		if e.Dispatched == DispatchedNo || e.Kind == KindAuth || e.Kind == KindRateLimited || e.Kind == KindNotRunning || e.Kind == KindInvalid {
			return r.l.observe(r.op, err) // the proxy said so before it passed anything on
		}
		r.dispatched, r.followed = DispatchedUnknown, true
		if err = r.resolve(life, err); err == nil {
			r.taken.Store(int64(len(start.Stdin)))
			r.feeding = start.Feed
		}
		return err
	}
	switch {
	case frame.State == script.StateFull, frame.Exited && frame.Process == 0:
		return errNoJournal // in the second case there was no room for the output
	case frame.State == script.StateUnwritable:
		return &Error{Op: r.op, Kind: KindUnavailable, Retryable: true, Message: "the sandbox has no room for the command's journal; it was not started"}
	case frame.State != script.StateRunning && frame.State != script.StateLost:
		r.dispatched = DispatchedUnknown
		return &Error{Op: r.op, Kind: KindProtocol, Message: "the reply to the command's dispatch makes no sense"}
	}
	r.dispatched = DispatchedYes
	r.begun.Store(true)
	r.taken.Store(int64(len(start.Stdin)))
	r.feeding = start.Feed
	return r.own(r.take(life, frame, start.Wait))
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
	r.dispatched, r.followed = DispatchedYes, true
	r.begun.Store(true)
	return r.own(r.take(life, frame, wait))
}

// own returns err if it is a writer's. Others are met again by the next read.
func (r *journalRun) own(err error) error {
	if isOwn(err) {
		return err
	}
	return nil
}

// resolve finds out what became of a dispatch without a reply. If it has not arrived by now, it will not start anything
// any more.
func (r *journalRun) resolve(life context.Context, lost error) error {
	ctx, cancel := context.WithTimeout(life, resolveTime)
	defer cancel()
	unknown := &Error{Op: r.op, Kind: KindUncertain, HTTPStatus: failed(r.op, lost).HTTPStatus, Message: "no answer to the command's dispatch: whether it was started is not known"}
	for pause := (backoff{}); ; {
		wait := r.wait(time.Second)
		frame, err := r.ask(ctx, r.journal.Settle(wait), wait)
		switch {
		case err != nil:
		case r.neverStarted(frame):
			r.dispatched = DispatchedNo
			return &Error{Op: r.op, Kind: KindUnavailable, HTTPStatus: unknown.HTTPStatus, Retryable: true, Message: "the command's dispatch was lost on the way, and it will not be started"}
		case frame.State == script.StateFull, frame.Exited && frame.Process == 0:
			r.dispatched = DispatchedNo
			return errNoJournal
		case frame.Process != 0:
			r.dispatched = DispatchedYes
			r.begun.Store(true)
			return r.own(r.take(life, frame, wait))
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
		Stdout: r.stdoutAt.Load(), Stderr: r.stderrAt.Load(), Inline: script.InlineMore, Lost: int(r.lostWaits.Load()),
	}
}

// ask runs one of the journal's scripts.
func (r *journalRun) ask(ctx context.Context, s script.Script, wait script.Wait) (script.Frame, error) {
	frame, err := r.execution.ask(ctx, r.journal.Mark, s, wait)
	if err == nil {
		r.l.journals.know()
	}
	return frame, err
}

// take delivers what a frame brought, which was asked for from the offsets of wait, and then what it did not.
func (r *journalRun) take(ctx context.Context, frame script.Frame, wait script.Wait) error {
	r.record = frame
	if frame.Dir != "" {
		r.dir = frame.Dir
	}
	if frame.State == script.StateGone || !frame.Claimed {
		r.record.State, r.ended = script.StateGone, true
		return nil
	}
	if err := r.piece(ctx, frame.Stdout, wait.Stdout, r.stdout, &r.stdoutAt, ".o"); err != nil {
		return err
	}
	if err := r.piece(ctx, frame.Stderr, wait.Stderr, r.stderr, &r.stderrAt, ".e"); err != nil {
		return err
	}
	r.complete = frame.Exited
	r.ended = frame.Exited || frame.State == script.StateLost
	return nil
}

// piece delivers the piece of a stream that begins at from, and reads the rest if it was not the whole.
func (r *journalRun) piece(ctx context.Context, p script.Piece, from int64, o *output, at *atomic.Int64, suffix string) error {
	if old := at.Load() - from; old < int64(len(p.Bytes)) {
		if err := r.deliver(o, at, []byte(p.Bytes[old:])); err != nil {
			return err
		}
	}
	if p.Whole {
		return nil
	}
	r.followed = true
	return r.fetch(ctx, o, at, suffix)
}

func (r *journalRun) deliver(o *output, at *atomic.Int64, p []byte) error {
	at.Add(int64(len(p)))
	return r.write(o, p)
}

// fetch reads a stream's file from the offset reached to its present end.
func (r *journalRun) fetch(ctx context.Context, o *output, at *atomic.Int64, suffix string) error {
	if r.dir == "" {
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the journal's directory has a name that is not text: the output cannot be read"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(replyTime, cancel)
	defer silence.Stop()
	file, err := r.box.Download(ctx, path.Join(r.dir, r.journal.ID+suffix), at.Load())
	if err != nil {
		return err
	}
	defer file.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := file.Read(buf)
		if n > 0 {
			silence.Stop() // a slow writer is not the connection's silence
			if err := r.deliver(o, at, buf[:n]); err != nil {
				return err
			}
			silence.Reset(replyTime)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// observe asks for news until the command has ended and everything is delivered. A request without a reply is repeated:
// asking changes nothing, and starts from the offsets reached.
func (r *journalRun) observe(life, ctx context.Context) error {
	if r.feeding {
		feedCtx, cancel := context.WithCancel(life)
		var feeding sync.WaitGroup
		feeding.Go(func() { r.feed(feedCtx) })
		defer feeding.Wait()
		defer cancel()
	}
	var blind time.Time // since when nothing could be read
	var pause backoff
	for !r.ended {
		if life.Err() != nil {
			return life.Err()
		}
		r.followed = true
		next, before := time.Now().Add(paceTime), r.stdoutAt.Load()+r.stderrAt.Load()
		wait := r.wait(waitTime)
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
			if r.stdoutAt.Load()+r.stderrAt.Load()-before < muchOutput && !r.ended {
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
	return nil
}

// stop ends the command, and keeps what the reply says of it.
func (r *journalRun) stop(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	for pause := (backoff{}); ; {
		wait := r.wait(0)
		wait.Inline = script.Inline // there is no other chance
		frame, err := r.ask(ctx, r.journal.Stop(wait), wait)
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

// neverStarted reports that the script took the record, and so nobody can start the command. Where journals are known
// to have been lost, as with a restart, it may have been started before.
func (r *journalRun) neverStarted(f script.Frame) bool {
	return !r.begun.Load() && (f.State == script.StateNone || f.State == script.StateNoneNew && !r.knew)
}

// settle takes in what the stop found, and lets the journal be removed.
func (r *journalRun) settle() error {
	r.l.journals.leave(r.execution)
	if f := r.stopFrame; f != nil {
		r.takeStop(*f)
	}
	if (r.ended || r.stopConfirmed) && !r.left {
		r.l.journals.done(r.journal.ID, r.stdoutAt.Load()+r.stderrAt.Load())
	}
	switch {
	case r.record.NoDir:
		return r.noDirectory()
	case r.record.Exited && !r.record.Started:
		return r.replaced()
	case r.record.State == script.StateGone:
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the command's journal is gone: how it ended is not known"}
	case !r.complete:
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the command is gone, and how it ended was not recorded"}
	}
	return nil
}

// takeStop takes in the frame of a stop, as far as that needs no request and no writer failed.
func (r *journalRun) takeStop(f script.Frame) {
	switch {
	case r.neverStarted(f):
		r.dispatched = DispatchedNo
		return
	case f.Process == 0:
		return
	}
	r.dispatched = DispatchedYes
	if r.complete {
		return
	}
	r.record = f
	if r.stdout.failed || r.stderr.failed {
		return
	}
	whole := f.Exited && f.Stdout.Whole && f.Stderr.Whole
	for _, s := range []struct {
		p    script.Piece
		from int64
		o    *output
		at   *atomic.Int64
	}{{f.Stdout, r.stopFrom[0], r.stdout, &r.stdoutAt}, {f.Stderr, r.stopFrom[1], r.stderr, &r.stderrAt}} {
		if old := s.at.Load() - s.from; old < int64(len(s.p.Bytes)) && r.deliver(s.o, s.at, []byte(s.p.Bytes[old:])) != nil {
			return
		}
	}
	r.complete = whole
}

// report says what is known.
func (r *journalRun) report(result *Result) {
	result.Transport, result.Fidelity, result.Delivery = TransportJournal, FidelityExact, DeliveryReply
	result.StdinSize = r.taken.Load()
	if r.followed {
		result.Delivery = DeliveryFiles
	}
	if r.record.Exited && r.record.Started {
		result.Exited, result.ExitCode = true, r.record.Exit
		result.Complete = r.complete
	}
}

func (r *journalRun) refer(ref *CommandRef) { ref.Transport, ref.ID = TransportJournal, r.journal.ID }
