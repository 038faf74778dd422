package leasehold

import (
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
)

// ProfilePolicy says which start-up files a command's environment comes from.
type ProfilePolicy string

// The profile policies. The zero value is ProfilesLogin.
const (
	// ProfilesLogin reads what a login shell would: /etc/profile, ~/.profile, ~/.bash_profile or else ~/.bashrc, and
	// ~/.zprofile, each if it exists. Images put their tools on PATH there. Their output is discarded, their failures
	// are ignored, and only what they export reaches the command.
	ProfilesLogin ProfilePolicy = ""
	// ProfilesNone starts from the daemon's own environment, which saves the time.
	ProfilesNone ProfilePolicy = "none"
)

// DefaultCaptureLimit is how many bytes of each stream a [Result] holds when [Command] has no writer for it and no limit.
const DefaultCaptureLimit = 1 << 20

// Command is one command to run. Exactly one of Args and Script must be set; the zero value of every other field is useful.
//
// The command runs in a process of its own, as the leader of a process group.
// Its environment is the daemon's, then what the profiles export, then defaults that keep git from asking questions on a
// terminal that is not there (GIT_TERMINAL_PROMPT=0 and the like), then Env.
type Command struct {
	// Args are the program, looked up in PATH, and its arguments, of any bytes but NUL. The program's name cannot begin
	// with a dash. No shell reads them. A program that is not found, or cannot be executed, is no error: the exit code is
	// 127, or 126, with a shell's message on standard error.
	Args []string
	// Script is a script for /bin/sh, of any bytes but NUL, without parameters.
	Script string
	// Dir is the directory to run in, relative to the lease's workspace, or absolute. Empty: the workspace. If it
	// cannot be entered nothing is started, and Run fails with [ErrNotFound].
	Dir string
	// Env wins over the rest of the environment. Keys match [A-Za-z_][A-Za-z0-9_]*; values hold no NUL.
	Env map[string]string
	// Stdin is the command's input. Nil: the command finds its input at its end.
	//
	// It is delivered as the command reads it, and so is its end; what Run reads ahead is bounded. An input that ends at
	// once within 64 KiB takes no request of its own; others take a pipe in a private directory of the sandbox. If a Read
	// fails, or a hundred in a row return nothing, the command is stopped. What stops a command is no end of its input, so that
	// it does not go on with a part: but for the end of its lease, and where [Result.StopConfirmed] is false. A Read that blocks
	// when the command or the context has ended may return after Run, and is the last.
	Stdin io.Reader
	// Stdout and Stderr receive the output as it arrives; a session's log brings it line by line. Writers are never
	// called at the same time, and Run does not return during a call. A writer that waits does not make the command
	// wait: its output is kept in the sandbox. If one fails, the command is stopped. Nil: the output is captured in the
	// [Result]. To have both, write to a [bytes.Buffer], too, through [io.MultiWriter].
	Stdout, Stderr io.Writer
	// CaptureLimit is how many bytes of each captured stream the Result keeps, from its beginning. Zero:
	// [DefaultCaptureLimit]. Negative: none.
	CaptureLimit int64
	// Timeout is the command's lifetime, from its dispatch on, whatever happens to the connection. When it is over the
	// command is stopped and Run fails with [ErrTimeout]. What a command has written that has ended in time is delivered after
	// that, too, as long as the context lasts. Zero: none, but two minutes for Args that are git push, fetch, pull,
	// ls-remote, clone, remote update or submodule update: a stalled remote would never end.
	Timeout time.Duration
	// Profiles says which start-up files are read.
	Profiles ProfilePolicy
	// Transport chooses the way by which the command is run.
	Transport Transport
	// NoBwrap runs the command without the advisory wrapper: see [Bwrap]. False: it is wrapped where the sandbox has what that
	// needs.
	NoBwrap bool
}

// Transport is a way by which a command is run.
type Transport string

// The transports.
const (
	// TransportDefault is the zero value: TransportJournal, or TransportSession where the sandbox has no room for a
	// journal.
	TransportDefault Transport = ""
	// TransportJournal makes the command keep its own record, in files of a private directory of the sandbox,
	// $TMPDIR/.leasehold-<uid>. The command's output are pipes, whose contents are appended to such files, so any byte is
	// carried, and a short command takes one request. The files hold the whole output. When the result was taken they are
	// removed with a later command of the lease, as soon as sixteen results were taken or their files hold 1 MiB, or when
	// the lease, if it is reusable, is given back. What is left in a sandbox that is kept goes with a command a day later.
	TransportJournal Transport = "journal"
	// TransportSession runs the command in one of the toolbox's sessions, and reads the session's log: see the fidelities.
	// It needs no file of its own, but for an input that takes a pipe, and for a command of more than 128 KiB.
	TransportSession Transport = "session"
)

