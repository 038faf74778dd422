package stream

import "io"

// maxEmpty is how many reads of nothing, without an error, are borne in a row: as many as package bufio bears.
const maxEmpty = 100

// Lively is a reader that fails with [io.ErrNoProgress] where the one below returns nothing and no error over and over, so
// that nobody reads from that for ever.
type Lively struct {
	From  io.Reader
	empty int // reads in a row
}

func (r *Lively) Read(p []byte) (int, error) {
	n, err := r.From.Read(p)
	if n > 0 || err != nil || len(p) == 0 {
		r.empty = 0
		return n, err
	}
	if r.empty++; r.empty >= maxEmpty {
		return 0, io.ErrNoProgress
	}
	return 0, nil
}
