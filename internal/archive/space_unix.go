//go:build linux || darwin || freebsd

package archive

import (
	"os"

	"golang.org/x/sys/unix"
)

// freeSpace returns the bytes that this user may still write on the disk that holds root.
func freeSpace(root *os.Root) (int64, bool) {
	d, err := root.Open(".")
	if err != nil {
		return 0, false
	}
	defer d.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}
