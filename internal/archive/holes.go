package archive

import (
	"io"
	"io/fs"
)

// extent is a range of a sparse file that holds data. It begins and, but at the end of the file, ends at a block.
type extent struct{ offset, size int64 }

// block is what extents are aligned to, in bytes.
const block = 4096

const (
	// minHole is the smallest hole that is kept: to go on behind one takes a small program in the sandbox.
	minHole = 1 << 20
	// maxExtents bounds the extents of a file.
	maxExtents = 64
)

// extents returns what to send of a file, given where it has data. It is nil if there is no hole worth keeping.
func extents(data []extent, size int64) []extent {
	for hole := int64(minHole); ; hole *= 2 {
		var kept []extent
		var sum int64
		for _, e := range data {
			end := min((e.offset+e.size+block-1)/block*block, size)
			e.offset = e.offset / block * block
			if n := len(kept); n > 0 && e.offset-kept[n-1].offset-kept[n-1].size < hole {
				sum += end - kept[n-1].offset - kept[n-1].size
				kept[n-1].size = end - kept[n-1].offset
				continue
			}
			kept = append(kept, extent{e.offset, end - e.offset})
			sum += end - e.offset
		}
		switch {
		case size-sum < minHole:
			return nil
		case len(kept) <= maxExtents:
			return append([]extent{}, kept...)
		}
	}
}

// findHoles notes where a large file has data.
func (l *large) findHoles() error {
	if !hasHoles(l.info) {
		return nil
	}
	f, err := l.open()
	if err != nil {
		return sourceError(l.name, err)
	}
	defer f.Close()
	if data, ok := dataExtents(f, l.info.Size()); ok {
		l.data = extents(data, l.info.Size())
	}
	return nil
}

// copyData copies the data of a sparse file, which the receiver puts back between its holes.
func (t *treeWriter) copyData(w io.Writer, f fs.File, fi fs.FileInfo, l large) error {
	r, ok := f.(io.ReaderAt)
	if !ok {
		return fail(ErrSource, l.name, "it cannot be read in parts", nil)
	}
	for _, e := range l.data {
		t.sum.Bytes = e.offset
		if err := t.exactly(w, io.NewSectionReader(r, e.offset, e.size), e.size, l.name); err != nil {
			return err
		}
	}
	t.sum.Bytes = fi.Size()
	return t.still(f, fi, l.name)
}
