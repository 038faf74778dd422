//go:build !unix

package archive

import (
	"io/fs"
	"os"
	"runtime"
)

const openNonblock = 0

type fileID struct{ dev, ino uint64 }

// linkID knows no hard links here: each name is archived as a file of its own.
func linkID(fs.FileInfo) (fileID, bool) { return fileID{}, false }

// holdStage has no means here, and what is open could not be renamed.
func holdStage(*os.Root, string) *os.File { return nil }

// stageFree does not know.
func stageFree(*os.File) (free, known bool) { return false, false }

const windows = runtime.GOOS == "windows"
