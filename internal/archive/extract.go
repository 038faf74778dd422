package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// ExtractOptions are the options of [Extract], [ExtractFiles] and [Copy].
type ExtractOptions struct {
	// Exclude leaves members out, without listing them.
	Exclude *Matcher
	// Links says what happens to links whose target lies, or may lie, outside the tree. The zero value refuses the archive.
	Links LinkPolicy
	// MaxEntries bounds the number of members, and of the directories that none of them names; 0 is 1,000,000.
	MaxEntries int64
	// MaxBytes bounds the content of all files together; 0 is 64 GiB.
	MaxBytes int64
	// MaxName bounds a member's whole name in bytes; 0 is [MaxPath].
	MaxName int
	// MaxDepth bounds the depth of the tree; 0 is [MaxDepth].
	MaxDepth int
	// MaxRatio bounds how many bytes of content the archive may stand for with each of its own; 0 is no bound. Only
	// sparse files can have more than one.
	MaxRatio int64
	// Reserve is the free space that the host's disk keeps, in bytes; 0 is 1 GiB, negative is none.
	// Where the system cannot tell the free space, it is not checked.
	Reserve int64
	// ReserveStep is how much may be written before the free space is asked for again; 0 is 16 MiB.
	ReserveStep int64
	// Mode is the mode of the directory of [Extract]. 0 is the mode that it had before, else 0755.
	Mode fs.FileMode
	// Progress is called after each entry and after each chunk of a file, with the totals so far; nil for none.
	Progress func(entries, bytes int64)
}

// LinkPolicy says what to do with unsafe links.
type LinkPolicy int

// The policies.
const (
	LinksReject       LinkPolicy = iota // the whole archive is refused
	LinksOmit                           // they are left out and listed
	LinksKeepAbsolute                   // symbolic links with an absolute target are made as they are; others are refused
)

// Bounds of trees that are unusual already. What is held of each directory above the present one grows with its path.
const (
	MaxPath  = 32 << 10 // bytes
	MaxDepth = 5000     // levels
)

func (o ExtractOptions) withDefaults() ExtractOptions {
	if o.MaxEntries == 0 {
		o.MaxEntries = 1_000_000
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 30
	}
	if o.MaxName == 0 {
		o.MaxName = MaxPath
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = MaxDepth
	}
	if o.Reserve == 0 {
		o.Reserve = 1 << 30
	}
	if o.ReserveStep == 0 {
		o.ReserveStep = 16 << 20
	}
	return o
}

// Extract makes dir a directory whose content is exactly that of the archive.
//
// The archive is extracted into a private directory of unguessable name beside dir. When the archive has proved
// to be whole, the directory takes dir's place: at once where the system can exchange two names (Linux), else by two
// renames of which the first is undone if the second fails. What dir held before is then removed. On any failure, dir
// and its content are as they were, and the private directory is gone. Parents of dir are made as needed and stay.
// Something at dir that is not a directory, a link to a directory included, is refused with [ErrType]: replacing it
// is not what the caller can have meant.
//
// Members may come in any order; a missing parent gets mode 0755. A later file or link replaces an earlier one of the
// same name, as in tar; a directory is never replaced by something else, nor something else by a directory. Modes are
// applied without the set-id and sticky bits, whatever the umask; owners are not applied. Devices, FIFOs and members
// of unknown type are listed, not made. Names that the host's file system cannot tell apart are refused.
func Extract(ctx context.Context, r io.Reader, dir string, opt ExtractOptions) (Summary, error) {
	opt = opt.withDefaults()
	var sum Summary
	st, err := newStage(dir, true)
	if err != nil {
		return sum, err
	}
	defer st.close()
	root, err := st.makeDir()
	if err != nil {
		return sum, err
	}
	x := &extractor{m: newMembers(ctx, r, opt, &sum), ctx: ctx, opt: opt, sum: &sum, root: root,
		space: newSpace(root, opt), buf: make([]byte, chunkSize)}
	x.at, x.chain.root = root, root
	err = x.run()
	x.chain.close()
	root.Close()
	if err != nil {
		return sum, err
	}
	sum.Leftover, err = st.publishDir(opt.Mode)
	return sum, err
}

// extractor applies members below root. It keeps the chain of directories that leads to the last member. Leaving a
// directory applies its mode and time: so a read-only directory can be filled, and memory does not grow with the tree.
type extractor struct {
	m     *members
	ctx   context.Context
	opt   ExtractOptions
	sum   *Summary
	root  *os.Root
	chain chain
	stack []level  // what the directories of the chain are going to be
	at    *os.Root // the innermost of them, or the root
	space *space
	buf   []byte
	folds *bool // whether the destination's file system folds names; nil when nobody had to know yet
}

