package main

import (
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/leasehold-go/leasehold"
)

// leaseState is what the service knows of a lease.
type leaseState string

const (
	leaseActive     leaseState = "active"     // acquired or resumed by this process
	leaseStopped    leaseState = "stopped"    // given back and kept, until it is resumed
	leaseResuming   leaseState = "resuming"   // on its way to active
	leaseEnding     leaseState = "ending"     // being given back
	leaseUnverified leaseState = "unverified" // the last change failed, as its detail says
	leaseLost       leaseState = "lost"       // its sandbox is proved gone
)

// registry holds the leases of all tenants, each in a directory of its own: lease.json, and its commands.
type registry struct {
	dir    string
	output int64 // limit of a command's

	mu       sync.Mutex
	all      map[string]*lease
	creating map[string]int // by tenant
}

// lease is a lease with its commands. Its id is the attempt of its reference.
type lease struct {
	dir string

	mu       sync.Mutex
	record   leaseRecord
	commands map[string]*command
}

type leaseRecord struct {
	Ref    leasehold.LeaseRef `json:"ref"`
	State  leaseState         `json:"state"`
	Detail string             `json:"detail,omitempty"`
	// Ending is how the lease is to be given back, from when that was asked for until it is done: destroy, or retain. A lease
	// that has it is finished, by whoever comes next, and not resumed unless its tenant asks for that.
	Ending leasehold.Disposition `json:"ending,omitempty"`
}

func leaseFile(dir, id string) string { return filepath.Join(dir, "leases", id, "lease.json") }

// orphaned says what is to be done with the sandbox of a record of the list that no living process holds. A lease that a
// tenant can still see is the tenant's to give back, and one that the tenant did give back is given back so. One that was
// acquired and never written down, because this process was killed between the two, is deleted.
func orphaned(dir string, record leasehold.Record) leasehold.Disposition {
	var known leaseRecord
	switch err := readFile(leaseFile(dir, record.Envelope.Attempt), &known); {
	case errors.Is(err, fs.ErrNotExist):
		return record.Orphan
	case err != nil || known.Ending == "":
		return leasehold.OrphanKeep
	}
	return known.Ending
}

// load reads the leases of earlier processes.
func (g *registry) load(dir string, output int64) error {
	g.dir, g.output = filepath.Join(dir, "leases"), output
	g.all, g.creating = make(map[string]*lease), make(map[string]int)
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		l := &lease{dir: filepath.Join(g.dir, entry.Name())}
		err := readFile(leaseFile(dir, entry.Name()), &l.record)
		if errors.Is(err, fs.ErrNotExist) { // it was on its way in or out
			err = os.RemoveAll(l.dir)
			if err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if l.record.State == leaseEnding { // goOn goes on with that
			l.record.State, l.record.Detail = leaseUnverified, "the service ended while it was given back"
		}
		if err := l.loadCommands(output); err != nil {
			return err
		}
		g.all[entry.Name()] = l
	}
	return nil
}

// reserve makes room for a lease of a tenant, until settled or added.
func (g *registry) reserve(tenant string, limit int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.creating[tenant]
	for _, l := range g.all {
		if l.tenant() == tenant {
			n++
		}
	}
	if n >= limit {
		return false
	}
	g.creating[tenant]++
	return true
}

func (g *registry) unreserve(tenant string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.creating[tenant]--
}

// add writes a new lease down.
func (g *registry) add(ref leasehold.LeaseRef) (*lease, error) {
	l := &lease{dir: filepath.Join(g.dir, ref.Attempt), commands: make(map[string]*command)}
	l.record = leaseRecord{Ref: ref, State: leaseActive}
	if err := os.MkdirAll(filepath.Join(l.dir, "commands"), 0o700); err != nil {
		return nil, err
	}
	if err := errors.Join(syncDir(g.dir), l.save()); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all[ref.Attempt] = l
	return l, nil
}

// remove forgets a lease that is no more, and what its commands wrote.
func (g *registry) remove(l *lease) error {
	g.mu.Lock()
	delete(g.all, l.id())
	g.mu.Unlock()
	return os.RemoveAll(l.dir)
}

// of returns a lease of a tenant.
func (g *registry) of(t *tenant, id string) (*lease, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.all[id]
	if l == nil || l.tenant() != t.name {
		return nil, errNoLease
	}
	return l, nil
}

// each calls f with all leases, the oldest first.
func (g *registry) each(f func(*lease)) {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.all))
	g.mu.Unlock()
	slices.SortFunc(all, func(a, b *lease) int { return a.ref().CreatedAt.Compare(b.ref().CreatedAt) })
	for _, l := range all {
		f(l)
	}
}

func (l *lease) id() string     { return l.ref().Attempt }
func (l *lease) tenant() string { return l.ref().Scope.Tenant }

func (l *lease) ref() leasehold.LeaseRef {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.Ref
}

// ending returns how the lease is to be given back, or nothing.
func (l *lease) ending() leasehold.Disposition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.Ending
}

func (l *lease) state() leaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.State
}

// save writes the record. l.mu is held, or nobody else has the lease yet.
func (l *lease) save() error { return writeFile(filepath.Join(l.dir, "lease.json"), l.record) }

// begin begins a change, if none is under way. ending is how the lease is to be given back by it, if it is.
func (l *lease) begin(state leaseState, ending leasehold.Disposition) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record.State == leaseResuming || l.record.State == leaseEnding {
		return refusal(http.StatusConflict, "the lease is "+string(l.record.State))
	}
	before := l.record
	l.record.State, l.record.Detail, l.record.Ending = state, "", ending
	err := l.save()
	if err != nil {
		l.record = before
	}
	return err
}

// set ends a change. One that failed is still to be done, if it was to give the lease back.
func (l *lease) set(state leaseState, detail string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record.State, l.record.Detail = state, detail
	if state != leaseUnverified {
		l.record.Ending = ""
	}
	return l.save()
}

// use returns the lease for something to be done in its sandbox.
func (l *lease) use(p leasehold.Provider) (*leasehold.Lease, error) {
	if state := l.state(); state != leaseActive {
		return nil, refusal(http.StatusConflict, "the lease is "+string(state)+", not active")
	}
	return p.Bind(l.ref())
}
