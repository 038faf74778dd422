package leasehold

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// failed turns err into an [*Error] of the operation. An *Error is copied, and keeps the operation it names. A provider
// error is classified by its status and shape; its words are left behind. It returns nil for nil.
func failed(op string, err error) *Error {
	if err == nil {
		return nil
	}
	own, _ := err.(*Error)
	var remote *daytona.Error
	if own == nil && errors.As(err, &remote) { // before an *Error in its chain, which the caller's reader returned
		return classify(op, remote)
	}
	if own != nil || errors.As(err, &own) {
		e := *own
		if e.Op == "" {
			e.Op = op
		}
		return &e
	}
	e := &Error{Op: op, Kind: KindIO, cause: err}
	switch {
	case errors.Is(err, errProviderClosed):
		e.Kind, e.Dispatched, e.Message = KindClosed, DispatchedNo, errProviderClosed.Error()
	case errors.Is(err, context.DeadlineExceeded): // first: a context that was told of another's deadline is cancelled
		e.Kind, e.Dispatched = KindTimeout, DispatchedNo
	case errors.Is(err, context.Canceled):
		e.Kind, e.Dispatched = KindCanceled, DispatchedNo
	}
	return e
}

func classify(op string, remote *daytona.Error) *Error {
	e := &Error{
		Op: op, HTTPStatus: remote.Status, RetryAfter: remote.RetryAfter,
		Dispatched: Dispatch(remote.Dispatch), cause: remote.Cause,
	}
	switch remote.Reason {
	case daytona.ReasonInput:
		e.Kind, e.Message = KindInvalid, "an argument cannot be sent"
	case daytona.ReasonConnect:
		e.Kind, e.Retryable, e.Message = KindUnavailable, true, "no connection to the provider"
	case daytona.ReasonLost:
		e.Kind, e.Retryable, e.Message = KindUnavailable, true, "the connection broke before the whole answer"
	case daytona.ReasonTimeout:
		e.Kind, e.Retryable, e.cause = KindTimeout, true, ended(context.DeadlineExceeded, remote.Cause)
	case daytona.ReasonCanceled:
		e.Kind, e.cause = KindCanceled, ended(context.Canceled, remote.Cause)
		switch {
		case errors.Is(remote.Cause, errProviderClosed):
			e.Kind, e.Message = KindClosed, errProviderClosed.Error()
		case errors.Is(remote.Cause, context.DeadlineExceeded): // another context's, of which this one was told
			e.Kind, e.Retryable = KindTimeout, true
		}
	case daytona.ReasonStatus:
		e.status(remote)
	case daytona.ReasonLimit:
		e.Kind, e.Message = KindLimit, "the provider's answer is too large to hold"
	case daytona.ReasonIncomplete:
		e.Kind, e.Retryable, e.Message = KindUnavailable, true, "the provider did not confirm every byte"
	case daytona.ReasonSource:
		e.Kind, e.Message = KindIO, "the reader failed"
	case daytona.ReasonClosed:
		e.Kind = KindClosed
	case daytona.ReasonEnded:
		e.Kind, e.Retryable, e.Message = KindUnavailable, true, "the provider ended the connection"
	default:
		e.Kind, e.Message = KindProtocol, "the provider's answer could not be understood"
	}
	return e
}

// status classifies an error status. Only a 404 in the provider's own shape says that something does not exist.
func (e *Error) status(remote *daytona.Error) {
	switch {
	case remote.NotStarted():
		e.Kind, e.Message = KindNotRunning, "the sandbox is not started"
	case remote.Quota():
		e.Kind = KindQuota
	case remote.NoRunner():
		e.Kind, e.Retryable, e.Message = KindUnavailable, true, "the provider has no room at the moment"
	case remote.Suspended():
		e.Kind, e.Message = KindAuth, "the organisation is suspended"
	case remote.Status == 401, remote.Status == 403:
		e.Kind = KindAuth
	case remote.NotFound():
		e.Kind = KindNotFound
	case remote.Status == 404:
		e.Kind, e.Retryable, e.Message = KindUnavailable, true, "a not-found that is not the provider's own"
	case remote.Status == 409:
		e.Kind, e.Retryable = KindConflict, remote.Pending()
	case remote.Status == 429:
		e.Kind, e.Retryable = KindRateLimited, true
	case remote.Status == 408:
		e.Kind, e.Retryable = KindTimeout, true
	case remote.Status >= 500:
		e.Kind, e.Retryable = KindUnavailable, true
	case remote.Status >= 400:
		e.Kind = KindRefused
	default:
		e.Kind = KindProtocol
	}
}

// ctxError returns why ctx ended, such that both the context's own error and a custom cause can be found in it.
func ctxError(ctx context.Context) error { return ended(ctx.Err(), context.Cause(ctx)) }

// ended joins a context's error and its cause. A cause that has an [*Error] in it, as an errgroup's has, speaks of
// another operation: found in the error of this one, it would say that another sandbox's loss is this one's.
func ended(err, cause error) error {
	switch {
	case errors.As(cause, new(*Error)):
		return err
	case err == nil, errors.Is(cause, err):
		return cause
	}
	return errors.Join(err, cause)
}

// unsent is the error of a call whose context has ended before anything of it was done, and nil if it has not.
func unsent(ctx context.Context, op, sandbox string) error {
	if ctx.Err() == nil {
		return nil
	}
	return ofSandbox(sandbox, failed(op, ctxError(ctx)))
}

// departed is the error for a caller whose context ended while what it asked for goes on without it.
func departed(ctx context.Context, op, sandbox string) *Error {
	e := failed(op, ctxError(ctx))
	e.Sandbox, e.Dispatched = sandbox, DispatchedUnknown
	return e
}

// asked is whether a change was asked for, after one more request for it with this outcome; before says so of those before.
func asked(before Dispatch, err *Error) Dispatch {
	switch {
	case err == nil:
		return DispatchedYes
	case before == DispatchedYes || err.Dispatched == DispatchedNo:
		return before
	}
	return err.Dispatched
}

// afterwards is an error that came after requests for a change, of which sent is what asked says: Error.Dispatched is theirs.
func afterwards(sent Dispatch, err error) error {
	if err == nil || sent == DispatchedNo {
		return err
	}
	e := failed("", err)
	e.Dispatched = sent
	return e
}

// inPhase names the phase in which err happened, if it has none.
func inPhase(phase Phase, err error) error {
	if err == nil {
		return nil
	}
	mapped := failed("", err)
	if mapped.Phase == "" {
		mapped.Phase = phase
	}
	return mapped
}

// ofSandbox names the sandbox that err is about, if it names none.
func ofSandbox(id string, err error) error {
	if err == nil {
		return nil
	}
	mapped := failed("", err)
	if mapped.Sandbox == "" {
		mapped.Sandbox = id
	}
	return mapped
}
