package stream

import (
	"bytes"
	"strconv"
)

// The letters of the wrapper's marks: see package script.
const (
	markAccepted = 'a'
	markShell    = 'p'
	markProcess  = 'g'
	markNoRoom   = 'n'
	markFree     = 'f'
	markRefused  = 'r'
	markStarted  = 's'
	markWrapped  = 'w'
	markStale    = 'l'
	markNoDir    = 'd'
	markStdout   = 'o'
	markStderr   = 'e'
)

// maxTail is the longest text between a mark and its newline: a letter, a colon and a number, which is a process of up to
// ten digits or an exit code, and after a command's process its start time.
func maxTail(tail []byte) int {
	switch {
	case len(tail) > 0 && tail[0] == markShell:
		return 2 + 10
	case len(tail) > 0 && tail[0] == markProcess:
		return 2 + 10 + 1 + 20
	}
	return 2 + 3
}

// demux takes a log apart, in chunks of any size.
type demux struct {
	mark    []byte
	deliver func(Stream, []byte) error

	prefix      []byte // the first bytes of a line, while they may be a marker
	inLine      bool   // the marker of the current line is behind us
	current     Stream // the stream of the current line
	interrupted bool   // a mark landed inside a long line, whose rest will come without a marker
	resume      Stream // the stream of that line
	held        []byte // content that may be a mark, or the beginning of one

	out       []byte // content of stream outStream, not yet delivered
	outStream Stream
	err       error // of deliver

	seen    [128]bool
	begun   [2]bool // the first line of the stream was seen
	cut     [2]bool // the end of the stream's content was seen
	ended   [2]bool // and its exit code
	shell   int
	process Process
	exit    int
	exited  bool
	damaged bool
}

func newDemux(mark string, deliver func(Stream, []byte) error) demux {
	return demux{mark: []byte(mark), deliver: deliver}
}

// write takes in the next bytes of the log.
func (d *demux) write(p []byte) error {
	for len(p) > 0 {
		if !d.inLine {
			p = d.start(p)
			continue
		}
		n := bytes.IndexByte(p, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(p)
		}
		segment := p[:n]
		if len(d.held) > 0 {
			d.held = append(d.held, segment...)
			segment, d.held = d.held, nil
		}
		if err := d.content(segment, whole); err != nil {
			return err
		}
		d.inLine = !whole
		p = p[n:]
	}
	return d.flush()
}

// start consumes bytes at the beginning of a line until its marker, or the lack of one, is certain.
func (d *demux) start(p []byte) []byte {
	for i, b := range p {
		switch {
		case (b == 1 || b == 2) && (len(d.prefix) == 0 || d.prefix[0] == b):
			d.prefix = append(d.prefix, b)
			if len(d.prefix) < 3 {
				continue
			}
			d.prefix = d.prefix[:0]
			d.inLine = true
			d.current = Stdout
			if b == 2 {
				d.current = Stderr
			}
			return p[i+1:]
		default: // no marker: a piece of an earlier line, that of the line before as far as one can tell
			if d.interrupted {
				d.interrupted, d.current = false, d.resume
			} else {
				d.damaged = true
			}
			d.inLine = true
			d.held = append(d.held, d.prefix...)
			d.prefix = d.prefix[:0]
			return p[i:]
		}
	}
	return nil
}

// content takes in a piece of a line, which ends with the line's newline if whole. It holds back what may become a mark.
func (d *demux) content(p []byte, whole bool) error {
	for {
		at := bytes.Index(p, d.mark)
		if at < 0 {
			if !whole {
				k := len(p) - max(partial(p, d.mark), partial(p, append(marker(1-d.current), d.mark...)))
				d.held = append([]byte(nil), p[k:]...)
				p = p[:k]
			}
			return d.emit(d.current, p)
		}
		tail := p[at+len(d.mark):]
		if whole {
			if m, ok := parseMark(tail[:len(tail)-1]); ok {
				return d.marked(p[:at], m)
			}
		} else if len(tail) <= maxTail(tail) {
			k := len(bytes.TrimSuffix(p[:at], marker(1-d.current)))
			d.held = append([]byte(nil), p[k:]...)
			return d.emit(d.current, p[:k])
		}
		if err := d.emit(d.current, p[:at+1]); err != nil {
			return err
		}
		p = p[at+1:]
	}
}

