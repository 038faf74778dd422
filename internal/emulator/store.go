package emulator

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The state directory holds
//
//	organization            the organisation's id
//	records/<id>.json       one record per sandbox
//	sandboxes/<id>/home     its files
//	sandboxes/<id>/tmp      its TMPDIR
//	snapshots/<id>          a snapshot that was created: record.json, and home with its files
//	lock                    held while a server uses the directory (not on Windows)
//
// A temporary directory has the sandboxes and the files of snapshots only.

// load reads the records that an earlier server left. What was running is stopped now; a destruction is completed.
func (s *Server) load() error {
	if !s.hasFiles() {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "sandboxes"), 0o700); err != nil {
		return err
	}
	if s.opt.Dir == "" {
		return nil
	}
	records := filepath.Join(s.dir, "records")
	if err := os.MkdirAll(records, 0o700); err != nil {
		return err
	}
	if organization, err := os.ReadFile(filepath.Join(s.dir, "organization")); err == nil && s.opt.Organization == "" {
		s.opt.Organization = strings.TrimSpace(string(organization))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(records)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		id, isRecord := strings.CutSuffix(entry.Name(), ".json")
		if !isRecord {
			os.Remove(filepath.Join(records, entry.Name())) // an unfinished write
			continue
		}
		text, err := os.ReadFile(filepath.Join(records, entry.Name()))
		if err != nil {
			return err
		}
		var r record
		if err := json.Unmarshal(text, &r); err != nil || r.ID != id {
			return fmt.Errorf("record %s is damaged", entry.Name())
		}
		if r.Desired == StateDestroyed {
			if err := errors.Join(removeTree(s.sandboxDir(id)), os.Remove(filepath.Join(records, entry.Name()))); err != nil {
				return err
			}
			continue
		}
		switch r.State {
		case StateError, StateBuildFailed, StateArchived:
		default:
			if r.State != StateStopped {
				r.ActiveAt = time.Now()
			}
			r.State, r.Desired = StateStopped, StateStopped
		}
		s.insert(r)
	}
	return s.loadSnapshots()
}

// saveOrganization makes the organisation survive, so that the records keep their owner.
func (s *Server) saveOrganization() error {
	if s.opt.Dir == "" {
		return nil
	}
	return writeFile(filepath.Join(s.dir, "organization"), []byte(s.opt.Organization+"\n"))
}

// save writes a sandbox's record, or removes that of a destroyed one. The caller holds s.mu.
func (s *Server) save(sb *sandbox) error {
	if s.opt.Dir == "" {
		return nil
	}
	name := filepath.Join(s.dir, "records", sb.ID+".json")
	if sb.State == StateDestroyed {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.MarshalIndent(sb.record, "", "\t")
	if err != nil {
		return err
	}
	return writeFile(name, text)
}

// writeFile replaces a file by rename, after its content has reached the disk.
func writeFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// makeHome creates a sandbox's directories where they do not exist.
func (s *Server) makeHome(id string) error {
	if !s.hasFiles() {
		return nil
	}
	return errors.Join(os.MkdirAll(s.homeDir(id), 0o755), os.MkdirAll(s.tempDir(id), 0o700))
}

// removeFiles removes a sandbox's directories.
func (s *Server) removeFiles(id string) error {
	if !s.hasFiles() {
		return nil
	}
	return removeTree(s.sandboxDir(id))
}

// removeTree removes a directory tree, even where a sandbox took the permissions for that away.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700) // before WalkDir reads it
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// newToken returns an unguessable token of the shape that preview tokens have.
func newToken() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
