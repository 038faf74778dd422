package leasehold

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/google/uuid"
)

// Store is a durable list of the sandboxes that a host has asked for and not yet proved to be given back. A [Provider]
// with a store writes each creation to it before the request is sent, so that a host that is killed leaves something
// that a [Sweeper] works off. [NewFileStore] keeps the list in a directory; a host can put it on its database.
//
// Several processes share one store. A record is worked on by one owner at a time: who puts or claims a record holds its
// claim, a token with which every later write is made. An owner is a random name, alive until the time that it last renewed
// for; the records of a dead owner are due at once, and anybody's. Methods are safe for concurrent use, return promptly when
// ctx ends, and are each atomic: they happen wholly or not at all, whatever else runs at the same time, and when one has
// returned nil its effect survives the death of the process and of the machine. ([Store.Renew] alone may be lost with the
// machine.)
//
// Time is the store's: whether an owner is alive and a record due is judged by one clock, that of the database or of the
// machine that has the directory, and durations are counted from the moment of the write by that clock. A host's own
// clock never matters. A clock that is set forward by more than the hosts' claim time makes living owners look dead
// until they renew, and what they hold may be swept; one that is set back keeps dead owners' records waiting for as long.
//
// Errors are matched with [errors.Is]: [ErrFenced], [ErrConflict], [ErrNotFound], as the methods say, and [ErrInvalid]
// for a record that [Record.Encode] refuses, for one of another attempt than the claim's, and for an owner that is not of
// the form that Renew says. Every other error means that the store could not be reached or written, and
// that the call may or may not have happened. An error never means that an older version of a record was lost.
// Package storetest tests an implementation against all this.
type Store interface {
	// Put adds a record and returns its claim, held by owner. It fails with ErrConflict, and changes nothing, if there
	// is a record of that attempt.
	Put(ctx context.Context, record Record, owner string) (Claim, error)
	// Claim takes the record of an attempt for a caller that has a right to it, whether it is due or not. It succeeds if
	// nobody holds the record, if owner does, if its owner is dead, or if its state is [StateLeased]: who has the
	// reference of a lease may take it over from another host. Otherwise it fails with ErrConflict, and with ErrNotFound
	// if there is no record. Success fences every earlier claim of the record.
	Claim(ctx context.Context, attempt, owner string) (Claim, error)
	// ClaimDue takes up to limit records that are due and that no living owner holds, owner included, those that have
	// been due longest first. Two calls never return the same claim. It returns none, and no error, if there is none. A
	// record that cannot be read is skipped and left as it is.
	ClaimDue(ctx context.Context, owner string, limit int) ([]Claim, error)
	// Renew keeps owner, and with it everything it holds, alive until ttl from now, whatever was said before: a ttl of
	// zero ends it. An owner that was never renewed is dead. One that was dead is alive again, with those of its claims
	// that nobody took. Owners are 1 to 200 of A-Z a-z 0-9 _ -.
	Renew(ctx context.Context, owner string, ttl time.Duration) error
	// Update replaces the record and keeps the claim. The attempt must be the claim's.
	Update(ctx context.Context, claim Claim, record Record) error
	// Release replaces the record, as Update does, and gives the claim up. The record is due after wait; at once
	// if that is negative.
	Release(ctx context.Context, claim Claim, record Record, wait time.Duration) error
	// Delete removes the record.
	Delete(ctx context.Context, claim Claim) error
	// List returns up to limit records in the order of their attempts, beginning after the attempt after, which is empty
	// at first. It claims nothing. It is for operators and tests: a record may have changed by the time it is returned.
	List(ctx context.Context, after string, limit int) ([]Entry, error)
}

// Claim is the right to write one record. [Store.Update], [Store.Release] and [Store.Delete] fail with [ErrFenced], and
// change nothing, unless owner and token are those of the record's newest claim: it was taken by somebody else, given up,
// or the record was removed. That the owner has died, while nobody has taken the record, does not matter.
type Claim struct {
	Owner string
	// Token orders the claims of an attempt: each is greater than all before, those before a Delete included.
	Token int64
	// Record is as it was when it was claimed. Record.Envelope.Attempt says which record the claim is for.
	Record Record
}

// Entry is a record as [Store.List] found it.
type Entry struct {
	Record Record
	Owner  string    // who holds it; empty: nobody
	Alive  bool      // the owner was alive
	Due    time.Time // when it may be swept, once nobody holds it, by the store's clock
}

// RecordState says what is known of a recorded creation.
type RecordState string

// The states. The zero value is none of them.
const (
	// StateCreating: the creation was perhaps sent, and what it made, if anything, did not become a lease. It is to be
	// deleted.
	StateCreating RecordState = "creating"
	// StateLeased: the sandbox is a lease, in use by the owner. If that is dead, it is an orphan.
	StateLeased RecordState = "leased"
	// StateEnding: the sandbox is being stopped or deleted, as Record.Orphan says, and cannot be used any more, unless
	// [Provider.Resume] takes that back before it has happened.
	StateEnding RecordState = "ending"
	// StateStopped: an orphan that was stopped, and is kept for whoever has, or finds here, its reference.
	StateStopped RecordState = "stopped"
)

