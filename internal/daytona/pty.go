package daytona

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net/http"
	"sync"

	"github.com/coder/websocket"
	toolbox "github.com/daytonaio/daytona/libs/toolbox-api-client-go"
)

// PTYRequest describes a pseudo-terminal, in which the sandbox's shell runs interactively as a login shell.
type PTYRequest struct {
	ID   string            // chosen by the caller; required. A second one of the same id is a 409
	Dir  string            // empty: the daemon's working directory
	Env  map[string]string // added to the daemon's environment; TERM is xterm-256color otherwise
	Cols int               // 0: 80; at most 1000
	Rows int               // 0: 24; at most 1000
}

// CreatePTY starts a terminal. What it prints before a client is connected is lost.
func (t *Toolbox) CreatePTY(ctx context.Context, r PTYRequest) error {
	if !terminalSize(r.Cols, r.Rows) {
		return badInput(OpCreatePTY)
	}
	body := toolbox.PtyCreateRequest{
		Id: &r.ID, Cwd: nonZero(r.Dir), Cols: nonZero(int32(r.Cols)), Rows: nonZero(int32(r.Rows)),
	}
	if len(r.Env) > 0 {
		env := maps.Clone(r.Env)
		body.Envs = &env
	}
	return t.do(ctx, OpCreatePTY, func(ctx context.Context) error {
		_, _, err := t.api.ProcessAPI.CreatePtySession(ctx).Request(body).Execute()
		return accepted(ctx, err)
	}, r.ID)
}

// ResizePTY changes the size of a terminal, whose processes see SIGWINCH. After its end it is a 410 or a 404.
func (t *Toolbox) ResizePTY(ctx context.Context, id string, cols, rows int) error {
	if !terminalSize(cols, rows) || cols == 0 || rows == 0 {
		return badInput(OpResizePTY)
	}
	return t.do(ctx, OpResizePTY, func(ctx context.Context) error {
		request := toolbox.PtyResizeRequest{Cols: int32(cols), Rows: int32(rows)}
		_, _, err := t.api.ProcessAPI.ResizePtySession(ctx, id).Request(request).Execute()
		return accepted(ctx, err)
	}, id)
}

// DescribePTY returns the environment that a terminal was created with. One that has ended is a 404.
func (t *Toolbox) DescribePTY(ctx context.Context, id string) (env map[string]string, err error) {
	err = t.do(ctx, OpDescribePTY, func(ctx context.Context) error {
		_, resp, err := t.api.ProcessAPI.GetPtySession(ctx, id).Execute()
		var reply struct {
			ID   string            `json:"id"`
			Envs map[string]string `json:"envs"`
		}
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if reply.ID != id {
			return errReply
		}
		env = reply.Envs
		return nil
	}, id)
	return env, err
}

// terminalSize holds the daemon's limits.
func terminalSize(cols, rows int) bool { return cols >= 0 && cols <= 1000 && rows >= 0 && rows <= 1000 }

// DeletePTY kills a terminal's processes. One that has ended is gone by itself, and a 404.
func (t *Toolbox) DeletePTY(ctx context.Context, id string) error {
	return t.do(ctx, OpDeletePTY, func(ctx context.Context) error {
		_, _, err := t.api.ProcessAPI.DeletePtySession(ctx, id).Execute()
		return accepted(ctx, err)
	}, id)
}

// PTYExit is how a terminal's shell ended, as the daemon says in the reason of its close frame.
type PTYExit struct {
	Code   int    // -1: the shell was killed by a signal
	Reason string // the daemon's word, such as "SIGKILL": for classification; empty for code 0
}

// PTYConn is one client of a terminal. Output that is not read in time makes the daemon drop the client (close code
// 1008), not the terminal. It must be closed.
type PTYConn struct {
	s     *socket
	frame io.Reader // nil between messages
	err   error     // once ended

	writing sync.Mutex // one frame at a time, in the order of the calls

	mu     sync.Mutex
	exit   PTYExit
	exited bool
}

// ptyChunk is how much input goes into one frame. The daemon closes the connection above 64 KiB.
const ptyChunk = 32 << 10

// maxControl bounds a text frame, of which the daemon sends only control messages.
const maxControl = 64 << 10

