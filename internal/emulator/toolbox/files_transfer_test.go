package toolbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bulkReply is the answer to a bulk upload.
type bulkReply struct {
	Errors []string   `json:"errors"`
	Files  []uploaded `json:"files"`
}

const binary = "\x00\xff\xfe\r\n--DAYTONA\n\x01\x02no newline"

func TestUploadStoresAFile(t *testing.T) {
	w := serve(t)
	w.put("old", "a much longer old content", 0o751)
	w.put("target", "old", 0o600)
	for name, target := range map[string]string{"link": "target", "dangling": "created"} {
		if err := os.Symlink(target, w.at(name)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, path, content string
		stored              string
		mode                os.FileMode
	}{
		{"new file", "new", binary, "new", 0o644},
		{"absolute path", w.at("absolute"), "x", "absolute", 0o644},
		{"empty file", "empty", "", "empty", 0o644},
		{"missing parents", "p/q/new", "x", "p/q/new", 0o644},
		{"existing file keeps its mode", "old", "new", "old", 0o751},
		{"through a link", "link", "new", "target", 0o600},
		{"through a broken link", "dangling", "new", "created", 0o644},
		{"tilde is a name", "~/x", "x", "~/x", 0o644},
		{"odd name", "a b\n%41&ü", "x", "a b\n%41&ü", 0o644},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w.postForm(query("/files/upload", "path", test.path), field{"file", "any", test.content}).wantEmpty(t, http.StatusOK)
			w.wantFile(test.stored, test.content)
			w.wantMode(test.stored, test.mode)
		})
	}
	w.wantMode("p", os.ModeDir|0o750)
	w.wantMode("p/q", os.ModeDir|0o750)
	if got := w.mode("link"); got != "Lrwxrwxrwx" {
		t.Errorf("the link became %s", got)
	}
}

func TestUploadWithoutAFileIsRefused(t *testing.T) {
	w := serve(t)
	w.put("dir/inner", "x", 0o644)
	here := query("/files/upload", "path", "x")
	w.postForm(here).wantEmpty(t, http.StatusBadRequest)
	w.postForm(here, field{"other", "f", "x"}).wantEmpty(t, http.StatusBadRequest)
	w.postForm("/files/upload", field{"file", "f", "x"}).wantEmpty(t, http.StatusBadRequest)
	w.postForm(query("/files/upload", "path", "dir"), field{"file", "f", "x"}).wantEmpty(t, http.StatusBadRequest)
	w.postForm(query("/files/upload", "path", "dir/inner/x"), field{"file", "f", "x"}).wantEmpty(t, http.StatusBadRequest)
	w.do("POST", here, strings.NewReader("raw bytes")).wantEmpty(t, http.StatusBadRequest)
	body, contentType := form(t, field{"file", "f", "x"})
	cut, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	w.do("POST", here, bytes.NewReader(cut[:len(cut)-20]), "Content-Type", contentType).wantEmpty(t, http.StatusBadRequest)
	if _, err := os.Stat(w.at("x")); err == nil {
		t.Error("a refused upload left a file")
	}
}

func TestBulkUploadStoresFiles(t *testing.T) {
	w := serve(t)
	w.put("old", "a much longer old content", 0o751)
	r := w.postForm("/files/bulk-upload",
		field{"files[0].path", "", "p/q/a"}, field{"files[0].file", "ignored", binary},
		field{"files[7].path", "", w.at("old")}, field{"files[7].file", "ignored", "new"},
		field{"unknown", "", "ignored"},
		field{"files[1].path", "", " empty\n"}, field{"files[1].file", "ignored", ""},
	)
	r.want(t, http.StatusOK)
	want := map[string]any{"files": []any{
		map[string]any{"path": "p/q/a", "bytes": float64(len(binary))},
		map[string]any{"path": w.at("old"), "bytes": 3.0},
		map[string]any{"path": "empty", "bytes": 0.0}, // white space around a path is dropped
	}}
	if diff := cmp.Diff(want, decode[map[string]any](t, r)); diff != "" {
		t.Errorf("answer mismatch (-want +got):\n%s", diff)
	}
	w.wantFile("p/q/a", binary)
	w.wantFile("old", "new")
	w.wantFile("empty", "")
	w.wantMode("p/q", os.ModeDir|0o755)
	w.wantMode("p/q/a", 0o644)
	w.wantMode("old", 0o751)
}

