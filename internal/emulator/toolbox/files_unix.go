//go:build unix

package toolbox

import (
	"io/fs"
	"os/user"
	"strconv"
	"syscall"
)

// openWithoutWaiting keeps a named pipe without a peer from blocking the request for ever.
const openWithoutWaiting = syscall.O_NONBLOCK

// ownerOf returns the numbers of a file's owner and group.
func ownerOf(info fs.FileInfo) (owner, group string) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "0", "0"
	}
	return strconv.FormatUint(uint64(stat.Uid), 10), strconv.FormatUint(uint64(stat.Gid), 10)
}

// lookupOwner turns names or numbers into numbers; -1 stands for an empty one, which changes nothing.
func lookupOwner(owner, group string) (uid, gid int, err error) {
	uid, gid = -1, -1
	if owner != "" {
		if uid, err = strconv.Atoi(owner); err != nil {
			u, err := user.Lookup(owner)
			if err != nil {
				return 0, 0, err
			}
			if uid, err = strconv.Atoi(u.Uid); err != nil {
				return 0, 0, err
			}
		}
	}
	if group != "" {
		if gid, err = strconv.Atoi(group); err != nil {
			g, err := user.LookupGroup(group)
			if err != nil {
				return 0, 0, err
			}
			if gid, err = strconv.Atoi(g.Gid); err != nil {
				return 0, 0, err
			}
		}
	}
	return uid, gid, nil
}
