package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

type sentChunk struct{ stream, chunk string }

func TestOutputIsSentAsWholeCharacters(t *testing.T) {
	var sent []sentChunk
	o := newOutput(func(stream, chunk string) { sent = append(sent, sentChunk{stream, chunk}) })
	for _, b := range []byte("aé€\U0001F600") { // one byte at a time
		_, _ = o.stdout.Write([]byte{b})
	}
	_, _ = o.stderr.Write([]byte("x\xff\xe2\x82")) // not UTF-8, and an end that never comes
	o.end()
	want := []sentChunk{{"stdout", "a"}, {"stdout", "é"}, {"stdout", "€"}, {"stdout", "\U0001F600"}, {"stderr", "x\uFFFD"}, {"stderr", "\uFFFD"}}
	if len(sent) != len(want) {
		t.Fatalf("sent %q, want %q", sent, want)
	}
	for i := range want {
		if sent[i] != want[i] {
			t.Errorf("sent %q, want %q", sent[i], want[i])
		}
	}
	if got, want := o.stdout.kept.String()+"|"+o.stderr.kept.String(), "aé€\U0001F600|x\uFFFD\uFFFD"; got != want {
		t.Errorf("kept %q, want %q", got, want)
	}
}

func TestOutputIsSentInPieces(t *testing.T) {
	var largest, total int
	o := newOutput(func(_, chunk string) {
		largest, total = max(largest, len(chunk)), total+len(chunk)
		if !utf8.ValidString(chunk) {
			t.Error("a chunk is not UTF-8")
		}
	})
	text := strings.Repeat("€", 200_000)
	_, _ = o.stdout.Write([]byte(text))
	o.end()
	if largest > maxChunk+3 || total != len(text) || o.stdout.kept.String() != text {
		t.Errorf("largest chunk %d, total %d, want at most %d, and %d", largest, total, maxChunk, len(text))
	}
}

func TestWhatAResultKeepsIsBounded(t *testing.T) {
	sent := 0
	o := newOutput(func(_, chunk string) { sent += len(chunk) })
	zeros := make([]byte, 1<<20) // six bytes each, in JSON
	for range 20 {
		_, _ = o.stdout.Write(zeros)
	}
	if sent != 20<<20 || !o.truncated || o.stdout.kept.Len()*6 > maxCaptured {
		t.Errorf("sent %d, truncated %v, kept %d: want all sent, and at most %d kept", sent, o.truncated, o.stdout.kept.Len(), maxCaptured/6)
	}
}
