package emulator

import (
	"maps"
	"slices"
	"time"
)

// Sandbox is a test's own access to one sandbox, beside the API. Its methods stay usable after the sandbox is destroyed.
type Sandbox struct {
	s  *Server
	sb *sandbox
}

// Sandbox finds a sandbox of any organisation by its id, even a destroyed one, or by the name it occupies.
// It returns nil if there is none.
func (s *Server) Sandbox(idOrName string) *Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.sandboxes[idOrName]; sb != nil {
		return &Sandbox{s, sb}
	}
	for _, sb := range s.sandboxes {
		if sb.Name == idOrName {
			return &Sandbox{s, sb}
		}
	}
	return nil
}

// Sandboxes lists the ids of all sandboxes that are not destroyed, errored ones included, oldest first.
func (s *Server) Sandboxes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	alive := slices.DeleteFunc(slices.Collect(maps.Values(s.sandboxes)), func(sb *sandbox) bool { return sb.State == StateDestroyed })
	slices.SortFunc(alive, func(a, b *sandbox) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	ids := make([]string, len(alive))
	for i, sb := range alive {
		ids[i] = sb.ID
	}
	return ids
}

// read returns the record as it is now.
func (b *Sandbox) read() record {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return b.sb.record
}

// ID is the sandbox's id.
func (b *Sandbox) ID() string { return b.read().ID }

// Name is the sandbox's name; deletion changes it.
func (b *Sandbox) Name() string { return b.read().Name }

// State is the state that the API reports.
func (b *Sandbox) State() State {
	r := b.read()
	return r.shown()
}

// ErrorReason is the reason of an errored sandbox.
func (b *Sandbox) ErrorReason() string { return b.read().ErrorReason }

// Labels is a copy of the labels.
func (b *Sandbox) Labels() map[string]string { return maps.Clone(b.read().Labels) }

// SetLabels replaces its labels, as whoever has a key of the organisation may.
func (b *Sandbox) SetLabels(labels map[string]string) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.s.change(b.sb, func(r *record) { r.Labels = maps.Clone(labels) })
}

// DestroyAt is the end of its lifetime; zero means none.
func (b *Sandbox) DestroyAt() time.Time { return b.read().DestroyAt }

// LastActive is when the sandbox was last used, as auto-stop sees it now.
func (b *Sandbox) LastActive() time.Time {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return b.sb.lastActive(time.Now())
}

// Home is the host's path of its files.
func (b *Sandbox) Home() string { return b.s.homeDir(b.sb.ID) }

// Processes lists the ids of the processes that run in it.
func (b *Sandbox) Processes() ([]int, error) {
	b.s.mu.Lock()
	m := b.sb.machine
	b.s.mu.Unlock()
	if m == nil {
		return nil, nil
	}
	return m.processes()
}

// Settle waits until no state change is pending, for at most d, and returns the state.
func (b *Sandbox) Settle(d time.Duration) State {
	b.s.settled(b.s.ctx, b.sb, d)
	return b.State()
}

// Force puts the sandbox into any state, known to the API or not, as if that were where it had been going. The reason and
// recoverable matter to errored states. A state other than started ends its machine; started gives it a new one.
func (b *Sandbox) Force(state State, reason string, recoverable bool) {
	s := b.s
	s.mu.Lock()
	b.sb.stop()
	b.sb.op++
	b.sb.pending = false
	m := b.sb.machine
	if state == StateStarted {
		s.boot(b.sb)
	}
	s.change(b.sb, func(r *record) {
		r.State, r.Desired, r.ErrorReason, r.Recoverable = state, state, reason, recoverable
	})
	s.mu.Unlock()
	if m != nil {
		if err := m.kill(); err != nil {
			s.log.Error("killing a sandbox's processes", "sandbox", b.sb.ID, "err", err)
		}
	}
}

// LoseContainer makes the container and its files vanish: the proxy says 404, and the control plane notices with its next
// tick, or when the sandbox is started: it becomes errored, not recoverable, with the daemon's exact words for it.
func (b *Sandbox) LoseContainer() { b.s.lose(b.sb) }

// RotateToken gives the sandbox a new preview token, as the provider may at any time. Nothing else of its record changes.
func (b *Sandbox) RotateToken() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.sb.Token = newToken()
}

// SetDiskFull fills or frees the sandbox's disk, as far as its toolbox is concerned. Commands can still write.
func (b *Sandbox) SetDiskFull(full bool) { b.sb.full.Store(full) }

// lose makes a sandbox's container vanish and returns when nothing of it is left.
func (s *Server) lose(sb *sandbox) {
	s.mu.Lock()
	sb.lost = true
	m := sb.machine
	s.mu.Unlock()
	if m != nil {
		if err := m.lose(); err != nil {
			s.log.Error("killing a sandbox's processes", "sandbox", sb.ID, "err", err)
		}
	}
	if err := s.removeFiles(sb.ID); err != nil {
		s.log.Error("removing a sandbox's files", "sandbox", sb.ID, "err", err)
	}
}
