// Command agentloop is the loop of an agent that works in a sandbox: a model chooses a step, the host takes it, and the
// model sees what came of it. Here a scripted model repairs a small project; a language model has the same interface.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold"
)

const (
	maxTurns    = 30
	stepTime    = 2 * time.Minute
	maxSeen     = 16 << 10 // bytes of a stream that the model is shown
	maxFileSize = 64 << 10
)

// loop takes the model's steps on the lease until it has an answer. Its errors are those of the host's work; what goes wrong
// in the sandbox is for the model to see.
func loop(ctx context.Context, lease *leasehold.Lease, model Model, w io.Writer) (string, error) {
	var turns []Turn
	for range maxTurns {
		step, err := model.Next(ctx, turns)
		if err != nil {
			return "", err
		}
		if step.Answer != "" {
			return step.Answer, nil
		}
		seen, err := take(ctx, lease, step)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(w, "> %s%s\n%s\n", step.Run, step.Read, seen)
		turns = append(turns, Turn{step, seen})
	}
	return "", fmt.Errorf("no answer after %d turns", maxTurns)
}

func take(ctx context.Context, lease *leasehold.Lease, step Step) (string, error) {
	if step.Read != "" {
		return read(ctx, lease, step.Read)
	}
	result, err := lease.Executor().Run(ctx, leasehold.Command{Script: step.Run, Dir: "project", Timeout: stepTime, CaptureLimit: maxSeen})
	var end string
	switch {
	case result.TimedOut && result.StopConfirmed:
		end = fmt.Sprintf("stopped after %s", stepTime)
	case result.TimedOut:
		end = fmt.Sprintf("still running after %s, or not: stopping it was not confirmed", stepTime)
	case result.Exited && errors.Is(err, leasehold.ErrQuota):
		end = fmt.Sprintf("exit %d\nthe disk is full, and the end of the output is lost", result.ExitCode)
	case ofTheSandbox(err) && (result.Dispatched == leasehold.DispatchedNo || errors.Is(err, leasehold.ErrNotFound)): // it did not run
		return "cannot be run: " + err.Error(), nil
	case err != nil:
		return "", err // the exit is unknown: nothing that a model should guess about
	default:
		end = fmt.Sprintf("exit %d", result.ExitCode)
	}
	seen := fmt.Sprintf("%s\n%s%s", end, result.Stdout, result.Stderr)
	if result.Truncated {
		seen += fmt.Sprintf("\n(cut: it wrote %d bytes of output, and %d of errors)", result.StdoutSize, result.StderrSize)
	}
	return seen, nil
}

// ofTheSandbox reports whether an error is about what the model asked for, or what it made of the sandbox: a NUL in a path, a
// directory or a link in the place of a file, a file that is large or cannot be read, a project that is not there any more.
func ofTheSandbox(err error) bool {
	failed, ok := errors.AsType[*leasehold.Error](err)
	return ok && slices.Contains([]leasehold.Kind{
		leasehold.KindInvalid, leasehold.KindNotFound, leasehold.KindConflict, leasehold.KindRefused,
		leasehold.KindUnsafe, leasehold.KindLimit, leasehold.KindQuota,
	}, failed.Kind)
}

// read exports one file. What a sandbox holds is never trusted: a link is refused, and so is more than a model can use.
func read(ctx context.Context, lease *leasehold.Lease, path string) (string, error) {
	dir, err := os.MkdirTemp("", "agentloop")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	local := filepath.Join(dir, "file")
	_, err = lease.Exporter().File(ctx, "project/"+path, local, leasehold.ExportOptions{MaxBytes: maxFileSize})
	switch {
	case ofTheSandbox(err):
		return "cannot be read: " + err.Error(), nil
	case err != nil:
		return "", err
	}
	content, err := os.ReadFile(local)
	return string(content), err
}

//go:embed project
var files embed.FS

func main() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	answer, err := work(ctx, provider, scripted{}, os.Stdout)
	if err := errors.Join(err, provider.Close(ctx)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer)
}

// work takes a lease, puts the project in it, and lets the model work.
func work(ctx context.Context, provider leasehold.Provider, model Model, w io.Writer) (_ string, err error) {
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "agents", Run: "1"}})
	if err != nil {
		return "", err
	}
	defer func() {
		_, releaseErr := provider.Release(context.WithoutCancel(ctx), lease.Ref(), leasehold.ReleaseOptions{})
		err = errors.Join(err, releaseErr)
	}()
	project, err := fs.Sub(files, "project")
	if err != nil {
		return "", err
	}
	if _, err := lease.Importer().FS(ctx, project, "project", leasehold.ImportOptions{}); err != nil {
		return "", err
	}
	return loop(ctx, lease, model, w)
}
