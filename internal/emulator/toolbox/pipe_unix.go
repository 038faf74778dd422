//go:build unix

package toolbox

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// makePipe makes a named pipe.
func makePipe(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// openPipe opens a named pipe without waiting for the other side.
func openPipe(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0)
	if err != nil || runtime.GOOS == "linux" {
		return f, err
	}
	// Elsewhere named pipes may not be on Go's poller (kqueue misses the end of the last writer), so reads and writes
	// have to wait in the system, and Close does not end them.
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
