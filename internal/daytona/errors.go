package daytona

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Dispatch says whether a request reached the provider.
type Dispatch string

// The values of [Dispatch].
const (
	// DispatchNo: provably not sent. The context ended or the connection failed before one byte could leave.
	DispatchNo Dispatch = "no"
	// DispatchYes: answered, if only by a proxy. A 5xx from a proxy does not prove that the daemon saw the request.
	DispatchYes Dispatch = "yes"
	// DispatchUnknown: a connection was there, and no answer came.
	DispatchUnknown Dispatch = "unknown"
)

// Reason says in one word why a call failed. The set is closed.
type Reason string

// The reasons.
const (
	ReasonInput      Reason = "input"      // an argument that cannot be sent; nothing was
	ReasonConnect    Reason = "connect"    // no connection (name, TCP, TLS, HTTP proxy); nothing was sent
	ReasonLost       Reason = "lost"       // the connection ended before the answer, or in the middle of it
	ReasonTimeout    Reason = "timeout"    // the context's deadline passed
	ReasonCanceled   Reason = "canceled"   // the context was cancelled
	ReasonStatus     Reason = "status"     // the answer was an error status
	ReasonDecode     Reason = "decode"     // a successful answer that could not be understood
	ReasonLimit      Reason = "limit"      // an answer that is larger than this package holds in memory
	ReasonIncomplete Reason = "incomplete" // an upload whose reply does not confirm every byte
	ReasonSource     Reason = "source"     // the caller's reader failed; Cause is its error
	ReasonClosed     Reason = "closed"     // the stream or the client was closed on this side
	ReasonEnded      Reason = "ended"      // the peer closed a websocket with a code that is no regular end; see CloseCode
)

// Error is the error of every call. Its text holds no provider text, no URL and no credential.
type Error struct {
	Op     string // one of the Op constants
	Reason Reason
	Status int // HTTP status of the answer, also of a refused websocket handshake; 0 without an answer
	// Structured: the body had the shape that the API (sandbox calls) or the daemon (toolbox calls) gives its own errors,
	// and repeated the status. A page that a proxy invented, or an empty body, is not structured.
	Structured bool
	Code       string        // the daemon's machine-readable code, such as REQUEST_TIMEOUT
	Message    string        // provider text, at most 4 KiB: for classification only, never shown
	RetryAfter time.Duration // from Retry-After, 0 if absent
	Dispatch   Dispatch
	CloseCode  int   // websocket close code, 0 if none was received
	Cause      error // what ended the context ([context.Cause]), or the caller's own reader's error with ReasonSource
}

// Error names the operation and the reason.
func (e *Error) Error() string {
	s := "daytona: " + e.Op + ": " + string(e.Reason)
	if e.Status != 0 {
		s += fmt.Sprintf(" (HTTP %d)", e.Status)
	}
	if e.CloseCode != 0 {
		s += fmt.Sprintf(" (websocket %d)", e.CloseCode)
	}
	return s
}

// Unwrap returns Cause.
func (e *Error) Unwrap() error { return e.Cause }

// asError turns a nil *Error into a nil error.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}

// wording is a text by which the provider's errors are told apart, where it offers no code.
type wording struct {
	status []int  // the statuses it comes with
	text   string // part of the message, compared without case
}

