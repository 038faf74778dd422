package stream_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leasehold-go/leasehold/internal/stream"
	"pgregory.net/rapid"
)

const mark = "~lh0123456789abcdef0123456789abcdef"

// sink collects what a Log delivers.
type sink struct{ out, err bytes.Buffer }

func (s *sink) deliver(which stream.Stream, p []byte) error {
	if which == stream.Stderr {
		s.err.Write(p)
	} else {
		s.out.Write(p)
	}
	return nil
}

// lines writes a log as the daemon does: each argument is "o:" or "e:" and the content of one line, or "-:" for none of both.
// @ stands for the mark.
func lines(text ...string) string {
	var b strings.Builder
	for _, l := range text {
		kind, content, _ := strings.Cut(l, ":")
		b.WriteString(map[string]string{"o": "\x01\x01\x01", "e": "\x02\x02\x02", "-": ""}[kind])
		b.WriteString(strings.ReplaceAll(content, "@", mark))
		b.WriteString("\n")
	}
	return b.String()
}

// state is everything a Log tells.
type state struct {
	Out, Err                          string
	Accepted, Refused, Started, NoDir bool
	Exit                              int
	Exited, Complete, Damaged         bool
}

func stateOf(l *stream.Log, s *sink) state {
	code, known := l.Exit()
	return state{s.out.String(), s.err.String(), l.Accepted(), l.Refused(), l.Started(), l.NoDirectory(), code, known, l.Complete(), l.Damaged()}
}

func TestLogTellsTheShell(t *testing.T) {
	for text, want := range map[string]int{"o:@p:4711": 4711, "o:@p:2147483647": 2147483647, "o:@p": 0, "o:@p:": 0, "o:@p:12345678901": 0, "o:@p:1x": 0} {
		for _, size := range []int{1, 7, 1000} {
			var s sink
			l := stream.New(mark, s.deliver)
			read := l.Open()
			for log := lines("o:@a", text, "o:x"); log != ""; {
				n := min(size, len(log))
				if _, err := read.Write([]byte(log[:n])); err != nil {
					t.Fatal(err)
				}
				log = log[n:]
			}
			if l.Shell() != want || want != 0 && s.out.String() != "x\n" {
				t.Errorf("%q in pieces of %d: shell %d, output %q; want %d", text, size, l.Shell(), s.out.String(), want)
			}
		}
	}
}

