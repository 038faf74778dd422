package leasehold_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A worker that is given a reference with each call binds the lease without a request.
func ExampleProvider_bind() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"}})
	if err != nil {
		log.Fatal(err)
	}
	stored, err := json.Marshal(lease.Ref())
	if err != nil {
		log.Fatal(err)
	}

	ref, err := leasehold.ParseLeaseRef(stored)
	if err != nil {
		log.Fatal(err)
	}
	bound, err := provider.Bind(ref)
	if err != nil {
		log.Fatal(err)
	}
	result, err := bound.Executor().Run(ctx, leasehold.Command{Args: []string{"echo", "bound"}})
	if err != nil {
		log.Fatal(err)
	}
	receipt, err := provider.Destroy(ctx, ref)
	fmt.Printf("%s%s %v\n", result.Stdout, receipt.State, err)
	// Output:
	// bound
	// destroyed <nil>
}

// Before a host offers a configuration, it proves that leases can be had with it.
func ExampleProvider_probe() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	report, err := provider.Probe(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "probe"},
	})
	fmt.Println(report.Sandbox != "", report.Acquire > 0, report.Destroy > 0, err)
	// Output: true true true <nil>
}

// What may a host that wants to sleep wait for? A lease in use is active; one that is given back is not.
func ExampleProvider_idle() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"}})
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range provider.Idle().Active {
		fmt.Println("active:", a.Kind, "of run", a.Scope.Run)
	}
	fmt.Println("another tenant is idle:", provider.Idle(leasehold.Scope{Tenant: "other", Environment: "ci", Run: "1"}).Idle)

	go func() {
		if _, err := provider.Release(ctx, lease.Ref(), leasehold.ReleaseOptions{}); err != nil {
			log.Fatal(err)
		}
	}()
	for idle := range provider.IdleChanges(ctx) {
		if idle {
			break
		}
	}
	report, err := provider.ProveIdle(ctx)
	fmt.Println("proved idle:", report.Idle, err)
	// Output:
	// active: allocation of run 42
	// another tenant is idle: true
	// proved idle: true <nil>
}

// outage makes the reply to a creation get lost, and everything that asks for the sandbox fail.
func outage() *leasehold.FaultPlan {
	return leasehold.NewFaultPlan(1,
		leasehold.Fault{Method: "POST", Path: "/api/sandbox", Action: leasehold.FaultDropAfter},
		leasehold.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: leasehold.FaultStatusBefore, Status: http.StatusServiceUnavailable},
	)
}

// The provider goes down in the middle of an acquisition. The error has all that is needed to clean up when it is back.
func ExampleProvider_cleanup() {
	ctx := context.Background()
	plan := outage()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{
		Faults: plan, Config: leasehold.Config{Timeout: 2 * time.Second},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	_, err = provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"}})
	e, ok := errors.AsType[*leasehold.Error](err)
	if !ok || e.Cleanup == nil {
		log.Fatal("no envelope: ", err)
	}
	stored, err := json.Marshal(e.Cleanup)
	if err != nil {
		log.Fatal(err)
	}
	plan.Set() // the provider is back

	envelope, err := leasehold.ParseCleanupEnvelope(stored)
	if err != nil {
		log.Fatal(err)
	}
	observed, err := provider.Inspect(ctx, envelope)
	if err != nil {
		log.Fatal(err) // ErrUncertain: none was seen, which proves nothing
	}
	fmt.Println("found it:", observed.Observed != "") // a host would store observed now
	receipt, err := provider.Cleanup(ctx, observed)
	fmt.Println(receipt.State, err)
	// Output:
	// found it: true
	// destroyed <nil>
}

// With a store nobody needs to keep the envelope: a pass over the list settles it.
func ExampleSweeper_Sweep() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "host")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := leasehold.NewFileStore(dir, leasehold.FileStoreOptions{})
	if err != nil {
		log.Fatal(err)
	}
	plan := outage()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{
		Faults: plan, Config: leasehold.Config{Store: store, Timeout: 2 * time.Second},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	if _, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"},
	}); err == nil {
		log.Fatal("the outage was none")
	}
	entries, err := store.List(ctx, "", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, entry := range entries {
		data, err := entry.Record.Encode() // as a store of one's own would keep it
		if err != nil {
			log.Fatal(err)
		}
		record, err := leasehold.ParseRecord(data)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("on the list:", record.State, "of run", record.Envelope.Scope.Run)
	}
	plan.Set() // the provider is back

	sweeper, err := leasehold.NewSweeper(provider, leasehold.SweeperOptions{})
	if err != nil {
		log.Fatal(err)
	}
	report, err := sweeper.Sweep(ctx)
	fmt.Println("destroyed:", report.Destroyed, err)
	// Output:
	// on the list: creating of run 42
	// destroyed: 1 <nil>
}

// The name of a snapshot is fixed before anything is sent: a host that stores it first can always find what became of it.
func ExampleParseSnapshotRef() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	snapshots, err := leasehold.NewSnapshots(provider)
	if err != nil {
		log.Fatal(err)
	}
	stored, err := json.Marshal(snapshots.Plan("tools"))
	if err != nil {
		log.Fatal(err)
	}
	ref, err := leasehold.ParseSnapshotRef(stored)
	if err != nil {
		log.Fatal(err)
	}
	_, err = snapshots.Inspect(ctx, ref) // its creation was never sent, but who knows that
	fmt.Println(errors.Is(err, leasehold.ErrUncertain))
	ref, err = snapshots.Build(ctx, ref, leasehold.BuildRequest{Image: "debian:13"})
	if err != nil {
		log.Fatal(err)
	}
	info, err := snapshots.Inspect(ctx, ref)
	fmt.Println(info.State, err)
	// Output:
	// true
	// ready <nil>
}

// Giving the lease back revokes a person's access. So does this, early, whoever made it.
func ExampleLease_RevokeSSH() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	if _, err := lease.OpenSSH(ctx, time.Hour); err != nil {
		log.Fatal(err)
	}
	fmt.Println(lease.RevokeSSH(ctx), lease.RevokeSSH(ctx))
	// Output: <nil> <nil>
}
