package leasehold

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// memoryStore is a [Store] in memory, by this process's clock: what the file store does, without the files.
type memoryStore struct {
	mu      sync.Mutex
	token   int64
	owners  map[string]time.Time // until when they live
	records map[string]*memoryEntry
}

type memoryEntry struct {
	record Record
	owner  string
	token  int64
	due    time.Time
}

func newMemoryStore() *memoryStore {
	return &memoryStore{owners: make(map[string]time.Time), records: make(map[string]*memoryEntry)}
}

func (s *memoryStore) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	return nil
}

func (s *memoryStore) alive(owner string) bool {
	return owner != "" && time.Now().Before(s.owners[owner])
}

func (s *memoryStore) take(e *memoryEntry, owner string) Claim {
	s.token++
	e.owner, e.token, e.due = owner, s.token, time.Now()
	return Claim{Owner: owner, Token: e.token, Record: e.record.clone()}
}

func (s *memoryStore) Put(ctx context.Context, record Record, owner string) (Claim, error) {
	if _, err := record.Encode(); err != nil {
		return Claim{}, err
	}
	if err := checkOwner("put", owner); err != nil {
		return Claim{}, err
	}
	if err := s.lock(ctx); err != nil {
		return Claim{}, err
	}
	defer s.mu.Unlock()
	if s.records[record.Envelope.Attempt] != nil {
		return Claim{}, ErrConflict
	}
	e := &memoryEntry{record: record.clone()}
	s.records[record.Envelope.Attempt] = e
	return s.take(e, owner), nil
}

func (s *memoryStore) Claim(ctx context.Context, attempt, owner string) (Claim, error) {
	if err := s.lock(ctx); err != nil {
		return Claim{}, err
	}
	defer s.mu.Unlock()
	e := s.records[attempt]
	if e == nil {
		return Claim{}, ErrNotFound
	}
	if s.alive(e.owner) && e.owner != owner && e.record.State != StateLeased {
		return Claim{}, ErrConflict
	}
	return s.take(e, owner), nil
}

func (s *memoryStore) ClaimDue(ctx context.Context, owner string, limit int) ([]Claim, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var due []*memoryEntry
	for _, e := range s.records {
		if !s.alive(e.owner) && !e.due.After(time.Now()) {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *memoryEntry) int {
		if c := a.due.Compare(b.due); c != 0 {
			return c
		}
		return strings.Compare(a.record.Envelope.Attempt, b.record.Envelope.Attempt)
	})
	var claims []Claim
	for _, e := range due[:min(limit, len(due))] {
		claims = append(claims, s.take(e, owner))
	}
	return claims, nil
}

func (s *memoryStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	if err := checkOwner("renew", owner); err != nil {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.owners[owner] = time.Now().Add(ttl)
	return nil
}

// write runs f on the entry that claim is for.
func (s *memoryStore) write(ctx context.Context, claim Claim, f func(*memoryEntry)) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	e := s.records[claim.Record.Envelope.Attempt]
	if e == nil || e.owner != claim.Owner || e.token != claim.Token {
		return ErrFenced
	}
	f(e)
	return nil
}

func (s *memoryStore) Update(ctx context.Context, claim Claim, record Record) error {
	if err := checkWrite("update", claim, record); err != nil {
		return err
	}
	return s.write(ctx, claim, func(e *memoryEntry) { e.record = record.clone() })
}

func (s *memoryStore) Release(ctx context.Context, claim Claim, record Record, wait time.Duration) error {
	if err := checkWrite("release", claim, record); err != nil {
		return err
	}
	return s.write(ctx, claim, func(e *memoryEntry) {
		e.record, e.owner, e.due = record.clone(), "", time.Now().Add(wait)
	})
}

func (s *memoryStore) Delete(ctx context.Context, claim Claim) error {
	attempt := claim.Record.Envelope.Attempt
	return s.write(ctx, claim, func(*memoryEntry) { delete(s.records, attempt) })
}

func (s *memoryStore) List(ctx context.Context, after string, limit int) ([]Entry, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var entries []Entry
	for attempt, e := range s.records {
		if attempt > after {
			entries = append(entries, Entry{Record: e.record.clone(), Owner: e.owner, Alive: s.alive(e.owner), Due: e.due})
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return strings.Compare(a.Record.Envelope.Attempt, b.Record.Envelope.Attempt)
	})
	return entries[:min(limit, len(entries))], nil
}
