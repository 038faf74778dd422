package leasehold

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

const (
	// maxInline is the largest input that the dispatch carries.
	maxInline = 64 << 10
	// inputGrace is how long the dispatch waits for the end of an input that may be small.
	inputGrace = 10 * time.Millisecond
)

// errInput is the cause of the end of a command whose input could not be read.
var errInput = errors.New("the command's input could not be read")

// errUnfed is the cause of the end of a command to which the sandbox could not pass its input on.
var errUnfed = errors.New("the sandbox could not pass on the command's input")

// errRead is the error of an input whose Read did not return.
var errRead = errors.New("a Read did not return")

// input reads a command's input ahead, by one chunk, from a goroutine that nobody has to wait for: a Read of the caller's
// may never return. Small pieces are taken together: each chunk costs a request.
type input struct {
	quit chan struct{} // closed when nobody takes anything any more
	read atomic.Int64  // bytes read from the caller's reader
	news chan struct{} // of capacity 1: something was read, or will never be
	room chan struct{} // of capacity 1: something was taken

	mu   sync.Mutex // guards the fields below
	buf  []byte     // read, and not yet taken
	done bool       // there is no more

	err   error  // other than io.EOF; valid once ended
	ahead []byte // taken, and not yet from here
	ended bool   // all is taken
}

func newInput(r io.Reader) *input {
	in := &input{quit: make(chan struct{}), news: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	go func() {
		// Nothing is the end of the input but io.EOF: not a Read that ends its goroutine either.
		defer func() { in.put(nil, errRead) }()
		buf := make([]byte, script.MaxChunk)
		from := stream.Lively{From: r}
		for {
			n, err := from.Read(buf[:in.space()])
			in.put(buf[:n], err)
			for in.space() == 0 && err == nil {
				select {
				case <-in.room:
				case <-in.quit:
					return
				}
			}
			select {
			case <-in.quit:
				return
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return in
}

// space is how much more may be read.
func (in *input) space() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return script.MaxChunk - len(in.buf)
}

// put adds what was read.
func (in *input) put(p []byte, err error) {
	in.read.Add(int64(len(p)))
	in.mu.Lock()
	defer in.mu.Unlock()
	in.buf = append(in.buf, p...)
	if err != nil && !in.done {
		in.done = true
		if err != io.EOF {
			in.err = err
		}
	}
	signal(in.news)
}

// take moves what was read to ahead.
func (in *input) take() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ahead, in.buf = append(in.ahead, in.buf...), in.buf[:0]
	in.ended = in.done
	signal(in.room)
}

// signal wakes who waits, now or soon.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// peek reads ahead until the end, or more than limit, or until d is over.
func (in *input) peek(ctx context.Context, limit int, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for !in.ended && len(in.ahead) <= limit {
		select {
		case <-in.news:
			in.take()
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctxError(ctx)
		}
	}
	return nil
}

// next returns the next chunk, and whether it is the last. The last one is empty: a command that reads to the end can end
// only after it is known that all before has reached it.
func (in *input) next(ctx context.Context) (chunk []byte, last bool, err error) {
	for len(in.ahead) == 0 && !in.ended {
		select {
		case <-in.news:
			in.ahead = nil // who was given it may still hold it
			in.take()
		case <-ctx.Done():
			return nil, false, ctxError(ctx)
		}
	}
	n := min(len(in.ahead), script.MaxChunk)
	chunk, in.ahead = in.ahead[:n], in.ahead[n:]
	return chunk, in.ended && n == 0, nil
}

// feeder delivers an input while the command runs, on either transport: chunk by chunk into a pipe that the command's
// script has made beside its record.
type feeder struct {
	*execution
	journal script.Journal
	taken   atomic.Int64 // bytes that the command was given
}

// feed runs until the input has ended, or nobody reads it, or ctx ends. Each chunk is sent until it is known to be in the
// command's pipe, which a command that does not read delays; sending it again does not write it again.
func (r *feeder) feed(ctx context.Context) {
	for n := 0; ; n++ {
		chunk, last, err := r.input.next(ctx)
		if err != nil {
			return // the command has ended, or is to
		}
		if last && r.input.err != nil {
			r.abort(errInput)
			return
		}
		data := chunk
		for pause := (backoff{}); ; {
			wait := script.Wait{Limit: waitTime}
			frame, err := r.ask(ctx, r.journal.Mark, r.journal.Feed(n, data, last, wait), wait)
			if err != nil || frame.State == script.StateFull {
				if pause.wait(ctx, 0) != nil {
					return
				}
				continue
			}
			switch frame.State {
			case script.StateRunning:
				data, pause = nil, backoff{} // it is being written
				continue
			case script.StateFed:
				r.taken.Add(int64(len(chunk)))
			case script.StateBroken:
				r.abort(errUnfed)
				return
			case script.StateGone, script.StateClosed:
				last = true
			}
			break
		}
		if last {
			return
		}
	}
}

// readInput looks whether the input is small enough to ride in the dispatch.
func (x *execution) readInput(ctx context.Context) error {
	if x.input == nil {
		return nil
	}
	err := x.input.peek(ctx, maxInline, inputGrace)
	if err == nil && x.input.ended && x.input.err != nil {
		err = &Error{Op: x.op, Kind: KindIO, Message: "the command's input could not be read; it was not started", cause: x.input.err}
	}
	return err
}
