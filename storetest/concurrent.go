package storetest

import (
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// each runs f n times at once, on both stores.
func (s *suite) each(n int, f func(i int, store leasehold.Store)) {
	var wg sync.WaitGroup
	for i := range n {
		store := s.a
		if i%2 == 1 {
			store = s.b
		}
		wg.Go(func() { f(i, store) })
	}
	wg.Wait()
}

func (s *suite) concurrentPuts() {
	const n = 8
	r := NewRecord()
	owner := s.owner(time.Hour)
	errs := make([]error, n)
	s.each(n, func(i int, store leasehold.Store) { _, errs[i] = store.Put(s.Context(), r, owner) })
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, leasehold.ErrConflict) {
			s.Errorf("Put() = %v, want nil or ErrConflict", err)
		}
	}
	if won != 1 {
		s.Errorf("%d of %d puts of one attempt succeeded, want 1", won, n)
	}
	s.stored(r)
}

func (s *suite) concurrentClaims() {
	const n = 8
	r := NewRecord()
	s.must(s.a.Release(s.Context(), s.put(r, s.owner(time.Hour)), r, time.Hour))
	owners := make([]string, n)
	for i := range owners {
		owners[i] = s.owner(time.Hour)
	}
	errs := make([]error, n)
	s.each(n, func(i int, store leasehold.Store) {
		_, errs[i] = store.Claim(s.Context(), r.Envelope.Attempt, owners[i])
	})
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, leasehold.ErrConflict) {
			s.Errorf("Claim() = %v, want nil or ErrConflict", err)
		}
	}
	if won != 1 {
		s.Errorf("%d of %d claims succeeded at once, want 1", won, n)
	}
}

// concurrentSweeps: every record is claimed once, however many sweep.
func (s *suite) concurrentSweeps() {
	const records, sweeps = 40, 8
	owner := s.owner(time.Hour)
	for range records {
		r := NewRecord()
		s.must(s.a.Release(s.Context(), s.put(r, owner), r, 0))
	}
	owners := make([]string, sweeps)
	for i := range owners {
		owners[i] = s.owner(time.Hour)
	}
	var mu sync.Mutex
	got := make(map[string]int)
	s.each(sweeps, func(i int, store leasehold.Store) {
		for misses := 0; misses < 3; { // another sweep may be about to take what this one could not
			claims, err := store.ClaimDue(s.Context(), owners[i], 3)
			if err != nil {
				s.Errorf("ClaimDue() = %v", err)
				return
			}
			if len(claims) == 0 {
				misses++
			}
			mu.Lock()
			for _, c := range claims {
				got[c.Record.Envelope.Attempt]++
			}
			mu.Unlock()
		}
	})
	if len(got) != records {
		s.Errorf("%d of %d records were claimed", len(got), records)
	}
	for attempt, n := range got {
		if n != 1 {
			s.Errorf("%s was claimed %d times", attempt, n)
		}
	}
}

// concurrentWrites: owners take one lease from each other and write it. What is stored in the end is what the holder of
// the newest token wrote last, and no write of a fenced claim came after it.
func (s *suite) concurrentWrites() {
	const owners, rounds = 6, 10
	r := Leased(NewRecord())
	s.put(r, s.owner(time.Hour))
	names := make([]string, owners)
	for i := range names {
		names[i] = s.owner(time.Hour)
	}
	var mu sync.Mutex
	written := make(map[int]int64) // token by the mark that was written with it
	s.each(owners, func(i int, store leasehold.Store) {
		for round := range rounds {
			claim, err := store.Claim(s.Context(), r.Envelope.Attempt, names[i])
			if err != nil {
				s.Errorf("Claim() = %v", err)
				return
			}
			changed := r
			changed.Failures = 1 + i*rounds + round // a mark
			switch err := store.Update(s.Context(), claim, changed); {
			case err == nil:
				mu.Lock()
				written[changed.Failures] = claim.Token
				mu.Unlock()
			case !errors.Is(err, leasehold.ErrFenced):
				s.Errorf("Update() = %v, want nil or ErrFenced", err)
			}
		}
	})
	var newest int64
	for _, token := range written {
		newest = max(newest, token)
	}
	entries := s.entries()
	if len(entries) != 1 {
		s.Fatalf("the store holds %d records, want 1", len(entries))
	}
	if got := written[entries[0].Record.Failures]; got != newest {
		s.Errorf("the record was written with token %d, want that of the newest writer, %d", got, newest)
	}
}
