// Package pgstore keeps the durable list of sandboxes, a [leasehold.Store], in PostgreSQL 12 or later, so that hosts on
// any number of machines can share one. It works on [database/sql] and leaves the choice of the driver to the program.
package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

const (
	// maxTries and maxPause bound how often and how long a call that the database rolled back is tried again: about three
	// seconds in all.
	maxTries = 24
	maxPause = 200 * time.Millisecond
)

// Options change what [New] does. The zero value is useful.
type Options struct {
	// Schema is the schema of the tables, which must exist. Empty: public.
	Schema string
	// Prefix begins the name of each table, index and sequence. Empty: leasehold_. Schema and Prefix are up to 40 of a-z
	// 0-9 _ and begin with a letter or _.
	Prefix string
	// OnUnreadable is called with the attempt of a row that holds no record that this version of the library can read. It
	// is left as it is, and nothing fails because of it; its sandbox needs a look. It is called once for each attempt,
	// from within calls of the store, and so perhaps at the same time for different attempts. Nil: nothing is reported.
	OnUnreadable func(attempt string, err error)
}

// New returns a [leasehold.Store] on db, without a query: the tables are made by [Store.Migrate], or by the program's own
// migrations from [SchemaSQL]. The caller closes db, after the last call of the store. It fails with
// [leasehold.ErrInvalid].
//
// The clock is the database's. A call is one statement, and one round trip, but for Claim and ClaimDue, which are
// transactions. A call that returned nil was committed with synchronous_commit on or remote_apply, whatever the session
// says. What the database rolled back in favour of another transaction is tried again, for about three seconds.
// Connections should have the default isolation, read committed; a stricter one costs tries.
//
// Errors other than those that [leasehold.Store] names are of [leasehold.KindStore], with the SQLSTATE if there is one
// and never with the driver's own words, or, when ctx ended, of [leasehold.KindCanceled] or [leasehold.KindTimeout] with
// the context's error and cause in their chain.
func New(db *sql.DB, options Options) (*Store, error) {
	names, err := options.names("open store")
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, &leasehold.Error{Op: "open store", Kind: leasehold.KindInvalid, Message: "db is nil"}
	}
	return &Store{
		db: db, options: options, names: names, statements: newStatements(names), reported: make(map[string]bool),
	}, nil
}

// Store is a [leasehold.Store] in PostgreSQL.
type Store struct {
	db         *sql.DB
	options    Options
	names      names
	statements statements

	mu       sync.Mutex
	reported map[string]bool // attempts of unreadable records that were reported
}

var _ leasehold.Store = (*Store)(nil)

var (
	attemptForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	ownerForm   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)
)

