// Package leasehold gives Go hosts typed leases on remote sandboxes: acquire one, sync files in, run commands, export
// results, give it back. [New] works on Daytona; [NewLocal] works on an embedded backend that needs no account, through
// the same code.
//
//	func run(ctx context.Context) (err error) {
//		p, err := leasehold.NewLocal(leasehold.LocalConfig{}) // or leasehold.New(leasehold.Config{APIKey: key, TTL: time.Hour})
//		if err != nil {
//			return err
//		}
//		defer p.Close(context.WithoutCancel(ctx))
//
//		lease, err := p.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "42"}})
//		if err != nil {
//			return err
//		}
//		defer func() {
//			_, e := p.Release(context.WithoutCancel(ctx), lease.Ref(), leasehold.ReleaseOptions{})
//			err = errors.Join(err, e) // the sandbox may still be there, and cost
//		}()
//
//		if _, err := lease.Importer().Dir(ctx, ".", "src", leasehold.ImportOptions{}); err != nil {
//			return err
//		}
//		result, err := lease.Executor().Run(ctx, leasehold.Command{
//			Args: []string{"make", "test"}, Dir: "src", Stdout: os.Stdout, Timeout: 10 * time.Minute,
//		})
//		if err != nil {
//			return err // the exit is unknown; result says what is known
//		}
//		fmt.Println("exit", result.ExitCode)
//		_, err = lease.Exporter().File(ctx, "src/report.xml", "report.xml", leasehold.ExportOptions{})
//		return err
//	}
//
// # What it promises
//
//   - A sandbox that was paid for is in use, gone, or named in an error and, with a [Store], on a durable list: its name
//     is chosen before the creation is sent, an unanswered creation is never repeated, and nothing is deleted unless its
//     name and every label match.
//   - A command starts at most once, whatever is lost on the way. Its result is complete only with a recorded exit;
//     otherwise it says what is unknown. A missing exit code is never 0.
//   - A transfer is complete or an error. Nothing outside the target is ever written, and what was there before survives
//     a failure.
//   - A receipt is issued after a fresh read that shows it, never for a request that was accepted.
//
// # A map of the package
//
//   - [Provider] acquires leases, resumes them after a restart, takes them back, and cleans up what an error could not.
//   - [Lease] is one sandbox in use; [LeaseRef] is the same as plain data, to be stored.
//   - [Executor] runs commands in it; [Process] is one that was started, [CommandRef] the same as plain data.
//   - [Terminal] is a program that a person, or a program in a person's place, types to; [Channel] a program's input and
//     output as one exact stream.
//   - [Bwrap] says whether commands are wrapped, so that a write which would not survive the sandbox fails at once.
//   - [Importer] and [Exporter] move files: directories, single files, file systems, tar streams.
//   - [Endpoint] reaches a service on a port of the sandbox; [SSHAccess] lets a person in.
//   - [Snapshots] makes what sandboxes are created from: builds, and captures of a lease's files.
//   - [Store] is the durable list of what a host has to give back; a [Sweeper] works off what dead hosts left on it.
//   - [IdleReport] names what is still active, and [Provider] proves that nothing is.
//   - [Error] is the one error type, with a [Kind] and a sentinel for each.
//   - [FaultPlan] makes the local backend lose replies and sandboxes, to test a host against.
//
// Methods that take a context return promptly when it ends, and methods are safe for concurrent use, unless they say otherwise.
// Durations are of the host's clock. Paths in a sandbox are slash-separated; a relative one is relative to the lease's
// workspace.
package leasehold
