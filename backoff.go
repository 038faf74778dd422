package leasehold

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff spaces repeats: 25 ms, doubled each time up to one second. The zero value starts anew.
type backoff struct{ last time.Duration }

// wait waits for the next interval, or for the provider's wish if that is longer, and then up to a tenth more, so that
// many waiters do not return together. It returns the context's end at once if it comes first, or must come first.
func (b *backoff) wait(ctx context.Context, wish time.Duration) error {
	b.last = min(max(2*b.last, 25*time.Millisecond), time.Second)
	pause := max(b.last, wish)
	pause += rand.N(pause/10 + 1)
	if deadline, ok := ctx.Deadline(); ok && wish > 0 && time.Until(deadline) <= pause {
		return context.DeadlineExceeded
	}
	return sleep(ctx, pause)
}

// sleep waits for d, or for the end of ctx, which it returns.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}
