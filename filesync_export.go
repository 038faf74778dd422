package leasehold

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
)

// Exporter copies files of a lease's sandbox to the host. It trusts nothing that comes from there. It is safe for
// concurrent use.
type Exporter struct{ l *Lease }

// Exporter returns the lease's exporter. It makes no request.
func (l *Lease) Exporter() *Exporter { return &Exporter{l} }

// LinkPolicy says what an export, or [Importer.Tar], does with links whose target lies, or may lie, outside the exported
// directory: absolute ones, ones with too many "..", and ones with ".." after another component.
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
	// Exclude leaves out entries of a directory, in the language of [ImportOptions.Exclude]. GNU tar does not read them at all,
	// unless a pattern has a "?", a "[" or a "**", or a slash at its end: then the names of one file become files of their own.
	// Other tars read everything, and a file whose first name is left out and another one is not is an [ErrUnsafe], or is
	// listed with LinksOmit.
	Exclude []string
	// UnsafeLinks says what to do with links out of the directory. The zero value is LinksReject.
	UnsafeLinks LinkPolicy
	// AllowChanges takes files that change while the sandbox's tar reads them as they come, instead of failing with
	// [ErrConflict]: for workspaces in which something is running. Only GNU tar notices such changes.
	AllowChanges bool
	// MaxEntries bounds the members of the archive, and the directories that no member names. 0 is 1,000,000.
	MaxEntries int64
	// MaxBytes bounds the content of all files together. 0 is 64 GiB.
	MaxBytes int64
	// MaxName bounds the path of each entry in bytes. 0 is 32,768.
	MaxName int
	// MaxDepth bounds the depth of the tree. 0 is 5,000. However deep it is, few of its directories are open at a time.
	MaxDepth int
	// MaxRatio bounds how many bytes of content each byte of the archive may stand for. Only sparse files have more than
	// one; their holes take no room on the host, either. 0 is no bound.
	MaxRatio int64
	// Reserve is the free space in bytes that the host's disk keeps. 0 is 1 GiB, negative is none.
	Reserve int64
	// Mode is the mode of a single file, or of the local directory itself. 0 is, for a file, the one that it has in the sandbox;
	// for a directory, the mode that the local directory had before, else 0755.
	Mode fs.FileMode
	// StallTimeout ends an export that makes no progress for so long with [ErrTimeout]: nothing arrives, and the sandbox's
	// tar writes nothing. However slow, progress is progress. 0 is [DefaultStallTimeout], negative is none.
	StallTimeout time.Duration
	// Progress is called from time to time, at most every 50 ms and from one goroutine at a time, and once more with
	// Done at the end of a transfer that succeeded. When an export has to begin anew, the counts do, too. It must return
	// promptly: it holds up the export, whose goroutine calls it, past the end of the context, too. Nil: no reports.
	Progress func(Progress)
}

// Dir makes a directory of the host a copy of a directory of the sandbox.
//
// The local directory is replaced as a whole: it is prepared beside its place, and takes it by rename once it is proved to
// be complete, in one step on Linux. What it held before is removed then; after any failure it is as it was. Missing parents
// are made. A local path that is a link, or anything but a directory, is an [ErrConflict]. What a killed process left beside
// it is removed by the next export to a path with the same parent, but for earlier content that had lost its name: where the
// system cannot exchange two names, that may be found as ".leasehold-earlier-" and more. A relative remote path is meant in
// the workspace, and "" is the workspace. The lease's own directory in it, ".leasehold", is never exported, and neither are
// other transfers' scratch directories. Where only links in the remote path lead there, a tar other than GNU's cannot leave it
// out: then, and if what is to be exported lies in that directory, the export fails with [ErrRefused].
//
// The sandbox is not trusted: each member of its archive, and each link's target, is checked before it is applied, and
// nothing is ever written outside the local directory. Permission bits, modification times to the second, symbolic
// and hard links inside the tree, empty files and directories, holes of sparse files (with GNU tar), and names of any
// bytes are kept; owners, set-id and sticky bits are not. A Windows host keeps of the permission bits only that against
// writing, and a name that it cannot hold is an [ErrUnsafe]. FIFOs, devices and sockets are left out and listed.
//
// The sandbox's tar writes an archive into the lease's own directory, in pieces of 32 MiB of which at most four are there
// at a time; the host downloads and extracts each while the next ones are made, in constant memory, going on where it
// stopped when the connection breaks. That takes three requests for a tree that fits in one piece, and up to two more for
// each further piece. The end of the archive, its length, and the length and checksum of each piece are proved. The
// scratch files are removed, after a failure too. A context that ends makes Dir return at once; the removal then goes on
// in the background, and giving back the lease waits for it. A host that has not been heard of for
// three minutes is taken to be gone, and its archive is given up; one that is merely slow says so.
//
// Where the sandbox has no room even for that, because its disk is full, a quota is used up or files are limited in
// their size, the archive comes through a terminal instead, without a file in the sandbox: see [RouteTerminal].
func (x *Exporter) Dir(ctx context.Context, remoteDir, localDir string, options ExportOptions) (TransferResult, error) {
	return x.run(ctx, "export directory", options, func(t *transfer) exportJob {
		t.localPath("localDir", localDir)
		return t.exportDir(remoteDir, options, func(ctx context.Context, r io.Reader, o archive.ExtractOptions) (archive.Summary, error) {
			return archive.Extract(ctx, r, localDir, o)
		})
	})
}

