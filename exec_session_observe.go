package leasehold

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

const (
	// firstLook is when the log of a lease's first command is read first, counted from the dispatch. Those of later ones
	// are read between minLook and maxLook: see sessionPool.look.
	firstLook = 10 * time.Millisecond
	minLook   = 4 * time.Millisecond
	maxLook   = 60 * time.Millisecond
	// glanceTime bounds the first read of a command, and each early read of its status.
	glanceTime = 500 * time.Millisecond
	// silenceTime is how long a socket may deliver nothing, or not connect, before it is given up.
	silenceTime = 15 * time.Second
	// readTime bounds each read while polling: a status read as a whole, a snapshot from one piece to the next.
	readTime = 15 * time.Second
	// pollTime is the least time from one snapshot to the next: each is a copy of the whole log.
	pollTime = time.Second
	// unreadTime is how long the log of a command whose exit is recorded may be unreadable.
	unreadTime = 30 * time.Second
	// shellTime is the time from one look at the session's shell to the next.
	shellTime = 30 * time.Second
)

// earlyReads are the pauses before the status reads that accompany a new socket, which the daemon closes only a second
// after the exit.
var earlyReads = []time.Duration{25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}

// quietRead is how long a socket is silent, after the early reads, until the status is read again, and then after twice
// as long each time: a socket may have lost its other end.
const quietRead = 400 * time.Millisecond

// observe observes the command to its end, and meanwhile delivers its input. If the dispatch was delivered twice, the
// session's shell runs one of them and refuses the other, and the reply may have named either.
func (r *sessionRun) observe(life, ctx context.Context) error {
	if r.sent.Feed {
		feedCtx, cancel := context.WithCancel(life)
		var feeding sync.WaitGroup
		feeding.Go(func() {
			select {
			case <-r.told: // its pipe is there
				r.feed(feedCtx)
			case <-feedCtx.Done():
			}
		})
		defer feeding.Wait()
		defer cancel()
	}
	refused := make(map[string]bool)
	for range 8 {
		err := r.observeOne(life, ctx)
		if r.log.Refused() {
			refused[r.command] = true
		} else if err != errTwin {
			return err
		}
		twins, err := r.allTwins(ctx)
		if err != nil {
			return r.l.observe(r.op, err)
		}
		next := slices.IndexFunc(twins, func(id string) bool { return id != r.command && !refused[id] })
		if next < 0 {
			if len(twins) > 0 && refused[r.command] {
				// The daemon lists every delivery, and all of them were refused: by a fence, which refuses what arrives later
				// too.
				r.dispatched = DispatchedNo
				return &Error{Op: r.op, Kind: KindUnavailable, Retryable: true, Message: "the command's dispatch arrived too late and was refused; it was not started"}
			}
			break
		}
		r.observing(twins[next])
	}
	return &Error{Op: r.op, Kind: KindUncertain, Message: "no delivery of the command's dispatch shows that it was started"}
}

// allTwins reads the session's list, and tries that for a while.
func (r *sessionRun) allTwins(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	for pause := (backoff{}); ; {
		twins, err := r.twins(ctx)
		if err == nil || sessionLost(err) || pause.wait(ctx, 0) != nil {
			return twins, err
		}
	}
}

// errTwin says that another delivery of the dispatch may be the one that runs.
var errTwin = errors.New("the command was delivered twice")

// observeOne observes one delivery of the dispatch, and returns nil when its end is proved: both streams have their end marks,
// or the daemon recorded the exit and the whole log was read after that, or the dispatch was refused. Ctx bounds it.
// Once life has ended, and the command is being stopped, nothing new is begun.
func (r *sessionRun) observeOne(life, ctx context.Context) error {
	// What has already ended needs no socket.
	if err := sleep(life, r.l.sessions.look()-time.Since(r.sentAt)); err != nil {
		return err
	}
	glance, cancel := context.WithTimeout(ctx, glanceTime)
	err := r.snapshot(glance, glanceTime)
	cancel()
	for connections := 0; ; connections++ {
		switch {
		case isOwn(err):
			return err
		case r.ended():
			r.l.sessions.ended(time.Since(r.sentAt), connections == 0)
			return nil
		case life.Err() != nil:
			return life.Err()
		case connections == 2: // one reconnect
			return r.poll(life, ctx)
		}
		var end socketEnd
		switch end, err = r.follow(ctx); end {
		case socketTwin:
			return errTwin
		case socketExited, socketSilent:
			connections = 1 // no reconnect
		}
	}
}

// ended reports that the log says all that there is to say.
func (r *sessionRun) ended() bool { return r.log.Complete() || r.log.Refused() }