// journals reports that a journal is tried.
func (t Transport) journals() bool { return t != TransportSession }

// Fidelity says how sure it is that the output holds exactly the bytes that the command wrote.
type Fidelity string

// The fidelities.
const (
	// FidelityExact: the output was read byte for byte, and its end is marked.
	FidelityExact Fidelity = "exact"
	// FidelityLines: the log carried the lines, and shows no sign of damage. Final newlines, partial last lines and
	// bytes of any value are right, but NUL bytes: a session's log drops these and leaves no trace of it.
	FidelityLines Fidelity = "lines"
	// FidelityDamaged: the log cannot have carried the bytes exactly. Pieces of very long lines may be mixed up, or
	// something on the way took the log's markers away.
	FidelityDamaged Fidelity = "damaged"
)

// Delivery says how a command's output arrived.
type Delivery string

// The deliveries.
const (
	DeliveryReply    Delivery = "reply"    // journal: all of it in the reply to the dispatch
	DeliveryFiles    Delivery = "files"    // journal: in more than one reply, because it took a while, or was long or not text
	DeliverySnapshot Delivery = "snapshot" // session: in copies of the whole log
	DeliverySocket   Delivery = "socket"   // session: some of it over a socket
)

// Result is what is known of a command that Run was asked to run. It says what was proved, and no more.
type Result struct {
	// ExitCode is the command's exit code, if Exited. A command that died by signal n has 128+n, as shells say it, and
	// so has one that exits with that number. -1 otherwise: a missing exit code is never 0.
	ExitCode int
	// Exited reports that the command's exit was recorded. That may be so beside an error: a command that is stopped for its
	// Timeout, or at the end of the context, exits as well.
	Exited bool
	// Complete reports that both streams were delivered up to the exit. What children in the background write later is
	// not part of them.
	Complete bool
	// Dispatched says whether the command was handed to the sandbox. If no, it did not run and never will. But with
	// [ErrNotRunning], of a sandbox that stops within two seconds of the dispatch, no is not proved: the provider's proxy may have
	// delivered the command, and then answered as if it had not.
	Dispatched Dispatch
	// TimedOut reports that Command.Timeout was over before the command had ended, and StopConfirmed that the command, stopped
	// because of that or of the end of the context, was confirmed to run no more. Daemons that it detached from itself may.
	TimedOut      bool
	StopConfirmed bool
	// Stdout and Stderr are what was captured. The sizes count everything delivered, captured or not.
	Stdout, Stderr         []byte
	StdoutSize, StderrSize int64
	// StdinSize is how many bytes of Command.Stdin the command was given. It need not have read them all.
	StdinSize int64
	// Truncated reports that something was not captured because of CaptureLimit.
	Truncated bool
	// Duration is the time from the dispatch to the end of the observation.
	Duration time.Duration
	// Transport is how it was run. With TransportDefault, a session says that the sandbox had no room for a journal.
	Transport Transport
	Fidelity  Fidelity
	Delivery  Delivery
	// Wrapped reports that the command ran in the advisory wrapper: see [Bwrap].
	Wrapped bool
}

// Executor runs commands in the sandbox of one lease. It is safe for concurrent use, and commands that run at the same
// time do not wait for each other.
type Executor struct{ l *Lease }

// Executor returns the lease's executor.
func (l *Lease) Executor() *Executor { return &Executor{l: l} }

