package leasehold

import (
	"context"
	"errors"
	"time"
)

// DefaultStallTimeout is how long a transfer may go on without a sign of progress unless its options say otherwise.
const DefaultStallTimeout = 2 * time.Minute

// errNoProgress ends the context of a transfer that made no progress.
var errNoProgress = errors.New("no progress")

// stall ends a transfer that makes no progress. A slow one goes on.
type stall struct {
	limit  time.Duration // 0: none
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watchStall returns a context that ends when moved was not called for a time. end must be called.
func watchStall(ctx context.Context, limit time.Duration) (context.Context, *stall) {
	s := &stall{limit: max(limit, 0)}
	if limit == 0 {
		s.limit = DefaultStallTimeout
	}
	ctx, s.cancel = context.WithCancelCause(ctx)
	if s.limit > 0 {
		s.timer = time.AfterFunc(s.limit, func() { s.cancel(errNoProgress) })
	}
	return ctx, s
}

// moved says that something was sent, received, or seen to go on at the other end.
func (s *stall) moved() {
	if s.limit > 0 {
		s.timer.Reset(s.limit)
	}
}

// end ends the watch and the context.
func (s *stall) end() {
	if s.limit > 0 {
		s.timer.Stop()
	}
	s.cancel(nil)
}
