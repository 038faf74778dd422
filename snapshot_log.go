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
	ctx    context.Context // ends with the call, and when the writer fails
	cancel context.CancelFunc
	stop   context.CancelFunc // of the copying alone
	done   chan struct{}
	limit  time.Duration // for what is left at the end

	// Of the copying goroutine, and after done of close.
	address string
	written int64
	failure error // of the writer
}

// followLog begins to copy. Its end must be waited for with close.
func (s *Snapshots) followLog(ctx context.Context, id string, to io.Writer) *buildLog {
	ctx, cancel := context.WithCancel(ctx)
	copying, stop := context.WithCancel(ctx)
	b := &buildLog{client: s.p.client, id: id, to: to, ctx: ctx, cancel: cancel, stop: stop, done: make(chan struct{}), limit: s.p.cfg.CallTimeout}
	go func() {
		defer close(b.done)
		var pause backoff
		for copying.Err() == nil && b.failure == nil {
			before := b.written
			b.copy(copying, true)
			if b.written > before {
				pause = backoff{}
			}
			if b.failure != nil {
				cancel() // nobody need wait for the build
			}
			_ = pause.wait(copying, 0)
		}
	}()
	return b
}

// close ends the copying and, if the build has ended, copies what is left. It returns the error of the writer.
func (b *buildLog) close(ended bool) error {
	b.stop()
	<-b.done
	if ended && b.failure == nil {
		ctx, cancel := context.WithTimeout(b.ctx, b.limit)
		b.copy(ctx, false)
		cancel()
	}
	b.cancel()
	return b.failure
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
