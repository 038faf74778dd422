package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/internal/archive"
)

// maxWritable bounds the list of writable directories, in bytes. It is some 10,000 directories.
const maxWritable = 1 << 20

// WritableDirs returns the directories of the sandbox that commands are meant to write to: the workspace first, then
// the destinations of imports with [AccessReadWrite], sorted, without those that lie in another one. It makes one request:
// the list is kept in the sandbox, in the lease's own directory, so that a host that resumed the lease has it, too, and
// several hosts share it. It is advice, not a boundary: commands can change it.
func (l *Lease) WritableDirs(ctx context.Context) ([]string, error) {
	const op = "list writable directories"
	t, err := l.transfer(ctx, op)
	if err != nil {
		return nil, err
	}
	defer t.done()
	data, err := t.box.ReadFile(ctx, path.Join(t.own(), archive.Writable), maxWritable)
	if mapped := failed(op, err); mapped != nil && mapped.Kind != KindNotFound {
		if errors.Is(mapped, ErrLimit) {
			return nil, t.fail(KindLimit, "the list of writable directories is too long")
		}
		return nil, l.observe(op, err)
	}
	var listed []string
	for line := range strings.Lines(string(data)) {
		var dir string
		// A line that a full disk cut off is no directory.
		if json.Unmarshal([]byte(line), &dir) == nil && validWorkspace(dir) {
			listed = append(listed, dir)
		}
	}
	slices.Sort(listed)
	dirs := []string{l.ref.Workspace}
	for _, dir := range listed {
		if !slices.ContainsFunc(dirs, func(other string) bool { return dir == other || within(dir, other) }) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// within reports whether a path lies below a directory.
func within(name, dir string) bool {
	_, ok := below(name, dir)
	return ok
}

// writableLines returns the lines that record directories.
func writableLines(dirs []string) string {
	lines := make([]string, len(dirs))
	for i, dir := range dirs {
		line, err := json.Marshal(dir)
		if err != nil {
			panic("leasehold: a string is always JSON: " + err.Error())
		}
		lines[i] = string(line)
	}
	return strings.Join(lines, "\n")
}
