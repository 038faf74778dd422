package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
)

// fakeProvider does nothing, and is idle.
type fakeProvider struct {
	leasehold.Provider
	closed atomic.Bool
	probed error
	asked  []error // what the contexts of Inspect and Cleanup said
}

func (p *fakeProvider) Idle(...leasehold.Scope) leasehold.IdleReport {
	return leasehold.IdleReport{Idle: true}
}
func (p *fakeProvider) Close(context.Context) error { p.closed.Store(true); return nil }

func (p *fakeProvider) Bind(leasehold.LeaseRef) (*leasehold.Lease, error) { return nil, nil }
func (p *fakeProvider) Resume(context.Context, leasehold.LeaseRef) (*leasehold.Lease, error) {
	return nil, nil
}

func (p *fakeProvider) Probe(context.Context, leasehold.AcquireRequest) (leasehold.ProbeReport, error) {
	return leasehold.ProbeReport{}, p.probed
}

func (p *fakeProvider) Inspect(ctx context.Context, e leasehold.CleanupEnvelope) (leasehold.CleanupEnvelope, error) {
	p.asked = append(p.asked, ctx.Err())
	return e, nil
}

func (p *fakeProvider) Cleanup(ctx context.Context, _ leasehold.CleanupEnvelope) (leasehold.Receipt, error) {
	p.asked = append(p.asked, ctx.Err())
	return leasehold.Receipt{State: leasehold.ReceiptDestroyed}, nil
}

// TestAProviderThatIsAskedForIsNotEvicted: what a call replaces are the others that nobody used for a while.
func TestAProviderThatIsAskedForIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened []*fakeProvider
		p := providers{open: func(string, settings) (leasehold.Provider, error) {
			opened = append(opened, new(fakeProvider))
			return opened[len(opened)-1], nil
		}}
		use := func(company string) {
			_, done, err := p.get(company, settings{})
			if err != nil {
				t.Fatal(err)
			}
			done()
			synctest.Wait()
		}
		use("a")
		use("b")
		time.Sleep(idleTime + 1)
		use("a")
		if len(opened) != 2 || opened[0].closed.Load() || !opened[1].closed.Load() {
			t.Errorf("%d providers were opened, closed: %v, %v, want a to be kept, and b closed",
				len(opened), opened[0].closed.Load(), opened[1].closed.Load())
		}
	})
}

// TestOnlyWhatDidNothingIsRepeated: a command that may have run is not run again in the resumed sandbox.
func TestOnlyWhatDidNothingIsRepeated(t *testing.T) {
	t.Parallel()
	var w *worker
	h := startWorker(t, func(made *worker) { w = made })
	var lease wireLease
	if err := json.Unmarshal([]byte(asJSON(t, reusing.acquire(t, h))), &lease); err != nil {
		t.Fatal(err)
	}
	c := call{environment: environment{CompanyID: "company-1", EnvironmentID: "env-1"}, provider: new(fakeProvider)}
	for dispatched, want := range map[leasehold.Dispatch]int{leasehold.DispatchedNo: 2, leasehold.DispatchedUnknown: 1, leasehold.DispatchedYes: 1} {
		done := 0
		err := w.running(t.Context(), c, lease, func(*leasehold.Lease) error {
			done++
			return &leasehold.Error{Kind: leasehold.KindNotRunning, Dispatched: dispatched}
		})
		if done != want || !errors.Is(err, leasehold.ErrNotRunning) {
			t.Errorf("with dispatched %s it was done %d times, and then %v, want %d times", dispatched, done, err, want)
		}
	}
}

// lateProvider resumes after something else has happened.
type lateProvider struct {
	leasehold.Provider
	before func()
}

func (p lateProvider) Resume(ctx context.Context, ref leasehold.LeaseRef) (*leasehold.Lease, error) {
	p.before()
	return p.Provider.Resume(ctx, ref)
}

