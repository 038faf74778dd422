package leasehold

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// longestPause bounds a pause that the provider asks for: after it, one creation asks again.
	longestPause = time.Hour
	// silentPause is the first pause after a refusal that does not say how long. It doubles with each that follows before
	// a creation was admitted, up to longestSilentPause.
	silentPause        = time.Second
	longestSilentPause = time.Minute
	// longestInterval bounds the learnt pace, so that a misunderstood limit slows creations down and does not end them.
	longestInterval = 15 * time.Second
	// cautiousInterval is the most by which creations are spaced after an era that admitted none, and so says nothing of
	// what the provider bears once it admits again.
	cautiousInterval = 2 * time.Second
	// paceMemory is how long an idle admission remembers its pace. Providers count in windows of about a minute.
	paceMemory = 2 * time.Minute
	// eraGap is how long nothing must have been created for an era to begin anew, where there is no pace yet: creations
	// now and then say nothing of what the provider bears.
	eraGap = 10 * time.Second
	// longestJitter bounds what is added to a pause, for the sake of other processes that share the limit.
	longestJitter = 2 * time.Second
)

// admission lets the creations of one provider through, in the order of their acquisitions: at most limit at once, none
// while the provider wants none (429 and its Retry-After), and after that no faster than it was found to bear.
//
// The pace is learnt as TCP learns its window. A refusal ends an era, in which the provider admitted so many creations in
// so much time, its pause included: that is the interval between the creations of the next era. Each creation that is
// admitted then shortens the interval a little, until the next refusal says what is too fast. So after a pause there is
// one creation, not everybody's, and a provider that counts in windows is used up to its limit at the price of about one
// refusal for each window.
type admission struct {
	limit int

	mu       sync.Mutex
	tickets  int           // handed out
	queue    []*ticket     // that wait, by number
	active   int           // creations under way
	opens    time.Time     // no creation before: the provider's pause
	interval time.Duration // between creations: the pace; 0: none is known to be needed
	guessed  bool          // the era before this one admitted none, so the interval is only a guess
	next     time.Time     // no creation before, by the pace
	era      int
	began    time.Time // the first creation of the era; zero: none yet
	admitted int       // in the era
	silent   time.Duration
	lastLeft time.Time   // when the last creation ended, for paceMemory
	timer    *time.Timer // to the time at which the first of the queue may go; nil: none is set
}

// ticket is an acquisition's place. It keeps it after a refusal: who came first goes first.
type ticket struct {
	number   int
	era      int // of its last creation
	deadline time.Time
	ready    chan error // of the current wait; nil: go
}

func (a *admission) ticket() *ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tickets++
	return &ticket{number: a.tickets}
}

// enter waits until t's creation may be sent. Then refused or leave must follow. It returns as soon as ctx ends, or as
// it is clear that the provider's pause outlasts ctx's deadline: then with [KindRateLimited].
func (a *admission) enter(ctx context.Context, t *ticket) error {
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	t.deadline, _ = ctx.Deadline()
	t.ready = make(chan error, 1)
	a.mu.Lock()
	if shut := a.outlasts(t); shut > 0 {
		a.mu.Unlock()
		return pauseError(shut)
	}
	at, _ := slices.BinarySearchFunc(a.queue, t, func(a, b *ticket) int { return a.number - b.number })
	a.queue = slices.Insert(a.queue, at, t)
	a.dispatch()
	a.mu.Unlock()
	select {
	case err := <-t.ready:
		return err
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := slices.Index(a.queue, t); at >= 0 {
		a.queue = slices.Delete(a.queue, at, at+1)
		a.dispatch() // the first of the queue may have been t, for whom a later one had to wait
	} else if err := <-t.ready; err != nil {
		return err
	} else {
		a.release()
	}
	if wait := time.Until(a.mayGo()); wait > 0 && context.Cause(ctx) == context.DeadlineExceeded {
		limited := pauseError(wait)
		limited.cause = ctxError(ctx)
		return limited
	}
	return ctxError(ctx)
}

// leave ends a creation that was answered by something else than a rate limit, or not at all.
func (a *admission) leave(t *ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.era == a.era {
		a.admitted++
		if a.silent = 0; a.guessed {
			a.interval /= 2
		} else {
			a.interval -= a.interval / 32
		}
	}
	a.release()
}

// refused ends a creation that the provider answered with a rate limit, and holds all others back for as long as the
// provider wishes.
func (a *admission) refused(t *ticket, wish time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if t.era == a.era { // else it was sent before another one's refusal was known, and teaches nothing new
		if wish <= 0 {
			a.silent = min(max(2*a.silent, silentPause), longestSilentPause)
		}
		defer a.learn()
	}
	if wish <= 0 {
		wish = max(a.silent, silentPause)
	}
	wish = min(wish, longestPause)
	if opens := now.Add(wish + rand.N(min(wish/10, longestJitter)+1)); opens.After(a.opens) {
		a.opens = opens
	}
	a.queue = slices.DeleteFunc(a.queue, func(waiting *ticket) bool {
		shut := a.outlasts(waiting)
		if shut > 0 {
			waiting.ready <- pauseError(shut)
		}
		return shut > 0
	})
	a.release()
}

// learn ends the era. a.mu is held; the pause is set.
func (a *admission) learn() {
	took := a.opens.Sub(a.began)
	if a.guessed = a.admitted == 0; a.guessed {
		a.interval = max(a.interval, min(took, cautiousInterval))
	} else {
		a.interval = min(took/time.Duration(a.admitted), longestInterval)
	}
	a.era++
	a.began, a.admitted, a.next = time.Time{}, 0, time.Time{}
}

// release gives a place back. a.mu is held.
func (a *admission) release() {
	a.active--
	a.lastLeft = time.Now()
	a.dispatch()
}

// mayGo is the time from which a creation may be sent. a.mu is held.
func (a *admission) mayGo() time.Time {
	if a.next.After(a.opens) {
		return a.next
	}
	return a.opens
}

// outlasts returns how long the provider's pause is, if it is longer than t waits. a.mu is held.
func (a *admission) outlasts(t *ticket) time.Duration {
	if t.deadline.IsZero() || a.opens.Before(t.deadline) {
		return 0
	}
	return max(0, time.Until(a.opens))
}

// dispatch lets those go who may, and sets the timer for the first who may not yet. a.mu is held.
func (a *admission) dispatch() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	for len(a.queue) > 0 && a.active < a.limit {
		now := time.Now()
		if idle := min(now.Sub(a.lastLeft), now.Sub(a.mayGo())); a.active == 0 && idle > eraGap {
			if idle > paceMemory {
				a.interval = 0
			}
			if a.interval == 0 {
				a.began, a.admitted = time.Time{}, 0
			}
		}
		if wait := a.mayGo().Sub(now); wait > 0 {
			a.timer = time.AfterFunc(wait, func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.dispatch()
			})
			return
		}
		t := a.queue[0]
		a.queue = slices.Delete(a.queue, 0, 1)
		if a.began.IsZero() {
			a.began = now
		}
		t.era, a.next = a.era, now.Add(a.interval)
		a.active++
		t.ready <- nil
	}
}

func pauseError(shut time.Duration) *Error {
	return &Error{
		Kind: KindRateLimited, Dispatched: DispatchedNo, Retryable: true, RetryAfter: shut,
		Message: "the provider wants no creation before the budget ends",
	}
}
