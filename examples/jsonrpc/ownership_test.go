package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold"
)

func TestEnvelopesComeBackAsTheyWent(t *testing.T) {
	t.Parallel()
	const credential, account = "aa", "bb"
	attempt := "4b7f2a35-2a9c-4a7e-8f0e-6f5d3c2b1a09"
	for name, e := range map[string]leasehold.CleanupEnvelope{
		"attested": {Account: strings.Repeat(account, 32), Observed: "box-1"},
		"not":      {Scope: leasehold.Scope{Agent: "a", Workspace: "w"}},
	} {
		e.Version, e.Name, e.Attempt, e.Phase = 1, "paperclip-create-"+attempt, attempt, leasehold.PhaseCreate
		e.Credential = strings.Repeat(credential, 32)
		e.Scope.Tenant, e.Scope.Environment, e.Scope.Run = "c", "e", "r"
		e.Labels = map[string]string{"paperclip-tenant": "c", "paperclip-attempt": attempt}
		if e.Scope.Agent != "" {
			e.Labels["paperclip-agent"], e.Labels["paperclip-workspace"] = "a", "w"
		}
		data, ok := ownershipOf(e)
		if !ok {
			t.Fatalf("%s: the envelope cannot cross", name)
		}
		var back cleanup
		if err := json.Unmarshal([]byte(asJSON(t, data.Cleanup)), &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, back.envelope()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, ok := ownershipOf(leasehold.CleanupEnvelope{Labels: map[string]string{"paperclip-a.b": "c"}}); ok {
		t.Error("an envelope that the host would refuse crosses")
	}
}

// faulty makes the worker's embedded backends misbehave.
func faulty(plan *leasehold.FaultPlan) func(*worker) {
	return func(w *worker) {
		w.providers.open = func(_ string, s settings) (leasehold.Provider, error) {
			return leasehold.NewLocal(leasehold.LocalConfig{Config: s.config(nil), Dir: w.localDir, Faults: plan})
		}
	}
}

// TestALostCreationBecomesTheHosts: the reply to a creation is lost, and so is what would clean up after it. The host gets
// an envelope; it asks for the destruction, is told the sandbox's id, stores it, and asks again.
func TestALostCreationBecomesTheHosts(t *testing.T) {
	t.Parallel()
	plan := leasehold.NewFaultPlan(1,
		leasehold.Fault{Method: "POST", Path: "/api/sandbox", Action: leasehold.FaultDropAfter},
		leasehold.Fault{Method: "GET", Path: "/api/sandbox/**", Count: -1, Action: leasehold.FaultStatusBefore, Status: 503},
	)
	h := startWorker(t, faulty(plan))
	hasty := tenant{"company-1", object{"timeoutMs": 5000}}
	failed := refused(t, h, "environmentAcquireLease", hasty.params(object{"runId": "run-1", "agentId": "agent-1"}))
	var data ownership
	if err := json.Unmarshal([]byte(asJSON(t, failed.Data)), &data); err != nil {
		t.Fatal(err)
	}
	c := data.Cleanup
	if failed.Code != codeWorker || data.Schema != ownershipSchema || c.CompanyID != "company-1" || c.EnvironmentID != "env-1" || c.RunID != "run-1" ||
		c.ProviderLeaseID != "paperclip-create-"+c.AttemptID || c.Observed != "" || len(c.AccountFingerprint) != 64 {
		t.Fatalf("acquire = %+v, want an error with an envelope", failed)
	}
	if d := data.Diagnostic; d == nil || d.Phase != leasehold.PhaseCreate || d.BudgetMs != 5000 || d.ElapsedMs > 60_000 {
		t.Errorf("diagnostic = %+v, want the phase, and the budget of 5 s", d)
	}

	plan.Set()
	destroy := func(c cleanup) object {
		return hasty.params(object{"providerLeaseId": c.ProviderLeaseID, "leaseMetadata": object{"failedCreateCleanup": c}})
	}
	other := tenant{"company-2", hasty.config}
	if got := refused(t, h, "environmentDestroyLease", other.params(destroy(c)["leaseMetadata"].(object))); got.Data != nil {
		t.Errorf("another company's destroy: %+v, want it refused", got)
	}
	observed := refused(t, h, "environmentDestroyLease", destroy(c))
	var seen ownership
	if err := json.Unmarshal([]byte(asJSON(t, observed.Data)), &seen); err != nil {
		t.Fatal(err)
	}
	want := c
	want.Observed = seen.Cleanup.Observed
	if diff := cmp.Diff(want, seen.Cleanup); diff != "" || want.Observed == "" || seen.Diagnostic != nil {
		t.Fatalf("the first destroy: %+v, want the same envelope with an id (-want +got):\n%s", observed, diff)
	}
	for range 2 { // the reply may be lost
		if got := must[receipt](t, h, "environmentDestroyLease", destroy(seen.Cleanup)); got != (receipt{c.ProviderLeaseID, "destroyed"}) {
			t.Errorf("destroy = %+v, want destroyed, by the creation's name", got)
		}
	}
}

// TestResumeSaysWhetherToTryAgain: the host reads it from the message alone.
func TestResumeSaysWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	plan := leasehold.NewFaultPlan(1)
	later := http.Header{"Retry-After": {"600"}} // for which no call has time, so that none is made again
	h := startWorker(t, faulty(plan))
	lease := reusing.acquire(t, h)
	must[receipt](t, h, "environmentReleaseLease", reusing.give(lease, nil))
	for name, c := range map[string]struct {
		status int
		want   bool
	}{"an outage": {503, true}, "a refused key": {401, false}} {
		plan.Set(leasehold.Fault{Path: "/api/**", Count: -1, Action: leasehold.FaultStatusBefore, Status: c.status, Header: later})
		if got := refused(t, h, "environmentResumeLease", reusing.give(lease, nil)); transient.MatchString(got.Message) != c.want {
			t.Errorf("%s: %q, want a word to try again: %v", name, got.Message, c.want)
		}
	}
}

// TestAWorkspaceThatIsNotTheLeases is a mismatch of identity, which the host records as that.
func TestAWorkspaceThatIsNotTheLeases(t *testing.T) {
	t.Parallel()
	h := startWorker(t, nil)
	lease := reusing.acquire(t, h)
	must[any](t, h, "environmentExecute", reusing.script(lease, "rm -rf .leasehold", nil))
	must[receipt](t, h, "environmentReleaseLease", reusing.give(lease, nil))
	got := must[struct {
		ID       *string `json:"providerLeaseId"`
		Metadata struct {
			Expired  bool
			Sentinel struct{ Result string } `json:"workspaceSentinel"`
		}
	}](t, h, "environmentResumeLease", reusing.give(lease, nil))
	if got.ID != nil || got.Metadata.Expired || got.Metadata.Sentinel.Result != "missing" {
		t.Errorf("resume = %+v, want no id, and that the sentinel is missing", got)
	}
}
