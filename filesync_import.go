package leasehold

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
)

// Importer copies files of the host into a lease's sandbox. It is safe for concurrent use.
type Importer struct{ l *Lease }

// Importer returns the lease's importer. It makes no request.
func (l *Lease) Importer() *Importer { return &Importer{l} }

// ImportOptions are the options of an import. The zero value imports everything as it is.
type ImportOptions struct {
	// Exclude leaves out entries of a directory. A pattern without a slash, such as "*.o" or "node_modules", matches an
	// entry of that name at any depth; one with a slash at its start or inside, such as "/build" or "docs/*.pdf", is
	// anchored at the directory. Each component is a glob as in [path.Match]; "**" stands for any number of components. A
	// slash at the end restricts the pattern to directories. What lies in a matched directory is left out with it. There
	// is no negation.
	Exclude []string
	// FollowLinks sends what a symbolic link leads to in its place, also out of the directory: only for trees whose links
	// are trusted, since a link can name any file of the host. A link that leads nowhere, or to a directory that it lies
	// in, is an [ErrIO]. Otherwise links are kept as they are, and never followed.
	FollowLinks bool
	// UnsafeLinks says what [Importer.Tar] does with links out of the stream's tree. The zero value is LinksReject.
	UnsafeLinks LinkPolicy
	// Access says what the destination is for.
	Access Access
	// Writable is what AccessReadWrite records in place of the destination, such as the directory that a stream's files are
	// moved to by a command of After. A relative path is meant in the workspace. Empty: the destination.
	Writable string
	// Delta leaves out what the sandbox has already. [Importer.Dir] and [Importer.FS] know it.
	Delta Delta
	// Delete removes, after everything else is in its place, what the remote directory holds and the source does not.
	// What Exclude matches stays, and so does the lease's own directory, by whatever name it is reached. Delete needs a Delta;
	// where the sandbox cannot list the directory for want of tools or permission, the import fails with [ErrRefused] and
	// changes nothing.
	Delete bool
	// Mode is the mode of single files. 0 is the one that each has on the host.
	Mode fs.FileMode
	// After are commands to run one after another once the files are in their places, each with its own Timeout, as
	// [Executor.Run] runs them; they run, too, if there was nothing to send. The first one that fails ends the import with
	// an error that holds an [*AfterError]: [ErrRefused] for an exit code other than 0, else the error of Run. The files stay
	// where they are: what was published may already be in use.
	After []Command
	// StallTimeout is how long the transfer may make no progress before it ends with [ErrTimeout]: not a byte taken by
	// the connection and, for what goes on in the sandbox, no change there, which is asked for only when it is silent. A
	// slow transfer is not ended. 0 is [DefaultStallTimeout], negative is never.
	StallTimeout time.Duration
	// Progress is called from time to time, at most every 50 ms and from one goroutine at a time, and once more with
	// Done at the end of a transfer that succeeded. When a transfer has to begin anew, the counts do, too. It must return
	// promptly: it holds up the transfer. A call that waits when the context ends may return after the import, and is the last;
	// the one with Done is waited for. Nil: no reports.
	Progress func(Progress)
}

// Access says what an import's destination is for.
type Access string

// The values of [Access].
const (
	// AccessDefault only imports.
	AccessDefault Access = ""
	// AccessReadWrite also records the directory among those that [Lease.WritableDirs] names; of files it is the one that
	// each lies in.
	AccessReadWrite Access = "rw"
	// AccessReadOnly makes a bundle of a directory: it takes the write permission from everything, replaces what was at
	// the destination as a whole, in two renames, and records a digest of the source in the lease's own directory. When
	// the same content is imported to the same place again, as after a resume, and nothing in it was changed meanwhile,
	// nothing is sent: one request finds that out. Times do not count as content. The destination cannot be the workspace, nor a
	// directory that holds it.
	AccessReadOnly Access = "ro"
)

// Delta says how an import finds out what the sandbox has already. It takes two requests more, to list the remote
// directory, and room for the list there, and holds about 50 bytes for each entry of the source, of which there may be
// 500,000. A sandbox without find, stat or sha256sum, as GNU and busybox have them, is sent everything.
// Files with several names are always sent.
type Delta string

// The values of [Delta].
const (
	// DeltaNone sends everything.
	DeltaNone Delta = ""
	// DeltaTimes does not send files of the same size, mode and modification time in seconds, and links of the same length
	// and time.
	DeltaTimes Delta = "times"
	// DeltaDigests does not send files of the same size, mode and SHA-256; their times stay what they are in the sandbox.
	// It reads all files there, and links are always sent.
	DeltaDigests Delta = "digests"
)

