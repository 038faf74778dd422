package archive

import (
	"context"
	"io"
	"io/fs"
	"os"
)

// Target is where a file of an archive goes.
type Target struct {
	Name string      // of the member; "" is any
	Path string      // on the host
	Mode fs.FileMode // 0: the archive's
}

// ExtractFiles makes each target a regular file with the content of one member of the archive, which has exactly these
// members, in this order. Several archives may follow each other. Each is written beside its destination, gets its mode and
// time, and takes its place by rename once the archive has proved to be whole. On any failure before the first rename, all
// earlier files are as they were. A destination that is a link or not a regular file, or given twice, is refused with
// [ErrType], before anything is read; one that only the host cannot tell from another, before it is renamed; an archive of
// other members, or with one that is not a regular file, with [ErrUnsafe].
//
// Until they are published, two files are held open for each target.
func ExtractFiles(ctx context.Context, r io.Reader, targets []Target, opt ExtractOptions) (Summary, error) {
	opt = opt.withDefaults()
	var sum Summary
	stages := make([]*stage, len(targets))
	for i, t := range targets {
		st, err := newStage(t.Path, false)
		if err != nil {
			return sum, err
		}
		defer st.close()
		stages[i] = st
		for _, other := range stages[:i] {
			if st.is(other) {
				return sum, fail(ErrType, t.Path, "it is the destination of two files", nil)
			}
		}
	}
	m := newMembers(ctx, r, opt, &sum)
	m.joined = true
	buf := make([]byte, chunkSize)
	progress := func() {
		if opt.Progress != nil {
			opt.Progress(sum.Entries, sum.Bytes)
		}
	}
	for i, t := range targets {
		if err := stages[i].fill(m, t, buf, progress); err != nil {
			return sum, err
		}
		sum.Entries++
		progress()
	}
	if other, _, err := m.next(); err == nil {
		return sum, fail(ErrUnsafe, other.Name, "a member more than there are files", nil)
	} else if err != io.EOF {
		return sum, err
	}
	for _, st := range stages {
		if err := st.check(false); err != nil {
			return sum, err
		}
	}
	for i, st := range stages {
		if err := st.publishFile(stages[:i]); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// fill makes the staged file from the archive's next member.
func (s *stage) fill(m *members, t Target, buf []byte, progress func()) error {
	h, name, err := m.next()
	switch {
	case err == io.EOF:
		return fail(ErrUnsafe, t.Name, "an archive without the file", nil)
	case err != nil:
		return err
	case !regular(h.Typeflag):
		return fail(ErrUnsafe, h.Name, "it is not a regular file", nil)
	case t.Name != "" && h.Name != t.Name:
		return fail(ErrUnsafe, h.Name, "another file was asked for", nil)
	}
	if err := m.admit(h, name); err != nil {
		return err
	}
	f, err := s.parent.OpenFile(s.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(ErrDest, t.Path, "", err)
	}
	s.hold()
	err = copyContent(m, f, name, h, newSpace(s.parent, m.opt), buf, progress)
	mode := t.Mode
	if mode == 0 {
		mode = fs.FileMode(h.Mode)
	}
	if err == nil {
		err = destError(t.Path, f.Chmod(mode.Perm()))
	}
	if cerr := f.Close(); err == nil {
		err = destError(t.Path, cerr)
	}
	if err != nil {
		return err
	}
	if sensibleTime(h.ModTime) {
		if err := s.parent.Chtimes(s.name, h.ModTime, h.ModTime); err != nil {
			return fail(ErrDest, t.Path, "", err)
		}
	}
	return nil
}
