package main

import (
	"bytes"
	"context"
	"unicode/utf8"
)

const (
	// maxChunk is how much of a command's output goes into one notification. The host drops one of over a million
	// characters.
	maxChunk = 64 << 10
	// maxCaptured bounds what both streams of one result take in its line, of which the host reads 128 Mi characters. It is
	// counted as JSON: a control character takes six.
	maxCaptured = 64 << 20
)

// output is one command's output: sent to the host as it comes, and kept for the result. The library writes to one of
// the streams at a time.
type output struct {
	stdout, stderr stream
	captured       int // bytes of JSON
	truncated      bool
}

// newOutput returns an output that sends what it is given with send.
func newOutput(send func(stream, chunk string)) *output {
	o := new(output)
	for name, s := range map[string]*stream{"stdout": &o.stdout, "stderr": &o.stderr} {
		s.of, s.send = o, func(chunk string) { send(name, chunk) }
	}
	return o
}

// end sends what still waits for the rest of a character that never came.
func (o *output) end() {
	o.stdout.flush(len(o.stdout.pending))
	o.stderr.flush(len(o.stderr.pending))
}

// stream turns bytes into text. What is no UTF-8 becomes U+FFFD: the protocol knows no bytes here.
type stream struct {
	of      *output
	send    func(chunk string)
	pending []byte // the beginning of a character, of at most three bytes
	text    bytes.Buffer
}

func (s *stream) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), maxChunk-len(s.pending))
		s.pending = append(s.pending, rest[:n]...)
		rest = rest[n:]
		s.flush(whole(s.pending))
	}
	return len(p), nil
}

// flush sends and keeps the first n bytes of what is pending.
func (s *stream) flush(n int) {
	if n == 0 {
		return
	}
	chunk := bytes.ToValidUTF8(s.pending[:n], []byte("\uFFFD"))
	s.pending = append(s.pending[:0], s.pending[n:]...)
	s.send(string(chunk))
	if s.of.captured += jsonSize(chunk); s.of.captured > maxCaptured {
		s.of.truncated = true
		return
	}
	s.text.Write(chunk)
}

// whole returns how many bytes of p come before a character whose end is not there yet.
func whole(p []byte) int {
	for i := 1; i <= min(utf8.UTFMax-1, len(p)); i++ {
		if start := len(p) - i; utf8.RuneStart(p[start]) {
			if !utf8.FullRune(p[start:]) {
				return start
			}
			break
		}
	}
	return len(p)
}

// jsonSize bounds the length of valid UTF-8 in a JSON string.
func jsonSize(text []byte) int {
	size := len(text)
	for _, b := range text {
		if b < ' ' || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' || b == 0x7f || b == 0xe2 {
			size += 5
		}
	}
	return size
}

type executeLog struct {
	Stream string `json:"stream"`
	Chunk  string `json:"chunk"`
}

// executeLog sends a piece of a command's output to the host. That is for people who watch: the host drops it when the
// call is over, or when two companies run commands at once. The result holds everything again.
func (w *worker) executeLog(ctx context.Context) func(stream, chunk string) {
	return func(stream, chunk string) { w.server.notify(ctx, "execute.log", executeLog{stream, chunk}) }
}
