package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// probe is environmentProbe: it takes a lease, and gives it back.
func (w *worker) probe(ctx context.Context, c call, _ struct{}) (any, error) {
	report, err := c.provider.Probe(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{
		Tenant: c.CompanyID, Environment: c.EnvironmentID, Run: "probe-" + uuid.NewString(),
	}})
	if err != nil {
		w.cleanUp(ctx, c, err)
		return probeResult{Summary: "no sandbox could be had: " + toRPC(err).Message}, nil
	}
	return probeResult{OK: true, Summary: "a sandbox was created and destroyed", Metadata: map[string]any{
		"sandboxId": report.Sandbox, "remoteCwd": report.Workspace, "shellCommand": report.Shell,
		"acquireMs": report.Acquire.Milliseconds(), "destroyMs": report.Destroy.Milliseconds(),
	}}, nil
}

type probeResult struct {
	OK       bool           `json:"ok"`
	Summary  string         `json:"summary"`
	Metadata map[string]any `json:"metadata,omitempty"`
}

// cleanUpTime bounds cleanUp. The host grants a call so much more than the provider takes for its operation.
const cleanUpTime = hostDefault - 2*reserve

// cleanUp tries once to account for a probe's sandbox, even if the call has ended: nobody else is told of it.
func (w *worker) cleanUp(ctx context.Context, c call, err error) {
	failed, ok := errors.AsType[*leasehold.Error](err)
	if !ok || failed.Cleanup == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	found, err := c.provider.Inspect(ctx, *failed.Cleanup)
	if err == nil {
		_, err = c.provider.Cleanup(ctx, found)
	}
	if err != nil {
		w.log.Error("a probe may have left a sandbox behind", "name", failed.Cleanup.Name)
	}
}

type acquireParams struct {
	RunID     string    `json:"runId"`
	AgentID   string    `json:"agentId"`
	Workspace string    `json:"executionWorkspaceId"`
	ExpiresAt time.Time `json:"requestedExpiresAt"`
}

// acquire is environmentAcquireLease.
func (w *worker) acquire(ctx context.Context, c call, p acquireParams) (any, error) {
	lease, err := c.provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope:     leasehold.Scope{Tenant: c.CompanyID, Environment: c.EnvironmentID, Run: p.RunID, Agent: p.AgentID, Workspace: p.Workspace},
		ExpiresAt: p.ExpiresAt,
	})
	if err != nil {
		return nil, withOwnership(err, true)
	}
	return w.answer(c, lease.Ref(), "written")
}

type resumeParams struct {
	ProviderLeaseID *string       `json:"providerLeaseId"`
	Metadata        leaseMetadata `json:"leaseMetadata"`
}

// resume is environmentResumeLease. A result without an id makes the host destroy the lease and replace it: it is given
// for a proved loss only. Every other failure is an error, which preserves the lease.
func (w *worker) resume(ctx context.Context, c call, p resumeParams) (any, error) {
	ref, err := c.ref(p.ProviderLeaseID, p.Metadata)
	if err != nil {
		return nil, err
	}
	done, err := w.leases.resuming(ctx, c, ref)
	if err != nil {
		return nil, err
	}
	defer done()
	lease, err := c.provider.Resume(ctx, ref)
	if failed, ok := errors.AsType[*leasehold.Error](err); ok && failed.Kind == leasehold.KindGone {
		w.leases.forget(c, ref)
		return lost(failed.Reason), nil
	}
	if err != nil {
		return nil, err
	}
	return w.answer(c, lease.Ref(), "matched")
}

// lost says how a lease was lost: the host records an identity mismatch, or that there was nothing any more.
func lost(reason leasehold.Reason) any {
	sentinel := map[leasehold.Reason]string{leasehold.ReasonSentinelMissing: "missing", leasehold.ReasonSentinelDiffers: "mismatch"}[reason]
	if sentinel != "" {
		return map[string]any{"providerLeaseId": nil, "metadata": map[string]any{"workspaceSentinel": map[string]string{"result": sentinel}}}
	}
	return map[string]any{"providerLeaseId": nil, "metadata": map[string]any{"expired": true}}
}

