package emulator

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/leasehold-go/leasehold/internal/emulator/proc"
	"github.com/leasehold-go/leasehold/internal/emulator/toolbox"
)

// Quirks are the daemon's weaknesses that a test may want more or less of.
type Quirks = toolbox.Quirks

// machines are the running machines of a server and the owner of their processes.
type machines struct {
	processes *proc.Supervisor
	log       *slog.Logger
	shell     string // of the sandboxes; empty: the daemon's choice

	mu     sync.Mutex // guards the fields below
	live   map[*machine]struct{}
	closed bool
}

func newMachines(log *slog.Logger, shell string) *machines {
	return &machines{processes: proc.NewSupervisor(), log: log, shell: shell, live: map[*machine]struct{}{}}
}

// daemon is a toolbox and the processes that belong to it.
type daemon struct {
	*toolbox.Toolbox
	group *proc.Group
}

func (b *machines) newDaemon(spec machineSpec) *daemon {
	group := b.processes.Group(spec.id)
	quirks := spec.quirks
	diskFull := quirks.DiskFull
	quirks.DiskFull = func() bool { return spec.diskFull() || (diskFull != nil && diskFull()) }
	return &daemon{toolbox.New(toolbox.Options{
		Home: spec.home, TempDir: spec.temp, Env: spec.env, Group: group, Shell: b.shell, Quirks: quirks, Logger: b.log,
	}), group}
}

// kill ends the processes first, so that nothing the daemon would still answer is true.
func (d *daemon) kill() error {
	err := d.group.Kill()
	d.Close()
	return err
}

// start returns a new machine without any input or output. After close it returns a dead one.
func (b *machines) start(spec machineSpec) *machine {
	m := &machine{boxes: b, spec: spec, serving: map[*proxyWriter]struct{}{}, ended: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		m.dead = true
		return m
	}
	b.live[m] = struct{}{}
	return m
}

func (b *machines) forget(m *machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, m)
}

// close kills every machine, lets none start any more, and ends the supervisor.
func (b *machines) close() error {
	b.mu.Lock()
	b.closed = true
	var all []*machine
	for m := range b.live {
		all = append(all, m)
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(all), len(all)+1)
	for i, m := range all {
		wg.Go(func() { errs[i] = m.kill() })
	}
	wg.Wait()
	return errors.Join(append(errs, b.processes.Close())...)
}
