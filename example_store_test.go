package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A host keeps what it leases in a directory. Killed or restarted, it finds there what it had in use, and goes on with it.
func ExampleNewFileStore() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "host")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	host := func() (leasehold.Provider, leasehold.Store) {
		store, err := leasehold.NewFileStore(filepath.Join(dir, "leases"), leasehold.FileStoreOptions{})
		if err != nil {
			log.Fatal(err)
		}
		provider, err := leasehold.NewLocal(leasehold.LocalConfig{
			Dir: filepath.Join(dir, "sandboxes"), Config: leasehold.Config{Store: store},
		})
		if err != nil {
			log.Fatal(err)
		}
		return provider, store
	}

	provider, _ := host()
	if _, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"},
	}); err != nil {
		log.Fatal(err)
	}
	provider.Close(ctx) // the lease outlives its host

	provider, store := host()
	defer provider.Close(ctx)
	entries, err := store.List(ctx, "", 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, entry := range entries {
		lease, err := provider.Resume(ctx, *entry.Record.Lease)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("resumed the lease of run", lease.Ref().Scope.Run)
		receipt, err := provider.Destroy(ctx, lease.Ref())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(receipt.State)
	}
	// Output:
	// resumed the lease of run 42
	// destroyed
}

// A host sweeps for as long as it runs. It is asked about leases whose host died, and told about sandboxes that resist.
func ExampleSweeper() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "host")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := leasehold.NewFileStore(filepath.Join(dir, "leases"), leasehold.FileStoreOptions{
		OnUnreadable: func(file string, err error) { log.Print(file, err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	config := leasehold.LocalConfig{
		Dir: filepath.Join(dir, "sandboxes"),
		Config: leasehold.Config{
			Store:     store,
			ClaimTime: time.Second, // for the example: what a restart takes, and more
		},
	}
	dead, err := leasehold.NewLocal(config)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := dead.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"},
	}); err != nil {
		log.Fatal(err)
	}
	dead.Close(ctx) // and nobody comes back for the lease

	provider, err := leasehold.NewLocal(config)
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(context.WithoutCancel(ctx))
	sweeper, err := leasehold.NewSweeper(provider, leasehold.SweeperOptions{
		Interval: 100 * time.Millisecond,
		OnOrphan: func(_ context.Context, record leasehold.Record) leasehold.Disposition {
			if record.State == leasehold.StateStopped { // its host wanted it kept, and did not live to stop it
				return leasehold.OrphanKeep
			}
			fmt.Println("nobody uses the sandbox of run", record.Lease.Scope.Run)
			return leasehold.OrphanDestroy
		},
		OnEscalate: func(record leasehold.Record) {
			log.Print(record.Envelope.Name, " is not accounted for after ", record.Failures, " attempts")
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- sweeper.Run(ctx) }()

	for tick := time.Tick(10 * time.Millisecond); ; <-tick { // a host would do its work
		if left, err := store.List(ctx, "", 1); err != nil || len(left) == 0 {
			break
		}
	}
	cancel()
	fmt.Println(errors.Is(<-ended, context.Canceled))
	// Output:
	// nobody uses the sandbox of run 42
	// true
}
