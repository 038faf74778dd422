package daytona

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The operations: the closed set of values of [Error.Op] and [Call.Op].
const (
	OpNew             = "new"
	OpCreate          = "create"
	OpGet             = "get"
	OpList            = "list"
	OpStart           = "start"
	OpStop            = "stop"
	OpArchive         = "archive"
	OpRecover         = "recover"
	OpDelete          = "delete"
	OpSetAutoDelete   = "set_auto_delete"
	OpPreviewURL      = "preview_url"
	OpSignPreview     = "preview_sign"
	OpExpirePreview   = "preview_expire"
	OpPreview         = "preview"
	OpCreateSSH       = "ssh_create"
	OpRevokeSSH       = "ssh_revoke"
	OpCreateSnapshot  = "snapshot_create"
	OpCapture         = "snapshot_capture"
	OpGetSnapshot     = "snapshot_get"
	OpDeleteSnapshot  = "snapshot_delete"
	OpBuildLogURL     = "snapshot_log_url"
	OpBuildLog        = "snapshot_log"
	OpExecute         = "execute"
	OpCreateSession   = "session_create"
	OpDeleteSession   = "session_delete"
	OpSessionCommands = "session_commands"
	OpStartCommand    = "command_start"
	OpCommand         = "command_status"
	OpLogs            = "command_logs"
	OpFollow          = "command_follow"
	OpUpload          = "file_upload"
	OpDownload        = "file_download"
	OpReadFile        = "file_read"
	OpCreatePTY       = "pty_create"
	OpConnectPTY      = "pty_connect"
	OpDescribePTY     = "pty_describe"
	OpResizePTY       = "pty_resize"
	OpDeletePTY       = "pty_delete"
)

// onControlPlane reports whether op is answered by the API rather than by a sandbox's daemon.
func onControlPlane(op string) bool {
	switch op {
	case OpCreate, OpGet, OpList, OpStart, OpStop, OpArchive, OpRecover, OpDelete, OpSetAutoDelete, OpPreviewURL,
		OpSignPreview, OpExpirePreview, OpCreateSSH, OpRevokeSSH, OpCreateSnapshot, OpCapture, OpGetSnapshot, OpDeleteSnapshot, OpBuildLogURL:
		return true
	}
	return false
}

func isPTY(op string) bool { return strings.HasPrefix(op, "pty_") }

// Call describes one finished call. A stream is finished when it was closed, failed or reached its end.
type Call struct {
	Op        string
	Method    string // HTTP method; empty if nothing was sent
	Status    int
	Start     time.Time
	Duration  time.Duration
	Sent      int64 // body bytes, or websocket bytes with their frames
	Received  int64
	WebSocket bool
	Err       *Error // nil on success
}

// call is the record of one call. It travels in the request's context, the transport fills it, and the outcome is read
// from it: the clients above the transport flatten errors into text.
type call struct {
	op     string
	owner  any
	start  time.Time
	limit  int64 // of the successful body that is read whole; 0: a stream, not limited
	quiet  bool  // does not count as activity of the sandbox
	bare   bool  // without the SDK's version header
	socket bool

	sent, received atomic.Int64
	asked          atomic.Bool // the base transport was asked for a connection, so it reports through httptrace
	connected      atomic.Bool // it got one: from here on the request may have been sent
	closed         atomic.Bool // closed on this side
	observed       atomic.Bool

	mu      sync.Mutex // guards what follows
	method  string
	entered bool  // the request reached our transport with a live context
	sendErr error // no answer
	bodyErr error // the answer broke off
	source  error // the caller's reader failed
	status  int
	reply   reply // of an error answer
	retry   time.Duration
}

type callKey struct{}

// maxReply bounds an answer that is held in memory. The largest are the outputs of Execute.
const maxReply = 64 << 20

func (c *Client) begin(ctx context.Context, op string) (context.Context, *call) {
	k := &call{op: op, owner: c.owner, start: time.Now(), limit: c.limit, quiet: ctx.Value(quietKey{}) != nil}
	return context.WithValue(ctx, callKey{}, k), k
}

// do makes one call whose answer f reads whole. The error of f matters only where the record is clean: then the answer
// could not be understood.
func (c *Client) do(ctx context.Context, op string, f func(context.Context) error) error {
	ctx, k := c.begin(ctx, op)
	e := k.outcome(ctx, f(ctx))
	c.observe(k, e)
	return asError(e)
}

