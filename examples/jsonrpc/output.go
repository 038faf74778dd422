package main

import (
	"context"
	"slices"
	"strings"
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
	for _, s := range []*stream{&o.stdout, &o.stderr} {
		s.take(s.decoder.rest())
	}
}

type stream struct {
	of      *output
	send    func(chunk string)
	decoder text
	kept    strings.Builder
}

func (s *stream) Write(p []byte) (int, error) {
	for part := range slices.Chunk(p, maxChunk) {
		s.take(s.decoder.add(part))
	}
	return len(p), nil
}

func (s *stream) take(chunk string) {
	if chunk == "" {
		return
	}
	s.send(chunk)
	if s.of.captured += jsonSize(chunk); s.of.captured > maxCaptured {
		s.of.truncated = true
		return
	}
	s.kept.WriteString(chunk)
}

// text turns pieces of bytes into pieces of text. What is no UTF-8 becomes U+FFFD: the protocol knows no bytes here.
type text struct {
	pending []byte // the beginning of a character, of at most three bytes
}

// add returns what is whole.
func (t *text) add(p []byte) string {
	all := append(t.pending, p...)
	n := whole(all)
	t.pending = slices.Clone(all[n:])
	return strings.ToValidUTF8(string(all[:n]), "\uFFFD")
}

// rest returns what never became whole.
func (t *text) rest() string {
	rest := strings.ToValidUTF8(string(t.pending), "\uFFFD")
	t.pending = nil
	return rest
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

// jsonSize bounds the length of text in a JSON string.
func jsonSize(text string) int {
	size := len(text)
	for i := range len(text) {
		if b := text[i]; b < ' ' || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' || b == 0x7f || b == 0xe2 {
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
