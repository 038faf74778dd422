//go:build !unix

package toolbox

import (
	"errors"
	"io/fs"
)

// openWithoutWaiting has no meaning where files have no such flag.
const openWithoutWaiting = 0

// ownerOf returns zeros: there are no owner numbers on this system.
func ownerOf(fs.FileInfo) (owner, group string) { return "0", "0" }

// lookupOwner fails: there are no owner numbers on this system.
func lookupOwner(owner, group string) (uid, gid int, err error) {
	return 0, 0, errors.ErrUnsupported
}