// The wordings, each with the component and version it was measured on. A change of the provider's words is repaired
// here and nowhere else.
var (
	// API v0.190: start, stop and delete while another change runs; and the lost race between two of them.
	wordPending = []wording{{[]int{409}, "state change in progress"}, {[]int{409}, "modified by another operation"}}
	// API v0.190: POST /sandbox, "Sandbox with name X already exists".
	wordNameTaken = []wording{{[]int{409}, "already exists"}}
	// API v0.190: "Total CPU limit exceeded. Maximum allowed: 10."; per sandbox "Disk request 20GB exceeds maximum
	// allowed per sandbox (10GB)". Measured as 400; the exception in its source is a 403.
	wordQuota = []wording{
		{[]int{400, 403}, "limit exceeded. maximum allowed"}, {[]int{400, 403}, "exceeds maximum allowed per sandbox"},
		// The same for snapshots, as its source words them.
		{[]int{400, 403}, "quota exceeded. maximum allowed"}, {[]int{403}, "exceeds the maximum allowed snapshot size"},
	}
	// API v0.190: POST /sandbox, start and recover in an organisation that may only stop and delete what it has.
	wordSuspended = []wording{{[]int{403}, "organization is suspended"}}
	// API v0.190: no machine has room at the moment.
	wordNoRunner = []wording{{[]int{400}, "no available runners"}}
	// API v0.190: POST /sandbox and start; the runner failed, and a sandbox in state error is left behind.
	wordStartFailed = []wording{{[]int{400}, "sandbox failed to start"}}
	// Proxy v0.190, stopped and destroying alike: "bad request: no IP address found. Is the Sandbox started?".
	wordNotStarted = []wording{{[]int{400}, "is the sandbox started?"}}
	// Proxy v0.190: a preview request without a valid token, where the proxy has no login page to send it to.
	wordPreviewRefused = []wording{{[]int{401}, "authentication failed"}, {[]int{401}, "missing authentication"}}
	// Proxy v0.190: the API still knows the sandbox, its container is gone.
	wordContainerGone = []wording{{[]int{404}, "sandbox container not found"}}
	// Daemon v0.190: the status read hit the exit file between creation and write,
	// `failed to convert exit code to int: strconv.Atoi: parsing "": invalid syntax`.
	wordNotYet = []wording{{[]int{500}, "failed to convert exit code"}}
	// Daemon v0.190: exec in an unknown session is a 500, "failed to execute command: not found: session not found".
	wordSessionMissing = []wording{{[]int{500, 404}, "session not found"}}
	// Daemon v0.190: exec in a session whose shell has died, "failed to execute command: write |1: broken pipe". The
	// command is in the session's list all the same.
	wordShellGone = []wording{{[]int{500}, "broken pipe"}}
	// Linux, through the daemon's file calls: ENOSPC, EDQUOT, EFBIG.
	wordNoSpace = []wording{
		{[]int{400, 500, 507}, "no space left on device"}, {[]int{400, 500, 507}, "disk quota exceeded"}, {[]int{400, 500, 507}, "file too large"},
	}
	// The same of ENOTDIR: "/f/x: mkdir /f: not a directory".
	wordNotDirectory = []wording{{[]int{400, 500}, ": not a directory"}}
	// NestJS, when a path has no handler at all: the base URL is wrong, and nothing is known about the sandbox.
	wordNoRoute = []wording{{[]int{404}, "cannot get /"}, {[]int{404}, "cannot post /"}, {[]int{404}, "cannot put /"}, {[]int{404}, "cannot delete /"}}
)

func (e *Error) says(words []wording) bool {
	if e.Message == "" {
		return false
	}
	message := strings.ToLower(e.Message)
	for _, w := range words {
		for _, status := range w.status {
			if e.Status == status && strings.Contains(message, w.text) {
				return true
			}
		}
	}
	return false
}

// NotFound reports a 404 in the provider's own shape that speaks of what was asked for. It is never true for a proxy's
// page, an empty body, a path the API does not serve, or a lost container. Note that the API answers so, too, for what
// the credential may not see.
func (e *Error) NotFound() bool {
	if e.Status != http.StatusNotFound || !e.Structured || e.says(wordNoRoute) || e.ContainerGone() {
		return false
	}
	// The API's wording is "Sandbox with ID or name X not found"; the daemon's messages start with "not found:".
	return strings.Contains(strings.ToLower(e.Message), "not found") || e.Code == CodeFileNotFound
}

// CodeFileNotFound is the daemon's code for a missing file in a bulk download ([Toolbox.ReadFile]).
const CodeFileNotFound = "FILE_NOT_FOUND"

// Unauthorized reports a 401. The control plane means the credential; the toolbox proxy answers so for an unknown
// sandbox, too.
func (e *Error) Unauthorized() bool { return e.Status == http.StatusUnauthorized }

// Forbidden reports a 403 that is not a quota.
func (e *Error) Forbidden() bool { return e.Status == http.StatusForbidden && !e.Quota() }

// Suspended reports that the credential's organisation is suspended.
func (e *Error) Suspended() bool { return e.says(wordSuspended) }

// RateLimited reports a 429. RetryAfter says how long to wait, if the provider did.
func (e *Error) RateLimited() bool { return e.Status == http.StatusTooManyRequests }

// Pending reports that another state change of the sandbox runs: read it again, and repeat later.
func (e *Error) Pending() bool {
	switch e.Op {
	case OpStart, OpStop, OpArchive, OpRecover, OpDelete, OpSetAutoDelete:
		return e.Status == http.StatusConflict
	}
	return e.says(wordPending)
}

// NameTaken reports that a sandbox or snapshot of that name exists, in whatever state.
func (e *Error) NameTaken() bool {
	switch e.Op {
	case OpCreate, OpCreateSnapshot, OpCapture:
		return e.says(wordNameTaken)
	}
	return false
}

