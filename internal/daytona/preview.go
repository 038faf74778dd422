package daytona

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// PreviewTokenHeader is the header in which a preview request presents its token. The proxy removes it before the
// request reaches the sandbox.
const PreviewTokenHeader = "X-Daytona-Preview-Token"

// The limits of the API on the life of a signed preview URL.
const (
	MinSignedPreview = 1            // second
	MaxSignedPreview = 24 * 60 * 60 // seconds
)

// SignPreview makes an address of a port that needs no header, because the token is part of its host name, and its
// token, by which [Client.ExpirePreview] ends it.
func (c *Client) SignPreview(ctx context.Context, id string, port, seconds int) (address, token string, err error) {
	if !segment(id) || !validPort(port) || seconds < MinSignedPreview || seconds > MaxSignedPreview {
		return "", "", badInput(OpSignPreview)
	}
	var reply struct {
		SandboxID string  `json:"sandboxId"`
		Port      float64 `json:"port"`
		URL       string  `json:"url"`
		Token     string  `json:"token"`
	}
	err = c.do(ctx, OpSignPreview, func(ctx context.Context) error {
		_, resp, err := c.api.SandboxAPI.GetSignedPortPreviewUrl(ctx, id, int32(port)).ExpiresInSeconds(int32(seconds)).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if reply.URL == "" || reply.Token == "" || reply.SandboxID != id || reply.Port != float64(port) {
			return errReply
		}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	return reply.URL, reply.Token, nil
}

// ExpirePreview ends a signed preview URL. That it has ended already, or never was, is a success.
func (c *Client) ExpirePreview(ctx context.Context, id string, port int, token string) error {
	if !segment(token) || !validPort(port) {
		return badInput(OpExpirePreview)
	}
	return c.change(ctx, OpExpirePreview, id, func(ctx context.Context) error {
		_, err := c.api.SandboxAPI.ExpireSignedPortPreviewUrl(ctx, id, int32(port), token).Execute()
		return err
	})
}

func validPort(port int) bool { return port >= 1 && port <= 65535 }

// Preview sends a request of the caller's to a preview address, with the token and without the API's credential, and
// returns the answer of the service behind it. It changes the request's header. What the proxy itself refuses is an
// [*Error] instead, with Dispatch no: [Error.Unauthorized] for the token, [Error.NotStarted] for the sandbox. Redirects are
// answers.
func (c *Client) Preview(req *http.Request, token string) (*http.Response, error) {
	start := time.Now()
	var asked, connected atomic.Bool
	ctx := httptrace.WithClientTrace(withoutSecrets{req.Context()}, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req = req.WithContext(ctx)
	req.Header.Set(PreviewTokenHeader, token)
	// Else the proxy answers what calls itself a browser with a page of its own.
	req.Header.Set("X-Daytona-Skip-Preview-Warning", "true")
	resp, err := c.bare.RoundTrip(req)
	if err == nil && resp == nil {
		err = errNoAnswer
	}
	e := &Error{Op: OpPreview, Reason: ReasonLost, Dispatch: DispatchUnknown}
	switch {
	case err == nil:
		if resp.Body == nil {
			resp.Body = http.NoBody
		}
		if e = refusal(req, resp); e != nil {
			resp.Body.Close()
		}
	default:
		if asked.Load() && !connected.Load() {
			e.Reason, e.Dispatch = ReasonConnect, DispatchNo
		}
		if ctx.Err() != nil {
			e.Reason, e.Cause = ReasonCanceled, context.Cause(ctx)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				e.Reason = ReasonTimeout
			}
		}
	}
	if c.config.Observe != nil {
		call := Call{Op: OpPreview, Method: req.Method, Start: start, Duration: time.Since(start), Err: e}
		if resp != nil && err == nil {
			call.Status, call.WebSocket = resp.StatusCode, resp.StatusCode == http.StatusSwitchingProtocols
		}
		c.config.Observe(call)
	}
	if e != nil {
		return nil, e
	}
	return resp, nil
}

// The bounds of a body that may be the proxy's, which sends it in one piece.
const (
	maxRefusal  = 4 << 10
	refusalTime = time.Second
)

// refusalStart is what the proxy's messages begin with.
var refusalStart = map[int]string{http.StatusUnauthorized: "unauthorized: ", http.StatusBadRequest: "bad request: "}

// refusal tells the proxy's own refusals from the answers of the service: by the shape and the words of its error bodies, and
// by its redirect (307) to the provider's login, from which a person would come back to /callback of the preview's domain. A
// service that imitates them makes its own clients ask again, and nothing else.
func refusal(req *http.Request, resp *http.Response) *Error {
	switch resp.StatusCode {
	case http.StatusTemporaryRedirect:
		if toLogin(req.URL.Host, resp.Header.Get("Location")) {
			return &Error{Op: OpPreview, Reason: ReasonStatus, Status: http.StatusUnauthorized, Dispatch: DispatchNo}
		}
	case http.StatusUnauthorized, http.StatusBadRequest, http.StatusNotFound:
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") || resp.ContentLength > maxRefusal {
			return nil
		}
		said := parseReply(OpPreview, resp.StatusCode, peek(resp))
		e := &Error{Op: OpPreview, Reason: ReasonStatus, Status: resp.StatusCode, Structured: said.structured, Code: said.code, Message: said.message, Dispatch: DispatchNo}
		if said.structured && strings.HasPrefix(said.message, refusalStart[resp.StatusCode]) &&
			(e.says(wordPreviewRefused) || e.says(wordNotStarted) || e.says(wordContainerGone)) {
			return e
		}
	}
	return nil
}

// peek returns the body of the answer, and leaves it to be read all the same. It returns nothing of one that is longer than
// maxRefusal or takes longer than refusalTime: a service may keep it open.
func peek(resp *http.Response) []byte {
	over := time.NewTimer(refusalTime)
	defer over.Stop()
	body, head := resp.Body, []byte(nil)
	for {
		next := &piece{read: make(chan struct{})}
		go func() {
			defer close(next.read)
			next.data = make([]byte, maxRefusal+1)
			var n int
			n, next.err = body.Read(next.data)
			next.data = next.data[:n]
		}()
		var whole []byte
		select {
		case <-next.read:
			head = append(head, next.data...)
			if next.data = nil; next.err == nil && len(head) <= maxRefusal {
				continue
			}
			if len(head) <= maxRefusal {
				whole = head
			}
		case <-over.C:
		}
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), next, body), body}
		return whole
	}
}

