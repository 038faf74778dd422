package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// WriteOptions are the options of a [Load].
type WriteOptions struct {
	// Exclude leaves entries out, without listing them.
	Exclude *Matcher
	// Reserved reports names that are left out and listed as [ReasonReserved]; nil for none.
	Reserved func(name string) bool
	// RepeatDirs makes directories accessible to their owner at first and names them all again at the end, innermost
	// first, with their own mode and time. Simple extractors (busybox) apply a directory's mode and time at once, so
	// that they could not fill a read-only directory, and would lose its time. Without root's rights they do not change
	// the mode of a directory that exists at all: if there are directories that their owner may not fill, the last
	// member is [ModesMember].
	RepeatDirs bool
	// Progress is called after each entry and after each chunk of a file, with the totals so far; nil for none.
	Progress func(entries, bytes int64)
	// Follow sends what symbolic links lead to in their place, wherever that is. A link that leads nowhere, or to a
	// directory that it lies in, ends the writing with [ErrSource].
	Follow bool
	// ReadOnly takes the write permission from everything.
	ReadOnly bool
	// Prefix is a directory, "" or with a slash at its end, that stands for the root: it gets the root's mode and time,
	// and every entry lies in it.
	Prefix string
	// MaxName bounds the path of an entry in the archive, prefix included, in bytes; 0 for no bound. [ErrLimit] names the
	// first longer one.
	MaxName int
	// MaxPath bounds the path of an entry in the tree, prefix included, in bytes; 0 for no bound.
	MaxPath int
	// MaxDepth bounds the depth of the tree; 0 for no bound.
	MaxDepth int
	// Segment is how many levels the tree of the archive has at the most; 0 for no bound. A deeper tree, and one whose paths
	// would be longer than MaxName, is sent in segments, which the receiver joins: the archive then has a [SegmentsList].
	Segment int
	// Links says what a stream's symbolic links out of its tree are, see [LoadTar].
	Links LinkPolicy

	mode     fs.FileMode // of a single file; 0 is the host's
	timeless bool        // every time is the same: the archive is to be compared, not sent
}

// ModesMember is the name of a shell script that sets the modes of directories, to be run in the root of the extracted
// tree and to be removed, see [WriteOptions].
const ModesMember = StagePrefix + "modes"

// Chunks of a file's content between two looks at the context.
const chunkSize = 256 << 10

// HostFile is one regular file of the host, to be sent under a name of its own.
type HostFile struct {
	Path string      // a link is followed once
	Name string      // in the tree
	Mode fs.FileMode // 0 keeps the host's
}

