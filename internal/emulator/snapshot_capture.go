package emulator

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// capture answers POST /sandbox/{id}/snapshot. The sandbox is "snapshotting" meanwhile, and then what it was; the
// snapshot appears at the end, if it does.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) *apiError {
	fields, err := parseObject(r)
	if err != nil {
		return err
	}
	f := &fieldReader{fields: fields}
	name := f.text("name")
	if name == "" {
		f.messages = append(f.messages, "name should not be empty")
	}
	if err := f.err(); err != nil {
		return err
	}
	fault := faultOf(r)
	fails := fault.is(RunnerFailure)
	var d fullDTO
	_, err = s.withSandbox(r, func(sb *sandbox) *apiError {
		if sb.State != StateStarted && sb.State != StateStopped {
			return refuse(http.StatusBadRequest, "Sandbox must be in started or stopped state to create a snapshot")
		}
		if sb.pending || sb.Desired == StateDestroyed {
			return errPending
		}
		if err := s.nameSnapshot(sb.Organization, name); err != nil {
			return err
		}
		before := sb.State
		s.change(sb, func(r *record) { r.State = StateSnapshotting })
		s.begin(sb, fault.stall(), func(o *outcome) {
			if o.wait(s.opt.Timing.Capture) {
				s.captured(o, before, name, fails)
			}
		})
		d = s.dto(sb.now(), skewOf(r)).full()
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// captured copies a sandbox's files and ends the capture. Its processes, unlike those of a paused container, go on meanwhile:
// a file that they write to is copied as it is when its turn comes.
func (s *Server) captured(o *outcome, before State, name string, fails bool) {
	made := snapshotRecord{ID: uuid.NewString(), Name: name, State: SnapshotActive, CreatedAt: time.Now(), Files: s.hasFiles()}
	s.mu.Lock()
	sb := o.sb.record
	s.mu.Unlock()
	made.Organization, made.Region = sb.Organization, sb.Target
	made.CPU, made.GPU, made.Memory, made.Disk = sb.CPU, sb.GPU, sb.Memory, sb.Disk
	if made.Files && !fails {
		if err := copyTree(s.snapshotFiles(made.ID), s.homeDir(sb.ID)); err != nil {
			s.log.Error("capturing a sandbox's files", "sandbox", sb.ID, "err", err)
			fails = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.sb.op != o.op {
		return
	}
	if !fails && s.findSnapshot(made.Organization, name) == nil {
		s.insertSnapshot(made)
	}
	o.sb.pending = false
	s.change(o.sb, func(r *record) { r.State = before })
}

// copyTree copies directories, regular files and links, the first two with their permissions and times of modification. What
// else there is has no meaning in another sandbox. What vanishes meanwhile is not copied: processes may be at work there.
func copyTree(to, from string) error {
	c := treeCopy{to: to, from: from}
	err := filepath.WalkDir(from, c.visit)
	for _, f := range slices.Backward(c.finish) {
		err = errors.Join(err, f())
	}
	return err
}

type treeCopy struct {
	to, from string
	finish   []func() error // of directories, whose content changes their times, and which may forbid it in the end
}

// visit is a fs.WalkDirFunc.
func (c *treeCopy) visit(path string, entry fs.DirEntry, err error) error {
	vanished := func(err error) bool { return errors.Is(err, fs.ErrNotExist) && path != c.from }
	if err != nil && !vanished(err) {
		return err
	}
	info, err := entry.Info()
	switch {
	case vanished(err) && entry.IsDir():
		return fs.SkipDir
	case vanished(err):
		return nil
	case err != nil:
		return err
	}
	target := filepath.Join(c.to, strings.TrimPrefix(path, c.from))
	switch {
	case entry.IsDir():
		c.finish = append(c.finish, func() error { return likeness(target, info) })
		return os.MkdirAll(target, 0o700)
	case entry.Type() == fs.ModeSymlink:
		link, err := os.Readlink(path)
		if err == nil {
			err = os.Symlink(link, target)
		} else if vanished(err) {
			err = nil
		}
		return err
	case entry.Type().IsRegular():
		in, err := os.Open(path)
		if vanished(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer in.Close()
		return copyFile(target, in, info)
	}
	return nil
}

func copyFile(target string, in *os.File, info fs.FileInfo) error {
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return likeness(target, info)
}

// likeness gives a file or a directory the permissions and the time of another.
func likeness(target string, info fs.FileInfo) error {
	return errors.Join(os.Chtimes(target, time.Time{}, info.ModTime()), os.Chmod(target, info.Mode()))
}
