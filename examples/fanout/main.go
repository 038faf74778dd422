// Command fanout runs twenty shards of a job, each on a lease of its own, at most five at a time. The first failure stops
// the others, and whatever happens every lease is given back.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold-go/leasehold"
)

const (
	shards = 20
	atOnce = 5 // sandboxes that are paid for at the same time
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	provider, err := open()
	if err != nil {
		log.Fatal(err)
	}
	err = run(ctx, provider, "seq $((SHARD * 10 + 1)) $((SHARD * 10 + 10))", os.Stdout)
	if err := errors.Join(err, provider.Close(context.WithoutCancel(ctx))); err != nil {
		log.Fatal("fanout: ", err)
	}
}

func open() (leasehold.Provider, error) {
	if os.Getenv("DAYTONA_API_KEY") == "" {
		return leasehold.NewLocal(leasehold.LocalConfig{})
	}
	return leasehold.New(leasehold.Config{TTL: time.Hour}) // whatever becomes of this program
}

// run runs the script once for each shard, and writes their outputs in the order of the shards.
func run(ctx context.Context, provider leasehold.Provider, script string, w io.Writer) error {
	outputs := make([][]byte, shards)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range shards {
		group.Go(func() (err error) {
			outputs[i], err = shard(ctx, provider, i, script)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, output := range outputs {
		if _, err := w.Write(output); err != nil {
			return err
		}
	}
	return nil
}

// shard takes a lease, runs its part, and gives the lease back, in its own time if ctx has ended.
func shard(ctx context.Context, provider leasehold.Provider, i int, script string) (_ []byte, err error) {
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "examples", Environment: "fanout", Run: "shard-" + strconv.Itoa(i)},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		giveBack, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, releaseErr := provider.Release(giveBack, lease.Ref(), leasehold.ReleaseOptions{})
		err = errors.Join(err, releaseErr)
	}()
	result, err := lease.Executor().Run(ctx, leasehold.Command{
		Script: script, Env: map[string]string{"SHARD": strconv.Itoa(i)}, Timeout: 10 * time.Minute,
	})
	switch {
	case err != nil:
		return nil, err
	case result.ExitCode != 0:
		return nil, fmt.Errorf("shard %d ended with exit code %d: %s", i, result.ExitCode, result.Stderr)
	case result.Truncated:
		return nil, fmt.Errorf("shard %d wrote %d bytes: set CaptureLimit, or a writer", i, result.StdoutSize)
	}
	return result.Stdout, nil
}