// Run runs a command and waits for it. It starts the command at most once, whatever is lost, and never repeats it.
//
// A nil error means that the exit is confirmed and the output complete: an exit code other than 0 is no error. Every
// error is an [*Error] and comes with a Result that holds what is known by then, output included. The errors:
//
//   - [ErrInvalid]: the command cannot be run as it is; nothing was sent.
//   - [ErrTimeout], [ErrCanceled]: Command.Timeout or ctx ended. Run returns promptly, after it tried to stop the command and
//     all its children, which takes 8 seconds at most, and after a Timeout up to 2 more, to ask whether it has ended;
//     Result.StopConfirmed says whether that worked. If ctx has ended before, nothing is sent.
//   - [ErrUncertain]: it is not known how the command ended, or what it wrote last, or, with DispatchedUnknown, whether it
//     began. Or the sandbox failed to pass the input on, it is not known how much of it arrived, and the command was stopped.
//   - [ErrQuota]: the sandbox's disk was full, and the end of the output is lost. The command itself was not disturbed, and
//     Result.ExitCode is its own.
//   - [ErrNotFound], [ErrRefused]: Command.Dir cannot be entered; the input was lost, a start-up file replaced the shell, or
//     a signal ended it while it read them. The sandbox said so, hence DispatchedYes: the command was not started.
//   - [ErrNotRunning], [ErrGone]: the sandbox is not there. With DispatchedYes it was lost under the command, with
//     DispatchedUnknown perhaps so.
//   - [ErrIO]: Stdin or a writer failed, and the command was stopped, or not even started.
//   - [ErrClosed]: the lease was given back, before or meanwhile. Or the provider was closed, and then the command was left to
//     go on, if it had been dispatched: [Executor.Attach], of another provider, goes on with it.
//   - Others, such as [ErrAuth], [ErrRateLimited], [ErrNotOwned], [ErrUnavailable] and [ErrProtocol], are the provider's
//     refusals and failures. Only with DispatchedNo is it certain that the command did not run.
func (x *Executor) Run(ctx context.Context, cmd Command) (_ Result, err error) {
	const op = "run"
	ctx, span := x.l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	r, failure := newExecution(x.l, op, cmd)
	if failure == nil {
		var h *holding
		if h, failure = x.l.hold(ActivityCommand, op); failure == nil {
			defer r.letGo(h)
			failure = r.run(ctx)
		}
	}
	if failure == nil {
		return r.result(), nil
	}
	return r.result(), r.failure(failure)
}

// check returns the command in the form that the script builder takes, and adds every problem of it, as of that field.
func (c *Command) check(p *problems, field string, l *Lease) script.Login {
	login := script.Login{Env: maps.Clone(c.Env), Args: slices.Clone(c.Args), Script: c.Script, Dir: l.inWorkspace(c.Dir)}
	switch {
	case len(c.Args) == 0 && c.Script == "":
		p.add(field, "has neither Args nor Script")
	case len(c.Args) > 0 && c.Script != "":
		p.add(field, "has both Args and Script")
	}
	if c.Timeout < 0 {
		p.add(field+".Timeout", "is negative")
	}
	l.p.cfg.checkTimeout(p, field+".Timeout", c.Timeout)
	switch c.Profiles {
	case ProfilesLogin:
	case ProfilesNone:
		login.Profiles = script.NoProfiles
	default:
		p.add(field+".Profiles", "is not a policy")
	}
	switch c.Transport {
	case TransportDefault, TransportJournal, TransportSession:
	default:
		p.add(field+".Transport", "is not a transport")
	}
	login.Check(p.of(field))
	return login
}

// inWorkspace returns the absolute path of a directory in the sandbox: a relative one is meant in the workspace.
func (l *Lease) inWorkspace(dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(l.ref.Workspace, dir)
}

// gitTimeout is the Timeout of Git commands that use the network, unless they have one.
const gitTimeout = 2 * time.Minute

// usesNetwork reports whether the arguments are a Git command that speaks to a remote.
func usesNetwork(args []string) bool {
	if len(args) == 0 || path.Base(args[0]) != "git" {
		return false
	}
	for i := 1; i < len(args); i++ {
		switch arg := args[i]; arg {
		case "-C", "-c", "--git-dir", "--work-tree":
			i++
		case "push", "fetch", "pull", "ls-remote", "clone":
			return true
		case "remote", "submodule":
			return i+1 < len(args) && args[i+1] == "update"
		default:
			if !strings.HasPrefix(arg, "-") {
				return false
			}
		}
	}
	return false
}

// output is the receiver of one stream.
type output struct {
	skip      int64     // bytes that were delivered before
	w         io.Writer // nil: capture
	captured  []byte
	limit     int64
	size      int64
	truncated bool
	failed    bool // w returned an error, or did not return
}

func newOutput(w io.Writer, limit int64) *output {
	switch {
	case limit == 0:
		limit = DefaultCaptureLimit
	case limit < 0:
		limit = 0
	}
	return &output{w: w, limit: limit}
}

func (o *output) write(p []byte) error {
	if old := min(o.skip, int64(len(p))); old > 0 {
		o.skip -= old
		if p = p[old:]; len(p) == 0 {
			return nil
		}
	}
	o.size += int64(len(p))
	if o.w == nil {
		keep := min(int64(len(p)), o.limit-int64(len(o.captured)))
		o.captured = append(o.captured, p[:keep]...)
		o.truncated = o.truncated || keep < int64(len(p))
		return nil
	}
	before := o.failed
	o.failed = true // should it not return
	n, err := o.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	o.failed = before || err != nil
	return err
}
