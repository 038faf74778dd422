package leasehold

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Client returns a client on Transport. It follows redirects within the endpoint, as [http.Client] does, and has no timeout.
func (e *Endpoint) Client() *http.Client { return &http.Client{Transport: e.Transport()} }

// Transport returns a round tripper to the service behind the endpoint, for an [http.Client], for
// [net/http/httputil.ReverseProxy], and for WebSocket packages that take one. It adds the token to requests to the
// endpoint's own origin, and refuses any other with [ErrInvalid], so that no redirect carries the token away. A path that is
// not below the endpoint's own is taken relative to it; the endpoint's has one on the embedded backend only. A Host
// of the request's own is not sent: the provider's proxy goes by it.
//
// A request that the provider's proxy refuses for its token, which then never reached the service, is sent once more if the
// provider has replaced the token and the body can be read again ([http.Request.GetBody]); otherwise it fails with
// [ErrAuth]. A service's own 401 is not taken for such a refusal, unless it has the form and the words of the proxy's. The
// answer to a HEAD has no body to tell by: if it is a 401 of JSON, the token is asked for, and the request sent once more if
// that was replaced.
//
// A reply counts as use of the lease until its body was read to its end or closed, a WebSocket until it was closed. When the
// lease is given back, requests, bodies and WebSockets end with [ErrClosed]. Errors are [*Error], those of bodies included.
func (e *Endpoint) Transport() http.RoundTripper { return endpointTransport{e} }

type endpointTransport struct{ e *Endpoint }

// RoundTrip sends one request.
func (t endpointTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	const op = "endpoint request"
	e := t.e
	refused := func(err error) (*http.Response, error) {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	address, err := e.below(op, req.URL)
	if err != nil {
		return refused(err)
	}
	if err := unsent(req.Context(), op, e.l.ref.Sandbox); err != nil {
		return refused(err)
	}
	held, err := e.l.hold(ActivityEndpoint, op)
	if err != nil {
		return refused(err)
	}
	ctx, cancel := e.l.whileOpen(req.Context())
	resp, failure := e.send(ctx, op, req, address)
	if failure != nil {
		cancel()
		held.end()
		failure.Sandbox = e.l.ref.Sandbox
		return nil, e.l.orClosed(failure)
	}
	resp.Request = req // and not the one with the token
	open := &openReply{e: e, caller: req.Context(), body: resp.Body, cancel: cancel, held: held}
	if socket, ok := resp.Body.(io.Writer); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		// The context bounded the opening of it, and nothing more.
		open.caller = context.WithoutCancel(req.Context())
		var forget context.CancelFunc
		ctx, forget = e.l.whileOpen(open.caller)
		open.cancel = func() { forget(); cancel() }
		open.watch(ctx)
		resp.Body = &openSocket{open, socket}
		return resp, nil
	}
	open.watch(ctx)
	resp.Body = open
	return resp, nil
}

// below returns the address of a request, which must be the endpoint's origin.
func (e *Endpoint) below(op string, u *url.URL) (*url.URL, error) {
	var p problems
	if u == nil || u.Scheme != e.address.Scheme || !strings.EqualFold(u.Host, e.address.Host) || u.User != nil || u.Opaque != "" {
		p.add("URL", "is not of the endpoint: its token goes nowhere else")
		return nil, p.err(op)
	}
	at := *u
	at.Fragment, at.RawFragment = "", ""
	if base := e.address.Path; base != "" && at.Path != base && !strings.HasPrefix(at.Path, base+"/") {
		at.Path = base + "/" + strings.TrimPrefix(at.Path, "/")
		if at.RawPath != "" {
			at.RawPath = base + "/" + strings.TrimPrefix(at.RawPath, "/")
		}
	}
	return &at, nil
}

