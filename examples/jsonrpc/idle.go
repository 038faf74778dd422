package main

import (
	"context"
	"encoding/json"
)

type idleParams struct {
	OwnerID   string          `json:"ownerId"`
	ExpiresAt json.RawMessage `json:"expiresAt"`
}

type idleAnswer struct {
	idleParams
	// Background is none, present or unknown: whether anything that the worker began may still go on.
	Background string `json:"backgroundWork"`
}

// prepareIdleSleep tells a host that would suspend the worker whether it may. A sandbox that runs is background work,
// and so is a request that was never answered; a sandbox that stopped by itself is read, and is none any more.
func (w *worker) prepareIdleSleep(ctx context.Context, p idleParams) (any, error) {
	answer := idleAnswer{p, "none"}
	if w.server.underWay.Load() > 1 { // this call is one
		answer.Background = "present"
		return answer, nil
	}
	for _, provider := range w.providers.all() {
		report, err := provider.ProveIdle(ctx)
		switch {
		case report.Idle:
		case err != nil && answer.Background == "none":
			answer.Background = "unknown"
		case err == nil:
			answer.Background = "present"
		}
	}
	return answer, nil
}

// releaseIdleSleep ends what prepareIdleSleep began, which is nothing: the answer was one about a moment, and a call that
// comes later is served.
func (w *worker) releaseIdleSleep(context.Context, idleParams) (any, error) { return nil, nil }
