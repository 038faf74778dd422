package toolbox

import (
	"bytes"
	"io"
)

// The marks stand in front of each line of a log and tell its stream.
const (
	stdoutMark = "\x01\x01\x01"
	stderrMark = "\x02\x02\x02"
)

// label reads a stream to its end and passes on whole lines, each with a mark in front. It does to the bytes what the
// daemon's loop of the shell does, "while read -r line || [ -n "$line" ]": nothing is passed on before its newline, a
// last line without a newline gets one, NULs are dropped. The line that is not complete is kept in memory.
func label(stream io.Reader, mark string, emit func(lines []byte)) {
	const keep = 1 << 20 // of buffers that one long line made large
	buf := make([]byte, 64<<10)
	var partial, lines []byte
	for {
		n, err := stream.Read(buf)
		chunk := withoutNUL(buf[:n])
		for {
			end := bytes.IndexByte(chunk, '\n') + 1
			if end == 0 {
				break
			}
			lines = append(lines, mark...)
			lines = append(lines, partial...)
			lines = append(lines, chunk[:end]...)
			partial, chunk = partial[:0], chunk[end:]
			if cap(partial) > keep {
				partial = nil
			}
		}
		partial = append(partial, chunk...)
		if err != nil && len(partial) > 0 {
			lines = append(lines, mark...)
			lines = append(lines, partial...)
			lines = append(lines, '\n')
		}
		if len(lines) > 0 {
			emit(lines)
			lines = lines[:0]
			if cap(lines) > keep {
				lines = nil
			}
		}
		if err != nil {
			return
		}
	}
}

// withoutNUL drops NUL bytes in place.
func withoutNUL(b []byte) []byte {
	if bytes.IndexByte(b, 0) < 0 {
		return b
	}
	kept := b[:0]
	for _, c := range b {
		if c != 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// split returns the two streams of a log. Marks inside the output itself are taken for marks, as in the daemon.
func split(log []byte) (stdout, stderr []byte) {
	var stream *[]byte
	for len(log) > 0 {
		next, mark := nextMark(log)
		if stream != nil {
			*stream = append(*stream, log[:next]...)
		}
		switch mark {
		case stdoutMark:
			stream = &stdout
		case stderrMark:
			stream = &stderr
		}
		log = log[next+len(mark):]
	}
	return stdout, stderr
}

// nextMark returns the place of the first mark and the mark, or the log's length and nothing.
func nextMark(log []byte) (int, string) {
	for from := 0; ; {
		i := bytes.IndexAny(log[from:], "\x01\x02")
		if i < 0 {
			return len(log), ""
		}
		from += i
		for _, mark := range []string{stdoutMark, stderrMark} {
			if bytes.HasPrefix(log[from:], []byte(mark)) {
				return from, mark
			}
		}
		from++
	}
}

// unmark returns a log without marks.
func unmark(log []byte) []byte {
	out := make([]byte, 0, len(log))
	for len(log) > 0 {
		next, mark := nextMark(log)
		out = append(out, log[:next]...)
		log = log[next+len(mark):]
	}
	return out
}

// An unmarker removes marks from a log that comes in pieces. It holds back what may be the beginning of a mark.
type unmarker struct{ held []byte }

func (u *unmarker) next(piece []byte) []byte {
	log := append(u.held, piece...)
	whole := len(log)
	for _, c := range []byte{stdoutMark[0], stderrMark[0]} {
		n := 0
		for n < len(log) && log[len(log)-1-n] == c {
			n++
		}
		// A run of the byte ends the piece: the marks in it are cut from its front, the rest waits.
		if n > 0 {
			whole = len(log) - n%len(stdoutMark)
		}
	}
	u.held = append([]byte(nil), log[whole:]...)
	return unmark(log[:whole])
}

// rest returns what was held back, at the end of the log.
func (u *unmarker) rest() []byte { return u.held }
