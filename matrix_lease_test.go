package leasehold

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

// operation is one row of the matrix.
type operation struct {
	name string
	cfg  Config
	// prepare makes what the operation works on; its requests meet no fault.
	prepare func(*testing.T, *stage)
	// run asks for the operation, and returns what it claims.
	run func(context.Context, *stage) outcome

	listed bool                      // the host has a store
	real   bool                      // it needs a sandbox with files and processes
	shell  func(t *testing.T) string // of the sandbox; nil: any
	// shares says that cells share a world, one after the other: the operation only uses the lease.
	shares bool
	// once says that a second time is something else: what it is about is over, or is known to its host alone.
	once bool
}

// named are the operations of those names. There must be one of each.
func named(all []operation, names ...string) (found []operation) {
	for _, name := range names {
		i := slices.IndexFunc(all, func(op operation) bool { return op.name == name })
		if i < 0 {
			panic("no operation " + name)
		}
		found = append(found, all[i])
	}
	return found
}

// leased prepares a lease, and the envelope of its creation as it was before the sandbox was seen.
func leased(t *testing.T, s *stage) {
	if s.ref.Sandbox != "" { // there is one
		return
	}
	s.ref = patiently(t, func() (*Lease, error) {
		l, err := s.host.Acquire(t.Context(), request())
		if e := (*Error)(nil); errors.As(err, &e) && e.Cleanup != nil { // a busy machine was too late, and nothing is to be left of that
			next := s.world.next(t)
			defer func() { _ = next.Close(context.Background()) }()
			if observed, inspectErr := next.Inspect(t.Context(), *e.Cleanup); inspectErr == nil {
				_, _ = next.Cleanup(t.Context(), observed)
			}
		}
		return l, err
	}).Ref()
	creation := creationOperation{Attempt: s.ref.Attempt, Name: s.ref.Name, Scope: s.ref.Scope, Labels: s.ref.Labels, Credential: s.ref.Credential, Account: s.host.account.known()}
	s.envelope = *creation.envelope(PhaseCreate, "")
}

// atRest prepares a lease whose sandbox is stopped.
func atRest(t *testing.T, s *stage) {
	leased(t, s)
	patiently(t, func() (Receipt, error) { return s.host.Release(t.Context(), s.ref, ReleaseOptions{}) })
}

func nothing(*testing.T, *stage) {}

func resumed(ctx context.Context, s *stage) outcome {
	l, err := s.host.Resume(ctx, s.ref)
	return outcome{lease: l, err: err}
}

func releasedWith(options ReleaseOptions) func(context.Context, *stage) outcome {
	return func(ctx context.Context, s *stage) outcome {
		receipt, err := s.host.Release(ctx, s.ref, options)
		return outcome{receipt: receipt, err: err}
	}
}

func acquired(ctx context.Context, s *stage) outcome {
	l, err := s.host.Acquire(ctx, request())
	return outcome{lease: l, err: err}
}

// orphaned leaves a lease, or a creation whose reply was lost, on the list of a host that is dead.
func orphaned(t *testing.T, s *stage) {
	leased(t, s)
	s.host.ledger.leave(t.Context(), s.ref.Attempt)
	s.host = s.world.next(t)
	s.end = append(s.end, func() { _ = s.host.Close(context.Background()) })
}

func swept(ctx context.Context, s *stage) outcome {
	sweeper, err := NewSweeper(s.host, SweeperOptions{})
	if err == nil {
		_, err = sweeper.Sweep(ctx)
	}
	return outcome{err: err}
}

// bound uses a lease of which the host has only the reference.
func bound(ctx context.Context, s *stage) outcome {
	l, err := s.lease()
	if err == nil {
		_, err = l.toolbox(ctx)
	}
	return outcome{err: err}
}

// unwatched leaves a sandbox that somebody else has stopped: the host counts it until it has looked.
func unwatched(t *testing.T, s *stage) {
	leased(t, s)
	if err := s.host.client.Stop(t.Context(), s.ref.Sandbox); err != nil {
		t.Fatal(err)
	}
	s.server.Sandbox(s.ref.Sandbox).Settle(time.Minute)
}

// previewed prepares an endpoint, and has do ask it for something.
func previewed(do func(context.Context, *Endpoint) outcome) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		leased(t, s)
		l, err := s.lease()
		if err != nil {
			t.Fatal(err)
		}
		e := endpointOf(t, l, 3000)
		s.do = func(ctx context.Context, _ *stage) outcome {
			got := do(ctx, e)
			got.secrets = append(got.secrets, e.token())
			return got
		}
	}
}

func done(ctx context.Context, s *stage) outcome { return s.do(ctx, s) }

func signed(ctx context.Context, e *Endpoint) outcome {
	u, err := e.Sign(ctx, 0)
	if err != nil {
		return outcome{err: err}
	}
	return outcome{secrets: []string{u.SecretURL()}}
}

