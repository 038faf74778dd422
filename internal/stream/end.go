package stream

import "bytes"

// End finds the end of a stream that others may go on writing to: a mark, unguessable, which whoever knows that the
// stream has ended wrote after its last byte. Use [NewEnd].
type End struct {
	mark  []byte
	held  int // how much of the mark the bytes so far ended with
	found bool
}

// NewEnd returns the search for a mark, whose first byte does not occur in the rest of it.
func NewEnd(mark string) End { return End{mark: []byte(mark)} }

// Found reports that the mark was met, or [End.Finish] called. What comes after it is not part of the stream.
func (e *End) Found() bool { return e.found }

// Finish ends a stream that is known to have no mark.
func (e *End) Finish() { e.found = true }

// Next takes the next piece of what was read, and returns what is known by now to be the stream's. Only what may be the
// beginning of the mark is kept back until the next piece. The result may share memory with p, and holds until the next
// call.
func (e *End) Next(p []byte) []byte {
	if e.found || len(p) == 0 {
		return nil
	}
	if e.held > 0 {
		n := min(len(p), len(e.mark)-e.held)
		if bytes.Equal(p[:n], e.mark[e.held:e.held+n]) {
			e.held += n
			e.found = e.held == len(e.mark)
			return nil
		}
		p = append(e.mark[:e.held:e.held], p...)
		e.held = 0
	}
	for at := 0; ; at++ {
		i := bytes.IndexByte(p[at:], e.mark[0])
		if i < 0 {
			return p
		}
		at += i
		n := min(len(p)-at, len(e.mark))
		if bytes.Equal(p[at:at+n], e.mark[:n]) {
			e.held, e.found = n, n == len(e.mark)
			return p[:at]
		}
	}
}
