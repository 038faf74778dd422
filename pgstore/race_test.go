package pgstore

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/storetest"
)

// claimerEnv makes a process of the test's binary a claimer: it holds the schema.
const claimerEnv = "LEASEHOLD_PGSTORE_CLAIMER"

// claimer is a process that claims what is due over many connections at once, and prints it. It begins with its input's
// first line.
func claimer() int {
	db, err := sql.Open("pgx", os.Getenv("LEASEHOLD_POSTGRES_DSN"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer db.Close()
	s, err := New(db, Options{Schema: os.Getenv(claimerEnv)})
	if err == nil {
		err = db.Ping()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	claims, err := claimAll(context.Background(), s, 6)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, c := range claims {
		fmt.Println(c.Record.Envelope.Attempt)
	}
	return 0
}

// claimAll claims what is due, from n owners at once, until they find nothing.
func claimAll(ctx context.Context, s *Store, n int) ([]leasehold.Claim, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var claims []leasehold.Claim
	var failure error
	for range n {
		wg.Go(func() {
			owner := uuid.NewString()
			err := s.Renew(ctx, owner, patience)
			for misses := 0; err == nil && misses < 5; {
				var got []leasehold.Claim
				got, err = s.ClaimDue(ctx, owner, 3)
				if len(got) == 0 {
					misses++
				}
				mu.Lock()
				claims = append(claims, got...)
				mu.Unlock()
			}
			mu.Lock()
			failure = errors.Join(failure, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	return claims, failure
}

func TestProcessesNeverShareAClaim(t *testing.T) {
	const processes, records = 2, 300
	s := newStore(t)
	want := fill(t, s, records, "NULL")
	type process struct {
		*exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	var all []process
	for range processes {
		c := exec.Command(must(os.Executable())(t))
		c.Env = append(os.Environ(), claimerEnv+"="+s.names.schema, "LEASEHOLD_POSTGRES_DSN="+testDSN)
		c.Stderr = os.Stderr
		p := process{c, must(c.StdinPipe())(t), bufio.NewReader(must(c.StdoutPipe())(t))}
		check(t, c.Start())
		all = append(all, p)
	}
	for _, p := range all {
		if line, err := p.out.ReadString('\n'); line != "ready\n" {
			t.Errorf("a claimer began with %q, %v", line, err)
		}
	}
	for _, p := range all {
		check(t, p.in.Close())
	}
	got := make(map[string]int)
	own, err := claimAll(t.Context(), s, 6)
	check(t, err)
	shares := []int{len(own)}
	for _, c := range own {
		got[c.Record.Envelope.Attempt]++
	}
	for _, p := range all {
		attempts := strings.Fields(string(must(io.ReadAll(p.out))(t)))
		shares = append(shares, len(attempts))
		for _, a := range attempts {
			got[a]++
		}
		check(t, p.Wait())
	}
	t.Logf("shares: %v", shares)
	for _, a := range want {
		if got[a] != 1 {
			t.Errorf("%s was claimed %d times, want 1", a, got[a])
		}
	}
	if len(got) != records {
		t.Errorf("%d records were claimed, want %d", len(got), records)
	}
}

// TestTokensIncreaseAcrossDelete: an insertion that drew its token before others of its attempt were granted, and the
// record removed, does not grant it after them.
func TestTokensIncreaseAcrossDelete(t *testing.T) {
	s := newStore(t)
	r := storetest.NewRecord()
	owner := newOwner(t, s)
	must(s.Put(t.Context(), r, owner))(t)

	// Rows of this store's late insertions wait, with their tokens drawn, for a lock of the test's.
	admin := open(t)
	mustExec(t, admin, `CREATE FUNCTION `+s.names.schema+`.hold() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(71); RETURN NEW; END $$`)
	mustExec(t, admin, `CREATE TRIGGER hold BEFORE INSERT ON `+s.names.records+` FOR EACH ROW EXECUTE FUNCTION `+s.names.schema+`.hold()`)
	hold := must(admin.BeginTx(t.Context(), nil))(t)
	_, err := hold.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock(71)`)
	check(t, err)

	var late leasehold.Claim
	put := async(func() (err error) { late, err = s.Put(t.Context(), r, owner); return err })
	eventually(t, "the insertion's wait", func() bool { return waiting(t, s) == 1 })
	newest := must(s.Claim(t.Context(), r.Envelope.Attempt, owner))(t)
	remove := async(func() error { return s.Delete(t.Context(), newest) })
	eventually(t, "the deletion's end, or wait", func() bool { return len(remove) == 1 || waiting(t, s) == 2 })
	check(t, hold.Rollback())
	check(t, await(t, "Delete()", remove))
	switch err := await(t, "Put()", put); {
	case err == nil && late.Token <= newest.Token:
		t.Errorf("Put() gave token %d after %d", late.Token, newest.Token)
	case err != nil:
		wantError(t, "Put()", err, leasehold.ErrConflict)
	}
	if again := must(s.Put(t.Context(), storetest.NewRecord(), owner))(t); again.Token <= newest.Token {
		t.Errorf("Put() gave token %d after %d", again.Token, newest.Token)
	}
}

// TestRenewalIsSeen: an owner that renewed, and was told so, is alive for a claim that began before.
func TestRenewalIsSeen(t *testing.T) {
	s := newStore(t)
	r := storetest.NewRecord()
	owner, other := newOwner(t, s), newOwner(t, s)
	claim := must(s.Put(t.Context(), r, owner))(t)
	check(t, s.Renew(t.Context(), owner, 0))

	hold := must(open(t).BeginTx(t.Context(), nil))(t)
	_, err := hold.ExecContext(t.Context(), `SELECT FROM `+s.names.records+` FOR UPDATE`)
	check(t, err)
	taken := async(func() error { _, err := s.Claim(t.Context(), r.Envelope.Attempt, other); return err })
	eventually(t, "the claim's wait", func() bool { return waiting(t, s) == 1 })
	check(t, s.Renew(t.Context(), owner, patience))
	check(t, hold.Rollback())
	wantError(t, "Claim(of a living owner's)", await(t, "Claim()", taken), leasehold.ErrConflict)
	check(t, s.Update(t.Context(), claim, r))
}

// TestRenewalInProgressIsSeen: what is of an owner that is being renewed is passed over by a sweep.
func TestRenewalInProgressIsSeen(t *testing.T) {
	s := newStore(t)
	owner := newOwner(t, s)
	must(s.Put(t.Context(), storetest.NewRecord(), owner))(t)
	check(t, s.Renew(t.Context(), owner, 0))
	renewal := must(open(t).BeginTx(t.Context(), nil))(t)
	_, err := renewal.ExecContext(t.Context(), s.statements.renew, owner, int64(1e9))
	check(t, err)
	if claims := must(s.ClaimDue(t.Context(), newOwner(t, s), 10))(t); len(claims) != 0 {
		t.Errorf("ClaimDue() took %d records of an owner that is being renewed", len(claims))
	}
	check(t, renewal.Rollback())
	if claims := must(s.ClaimDue(t.Context(), newOwner(t, s), 10))(t); len(claims) != 1 {
		t.Errorf("ClaimDue() took %d records of the dead owner, want 1", len(claims))
	}
}

// TestNewHolderIsSeen: a claim that waited while an owner that it never heard of took the record knows whether that lives.
func TestNewHolderIsSeen(t *testing.T) {
	for _, test := range []struct {
		until string
		want  error
	}{{"1 hour", leasehold.ErrConflict}, {"-1 hour", nil}} {
		s := newStore(t)
		r := storetest.NewRecord()
		claim := must(s.Put(t.Context(), r, newOwner(t, s)))(t)
		check(t, s.Release(t.Context(), claim, r, 0))
		hold := must(open(t).BeginTx(t.Context(), nil))(t)
		_, err := hold.ExecContext(t.Context(), `SELECT FROM `+s.names.records+` FOR UPDATE`)
		check(t, err)
		other := newOwner(t, s)
		taken := async(func() error { _, err := s.Claim(t.Context(), r.Envelope.Attempt, other); return err })
		eventually(t, "the claim's wait", func() bool { return waiting(t, s) == 1 })
		_, err = hold.ExecContext(t.Context(), `INSERT INTO `+s.names.owners+` VALUES ('new', clock_timestamp() + $1::text::interval)`, test.until)
		check(t, err)
		_, err = hold.ExecContext(t.Context(), `UPDATE `+s.names.records+` SET owner = 'new', token = nextval('`+s.names.tokens+`')`)
		check(t, err)
		check(t, hold.Commit())
		wantError(t, "Claim(of one that lives "+test.until+")", await(t, "Claim()", taken), test.want)
	}
}

// TestCancellationIsPrompt: a call that waits for a lock of somebody else's returns when its context ends.
func TestCancellationIsPrompt(t *testing.T) {
	s := newStore(t)
	r := storetest.NewRecord()
	owner := newOwner(t, s)
	claim := must(s.Put(t.Context(), r, owner))(t)
	hold := must(open(t).BeginTx(t.Context(), nil))(t)
	_, err := hold.ExecContext(t.Context(), `LOCK TABLE `+s.names.records+`, `+s.names.owners)
	check(t, err)
	cause := errors.New("the host goes down")
	calls := map[string]func(context.Context) error{
		"Put":      func(ctx context.Context) error { _, err := s.Put(ctx, storetest.NewRecord(), owner); return err },
		"Claim":    func(ctx context.Context) error { _, err := s.Claim(ctx, r.Envelope.Attempt, owner); return err },
		"ClaimDue": func(ctx context.Context) error { _, err := s.ClaimDue(ctx, owner, 1); return err },
		"Renew":    func(ctx context.Context) error { return s.Renew(ctx, owner, patience) },
		"Update":   func(ctx context.Context) error { return s.Update(ctx, claim, r) },
		"Release":  func(ctx context.Context) error { return s.Release(ctx, claim, r, 0) },
		"Delete":   func(ctx context.Context) error { return s.Delete(ctx, claim) },
		"List":     func(ctx context.Context) error { _, err := s.List(ctx, "", 1); return err },
	}
	for _, call := range slices.Sorted(maps.Keys(calls)) {
		ctx, cancel := context.WithCancelCause(t.Context())
		before := waiting(t, s)
		done := async(func() error { return calls[call](ctx) })
		eventually(t, "the wait of "+call, func() bool { return waiting(t, s) > before })
		cancel(cause)
		err := await(t, call, done)
		wantError(t, call, err, context.Canceled)
		wantError(t, call, err, cause)
		wantError(t, call, err, leasehold.ErrCanceled)
		eventually(t, "the end of "+call+" in the database", func() bool { return waiting(t, s) <= before })
	}
	check(t, hold.Rollback())
	if got := must(s.List(t.Context(), "", 10))(t); len(got) != 1 {
		t.Errorf("the store holds %d records, want 1", len(got))
	}
	check(t, s.Update(t.Context(), claim, r))
}

// TestConcurrentHandovers: owners that put, take from each other and remove one attempt see its tokens increase.
func TestConcurrentHandovers(t *testing.T) {
	const owners, rounds = 8, 12
	s := newStore(t)
	r := storetest.Leased(storetest.NewRecord())
	var mu sync.Mutex
	var last int64 // the greatest token that was given back
	var wg sync.WaitGroup
	for range owners {
		owner := newOwner(t, s)
		wg.Go(func() {
			for range rounds {
				mu.Lock()
				floor := last
				mu.Unlock()
				claim, err := s.Put(t.Context(), r, owner)
				if errors.Is(err, leasehold.ErrConflict) {
					claim, err = s.Claim(t.Context(), r.Envelope.Attempt, owner)
				}
				if errors.Is(err, leasehold.ErrNotFound) {
					continue
				}
				if err != nil {
					t.Errorf("Put() or Claim() = %v", err)
					return
				}
				if claim.Token <= floor {
					t.Errorf("token %d after %d", claim.Token, floor)
				}
				mu.Lock()
				last = max(last, claim.Token)
				mu.Unlock()
				if err := s.Delete(t.Context(), claim); err != nil && !errors.Is(err, leasehold.ErrFenced) {
					t.Errorf("Delete() = %v, want nil or ErrFenced", err)
				}
			}
		})
	}
	wg.Wait()
}
