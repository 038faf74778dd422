package leasehold

import (
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// errStderr is the cause of the end of a channel whose writer failed.
var errStderr = errors.New("the writer of standard error failed")

// channelEvents takes what the sandbox's end of a channel sends.
type channelEvents struct {
	c      *console
	input  *channelInput
	stderr *inflow // on its way to the writer; nil: nobody wants it
	writer io.Writer
	begin  sync.Once // of relay

	mu       sync.Mutex // guards the fields below
	received [2]int64   // bytes of standard output, and error
	read     [2]int64
	rounds   [2][]int64 // of those that were not read: how much had been received at the end
	ended    [2]bool    // the stream has come whole
	relayed  bool       // the writer has had the whole of standard error
	exited   bool       // the program has ended
	code     int
	failure  error // of the writer
}

func newChannelEvents(c *console, stderr io.Writer) *channelEvents {
	e := &channelEvents{c: c, input: newChannelInput(c), writer: stderr}
	c.in = newInflow(c.life, maxUnread, func(n int) { e.took(stream.Stdout, n) })
	if stderr == nil {
		e.ended[stream.Stderr], e.relayed = true, true
		return e
	}
	e.stderr = newInflow(c.life, maxUnread, func(n int) { e.took(stream.Stderr, n) })
	return e
}

// start begins to give the writer standard error.
func (e *channelEvents) start() {
	if e.stderr != nil {
		e.begin.Do(func() { go e.relay() }) // nobody waits for it: a Write of the caller's may never return
	}
}

// relay gives the writer standard error.
func (e *channelEvents) relay() {
	buf := make([]byte, 32<<10)
	for {
		n, err := e.stderr.Read(buf)
		if err == io.EOF {
			e.mu.Lock()
			e.relayed = true
			e.mu.Unlock()
			e.settle()
		}
		if err != nil {
			return
		}
		m, err := e.writer.Write(buf[:n])
		if err == nil && m < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			e.fail(err)
			return
		}
	}
}

// fail notes that the writer failed, and ends the connection. If that has ended already, the exit was left to the writer.
func (e *channelEvents) fail(err error) {
	e.mu.Lock()
	e.failure = err
	if e.whole() {
		e.c.settle(exited(e.code), e.reason("wait", errStderr))
	}
	e.mu.Unlock()
	e.c.hang(errStderr)
}

// giveUp notes the exit without the writer, which has had its time.
func (e *channelEvents) giveUp() {
	limit := time.NewTimer(killTime)
	defer limit.Stop()
	select {
	case <-e.c.settled:
		return
	case <-limit.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.whole() {
		lost := e.c.fail(KindClosed, "it was closed before the writer of standard error had everything")
		lost.Op, lost.Dispatched = "wait", DispatchedYes
		e.c.settle(exited(e.code), lost)
		e.stderr.drop(lost)
	}
}

// whole reports that the program has ended and standard error came whole: the exit is noted once the writer has had it. It
// is called with the lock held.
func (e *channelEvents) whole() bool { return e.exited && e.ended[stream.Stderr] }

// reason is err, which ended the connection, as the call op returns it. It is called with the lock held.
func (e *channelEvents) reason(op string, err error) *Error {
	reason := e.c.reason(op, err)
	if e.failure != nil {
		reason.Kind, reason.Message, reason.cause = KindIO, errStderr.Error()+", and the channel was closed", e.failure
	}
	return reason
}

// settle notes the exit once nothing is missing to it.
func (e *channelEvents) settle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exited && e.relayed {
		e.c.settle(exited(e.code), nil)
	}
}

// took lets another round go for each of which all was read.
func (e *channelEvents) took(s stream.Stream, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.read[s] += int64(n)
	e.release(s)
}

// release is called with the lock held.
func (e *channelEvents) release(s stream.Stream) {
	words := [2]string{stream.Stdout: "out\n", stream.Stderr: "err\n"}
	for len(e.rounds[s]) > 0 && e.rounds[s][0] <= e.read[s] {
		e.rounds[s] = e.rounds[s][1:]
		_, _ = io.WriteString(e.c.conn, words[s]) // a connection that fails will be noticed
	}
}

// Data implements [stream.DuplexEvents].
func (e *channelEvents) Data(s stream.Stream, p []byte) {
	e.mu.Lock()
	e.received[s] += int64(len(p))
	e.mu.Unlock()
	if s == stream.Stdout {
		e.c.in.put(p)
	} else if e.stderr != nil {
		e.stderr.put(p)
	}
}

// maxRounds is how many rounds of a stream are let go and not read: fewer were asked for.
const maxRounds = 4

// Round implements [stream.DuplexEvents]. A stream that has ended without an end of the command is that of a script that was
// killed.
func (e *channelEvents) Round(s stream.Stream, n int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case n == 0 && !e.exited:
		return errVanished
	case len(e.rounds[s]) == maxRounds:
		return stream.ErrDuplex
	}
	e.rounds[s] = append(e.rounds[s], e.received[s])
	e.release(s)
	return nil
}

// Ended implements [stream.DuplexEvents].
func (e *channelEvents) Ended(s stream.Stream) {
	e.mu.Lock()
	e.ended[s] = true
	e.mu.Unlock()
	if s == stream.Stdout {
		e.c.in.end(io.EOF)
	} else if e.stderr != nil {
		e.stderr.end(io.EOF)
	}
	e.finish()
}

// finish ends the connection once everything has come.
func (e *channelEvents) finish() {
	e.mu.Lock()
	all := e.exited && e.ended == [2]bool{true, true} && !e.c.heard
	e.mu.Unlock()
	if all {
		e.c.heard = true
		e.c.hangUp("quit\n")
	}
}

// Said implements [stream.DuplexEvents].
func (e *channelEvents) Said(word, arg string) error {
	if word == "closed" {
		e.input.refuse()
		return nil
	}
	n, err := strconv.Atoi(arg)
	switch word {
	case "in":
		if err == nil && e.input.taken(n) {
			return nil
		}
		return stream.ErrDuplex
	case script.SaysExit:
		if err != nil {
			return stream.ErrDuplex
		}
		e.mu.Lock()
		e.exited, e.code = true, n
		e.mu.Unlock()
		e.c.begin(nil)
		e.start()
		e.settle()
		e.input.refuse()
		e.finish()
		return nil
	case script.SaysStarted:
		if err != nil || e.c.begun { // it is said once: what came before it has come twice
			return stream.ErrDuplex
		}
		e.input.start(n)
		e.start()
		// Two rounds of standard output at once, and one of standard error: see script's channel.sh.
		_, _ = io.WriteString(e.c.conn, "out\nout\nerr\n")
	}
	return e.c.said(word, arg)
}

// receivingEnded implements consoleEvents.
func (e *channelEvents) receivingEnded(err error) (remove bool) {
	e.mu.Lock()
	exit, lost := e.c.unheard(err), e.reason("wait", err)
	if e.exited {
		exit = exited(e.code)
	}
	if !e.whole() || e.failure != nil { // else the exit is noted once the writer has had everything
		e.c.settle(exit, lost)
	}
	reason := e.reason("read", err)
	e.mu.Unlock()
	e.c.in.end(reason)
	e.input.refuse()
	if e.stderr != nil {
		e.stderr.end(reason)
	}
	return true
}
