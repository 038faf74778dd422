package pgstore

import (
	"context"
	"database/sql"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestTwoSweepersShareTheList: hosts die, by losing their database; two others work off what they left, each sandbox once,
// and leave a living host's alone.
func TestTwoSweepersShareTheList(t *testing.T) {
	const orphans, sweepers = 6, 2
	server := must(emulator.Start(emulator.Options{}))(t)
	t.Cleanup(func() { check(t, server.Close()) })
	options := newStore(t).options
	host := func(db *sql.DB) leasehold.Provider {
		p := must(leasehold.New(leasehold.Config{
			APIKey: server.APIKey(), APIURL: server.URL(), Transport: server.Transport(),
			Store: must(New(db, options))(t),
		}))(t)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
			defer cancel()
			_ = p.Close(ctx) // a dead host's cannot tell its store
		})
		return p
	}
	acquire := func(p leasehold.Provider) string {
		l := must(p.Acquire(t.Context(), leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "test", Run: "1"}}))(t)
		return l.Ref().Sandbox
	}
	for range orphans {
		db := open(t)
		acquire(host(db))
		check(t, db.Close())
	}
	reader := must(New(open(t), options))(t)
	for _, e := range must(reader.List(t.Context(), "", 100))(t) {
		check(t, reader.Renew(t.Context(), e.Owner, 0)) // its time passes
	}
	living := acquire(host(open(t)))
	server.ResetRequests()

	var total leasehold.SweepReport
	var mu sync.Mutex
	pass := func(s *leasehold.Sweeper) {
		report, err := s.Sweep(t.Context())
		if err != nil {
			t.Errorf("Sweep() = %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		total.Destroyed += report.Destroyed
		total.Failed += report.Failed
		total.Lost += report.Lost
	}
	var all []*leasehold.Sweeper
	for range sweepers {
		all = append(all, must(leasehold.NewSweeper(host(open(t)), leasehold.SweeperOptions{}))(t))
	}
	eventually(t, "the end of the orphans", func() bool {
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() { pass(s) })
		}
		wg.Wait()
		return len(must(reader.List(t.Context(), "", 100))(t)) == 1
	})
	if want := (leasehold.SweepReport{Destroyed: orphans}); total != want {
		t.Errorf("the sweeps came to %+v, want %+v", total, want)
	}
	if got := server.Sandboxes(); !slices.Equal(got, []string{living}) {
		t.Errorf("the sandboxes %v are left, want the living host's, %s", got, living)
	}
	deleted := make(map[string]int)
	for _, r := range server.Requests() {
		if r.Method == http.MethodDelete && strings.Contains(r.Path, "/sandbox/") {
			deleted[r.Path]++
		}
	}
	for path, n := range deleted {
		if n != 1 {
			t.Errorf("DELETE %s was sent %d times, want 1", path, n)
		}
	}
	if len(deleted) != orphans {
		t.Errorf("%d sandboxes were deleted, want %d", len(deleted), orphans)
	}
}
