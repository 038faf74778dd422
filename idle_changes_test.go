package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
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

func TestIdleReportsReadWell(t *testing.T) {
	report := IdleReport{Active: []Activity{
		{Kind: ActivityCommand, Op: "run", Scope: request().Scope, Sandbox: "id", Since: time.Unix(0, 0)},
		{Kind: ActivityCreation, Op: "acquire", Since: time.Unix(1, 0), Unwatched: true},
	}}
	want := `active: command "run" in sandbox id since 1970-01-01T00:00:00Z; creation "acquire" since 1970-01-01T00:00:01Z, unwatched`
	if got := report.String(); got != want {
		t.Errorf("String() = %s\nwant %s", got, want)
	}
	if got := (IdleReport{Idle: true}).String(); got != "idle" {
		t.Errorf("String() = %s, want idle", got)
	}
	data, err := json.Marshal(report.Active[:1])
	want = `[{"kind":"command","op":"run","scope":{"tenant":"acme","environment":"test","run":"run-1"},"sandbox":"id","since":"`
	if err != nil || !strings.HasPrefix(string(data), want) {
		t.Errorf("JSON = %s, %v\nwant %s…", data, err, want)
	}
}
