package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// execute is the request that starts a command. The first one of a sandbox prepares it: the second is the job's.
const execute = "/toolbox/*/process/execute"

func TestTheHostSurvives(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fault     leasehold.Fault
		creations int // that the backend saw
	}{
		"nothing":                  {leasehold.Fault{Path: "/never"}, 1},
		"a lost reply to creation": {leasehold.Fault{Method: "POST", Path: "/api/sandbox", Action: leasehold.FaultDropAfter}, 1},
		"a command delivered twice": {
			leasehold.Fault{Method: "POST", Path: execute, Nth: 2, Action: leasehold.FaultDuplicate}, 1},
		"a lost reply to the command": {
			leasehold.Fault{Method: "POST", Path: execute, Nth: 2, Action: leasehold.FaultDropAfter}, 1},
		"a sandbox that is lost before the command": {
			leasehold.Fault{Method: "POST", Path: execute, Nth: 2, Action: leasehold.FaultLoseContainer}, 2},
		"a rate limit": {
			leasehold.Fault{Method: "POST", Path: "/api/sandbox", Action: leasehold.FaultStatusBefore, Status: 429}, 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			counter := leasehold.Fault{Method: "POST", Path: "/api/sandbox", Nth: 1000} // only counts
			plan := leasehold.NewFaultPlan(1, test.fault, counter)
			h := newHost(t, plan, leasehold.Config{})
			out, err := h.job(t.Context(), "42", "echo ran >>log; cat log")
			if err != nil || out != "ran\n" {
				t.Errorf("job() = %q, %v, want %q: the script must have run once", out, err, "ran\n")
			}
			state := plan.State()
			if state[0].Path != "/never" && state[0].Hits != 1 {
				t.Errorf("the fault was hit %d times, want 1: the test proves nothing", state[0].Hits)
			}
			creations := state[1].Seen
			if test.fault.Path == counter.Path {
				creations += state[0].Hits // the first fault that takes a request is the only one that sees it
			}
			if creations != test.creations {
				t.Errorf("%d creations, want %d", creations, test.creations)
			}
		})
	}
}

func TestTheHostKeepsWhatCannotBeAccountedFor(t *testing.T) {
	t.Parallel()
	plan := leasehold.NewFaultPlan(1, leasehold.Fault{Method: "POST", Path: "/api/sandbox", Count: -1, Action: leasehold.FaultDropBefore})
	h := newHost(t, plan, leasehold.Config{Timeout: 5 * time.Second, CallTimeout: 2 * time.Second})
	var kept []leasehold.CleanupEnvelope
	h.keep = func(e leasehold.CleanupEnvelope) { kept = append(kept, e) }

	if out, err := h.job(t.Context(), "42", "echo never"); err == nil {
		t.Fatalf("job() = %q, want an error", out)
	}
	if len(kept) != 1 || kept[0].Scope.Run != "42" {
		t.Fatalf("kept %+v, want the one creation of run 42", kept)
	}
	if _, err := h.provider.Inspect(t.Context(), kept[0]); !errors.Is(err, leasehold.ErrUncertain) {
		t.Errorf("Inspect() = %v, want ErrUncertain: nothing proves that no sandbox will appear", err)
	}
}

func newHost(t *testing.T, plan *leasehold.FaultPlan, config leasehold.Config) host {
	t.Helper()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{Config: config, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := provider.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return host{provider: provider, keep: func(e leasehold.CleanupEnvelope) { t.Errorf("kept %s", e.Name) }}
}