// socketEnd says how a follow socket ended.
type socketEnd int

const (
	socketLost   socketEnd = iota // closed, cleanly or not, or never opened: that proves nothing
	socketSilent                  // given up; what it may yet deliver is ignored
	socketExited                  // closed by us: an exit is recorded
	socketTwin                    // closed by us: see errTwin
)

// What ends a socket on our side, as causes of its context.
var (
	errSilent = errors.New("the socket was silent")
	errExited = errors.New("an exit is recorded")
)

// follow reads the log over a socket, while early status reads look for an exit. An error is a writer's.
func (r *sessionRun) follow(ctx context.Context) (socketEnd, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var early sync.WaitGroup
	defer early.Wait()
	defer cancel(nil)
	silence := time.AfterFunc(silenceTime, func() { cancel(errSilent) })
	defer silence.Stop()
	heard := &hearing{}
	heard.accepted.Store(r.log.Accepted())
	early.Go(func() { r.lookEarly(ctx, cancel, heard) })

	socket, err := r.box.Follow(ctx, r.session.id, r.command)
	if err == nil {
		defer socket.Close()
		read, buf := r.log.Open(), make([]byte, 32<<10)
		for err == nil && !r.ended() {
			var n int
			n, err = socket.Read(buf)
			if n == 0 || !silence.Stop() || ctx.Err() != nil {
				continue
			}
			if err := r.take(read, buf[:n]); err != nil {
				return socketLost, err
			}
			r.delivered = DeliverySocket
			heard.bytes.Add(int64(n))
			heard.accepted.Store(r.log.Accepted())
			silence.Reset(silenceTime) // a slow writer is not the socket's silence
		}
	}
	switch context.Cause(ctx) {
	case errSilent:
		return socketSilent, nil
	case errExited:
		return socketExited, nil
	case errTwin:
		return socketTwin, nil
	}
	return socketLost, nil
}

// take takes in bytes of the log. The error is a writer's.
func (r *sessionRun) take(read *stream.Read, p []byte) error {
	_, err := read.Write(p)
	r.meet()
	return err
}

// meet notes the command's process and its exit, once the log has told them: before the output that came with them, which a
// writer may keep waiting, is delivered.
func (r *sessionRun) meet() {
	if _, known := r.log.Exit(); known {
		r.over.Store(true)
	}
	process := r.log.Process()
	if process.ID == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process.ID == 0 {
		close(r.told)
	}
	r.process = process
}

// hearing is what a socket has brought so far.
type hearing struct {
	bytes    atomic.Int64
	accepted atomic.Bool // see stream.Log
}

// lookEarly makes the early status reads, and then some more whenever the socket has been silent for a while. If after the
// early ones the session's shell has not accepted the dispatch, it may be busy with another delivery of it.
func (r *sessionRun) lookEarly(ctx context.Context, end context.CancelCauseFunc, heard *hearing) {
	exited := func() bool {
		if r.status(ctx, glanceTime) != nil || r.recorded == nil {
			return false
		}
		end(errExited)
		return true
	}
	for _, pause := range earlyReads {
		if sleep(ctx, pause) != nil || exited() {
			return
		}
	}
	if !heard.accepted.Load() {
		if twins, err := r.twins(ctx); err == nil && len(twins) > 1 {
			end(errTwin)
			return
		}
	}
	for pause, before := quietRead, heard.bytes.Load(); sleep(ctx, pause) == nil; {
		if now := heard.bytes.Load(); now != before {
			pause, before = quietRead, now
			continue
		}
		pause *= 2
		if exited() {
			return
		}
	}
}

// status reads whether the daemon recorded the exit.
func (r *sessionRun) status(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	code, err := r.exitCode(ctx, r.session.id, r.command)
	if code != nil {
		r.recorded = code
		if isExit(code) { // else the dispatch may be refused, and another delivery of it run
			r.over.Store(true)
		}
	}
	return err
}

// exitCode reads the exit code that the daemon recorded, nil if there is none. That it is just doing so is "not yet".
func (r *sessionRun) exitCode(ctx context.Context, session, command string) (*int, error) {
	c, err := r.box.Command(ctx, session, command)
	var remote *daytona.Error
	if errors.As(err, &remote) && remote.NotYet() {
		return nil, nil
	}
	return c.ExitCode, err
}

