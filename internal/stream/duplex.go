package stream

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strconv"
)

// Duplex takes apart what the sandbox's end of a channel sends: a command's standard output as it is, and among it lines
// of the channel's own, each of which begins with a mark and is never interrupted, though it may interrupt anything else.
// See script.Terminal. Use [NewDuplex].
type Duplex struct {
	say    []byte
	stdout End
	stderr End
	kept   []byte // the beginning of a line, or what may become one
	noisy  bool   // what comes before the first line is dropped
	count  int64  // bytes of standard output since the last round's end
}

// NewDuplex returns a parser for these marks, whose first bytes occur nowhere else in them. With noise, nothing counts that
// comes before the first line: what a login shell printed.
func NewDuplex(say, end string, noise bool) *Duplex {
	return &Duplex{say: []byte(say), stdout: NewEnd(end), stderr: NewEnd(end), noisy: noise}
}

// ErrDuplex reports bytes that were lost, added or changed on the way.
var ErrDuplex = errors.New("the channel's lines make no sense")

// maxSaid is how long a line may be: the longest carries 48 KiB as base64.
const maxSaid = 80 << 10

// DuplexEvents takes what a [Duplex] finds, in order. Bytes are valid during the call only.
type DuplexEvents interface {
	Data(s Stream, p []byte)       // what the command wrote
	Round(s Stream, n int64) error // a round has ended, of n bytes: all since the last one, its data and the mark of its end
	Ended(s Stream)                // the command has ended, and this was all it wrote
	Said(word, arg string) error   // another line
}

// Next takes the next piece of what was received.
func (d *Duplex) Next(p []byte, to DuplexEvents) error {
	if len(d.kept) > 0 {
		p = append(d.kept, p...)
		d.kept = p[:0:0]
	}
	for {
		i := bytes.Index(p, d.say)
		if i < 0 {
			n := len(p) - d.partial(p)
			d.data(p[:n], to)
			d.kept = append(d.kept[:0], p[n:]...)
			return nil
		}
		d.data(p[:i], to)
		p = p[i:]
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			d.kept = append(d.kept[:0], p...)
			if len(p) > maxSaid {
				return ErrDuplex
			}
			return nil
		}
		if err := d.line(p[len(d.say):end], to); err != nil {
			return err
		}
		p = p[end+1:]
	}
}

// partial returns how many bytes at the end of p may be the beginning of the mark.
func (d *Duplex) partial(p []byte) int {
	tail := p[max(0, len(p)-len(d.say)+1):]
	if i := bytes.LastIndexByte(tail, d.say[0]); i >= 0 && bytes.HasPrefix(d.say, tail[i:]) {
		return len(tail) - i
	}
	return 0
}

func (d *Duplex) data(p []byte, to DuplexEvents) {
	if d.noisy {
		return
	}
	d.count += int64(len(p))
	d.deliver(Stdout, &d.stdout, p, to)
}

// deliver passes on what a stream brought, up to its end.
func (d *Duplex) deliver(s Stream, end *End, p []byte, to DuplexEvents) {
	before := end.Found()
	if p = end.Next(p); len(p) > 0 {
		to.Data(s, p)
	}
	if end.Found() && !before {
		to.Ended(s)
	}
}

func (d *Duplex) line(p []byte, to DuplexEvents) error {
	d.noisy = false
	word, arg, _ := bytes.Cut(bytes.TrimSuffix(bytes.TrimPrefix(p, []byte(" ")), []byte("\r")), []byte(" "))
	switch string(word) {
	case "err":
		data := make([]byte, base64.StdEncoding.DecodedLen(len(arg)))
		n, err := base64.StdEncoding.Strict().Decode(data, arg)
		if err != nil {
			return ErrDuplex
		}
		d.deliver(Stderr, &d.stderr, data[:n], to)
		return to.Round(Stderr, int64(n))
	case "out":
		n, err := strconv.ParseInt(string(arg), 10, 64)
		if err != nil || n != d.count {
			return ErrDuplex
		}
		d.count = 0
		return to.Round(Stdout, n)
	}
	return to.Said(string(word), string(arg))
}
