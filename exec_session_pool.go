package leasehold

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
)

const (
	// maxIdleSessions is how many sessions, each a shell in the sandbox, a lease keeps for its next commands.
	maxIdleSessions = 8
	// deleteTime bounds the deletion of a session. The daemon takes 5 s over a process that ignores SIGTERM.
	deleteTime = 8 * time.Second
	// maxHeldSessions is how many sessions are kept whose output something in the background holds open.
	maxHeldSessions = 32
	// freshTime is how long a session that was given back counts as alive without a look.
	freshTime = time.Second
)

// sessionPool holds the toolbox sessions of one lease. A session runs one command after another, so each command that
// runs has one for itself. The zero value is empty and ready.
type sessionPool struct {
	mu      sync.Mutex
	hooked  bool // the lease will close the pool
	closed  bool
	all     map[string]struct{} // ids of the sessions that may exist
	idle    []*session          // whose last command has ended; the one used last at the end
	held    []*session          // whose last command has ended, and had left something behind that holds its output
	pace    time.Duration       // see look
	deletes sync.WaitGroup
	quit    context.Context    // ends what is done in the background; nil: nothing was begun
	end     context.CancelFunc // ends quit
}

// session is a toolbox session. It belongs to one command, or to the pool.
type session struct {
	id    string
	fence uint64    // of the last dispatch
	last  string    // the last command, unless the daemon has recorded its exit; until then the next one would have to wait
	put   time.Time // when it was given back
	dead  bool      // its shell is, and its deletion was begun
}

func (s *session) nextFence() uint64 {
	s.fence++
	return s.fence
}

// take returns a session in which a command starts at once, making one if there is none. An idle session is looked at
// first: it may have died with a restart of the sandbox, and its last command may have left a child behind that holds
// the output open, for which the session's shell waits.
func (p *sessionPool) take(ctx context.Context, l *Lease, box *daytona.Toolbox) (*session, error) {
	for {
		s, wasHeld := p.pop()
		if s == nil {
			return p.create(ctx, l, box)
		}
		switch ready, err := s.ready(ctx, l, box); {
		case err != nil:
			if !p.put(s) {
				p.discard(l, box, s.id)
			}
			return nil, err
		case ready == sessionFree:
			return s, nil
		case ready == sessionGone:
			p.forget(s.id)
		case wasHeld:
			p.hold(l, box, s)
			return p.create(ctx, l, box)
		default:
			p.hold(l, box, s)
		}
	}
}

// pop takes the idle session that was used last, or else one that was held.
func (p *sessionPool) pop() (s *session, wasHeld bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		s, p.idle = p.idle[n-1], p.idle[:n-1]
		return s, false
	}
	if len(p.held) > 0 {
		s, p.held = p.held[0], p.held[1:]
	}
	return s, true
}

type sessionState int

const (
	sessionFree sessionState = iota
	sessionHeld
	sessionGone
)

// ready looks whether the session's shell waits for a command. The daemon records an exit a moment after the wrapper
// reported it, so it is asked again before the session is given up as held. So is one of which nothing can be learnt.
func (s *session) ready(ctx context.Context, l *Lease, box *daytona.Toolbox) (sessionState, error) {
	if s.last == "" && time.Since(s.put) > freshTime {
		// It may have died meanwhile. What cannot be learnt now the dispatch will tell.
		callCtx, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
		_, err := box.SessionCommands(callCtx, s.id)
		cancel()
		if sessionLost(err) {
			return sessionGone, nil
		}
	}
	for _, pause := range []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond} {
		if s.last == "" {
			return sessionFree, nil
		}
		if err := sleep(ctx, pause); err != nil {
			return 0, err
		}
		callCtx, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
		c, err := box.Command(callCtx, s.id, s.last)
		cancel()
		var remote *daytona.Error
		switch {
		case err == nil && c.ExitCode != nil:
			s.last = ""
		case errors.As(err, &remote) && (remote.NotFound() || remote.SessionMissing()):
			return sessionGone, nil
		case ctx.Err() != nil:
			return 0, ctxError(ctx)
		}
	}
	if s.last == "" {
		return sessionFree, nil
	}
	return sessionHeld, nil
}

// create makes a session. Its id is noted before the request, so that one whose reply was lost is deleted in the end.
func (p *sessionPool) create(ctx context.Context, l *Lease, box *daytona.Toolbox) (*session, error) {
	s := &session{id: "leasehold-" + uuid.NewString()}
	if !p.note(l, s.id) {
		return nil, &Error{Kind: KindClosed, Message: "the lease was given back"}
	}
	callCtx, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
	defer cancel()
	err := box.CreateSession(callCtx, s.id)
	var remote *daytona.Error
	if errors.As(err, &remote) && remote.Status == http.StatusConflict {
		err = nil // the proxy delivered the request twice: nobody else knows this id
	}
	if err != nil {
		p.discard(l, box, s.id)
		return nil, l.observe("run", err)
	}
	return s, nil
}

