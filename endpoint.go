package leasehold

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Endpoint is an authenticated address of one port of a lease's sandbox, for HTTP and WebSocket. It ends with the lease.
// It is safe for concurrent use. Printed, logged or encoded it does not show its token.
//
// [Endpoint.Client], [Endpoint.Transport] and [Endpoint.DialWebSocket] see to the token. A host that hands the address on
// takes [Endpoint.URL], [Endpoint.SecretHeader] and [Endpoint.Generation].
type Endpoint struct {
	l          *Lease
	port       int
	address    *url.URL // validated; the token is not part of it
	grant      atomic.Pointer[endpointGrant]
	refreshing chan struct{} // holds one token: taken by whoever asks for a new grant
}

// endpointGrant is what the provider gives out for an endpoint, and takes back when it likes.
type endpointGrant struct {
	token      string
	generation string
}

// endpointAttempts bounds how often the provider is asked for one endpoint.
const endpointAttempts = 3

// Endpoint asks the provider for the address of a port of the sandbox, 1 to 65535. Nothing need listen there yet:
// until something does, the provider's proxy answers in its place, on the embedded backend with 502. It takes two requests,
// and proves that the sandbox is the lease's and runs; it does not start it.
//
// Errors name the step that failed, [PhaseLookup], [PhaseState], [PhasePreview] or [PhaseValidation], and the HTTP status.
// Only a rate limit and a 5xx that provably came before any token was given out are tried again, three times in all and
// within [Config.Timeout].
// It fails with [ErrInvalid] for a bad port, before anything is sent, with [ErrClosed] once the lease is being given back,
// with [ErrNotRunning] if the sandbox is not started, and with [ErrProtocol] if the address is not one that this package
// would send a token to: it must be https (on the embedded backend: its own), be the port's and sandbox's own host, and
// carry neither user information nor a query nor a fragment.
func (l *Lease) Endpoint(ctx context.Context, port int) (_ *Endpoint, err error) {
	const op = "endpoint"
	ctx, span := l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := checkPort(op, port); err != nil {
		return nil, err
	}
	done, err := l.begin(op)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := l.whileOpen(ctx)
	defer cancel()
	address, grant, failure := l.endpoint(ctx, op, port)
	if failure != nil {
		return nil, l.orClosed(failure)
	}
	e := &Endpoint{l: l, port: port, address: address, refreshing: make(chan struct{}, 1)}
	e.grant.Store(grant)
	return e, nil
}

func checkPort(op string, port int) error {
	var p problems
	if port < 1 || port > 65535 {
		p.add("port", "is %d: it must be 1 to 65535", port)
	}
	return p.err(op)
}

// orClosed turns an error into that of a lease that is being given back, if it is.
func (l *Lease) orClosed(err *Error) *Error {
	cause := l.ended()
	if cause == nil {
		return err
	}
	return &Error{Op: err.Op, Kind: KindClosed, Sandbox: l.ref.Sandbox, Dispatched: err.Dispatched, Message: cause.Error()}
}

// endpoint asks for an address and a grant, within the attempts and Config.Timeout.
func (l *Lease) endpoint(ctx context.Context, op string, port int) (*url.URL, *endpointGrant, *Error) {
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.Timeout)
	defer cancel()
	var pause backoff
	for attempt := 1; ; attempt++ {
		address, grant, again, err := l.endpointTry(ctx, op, port)
		if err == nil {
			return address, grant, nil
		}
		err.Sandbox = l.ref.Sandbox
		if !again || attempt == endpointAttempts || pause.wait(ctx, err.RetryAfter) != nil {
			return nil, nil, err
		}
	}
}

// endpointTry is one attempt. again says that it failed with a rate limit or a 5xx before a token was given out.
func (l *Lease) endpointTry(ctx context.Context, op string, port int) (_ *url.URL, _ *endpointGrant, again bool, _ *Error) {
	fail := func(phase Phase, again bool, err *Error) (*url.URL, *endpointGrant, bool, *Error) {
		err.Op, err.Phase = op, phase
		return nil, nil, again && (err.HTTPStatus == http.StatusTooManyRequests || err.HTTPStatus >= 500), err
	}
	if l.resolved() == nil {
		if err := l.claim(ctx); err != nil {
			return fail(PhaseLookup, false, failed(op, err))
		}
	}
	sb, failure := l.p.lookOnce(ctx, op, l.ref.target(), false)
	if failure != nil {
		l.disclaim(ctx, failure)
		return fail(PhaseLookup, true, failure) // no token was asked for
	}
	l.proved()
	if sb.State != daytona.StateStarted {
		return fail(PhaseState, false, &Error{Kind: KindNotRunning, Dispatched: DispatchedNo, Message: "the sandbox is not started: resume the lease"})
	}
	revision := sb.UpdatedAt
	if revision.IsZero() {
		return fail(PhaseState, false, &Error{Kind: KindProtocol, HTTPStatus: http.StatusOK, Dispatched: DispatchedYes, Message: "the provider does not say when the sandbox was changed last"})
	}
	call, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
	defer cancel()
	raw, token, err := l.client.PreviewURL(call, sb.ID, port)
	if err != nil {
		remote, _ := err.(*daytona.Error)
		return fail(PhasePreview, remote != nil && remote.Structured, failed(op, err))
	}
	address, problem := endpointAddress(raw, port, sb.ID, l.p.embedded)
	if problem == "" && (token == "" || !validHeaderValue(token)) {
		problem = "no token that a header can carry"
	}
	if problem != "" {
		return fail(PhaseValidation, false, &Error{Kind: KindProtocol, HTTPStatus: http.StatusOK, Dispatched: DispatchedYes, Message: "the provider named an address that no token is sent to: " + problem})
	}
	// The revision changes when the sandbox starts, and not when its token is replaced.
	return address, &endpointGrant{token: token, generation: fingerprint(sb.ID, revision.UTC().Format(time.RFC3339Nano))}, false, nil
}