// TestALeaseThatIsGivenBackDuringItsResumeStaysSo: a command finds its sandbox stopped, and the host stops the lease just before
// it is resumed for that. The receipt says stopped, and so it is.
func TestALeaseThatIsGivenBackDuringItsResumeStaysSo(t *testing.T) {
	t.Parallel()
	var w *worker
	h := startWorker(t, func(made *worker) { w = made })
	held := reusing.acquire(t, h)
	var lease wireLease
	if err := json.Unmarshal([]byte(asJSON(t, held)), &lease); err != nil {
		t.Fatal(err)
	}
	s, err := parseSettings([]byte(asJSON(t, reusing.config)))
	if err != nil {
		t.Fatal(err)
	}
	provider, done, err := w.providers.get(reusing.company, s)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	c := call{environment: environment{CompanyID: reusing.company, EnvironmentID: "env-1"}, settings: s, provider: lateProvider{provider, func() {
		if got := must[receipt](t, h, "environmentStopLease", reusing.give(held, nil)); got.State != leasehold.ReceiptStopped {
			t.Errorf("stop = %+v, want stopped", got)
		}
	}}}
	tried := 0
	err = w.running(t.Context(), c, lease, func(*leasehold.Lease) error {
		tried++
		return &leasehold.Error{Kind: leasehold.KindNotRunning, Dispatched: leasehold.DispatchedNo}
	})
	if tried != 1 || err != errGivenBack {
		t.Errorf("it was tried %d times, and then %v, want once, and that the lease was given back", tried, err)
	}
	ref, err := c.ref(lease.ProviderLeaseID, lease.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := provider.Bind(ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bound.Executor().Run(t.Context(), leasehold.Command{Script: "true"}); !errors.Is(err, leasehold.ErrNotRunning) {
		t.Errorf("a command in the sandbox: %v, want it stopped", err)
	}
}

// boxProvider has one sandbox, which runs from the beginning of its resume on.
type boxProvider struct {
	fakeProvider
	lease   *leasehold.Lease
	running atomic.Bool
	resumed atomic.Int32
	during  func(resume int32)
}

func (p *boxProvider) Resume(context.Context, leasehold.LeaseRef) (*leasehold.Lease, error) {
	p.running.Store(true)
	p.during(p.resumed.Add(1))
	return p.lease, nil
}

func (p *boxProvider) Release(context.Context, leasehold.LeaseRef, leasehold.ReleaseOptions) (leasehold.Receipt, error) {
	p.running.Store(false)
	return leasehold.Receipt{State: leasehold.ReceiptStopped}, nil
}

// TestALeaseThatTheHostResumedIsNotStopped: a command's resume has come too late, and before that is seen the host resumes the
// lease again itself.
func TestALeaseThatTheHostResumedIsNotStopped(t *testing.T) {
	var made *worker
	var lease wireLease
	if err := json.Unmarshal([]byte(asJSON(t, reusing.acquire(t, startWorker(t, func(w *worker) { made = w })))), &lease); err != nil {
		t.Fatal(err)
	}
	c := call{environment: environment{CompanyID: reusing.company, EnvironmentID: "env-1"}}
	ref, err := c.ref(lease.ProviderLeaseID, lease.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := made.providers.all()[0].Bind(ref)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w, box, host, served := new(worker), &boxProvider{lease: bound}, make(chan error, 1), make(chan struct{})
		c.provider = box
		box.during = func(resume int32) {
			if resume > 1 { // the host's
				<-served
				return
			}
			p := resumeParams(lease)
			if _, err := w.stop(t.Context(), c, p); err != nil {
				t.Error(err)
			}
			go func() {
				_, err := w.resume(t.Context(), c, p)
				host <- err
			}()
			synctest.Wait()
		}
		err := w.running(t.Context(), c, lease, func(*leasehold.Lease) error {
			return &leasehold.Error{Kind: leasehold.KindNotRunning, Dispatched: leasehold.DispatchedNo}
		})
		close(served)
		if resumed := <-host; err != errGivenBack || resumed != nil || !box.running.Load() {
			t.Errorf("the command: %v, the host's resume: %v, the sandbox runs: %v; want that the lease was given back, nil and true", err, resumed, box.running.Load())
		}
	})
}

// TestAProbeCleansUpAfterItsCall: nobody else is told of its sandbox.
func TestAProbeCleansUpAfterItsCall(t *testing.T) {
	p := &fakeProvider{probed: &leasehold.Error{Kind: leasehold.KindCanceled, Cleanup: new(leasehold.CleanupEnvelope)}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := new(worker).probe(ctx, call{provider: p}, struct{}{}); err != nil {
		t.Fatal(err)
	}
	if len(p.asked) != 2 || p.asked[0] != nil || p.asked[1] != nil {
		t.Errorf("the contexts of the clean-up: %v, want two that go on", p.asked)
	}
}

// TestASessionRemovesItselfOnly, and not another that has its route by now.
func TestASessionRemovesItselfOnly(t *testing.T) {
	var all sessions
	first, second := &session{route: "r", id: "1"}, &session{route: "r", id: "2"}
	for _, s := range []*session{first, second} {
		if err := all.add(s); err != nil {
			t.Fatal(err)
		}
		all.remove(first)
	}
	if got, err := all.find("r", "2"); got != second || all.byRoute["r"] != second {
		t.Errorf("the second session is %v, %v, and %v by its route, want it", got, err, all.byRoute["r"])
	}
}
