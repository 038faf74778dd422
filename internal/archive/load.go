package archive

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/leasehold-go/leasehold/internal/script"
)

// Load is what an import sends: an archive, and beside it the large files, each by itself. What the archive holds is
// written twice in the sandbox, as archive and as files. A large file is written once, and put in its place by rename.
type Load struct {
	Total Summary // of the walk: entries and bytes that are going to be sent

	opt   WriteOptions
	src   Source // nil for a single file
	file  string // the single file, and its name in the sandbox
	name  string
	large []large
}

// LargeFile is the size in bytes from which on a file is sent by itself. Putting it in its place takes five small
// programs, about as long as writing so much.
const LargeFile = 8 << 20

// large is one large file as the walk saw it.
type large struct {
	name string
	info fs.FileInfo
	open func() (fs.File, error)
}

// Part is one file of an upload. The parts are to be written in order.
type Part struct {
	Name string // path in the scratch directory, see [RemoteImport]
	// Write writes the part, and returns what it holds. It reports its own totals to progress.
	Write func(ctx context.Context, w io.Writer, progress func(entries, bytes int64)) (Summary, error)
}

// LoadTree walks a directory of the host as [WriteTree] does, without reading any file. The load is to be closed.
func LoadTree(ctx context.Context, dir string, opt WriteOptions) (*Load, error) {
	src, err := Dir(dir)
	if err != nil {
		return nil, err
	}
	l := &Load{opt: opt, src: src}
	t := &treeWriter{ctx: ctx, opt: opt, links: map[fileID]string{}, found: &l.large}
	t.opt.Progress = nil
	if err := t.tree(src); err != nil {
		src.Close()
		return nil, err
	}
	l.Total = t.sum
	return l, nil
}

// LoadFile looks at one file of the host, to be sent under a name, as [WriteFile] does. The load is to be closed.
func LoadFile(file, name string, opt WriteOptions) (*Load, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fail(ErrSource, file, "", err)
	}
	l := &Load{opt: opt, file: file, name: name, Total: Summary{Entries: 1, Bytes: info.Size()}}
	if info.Mode().IsRegular() && info.Size() >= LargeFile {
		l.large = []large{{name, info, func() (fs.File, error) { return os.OpenFile(file, os.O_RDONLY|openNonblock, 0) }}}
	}
	return l, nil
}

// Close closes the directory.
func (l *Load) Close() {
	if l.src != nil {
		l.src.Close()
	}
}

// Parts returns what is to be uploaded. The archive comes last; its summary says how long it is.
func (l *Load) Parts() []Part {
	type progress = func(entries, bytes int64)
	var parts []Part
	for i, f := range l.large {
		parts = append(parts, Part{fmt.Sprintf("%s/%d", remoteLarge, i), func(ctx context.Context, w io.Writer, p progress) (Summary, error) {
			return f.write(ctx, w, p)
		}})
	}
	if len(l.large) > 0 {
		parts = append(parts, Part{remoteLarge + "/" + remotePlaces, func(_ context.Context, w io.Writer, _ progress) (Summary, error) {
			if _, err := io.WriteString(w, l.places()); err != nil {
				return Summary{}, fail(ErrWrite, "", "", err)
			}
			return Summary{}, nil
		}})
	}
	return append(parts, Part{RemoteArchive, func(ctx context.Context, w io.Writer, p progress) (Summary, error) {
		opt := l.opt
		opt.Progress = p
		if l.src == nil && len(l.large) == 0 {
			return WriteFile(ctx, w, l.file, l.name, opt)
		}
		t := newTreeWriter(ctx, w, opt)
		t.apart = l.large
		if l.src == nil { // nothing is left for the archive
			return t.finish(nil)
		}
		return t.finish(t.tree(l.src))
	}})
}

// places returns the shell commands that put the large files in their places, see remote_import.sh.
func (l *Load) places() string {
	var b strings.Builder
	for i, f := range l.large {
		at, stamp := f.info.ModTime().UTC(), "-"
		if at.Year() >= 1 && at.Year() <= 9999 {
			stamp = at.Format("200601021504.05")
		}
		fmt.Fprintf(&b, "put %d %s %d %o %s\n", i, script.Quote(f.name), f.info.Size(), fileMode(f.info, l.opt), stamp)
	}
	return b.String()
}

// Import returns the request that takes the uploaded load in, whose archive has so many bytes.
func (l *Load) Import(dir, scratch, own string, bytes int64) RemoteImport {
	return RemoteImport{Dir: dir, Scratch: scratch, Own: own, Bytes: bytes, Places: int64(len(l.places()))}
}

// write writes the content, if the file is still the one that the walk saw.
func (l large) write(ctx context.Context, w io.Writer, progress func(entries, bytes int64)) (Summary, error) {
	t := &treeWriter{ctx: ctx, opt: WriteOptions{Progress: progress}, buf: make([]byte, chunkSize)}
	f, err := l.open()
	if err != nil {
		return t.sum, sourceError(l.name, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return t.sum, sourceError(l.name, err)
	}
	if err := unchanged(l.name, l.info, fi); err != nil {
		return t.sum, err
	}
	err = t.copy(w, f, fi, l.name)
	return t.sum, err
}

// parents returns the directories that hold large files.
func parents(files []large) map[string]bool {
	dirs := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	return dirs
}
