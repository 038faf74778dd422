package toolbox

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fileInfo is the daemon's description of one file (schema FileInfo). Owner and group are numbers in
// decimal, permissions the nine mode bits in four octal digits.
type fileInfo struct {
	Name        string    `json:"name"`
	Size        int64     `json:"size"`
	Mode        string    `json:"mode"`
	ModTime     string    `json:"modTime"`    // Go's time.Time.String, which no parser of dates accepts
	ModifiedAt  time.Time `json:"modifiedAt"` // the same moment as RFC 3339; absent before v0.184
	IsDir       bool      `json:"isDir"`
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	Permissions string    `json:"permissions"`
}

// routeFiles adds the /files endpoints. They act on the host's files as the host's user: relative paths
// start at the working directory, absolute ones are taken as they are, and "~" means nothing special.
// Except where a comment says otherwise an error is a status with an empty body.
func (t *Toolbox) routeFiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", t.listFiles)
	mux.HandleFunc("DELETE /files", t.deleteFile)
	mux.HandleFunc("GET /files/info", t.fileInfo)
	mux.HandleFunc("POST /files/folder", t.createFolder)
	mux.HandleFunc("POST /files/permissions", t.setPermissions)
	mux.HandleFunc("POST /files/move", t.moveFile)
	mux.HandleFunc("POST /files/upload", t.upload)
	mux.HandleFunc("POST /files/bulk-upload", t.bulkUpload)
	mux.HandleFunc("GET /files/download", t.download)
	mux.HandleFunc("POST /files/bulk-download", t.bulkDownload)
	mux.HandleFunc("GET /files/search", t.searchFiles)
	mux.HandleFunc("GET /files/find", t.findInFiles)
	mux.HandleFunc("POST /files/replace", t.replaceInFiles)
}

// path turns a path of a request into one of the host.
func (t *Toolbox) path(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(t.opts.WorkDir, p)
}

// fileStatus is the status a file endpoint answers for an error of the file system.
func fileStatus(err error) int {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden
	default:
		return http.StatusBadRequest
	}
}

// stat describes the file at path p of a request. It follows links, so that a broken one does not exist.
func (t *Toolbox) stat(p string) (fileInfo, error) {
	info, err := os.Stat(t.path(p))
	if err != nil {
		return fileInfo{}, err
	}
	owner, group := ownerOf(info)
	return fileInfo{
		Name:        info.Name(),
		Size:        info.Size(),
		Mode:        info.Mode().String(),
		ModTime:     info.ModTime().String(),
		ModifiedAt:  info.ModTime(),
		IsDir:       info.IsDir(),
		Owner:       owner,
		Group:       group,
		Permissions: octal(info.Mode()),
	}, nil
}

func octal(mode fs.FileMode) string {
	digits := strconv.FormatUint(uint64(mode.Perm()), 8)
	return strings.Repeat("0", max(0, 4-len(digits))) + digits
}

func (t *Toolbox) fileInfo(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Query().Get("path")
	if p == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	info, err := t.stat(p)
	if err != nil {
		w.WriteHeader(fileStatus(err))
		return
	}
	writeJSON(w, http.StatusOK, info)
}

// listFiles describes what a directory holds, in order of name. Entries that cannot be described, such as
// broken links, are silently left out.
func (t *Toolbox) listFiles(w http.ResponseWriter, r *http.Request) {
	dir := r.URL.Query().Get("path")
	entries, err := os.ReadDir(t.path(dir))
	if err != nil {
		w.WriteHeader(fileStatus(err))
		return
	}
	infos := make([]fileInfo, 0, len(entries))
	for _, entry := range entries {
		info, err := t.stat(filepath.Join(t.path(dir), entry.Name()))
		if err != nil {
			continue
		}
		infos = append(infos, info)
	}
	writeJSON(w, http.StatusOK, infos)
}

