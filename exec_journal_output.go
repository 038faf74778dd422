package leasehold

import (
	"context"
	"io"
	"path"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// journalStream is one of a command's streams, as its file in the sandbox grows.
type journalStream struct {
	output *output
	suffix string       // of the file
	end    stream.End   // which all that is read of the file goes through
	at     atomic.Int64 // what was read of the file, or [script.Done]
	cut    bool         // the sandbox had no room for all of it
	gone   bool         // the file is
}

// newJournalStream returns a stream of which the first from bytes were delivered before. As much as the end mark takes is
// read again, so that offsets beyond the end are noticed.
func newJournalStream(o *output, j script.Journal, suffix string, from int64) *journalStream {
	s := &journalStream{output: o, suffix: suffix, end: stream.NewEnd(j.End())}
	s.at.Store(max(from-int64(len(j.End())), 0))
	o.skip = from - s.at.Load()
	return s
}

// done reports that nothing more is wanted of the file.
func (s *journalStream) done() bool { return s.at.Load() == script.Done }

// beyond reports that the stream does not reach to the offset from which it was to be delivered.
func (s *journalStream) beyond() bool { return s.output.skip > 0 && !s.cut && !s.gone }

// complete reports that the exit is recorded, and all that the command wrote up to it delivered: both end marks were met, and
// no writer failed.
func (r *journalRun) complete() bool {
	return r.record.Exited && r.out.end.Found() && r.errs.end.Found() && !r.stdout.failed && !r.stderr.failed
}

// size is what was delivered.
func (r *journalRun) size() int64 { return r.out.output.size + r.errs.output.size }

// take delivers what a frame brought, which was asked for from the offsets of wait, and then what it did not.
func (r *journalRun) take(ctx context.Context, frame script.Frame, wait script.Wait) error {
	r.record = frame
	if frame.Exited {
		r.over.Store(true)
	}
	if frame.Dir != "" {
		r.dir = frame.Dir
	}
	if frame.State == script.StateGone || !frame.Claimed {
		r.record.State, r.ended = script.StateGone, true
		return nil
	}
	if frame.State == script.StateLost && frame.Process.ID == 0 {
		r.dispatched = DispatchedUnknown
		return &Error{Op: r.op, Kind: KindUncertain, Message: "nobody has begun the command within a minute of its dispatch: whether it ran is not known"}
	}
	if err := r.takeStream(ctx, r.out, frame.Stdout, wait.Stdout); err != nil {
		return err
	}
	if err := r.takeStream(ctx, r.errs, frame.Stderr, wait.Stderr); err != nil {
		return err
	}
	if frame.Exited && r.exitSeen.IsZero() {
		r.exitSeen = time.Now()
	}
	r.ended = frame.State == script.StateLost ||
		frame.Exited && (r.out.done() && r.errs.done() || time.Since(r.exitSeen) >= endTime)
	return nil
}

// takeStream delivers a frame's piece of a stream, and reads the rest if it was not the whole.
func (r *journalRun) takeStream(ctx context.Context, s *journalStream, p script.Piece, from int64) error {
	if err := r.piece(s, p, from); err != nil || s.done() {
		return err
	}
	if !p.Whole {
		r.followed = true
		if err := r.fetch(ctx, s); err != nil {
			return err
		}
	}
	if p.Last {
		s.at.Store(script.Done) // with the end mark, or without
	}
	return nil
}

// piece delivers the piece of a stream's file that begins at from, and takes in what else the frame says of the stream.
func (r *journalRun) piece(s *journalStream, p script.Piece, from int64) error {
	s.cut, s.gone = s.cut || p.Cut, s.gone || p.Gone
	if s.done() {
		return nil
	}
	if old := s.at.Load() - from; old < int64(len(p.Bytes)) {
		if err := r.deliver(s, []byte(p.Bytes[old:])); err != nil {
			return err
		}
	}
	if p.Empty {
		s.end.Finish()
	}
	if s.end.Found() || p.Gone {
		s.at.Store(script.Done)
	}
	return nil
}

// deliver takes what was read of a stream's file next.
func (r *journalRun) deliver(s *journalStream, p []byte) error {
	s.at.Add(int64(len(p)))
	if p = s.end.Next(p); len(p) == 0 {
		return nil
	}
	return r.write(s.output, p)
}

// fetch reads a stream's file from the offset reached to its present end, or the stream's.
func (r *journalRun) fetch(ctx context.Context, s *journalStream) error {
	if r.dir == "" {
		return &Error{Op: r.op, Kind: KindUncertain, Message: "the journal's directory has a name that is not text: the output cannot be read"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(replyTime, cancel)
	defer silence.Stop()
	file, err := r.box.Download(ctx, path.Join(r.dir, r.journal.ID+s.suffix), s.at.Load())
	if err != nil {
		return err
	}
	defer file.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := file.Read(buf)
		if n > 0 {
			silence.Stop() // a slow writer is not the connection's silence
			if err := r.deliver(s, buf[:n]); err != nil {
				return err
			}
			silence.Reset(replyTime)
		}
		if s.end.Found() {
			s.at.Store(script.Done)
			return nil
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
