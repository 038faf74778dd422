package leasehold

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Importer copies files of the host into a lease's sandbox. It is safe for concurrent use.
type Importer struct{ l *Lease }

// Importer returns the lease's importer. It makes no request.
func (l *Lease) Importer() *Importer { return &Importer{l} }

// ImportOptions are the options of an import. The zero value imports everything.
type ImportOptions struct {
	// Exclude leaves out entries of a directory. A pattern without a slash, such as "*.o" or "node_modules", matches an
	// entry of that name at any depth; one with a slash at its start or inside, such as "/build" or "docs/*.pdf", is
	// anchored at the directory. Each component is a glob as in [path.Match]; "**" stands for any number of components. A
	// slash at the end restricts the pattern to directories. What lies in a matched directory is left out with it. There
	// is no negation.
	Exclude []string
	// Mode is the mode of a single file. 0 is the one that it has on the host.
	Mode fs.FileMode
	// Progress is called from time to time, at most every 50 ms and from one goroutine at a time, and once more with
	// Done at the end of a transfer that succeeded. When a transfer has to begin anew, the counts do, too. Nil: no reports.
	Progress func(Progress)
}

// Dir copies the content of a directory of the host into a directory of the sandbox.
//
// The remote directory is made if needed, with its parents; a relative path is meant in the workspace, and "" is the
// workspace. Directories merge: what the remote directory holds under other names stays. Under the same name, a file or
// link replaces a file or link, by rename: whoever reads there sees the old one or the new one, never a part. Directories
// that exist keep their mode. Where a directory would replace something else, or something else a directory, the import
// fails with [ErrConflict] before it has changed anything. Publishing is a series of renames: if one of them is refused,
// the earlier ones stay, and the error says so.
//
// Permission bits, modification times to the second, symbolic links (as they are, never followed), hard links, empty
// files and directories, and names of any bytes are kept. Owners become the sandbox's user; set-id and sticky bits are
// dropped. Sockets, FIFOs and devices are left out and listed. The lease's own directory in the workspace,
// ".leasehold", is never touched: an entry of that name is left out and listed.
//
// Two requests are made, whatever the size: one streams a tar archive, and each file of 8 MiB or more by itself, to a
// scratch directory inside the remote directory, without a temporary file on the host and in constant memory; one
// verifies their lengths, extracts the archive beside its destination and publishes the tree. The sandbox needs room for
// the tree and once more for what the archive holds, and sh and tar. The scratch directory is removed on every path; one
// that a killed host left is removed by an import into the same directory a day later. When a connection broke or a
// reply was lost, the import begins anew, once. An import that fails may leave the remote directory behind, empty, if it
// did not exist.
//
// A file that changes while it is read ends the import with [ErrIO], and nothing is published. A context that ends does
// too, and Dir returns at once; the scratch directory is then removed in the background, which giving back the lease
// waits for.
func (i *Importer) Dir(ctx context.Context, localDir, remoteDir string, options ImportOptions) (TransferResult, error) {
	return i.run(ctx, "import directory", func(t *transfer) (importSource, error) {
		exclude, err := archive.NewMatcher(options.Exclude)
		if err != nil {
			return importSource{}, t.invalid(err.Error())
		}
		dest, err := t.remotePath(remoteDir)
		if err != nil {
			return importSource{}, err
		}
		own, _ := below(t.own(), dest)
		write := archive.WriteOptions{
			Exclude: exclude, RepeatDirs: true,
			Reserved: func(name string) bool {
				return name == own || strings.HasPrefix(path.Base(name), archive.StagePrefix)
			},
		}
		return importSource{dest, options.Progress, func(ctx context.Context) (*archive.Load, error) {
			return archive.LoadTree(ctx, localDir, write)
		}}, nil
	})
}

// File copies one regular file of the host to a path in the sandbox, whose parents are made if needed. A relative remote
// path is meant in the workspace. A local path that is a link is followed. The file appears by rename, with its mode and
// modification time; an earlier file or link of that name is replaced, a directory is an [ErrConflict]. All else is as
// with [Importer.Dir].
func (i *Importer) File(ctx context.Context, localPath, remotePath string, options ImportOptions) (TransferResult, error) {
	return i.run(ctx, "import file", func(t *transfer) (importSource, error) {
		if len(options.Exclude) > 0 {
			return importSource{}, t.invalid("a single file has nothing to exclude")
		}
		dest, err := t.remotePath(remotePath)
		if err != nil {
			return importSource{}, err
		}
		if dest == "/" || remotePath == "" || strings.HasSuffix(remotePath, "/") {
			return importSource{}, t.invalid("the remote path does not name a file")
		}
		return importSource{path.Dir(dest), options.Progress, func(context.Context) (*archive.Load, error) {
			return archive.LoadFile(localPath, path.Base(dest), archive.WriteOptions{Mode: options.Mode})
		}}, nil
	})
}

