package archive

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// StagePrefix starts the names of the private directories and files in which transfers prepare their result.
const StagePrefix = ".leasehold-xfer-"

// StageName returns a new unguessable name with [StagePrefix].
func StageName() string { return StagePrefix + strings.ToLower(rand.Text()) }

// stage prepares a directory or a file beside its destination, and publishes it by rename. It works relative to the
// opened parent, so that parent's own ancestors may be renamed meanwhile.
type stage struct {
	parent *os.Root
	base   string      // the destination's name in parent
	path   string      // the destination as the caller wrote it, for errors
	name   string      // of the prepared entry in parent
	lock   *os.File    // the prepared entry, held while it is in use, see sweepStages
	before fs.FileInfo // what is at the destination, nil for nothing
	in     fs.FileInfo // parent; nil if that cannot be told
}

// is reports whether two stages have one destination, by whatever paths.
func (s *stage) is(other *stage) bool {
	return s.base == other.base && s.in != nil && other.in != nil && os.SameFile(s.in, other.in)
}

// newStage opens the destination's parent, after making it if needed, and checks the destination.
func newStage(dest string, dir bool) (*stage, error) {
	if dest == "" { // which would mean the working directory of the process
		return nil, fail(ErrType, dest, "no destination was named", nil)
	}
	abs, err := filepath.Abs(dest)
	if err != nil {
		return nil, fail(ErrDest, dest, "", err)
	}
	parent, base := filepath.Dir(abs), filepath.Base(abs)
	if parent == abs {
		return nil, fail(ErrType, dest, "the root of a file system cannot be replaced", nil)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fail(ErrDest, dest, "its parent cannot be made", err)
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return nil, fail(ErrDest, dest, "", err)
	}
	sweepStages(root)
	s := &stage{parent: root, base: base, path: dest, name: StageName()}
	s.in, _ = root.Stat(".")
	if err := s.check(dir); err != nil {
		root.Close()
		return nil, err
	}
	return s, nil
}

func (s *stage) check(dir bool) error {
	fi, err := s.parent.Lstat(s.base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.before = nil
		return nil
	case err != nil:
		return fail(ErrDest, s.path, "", err)
	case dir && !fi.IsDir():
		return fail(ErrType, s.path, "it is not a directory", nil)
	case !dir && !fi.Mode().IsRegular():
		return fail(ErrType, s.path, "it is not a regular file", nil)
	}
	s.before = fi
	return nil
}

// makeDir makes the private directory and opens it.
func (s *stage) makeDir() (*os.Root, error) {
	if err := s.parent.Mkdir(s.name, 0o700); err != nil {
		return nil, fail(ErrDest, s.path, "", err)
	}
	root, err := s.parent.OpenRoot(s.name)
	if err != nil {
		return nil, fail(ErrDest, s.path, "", err)
	}
	s.hold()
	return root, nil
}

// hold marks the prepared entry as being in use until the stage is closed, so that it stays marked when it has become what
// others may sweep if they find it abandoned: it may say that it is old.
func (s *stage) hold() { s.lock = holdStage(s.parent, s.name) }

// close removes what was not published.
func (s *stage) close() {
	if s.name != "" {
		_ = removeTree(s.parent, s.name)
	}
	if s.lock != nil {
		s.lock.Close()
	}
	s.parent.Close()
}

// sweepStages removes what extractions into the same parent left when their process was killed. Failing to is no failure.
//
// A stage that is in use is locked. One that was made a moment ago may not be yet.
func sweepStages(parent *os.Root) {
	d, err := parent.Open(".")
	if err != nil {
		return
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if strings.HasPrefix(name, StagePrefix) && stageAbandoned(parent, name) {
				_ = removeTree(parent, name)
			}
		}
		if err != nil {
			return
		}
	}
}

const (
	stageUnlocked = time.Minute    // how long a new stage may be unlocked
	stageUnknown  = 24 * time.Hour // and how old one must be where nobody can tell whether it is locked
)

// stageAbandoned reports whether no living process uses a stage.
func stageAbandoned(parent *os.Root, name string) bool {
	fi, err := parent.Lstat(name)
	if err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
		return false
	}
	age := time.Since(fi.ModTime())
	if age < stageUnlocked {
		return false
	}
	f, err := parent.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return age > stageUnknown
	}
	defer f.Close()
	free, known := stageFree(f)
	return known && free || !known && age > stageUnknown
}

// publishFile puts the prepared file in the destination's place, after earlier ones.
func (s *stage) publishFile(earlier []*stage) error {
	stay := ""
	if len(earlier) > 0 {
		stay = "earlier files are in their places"
	}
	// A file system that folds case or Unicode forms has one of them there, if it takes both names for one.
	if there, err := s.parent.Lstat(s.base); err == nil {
		for _, other := range earlier {
			if os.SameFile(other.before, there) {
				return fail(ErrType, s.path, "it is the destination of two files: "+stay, nil)
			}
		}
	}
	made, err := s.parent.Lstat(s.name)
	if err == nil {
		err = s.parent.Rename(s.name, s.base)
	}
	if err != nil {
		return fail(ErrDest, s.path, stay, err)
	}
	s.name, s.before = "", made
	return nil
}

// publishDir puts the prepared directory in the destination's place, and removes what was there.
// It returns the path of earlier content that would not go away.
func (s *stage) publishDir(asked fs.FileMode) (leftover string, err error) {
	if err := s.check(true); err != nil {
		return "", err
	}
	mode := asked
	if mode == 0 {
		mode = 0o755
		if s.before != nil {
			mode = s.before.Mode()
		}
	}
	if err := s.parent.Chmod(s.name, mode.Perm()); err != nil {
		return "", fail(ErrDest, s.path, "", err)
	}
	if s.before == nil {
		switch err := s.parent.Rename(s.name, s.base); {
		case errors.Is(err, fs.ErrExist): // another has published there since
			return s.publishDir(asked)
		case err != nil:
			return "", fail(ErrDest, s.path, "", err)
		}
		s.name = ""
		return "", nil
	}
	// While it has a stage's name, nobody but this process is to remove it.
	if earlier := holdStage(s.parent, s.base); earlier != nil {
		defer earlier.Close()
	}
	old := s.name
	if !exchange(s.parent, s.name, s.base) {
		if old, err = s.aside(); err != nil {
			return "", err
		}
		if err := s.parent.Rename(s.name, s.base); err != nil {
			if back := s.parent.Rename(old, s.base); back != nil {
				return "", fail(ErrDest, s.path, "its earlier content is now in "+QuoteName(old), err)
			}
			return "", fail(ErrDest, s.path, "", err)
		}
		if s.parent.Rename(old, s.name) == nil { // which is swept, should this process be killed now
			old = s.name
		}
	}
	s.name = ""
	if removeTree(s.parent, old) != nil {
		leftover = filepath.Join(filepath.Dir(s.path), old)
	}
	return leftover, nil
}

// earlierPrefix starts the name that the destination's earlier content has between two renames.
const earlierPrefix = ".leasehold-earlier-"

// aside gives what is at the destination another name, for a moment. If the process is killed in it, that is all that is
// left of the earlier content: so it is not the name of a stage, which would be swept.
func (s *stage) aside() (string, error) {
	name := earlierPrefix + strings.TrimPrefix(StageName(), StagePrefix)
	if err := s.parent.Rename(s.base, name); err != nil {
		return "", fail(ErrDest, s.path, "", err)
	}
	return name, nil
}
