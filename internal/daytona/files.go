package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"
)

// File is one file of an [Toolbox.Upload].
type File struct {
	Path    string    // in the sandbox; missing parents are made with mode 0755
	Content io.Reader // read to its end, and not closed
}

// Upload writes files one after another, streaming them in constant memory (POST /files/bulk-upload). It succeeds only
// if the daemon confirmed every byte of every file. It is not atomic: on any error, each of the files may be there,
// whole or truncated. A failing reader is reported with ReasonSource.
//
// The readers are used from another goroutine. When Upload fails, or its context ends, it does not wait for a read that
// is in progress: that one may still return later, and is the last.
func (t *Toolbox) Upload(ctx context.Context, files ...File) error {
	return t.do(ctx, OpUpload, func(ctx context.Context) error {
		body := newUpload(files, ctx.Value(callKey{}).(*call))
		defer body.Close()
		// A transport waits for its reading of the body, even after the context ended.
		defer context.AfterFunc(ctx, func() { body.Close() })()
		header := http.Header{"Content-Type": {body.kind}, "Accept": {"application/json"}}
		resp, err := t.send(ctx, http.MethodPost, t.url(nil, "files", "bulk-upload"), header, body)
		if err != nil {
			return err
		}
		var reply struct {
			Errors []string `json:"errors"`
			Files  []struct {
				Path  string `json:"path"`
				Bytes int64  `json:"bytes"`
			} `json:"files"`
		}
		if err := readJSON(resp, &reply); err != nil {
			return err
		}
		sent := body.counts()
		complete := len(reply.Errors) == 0 && len(reply.Files) == len(files) && len(sent) == len(files)
		for i := 0; complete && i < len(files); i++ {
			complete = reply.Files[i].Path == files[i].Path && reply.Files[i].Bytes == sent[i]
		}
		if !complete {
			return &Error{Op: OpUpload, Reason: ReasonIncomplete, Status: resp.StatusCode, Dispatch: DispatchYes}
		}
		return nil
	})
}

// Download reads a file from an offset on (GET /files/download with Range). At the end of the file there is nothing to
// read, which is no error; beyond it is a 416. The answer's length is proved: a [Body] that ends with io.EOF brought
// Size-Offset bytes. The context bounds the reading, too; the caller closes.
func (t *Toolbox) Download(ctx context.Context, path string, offset int64) (*Download, error) {
	if offset < 0 || !t.ready(nil) {
		return nil, badInput(OpDownload)
	}
	header := http.Header{}
	if offset > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	body, resp, e := t.stream(ctx, OpDownload, t.url(url.Values{"path": {path}}, "files", "download"), header)
	if e != nil {
		if e.Status == http.StatusRequestedRangeNotSatisfiable && resp.Header.Get("Content-Range") == "bytes */"+strconv.FormatInt(offset, 10) {
			body.rc = http.NoBody
			return &Download{Body: body, Offset: offset, Size: offset}, nil
		}
		t.c.observe(body.k, e)
		return nil, e
	}
	d := &Download{Body: body, Offset: offset}
	var ok bool
	switch {
	case resp.StatusCode == http.StatusPartialContent && offset > 0:
		var first, last int64
		_, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &d.Size)
		ok = err == nil && first == offset && last == d.Size-1 && resp.ContentLength == d.Size-offset
	case resp.StatusCode == http.StatusOK && resp.ContentLength >= offset:
		// A proxy that does not know ranges sends the file from its start.
		d.Size = resp.ContentLength
		_, err := io.CopyN(io.Discard, body, offset)
		if err != nil {
			body.Close()
			return nil, err // an *Error, since the length was announced
		}
		ok = true
	}
	if !ok {
		e := &Error{Op: OpDownload, Reason: ReasonDecode, Status: resp.StatusCode, Dispatch: DispatchYes}
		t.c.observe(body.k, e)
		body.Close()
		return nil, e
	}
	return d, nil
}

// Download is a file being read.
type Download struct {
	*Body
	Offset int64 // of the first byte that Read returns
	Size   int64 // of the whole file
}

// ReadFile reads a small file whole, at most limit bytes (POST /files/bulk-download, whose reply says for each file
// what the other file calls leave to an empty body). A missing file is an error with [Error.NotFound], stated by the
// daemon itself. A larger file is ReasonLimit.
func (t *Toolbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, error) {
	if limit < 0 || !utf8.ValidString(path) {
		return nil, badInput(OpReadFile)
	}
	var content []byte
	err := t.do(ctx, OpReadFile, func(ctx context.Context) error {
		body, err := json.Marshal(map[string][]string{"paths": {path}})
		if err != nil {
			return err
		}
		header := http.Header{"Content-Type": {"application/json"}, "Accept": {"multipart/form-data"}}
		resp, err := t.send(ctx, http.MethodPost, t.url(nil, "files", "bulk-download"), header, bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		kind, params, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if err != nil || kind != "multipart/form-data" {
			return errReply
		}
		parts := multipart.NewReader(resp.Body, params["boundary"])
		part, err := parts.NextRawPart()
		if err != nil {
			return err
		}
		switch part.FormName() {
		case "file":
			content, err = io.ReadAll(io.LimitReader(part, limit+1))
			switch {
			case err != nil:
				return err
			case int64(len(content)) > limit:
				return &Error{Op: OpReadFile, Reason: ReasonLimit, Status: resp.StatusCode, Dispatch: DispatchYes}
			}
			// The closing boundary proves that the part was whole.
			if _, err := parts.NextRawPart(); err != io.EOF {
				return errReply
			}
			return nil
		case "error":
			return partError(part)
		}
		return errReply
	})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// partError is the error that the daemon puts in the place of a file.
func partError(part io.Reader) error {
	var reply struct {
		StatusCode int    `json:"statusCode"`
		Message    string `json:"message"`
		Code       string `json:"code"`
	}
	body, err := io.ReadAll(io.LimitReader(part, maxErrorBody))
	if err != nil {
		return err
	}
	if json.Unmarshal(body, &reply) != nil || reply.StatusCode < 400 || reply.Code == "" {
		return errReply
	}
	return &Error{
		Op: OpReadFile, Reason: ReasonStatus, Status: reply.StatusCode, Structured: true,
		Code: cut(reply.Code, 128), Message: cut(reply.Message, maxMessage), Dispatch: DispatchYes,
	}
}
