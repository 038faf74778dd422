package leasehold

import (
	"context"
	"sync"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
)

const (
	// maxTaken is how many journals whose results were taken wait for their removal, which costs a process, and
	// maxTakenBytes how much they may hold.
	maxTaken      = 16
	maxTakenBytes = 1 << 20
	// sweepEvery is how many commands of a lease it takes until what dead hosts left in the sandbox is swept again.
	sweepEvery = 1024
)

// journalPool knows the journals of one lease. The zero value is empty and ready.
type journalPool struct {
	mu      sync.Mutex
	hooked  bool // the lease will close the pool
	closed  bool
	born    string   // the journal by which the sandbox's directory of journals was made, as it told last
	count   int      // of dispatches
	taken   []string // ids of journals to remove
	bytes   int64    // that they hold
	running map[*execution]struct{}
}

// enter registers a command that is about to run.
func (p *journalPool) enter(x *execution) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hooked && !p.closed {
		p.hooked = x.l.onClose(func(ctx context.Context) { p.close(ctx, x.l) })
	}
	if !p.hooked || p.closed {
		return &Error{Op: x.op, Kind: KindClosed, Message: "the lease was given back"}
	}
	if p.running == nil {
		p.running = make(map[*execution]struct{})
	}
	p.running[x] = struct{}{}
	return nil
}

func (p *journalPool) leave(x *execution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, x)
}

// know notes what a journal's script told of the sandbox's directory.
func (p *journalPool) know(born string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if born != "" {
		p.born = born
	}
}

func (p *journalPool) known() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.born
}

// done notes a journal whose result was taken.
func (p *journalPool) done(id string, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, id)
	p.bytes += bytes
}

// chores are what a dispatch does besides.
type chores struct {
	drop  []string // ids of journals to remove
	bytes int64    // that they hold
	sweep bool
}

// chores returns those of the next dispatch.
func (p *journalPool) chores() (c chores) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.sweep = p.count%sweepEvery == 0
	p.count++
	if len(p.taken) >= maxTaken || p.bytes >= maxTakenBytes {
		c.drop, c.bytes = p.taken, p.bytes
		p.taken, p.bytes = nil, 0
	}
	return c
}

// undone gives back chores of a dispatch that may not have come to them. To remove a journal twice is harmless.
func (p *journalPool) undone(c chores) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, c.drop...)
	p.bytes += c.bytes
}

// close ends the running commands. If the sandbox will be kept, it removes the journals.
func (p *journalPool) close(ctx context.Context, l *Lease) {
	p.mu.Lock()
	p.closed = true
	taken := p.taken
	p.taken = nil
	for x := range p.running {
		x.abort(errGivenBack)
	}
	p.mu.Unlock()
	if box := l.resolved(); box != nil && l.ref.Reuse && len(taken) > 0 {
		ctx, cancel := context.WithTimeout(daytona.Quiet(ctx), l.p.cfg.CallTimeout)
		defer cancel()
		drop := script.Drop(taken)
		_, _ = box.ExecuteEnv(ctx, drop.Command, drop.Env, 0) // else they are swept one day
	}
}
