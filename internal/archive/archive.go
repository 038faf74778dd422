// Package archive sends trees to a sandbox as tar streams, and extracts tar streams that nobody vouches for. It holds the
// scripts of both directions that run in the sandbox, too.
//
// A [Load] is what is sent: of a directory or file system ([LoadTree]), of single files ([LoadFiles]), or of another tar stream
// ([LoadTar]). Archives have GNU's format, which GNU tar, busybox tar and bsdtar all read: PAX records would carry fractions
// of a second, but busybox does not know them and would shorten long names. Times are therefore whole seconds. [Extract] and
// [ExtractFiles] check every member and every link target before they apply it, work in private directories and files beside
// the destination, prove that the archive is whole, and only then publish by rename. [Copy] makes an archive anew of what
// passes the same checks.
//
// Both directions use memory that does not depend on the size of the files or on the length of the archive. What grows:
// the names of one directory while it is walked, one small record for each file that has several hard links, one for
// each directory, with its own name, with [WriteOptions.RepeatDirs], one for each entry that is compared or comes from a
// stream, one for each link that is copied and for each member that is left out and listed, and the depth of the tree.
package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// Summary says what an operation moved.
type Summary struct {
	Entries int64 // files, directories, symbolic and hard links, without the root itself
	Bytes   int64 // file content
	Archive int64 // bytes of the tar stream, headers and end included
	// Skipped lists what was left out without being asked for, at most [MaxSkipped] of it; SkippedCount counts all.
	Skipped      []Skipped
	SkippedCount int
	// Leftover is the path of earlier content of the destination that was replaced and could not be removed; empty
	// when there is none. The operation itself succeeded.
	Leftover string
}

// Add adds what another operation moved.
func (s *Summary) Add(other Summary) {
	s.Entries += other.Entries
	s.Bytes += other.Bytes
	s.Archive += other.Archive
	for _, skipped := range other.Skipped {
		s.Skip(skipped.Name, skipped.Reason)
	}
	s.SkippedCount += other.SkippedCount - len(other.Skipped)
}

// MaxSkipped bounds [Summary.Skipped].
const MaxSkipped = 1000

// Skipped is one entry that was left out.
type Skipped struct {
	Name   string // path in the tree, with slashes
	Reason Reason
}

// Reason says why an entry was left out. The set is closed.
type Reason string

// The reasons.
const (
	ReasonSocket   Reason = "socket"
	ReasonFIFO     Reason = "fifo"
	ReasonDevice   Reason = "device"
	ReasonLink     Reason = "unsafe link"   // its target lies outside the tree, see [LinksOmit]
	ReasonReserved Reason = "reserved name" // a name that belongs to the transfer's own bookkeeping
	ReasonUnknown  Reason = "unknown type"
)

// Skip lists an entry that was left out.
func (s *Summary) Skip(name string, r Reason) {
	s.SkippedCount++
	if len(s.Skipped) < MaxSkipped {
		s.Skipped = append(s.Skipped, Skipped{name, r})
	}
}

// Sentinels of [Error]. Each error of this package is an *Error that matches exactly one of them, or the context's cause.
var (
	ErrChanged = errors.New("changed while it was read")           // a source file grew, shrank, vanished or was swapped
	ErrSource  = errors.New("cannot be read")                      // the host's source
	ErrWrite   = errors.New("archive stream refused")              // the writer of a part failed
	ErrRead    = errors.New("archive stream broke")                // the reader of an archive failed
	ErrUnsafe  = errors.New("would reach outside the destination") // a name or a link
	ErrCorrupt = errors.New("archive is damaged or cut off")       // not a whole tar archive
	ErrLimit   = errors.New("limit reached")                       // one of the limits of ExtractOptions
	ErrSpace   = errors.New("too little space left")               // the host disk's reserve
	ErrDest    = errors.New("cannot be written")                   // the host's destination
	ErrType    = errors.New("cannot be replaced")                  // a file where a directory is wanted, a link
)

// Error names the entry at which an operation failed and why.
type Error struct {
	Kind   error  // one of the sentinels
	Name   string // path in the tree, or of the destination; may be empty
	Detail string // a few words
	Cause  error  // error of the file system, or of the reader or writer that was passed in
}

// Error returns the name, quoted and cut to a readable length, the kind and the detail.
func (e *Error) Error() string {
	s := e.Kind.Error()
	if e.Name != "" {
		s = QuoteName(e.Name) + " " + s
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	// A system error's text repeats temporary names: only its innermost cause (such as "permission denied") is shown.
	if c := systemCause(e.Cause); c != nil {
		s += ": " + c.Error()
	}
	return s
}

// Is reports whether target is the error's kind.
func (e *Error) Is(target error) bool { return target == e.Kind }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

func fail(kind error, name, detail string, cause error) *Error {
	return &Error{Kind: kind, Name: name, Detail: detail, Cause: cause}
}

func failf(kind error, name, format string, args ...any) *Error {
	return &Error{Kind: kind, Name: name, Detail: fmt.Sprintf(format, args...)}
}

// systemCause returns the system's own error inside err, or nil when err is something else, whose text is not ours to show.
func systemCause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var l interface{ Timeout() bool } // syscall.Errno, without importing it for one platform
	if errors.As(err, &l) {
		if e, ok := l.(error); ok {
			return e
		}
	}
	return nil
}

// QuoteName returns a name for messages: quoted, with control and invalid bytes escaped, and cut to 200 characters.
func QuoteName(name string) string {
	const most = 200
	if len(name) > most {
		return strconv.Quote(name[:most/2]) + "..." + strconv.Quote(name[len(name)-most/2:])
	}
	return strconv.Quote(name)
}