// piece is what one read of a body gives, once it does.
type piece struct {
	read chan struct{} // closed when it did
	data []byte
	err  error
}

func (p *piece) Read(into []byte) (int, error) {
	<-p.read
	if len(p.data) == 0 && p.err == nil {
		return 0, io.EOF
	}
	n := copy(into, p.data)
	if p.data = p.data[n:]; len(p.data) > 0 {
		return n, nil
	}
	return n, p.err
}

// toLogin reports whether a location is the provider's login, on behalf of the preview host.
func toLogin(host, location string) bool {
	to, err := url.Parse(location)
	if err != nil || to.Host == "" || strings.EqualFold(to.Host, host) {
		return false
	}
	query := to.Query()
	back, err := url.Parse(query.Get("redirect_uri"))
	_, domain, found := strings.Cut(host, ".")
	return err == nil && found && query.Get("response_type") == "code" && query.Get("client_id") != "" &&
		strings.EqualFold(back.Host, domain) && back.Path == "/callback"
}

// SocketRequest describes a websocket to open.
type SocketRequest struct {
	Header       http.Header
	Subprotocols []string
	Text         bool // messages are text, rather than binary
}

// DialSocket opens a websocket on a carrier, and returns it as a stream: each Write is a message, and Read reads across
// messages until the peer closes with 1000 or 1001, which is io.EOF, or this side, which is ReasonClosed. A deadline that
// passes is ReasonTimeout, and closes it if a call was under way. The context bounds the opening; carried errors of the carrier
// are returned as they are.
func DialSocket(ctx context.Context, carrier http.RoundTripper, address string, r SocketRequest) (net.Conn, string, error) {
	kept := &keptError{carrier: carrier}
	client := &http.Client{Transport: kept, CheckRedirect: noRedirect}
	conn, resp, err := websocket.Dial(ctx, address, &websocket.DialOptions{HTTPClient: client, HTTPHeader: r.Header.Clone(), Subprotocols: r.Subprotocols})
	switch {
	case err == nil:
	case kept.err != nil:
		return nil, "", kept.err
	case resp != nil:
		return nil, "", &Error{Op: OpPreview, Reason: ReasonStatus, Status: resp.StatusCode, Dispatch: DispatchYes}
	default:
		return nil, "", badInput(OpPreview)
	}
	conn.SetReadLimit(-1)
	kind := websocket.MessageBinary
	if r.Text {
		kind = websocket.MessageText
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	socket := &socketConn{Conn: websocket.NetConn(life, conn, kind), socket: conn}
	socket.reads.end, socket.writes.end = end, end
	return socket, conn.Subprotocol(), nil
}

// keptError remembers why a carrier failed, which the client above it turns into text.
type keptError struct {
	carrier http.RoundTripper
	err     error
}

func (k *keptError) RoundTrip(req *http.Request) (*http.Response, error) {
	var resp *http.Response
	resp, k.err = k.carrier.RoundTrip(req)
	return resp, k.err
}

// socketConn is a websocket as a stream, whose errors are ours, and its deadlines: those of the connection below may end a call
// that began after they had passed, or were moved.
type socketConn struct {
	net.Conn
	socket        *websocket.Conn
	closed        atomic.Bool // on this side, by a deadline too
	reads, writes deadline
}

// Close closes it regularly, a Read that waits included, which the connection's own Close would break it with.
func (c *socketConn) Close() error {
	c.closed.Store(true)
	c.writes.set(time.Now()) // a Write that waits would be waited for
	_ = c.socket.Close(websocket.StatusNormalClosure, "")
	return c.Conn.Close()
}

func (c *socketConn) SetDeadline(t time.Time) error {
	c.reads.set(t)
	c.writes.set(t)
	return nil
}

func (c *socketConn) SetReadDeadline(t time.Time) error {
	c.reads.set(t)
	return nil
}

func (c *socketConn) SetWriteDeadline(t time.Time) error {
	c.writes.set(t)
	return nil
}

func (c *socketConn) Read(p []byte) (int, error) {
	n, err := c.reads.bound(c.Conn.Read, p)
	return n, c.failed(err)
}

func (c *socketConn) Write(p []byte) (int, error) {
	n, err := c.writes.bound(c.Conn.Write, p)
	return n, c.failed(err)
}

// deadline is when the reads, or the writes, of a connection end.
type deadline struct {
	end func() // ends the connection

	mu    sync.Mutex
	at    time.Time // zero: none
	calls int       // under way
	timer *time.Timer
}

// bound does a call, unless the deadline has passed. One that passes meanwhile ends the connection.
func (d *deadline) bound(call func([]byte) (int, error), p []byte) (int, error) {
	d.mu.Lock()
	if !d.at.IsZero() && time.Until(d.at) <= 0 {
		d.mu.Unlock()
		return 0, context.DeadlineExceeded
	}
	d.calls++
	d.watch()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls--
		d.watch()
	}()
	return call(p)
}

