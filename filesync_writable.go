package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"

	"github.com/leasehold-go/leasehold/internal/archive"
)

// maxWritable bounds the list of writable directories, in bytes. It is some 10,000 directories.
const maxWritable = 1 << 20

// WritableDirs returns the directories of the sandbox that commands are meant to write to: the workspace first, then
// the destinations of imports with [AccessReadWrite], sorted, without those that lie in another one. It makes one request:
// the list is kept in the sandbox, in the lease's own directory, so that a host that resumed the lease has it, too, and
// several hosts share it. It is advice, not a boundary: commands can change it. It fails with [ErrClosed] once the lease is
// being given back, with [ErrNotRunning] if the sandbox is not started, with [ErrGone] or [ErrNotOwned] as the first use of a
// lease may, with [ErrLimit] if the list is too long, and with [ErrTimeout], [ErrCanceled], [ErrUnavailable],
// [ErrRateLimited] or [ErrAuth].
func (l *Lease) WritableDirs(ctx context.Context) ([]string, error) {
	const op = "list writable directories"
	ctx, end := l.p.untilClosed(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.Timeout)
	defer cancel()
	t, err := l.transfer(op)
	if err != nil {
		return nil, err
	}
	defer t.done()
	if err := t.connect(ctx); err != nil {
		return nil, err
	}
	data, err := t.box.ReadFile(ctx, path.Join(t.own(), archive.Writable), maxWritable)
	if mapped := failed(op, err); mapped != nil && mapped.Kind != KindNotFound {
		if errors.Is(mapped, ErrLimit) {
			return nil, t.fail(KindLimit, "the list of writable directories is too long")
		}
		return nil, l.observe(op, err)
	}
	return outermost(l.ref.Workspace, parseWritable(data).dirs), nil
}

// writableList is the list of writable directories, as it was read.
type writableList struct {
	dirs  []string
	lines int
}

// readWritable reads the list for a command, whose wrapper it is for.
func (l *Lease) readWritable(ctx context.Context) (writableList, error) {
	box, err := l.toolbox(ctx)
	if err != nil {
		return writableList{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
	defer cancel()
	data, err := box.ReadFile(ctx, path.Join(l.ref.Workspace, sentinelDir, archive.Writable), maxWritable)
	if mapped := failed("list writable directories", err); mapped != nil && mapped.Kind != KindNotFound {
		return writableList{}, mapped
	}
	return parseWritable(data), nil
}

func parseWritable(data []byte) writableList {
	list := writableList{lines: bytes.Count(data, []byte("\n"))}
	for line := range bytes.Lines(data) {
		var dir string
		// A line that a full disk cut off is no directory.
		if json.Unmarshal(line, &dir) == nil && validWorkspace(dir) {
			list.dirs = append(list.dirs, dir)
		}
	}
	return list
}

// outermost returns the workspace and then the other directories, sorted, without those that lie in another one.
func outermost(workspace string, others []string) []string {
	dirs := []string{workspace}
	for _, dir := range slices.Sorted(slices.Values(others)) {
		if !slices.ContainsFunc(dirs, func(other string) bool { return dir == other || within(dir, other) }) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// within reports whether a path lies below a directory.
func within(name, dir string) bool {
	_, ok := below(name, dir)
	return ok
}

// writableLines returns the lines that record directories.
func writableLines(dirs []string) []string {
	lines := make([]string, len(dirs))
	for i, dir := range dirs {
		line, err := json.Marshal(dir)
		if err != nil {
			panic("leasehold: a string is always JSON: " + err.Error())
		}
		lines[i] = string(line)
	}
	return lines
}
