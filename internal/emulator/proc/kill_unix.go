//go:build unix

package proc

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// A process is one entry of the system's process table.
type process struct {
	pid, parent, group int
	session            int    // 0: not known
	birth              string // start time, empty: not known; with the pid it names a process for good
	marked             bool   // carries the mark that was looked for
	environ            int    // size of the environment it started with, -1: not known
	thread             string // of one whose main thread has ended: the directory of one that runs
}

// setSession gives the command a session of its own and keeps the other attributes.
func setSession(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
}

// Processes returns the pids of the group's living processes.
func (g *Group) Processes() ([]int, error) {
	members, err := g.members(nil)
	pids := make([]int, 0, len(members))
	for _, p := range members {
		pids = append(pids, p.pid)
	}
	return pids, err
}

// killAll kills the processes of the group until two looks in a row find none.
func (g *Group) killAll() error { return killAll(g.members) }

// killAll kills the processes of the supervisor, groups of which were just sealed.
func (s *Supervisor) killAll(groups []*Group) error {
	return killAll(func(seize func(int)) ([]process, error) { return s.members(groups, seize) })
}

// killAll kills what find finds until two looks in a row find nothing. What is found is stopped first, at once, until
// nothing new is found: a stopped process cannot fork away from its killer.
func killAll(find func(seize func(pid int)) ([]process, error)) error {
	stop := func(pid int) { signal(pid, syscall.SIGSTOP) }
	for waited, clean := time.Duration(0), 0; clean < 2; {
		stopped := make(map[int]bool)
		var found []process
		for fresh := true; fresh; {
			fresh = false
			var err error
			if found, err = find(stop); err != nil {
				return err
			}
			for _, p := range found {
				if !stopped[p.pid] {
					stopped[p.pid], fresh = true, true
					stop(p.pid)
				}
			}
		}
		for _, p := range found {
			signal(p.pid, syscall.SIGKILL)
		}
		if len(found) == 0 {
			clean++
			continue
		}
		clean = 0
		if waited >= killPatience {
			pids := make([]int, 0, len(found))
			for _, p := range found {
				pids = append(pids, p.pid)
			}
			return survivors(pids)
		}
		pause(killPoll)
		waited += killPoll
	}
	return nil
}

// KillTree is KillTrees for one process.
func (g *Group) KillTree(pid int, grace time.Duration) { g.KillTrees([]int{pid}, grace) }

// KillTrees ends processes of the group with their process groups and their descendants, as the toolbox daemon ends a
// session: SIGTERM to all of them, then SIGKILL to those that are still there after the grace period, and to what
// they started meanwhile. Without a grace period there is no SIGTERM. It returns when they are gone, usually within
// milliseconds. What has left both the group and the tree, such as a daemon that forked twice and called setsid, lives
// on until Kill.
func (g *Group) KillTrees(pids []int, grace time.Duration) {
	// The members are those of the sandbox, so a number that is in use again elsewhere harms nobody.
	root := func(p process) bool { return slices.Contains(pids, p.pid) || slices.Contains(pids, p.group) }
	known := make(map[int]string)
	if grace > 0 {
		members, err := g.members(nil)
		if err != nil {
			return
		}
		targets := tree(members, root)
		for _, p := range targets {
			known[p.pid] = p.birth
			signal(p.pid, syscall.SIGTERM)
			signal(p.pid, syscall.SIGCONT) // a stopped process sees SIGTERM only once it goes on
		}
		for waited := time.Duration(0); waited < grace && anyAlive(targets); waited += termPoll {
			pause(termPoll)
		}
	}
	_ = killAll(func(func(int)) ([]process, error) {
		members, err := g.members(nil)
		return tree(members, func(p process) bool {
			birth, ok := known[p.pid]
			return root(p) || ok && birth == p.birth
		}), err
	})
}

// KillProcessGroup sends SIGKILL to the process group that one started process leads, and waits for nothing. The
// process must not have been reaped.
func (g *Group) KillProcessGroup(pid int) {
	if pid > 1 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

// tree returns the processes that root accepts, and their descendants.
func tree(all []process, root func(process) bool) []process {
	in := make(map[int]bool)
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.pid] && (in[p.parent] || root(p)) {
				in[p.pid], grown = true, true
			}
		}
	}
	var found []process
	for _, p := range all {
		if in[p.pid] {
			found = append(found, p)
		}
	}
	return found
}

func signal(pid int, sig syscall.Signal) {
	if pid > 1 && pid != os.Getpid() {
		_ = syscall.Kill(pid, sig)
	}
}
