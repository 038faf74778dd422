package leasehold

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func validRef() LeaseRef {
	const attempt = "11111111-2222-4333-8444-555555555555"
	return LeaseRef{
		Version: 1, Sandbox: "sb-1", Name: "leasehold-create-" + attempt, Attempt: attempt,
		Scope:  Scope{Tenant: "t", Environment: "e", Run: "r"},
		Labels: creationLabels(attempt), Account: strings.Repeat("a", 64), Credential: strings.Repeat("b", 64),
		Workspace: "/home/daytona/workspace", Sentinel: strings.Repeat("c", 64), Shell: "bash", Reuse: true,
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func creationLabels(attempt string) map[string]string {
	return map[string]string{
		"leasehold-provider": "daytona", "leasehold-tenant": "t", "leasehold-environment": "e", "leasehold-run": "r",
		"leasehold-reuse": "true", "leasehold-attempt": attempt,
	}
}

func TestLeaseRefSurvivesJSON(t *testing.T) {
	want := validRef()
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseLeaseRef(data)
	if err != nil {
		t.Fatalf("ParseLeaseRef(%s) = %v", data, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
	if got.key() != want.key() {
		t.Errorf("key differs after JSON:\n%s\n%s", got.key(), want.key())
	}
}

func TestLeaseRefProblems(t *testing.T) {
	tests := []struct {
		name   string
		change func(*LeaseRef)
		field  string
	}{
		{"version of the future", func(r *LeaseRef) { r.Version = 2 }, "LeaseRef.Version"},
		{"zero value", func(r *LeaseRef) { *r = LeaseRef{} }, "LeaseRef.Version"},
		{"id with a slash", func(r *LeaseRef) { r.Sandbox = "../sb" }, "LeaseRef.Sandbox"},
		{"name of another attempt", func(r *LeaseRef) { r.Attempt = "other" }, "LeaseRef.Name"},
		{"no tenant", func(r *LeaseRef) { r.Scope.Tenant = "" }, "LeaseRef.Scope.Tenant"},
		{"no labels", func(r *LeaseRef) { r.Labels = nil }, "LeaseRef.Labels"},
		{"labels of another run", func(r *LeaseRef) { r.Labels["leasehold-run"] = "x" }, "LeaseRef.Labels"},
		{"label value with a newline", func(r *LeaseRef) { r.Labels["more"] = "a\nb" }, "LeaseRef.Labels.more"},
		{"account", func(r *LeaseRef) { r.Account = "ABC" }, "LeaseRef.Account"},
		{"relative workspace", func(r *LeaseRef) { r.Workspace = "workspace" }, "LeaseRef.Workspace"},
		{"unclean workspace", func(r *LeaseRef) { r.Workspace = "/a/../b" }, "LeaseRef.Workspace"},
		{"shell", func(r *LeaseRef) { r.Shell = "fish" }, "LeaseRef.Shell"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := validRef()
			tt.change(&r)
			data, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			_, err = ParseLeaseRef(data)
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrInvalid) || len(e.Fields) == 0 || e.Fields[0].Field != tt.field {
				t.Errorf("ParseLeaseRef() = %v, want a problem of %s", err, tt.field)
			}
		})
	}
	if _, err := ParseLeaseRef([]byte(`{"version":1`)); !errors.Is(err, ErrInvalid) {
		t.Errorf("ParseLeaseRef(truncated) = %v, want ErrInvalid", err)
	}
}

func TestCleanupEnvelopeProblems(t *testing.T) {
	const attempt = "11111111-2222-4333-8444-555555555555"
	valid := func() CleanupEnvelope {
		op := creationOperation{
			Attempt: attempt, Name: "leasehold-create-" + attempt, Scope: Scope{Tenant: "t", Environment: "e", Run: "r"},
			Labels: creationLabels(attempt), Credential: strings.Repeat("b", 64),
		}
		return *op.envelope(PhaseWorkspace, "")
	}
	data, err := json.Marshal(valid())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseCleanupEnvelope(data); err != nil {
		t.Errorf("ParseCleanupEnvelope(valid) = %v", err)
	} else if diff := cmp.Diff(valid(), got); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
	tests := []struct {
		name   string
		change func(*CleanupEnvelope)
	}{
		{"version", func(e *CleanupEnvelope) { e.Version = 9 }},
		{"name of another attempt", func(e *CleanupEnvelope) { e.Name = "leasehold-create-x" }},
		{"name without a prefix", func(e *CleanupEnvelope) { e.Name = "create-" + attempt }},
		{"no attempt label", func(e *CleanupEnvelope) { delete(e.Labels, "leasehold-attempt") }},
		{"tenant label differs", func(e *CleanupEnvelope) { e.Labels["leasehold-tenant"] = "other" }},
		{"agent label without an agent", func(e *CleanupEnvelope) { e.Labels["leasehold-agent"] = "a" }},
		{"too many labels", func(e *CleanupEnvelope) {
			for _, c := range "abcdefghijk" {
				e.Labels[string(c)] = "x"
			}
		}},
		{"bad label value", func(e *CleanupEnvelope) { e.Labels["more"] = "" }},
		{"bad credential", func(e *CleanupEnvelope) { e.Credential = strings.Repeat("B", 64) }},
		{"bad observed id", func(e *CleanupEnvelope) { e.Observed = "a/b" }},
		{"unknown phase", func(e *CleanupEnvelope) { e.Phase = "party" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := valid()
			tt.change(&e)
			data, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ParseCleanupEnvelope(data); !errors.Is(err, ErrInvalid) {
				t.Errorf("ParseCleanupEnvelope() = %v, want ErrInvalid", err)
			}
		})
	}
}
