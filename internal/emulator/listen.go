package emulator

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// memoryHost is the authority of an in-memory server's URLs. Nothing resolves it.
const memoryHost = "daytona.test"

// pipeBuffer is how many bytes one direction of an in-memory connection holds before its writer waits. Like a socket's
// buffer it lets both ends write at once without reading, which a closing handshake needs.
const pipeBuffer = 64 << 10

// memoryListener accepts in-memory connections. All of it blocks on channels and condition variables only.
type memoryListener struct {
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{accepted: make(chan net.Conn), done: make(chan struct{})}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return memoryAddr{} }

func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := memoryPipe()
	select {
	case l.accepted <- server:
		return client, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: memoryAddr{}, Err: errors.New("connection refused")}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return memoryHost }

// memoryConn is one end of a buffered, full-duplex connection with deadlines and half-close.
type memoryConn struct {
	in, out *halfPipe
}

func memoryPipe() (a, b *memoryConn) {
	x, y := newHalfPipe(), newHalfPipe()
	return &memoryConn{in: x, out: y}, &memoryConn{in: y, out: x}
}

func (c *memoryConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *memoryConn) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *memoryConn) LocalAddr() net.Addr         { return memoryAddr{} }
func (c *memoryConn) RemoteAddr() net.Addr        { return memoryAddr{} }

// CloseWrite lets the peer read what was written and then io.EOF.
func (c *memoryConn) CloseWrite() error {
	c.out.end(io.EOF)
	return nil
}

// Close ends both directions; what was written can still be read.
func (c *memoryConn) Close() error {
	c.out.end(io.EOF)
	c.in.closeReader()
	return nil
}

func (c *memoryConn) SetDeadline(t time.Time) error {
	c.in.readBy.set(&c.in.mu, c.in.cond, t)
	c.out.writeBy.set(&c.out.mu, c.out.cond, t)
	return nil
}

func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.in.readBy.set(&c.in.mu, c.in.cond, t)
	return nil
}

func (c *memoryConn) SetWriteDeadline(t time.Time) error {
	c.out.writeBy.set(&c.out.mu, c.out.cond, t)
	return nil
}

// halfPipe is one direction of a memoryConn.
type halfPipe struct {
	mu      sync.Mutex
	cond    *sync.Cond
	buf     []byte
	ended   error // what the reader gets after the buffer; nil while the writer may write
	gone    bool  // the reader closed
	readBy  deadline
	writeBy deadline
}

func newHalfPipe() *halfPipe {
	h := &halfPipe{}
	h.cond = sync.NewCond(&h.mu)
	return h
}

func (h *halfPipe) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.gone:
			return 0, net.ErrClosed
		case h.readBy.passed:
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			if h.buf = h.buf[n:]; len(h.buf) == 0 {
				h.buf = nil
			}
			h.cond.Broadcast()
			return n, nil
		case h.ended != nil:
			return 0, h.ended
		}
		h.cond.Wait()
	}
}

func (h *halfPipe) write(p []byte) (written int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.ended != nil:
			return written, net.ErrClosed
		case h.gone:
			return written, errors.New("connection reset by peer")
		case h.writeBy.passed:
			return written, os.ErrDeadlineExceeded
		case len(p) == 0:
			return written, nil
		}
		if room := pipeBuffer - len(h.buf); room > 0 {
			n := min(room, len(p))
			h.buf = append(h.buf, p[:n]...)
			p, written = p[n:], written+n
			h.cond.Broadcast()
			continue
		}
		h.cond.Wait()
	}
}

func (h *halfPipe) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended == nil {
		h.ended = err
	}
	h.writeBy.stop()
	h.cond.Broadcast()
}

func (h *halfPipe) closeReader() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone, h.buf = true, nil
	h.readBy.stop()
	h.cond.Broadcast()
}

// deadline wakes waiters of a halfPipe when it passes. Its fields are guarded by the pipe's mutex.
type deadline struct {
	passed bool
	timer  *time.Timer
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) set(mu *sync.Mutex, cond *sync.Cond, t time.Time) {
	mu.Lock()
	defer mu.Unlock()
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	if wait := time.Until(t); wait > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() {
			mu.Lock()
			defer mu.Unlock()
			if d.timer == timer { // a later set did not replace it
				d.passed = true
				cond.Broadcast()
			}
		})
		d.timer = timer
		return
	}
	d.passed = true
	cond.Broadcast()
}