// Quota reports that a limit of the organisation, or of one sandbox, refused the request.
func (e *Error) Quota() bool { return e.says(wordQuota) }

// NoRunner reports that the provider has no machine with room at the moment.
func (e *Error) NoRunner() bool { return e.says(wordNoRunner) }

// StartFailed reports that the runner failed: after a creation, a sandbox in state error is left behind, with its name.
func (e *Error) StartFailed() bool { return e.says(wordStartFailed) }

// NotStarted reports that the toolbox cannot be reached because the sandbox is not started, or is being destroyed.
func (e *Error) NotStarted() bool {
	return e.says(wordNotStarted) || e.Status == http.StatusBadRequest && e.Code == "SANDBOX_NOT_RUNNING"
}

// ContainerGone reports the proxy's statement that the container behind the sandbox is lost. Only a fresh read of the
// sandbox proves it: see [Sandbox.ContainerLost].
func (e *Error) ContainerGone() bool { return e.Structured && e.says(wordContainerGone) }

// NotYet reports the daemon's answer to a status read while the exit code was being written: ask again.
func (e *Error) NotYet() bool { return e.says(wordNotYet) }

// SessionMissing reports that the daemon does not know the session.
func (e *Error) SessionMissing() bool {
	return !isPTY(e.Op) && e.Structured && e.says(wordSessionMissing)
}

// ShellGone reports that the session's shell has died. What this request submitted did not reach it, and nothing will any
// more; an earlier delivery of the same request may have.
func (e *Error) ShellGone() bool {
	return e.Op == OpStartCommand && e.Structured && e.says(wordShellGone)
}

// NoSpace reports that the sandbox's disk, quota or file size limit is exhausted, as far as the daemon said so.
func (e *Error) NoSpace() bool { return e.says(wordNoSpace) }

// NotDirectory reports that something else is where a path needs a directory, as far as the daemon said so.
func (e *Error) NotDirectory() bool { return e.says(wordNotDirectory) }

// maxMessage bounds the provider text that an Error keeps.
const maxMessage = 4 << 10

// reply is what an error body says.
type reply struct {
	structured bool
	code       string
	message    string
}

// parseReply reads the body of an error answer to op. The shapes:
//
//	API              {"path","timestamp","statusCode","error","message"}
//	API, bad JSON    {"statusCode","error","message"}: not taken as structured
//	daemon, proxy    {"statusCode","message","code","timestamp","path","method"}, or without code and method for a 500
//	daemon, PTY      {"error"}
//	daemon, uploads  {"errors":[...],"files":[...]}
//	daemon, files    nothing
//
// Bodies of other shapes give nothing: no wording is searched in a proxy's page.
func parseReply(op string, status int, body []byte) reply {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return reply{}
	}
	text := func(key string) (string, bool) {
		var s string
		err := json.Unmarshal(fields[key], &s)
		return s, err == nil
	}
	var number int
	sameStatus := json.Unmarshal(fields["statusCode"], &number) == nil && number == status
	message, hasMessage := text("message")
	code, _ := text("code")
	path, hasPath := text("path")
	_, hasMethod := text("method")
	_, hasTime := text("timestamp")
	short, hasShort := text("error")

	r := reply{code: cut(code, 128), message: cut(message, maxMessage)}
	switch {
	case onControlPlane(op):
		r.structured = sameStatus && hasMessage && hasPath && path != "" && hasTime && hasShort
	case op == OpPreview: // services answer, too, and may say some of it
		r.structured = sameStatus && hasMessage && hasTime && path != "" && hasMethod
	case hasMessage:
		r.structured = sameStatus && hasTime
	case isPTY(op) && hasShort && len(fields) == 1:
		r.structured, r.message = true, cut(short, maxMessage)
	case op == OpUpload:
		var list []string
		if json.Unmarshal(fields["errors"], &list) == nil && len(list) > 0 {
			r.structured, r.message = true, cut(strings.Join(list, "\n"), maxMessage)
		}
	}
	return r
}

func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// retryAfter reads a Retry-After header, in seconds or as a date: of the answerer's clock, which may be hours off ours, so
// that the answer's own Date is what it counts from. now stands in for an answer without one.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(v, 64); err == nil {
		// Neither NaN nor a wait of years is a wish that anybody can follow.
		if !(seconds > 0) {
			return 0
		}
		return time.Duration(min(seconds, 24*60*60) * float64(time.Second))
	}
	if at, err := http.ParseTime(v); err == nil {
		if date, err := http.ParseTime(h.Get("Date")); err == nil {
			now = date
		}
		return min(max(at.Sub(now), 0), 24*time.Hour)
	}
	return 0
}
