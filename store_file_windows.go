package leasehold

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/windows"
)

const openFileOnly = 0

// tryLock takes the lock of a file, until the file is closed or the process ends. It does not wait. The locked byte lies
// beyond any content: on Windows nobody else could read what is locked.
func tryLock(f *os.File) (bool, error) {
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		&windows.Overlapped{OffsetHigh: math.MaxInt32})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
		return false, nil
	}
	return false, err
}

// syncDir does nothing: Windows flushes no directories.
func syncDir(string) error { return nil }
