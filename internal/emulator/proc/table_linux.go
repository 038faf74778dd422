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

// started has nothing to record: processes are found by their environment.
func (g *Group) started(pid int) {}

// members returns the living processes of the group.
func (g *Group) members() ([]process, error) { return marked(g.mark) }

// members returns the living processes of all groups there ever were.
func (s *Supervisor) members([]*Group) ([]process, error) { return marked(s.mark) }

// marked returns the living processes that carry the mark in the environment they started with, their descendants, and
// everything in their sessions. The environment of setuid programs and of other users is unreadable to ordinary users;
// such processes count as descendants or session members only.
func marked(mark string) ([]process, error) {
	all, err := table([]byte(mark))
	if err != nil {
		return nil, err
	}
	// Each process starts in a session of its own, so the host's is never the sandbox's, whatever somebody did with the
	// mark.
	host, _ := unix.Getsid(0)
	sessions := make(map[int]bool)
	for grown := true; grown; {
		members := tree(all, func(p process) bool { return p.marked || sessions[p.session] })
		grown = false
		for _, p := range members {
			if p.session != 0 && p.session != host && !sessions[p.session] {
				sessions[p.session], grown = true, true
			}
		}
		if !grown {
			return members, nil
		}
	}
	return nil, nil
}

// table reads /proc, without this process and without zombies, which hold nothing but their pid.
func table(mark []byte) ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		p, ok := stat(pid)
		if !ok {
			continue
		}
		if environ, err := os.ReadFile("/proc/" + name + "/environ"); err == nil {
			p.marked = bytes.Contains(environ, mark)
		}
		all = append(all, p)
	}
	return all, nil
}

// stat reads /proc/<pid>/stat: pid (name) state parent group session ... birth. The name may hold anything, also
// parentheses and spaces, so the fields are counted from the last parenthesis.
func stat(pid int) (process, bool) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return process{}, false
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(string(fields[i]))
		return n
	}
	return process{pid: pid, parent: number(1), group: number(2), session: number(3), birth: string(fields[19])}, true
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