// snapshot reads the log as far as it goes now. Stall is how long it may deliver nothing. The error is the provider's, or a
// writer's.
func (r *sessionRun) snapshot(ctx context.Context, stall time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(stall, cancel)
	defer silence.Stop()
	body, err := r.box.Logs(ctx, r.session.id, r.command)
	if err != nil {
		return err
	}
	defer body.Close()
	read, buf := r.log.Open(), make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			silence.Stop()
			if err := r.take(read, buf[:n]); err != nil {
				return err
			}
			silence.Reset(stall)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// poll reads status and log, in this order, so that a log read after a recorded exit is complete, at most once a second.
// There is no limit to that but for the ends of life and ctx, and for the time in which nothing can be read at all: the
// command's own budget, Command.Timeout, ends life whatever became of the sockets.
func (r *sessionRun) poll(life, ctx context.Context) error {
	var blind time.Time // since when nothing could be read
	var look shellLook
	for {
		next := time.Now().Add(pollTime)
		var err error
		if r.recorded == nil {
			err = r.status(ctx, readTime)
		}
		if log := r.snapshot(ctx, readTime); err == nil || isOwn(log) {
			err = log
		}
		switch {
		case isOwn(err):
			return err
		case r.ended():
			return nil
		case life.Err() != nil:
			return life.Err()
		case err == nil && r.recorded != nil:
			return nil
		case err == nil:
			blind = time.Time{}
			if time.Since(look.at) < shellTime {
				break
			}
			if !r.shellDead(ctx, &look) {
				if err := r.silent(ctx, &look); err != nil {
					return err
				}
				break
			}
			// What it has written is still to be read, and perhaps the daemon recorded the exit.
			_ = r.status(ctx, readTime)
			if err := r.snapshot(ctx, readTime); isOwn(err) || r.ended() || err == nil && r.recorded != nil {
				return own(err)
			}
			return r.dead()
		default:
			if blind.IsZero() {
				blind = time.Now()
			}
			if r.recorded != nil && time.Since(blind) >= unreadTime {
				return nil // the exit is known, and that not all of the output is
			}
			if sessionLost(err) {
				return &Error{Op: r.op, Kind: KindUncertain, Message: "the session was lost under the command: how it ended is not known"}
			}
			if err := r.lost(ctx, err, time.Since(blind)); err != nil {
				return err
			}
		}
		if err := sleep(life, time.Until(next)); err != nil {
			return err
		}
	}
}

// shellLook is what the looks at the session's shell have shown.
type shellLook struct {
	at      time.Time // of the last one
	stopped bool      // then
	fenced  bool      // the shell got something to do after the command
	quiet   bool      // the command did not run then
	offset  int64     // of the log
}

// silent is an error if from one look to the next the command did not run, and nothing came into the log either: the
// daemon cannot write it, such as for lack of room, and the end will never stand in it. A dispatch that was not even accepted
// does not run, unless the session's shell is busy with another delivery of it.
func (r *sessionRun) silent(ctx context.Context, look *shellLook) error {
	was, before := look.quiet, look.offset
	look.offset = r.log.Offset()
	look.quiet = !r.log.Accepted()
	if process := r.log.Process(); process.ID != 0 {
		said, err := r.lookAt(ctx, process)
		look.quiet = err == nil && said == script.LookGone
	}
	if !was || !look.quiet || look.offset != before {
		return nil
	}
	if !r.log.Accepted() {
		if twins, err := r.twins(ctx); err == nil && len(twins) > 1 {
			return errTwin
		}
	}
	return &Error{Op: r.op, Kind: KindUncertain, Message: "the session's log does not tell how the command ended"}
}

// lookAt looks what became of a process.
func (r *sessionRun) lookAt(ctx context.Context, process stream.Process) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveCall)
	defer cancel()
	reply, err := r.box.Execute(ctx, script.Look(process.ID, process.Start), 0)
	return strings.TrimSpace(reply.Output), err
}

// shellDead looks whether the session's shell is dead, or was stopped from one look to the next: a command may do that, and
// then nobody will report its exit. A shell that has not even accepted the dispatch has not told its process either, but a
// dead one does not take another.
func (r *sessionRun) shellDead(ctx context.Context, look *shellLook) bool {
	look.at = time.Now()
	ctx, cancel := context.WithTimeout(ctx, resolveCall)
	defer cancel()
	if !r.log.Accepted() && !look.fenced {
		look.fenced = true
		_, err := r.box.StartCommand(ctx, r.session.id, script.Fence(r.id+"-fence", r.session.nextFence()))
		return shellGone(err)
	}
	if r.log.Shell() == 0 {
		return false
	}
	said, err := r.lookAt(ctx, stream.Process{ID: r.log.Shell()})
	if err != nil {
		return false
	}
	was := look.stopped
	look.stopped = said == script.LookStopped
	return said == script.LookGone || was && look.stopped
}
