package archive

import (
	_ "embed"
	"path"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/script"
)

// The other end of a transfer is a POSIX shell with tar, in the sandbox. These scripts run there, each in one request,
// with sh, tar (GNU, busybox or bsdtar), find, mv, rm, dd, grep, touch and wc; an export with mkfifo and, if it is there,
// cksum; a delta and a bundle also want stat, as GNU and busybox have it, and sha256sum. Each of them bears being delivered
// twice.
var (
	//go:embed remote_own.sh
	ownScript string
	//go:embed remote_sweep.sh
	sweepScript string
	//go:embed remote_import.sh
	importScript string
	//go:embed remote_cleanup.sh
	cleanupScript string
	//go:embed remote_look.sh
	lookScript string
	//go:embed remote_bundle.sh
	bundleScript string
	//go:embed remote_list.sh
	listScript string
	//go:embed remote_probe.sh
	probeScript string
)

// Names in the scratch directory of an import: of the archive, of the directory with large files, of the list in it
// that says where they belong, and of the list of what is to be removed.
const (
	RemoteArchive = "tree.tar"
	remoteLarge   = "large"
	remotePlaces  = "places"
	remoteGone    = "gone"
)

// Word is what a script says of its end. The set is closed.
type Word string

// The words.
const (
	WordOK       Word = "ok"
	WordBusy     Word = "busy"     // an export goes on, and has nothing new yet
	WordGone     Word = "gone"     // the scratch directory is not there: an earlier delivery ended, it is not known how
	WordMissing  Word = "missing"  // the uploaded archive is not there
	WordShort    Word = "short"    // it does not have the promised length
	WordNoSpace  Word = "nospace"  // disk full, quota, or file-size limit
	WordScratch  Word = "scratch"  // the scratch directory cannot be written, for another reason than space
	WordNoTar    Word = "notar"    // no tar on the PATH
	WordExtract  Word = "extract"  // tar refused the archive, or could not write
	WordConflict Word = "conflict" // a directory and something else have the same name
	WordDeep     Word = "deep"     // a directory that is too deep to be merged is there already, [Reply.Name]
	WordReserved Word = "reserved" // the lease's own directory is what it leads to, or would be replaced, [Reply.Name] of an import
	WordCanceled Word = "canceled" // the cleanup was faster
	WordPublish  Word = "publish"  // a rename failed; earlier renames stay
	WordNotDir   Word = "notdir"
	WordNotFile  Word = "notfile"
	WordSymlink  Word = "symlink"
	WordOutside  Word = "outside" // links lead out of the workspace
	WordTooLong  Word = "toolong" // tar cannot name a path
	WordNoSource Word = "nosource"
	WordDenied   Word = "denied"  // a source may not be read
	WordChanged  Word = "changed" // a source changed while it was archived
	WordArchive  Word = "archive" // tar failed otherwise
	WordNoList   Word = "nolist"  // a directory cannot be listed, or the sandbox has no tools for it
	WordLeft     Word = "left"    // a cleanup that did not succeed
)

// RemoteImport is the script that takes uploaded loads in.
type RemoteImport struct {
	Scratch string // name of the scratch directories, from [StageName]
	Own     string // directory of the lease's own, absolute
	Stages  []RemoteStage
	Record  []string // lines to be in the lease's list of writable directories
	// Bundle is the one directory that the one stage has, if it is to replace what has its name rather than to be merged
	// with it; "" if not. Digest and Marker record what it is, see [RemoteBundle].
	Bundle, Digest, Marker string
}

// RemoteStage is a directory that files are imported into.
type RemoteStage struct {
	Dir    string // absolute
	Bytes  int64  // length of the archive
	Places int64  // length of the list of large files; 0 when there are none
	Gone   int64  // length of the list of what is to be removed; 0 when there is nothing
	Spared string // where the lease's own directory lies in Dir, as that list leaves it out; "" if it does not
}

// Stage returns the scratch directory of a stage. Each has a name of its own, since two paths may be one directory.
func Stage(dir, scratch string, i int) string {
	if i > 0 {
		scratch += "-" + strconv.Itoa(i)
	}
	return path.Join(dir, scratch)
}

// Writable is the name of the list of writable directories in the lease's own directory.
const Writable = "writable"