func (t *treeWriter) hostFile(file HostFile) error {
	if err := t.opt.fits(file.Name); err != nil {
		return err
	}
	t.opt.mode = file.Mode
	reopen := func() (fs.File, error) { return os.OpenFile(file.Path, os.O_RDONLY|openNonblock, 0) }
	f, err := reopen()
	if err != nil {
		return fail(ErrSource, file.Path, "", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return fail(ErrSource, file.Path, "", err)
	case !fi.Mode().IsRegular():
		return fail(ErrSource, file.Path, "it is not a regular file", nil)
	case t.tw == nil:
		if t.found != nil && fi.Size() >= LargeFile {
			*t.found = append(*t.found, large{name: file.Name, info: fi, mode: fileMode(fi, t.opt), open: reopen})
		}
		t.done(fi.Size())
		return nil
	case t.met < len(t.apart) && t.apart[t.met].name == file.Name:
		t.met++
		return unchanged(file.Name, t.apart[t.met-1].info, fi)
	}
	return t.content(f, fi, file.Name)
}

// treeWriter is one walk. Without a tar writer it only counts.
type treeWriter struct {
	ctx   context.Context
	opt   WriteOptions
	tw    *tar.Writer
	bw    *bufio.Writer // joins the many small pieces of an archive
	out   *countingWriter
	buf   []byte
	links map[fileID]string                               // the first name of each file that has several
	dirs  []sentDir                                       // to be repeated
	dirAt map[nameKey]int32                               // where they are in dirs
	found *[]large                                        // where a walk that only counts notes large files; nil for none
	apart []large                                         // files that are sent beside the archive, in the order of the walk
	met   int                                             // how many of them the walk has met
	root  Source                                          // of the tree
	above []fs.FileInfo                                   // the directories that lead to the present one, with Follow
	note  func(name string, fi fs.FileInfo, several bool) // told of each entry by a walk that counts; nil for none
	have  func(name string) bool                          // whether the receiver has the entry; nil for none
	looks hash.Hash                                       // of all that was seen but content; nil when nobody asks
	sum   Summary
}

// sentDir is a directory of which the header was sent. Of its path it holds the last name alone, for a path of 31 KB costs
// whoever makes a stream no more than two bytes for each directory on it.
type sentDir struct {
	above   int32 // where the directory that it lies in is in dirs; -1 for none
	mode    uint16
	segment bool   // it is the top of one
	time    int64  // seconds
	base    string // name in the one above; without one, the path in the tree, prefix included
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

func newTreeWriter(ctx context.Context, w io.Writer, opt WriteOptions) *treeWriter {
	t := &treeWriter{ctx: ctx, opt: opt, out: &countingWriter{w: w}, buf: make([]byte, chunkSize), links: map[fileID]string{}, dirAt: map[nameKey]int32{}}
	t.bw = bufio.NewWriterSize(t.out, chunkSize)
	t.tw = tar.NewWriter(t.bw)
	return t
}

// finish writes the end of the archive, unless err cut it short.
func (t *treeWriter) finish(err error) (Summary, error) {
	if err == nil {
		err = t.repeat()
	}
	if err == nil {
		if err = t.tw.Close(); err == nil {
			err = t.bw.Flush()
		}
		err = t.writeError(err)
	}
	t.sum.Archive = t.out.n
	return t.sum, err
}

// repeat names the directories again, the last ones first.
func (t *treeWriter) repeat() error {
	for d, name := range t.backward() {
		h := tar.Header{Typeflag: tar.TypeDir, Name: t.opt.place(name, true) + "/", Mode: int64(d.mode), ModTime: time.Unix(d.time, 0), Format: tar.FormatGNU}
		if err := t.header(&h); err != nil {
			return err
		}
	}
	if err := t.script(ModesMember, t.modes()); err != nil {
		return err
	}
	return t.script(SegmentsList, t.joins())
}

// backward returns the directories that were sent, with their paths, the last ones first.
func (t *treeWriter) backward() iter.Seq2[sentDir, string] {
	return func(yield func(sentDir, string) bool) {
		var name string
		before := sentDir{above: -1}
		for i, d := range slices.Backward(t.dirs) {
			if int(before.above) == i {
				name = name[:len(name)-len(before.base)-1]
			} else {
				parts := []string{d.base}
				for at := d.above; at >= 0; at = t.dirs[at].above {
					parts = append(parts, t.dirs[at].base)
				}
				slices.Reverse(parts)
				name = strings.Join(parts, "/")
			}
			if before = d; !yield(d, name) {
				return
			}
		}
	}
}

// modes returns the lines of [ModesMember].
func (t *treeWriter) modes() iter.Seq[string] {
	holders := parents(t.apart) // made before the archive is extracted
	return func(yield func(string) bool) {
		for d, name := range t.backward() {
			inner := strings.TrimPrefix(name+"/", t.opt.Prefix)
			if d.mode&0o700 == 0o700 && !holders[strings.TrimSuffix(inner, "/")] && inner != "" {
				continue
			}
			if !yield(fmt.Sprintf("chmod %o %s || exit 1\n", d.mode, script.Quote("./"+t.opt.place(name, true)+"/"))) {
				return
			}
		}
	}
}

// script writes a member with shell commands, if there are any. It asks for them twice, so that nobody holds them: how long
// they are comes first.
func (t *treeWriter) script(name string, lines iter.Seq[string]) error {
	var size int64
	for line := range lines {
		size += int64(len(line))
	}
	if size == 0 {
		return nil
	}
	if err := t.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: size, Format: tar.FormatGNU}); err != nil {
		return err
	}
	for line := range lines {
		if _, err := io.WriteString(t.tw, line); err != nil {
			return t.writeError(err)
		}
	}
	return nil
}

// writeError wraps what the writer below returned. A cancelled context is what usually breaks it, and says more.
func (t *treeWriter) writeError(err error) error {
	switch {
	case err == nil:
		return nil
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	default:
		return fail(ErrWrite, "", "", err)
	}
}