// ConnectPTY connects to a terminal, and returns when the daemon confirmed it, so that input can be sent. The context
// bounds the connection, not only its opening. The daemon accepts the socket even of an unknown terminal, and closes it.
func (t *Toolbox) ConnectPTY(ctx context.Context, id string) (*PTYConn, error) {
	if !t.ready([]string{id}) {
		return nil, badInput(OpConnectPTY)
	}
	s, err := t.dial(ctx, OpConnectPTY, t.url(nil, "process", "pty", id, "connect"))
	if err != nil {
		return nil, err
	}
	p := &PTYConn{s: s}
	kind, r, err := s.conn.Reader(s.ctx)
	if err != nil {
		return nil, asError(s.end(err, neverRegular))
	}
	control, err := readControl(r)
	if err == nil && (kind != websocket.MessageText || control.Type != "control" || control.Status != "connected") {
		e := &Error{Op: OpConnectPTY, Reason: ReasonDecode, Status: http.StatusSwitchingProtocols, Dispatch: DispatchYes}
		if control.Status == "error" {
			e.Reason, e.Structured, e.Message = ReasonEnded, true, cut(control.Error, maxMessage)
		}
		s.free(e)
		return nil, e
	}
	if err != nil {
		return nil, asError(s.end(err, neverRegular))
	}
	return p, nil
}

func neverRegular(websocket.CloseError) bool { return false }

// Read reads the next bytes of the terminal's output, across messages. It ends with io.EOF once the daemon reported the
// exit of the shell, see [PTYConn.Exit], and with an [*Error] otherwise, which carries the close code if there was one.
// The daemon may lose the last output before an exit. One goroutine may read at a time.
func (p *PTYConn) Read(b []byte) (int, error) {
	for p.err == nil {
		if p.frame == nil {
			kind, r, err := p.s.conn.Reader(p.s.ctx)
			if err != nil {
				p.end(err)
				break
			}
			if kind == websocket.MessageText {
				// Output is always binary. A control message is for us.
				if _, err := readControl(r); err != nil {
					p.end(err)
					break
				}
				continue
			}
			p.frame = r
		}
		n, err := p.frame.Read(b)
		switch {
		case err == io.EOF:
			p.frame = nil
		case err != nil:
			p.end(err)
			return n, p.err
		}
		if n > 0 || len(b) == 0 {
			return n, nil
		}
	}
	return 0, p.err
}

func (p *PTYConn) end(err error) {
	p.err = io.EOF
	e := p.s.end(err, func(c websocket.CloseError) bool {
		exit, ok := parsePTYExit(int(c.Code), c.Reason)
		if ok {
			p.mu.Lock()
			p.exit, p.exited = exit, true
			p.mu.Unlock()
		}
		return ok
	})
	if e != nil {
		p.err = e
	}
}

// Exit returns how the shell ended. It is known once Read returned io.EOF, and only then.
func (p *PTYConn) Exit() (PTYExit, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit, p.exited
}

// Write sends input to the terminal. Concurrent calls are written one after another, each in frames of at most 32 KiB.
// It returns how much was handed to the connection; the daemon acknowledges nothing. Close, and the end of the context,
// unblock it.
func (p *PTYConn) Write(b []byte) (int, error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	var n int
	for n < len(b) {
		chunk := b[n:min(len(b), n+ptyChunk)]
		if err := p.s.conn.Write(p.s.ctx, websocket.MessageBinary, chunk); err != nil {
			e := &Error{Op: OpConnectPTY, Reason: ReasonLost, Status: http.StatusSwitchingProtocols, Dispatch: DispatchYes}
			if p.s.k.closed.Load() {
				e.Reason = ReasonClosed
			} else {
				p.s.k.ended(p.s.ctx, e)
			}
			return n, e
		}
		n += len(chunk)
	}
	return n, nil
}

// Ping returns once the daemon has answered a ping, which takes a Read that is under way.
func (p *PTYConn) Ping(ctx context.Context) error { return p.s.conn.Ping(ctx) }

// Close frees the connection at once; the terminal lives on. It may be called twice, and during a Read, which then fails
// with ReasonClosed.
func (p *PTYConn) Close() error {
	p.s.close()
	return nil
}

// control is a text frame of the daemon.
type control struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Error  string `json:"error"`
}

// readControl reads a text frame to its end. What is no control message gives a zero one.
func readControl(r io.Reader) (control, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxControl))
	if err != nil {
		return control{}, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return control{}, err
	}
	var c control
	if json.Unmarshal(body, &c) != nil {
		return control{}, nil
	}
	return c, nil
}

// parsePTYExit reads the close frame of a terminal. The daemon sends 1000 {"exitCode":0} and 1011 {"exitCode":N,
// "exitReason":"..."}; a DELETE is 137, "SIGKILL". A frame without an exit code is somebody else's, such as a proxy's
// that restarts, and says nothing about the shell.
func parsePTYExit(code int, reason string) (PTYExit, bool) {
	if code != int(websocket.StatusNormalClosure) && code != int(websocket.StatusInternalError) {
		return PTYExit{}, false
	}
	var exit struct {
		Code   *int   `json:"exitCode"`
		Reason string `json:"exitReason"`
	}
	if json.Unmarshal([]byte(reason), &exit) != nil || exit.Code == nil || *exit.Code < math.MinInt32 || *exit.Code > math.MaxInt32 {
		return PTYExit{}, false
	}
	return PTYExit{Code: *exit.Code, Reason: cut(exit.Reason, 128)}, true
}
