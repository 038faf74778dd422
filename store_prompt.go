package leasehold

import (
	"context"
	"time"
)

// promptStore is a host's store that returns when ctx ends, even where the host's does not: no context ends a write to a
// disk that hangs. What becomes of a call that was left is as unknown as that of one whose answer was lost.
type promptStore struct{ Store }

func (s promptStore) Put(ctx context.Context, record Record, owner string) (Claim, error) {
	return background(ctx, "put record", "", func() (Claim, error) { return s.Store.Put(ctx, record, owner) })
}

func (s promptStore) Claim(ctx context.Context, attempt, owner string) (Claim, error) {
	return background(ctx, "claim record", "", func() (Claim, error) { return s.Store.Claim(ctx, attempt, owner) })
}

func (s promptStore) ClaimDue(ctx context.Context, owner string, limit int) ([]Claim, error) {
	return background(ctx, "claim due records", "", func() ([]Claim, error) { return s.Store.ClaimDue(ctx, owner, limit) })
}

func (s promptStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	return s.do(ctx, "renew claims", func() error { return s.Store.Renew(ctx, owner, ttl) })
}

func (s promptStore) Update(ctx context.Context, claim Claim, record Record) error {
	return s.do(ctx, "update record", func() error { return s.Store.Update(ctx, claim, record) })
}

func (s promptStore) Release(ctx context.Context, claim Claim, record Record, wait time.Duration) error {
	return s.do(ctx, "release record", func() error { return s.Store.Release(ctx, claim, record, wait) })
}

func (s promptStore) Delete(ctx context.Context, claim Claim) error {
	return s.do(ctx, "delete record", func() error { return s.Store.Delete(ctx, claim) })
}

func (s promptStore) do(ctx context.Context, op string, f func() error) error {
	_, err := background(ctx, op, "", func() (struct{}, error) { return struct{}{}, f() })
	return err
}
