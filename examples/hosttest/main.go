// Command hosttest is a small host, and the tests that hold it against lost replies, duplicated requests and dead
// sandboxes: see main_test.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold"
)

func main() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	h := host{provider: provider, keep: func(e leasehold.CleanupEnvelope) { log.Print("to be looked after: ", e.Name) }}
	out, err := h.job(ctx, "42", "echo hello")
	if err := errors.Join(err, provider.Close(ctx)); err != nil {
		log.Fatal(err)
	}
	fmt.Print(out)
}

// host runs jobs that may be repeated, each in a sandbox of its own.
type host struct {
	provider leasehold.Provider
	keep     func(leasehold.CleanupEnvelope) // stores what could not be accounted for
}

// job runs the script and returns what it wrote. If the sandbox is lost it tries once more, in another one.
func (h host) job(ctx context.Context, run, script string) (string, error) {
	out, err := h.once(ctx, run, script)
	if errors.Is(err, leasehold.ErrGone) || errors.Is(err, leasehold.ErrNotRunning) {
		out, err = h.once(ctx, run, script)
	}
	return out, err
}

func (h host) once(ctx context.Context, run, script string) (_ string, err error) {
	lease, err := h.provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: run},
	})
	if e, ok := errors.AsType[*leasehold.Error](err); ok && e.Cleanup != nil {
		h.keep(*e.Cleanup)
	}
	if err != nil {
		return "", err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, releaseErr := h.provider.Release(ending, lease.Ref(), leasehold.ReleaseOptions{})
		err = errors.Join(err, releaseErr)
	}()
	result, err := lease.Executor().Run(ctx, leasehold.Command{Script: script})
	switch {
	case err != nil:
		return "", err
	case result.ExitCode != 0:
		return "", fmt.Errorf("the script ended with exit code %d", result.ExitCode)
	}
	return string(result.Stdout), nil
}
