//go:build unix

package archive

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openNonblock keeps the opening of something that turned into a FIFO from waiting for a writer.
const openNonblock = syscall.O_NONBLOCK

// fileID identifies a file that has several names.
type fileID struct{ dev, ino uint64 }

// linkID returns the identity of a file with more than one name.
func linkID(fi fs.FileInfo) (fileID, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, true
}

// holdStage marks a stage, or what is going to have the name of one, as being in use, until the file that it returns is
// closed or the process ends, however it ends. It returns nil for what cannot be opened.
func holdStage(parent *os.Root, name string) *os.File {
	f, err := parent.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return f
}

// stageFree reports whether nobody holds a stage, and whether that could be found out.
func stageFree(f *os.File) (free, known bool) {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		return true, true
	case unix.EWOULDBLOCK:
		return false, true
	default:
		return false, false
	}
}

const windows = false
