package archive

import (
	_ "embed"
	"path"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/script"
)

// The other end of a transfer is a POSIX shell with tar, in the sandbox. These scripts run there, each in one request,
// with sh, tar (GNU, busybox or bsdtar), find, mv, rm, dd, grep, touch and wc. Each of them bears being delivered twice.
var (
	//go:embed remote_import.sh
	importScript string
	//go:embed remote_export.sh
	exportScript string
	//go:embed remote_cleanup.sh
	cleanupScript string
)

// Names in the scratch directory of an import: of the archive, of the directory with large files, and of the list in it
// that says where they belong.
const (
	RemoteArchive = "tree.tar"
	remoteLarge   = "large"
	remotePlaces  = "places"
)

// RemoteExported is the name under which the export script leaves it.
const RemoteExported = "tree"

// Word is what a script says of its end. The set is closed.
type Word string

// The words.
const (
	WordOK       Word = "ok"
	WordGone     Word = "gone"     // the scratch directory is not there: an earlier delivery ended, it is not known how
	WordMissing  Word = "missing"  // the uploaded archive is not there
	WordShort    Word = "short"    // it does not have the promised length
	WordNoSpace  Word = "nospace"  // disk full, quota, or file-size limit
	WordNoTar    Word = "notar"    // no tar on the PATH
	WordExtract  Word = "extract"  // tar refused the archive, or could not write
	WordConflict Word = "conflict" // a directory and something else have the same name
	WordReserved Word = "reserved" // the lease's own directory would be replaced
	WordCanceled Word = "canceled" // the cleanup was faster
	WordPublish  Word = "publish"  // a rename failed; earlier renames stay
	WordNotDir   Word = "notdir"
	WordNotFile  Word = "notfile"
	WordSymlink  Word = "symlink"
	WordNoSource Word = "nosource"
	WordDenied   Word = "denied"  // a source may not be read
	WordChanged  Word = "changed" // a source changed while it was archived
	WordArchive  Word = "archive" // tar failed otherwise
	WordLeft     Word = "left"    // a cleanup that did not succeed
)

// RemoteImport is the script that takes an uploaded archive in.
type RemoteImport struct {
	Dir     string // destination, absolute
	Scratch string // name of the scratch directory in Dir, from [StageName]
	Bytes   int64  // length of the archive
	Places  int64  // length of the list of large files; 0 when there are none
	Own     string // directory of the lease's own, absolute
}

// Upload returns where the archive is to be uploaded.
func (r RemoteImport) Upload() string { return path.Join(r.Dir, r.Scratch, RemoteArchive) }

// Script returns the text for a POSIX shell's standard input.
//
// It extracts into the scratch directory, which is on the destination's own file system, and then publishes by rename.
// Directories that exist are kept, with their mode, and filled; everything else of the archive replaces what has its
// name. A directory that meets something else, or the reverse, is a conflict: it is looked for before the first rename.
func (r RemoteImport) Script() string {
	return command(importScript, r.Dir, r.Scratch, strconv.FormatInt(r.Bytes, 10), r.Own, strconv.FormatInt(r.Places, 10))
}

// RemoteExport is the script that makes an archive.
type RemoteExport struct {
	Scratch string // scratch directory, absolute; its base from [StageName]
	Source  string // absolute
	File    bool   // the source is a file
	Live    bool   // files that change while they are read are no failure
	Exclude *Matcher
}

// Script returns the text for a POSIX shell's standard input.
func (r RemoteExport) Script() string {
	kind, mood := "dir", "strict"
	if r.File {
		kind = "file"
	}
	if r.Live {
		mood = "live"
	}
	return command(exportScript, append([]string{r.Scratch, kind, r.Source, mood}, r.Exclude.TarArgs()...)...)
}

// RemoteCleanup returns the script that removes a scratch directory. With again above zero it looks once more after so
// many seconds, for a request that had been sent and not yet been handled.
func RemoteCleanup(scratch string, again int) string {
	return command(cleanupScript, scratch, strconv.Itoa(again))
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
	Word    Word
	Bytes   int64    // of the archive
	Sockets []string // names that an export left out, at most [MaxSkipped]
	// SocketCount counts all that it left out.
	SocketCount int
}

// ParseReply finds a script's words in its output, by the scratch directory's unguessable name. It reports false when
// there is no final word: then nothing is known.
func ParseReply(output, scratch string) (Reply, bool) {
	mark := path.Base(scratch) + " "
	var r Reply
	for line := range strings.SplitSeq(output, "\n") {
		rest, ok := strings.CutPrefix(line, mark)
		if !ok {
			continue
		}
		word, arg, _ := strings.Cut(rest, " ")
		if word == "skip" {
			if r.SocketCount++; len(r.Sockets) < MaxSkipped {
				r.Sockets = append(r.Sockets, strings.TrimPrefix(arg, "./"))
			}
			continue
		}
		r.Word = Word(word)
		if r.Bytes, _ = strconv.ParseInt(arg, 10, 64); r.Bytes < 0 {
			r.Bytes = 0
		}
	}
	return r, r.Word != ""
}
