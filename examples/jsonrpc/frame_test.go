package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func TestLinesAreCutAtNewlinesOnly(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"plain":                         {"a\nb\n", []string{"a", "b"}},
		"carriage return":               {"a\r\nb\rc\n", []string{"a", "b\rc"}},
		"line and paragraph separators": {"a\u2028b\u2029c\n", []string{"a\u2028b\u2029c"}},
		"empty lines":                   {"\n\na\n", []string{"", "", "a"}},
		"longer than any buffer":        {long + "\nb\n", []string{long, "b"}},
		"an interrupted line":           {"a\nb", []string{"a"}},
		"nothing":                       {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, in := range []io.Reader{strings.NewReader(c.in), iotest.HalfReader(strings.NewReader(c.in))} {
				if got := readAll(t, newLineReader(in, 1<<20)); strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) {
					t.Errorf("got %d lines %.60q, want %d lines %.60q", len(got), got, len(c.want), c.want)
				}
			}
		})
	}
}

func readAll(t testing.TB, r *lineReader) []string {
	t.Helper()
	var lines []string
	for {
		line, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return lines
		case errors.Is(err, errLineTooLong):
			lines = append(lines, "(too long)")
		case err != nil:
			t.Fatal(err)
		default:
			lines = append(lines, string(line))
		}
	}
}

func TestALineOverTheLimitIsPassedOver(t *testing.T) {
	const limit = 100 << 10
	in := "a\n" + strings.Repeat("x", limit) + "\nb\n" + strings.Repeat("y", limit-1) + "\n"
	want := []string{"a", "(too long)", "b", strings.Repeat("y", limit-1)}
	if got := readAll(t, newLineReader(strings.NewReader(in), limit)); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %.40q, want %.40q", got, want)
	}
}

func TestAReadErrorIsNotTheEnd(t *testing.T) {
	broken := errors.New("broken")
	r := newLineReader(io.MultiReader(strings.NewReader("a\nhalf"), iotest.ErrReader(broken)), 100)
	if line, err := r.next(); string(line) != "a" || err != nil {
		t.Errorf("next() = %q, %v, want the line", line, err)
	}
	if line, err := r.next(); line != nil || err != broken {
		t.Errorf("next() = %q, %v, want %v", line, err, broken)
	}
}

func TestWrittenLinesSurviveAJavaScriptReader(t *testing.T) {
	var out bytes.Buffer
	w := &lineWriter{w: &out}
	var writers sync.WaitGroup
	for range 20 {
		writers.Go(func() {
			if err := w.write(map[string]string{"text": "one\u2028two\u2029three\nfour\rfive"}); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if got := strings.Count(out.String(), "\n"); got != 20 {
		t.Errorf("%d lines, want 20", got)
	}
	if i := strings.IndexAny(out.String(), "\u2028\u2029\r"); i >= 0 {
		t.Errorf("a separator of lines in %q", out.String()[max(0, i-20):])
	}
}

// FuzzLines: whatever the bytes and however they arrive, the lines are those between the newlines, and each is answered once
// at most, under the id that it came with.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\r\n\n{\"x\":\"\u2028\"}\nrest"), uint16(3))
	f.Add([]byte("\r\n\r\r\n"), uint16(1))
	f.Add([]byte(`{"jsonrpc":"2.0","id":5,"method":"echo","params":{"a":"\u2028"}}`+"\n"+`{"jsonrpc":"2.0","id":"5","method":"wait"}`+"\n[]\n{}\n"+`{"jsonrpc":"2.0","id":5,"method":"panic"}`+"\n"), uint16(500))
	f.Add([]byte(`{"jsonrpc":"2.0","id":-1e2,"method":"nope"}`+"\n"+`{"jsonrpc":"2.0","id":1,"method":"shutdown"}`+"\n"), uint16(500))
	f.Fuzz(func(t *testing.T, in []byte, limit uint16) {
		max := int(limit) + 1
		var want []string
		for part := range bytes.Lines(in) {
			switch body, whole := bytes.CutSuffix(part, []byte("\n")); {
			case !whole:
			case len(part) > max:
				want = append(want, "(too long)")
			default:
				want = append(want, string(bytes.TrimSuffix(body, []byte("\r"))))
			}
		}
		got := readAll(t, newLineReader(iotest.OneByteReader(bytes.NewReader(in)), max))
		if strings.Join(got, "\n") != strings.Join(want, "\n") || len(got) != len(want) {
			t.Errorf("got %q, want %q", got, want)
		}

		unanswered := map[string]int{"null": len(want)}
		for _, line := range want {
			var request message
			if json.Unmarshal([]byte(line), &request) == nil {
				unanswered[idOf(request)]++
			}
		}
		answers := exchange(t, iotest.HalfReader(bytes.NewReader(in)))
		for _, line := range answers {
			var answer message
			if err := json.Unmarshal([]byte(line), &answer); err != nil || answer.JSONRPC != "2.0" || (answer.Error == nil) == (answer.Result == nil) || strings.Contains(line, "key=secret") {
				t.Errorf("%q was answered with %q, %v", in, line, err)
			}
			if id := idOf(answer); unanswered[id] == 0 {
				t.Errorf("%q was answered with %q: nobody waits for it", in, line)
			} else {
				unanswered[id]--
			}
		}
		if len(answers) > bytes.Count(in, []byte("\n")) {
			t.Errorf("%d lines have %d answers", bytes.Count(in, []byte("\n")), len(answers))
		}
	})
}

// idOf is the id of a message, however it is written.
func idOf(m message) string {
	var text string
	if bytes.HasPrefix(m.ID, []byte{'"'}) && json.Unmarshal(m.ID, &text) == nil {
		return `"` + text
	}
	return string(m.ID)
}
