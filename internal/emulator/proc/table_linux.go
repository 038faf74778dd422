package proc

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// starts is empty: processes are found by their environment.
type starts struct{}

func (starts) add(*Supervisor, int) {}

// members returns the living processes of the group. If seize is not nil, it is called for each one that carries the
// mark as soon as it is seen.
func (g *Group) members(seize func(pid int)) ([]process, error) { return marked(g.mark, seize) }

// members returns the living processes of all groups there ever were.
func (s *Supervisor) members(_ []*Group, seize func(pid int)) ([]process, error) {
	return marked(s.mark, seize)
}

// marked returns the living processes that carry the mark in the environment they started with, their descendants, and
// everything in their sessions. The environment of setuid programs and of other users is unreadable to ordinary users;
// such processes count as descendants or session members only.
func marked(mark string, seize func(pid int)) ([]process, error) {
	all, err := table([]byte(mark), seize)
	if err != nil {
		return nil, err
	}
	// Each process starts in a session of its own, so the host's is never the sandbox's, whatever somebody did with the
	// mark.
	host, _ := unix.Getsid(0)
	sessions := make(map[int]bool)
	for {
		members := tree(all, func(p process) bool { return p.marked || sessions[p.session] })
		grown := false
		for _, p := range members {
			if p.session != 0 && p.session != host && !sessions[p.session] {
				sessions[p.session], grown = true, true
			}
		}
		if !grown {
			return members, nil
		}
	}
}

// While a process executes a program, and while it dies, its environment reads as empty or ends early. That takes
// microseconds, or as long as a busy machine makes it wait.
const (
	unsettledPatience = 250 * time.Millisecond // of one reading of the table, for all such processes together
	unsettledPoll     = 200 * time.Microsecond
)

// passes bounds how often table looks for newcomers, on a machine where processes start faster than it reads.
const passes = 20

// table reads /proc, without this process and without zombies, which hold nothing but their pid. One whose threads run, but
// for the main one, is none. Reading it takes milliseconds, in which a process may fork and exit: both it and its child would
// be missed. So the newcomers are read until there are none.
func table(mark []byte, seize func(pid int)) ([]process, error) {
	read := map[int]bool{os.Getpid(): true}
	var all []process
	patience := unsettledPatience
	if self, ok := stat(os.Getpid()); !ok || self.environ <= 0 {
		patience = 0 // not every kernel tells
	}
	for range passes {
		pids, err := list()
		if err != nil {
			return nil, err
		}
		newcomers := false
		for _, pid := range pids {
			if read[pid] {
				continue
			}
			read[pid], newcomers = true, true
			p, ok := look(pid, mark, &patience)
			if !ok {
				continue
			}
			if p.marked && seize != nil {
				seize(pid)
			}
			all = append(all, p)
		}
		if !newcomers {
			break
		}
	}
	return all, nil
}

// look reads one process and whether it carries the mark. It waits, as long as patience lasts, until it has read a whole
// environment, or the process is gone.
func look(pid int, mark []byte, patience *time.Duration) (process, bool) {
	for {
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		p, ok := stat(pid)
		if !ok {
			return p, false
		}
		if p.thread != "" {
			environ, err = os.ReadFile(p.thread + "/environ")
		}
		p.marked = err == nil && bytes.Contains(environ, mark)
		// Of a process that dies there may be nothing to read, rather than nothing in it: ESRCH.
		if errors.Is(err, os.ErrPermission) || p.marked || len(environ) == p.environ || *patience <= 0 {
			return p, true
		}
		pause(unsettledPoll)
		*patience -= unsettledPoll
	}
}

// list returns the pids of this moment.
func list() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// kernelThread is PF_KTHREAD of the flags in /proc/<pid>/stat.
const kernelThread = 0x00200000

// stat reads what the system says of a process that runs. Its environment is known to its running threads.
func stat(pid int) (process, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	p, state, threads := statIn(dir)
	p.pid = pid
	if state == 'Z' && threads > 1 {
		tasks, _ := os.ReadDir(dir + "/task")
		for _, task := range tasks {
			thread := dir + "/task/" + task.Name()
			if t, state, _ := statIn(thread); runs(state) {
				p.thread, p.environ = thread, t.environ
				break
			}
		}
		return p, true
	}
	return p, runs(state)
}

func runs(state byte) bool { return state != 0 && state != 'Z' && state != 'X' }

// statIn reads <dir>/stat, of a process or one of its threads: pid (name) state parent group session ... flags ... birth ...
// code ... and the addresses between which the environment lies. The kernel sets these to the same place before it writes the
// environment, and the address of the code afterwards; while there is no program yet, or none any more, all are 0. The name
// may hold anything, also parentheses and spaces, so the fields are counted from the last parenthesis. State 0: there is
// none.
func statIn(dir string) (p process, state byte, threads int) {
	content, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return p, 0, 0
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 20 {
		return p, 0, 0
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(string(fields[i]))
		return n
	}
	p = process{parent: number(1), group: number(2), session: number(3), birth: string(fields[19]), environ: -1}
	if number(6)&kernelThread != 0 {
		p.environ = 0
	} else if len(fields) > 48 && number(23) != 0 && number(47) != 0 {
		p.environ = number(48) - number(47)
	}
	return p, fields[0][0], number(17)
}

// anyAlive says whether one of the processes is still there.
func anyAlive(processes []process) bool {
	for _, p := range processes {
		if now, ok := stat(p.pid); ok && now.birth == p.birth {
			return true
		}
	}
	return false
}

// pause waits in the system's time, even where package time is virtual.
func pause(d time.Duration) {
	left := syscall.NsecToTimespec(d.Nanoseconds())
	for errors.Is(syscall.Nanosleep(&left, &left), syscall.EINTR) {
	}
}
