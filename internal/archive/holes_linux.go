package archive

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Values of whence for lseek.
const (
	seekData = 3
	seekHole = 4
)

// hasHoles reports whether a file takes less room than its size says.
func hasHoles(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Blocks*512 < fi.Size()-minHole
}

// dataExtents asks the file system where a file has data.
func dataExtents(file fs.File, size int64) ([]extent, bool) {
	f, ok := file.(*os.File)
	if !ok {
		return nil, false
	}
	var found []extent
	for at := int64(0); at < size; {
		begin, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) { // a hole up to the end
			break
		}
		if err != nil || begin < at {
			return nil, false
		}
		end, err := f.Seek(begin, seekHole)
		if err != nil || end <= begin {
			return nil, false
		}
		found = append(found, extent{begin, min(end, size) - begin})
		at = end
	}
	return found, true
}
