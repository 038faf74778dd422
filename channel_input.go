package leasehold

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
)

const (
	// inputWindow is how much input may be on its way. It must be more than the 128 KiB that the sandbox takes before it says
	// so, and less than what fits into the eight pipes there. A pipe of Linux has 16 pages, and two neighbouring ones hold
	// more than a page together, whatever the sizes of the writes; the first may be nearly read. So 28 KiB each is certain.
	inputWindow = 8 * 28 << 10
	// killTime is how long the end of a program that was killed is waited for.
	killTime = 500 * time.Millisecond
)

// channelInput sends a program its input. No more is on its way than what pipes in the sandbox hold, so that what else is
// sent is never kept waiting by a program that does not read.
type channelInput struct {
	c *console

	writing sync.Mutex // held by the writer whose turn it is

	mu      sync.Mutex // guards the fields below
	cond    sync.Cond  // something in them changed
	process int        // the program's
	waiting int        // bytes sent, of which the program is not known to have taken them
	ended   bool       // by CloseWrite
	refused bool       // nobody reads any more
}

func newChannelInput(c *console) *channelInput {
	in := &channelInput{c: c}
	in.cond.L = &in.mu
	context.AfterFunc(c.life, in.refuse)
	return in
}

// start notes the program's process.
func (in *channelInput) start(process int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.process = process
}

// refuse makes every write fail.
func (in *channelInput) refuse() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.refused = true
	in.cond.Broadcast()
}

// taken notes that the program took n bytes more. It reports whether so many were sent.
func (in *channelInput) taken(n int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waiting -= n
	in.cond.Broadcast()
	return in.waiting >= 0
}

// next waits until something can be sent, and returns how much of so many bytes.
func (in *channelInput) next(n int) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for n > 0 && in.waiting == inputWindow && !in.refused { // CloseWrite waits for this writer
		in.cond.Wait()
	}
	if in.refused || in.ended {
		return 0, in.c.closed("write")
	}
	n = min(n, inputWindow-in.waiting)
	in.waiting += n
	return n, nil
}

func (in *channelInput) write(p []byte) (int, error) {
	in.writing.Lock()
	defer in.writing.Unlock()
	sent := 0
	for {
		n, err := in.next(len(p) - sent)
		if err != nil || n == 0 {
			return sent, err
		}
		piece := p[sent : sent+n]
		line := []byte(script.InputText(piece))
		if len(line) == 0 {
			line = append(fmt.Appendf(make([]byte, 0, n+16), "data %d\n", n), piece...)
		}
		if _, err := in.c.write("write", line); err != nil {
			return sent, err
		}
		if sent += n; sent == len(p) {
			return sent, nil // whatever the program makes of it
		}
	}
}

// end says that the input has ended.
func (in *channelInput) end() error {
	in.writing.Lock()
	defer in.writing.Unlock()
	in.mu.Lock()
	before := in.ended || in.refused
	in.ended = true
	in.mu.Unlock()
	if before {
		return nil
	}
	_, err := in.c.write("close write", []byte("end\n"))
	return err
}

// kill kills the program, so that it does not take the end of its terminal for that of its input, and waits a moment for
// that, whether or not anybody reads what comes meanwhile.
func (in *channelInput) kill() {
	in.mu.Lock()
	process := in.process
	in.mu.Unlock()
	if process == 0 || in.c.tooLate("close") != nil {
		return
	}
	limit := time.AfterFunc(killTime, func() { in.c.hang(errHungUp) })
	defer limit.Stop()
	if _, err := in.c.write("close", fmt.Appendf(nil, "kill %d\n", process)); err != nil {
		return
	}
	select {
	case <-in.c.settled:
	case <-in.c.finished:
	}
}
