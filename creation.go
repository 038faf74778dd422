package leasehold

import (
	"maps"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// maxLabels bounds a record's labels.
const maxLabels = 16

// creationOperation is the intent to create one sandbox, fixed before the request is sent: the name and the labels by
// which the sandbox can be found and proved to be ours, whatever became of the request.
type creationOperation struct {
	Attempt    string // UUID
	Name       string // <prefix>create-<attempt>
	Scope      Scope
	Labels     map[string]string
	Credential string // fingerprint of endpoint and credential
	Account    string // fingerprint of endpoint and organisation; empty: the API had not attested it yet
}

func (p *provider) newCreation(scope Scope, reuse bool, extra map[string]string) creationOperation {
	attempt := uuid.NewString()
	prefix := p.cfg.LabelPrefix
	labels := maps.Clone(extra)
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[prefix+"provider"] = "daytona"
	labels[prefix+"tenant"] = scope.Tenant
	labels[prefix+"environment"] = scope.Environment
	labels[prefix+"run"] = scope.Run
	labels[prefix+"reuse"] = strconv.FormatBool(reuse)
	labels[prefix+"attempt"] = attempt
	if scope.Agent != "" {
		labels[prefix+"agent"] = scope.Agent
	}
	if scope.Workspace != "" {
		labels[prefix+"workspace"] = scope.Workspace
	}
	return creationOperation{Attempt: attempt, Name: prefix + "create-" + attempt, Scope: scope, Labels: labels, Credential: p.account.credential, Account: p.account.known()}
}

// envelope returns what is needed to account for the creation later. observed is the sandbox's id, if it was seen.
func (op creationOperation) envelope(phase Phase, observed string) *CleanupEnvelope {
	return &CleanupEnvelope{
		Version: envelopeVersion, Name: op.Name, Attempt: op.Attempt, Scope: op.Scope, Labels: maps.Clone(op.Labels),
		Credential: op.Credential, Account: op.Account, Observed: observed, Phase: phase,
	}
}

func (op creationOperation) target() target {
	return target{name: op.Name, attempt: op.Attempt, scope: op.Scope, labels: op.Labels, credential: op.Credential}
}

// checkCreationLabels refuses a record whose name and labels do not say what its scope and attempt say: deleting by it
// could delete what is somebody else's.
func checkCreationLabels(p *problems, field, name, attempt string, scope Scope, labels map[string]string) {
	prefix, ok := strings.CutSuffix(name, "create-"+attempt)
	if !ok || !labelPrefixForm.MatchString(prefix) {
		p.add(field+".Name", "is not made of a label prefix and the attempt")
		return
	}
	for _, want := range []struct{ key, value string }{
		{"provider", "daytona"}, {"attempt", attempt}, {"tenant", scope.Tenant}, {"environment", scope.Environment},
		{"run", scope.Run}, {"agent", scope.Agent}, {"workspace", scope.Workspace},
	} {
		if labels[prefix+want.key] != want.value {
			p.add(field+".Labels", "disagree with the record about the %s", want.key)
		}
	}
}

var labelKeyForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

const labelKeyProblem = "has a key that is not 1 to 63 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit"

func checkLabels(p *problems, field string, labels map[string]string) {
	if len(labels) > maxLabels {
		p.add(field, "has over %d entries", maxLabels)
		return
	}
	for key, value := range labels {
		if !labelKeyForm.MatchString(key) {
			p.add(field, labelKeyProblem)
		} else if !identifierForm.MatchString(value) {
			p.add(field+"."+key, "must be 1 to 200 of A-Z a-z 0-9 _ -")
		}
	}
}
