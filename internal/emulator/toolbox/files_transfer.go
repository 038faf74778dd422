package toolbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// formMemory is how much of a form the daemon keeps in memory before it goes to a temporary file.
	formMemory = 32 << 20

	// maxPathPart bounds the part of a bulk upload that names a file: far above any path of a system.
	maxPathPart = 64 << 10

	// downloadBoundary is the constant boundary of the daemon's bulk downloads. Content that holds it
	// breaks the framing; each file part has a Content-Length to help.
	downloadBoundary = "DAYTONA-FILE-BOUNDARY"
)

// upload stores the form field "file" at path, after the whole form has arrived. Parents are created with
// mode 0750. No path, no such field, or a directory at path: 400.
func (t *Toolbox) upload(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Query().Get("path")
	if p == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := r.ParseMultipartForm(formMemory); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	defer r.MultipartForm.RemoveAll()
	file, _, err := r.FormFile("file")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	defer file.Close()

	p = t.path(p)
	err = os.MkdirAll(filepath.Dir(p), 0o750)
	if err == nil {
		_, err = t.writeFile(p, 0o666, file)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// uploaded is one stored file of a bulk upload.
type uploaded struct {
	Path  string `json:"path"` // as the request spelled it
	Bytes int64  `json:"bytes"`
}

// bulkUpload stores files while they arrive: form fields files[i].path, each before its files[i].file.
// Parents are created with mode 0755. A file that cannot be stored does not stop the others; then the
// answer is 400 {"errors": [...], "files": [those stored]}. Both lists are null when empty.
func (t *Toolbox) bulkUpload(w http.ResponseWriter, r *http.Request) {
	reader, err := r.MultipartReader()
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"errors": []string{"invalid multipart form"}})
		return
	}
	var (
		paths    = make(map[string]string)
		stored   []uploaded
		problems []string
	)
	for {
		part, err := reader.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("reading part: %v", err))
			break
		}
		name := part.FormName()
		if index, ok := strings.CutSuffix(name, ".path"); ok {
			if paths[index], err = readPath(part); err != nil {
				problems = append(problems, fmt.Sprintf("%s: %v", name, err))
				delete(paths, index)
			}
		} else if index, ok := strings.CutSuffix(name, ".file"); ok {
			p, ok := paths[index]
			if !ok {
				problems = append(problems, fmt.Sprintf("%s: no .path part before it", name))
				continue
			}
			n, err := t.storePart(p, part)
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: %v", p, err))
				continue
			}
			stored = append(stored, uploaded{p, n})
		}
	}
	if len(problems) > 0 {
		writeJSON(w, http.StatusBadRequest, map[string]any{"errors": problems, "files": stored})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"files": stored})
}

// readPath reads the part that names a file. White space around a path is dropped.
func readPath(part io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(part, maxPathPart+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxPathPart {
		return "", errors.New("path is too long")
	}
	p := strings.TrimSpace(string(text))
	if p == "" {
		return "", errors.New("empty path")
	}
	return p, nil
}

func (t *Toolbox) storePart(p string, part io.Reader) (int64, error) {
	p = t.path(p)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return 0, err
	}
	return t.writeFile(p, 0o666, part)
}

// openFile opens a file for reading. Missing files, directories and unreadable files are errors.
func (t *Toolbox) openFile(p string) (*os.File, fs.FileInfo, error) {
	if p == "" {
		return nil, nil, fs.ErrInvalid
	}
	f, err := os.OpenFile(t.path(p), os.O_RDONLY|openWithoutWaiting, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fs.ErrInvalid
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// download sends a file, or the bytes that a Range header asks for (206). A range behind the end is 416
// with a "Content-Range: bytes */size" header.
func (t *Toolbox) download(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Query().Get("path")
	f, info, err := t.openFile(p)
	if err != nil {
		w.WriteHeader(fileStatus(err))
		return
	}
	defer f.Close()
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Description", "File Transfer")
	header.Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(filepath.Base(p)))
	http.ServeContent(w, r, "", info.ModTime(), f)
}

// bulkDownload sends several files as a multipart body: part "file" for each one, or part "error" with the
// reason as JSON. Both carry the requested path as their file name.
func (t *Toolbox) bulkDownload(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Paths []string `json:"paths"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil || len(request.Paths) == 0 {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": `request body must be {"paths": [ ... ]} and non-empty`})
		return
	}
	w.Header().Set("Content-Type", "multipart/form-data; boundary="+downloadBoundary)
	w.WriteHeader(http.StatusOK)
	body := multipart.NewWriter(w)
	if err := body.SetBoundary(downloadBoundary); err != nil {
		return
	}
	for _, p := range request.Paths {
		if err := t.sendPart(body, p); err != nil {
			return // the client has gone, or a file shrank: the body ends without its last boundary
		}
	}
	body.Close()
}

// sendPart sends one file, or why it cannot be sent. An error means that the body cannot go on.
func (t *Toolbox) sendPart(body *multipart.Writer, p string) error {
	f, info, err := t.openFile(p)
	if err != nil {
		return sendErrorPart(body, p, err)
	}
	defer f.Close()
	header := partHeader("file", p, "application/octet-stream")
	header.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	part, err := body.CreatePart(header)
	if err != nil {
		return err
	}
	_, err = io.CopyN(part, f, info.Size())
	return err
}

func sendErrorPart(body *multipart.Writer, p string, reason error) error {
	status, code := http.StatusInternalServerError, "FILE_READ_FAILED"
	switch {
	case errors.Is(reason, fs.ErrNotExist):
		status, code = http.StatusNotFound, "FILE_NOT_FOUND"
	case errors.Is(reason, fs.ErrPermission):
		status, code = http.StatusForbidden, "FILE_ACCESS_DENIED"
	case errors.Is(reason, fs.ErrInvalid):
		status, code = http.StatusBadRequest, "INVALID_FILE_PATH"
	}
	part, err := body.CreatePart(partHeader("error", p, "application/json"))
	if err != nil {
		return err
	}
	return json.NewEncoder(part).Encode(map[string]any{
		"statusCode": status, "message": fmt.Sprintf("%s: %v", p, reason), "code": code,
	})
}

var partNameEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", "%0D", "\n", "%0A")

func partHeader(field, filename, contentType string) textproto.MIMEHeader {
	return textproto.MIMEHeader{
		"Content-Disposition": {fmt.Sprintf(`form-data; name="%s"; filename="%s"`, field, partNameEscaper.Replace(filename))},
		"Content-Type":        {contentType},
	}
}