// send sends the request, and once more with a new token where the first was refused.
func (e *Endpoint) send(ctx context.Context, op string, req *http.Request, address *url.URL) (*http.Response, *Error) {
	clone := func() *http.Request {
		out := req.Clone(ctx)
		out.URL, out.Host = address, ""
		if out.Header == nil { // of a request that was not made by net/http
			out.Header = make(http.Header)
		}
		return out
	}
	grant := e.grant.Load()
	out := clone()
	resp, err := e.l.client.Preview(out, grant.token)
	doubtful := err == nil && mayBeRefused(req, resp)
	if !doubtful && !refusedToken(err) {
		return resp, previewFailure(op, err)
	}
	fresh, failure := e.refresh(ctx, op, grant)
	switch {
	case doubtful && (failure != nil || fresh.token == grant.token):
		return resp, nil // it is the service's, as far as anybody can say
	case doubtful:
		resp.Body.Close()
	case failure != nil:
		return nil, failure
	case fresh.token == grant.token:
		return nil, previewFailure(op, err)
	}
	out = clone()
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			failure := previewFailure(op, err)
			failure.Retryable, failure.Message = true, "the token was replaced, and the request's body cannot be sent again: nothing of it arrived"
			return nil, failure
		}
		if out.Body, err = req.GetBody(); err != nil {
			return nil, &Error{Op: op, Kind: KindIO, Dispatched: DispatchedNo, Message: "the request's body could not be read again", cause: err}
		}
	}
	resp, err = e.l.client.Preview(out, fresh.token)
	return resp, previewFailure(op, err)
}

// refusedToken reports that the provider's proxy refused the token: the request did not reach the service.
func refusedToken(err error) bool {
	remote, ok := err.(*daytona.Error)
	return ok && remote.Unauthorized()
}

// mayBeRefused reports that the answer may be the proxy's refusal of the token, which only its body would tell.
func mayBeRefused(req *http.Request, resp *http.Response) bool {
	return req.Method == http.MethodHead && (req.Body == nil || req.Body == http.NoBody) &&
		resp.StatusCode == http.StatusUnauthorized && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json")
}

func previewFailure(op string, err error) *Error {
	e := failed(op, err)
	if e != nil && e.Kind == KindAuth {
		e.Phase, e.Message = PhasePreview, "the provider refuses the endpoint's token"
	}
	return e
}

// openReply is the body of a reply, which counts as use of the lease until it ends.
type openReply struct {
	e      *Endpoint
	caller context.Context // that bounds it, as the caller gave it
	body   io.ReadCloser
	cancel context.CancelFunc
	held   *holding

	mu     sync.Mutex
	ended  bool
	disarm func() bool
}

// watch ends the reply with ctx: the caller's, or the lease's time. Without a reader nobody else would.
func (r *openReply) watch(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disarm = context.AfterFunc(ctx, func() {
		if _, socket := r.body.(io.Writer); socket {
			r.body.Close() // an upgraded connection does not listen to its context
		}
		r.end()
	})
}

// end says that nothing more will be read.
func (r *openReply) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	r.disarm()
	r.cancel()
	r.held.end()
}

func (r *openReply) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	return n, r.failed(err)
}

func (r *openReply) Close() error {
	err := r.failed(r.body.Close())
	r.end()
	return err
}

// failed ends the reply with the error of its body, and says why.
func (r *openReply) failed(err error) error {
	switch {
	case err == nil:
		return nil
	case err == io.EOF:
		r.end()
		return err
	}
	const op = "endpoint reply"
	failure := &Error{Op: op, Kind: KindUnavailable, Dispatched: DispatchedYes, Message: "the connection broke before the whole reply"}
	if r.caller.Err() != nil {
		failure = failed(op, ctxError(r.caller))
		failure.Dispatched = DispatchedYes
	}
	failure.Sandbox = r.e.l.ref.Sandbox
	failure = r.e.l.orClosed(failure)
	r.end()
	return failure
}

// openSocket is the connection behind a WebSocket.
type openSocket struct {
	*openReply
	socket io.Writer
}

func (s *openSocket) Write(p []byte) (int, error) {
	n, err := s.socket.Write(p)
	return n, s.failed(err)
}
