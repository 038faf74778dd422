package emulator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// capture is a reply that stays in memory.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newCapture() *capture { return &capture{header: http.Header{}} }

func (c *capture) Header() http.Header { return c.header }

func (c *capture) WriteHeader(status int) {
	if c.status == 0 && status >= 200 {
		c.status = status
	}
}

func (c *capture) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	return c.body.Write(p)
}

// send writes the captured head and then a body of its own.
func (c *capture) send(w http.ResponseWriter, body []byte) {
	for name, values := range c.header {
		w.Header()[name] = values
	}
	c.WriteHeader(http.StatusOK)
	w.WriteHeader(c.status)
	w.Write(body)
}

func captured(r *http.Request, next http.HandlerFunc) *capture {
	c := newCapture()
	next(c, r)
	return c
}

func truncate(w http.ResponseWriter, r *http.Request, next http.HandlerFunc, keep int64) {
	c := captured(r, next)
	body := c.body.Bytes()
	if int64(len(body)) <= keep {
		c.send(w, body)
		return
	}
	c.header.Set("Content-Length", strconv.Itoa(len(body)))
	c.send(w, body[:keep])
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func replay(w http.ResponseWriter, r *http.Request, next http.HandlerFunc, prefix int64) {
	c := captured(r, next)
	body := c.body.Bytes()
	c.header.Del("Content-Length")
	c.send(w, append(body[:min(prefix, int64(len(body))):min(prefix, int64(len(body)))], body...))
}

func mergeReply(w http.ResponseWriter, r *http.Request, next http.HandlerFunc, extra string) {
	c := captured(r, next)
	c.header.Del("Content-Length")
	c.send(w, merged(c.body.Bytes(), extra))
}

// duplicate does what the production proxy does when its connection to the runner ends without a reply: a body of at most
// 256 KiB is delivered again, and the client gets the second reply; a larger one cannot be, and the client gets 502.
// With a delay the second delivery follows the first by that much, whether or not the first is done.
func (s *Server) duplicate(w http.ResponseWriter, r *http.Request, next http.HandlerFunc, delay time.Duration) {
	body, err := io.ReadAll(io.LimitReader(r.Body, replayLimit+1))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	deliver := func(body io.Reader) *http.Request {
		r2 := r.Clone(r.Context())
		r2.Body = io.NopCloser(body)
		return r2
	}
	if len(body) > replayLimit {
		next(newCapture(), deliver(io.MultiReader(bytes.NewReader(body), r.Body)))
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	first := make(chan struct{})
	go func() {
		defer close(first)
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler {
				s.log.Error("panic in a duplicated request", "value", v)
			}
		}()
		next(newCapture(), deliver(bytes.NewReader(body)))
	}()
	defer func() { <-first }()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	} else {
		<-first
	}
	next(w, deliver(bytes.NewReader(body)))
}

// hold never answers: it returns, by a panic that drops the connection, when the client or the server is gone.
func hold(r *http.Request) {
	io.Copy(io.Discard, r.Body) // the server notices a client that leaves only after the body
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// reset ends the request's connection with a reset, where the system has such a thing.
func reset(r *http.Request) {
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		resetConn(conn)
	}
	panic(http.ErrAbortHandler)
}

func resetConn(conn net.Conn) {
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// resetWriter resets the connection when more than left bytes of a body were written.
type resetWriter struct {
	http.ResponseWriter
	r    *http.Request
	left int64
}

func (w *resetWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= w.left {
		w.left -= int64(len(p))
		return w.ResponseWriter.Write(p)
	}
	w.ResponseWriter.Write(p[:w.left])
	http.NewResponseController(w.ResponseWriter).Flush()
	reset(w.r)
	return 0, nil
}

func (w *resetWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *resetWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	under, _ := w.r.Context().Value(connKey{}).(net.Conn)
	wrapped := &resettingConn{Conn: conn, under: under, left: w.left}
	return wrapped, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(wrapped)), nil
}

// resettingConn resets itself when more than left bytes were written.
type resettingConn struct {
	net.Conn
	under net.Conn // the connection itself, below all wrappers
	left  int64    // used by one writer at a time
}

func (c *resettingConn) Write(p []byte) (int, error) {
	if int64(len(p)) <= c.left {
		c.left -= int64(len(p))
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:c.left])
	c.left = 0
	resetConn(c.under)
	return n, errors.New("connection reset by a fault")
}

