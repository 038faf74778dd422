package leasehold

import (
	"context"
	"errors"
	"time"
)

// try calls f, and again if the store could not be reached, while the owner is alive. Each call is bounded.
func (g *ledger) try(ctx context.Context, f func(ctx context.Context, again bool) error) error {
	var pause backoff
	for n := 1; ; n++ {
		err := g.live(ctx)
		if err == nil {
			err = g.call(ctx, func(ctx context.Context) error { return f(ctx, n > 1) })
		}
		if err == nil || n == storeAttempts || storeAnswered(err) || pause.wait(ctx, 0) != nil {
			return err
		}
	}
}

func (g *ledger) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return f(ctx)
}

// storeAnswered reports whether an error is the store's answer, which a repeat would only give again.
func storeAnswered(err error) bool {
	return errors.Is(err, ErrFenced) || errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrInvalid)
}

// storeError classifies an error of the store. Its text is the store's, and left behind, unless it is an [*Error]'s, which
// is safe; it can be unwrapped.
func storeError(op string, err error) *Error {
	e := &Error{Op: op, Kind: KindStore, Retryable: true, cause: err}
	for _, kind := range []Kind{KindFenced, KindConflict, KindNotFound, KindInvalid} {
		if errors.Is(err, sentinels[kind]) {
			e.Kind, e.Retryable = kind, false
		}
	}
	var own *Error
	if errors.As(err, &own) {
		e.cause, e.Fields = own.cause, own.Fields
		if own.Kind == KindStore {
			e.Message, e.Retryable = own.Message, own.Retryable
		}
	}
	switch {
	case e.Kind == KindFenced:
		e.Message = "another process has taken over what is recorded of the sandbox"
	case e.Kind == KindStore && errors.Is(err, errProviderClosed):
		e.Kind, e.Retryable, e.Message = KindClosed, false, errProviderClosed.Error()
	case e.Kind == KindStore && errors.Is(err, errGivenBack):
		e.Kind, e.Retryable, e.Message = KindClosed, false, errGivenBack.Error()
	case e.Kind == KindStore && errors.Is(err, context.Canceled):
		e.Kind, e.Retryable = KindCanceled, false
	}
	return e
}

// live sees to it that the store takes us to be alive, and that it stays so.
func (g *ledger) live(ctx context.Context) error {
	g.mu.Lock()
	fresh := !g.renewed.IsZero() && time.Since(g.renewed) < g.ttl/2
	g.start()
	g.mu.Unlock()
	if fresh {
		return nil
	}
	return g.renew(ctx)
}

// start begins to renew, if that has not begun. The caller has the lock.
func (g *ledger) start() {
	if g.beats == nil {
		beat, stop := context.WithCancel(context.Background())
		g.beats = stop
		g.beating.Go(func() { g.each(beat, g.beat) })
		g.beating.Go(func() { g.each(beat, g.payAll) }) // beside it: a payment may take longer than we would be alive
	}
}

// renew keeps us alive. It takes no longer than from one beat to the next: so one that fails leaves time for another.
func (g *ledger) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(g.timeout, g.ttl/3))
	defer cancel()
	began := time.Now()
	err := g.store.Renew(ctx, g.owner, g.ttl)
	if err == nil {
		g.mu.Lock()
		g.renewed = began
		g.mu.Unlock()
	}
	return err
}

// each calls f every third of the time that a renewal is good for, until ctx ends.
func (g *ledger) each(ctx context.Context, f func(context.Context)) {
	tick := time.NewTicker(g.ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// beat renews while there is something that we hold, or may hold.
func (g *ledger) beat(ctx context.Context) {
	g.mu.Lock()
	holds := len(g.claims)+len(g.doubts) > 0
	g.mu.Unlock()
	if holds {
		_ = g.renew(ctx) // the next beat tries again, and every write does
	}
}