// importSource is what to import.
type importSource struct {
	dest     string // absolute directory in the sandbox
	progress func(Progress)
	load     func(context.Context) (*archive.Load, error) // for each attempt
}

func (i *Importer) run(ctx context.Context, op string, prepare func(*transfer) (importSource, error)) (_ TransferResult, err error) {
	start := time.Now()
	ctx, span := i.l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	for attempt := 0; ; attempt++ {
		t, err := i.l.transfer(ctx, op)
		if err != nil {
			return TransferResult{}, err
		}
		s, err := prepare(t)
		if err != nil {
			t.done()
			return TransferResult{}, err
		}
		sum, again, err := t.importOnce(ctx, s)
		if err == nil {
			(&meter{report: s.progress}).done(Progress{Bytes: sum.Bytes, TotalBytes: sum.Bytes, Entries: sum.Entries, TotalEntries: sum.Entries})
			return t.result(sum, start), nil
		}
		if !again || attempt > 0 || ctx.Err() != nil {
			return TransferResult{}, err
		}
	}
}

// importOnce makes one attempt with a scratch directory of its own. It reports whether another attempt can help: when
// the connection broke during the upload, or when an answer was lost that nothing records. An import can be repeated,
// and doing all of it again is what makes the outcome certain.
func (t *transfer) importOnce(ctx context.Context, s importSource) (_ archive.Summary, again bool, _ error) {
	load, err := s.load(ctx)
	if err != nil {
		t.done()
		return archive.Summary{}, false, t.archived(ctx, err)
	}
	defer load.Close()
	name := archive.StageName()
	scratch := path.Join(s.dest, name)
	m := &meter{report: s.progress, state: Progress{TotalBytes: load.Total.Bytes, TotalEntries: load.Total.Entries}}
	sum, err := t.upload(ctx, scratch, load, m)
	var lost *daytona.Error
	if err != nil {
		broke := errors.As(err, &lost) && unanswered(lost) && ctx.Err() == nil
		if !broke || sum.Archive == 0 {
			t.removeScratch(ctx, scratch)
			return sum, broke, t.uploadFailed(ctx, err)
		}
		// All of it was sent and no answer came. The script will tell whether all of it arrived.
	}
	reply, err := t.execute(ctx, load.Import(s.dest, name, t.own(), sum.Archive).Script(), scratch)
	if err == nil && reply.Word == archive.WordOK {
		t.done()
		return sum, false, nil
	}
	t.removeScratch(ctx, scratch)
	switch {
	case err != nil:
		return sum, false, err
	case reply.Word == archive.WordGone, reply.Word == archive.WordMissing, reply.Word == archive.WordShort:
		return sum, true, t.refused(reply.Word)
	default:
		return sum, false, t.refused(reply.Word)
	}
}

// upload streams a load to the scratch directory in one request. The summary's Archive, the length of the archive, is 0
// unless all of the load was taken.
func (t *transfer) upload(ctx context.Context, scratch string, load *archive.Load, m *meter) (archive.Summary, error) {
	parts := load.Parts()
	files := make([]daytona.File, len(parts))
	readers, writers := make([]*io.PipeReader, len(parts)), make([]*io.PipeWriter, len(parts))
	for i, part := range parts {
		readers[i], writers[i] = io.Pipe()
		files[i] = daytona.File{Path: path.Join(scratch, part.Name), Content: readers[i]}
	}
	var sum archive.Summary
	var writeErr error
	written := make(chan struct{})
	go func() { // the upload reads one after another, too
		defer close(written)
		for i, part := range parts {
			var one archive.Summary
			one, writeErr = part.Write(ctx, writers[i], func(entries, bytes int64) { m.update(sum.Entries+entries, sum.Bytes+bytes) })
			sum.Add(one)
			writers[i].CloseWithError(writeErr) // nil is io.EOF
			if writeErr != nil {
				return
			}
		}
	}()
	err := t.box.Upload(ctx, files...)
	for _, r := range readers {
		r.CloseWithError(errUploadEnded)
	}
	<-written
	var a *archive.Error
	switch {
	case errors.As(writeErr, &a) && a.Kind != archive.ErrWrite:
		return archive.Summary{}, writeErr // it is what ended the upload
	case writeErr != nil:
		sum.Archive = 0
		if err == nil {
			err = writeErr
		}
	}
	return sum, err
}

var errUploadEnded = errors.New("the upload ended")

// uploadFailed is the error of an upload. That the disk is full is told apart, for the caller can do something about it.
func (t *transfer) uploadFailed(ctx context.Context, err error) error {
	var remote *daytona.Error
	if errors.As(err, &remote) && remote.NoSpace() {
		return t.refused(archive.WordNoSpace)
	}
	return t.archived(ctx, err)
}
