package archive

import (
	"archive/tar"
	"context"
	"io"
	"time"
)

// Copy writes the members of an archive that nobody vouches for to another archive, after the checks of [Extract]: the
// result has no names and links that [ExtractOptions.Links] does not allow, no owners, no devices, and no set-id and sticky bits.
// It is an archive only once Copy has succeeded: before, its end is missing. Options about the host's disk do not apply.
//
// A hard link is checked as to its name. That its target is a file that came before is left to who extracts it.
func Copy(ctx context.Context, r io.Reader, w io.Writer, opt ExtractOptions) (Summary, error) {
	opt = opt.withDefaults()
	var sum Summary
	c := &copier{m: newMembers(ctx, r, opt, &sum), opt: opt, sum: &sum, out: tar.NewWriter(w), buf: make([]byte, chunkSize)}
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
			return unsafeLink(c.opt, c.sum, name, "a link out of the tree")
		}
		clean.Linkname = h.Linkname
	case tar.TypeLink:
		target, err := c.m.name(h.Linkname)
		if err != nil || target == "" || target == name {
			return unsafeLink(c.opt, c.sum, name, "a hard link out of the tree")
		}
		clean.Linkname = target
	default:
		c.sum.skipKind(h.Typeflag, name)
		return nil
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
