package archive

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// chain is a path of directories below a root, by which a tree is walked. Only the innermost of them are open, so that a
// tree may be deeper than the process may hold files open, and its paths longer than the system takes. An outer one is
// opened again when the walk comes back to it, and has to be the one that it was.
type chain struct {
	root  *os.Root // not the chain's to close
	links []link
}

type link struct {
	name string
	dir  *os.Root    // nil when it is not open
	self fs.FileInfo // tells which directory it is
}

// openLinks is how many directories of a chain are open.
const openLinks = 64

// errSwapped is the error of a directory that was another one when it was opened again.
var errSwapped = errors.New("another directory took its place")

// top returns the innermost directory.
func (c *chain) top() (*os.Root, error) {
	n := len(c.links)
	if n == 0 {
		return c.root, nil
	}
	if dir := c.links[n-1].dir; dir != nil {
		return dir, nil
	}
	// All of them are closed: those that are open are always the last ones.
	first := max(0, n-openLinks)
	names := make([]string, first+1)
	for i := range names {
		names[i] = c.links[i].name
	}
	at, name := c.root, strings.Join(names, "/")
	for i := first; i < n; i++ {
		l := &c.links[i]
		dir, err := at.OpenRoot(name + onlyDir)
		if err != nil {
			c.shut(first)
			return nil, err
		}
		l.dir = dir
		if self, err := dir.Lstat("."); err != nil || !same(l.self, self) {
			c.shut(first)
			return nil, errSwapped
		}
		if at = dir; i+1 < n {
			name = c.links[i+1].name
		}
	}
	return at, nil
}

// push enters a directory of the innermost one.
func (c *chain) push(name string) error {
	at, err := c.top()
	if err != nil {
		return err
	}
	dir, err := at.OpenRoot(name + onlyDir)
	if err != nil {
		return err
	}
	self, err := dir.Lstat(".")
	if err != nil {
		dir.Close()
		return err
	}
	c.links = append(c.links, link{name, dir, self})
	if i := len(c.links) - 1 - openLinks; i >= 0 {
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
func (c *chain) close() { c.shut(max(0, len(c.links)-openLinks)) }

func (c *chain) shut(from int) {
	for i := from; i < len(c.links); i++ {
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
