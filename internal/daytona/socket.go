package daytona

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// socket is a websocket whose life a context bounds. It is freed at once by Close, by the end of the context, and when
// a read fails.
type socket struct {
	c    *Client
	k    *call
	ctx  context.Context
	conn *websocket.Conn
	stop func() bool // ends the watch on ctx

	once sync.Once
}

// dial opens a websocket. Nothing limits the size of its messages: they are read piecemeal.
func (t *Toolbox) dial(ctx context.Context, op, address string) (*socket, error) {
	ctx, k := t.c.begin(ctx, op)
	k.socket = true
	conn, _, err := websocket.Dial(ctx, address, &websocket.DialOptions{HTTPClient: t.c.http, HTTPHeader: http.Header{}})
	if e := k.outcome(ctx, err); e != nil {
		t.c.observe(k, e)
		return nil, e
	}
	conn.SetReadLimit(-1)
	s := &socket{c: t.c, k: k, ctx: ctx, conn: conn}
	s.stop = context.AfterFunc(ctx, func() { conn.CloseNow() })
	return s, nil
}

// end judges the error of a read or write, frees the connection and observes the call. regular says which close frames
// are a regular end, for which end returns nil.
func (s *socket) end(err error, regular func(websocket.CloseError) bool) *Error {
	e := &Error{Op: s.k.op, Reason: ReasonLost, Status: http.StatusSwitchingProtocols, Dispatch: DispatchYes}
	var closed websocket.CloseError
	switch {
	case s.k.closed.Load():
		e.Reason = ReasonClosed
	case errors.As(err, &closed):
		e.Reason, e.CloseCode = ReasonEnded, int(closed.Code)
		if regular(closed) {
			e = nil
		}
	case s.k.ended(s.ctx, e):
	}
	s.free(e)
	return e
}

func (s *socket) free(e *Error) {
	s.once.Do(func() {
		s.stop()
		s.conn.CloseNow()
		s.c.observe(s.k, e)
	})
}

func (s *socket) close() {
	s.k.closed.Store(true)
	s.free(nil)
}

// LogStream is the log of a running command: the raw bytes of the daemon's file from its start, in which every line is
// preceded by 01 01 01 (standard output) or 02 02 02 (standard error). It must be closed.
type LogStream struct {
	s     *socket
	frame io.Reader // nil between messages
	err   error     // once ended
}

// Follow opens a websocket that delivers a command's log, from its start every time, and then what is written to it.
// The context bounds the stream, not only its opening.
//
// The daemon closes it about one second after the command ended, at times never, and at once when the session is
// deleted: neither the end of the stream nor its absence says anything about the command.
func (t *Toolbox) Follow(ctx context.Context, session, id string) (*LogStream, error) {
	if !t.ready([]string{session, id}) {
		return nil, badInput(OpFollow)
	}
	address := t.url(map[string][]string{"follow": {"true"}}, "process", "session", session, "command", id, "logs")
	s, err := t.dial(ctx, OpFollow, address)
	if err != nil {
		return nil, err
	}
	return &LogStream{s: s}, nil
}

// Read reads the next bytes, across messages. It ends with io.EOF after the close code 1000, and with an [*Error]
// otherwise, which carries the code if there was one. One goroutine may read at a time.
func (l *LogStream) Read(p []byte) (int, error) {
	for l.err == nil {
		if l.frame == nil {
			_, r, err := l.s.conn.Reader(l.s.ctx)
			if err != nil {
				l.end(err)
				break
			}
			l.frame = r
		}
		n, err := l.frame.Read(p)
		switch {
		case err == io.EOF:
			l.frame = nil
		case err != nil:
			l.end(err)
			return n, l.err
		}
		if n > 0 || len(p) == 0 {
			return n, nil
		}
	}
	return 0, l.err
}

func (l *LogStream) end(err error) {
	l.err = io.EOF
	if e := l.s.end(err, func(c websocket.CloseError) bool { return c.Code == websocket.StatusNormalClosure }); e != nil {
		l.err = e
	}
}

// Close frees the connection at once. It may be called twice, and during a Read, which then fails with ReasonClosed.
func (l *LogStream) Close() error {
	l.s.close()
	return nil
}