// planned names a snapshot, and makes it.
func planned(made bool) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		leased(t, s) // which also attests the account
		snapshots, err := NewSnapshots(s.host)
		if err != nil {
			t.Fatal(err)
		}
		s.snapshot = snapshots.Plan("matrix")
		if made {
			if s.snapshot, err = snapshots.Build(t.Context(), s.snapshot, BuildRequest{Image: "debian:13"}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s *stage) snapshots() *Snapshots { return &Snapshots{s.host} }

// captureOf makes a snapshot of the lease's sandbox.
func captureOf(ctx context.Context, s *stage) outcome {
	l, err := s.lease()
	if err == nil {
		_, err = s.snapshots().Capture(ctx, l, s.snapshot)
	}
	return outcome{err: err, snapshot: &snapshotClaim{ref: s.snapshot, ready: true}}
}

// operations are those on leases, and on what else the control plane has. They need no sandbox that runs anything.
func operations() []operation {
	reuse := Config{Reuse: true}
	return []operation{
		{name: "acquire", cfg: Config{TTL: time.Hour}, prepare: nothing, run: acquired},
		{name: "acquire with a store", listed: true, prepare: nothing, run: acquired},
		{name: "probe", prepare: nothing, run: func(ctx context.Context, s *stage) outcome {
			_, err := s.host.Probe(ctx, request())
			return outcome{err: err}
		}},
		{name: "resume a running one", cfg: reuse, prepare: leased, run: resumed},
		{name: "resume a stopped one", cfg: reuse, prepare: atRest, run: resumed},
		{name: "bind and use", prepare: func(t *testing.T, s *stage) {
			leased(t, s)
			s.host = s.world.next(t)
			s.end = append(s.end, func() { _ = s.host.Close(context.Background()) })
		}, run: bound},
		{name: "release and delete", prepare: leased, run: releasedWith(ReleaseOptions{})},
		{name: "release and delete with a store", listed: true, prepare: leased, run: releasedWith(ReleaseOptions{})},
		{name: "release and stop", cfg: reuse, prepare: leased, run: releasedWith(ReleaseOptions{})},
		{name: "release and retain", prepare: leased, run: releasedWith(ReleaseOptions{Retain: true})},
		{name: "release and archive", cfg: reuse, prepare: leased, run: releasedWith(ReleaseOptions{Archive: true})},
		{name: "destroy", prepare: leased, run: func(ctx context.Context, s *stage) outcome {
			receipt, err := s.host.Destroy(ctx, s.ref)
			return outcome{receipt: receipt, err: err}
		}},
		{name: "inspect", prepare: leased, run: func(ctx context.Context, s *stage) outcome {
			e, err := s.host.Inspect(ctx, s.envelope)
			return outcome{envelope: &e, err: err}
		}},
		{name: "cleanup", prepare: leased, run: func(ctx context.Context, s *stage) outcome {
			e := s.envelope
			e.Observed = s.ref.Sandbox
			receipt, err := s.host.Cleanup(ctx, e)
			return outcome{receipt: receipt, err: err}
		}},
		{name: "sweep", listed: true, prepare: orphaned, run: swept},
		{name: "prove idle", prepare: unwatched, run: func(ctx context.Context, s *stage) outcome {
			report, err := s.host.ProveIdle(ctx)
			return outcome{idle: &report, err: err}
		}},
		{name: "endpoint", prepare: leased, run: func(ctx context.Context, s *stage) outcome {
			l, err := s.lease()
			if err != nil {
				return outcome{err: err}
			}
			e, err := l.Endpoint(ctx, 3000)
			if err != nil {
				return outcome{err: err}
			}
			return outcome{secrets: []string{e.token()}}
		}},
		{name: "sign", prepare: previewed(signed), run: done, once: true},
		{name: "revoke a signed address", prepare: func(t *testing.T, s *stage) {
			previewed(func(ctx context.Context, e *Endpoint) outcome {
				u, err := e.Sign(ctx, 0)
				if err != nil {
					t.Error(err)
					return outcome{err: err}
				}
				s.do = func(ctx context.Context, _ *stage) outcome {
					return outcome{err: u.Revoke(ctx), secrets: []string{u.SecretURL()}}
				}
				return outcome{}
			})(t, s)
			s.do(t.Context(), s)
		}, run: done, once: true},
		{name: "open ssh", prepare: leased, run: func(ctx context.Context, s *stage) outcome {
			l, err := s.lease()
			if err != nil {
				return outcome{err: err}
			}
			a, err := l.OpenSSH(ctx, 0)
			if err != nil {
				return outcome{err: err}
			}
			return outcome{secrets: []string{a.Token()}}
		}},
		{name: "revoke ssh", prepare: func(t *testing.T, s *stage) {
			leased(t, s)
			l, err := s.lease()
			if err == nil {
				_, err = l.OpenSSH(t.Context(), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, run: func(ctx context.Context, s *stage) outcome {
			l, err := s.lease()
			if err == nil {
				err = l.RevokeSSH(ctx)
			}
			return outcome{err: err}
		}},
		{name: "release with an open ssh", cfg: reuse, prepare: func(t *testing.T, s *stage) {
			leased(t, s)
			l, err := s.lease()
			if err == nil {
				_, err = l.OpenSSH(t.Context(), 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, run: releasedWith(ReleaseOptions{})},
		{name: "build a snapshot", prepare: planned(false), run: func(ctx context.Context, s *stage) outcome {
			_, err := s.snapshots().Build(ctx, s.snapshot, BuildRequest{Dockerfile: smallDockerfile, Logs: io.Discard, Timeout: s.world.cfg.Timeout})
			return outcome{err: err, snapshot: &snapshotClaim{ref: s.snapshot, ready: true}}
		}},
		{name: "inspect a snapshot", prepare: planned(true), run: func(ctx context.Context, s *stage) outcome {
			info, err := s.snapshots().Inspect(ctx, s.snapshot)
			if err == nil && info.State != SnapshotReady {
				return outcome{err: &Error{Op: "snapshot inspect", Kind: KindUncertain, Message: "it is not ready"}}
			}
			return outcome{err: err, snapshot: &snapshotClaim{ref: s.snapshot, ready: true}}
		}},
		{name: "delete a snapshot", prepare: planned(true), run: func(ctx context.Context, s *stage) outcome {
			return outcome{err: s.snapshots().Delete(ctx, s.snapshot), snapshot: &snapshotClaim{ref: s.snapshot}}
		}},
		{name: "capture a snapshot", prepare: planned(false), run: captureOf, real: true},
	}
}
