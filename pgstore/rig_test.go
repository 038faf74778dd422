package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold/storetest"
)

// patience bounds the wait for what must happen soon.
const patience = time.Minute

// errNoServer is why there is no PostgreSQL to test on.
var errNoServer = errors.New("no PostgreSQL")

// The database of all tests, which run one after another: some of them end it.
var (
	testServer *server // nil: it is somebody else's
	testDSN    string
	testNone   error // why there is none
)

func TestMain(m *testing.M) {
	if os.Getenv(claimerEnv) != "" {
		os.Exit(claimer())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	testDSN = os.Getenv("LEASEHOLD_POSTGRES_DSN")
	if testDSN == "" {
		if testServer, testNone = startServer(); testNone == nil {
			testDSN = testServer.dsn()
			testNone = awaitDatabase(testDSN)
		}
	}
	code := m.Run()
	if testServer != nil {
		if code != 0 {
			fmt.Fprintf(os.Stderr, "the server's log:\n%s", testServer.log())
		}
		if err := testServer.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// awaitDatabase returns when the database answers.
func awaitDatabase(dsn string) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(30 * time.Millisecond) // each try costs the server a process
	defer tick.Stop()
	for until := time.Now().Add(patience); ; <-tick.C {
		if err = db.Ping(); err == nil || time.Now().After(until) {
			return err
		}
	}
}

// lacking skips the test for want of a capability of the machine or, where all must be there, fails it.
func lacking(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatalf("LEASEHOLD_REQUIRE_ALL is set: %s", why)
	}
	t.Skip(why)
}

// needDatabase returns the DSN of the tests' database.
func needDatabase(t *testing.T) string {
	t.Helper()
	if testNone != nil {
		lacking(t, testNone.Error())
	}
	return testDSN
}

// needServer returns the tests' own server, which the test may end. It is as it was when the test ends.
func needServer(t *testing.T) *server {
	t.Helper()
	needDatabase(t)
	if testServer == nil {
		lacking(t, "the test ends the server, and that of LEASEHOLD_POSTGRES_DSN is somebody else's")
	}
	return testServer
}

// open returns a pool of connections with these settings, "name=value". It is closed with the test.
func open(t *testing.T, settings ...string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(needDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		config.RuntimeParams[name] = value
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return db
}

// newSchema returns a schema for the test alone.
func newSchema(t *testing.T) string {
	t.Helper()
	schema := "test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	mustExec(t, open(t), `CREATE SCHEMA `+schema)
	t.Cleanup(func() { mustExec(t, open(t), `DROP SCHEMA `+schema+` CASCADE`) }) // the server may be another by then
	return schema
}

// newStore returns a store with tables of its own, over connections with these settings.
func newStore(t *testing.T, settings ...string) *Store {
	t.Helper()
	options := Options{Schema: newSchema(t)}
	s := must(New(open(t, settings...), options))(t)
	check(t, s.Migrate(t.Context()))
	return s
}

func mustExec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns a function that returns v, unless there is an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return v
	}
}

// newOwner returns an owner that lives for an hour.
func newOwner(t *testing.T, s *Store) string {
	t.Helper()
	owner := "owner-" + uuid.NewString()
	check(t, s.Renew(t.Context(), owner, time.Hour))
	return owner
}

func wantError(t *testing.T, call string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", call, err, want)
	}
}

// eventually calls f until it returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	until := time.NewTimer(patience)
	defer until.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-until.C:
			t.Fatalf("%s did not happen in %s", what, patience)
		}
	}
}

// waiting returns how many statements of the store's wait for a lock.
func waiting(t *testing.T, s *Store) int {
	t.Helper()
	var n int
	check(t, open(t).QueryRowContext(t.Context(), `
		SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1::text || '%' AND pid <> pg_backend_pid()`,
		s.names.schema).Scan(&n))
	return n
}

// async runs f and returns a channel with its error.
func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func await(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("%s did not return in %s", what, patience)
		return nil
	}
}

// fill adds n valid records, with a due time that is past and what the assignment says of their columns, and returns
// their attempts.
func fill(t *testing.T, s *Store, n int, assignment string) []string {
	t.Helper()
	template := storetest.NewRecord()
	maps.DeleteFunc(template.Envelope.Labels, func(key, _ string) bool { return strings.HasPrefix(key, "own.") }) // they are large
	data := must(template.Encode())(t)
	rows := must(open(t).QueryContext(t.Context(), `
		WITH made AS (
			SELECT i, regexp_replace(md5($1::text || i), '(.{8})(.{4})(.{4})(.{4})(.{12})', '\1-\2-\3-\4-\5') AS attempt
			FROM generate_series(1, $3::int) i
		)
		INSERT INTO `+s.names.records+` (attempt, record, owner, token, due)
		SELECT attempt, replace($2::text, $1::text, attempt)::jsonb, `+assignment+`, nextval('`+s.names.tokens+`'),
			clock_timestamp() - (i || ' seconds')::interval
		FROM made RETURNING attempt`, template.Envelope.Attempt, string(data), n))(t)
	var attempts []string
	check(t, eachRow(rows, func() error {
		attempts = append(attempts, "")
		return rows.Scan(&attempts[len(attempts)-1])
	}))
	return attempts
}
