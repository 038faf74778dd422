package archive

import "os"

// space keeps a reserve of free space on the host's disk. The system is asked again after each step of promised bytes, so
// what others write meanwhile is noticed too.
type space struct {
	root    *os.Root // a directory on that disk
	reserve int64    // negative: keep none
	step    int64
	budget  int64 // bytes that may be promised before the next question
}

func newSpace(root *os.Root, opt ExtractOptions) *space {
	return &space{root: root, reserve: opt.Reserve, step: opt.ReserveStep}
}

// take promises n bytes, or returns [ErrSpace].
func (s *space) take(n int64) error {
	if s.reserve < 0 {
		return nil
	}
	if s.budget -= n; s.budget >= 0 {
		return nil
	}
	free, ok := freeSpace(s.root)
	if !ok {
		s.budget = s.step
		return nil
	}
	if free-n < s.reserve {
		return failf(ErrSpace, "", "writing %d more bytes would leave less than the reserve of %d bytes", n, s.reserve)
	}
	s.budget = min(s.step, free-n-s.reserve)
	return nil
}
