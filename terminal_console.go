package leasehold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

const (
	// maxTerminalNoise is how much a login shell may print before it does as it was told.
	maxTerminalNoise = 1 << 20
	// pingTime is how long a connection is left alone, and how long the answer to a ping may take.
	pingTime = 15 * time.Second
	// terminalCleanupTimeout bounds the removal of a terminal, whatever became of what it was for.
	terminalCleanupTimeout = 5 * time.Second
	// hangUpTime is how long the end of a script that was told to end is waited for.
	hangUpTime = 2 * time.Second
)

// errHungUp is the cause of the end of a terminal's or channel's connection that was closed on this side, and errDeadPeer of
// one whose other side does not answer any more. errVanished ends one of which nothing can come any more.
var (
	errHungUp   = errors.New("it was closed")
	errDeadPeer = errors.New("the connection is dead: a ping was not answered")
	errVanished = errors.New("it ended without an exit: it was killed")
)

// console is a pseudo-terminal of a lease's sandbox whose login shell was told to become something else, and the
// connection to it.
type console struct {
	l    *Lease
	kind ActivityKind
	op   string
	name string // of the terminal in the sandbox
	mark string
	held *holding
	box  *daytona.Toolbox
	conn *daytona.PTYConn
	in   *inflow // of standard output

	farewell func() // what close does first; nil: nothing

	life context.Context // of the connection
	hang context.CancelCauseFunc

	started  chan struct{} // closed when the command has taken over, or never will
	refused  error         // why it never will; valid once started is closed
	finished chan struct{} // closed when nothing is received any more
	settling sync.Mutex
	settled  chan struct{} // closed when exit and lost are final
	exit     Exit
	lost     error // why the exit is not known

	foreign atomic.Bool // somebody else's, or left to somebody else: not to be removed

	closing   sync.Mutex // held while the terminal is opened, and while it is removed from the sandbox
	sent      Dispatch   // of the request that makes the terminal, or finds it
	doubtful  bool       // whether the terminal of this name is this one has yet to be read
	removed   bool
	receiving bool
	gone      bool // the terminal has ended; while receiving, of the goroutine that does

	// Of the goroutine that receives, until finished is closed.
	noise  int
	begun  bool
	heard  bool // the exit was said
	parser *stream.Duplex
}

// consoleEvents is what the user of a console does with what it receives.
type consoleEvents interface {
	stream.DuplexEvents
	// receivingEnded is called once, when nothing will be received any more because of err. It reports that the terminal is of
	// no use any more, and is to be removed.
	receivingEnded(err error) (remove bool)
}

// newConsole registers a terminal that is about to be opened.
//
// Until opened is called it counts among the provider's streams, and so may be what it begins meanwhile.
func (l *Lease) newConsole(kind ActivityKind, op, name, mark string, prepare func(*console)) (_ *console, opened func(), _ error) {
	held, err := l.hold(kind, op)
	if err != nil {
		return nil, nil, err
	}
	c := &console{
		l: l, kind: kind, op: op, name: name, mark: mark, held: held, exit: Exit{State: ExitUnknown, Code: -1}, sent: DispatchedNo,
		started: make(chan struct{}), finished: make(chan struct{}), settled: make(chan struct{}),
	}
	c.life, c.hang = context.WithCancelCause(l.p.work)
	prepare(c)
	var refused *Error
	if !l.p.admitStream() {
		refused = c.fail(KindClosed, errProviderClosed.Error())
	} else if refused = l.consoles.add(c); refused != nil {
		l.p.streams.Done()
	}
	if refused != nil {
		refused.Dispatched = DispatchedNo
		c.hang(refused)
		held.end()
		return nil, nil, refused
	}
	return c, l.p.streams.Done, nil
}

func (c *console) fail(kind Kind, message string) *Error {
	return &Error{Op: c.op, Kind: kind, Sandbox: c.l.ref.Sandbox, Message: message}
}

// open creates the terminal, connects to it and waits until the command has taken over. After an error it is removed.
func (c *console) open(ctx context.Context, env map[string]string, to consoleEvents) error {
	err := c.opening(ctx, func(ctx context.Context) error {
		if err := c.create(ctx, env); err != nil {
			return err
		}
		if err := c.connect(to); err != nil {
			return err
		}
		if _, err := io.WriteString(c.conn, script.TerminalLine); err != nil {
			return err
		}
		<-c.started
		return c.refused
	})
	if err != nil {
		remove := func() { _ = c.close(context.WithoutCancel(ctx), c.op) }
		if ctx.Err() != nil {
			c.l.p.streams.Go(remove)
		} else {
			remove()
		}
	}
	return err
}

