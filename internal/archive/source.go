package archive

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Source is a tree to archive. Make one with [Dir] or [FS].
type Source interface {
	names() ([]string, error) // of the entries, sorted bytewise
	lstat(name string) (fs.FileInfo, error)
	readlink(name string) (string, error)
	open(name string) (fs.File, error) // a file; never follows a link out of the tree, never waits for a FIFO's writer
	sub(name string) (Source, error)   // a directory; to be closed; its own lstat(".") tells which one it is
	// follow resolves a symbolic link: the entry that it leads to is the one of the returned name in the returned
	// source, which is to be closed.
	follow(name string) (Source, string, error)
	reopen(name string) func() (fs.File, error) // opens a file, even when the source has been closed
	Close() error
}

// Dir opens a directory of the host as a source. A path that is a link to a directory is followed once, here; links
// inside are never followed. The caller closes the source.
func Dir(name string) (Source, error) {
	if name == "" {
		return nil, fail(ErrSource, name, "no directory was named", nil)
	}
	root, err := os.OpenRoot(name + onlyDir)
	if err != nil {
		return nil, fail(ErrSource, name, "", err)
	}
	return dirSource{at: &chain{root: root}, path: name}, nil
}

// onlyDir at the end of a path keeps [os.OpenRoot] from opening anything but a directory: it would wait for a FIFO's writer.
const onlyDir = "/."

// dirSource is a directory of the tree at whose root the chain begins. It works relative to open directories, so that
// neither a swapped ancestor nor the length of the path matters. It is used only while the walk is there, and at the root
// when it is over. It does not go through [os.Root.FS], which refuses names that are not UTF-8.
type dirSource struct {
	at    *chain
	depth int
	path  string // by which the root was reached, for links that are followed
}

func (d dirSource) names() ([]string, error) {
	root, err := d.at.top()
	if err != nil {
		return nil, err
	}
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func (d dirSource) lstat(name string) (fs.FileInfo, error) {
	root, err := d.at.top()
	if err != nil {
		return nil, err
	}
	return root.Lstat(name)
}

func (d dirSource) readlink(name string) (string, error) {
	root, err := d.at.top()
	if err != nil {
		return "", err
	}
	return root.Readlink(name)
}

func (d dirSource) open(name string) (fs.File, error) {
	root, err := d.at.top()
	if err != nil {
		return nil, err
	}
	return root.OpenFile(name, os.O_RDONLY|openNonblock, 0)
}

func (d dirSource) Close() error {
	if d.depth == 0 {
		d.at.close()
		return d.at.root.Close()
	}
	d.at.pop()
	return nil
}

func (d dirSource) sub(name string) (Source, error) {
	if err := d.at.push(name); err != nil {
		return nil, err
	}
	return dirSource{d.at, d.depth + 1, d.path}, nil
}

// whole returns the path of an entry.
func (d dirSource) whole(name string) string {
	parts := []string{d.path}
	for _, l := range d.at.links {
		parts = append(parts, l.name)
	}
	return filepath.Join(append(parts, name)...)
}

// follow goes by the path, since a link may leave the tree, which an [os.Root] does not allow.
func (d dirSource) follow(name string) (Source, string, error) {
	real, err := filepath.EvalSymlinks(d.whole(name))
	if err != nil {
		return nil, "", err
	}
	dir, err := Dir(filepath.Dir(real))
	return dir, filepath.Base(real), err
}

func (d dirSource) reopen(name string) func() (fs.File, error) {
	file := d.whole(name)
	return func() (fs.File, error) { return os.OpenFile(file, os.O_RDONLY|openNonblock, 0) }
}

// FS makes a source of a file system. Links are archived when it implements [fs.ReadLinkFS].
func FS(fsys fs.FS) Source { return fsSource{fsys, "."} }

type fsSource struct {
	fsys fs.FS
	dir  string
}

func (s fsSource) names() ([]string, error) {
	f, err := s.fsys.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	entries, err := d.ReadDir(-1)
	if err == io.EOF {
		err = nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.Sort(names)
	return names, err
}

func (s fsSource) lstat(name string) (fs.FileInfo, error) {
	return fs.Lstat(s.fsys, path.Join(s.dir, name))
}
func (s fsSource) readlink(name string) (string, error) {
	return fs.ReadLink(s.fsys, path.Join(s.dir, name))
}
func (s fsSource) open(name string) (fs.File, error) { return s.fsys.Open(path.Join(s.dir, name)) }
func (s fsSource) sub(name string) (Source, error) {
	return fsSource{s.fsys, path.Join(s.dir, name)}, nil
}
func (s fsSource) Close() error { return nil }

func (s fsSource) reopen(name string) func() (fs.File, error) {
	return func() (fs.File, error) { return s.open(name) }
}

func (s fsSource) follow(name string) (Source, string, error) { return followedFS{s}, name, nil }

// followedFS sees what links lead to, as the file system itself resolves them.
type followedFS struct{ fsSource }

func (s followedFS) lstat(name string) (fs.FileInfo, error) {
	return fs.Stat(s.fsys, path.Join(s.dir, name))
}

// join joins two paths of a tree, of which the first may be the root "".
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// split returns the directory, "" for the root, and the last component.
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}
