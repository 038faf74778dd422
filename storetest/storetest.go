// Package storetest tests implementations of [leasehold.Store].
package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// patience bounds the wait for what must happen soon.
const patience = 30 * time.Second

// Run tests that a store does all that [leasehold.Store] asks for. open returns an empty one for each of the tests.
func Run(t *testing.T, open func(t *testing.T) leasehold.Store) {
	RunShared(t, func(t *testing.T) (_, _ leasehold.Store) {
		s := open(t)
		return s, s
	})
}

// RunShared is [Run] on two stores that share one list, as those of two processes do. open returns them for each of the
// tests, with an empty list.
func RunShared(t *testing.T, open func(t *testing.T) (a, b leasehold.Store)) {
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"RecordsSurvive", (*suite).recordsSurvive},
		{"InvalidRecordsAreRefused", (*suite).invalidRecords},
		{"PutTwice", (*suite).putTwice},
		{"NotFound", (*suite).notFound},
		{"UpdateKeepsTheClaim", (*suite).update},
		{"DeleteRemoves", (*suite).remove},
		{"StaleClaimsAreFenced", (*suite).fenced},
		{"TokensIncrease", (*suite).tokens},
		{"LivingOwnersKeepTheirClaims", (*suite).living},
		{"LeasesAreTakenOver", (*suite).takeOver},
		{"DeadOwnersLoseTheirClaims", (*suite).dead},
		{"RevivedOwnersKeepWhatNobodyTook", (*suite).revived},
		{"OwnersExpire", (*suite).expiry},
		{"RecordsWait", (*suite).wait},
		{"OldestDueFirst", (*suite).order},
		{"ListPages", (*suite).list},
		{"NothingIsShared", (*suite).isolation},
		{"EndedContexts", (*suite).contexts},
		{"ConcurrentPuts", (*suite).concurrentPuts},
		{"ConcurrentClaims", (*suite).concurrentClaims},
		{"ConcurrentSweeps", (*suite).concurrentSweeps},
		{"ConcurrentWrites", (*suite).concurrentWrites},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := open(t)
			test.run(&suite{T: t, a: a, b: b})
		})
	}
}

// NewRecord returns a valid record of a new attempt, in state creating. Its values use what the format allows.
func NewRecord() leasehold.Record {
	attempt := uuid.NewString()
	scope := leasehold.Scope{Tenant: "acme", Environment: "Test_1", Run: strings.Repeat("r", 200), Agent: "a", Workspace: "w-1"}
	labels := map[string]string{
		"leasehold-provider": "daytona", "leasehold-tenant": scope.Tenant, "leasehold-environment": scope.Environment,
		"leasehold-run": scope.Run, "leasehold-agent": scope.Agent, "leasehold-workspace": scope.Workspace,
		"leasehold-reuse": "false", "leasehold-attempt": attempt,
	}
	for i := len(labels); i < 16; i++ {
		labels[fmt.Sprintf("own.key-%d", i)] = strings.Repeat("v", 200)
	}
	return leasehold.Record{
		Version: 1, State: leasehold.StateCreating, Orphan: leasehold.OrphanDestroy, CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC),
		Envelope: leasehold.CleanupEnvelope{
			Version: 1, Name: "leasehold-create-" + attempt, Attempt: attempt, Scope: scope, Labels: labels,
			Credential: strings.Repeat("0a", 32), Phase: leasehold.PhaseCreate,
		},
	}
}

// Leased returns the record as that of a lease.
func Leased(r leasehold.Record) leasehold.Record {
	r.Envelope.Observed = "sandbox-" + r.Envelope.Attempt
	r.State = leasehold.StateLeased
	r.Lease = &leasehold.LeaseRef{
		Version: 1, Sandbox: r.Envelope.Observed, Name: r.Envelope.Name, Scope: r.Envelope.Scope, Attempt: r.Envelope.Attempt,
		Labels: r.Envelope.Labels, Account: strings.Repeat("1b", 32), Credential: r.Envelope.Credential,
		Workspace: "/home/\"o'\\ü\u2028\t" + strings.Repeat("x", 3000), Sentinel: strings.Repeat("2c", 32), Shell: "bash",
		ExpiresAt: time.Date(2027, 1, 1, 0, 0, 0, 1, time.UTC), CreatedAt: r.CreatedAt,
	}
	return r
}

type suite struct {
	*testing.T
	a, b leasehold.Store
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) want(call string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s = %v, want %v", call, err, want)
	}
}

// owner returns a new owner, alive for ttl.
func (s *suite) owner(ttl time.Duration) string {
	s.Helper()
	owner := "owner-" + uuid.NewString()
	s.must(s.a.Renew(s.Context(), owner, ttl))
	return owner
}

