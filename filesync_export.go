package leasehold

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/daytona"
)

// Exporter copies files of a lease's sandbox to the host. It trusts nothing that comes from there. It is safe for
// concurrent use.
type Exporter struct{ l *Lease }

// Exporter returns the lease's exporter. It makes no request.
func (l *Lease) Exporter() *Exporter { return &Exporter{l} }

// LinkPolicy says what an export does with links whose target lies, or may lie, outside the exported directory:
// absolute ones, ones with too many "..", and ones with ".." after another component.
type LinkPolicy int

// The values of [LinkPolicy].
const (
	LinksReject LinkPolicy = iota // the export fails with [ErrUnsafe], and changes nothing
	LinksOmit                     // they are left out and listed in the result
	// LinksKeepAbsolute makes symbolic links with an absolute target as they are, such as a tool's link into /usr. The
	// export never follows them; whoever uses the result follows them into the host's own files. Other unsafe links fail.
	LinksKeepAbsolute
)

// ExportOptions are the options of an export. The zero value exports everything and refuses unsafe links.
type ExportOptions struct {
	// Exclude leaves out entries of a directory, in the language of [ImportOptions.Exclude].
	Exclude []string
	// UnsafeLinks says what to do with links out of the directory. The zero value is LinksReject.
	UnsafeLinks LinkPolicy
	// AllowChanges takes files that change while the sandbox's tar reads them as they come, instead of failing with
	// [ErrConflict]: for workspaces in which something is running. Only GNU tar notices such changes.
	AllowChanges bool
	// MaxEntries bounds the members of the archive. 0 is 1,000,000.
	MaxEntries int64
	// MaxBytes bounds the content of all files together. 0 is 64 GiB.
	MaxBytes int64
	// Reserve is the free space in bytes that the host's disk keeps. 0 is 1 GiB, negative is none.
	Reserve int64
	// Mode is the mode of a single file, or of the local directory itself. 0 is, for a file, the one that it has in the sandbox;
	// for a directory, the mode that the local directory had before, else 0755.
	Mode fs.FileMode
	// Progress is called from time to time, at most every 50 ms and from one goroutine at a time, and once more with
	// Done at the end of a transfer that succeeded. Nil: no reports.
	Progress func(Progress)
}

// Dir makes a directory of the host a copy of a directory of the sandbox.
//
// The local directory is replaced as a whole: it is prepared beside its place, and takes it by rename once it is proved
// to be complete, in one step on Linux. What it held before is removed then; after any failure it is as it was. Missing
// parents are made. A local path that is a link, or anything but a directory, is an [ErrConflict]. What a killed process left beside it is removed by the next export to a
// path with the same parent. A relative remote
// path is meant in the workspace, and "" is the workspace. The lease's own directory in it, ".leasehold", is never
// exported, and neither are other transfers' scratch directories.
//
// The sandbox is not trusted: each member of its archive, and each link's target, is checked before it is applied, and
// nothing is ever written outside the local directory. Permission bits, modification times to the second, symbolic
// and hard links inside the tree, empty files and directories, and names of any bytes are kept; owners, set-id and
// sticky bits are not. FIFOs, devices and sockets are left out and listed.
//
// Three requests are made: the sandbox's tar writes an archive into the lease's own directory, which needs room for
// it; the archive is downloaded and extracted as it comes, in constant memory, going on where it stopped when the
// connection breaks; and it is removed, which also happens after a failure. A context that ends makes Dir return at
// once; the removal then goes on in the background, and giving back the lease waits for it.
func (x *Exporter) Dir(ctx context.Context, remoteDir, localDir string, options ExportOptions) (TransferResult, error) {
	return x.run(ctx, "export directory", remoteDir, options, false, func(ctx context.Context, r io.Reader, o archive.ExtractOptions) (archive.Summary, error) {
		return archive.Extract(ctx, r, localDir, o)
	})
}

// File copies one regular file of the sandbox to a path of the host. It is read in the sandbox by the sandbox's user; a
// link is refused with [ErrUnsafe]. It appears on the host by rename, with its mode and modification time, and replaces
// an earlier regular file; anything else at that path is an [ErrConflict]. All else is as with [Exporter.Dir].
func (x *Exporter) File(ctx context.Context, remotePath, localPath string, options ExportOptions) (TransferResult, error) {
	return x.run(ctx, "export file", remotePath, options, true, func(ctx context.Context, r io.Reader, o archive.ExtractOptions) (archive.Summary, error) {
		return archive.ExtractFile(ctx, r, localPath, o)
	})
}

func (x *Exporter) run(ctx context.Context, op, remote string, options ExportOptions, file bool,
	extract func(context.Context, io.Reader, archive.ExtractOptions) (archive.Summary, error),
) (_ TransferResult, err error) {
	start := time.Now()
	ctx, span := x.l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	t, err := x.l.transfer(ctx, op)
	if err != nil {
		return TransferResult{}, err
	}
	request, extraction, err := t.exportRequest(remote, options, file)
	if err != nil {
		t.done()
		return TransferResult{}, err
	}
	m := &meter{report: options.Progress}
	sum, err := t.export(ctx, request, extraction, m, extract)
	t.removeScratch(ctx, request.Scratch)
	if err != nil {
		return TransferResult{}, err
	}
	m.done(Progress{Bytes: sum.Archive, TotalBytes: sum.Archive, Entries: sum.Entries, TotalEntries: sum.Entries})
	return t.result(sum, start), nil
}

