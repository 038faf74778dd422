package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold"
)

// problem is an error as it is answered, in the form of RFC 9457.
type problem struct {
	Status     int                `json:"status"`
	Title      string             `json:"title"`
	Detail     string             `json:"detail"`
	Kind       leasehold.Kind     `json:"kind,omitempty"`       // of the library's errors
	Dispatched leasehold.Dispatch `json:"dispatched,omitempty"` // whether a command may have run
	Retryable  bool               `json:"retryable,omitempty"`
	retryAfter time.Duration
}

func (p *problem) Error() string { return p.Detail }

func refusal(status int, detail string) error { return &problem{Status: status, Detail: detail} }
func invalid(detail string) error             { return refusal(http.StatusBadRequest, detail) }

var (
	errUnauthorized = &problem{Status: http.StatusUnauthorized, Detail: "a valid bearer token is needed"}
	errBody         = &problem{Status: http.StatusBadRequest, Detail: "a GET has no body here"}
	errNoLease      = refusal(http.StatusNotFound, "there is no such lease")
	errHistory      = refusal(http.StatusTooManyRequests, "the lease has had as many commands as it may")
	errNoCommand    = refusal(http.StatusNotFound, "there is no such command")
	errEnding       = &problem{Status: http.StatusServiceUnavailable, Detail: "the service is ending", Retryable: true, retryAfter: 5 * time.Second}
)

func tooMany(what string) error {
	return &problem{Status: http.StatusTooManyRequests, Detail: "as many " + what + " as a tenant may have", Retryable: true, retryAfter: time.Second}
}

// statuses are those of the library's errors. 502 is what the sandboxes' provider did wrong.
var statuses = map[leasehold.Kind]int{
	leasehold.KindInvalid: http.StatusBadRequest, leasehold.KindIO: http.StatusBadRequest,
	leasehold.KindUnsafe: http.StatusUnprocessableEntity, leasehold.KindLimit: http.StatusRequestEntityTooLarge,
	leasehold.KindNotFound: http.StatusNotFound, leasehold.KindGone: http.StatusGone,
	leasehold.KindNotRunning: http.StatusConflict, leasehold.KindConflict: http.StatusConflict,
	leasehold.KindBroken: http.StatusConflict, leasehold.KindClosed: http.StatusConflict,
	leasehold.KindFenced: http.StatusConflict, leasehold.KindNotOwned: http.StatusConflict,
	leasehold.KindQuota: http.StatusInsufficientStorage, leasehold.KindRateLimited: http.StatusTooManyRequests,
	leasehold.KindUnavailable: http.StatusServiceUnavailable, leasehold.KindStore: http.StatusServiceUnavailable,
	leasehold.KindCanceled: http.StatusServiceUnavailable, leasehold.KindTimeout: http.StatusGatewayTimeout,
	leasehold.KindAuth: http.StatusBadGateway, leasehold.KindRefused: http.StatusBadGateway,
	leasehold.KindUncertain: http.StatusBadGateway, leasehold.KindProtocol: http.StatusBadGateway,
}

// problemOf returns what a client is told of err. The library's errors may be shown as they are; of any other only that there
// was one. Where a sandbox may be left behind the client need not know: it is on the list, and the sweeper sees to it.
func problemOf(err error) *problem {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &problem{Status: http.StatusRequestEntityTooLarge, Detail: "the body is over " + strconv.FormatInt(large.Limit, 10) + " bytes"}
	}
	if own, ok := errors.AsType[*problem](err); ok {
		return own
	}
	if failed, ok := errors.AsType[*leasehold.Error](err); ok {
		return &problem{
			Status: cmp.Or(statuses[failed.Kind], http.StatusBadGateway), Detail: failed.Error(), Kind: failed.Kind, Dispatched: failed.Dispatched,
			Retryable: failed.Retryable, retryAfter: failed.RetryAfter,
		}
	}
	return &problem{Status: http.StatusInternalServerError, Detail: "the service failed"}
}

// fail answers with an error, unless the answer has begun.
func (s *service) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		s.log.Warn("a request failed", "route", r.Pattern, "status", p.Status, "err", err)
	}
	writeProblem(w, p)
}

func writeProblem(w http.ResponseWriter, p *problem) {
	answer := *p
	answer.Title = http.StatusText(p.Status)
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((p.retryAfter+time.Second-1)/time.Second)))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(answer)
}

func writeJSON(w http.ResponseWriter, status int, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
	return nil
}
