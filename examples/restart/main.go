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
	if err := run(context.Background(), *dir, leasehold.Config{APIURL: *api}, *script, os.Stdout); err != nil {
		log.Fatal("restart: ", err)
	}
}

// ttl is how long a sandbox, and so its command, may last, with its host or without.
const ttl = time.Hour

// state is what the file "command" holds from the start of the command until its sandbox was given back.
type state struct {
	Command leasehold.CommandRef
	Exit    *int // known: what is left is the sandbox
}

func run(ctx context.Context, dir string, config leasehold.Config, script string, stdout io.Writer) (err error) {
	store, err := leasehold.NewFileStore(filepath.Join(dir, "leases"), leasehold.FileStoreOptions{})
	if err != nil {
		return err
	}
	config.Store, config.TTL = store, ttl
	config.AutoStopMinutes = new(int(ttl / time.Minute)) // or the sandbox is stopped under its command while the host is away
	provider, err := leasehold.New(config)
	if err != nil {
		return err
	}
	defer provider.Close(ctx)
	output, err := os.OpenFile(filepath.Join(dir, "output"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, output.Close()) }()

	left, err := load(dir)
	if err != nil {
		return err
	}
	settle := func() error {
		if err := giveBack(ctx, provider, store, stdout); err != nil {
			return err
		}
		return os.Remove(filepath.Join(dir, "command"))
	}
	if left == nil || left.Exit == nil {
		var result leasehold.Result
		process, err := goOn(ctx, provider, store, dir, left, script, output, stdout)
		for again := false; err == nil; again = true {
			result, err = process.Wait()
			if again || !errors.Is(err, leasehold.ErrUncertain) {
				err = lost(err, leasehold.ErrGone, leasehold.ErrNotFound, leasehold.ErrQuota, leasehold.ErrUncertain)
				break
			}
			// The sandbox may have been out of reach for minutes, and the command may run: if it cannot be attached to now either,
			// the next start goes on with it.
			process, err = goOn(ctx, provider, store, dir, &state{Command: process.Ref()}, script, output, stdout)
		}
		if errors.Is(err, errLost) {
			return errors.Join(err, settle())
		}
		if err != nil {
			return err // the state is kept, for the next start to go on with
		}
		left = &state{process.Ref(), &result.ExitCode}
		if err := save(dir, left); err != nil { // killed from here on, the next start has only to give back
			return err
		}
	}
	fmt.Fprintln(stdout, "exit", *left.Exit)
	return settle()
}

// errLost is the outcome of a command that has none. The program ends with it, once, and has given the sandbox back: whether
// the script may run again, as it does with the next start, is for whoever reads this.
var errLost = errors.New("the command was started, perhaps did all of its work, and how it ended can never be known")

// lost makes an error errLost if it is one of those that would be the same however often the command is asked for.
func lost(err error, final ...error) error {
	for _, final := range final {
		if errors.Is(err, final) {
			return fmt.Errorf("%w: %w", errLost, err)
		}
	}
	return err
}

// goOn returns the command that an earlier run of this program left, or a new one.
func goOn(ctx context.Context, provider leasehold.Provider, store leasehold.Store, dir string, left *state, script string, output *os.File, stdout io.Writer) (*leasehold.Process, error) {
	both := io.MultiWriter(output, stdout)
	if left != nil {
		entries, err := store.List(ctx, "", 100) // each lease is on it since before its sandbox was asked for
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			ref := entry.Record.Lease
			if ref == nil || ref.Attempt != left.Command.Attempt {
				continue
			}
			lease, err := provider.Resume(ctx, *ref)
			if err != nil { // else it may be had yet
				return nil, lost(err, leasehold.ErrGone)
			}
			taken, err := output.Seek(0, io.SeekEnd) // what is in the file was taken, and nothing else
			if err != nil {
				return nil, err
			}
			fmt.Fprintln(stdout, "going on from byte", taken)
			process, err := lease.Executor().Attach(ctx, left.Command, leasehold.Attachment{From: leasehold.Offsets{Stdout: taken}, Stdout: both})
			return process, lost(err, leasehold.ErrGone, leasehold.ErrNotFound)
		}
		return nil, fmt.Errorf("%w: its lease is not on the list any more", errLost)
	}

	// Killed before the command's reference was stored: whatever runs there ends with its sandbox.
	if err := giveBack(ctx, provider, store, stdout); err != nil {
		return nil, err
	}
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "examples", Environment: "restart", Run: "1"}})
	if err != nil {
		return nil, err
	}
	if err := output.Truncate(0); err != nil { // it is another command's
		return nil, err
	}
	process, err := lease.Executor().Start(ctx, leasehold.Command{Script: "exec 2>&1\n" + script, Stdout: both})
	if err != nil {
		return nil, err
	}
	if err := save(dir, &state{Command: process.Ref()}); err != nil {
		return nil, err
	}
	fmt.Fprintln(stdout, "started")
	return process, nil
}

// giveBack gives back every lease on the list. What never became a lease is a sweeper's work.
func giveBack(ctx context.Context, provider leasehold.Provider, store leasehold.Store, stdout io.Writer) error {
	entries, err := store.List(ctx, "", 100)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Record.Lease == nil {
			continue
		}
		receipt, err := provider.Release(ctx, *entry.Record.Lease, leasehold.ReleaseOptions{})
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, "sandbox", receipt.State)
	}
	return nil
}

// load returns what an earlier run of this program left, or nil.
func load(dir string) (*state, error) {
	data, err := os.ReadFile(filepath.Join(dir, "command"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s state
	return &s, json.Unmarshal(data, &s)
}

// save replaces the file as a whole, or not at all.
func save(dir string, s *state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "command.new"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, "command"))
}