func TestBulkUploadReportsFailuresAndGoesOn(t *testing.T) {
	w := serve(t)
	w.put("dir/file", "x", 0o644)
	r := w.postForm("/files/bulk-upload",
		field{"files[0].path", "", "dir"}, field{"files[0].file", "f", "a directory"},
		field{"files[1].file", "f", "path comes too late"}, field{"files[1].path", "", "late"},
		field{"files[2].path", "", "good"}, field{"files[2].file", "f", "good"},
		field{"files[3].path", "", "dir/file/x"}, field{"files[3].file", "f", "below a file"},
		field{"files[4].path", "", " "}, field{"files[4].file", "f", "no name"},
		field{"files[5].path", "", strings.Repeat("x", maxPathPart+1)}, field{"files[5].file", "f", "long name"},
	)
	r.want(t, http.StatusBadRequest)
	got := decode[bulkReply](t, r)
	if diff := cmp.Diff([]uploaded{{"good", 4}}, got.Files); diff != "" {
		t.Errorf("stored files mismatch (-want +got):\n%s", diff)
	}
	if len(got.Errors) != 7 {
		t.Errorf("%d errors, want 7: %q", len(got.Errors), got.Errors)
	}
	w.wantFile("good", "good")
	if _, err := os.Stat(w.at("late")); err == nil {
		t.Error("a file was stored before its path was known")
	}

	r = w.do("POST", "/files/bulk-upload", strings.NewReader("raw"))
	r.want(t, http.StatusBadRequest)
	if diff := cmp.Diff(bulkReply{Errors: []string{"invalid multipart form"}}, decode[bulkReply](t, r)); diff != "" {
		t.Errorf("answer mismatch (-want +got):\n%s", diff)
	}
}

// TestAbortedBulkUploadLeavesATruncatedFile is the reason why the library checks what it uploaded.
func TestAbortedBulkUploadLeavesATruncatedFile(t *testing.T) {
	w := serve(t)
	old := w.put("file", strings.Repeat("old ", 1<<20), 0o644)
	ctx, abort := context.WithCancel(t.Context())
	body, upload := io.Pipe()
	parts := multipart.NewWriter(upload)
	request := w.request("POST", "/files/bulk-upload", body, "Content-Type", parts.FormDataContentType()).WithContext(ctx)
	failed := make(chan error)
	go func() {
		response, err := w.client.Do(request)
		if err == nil {
			response.Body.Close()
		}
		failed <- err
	}()
	if err := parts.WriteField("files[0].path", "file"); err != nil {
		t.Fatal(err)
	}
	part, err := parts.CreateFormFile("files[0].file", "f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(part, strings.Repeat("new ", 1<<18)); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		info, err := os.Stat(old)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	until(t, "some of the new content is there", func() bool { return size() > 0 && size() <= 1<<20 })
	abort()
	upload.CloseWithError(context.Canceled) // the transport waits for its reader of the body
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended with %v", err)
	}
	w.client.CloseIdleConnections()
	w.toolbox.Close()
	if got := w.content("file"); len(got) == 0 || len(got) > 1<<20 || strings.Trim(got, "new ") != "" {
		t.Errorf("after the abort the file holds %d bytes, %q", len(got), abbreviate(got))
	}
}

// heapPeak remembers the largest live heap it has seen.
type heapPeak struct{ base, peak uint64 }

func newHeapPeak() *heapPeak {
	h := &heapPeak{}
	h.look()
	h.base = h.peak
	return h
}

func (h *heapPeak) look() {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	h.peak = max(h.peak, stats.HeapAlloc)
}

// want fails if the heap grew by more than this.
func (h *heapPeak) want(t *testing.T, atMost uint64) {
	t.Helper()
	if grown := h.peak - h.base; grown > atMost {
		t.Errorf("the heap grew by %d KiB, want at most %d KiB", grown>>10, atMost>>10)
	}
}

const (
	bigSize  = 64 << 20
	bigChunk = 1 << 20
	bigHeap  = 8 << 20 // both ends of the connection included
)

