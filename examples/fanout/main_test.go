package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold"
)

// counted counts the leases of a provider.
type counted struct {
	leasehold.Provider
	mu                 sync.Mutex
	taken, held, atTop int
}

func (c *counted) Acquire(ctx context.Context, request leasehold.AcquireRequest) (*leasehold.Lease, error) {
	lease, err := c.Provider.Acquire(ctx, request)
	if err == nil {
		c.add(1)
	}
	return lease, err
}

func (c *counted) Release(ctx context.Context, ref leasehold.LeaseRef, options leasehold.ReleaseOptions) (leasehold.Receipt, error) {
	receipt, err := c.Provider.Release(ctx, ref, options)
	if err == nil {
		c.add(-1)
	}
	return receipt, err
}

func (c *counted) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held += n
	c.taken += max(n, 0)
	c.atTop = max(c.atTop, c.held)
}

func newProvider(t *testing.T) *counted {
	t.Helper()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := provider.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return &counted{Provider: provider}
}

func TestTwentyShardsFiveAtATime(t *testing.T) {
	t.Parallel()
	provider := newProvider(t)
	var out, want bytes.Buffer
	if err := run(t.Context(), provider, "echo shard $SHARD", &out); err != nil {
		t.Fatal(err)
	}
	for i := range shards {
		fmt.Fprintln(&want, "shard", i)
	}
	if out.String() != want.String() {
		t.Errorf("output:\n%s\nwant:\n%s", &out, &want)
	}
	if provider.taken != shards || provider.atTop > atOnce || provider.held != 0 {
		t.Errorf("%d leases, at most %d at once, %d left; want %d, %d, 0", provider.taken, provider.atTop, provider.held, shards, atOnce)
	}
}

func TestAFailureStopsTheOthersAndLeavesNothing(t *testing.T) {
	t.Parallel()
	provider := newProvider(t)
	err := run(t.Context(), provider, "[ $SHARD != 0 ] || exit 7; sleep 600", &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "shard 0 ended with exit code 7") {
		t.Errorf("run() = %v, want the failure of shard 0", err)
	}
	if provider.taken >= shards || provider.held != 0 {
		t.Errorf("%d leases taken, %d left; want fewer than %d, and none left", provider.taken, provider.held, shards)
	}
}