// tree walks the whole tree: the entries below src, sorted, directories before their content. The root itself has no entry, but
// for a Prefix, so that a receiver never changes the mode or the times of a directory it did not make.
//
// Permission bits, whole-second modification times, symbolic links (verbatim, unless they are followed), hard links within
// the tree, empty files and directories, and every name that the file system allows are kept. Owners, the set-id and sticky
// bits and extended attributes are not. Sockets, FIFOs and devices are left out and listed.
//
// A file or directory that vanishes, is swapped for another, or whose size or time changes while it is read ends the
// walk with [ErrChanged]: the archive then has no end, so no receiver can take it for a whole one. The context is
// observed at each entry and each chunk.
func (t *treeWriter) tree(src Source) error {
	t.root = src
	if t.opt.Prefix != "" || t.opt.Follow {
		fi, err := src.lstat(".")
		if err != nil {
			return fail(ErrSource, "", "", err)
		}
		t.above = append(t.above, fi)
		if t.opt.Prefix != "" {
			if err := t.directory(t.newHeader(tar.TypeDir, "", fi)); err != nil {
				return err
			}
		}
	}
	if err := t.dir(src, ""); err != nil {
		return err
	}
	return t.metAll()
}

// metAll makes sure that every file that was sent by itself was met again.
func (t *treeWriter) metAll() error {
	if t.met < len(t.apart) {
		return fail(ErrChanged, t.apart[t.met].name, "it vanished", nil)
	}
	return nil
}

func (t *treeWriter) dir(src Source, dir string) error {
	names, err := src.names()
	if err != nil {
		return sourceError(dir, err)
	}
	for _, base := range names {
		if err := t.ctx.Err(); err != nil {
			return context.Cause(t.ctx)
		}
		if err := t.entry(src, base, join(dir, base)); err != nil {
			return err
		}
	}
	return nil
}

func (t *treeWriter) entry(src Source, base, name string) error {
	fi, err := src.lstat(base)
	if err != nil {
		return sourceError(name, err)
	}
	if t.opt.Exclude.Match(name, fi.IsDir()) {
		return nil
	}
	if t.opt.Reserved != nil && t.opt.Reserved(name) {
		t.sum.Skip(name, ReasonReserved)
		return nil
	}
	if err := t.opt.fits(name); err != nil {
		return err
	}
	if t.opt.Follow && fi.Mode()&fs.ModeSymlink != 0 {
		at, real, err := src.follow(base)
		if err != nil {
			return fail(ErrSource, name, "a link that leads nowhere", err)
		}
		defer at.Close()
		if fi, err = at.lstat(real); err != nil {
			return fail(ErrSource, name, "a link that leads nowhere", err)
		}
		if t.opt.Exclude.Match(name, fi.IsDir()) {
			return nil
		}
		src, base = at, real
	}
	if t.looks != nil {
		fmt.Fprintf(t.looks, "%q %v %d %d\n", name, fi.Mode(), fi.Size(), fi.ModTime().UnixNano())
	}
	switch mode := fi.Mode(); {
	case mode.IsRegular():
		return t.file(src, base, name, fi)
	case mode.IsDir():
		return t.subdir(src, base, name, fi)
	case mode&fs.ModeSymlink != 0:
		return t.symlink(src, base, name, fi)
	case mode&fs.ModeSocket != 0:
		t.sum.Skip(name, ReasonSocket)
	case mode&fs.ModeNamedPipe != 0:
		t.sum.Skip(name, ReasonFIFO)
	case mode&fs.ModeDevice != 0:
		t.sum.Skip(name, ReasonDevice)
	default:
		t.sum.Skip(name, ReasonUnknown)
	}
	return nil
}

func (t *treeWriter) subdir(src Source, base, name string, fi fs.FileInfo) error {
	if t.opt.Follow {
		for _, dir := range t.above {
			if os.SameFile(dir, fi) {
				return fail(ErrSource, name, "a link to a directory that it lies in", nil)
			}
		}
		t.above = append(t.above, fi)
		defer func() { t.above = t.above[:len(t.above)-1] }()
	}
	t.noted(name, fi, false)
	if err := t.directory(t.newHeader(tar.TypeDir, name+"/", fi)); err != nil {
		return err
	}
	if t.have == nil || !t.have(name) {
		t.done(0)
	}
	sub, err := src.sub(base)
	if err != nil {
		return sourceError(name, err)
	}
	defer sub.Close()
	if self, err := sub.lstat("."); err != nil || !same(fi, self) {
		return fail(ErrChanged, name, "another entry took its place", nil)
	}
	return t.dir(sub, name)
}