// TestBigFilesPassInConstantMemory sends a file both ways and looks at the heap after each eighth.
func TestBigFilesPassInConstantMemory(t *testing.T) {
	w := serve(t)
	heap := newHeapPeak()
	chunk := bytes.Repeat([]byte("0123456789abcde\n"), bigChunk/16)

	body, upload := io.Pipe()
	parts := multipart.NewWriter(upload)
	sent := sha256.New()
	go func() {
		err := parts.WriteField("files[0].path", "big")
		var part io.Writer
		if err == nil {
			part, err = parts.CreateFormFile("files[0].file", "big")
		}
		for i := 0; i < bigSize/bigChunk && err == nil; i++ {
			copy(chunk, fmt.Sprintf("%15d", i))
			sent.Write(chunk)
			_, err = part.Write(chunk)
			if i%8 == 0 {
				heap.look()
			}
		}
		if err == nil {
			err = parts.Close()
		}
		upload.CloseWithError(err)
	}()
	r := w.do("POST", "/files/bulk-upload", body, "Content-Type", parts.FormDataContentType())
	r.want(t, http.StatusOK)
	if diff := cmp.Diff(bulkReply{Files: []uploaded{{"big", bigSize}}}, decode[bulkReply](t, r)); diff != "" {
		t.Errorf("answer mismatch (-want +got):\n%s", diff)
	}
	heap.want(t, bigHeap)

	download := func(t *testing.T, response *http.Response, from func() io.Reader) {
		heap := newHeapPeak()
		got := sha256.New()
		content := from()
		for i := 0; i < bigSize/bigChunk; i++ {
			if _, err := io.CopyN(got, content, bigChunk); err != nil {
				t.Fatalf("after %d MiB: %v", i, err)
			}
			if i%8 == 0 {
				heap.look()
			}
		}
		if rest, err := io.Copy(io.Discard, content); rest != 0 || err != nil {
			t.Errorf("%d bytes too many, %v", rest, err)
		}
		if !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
			t.Error("the downloaded bytes differ from those uploaded")
		}
		heap.want(t, bigHeap)
	}
	t.Run("download", func(t *testing.T) {
		response, err := w.client.Do(w.request("GET", query("/files/download", "path", "big"), nil))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.ContentLength != bigSize {
			t.Errorf("Content-Length = %d, want %d", response.ContentLength, bigSize)
		}
		download(t, response, func() io.Reader { return response.Body })
	})
	t.Run("bulk download", func(t *testing.T) {
		response, err := w.client.Do(w.request("POST", "/files/bulk-download", asJSON(t, map[string]any{"paths": []string{"big"}})))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		part, err := multipart.NewReader(response.Body, downloadBoundary).NextPart()
		if err != nil {
			t.Fatal(err)
		}
		download(t, response, func() io.Reader { return part })
	})
}

