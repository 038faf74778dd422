package leasehold

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// creationGate bounds the creations under way, and holds all of them back while the provider wants none.
type creationGate struct {
	slots *semaphore.Weighted

	mu    sync.Mutex
	opens time.Time // no creation before
}

// enter waits for a slot and for the gate to be open. If the gate opens after ctx's end, it fails at once.
func (g *creationGate) enter(ctx context.Context) error {
	if err := g.slots.Acquire(ctx, 1); err != nil {
		return ctxError(ctx)
	}
	var pause backoff
	for {
		g.mu.Lock()
		shut := time.Until(g.opens)
		g.mu.Unlock()
		if shut <= 0 {
			return nil
		}
		if err := pause.wait(ctx, shut); err != nil {
			g.slots.Release(1)
			if ctx.Err() != nil {
				return err
			}
			return &Error{Kind: KindRateLimited, Dispatched: DispatchedNo, Retryable: true, RetryAfter: shut, Message: "the provider wants no creation before the budget ends"}
		}
	}
}

func (g *creationGate) leave() { g.slots.Release(1) }

// pause shuts the gate for the provider's wish, or a second if it has none.
func (g *creationGate) pause(wish time.Duration) {
	if wish <= 0 {
		wish = time.Second
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if opens := time.Now().Add(wish); opens.After(g.opens) {
		g.opens = opens
	}
}