// Script returns the text for a POSIX shell's standard input.
//
// It extracts into the scratch directories, which are on the destinations' own file systems, and then publishes by
// rename. Directories that exist are kept, with their mode, and filled; everything else of the archive replaces what has
// its name. A directory that meets something else, or the reverse, is a conflict: it is looked for before the first
// rename, and so is whatever would touch the lease's own directory, with all links resolved.
func (r RemoteImport) Script() string {
	args := append([]string{r.Scratch, r.Own, r.Bundle, r.Digest, r.Marker, strconv.Itoa(len(r.Record))}, r.Record...)
	for _, s := range r.Stages {
		args = append(args, s.Dir, strconv.FormatInt(s.Bytes, 10), strconv.FormatInt(s.Places, 10), strconv.FormatInt(s.Gone, 10), s.Spared)
	}
	return command(lookScript+sweepScript+ownScript+importScript, args...)
}

// RemoteBundle is the script that tells whether a directory still is the bundle that an import made of it: it says
// [WordOK] if its marker has the digest and nothing in the directory was changed since, in content, name, mode or time,
// which the inodes' change times tell. Otherwise it says [WordChanged].
type RemoteBundle struct {
	Mark                string // unguessable
	Dir, Digest, Marker string
}

// Script returns the text for a POSIX shell's standard input.
func (r RemoteBundle) Script() string {
	return command(lookScript+bundleScript, r.Mark, r.Dir, r.Digest, r.Marker)
}

// RemoteList is the script that lists what a directory holds, for [Load.Compare]. It writes the list into a file
// [RemoteListed] of the scratch directory, and says [WordOK] with its length, [WordNoSource] if there is no directory,
// [WordReserved] if it is the lease's own or lies in that, or [WordNoList] if it cannot be listed.
type RemoteList struct {
	Dir     string
	Scratch string // name of the scratch directory, from [StageName]
	Own     string // directory of the lease's own, absolute
	Digests bool   // with the files' SHA-256
}

// RemoteListed is the name of the list.
const RemoteListed = "list"

// Script returns the text for a POSIX shell's standard input.
func (r RemoteList) Script() string {
	how := "times"
	if r.Digests {
		how = "digests"
	}
	return command(ownScript+listScript, r.Dir, r.Scratch, how, r.Own)
}

// RemoteProbe returns a script that measures what the scratch directories hold, as [Reply.Bytes]: while that changes, the
// sandbox is at work.
func RemoteProbe(mark string, scratch []string) string {
	return command(probeScript, append([]string{mark}, scratch...)...)
}

// RemoteCleanup returns the script that removes the scratch directories of an operation, and ends what works in them. With
// again above zero it looks once more after so many seconds, for a request that had been sent and not yet been handled.
func RemoteCleanup(scratch string, again int, more ...string) string {
	return command(cleanupScript, append([]string{strconv.Itoa(again), scratch}, more...)...)
}

// command runs a script in a shell of its own, whatever shell reads the command, and keeps it from reading the rest.
func command(text string, args ...string) string {
	var lean strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimLeft(line, " "); line != "" && line[0] != '#' {
			lean.WriteString(line)
			lean.WriteByte('\n')
		}
	}
	return "sh -c " + script.QuoteAll(append([]string{lean.String(), "leasehold"}, args...)) + " </dev/null 2>&1\n"
}

// Reply is what a script said.
type Reply struct {
	Word    Word     // empty for an export that said no more than its pieces
	Name    string   // what else a word says
	Bytes   int64    // of the archive; of a refused source, which one it is, from 0
	Sockets []string // names that an export left out, at most [MaxSkipped]
	// SocketCount counts all that it left out.
	SocketCount int
	Pieces      []Piece // of an export's archive, in order
}

// ParseReply finds a script's words in its output, by the scratch directory's unguessable name. It reports false when
// there is none: then nothing is known.
func ParseReply(output, scratch string) (Reply, bool) {
	mark := path.Base(scratch) + " "
	var r Reply
	for line := range strings.SplitSeq(output, "\n") {
		rest, ok := strings.CutPrefix(line, mark)
		if !ok {
			continue
		}
		word, arg, _ := strings.Cut(rest, " ")
		switch word {
		case "skip":
			if r.SocketCount++; len(r.Sockets) < MaxSkipped {
				r.Sockets = append(r.Sockets, strings.TrimPrefix(arg, "./"))
			}
		case "piece":
			piece, ok := parsePiece(arg)
			if !ok {
				return Reply{}, false
			}
			r.Pieces = append(r.Pieces, piece)
		default:
			r.Word, r.Name = Word(word), arg
			if r.Bytes, _ = strconv.ParseInt(arg, 10, 64); r.Bytes < 0 {
				r.Bytes = 0
			}
		}
	}
	return r, r.Word != "" || len(r.Pieces) > 0
}