// endpointAddress checks the address of a preview, which the API makes of the port and the sandbox's id or a signed token:
// https://{port}-{key}.{domain}. embedded is the origin of the embedded backend, which is exempt from https, and whose form
// differs.
func endpointAddress(raw string, port int, key, embedded string) (_ *url.URL, problem string) {
	label := strconv.Itoa(port) + "-" + key
	u, err := url.Parse(raw)
	if err != nil {
		return nil, "no URL"
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	switch first, domain, _ := strings.Cut(u.Hostname(), "."); {
	case u.User != nil:
		return nil, "it has user information"
	case u.RawQuery != "" || u.ForceQuery:
		return nil, "it has a query"
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return nil, "it has a fragment"
	case embedded != "" && u.String() == embedded+"/preview/"+label:
		return u, ""
	case u.Scheme != "https":
		return nil, "it is not https"
	case !strings.EqualFold(first, label) || domain == "":
		return nil, "it is another host than the port's"
	case u.Path != "" && path.Clean(u.Path) != u.Path:
		return nil, "its path is not clean"
	}
	return u, ""
}

// Port returns the port in the sandbox.
func (e *Endpoint) Port() int { return e.port }

// URL returns the address, https but on the embedded backend. It has no token. The caller may change it:
// URL().JoinPath("healthz") is a path of the service.
func (e *Endpoint) URL() *url.URL {
	u := *e.address
	return &u
}

// WebSocketURL is URL with the scheme wss (on the embedded backend: ws).
func (e *Endpoint) WebSocketURL() *url.URL {
	u := e.URL()
	u.Scheme = "ws" + strings.TrimPrefix(u.Scheme, "http")
	return u
}

// Generation tells one run of the sandbox from another, for whoever keeps something that does not outlive a run. It changes
// when the sandbox is restarted, and with some other changes of its record, but not when its token is replaced; it is the
// same on every host. That of an Endpoint changes with what [Endpoint.Transport] learns.
func (e *Endpoint) Generation() string { return e.grant.Load().generation }

// SecretHeader returns the header that opens the address, with the token as last given out: a secret, never to be logged or
// put into a URL. The provider may replace the token at any time, and does at each start: ask for a new Endpoint when it is
// refused. A caller that uses [Endpoint.Transport] does not need it.
func (e *Endpoint) SecretHeader() http.Header {
	return http.Header{daytona.PreviewTokenHeader: {e.grant.Load().token}}
}

// String returns the port, the address and the generation.
func (e *Endpoint) String() string {
	return fmt.Sprintf("port %d at %s, generation %.12s", e.port, e.address, e.Generation())
}

// Format writes String, whatever the verb.
func (e *Endpoint) Format(s fmt.State, _ rune) { io.WriteString(s, e.String()) }

// LogValue returns the port alone: the address names the sandbox.
func (e *Endpoint) LogValue() slog.Value { return slog.GroupValue(slog.Int("port", e.port)) }

// MarshalJSON encodes port, url and generation.
func (e *Endpoint) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Port       int    `json:"port"`
		URL        string `json:"url"`
		Generation string `json:"generation"`
	}{e.port, e.address.String(), e.Generation()})
}

// refresh asks for a new grant, unless somebody has replaced the stale one meanwhile.
func (e *Endpoint) refresh(ctx context.Context, op string, stale *endpointGrant) (*endpointGrant, *Error) {
	select {
	case e.refreshing <- struct{}{}:
		defer func() { <-e.refreshing }()
	case <-ctx.Done():
		err := failed(op, ctxError(ctx))
		err.Sandbox = e.l.ref.Sandbox
		return nil, err
	}
	if grant := e.grant.Load(); grant != stale {
		return grant, nil
	}
	address, grant, err := e.l.endpoint(ctx, op, e.port)
	if err != nil {
		return nil, err
	}
	if address.String() != e.address.String() {
		return nil, &Error{Op: op, Kind: KindProtocol, Phase: PhaseValidation, Sandbox: e.l.ref.Sandbox, Dispatched: DispatchedNo, Message: "the port has another address by now: ask for a new endpoint"}
	}
	e.grant.Store(grant)
	return grant, nil
}