func TestDownloadSendsAFile(t *testing.T) {
	w := serve(t)
	p := w.put("ein ü.bin", binary, 0o600)
	modified := time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(p, modified, modified); err != nil {
		t.Fatal(err)
	}
	r := w.do("GET", query("/files/download", "path", "ein ü.bin"), nil)
	r.want(t, http.StatusOK)
	if r.body != binary {
		t.Errorf("body = %q, want %q", r.body, binary)
	}
	for name, want := range map[string]string{
		"Content-Type":   "application/octet-stream",
		"Content-Length": strconv.Itoa(len(binary)),
		"Last-Modified":  "Sat, 03 Feb 2024 04:05:06 GMT",
		"Accept-Ranges":  "bytes",
	} {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if _, parameters, err := mime.ParseMediaType(r.header.Get("Content-Disposition")); err != nil || parameters["filename"] != "ein ü.bin" {
		t.Errorf("Content-Disposition = %q", r.header.Get("Content-Disposition"))
	}

	w.put("empty", "", 0o644)
	r = w.do("GET", query("/files/download", "path", "empty"), nil)
	r.wantEmpty(t, http.StatusOK)
	if got := r.header.Get("Content-Length"); got != "0" {
		t.Errorf("Content-Length of an empty file = %q, want 0", got)
	}
}

func TestDownloadSendsRanges(t *testing.T) {
	w := serve(t)
	w.put("file", "0123456789", 0o644)
	w.put("empty", "", 0o644)
	tests := []struct {
		file, ranges string
		status       int
		body         string
		contentRange string
	}{
		{"file", "bytes=4-", 206, "456789", "bytes 4-9/10"},
		{"file", "bytes=0-", 206, "0123456789", "bytes 0-9/10"},
		{"file", "bytes=2-4", 206, "234", "bytes 2-4/10"},
		{"file", "bytes=8-99", 206, "89", "bytes 8-9/10"},
		{"file", "bytes=-3", 206, "789", "bytes 7-9/10"},
		{"file", "bytes=10-", 416, "", "bytes */10"},
		{"file", "bytes=11-", 416, "", "bytes */10"},
		{"file", "nonsense", 416, "", ""},
		{"empty", "bytes=0-", 200, "", ""},
		{"empty", "bytes=1-", 200, "", ""},
	}
	for _, test := range tests {
		t.Run(test.file+" "+test.ranges, func(t *testing.T) {
			r := w.do("GET", query("/files/download", "path", test.file), nil, "Range", test.ranges)
			r.want(t, test.status)
			if r.status != http.StatusRequestedRangeNotSatisfiable && r.body != test.body {
				t.Errorf("body = %q, want %q", r.body, test.body)
			}
			if got := r.header.Get("Content-Range"); got != test.contentRange {
				t.Errorf("Content-Range = %q, want %q", got, test.contentRange)
			}
		})
	}
}

func TestBulkDownloadSendsPartsInOrder(t *testing.T) {
	w := serve(t)
	w.put("a", binary, 0o644)
	w.put(`odd "name"; x=\ü`, "odd", 0o644)
	w.put("empty", "", 0o644)
	paths := []string{"a", "missing", w.at(`odd "name"; x=\ü`), "empty", ".", ""}
	r := w.do("POST", "/files/bulk-download", asJSON(t, map[string]any{"paths": paths}))
	r.want(t, http.StatusOK)
	mediaType, parameters, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	if err != nil || mediaType != "multipart/form-data" || parameters["boundary"] != "DAYTONA-FILE-BOUNDARY" {
		t.Fatalf("Content-Type = %q, %v", r.header.Get("Content-Type"), err)
	}
	type part struct {
		Field, Filename, Length, Content string
		Status                           int
		Code                             string
	}
	want := []part{
		{Field: "file", Filename: "a", Length: strconv.Itoa(len(binary)), Content: binary},
		{Field: "error", Filename: "missing", Status: 404, Code: "FILE_NOT_FOUND"},
		{Field: "file", Filename: w.at(`odd "name"; x=\ü`), Length: "3", Content: "odd"},
		{Field: "file", Filename: "empty", Length: "0"},
		{Field: "error", Filename: ".", Status: 400, Code: "INVALID_FILE_PATH"},
		{Field: "error", Filename: "", Status: 400, Code: "INVALID_FILE_PATH"},
	}
	var got []part
	reader := multipart.NewReader(strings.NewReader(r.body), "DAYTONA-FILE-BOUNDARY")
	for {
		p, err := reader.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_, disposition, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
		if err != nil {
			t.Fatalf("Content-Disposition %q: %v", p.Header.Get("Content-Disposition"), err)
		}
		content, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		one := part{Field: disposition["name"], Filename: disposition["filename"], Length: p.Header.Get("Content-Length"), Content: string(content)}
		if one.Field == "error" {
			problem := decode[struct {
				StatusCode    int
				Message, Code string
			}](t, reply{body: one.Content})
			if problem.Message == "" || p.Header.Get("Content-Type") != "application/json" {
				t.Errorf("error part %q of type %q", content, p.Header.Get("Content-Type"))
			}
			one.Status, one.Code, one.Content = problem.StatusCode, problem.Code, ""
		}
		got = append(got, one)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parts mismatch (-want +got):\n%s", diff)
	}
	for _, body := range []string{`{"paths":[]}`, `{}`, `{`, ``} {
		w.do("POST", "/files/bulk-download", strings.NewReader(body)).want(t, http.StatusBadRequest)
	}
}
