package leasehold

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
)

// DefaultStallTimeout is how long a transfer may go on without a sign of progress unless its options say otherwise.
const DefaultStallTimeout = 2 * time.Minute

// errNoProgress ends the context of a transfer that made no progress.
var errNoProgress = errors.New("no progress")

// stall ends a transfer that makes no progress. A slow one goes on.
type stall struct {
	limit  time.Duration // 0: none
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watchStall returns a context that ends when moved was not called for a time. end must be called.
func watchStall(ctx context.Context, limit time.Duration) (context.Context, *stall) {
	s := &stall{limit: max(limit, 0)}
	if limit == 0 {
		s.limit = DefaultStallTimeout
	}
	ctx, s.cancel = context.WithCancelCause(ctx)
	if s.limit > 0 {
		s.timer = time.AfterFunc(s.limit, func() { s.cancel(errNoProgress) })
	}
	return ctx, s
}

// moved says that something was sent, received, or seen to go on at the other end.
func (s *stall) moved() {
	if s.limit > 0 {
		s.timer.Reset(s.limit)
	}
}

// end ends the watch and the context.
func (s *stall) end() {
	if s.limit > 0 {
		s.timer.Stop()
	}
	s.cancel(nil)
}

// watch watches the progress of a transfer at both ends.
type watch struct {
	*stall
	ended chan struct{}
	steps atomic.Int64
}

// watch returns a context that ends when a transfer has made no progress for a time, see [ImportOptions.StallTimeout] and
// [ExportOptions.StallTimeout]. What goes on in the scratch directories while nothing moves between them and the host is
// measured with requests of its own, a few in that time and none while there is other progress. end must be called.
func (t *transfer) watch(ctx context.Context, limit time.Duration, mark string, scratch []string) (context.Context, *watch) {
	w := &watch{ended: make(chan struct{})}
	ctx, w.stall = watchStall(ctx, limit)
	if w.limit == 0 {
		close(w.ended)
		return ctx, w
	}
	probe := archive.RemoteProbe(mark, scratch)
	go func() {
		defer close(w.ended)
		silence := time.NewTicker(max(w.limit/3, 1))
		defer silence.Stop()
		var steps, size int64
		for {
			select {
			case <-silence.C:
			case <-ctx.Done():
				return
			}
			if now := w.steps.Load(); now != steps {
				steps = now
				continue
			}
			result, err := t.box.Execute(ctx, probe, 0)
			if reply, ok := archive.ParseReply(result.Output, mark); err == nil && ok && reply.Bytes != size {
				size = reply.Bytes
				w.stall.moved()
			}
		}
	}()
	return ctx, w
}

func (w *watch) moved() {
	w.steps.Add(1)
	w.stall.moved()
}

// end ends the watch, the context and the measuring.
func (w *watch) end() {
	w.stall.end()
	<-w.ended
}

// reader counts what is read as progress.
func (w *watch) reader(r io.Reader) io.Reader { return &watchedReader{r, w} }

type watchedReader struct {
	io.Reader
	w *watch
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.w.moved()
	}
	return n, err
}