// opening does what must be done until the connection is of use: it ends with ctx, and takes no longer than a call. Whoever
// closes the terminal meanwhile ends it, and waits for that: there may be something to remove by then. A connection that ends by
// itself does not: the program may have come to its end.
func (c *console) opening(ctx context.Context, f func(context.Context) error) error {
	c.closing.Lock()
	defer c.closing.Unlock()
	call, cancel := context.WithTimeout(ctx, c.l.p.cfg.CallTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, func() {
		if context.Cause(c.life) == errHungUp || c.l.p.work.Err() != nil {
			cancel()
		}
	})()
	box, err := c.l.toolbox(call)
	if err == nil {
		c.box = box
		disarm := context.AfterFunc(call, func() { c.hang(context.Cause(call)) })
		err = f(call)
		if !disarm() && err == nil {
			err = ctxError(call)
		}
	}
	if err == nil {
		return nil
	}
	switch {
	case ctx.Err() != nil:
		err = ctxError(ctx)
	case context.Cause(c.life) == errHungUp:
		err = c.fail(KindClosed, "it was closed while it was opened")
	case c.l.p.work.Err() != nil:
		err = c.fail(KindClosed, errProviderClosed.Error())
	case errors.Is(call.Err(), context.DeadlineExceeded):
		err = c.fail(KindTimeout, "it did not begin within the CallTimeout")
	}
	e := c.l.observe(c.op, err).(*Error)
	e.Op, e.Dispatched = c.op, c.sent
	return e
}

// dispatched notes what became of the request that makes the terminal, or finds it.
func (c *console) dispatched(err error) {
	c.sent = DispatchedYes
	if e := failed(c.op, err); e != nil {
		c.sent = e.Dispatched
	}
}

// create makes the terminal, once whatever happens to the request.
func (c *console) create(ctx context.Context, env map[string]string) error {
	c.doubtful = true
	err := createPTY(ctx, c.box, c.name, env)
	c.dispatched(err)
	if !nameTaken(err) {
		c.doubtful = err != nil
		return err
	}
	if err := c.identify(ctx); err != nil {
		return err
	}
	if c.foreign.Load() || c.gone {
		return c.fail(KindConflict, "there is one of this id")
	}
	return nil
}

// identify reads whether the terminal of this name is this one, by its mark, which is nobody else's.
func (c *console) identify(ctx context.Context) error {
	env, err := c.box.DescribePTY(ctx, c.name)
	var remote *daytona.Error
	switch {
	case errors.As(err, &remote) && remote.NotFound():
		c.gone = true
	case err != nil:
		return err
	case script.CarriedMark(env) != c.mark:
		c.foreign.Store(true)
	}
	c.doubtful = false
	return nil
}

// createPTY creates a terminal, and does so again if the answer was lost. That the name is taken may be due to that,
// or to a proxy that delivered the request twice.
func createPTY(ctx context.Context, box *daytona.Toolbox, name string, env map[string]string) error {
	request := daytona.PTYRequest{ID: name, Rows: script.TerminalRows, Env: env}
	err := box.CreatePTY(ctx, request)
	var remote *daytona.Error
	if errors.As(err, &remote) && ctx.Err() == nil && unanswered(remote) {
		again := box.CreatePTY(ctx, request)
		var second *daytona.Error
		if !errors.As(again, &second) || second.Dispatch != daytona.DispatchNo { // else the first says more
			return again
		}
	}
	return err
}

// nameTaken reports that a terminal was not created because there is one of its name.
func nameTaken(err error) bool {
	var remote *daytona.Error
	return errors.As(err, &remote) && remote.Status == http.StatusConflict
}

// connect connects, and begins to receive.
func (c *console) connect(to consoleEvents) error {
	conn, err := c.box.ConnectPTY(c.life, c.name)
	if err != nil {
		var remote *daytona.Error
		switch {
		case !errors.As(err, &remote) || remote.Reason != daytona.ReasonEnded || !remote.Structured: // in the daemon's words
			return err
		case c.begun:
			c.gone = true
			return c.fail(KindNotFound, "it has ended")
		}
		return c.fail(KindRefused, "its shell ended at once")
	}
	c.conn = conn
	t := script.Terminal{Mark: c.mark}
	c.parser = stream.NewDuplex(t.Say(), t.End(), !c.begun)
	var pinger sync.WaitGroup
	pinger.Go(c.ping)
	c.receiving = true
	c.l.p.streams.Go(func() {
		err := c.receive(to)
		c.gone = c.heard && err == io.EOF // the daemon says so, too
		c.hang(err)
		conn.Close()
		pinger.Wait()
		c.begin(c.unbegun(err))
		remove := to.receivingEnded(err)
		close(c.finished)
		if remove {
			_ = c.close(context.Background(), "close")
		}
	})
	return nil
}

