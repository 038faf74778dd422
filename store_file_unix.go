//go:build unix && !solaris && !illumos && !aix

package leasehold

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openFileOnly makes opening fail for a link, and not wait for a pipe.
const openFileOnly = unix.O_NOFOLLOW | unix.O_NONBLOCK

// tryLock takes the advisory lock of a file, until the file is closed or the process ends. It does not wait.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}

// syncDir flushes a directory: its entries, not their content.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