// directory writes the header of a directory, and remembers it if it is to be repeated.
func (t *treeWriter) directory(h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	h.Name = t.opt.place(name, true) + "/"
	if t.opt.RepeatDirs && t.tw != nil {
		t.remember(name, h)
		h.Mode |= 0o700
	}
	return t.header(h)
}

// remember notes a directory, which a stream may name more than once.
func (t *treeWriter) remember(name string, h *tar.Header) {
	key := keyOf(name)
	i, ok := t.dirAt[key]
	if !ok {
		parent, base := split(name)
		above, ok := t.dirAt[keyOf(parent)]
		if !ok {
			above, base = -1, name
		}
		i = int32(len(t.dirs))
		t.dirAt[key] = i
		place := strings.TrimSuffix(h.Name, "/")
		in, _ := split(place)
		t.dirs = append(t.dirs, sentDir{above: above, segment: place != name && in == segmentsDir, base: strings.Clone(base)}) // the path goes
	}
	t.dirs[i].mode, t.dirs[i].time = uint16(h.Mode), h.ModTime.Unix()
}

// noted tells a walk's observer of an entry that is going to be sent.
func (t *treeWriter) noted(name string, fi fs.FileInfo, several bool) {
	if t.note != nil {
		t.note(name, fi, several)
	}
}

func (t *treeWriter) symlink(src Source, base, name string, fi fs.FileInfo) error {
	target, err := src.readlink(base)
	if errors.Is(err, fs.ErrInvalid) || errors.Is(err, errors.ErrUnsupported) {
		t.sum.Skip(name, ReasonUnknown) // a file system that shows links and cannot read them
		return nil
	}
	if err != nil {
		return sourceError(name, err)
	}
	t.noted(name, fi, false)
	if t.have != nil && t.have(name) {
		return nil
	}
	h := t.newHeader(tar.TypeSymlink, name, fi)
	h.Mode = 0o777
	h.Linkname = target
	if windows {
		h.Linkname = filepath.ToSlash(target)
	}
	if err := t.header(h); err != nil {
		return err
	}
	t.done(0)
	return nil
}

func (t *treeWriter) file(src Source, base, name string, fi fs.FileInfo) error {
	id, several := linkID(fi)
	t.noted(name, fi, several)
	if several {
		if first, ok := t.links[id]; ok {
			h := t.newHeader(tar.TypeLink, name, fi)
			h.Linkname = t.opt.place(t.opt.Prefix+first, false)
			if err := t.header(h); err != nil {
				return err
			}
			t.done(0)
			return nil
		}
		t.links[id] = name
	}
	if t.have != nil && t.have(name) {
		return nil
	}
	if t.tw == nil {
		if t.found != nil && fi.Size() >= LargeFile {
			reopen := func() (fs.File, error) { return t.root.open(name) }
			if t.opt.Follow {
				reopen = src.reopen(base)
			}
			*t.found = append(*t.found, large{name: name, info: fi, mode: fileMode(fi, t.opt), open: reopen})
		}
		t.done(fi.Size())
		return nil
	}
	if t.met < len(t.apart) && t.apart[t.met].name == name {
		t.met++
		return unchanged(name, t.apart[t.met-1].info, fi)
	}
	f, err := src.open(base)
	if err != nil {
		return sourceError(name, err)
	}
	defer f.Close()
	opened, err := f.Stat()
	if err != nil {
		return sourceError(name, err)
	}
	if !opened.Mode().IsRegular() || !same(fi, opened) {
		return fail(ErrChanged, name, "another entry took its place", nil)
	}
	return t.content(f, opened, name)
}

// content writes one regular file.
func (t *treeWriter) content(f fs.File, fi fs.FileInfo, name string) error {
	h := t.newHeader(tar.TypeReg, name, fi)
	h.Size = fi.Size()
	h.Mode = int64(fileMode(fi, t.opt))
	if err := t.header(h); err != nil {
		return err
	}
	return t.copy(t.tw, f, fi, name)
}

