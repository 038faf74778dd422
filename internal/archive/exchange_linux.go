package archive

import (
	"os"

	"golang.org/x/sys/unix"
)

// exchange swaps two names of a directory in one step. It reports false, and has done nothing, where the kernel or the
// file system cannot.
func exchange(parent *os.Root, a, b string) bool {
	d, err := parent.Open(".")
	if err != nil {
		return false
	}
	defer d.Close()
	fd := int(d.Fd())
	return unix.Renameat2(fd, a, fd, b, unix.RENAME_EXCHANGE) == nil
}