// exportRequest checks the options.
func (t *transfer) exportRequest(remote string, options ExportOptions, file bool) (archive.RemoteExport, archive.ExtractOptions, error) {
	var request archive.RemoteExport
	var extraction archive.ExtractOptions
	source, err := t.remotePath(remote)
	if err != nil {
		return request, extraction, err
	}
	t.source = source
	switch {
	case options.MaxEntries < 0 || options.MaxBytes < 0:
		return request, extraction, t.invalid("a limit is negative")
	case options.UnsafeLinks != LinksReject && options.UnsafeLinks != LinksOmit:
		return request, extraction, t.invalid("UnsafeLinks is not a LinkPolicy")
	case file && len(options.Exclude) > 0:
		return request, extraction, t.invalid("a single file has nothing to exclude")
	case file && (source == "/" || remote == ""):
		return request, extraction, t.invalid("the remote path does not name a file")
	}
	patterns := append([]string{}, options.Exclude...)
	if !file {
		patterns = append(patterns, archive.StagePrefix+"*")
		if own, ok := below(t.own(), source); ok {
			patterns = append(patterns, archive.Literal(own))
		}
	}
	exclude, err := archive.NewMatcher(patterns)
	if err != nil {
		return request, extraction, t.invalid(err.Error())
	}
	request = archive.RemoteExport{
		Scratch: path.Join(t.own(), archive.StageName()), Source: source, File: file, Live: options.AllowChanges, Exclude: exclude,
	}
	extraction = archive.ExtractOptions{
		Exclude: exclude, MaxEntries: options.MaxEntries, MaxBytes: options.MaxBytes, Reserve: options.Reserve, Mode: options.Mode,
	}
	if options.UnsafeLinks == LinksOmit {
		extraction.Links = archive.LinksOmit
	}
	return request, extraction, nil
}

// export has the archive made, and extracts it as it is downloaded.
func (t *transfer) export(ctx context.Context, request archive.RemoteExport, o archive.ExtractOptions, m *meter,
	extract func(context.Context, io.Reader, archive.ExtractOptions) (archive.Summary, error),
) (archive.Summary, error) {
	reply, err := t.execute(ctx, request.Script(), request.Scratch)
	if err != nil {
		return archive.Summary{}, err
	}
	if reply.Word != archive.WordOK || reply.Bytes <= 0 {
		return archive.Summary{}, t.refused(reply.Word)
	}
	d := &resumingReader{t: t, ctx: ctx, path: path.Join(request.Scratch, archive.RemoteExported), size: reply.Bytes}
	defer d.close()
	o.Size = reply.Bytes
	m.state.TotalBytes = reply.Bytes
	o.Progress = func(entries, _ int64) { m.update(entries, d.offset) }
	sum, err := extract(ctx, d, o)
	if err != nil {
		return sum, t.archived(ctx, err)
	}
	for _, name := range reply.Sockets {
		if !o.Exclude.MatchBelow(name, false) {
			sum.Skip(name, archive.ReasonSocket)
		}
	}
	sum.SkippedCount += reply.SocketCount - len(reply.Sockets)
	return sum, nil
}

// resumingReader reads a file of a known size, and continues where it stopped when the connection breaks. It gives up
// after maxDownloadFailures failures in a row that brought not one byte.
type resumingReader struct {
	t      *transfer
	ctx    context.Context
	path   string
	size   int64
	offset int64
	body   *daytona.Download
	failed int
	pause  backoff
}

const maxDownloadFailures = 5

func (d *resumingReader) Read(p []byte) (int, error) {
	for {
		if d.offset == d.size {
			return 0, io.EOF
		}
		err := d.open()
		if err == nil {
			var n int
			n, err = d.body.Read(p[:min(int64(len(p)), d.size-d.offset)])
			d.offset += int64(n)
			if n > 0 {
				d.failed, d.pause = 0, backoff{}
				return n, nil // an error comes again
			}
			if err == nil {
				continue
			}
			d.close()
		}
		var remote *daytona.Error
		d.failed++
		if err == io.EOF || !errors.As(err, &remote) || !unanswered(remote) && remote.Status != 429 || d.failed >= maxDownloadFailures {
			if err == io.EOF {
				err = d.t.fail(KindProtocol, "the archive in the sandbox became shorter")
			}
			return 0, err
		}
		if d.pause.wait(d.ctx, remote.RetryAfter) != nil {
			return 0, ctxError(d.ctx)
		}
	}
}

// open makes a request for the rest, unless one is under way.
func (d *resumingReader) open() error {
	if d.body != nil {
		return nil
	}
	body, err := d.t.box.Download(d.ctx, d.path, d.offset)
	if err != nil {
		return err
	}
	if body.Size != d.size {
		body.Close()
		return d.t.fail(KindProtocol, "the archive in the sandbox changed its size")
	}
	d.body = body
	return nil
}

func (d *resumingReader) close() {
	if d.body != nil {
		d.body.Close()
		d.body = nil
	}
}
