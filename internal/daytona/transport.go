package daytona

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	sdk "github.com/daytonaio/daytona/libs/sdk-go/pkg/daytona"
)

// transport is the one way out. It adds the credential, keeps the record of the call, and takes error bodies off the
// answer: the clients above would read them whole.
type transport struct {
	base   http.RoundTripper
	apiKey string
	track  func(context.Context, Request) func(settled bool) // nil: nobody counts
}

// newTransport is the base of a client that was given none: pooled connections that end before the 70 s after which the
// daemon and the proxy close idle ones, so that a request rarely meets a closing connection.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       50 * time.Second,
		TLSHandshakeTimeout:   15 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
}

var (
	errNoCall   = errors.New("daytona: request outside a call")
	errNoAnswer = errors.New("daytona: a transport returned neither an answer nor an error")
)

// RoundTrip sends one request of the call in its context.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	k, _ := ctx.Value(callKey{}).(*call)
	if k == nil {
		closeBody(req)
		return nil, errNoCall
	}
	k.mu.Lock()
	k.method, k.status, k.sendErr, k.reply = req.Method, 0, nil, reply{}
	if err := ctx.Err(); err != nil {
		k.sendErr = err
		k.mu.Unlock()
		closeBody(req)
		return nil, err
	}
	k.entered = true
	k.mu.Unlock()

	out := req.Clone(httptrace.WithClientTrace(withoutSecrets{ctx}, &httptrace.ClientTrace{
		GetConn: func(string) { k.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { k.connected.Store(true) },
	}))
	t.header(out.Header, k)
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = &sentBody{out.Body, k}
		if get := req.GetBody; get != nil {
			out.GetBody = func() (io.ReadCloser, error) {
				body, err := get()
				if err != nil {
					return nil, err
				}
				return &sentBody{body, k}, nil
			}
		}
	}

	end := t.begin(ctx, k)
	resp, err := t.base.RoundTrip(out)
	if err == nil && resp == nil {
		err = errNoAnswer
	}
	if err != nil {
		k.mu.Lock()
		k.sendErr = err
		k.mu.Unlock()
		end(reads(req) || k.dispatch() == DispatchNo)
		return nil, err
	}
	t.record(k, req, resp, end)
	return resp, nil
}

// begin tells that a request is under way, and returns what tells that it is over.
func (t *transport) begin(ctx context.Context, k *call) (end func(settled bool)) {
	if t.track == nil {
		return func(bool) {}
	}
	return t.track(ctx, Request{Op: k.op, Owner: k.owner})
}

// reads reports whether a request changes nothing.
func reads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

func (t *transport) header(h http.Header, k *call) {
	h.Set("Authorization", "Bearer "+t.apiKey)
	h.Set("User-Agent", "leasehold")
	h.Set("X-Daytona-Source", "sdk-go")
	// A transparently decompressed answer has neither a length nor ranges.
	h.Set("Accept-Encoding", "identity")
	if !k.bare {
		// The daemon chooses formats by it: without it, sessions would start in another directory, as for old clients.
		h.Set("X-Daytona-SDK-Version", sdk.Version)
	}
	if k.quiet {
		h.Set("X-Daytona-Skip-Last-Activity-Update", "true")
	}
}

// maxErrorBody is how much of an error body is read. API messages can quote a runner's; what is kept of them is less.
const maxErrorBody = 64 << 10

// record keeps what the answer says. Reading an error body is bounded by the context of the call.
func (t *transport) record(k *call, req *http.Request, resp *http.Response, end func(settled bool)) {
	if resp.Body == nil { // as a caller's transport may leave it
		resp.Body = http.NoBody
	}
	if resp.StatusCode < 300 {
		if rw, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
			resp.Body = &socketBody{rw, k, end}
		} else {
			resp.Body = &replyBody{resp.Body, k, end}
		}
		k.mu.Lock()
		k.status = resp.StatusCode
		k.mu.Unlock()
		return
	}
	// A body that breaks off still leaves its status.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	resp.Body.Close()
	end(reads(req) || resp.StatusCode < 500 && resp.StatusCode != http.StatusRequestTimeout)
	resp.Body, resp.ContentLength = http.NoBody, 0
	k.received.Add(int64(len(body)))
	parsed, retry := parseReply(k.op, resp.StatusCode, body), retryAfter(resp.Header, time.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status, k.reply, k.retry = resp.StatusCode, parsed, retry
}

// withoutSecrets is a context whose traces are told neither the credential nor a token: a tracer that records headers would
// record it.
type withoutSecrets struct{ context.Context }

func (c withoutSecrets) Value(key any) any {
	value := c.Context.Value(key)
	trace, _ := value.(*httptrace.ClientTrace)
	if trace == nil || trace.WroteHeaderField == nil {
		return value
	}
	quiet := *trace
	quiet.WroteHeaderField = func(name string, values []string) {
		if strings.EqualFold(name, "Authorization") || strings.EqualFold(name, PreviewTokenHeader) {
			values = []string{"redacted"}
		}
		trace.WroteHeaderField(name, values)
	}
	return &quiet
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// noRedirect makes a redirect an answer of its status, so that no credential and no command travels on.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
