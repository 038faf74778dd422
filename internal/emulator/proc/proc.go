// Package proc runs the processes of emulated sandboxes such that none of them outlives its sandbox, and none outlives
// the host process, not even a host that was killed with SIGKILL.
//
// A sandbox on a real provider is a container: its end is the end of all its processes, whatever they did to detach
// themselves. Here they are ordinary processes of the current user, so they are found by other means. On Linux each one
// inherits an environment variable with an unguessable value. The processes of a sandbox are those that started with it
// (/proc/<pid>/environ), the descendants of these, and everything in their sessions. A process escapes only if it has
// erased its environment and lost its parent, and its session has no marked process left. On other Unix systems the
// processes of a sandbox are its process groups and their descendants, as ps shows them: a daemon that forks twice and
// calls setsid escapes there. On Windows nothing can be started.
//
// For the end of the host there is a watcher: one shell process that waits at the end of a pipe whose other end only the
// host holds. When the pipe closes without a word, it kills what is left and removes temporary directories.
//
// Time in this package is the system's: processes do not live in the virtual time of testing/synctest.
package proc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Variable is the environment variable that marks the processes of sandboxes. Its value is a path of marks, because an
// emulator may itself run in an emulated sandbox, whose end must reach the inner processes too.
const Variable = "LEASEHOLD_SANDBOX"

var (
	// ErrKilled is the error of Start once the group was killed, or its supervisor closed.
	ErrKilled = errors.New("proc: the group was killed")
	// ErrSurvivors is the error of Kill when processes are left that do not die.
	ErrSurvivors = errors.New("proc: processes survived SIGKILL")
)

// A Supervisor owns the processes of one emulator. It may be used by many goroutines.
type Supervisor struct {
	mark  string // in the environment of every process of the supervisor
	outer string // the host's own value of Variable

	mu     sync.Mutex
	groups map[string]*Group // not killed
	dirs   []string          // removed on the host's death
	closed bool
	watch  *watcher // nil until the first process
}

// NewSupervisor returns a supervisor without processes or goroutines. The watcher starts with the first process.
func NewSupervisor() *Supervisor {
	return &Supervisor{
		mark:   rand.Text(),
		outer:  os.Getenv(Variable),
		groups: make(map[string]*Group),
	}
}

// Group returns the group of a sandbox, and creates it if there is none. Once that group was killed, the next call
// returns a new one, as a sandbox that starts again needs it.
func (s *Supervisor) Group(id string) *Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[id]; g != nil {
		return g
	}
	g := &Group{sup: s, id: id, mark: s.mark + "." + rand.Text(), killed: s.closed}
	if !s.closed {
		s.groups[id] = g
	}
	return g
}

// OnHostDeath makes the watcher remove a directory and all it holds after the death of the host, provided that a process
// has ever been started. The path must be absolute. Close removes nothing.
func (s *Supervisor) OnHostDeath(removeDir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirs = append(s.dirs, removeDir)
	if s.watch != nil {
		s.watch.remove(removeDir)
	}
}

// Close kills every group, ends the watcher and waits for it. Nothing can be started afterwards. Further calls do the
// same work again, which is none.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	s.closed = true
	groups := make([]*Group, 0, len(s.groups))
	for _, g := range s.groups {
		groups = append(groups, g)
	}
	s.mu.Unlock()
	for _, g := range groups {
		g.seal()
	}

	s.mu.Lock()
	watch := s.watch
	s.watch = nil
	s.mu.Unlock()
	if watch == nil {
		return nil
	}
	err := s.killAll(groups)
	watch.dismiss()
	return err
}

// watched starts the watcher if there is none, or if somebody killed it.
func (s *Supervisor) watched() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrKilled
	}
	if s.watch != nil && !s.watch.gone() {
		return nil
	}
	w, err := startWatcher(s.mark, s.outer)
	if err != nil {
		return err
	}
	for _, dir := range s.dirs {
		w.remove(dir)
	}
	s.watch = w
	return nil
}

// A Group is all processes of one sandbox, from its start to its stop or deletion.
type Group struct {
	sup  *Supervisor
	id   string
	mark string // in the environment of every process of the group

	starting sync.RWMutex // held for reading while a process is started, for writing to set killed
	killed   bool

	starts starts // what the system needs to know to find the processes again
}

// Command returns a command for Start: in a session and a process group of its own, without a controlling terminal.
// The caller sets Dir, Env and the streams. A nil Env means the host's environment.
func (g *Group) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	setSession(cmd)
	return cmd
}

// Start starts the command, marked as a process of the group. The caller waits for it, in time or after Kill. Start
// fails with ErrKilled once Kill was called, and with an error that wraps errors.ErrUnsupported on systems without
// process groups.
func (g *Group) Start(cmd *exec.Cmd) error {
	g.starting.RLock()
	defer g.starting.RUnlock()
	if g.killed {
		return ErrKilled
	}
	if err := g.sup.watched(); err != nil {
		return err
	}
	cmd.Env = g.marked(cmd.Env)
	setSession(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	g.starts.add(g.sup, cmd.Process.Pid)
	return nil
}

// marked returns an environment with the mark of the group as its last word on the variable.
func (g *Group) marked(env []string) []string {
	if env == nil {
		env = os.Environ()
	}
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, Variable+"=") })
	return append(env, Variable+"="+g.sup.outer+"/"+g.mark)
}

// Kill ends the group: no process can be started any more, and every process of it gets SIGKILL, detached daemons
// included. It returns when none is left, or with ErrSurvivors after ten seconds. Killing a killed group looks again.
func (g *Group) Kill() error {
	g.seal()
	return g.killAll()
}

// seal waits for processes that are being started and lets no further one start.
func (g *Group) seal() {
	g.starting.Lock()
	g.killed = true
	g.starting.Unlock()

	g.sup.mu.Lock()
	if g.sup.groups[g.id] == g {
		delete(g.sup.groups, g.id)
	}
	g.sup.mu.Unlock()
}

// survivors makes an error out of what Kill could not end.
func survivors(pids []int) error {
	return fmt.Errorf("%w: %v", ErrSurvivors, pids)
}

const (
	killPatience = 10 * time.Second      // for processes to vanish after SIGKILL
	killPoll     = 2 * time.Millisecond  // between looks; a killed process needs about this long
	termPoll     = 10 * time.Millisecond // between looks at processes that may end by themselves
)
