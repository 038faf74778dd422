//go:build unix && !linux

package proc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// starts are the process groups that were started in a group.
type starts struct {
	mu   sync.Mutex
	pids []int
}

// add records a process group, and tells the watcher.
func (r *starts) add(s *Supervisor, pid int) {
	r.mu.Lock()
	r.pids = append(r.pids, pid)
	r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil {
		s.watch.tell("group " + strconv.Itoa(pid))
	}
}

// members returns the living processes of the group: its process groups and their descendants.
func (g *Group) members(func(pid int)) ([]process, error) {
	all, err := table()
	if err != nil {
		return nil, err
	}
	g.starts.mu.Lock()
	defer g.starts.mu.Unlock()
	// An empty process group is forgotten, for its number may be used again.
	g.starts.pids = slices.DeleteFunc(g.starts.pids, func(root int) bool {
		return !slices.ContainsFunc(all, func(p process) bool { return p.group == root })
	})
	return tree(all, func(p process) bool { return slices.Contains(g.starts.pids, p.group) }), nil
}

// members returns the living processes of the groups.
func (s *Supervisor) members(groups []*Group, _ func(pid int)) ([]process, error) {
	var found []process
	for _, g := range groups {
		members, err := g.members(nil)
		if err != nil {
			return nil, err
		}
		found = append(found, members...)
	}
	return found, nil
}

// table asks ps, without this process, ps itself and zombies.
func table() ([]process, error) {
	ps := exec.Command("ps", "-A", "-o", "pid=,ppid=,pgid=,stat=")
	out, err := ps.Output()
	if err != nil {
		return nil, fmt.Errorf("proc: list processes: %w", err)
	}
	var all []process
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var p process
		var state string
		if _, err := fmt.Sscan(lines.Text(), &p.pid, &p.parent, &p.group, &state); err != nil {
			continue
		}
		if p.pid != os.Getpid() && p.pid != ps.Process.Pid && !strings.HasPrefix(state, "Z") {
			all = append(all, p)
		}
	}
	return all, nil
}

// anyAlive says whether one of the processes is still there.
func anyAlive(processes []process) bool {
	all, err := table()
	return err == nil && slices.ContainsFunc(processes, func(p process) bool {
		return slices.ContainsFunc(all, func(q process) bool { return q.pid == p.pid })
	})
}

func pause(d time.Duration) { time.Sleep(d) }
