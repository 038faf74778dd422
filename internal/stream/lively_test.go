package stream

import (
	"io"
	"testing"
)

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAReaderThatReturnsNothingFails(t *testing.T) {
	reads := 0
	r := &Lively{From: readerFunc(func(p []byte) (int, error) {
		if reads++; reads%maxEmpty == 0 && reads < 3*maxEmpty {
			return copy(p, "x"), nil
		}
		return 0, nil
	})}
	if data, err := io.ReadAll(r); string(data) != "xx" || err != io.ErrNoProgress || reads != 3*maxEmpty {
		t.Errorf("ReadAll() = %q, %v after %d reads, want xx and io.ErrNoProgress after %d", data, err, reads, 3*maxEmpty)
	}
}