type level struct {
	name string // whole path in the tree
	mode fs.FileMode
	time time.Time
}

func (x *extractor) run() error {
	for {
		h, name, err := x.m.next()
		if err == io.EOF {
			return x.leave(0)
		}
		if err != nil {
			return err
		}
		made, err := x.member(h, name)
		if err != nil {
			return err
		}
		if made {
			x.sum.Entries++
		}
		x.progress()
	}
}

func (x *extractor) progress() {
	if x.opt.Progress != nil {
		x.opt.Progress(x.sum.Entries, x.sum.Bytes)
	}
}

// member applies one member, and reports whether it is an entry of the result that was not there before.
func (x *extractor) member(h *tar.Header, name string) (bool, error) {
	isDir := h.Typeflag == tar.TypeDir
	if name == "" {
		if !isDir {
			return false, fail(ErrUnsafe, h.Name, "it would replace the destination itself", nil)
		}
		return false, nil // the root's mode is the caller's
	}
	if x.m.excluded(name, isDir) {
		return false, nil
	}
	dir, base := split(name)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if err := x.enter(dir); err != nil {
			return false, err
		}
		return x.file(h, base, name)
	case tar.TypeDir:
		if err := x.enter(dir); err != nil {
			return false, err
		}
		return x.directory(h, base, name)
	case tar.TypeSymlink:
		return x.symlink(h.Linkname, dir, base, name)
	case tar.TypeLink:
		return x.hardLink(h, dir, base, name)
	}
	x.m.omit(name, reasonOf(h.Typeflag))
	return false, nil
}

// reasonOf says why a member of a kind is never made.
func reasonOf(kind byte) Reason {
	switch kind {
	case tar.TypeFifo:
		return ReasonFIFO
	case tar.TypeChar, tar.TypeBlock:
		return ReasonDevice
	}
	return ReasonUnknown
}

// enter makes dir the innermost open directory. Each component must be a real directory: a member is never written
// through a link, not even through one that stays inside the tree.
func (x *extractor) enter(dir string) error {
	keep := len(x.stack)
	for keep > 0 && !within(dir, x.stack[keep-1].name) {
		keep--
	}
	if err := x.leave(keep); err != nil {
		return err
	}
	for {
		at := ""
		if n := len(x.stack); n > 0 {
			at = x.stack[n-1].name
		}
		if at == dir {
			return nil
		}
		rest := dir
		if at != "" {
			rest = dir[len(at)+1:]
		}
		base, _, _ := strings.Cut(rest, "/")
		if err := x.descend(base, join(at, base)); err != nil {
			return err
		}
	}
}

// within reports whether name is dir or lies below it.
func within(name, dir string) bool {
	return name == dir || len(name) > len(dir) && name[len(dir)] == '/' && name[:len(dir)] == dir
}

// descend opens a directory of the innermost one, and makes it if the archive has not named it.
func (x *extractor) descend(base, name string) error {
	fi, err := x.at.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := x.m.another(); err != nil {
			return err
		}
		if err := x.mkdir(base, name); err != nil {
			return err
		}
		return x.push(base, name, 0o755, time.Time{})
	case err != nil:
		return fail(ErrDest, name, "", err)
	case !fi.IsDir():
		return fail(ErrUnsafe, name, "a member would be written through something that is not a directory", nil)
	}
	mode := fi.Mode().Perm()
	if mode&0o700 != 0o700 { // left before, and entered again
		if err := x.at.Chmod(base, mode|0o700); err != nil {
			return fail(ErrDest, name, "", err)
		}
	}
	return x.push(base, name, mode, fi.ModTime())
}

func (x *extractor) mkdir(base, name string) error {
	if err := x.space.take(4096); err != nil {
		return err
	}
	if err := x.at.Mkdir(base, 0o700); err != nil {
		return fail(ErrDest, name, "", err)
	}
	return nil
}

func (x *extractor) push(base, name string, mode fs.FileMode, at time.Time) error {
	if err := x.chain.push(base); err != nil {
		return fail(ErrDest, name, "", err)
	}
	x.stack = append(x.stack, level{name, mode, at})
	return x.arrive()
}

// arrive opens the directory that is the innermost one now.
func (x *extractor) arrive() error {
	at, err := x.chain.top()
	if err == nil {
		x.at = at
		return nil
	}
	name := ""
	if n := len(x.stack); n > 0 {
		name = x.stack[n-1].name
	}
	return fail(ErrDest, name, "", err)
}

