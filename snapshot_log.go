package leasehold

import (
	"context"
	"io"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// buildLog copies the log of a build to a writer while the build goes on. The provider sends it from its start each time,
// and ends the stream when it likes: what was written already is left out.
type buildLog struct {
	client *daytona.Client
	id     string
	to     io.Writer
	call   context.Context // of which the log is a part
	ctx    context.Context // ends with the call, and when the writer fails
	cancel context.CancelFunc
	stop   context.CancelFunc // of following alone
	ended  chan bool          // gets one value before stop: whether the build has ended, and what is left is to be copied
	done   chan struct{}
	limit  time.Duration // for what is left at the end

	// Of the copying goroutine, and after done of close.
	address string
	written int64
	failure error // of the writer
}

// followLog begins to copy. Its end must be waited for with close.
func (s *Snapshots) followLog(call context.Context, id string, to io.Writer) *buildLog {
	ctx, cancel := context.WithCancel(call)
	following, stop := context.WithCancel(ctx)
	b := &buildLog{
		client: s.p.client, id: id, to: to, call: call, ctx: ctx, cancel: cancel, stop: stop,
		ended: make(chan bool, 1), done: make(chan struct{}), limit: s.p.cfg.CallTimeout,
	}
	go func() {
		defer close(b.done)
		var pause backoff
		for following.Err() == nil && b.failure == nil {
			before := b.written
			b.copy(following, true)
			if b.written > before {
				pause = backoff{}
			}
			if b.failure != nil {
				cancel() // nobody need wait for the build
			}
			_ = pause.wait(following, 0)
		}
		if b.failure == nil && <-b.ended {
			rest, cancel := context.WithTimeout(ctx, b.limit)
			defer cancel()
			b.copy(rest, false)
		}
	}()
	return b
}

// logGrace is how long a write may take that is under way when the call ends.
const logGrace = time.Second

// close ends the copying and, if the build has ended, has what is left copied before. It returns the error of the writer. It
// does not wait much longer than the call for a writer that does not return: that write is the last.
func (b *buildLog) close(ended bool) error {
	defer b.cancel()
	b.ended <- ended
	b.stop()
	select {
	case <-b.done:
		return b.failure
	case <-b.call.Done():
	}
	grace := time.NewTimer(logGrace)
	defer grace.Stop()
	select {
	case <-b.done:
		return b.failure
	case <-grace.C:
		return nil
	}
}

// copy copies what is new of the log. What cannot be read is left to the next time.
func (b *buildLog) copy(ctx context.Context, follow bool) {
	if b.address == "" {
		address, err := b.client.BuildLogURL(ctx, b.id)
		if err != nil {
			return
		}
		b.address = address
	}
	log, err := b.client.BuildLog(ctx, b.address, follow)
	if err != nil {
		return
	}
	defer log.Close()
	if _, err := io.CopyN(io.Discard, log, b.written); err != nil {
		return // it is shorter than what was written: nothing of it is new
	}
	_, _ = io.Copy(buildLogWriter{b}, log)
}

// buildLogWriter counts what is written, and keeps the writer's error apart from the reader's.
type buildLogWriter struct{ b *buildLog }

func (w buildLogWriter) Write(p []byte) (int, error) {
	if err := w.b.call.Err(); err != nil {
		return 0, err // the caller may have left
	}
	n, err := w.b.to.Write(p)
	if n < len(p) && err == nil {
		err = io.ErrShortWrite
	}
	w.b.written += int64(n)
	if err != nil {
		w.b.failure = err
	}
	return n, err
}
