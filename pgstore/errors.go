package pgstore

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"syscall"

	"github.com/leasehold-go/leasehold"
)

// errHolderUnknown is why a claim is tried again: the record was taken by an owner that the statement cannot see yet.
var errHolderUnknown = errors.New("the record's owner is new")

var stateForm = regexp.MustCompile(`^[0-9A-Z]{5}$`)

// sqlState returns the SQLSTATE of a driver's error, or an empty string. Drivers agree on the method that has it.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) && stateForm.MatchString(e.SQLState()) {
		return e.SQLState()
	}
	return ""
}

// rolledBack reports whether the transaction was rolled back in favour of another, so that it may be tried again.
func rolledBack(err error) bool {
	switch sqlState(err) {
	case "40001", // serialization_failure
		"40P01", // deadlock_detected
		"23503": // foreign_key_violation: the owner's row was forgotten at this moment
		return true
	}
	return errors.Is(err, errHolderUnknown)
}

// fault turns the error of a query into one of the store. A driver's own words are left behind: they may name the
// server and hold what was sent to it.
func fault(ctx context.Context, op string, err error) error {
	e := &leasehold.Error{Op: op, Kind: leasehold.KindStore, Retryable: true}
	if ended := ctx.Err(); ended != nil {
		e.Kind, e.Retryable = leasehold.KindCanceled, false
		if errors.Is(ended, context.DeadlineExceeded) {
			e.Kind = leasehold.KindTimeout
		}
		causes := []error{e, ended}
		if cause := context.Cause(ctx); !errors.As(cause, new(*leasehold.Error)) { // that would speak of another operation
			causes = append(causes, cause)
		}
		return &endedError{err: e, causes: causes}
	}
	var errno syscall.Errno
	state := sqlState(err)
	switch {
	case errors.Is(err, errHolderUnknown):
		e.Message = "other owners kept taking the record"
	case state == "42P01", state == "3F000":
		e.Message = "the store's tables do not exist: see Migrate"
	case state == "42501":
		e.Message = "the database role lacks a privilege"
	case state != "":
		e.Message = "the database refused it, or ended"
	case errors.As(err, &errno):
		e.Message = "no answer from the database: " + errno.Error()
	default:
		e.Message = "no answer from the database"
	}
	if state != "" {
		e.Message += " (SQLSTATE " + state + ")"
		e.Retryable = !slices.Contains(permanentClasses, state[:2])
	}
	return e
}

// permanentClasses are the classes of SQLSTATE that say that the same call will fail again: bad data, violated
// constraint, bad authorization, no such database or schema, bad syntax or access rule.
var permanentClasses = []string{"22", "23", "28", "3D", "3F", "42"}

// endedError is an error of the store with those of the context that ended the call.
type endedError struct {
	err    *leasehold.Error
	causes []error
}

func (e *endedError) Error() string { return e.err.Error() }

// Unwrap returns the [*leasehold.Error], the context's error and, if there is one, its cause.
func (e *endedError) Unwrap() []error { return e.causes }