// leave leaves the directories above depth keep, and gives them the mode and time that the archive says.
func (x *extractor) leave(keep int) error {
	for len(x.stack) > keep {
		l := x.stack[len(x.stack)-1]
		x.stack = x.stack[:len(x.stack)-1]
		x.chain.pop()
		if err := x.arrive(); err != nil {
			return err
		}
		_, base := split(l.name)
		if err := x.finish(base, l); err != nil {
			return err
		}
	}
	return nil
}

// finish sets the mode and time of a directory of the innermost one.
func (x *extractor) finish(base string, l level) error {
	if sensibleTime(l.time) {
		if err := x.at.Chtimes(base, l.time, l.time); err != nil {
			return fail(ErrDest, l.name, "", err)
		}
	}
	if err := x.at.Chmod(base, l.mode); err != nil {
		return fail(ErrDest, l.name, "", err)
	}
	return nil
}

func (x *extractor) directory(h *tar.Header, base, name string) (bool, error) {
	l := level{name: name, mode: fs.FileMode(h.Mode) & fs.ModePerm, time: h.ModTime}
	fi, err := x.at.Lstat(base)
	switch {
	case err == nil && !fi.IsDir():
		return false, fail(ErrUnsafe, name, "a directory of the name of an earlier member", nil)
	case err == nil:
		if err := x.exact(base, name); err != nil {
			return false, err
		}
		return false, x.finish(base, l)
	case !errors.Is(err, fs.ErrNotExist):
		return false, fail(ErrDest, name, "", err)
	}
	if err := x.mkdir(base, name); err != nil {
		return false, err
	}
	return true, x.push(base, name, l.mode, l.time)
}

// place makes an entry that is not a directory. If one of that name is there it is removed first, so that the new one
// neither writes through a link nor into the other names of a hard-linked file.
func (x *extractor) place(base, name string, create func() error) (bool, error) {
	if err := x.space.take(512); err != nil {
		return false, err
	}
	err := create()
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return false, destError(name, err)
	}
	fi, err := x.at.Lstat(base)
	if err != nil {
		return false, fail(ErrDest, name, "", err)
	}
	if fi.IsDir() {
		return false, fail(ErrUnsafe, name, "it would replace a directory of the archive", nil)
	}
	if err := x.exact(base, name); err != nil {
		return false, err
	}
	if err := x.at.Remove(base); err != nil {
		return false, fail(ErrDest, name, "", err)
	}
	return false, destError(name, create())
}

// exact makes sure that what exists under a name has exactly that name. On a file system that folds case or Unicode
// forms, two members could otherwise become one without anybody noticing.
func (x *extractor) exact(base, name string) error {
	if x.folds == nil {
		folds := foldsNames(x.root)
		x.folds = &folds
	}
	if !*x.folds { // no need to read a whole directory for each of a million members of one name
		return nil
	}
	d, err := x.at.Open(".")
	if err != nil {
		return fail(ErrDest, name, "", err)
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, n := range names {
			if n == base {
				return nil
			}
		}
		if err == io.EOF {
			return fail(ErrUnsafe, name, "the host cannot tell its name from another member's", nil)
		}
		if err != nil {
			return fail(ErrDest, name, "", err)
		}
	}
}

