package main

import (
	"io/fs"
	"net/http"

	"github.com/leasehold-go/leasehold"
)

// directory returns the directory of a request, which is one in the lease's workspace.
func directory(r *http.Request) (string, error) {
	dir := r.URL.Query().Get("path")
	if dir != "" && !fs.ValidPath(dir) {
		return "", invalid("path is not one in the workspace, such as src/app")
	}
	if dir == "." {
		dir = ""
	}
	return dir, nil
}

type transferView struct {
	Entries int64                    `json:"entries"`
	Bytes   int64                    `json:"bytes"`
	Skipped []leasehold.SkippedEntry `json:"skipped,omitempty"`
}

// transfer returns what an archive goes into or comes out of: the lease of the path, and the directory of the query.
func (s *service) transfer(r *http.Request, t *tenant) (*leasehold.Lease, string, error) {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return nil, "", err
	}
	dir, err := directory(r)
	if err != nil {
		return nil, "", err
	}
	bound, err := l.use(s.provider)
	return bound, dir, err
}

// upload unpacks the archive in the body into a directory. It is merged with what is there, or, if anything is wrong with
// it, nothing of it is.
func (s *service) upload(w http.ResponseWriter, r *http.Request, t *tenant) error {
	bound, dir, err := s.transfer(r, t)
	if err != nil {
		return err
	}
	result, err := bound.Importer().Tar(r.Context(), s.timed(w, r, s.limits.upload), dir, leasehold.ImportOptions{})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, transferView{result.Entries, result.Bytes, result.Skipped})
}

// download answers with a directory as an archive. One that is cut short is no whole archive, and no whole answer.
func (s *service) download(w http.ResponseWriter, r *http.Request, t *tenant) error {
	bound, dir, err := s.transfer(r, t)
	if err != nil {
		return err
	}
	archive := &archiveWriter{ResponseWriter: w}
	_, err = bound.Exporter().Tar(r.Context(), dir, archive, leasehold.ExportOptions{MaxBytes: s.limits.download})
	if err != nil && archive.begun {
		s.log.Warn("a download was cut short", "lease", r.PathValue("lease"), "err", err)
		panic(http.ErrAbortHandler) // all that is left to say so
	}
	return err
}

// archiveWriter is a response that begins with the first byte of its archive: until then an error can be answered.
type archiveWriter struct {
	http.ResponseWriter
	begun bool
}

func (w *archiveWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.begun = true
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Content-Disposition", `attachment; filename="files.tar"`)
	}
	return w.ResponseWriter.Write(p)
}
