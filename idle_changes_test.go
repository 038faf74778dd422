package leasehold

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestIdleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := idleRig(t, Config{}, emulator.Options{})
		var mu sync.Mutex
		var seen []bool
		ctx, cancel := context.WithCancel(t.Context())
		var loops sync.WaitGroup
		loops.Go(func() {
			for idle := range r.IdleChanges(ctx) {
				mu.Lock()
				seen = append(seen, idle)
				mu.Unlock()
			}
		})
		want := func(states ...bool) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(seen, states) {
				t.Errorf("told %v, want %v", seen, states)
			}
		}
		want(true)
		r.server.ResetRequests()
		time.Sleep(time.Hour)
		want(true)
		r.wantRequests(t)
		l := r.acquired(t)
		want(true, false)
		begun(t, l)()
		want(true, false)
		if _, err := r.Destroy(t.Context(), l.ref); err != nil {
			t.Fatal(err)
		}
		want(true, false, true)
		cancel()
		loops.Wait()

		// A body that is slow is told once what it missed, and may do anything.
		body := make(chan bool)
		loops.Go(func() {
			for idle := range r.IdleChanges(t.Context()) {
				body <- idle
				body <- idle
			}
			close(body)
		})
		if !<-body {
			t.Error("told not idle at the beginning")
		}
		for range 3 {
			if l, err := r.Acquire(t.Context(), request()); err != nil {
				t.Fatal(err)
			} else if _, err := r.Destroy(t.Context(), l.ref); err != nil {
				t.Fatal(err)
			}
		}
		<-body
		if idle := <-body; !idle {
			t.Errorf("told %t, want that it was active meanwhile and is idle", idle)
		}
		<-body
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, ok := <-body; ok {
			t.Error("the loop did not end with the provider")
		}
		loops.Wait()
		if _, err := r.ProveIdle(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("ProveIdle() of a closed provider = %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := idleRig(t, Config{}, emulator.Options{})
		for range r.IdleChanges(t.Context()) { // ends because the body closes the provider
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