// foldsNames reports whether a directory takes different names for the same one: it asks for a file by names that differ
// in case and in Unicode form. It assumes so when it cannot tell.
func foldsNames(root *os.Root) bool {
	name := StageName() + "-\u00e9" // composed
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return true
	}
	f.Close()
	defer root.Remove(name)
	for _, other := range []string{strings.ToUpper(name), strings.TrimSuffix(name, "\u00e9") + "e\u0301"} {
		if _, err := root.Lstat(other); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

func (x *extractor) file(h *tar.Header, base, name string) (bool, error) {
	if err := x.m.admit(h, name); err != nil {
		return false, err
	}
	var f *os.File
	made, err := x.place(base, name, func() (err error) {
		f, err = x.at.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return false, err
	}
	err = copyContent(x.m, f, name, h, x.space, x.buf, x.progress)
	if err == nil {
		err = destError(name, f.Chmod(fs.FileMode(h.Mode)&fs.ModePerm))
	}
	if cerr := f.Close(); err == nil {
		err = destError(name, cerr)
	}
	if err == nil && sensibleTime(h.ModTime) {
		err = destError(name, x.at.Chtimes(base, h.ModTime, h.ModTime))
	}
	return made, err
}

// destError blames the destination for an error that is not one of this package already.
func destError(name string, err error) error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	return fail(ErrDest, name, "", err)
}

// copyContent copies the content of the current member. What was read is written before more of the archive is read: so
// a reader that is asked for more knows that what it gave before is on the disk. Holes stay holes.
func copyContent(m *members, f *os.File, name string, h *tar.Header, sp *space, buf []byte, progress func()) error {
	sparse := isSparse(h)
	for left := h.Size; left > 0; {
		n, err := m.tr.Read(buf[:min(left, int64(len(buf)))])
		if n > 0 {
			if werr := writeChunk(f, name, buf[:n], sparse, sp); werr != nil {
				return werr
			}
			left -= int64(n)
			if cerr := m.copied(int64(n), name); cerr != nil {
				return cerr
			}
		}
		if err != nil && left > 0 {
			return m.readError(err, name)
		}
		if left > 0 {
			progress()
		}
	}
	if sparse { // it may end with a hole
		return destError(name, f.Truncate(h.Size))
	}
	return nil
}

func writeChunk(f *os.File, name string, chunk []byte, sparse bool, sp *space) error {
	if sparse && bytes.Equal(chunk, zeros[:len(chunk)]) {
		_, err := f.Seek(int64(len(chunk)), io.SeekCurrent)
		return destError(name, err)
	}
	if err := sp.take(int64(len(chunk))); err != nil {
		return err
	}
	_, err := f.Write(chunk)
	return destError(name, err)
}

var zeros [chunkSize]byte

// Why hard links are refused.
const (
	linkToExcluded = "a hard link to a file that is left out"
	linkToNoFile   = "a hard link to something that is not a file extracted before it"
)

// symlink makes a symbolic link, if its target is allowed.
func (x *extractor) symlink(target, dir, base, name string) (bool, error) {
	if !x.m.linkAllowed(dir, target) {
		return false, x.m.unsafeLink(name, "a link out of the tree")
	}
	if err := x.enter(dir); err != nil {
		return false, err
	}
	return x.place(base, name, func() error { return x.at.Symlink(target, base) })
}

// hardLink gives an extracted file another name, and makes a symbolic link again: its target is judged anew from where it
// lies. A hard link's own target is a name of the archive, judged from its root.
func (x *extractor) hardLink(h *tar.Header, dir, base, name string) (bool, error) {
	target, err := x.m.name(h.Linkname)
	if err != nil {
		var e *Error
		if errors.As(err, &e) && e.Kind == ErrUnsafe {
			return false, x.m.unsafeLink(name, "a hard link out of the tree")
		}
		return false, err
	}
	if target == name {
		return false, x.m.unsafeLink(name, "a hard link to itself")
	}
	if x.opt.Exclude.MatchBelow(target, false) {
		return false, x.m.unsafeLink(name, linkToExcluded)
	}
	fi := x.lstat(target)
	reason, omitted := x.m.omitted[keyOf(target)]
	switch {
	case fi == nil && omitted:
		x.m.omit(name, reason)
		return false, nil
	case fi != nil && fi.Mode()&fs.ModeSymlink != 0:
		link, err := x.root.Readlink(target)
		if err != nil {
			return false, fail(ErrDest, target, "", err)
		}
		return x.symlink(link, dir, base, name)
	case fi == nil || !fi.Mode().IsRegular():
		return false, x.m.unsafeLink(name, linkToNoFile)
	}
	if err := x.enter(dir); err != nil {
		return false, err
	}
	return x.place(base, name, func() error {
		err := x.root.Link(target, name)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			err = x.copyFile(target, base, name, err)
		}
		return err
	})
}

// copyFile stands in for a hard link on a file system that has none, or has no more of them for one file. It returns
// refused, the reason why there is no link, when the copy fails too. The copy counts as content, which each link would
// multiply.
func (x *extractor) copyFile(target, base, name string, refused error) error {
	from, err := x.root.Open(target)
	if err != nil {
		return refused
	}
	defer from.Close()
	fi, err := from.Stat()
	if err != nil {
		return refused
	}
	if err := x.m.admit(&tar.Header{Size: fi.Size()}, name); err != nil {
		return err
	}
	if err := x.space.take(fi.Size()); err != nil {
		return err
	}
	to, err := x.at.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Chmod(fi.Mode().Perm())
	}
	if cerr := to.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = x.at.Chtimes(base, fi.ModTime(), fi.ModTime())
	}
	if err != nil {
		return refused
	}
	return nil
}

// lstat looks at a path without passing any link; nil when nothing is there.
func (x *extractor) lstat(name string) fs.FileInfo {
	at := x.root
	for {
		base, rest, more := strings.Cut(name, "/")
		fi, err := at.Lstat(base)
		if err != nil || !more || !fi.IsDir() {
			if at != x.root {
				at.Close()
			}
			if err != nil || more {
				return nil
			}
			return fi
		}
		sub, err := at.OpenRoot(base)
		if at != x.root {
			at.Close()
		}
		if err != nil {
			return nil
		}
		at, name = sub, rest
	}
}
