package archive

import (
	"errors"
	"io/fs"
	"os"
)

// chain is a path of directories below a root, by which a tree is walked. Only the innermost of them are open, and some on
// the way, so that a tree may be deeper than the process may hold files open, and its paths longer than the system takes.
// When the walk comes back to another one it is opened again, and has to be the one that it was.
type chain struct {
	root  *os.Root // not the chain's to close
	links []link
}

type link struct {
	name string
	dir  *os.Root    // nil when it is not open
	self fs.FileInfo // tells which directory it is
}

// openLinks is how many directories at the end of a chain are open, and each how many-th before them.
const openLinks = 64

// errSwapped is the error of a directory that was another one when it was opened again.
var errSwapped = errors.New("another directory took its place")

// top returns the innermost directory.
func (c *chain) top() (*os.Root, error) {
	at, i := c.root, len(c.links)
	for i > 0 && c.links[i-1].dir == nil {
		i--
	}
	if i > 0 {
		at = c.links[i-1].dir
	}
	for ; i < len(c.links); i++ {
		l := &c.links[i]
		dir, self, err := openDir(at, l.name)
		if err != nil {
			return nil, err
		}
		if !same(l.self, self) {
			dir.Close()
			return nil, errSwapped
		}
		l.dir, at = dir, dir
	}
	return at, nil
}

func openDir(at *os.Root, name string) (*os.Root, fs.FileInfo, error) {
	dir, err := at.OpenRoot(name + onlyDir)
	if err != nil {
		return nil, nil, err
	}
	self, err := dir.Lstat(".")
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	return dir, self, nil
}

// push enters a directory of the innermost one.
func (c *chain) push(name string) error {
	at, err := c.top()
	if err != nil {
		return err
	}
	dir, self, err := openDir(at, name)
	if err != nil {
		return err
	}
	c.links = append(c.links, link{name, dir, self})
	if i := len(c.links) - 1 - openLinks; i > 0 && i%openLinks != 0 {
		c.links[i].close()
	}
	return nil
}

// pop leaves the innermost directory.
func (c *chain) pop() {
	c.links[len(c.links)-1].close()
	c.links = c.links[:len(c.links)-1]
}

// close closes what is open. The path stays.
func (c *chain) close() {
	for i := range c.links {
		c.links[i].close()
	}
}

func (l *link) close() {
	if l.dir != nil {
		l.dir.Close()
		l.dir = nil
	}
}

// remove removes an entry of the innermost directory with all that is below it, and as much as it can when something will
// not go. Directories without write permission are made writable for it.
func (c *chain) remove(name string) error {
	at, err := c.top()
	if err != nil {
		return err
	}
	err = at.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	fi, look := at.Lstat(name)
	if look != nil || !fi.IsDir() {
		return err
	}
	if fi.Mode()&0o700 != 0o700 {
		_ = at.Chmod(name, fi.Mode().Perm()|0o700) // if it could not be done, what follows fails
	}
	if err := c.push(name); err != nil {
		return err
	}
	err = c.empty()
	c.pop()
	if err != nil {
		return err
	}
	if at, err = c.top(); err != nil {
		return err
	}
	return at.Remove(name)
}

// empty removes what the innermost directory holds.
func (c *chain) empty() error {
	at, err := c.top()
	if err != nil {
		return err
	}
	d, err := at.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	for _, name := range names {
		if e := c.remove(name); err == nil {
			err = e
		}
	}
	return err
}

// removeTree removes a directory and what is below it, see [chain.remove].
func removeTree(root *os.Root, name string) error {
	c := chain{root: root}
	return c.remove(name)
}
