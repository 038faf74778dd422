package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
)

type syncParams struct {
	Lease      wireLease       `json:"lease"`
	Operations []syncOperation `json:"operations"`
}

type syncOperation struct {
	ID    string        `json:"operationId"`
	Files []syncMapping `json:"files"`
	After []syncCommand `json:"postUploadCommands"`
}

type syncMapping struct {
	Source         string       `json:"sourcePath"`
	Target         string       `json:"targetPath"`
	Kind           string       `json:"kind"` // file or directory
	Mode           *fs.FileMode `json:"mode"` // permission bits
	Exclude        []string     `json:"exclude"`
	FollowSymlinks bool         `json:"followSymlinks"`
	Access         string       `json:"access"`       // rw: commands are meant to write there
	Writable       string       `json:"writablePath"` // what is meant by that, if not the target, or a file's directory
}

type syncCommand struct {
	Command   string `json:"command"` // a script, passed on as it is
	Cwd       string `json:"cwd"`
	TimeoutMs int64  `json:"timeoutMs"`
}

type syncResult struct {
	ID    string `json:"operationId"`
	Files int64  `json:"filesTransferred"`
	Bytes int64  `json:"bytesTransferred"`
}

func (r *syncResult) add(t leasehold.TransferResult) {
	r.Files += t.Entries + t.Unchanged
	r.Bytes += t.Bytes
}

type syncAnswer struct {
	Operations []syncResult `json:"operations"`
}

// syncIn is environmentSyncIn: host to sandbox. Operations run in their order, and the first failure ends the call.
func (w *worker) syncIn(ctx context.Context, c call, p syncParams) (any, error) {
	return w.sync(ctx, c, p, (*syncOperation).checkIn, transferIn)
}

// syncOut is environmentSyncOut: sandbox to host.
func (w *worker) syncOut(ctx context.Context, c call, p syncParams) (any, error) {
	answer, err := w.sync(ctx, c, p, (*syncOperation).checkOut, w.transferOut)
	return answer, syncOutError(err)
}

