package pgstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/pgstore"
)

// Hosts that share a list each have a store on the same database. Here, one is looked at.
func Example() {
	run := func(ctx context.Context) error {
		db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		defer db.Close()
		store, err := pgstore.New(db, pgstore.Options{})
		if err != nil {
			return err
		}
		if err := store.Migrate(ctx); err != nil {
			return err
		}
		entries, err := store.List(ctx, "", 100)
		for _, e := range entries {
			fmt.Println(e.Record.Envelope.Name, e.Record.State, e.Owner, e.Alive)
		}
		return err
	}
	if err := run(context.Background()); err != nil {
		fmt.Println(err)
	}
}

// A program with migrations of its own adds the schema to them.
func ExampleSchemaSQL() {
	text, err := pgstore.SchemaSQL(pgstore.Options{Schema: "sandboxes", Prefix: "lease_"})
	if err != nil {
		fmt.Println(err)
		return
	}
	first, _, _ := strings.Cut(text, ";")
	fmt.Println(first)
	// Output:
	// -- Until when each owner lives.
	// CREATE TABLE IF NOT EXISTS "sandboxes"."lease_owners" (
	// 	owner text COLLATE "C" PRIMARY KEY,
	// 	until timestamptz NOT NULL
	// )
}
