package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/leasehold-go/leasehold"
)

// environment is what nearly every call begins with: for whom it is, and with which configuration.
type environment struct {
	DriverKey     string          `json:"driverKey"`
	CompanyID     string          `json:"companyId"`
	EnvironmentID string          `json:"environmentId"`
	Config        json.RawMessage `json:"config"`
}

// call is one call for an environment, ready to be served.
type call struct {
	environment
	settings settings
	provider leasehold.Provider
}

// wireLease is a lease as the host stores it and sends it with each call.
type wireLease struct {
	ProviderLeaseID *string       `json:"providerLeaseId"` // the sandbox
	Metadata        leaseMetadata `json:"metadata"`
}

// leaseMetadata is what of a lease's metadata means something to this worker. The settings in it come back to the worker
// as the configuration of later calls.
type leaseMetadata struct {
	Ref json.RawMessage `json:"leaseRef,omitempty"`
	// FailedCreate stands in the place of a lease for a creation that could not be accounted for.
	FailedCreate *cleanup `json:"failedCreateCleanup,omitempty"`
}

var errNoLease = &rpcError{Code: codeWorker, Message: "the call names no lease"}

// ref returns the reference in the lease's metadata, once it is proved to be the one that the call may use: another
// company's lease, or one under another id, is none.
func (c call) ref(id *string, metadata leaseMetadata) (leasehold.LeaseRef, error) {
	if id == nil || *id == "" {
		return leasehold.LeaseRef{}, errNoLease
	}
	ref, err := leasehold.ParseLeaseRef(metadata.Ref)
	if err != nil {
		return ref, &rpcError{Code: codeWorker, Message: "the lease's metadata does not hold its reference"}
	}
	if ref.Sandbox != *id || ref.Scope.Tenant != c.CompanyID || ref.Scope.Environment != c.EnvironmentID {
		return leasehold.LeaseRef{}, &rpcError{Code: codeWorker, Message: "the lease is not one of this company and environment"}
	}
	return ref, nil
}

// running does something with a call's lease. If provably nothing was done because its sandbox had been stopped, by its idle
// interval say, it resumes the lease and does it once more. A lease that the host gave back stays given back.
func (w *worker) running(ctx context.Context, c call, l wireLease, do func(*leasehold.Lease) error) error {
	ref, err := c.ref(l.ProviderLeaseID, l.Metadata)
	if err != nil {
		return err
	}
	if err := w.leases.use(c, ref); err != nil {
		return err
	}
	lease, err := c.provider.Bind(ref) // no request
	if err != nil {
		return err
	}
	err = do(lease)
	failed, ok := errors.AsType[*leasehold.Error](err)
	if !ok || failed.Kind != leasehold.KindNotRunning || failed.Dispatched != leasehold.DispatchedNo {
		return err
	}
	lease, err = w.resumeForCall(ctx, c, ref)
	if err != nil {
		return err
	}
	return do(lease)
}

// resumeForCall resumes a lease that the host takes for running.
func (w *worker) resumeForCall(ctx context.Context, c call, ref leasehold.LeaseRef) (*leasehold.Lease, error) {
	done, err := w.leases.resuming(ctx, c, ref)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := w.leases.use(c, ref); err != nil { // given back meanwhile
		return nil, err
	}
	lease, err := c.provider.Resume(ctx, ref)
	if shut := w.leases.use(c, ref); shut != nil { // given back while this waited to resume it
		w.stopAgain(ctx, c, ref)
		return nil, shut
	}
	return lease, err
}

// stopAgain stops a sandbox that was, or may have been, started after the host had its receipt, even if the call has ended.
// It is kept: how the host gave it back is not known here, and a destruction has left nothing to stop.
func (w *worker) stopAgain(ctx context.Context, c call, ref leasehold.LeaseRef) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	if _, err := c.provider.Release(ctx, ref, leasehold.ReleaseOptions{Retain: !ref.Reuse}); err != nil {
		w.log.Error("a sandbox that was given back may run", "sandbox", ref.Sandbox, "err", err)
	}
}

// leaseTable knows the leases that calls have named. It is memory only: after a restart of the worker the first call
// that names a lease makes it known again.
type leaseTable struct {
	mu     sync.Mutex
	leases map[leaseKey]*knownLease
}

// leaseKey is never the id alone: no company can name another's lease.
type leaseKey struct{ company, environment, id string }

func (c call) key(ref leasehold.LeaseRef) leaseKey {
	return leaseKey{c.CompanyID, c.EnvironmentID, ref.Sandbox}
}

type knownLease struct {
	settings settings
	ref      leasehold.LeaseRef
	shut     bool          // given back, or about to be
	resuming chan struct{} // has an element while a call resumes it
}

var errGivenBack = &rpcError{Code: codeWorker, Message: "the lease was given back: resume it first"}

// open admits calls on a lease that was acquired or resumed.
func (t *leaseTable) open(c call, ref leasehold.LeaseRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(c, ref, false)
}

// use admits a call on a lease, unless it was given back.
func (t *leaseTable) use(c call, ref leasehold.LeaseRef) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.leases[c.key(ref)]; known != nil && known.shut {
		return errGivenBack
	}
	t.put(c, ref, false)
	return nil
}

// shut ends admission. What comes late must not start a sandbox again that the host knows to be stopped.
func (t *leaseTable) shut(c call, ref leasehold.LeaseRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(c, ref, true)
}

// resuming lets one call after another resume a lease, until done is called: a call that stops it again, because it was given
// back meanwhile, stops nothing that the host was told is resumed.
func (t *leaseTable) resuming(ctx context.Context, c call, ref leasehold.LeaseRef) (done func(), err error) {
	t.mu.Lock()
	known := t.leases[c.key(ref)]
	if known == nil {
		known = t.put(c, ref, false)
	}
	t.mu.Unlock()
	select {
	case known.resuming <- struct{}{}:
		return func() { <-known.resuming }, nil
	case <-ctx.Done():
		return nil, &rpcError{Code: codeWorker, Message: "another call resumes the lease: the time for this one is over (temporary)"}
	}
}

func (t *leaseTable) put(c call, ref leasehold.LeaseRef, shut bool) *knownLease {
	known := t.leases[c.key(ref)]
	if known == nil {
		if t.leases == nil {
			t.leases = make(map[leaseKey]*knownLease)
		}
		known = &knownLease{resuming: make(chan struct{}, 1)}
		t.leases[c.key(ref)] = known
	}
	known.settings, known.ref, known.shut = c.settings, ref, shut
	return known
}

// forget removes a lease whose sandbox is gone.
func (t *leaseTable) forget(c call, ref leasehold.LeaseRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leases, c.key(ref))
}

// get returns a lease by its id alone, for the calls that name no more of it.
func (t *leaseTable) get(key leaseKey) (knownLease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.leases[key]
	switch {
	case known == nil:
		return knownLease{}, &rpcError{Code: codeWorker, Message: "the lease is not known to this worker: resume it first"}
	case known.shut:
		return knownLease{}, errGivenBack
	}
	return *known, nil
}
