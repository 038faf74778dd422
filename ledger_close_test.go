package leasehold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestCloseTellsTheStore: what is owed to the store when the provider is closed is told it, whatever became of Close's
// context, unless the store does not answer: that holds Close up for one Config.CallTimeout, however much is owed.
func TestCloseTellsTheStore(t *testing.T) {
	for name, hangs := range map[string]bool{"a store that is back": false, "a store that hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				defer close(hang)
				store := &hangingStore{Store: newMemoryStore()}
				if hangs {
					store.remove = hang
				}
				w := newWorld(t, Config{Store: store})
				var refs []LeaseRef
				for range 3 {
					refs = append(refs, w.acquired(t).Ref())
				}
				for _, ref := range refs {
					w.ledger.owe(ref.Attempt, debt{removed: true})
				}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				if !hangs {
					end()
				}
				began := time.Now()
				_ = w.Close(ctx)
				if took := time.Since(began); took > w.cfg.CallTimeout {
					t.Errorf("Close() took %v, want %v at most", took, w.cfg.CallTimeout)
				}
				if !hangs {
					wantRecords(t, store, 0)
				}
			})
		})
	}
}

// TestCloseInterruptsTheStore: what fails because the provider is closed says so, also where it waited for the store.
func TestCloseInterruptsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		store := &hangingStore{Store: newMemoryStore(), put: hang}
		w := newWorld(t, Config{Store: store})
		acquired := make(chan error, 1)
		go func() { _, err := w.Acquire(context.Background(), request()); acquired <- err }()
		synctest.Wait()
		ended, end := context.WithCancel(t.Context())
		end()
		_ = w.Close(ended)
		if e := wantError(t, <-acquired, KindClosed); e.Dispatched != DispatchedNo {
			t.Errorf("error = %+v, want not dispatched", e)
		}
	})
}