func (w *worker) sync(ctx context.Context, c call, p syncParams,
	check func(*syncOperation, string) error, transfer func(context.Context, *leasehold.Lease, syncOperation) (syncResult, error),
) (any, error) {
	ref, err := c.ref(p.Lease.ProviderLeaseID, p.Lease.Metadata)
	if err != nil {
		return nil, err
	}
	for i := range p.Operations { // all of them, before anything moves
		if err := check(&p.Operations[i], ref.Workspace); err != nil {
			return nil, err
		}
	}
	// The sandbox is started, if need be, before the first step, so that no step has to be repeated.
	var lease *leasehold.Lease
	err = w.running(ctx, c, p.Lease, func(l *leasehold.Lease) error {
		lease = l
		_, err := l.WritableDirs(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	answer := syncAnswer{Operations: []syncResult{}}
	for _, operation := range p.Operations {
		result, err := transfer(ctx, lease, operation)
		if err != nil {
			return nil, err
		}
		answer.Operations = append(answer.Operations, result)
	}
	return answer, nil
}

// transferIn sends all files of an operation in one upload, then its directories one by one, then runs its commands.
func transferIn(ctx context.Context, lease *leasehold.Lease, o syncOperation) (syncResult, error) {
	result := syncResult{ID: o.ID}
	importer := lease.Importer()
	for _, group := range fileGroups(o.Files) {
		sent, err := importer.Files(ctx, group.files, leasehold.ImportOptions{Access: group.access, Writable: group.writable})
		if err != nil {
			return result, err
		}
		result.add(sent)
	}
	for _, m := range o.Files {
		if m.Kind != "directory" {
			continue
		}
		options := leasehold.ImportOptions{Exclude: m.Exclude, FollowLinks: m.FollowSymlinks, Access: access(m), Writable: writable(m)}
		sent, err := importer.Dir(ctx, m.Source, m.Target, options)
		if err != nil {
			return result, err
		}
		result.add(sent)
	}
	for i, command := range o.After {
		if err := runAfter(ctx, lease, i, command); err != nil {
			return result, err
		}
	}
	return result, nil
}

// fileGroup are the files of an operation that are sent alike.
type fileGroup struct {
	access   leasehold.Access
	writable string
	files    []leasehold.FileMapping
}

func fileGroups(mappings []syncMapping) []fileGroup {
	var groups []fileGroup
	for _, m := range mappings {
		if m.Kind != "file" {
			continue
		}
		i := slices.IndexFunc(groups, func(g fileGroup) bool { return g.access == access(m) && g.writable == writable(m) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, fileGroup{access: access(m), writable: writable(m)})
		}
		groups[i].files = append(groups[i].files, leasehold.FileMapping{Local: m.Source, Remote: m.Target, Mode: mode(m)})
	}
	return groups
}

// access is what a destination is for. A directory whose mode has no write permission is a bundle: it is compared with
// what is there, and replaced as a whole.
func access(m syncMapping) leasehold.Access {
	switch {
	case m.Kind == "directory" && m.Mode != nil && *m.Mode&0o222 == 0:
		return leasehold.AccessReadOnly
	case m.Access == "rw":
		return leasehold.AccessReadWrite
	}
	return leasehold.AccessDefault
}

// writable is the directory that commands are meant to write to because of a mapping; empty: that of its target.
func writable(m syncMapping) string {
	if access(m) != leasehold.AccessReadWrite {
		return ""
	}
	return m.Writable
}

// mode is a mapping's mode; 0 leaves the file the one that it has.
func mode(m syncMapping) fs.FileMode {
	if m.Mode == nil {
		return 0
	}
	return m.Mode.Perm()
}

func runAfter(ctx context.Context, lease *leasehold.Lease, i int, c syncCommand) error {
	result, err := lease.Executor().Run(ctx, leasehold.Command{
		Script: c.Command, Dir: c.Cwd, Timeout: time.Duration(c.TimeoutMs) * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if result.ExitCode != 0 {
		return &rpcError{Code: codeWorker, Message: fmt.Sprintf("post-upload command %d failed with exit code %d", i, result.ExitCode)}
	}
	return nil
}

// transferOut fetches an operation's files, as many at once as the library takes, and then its directories. On the host
// nothing is readable for others, at any moment, unless a mapping's mode says so.
func (w *worker) transferOut(ctx context.Context, lease *leasehold.Lease, o syncOperation) (syncResult, error) {
	result := syncResult{ID: o.ID}
	exporter := lease.Exporter()
	var files []leasehold.FileMapping
	for _, m := range o.Files {
		if m.Kind == "file" {
			files = append(files, leasehold.FileMapping{Local: m.Target, Remote: m.Source, Mode: hostMode(m, 0o600)})
		}
	}
	for group := range slices.Chunk(files, leasehold.MaxExportFiles) {
		got, err := exporter.Files(ctx, group, leasehold.ExportOptions{})
		if err != nil {
			return result, err
		}
		result.add(got)
	}
	for _, m := range o.Files {
		if m.Kind != "directory" {
			continue
		}
		options := leasehold.ExportOptions{Exclude: m.Exclude, Mode: hostMode(m, 0o700), UnsafeLinks: leasehold.LinksOmit}
		got, err := exporter.Dir(ctx, m.Source, m.Target, options)
		if err != nil {
			return result, err
		}
		result.add(got)
		if got.SkippedCount > 0 {
			w.server.notify(ctx, "log", hostLog{Level: "info", Message: fmt.Sprintf("a workspace export left out %d entries", got.SkippedCount)})
		}
	}
	return result, nil
}

type hostLog struct {
	Level   string `json:"level"`
	Message string `json:"message"`
}

func hostMode(m syncMapping, otherwise fs.FileMode) fs.FileMode {
	if given := mode(m); given != 0 {
		return given
	}
	return otherwise
}

// checkIn checks an operation towards the sandbox. Where in the sandbox it goes is the host's affair; the working
// directory of a command must be in the workspace, and never becomes the daemon's own.
func (o *syncOperation) checkIn(workspace string) error {
	if err := o.check(func(m syncMapping) (host, sandbox string) { return m.Source, m.Target }); err != nil {
		return err
	}
	for i := range o.After {
		cwd := &o.After[i].Cwd
		if *cwd == "" {
			*cwd = workspace
		}
		if !within(workspace, *cwd) {
			return pathError("the working directory of a post-upload command", "is not in the workspace")
		}
	}
	return nil
}

// checkOut checks an operation towards the host. Only what lies in the lease's own workspace leaves the sandbox: not in
// the directory that the metadata names, which the host could have stored wrong.
func (o *syncOperation) checkOut(workspace string) error {
	if err := o.check(func(m syncMapping) (host, sandbox string) { return m.Target, m.Source }); err != nil {
		return err
	}
	for _, m := range o.Files {
		if !within(workspace, m.Source) {
			return pathError("a sourcePath", "is not in the workspace")
		}
		if m.FollowSymlinks {
			return pathError("a mapping", "asks to follow links in the sandbox, which an export does not")
		}
	}
	return nil
}

// check refuses paths that are not plain absolute ones, on either side: a host's path that was joined from a name with
// ".." in it, or a path that means the host's file system and landed on the sandbox's side.
func (o *syncOperation) check(sides func(syncMapping) (host, sandbox string)) error {
	for _, m := range o.Files {
		if m.Kind != "file" && m.Kind != "directory" {
			return pathError("a mapping", "is of an unknown kind")
		}
		host, sandbox := sides(m)
		if !filepath.IsAbs(host) || filepath.Clean(host) != host || filepath.Dir(host) == host {
			return pathError("the host's path of a mapping", "is not absolute and plain")
		}
		for _, p := range []string{sandbox, cmp.Or(m.Writable, sandbox)} {
			if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.Contains(p, "\x00") {
				return pathError("the sandbox's path of a mapping", "is not absolute and plain")
			}
		}
	}
	return nil
}

// within reports whether a plain path is root, or below it.
func within(root, p string) bool {
	return path.Clean(p) == p && (p == root || strings.HasPrefix(p, strings.TrimSuffix(root, "/")+"/"))
}

// pathError names no path: they are the host's.
func pathError(what, problem string) error {
	return invalidParams("params.operations: " + what + " " + problem)
}
