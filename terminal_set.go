package leasehold

import (
	"context"
	"errors"
	"sync"
)

// consoleSet is the open terminals and channels of a lease. The zero value is empty and ready.
type consoleSet struct {
	mu     sync.Mutex
	hooked bool // the lease will close the set
	closed bool
	open   map[string]*console
}

func (s *consoleSet) add(c *console) *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hooked && !s.closed {
		s.hooked = c.l.onClose(s.close)
	}
	if !s.hooked || s.closed {
		return c.fail(KindClosed, errGivenBack.Error())
	}
	if s.open[c.name] != nil {
		return c.fail(KindConflict, "there is one of this id")
	}
	if s.open == nil {
		s.open = make(map[string]*console)
	}
	s.open[c.name] = c
	return nil
}

func (s *consoleSet) remove(c *console) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[c.name] == c {
		delete(s.open, c.name)
	}
}

func (s *consoleSet) find(name string) *console {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[name]
}

// close forgets all, and then closes them side by side: one that hangs keeps no other one alive.
func (s *consoleSet) close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	open := s.open
	s.open = nil
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range open {
		wg.Go(func() { _ = c.close(ctx, "close") })
	}
	wg.Wait()
}

// abandon forgets all, and ends the connections alone: the sandbox is not ours to touch.
func (s *consoleSet) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.open {
		c.foreign.Store(true)
		c.hang(errHungUp)
	}
	s.open = nil
}

// closeConsole closes the terminal or channel of this name, whoever opened it.
func (l *Lease) closeConsole(ctx context.Context, kind ActivityKind, op, id string) error {
	var p problems
	checkConsoleID(&p, "id", id, true)
	if err := p.err(op); err != nil {
		return err
	}
	if err := unsent(ctx, op, l.ref.Sandbox); err != nil {
		return err
	}
	name, _ := consoleName(kind, id)
	if c := l.consoles.find(name); c != nil {
		return c.close(ctx, op)
	}
	held, err := l.hold(kind, op)
	if err != nil {
		return err
	}
	defer held.end()
	ctx, end := l.p.untilClosed(ctx)
	defer end()
	box, err := l.toolbox(ctx)
	if err == nil {
		err = removePTY(ctx, l, box, op, name)
	}
	if err != nil && !errors.Is(err, ErrNotRunning) && !errors.Is(err, ErrGone) { // no terminal outlives its sandbox's run
		e := failed(op, err)
		if e.Op = op; context.Cause(ctx) == errProviderClosed {
			e.Kind, e.Retryable, e.Message = KindClosed, false, errProviderClosed.Error()
		}
		return e
	}
	held.ended(name)
	return nil
}
