package archive

import (
	"archive/tar"
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// nameKey stands for a name. Nobody can choose names that have the same one, since the seeds are the process's own.
type nameKey [2]uint64

var nameSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(name string) nameKey {
	return nameKey{maphash.String(nameSeeds[0], name), maphash.String(nameSeeds[1], name)}
}

// stream passes on the entries of a tar stream that nobody vouches for. It holds a small record of each, and the names of the
// directories. A directory that no member names counts as one.
//
// A name must lie in the tree. What a member passes through must be a directory, never a link; a directory is never
// replaced by something else, nor something else by a directory. A hard link's target must be an earlier file of the
// stream. Symbolic links are passed on as they are, or not, as opt.Links says, and nothing is ever written through them.
// Missing parents get mode 0755. Devices and FIFOs are left out and listed, set-id and sticky bits are dropped.
func (t *treeWriter) stream(r io.Reader, limits ExtractOptions) error {
	if t.opt.MaxPath > 0 {
		limits.MaxName = t.opt.MaxPath
	}
	if t.opt.MaxDepth > 0 {
		limits.MaxDepth = t.opt.MaxDepth
	}
	limits = limits.withDefaults()
	limits.Exclude, limits.Links = t.opt.Exclude, t.opt.Links
	s := &streamed{t: t, m: newMembers(t.ctx, r, limits, &t.sum), kinds: map[nameKey]byte{}}
	for {
		h, name, err := s.m.next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.member(h, name)
		}
		if err != nil {
			return streamError(err)
		}
	}
}

// streamError blames the caller's stream for what is wrong with it.
func streamError(err error) error {
	var e *Error
	if errors.As(err, &e) && (e.Kind == ErrCorrupt || e.Kind == ErrRead) {
		blamed := *e
		if blamed.Detail == "" {
			blamed.Detail = e.Kind.Error()
		} else {
			blamed.Detail = e.Kind.Error() + ": " + e.Detail
		}
		blamed.Kind = ErrSource
		return &blamed
	}
	return err
}

// streamed is a tar stream that is being passed on.
type streamed struct {
	t     *treeWriter
	m     *members
	kinds map[nameKey]byte // what is there under a name: tar.TypeDir, TypeReg or TypeSymlink
	last  string           // the directory that was entered last
	named int              // bytes of the names of directories
}

func (s *streamed) member(h *tar.Header, name string) error {
	isDir := h.Typeflag == tar.TypeDir
	switch {
	case name == "" && !isDir:
		return fail(ErrUnsafe, h.Name, "it would replace the destination itself", nil)
	case name == "": // the destination's mode is not the stream's to set
		return nil
	case s.m.excluded(name, isDir):
		return nil
	case s.reserved(name):
		s.t.sum.Skip(name, ReasonReserved)
		return nil
	}
	if err := s.t.opt.fits(name); err != nil {
		return err
	}
	dir, _ := split(name)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if err := s.m.admit(h, name); err != nil {
			return err
		}
		if err := s.place(name, dir, tar.TypeReg); err != nil {
			return err
		}
		return s.file(h, name)
	case tar.TypeDir:
		return s.directory(h, name, dir)
	case tar.TypeSymlink:
		if !s.m.linkAllowed(dir, h.Linkname) {
			return s.m.unsafeLink(name, "a link out of the tree")
		}
		if err := s.place(name, dir, tar.TypeSymlink); err != nil {
			return err
		}
		return s.link(h, name, h.Linkname)
	case tar.TypeLink:
		target, err := s.m.name(h.Linkname)
		if err != nil || target == name || s.kinds[keyOf(target)] != tar.TypeReg {
			return s.m.unsafeLink(name, "a hard link to something that is not an earlier file of the stream")
		}
		if err := s.place(name, dir, tar.TypeReg); err != nil {
			return err
		}
		return s.link(h, name, s.t.opt.place(s.t.opt.Prefix+target, false))
	default:
		s.m.omit(name, reasonOf(h.Typeflag))
	}
	return nil
}

// reserved reports whether the entry, or a directory above it, has a name of the library's own.
func (s *streamed) reserved(name string) bool {
	if s.t.opt.Reserved == nil {
		return false
	}
	for i := range len(name) {
		if name[i] == '/' && s.t.opt.Reserved(name[:i]) {
			return true
		}
	}
	return s.t.opt.Reserved(name)
}

