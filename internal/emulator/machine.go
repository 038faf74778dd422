package emulator

import "sync"

// machine is one run of a sandbox, from a start to a stop. It makes its daemon with the first request.
type machine struct {
	boxes *machines
	spec  machineSpec

	mu      sync.Mutex // guards the fields below
	daemon  *daemon    // nil before the first request
	dead    bool
	lost    bool // dead because the container vanished
	serving map[*proxyWriter]struct{}

	killing sync.Once
	killErr error
	ended   chan struct{} // closed when kill is complete
}

// machineSpec says what a machine's daemon is made from.
type machineSpec struct {
	id       string // unique among all runs of all sandboxes of the server
	home     string
	temp     string
	env      map[string]string
	quirks   Quirks
	diskFull func() bool
}

// open returns the daemon and registers a reply with the machine, so that kill can cut it off. The caller must call
// leave when the daemon has answered. Once kill began it cuts the reply off, and returns nil.
func (m *machine) open(w *proxyWriter) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		w.cut()
		return nil
	}
	if m.daemon == nil {
		m.daemon = m.boxes.newDaemon(m.spec)
	}
	m.serving[w] = struct{}{}
	return m.daemon
}

// enter is open for a reply that does not need the daemon.
func (m *machine) enter(w *proxyWriter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		w.cut()
		return false
	}
	m.serving[w] = struct{}{}
	return true
}

func (m *machine) leave(w *proxyWriter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.serving, w)
}

// kill ends the machine as a power cut would: replies are cut off, sockets dropped without a close frame, processes
// killed. It returns when all is gone; a second call waits for the first.
func (m *machine) kill() error {
	m.killing.Do(func() {
		defer close(m.ended)
		m.mu.Lock()
		m.dead = true
		daemon := m.daemon
		for w := range m.serving {
			w.cut()
		}
		m.mu.Unlock()
		if daemon != nil {
			m.killErr = daemon.kill()
		}
		m.boxes.forget(m)
	})
	<-m.ended
	return m.killErr
}

// lose is kill for a container that vanished.
func (m *machine) lose() error {
	m.mu.Lock()
	m.lost = true
	m.mu.Unlock()
	return m.kill()
}

func (m *machine) isLost() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

func (m *machine) processes() ([]int, error) {
	m.mu.Lock()
	daemon := m.daemon
	m.mu.Unlock()
	if daemon == nil {
		return nil, nil
	}
	return daemon.group.Processes()
}
