package stream_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/stream"
)

const endMark = "\x17lhabcdefabcdefgh"

// ending feeds all of input in pieces of the given size, and returns what belongs to the stream.
func ending(input string, size int) (string, bool) {
	var got bytes.Buffer
	e := stream.NewEnd(endMark)
	for len(input) > 0 {
		n := min(size, len(input))
		got.Write(e.Next([]byte(input[:n])))
		input = input[n:]
	}
	return got.String(), e.Found()
}

func TestEndIsFoundHoweverTheBytesArrive(t *testing.T) {
	for name, tt := range map[string]struct {
		input, want string
		found       bool
	}{
		"nothing":               {"", "", false},
		"empty stream":          {endMark, "", true},
		"stream":                {"out\n" + endMark, "out\n", true},
		"later bytes":           {"out" + endMark + "late" + endMark, "out", true},
		"not ended":             {"out", "out", false},
		"first byte":            {"a\x17b" + endMark, "a\x17b", true},
		"first bytes":           {"\x17\x17\x17" + endMark, "\x17\x17\x17", true},
		"prefix":                {endMark[:9] + "x" + endMark, endMark[:9] + "x", true},
		"prefixes":              {endMark[:9] + endMark[:5] + endMark, endMark[:9] + endMark[:5], true},
		"prefix that is all":    {"x" + endMark[:9], "x", false},
		"mark without its byte": {endMark[1:] + endMark, endMark[1:], true},
		"other mark":            {"\x17lhabcdefabcdefgi" + endMark, "\x17lhabcdefabcdefgi", true},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= max(1, len(tt.input)); size++ {
				if got, found := ending(tt.input, size); got != tt.want || found != tt.found {
					t.Errorf("in pieces of %d: got %q, %v; want %q, %v", size, got, found, tt.want, tt.found)
				}
			}
			for at := range len(tt.input) {
				e := stream.NewEnd(endMark)
				got := string(e.Next([]byte(tt.input[:at])))
				got += string(e.Next([]byte(tt.input[at:])))
				if got != tt.want || e.Found() != tt.found {
					t.Errorf("split at %d: got %q, %v; want %q, %v", at, got, e.Found(), tt.want, tt.found)
				}
			}
		})
	}
}

func FuzzEnd(f *testing.F) {
	f.Add("out", "late", uint8(1))
	f.Add("a\x17lhabc\x17", endMark, uint8(3))
	f.Fuzz(func(t *testing.T, output, late string, size uint8) {
		output = strings.ReplaceAll(output, endMark, "")
		if strings.Contains(output+endMark[:len(endMark)-1], endMark) {
			return
		}
		if got, found := ending(output+endMark+late, int(size)+1); got != output || !found {
			t.Errorf("got %q, %v; want %q", got, found, output)
		}
	})
}
