package leasehold

import (
	"context"
	"sync"
)

// inflow holds what was received from a sandbox until it is read.
type inflow struct {
	limit int // put waits while as much is held

	mu     sync.Mutex // guards the fields below
	cond   sync.Cond  // something in them changed
	data   []byte
	pauses int   // how often put began or ceased to wait, so odd while it waits
	err    error // what Read returns once data is empty; nil: more may come
	free   bool  // put does not wait any more
	gone   bool  // nobody will read any more
	taken  func(n int)
}

// newInflow returns one of a connection that ends with life, after which put does not wait: whoever ends the connection
// waits for the goroutine that receives, and nobody may be reading.
func newInflow(life context.Context, limit int, taken func(n int)) *inflow {
	f := &inflow{limit: limit, taken: taken}
	f.cond.L = &f.mu
	context.AfterFunc(life, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.free = true
		f.cond.Broadcast()
	})
	return f
}

// put adds a copy of p.
func (f *inflow) put(p []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	full := func() bool { return len(f.data) >= f.limit && !f.free && !f.gone }
	if full() {
		f.pauses++
		for full() {
			f.cond.Wait()
		}
		f.pauses++
	}
	if !f.gone {
		f.data = append(f.data, p...)
		f.cond.Broadcast()
	}
}

// pause returns a number that is odd while put waits, and never the same before and after it has waited.
func (f *inflow) pause() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pauses
}

// end says that no more will come. The first error counts.
func (f *inflow) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.cond.Broadcast()
}

// drop makes every Read fail with err, a waiting one as well, and forgets what is held.
func (f *inflow) drop(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data, f.err, f.gone = nil, err, true
	f.cond.Broadcast()
}

// Read waits for something, and returns what there is.
func (f *inflow) Read(p []byte) (int, error) {
	f.mu.Lock()
	for len(f.data) == 0 && f.err == nil && len(p) > 0 {
		f.cond.Wait()
	}
	n := copy(p, f.data)
	if f.data = f.data[n:]; len(f.data) == 0 {
		f.data = nil
	}
	var err error
	if n == 0 && len(p) > 0 {
		err = f.err
	}
	f.cond.Broadcast()
	f.mu.Unlock()
	if n > 0 && f.taken != nil {
		f.taken(n)
	}
	return n, err
}