func TestLog(t *testing.T) {
	end := []string{"o:@o", "o:@o:0", "e:@e", "e:@e:0"}
	with := func(first ...string) string { return lines(append(first, end...)...) }
	done := func(out, err string) state { return state{Out: out, Err: err, Exited: true, Complete: true} }
	tests := map[string]struct {
		log  string
		want state
	}{
		"nothing":      {"", state{}},
		"empty output": {with(), done("", "")},
		"full lines":   {with("o:a", "e:b", "o:c"), done("a\nc\n", "b\n")},
		"no final newlines": {lines("o:a", "o:b@o", "o:@o:3", "e:c@e", "e:@e:3"),
			state{Out: "a\nb", Err: "c", Exit: 3, Exited: true, Complete: true}},
		"only newlines": {with("o:", "o:", "e:"), done("\n\n", "\n")},
		"accepted and started": {with("o:@a", "o:@s", "o:x"),
			state{Out: "x\n", Accepted: true, Started: true, Exited: true, Complete: true}},
		"refused":   {lines("o:@r", "e:@r"), state{Refused: true}},
		"directory": {lines("o:@a", "o:@d"), state{Accepted: true, NoDir: true}},
		"one stream ended": {lines("o:x", "o:@o", "o:@o:9", "e:y"),
			state{Out: "x\n", Err: "y\n", Exit: 9, Exited: true}},
		"end without code":           {lines("o:@o", "e:@e"), state{}},
		"marker bytes in the data":   {with("o:\x01\x01\x01x", "o:\x02\x02\x02y", "o:z\x02\x02\x02w", "e:\x01"), done("\x01\x01\x01x\n\x02\x02\x02y\nz\x02\x02\x02w\n", "\x01\n")},
		"invalid UTF-8":              {with("o:\xff\xfe\x80"), done("\xff\xfe\x80\n", "")},
		"half a marker":              {"\x01\x01x\n" + with(), state{Out: "\x01\x01x\n", Exited: true, Complete: true, Damaged: true}},
		"mixed half markers":         {"\x01\x02\x02\x02x\n" + with(), state{Out: "\x01\x02\x02\x02x\n", Exited: true, Complete: true, Damaged: true}},
		"after the end":              {with() + lines("o:late", "e:late"), done("", "")},
		"between the ends":           {lines("o:x@o", "o:late@o:4", "e:@e", "e:@e:4"), state{Out: "x", Exit: 4, Exited: true, Complete: true}},
		"mark inside a line":         {with("o:a@ob", "o:@", "o:@o:", "o:@o:x", "o:@o:1234", "o:@@"), done(strings.ReplaceAll("a@ob\n@\n@o:\n@o:x\n@o:1234\n@@\n", "@", mark), "")},
		"two marks on a line":        {lines("o:@@o", "o:@o:0", "e:@e", "e:@e:0"), done(mark, "")},
		"codes that disagree":        {lines("o:@o", "o:@o:1", "e:@e", "e:@e:2"), state{Exit: 2, Exited: true, Complete: true, Damaged: true}},
		"no markers":                 {lines("-:@a", "-:x", "-:@o", "-:@o:0", "-:@e", "-:@e:0"), state{Out: "x\n", Accepted: true, Exited: true, Complete: true, Damaged: true}},
		"mixed pieces of long lines": {lines("o:aaa\x02\x02\x02err", "-:bbb") + with(), state{Out: "aaa\x02\x02\x02err\nbbb\n", Exited: true, Complete: true, Damaged: true}},
		"an end inside a long line":  {lines("o:aaa\x02\x02\x02@e", "e:@e:0", "-:bbb@o", "o:@o:0"), done("aaabbb", "")},
		"a beginning inside a long line": {lines("o:@a", "o:aaa\x02\x02\x02@a", "-:bbb", "e:err") + with(),
			state{Out: "aaabbb\n", Err: "err\n", Accepted: true, Exited: true, Complete: true}},
		"both beginnings, one inside a long line": {lines("e:@a", "e:aaa\x01\x01\x01@a", "-:bbb", "o:out") + with(),
			state{Out: "out\n", Err: "aaabbb\n", Accepted: true, Exited: true, Complete: true}},
		"begun again behind another's line": {lines("e:x", "o:@a", "o:a", "e:x", "o:@a", "o:a") + with(),
			state{Out: "a\na\n", Err: "x\nx\n", Accepted: true, Exited: true, Complete: true, Damaged: true}},
		"both ends inside a long line": {lines("o:aaa\x02\x02\x02@e", "-:bb\x02\x02\x02@e:0", "-:c@o", "o:@o:0"), done("aaabbc", "")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 7, 1024} {
				var s sink
				l := stream.New(mark, s.deliver)
				r := l.Open()
				for p := []byte(tt.log); len(p) > 0; {
					n := min(size, len(p))
					if _, err := r.Write(p[:n]); err != nil {
						t.Fatal(err)
					}
					p = p[n:]
				}
				if diff := cmp.Diff(tt.want, stateOf(l, &s)); diff != "" {
					t.Errorf("in chunks of %d (-want +got):\n%s", size, diff)
				}
			}
		})
	}
}

func TestContentIsNotHeldBack(t *testing.T) {
	var s sink
	r := stream.New(mark, s.deliver).Open()
	for _, step := range []struct{ write, want string }{
		{"\x01\x01", ""},
		{"\x01", ""},
		{"abc", "abc"},
		{mark[:5], "abc"},
		{"x", "abc" + mark[:5] + "x"},
		{mark, "abc" + mark[:5] + "x"},
		{"o:25", "abc" + mark[:5] + "x"},
		{"5x", "abc" + mark[:5] + "x" + mark + "o:255x"},
		{"\n", "abc" + mark[:5] + "x" + mark + "o:255x\n"},
	} {
		if _, err := r.Write([]byte(step.write)); err != nil {
			t.Fatal(err)
		}
		if got := s.out.String(); got != step.want {
			t.Fatalf("after %q: delivered %q, want %q", step.write, got, step.want)
		}
	}
}

