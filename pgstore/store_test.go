package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/storetest"
)

// TestConforms runs the suite on two stores: one whose role has the privileges that the README names and no more, and one
// whose sessions have settings that the store must not depend on.
func TestConforms(t *testing.T) {
	role := newRole(t)
	storetest.RunShared(t, func(t *testing.T) (a, b leasehold.Store) {
		s := newStore(t, "default_transaction_isolation=serializable", "synchronous_commit=off", "TimeZone=Asia/Kolkata")
		grant(t, s, role)
		limited := must(New(open(t, "role="+role), s.options))(t)
		check(t, limited.Migrate(t.Context())) // nothing is missing
		return limited, s
	})
}

// newRole returns a role without privileges.
func newRole(t *testing.T) string {
	t.Helper()
	role := newSchema(t) // a name that nobody else has
	mustExec(t, open(t), `CREATE ROLE `+role)
	t.Cleanup(func() { mustExec(t, open(t), `DROP ROLE `+role) })
	return role
}

// grant executes what the README says of privileges.
func grant(t *testing.T, s *Store, role string) {
	t.Helper()
	for statement := range strings.SplitSeq(readmeBlock(t, "GRANT"), ";\n") {
		statement = strings.NewReplacer("public", s.names.schema, "my_role", role).Replace(statement)
		mustExec(t, open(t), statement)
	}
}

// readmeBlock returns the block of SQL in the README that has the word.
func readmeBlock(t *testing.T, word string) string {
	t.Helper()
	readme := string(must(os.ReadFile("README.md"))(t))
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(readme, -1) {
		if strings.Contains(block[1], word) {
			return block[1]
		}
	}
	t.Fatalf("the README has no block of SQL with %s", word)
	return ""
}

func TestReadmeHasTheSchema(t *testing.T) {
	want := must(SchemaSQL(Options{}))(t)
	if got := readmeBlock(t, "CREATE TABLE"); got != want {
		t.Errorf("the README's schema is\n%s\nwant\n%s", got, want)
	}
}

func TestMigrateAtOnce(t *testing.T) {
	const hosts = 8
	options := Options{Schema: newSchema(t), Prefix: "my_"}
	var done []<-chan error
	for range hosts {
		s := must(New(open(t), options))(t)
		done = append(done, async(func() error {
			if err := s.Migrate(t.Context()); err != nil {
				return err
			}
			_, err := s.Put(t.Context(), storetest.NewRecord(), "owner")
			return err
		}))
	}
	for _, d := range done {
		if err := await(t, "Migrate()", d); err != nil {
			t.Errorf("Migrate() and Put() = %v", err)
		}
	}
	s := must(New(open(t), options))(t)
	check(t, s.Migrate(t.Context()))
	if got := must(s.List(t.Context(), "", 100))(t); len(got) != hosts {
		t.Errorf("the store holds %d records, want %d", len(got), hosts)
	}
	mustExec(t, open(t), `DROP INDEX `+options.Schema+`.my_records_free`)
	check(t, s.Migrate(t.Context()))
	if whole := must(s.migrated(t.Context()))(t); !whole {
		t.Error("Migrate() did not make what was missing")
	}
}

// TestSchemaSQL: the text is all that a program with migrations of its own needs.
func TestSchemaSQL(t *testing.T) {
	options := Options{Schema: newSchema(t), Prefix: "own_"}
	db := open(t)
	mustExec(t, db, must(SchemaSQL(options))(t)) // in the simple protocol, which takes several statements
	s := must(New(db, options))(t)
	if whole := must(s.migrated(t.Context()))(t); !whole {
		t.Error("something is missing after SchemaSQL")
	}
	must(s.Put(t.Context(), storetest.NewRecord(), "owner"))(t)
}

func TestOptionsAreChecked(t *testing.T) {
	db := &sql.DB{}
	for _, bad := range []string{`a"b`, "a.b", "a b", "1a", "A", "a;", "ä", "a'", "a{limit}", strings.Repeat("a", 41)} {
		for _, options := range []Options{{Schema: bad}, {Prefix: bad}} {
			_, err := New(db, options)
			wantError(t, fmt.Sprintf("New(%+v)", options), err, leasehold.ErrInvalid)
			_, err = SchemaSQL(options)
			wantError(t, fmt.Sprintf("SchemaSQL(%+v)", options), err, leasehold.ErrInvalid)
		}
	}
	_, err := New(nil, Options{})
	wantError(t, "New(nil)", err, leasehold.ErrInvalid)
	_, err = New(db, Options{Schema: strings.Repeat("a", 40), Prefix: "_1"})
	check(t, err)
}