// Disposition is what becomes of a sandbox whose host died.
type Disposition string

// The dispositions.
const (
	OrphanDestroy Disposition = "destroy" // deleted
	OrphanStop    Disposition = "stop"    // stopped, with its automatic deletion as it is, and kept on the list
	OrphanRetain  Disposition = "retain"  // the same, after its automatic deletion was switched off
	OrphanKeep    Disposition = "keep"    // left as it is, and asked about again after MaxDelay, or up to half of it earlier
)

const recordVersion = 1

// Record is one creation in a [Store]: plain data without secrets, from before the request was sent until the sandbox is
// proved to be given back. Stores keep its JSON form, from [Record.Encode] and for [ParseRecord], as one value.
type Record struct {
	Version   int             `json:"version"`
	State     RecordState     `json:"state"`
	Envelope  CleanupEnvelope `json:"envelope"`        // its Attempt, a UUID, is the record's key
	Lease     *LeaseRef       `json:"lease,omitempty"` // from StateLeased on
	Orphan    Disposition     `json:"orphan"`          // what is, or would be, done with the sandbox; not keep
	CreatedAt time.Time       `json:"createdAt"`       // by the host's clock
	// Refused: the provider refused each request for the creation. That its name is not found then proves that there is none.
	Refused bool `json:"refused,omitempty"`

	// What sweeps found. An outage of the provider or of the store is not counted.
	Failures int       `json:"failures,omitempty"` // attempts that did not settle the record
	Outcome  Kind      `json:"outcome,omitempty"`  // of the last attempt
	Status   int       `json:"status,omitempty"`   // its HTTP status
	TriedAt  time.Time `json:"triedAt,omitzero"`   // when, by the sweeping host's clock
}

// ParseRecord decodes a stored record. One bad value voids it: then it fails with [ErrInvalid]. Unknown fields are
// ignored.
func ParseRecord(data []byte) (Record, error) {
	return parse[Record]("parse record", "Record", data)
}

// Encode returns the record's JSON form. It fails with [ErrInvalid] for one that [ParseRecord] would refuse.
func (r Record) Encode() ([]byte, error) {
	if err := r.check("encode record"); err != nil {
		return nil, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, problems{{Field: "Record", Problem: "has no JSON form"}}.err("encode record")
	}
	return data, nil
}

func (r Record) check(op string) error {
	var p problems
	r.problems(&p)
	return p.err(op)
}

func (r Record) problems(p *problems) {
	if r.Version != recordVersion {
		p.add("Record.Version", "is %d: this package reads %d", r.Version, recordVersion)
		return
	}
	r.Envelope.problems(p)
	if id, err := uuid.Parse(r.Envelope.Attempt); err != nil || id.String() != r.Envelope.Attempt {
		p.add("Record.Envelope.Attempt", "is not a UUID in lower case")
	}
	switch r.State {
	case StateCreating:
		if r.Lease != nil {
			p.add("Record.Lease", "is set in state %s", r.State)
		}
	case StateLeased, StateStopped:
		if r.Lease == nil {
			p.add("Record.Lease", "is missing in state %s", r.State)
		}
	case StateEnding:
	default:
		p.add("Record.State", "is not a state")
	}
	if r.Lease != nil {
		r.Lease.problems(p)
		l, e := r.Lease, r.Envelope
		if l.Attempt != e.Attempt || l.Name != e.Name || l.Scope != e.Scope || l.Credential != e.Credential || l.Sandbox != e.Observed || !maps.Equal(l.Labels, e.Labels) {
			p.add("Record.Lease", "is of another sandbox than the envelope")
		}
	}
	switch r.Orphan {
	case OrphanDestroy:
	case OrphanStop, OrphanRetain:
		if r.Lease == nil {
			p.add("Record.Orphan", "is %s without a lease", r.Orphan)
		}
	default:
		p.add("Record.Orphan", "is neither destroy, stop nor retain")
	}
	if _, known := sentinels[r.Outcome]; r.Outcome != "" && !known {
		p.add("Record.Outcome", "is not a kind of error")
	}
	if r.Failures < 0 || r.Status < 0 || r.Status > 999 {
		p.add("Record.Failures", "or Status is out of range")
	}
	for _, at := range []time.Time{r.CreatedAt, r.TriedAt} {
		if year := at.UTC().Year(); year < 0 || year > 9999 {
			p.add("Record.CreatedAt", "or TriedAt is not a time that JSON can hold")
		}
	}
}

// clone returns a copy that shares nothing.
func (r Record) clone() Record {
	r.Envelope = r.Envelope.clone()
	if r.Lease != nil {
		lease := r.Lease.clone()
		r.Lease = &lease
	}
	return r
}

func checkOwner(op, owner string) error {
	var p problems
	checkIdentifier(&p, "owner", owner, true)
	return p.err(op)
}

// checkWrite refuses a record that cannot replace the claimed one.
func checkWrite(op string, claim Claim, record Record) error {
	var p problems
	record.problems(&p)
	if record.Envelope.Attempt != claim.Record.Envelope.Attempt {
		p.add("Record.Envelope.Attempt", "is not the claim's")
	}
	return p.err(op)
}
