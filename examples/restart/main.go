// Command restart runs one script in a sandbox to its end, however often the program itself is killed on the way: started
// again with the same -state, it goes on with the lease and the command that it left, and loses no byte of the output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-go/leasehold"
)

func main() {
	dir := flag.String("state", "state", "directory that outlives this program")
	api := flag.String("api", "", "base URL of the API; empty: Daytona's")
	script := flag.String("script", "for i in 1 2 3 4 5 6; do echo $i; sleep 5; done", "what to run")
	flag.Parse()
	if err := run(context.Background(), *dir, *api, *script, os.Stdout); err != nil {
		log.Fatal("restart: ", err)
	}
}

func run(ctx context.Context, dir, api, script string, stdout io.Writer) error {
	store, err := leasehold.NewFileStore(filepath.Join(dir, "leases"), leasehold.FileStoreOptions{})
	if err != nil {
		return err
	}
	provider, err := leasehold.New(leasehold.Config{APIURL: api, Store: store, TTL: time.Hour})
	if err != nil {
		return err
	}
	defer provider.Close(ctx)

	lease, process, err := goOn(ctx, provider, store, dir, script, stdout)
	if err != nil {
		return err
	}
	result, err := process.Wait()
	if err != nil {
		return err // the exit is unknown: the state is kept, for the next start
	}
	fmt.Fprintln(stdout, "exit", result.ExitCode)
	// Now nobody needs the reference of the command. Killed before the release, the next start finds a lease without it.
	if err := os.Remove(filepath.Join(dir, "command")); err != nil {
		return err
	}
	receipt, err := provider.Release(ctx, lease.Ref(), leasehold.ReleaseOptions{})
	fmt.Fprintln(stdout, "sandbox", receipt.State)
	return err
}

// goOn returns the lease and the command that an earlier run of this program left, or new ones.
func goOn(ctx context.Context, provider leasehold.Provider, store leasehold.Store, dir, script string, stdout io.Writer) (*leasehold.Lease, *leasehold.Process, error) {
	output, err := os.OpenFile(filepath.Join(dir, "output"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	taken, err := output.Seek(0, io.SeekEnd) // what is in the file was taken, and nothing else
	if err != nil {
		return nil, nil, err
	}
	both := io.MultiWriter(output, stdout)
	stored, err := os.ReadFile(filepath.Join(dir, "command"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	running := err == nil
	left, err := store.List(ctx, "", 100) // each lease is on it since before its sandbox was asked for
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range left {
		switch ref := entry.Record.Lease; {
		case ref == nil: // it never became a lease: a sweeper's work
		case running:
			command, err := leasehold.ParseCommandRef(stored)
			if err != nil {
				return nil, nil, err
			}
			lease, err := provider.Resume(ctx, *ref)
			if err != nil {
				return nil, nil, err
			}
			fmt.Fprintln(stdout, "going on from byte", taken)
			process, err := lease.Executor().Attach(ctx, command, leasehold.Attachment{From: leasehold.Offsets{Stdout: taken}, Stdout: both})
			return lease, process, err
		default: // killed before the command's reference was stored, or after its end: whatever runs there ends with it
			if _, err := provider.Destroy(ctx, *ref); err != nil {
				return nil, nil, err
			}
		}
	}

	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "examples", Environment: "restart", Run: "1"}})
	if err != nil {
		return nil, nil, err
	}
	process, err := lease.Executor().Start(ctx, leasehold.Command{Script: "exec 2>&1\n" + script, Stdout: both})
	if err != nil {
		return nil, nil, err
	}
	data, err := json.Marshal(process.Ref())
	if err != nil {
		return nil, nil, err
	}
	err = os.WriteFile(filepath.Join(dir, "command"), data, 0o600)
	fmt.Fprintln(stdout, "started")
	return lease, process, err
}