func (s *suite) put(r leasehold.Record, owner string) leasehold.Claim {
	s.Helper()
	claim, err := s.a.Put(s.Context(), r, owner)
	s.must(err)
	if claim.Owner != owner {
		s.Errorf("Put() gave a claim to %q, want %q", claim.Owner, owner)
	}
	return claim
}

func (s *suite) due(store leasehold.Store, limit int) []leasehold.Claim {
	s.Helper()
	claims, err := store.ClaimDue(s.Context(), s.owner(time.Hour), limit)
	s.must(err)
	return claims
}

func (s *suite) entries() []leasehold.Entry {
	s.Helper()
	entries, err := s.b.List(s.Context(), "", 1000)
	s.must(err)
	return entries
}

// stored fails the test unless the list holds exactly these records, in any order.
func (s *suite) stored(want ...leasehold.Record) {
	s.Helper()
	var got, wanted []string
	for _, e := range s.entries() {
		got = append(got, s.text(e.Record))
	}
	for _, r := range want {
		wanted = append(wanted, s.text(r))
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		s.Errorf("the store holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

func (s *suite) text(r leasehold.Record) string {
	s.Helper()
	data, err := json.Marshal(r)
	s.must(err)
	return string(data)
}

// eventually calls f until it returns true.
func (s *suite) eventually(what string, f func() bool) {
	s.Helper()
	until := time.NewTimer(patience)
	defer until.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-until.C:
			s.Fatalf("%s did not happen in %s", what, patience)
		}
	}
}

func (s *suite) recordsSurvive() {
	creating, leased, ending, stopped := NewRecord(), Leased(NewRecord()), Leased(NewRecord()), Leased(NewRecord())
	ending.State, ending.Orphan = leasehold.StateEnding, leasehold.OrphanStop
	creating.Refused = true
	stopped.State = leasehold.StateStopped
	stopped.Failures, stopped.Outcome, stopped.Status, stopped.TriedAt = 7, leasehold.KindUnavailable, 503, time.Date(2026, 5, 5, 5, 5, 5, 5, time.UTC)
	records := []leasehold.Record{creating, leased, ending, stopped}
	for _, r := range records {
		claim := s.put(r, s.owner(time.Hour))
		if got, want := s.text(claim.Record), s.text(r); got != want {
			s.Errorf("Put() claimed\n%s\nwant\n%s", got, want)
		}
	}
	s.stored(records...)
}

func (s *suite) invalidRecords() {
	owner := s.owner(time.Hour)
	good := NewRecord()
	claim := s.put(good, owner)
	bad := NewRecord()
	bad.Envelope.Labels["own.key-8"] = "a/b"
	_, err := s.a.Put(s.Context(), bad, owner)
	s.want("Put(bad label)", err, leasehold.ErrInvalid)
	bad = good
	bad.State = "party"
	s.want("Update(bad state)", s.a.Update(s.Context(), claim, bad), leasehold.ErrInvalid)
	bad = good
	bad.Version = 99
	s.want("Release(bad version)", s.a.Release(s.Context(), claim, bad, 0), leasehold.ErrInvalid)
	s.want("Update(other attempt)", s.a.Update(s.Context(), claim, NewRecord()), leasehold.ErrInvalid)
	s.want("Release(other attempt)", s.a.Release(s.Context(), claim, NewRecord(), 0), leasehold.ErrInvalid)
	s.want("Renew(bad owner)", s.a.Renew(s.Context(), "../owner", time.Hour), leasehold.ErrInvalid)
	_, err = s.a.Put(s.Context(), NewRecord(), "")
	s.want("Put(no owner)", err, leasehold.ErrInvalid)
	s.stored(good)
}

func (s *suite) putTwice() {
	r := NewRecord()
	owner := s.owner(time.Hour)
	claim := s.put(r, owner)
	changed := Leased(r)
	for _, by := range []string{owner, s.owner(time.Hour)} {
		_, err := s.b.Put(s.Context(), changed, by)
		s.want("Put(again)", err, leasehold.ErrConflict)
	}
	s.stored(r)
	s.must(s.a.Update(s.Context(), claim, changed))
}

func (s *suite) notFound() {
	r := NewRecord()
	_, err := s.a.Claim(s.Context(), r.Envelope.Attempt, s.owner(time.Hour))
	s.want("Claim(unknown)", err, leasehold.ErrNotFound)
	if got := s.due(s.a, 10); len(got) != 0 {
		s.Errorf("ClaimDue() of an empty store = %v", got)
	}
	unknown := leasehold.Claim{Owner: s.owner(time.Hour), Token: 1, Record: r}
	s.want("Update(unknown)", s.a.Update(s.Context(), unknown, r), leasehold.ErrFenced)
	s.want("Release(unknown)", s.a.Release(s.Context(), unknown, r, 0), leasehold.ErrFenced)
	s.want("Delete(unknown)", s.a.Delete(s.Context(), unknown), leasehold.ErrFenced)
	s.stored()
}

func (s *suite) update() {
	r := NewRecord()
	claim := s.put(r, s.owner(time.Hour))
	r.Envelope.Observed = "seen"
	s.must(s.a.Update(s.Context(), claim, r))
	s.stored(r)
	r = Leased(r)
	s.must(s.b.Update(s.Context(), claim, r))
	s.stored(r)
	s.must(s.a.Release(s.Context(), claim, r, 0))
	claims := s.due(s.b, 10)
	if len(claims) != 1 || s.text(claims[0].Record) != s.text(r) {
		s.Fatalf("ClaimDue() = %v, want the one record as it was written", claims)
	}
}

func (s *suite) remove() {
	keep := NewRecord()
	owner := s.owner(time.Hour)
	s.put(keep, owner)
	claim := s.put(NewRecord(), owner)
	s.must(s.b.Delete(s.Context(), claim))
	s.stored(keep)
	_, err := s.a.Claim(s.Context(), claim.Record.Envelope.Attempt, owner)
	s.want("Claim(deleted)", err, leasehold.ErrNotFound)
}

func (s *suite) fenced() {
	for name, fence := range map[string]func(leasehold.Claim) []leasehold.Record{
		"claimed by another": func(c leasehold.Claim) []leasehold.Record {
			s.must(s.b.Renew(s.Context(), c.Owner, 0))
			_, err := s.b.Claim(s.Context(), c.Record.Envelope.Attempt, s.owner(time.Hour))
			s.must(err)
			return []leasehold.Record{c.Record}
		},
		"claimed again by the same owner": func(c leasehold.Claim) []leasehold.Record {
			_, err := s.b.Claim(s.Context(), c.Record.Envelope.Attempt, c.Owner)
			s.must(err)
			return []leasehold.Record{c.Record}
		},
		"given up": func(c leasehold.Claim) []leasehold.Record {
			s.must(s.b.Release(s.Context(), c, c.Record, time.Hour))
			return []leasehold.Record{c.Record}
		},
		"removed": func(c leasehold.Claim) []leasehold.Record {
			s.must(s.b.Delete(s.Context(), c))
			return nil
		},
		"removed and put again": func(c leasehold.Claim) []leasehold.Record {
			s.must(s.b.Delete(s.Context(), c))
			_, err := s.b.Put(s.Context(), c.Record, c.Owner)
			s.must(err)
			return []leasehold.Record{c.Record}
		},
		"another owner with the same token": func(c leasehold.Claim) []leasehold.Record {
			return []leasehold.Record{c.Record}
		},
	} {
		claim := s.put(NewRecord(), s.owner(time.Hour))
		want := fence(claim)
		if strings.HasPrefix(name, "another") {
			claim.Owner = s.owner(time.Hour)
		}
		changed := Leased(claim.Record)
		s.want(name+": Update()", s.a.Update(s.Context(), claim, changed), leasehold.ErrFenced)
		s.want(name+": Release()", s.a.Release(s.Context(), claim, changed, 0), leasehold.ErrFenced)
		s.want(name+": Delete()", s.a.Delete(s.Context(), claim), leasehold.ErrFenced)
		s.stored(want...)
		for _, e := range s.entries() {
			newest, err := s.a.Claim(s.Context(), e.Record.Envelope.Attempt, cmp.Or(e.Owner, claim.Owner))
			s.must(err)
			s.must(s.a.Delete(s.Context(), newest))
		}
	}
}

func (s *suite) tokens() {
	r := NewRecord()
	owner := s.owner(time.Hour)
	claim := s.put(r, owner)
	last := claim.Token
	next := func(how string, c leasehold.Claim, err error) {
		s.Helper()
		s.must(err)
		if c.Token <= last {
			s.Errorf("%s gave token %d after %d", how, c.Token, last)
		}
		last, claim = c.Token, c
	}
	for range 20 {
		c, err := s.b.Claim(s.Context(), r.Envelope.Attempt, owner)
		next("Claim()", c, err)
		s.must(s.a.Release(s.Context(), claim, r, 0))
		claims := s.due(s.a, 1)
		if len(claims) != 1 {
			s.Fatalf("ClaimDue() = %v, want one claim", claims)
		}
		next("ClaimDue()", claims[0], nil)
		s.must(s.b.Delete(s.Context(), claim))
		c, err = s.a.Put(s.Context(), r, owner)
		next("Put() after Delete()", c, err)
	}
}

func (s *suite) living() {
	r := NewRecord()
	claim := s.put(r, s.owner(time.Hour))
	other := s.owner(time.Hour)
	_, err := s.b.Claim(s.Context(), r.Envelope.Attempt, other)
	s.want("Claim(of a living owner's)", err, leasehold.ErrConflict)
	if got := s.due(s.b, 10); len(got) != 0 {
		s.Errorf("ClaimDue() took %d records of a living owner", len(got))
	}
	leased := Leased(r)
	s.must(s.a.Update(s.Context(), claim, leased))
	if got := s.due(s.b, 10); len(got) != 0 {
		s.Errorf("ClaimDue() took %d leases of a living owner", len(got))
	}
	claims, err := s.a.ClaimDue(s.Context(), claim.Owner, 10)
	s.must(err)
	if len(claims) != 0 {
		s.Errorf("ClaimDue() took %d records from the caller itself", len(claims))
	}
	for _, state := range []leasehold.RecordState{leasehold.StateEnding, leasehold.StateStopped} {
		r := leased
		r.State = state
		s.must(s.a.Update(s.Context(), claim, r))
		_, err = s.b.Claim(s.Context(), r.Envelope.Attempt, other)
		s.want("Claim(what is "+string(state)+")", err, leasehold.ErrConflict)
	}
	if e := s.entries(); len(e) != 1 || e[0].Owner != claim.Owner || !e[0].Alive {
		s.Errorf("List() = %+v, want one entry of the living owner", e)
	}
}

func (s *suite) takeOver() {
	r := Leased(NewRecord())
	claim := s.put(r, s.owner(time.Hour))
	taken, err := s.b.Claim(s.Context(), r.Envelope.Attempt, s.owner(time.Hour))
	s.must(err)
	if taken.Token <= claim.Token || s.text(taken.Record) != s.text(r) {
		s.Errorf("Claim() = token %d after %d, record\n%s\nwant\n%s", taken.Token, claim.Token, s.text(taken.Record), s.text(r))
	}
	s.want("Update(fenced)", s.a.Update(s.Context(), claim, r), leasehold.ErrFenced)
	s.must(s.b.Update(s.Context(), taken, r))
}

func (s *suite) dead() {
	never, ended := NewRecord(), NewRecord()
	s.put(never, "never-renewed-"+uuid.NewString())
	owner := s.owner(time.Hour)
	s.put(ended, owner)
	s.must(s.b.Renew(s.Context(), owner, 0))
	for _, e := range s.entries() {
		if e.Owner == "" || e.Alive {
			s.Errorf("List() = owner %q, alive %t, want a dead owner", e.Owner, e.Alive)
		}
	}
	if got := s.due(s.b, 10); len(got) != 2 {
		s.Errorf("ClaimDue() took %d records of dead owners, want 2", len(got))
	}
}

func (s *suite) revived() {
	kept, taken := NewRecord(), NewRecord()
	owner := s.owner(time.Hour)
	keptClaim, takenClaim := s.put(kept, owner), s.put(taken, owner)
	s.must(s.a.Renew(s.Context(), owner, 0))
	_, err := s.b.Claim(s.Context(), taken.Envelope.Attempt, s.owner(time.Hour))
	s.must(err)
	s.must(s.a.Update(s.Context(), keptClaim, kept)) // dead, but nobody took it
	s.must(s.a.Renew(s.Context(), owner, time.Hour))
	s.must(s.a.Update(s.Context(), keptClaim, kept))
	s.want("Update(taken)", s.a.Update(s.Context(), takenClaim, taken), leasehold.ErrFenced)
	if got := s.due(s.b, 10); len(got) != 0 {
		s.Errorf("ClaimDue() took %d records of living owners", len(got))
	}
}

func (s *suite) expiry() {
	s.put(NewRecord(), s.owner(200*time.Millisecond))
	s.eventually("the owner's death", func() bool { return len(s.due(s.b, 10)) == 1 })
}

func (s *suite) wait() {
	later, soon, now := NewRecord(), NewRecord(), NewRecord()
	owner := s.owner(time.Hour)
	for _, x := range []struct {
		record leasehold.Record
		wait   time.Duration
	}{{later, time.Hour}, {soon, 200 * time.Millisecond}, {now, -time.Hour}} {
		s.must(s.a.Release(s.Context(), s.put(x.record, owner), x.record, x.wait))
	}
	dues := make(map[string]time.Time)
	for _, e := range s.entries() {
		if e.Owner != "" || e.Alive {
			s.Errorf("List() = owner %q of a released record", e.Owner)
		}
		dues[e.Record.Envelope.Attempt] = e.Due
	}
	if got := dues[later.Envelope.Attempt].Sub(dues[soon.Envelope.Attempt]); got < 50*time.Minute || got > 70*time.Minute {
		s.Errorf("a record that waits an hour is due %s after one that hardly waits", got)
	}
	var got []string
	s.eventually("the short wait's end", func() bool {
		for _, c := range s.due(s.b, 10) {
			got = append(got, c.Record.Envelope.Attempt)
		}
		return len(got) >= 2
	})
	if want := []string{now.Envelope.Attempt, soon.Envelope.Attempt}; !slices.Equal(got, want) {
		s.Errorf("ClaimDue() = %v, want %v", got, want)
	}
	claim, err := s.a.Claim(s.Context(), later.Envelope.Attempt, owner) // due or not
	s.must(err)
	s.must(s.a.Renew(s.Context(), owner, 0))
	if got := s.due(s.b, 10); len(got) != 1 {
		s.Errorf("ClaimDue() took %d records, want the one whose owner died: who claims it need not wait for it", len(got))
	}
	s.want("Update(fenced)", s.a.Update(s.Context(), claim, later), leasehold.ErrFenced)
}

func (s *suite) order() {
	owner := s.owner(time.Hour)
	var want []string
	for range 5 {
		r := NewRecord()
		s.must(s.a.Release(s.Context(), s.put(r, owner), r, 0))
		want = append(want, r.Envelope.Attempt)
		at := time.Now()
		s.eventually("the clock's next tick", func() bool { return time.Since(at) > 2*time.Millisecond })
	}
	var got []string
	for _, limit := range []int{2, 2, 10, 10} {
		claims := s.due(s.b, limit)
		if len(claims) > limit {
			s.Errorf("ClaimDue(%d) = %d claims", limit, len(claims))
		}
		for _, c := range claims {
			got = append(got, c.Record.Envelope.Attempt)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("ClaimDue() = %v, want the oldest first, %v", got, want)
	}
}

func (s *suite) list() {
	owner := s.owner(time.Hour)
	var want []string
	for range 7 {
		want = append(want, s.put(NewRecord(), owner).Record.Envelope.Attempt)
	}
	slices.Sort(want)
	var got []string
	for after := ""; ; {
		page, err := s.b.List(s.Context(), after, 3)
		s.must(err)
		if len(page) > 3 {
			s.Errorf("List(3) = %d entries", len(page))
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			got = append(got, e.Record.Envelope.Attempt)
		}
		after = got[len(got)-1]
	}
	if !slices.Equal(got, want) {
		s.Errorf("List() = %v, want %v", got, want)
	}
}

func (s *suite) isolation() {
	r := NewRecord()
	want := s.text(r)
	claim := s.put(r, s.owner(time.Hour))
	r.Envelope.Labels["changed"] = "x"
	clear(claim.Record.Envelope.Labels)
	if got := s.entries(); len(got) != 1 || s.text(got[0].Record) != want {
		s.Fatalf("the store shares maps with its caller: %+v", got)
	} else {
		clear(got[0].Record.Envelope.Labels)
	}
	if got := s.entries(); len(got) != 1 || s.text(got[0].Record) != want {
		s.Errorf("List() shares maps with the store: %+v", got)
	}
}

func (s *suite) contexts() {
	r := NewRecord()
	owner := s.owner(time.Hour)
	claim := s.put(r, owner)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	for call, f := range map[string]func() error{
		"Put":      func() error { _, err := s.a.Put(ctx, NewRecord(), owner); return err },
		"Claim":    func() error { _, err := s.a.Claim(ctx, r.Envelope.Attempt, owner); return err },
		"ClaimDue": func() error { _, err := s.a.ClaimDue(ctx, owner, 1); return err },
		"Renew":    func() error { return s.a.Renew(ctx, owner, time.Hour) },
		"Update":   func() error { return s.a.Update(ctx, claim, Leased(r)) },
		"Release":  func() error { return s.a.Release(ctx, claim, Leased(r), 0) },
		"Delete":   func() error { return s.a.Delete(ctx, claim) },
		"List":     func() error { _, err := s.a.List(ctx, "", 1); return err },
	} {
		s.want(call+"(ended context)", f(), context.Canceled)
	}
	s.stored(r)
	s.must(s.a.Update(s.Context(), claim, r))
}
