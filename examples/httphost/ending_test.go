package main

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestARestartFinishesWhatWasGivenBack: what a tenant gave back, and the provider's outage kept, is never started again,
// neither if its service failed to give it back, nor if it was killed meanwhile. The sweep, the end of the service or the next
// one finishes it as the tenant wanted.
func TestARestartFinishesWhatWasGivenBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keep  bool
		state leaseState // that the first service leaves
		want  []emulator.State
	}{
		"destroyed":         {false, leaseUnverified, nil},
		"destroyed, killed": {false, leaseEnding, nil},
		"kept":              {true, leaseUnverified, []emulator.State{emulator.StateStopped}},
		"kept, killed":      {true, leaseEnding, []emulator.State{emulator.StateStopped}},
	} {
		for _, by := range []string{"sweep", "shutdown", "restart"} {
			if by == "shutdown" && tt.state == leaseEnding { // nobody was left to shut down
				continue
			}
			t.Run(name+", by "+by, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				server, err := emulator.Start(emulator.Options{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = server.Close() })
				store, err := leasehold.NewFileStore(filepath.Join(dir, "list"), leasehold.FileStoreOptions{})
				if err != nil {
					t.Fatal(err)
				}
				p, err := leasehold.New(leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey(), Store: store})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = p.Close(context.WithoutCancel(t.Context())) })
				sweeper, err := leasehold.NewSweeper(p, leasehold.SweeperOptions{OnOrphan: func(_ context.Context, r leasehold.Record) leasehold.Disposition {
					return orphaned(dir, r)
				}})
				if err != nil {
					t.Fatal(err)
				}

				first := startHostOn(t, p, dir, nil)
				c := first.client(t)
				lease := c.acquire()
				server.ResetRequests()
				server.SetFaults(
					emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 403},
					emulator.Fault{Method: "POST", Path: "/api/sandbox/*/stop", Count: -1, Action: emulator.StatusBefore, Status: 403},
				)
				c.want(502, "POST", lease+"/release", releaseRequest{Keep: tt.keep})
				first.stopWork(true)
				first.background.Wait()
				l, err := first.leases.of(first.tenants[0], path.Base(lease))
				if err != nil {
					t.Fatal(err)
				}
				l.record.State = tt.state
				if err := l.save(); err != nil {
					t.Fatal(err)
				}

				switch by {
				case "shutdown":
					server.SetFaults()
					if err := first.giveBackAll(t.Context()); err != nil {
						t.Fatal(err)
					}
				case "sweep": // the outage goes on beyond the next start
					next := startHostOn(t, p, dir, nil)
					next.background.Wait()
					if got := parse[leaseView](t, next.client(t).want(200, "GET", lease, nil)); got.State != leaseUnverified {
						t.Errorf("the lease, which the next service could not give back either: %+v, want unverified", got)
					}
					server.SetFaults()
					next.stopWork(true)
					if _, err := sweeper.Sweep(t.Context()); err != nil {
						t.Fatal(err)
					}
					if got := states(server); !slices.Equal(got, tt.want) {
						t.Errorf("sandboxes after a sweep: %q, want %q", got, tt.want)
					}
				}
				server.SetFaults()
				last := startHostOn(t, p, dir, nil)
				last.background.Wait()
				got := last.client(t).leases()
				if tt.keep && (len(got) != 1 || got[0].State != leaseStopped) || !tt.keep && len(got) > 0 {
					t.Errorf("leases: %+v, want a stopped one if it was kept", got)
				}
				if got := states(server); !slices.Equal(got, tt.want) {
					t.Errorf("sandboxes: %q, want %q", got, tt.want)
				}
				for _, r := range server.Requests() {
					if strings.HasSuffix(r.Path, "/start") || strings.Contains(r.Path, "/toolbox/") && r.Method == "POST" {
						t.Errorf("%s %s: the sandbox was used, want it left to its end", r.Method, r.Path)
					}
				}
				if tt.keep { // and what was kept is there
					last.client(t).want(200, "POST", lease+"/resume", nil)
					if got := states(server); !slices.Equal(got, []emulator.State{emulator.StateStarted}) {
						t.Errorf("sandboxes after a resume: %q, want it started", got)
					}
				}
			})
		}
	}
}

func states(server *emulator.Server) (states []emulator.State) {
	for _, id := range server.Sandboxes() {
		if state := server.Sandbox(id).Settle(time.Minute); state != emulator.StateDestroyed {
			states = append(states, state)
		}
	}
	return states
}

// TestOrphans: the sweep does with a sandbox what its tenant wanted, also if the service was killed before the list was told.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	ask := func(id string) leasehold.Disposition {
		return orphaned(dir, leasehold.Record{Envelope: leasehold.CleanupEnvelope{Attempt: id}, Orphan: leasehold.OrphanDestroy})
	}
	if got := ask("unknown"); got != leasehold.OrphanDestroy {
		t.Errorf("one that no tenant knows of is to %s, want destroy", got)
	}
	if err := os.MkdirAll(filepath.Join(dir, "leases", "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	l := &lease{dir: filepath.Join(dir, "leases", "a")}
	for _, step := range []struct {
		change func() error
		want   leasehold.Disposition
	}{
		{func() error { return l.set(leaseActive, "") }, leasehold.OrphanKeep},
		{func() error { return l.begin(leaseEnding, leasehold.OrphanDestroy) }, leasehold.OrphanDestroy},
		{func() error { return l.set(leaseUnverified, "") }, leasehold.OrphanDestroy},
		{func() error { return l.begin(leaseEnding, leasehold.OrphanRetain) }, leasehold.OrphanRetain},
		{func() error { return l.set(leaseStopped, "") }, leasehold.OrphanKeep},
		{func() error { return l.begin(leaseEnding, leasehold.OrphanDestroy) }, leasehold.OrphanDestroy},
		{func() error { return l.set(leaseUnverified, "") }, leasehold.OrphanDestroy},
		{func() error { return l.begin(leaseResuming, "") }, leasehold.OrphanKeep},
		{func() error { return os.WriteFile(leaseFile(dir, "a"), []byte("{"), 0o600) }, leasehold.OrphanKeep},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if got := ask("a"); got != step.want {
			t.Errorf("%s, ending %q: it is to %s, want %s", l.state(), l.ending(), got, step.want)
		}
	}
}
