package pgstore

import (
	"context"
	"regexp"
	"strings"

	"github.com/leasehold-go/leasehold"
)

// names are those of the store's tables and its sequence, qualified and quoted.
type names struct {
	schema, prefix          string
	records, owners, tokens string
}

var nameForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`) // a name of PostgreSQL's has up to 63 bytes

func (o Options) names(op string) (names, error) {
	n := names{schema: o.Schema, prefix: o.Prefix}
	if n.schema == "" {
		n.schema = "public"
	}
	if n.prefix == "" {
		n.prefix = "leasehold_"
	}
	var fields []leasehold.FieldError
	var problems []string
	for _, f := range []struct{ field, value string }{{"Options.Schema", n.schema}, {"Options.Prefix", n.prefix}} {
		if !nameForm.MatchString(f.value) {
			const problem = "must be up to 40 of a-z 0-9 _ and begin with a letter or _"
			fields = append(fields, leasehold.FieldError{Field: f.field, Problem: problem})
			problems = append(problems, f.field+" "+problem)
		}
	}
	if fields != nil {
		return names{}, &leasehold.Error{Op: op, Kind: leasehold.KindInvalid, Message: strings.Join(problems, "; "), Fields: fields}
	}
	n.records, n.owners, n.tokens = n.qualified("records"), n.qualified("owners"), n.qualified("tokens")
	return n, nil
}

func (n names) qualified(name string) string { return `"` + n.schema + `"."` + n.prefix + name + `"` }

// objects are the names, without the prefix, of all that the schema consists of, in the order in which it is made.
var objects = []string{"owners", "tokens", "records", "records_free", "records_held"}

// ddl returns the statement that makes each of the objects.
func (n names) ddl() []string {
	fill := strings.NewReplacer("{records}", n.records, "{owners}", n.owners, "{tokens}", n.tokens, "{prefix}", n.prefix).Replace
	return []string{
		fill(`-- Until when each owner lives.
CREATE TABLE IF NOT EXISTS {owners} (
	owner text COLLATE "C" PRIMARY KEY,
	until timestamptz NOT NULL
)`),
		fill(`-- The tokens of claims. They must be granted in their order: no cache, no cycle.
CREATE SEQUENCE IF NOT EXISTS {tokens} AS bigint CACHE 1 NO CYCLE`),
		fill(`-- One row for each creation that is not proved to be given back. Nobody holds it: owner is null.
CREATE TABLE IF NOT EXISTS {records} (
	attempt text COLLATE "C" PRIMARY KEY,
	record jsonb NOT NULL,
	owner text COLLATE "C" REFERENCES {owners},
	token bigint NOT NULL,
	due timestamptz NOT NULL
)`),
		fill(`CREATE INDEX IF NOT EXISTS "{prefix}records_free" ON {records} (due) WHERE owner IS NULL`),
		fill(`CREATE INDEX IF NOT EXISTS "{prefix}records_held" ON {records} (owner, due) WHERE owner IS NOT NULL`),
	}
}

// SchemaSQL returns the statements that [Store.Migrate] executes, for programs with migrations of their own. The schema of
// the tables must exist. It fails with [leasehold.ErrInvalid].
func SchemaSQL(options Options) (string, error) {
	n, err := options.names("write schema")
	if err != nil {
		return "", err
	}
	return strings.Join(n.ddl(), ";\n\n") + ";\n", nil
}

// Migrate makes what is missing of the tables, their indexes and the sequence. Any number of hosts may call it at any time,
// at once too. Where nothing is missing it only looks, for which a role needs no right to make tables. It blocks while
// another call is at work, and stops when ctx ends: then nothing was made, or everything.
func (s *Store) Migrate(ctx context.Context) error {
	return s.try(ctx, "migrate store", func() error {
		whole, err := s.migrated(ctx)
		if err != nil || whole {
			return err
		}
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // of no effect after the commit
		lock := `SELECT pg_advisory_xact_lock(hashtextextended($1::text, 6074398511203427))`
		if _, err := tx.ExecContext(ctx, lock, s.names.qualified("*")); err != nil {
			return err
		}
		for _, statement := range s.names.ddl() {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

// migrated reports whether nothing is missing.
func (s *Store) migrated(ctx context.Context) (bool, error) {
	names := make([]string, len(objects))
	for i, name := range objects {
		names[i] = s.names.prefix + name
	}
	var found int
	err := s.db.QueryRowContext(ctx, `
	SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE n.nspname = $1::text AND c.relname = ANY ($2::text::text[])`, s.names.schema, "{"+strings.Join(names, ",")+"}").Scan(&found)
	return found == len(objects), err
}