// note records that a session of this id may exist. It reports false if the lease is being given back.
func (p *sessionPool) note(l *Lease, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if !p.hooked {
		if p.hooked = l.onClose(func(ctx context.Context) { p.close(ctx, l) }); !p.hooked {
			return false
		}
	}
	if p.all == nil {
		p.all = make(map[string]struct{})
	}
	p.all[id] = struct{}{}
	return true
}

// put gives a session back whose command has ended. It reports false if the pool has enough.
func (p *sessionPool) put(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && len(p.idle) >= maxIdleSessions {
		return false
	}
	s.put = time.Now()
	p.idle = append(p.idle, s)
	return true
}

// hold keeps a session that something in the background holds. Beyond the limit the oldest one ends, and what holds it.
func (p *sessionPool) hold(l *Lease, box *daytona.Toolbox, s *session) {
	p.mu.Lock()
	p.held = append(p.held, s)
	var oldest *session
	if len(p.held) > maxHeldSessions {
		oldest, p.held = p.held[0], p.held[1:]
	}
	p.mu.Unlock()
	if oldest != nil {
		p.discard(l, box, oldest.id)
	}
}

// look returns how long after its dispatch a command's log is read first. It follows the short commands that there were: the
// read of one that has just ended is the only request it takes, an early one is a request more, a late one is time lost.
func (p *sessionPool) look() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pace == 0 {
		return firstLook
	}
	return p.pace
}

// ended tells when a command's end was seen, counted from its dispatch, and whether that was at the first look.
func (p *sessionPool) ended(after time.Duration, atFirstLook bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pace == 0 {
		p.pace = firstLook
	}
	if atFirstLook {
		p.pace = max(p.pace-p.pace/16, minLook)
	} else if after <= maxLook {
		p.pace = max(after, p.pace)
	}
}

// forget drops the id of a session that does not exist any more.
func (p *sessionPool) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, id)
}

// discard deletes a session in the background. If that fails the id stays noted, and is deleted when the lease is given
// back.
func (p *sessionPool) discard(l *Lease, box *daytona.Toolbox, id string) {
	p.later(l, func(ctx context.Context) { p.delete(ctx, box, id) })
}

// clear runs, in the background, a script that removes a command's files. Those of a lease that was given back go with the
// sandbox, or by a sweep of journals.
func (p *sessionPool) clear(l *Lease, box *daytona.Toolbox, remove script.Script) {
	p.later(l, func(ctx context.Context) {
		for pause := (backoff{}); ; {
			_, err := box.ExecuteEnv(ctx, remove.Command, remove.Env, 0)
			if err == nil || !failed("run", err).Retryable || pause.wait(ctx, 0) != nil {
				return
			}
		}
	})
}

// later does something in the background, unless the pool or the provider is closed. Giving the lease back waits for it.
func (p *sessionPool) later(l *Lease, do func(ctx context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	work, finish, err := l.p.start(context.Background(), "run", l.about)
	if err != nil {
		return
	}
	if p.quit == nil {
		p.quit, p.end = context.WithCancel(context.Background())
	}
	quit := p.quit
	p.deletes.Go(func() {
		defer finish()
		ctx, cancel := context.WithTimeout(daytona.Quiet(work), deleteTime)
		defer cancel()
		defer context.AfterFunc(quit, cancel)()
		do(ctx)
	})
}

// delete deletes a session and what runs in it, and reports whether the daemon confirmed that, or knows of no such session any
// more. It tries until ctx ends.
func (p *sessionPool) delete(ctx context.Context, box *daytona.Toolbox, id string) bool {
	for pause := (backoff{}); ; {
		err := box.DeleteSession(ctx, id)
		var remote *daytona.Error
		switch {
		case err == nil:
			p.forget(id)
			return true
		case errors.As(err, &remote) && (remote.NotFound() || remote.SessionMissing()):
			p.forget(id)
			return true // an earlier request did it, whose reply was lost, or another one's
		case errors.As(err, &remote) && !failed("run", err).Retryable:
			return false // such as: the sandbox is not started
		}
		if pause.wait(ctx, 0) != nil {
			return false
		}
	}
}

// close deletes every session, those of running commands included, and waits for that until ctx ends.
func (p *sessionPool) close(ctx context.Context, l *Lease) {
	p.mu.Lock()
	p.closed = true
	ids := make([]string, 0, len(p.all))
	for id := range p.all {
		ids = append(ids, id)
	}
	p.idle, p.held = nil, nil
	if p.end != nil {
		defer p.end()
		defer context.AfterFunc(ctx, p.end)()
	}
	p.mu.Unlock()
	if box := l.resolved(); box != nil {
		ctx, cancel := context.WithTimeout(daytona.Quiet(ctx), deleteTime)
		defer cancel()
		for _, id := range ids {
			p.deletes.Go(func() { p.delete(ctx, box, id) })
		}
	}
	p.deletes.Wait()
}