// observe reports the call, once.
func (c *Client) observe(k *call, e *Error) {
	if c.config.Observe == nil || !k.observed.CompareAndSwap(false, true) {
		return
	}
	k.mu.Lock()
	method, status := k.method, k.status
	k.mu.Unlock()
	c.config.Observe(Call{
		Op: k.op, Method: method, Status: status, Start: k.start, Duration: time.Since(k.start),
		Sent: k.sent.Load(), Received: k.received.Load(), WebSocket: k.socket, Err: e,
	})
}

// outcome judges the call. err is what the client above the transport returned.
func (k *call) outcome(ctx context.Context, err error) *Error {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := &Error{Op: k.op, Status: k.status, Dispatch: DispatchYes}
	switch {
	case errors.As(err, new(*Error)):
		errors.As(err, &e)
		return e
	case k.source != nil:
		e.Reason, e.Cause = ReasonSource, k.source
		if k.status == 0 {
			e.Dispatch = k.dispatch()
		}
	case k.sendErr != nil:
		e.Status, e.Dispatch = 0, k.dispatch()
		switch {
		case k.ended(ctx, e):
		case e.Dispatch == DispatchNo:
			e.Reason = ReasonConnect
		default:
			e.Reason = ReasonLost
		}
	case k.status == 0 && err != nil:
		// Nothing came as far as the transport: the client above could not even build the request.
		e.Reason, e.Dispatch = ReasonInput, DispatchNo
		k.ended(ctx, e)
	case k.status >= 300:
		e.Reason = ReasonStatus
		e.Structured, e.Code, e.Message, e.RetryAfter = k.reply.structured, k.reply.code, k.reply.message, k.retry
	case k.closed.Load() && err != nil:
		e.Reason = ReasonClosed
	case errors.Is(k.bodyErr, errTooLarge):
		e.Reason = ReasonLimit
	case k.bodyErr != nil:
		if !k.ended(ctx, e) {
			e.Reason = ReasonLost
		}
	case err != nil:
		e.Reason = ReasonDecode
	default:
		return nil
	}
	return e
}

// ended marks e as the context's doing, if the context ended.
func (k *call) ended(ctx context.Context, e *Error) bool {
	if ctx.Err() == nil {
		return false
	}
	e.Reason, e.Cause = ReasonCanceled, context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Reason = ReasonTimeout
	}
	return true
}

// dispatch judges a call without an answer. That no connection was obtained is a proof only if the base transport
// reports connections at all, which an http.Transport does and a caller's own RoundTripper may not.
func (k *call) dispatch() Dispatch {
	if !k.entered || k.asked.Load() && !k.connected.Load() {
		return DispatchNo
	}
	return DispatchUnknown
}

type quietKey struct{}

// Quiet returns a context whose toolbox calls do not count as activity of the sandbox, so that they do not postpone its
// auto-stop (header X-Daytona-Skip-Last-Activity-Update of the proxy).
func Quiet(ctx context.Context) context.Context { return context.WithValue(ctx, quietKey{}, true) }

var errTooLarge = errors.New("answer too large")

// errReply is a successful answer that makes no sense.
var errReply = errors.New("unexpected answer")

// badInput is an argument that cannot be sent.
func badInput(op string) *Error { return &Error{Op: op, Reason: ReasonInput, Dispatch: DispatchNo} }

// replyBody is the body of a successful answer: it counts, bounds and remembers how it ended.
type replyBody struct {
	io.ReadCloser
	k   *call
	end func(settled bool)
}

func (b *replyBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	total := b.k.received.Add(int64(n))
	if b.k.limit > 0 && total > b.k.limit {
		err = errTooLarge
	}
	if err != nil && err != io.EOF {
		b.k.mu.Lock()
		b.k.bodyErr = err
		b.k.mu.Unlock()
	}
	if err != nil {
		b.end(true)
	}
	return n, err
}

func (b *replyBody) Close() error {
	defer b.end(true)
	return b.ReadCloser.Close()
}

// socketBody is the connection behind a websocket. Its Write makes it fit for one.
type socketBody struct {
	io.ReadWriteCloser
	k   *call
	end func(settled bool)
}

func (b *socketBody) Close() error {
	defer b.end(true)
	return b.ReadWriteCloser.Close()
}

func (b *socketBody) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	b.k.received.Add(int64(n))
	return n, err
}

func (b *socketBody) Write(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Write(p)
	b.k.sent.Add(int64(n))
	return n, err
}

// sentBody counts what the transport takes from a request body.
type sentBody struct {
	io.ReadCloser
	k *call
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.k.sent.Add(int64(n))
	return n, err
}
