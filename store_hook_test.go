package leasehold

import (
	"context"
	"slices"
	"sync"
	"time"
)

// hookStore is a store whose calls can be watched, failed, or have their answers lost. before and after may be nil; what
// they return instead of nil is returned to the caller.
//
// They are called one at a time; change between runs locks them out.
type hookStore struct {
	Store
	mu     sync.Mutex
	before func(call, attempt string) error // the call does not happen if it returns an error
	after  func(call, attempt string, err error) error
}

func (s *hookStore) do(call, attempt string, f func() error) error {
	hook := func(f func() error) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f()
	}
	if err := hook(func() error {
		if s.before == nil {
			return nil
		}
		return s.before(call, attempt)
	}); err != nil {
		return err
	}
	err := f()
	return hook(func() error {
		if s.after == nil {
			return err
		}
		return s.after(call, attempt, err)
	})
}

// failing is a hook that fails those calls.
func failing(calls ...string) func(call, attempt string) error {
	return func(call, _ string) error {
		if slices.Contains(calls, call) {
			return errDown
		}
		return nil
	}
}

// change runs f while no hook runs.
func (s *hookStore) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *hookStore) Put(ctx context.Context, record Record, owner string) (claim Claim, err error) {
	err = s.do("put", record.Envelope.Attempt, func() error { claim, err = s.Store.Put(ctx, record, owner); return err })
	return claim, err
}

func (s *hookStore) Claim(ctx context.Context, attempt, owner string) (claim Claim, err error) {
	err = s.do("claim", attempt, func() error { claim, err = s.Store.Claim(ctx, attempt, owner); return err })
	return claim, err
}

func (s *hookStore) ClaimDue(ctx context.Context, owner string, limit int) (claims []Claim, err error) {
	err = s.do("claim due", "", func() error { claims, err = s.Store.ClaimDue(ctx, owner, limit); return err })
	return claims, err
}

func (s *hookStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	return s.do("renew", "", func() error { return s.Store.Renew(ctx, owner, ttl) })
}

func (s *hookStore) Update(ctx context.Context, claim Claim, record Record) error {
	return s.do("update", record.Envelope.Attempt, func() error { return s.Store.Update(ctx, claim, record) })
}

func (s *hookStore) Release(ctx context.Context, claim Claim, record Record, wait time.Duration) error {
	return s.do("release", record.Envelope.Attempt, func() error { return s.Store.Release(ctx, claim, record, wait) })
}

func (s *hookStore) Delete(ctx context.Context, claim Claim) error {
	return s.do("delete", claim.Record.Envelope.Attempt, func() error { return s.Store.Delete(ctx, claim) })
}

// hangingStore is a store whose Put, Claim or Delete, where these are set, returns only when the channel is closed.
type hangingStore struct {
	Store
	put, claim, remove <-chan struct{}
}

func (s *hangingStore) Put(ctx context.Context, record Record, owner string) (Claim, error) {
	if s.put != nil {
		<-s.put
	}
	return s.Store.Put(ctx, record, owner)
}

func (s *hangingStore) Claim(ctx context.Context, attempt, owner string) (Claim, error) {
	if s.claim != nil {
		<-s.claim
	}
	return s.Store.Claim(ctx, attempt, owner)
}

func (s *hangingStore) Delete(ctx context.Context, claim Claim) error {
	if s.remove != nil {
		<-s.remove
	}
	return s.Store.Delete(ctx, claim)
}

// slowStore is a store of which a Renew or Release takes as long as it finds in its channel, if it finds anything.
type slowStore struct {
	Store
	renew, release chan time.Duration
}

func (s *slowStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	pauseOf(s.renew)
	return s.Store.Renew(ctx, owner, ttl)
}

func (s *slowStore) Release(ctx context.Context, claim Claim, record Record, wait time.Duration) error {
	pauseOf(s.release)
	return s.Store.Release(ctx, claim, record, wait)
}

func pauseOf(of <-chan time.Duration) {
	select {
	case d := <-of:
		time.Sleep(d)
	default:
	}
}