// Tar writes a directory of the sandbox to w as a tar archive, in GNU format. It is made anew from the sandbox's own,
// member by member, each checked as by [Exporter.Dir], with the same content. It is whole only if Tar returned no error:
// w may have received a part before, though never the archive's end. Progress and the result count as with Dir; Reserve and
// Mode mean nothing. Writes happen one at a time; one that does not return holds up Tar.
func (x *Exporter) Tar(ctx context.Context, remoteDir string, w io.Writer, options ExportOptions) (TransferResult, error) {
	out := &countingWriter{w: w}
	return x.run(ctx, "export tar", options, func(t *transfer) exportJob {
		if w == nil {
			t.bad.add("w", "is nil")
		}
		job := t.exportDir(remoteDir, options, func(ctx context.Context, r io.Reader, o archive.ExtractOptions) (archive.Summary, error) {
			return archive.Copy(ctx, r, out, o)
		})
		job.started = func() bool { return out.n > 0 }
		return job
	})
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// File copies one regular file of the sandbox to a path of the host. It is read in the sandbox by the sandbox's user; a link
// is refused with [ErrUnsafe], and so is a path in the workspace that leads out of it through a link. That holds for the
// directory that is read in, whoever swaps directories and links meanwhile; that a link which takes the file's own place is
// not followed, needs GNU tar. A path outside the workspace is taken to where it leads. It appears on the host by rename,
// with its mode and modification time, and replaces an earlier regular file; anything else at that path is an [ErrConflict].
// All else is as with [Exporter.Dir].
func (x *Exporter) File(ctx context.Context, remotePath, localPath string, options ExportOptions) (TransferResult, error) {
	return x.files(ctx, "export file", []FileMapping{{Remote: remotePath, Local: localPath}}, options)
}

// MaxExportFiles is how many files [Exporter.Files] takes.
const MaxExportFiles = 500

// Files copies regular files of the sandbox, each as by [Exporter.File], in as many requests as one takes. All of them
// are proved to be complete before the first is published; publishing is a series of renames, and if one of them is
// refused, the earlier files stay, and the error says so. No two may have the same local path: where the host's file system
// only folds their names into one, in case or Unicode form, the later one is refused so, with [ErrConflict]. There may be
// [MaxExportFiles] of them: for more, export their directory. None is no request.
func (x *Exporter) Files(ctx context.Context, files []FileMapping, options ExportOptions) (TransferResult, error) {
	return x.files(ctx, "export files", files, options)
}

func (x *Exporter) files(ctx context.Context, op string, files []FileMapping, options ExportOptions) (TransferResult, error) {
	return x.run(ctx, op, options, func(t *transfer) exportJob {
		var job exportJob
		if len(options.Exclude) > 0 {
			t.bad.add("ExportOptions.Exclude", "is for directories: single files have nothing to exclude")
		}
		if len(files) > MaxExportFiles {
			t.bad.add("files", "are more than %d", MaxExportFiles)
		}
		type source struct {
			path   string
			target archive.Target
		}
		sources := make([]source, len(files))
		local := make(map[string]bool, len(files))
		for i, f := range files {
			remote := t.remotePath("FileMapping.Remote", f.Remote)
			if remote == "/" || f.Remote == "" {
				t.bad.add("FileMapping.Remote", "does not name a file")
			}
			t.localPath("FileMapping.Local", f.Local)
			abs, err := filepath.Abs(f.Local)
			switch {
			case err != nil:
				t.bad.add("FileMapping.Local", "is relative, and the working directory is not known")
			case local[abs]:
				t.bad.add("FileMapping.Local", "%s is the destination of two files", archive.QuoteName(f.Local))
			}
			local[abs] = true
			sources[i] = source{remote, archive.Target{Name: "./" + path.Base(remote), Path: f.Local, Mode: cmp.Or(f.Mode, options.Mode)}}
		}
		// Those of one directory are archived together.
		slices.SortStableFunc(sources, func(a, b source) int { return cmp.Compare(path.Dir(a.path), path.Dir(b.path)) })
		targets := make([]archive.Target, len(files))
		job.request.Root = t.l.ref.Workspace
		job.request.Files = make([]string, len(files))
		for i, s := range sources {
			job.request.Files[i], targets[i] = s.path, s.target
		}
		job.extract = func(ctx context.Context, r io.Reader, o archive.ExtractOptions) (archive.Summary, error) {
			return archive.ExtractFiles(ctx, r, targets, o)
		}
		return job
	})
}

// exportJob is one export: what the sandbox has to archive, and what becomes of it.
type exportJob struct {
	request    archive.RemoteExport
	extraction archive.ExtractOptions
	extract    func(context.Context, io.Reader, archive.ExtractOptions) (archive.Summary, error)
	// started reports whether something was delivered that a second attempt cannot take back; nil: never.
	started func() bool
}

// exportDir makes the job for a directory.
func (t *transfer) exportDir(remote string, options ExportOptions,
	extract func(context.Context, io.Reader, archive.ExtractOptions) (archive.Summary, error),
) exportJob {
	source := t.remotePath("remoteDir", remote)
	patterns := append([]string{}, options.Exclude...)
	patterns = append(patterns, archive.StagePrefix+"*")
	if own, ok := below(t.own(), source); ok {
		patterns = append(patterns, archive.Literal(own))
	}
	exclude := t.matcher("ExportOptions.Exclude", patterns)
	job := exportJob{request: archive.RemoteExport{Dir: source, Exclude: exclude}, extract: extract}
	job.extraction.Exclude = exclude
	return job
}

// completeExport checks the options, and gives them to the job.
func (t *transfer) completeExport(job *exportJob, options ExportOptions) {
	for _, limit := range []struct {
		field string
		value int64
	}{
		{"MaxEntries", options.MaxEntries}, {"MaxBytes", options.MaxBytes}, {"MaxName", int64(options.MaxName)},
		{"MaxDepth", int64(options.MaxDepth)}, {"MaxRatio", options.MaxRatio},
	} {
		if limit.value < 0 {
			t.bad.add("ExportOptions."+limit.field, "is negative")
		}
	}
	if options.UnsafeLinks < LinksReject || options.UnsafeLinks > LinksKeepAbsolute {
		t.bad.add("ExportOptions.UnsafeLinks", "is not a LinkPolicy")
	}
	job.request.Scratch = path.Join(t.own(), archive.StageName())
	job.request.Live = options.AllowChanges
	job.extraction = archive.ExtractOptions{
		Exclude: job.extraction.Exclude, Links: archive.LinkPolicy(options.UnsafeLinks), Mode: options.Mode,
		MaxEntries: options.MaxEntries, MaxBytes: options.MaxBytes, MaxName: options.MaxName, MaxDepth: options.MaxDepth,
		MaxRatio: options.MaxRatio, Reserve: options.Reserve,
	}
}

func (x *Exporter) run(ctx context.Context, op string, options ExportOptions, prepare func(*transfer) exportJob) (_ TransferResult, err error) {
	start := time.Now()
	ctx, span := x.l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	ctx, end := x.l.p.untilClosed(ctx)
	defer end()
	t, err := x.l.transfer(op)
	if err != nil {
		return TransferResult{}, err
	}
	job := prepare(t)
	t.completeExport(&job, options)
	if err := t.invalid(); err != nil {
		t.done()
		return TransferResult{}, err
	}
	if job.request.Files != nil && len(job.request.Files) == 0 {
		t.done()
		return TransferResult{Duration: time.Since(start)}, nil
	}
	if err := t.connect(ctx); err != nil {
		t.done()
		return TransferResult{}, err
	}
	ctx, watch := t.watch(ctx, options.StallTimeout, path.Base(job.request.Scratch), []string{job.request.Scratch})
	defer watch.end()
	m := &meter{report: options.Progress}
	route := RouteFiles
	sum, err := t.exportPieces(ctx, job, m, watch)
	t.removeScratch(ctx, job.request.Scratch)
	if t.full && (job.started == nil || !job.started()) {
		route = RouteTerminal
		sum, err = x.throughTerminal(ctx, op, job, m, watch)
	}
	if err != nil {
		if context.Cause(ctx) == errNoProgress {
			err = t.canceled(ctx)
		}
		return TransferResult{}, err
	}
	m.done(Progress{Bytes: sum.Archive, TotalBytes: sum.Archive, Entries: sum.Entries, TotalEntries: sum.Entries})
	result := t.result(sum, start)
	result.Route = route
	return result, nil
}

// exportPieces has the archive made, and extracts it as it is downloaded.
func (t *transfer) exportPieces(ctx context.Context, job exportJob, m *meter, watch *watch) (archive.Summary, error) {
	r, err := t.openPieces(ctx, job.request, watch.moved)
	if err != nil {
		return archive.Summary{}, err
	}
	defer r.close()
	o := job.extraction
	o.Progress = func(entries, _ int64) {
		m.state.TotalBytes = r.total()
		m.update(entries, r.received)
	}
	sum, err := job.extract(ctx, r, o)
	if err != nil {
		return sum, t.archived(ctx, err)
	}
	t.listSockets(&sum, *r.end.Load(), o.Exclude)
	return sum, nil
}

// listSockets lists what the sandbox's tar left out.
func (t *transfer) listSockets(sum *archive.Summary, reply archive.Reply, exclude *archive.Matcher) {
	for _, name := range reply.Sockets {
		if !exclude.MatchBelow(name, false) {
			sum.Skip(name, archive.ReasonSocket)
		}
	}
	sum.SkippedCount += reply.SocketCount - len(reply.Sockets)
}