// parsedMark is what stands between a mark and its newline.
type parsedMark struct {
	letter byte
	number int    // -1 if there is none
	start  string // after a command's process
}

func parseMark(tail []byte) (m parsedMark, ok bool) {
	if len(tail) == 0 || len(tail) > maxTail(tail) {
		return m, false
	}
	m = parsedMark{letter: tail[0], number: -1}
	number, colon := bytes.CutPrefix(tail[1:], []byte(":"))
	switch m.letter {
	case markAccepted, markRefused, markStarted, markWrapped, markStale, markNoDir, markNoRoom, markFree:
		return m, len(tail) == 1
	case markStdout, markStderr:
		if len(tail) == 1 {
			return m, true
		}
	case markShell:
	case markProcess:
		var start []byte
		number, start, ok = bytes.Cut(number, []byte(":"))
		if m.start = string(start); !ok || !digits(start) {
			return m, false
		}
	default:
		return m, false
	}
	if !colon || len(number) == 0 || !digits(number) {
		return m, false
	}
	var err error
	m.number, err = strconv.Atoi(string(number))
	return m, err == nil
}

// digits reports whether there is nothing else in p.
func digits(p []byte) bool {
	for _, c := range p {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// marked takes in a line of which only before is the command's, and without a newline.
func (d *demux) marked(before []byte, m parsedMark) error {
	s, letter, code := d.current, m.letter, m.number
	switch letter {
	case markStdout:
		s = Stdout
	case markStderr:
		s = Stderr
	case markAccepted: // the first line of either stream: what stands before it on this line is the other's
		if bytes.HasSuffix(before, marker(1-s)) {
			s = 1 - s
		}
	}
	if s != d.current {
		// The mark, with its own marker before it, landed between two pieces of a long line of the other stream.
		if rest, ok := bytes.CutSuffix(before, marker(s)); ok {
			before, d.interrupted, d.resume = rest, true, d.current
		}
	}
	if err := d.emit(d.current, before); err != nil {
		return err
	}
	d.seen[letter] = true
	switch letter {
	case markAccepted: // a second one is that of a log which began again, and was not known by its first line
		d.damaged = d.damaged || d.begun[s]
		d.begun[s] = true
	case markShell:
		d.shell = code
	case markProcess:
		d.process = Process{code, m.start}
	}
	if letter != markStdout && letter != markStderr {
		return nil
	}
	d.cut[s] = true
	if code < 0 || d.ended[s] {
		return nil
	}
	d.ended[s] = true
	if d.exited && d.exit != code {
		d.damaged = true
	}
	d.exit, d.exited = code, true
	return nil
}

// marker returns the bytes before each line of a stream.
func marker(s Stream) []byte {
	if s == Stderr {
		return []byte{2, 2, 2}
	}
	return []byte{1, 1, 1}
}

// emit collects content, and delivers it when the stream changes. What children in the background write after the end is
// not the command's.
func (d *demux) emit(s Stream, p []byte) error {
	if len(p) == 0 || d.cut[s] {
		return nil
	}
	if s != d.outStream {
		if err := d.flush(); err != nil {
			return err
		}
		d.outStream = s
	}
	d.out = append(d.out, p...)
	return nil
}

// flush delivers what was collected.
func (d *demux) flush() error {
	if len(d.out) == 0 {
		return nil
	}
	out := d.out
	d.out = d.out[:0]
	if d.err == nil {
		d.err = d.deliver(d.outStream, out)
	}
	return d.err
}
