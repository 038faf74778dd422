// Package stream puts a command's output together again from a session's log: it separates the two streams byte for byte,
// removes what a reconnect replays, and finds the marks that package script's wrapper prints. It is pure.
//
// The toolbox daemon writes one log per command (its v0.190 sources and measurements). Every line of stdout is prefixed by
// the bytes 01 01 01, every line of stderr by 02 02 02, and each read of the log, by socket or by request, starts at its
// first byte. Nothing appears before its newline, a missing final newline is added, and NUL bytes are dropped without a
// trace. Lines beyond a few KiB are appended in pieces, between which a line of the other stream may land.
package stream

import (
	"bytes"
	"hash/crc32"
)

// Stream names one of a command's two outputs.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Log is what is known of one command's log. The zero value is not useful: see [New]. It is not safe for concurrent use.
type Log struct {
	demux  demux
	header []byte // the first line of the log, which stands nowhere else in it; nil before its first byte told the stream
	start  int64  // where it stands, -1 before it was seen; 0 unless somebody else wrote before the wrapper
	offset int64  // bytes of the log taken in
	sum    uint32 // of these bytes
	forked bool   // a replay differed from what had been taken in
}

// New returns an empty Log. Mark is the text that sets the wrapper's lines apart. Deliver gets the command's bytes, each
// once and in order per stream, with all of the wrapper's and the daemon's additions removed; p is only valid during the
// call. After an error deliver is not called again.
func New(mark string, deliver func(s Stream, p []byte) error) *Log {
	return &Log{demux: newDemux(mark, deliver), start: -1}
}

// firstLine returns the first line of a log that begins with this byte. The wrapper begins both streams alike, and it is not
// known which of them the daemon writes first.
func firstLine(begins byte, mark []byte) []byte {
	s := Stdout
	if begins == marker(Stderr)[0] {
		s = Stderr
	}
	return append(append(marker(s), mark...), markAccepted, '\n')
}

// Read is one read of the log, from its first byte: a connection, or a snapshot.
type Read struct {
	log  *Log
	held []byte // what may be the beginning of the header
	pos  int64
	sum  uint32
}

// Open starts a read of the log at its first byte. Reads may overlap: only what no other read has brought is taken in. A
// read that is shorter than an earlier one takes nothing back.
func (l *Log) Open() *Read { return &Read{log: l} }

// castagnoli is the polynomial that processors compute.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Write takes in the next bytes of the read. It returns the error of deliver. It implements [io.Writer].
//
// Replayed bytes are recognised by their offset, and a read that starts over by the header. They are summed as well, so
// that a log which is not the one seen before is noticed: see [Log.Damaged].
func (r *Read) Write(p []byte) (int, error) {
	n := len(p)
	if len(r.held) > 0 {
		p = append(r.held, p...)
		r.held = nil
	}
	if len(p) == 0 {
		return 0, nil
	}
	if r.log.header == nil {
		r.log.header = firstLine(p[0], r.log.demux.mark)
	}
	for header := r.log.header; ; {
		at := bytes.Index(p, header)
		if at < 0 {
			k := len(p) - partial(p, header)
			r.held = append([]byte(nil), p[k:]...)
			return n, r.take(p[:k])
		}
		if err := r.take(p[:at]); err != nil {
			return 0, err
		}
		r.startOver()
		if err := r.take(header); err != nil {
			return 0, err
		}
		p = p[at+len(header):]
	}
}

// startOver is called where the header follows. If it follows where it does not belong, the log has begun again.
func (r *Read) startOver() {
	l := r.log
	switch {
	case l.start < 0:
		l.start = r.pos
	case r.pos == l.start:
	case l.start == 0:
		r.pos, r.sum = 0, 0
	default: // what stood before the header was already taken in, for the second time
		r.pos, l.forked = l.start, true
	}
}

// partial returns the length of the longest suffix of p that is the beginning of pattern, and not all of it.
func partial(p, pattern []byte) int {
	for n := min(len(p), len(pattern)-1); n > 0; n-- {
		if suffix := p[len(p)-n:]; suffix[0] == pattern[0] && bytes.HasPrefix(pattern, suffix) {
			return n
		}
	}
	return 0
}

// take takes in bytes at the read's position.
func (r *Read) take(p []byte) error {
	l := r.log
	if replayed := min(l.offset-r.pos, int64(len(p))); replayed > 0 {
		r.pos += replayed
		r.sum = crc32.Update(r.sum, castagnoli, p[:replayed])
		if r.pos == l.offset && r.sum != l.sum {
			l.forked = true
		}
		p = p[replayed:]
	}
	if len(p) == 0 {
		return nil
	}
	l.offset += int64(len(p))
	l.sum = crc32.Update(l.sum, castagnoli, p)
	r.pos, r.sum = l.offset, l.sum
	return l.demux.write(p)
}

// Offset returns the number of bytes of the log taken in.
func (l *Log) Offset() int64 { return l.offset }

// Accepted reports that the session's shell took this dispatch as the first of its command.
func (l *Log) Accepted() bool { return l.demux.seen[markAccepted] }

// Shell returns the process of the session's shell, 0 if it is not known.
func (l *Log) Shell() int { return l.demux.shell }

// Process is a process of the sandbox.
type Process struct {
	ID    int    // 0: not known
	Start string // its start time as /proc says it, empty if that is not known
}

// Process returns the command's process, which leads its process group.
func (l *Log) Process() Process { return l.demux.process }

// Wrapped reports that the command's wrapper let it begin, and Stale that it has none because the list of writable
// directories has changed.
func (l *Log) Wrapped() bool { return l.demux.seen[markWrapped] }
func (l *Log) Stale() bool   { return l.demux.seen[markStale] }

// NoRoom reports that the command was not started because there was no room for its files.
func (l *Log) NoRoom() bool { return l.demux.seen[markNoRoom] }

// Free reports that nothing was left that holds the command's output, and so keeps the session's shell.
func (l *Log) Free() bool { return l.demux.seen[markFree] }

// Refused reports that the session's shell refused this dispatch: another one was before it, and this one started nothing.
func (l *Log) Refused() bool { return l.demux.seen[markRefused] }

// Started reports that the command took over from the wrapper.
func (l *Log) Started() bool { return l.demux.seen[markStarted] }

// NoDirectory reports that the command was not started because its directory could not be entered.
func (l *Log) NoDirectory() bool { return l.demux.seen[markNoDir] }

// Exit returns the exit code that the wrapper recorded, if it is known.
func (l *Log) Exit() (code int, known bool) { return l.demux.exit, l.demux.exited }

// Complete reports that both streams were taken in up to their ends, and so the exit is known too.
func (l *Log) Complete() bool { return l.demux.ended[Stdout] && l.demux.ended[Stderr] }

// Damaged reports that the log shows marks of not having carried the bytes exactly: a line without its marker (pieces of
// long lines were mixed up, or something on the way removed the markers), a replay that differs, or two ends that
// disagree. The absence of damage is no proof, since dropped NUL bytes leave no trace.
func (l *Log) Damaged() bool { return l.forked || l.demux.damaged }