// TestUnreadableRows: what is no record of this version is passed over, left as it is, and told once.
func TestUnreadableRows(t *testing.T) {
	var told []string
	options := Options{Schema: newSchema(t), OnUnreadable: func(attempt string, err error) {
		told = append(told, attempt)
		if !errors.Is(err, leasehold.ErrInvalid) {
			t.Errorf("OnUnreadable(%s, %v), want ErrInvalid", attempt, err)
		}
	}}
	db := open(t)
	s := must(New(db, options))(t)
	check(t, s.Migrate(t.Context()))
	attempts := fill(t, s, 8, "NULL") // the last has been due longest
	bad, good := attempts[4:], attempts[:4]
	mustExec(t, db, `UPDATE `+s.names.records+` SET record = jsonb_set(record, '{version}', '2') WHERE attempt = $1`, bad[0])
	mustExec(t, db, `UPDATE `+s.names.records+` SET record = '[]' WHERE attempt = $1`, bad[1])
	mustExec(t, db, `UPDATE `+s.names.records+` SET record = (SELECT record FROM `+s.names.records+` WHERE attempt = $2) WHERE attempt = $1`, bad[2], good[0])
	mustExec(t, db, `UPDATE `+s.names.records+` SET attempt = '{"a\' WHERE attempt = $1`, bad[3])
	bad[3] = `{"a\`
	rows := func() (rows string) {
		check(t, db.QueryRowContext(t.Context(), `SELECT string_agg(r::text, ' ' ORDER BY attempt) FROM `+s.names.records+` r WHERE attempt <> ALL ($1)`, good).Scan(&rows))
		return rows
	}
	before := rows()
	owner := newOwner(t, s)
	for i := len(good) - 1; i >= 0; i-- {
		claims := must(s.ClaimDue(t.Context(), owner, 1))(t)
		if len(claims) != 1 || claims[0].Record.Envelope.Attempt != good[i] {
			t.Errorf("ClaimDue(1) = %+v, want the claim of %s", claims, good[i])
		}
	}
	if claims := must(s.ClaimDue(t.Context(), owner, 10))(t); len(claims) != 0 {
		t.Errorf("ClaimDue() = %d claims, want none", len(claims))
	}
	if entries := must(s.List(t.Context(), "", len(good)))(t); len(entries) != len(good) {
		t.Errorf("List() = %d entries, want %d", len(entries), len(good))
	}
	for _, attempt := range bad[:3] {
		_, err := s.Claim(t.Context(), attempt, owner)
		wantError(t, "Claim(unreadable)", err, leasehold.ErrStore)
	}
	if after := rows(); after != before {
		t.Errorf("the unreadable rows are\n%s\nwant\n%s", after, before)
	}
	if len(told) != len(bad) {
		t.Errorf("OnUnreadable was called for %v, want each of %v once", told, bad)
	}
}

// TestDeadOwnersAreForgotten: the table of owners does not grow for ever, and keeps those that hold something.
func TestDeadOwnersAreForgotten(t *testing.T) {
	s := newStore(t)
	db := open(t)
	for _, owner := range []string{"gone", "recent", "alive", "holder", "self"} {
		check(t, s.Renew(t.Context(), owner, time.Hour))
	}
	r := storetest.NewRecord()
	claim := must(s.Put(t.Context(), r, "holder"))(t)
	check(t, s.Release(t.Context(), claim, r, time.Hour))
	must(s.Claim(t.Context(), r.Envelope.Attempt, "holder"))(t)
	mustExec(t, db, `UPDATE `+s.names.owners+` SET until = now() - interval '2 hours' WHERE owner IN ('gone', 'holder', 'self')`)
	mustExec(t, db, `UPDATE `+s.names.owners+` SET until = now() - interval '50 minutes' WHERE owner = 'recent'`)
	check(t, s.Renew(t.Context(), "alive", time.Hour))
	hold := must(db.BeginTx(t.Context(), nil))(t)
	_, err := hold.ExecContext(t.Context(), `SELECT FROM `+s.names.records+` FOR UPDATE`)
	check(t, err)
	if claims := must(s.ClaimDue(t.Context(), "self", 10))(t); len(claims) != 0 {
		t.Errorf("ClaimDue() = %d claims of locked records", len(claims))
	}
	check(t, hold.Rollback())
	var left string
	check(t, db.QueryRowContext(t.Context(), `SELECT string_agg(owner, ' ' ORDER BY owner) FROM `+s.names.owners).Scan(&left))
	if want := "alive holder recent self"; left != want {
		t.Errorf("the owners are %s, want %s", left, want)
	}
	if claims := must(s.ClaimDue(t.Context(), "self", 10))(t); len(claims) != 1 {
		t.Errorf("ClaimDue() = %d claims, want that of the dead holder", len(claims))
	}
}

// TestClaimsAreCutOff: a host that vanishes between the claim and its commit does not keep the records locked.
func TestClaimsAreCutOff(t *testing.T) {
	s := newStore(t)
	attempt := fill(t, s, 1, "NULL")[0]
	for _, setting := range []struct{ session, want string }{{"0", "10s"}, {"7s", "7s"}, {"1min", "1min"}} {
		db := open(t, "idle_in_transaction_session_timeout="+setting.session)
		for statement, args := range map[string][]any{s.statements.claim: {attempt, "owner"}, withLimit(s.statements.claimDue, 1): {"owner", "{}"}} {
			tx := must(db.BeginTx(t.Context(), nil))(t)
			_, err := tx.ExecContext(t.Context(), statement, args...)
			check(t, err)
			var got string
			check(t, tx.QueryRowContext(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&got))
			if got != setting.want {
				t.Errorf("a session with %s waits %s for a commit, want %s", setting.session, got, setting.want)
			}
			check(t, tx.Rollback())
		}
	}
}

// TestErrorsKeepSecrets: neither the text nor the chain of an error has what the driver says of the server, of the role or
// of what was sent.
func TestErrorsKeepSecrets(t *testing.T) {
	const secret = "s3cret"
	tables := newStore(t)
	claim := must(tables.Put(t.Context(), storetest.NewRecord(), newOwner(t, tables)))(t)
	mustExec(t, open(t), `ALTER TABLE `+tables.names.records+` ADD CONSTRAINT "`+secret+`" CHECK (record ->> 'state' <> 'ending')`)
	ending := claim.Record
	ending.State = leasehold.StateEnding

	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	near := must(net.Dial("tcp", listener.Addr().String()))(t) // nobody can listen on the port of its near end
	defer near.Close()
	address := near.LocalAddr().(*net.TCPAddr)
	config := must(pgx.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=%s sslmode=disable", address.Port, secret, secret, secret)))(t)
	down := stdlib.OpenDB(*config)
	t.Cleanup(func() { check(t, down.Close()) })
	unreachable := must(New(down, Options{}))(t)
	missing := must(New(open(t), Options{Schema: tables.names.schema, Prefix: secret + "_"}))(t)
	limited := must(New(open(t, "role="+newRole(t)), tables.options))(t)

	for _, test := range []struct {
		name      string
		err       error
		says      string
		retryable bool
	}{
		{"unreachable", unreachable.Renew(t.Context(), "owner", 1), "connection refused", true},
		{"missing", missing.Renew(t.Context(), "owner", 1), "see Migrate (SQLSTATE 42P01)", false},
		{"forbidden", limited.Renew(t.Context(), "owner", 1), "privilege (SQLSTATE 42501)", false},
		{"refused", tables.Update(t.Context(), claim, ending), "SQLSTATE 23514", false},
	} {
		var e *leasehold.Error
		if !errors.As(test.err, &e) || e.Kind != leasehold.KindStore || e.Retryable != test.retryable {
			t.Errorf("%s: %v (%+v), want KindStore, retryable %t", test.name, test.err, e, test.retryable)
			continue
		}
		if text := fmt.Sprintf("%v %+v %#v", test.err, e, errors.Unwrap(e)); strings.Contains(text, secret) || !strings.Contains(text, test.says) {
			t.Errorf("%s: %s, want %q and no %q", test.name, text, test.says, secret)
		}
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	err := tables.Renew(ctx, "owner", 1)
	wantError(t, "Renew(passed deadline)", err, leasehold.ErrTimeout)
	wantError(t, "Renew(passed deadline)", err, context.DeadlineExceeded)
}
