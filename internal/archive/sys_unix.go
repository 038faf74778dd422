//go:build unix

package archive

import (
	"io/fs"
	"syscall"
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

const windows = false
