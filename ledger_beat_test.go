package leasehold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// TestAHungStoreCallKillsNoOwner: a host whose claim time is no longer than its patience with the store lives on beside
// one call of the store that hangs, be it the renewal or another.
func TestAHungStoreCallKillsNoOwner(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, host *provider, renew chan<- time.Duration){
		"a renewal": func(_ *testing.T, _ *provider, renew chan<- time.Duration) { renew <- 29 * time.Second },
		"a payment": func(_ *testing.T, host *provider, _ chan<- time.Duration) {
			host.ledger.owe(uuid.NewString(), debt{removed: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := newMemoryStore()
				w := newWorld(t, Config{Store: inner})
				gone := make(chan struct{})
				defer close(gone)
				defer time.Sleep(time.Minute) // what was left hanging ends
				renew := make(chan time.Duration, 1)
				store := &hangingStore{Store: &slowStore{Store: inner, renew: renew}, claim: gone}
				host := rigProvider(t, w.server, Config{Store: store, ClaimTime: 20 * time.Second, CallTimeout: 30 * time.Second, Timeout: time.Minute})
				defer func() { _ = host.Close(context.Background()) }()
				if _, err := host.Acquire(t.Context(), request()); err != nil {
					t.Fatal(err)
				}
				hang(t, host, renew)
				s := sweeper(t, w.provider, SweeperOptions{})
				for range 120 {
					time.Sleep(time.Second)
					if got := sweep(t, s); got != (SweepReport{}) {
						t.Fatalf("Sweep() beside a living host = %+v, want nothing", got)
					}
				}
				if len(renew) > 0 {
					t.Error("nothing was renewed: the test proves nothing")
				}
				wantHeld(t, inner, host)
				w.wantSandboxes(t, 1)
			})
		})
	}
}

// TestManyDebtsAreCountedOnce: however much the store could not be told, the host is idle once it was.
func TestManyDebtsAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		store := &hookStore{Store: newMemoryStore(), before: func(string, string) error {
			if down {
				return errDown
			}
			return nil
		}}
		w := newWorld(t, Config{Store: store})
		for range 1001 {
			w.ledger.owe(uuid.NewString(), debt{removed: true})
		}
		time.Sleep(w.cfg.ClaimTime)
		wantActive(t, w.Idle(), "cleanup record?")
		store.change(func() { down = false })
		time.Sleep(w.cfg.ClaimTime)
		wantActive(t, w.Idle())
	})
}

// TestCleanupOfWhatWasSweptOwesNothing: an envelope that is no longer on the list is none to tell the store of.
func TestCleanupOfWhatWasSweptOwesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Store: newMemoryStore()})
		unseen(t, w)
		w.server.SetFaults()
		envelope, err := w.Inspect(t.Context(), one(t, w.cfg.Store).Envelope)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Destroyed: 1}); got != want {
			t.Errorf("Sweep() = %+v, want %+v", got, want)
		}
		if receipt, err := w.Cleanup(t.Context(), envelope); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Cleanup() = %+v, %v", receipt, err)
		}
		wantActive(t, w.Idle())
	})
}
