package stream

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	duplexSay = "\x16lhmark"
	duplexEnd = "\x17lhmark"
)

// duplexLog is what a Duplex found.
type duplexLog struct {
	Data   [2]string
	Rounds [2]int
	Ends   []Stream
	Lines  []string
}

type duplexTaker struct{ *duplexLog }

func (t duplexTaker) Data(s Stream, p []byte) { t.duplexLog.Data[s] += string(p) }
func (t duplexTaker) Round(s Stream, _ int64) error {
	t.Rounds[s]++
	return nil
}
func (t duplexTaker) Ended(s Stream) { t.Ends = append(t.Ends, s) }
func (t duplexTaker) Said(word, arg string) error {
	t.Lines = append(t.Lines, word+" "+arg)
	return nil
}

// duplexText is what a channel sends that carries these streams, in pieces as small as writes to a terminal, between any two
// of which something of the channel's own may come.
func duplexText(r *rand.Rand, stdout, stderr string) (text string, rounds [2]int) {
	var b strings.Builder
	b.WriteString("Welcome!\r\n$ \x16lh" + duplexSay + " started 42\n")
	stdout += duplexEnd
	stderr += duplexEnd
	count := 0
	for stdout != "" || stderr != "" {
		switch n := 1 + r.IntN(9); {
		case r.IntN(3) == 0 && stderr != "":
			n = min(n, len(stderr))
			fmt.Fprintf(&b, "%s err %s\n", duplexSay, base64.StdEncoding.EncodeToString([]byte(stderr[:n])))
			stderr = stderr[n:]
			rounds[Stderr]++
		case r.IntN(4) == 0:
			fmt.Fprintf(&b, "%s in %d\r\n", duplexSay, n)
		default:
			n = min(n, len(stdout))
			b.WriteString(stdout[:n])
			stdout = stdout[n:]
			count += n
			if r.IntN(5) == 0 || stdout == "" && n > 0 {
				fmt.Fprintf(&b, "%s out %d\n", duplexSay, count)
				count = 0
				rounds[Stdout]++
			}
		}
	}
	return b.String() + duplexSay + " exit 3\n", rounds
}

// However the bytes arrive, both streams come out as they went in.
func TestDuplexTakesStreamsApart(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		odd := []string{"\x16", "\x17", "\x16lh", "\x17lhmar", "\n", "\r\n", "\x00", "\xff", "text", "lhmar"}
		var want duplexLog
		for range r.IntN(40) {
			want.Data[r.IntN(2)] += odd[r.IntN(len(odd))]
		}
		text, rounds := duplexText(r, want.Data[Stdout], want.Data[Stderr])
		var got duplexLog
		d := NewDuplex(duplexSay, duplexEnd, true)
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(20))
			piece := slices.Clone(rest[:n])
			if err := d.Next(piece, duplexTaker{&got}); err != nil {
				t.Fatalf("seed %d: Next() = %v", seed, err)
			}
			clear(piece) // it may be used again
			rest = rest[n:]
		}
		slices.Sort(got.Ends)
		if diff := cmp.Diff(want.Data, got.Data); diff != "" || got.Rounds != rounds || !slices.Equal(got.Ends, []Stream{Stdout, Stderr}) {
			t.Fatalf("seed %d: rounds %v, want %v, ends %v, data mismatch (-want +got):\n%s", seed, got.Rounds, rounds, got.Ends, diff)
		}
		if got.Lines[0] != "started 42" || got.Lines[len(got.Lines)-1] != "exit 3" {
			t.Errorf("seed %d: lines %q", seed, got.Lines)
		}
	}
}

func TestDuplexRefusesWhatWasChangedOnTheWay(t *testing.T) {
	for name, text := range map[string]string{
		"a byte lost":       "abc" + duplexSay + " out 4\n",
		"a byte added":      "abc" + duplexSay + " out 2\n",
		"no count":          duplexSay + " out\n",
		"not base64":        duplexSay + " err ab!d\n",
		"base64 cut":        duplexSay + " err YWJ\n",
		"a line too long":   duplexSay + " err " + strings.Repeat("A", maxSaid),
		"between two lines": duplexSay + " out 0\nx" + duplexSay + " out 0\n",
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDuplex(duplexSay, duplexEnd, false)
			if err := d.Next([]byte(text), duplexTaker{new(duplexLog)}); !errors.Is(err, ErrDuplex) {
				t.Errorf("Next() = %v, want %v", err, ErrDuplex)
			}
		})
	}
}

// FuzzDuplex: whatever comes, in whatever pieces, is taken apart in the same way, nothing comes out that did not go in, and
// little is kept. What two streams are made into comes apart into them again.
func FuzzDuplex(f *testing.F) {
	text, _ := duplexText(rand.New(rand.NewPCG(1, 0)), "out\x16put", "err")
	f.Add([]byte(text), 7, "out\x16put", "err")
	f.Add([]byte(duplexSay+" err =\n"+duplexSay), 1, "", "\x17lh")
	f.Add([]byte(duplexSay+" out 0\n"+duplexEnd+"late"), 2, "\n", "")
	f.Fuzz(func(t *testing.T, text []byte, size int, stdout, stderr string) {
		take := func(text []byte, size int, noise bool) (got duplexLog, err error) {
			d := NewDuplex(duplexSay, duplexEnd, noise)
			for len(text) > 0 && err == nil {
				n := min(len(text), max(size, 1))
				err = d.Next(bytes.Clone(text[:n]), duplexTaker{&got})
				text = text[n:]
				if len(d.kept) > maxSaid+max(size, 1) {
					t.Errorf("%d bytes are kept", len(d.kept))
				}
			}
			return got, err
		}
		noise := len(text)%2 == 0
		got, err := take(text, size, noise)
		if len(got.Data[Stdout])+len(got.Data[Stderr]) > len(text) {
			t.Errorf("%d and %d bytes came of %d", len(got.Data[Stdout]), len(got.Data[Stderr]), len(text))
		}
		if len(text) < maxSaid { // longer lines are known to be too long before their end comes
			whole, wholeErr := take(text, len(text), noise)
			if diff := cmp.Diff(whole, got); diff != "" || (wholeErr == nil) != (err == nil) {
				t.Errorf("in pieces of %d: %v, whole: %v (-whole +pieces):\n%s", size, err, wholeErr, diff)
			}
		}
		if strings.Contains(stdout+stderr, duplexSay[1:]) {
			return // no command knows the mark
		}
		carried, _ := duplexText(rand.New(rand.NewPCG(uint64(len(text)), 0)), stdout, stderr)
		if got, err := take([]byte(carried), size, true); err != nil || got.Data != [2]string{stdout, stderr} || len(got.Ends) != 2 {
			t.Errorf("%q and %q came apart into %q, %v, with the ends %v", stdout, stderr, got.Data, err, got.Ends)
		}
	})
}
