package leasehold

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind classifies an [Error]. The set is closed. Each kind has a sentinel for [errors.Is].
type Kind string

// The kinds of error.
const (
	KindInvalid     Kind = "invalid"      // the caller's input; nothing was sent, unless Dispatched says so
	KindAuth        Kind = "auth"         // the credential was refused (401), or lacks a permission (403)
	KindNotFound    Kind = "not_found"    // the API's own not-found of what was asked for
	KindGone        Kind = "gone"         // the leased sandbox is proved lost
	KindNotOwned    Kind = "not_owned"    // a sandbox with other labels, name or account: nothing was done to it
	KindNotRunning  Kind = "not_running"  // the sandbox is there, and is not started
	KindBroken      Kind = "broken"       // the sandbox is in an error state that it cannot leave
	KindConflict    Kind = "conflict"     // another state change is pending, the name is taken, or files are of another kind
	KindQuota       Kind = "quota"        // an organisation or sandbox limit refused it
	KindRateLimited Kind = "rate_limited" // 429
	KindRefused     Kind = "refused"      // the provider refused the request for another reason (4xx)
	KindUnavailable Kind = "unavailable"  // no answer, or 5xx
	KindTimeout     Kind = "timeout"      // a deadline of the library or of the caller passed
	KindCanceled    Kind = "canceled"     // the caller's context was cancelled
	KindUncertain   Kind = "uncertain"    // what happened could not be proved; see Error.Cleanup
	KindProtocol    Kind = "protocol"     // an answer that could not be understood
	KindUnsafe      Kind = "unsafe"       // an archive or path that would reach outside its target
	KindLimit       Kind = "limit"        // a limit of the library or of the caller was reached
	KindIO          Kind = "io"           // the host's own file, reader or writer failed
	KindStore       Kind = "store"        // the durable record could not be read or written
	KindFenced      Kind = "fenced"       // another owner has taken the durable record over, or removed it
	KindClosed      Kind = "closed"       // the provider, lease or stream was closed
)

// Sentinels, one for each [Kind]: errors.Is(err, ErrGone) is true for an [*Error] of [KindGone].
var (
	ErrInvalid     = errors.New("invalid input")
	ErrAuth        = errors.New("credential refused")
	ErrNotFound    = errors.New("not found")
	ErrGone        = errors.New("sandbox is gone")
	ErrNotOwned    = errors.New("sandbox is not ours")
	ErrNotRunning  = errors.New("sandbox is not running")
	ErrBroken      = errors.New("sandbox is in an error state")
	ErrConflict    = errors.New("conflict")
	ErrQuota       = errors.New("quota exceeded")
	ErrRateLimited = errors.New("rate limited")
	ErrRefused     = errors.New("refused by the provider")
	ErrUnavailable = errors.New("provider unavailable")
	ErrTimeout     = errors.New("timed out")
	ErrCanceled    = errors.New("canceled")
	ErrUncertain   = errors.New("outcome unknown")
	ErrProtocol    = errors.New("unexpected answer")
	ErrUnsafe      = errors.New("unsafe path or archive")
	ErrLimit       = errors.New("limit reached")
	ErrIO          = errors.New("local input or output")
	ErrStore       = errors.New("store unavailable")
	ErrFenced      = errors.New("claim lost")
	ErrClosed      = errors.New("closed")
)

var sentinels = map[Kind]error{
	KindInvalid: ErrInvalid, KindAuth: ErrAuth, KindNotFound: ErrNotFound, KindGone: ErrGone,
	KindBroken: ErrBroken, KindNotOwned: ErrNotOwned, KindNotRunning: ErrNotRunning, KindConflict: ErrConflict, KindQuota: ErrQuota,
	KindRateLimited: ErrRateLimited, KindRefused: ErrRefused, KindUnavailable: ErrUnavailable,
	KindTimeout: ErrTimeout, KindCanceled: ErrCanceled, KindUncertain: ErrUncertain, KindProtocol: ErrProtocol,
	KindUnsafe: ErrUnsafe, KindLimit: ErrLimit, KindIO: ErrIO, KindStore: ErrStore, KindFenced: ErrFenced, KindClosed: ErrClosed,
}

// Dispatch says whether a request, or the command behind it, reached the provider.
type Dispatch string

// The values of [Dispatch]. The zero value means that the question does not arise.
const (
	DispatchedNo      Dispatch = "no"      // provably not
	DispatchedYes     Dispatch = "yes"     // provably, whatever came of it
	DispatchedUnknown Dispatch = "unknown" // sent, or perhaps sent, and never answered
)

// Phase is a step of an operation, for errors. The set is closed.
type Phase string

