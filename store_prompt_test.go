package leasehold

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hungStore is a store whose calls, once it hangs, wait for its end and not for that of their contexts.
type hungStore struct {
	Store
	hangs atomic.Bool
	end   chan struct{}
}

func (s *hungStore) wait() {
	if s.hangs.Load() {
		<-s.end
	}
}

func (s *hungStore) Put(ctx context.Context, record Record, owner string) (Claim, error) {
	s.wait()
	return s.Store.Put(ctx, record, owner)
}

func (s *hungStore) ClaimDue(ctx context.Context, owner string, limit int) ([]Claim, error) {
	s.wait()
	return s.Store.ClaimDue(ctx, owner, limit)
}

func (s *hungStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	s.wait()
	return s.Store.Renew(ctx, owner, ttl)
}

func (s *hungStore) Update(ctx context.Context, claim Claim, record Record) error {
	s.wait()
	return s.Store.Update(ctx, claim, record)
}

func (s *hungStore) Delete(ctx context.Context, claim Claim) error {
	s.wait()
	return s.Store.Delete(ctx, claim)
}

// TestStoreThatHangs: a store that does not mind contexts, as on a disk that hangs, costs each operation its budget at
// most, keeps no sandbox from being given back, and does not keep the provider from being closed.
func TestStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hungStore{Store: newMemoryStore(), end: make(chan struct{})}
		w := newWorld(t, Config{Store: store})
		host := rigProvider(t, w.server, Config{Store: store, Timeout: w.cfg.Timeout, CallTimeout: w.cfg.CallTimeout})
		l, err := host.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		store.hangs.Store(true)
		prompt := func(what string, f func()) {
			t.Helper()
			began := time.Now()
			if f(); time.Since(began) > host.cfg.Timeout {
				t.Errorf("%s with a store that hangs took %s, want at most %s", what, time.Since(began), host.cfg.Timeout)
			}
		}
		prompt("Acquire()", func() {
			_, err := host.Acquire(t.Context(), request())
			wantError(t, err, KindStore)
		})
		prompt("Sweep()", func() {
			_, err := sweeper(t, host, SweeperOptions{}).Sweep(t.Context())
			wantError(t, err, KindStore)
		})
		prompt("Destroy()", func() {
			if receipt, err := host.Destroy(t.Context(), l.Ref()); err != nil || receipt.State != ReceiptDestroyed {
				t.Errorf("Destroy() = %+v, %v", receipt, err)
			}
		})
		prompt("Close()", func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := host.Close(ctx); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		w.wantSandboxes(t, 0)
		close(store.end)
	})
}