// answer is a lease as the host stores it. Its metadata must repeat the settings, by which the host finds a lease to
// reuse, hold no secret, and suffice, with the secret, to give the lease back when everything else is forgotten.
func (w *worker) answer(c call, ref leasehold.LeaseRef, sentinel string) (any, error) {
	w.leases.open(c, ref)
	public := c.settings
	public.APIKey = ""
	encoded, err := json.Marshal(public)
	if err != nil {
		return nil, err
	}
	metadata := make(map[string]any)
	if err := json.Unmarshal(encoded, &metadata); err != nil {
		return nil, err
	}
	maps.Copy(metadata, map[string]any{
		"leaseRef": ref, "remoteCwd": ref.Workspace, "shellCommand": ref.Shell,
		"sandboxId": ref.Sandbox, "sandboxName": ref.Name, "sandboxState": "started",
		"workspaceSentinel": map[string]string{"result": sentinel},
	})
	var expires any
	if !ref.ExpiresAt.IsZero() {
		expires = ref.ExpiresAt.UTC().Format(time.RFC3339Nano)
	}
	return map[string]any{"providerLeaseId": ref.Sandbox, "expiresAt": expires, "metadata": metadata}, nil
}

type releaseParams struct {
	resumeParams
	Disposition string   `json:"resourceDisposition"`
	RunPrivate  []string `json:"runPrivatePaths"` // the run's scratch directories
}

// receipt is given once the provider was seen to have stopped or destroyed the sandbox. The host takes it only for the
// id it asked about.
type receipt struct {
	ProviderLeaseID string                 `json:"providerLeaseId"`
	State           leasehold.ReceiptState `json:"state"`
}

// release is environmentReleaseLease. Whether or not active work is to be cancelled, it is: the library ends what still
// runs in a lease that is given back.
func (w *worker) release(ctx context.Context, c call, p releaseParams) (any, error) {
	if len(p.RunPrivate) > 0 && (c.settings.ReuseLease || p.Disposition == "stop_and_retain") {
		w.clear(ctx, c, p.resumeParams, p.RunPrivate)
	}
	return w.giveBack(ctx, c, p.resumeParams, leasehold.ReleaseOptions{
		Retain:  p.Disposition == "stop_and_retain",
		Archive: c.settings.ArchiveOnRelease && !c.settings.ReuseLease,
	})
}

// clear removes a run's own directories from a sandbox that stays. It never keeps the lease from being given back.
func (w *worker) clear(ctx context.Context, c call, p resumeParams, dirs []string) {
	ref, err := c.ref(p.ProviderLeaseID, p.Metadata)
	if err != nil {
		return // giving it back says so
	}
	args := []string{"rm", "-rf", "--"}
	for _, dir := range dirs {
		if isPrivate(ref.Workspace, dir) {
			args = append(args, dir)
		}
	}
	if len(args) == 3 {
		return
	}
	lease, err := c.provider.Bind(ref)
	if err == nil {
		_, err = lease.Executor().Run(ctx, leasehold.Command{Args: args, Profiles: leasehold.ProfilesNone, NoBwrap: true, Timeout: time.Minute})
	}
	if err != nil {
		w.log.Warn("a run's own directories may be left in the sandbox", "err", err)
	}
}

// isPrivate reports whether a path can be a run's own: it lies below the workspace or /tmp, and neither holds the workspace
// nor belongs to the lease itself.
func isPrivate(workspace, dir string) bool {
	below := func(root string) bool { return dir != root && within(root, dir) }
	plain := !strings.ContainsRune(dir, 0) && !strings.HasPrefix(dir, "/tmp/.leasehold")
	return plain && (below(workspace) || below("/tmp")) && !within(dir, workspace) && !within(path.Join(workspace, ".leasehold"), dir)
}

