package main

import (
	"encoding/json"
	"errors"
	"regexp"

	"github.com/leasehold-go/leasehold"
)

// Error codes of the protocol.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeWorker         = -32002 // a method failed
	codeNotImplemented = -32004 // the protocol knows the method, this worker does not have it
)

// rpcError is an error as it crosses. The host shows its message to users.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }

func invalidParams(text string) error { return &rpcError{Code: codeInvalidParams, Message: text} }

// toRPC returns what the host is told of err. The library's errors are safe to send on as they are; of any other error
// only that there was one.
func toRPC(err error) *rpcError {
	if own, ok := errors.AsType[*rpcError](err); ok {
		return own
	}
	failed, ok := errors.AsType[*leasehold.Error](err)
	if !ok {
		return &rpcError{Code: codeWorker, Message: "the call failed inside the worker"}
	}
	return &rpcError{Code: codeWorker, Message: messageOf(failed)}
}

// withData returns err with an envelope beside its message. data may be nil.
func withData(err error, data any) error {
	failed := *toRPC(err)
	failed.Data = data
	return &failed
}

// The host repeats a resume that failed with one of these words in its message: nothing else of an error tells it.
var transient = regexp.MustCompile(`(?i)timeout|timed out|rate limit|temporar|network|connection reset|service unavailable`)

// messageOf returns the error's text, with a word that makes the host try again exactly if that may help.
func messageOf(err *leasehold.Error) string {
	text := err.Error()
	switch {
	case err.Retryable && !transient.MatchString(text):
		return text + " (temporary)"
	case !err.Retryable && transient.MatchString(text):
		return err.Op + ": " + string(err.Kind) + ": it did not succeed, and may not if it is repeated"
	}
	return text
}

// syncError is the envelope of a failed environmentSyncOut. It is diagnostic: nothing is decided by it.
type syncError struct {
	Schema     string         `json:"schema"`
	Diagnostic syncDiagnostic `json:"diagnostic"`
}

type syncDiagnostic struct {
	ErrorCode   string `json:"errorCode"`
	HTTPStatus  int    `json:"httpStatus,omitempty"`
	Step        string `json:"transferStep,omitempty"`
	FailureKind string `json:"transferFailureKind,omitempty"`
}

// syncOutError returns err as the host wants it of an export. That the sandbox is gone, and with it what was not yet
// exported, has a message of its own.
func syncOutError(err error) error {
	failed, ok := errors.AsType[*leasehold.Error](err)
	if !ok {
		return err
	}
	if failed.Kind == leasehold.KindGone {
		return &rpcError{Code: codeWorker, Message: "daytona_sandbox_not_found"}
	}
	d := syncDiagnostic{ErrorCode: "unknown"}
	switch failed.Kind {
	case leasehold.KindNotFound:
		d.ErrorCode, d.Step = "ENOENT", "sandbox_guard"
	case leasehold.KindQuota:
		d.ErrorCode, d.Step = "ENOSPC", "archive_create"
	case leasehold.KindUnsafe:
		d.Step, d.FailureKind = "archive_validate", "unsafe_archive"
	case leasehold.KindNotRunning:
		d.Step = "sandbox_access"
	case leasehold.KindTimeout:
		d.ErrorCode = "ETIMEDOUT"
	}
	if failed.HTTPStatus >= 400 && failed.HTTPStatus <= 599 {
		d.HTTPStatus = failed.HTTPStatus
	}
	if d == (syncDiagnostic{ErrorCode: "unknown"}) {
		return err
	}
	return withData(err, syncError{Schema: "paperclip/environment-sync-error/v1", Diagnostic: d})
}

// decode reads params into a value, and names the field that is wrong.
func decode[P any](params json.RawMessage) (P, error) {
	var p P
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	if err := json.Unmarshal(params, &p); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			return p, invalidParams("params." + wrong.Field + " has the wrong type")
		}
		return p, invalidParams("params are not what the method takes")
	}
	return p, nil
}
