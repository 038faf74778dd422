package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// atOnce bounds the leases that are resumed, or given back, at the same time when the service begins or ends.
const atOnce = 8

type leaseView struct {
	ID          string     `json:"id"`
	State       leaseState `json:"state"`
	Detail      string     `json:"detail,omitempty"`
	Environment string     `json:"environment"`
	Run         string     `json:"run"`
	Sandbox     string     `json:"sandbox"`
	Workspace   string     `json:"workspace"`
	CreatedAt   time.Time  `json:"createdAt"`
	ExpiresAt   time.Time  `json:"expiresAt,omitzero"`
	Running     int        `json:"running"` // commands
}

func (l *lease) view() leaseView {
	l.mu.Lock()
	defer l.mu.Unlock()
	ref := l.record.Ref
	v := leaseView{
		ID: ref.Attempt, State: l.record.State, Detail: l.record.Detail, Environment: ref.Scope.Environment, Run: ref.Scope.Run,
		Sandbox: ref.Sandbox, Workspace: ref.Workspace, CreatedAt: ref.CreatedAt, ExpiresAt: ref.ExpiresAt,
	}
	for _, c := range l.commands {
		if !c.view().State.final() {
			v.Running++
		}
	}
	return v
}

func (s *service) listLeases(w http.ResponseWriter, _ *http.Request, t *tenant) error {
	views := []leaseView{}
	s.leases.each(func(l *lease) {
		if l.tenant() == t.name {
			views = append(views, l.view())
		}
	})
	return writeJSON(w, http.StatusOK, map[string]any{"leases": views})
}

type leaseRequest struct {
	Environment string `json:"environment"` // empty: default
	Run         string `json:"run"`         // empty: one is made up
}

// createLease acquires a lease. A client that does not wait for the answer gets none: what was created is undone.
func (s *service) createLease(w http.ResponseWriter, r *http.Request, t *tenant) error {
	var request leaseRequest
	if err := s.decode(w, r, &request); err != nil {
		return err
	}
	if s.ending.Load() {
		return errEnding
	}
	if !s.leases.reserve(t.name, s.limits.leases) {
		return tooMany("leases")
	}
	defer s.leases.unreserve(t.name)
	scope := leasehold.Scope{Tenant: t.name, Environment: request.Environment, Run: request.Run}
	if scope.Environment == "" {
		scope.Environment = "default"
	}
	if scope.Run == "" {
		scope.Run = "run-" + strings.ToLower(rand.Text()[:8])
	}
	acquired, err := s.provider.Acquire(r.Context(), leasehold.AcquireRequest{Scope: scope})
	if err != nil {
		return err
	}
	l, err := s.leases.add(acquired.Ref())
	if err != nil { // what cannot be written down is not kept
		_, destroy := s.provider.Destroy(context.WithoutCancel(r.Context()), acquired.Ref())
		return errors.Join(err, destroy)
	}
	w.Header().Set("Location", "/v1/leases/"+l.id())
	return writeJSON(w, http.StatusCreated, l.view())
}

func (s *service) showLease(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, l.view())
}

func (s *service) resumeLease(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return err
	}
	if s.ending.Load() {
		return errEnding
	}
	if err := s.resume(r.Context(), l); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, l.view())
}

// resume starts a lease's sandbox if need be, and goes on with the commands that nobody observes.
func (s *service) resume(ctx context.Context, l *lease) error {
	if err := l.begin(leaseResuming, ""); err != nil {
		return err
	}
	resumed, err := s.provider.Resume(ctx, l.ref())
	switch {
	case errors.Is(err, leasehold.ErrGone):
		l.loseCommands("the sandbox is gone")
		return errors.Join(err, l.set(leaseLost, problemOf(err).Detail))
	case err != nil:
		return errors.Join(err, l.set(leaseUnverified, problemOf(err).Detail))
	}
	s.attach(l, resumed) // while nobody else can
	return l.set(leaseActive, "")
}

// goOn resumes, in the background, what an earlier process had in use. Until then it is not this process's, and after
// the list's claim time it would be anybody's. What that process was to give back is given back: never started again.
func (s *service) goOn() {
	turns := newSlots(atOnce)
	s.leases.each(func(l *lease) {
		switch l.state() {
		case leaseStopped, leaseLost:
			return
		case leaseResuming: // by a process that is no more
			l.record.State = leaseUnverified
		}
		s.background.Go(func() {
			turns <- struct{}{}
			defer turns.free()
			if how := l.ending(); how != "" {
				if _, err := s.giveBack(s.requests, l, how); err != nil && !errors.Is(err, leasehold.ErrGone) {
					s.log.Warn("a lease of an earlier process was not given back: the sweeper goes on with it", "lease", l.id(), "err", err)
				}
				return
			}
			if err := s.resume(s.requests, l); err != nil {
				s.log.Warn("a lease of an earlier process was not resumed", "lease", l.id(), "err", err)
			}
		})
	})
}

type releaseRequest struct {
	Keep bool `json:"keep"` // stop the sandbox, to be resumed; else delete it
}

func (s *service) releaseLease(w http.ResponseWriter, r *http.Request, t *tenant) error {
	var request releaseRequest
	if err := s.decode(w, r, &request); err != nil {
		return err
	}
	if request.Keep {
		return s.end(w, r, t, leasehold.OrphanRetain)
	}
	return s.end(w, r, t, leasehold.OrphanDestroy)
}

func (s *service) destroyLease(w http.ResponseWriter, r *http.Request, t *tenant) error {
	return s.end(w, r, t, leasehold.OrphanDestroy)
}

// end gives a lease back, and answers with the receipt: what a fresh read showed, not what was asked for.
func (s *service) end(w http.ResponseWriter, r *http.Request, t *tenant, how leasehold.Disposition) error {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return err
	}
	receipt, err := s.giveBack(context.WithoutCancel(r.Context()), l, how) // a client that goes away has asked for it
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, receipt)
}

// giveBack destroys a lease, or with OrphanRetain stops and keeps its sandbox.
func (s *service) giveBack(ctx context.Context, l *lease, how leasehold.Disposition) (receipt leasehold.Receipt, err error) {
	if err := l.begin(leaseEnding, how); err != nil {
		return leasehold.Receipt{}, err
	}
	if how == leasehold.OrphanRetain {
		receipt, err = s.provider.Release(ctx, l.ref(), leasehold.ReleaseOptions{Retain: true})
	} else {
		receipt, err = s.provider.Destroy(ctx, l.ref())
	}
	if err != nil && !errors.Is(err, leasehold.ErrGone) {
		return receipt, errors.Join(err, l.set(leaseUnverified, problemOf(err).Detail))
	}
	l.loseCommands("the lease was given back") // those that nobody observes; the others know
	l.settle()
	if err == nil && receipt.State == leasehold.ReceiptStopped {
		return receipt, l.set(leaseStopped, "")
	}
	return receipt, errors.Join(err, s.leases.remove(l))
}

// giveBackAll destroys every lease but those that were kept, or are to be.
func (s *service) giveBackAll(ctx context.Context) error {
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		failed []error
	)
	turns := newSlots(atOnce)
	s.leases.each(func(l *lease) {
		if l.state() == leaseStopped {
			return
		}
		group.Go(func() {
			turns <- struct{}{}
			defer turns.free()
			if _, err := s.giveBack(ctx, l, cmp.Or(l.ending(), leasehold.OrphanDestroy)); err != nil && !errors.Is(err, leasehold.ErrGone) {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	})
	group.Wait()
	return errors.Join(failed...)
}