// resetBody ends a request's body with an error after left bytes.
type resetBody struct {
	io.ReadCloser
	left int64
}

func (b *resetBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func isUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// socketWriter lets a fault work on the frames of a socket.
type socketWriter struct {
	http.ResponseWriter
	server *Server
	hit    *faultHit
}

func (w *socketWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *socketWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	wrapped := &faultySocket{Conn: conn, server: w.server, hit: w.hit}
	return wrapped, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(wrapped)), nil
}

// faultySocket sees the frames that the server sends on a WebSocket.
type faultySocket struct {
	net.Conn
	server *Server
	hit    *faultHit

	mu      sync.Mutex // guards the fields below; held while a write blocks
	pending []byte     // the beginning of a frame, or of the handshake's reply
	past    bool       // the handshake's reply has passed
	passed  int64      // payload bytes of data frames
	prefix  []byte     // frames to be replayed; nil afterwards

	// Not guarded: Close does not wait for a write, which it ends.
	ended   atomic.Bool // nothing is sent any more
	closing sync.Once
}

func (c *faultySocket) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Load() {
		return len(p), nil
	}
	c.pending = append(c.pending, p...)
	for !c.ended.Load() {
		unit, payload := c.next()
		if unit == 0 {
			break
		}
		if err := c.pass(c.pending[:unit:unit], payload); err != nil {
			return 0, err
		}
		c.pending = c.pending[unit:]
	}
	return len(p), nil
}

// next measures the first complete unit in pending: the handshake's reply (payload -1), or a frame (payload -1 if it is
// a control frame). It returns 0 if there is none yet. A server's frames are not masked.
func (c *faultySocket) next() (unit int, payload int64) {
	b := c.pending
	if !c.past {
		if len(b) < 4 {
			return 0, 0
		}
		if bytes.HasPrefix(b, []byte("HTTP")) {
			head, _, complete := bytes.Cut(b, []byte("\r\n\r\n"))
			if !complete {
				return 0, 0
			}
			c.past = true
			return len(head) + 4, -1
		}
		c.past = true
	}
	if len(b) < 2 {
		return 0, 0
	}
	head, size := 2, uint64(b[1]&0x7f)
	switch size {
	case 126:
		if head += 2; len(b) < head {
			return 0, 0
		}
		size = uint64(binary.BigEndian.Uint16(b[2:]))
	case 127:
		if head += 8; len(b) < head {
			return 0, 0
		}
		size = binary.BigEndian.Uint64(b[2:])
	}
	if uint64(len(b)-head) < size {
		return 0, 0
	}
	if b[0]&0x08 != 0 {
		return head + int(size), -1
	}
	return head + int(size), int64(size)
}

// pass sends one unit, or does to it what the fault says.
func (c *faultySocket) pass(unit []byte, payload int64) error {
	handshake := bytes.HasPrefix(unit, []byte("HTTP"))
	switch {
	case handshake:
	case c.hit.Action == SilentSocket && c.passed >= c.hit.Bytes:
		c.ended.Store(true)
		return nil
	case c.hit.Action == CloseSocket && c.passed >= c.hit.Bytes:
		c.ended.Store(true)
		if c.hit.Code == 0 {
			return c.Conn.Close()
		}
		reason := c.hit.Body[:min(len(c.hit.Body), 123)]
		frame := append([]byte{0x88, byte(2 + len(reason)), byte(c.hit.Code >> 8), byte(c.hit.Code)}, reason...)
		_, err := c.Conn.Write(frame)
		return err
	}
	if _, err := c.Conn.Write(unit); err != nil {
		return err
	}
	if payload < 0 {
		return nil
	}
	before := c.passed
	c.passed += payload
	if c.hit.Action == ReplayPrefix && before < c.hit.Bytes {
		c.prefix = append(c.prefix, unit...)
		if c.passed >= c.hit.Bytes {
			_, err := c.Conn.Write(c.prefix)
			c.prefix = nil
			return err
		}
	}
	return nil
}

// Close leaves a silent socket open until its client or the server leaves.
func (c *faultySocket) Close() error {
	if !c.ended.Load() || c.hit.Action != SilentSocket {
		return c.Conn.Close()
	}
	c.closing.Do(func() {
		c.server.work.Go(func() {
			defer c.Conn.Close()
			defer context.AfterFunc(c.server.ctx, func() { c.Conn.Close() })()
			c.Conn.SetDeadline(time.Time{})
			io.Copy(io.Discard, c.Conn)
		})
	})
	return nil
}