func TestReplaysAreRemovedByOffset(t *testing.T) {
	log := lines("o:@a", "o:first", "e:second", "o:third", "o:@o", "o:@o:0", "e:@e", "e:@e:0")
	var s sink
	l := stream.New(mark, s.deliver)
	for _, n := range []int{10, 3, 60, 0, 59, len(log) - 1, 5} {
		if _, err := l.Open().Write([]byte(log[:n])); err != nil {
			t.Fatal(err)
		}
	}
	if l.Complete() || l.Offset() != int64(len(log)-1) {
		t.Errorf("complete %v at offset %d before the last byte %d", l.Complete(), l.Offset(), len(log))
	}
	r := l.Open()
	for _, b := range []byte(log) {
		if _, err := r.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	want := state{Out: "first\nthird\n", Err: "second\n", Accepted: true, Exited: true, Complete: true}
	if diff := cmp.Diff(want, stateOf(l, &s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAReadThatStartsOverIsRecognised(t *testing.T) {
	for _, log := range []string{
		lines("o:@a", "e:@a", "o:@s", "o:first", "e:second", "o:third@o", "o:@o:0", "e:@e", "e:@e:0"),
		lines("e:@a", "e:second", "o:@a", "o:@s", "o:first", "o:third@o", "o:@o:0", "e:@e", "e:@e:0"),
	} {
		startOver(t, log)
	}
}

// startOver has a read of a log start over at each of its bytes, twice.
func startOver(t *testing.T, log string) {
	t.Helper()
	for at := range len(log) {
		for _, size := range []int{1, 5, 1024} {
			var s sink
			l := stream.New(mark, s.deliver)
			r := l.Open()
			for p := []byte(log[:at] + log[:at/2] + log); len(p) > 0; {
				n := min(size, len(p))
				if _, err := r.Write(p[:n]); err != nil {
					t.Fatal(err)
				}
				p = p[n:]
			}
			want := state{Out: "first\nthird", Err: "second\n", Accepted: true, Started: true, Exited: true, Complete: true}
			if diff := cmp.Diff(want, stateOf(l, &s)); diff != "" && at >= 2*40 {
				t.Fatalf("starting over after %d bytes, in chunks of %d (-want +got):\n%s", at, size, diff)
			}
		}
	}
}

func TestAReplayThatDiffersIsNoticed(t *testing.T) {
	var s sink
	l := stream.New(mark, s.deliver)
	if _, err := l.Open().Write([]byte(lines("o:one", "o:two"))); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Open().Write([]byte(lines("o:one"))); err != nil || l.Damaged() {
		t.Fatalf("a shorter replay: damaged %v, error %v", l.Damaged(), err)
	}
	if _, err := l.Open().Write([]byte(lines("o:two", "o:one"))); err != nil || !l.Damaged() {
		t.Errorf("another log: damaged %v, error %v; want damage", l.Damaged(), err)
	}
}

func TestAnErrorOfTheReceiverEndsDelivery(t *testing.T) {
	failure := errors.New("full")
	calls := 0
	l := stream.New(mark, func(stream.Stream, []byte) error { calls++; return failure })
	r := l.Open()
	for range 2 {
		if _, err := r.Write([]byte(lines("o:x"))); !errors.Is(err, failure) {
			t.Errorf("Write returned %v, want the receiver's error", err)
		}
	}
	if calls != 1 {
		t.Errorf("the receiver was called %d times, want 1", calls)
	}
}

// TestE2AnyOutputInAnyPieces writes random output the way the wrapper and the daemon do, and reads it over random
// connections that break, replay and overlap.
func TestE2AnyOutputInAnyPieces(t *testing.T) {
	// Commands cannot print the mark, which they cannot know, but they may come near it.
	content := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "\n", "\x01", "\x02", "\x01\x01\x01", "\x02\x02\x02", "\xff", "long words ", "~",
		mark[:9], mark[:len(mark)-1], mark + "!", mark + "o:1!", "\x02\x02\x02" + mark + "e!", "\x01\x01\x01" + mark[:20]}), 0, 40)
	rapid.Check(t, func(t *rapid.T) {
		var want [2]string
		for i := range want {
			want[i] = strings.Join(content.Draw(t, "content"), "")
		}
		code := rapid.IntRange(0, 255).Draw(t, "code")
		letters := []string{"o", "e"}
		var queues [2][]string
		for i, text := range want {
			text += fmt.Sprintf("%s%s\n%s%s:%d\n", mark, letters[i], mark, letters[i], code)
			if i == 0 {
				text = mark + "s\n" + text
			}
			text = mark + "a\n" + text
			queues[i] = strings.SplitAfter(text, "\n")
			queues[i] = queues[i][:len(queues[i])-1]
		}
		var log strings.Builder
		for len(queues[0])+len(queues[1]) > 0 {
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			if len(queues[i]) == 0 {
				i = 1 - i
			}
			log.WriteString(strings.Repeat(string(rune(i+1)), 3) + queues[i][0])
			queues[i] = queues[i][1:]
		}

		var s sink
		l := stream.New(mark, s.deliver)
		var reads []*stream.Read
		var at []int
		for !l.Complete() {
			k := rapid.IntRange(0, len(reads)).Draw(t, "read")
			if k == len(reads) {
				reads, at = append(reads, l.Open()), append(at, 0)
			}
			n := rapid.IntRange(0, 64).Draw(t, "bytes")
			if at[k] > len(mark)+5 && rapid.IntRange(0, 9).Draw(t, "over") == 0 {
				at[k] = 0 // it starts over, behind the whole first line
			}
			if len(reads) > 5 {
				n = log.Len() // come to an end
			}
			end := min(at[k]+n, log.Len())
			if _, err := reads[k].Write([]byte(log.String()[at[k]:end])); err != nil {
				t.Fatal(err)
			}
			at[k] = end
			if out := s.out.String(); !strings.HasPrefix(want[0], out) {
				t.Fatalf("delivered %q, which does not begin %q", out, want[0])
			}
		}
		got := stateOf(l, &s)
		if diff := cmp.Diff(state{Out: want[0], Err: want[1], Accepted: true, Started: true, Exit: code, Exited: true, Complete: true}, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// FuzzLog checks that no log, in whatever pieces, makes the reader panic, and that pieces make no difference.
func FuzzLog(f *testing.F) {
	f.Add([]byte(lines("o:@a", "o:x", "e:y@e", "e:@e:0", "o:@o", "o:@o:0")), 3)
	f.Add([]byte("\x01\x01\x02\n\n\x02\x02\x02"+mark), 1)
	f.Add([]byte(lines("o:aaa\x02\x02\x02@e", "-:bb\x02\x02\x02@e:0", "-:c@o", "o:@o:0")), 2)
	f.Fuzz(func(t *testing.T, log []byte, size int) {
		size = max(1, size)
		var whole, pieces sink
		a, b := stream.New(mark, whole.deliver), stream.New(mark, pieces.deliver)
		if _, err := a.Open().Write(log); err != nil {
			t.Fatal(err)
		}
		r := b.Open()
		for p := log; len(p) > 0; {
			n := min(size, len(p))
			if _, err := r.Write(p[:n]); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Open().Write(log[:len(log)-len(p)+n]); err != nil {
				t.Fatal(err)
			}
			p = p[n:]
		}
		if diff := cmp.Diff(stateOf(a, &whole), stateOf(b, &pieces)); diff != "" {
			t.Errorf("whole and in pieces of %d (-whole +pieces):\n%s", size, diff)
		}
		if len(whole.out.Bytes())+len(whole.err.Bytes()) > len(log) {
			t.Errorf("delivered more than the %d bytes of the log", len(log))
		}
	})
}

func BenchmarkLog(b *testing.B) {
	for name, line := range map[string]string{"short lines": "hello world", "long lines": strings.Repeat("x", 8000)} {
		b.Run(name, func(b *testing.B) {
			chunk := []byte(strings.Repeat(lines("o:"+line), 1+32*1024/len(line)))
			b.SetBytes(int64(len(chunk)))
			r := stream.New(mark, func(stream.Stream, []byte) error { return nil }).Open()
			for b.Loop() {
				if _, err := r.Write(chunk); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
