package main

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/leasehold-go/leasehold"
)

const (
	streamOut byte = 1
	streamErr byte = 2

	frameHeader = 5 // the stream, and the length in four bytes
	maxFrame    = 32 << 10
)

// errOutputLimit stops a command that writes more than it may.
var errOutputLimit = errors.New("the command wrote more than it may")

// outputLog is what a command wrote, in the order in which it arrived: a file of frames, each of one stream. It is the one
// copy from which every client is served, from whatever offsets, in this process and the next.
type outputLog struct {
	file  *os.File
	size  int64 // of whole frames
	bytes leasehold.Offsets
	limit int64 // of both streams together
}

// openLog opens a log to go on with, behind its last whole frame: a process that was killed may have left a part of one.
func openLog(path string, limit int64) (*outputLog, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l := &outputLog{file: f, limit: limit}
	reader := logReader{file: f}
	for {
		frame, err := reader.next(info.Size())
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		l.size, l.bytes = reader.at, frame.end
	}
	if err := f.Truncate(l.size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// append adds to a stream, all or, of what is beyond the limit, nothing.
func (l *outputLog) append(stream byte, p []byte) error {
	if l.bytes.Stdout+l.bytes.Stderr+int64(len(p)) > l.limit {
		return errOutputLimit
	}
	for len(p) > 0 {
		n := min(len(p), maxFrame)
		frame := append(binary.BigEndian.AppendUint32([]byte{stream}, uint32(n)), p[:n]...)
		if _, err := l.file.WriteAt(frame, l.size); err != nil {
			_ = l.file.Truncate(l.size) // a full disk took a part of it
			return err
		}
		l.size += int64(len(frame))
		count(&l.bytes, stream, n)
		p = p[n:]
	}
	return nil
}

func count(o *leasehold.Offsets, stream byte, n int) {
	if stream == streamOut {
		o.Stdout += int64(n)
	} else {
		o.Stderr += int64(n)
	}
}

// logReader reads a log from its beginning on.
type logReader struct {
	file  io.ReaderAt
	at    int64             // in the file
	bytes leasehold.Offsets // of the streams, at at
	from  leasehold.Offsets // what comes before is left out
}

type frame struct {
	stream byte
	data   []byte
	end    leasehold.Offsets // behind it
}

// next returns the next frame, cut to what the reader wants of it: perhaps to nothing. It returns io.EOF at size, and
// io.ErrUnexpectedEOF at a part of a frame.
func (r *logReader) next(size int64) (frame, error) {
	switch left := size - r.at; {
	case left == 0:
		return frame{}, io.EOF
	case left < frameHeader:
		return frame{}, io.ErrUnexpectedEOF
	}
	var header [frameHeader]byte
	if _, err := r.file.ReadAt(header[:], r.at); err != nil {
		return frame{}, err
	}
	stream, n := header[0], int64(binary.BigEndian.Uint32(header[1:]))
	if n == 0 || n > maxFrame || stream != streamOut && stream != streamErr || r.at+frameHeader+n > size {
		return frame{}, io.ErrUnexpectedEOF
	}
	begin, from := r.bytes.Stdout, r.from.Stdout
	if stream == streamErr {
		begin, from = r.bytes.Stderr, r.from.Stderr
	}
	skip := min(max(from-begin, 0), n)
	data := make([]byte, n-skip)
	if _, err := r.file.ReadAt(data, r.at+frameHeader+skip); err != nil {
		return frame{}, err
	}
	r.at += frameHeader + n
	count(&r.bytes, stream, int(n))
	return frame{stream, data, r.bytes}, nil
}
