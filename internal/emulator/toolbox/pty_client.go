package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	ptyMaxInput    = 64 << 10 // of one input frame; a larger one closes the socket with 1009
	ptyClientQueue = 256      // output frames that wait for one client

	// ptyFlush is how long a client that is to be closed for being slow may take for the frame it is at.
	ptyFlush = 5 * time.Second
)

// ptyClient is one socket on a terminal.
type ptyClient struct {
	conn   *websocket.Conn
	cancel context.CancelFunc // drops the connection
	queue  chan ptyMessage
	ended  chan struct{} // closed by finish, after end was set

	once sync.Once
	end  ptyEnd
}

type ptyMessage struct {
	kind websocket.MessageType
	data []byte
}

// connectPTY attaches a socket to a session. It always upgrades: a session that is not there is told in a
// control frame, after which the connection drops without a close frame. The first frame says "connected",
// in a text frame; output follows in binary frames, from now on only.
func (t *Toolbox) connectPTY(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{OriginPatterns: []string{"*"}}) // the proxy in front decides who may connect
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(ptyMaxInput)
	if !t.work.enter() {
		return
	}
	defer t.work.leave()
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()

	c := &ptyClient{conn: conn, cancel: cancel, queue: make(chan ptyMessage, ptyClientQueue), ended: make(chan struct{})}
	s, err := t.attach(r.PathValue("id"), c)
	if err != nil {
		message := controlFrame("error", "Failed to connect to PTY session: "+err.Error())
		_ = conn.Write(ctx, websocket.MessageText, message)
		return
	}
	defer s.detach(c)

	written := make(chan struct{})
	go func() {
		defer close(written)
		defer cancel() // frees a reader that waits for room in the session's input
		c.write(ctx)
	}()
	c.read(ctx, s)
	cancel()
	<-written
}

func controlFrame(status, problem string) []byte {
	frame, _ := json.Marshal(struct {
		Type   string `json:"type"`
		Status string `json:"status"`
		Error  string `json:"error,omitempty"`
	}{"control", status, problem}) // cannot fail
	return frame
}

// attach adds the client to a session and starts a lazy one, in this order: the first client of a lazy
// session sees its output from the first byte.
func (t *Toolbox) attach(id string, c *ptyClient) (*ptySession, error) {
	s := t.ptys.get(id)
	if s == nil {
		return nil, fmt.Errorf("PTY session %s not found", id)
	}
	if err := s.attach(c); err != nil {
		return nil, err
	}
	if s.describe().LazyStart {
		if err := s.start(); err != nil {
			s.detach(c)
			return nil, fmt.Errorf("failed to start PTY session: %w", err)
		}
	}
	return s, nil
}

func (s *ptySession) attach(c *ptyClient) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return errors.New("PTY session '" + s.id + "' has terminated and is no longer available")
	}
	c.send(websocket.MessageText, controlFrame("connected", ""))
	s.clients[c] = struct{}{}
	return nil
}

func (s *ptySession) detach(c *ptyClient) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
}

// send queues a frame. It never waits; false means that the client is too slow.
func (c *ptyClient) send(kind websocket.MessageType, data []byte) bool {
	select {
	case c.queue <- ptyMessage{kind, data}:
		return true
	default:
		return false
	}
}

// finish has the socket closed, after what is queued unless the end says otherwise.
func (c *ptyClient) finish(end ptyEnd) {
	c.once.Do(func() {
		c.end = end
		close(c.ended)
		if end.discard {
			time.AfterFunc(ptyFlush, c.cancel)
		}
	})
}

// write sends the queue until the client is finished or gone.
func (c *ptyClient) write(ctx context.Context) {
	for {
		select {
		case m := <-c.queue:
			if c.discards() {
				continue
			}
			if err := c.conn.Write(ctx, m.kind, m.data); err != nil {
				return
			}
		case <-c.ended:
			c.close(ctx)
			return
		case <-ctx.Done(): // the client has left, and there may be no output for long that would tell
			return
		}
	}
}

// discards reports whether the client was finished in a way that drops its queue.
func (c *ptyClient) discards() bool {
	select {
	case <-c.ended:
		return c.end.discard
	default:
		return false
	}
}

// close sends the rest of the queue, which does not grow any more, and the close frame.
func (c *ptyClient) close(ctx context.Context) {
	for !c.end.discard {
		select {
		case m := <-c.queue:
			if err := c.conn.Write(ctx, m.kind, m.data); err != nil {
				return
			}
			continue
		default:
		}
		break
	}
	if ctx.Err() == nil { // a dying daemon says nothing
		_ = c.conn.Close(c.end.code, c.end.reason)
	}
}

// read passes the client's frames to the terminal until the socket ends.
func (c *ptyClient) read(ctx context.Context, s *ptySession) {
	for {
		_, input, err := c.conn.Read(ctx)
		if err != nil {
			return
		}
		select {
		case s.input <- input:
		case <-s.exited:
		case <-ctx.Done():
			return
		}
	}
}
