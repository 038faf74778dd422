package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// maxLine bounds the memory that one incoming line can take. It is the host's own limit for a worker's line; a longer
// one is passed over, and the call that it carried times out at the host.
const maxLine = 128 << 20

// errLineTooLong is returned by lineReader.next for a line over its limit. The next call goes on after it.
var errLineTooLong = errors.New("line too long")

// lineReader cuts a stream into lines at the byte 0x0A and nowhere else: the separators U+2028 and U+2029, at which a
// JavaScript reader also cuts, are ordinary characters of a JSON string, and so is everything else.
type lineReader struct {
	r   *bufio.Reader
	max int
}

func newLineReader(r io.Reader, max int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: max}
}

// next returns the next line without its newline and a carriage return before it. What stands after the last newline is
// no line: whoever writes it was interrupted. It blocks until there is a line; the error is io.EOF at the end.
func (l *lineReader) next() ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > l.max; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case err == nil && tooLong:
			return nil, errLineTooLong
		case err == nil:
			return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// lineWriter writes one JSON value a line. Values of concurrent writers are never mixed.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// write blocks while the reader at the other end does not take the line.
//
// encoding/json escapes U+2028 and U+2029, at which the host's reader would cut the line in two. (encoding/json/v2 does
// so on request only.)
func (l *lineWriter) write(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err = l.w.Write(line)
	return err
}