// receive returns why nothing more can be received.
func (c *console) receive(to consoleEvents) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.conn.Read(buf)
		if n > 0 && !c.begun {
			if c.noise += n; c.noise > maxTerminalNoise {
				return c.fail(KindProtocol, "the login shell prints without end")
			}
		}
		if err := c.parser.Next(buf[:n], to); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
}

// unbegun is the error of a terminal that ended, because of err, before its command took over.
func (c *console) unbegun(err error) error {
	if err == io.EOF {
		return c.fail(KindRefused, "its shell ended at once")
	}
	return c.reason(c.op, err)
}

// begin notes that the command has taken over, or why it will not.
func (c *console) begin(err error) {
	if !c.begun {
		c.begun, c.refused = true, err
		close(c.started)
	}
}

var toolName = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// said takes the lines that all consoles say.
func (c *console) said(word, arg string) error {
	switch word {
	case script.SaysStarted:
		c.begin(nil)
	case script.SaysNoDir:
		c.begin(c.fail(KindNotFound, "the directory cannot be entered"))
	case script.SaysMissing:
		if !toolName.MatchString(arg) {
			return stream.ErrDuplex
		}
		c.begin(c.fail(KindRefused, "the sandbox lacks "+arg))
	default:
		return stream.ErrDuplex
	}
	return nil
}

// ping looks after the connection until it ends. While it is not read, because nobody takes what came, no answer can be
// expected, and a terminal's program that does not read may keep a write, and with it every ping, from being sent.
func (c *console) ping() {
	for sleep(c.life, pingTime) == nil {
		if c.in.pause()%2 == 1 {
			continue
		}
		answered := make(chan struct{})
		go func() {
			err := c.conn.Ping(c.life) // which ends with the connection, or after a while if it cannot be sent
			for c.kind == ActivityChannel && errors.Is(err, context.DeadlineExceeded) {
				err = c.conn.Ping(c.life)
			}
			close(answered)
		}()
		for waiting := true; waiting; {
			before := c.in.pause()
			timer := time.NewTimer(pingTime)
			select {
			case <-answered:
				waiting = false
			case <-timer.C:
				if before%2 == 0 && c.in.pause() == before {
					c.hang(errDeadPeer)
					c.conn.Close()
				}
			}
			timer.Stop()
		}
	}
}

// settle notes the exit, or why it is not known. The first call counts.
func (c *console) settle(exit Exit, lost error) {
	c.settling.Lock()
	defer c.settling.Unlock()
	select {
	case <-c.settled:
	default:
		c.exit, c.lost = exit, lost
		close(c.settled)
	}
}

// reason is err, which ended the connection, as the call op returns it.
func (c *console) reason(op string, err error) *Error {
	var remote *daytona.Error
	var e *Error
	switch cause := context.Cause(c.life); {
	case cause == errHungUp:
		e = c.fail(KindClosed, errHungUp.Error())
	case cause == errDeadPeer:
		e = c.fail(KindUnavailable, errDeadPeer.Error())
	case c.l.p.work.Err() != nil:
		e = c.fail(KindClosed, errProviderClosed.Error())
	case errors.Is(err, stream.ErrDuplex):
		e = c.fail(KindProtocol, "what the sandbox sent makes no sense: something was lost or added on the way")
	case errors.As(err, &remote) && remote.CloseCode == closeSlow:
		e = c.fail(KindLimit, "the output was not read in time, and the daemon closed the connection")
	case err == io.EOF || err == errVanished:
		e = c.fail(KindUncertain, errVanished.Error())
	default:
		e = c.l.observe(op, err).(*Error)
	}
	e.Op, e.Sandbox, e.Dispatched, e.Retryable = op, c.l.ref.Sandbox, DispatchedYes, false
	return e
}

// unheard is the exit of a console whose receiving ended because of err before the exit was said.
func (c *console) unheard(err error) Exit {
	exit := Exit{State: ExitDisconnected, Code: -1}
	if err == io.EOF || err == errVanished || context.Cause(c.life) == errHungUp {
		exit.State = ExitUnknown
	}
	return exit
}

// closeSlow is the code with which the daemon closes the connection of a client that does not read.
const closeSlow = 1008

