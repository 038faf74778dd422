package leasehold_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"
	"time"

	"github.com/leasehold-go/leasehold"
)

// The whole main job, on the embedded backend.
func Example() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)

	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"},
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := lease.Executor().Run(ctx, leasehold.Command{Args: []string{"echo", "hello from", "a sandbox"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("exit %d: %s", result.ExitCode, result.Stdout)

	receipt, err := provider.Release(ctx, lease.Ref(), leasehold.ReleaseOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(receipt.State)
	// Output:
	// exit 0: hello from a sandbox
	// destroyed
}

// All problems of a configuration are reported at once, before any request.
func ExampleNew() {
	_, err := leasehold.New(leasehold.Config{
		APIKey: "key", Image: "debian", Snapshot: "small", AutoStopMinutes: new(-5),
	})
	var e *leasehold.Error
	if errors.As(err, &e) {
		for _, f := range e.Fields {
			fmt.Println(f.Field, f.Problem)
		}
	}
	// Output:
	// Config.Image and Snapshot are both set: set one
	// Config.AutoStopMinutes is out of range: 0 to 2147483647 minutes
}

// A stored reference is all that another process needs to go on with a lease.
func ExampleProvider_resume() {
	ctx := context.Background()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{Config: leasehold.Config{Reuse: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "dev", Run: "1"},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := lease.Executor().Run(ctx, leasehold.Command{Script: "echo kept >note"}); err != nil {
		log.Fatal(err)
	}
	stored, err := json.Marshal(lease.Ref())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := provider.Release(ctx, lease.Ref(), leasehold.ReleaseOptions{}); err != nil { // stops it
		log.Fatal(err)
	}

	ref, err := leasehold.ParseLeaseRef(stored)
	if err != nil {
		log.Fatal(err)
	}
	lease, err = provider.Resume(ctx, ref)
	switch {
	case errors.Is(err, leasehold.ErrGone):
		log.Fatal("proved lost: acquire a new one")
	case err != nil:
		log.Fatal("kept: try again later: ", err)
	}
	result, err := lease.Executor().Run(ctx, leasehold.Command{Args: []string{"cat", "note"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", result.Stdout)
	// Output: kept
}

// A non-zero exit is a result, not an error. The streams stay apart.
func ExampleExecutor_Run() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	result, err := lease.Executor().Run(ctx, leasehold.Command{
		Script: `read line; echo "got $line"; echo "no more" >&2; exit 3`,
		Stdin:  strings.NewReader("a line\nand another\n"),
		Env:    map[string]string{"LANG": "C"},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("exit %d\nstdout %q\nstderr %q\n", result.ExitCode, result.Stdout, result.Stderr)
	// Output:
	// exit 3
	// stdout "got a line\n"
	// stderr "no more\n"
}

// A host starts a command and keeps its reference. After a restart it goes on from the bytes that it had taken.
func ExampleExecutor_Attach() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	process, err := lease.Executor().Start(ctx, leasehold.Command{Script: "echo one; until [ -e go ]; do sleep 0.01; done; echo two"})
	if err != nil {
		log.Fatal(err)
	}
	stored, err := json.Marshal(process.Ref())
	if err != nil {
		log.Fatal(err)
	}
	process.Detach() // as the end of the host would

	ref, err := leasehold.ParseCommandRef(stored)
	if err != nil {
		log.Fatal(err)
	}
	process, err = lease.Executor().Attach(ctx, ref, leasehold.Attachment{From: leasehold.Offsets{Stdout: 2}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := lease.Executor().Run(ctx, leasehold.Command{Args: []string{"touch", "go"}}); err != nil {
		log.Fatal(err)
	}
	result, err := process.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("exit %d, stdout %q\n", result.ExitCode, result.Stdout)
	// Output: exit 0, stdout "e\ntwo\n"
}

// A directory goes in, and a file comes back.
func ExampleImporter_Dir() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	local, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(local)
	if err := os.WriteFile(filepath.Join(local, "words"), []byte("b\na\n"), 0o644); err != nil {
		log.Fatal(err)
	}

	in, err := lease.Importer().Dir(ctx, local, "src", leasehold.ImportOptions{Exclude: []string{"*.tmp"}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := lease.Executor().Run(ctx, leasehold.Command{Script: "sort words >sorted", Dir: "src"}); err != nil {
		log.Fatal(err)
	}
	out, err := lease.Exporter().File(ctx, "src/sorted", filepath.Join(local, "sorted"), leasehold.ExportOptions{})
	if err != nil {
		log.Fatal(err)
	}
	sorted, err := os.ReadFile(filepath.Join(local, "sorted"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes in, %d bytes out: %q\n", in.Bytes, out.Bytes, sorted)
	// Output: 4 bytes in, 4 bytes out: "a\nb\n"
}

// An embedded tool is a read-only bundle: the second import finds it in its place, and sends nothing.
func ExampleImporter_FS() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	tools := fstest.MapFS{"greet": {Data: []byte("#!/bin/sh\necho hello\n"), Mode: 0o755}}
	options := leasehold.ImportOptions{
		Access: leasehold.AccessReadOnly,
		After:  []leasehold.Command{{Args: []string{"./tools/greet"}, Timeout: time.Minute, Stdout: os.Stdout}},
	}
	for range 2 {
		result, err := lease.Importer().FS(ctx, tools, "tools", options)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("sent %d, unchanged %d\n", result.Entries, result.Unchanged)
	}
	// Output:
	// hello
	// sent 1, unchanged 0
	// hello
	// sent 0, unchanged 1
}

// Files go to places of their own in one upload. None is put there before all have arrived.
func ExampleImporter_Files() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	local, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(local)
	key := filepath.Join(local, "key")
	if err := os.WriteFile(key, []byte("secret"), 0o600); err != nil {
		log.Fatal(err)
	}
	result, err := lease.Importer().Files(ctx, []leasehold.FileMapping{
		{Local: key, Remote: "conf/key"},
		{Local: key, Remote: "shared/key", Mode: 0o640},
	}, leasehold.ImportOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Entries, "files,", result.Bytes, "bytes")
	// Output: 2 files, 12 bytes
}

// A stream is checked on its way. A damaged or hostile one changes nothing.
func ExampleImporter_Tar() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	if err := w.WriteHeader(&tar.Header{Name: "../../etc/profile", Mode: 0o644}); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	_, err := lease.Importer().Tar(ctx, &stream, "src", leasehold.ImportOptions{})
	fmt.Println(errors.Is(err, leasehold.ErrUnsafe))
	// Output: true
}

// Results come back as a tar stream, whose every member was checked. Where the sandbox's disk is full they come, too.
func ExampleExporter_Tar() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	if _, err := lease.Executor().Run(ctx, leasehold.Command{Script: "mkdir out && echo ok >out/report && mkfifo out/pipe"}); err != nil {
		log.Fatal(err)
	}

	var stream bytes.Buffer
	result, err := lease.Exporter().Tar(ctx, "out", &stream, leasehold.ExportOptions{MaxBytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	for r := tar.NewReader(&stream); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		fmt.Println(h.Name, h.Size)
	}
	fmt.Println("left out:", result.Skipped[0].Name, result.Skipped[0].Reason)
	fmt.Println("came through:", result.Route)
	// Output:
	// report 3
	// left out: pipe fifo
	// came through: files
}

// The reply to a creation is lost. The sandbox is found by the name that was chosen before the request, and adopted.
func ExampleFaultPlan() {
	ctx := context.Background()
	plan := leasehold.NewFaultPlan(1, leasehold.Fault{
		Method: "POST", Path: "/api/sandbox", Action: leasehold.FaultDropAfter,
	})
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{Faults: plan})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close(ctx)
	_, err = provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"}})
	fmt.Println("error:", err)
	fmt.Println("replies lost:", plan.State()[0].Hits)
	// Output:
	// error: <nil>
	// replies lost: 1
}

// exampleLease returns a lease on a local backend, and what ends both.
func exampleLease(ctx context.Context) (*leasehold.Lease, func()) {
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"}})
	if err != nil {
		log.Fatal(err)
	}
	return lease, func() {
		if err := provider.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}
}
