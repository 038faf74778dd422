//go:build !unix

package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"
)

// Nothing can be started on this system, so there is never anything to watch or kill.

type watcher struct{}

func startWatcher(mark, outer string) (*watcher, error) {
	return nil, fmt.Errorf("proc: sandboxes cannot run on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (w *watcher) remove(dir string) {}
func (w *watcher) gone() bool        { return true }
func (w *watcher) dismiss()          {}

type starts struct{}

func (starts) add(*Supervisor, int) {}

func setSession(cmd *exec.Cmd) {}

func (g *Group) killAll() error                     { return nil }
func (s *Supervisor) killAll(groups []*Group) error { return nil }

// KillTree does nothing on this system.
func (g *Group) KillTree(pid int, grace time.Duration) {}

// KillTrees does nothing on this system.
func (g *Group) KillTrees(pids []int, grace time.Duration) {}

// KillProcessGroup does nothing on this system.
func (g *Group) KillProcessGroup(pid int) {}

// Processes returns nothing on this system.
func (g *Group) Processes() ([]int, error) { return nil, nil }