// copy copies the content of a file. The size that fi says was promised: exactly that many bytes must come, and the file
// must look the same afterwards.
func (t *treeWriter) copy(w io.Writer, f fs.File, fi fs.FileInfo, name string) error {
	if err := t.exactly(w, f, fi.Size(), name); err != nil {
		return err
	}
	return t.still(f, fi, name)
}

// exactly copies so many bytes of a file.
func (t *treeWriter) exactly(w io.Writer, r io.Reader, size int64, name string) error {
	from := &stream.Lively{From: r}
	for left := size; left > 0; {
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		n, err := io.ReadFull(from, t.buf[:min(left, int64(len(t.buf)))])
		if _, werr := w.Write(t.buf[:n]); werr != nil {
			return t.writeError(werr)
		}
		left -= int64(n)
		t.sum.Bytes += int64(n)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return failf(ErrChanged, name, "it became %d bytes shorter", left)
		case err != nil:
			return sourceError(name, err)
		}
		if left > 0 {
			t.progress()
		}
	}
	return nil
}

// still makes sure that a file that was copied looks as it did before.
func (t *treeWriter) still(f fs.File, fi fs.FileInfo, name string) error {
	after, err := f.Stat()
	if err != nil {
		return sourceError(name, err)
	}
	if err := unchanged(name, fi, after); err != nil {
		return err
	}
	t.done(0)
	return nil
}

// unchanged compares two looks at a regular file.
func unchanged(name string, before, after fs.FileInfo) error {
	switch {
	case !after.Mode().IsRegular() || !same(before, after):
		return fail(ErrChanged, name, "another entry took its place", nil)
	case after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()):
		return fail(ErrChanged, name, "it was written to", nil)
	}
	return nil
}

// header writes one header; a nil writer only counts.
func (t *treeWriter) header(h *tar.Header) error {
	if t.tw == nil {
		return nil
	}
	err := t.tw.WriteHeader(h)
	if err != nil && (errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong)) {
		return fail(ErrSource, h.Name, "it cannot be described in a tar archive", nil)
	}
	return t.writeError(err)
}

// done counts one entry, with bytes that have not been counted yet.
func (t *treeWriter) done(bytes int64) {
	t.sum.Entries++
	t.sum.Bytes += bytes
	t.progress()
}

func (t *treeWriter) progress() {
	if t.opt.Progress != nil {
		t.opt.Progress(t.sum.Entries, t.sum.Bytes)
	}
}

// newHeader describes an entry, without its owner.
func (t *treeWriter) newHeader(kind byte, name string, fi fs.FileInfo) *tar.Header {
	at := wholeSecond(fi.ModTime())
	if t.opt.timeless {
		at = time.Unix(0, 0)
	}
	whole := t.opt.Prefix + name
	if kind != tar.TypeDir {
		whole = t.opt.place(whole, false)
	}
	return &tar.Header{Typeflag: kind, Name: whole, Mode: int64(permissions(fi, t.opt)), ModTime: at, Format: tar.FormatGNU}
}

func permissions(fi fs.FileInfo, opt WriteOptions) fs.FileMode {
	perm := fi.Mode().Perm()
	if windows {
		perm &^= 0o022 // Windows reports write permission for all
	}
	if opt.ReadOnly {
		perm &^= 0o222
	}
	return perm
}

// fileMode returns the permission bits that a regular file is sent with.
func fileMode(fi fs.FileInfo, opt WriteOptions) fs.FileMode {
	if opt.mode != 0 {
		return opt.mode.Perm()
	}
	return permissions(fi, opt)
}

// wholeSecond rounds down: the GNU format has no fractions, and a time rounded up could lie in the future.
func wholeSecond(at time.Time) time.Time {
	if at.IsZero() { // what an fs.FS without times reports; tar's own zero is the start of 1970
		return time.Unix(0, 0)
	}
	return time.Unix(at.Unix(), 0)
}

// same reports whether both describe one file. Descriptions that have no identity, such as those of an fs.FS in memory,
// are taken to be the same.
func same(a, b fs.FileInfo) bool {
	if !os.SameFile(a, a) {
		return true
	}
	return os.SameFile(a, b)
}

func sourceError(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fail(ErrChanged, name, "it vanished", nil)
	}
	if errors.Is(err, errSwapped) {
		return fail(ErrChanged, name, errSwapped.Error(), nil)
	}
	return fail(ErrSource, name, "", err)
}
