package leasehold

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// WebSocketOptions change what [Endpoint.DialWebSocket] does. The zero value opens a socket for binary messages.
type WebSocketOptions struct {
	Header       http.Header // further headers of the handshake
	Subprotocols []string    // offered, in the order of preference
	Text         bool        // messages are text, in UTF-8, rather than binary
}

// WebSocket is an open WebSocket as a stream: each Write is one message, and Read reads on from one message to the next. A
// message of the other type than was asked for ends it. Reads and writes may overlap.
//
// Read ends with io.EOF when the service closed it regularly (1000 or 1001), and with [ErrClosed] after Close and when the
// lease was given back. A deadline that passes during a Read or Write fails it with [ErrTimeout], whose cause is
// [os.ErrDeadlineExceeded], and ends the WebSocket: what was on its way is lost. One that passed between calls fails the next
// ones in the same way, and can be moved.
type WebSocket struct {
	conn        net.Conn
	subprotocol string
	e           *Endpoint
}

// Subprotocol returns the one that the service chose; empty: none.
func (w *WebSocket) Subprotocol() string { return w.subprotocol }

// DialWebSocket opens a WebSocket to the service: path is relative to the endpoint, and may have a query. ctx bounds the
// opening. The WebSocket must be closed, which waits up to five seconds for the service to agree. It fails with [ErrInvalid]
// for what is no such path, with [ErrRefused] and the service's [Error.HTTPStatus] if that opens no WebSocket, with
// [ErrClosed] once the lease is given back, and as requests through [Endpoint.Transport] do.
//
// A package of the caller's can be used instead: one that takes an [http.Client] with [Endpoint.Client], any other with
// [Endpoint.WebSocketURL] and [Endpoint.SecretHeader].
func (e *Endpoint) DialWebSocket(ctx context.Context, path string, options WebSocketOptions) (*WebSocket, error) {
	const op = "endpoint websocket"
	ref, err := url.Parse(path)
	if err != nil || ref.Scheme != "" || ref.Host != "" || ref.User != nil || ref.Fragment != "" || ref.Opaque != "" {
		var p problems
		p.add("path", "is not a path with at most a query")
		return nil, p.err(op)
	}
	at := e.URL()
	if ref.Path != "" {
		at = at.JoinPath(ref.EscapedPath())
	}
	at.RawQuery = ref.RawQuery
	conn, subprotocol, err := daytona.DialSocket(ctx, e.Transport(), at.String(), daytona.SocketRequest{
		Header: options.Header, Subprotocols: options.Subprotocols, Text: options.Text,
	})
	if err != nil {
		failure := failed(op, err)
		if remote, ok := err.(*daytona.Error); ok && remote.Reason == daytona.ReasonStatus {
			failure = &Error{Op: op, Kind: KindRefused, HTTPStatus: remote.Status, Dispatched: DispatchedYes, Message: "the service did not open a WebSocket"}
		}
		failure.Op, failure.Sandbox = op, e.l.ref.Sandbox
		return nil, failure
	}
	return &WebSocket{conn: conn, subprotocol: subprotocol, e: e}, nil
}

// Close closes it regularly. It may be called twice.
func (w *WebSocket) Close() error {
	w.conn.Close() // whatever the service thinks of it, the connection is freed
	return nil
}

// Read reads from the messages of the service.
func (w *WebSocket) Read(p []byte) (int, error) {
	n, err := w.conn.Read(p)
	return n, w.failed(err)
}

// Write sends one message.
func (w *WebSocket) Write(p []byte) (int, error) {
	n, err := w.conn.Write(p)
	return n, w.failed(err)
}

// SetDeadline sets both deadlines. A zero time is none.
func (w *WebSocket) SetDeadline(t time.Time) error { return w.conn.SetDeadline(t) }

// SetReadDeadline sets the deadline of Read.
func (w *WebSocket) SetReadDeadline(t time.Time) error { return w.conn.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of Write.
func (w *WebSocket) SetWriteDeadline(t time.Time) error { return w.conn.SetWriteDeadline(t) }

// LocalAddr returns a placeholder: it is not known by which connection the provider is reached.
func (w *WebSocket) LocalAddr() net.Addr { return w.conn.LocalAddr() }

// RemoteAddr returns a placeholder, as LocalAddr does.
func (w *WebSocket) RemoteAddr() net.Addr { return w.conn.RemoteAddr() }

func (w *WebSocket) failed(err error) error {
	if err == nil || err == io.EOF && w.e.l.ended() == nil {
		return err
	}
	failure := failed("endpoint websocket", err)
	failure.Sandbox, failure.Retryable = w.e.l.ref.Sandbox, false
	return w.e.l.orClosed(failure)
}