func (d *deadline) set(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = at
	d.watch()
}

// watch ends the connection if the deadline has passed, or sees to that for when it does, while a call is under way.
func (d *deadline) watch() {
	if d.timer != nil {
		d.timer.Stop()
	}
	if d.calls == 0 || d.at.IsZero() {
		return
	}
	left := time.Until(d.at)
	if left <= 0 {
		d.end()
		return
	}
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.watch()
	})
}

func (c *socketConn) failed(err error) error {
	local := c.closed.Load()
	if err == nil || err == io.EOF && !local {
		return err
	}
	e := &Error{Op: OpPreview, Reason: ReasonLost, Status: http.StatusSwitchingProtocols, Dispatch: DispatchYes}
	var closed websocket.CloseError
	switch {
	case local:
		e.Reason = ReasonClosed
	case errors.As(err, &closed):
		e.Reason, e.CloseCode = ReasonEnded, int(closed.Code)
	case errors.Is(err, context.DeadlineExceeded): // a deadline passed before
		e.Reason, e.Cause = ReasonTimeout, os.ErrDeadlineExceeded
	case errors.Is(err, context.Canceled): // or meanwhile, by which the connection was closed: nothing else ends its contexts
		c.closed.Store(true)
		e.Reason, e.Cause = ReasonTimeout, os.ErrDeadlineExceeded
	}
	return e
}
