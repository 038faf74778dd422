package toolbox

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// ptyFrame is the size of the daemon's reads from a terminal, so the most that a frame carries.
	ptyFrame = 32 << 10

	// ptyInputQueue is how many input frames wait for a terminal that does not read.
	ptyInputQueue = 1024

	// ptyDrain bounds the wait for the rest of the output once the shell is gone: the kernel ends the
	// terminal with its session leader, except on systems where a background process keeps it open. Linux
	// throws away what was not read at that moment, so that on a busy machine some output is lost here, too.
	ptyDrain = 500 * time.Millisecond

	// ptyTail is how much of the last output a session loses whose Quirks.PTYTailLoss says so.
	ptyTail = 200 * time.Millisecond
)

// ptySession is a shell on a terminal, and who looks at it. It is used once: an ended session is not
// started again.
type ptySession struct {
	t         *Toolbox
	id        string
	losesTail bool
	input     chan []byte
	exited    chan struct{} // closed when the shell was reaped
	drained   chan struct{} // closed when no more output comes

	mu       sync.Mutex
	info     ptyInfo
	cmd      *exec.Cmd // nil before the start
	terminal *os.File  // the master side; nil before the start
	end      *ptyEnd   // how the session ended; nil while it may go on
	clients  map[*ptyClient]struct{}
}

func newPTYSession(t *Toolbox, info ptyInfo) *ptySession {
	lossy := t.opts.Quirks.PTYTailLoss
	return &ptySession{
		t:         t,
		id:        info.ID,
		losesTail: lossy != nil && lossy(),
		input:     make(chan []byte, ptyInputQueue),
		exited:    make(chan struct{}),
		drained:   make(chan struct{}),
		info:      info,
		clients:   make(map[*ptyClient]struct{}),
	}
}

func (s *ptySession) describe() ptyInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// start runs the shell, unless it was started before.
func (s *ptySession) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return errors.New("PTY session has ended")
	}
	if s.cmd != nil {
		return nil
	}
	cmd := s.t.command(s.info.Envs, s.t.shell(), "-i", "-l")
	cmd.Dir = s.t.path(s.info.Cwd)
	if !s.t.work.enter() {
		return errors.New("toolbox is closed")
	}
	terminal, err := startOnTerminal(s.t.opts.Group, cmd, s.info.Cols, s.info.Rows)
	if err != nil {
		s.t.work.leave()
		return err
	}
	s.cmd, s.terminal = cmd, terminal
	s.info.Active = true
	go func() {
		defer s.t.work.leave()
		s.run(terminal)
	}()
	return nil
}

// run lives as long as the shell does, and ends the session.
func (s *ptySession) run(terminal *os.File) {
	var pumps sync.WaitGroup
	pumps.Go(func() { s.readOutput(terminal) })
	pumps.Go(func() { s.writeInput(terminal) })
	s.wait()
	terminal.Close()
	pumps.Wait()
}

// readOutput hands what the terminal prints to the clients of that moment. With none it is lost.
func (s *ptySession) readOutput(terminal *os.File) {
	defer close(s.drained)
	deliver := s.broadcast
	if s.losesTail {
		held := make(chan heldOutput, 64)
		released := make(chan struct{})
		go func() {
			defer close(released)
			s.releaseHeld(held)
		}()
		defer func() {
			close(held)
			<-released
		}()
		deliver = func(output []byte) {
			select {
			case held <- heldOutput{time.Now(), output}:
			case <-s.exited:
			}
		}
	}
	buf := make([]byte, ptyFrame)
	for {
		n, err := terminal.Read(buf)
		if n > 0 {
			deliver(append([]byte(nil), buf[:n]...))
		}
		if err != nil {
			return
		}
	}
}

// heldOutput is output of a session that loses its tail.
type heldOutput struct {
	printed time.Time
	output  []byte
}

// releaseHeld delivers output once it is ptyTail old, and drops what is younger when the shell exits.
func (s *ptySession) releaseHeld(held <-chan heldOutput) {
	for h := range held {
		timer := time.NewTimer(time.Until(h.printed.Add(ptyTail)))
		select {
		case <-timer.C:
			s.broadcast(h.output)
		case <-s.exited:
			timer.Stop()
			return
		}
	}
}

func (s *ptySession) broadcast(output []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		if !c.send(websocket.MessageBinary, output) {
			delete(s.clients, c)
			c.finish(ptyEnd{code: websocket.StatusPolicyViolation, reason: "slow consumer", discard: true})
		}
	}
}

// writeInput types what the clients send, in order of arrival.
func (s *ptySession) writeInput(terminal *os.File) {
	for {
		select {
		case input := <-s.input:
			if _, err := terminal.Write(input); err != nil {
				return
			}
		case <-s.exited:
			return
		}
	}
}

// wait reaps the shell, lets the rest of the output out, takes the session out of the table and tells the
// clients.
func (s *ptySession) wait() {
	err := s.cmd.Wait()
	s.mu.Lock()
	s.info.Active = false
	s.mu.Unlock()
	close(s.exited)
	if !s.losesTail {
		timer := time.NewTimer(ptyDrain)
		select {
		case <-s.drained:
		case <-timer.C:
		}
		timer.Stop()
	}
	s.t.ptys.remove(s)
	s.finish(exitEnd(exitCode(err)))
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode() // -1 when a signal killed the shell
	default:
		return 1
	}
}

// kill ends a session that was taken out of the table: the clients are told first, then the shell and its
// descendants die. It returns when the shell was reaped.
func (s *ptySession) kill() {
	s.finish(exitEnd(137))
	s.mu.Lock()
	cmd := s.cmd
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	s.t.opts.Group.KillTree(cmd.Process.Pid, 0)
	<-s.exited
}

func (s *ptySession) resize(cols, rows uint16) (ptyInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.info.Active {
		return ptyInfo{}, errors.New("cannot resize inactive PTY session")
	}
	if err := resizeTerminal(s.terminal, cols, rows); err != nil {
		return ptyInfo{}, err
	}
	s.info.Cols, s.info.Rows = cols, rows
	return s.info, nil
}

// ptyEnd is how a client's socket is closed.
type ptyEnd struct {
	code    websocket.StatusCode
	reason  string
	discard bool // queued output is not sent any more
}

// exitEnd tells an exit code: 1000 for zero, 1011 for every other one, details as JSON in the reason.
func exitEnd(code int) ptyEnd {
	exit := struct {
		ExitCode   int    `json:"exitCode"`
		ExitReason string `json:"exitReason,omitempty"`
	}{ExitCode: code}
	end := ptyEnd{code: websocket.StatusInternalError}
	switch {
	case code == 0:
		end.code = websocket.StatusNormalClosure
	case code == 130:
		exit.ExitReason = "Ctrl+C"
	case code == 137:
		exit.ExitReason = "SIGKILL"
	case code == 143:
		exit.ExitReason = "SIGTERM"
	case code > 128:
		exit.ExitReason = "signal " + strconv.Itoa(code-128)
	default:
		exit.ExitReason = "non-zero exit"
	}
	reason, _ := json.Marshal(exit) // cannot fail
	end.reason = string(reason)
	return end
}

// finish ends the session for everybody who looks at it. The first end counts.
func (s *ptySession) finish(end ptyEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	s.end = &end
	for c := range s.clients {
		delete(s.clients, c)
		c.finish(end)
	}
}
