package archive

import (
	"archive/tar"
	"context"
	"io"
	"time"
)

// Copy writes the members of an archive that nobody vouches for to another archive, after the checks of [Extract]: the
// result has no names and links that [ExtractOptions.Links] does not allow, no owners, no devices, and no set-id and sticky
// bits. Nothing in it lies behind a symbolic link of it, no hard link's target either: who extracts it and follows what was
// made before stays in the tree. It is an archive only once Copy has succeeded: before, its end is missing. Options about
// the host's disk do not apply. A small record of each symbolic link is held. A hard link to a symbolic link becomes that
// link again.
//
// That a hard link's target is a file that came before is left to who extracts it.
func Copy(ctx context.Context, r io.Reader, w io.Writer, opt ExtractOptions) (Summary, error) {
	opt = opt.withDefaults()
	var sum Summary
	c := &copier{m: newMembers(ctx, r, opt, &sum), opt: opt, sum: &sum, out: tar.NewWriter(w), links: map[nameKey]string{}, buf: make([]byte, chunkSize)}
	for {
		h, name, err := c.m.next()
		if err == io.EOF {
			break
		}
		if err == nil && name != "" && !c.m.excluded(name, h.Typeflag == tar.TypeDir) {
			err = c.member(h, name)
		}
		if err != nil {
			return sum, err
		}
		if opt.Progress != nil {
			opt.Progress(sum.Entries, sum.Bytes)
		}
	}
	if err := c.out.Close(); err != nil {
		return sum, fail(ErrDest, "", "", err)
	}
	return sum, nil
}

type copier struct {
	m   *members
	opt ExtractOptions
	sum *Summary
	out *tar.Writer
	buf []byte

	links map[nameKey]string // the symbolic links that nothing has replaced, and their targets; "" when maxTargets are held
	held  int                // bytes of targets
	clear string             // a directory that is none of them, and does not lie behind one
}

// maxTargets bounds the targets of symbolic links that are held, in bytes.
const maxTargets = 16 << 20

// behind reports whether a path passes through a symbolic link of the archive.
func (c *copier) behind(name string) bool {
	dir, _ := split(name)
	if len(c.links) == 0 || dir == c.clear {
		return false
	}
	for i := range len(name) {
		if name[i] == '/' && c.isLink(name[:i]) {
			return true
		}
	}
	c.clear = dir
	return false
}

func (c *copier) isLink(name string) bool {
	_, ok := c.links[keyOf(name)]
	return ok
}

// place notes an entry, which must not lie behind a link, nor be a directory in the place of one.
func (c *copier) place(kind byte, name, target string) error {
	if c.behind(name) {
		return fail(ErrUnsafe, name, "a member would be written through something that is not a directory", nil)
	}
	key := keyOf(name)
	delete(c.m.omitted, key)
	switch kind {
	case tar.TypeSymlink:
		c.held -= len(c.links[key])
		if c.held += len(target); c.held > maxTargets {
			c.held -= len(target)
			target = ""
		}
		c.links[key] = target
		if within(c.clear, name) {
			c.clear = ""
		}
	case tar.TypeDir:
		if c.isLink(name) {
			return fail(ErrUnsafe, name, "a directory of the name of an earlier member", nil)
		}
	default:
		c.held -= len(c.links[key])
		delete(c.links, key)
	}
	return nil
}

func (c *copier) member(h *tar.Header, name string) error {
	clean := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o777, ModTime: h.ModTime, Format: tar.FormatGNU}
	if !sensibleTime(h.ModTime) {
		clean.ModTime = time.Unix(0, 0)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if err := c.m.admit(h, name); err != nil {
			return err
		}
		clean.Typeflag, clean.Size = tar.TypeReg, h.Size
	case tar.TypeDir:
		clean.Name += "/"
	case tar.TypeSymlink:
		dir, _ := split(name)
		if !c.m.linkAllowed(dir, h.Linkname) {
			return c.m.unsafeLink(name, "a link out of the tree")
		}
		clean.Linkname = h.Linkname
	case tar.TypeLink:
		target, err := c.m.name(h.Linkname)
		if err != nil || target == "" || target == name {
			return c.m.unsafeLink(name, "a hard link out of the tree")
		}
		if reason, ok := c.m.omitted[keyOf(target)]; ok {
			c.m.omit(name, reason)
			return nil
		}
		link := c.links[keyOf(target)]
		dir, _ := split(name)
		switch {
		case c.opt.Exclude.MatchBelow(target, false):
			return c.m.unsafeLink(name, linkToExcluded)
		case c.behind(target), link == "" && c.isLink(target):
			return c.m.unsafeLink(name, linkToNoFile)
		case link == "":
			clean.Linkname = target
		case !c.m.linkAllowed(dir, link):
			return c.m.unsafeLink(name, "a link out of the tree")
		default:
			clean.Typeflag, clean.Linkname = tar.TypeSymlink, link
		}
	default:
		c.m.omit(name, reasonOf(h.Typeflag))
		return nil
	}
	if err := c.place(clean.Typeflag, name, clean.Linkname); err != nil {
		return err
	}
	if err := c.out.WriteHeader(clean); err != nil {
		return fail(ErrDest, name, "", err)
	}
	for left := clean.Size; left > 0; {
		n, err := c.m.tr.Read(c.buf[:min(left, int64(len(c.buf)))])
		if n > 0 {
			if _, err := c.out.Write(c.buf[:n]); err != nil {
				return fail(ErrDest, name, "", err)
			}
			left -= int64(n)
			if err := c.m.copied(int64(n), name); err != nil {
				return err
			}
			if c.opt.Progress != nil && left > 0 {
				c.opt.Progress(c.sum.Entries, c.sum.Bytes)
			}
		}
		if err != nil && left > 0 {
			return c.m.readError(err, name)
		}
	}
	c.sum.Entries++
	return nil
}