// FileMapping is one file of [Importer.Files] or [Exporter.Files].
type FileMapping struct {
	Local  string      // regular file of the host; an import follows a link
	Remote string      // path in the sandbox; a relative one is meant in the workspace
	Mode   fs.FileMode // where the file goes; 0 is the Mode of the options
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
// Permission bits, modification times to the second, symbolic links (as they are, unless they are followed), hard links,
// empty files and directories, and names of any bytes are kept; a Windows host has no permission bits but that against writing,
// and its hard links are sent as files. Owners become the sandbox's user; set-id and sticky bits are
// dropped. Holes of 1 MiB and more in files of 8 MiB and more are kept, from a Linux host. Sockets, FIFOs and devices are
// left out and listed. The lease's own directory in the workspace, ".leasehold", is never touched: an entry of that name is
// left out and listed. Where only links in the remote path lead there, the sandbox finds that out with the upload, and an import
// that would write to that directory, or replace what holds it, fails with [ErrRefused], and changes nothing.
//
// A tree may have 5,000 levels, and paths of 32,768 bytes, beyond what Linux lets a path be: more is an [ErrLimit]. What
// lies deeper than 256 levels, or has a path in the scratch directory of more than about 3,500 bytes, is put in its place,
// but not merged: if the sandbox has a directory there already, the import fails with [ErrConflict], and changes nothing,
// because a shell cannot name what is in it.
//
// Two requests are made, whatever the size: one streams a tar archive, and each file of 8 MiB or more by itself, to a
// scratch directory inside the remote directory, without a temporary file on the host and in memory that grows with nothing
// but the directories, by about 110 bytes and its own name for each, and with the files that have several names; one verifies
// their lengths, extracts the archive beside its destination and publishes the tree. The sandbox needs room for the tree and
// once more for what the archive holds, and sh and tar. The scratch directory is removed on every path; one that a killed
// host left is removed by an import into the same directory a day later, and an export's after an hour. When a connection
// broke or a reply was lost, the import begins anew, once. An import that fails may leave the remote directory behind,
// empty, if it did not exist.
//
// A file that changes while it is read ends the import with [ErrIO], and nothing is published. When the context ends, Dir
// returns at once. Publishing that has begun then goes on to its end, and what has not begun does not: Dispatched is
// [DispatchedUnknown]. The scratch directory is removed in the background, which giving back the lease waits for. A read of a
// file that blocks when the context ended, as on a network's file system, may return after Dir, and is the last.
func (i *Importer) Dir(ctx context.Context, localDir, remoteDir string, options ImportOptions) (TransferResult, error) {
	return i.tree(ctx, "import directory", remoteDir, options,
		func(t *transfer) { t.localPath("localDir", localDir) },
		func() (archive.Source, error) { return archive.Dir(localDir) })
}

// FS copies the content of a file system, such as an [embed.FS], [os.DirFS] or [testing/fstest.MapFS], into a directory
// of the sandbox. Modes are those that the file system states: an embed.FS says that everything is read-only. Links are
// known if it implements [fs.ReadLinkFS]. All else is as with [Importer.Dir]: that a read may return after FS, too, so that what
// fsys needs must not be taken away before.
func (i *Importer) FS(ctx context.Context, fsys fs.FS, remoteDir string, options ImportOptions) (TransferResult, error) {
	return i.tree(ctx, "import file system", remoteDir, options,
		func(t *transfer) {
			if fsys == nil {
				t.bad.add("fsys", "is nil")
			}
		},
		func() (archive.Source, error) { return archive.FS(fsys), nil })
}

// tree imports a directory, whose name check looks at.
func (i *Importer) tree(ctx context.Context, op, remoteDir string, options ImportOptions,
	check func(*transfer), open func() (archive.Source, error),
) (TransferResult, error) {
	return i.run(ctx, op, options, func(t *transfer) importPlan {
		check(t)
		exclude := t.matcher("ImportOptions.Exclude", options.Exclude)
		dest := t.remotePath("remoteDir", remoteDir)
		plan := importPlan{delta: options.Delta, remove: options.Delete}
		write := archive.WriteOptions{Exclude: exclude, RepeatDirs: true, Follow: options.FollowLinks}
		own, ownBelow := below(t.own(), dest)
		t.only("is for streams", "UnsafeLinks", options.UnsafeLinks != LinksReject)
		t.only("is for single files", "Mode", options.Mode != 0)
		if options.Access == AccessReadOnly {
			t.only("does not go with AccessReadOnly: a bundle is replaced as a whole", "Delta", options.Delta != DeltaNone)
			t.only("makes a read-only bundle, which the workspace cannot be", "Access", ownBelow)
			plan.bundle = path.Base(dest)
			write.ReadOnly, write.Prefix = true, plan.bundle+"/"
			dest, own = path.Dir(dest), ""
		}
		plan.own, write.Reserved = own, archive.Reserved(own)
		write.MaxName, write.Segment = maxEntryPath(dest), maxMergeDepth
		write.MaxPath, write.MaxDepth = archive.MaxPath, archive.MaxDepth
		plan.writable = []string{dest}
		plan.stages = []importStage{{dest, func(ctx context.Context) (*archive.Load, error) {
			src, err := open()
			if err != nil {
				return nil, err
			}
			return archive.LoadTree(ctx, src, write)
		}}}
		return plan
	})
}

// File copies one regular file of the host to a path in the sandbox, whose parents are made if needed. A relative remote
// path is meant in the workspace. A local path that is a link is followed. The file appears by rename, with its mode and
// modification time; an earlier file or link of that name is replaced, a directory is an [ErrConflict]. A path of more than
// about 4,040 bytes is an [ErrLimit]: the scratch directory beside the file makes it longer than Linux lets one be. All else is
// as with [Importer.Dir].
func (i *Importer) File(ctx context.Context, localPath, remotePath string, options ImportOptions) (TransferResult, error) {
	return i.files(ctx, "import file", []FileMapping{{Local: localPath, Remote: remotePath}}, options)
}

// Files copies regular files of the host, each to a path of its own in the sandbox, in one upload. They may go to up to
// 1,000 directories, on any file systems. None is put in its place before all have arrived whole and none of them is in
// conflict with what is there. All else is as with [Importer.File].
func (i *Importer) Files(ctx context.Context, files []FileMapping, options ImportOptions) (TransferResult, error) {
	return i.files(ctx, "import files", files, options)
}

// maxFileDirs bounds the directories of one import of files. Each takes a dozen small programs in the sandbox, and a place
// in the list of the script's arguments.
const maxFileDirs = 1000

func (i *Importer) files(ctx context.Context, op string, files []FileMapping, options ImportOptions) (TransferResult, error) {
	files = slices.Clone(files)
	return i.run(ctx, op, options, func(t *transfer) importPlan {
		t.only("is for directories: single files have nothing to exclude", "Exclude", len(options.Exclude) > 0)
		t.only("is for directories: the links of single files are always followed", "FollowLinks", options.FollowLinks)
		t.only("is for streams", "UnsafeLinks", options.UnsafeLinks != LinksReject)
		t.only("is for directories", "Delta", options.Delta != DeltaNone)
		t.only("makes a read-only bundle, which only a directory can be", "Access", options.Access == AccessReadOnly)
		groups := map[string][]archive.HostFile{}
		names := map[string]bool{}
		for _, f := range files {
			t.localPath("FileMapping.Local", f.Local)
			dest := t.remotePath("FileMapping.Remote", f.Remote)
			switch {
			case dest == "/" || f.Remote == "" || strings.HasSuffix(f.Remote, "/"):
				t.bad.add("FileMapping.Remote", "does not name a file")
			case names[dest]:
				t.bad.add("FileMapping.Remote", "%s is the destination of two files", archive.QuoteName(dest))
			}
			names[dest] = true
			dir := path.Dir(dest)
			groups[dir] = append(groups[dir], archive.HostFile{Path: f.Local, Name: path.Base(dest), Mode: cmp.Or(f.Mode, options.Mode)})
		}
		var plan importPlan
		for _, dir := range slices.Sorted(maps.Keys(groups)) {
			for at := dir; at != "/"; at = path.Dir(at) {
				if names[at] {
					t.bad.add("FileMapping.Remote", "%s is the destination of a file, and the directory of another one's", archive.QuoteName(at))
				}
			}
			write := archive.WriteOptions{MaxName: maxEntryPath(dir)}
			plan.stages = append(plan.stages, importStage{dir, func(ctx context.Context) (*archive.Load, error) {
				return archive.LoadFiles(ctx, groups[dir], write)
			}})
			plan.writable = append(plan.writable, dir)
		}
		if len(plan.stages) > maxFileDirs {
			t.bad.add("files", "go to more than %d directories", maxFileDirs)
		}
		return plan
	})
}

// only refuses an option where it is set.
func (t *transfer) only(problem, option string, set bool) {
	if set {
		t.bad.add("ImportOptions."+option, "%s", problem)
	}
}

// Tar copies the entries of an uncompressed tar stream into a directory of the sandbox. Nobody need vouch for the
// stream: each entry is checked on its way, written anew with its permission bits and time and nothing else, and nothing
// is put in its place before the stream has proved to be whole, by its two blocks of zeros.
//
// A name that is absolute or holds "..", a path through a link or a file, an entry that would replace the remote directory
// itself or a directory of the stream, and a hard link to anything but an earlier file of the stream are an [ErrUnsafe].
// Links out of the tree are, too, unless [ImportOptions.UnsafeLinks] says otherwise. A damaged or cut stream, or one whose
// Read fails, is an [ErrIO]; more than a million entries, with the directories that none of them names, 64 GiB of content or
// 64 MiB of names of directories are an [ErrLimit]. Devices and FIFOs are left out and listed. The stream's own entry for its
// root is ignored.
//
// The stream is read once, so that the import is not begun anew when a connection broke. If a hundred Reads in a row return
// nothing, the import fails with [ErrIO], as when one fails. A Read that blocks when ctx ended may return after Tar, and is
// the last. What is held in memory grows by about 40 bytes with each entry, and by about 110 and its own name with each
// directory; the totals of Progress are not known. All else is as with [Importer.Dir].
func (i *Importer) Tar(ctx context.Context, stream io.Reader, remoteDir string, options ImportOptions) (TransferResult, error) {
	return i.run(ctx, "import stream", options, func(t *transfer) importPlan {
		if stream == nil {
			t.bad.add("stream", "is nil")
		}
		exclude := t.matcher("ImportOptions.Exclude", options.Exclude)
		dest := t.remotePath("remoteDir", remoteDir)
		t.only("is for directories: the links of a stream lead nowhere on the host", "FollowLinks", options.FollowLinks)
		t.only("is for directories", "Delta", options.Delta != DeltaNone)
		t.only("makes a read-only bundle, which only a directory can be", "Access", options.Access == AccessReadOnly)
		t.only("is for single files", "Mode", options.Mode != 0)
		own, _ := below(t.own(), dest)
		write := archive.WriteOptions{
			Exclude: exclude, RepeatDirs: true, Links: archive.LinkPolicy(options.UnsafeLinks),
			Reserved: archive.Reserved(own), MaxName: maxEntryPath(dest), Segment: maxMergeDepth,
			MaxPath: archive.MaxPath, MaxDepth: archive.MaxDepth,
		}
		source := &watchedReader{Reader: stream}
		return importPlan{stream: source, writable: []string{dest}, stages: []importStage{{dest, func(context.Context) (*archive.Load, error) {
			return archive.LoadTar(source, archive.ExtractOptions{}, write), nil
		}}}}
	})
}

// maxMergeDepth bounds how deep directories are merged. The shell in the sandbox that does it calls itself at each level;
// dash and busybox run out of stack between 500 and 1,000. What lies deeper is sent in segments, which are joined by
// renames.
const maxMergeDepth = 256

// maxEntryPath is how long an entry's path in the archive may be, so that no path that the sandbox's shell and tar meet is
// longer than Linux allows: a shell takes an entry that it cannot name for one that is not there.
func maxEntryPath(dest string) int {
	const longest = maxPath - 1 - len("/") - len(archive.StagePrefix) - 26 - len("-999/new/")
	return max(1, longest-len(dest))
}

// completeImport refuses options that no import knows, and gives the plan what every import does with the others.
func (t *transfer) completeImport(plan *importPlan, options ImportOptions) {
	switch options.Access {
	case AccessDefault, AccessReadWrite, AccessReadOnly:
	default:
		t.bad.add("ImportOptions.Access", "is not one of its values")
	}
	switch options.Delta {
	case DeltaNone, DeltaTimes, DeltaDigests:
	default:
		t.bad.add("ImportOptions.Delta", "is not one of its values")
	}
	switch options.UnsafeLinks {
	case LinksReject, LinksOmit, LinksKeepAbsolute:
	default:
		t.bad.add("ImportOptions.UnsafeLinks", "is not a LinkPolicy")
	}
	if options.Writable != "" {
		if options.Access != AccessReadWrite {
			t.bad.add("ImportOptions.Writable", "needs AccessReadWrite")
		}
		dir := t.remotePath("ImportOptions.Writable", options.Writable)
		if !validWorkspace(dir) { // it could not be read back
			t.bad.add("ImportOptions.Writable", "is over %d bytes, or not text", maxPath-1)
		}
		plan.writable = []string{dir}
	}
	if options.Delete && options.Delta == DeltaNone {
		t.bad.add("ImportOptions.Delete", "needs a Delta")
	}
	for i, cmd := range options.After {
		cmd.check(&t.bad, fmt.Sprintf("ImportOptions.After[%d]", i), t.l)
	}
}