// enter makes sure that a directory is one, and that the archive has it.
func (s *streamed) enter(dir string) error {
	if dir == "" || dir == s.last {
		return nil
	}
	// What leads to the one that was entered last is there, and no member can have changed that.
	for i := shared(dir, s.last); i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		key := keyOf(dir[:i])
		switch s.kinds[key] {
		case tar.TypeDir:
		case 0:
			if err := s.m.another(); err != nil {
				return err
			}
			if err := s.send(&tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Now()}, dir[:i]); err != nil {
				return err
			}
		default:
			return fail(ErrUnsafe, dir[:i], "a member would be written through something that is not a directory", nil)
		}
	}
	s.last = dir
	return nil
}

// shared returns how long the path is that two directories have in common, if the first one lies below it.
func shared(dir, other string) int {
	end := 0
	for i := 0; i < len(dir) && i < len(other) && dir[i] == other[i]; i++ {
		if dir[i] == '/' {
			end = i
		}
	}
	return end
}

// place notes an entry that is not a directory.
func (s *streamed) place(name, dir string, kind byte) error {
	if err := s.enter(dir); err != nil {
		return err
	}
	key := keyOf(name)
	if s.kinds[key] == tar.TypeDir {
		return fail(ErrUnsafe, name, "it would replace a directory of the archive", nil)
	}
	s.kinds[key] = kind
	return nil
}

func (s *streamed) directory(h *tar.Header, name, dir string) error {
	if err := s.enter(dir); err != nil {
		return err
	}
	if kind := s.kinds[keyOf(name)]; kind != 0 && kind != tar.TypeDir {
		return fail(ErrUnsafe, name, "a directory of the name of an earlier member", nil)
	}
	if err := s.send(h, name); err != nil {
		return err
	}
	s.t.done(0)
	return nil
}

// maxDirNames bounds the names of the directories of a stream, without what leads to them, in bytes: they are held.
const maxDirNames = 64 << 20

// send passes on a directory.
func (s *streamed) send(h *tar.Header, name string) error {
	key := keyOf(name)
	if s.kinds[key] == 0 {
		_, base := split(name)
		if s.named += len(base); s.named > maxDirNames {
			return failf(ErrLimit, name, "more than %d bytes of names of directories", maxDirNames)
		}
		s.kinds[key] = tar.TypeDir
	}
	return s.t.directory(s.header(h, name+"/"))
}

// link writes a symbolic or hard link.
func (s *streamed) link(h *tar.Header, name, target string) error {
	link := s.header(h, name)
	link.Linkname = target
	if err := s.t.header(link); err != nil {
		return err
	}
	s.t.done(0)
	return nil
}

func (s *streamed) file(h *tar.Header, name string) error {
	file := s.header(h, name)
	file.Typeflag, file.Size = tar.TypeReg, h.Size
	if err := s.t.header(file); err != nil {
		return err
	}
	for left := h.Size; left > 0; {
		chunk := s.t.buf[:min(left, int64(len(s.t.buf)))]
		if _, err := io.ReadFull(s.m.tr, chunk); err != nil {
			return s.m.readError(err, name)
		}
		if _, err := s.t.tw.Write(chunk); err != nil {
			return s.t.writeError(err)
		}
		left -= int64(len(chunk))
		s.t.sum.Bytes += int64(len(chunk))
		if left > 0 {
			s.t.progress()
		}
	}
	s.t.done(0)
	return nil
}

// header takes over what a member may decide: permission bits and time.
func (s *streamed) header(h *tar.Header, name string) *tar.Header {
	at := time.Unix(0, 0)
	if sensibleTime(h.ModTime) {
		at = wholeSecond(h.ModTime)
	}
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeSymlink {
		mode = 0o777
	}
	whole := s.t.opt.Prefix + name
	if h.Typeflag != tar.TypeDir {
		whole = s.t.opt.place(whole, false)
	}
	return &tar.Header{Typeflag: h.Typeflag, Name: whole, Mode: int64(mode), ModTime: at, Format: tar.FormatGNU}
}

// Reserved returns a function for [WriteOptions.Reserved]: it reserves one path of the tree, "" for none, and the names
// of the library's own scratch everywhere.
func Reserved(own string) func(name string) bool {
	return func(name string) bool {
		return name == own && own != "" || strings.HasPrefix(path.Base(name), StagePrefix)
	}
}