// stop is environmentStopLease: the sandbox is stopped and kept, whatever its settings say.
func (w *worker) stop(ctx context.Context, c call, p resumeParams) (any, error) {
	if p.ProviderLeaseID == nil || *p.ProviderLeaseID == "" {
		return nil, errNoLease
	}
	return w.giveBack(ctx, c, p, leasehold.ReleaseOptions{Retain: true})
}

func (w *worker) giveBack(ctx context.Context, c call, p resumeParams, options leasehold.ReleaseOptions) (any, error) {
	if p.ProviderLeaseID == nil || *p.ProviderLeaseID == "" {
		return nil, nil // there is nothing to give back
	}
	ref, err := c.ref(p.ProviderLeaseID, p.Metadata)
	if err != nil {
		return nil, err
	}
	w.leases.shut(c, ref)
	got, err := c.provider.Release(ctx, ref, options)
	if err != nil {
		return nil, err
	}
	if options.Retain && got.State != leasehold.ReceiptStopped {
		return nil, &rpcError{Code: codeWorker, Message: "the sandbox that was to be kept is gone"}
	}
	if got.State == leasehold.ReceiptDestroyed {
		w.leases.forget(c, ref)
	}
	return receipt{ref.Sandbox, got.State}, nil
}

// destroy is environmentDestroyLease.
func (w *worker) destroy(ctx context.Context, c call, p resumeParams) (any, error) {
	switch {
	case p.ProviderLeaseID == nil || *p.ProviderLeaseID == "":
		return nil, nil
	case p.Metadata.FailedCreate != nil:
		return w.reap(ctx, c, *p.ProviderLeaseID, *p.Metadata.FailedCreate)
	}
	ref, err := c.ref(p.ProviderLeaseID, p.Metadata)
	if err != nil {
		return nil, err
	}
	w.leases.shut(c, ref)
	got, err := c.provider.Destroy(ctx, ref)
	if err != nil {
		return nil, err
	}
	w.leases.forget(c, ref)
	return receipt{ref.Sandbox, got.State}, nil
}

// reap destroys what a failed creation left behind, in two calls: the first finds out the sandbox's id and returns it in
// an error, for the host to store; only the second, with the id stored, deletes. The receipt names what the host knows:
// the creation.
func (w *worker) reap(ctx context.Context, c call, id string, failed cleanup) (any, error) {
	envelope := failed.envelope()
	if envelope.Name != id || envelope.Scope.Tenant != c.CompanyID || envelope.Scope.Environment != c.EnvironmentID {
		return nil, &rpcError{Code: codeWorker, Message: "the failed creation is not one of this company and environment"}
	}
	if envelope.Observed == "" {
		found, err := c.provider.Inspect(ctx, envelope)
		if err != nil {
			return nil, err
		}
		failed.Observed = found.Observed // and nothing else: the host compares the rest with what it stored
		return nil, withData(&rpcError{Code: codeWorker, Message: "the sandbox of the failed creation was found: store its id before it is deleted"},
			ownership{Schema: ownershipSchema, Cleanup: failed})
	}
	got, err := c.provider.Cleanup(ctx, envelope)
	if err != nil {
		return nil, err
	}
	return receipt{id, got.State}, nil
}

type realizeParams struct {
	Lease wireLease `json:"lease"`
}

// realize is environmentRealizeWorkspace: the workspace was made with the lease, and must be there.
func (w *worker) realize(ctx context.Context, c call, p realizeParams) (any, error) {
	var cwd string
	err := w.running(ctx, c, p.Lease, func(lease *leasehold.Lease) error {
		cwd = lease.Ref().Workspace
		_, err := lease.Executor().Run(ctx, leasehold.Command{Script: ":", Profiles: leasehold.ProfilesNone})
		return err // not found, if there is no workspace to run it in
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"cwd": cwd, "metadata": map[string]string{"provider": driverKey, "remoteCwd": cwd}}, nil
}
