//go:build unix

package toolbox

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/leasehold-go/leasehold/internal/emulator/proc"
)

// startOnTerminal starts cmd as the leader of a session that has a new terminal of the given size, and
// returns the terminal's master side, whose reads end when it is closed.
func startOnTerminal(group *proc.Group, cmd *exec.Cmd, cols, rows uint16) (*os.File, error) {
	opened, tty, err := pty.Open()
	if err != nil {
		return nil, err
	}
	defer tty.Close()
	master, err := pollable(opened)
	if err != nil {
		return nil, err
	}
	if err := resizeTerminal(master, cols, rows); err != nil {
		master.Close()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setsid = true
	cmd.SysProcAttr.Setctty = true
	cmd.SysProcAttr.Ctty = 0 // stdin
	if err := group.Start(cmd); err != nil {
		master.Close()
		return nil, err
	}
	return master, nil
}

// pollable replaces a file, which it closes, by one on Go's poller: the library that opens terminals leaves
// them in blocking mode, where a waiting Read holds a thread and outlives Close.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func resizeTerminal(master *os.File, cols, rows uint16) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
	})
	if err != nil {
		return err
	}
	return failed
}