// The phases. The first five are those of an acquisition.
const (
	PhaseCreate    Phase = "create"    // the sandbox is created, and started by the provider
	PhaseWorkspace Phase = "workspace" // its workspace directory is made
	PhaseShell     Phase = "shell"     // its shell is found
	PhaseExpiry    Phase = "expiry"    // its lifetime is confirmed
	PhaseSentinel  Phase = "sentinel"  // its workspace is marked, or proved, to be the lease's
	PhaseStart     Phase = "start"     // an existing sandbox is started
	PhaseRetain    Phase = "retain"    // automatic deletion is switched off, and read back
	PhaseStop      Phase = "stop"      // the sandbox is stopped
	PhaseArchive   Phase = "archive"   // it is moved to cold storage
	PhaseDelete    Phase = "delete"    // it is deleted

	// Those of an endpoint.
	PhaseLookup     Phase = "lookup"     // the sandbox is read, and proved to be ours
	PhaseState      Phase = "state"      // it must be running
	PhasePreview    Phase = "preview"    // the provider is asked for the address and token, or refuses the token
	PhaseValidation Phase = "validation" // the address and token are checked

	// Those of a snapshot.
	PhaseSubmit Phase = "submit" // its creation is sent
	PhaseBuild  Phase = "build"  // it is built, pulled or captured
)

// Reason is the proof that a sandbox is lost.
type Reason string

// The proofs of loss.
const (
	ReasonNotFound        Reason = "not_found"        // the API's own not-found of the id, under the attested account
	ReasonExpired         Reason = "expired"          // the same, after the lease's confirmed expiry
	ReasonContainerLost   Reason = "container_lost"   // the exact lost-container message for the id, on two reads
	ReasonSentinelMissing Reason = "sentinel_missing" // the sandbox runs, and its workspace is not the lease's
	ReasonSentinelDiffers Reason = "sentinel_differs" // the workspace belongs to another lease
)

// Error is the one error type of the package. Its text and fields never contain a credential, a token or a provider's
// own words, so it may be logged and sent on.
type Error struct {
	Op         string        // what was asked for, such as "acquire" or "run"
	Kind       Kind          // what went wrong
	Phase      Phase         // the step that failed first, where the operation has steps
	Sandbox    string        // id or, before the id is known, name of the sandbox
	HTTPStatus int           // the provider's status, 0 if there was no answer
	Dispatched Dispatch      // whether the failed request, or the change that was waited for, reached the provider
	Retryable  bool          // the same call may succeed later, and repeating it is safe
	RetryAfter time.Duration // the provider's wish, with KindRateLimited or KindUnavailable
	Elapsed    time.Duration // time from the start of the operation to its first failure, where it has a budget
	Budget     time.Duration // that budget
	Reason     Reason        // with KindGone, what proved the loss
	Fields     []FieldError  // with KindInvalid, the problems of the input
	Message    string        // one safe sentence
	// Cleanup is set when a sandbox may exist that the operation could not account for: it is all that is needed to find
	// that sandbox and delete it, and only it. Keep it; [Provider.Inspect], store what that returns, then
	// [Provider.Cleanup]. With [Config.Store] it is on the list as well, and a [Sweeper] sees to it.
	Cleanup *CleanupEnvelope

	cause error // context causes, and the errors of the caller's own readers, writers, files and store
}

// Error returns the operation, the sandbox, the phase and the message.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("leasehold: ")
	b.WriteString(e.Op)
	if e.Sandbox != "" {
		b.WriteString(" ")
		b.WriteString(e.Sandbox)
	}
	if e.Phase != "" {
		b.WriteString(" (")
		b.WriteString(string(e.Phase))
		b.WriteString(")")
	}
	b.WriteString(": ")
	if e.Message != "" {
		b.WriteString(e.Message)
	} else if s := sentinels[e.Kind]; s != nil {
		b.WriteString(s.Error())
	}
	if e.HTTPStatus != 0 {
		fmt.Fprintf(&b, " (HTTP %d)", e.HTTPStatus)
	}
	return b.String()
}

// Is reports whether target is the sentinel of the error's kind.
func (e *Error) Is(target error) bool { return target != nil && sentinels[e.Kind] == target }

// Timeout reports whether the kind is [KindTimeout], for those who look for such a method, as [os.IsTimeout] and
// [net/url.Error.Timeout] do.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout }

// Unwrap returns the cause of a context's end ([context.Canceled], [context.DeadlineExceeded], a custom cause), that of a
// connection's deadline ([os.ErrDeadlineExceeded]), or the error of a reader, a writer, a file or a [Store] of the caller's, as
// it is. Provider errors are never wrapped.
func (e *Error) Unwrap() error { return e.cause }