// wait waits for the exit.
func (c *console) wait(ctx context.Context) (Exit, error) {
	select {
	case <-c.settled:
		return c.exit, c.lost
	default:
	}
	select {
	case <-c.settled:
		return c.exit, c.lost
	case <-ctx.Done():
		e := failed("wait", ctxError(ctx))
		e.Sandbox, e.Dispatched = c.l.ref.Sandbox, DispatchedYes
		return Exit{State: ExitUnknown, Code: -1}, e
	}
}

// tooLate returns an error once the program has ended, or the connection.
func (c *console) tooLate(op string) error {
	select {
	case <-c.settled:
	case <-c.life.Done():
	default:
		return nil
	}
	return c.closed(op)
}

// closed is the error of a call that comes too late.
func (c *console) closed(op string) error {
	e := c.fail(KindClosed, "it has ended, or was closed")
	e.Op, e.Dispatched, e.cause = op, DispatchedNo, io.ErrClosedPipe
	return e
}

// write sends p to the terminal.
func (c *console) write(op string, p []byte) (int, error) {
	if err := c.tooLate(op); err != nil {
		return 0, err
	}
	n, err := c.conn.Write(p)
	if err == nil {
		return n, nil
	}
	if late := c.tooLate(op); late != nil {
		return n, late
	}
	return n, c.reason(op, err)
}

// hangUp sends a last word after which the script ends, and ends the connection if it does not, or does not read it.
func (c *console) hangUp(word string) {
	time.AfterFunc(hangUpTime, func() { c.conn.Close() })
	_, _ = io.WriteString(c.conn, word)
}

// leave ends the connection and forgets the terminal, which lives on.
func (c *console) leave() {
	c.l.consoles.remove(c)
	c.hang(errHungUp)
	c.closing.Lock()
	defer c.closing.Unlock()
	c.stopReceiving()
	switch foreign := c.foreign.Swap(true); {
	case foreign, c.box == nil: // it is somebody else's, or was not even looked for
		c.held.end()
	case c.gone:
		c.held.ended(c.name)
		c.held.end()
	default:
		c.held.leave(c.name)
	}
}

// stopReceiving returns when nothing is received any more.
func (c *console) stopReceiving() {
	if c.receiving {
		c.conn.Close()
		<-c.finished
	}
}

// close ends the connection and the terminal. It may be called again: it does what an earlier call could not.
func (c *console) close(ctx context.Context, op string) error {
	c.l.consoles.remove(c)
	if c.farewell != nil {
		c.farewell()
	}
	c.hang(errHungUp)
	c.closing.Lock()
	defer c.closing.Unlock()
	c.stopReceiving()
	if c.box != nil && !c.gone && !c.removed && !c.foreign.Load() {
		if err := c.remove(ctx, op); err != nil {
			c.held.leave(c.name)
			return err
		}
	}
	if !c.removed && !c.foreign.Load() {
		c.removed = true
		c.held.ended(c.name)
	}
	c.held.end()
	return nil
}

// remove removes the terminal from the sandbox, but no other one of its name.
func (c *console) remove(ctx context.Context, op string) error {
	return removing(ctx, c.l, op, func(ctx context.Context) error {
		if c.doubtful {
			if err := c.identify(ctx); err != nil || c.gone || c.foreign.Load() {
				return err
			}
		}
		return c.box.DeletePTY(ctx, c.name)
	})
}

// removePTY removes a terminal, whosever it is, and what runs on it.
func removePTY(ctx context.Context, l *Lease, box *daytona.Toolbox, op, name string) error {
	return removing(ctx, l, op, func(ctx context.Context) error { return box.DeletePTY(ctx, name) })
}

// removing removes a terminal, for as long as that may take.
func removing(ctx context.Context, l *Lease, op string, remove func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, terminalCleanupTimeout)
	defer cancel()
	var pause backoff
	for {
		err := remove(ctx)
		var remote *daytona.Error
		if err == nil || errors.As(err, &remote) && remote.NotFound() {
			return nil
		}
		mapped := l.observe(op, err).(*Error)
		if mapped.Kind == KindNotRunning {
			return nil // a terminal does not outlive its sandbox
		}
		if pause.wait(ctx, 0) != nil {
			l.p.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "leasehold: a terminal may be left in the sandbox", slog.String("op", op))
			return mapped
		}
	}
}

func (c *console) format(s fmt.State, what, id string) {
	fmt.Fprintf(s, "%s %s of sandbox %s", what, id, c.l.ref.Sandbox)
}