// Put implements [leasehold.Store].
func (s *Store) Put(ctx context.Context, record leasehold.Record, owner string) (leasehold.Claim, error) {
	const op = "put record"
	data, err := record.Encode()
	if err != nil {
		return leasehold.Claim{}, err
	}
	if err := checkOwner(op, owner); err != nil {
		return leasehold.Claim{}, err
	}
	var token int64
	err = s.try(ctx, op, func() error {
		return s.db.QueryRowContext(ctx, s.statements.put, record.Envelope.Attempt, string(data), owner).Scan(&token)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return leasehold.Claim{}, &leasehold.Error{Op: op, Kind: leasehold.KindConflict, Message: "there is a record of this attempt"}
	}
	if err != nil {
		return leasehold.Claim{}, err
	}
	stored, err := leasehold.ParseRecord(data) // a copy
	return leasehold.Claim{Owner: owner, Token: token, Record: stored}, err
}

// Claim implements [leasehold.Store].
func (s *Store) Claim(ctx context.Context, attempt, owner string) (leasehold.Claim, error) {
	const op = "claim record"
	none := &leasehold.Error{Op: op, Kind: leasehold.KindNotFound, Message: "there is no record of this attempt"}
	if err := checkOwner(op, owner); err != nil {
		return leasehold.Claim{}, err
	}
	if !attemptForm.MatchString(attempt) {
		return leasehold.Claim{}, none
	}
	var claim leasehold.Claim
	var unreadable error
	err := s.try(ctx, op, func() (err error) {
		claim, unreadable, err = s.claim(ctx, attempt, owner)
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return leasehold.Claim{}, none
	case err != nil:
		return leasehold.Claim{}, err
	case unreadable != nil:
		s.report(attempt, unreadable)
		return leasehold.Claim{}, &leasehold.Error{Op: op, Kind: leasehold.KindStore, Message: "the record cannot be read"}
	case claim.Owner == "":
		return leasehold.Claim{}, &leasehold.Error{Op: op, Kind: leasehold.KindConflict, Message: "the record is held by another owner"}
	}
	return claim, nil
}

// claim claims the record of an attempt. It leaves the record as it is, and returns no claim, if that is not to be had, or
// says why it cannot be read.
func (s *Store) claim(ctx context.Context, attempt, owner string) (_ leasehold.Claim, unreadable, err error) {
	var token sql.NullInt64
	var data []byte
	var unknown bool
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return leasehold.Claim{}, nil, err
	}
	defer func() { _ = tx.Rollback() }() // of no effect after the commit
	err = tx.QueryRowContext(ctx, s.statements.claim, attempt, owner).Scan(&token, &data, &unknown)
	switch {
	case err == nil && unknown:
		return leasehold.Claim{}, nil, errHolderUnknown
	case err != nil || !token.Valid:
		return leasehold.Claim{}, nil, err
	}
	record, unreadable := parse(attempt, data)
	if unreadable != nil {
		return leasehold.Claim{}, unreadable, nil
	}
	return leasehold.Claim{Owner: owner, Token: token.Int64, Record: record}, nil, tx.Commit()
}

// ClaimDue implements [leasehold.Store]. What another call is about to take is passed over, not waited for.
func (s *Store) ClaimDue(ctx context.Context, owner string, limit int) ([]leasehold.Claim, error) {
	const op = "claim due records"
	if err := checkOwner(op, owner); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, nil
	}
	var claims []leasehold.Claim
	unreadable := make(map[string]bool)
	for {
		before := len(unreadable)
		err := s.try(ctx, op, func() (err error) {
			claims, err = s.claimDue(ctx, owner, limit, unreadable)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(unreadable) == before {
			return claims, nil
		}
	}
}

// claimDue claims records, or adds to unreadable those that cannot be read and, to leave them as they are, claims none.
func (s *Store) claimDue(ctx context.Context, owner string, limit int, unreadable map[string]bool) ([]leasehold.Claim, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // of no effect after the commit
	rows, err := tx.QueryContext(ctx, withLimit(s.statements.claimDue, limit), owner, textArray(unreadable))
	if err != nil {
		return nil, err
	}
	var claims []leasehold.Claim
	whole := true
	err = eachRow(rows, func() error {
		claim := leasehold.Claim{Owner: owner}
		var attempt string
		var data []byte
		if err := rows.Scan(&attempt, &data, &claim.Token); err != nil {
			return err
		}
		var err error
		if claim.Record, err = parse(attempt, data); err != nil {
			unreadable[attempt], whole = true, false
			s.report(attempt, err)
		}
		claims = append(claims, claim)
		return nil
	})
	if err != nil || !whole {
		return nil, err
	}
	return claims, tx.Commit()
}

// Renew implements [leasehold.Store]. Times are kept to the microsecond.
func (s *Store) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	const op = "renew owner"
	if err := checkOwner(op, owner); err != nil {
		return err
	}
	return s.try(ctx, op, func() error {
		_, err := s.db.ExecContext(ctx, s.statements.renew, owner, max(ttl, 0).Microseconds())
		return err
	})
}

// Update implements [leasehold.Store].
func (s *Store) Update(ctx context.Context, claim leasehold.Claim, record leasehold.Record) error {
	const op = "update record"
	data, err := encode(op, claim, record)
	if err != nil {
		return err
	}
	return s.write(ctx, op, s.statements.update, claim, data)
}

// Release implements [leasehold.Store].
func (s *Store) Release(ctx context.Context, claim leasehold.Claim, record leasehold.Record, wait time.Duration) error {
	const op = "release record"
	data, err := encode(op, claim, record)
	if err != nil {
		return err
	}
	return s.write(ctx, op, s.statements.release, claim, data, max(wait, 0).Microseconds())
}

// Delete implements [leasehold.Store].
func (s *Store) Delete(ctx context.Context, claim leasehold.Claim) error {
	return s.write(ctx, "delete record", s.statements.remove, claim)
}

// List implements [leasehold.Store].
func (s *Store) List(ctx context.Context, after string, limit int) ([]leasehold.Entry, error) {
	const op = "list records"
	var entries []leasehold.Entry
	for len(entries) < limit {
		page, seen, last := limit-len(entries), 0, after
		err := s.try(ctx, op, func() error {
			rows, err := s.db.QueryContext(ctx, withLimit(s.statements.list, page), after)
			if err != nil {
				return err
			}
			entries, seen = entries[:limit-page], 0 // not what an earlier try left
			return eachRow(rows, func() error {
				var e leasehold.Entry
				var data []byte
				if err := rows.Scan(&last, &data, &e.Owner, &e.Alive, &e.Due); err != nil {
					return err
				}
				seen++
				var err error
				if e.Record, err = parse(last, data); err != nil {
					s.report(last, err)
					return nil
				}
				e.Due = e.Due.UTC()
				entries = append(entries, e)
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
		if seen < page {
			break
		}
		after = last
	}
	return entries, nil
}

// write runs a statement that changes the row that claim is for: its first arguments are what tells that row.
func (s *Store) write(ctx context.Context, op, statement string, claim leasehold.Claim, args ...any) error {
	fenced := &leasehold.Error{Op: op, Kind: leasehold.KindFenced, Message: "the claim is no longer the record's newest"}
	attempt := claim.Record.Envelope.Attempt
	if !attemptForm.MatchString(attempt) || !ownerForm.MatchString(claim.Owner) {
		return fenced
	}
	args = append([]any{attempt, claim.Owner, claim.Token}, args...)
	var changed int64
	err := s.try(ctx, op, func() error {
		result, err := s.db.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		changed, err = result.RowsAffected()
		return err
	})
	if err == nil && changed == 0 {
		return fenced
	}
	return err
}

// try calls f, again if the database rolled it back in favour of another transaction, and returns its error as one of the
// store's. [sql.ErrNoRows] is returned as it is.
func (s *Store) try(ctx context.Context, op string, f func() error) error {
	pause := time.Millisecond
	for tries := 1; ; tries++ {
		err := ctx.Err()
		if err == nil {
			err = f()
		}
		if err == nil || errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if tries == maxTries || ctx.Err() != nil || !rolledBack(err) {
			return fault(ctx, op, err)
		}
		timer := time.NewTimer(rand.N(pause) + pause/2)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, maxPause)
	}
}

// report tells once of a row that cannot be read.
func (s *Store) report(attempt string, err error) {
	if s.options.OnUnreadable == nil {
		return
	}
	s.mu.Lock()
	known := s.reported[attempt]
	s.reported[attempt] = true
	s.mu.Unlock()
	if !known {
		s.options.OnUnreadable(attempt, err)
	}
}

// encode returns the JSON form of a record that may replace the claimed one.
func encode(op string, claim leasehold.Claim, record leasehold.Record) (string, error) {
	data, err := record.Encode()
	if err != nil {
		return "", err
	}
	if record.Envelope.Attempt != claim.Record.Envelope.Attempt {
		return "", &leasehold.Error{Op: op, Kind: leasehold.KindInvalid, Message: "Record.Envelope.Attempt is not the claim's"}
	}
	return string(data), nil
}

// parse returns the record of the row of an attempt.
func parse(attempt string, data []byte) (leasehold.Record, error) {
	record, err := leasehold.ParseRecord(data)
	if err == nil && record.Envelope.Attempt != attempt {
		return leasehold.Record{}, &leasehold.Error{Op: "parse record", Kind: leasehold.KindInvalid, Message: "it is another attempt's"}
	}
	return record, err
}

func checkOwner(op, owner string) error {
	if !ownerForm.MatchString(owner) {
		return &leasehold.Error{Op: op, Kind: leasehold.KindInvalid, Message: "owner must be 1 to 200 of A-Z a-z 0-9 _ -"}
	}
	return nil
}

// eachRow calls f for each of the rows, and closes them.
func eachRow(rows *sql.Rows, f func() error) error {
	defer rows.Close()
	for rows.Next() {
		if err := f(); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// withLimit writes the limit into the statement: as an argument the planner would take it for a tenth of the table.
func withLimit(statement string, limit int) string {
	return strings.ReplaceAll(statement, "{limit}", strconv.Itoa(limit))
}

// textArray returns PostgreSQL's form of an array of attempts. The words of one need no quotes, unless they are not
// attempts: then they are.
func textArray(attempts map[string]bool) string {
	quoted := make([]string, 0, len(attempts))
	for a := range attempts {
		quoted = append(quoted, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(a)+`"`)
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
