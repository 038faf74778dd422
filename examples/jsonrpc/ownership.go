package main

import (
	"errors"
	"maps"
	"regexp"
	"time"

	"github.com/leasehold-go/leasehold"
)

const (
	ownershipSchema = "paperclip/environment-creation-cleanup/v1"
	// labelPrefix starts every label: others void the envelope.
	labelPrefix = "paperclip-"
	// credentialLabel carries the second of the library's two fingerprints across: the envelope has room for one. It is no
	// label of the sandbox.
	credentialLabel = labelPrefix + "credential"
)

// ownership is the error envelope by which a creation that could not be accounted for becomes the host's to clean up. A
// host that does not know it sees an ordinary failure.
type ownership struct {
	Schema     string      `json:"schema"`
	Cleanup    cleanup     `json:"cleanup"`
	Diagnostic *diagnostic `json:"acquisitionDiagnostic,omitempty"`
}

type cleanup struct {
	ProviderLeaseID    string            `json:"providerLeaseId"` // the name of the creation
	Observed           string            `json:"observedProviderLeaseId,omitempty"`
	CompanyID          string            `json:"companyId"`
	EnvironmentID      string            `json:"environmentId"`
	RunID              string            `json:"runId,omitempty"`
	AttemptID          string            `json:"attemptId"`
	AccountFingerprint string            `json:"accountFingerprint"`
	Labels             map[string]string `json:"labels"`
}

// diagnostic says in which step an acquisition failed. The library's phases of an acquisition are the protocol's.
type diagnostic struct {
	Phase     leasehold.Phase `json:"phase"`
	ElapsedMs int64           `json:"elapsedMs"`
	BudgetMs  int64           `json:"budgetMs"`
}

var labelKey = regexp.MustCompile(`^paperclip-[a-z-]+$`)

// ownershipOf returns what the host needs of an envelope. It reports false if the host would refuse it.
func ownershipOf(e leasehold.CleanupEnvelope) (ownership, bool) {
	labels := maps.Clone(e.Labels)
	labels[credentialLabel] = e.Credential
	for key := range labels {
		if !labelKey.MatchString(key) {
			return ownership{}, false
		}
	}
	account := e.Account
	if account == "" {
		account = e.Credential
	}
	return ownership{Schema: ownershipSchema, Cleanup: cleanup{
		ProviderLeaseID: e.Name, Observed: e.Observed,
		CompanyID: e.Scope.Tenant, EnvironmentID: e.Scope.Environment, RunID: e.Scope.Run,
		AttemptID: e.Attempt, AccountFingerprint: account, Labels: labels,
	}}, len(labels) <= 16
}

// envelope is the way back, from what a host stored.
func (c cleanup) envelope() leasehold.CleanupEnvelope {
	e := leasehold.CleanupEnvelope{
		Version: 1, Name: c.ProviderLeaseID, Attempt: c.AttemptID, Observed: c.Observed,
		Scope: leasehold.Scope{
			Tenant: c.CompanyID, Environment: c.EnvironmentID, Run: c.RunID,
			Agent: c.Labels[labelPrefix+"agent"], Workspace: c.Labels[labelPrefix+"workspace"],
		},
		Labels: maps.Clone(c.Labels), Credential: c.Labels[credentialLabel], Account: c.AccountFingerprint,
		Phase: leasehold.PhaseCreate, // the library wants one, and decides nothing by it
	}
	delete(e.Labels, credentialLabel)
	if e.Account == e.Credential {
		e.Account = ""
	}
	return e
}

// withOwnership adds to an error of the library what it says of a sandbox that may be left behind.
func withOwnership(err error, acquisition bool) error {
	failed, ok := errors.AsType[*leasehold.Error](err)
	if !ok || failed.Cleanup == nil {
		return err
	}
	data, ok := ownershipOf(*failed.Cleanup)
	if !ok {
		return err
	}
	if acquisition {
		data.Diagnostic = diagnosticOf(failed)
	}
	return withData(err, data)
}

func diagnosticOf(err *leasehold.Error) *diagnostic {
	switch err.Phase {
	case leasehold.PhaseCreate, leasehold.PhaseWorkspace, leasehold.PhaseShell, leasehold.PhaseExpiry, leasehold.PhaseSentinel:
	default:
		return nil
	}
	const longest, most = 7 * 24 * time.Hour, 24 * time.Hour // else the host drops it
	return &diagnostic{
		Phase:     err.Phase,
		ElapsedMs: min(max(err.Elapsed, 0), longest).Milliseconds(),
		BudgetMs:  max(min(err.Budget, most).Milliseconds(), 1),
	}
}