// createFolder makes a directory and its parents, all with the given mode less the umask. One that exists
// is fine and keeps its mode.
func (t *Toolbox) createFolder(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	mode, err := parseMode(query.Get("mode"), 0o755)
	if err != nil || query.Get("path") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p := t.path(query.Get("path"))
	if info, err := os.Stat(p); (err != nil || !info.IsDir()) && t.diskFull() {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := os.MkdirAll(p, mode); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// parseMode reads octal digits. Setuid, setgid and sticky bits are accepted and lost, as in the daemon,
// which hands the number to Go, where those bits have other places.
func parseMode(s string, absent fs.FileMode) (fs.FileMode, error) {
	if s == "" {
		return absent, nil
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil {
		return 0, err
	}
	return fs.FileMode(n) & fs.ModePerm, nil
}

// setPermissions changes mode, owner and group: each one that is given.
func (t *Toolbox) setPermissions(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("path") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p := t.path(query.Get("path"))
	if _, err := os.Stat(p); err != nil {
		w.WriteHeader(fileStatus(err))
		return
	}
	if query.Get("mode") != "" {
		mode, err := parseMode(query.Get("mode"), 0)
		if err == nil {
			err = os.Chmod(p, mode)
		}
		if err != nil {
			w.WriteHeader(fileStatus(err))
			return
		}
	}
	if query.Get("owner") != "" || query.Get("group") != "" {
		uid, gid, err := lookupOwner(query.Get("owner"), query.Get("group"))
		if err == nil {
			err = os.Chown(p, uid, gid)
		}
		if err != nil {
			w.WriteHeader(fileStatus(err))
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

// deleteFile removes a file, or with recursive=true a directory and all it holds. It looks through links to
// decide whether there is something and whether it is a directory, and removes the link.
func (t *Toolbox) deleteFile(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("path") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p := t.path(query.Get("path"))
	info, err := os.Stat(p)
	if err != nil {
		w.WriteHeader(fileStatus(err))
		return
	}
	remove := os.Remove
	if info.IsDir() {
		if query.Get("recursive") != "true" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		remove = os.RemoveAll
	}
	if err := remove(p); err != nil {
		w.WriteHeader(fileStatus(err))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// moveFile renames. It never replaces what it can see at the destination, and creates no parents.
func (t *Toolbox) moveFile(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("source") == "" || query.Get("destination") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	from, to := t.path(query.Get("source")), t.path(query.Get("destination"))
	for _, p := range []string{from, filepath.Dir(to)} {
		if _, err := os.Stat(p); err != nil {
			w.WriteHeader(fileStatus(err))
			return
		}
	}
	if _, err := os.Stat(to); err == nil {
		w.WriteHeader(http.StatusConflict)
		return
	}
	err := os.Rename(from, to)
	if errors.Is(err, syscall.EXDEV) {
		if err = t.copyTree(from, to); err == nil {
			err = os.RemoveAll(from)
		}
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// copyTree copies a file, or a directory and all it holds, to another file system.
func (t *Toolbox) copyTree(from, to string) error {
	return filepath.Walk(from, func(p string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if info.IsDir() {
			return os.MkdirAll(target, info.Mode().Perm())
		}
		src, err := os.Open(p)
		if err != nil {
			return err
		}
		defer src.Close()
		_, err = t.writeFile(target, info.Mode().Perm(), src)
		return err
	})
}

// diskFull says whether writing fails at this moment.
func (t *Toolbox) diskFull() bool {
	return t.opts.Quirks.DiskFull != nil && t.opts.Quirks.DiskFull()
}

// writeFile replaces the content of the file at host path p by what r delivers, in constant memory. It
// writes in place, as the daemon does: links are followed, an existing file keeps its mode, and a failure
// leaves what was written so far, which is an empty file when the disk is full.
func (t *Toolbox) writeFile(p string, mode fs.FileMode, r io.Reader) (int64, error) {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|openWithoutWaiting, mode)
	if err != nil {
		return 0, err
	}
	// A part of a form comes in pieces of 4 KiB.
	buffer := bufio.NewWriterSize(fullDisk{f, t.diskFull}, writeBuffer)
	n, err := io.Copy(buffer, r)
	if flushErr := buffer.Flush(); err == nil {
		err = flushErr
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return n, err
}

// writeBuffer is how much of a file is written at once.
const writeBuffer = 256 << 10

// fullDisk is a file whose writes fail while full says so. It hides the file's other methods, so that
// nothing copies past Write.
type fullDisk struct {
	file *os.File
	full func() bool
}

func (d fullDisk) Write(b []byte) (int, error) {
	if len(b) > 0 && d.full() {
		return 0, &fs.PathError{Op: "write", Path: d.file.Name(), Err: syscall.ENOSPC}
	}
	return d.file.Write(b)
}
