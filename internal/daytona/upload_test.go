package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type uploaded struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// receive reads a bulk upload as the daemon does, up to the closing boundary, and no further.
func receive(r *http.Request) (parts []string, files []uploaded, err error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, nil, err
	}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			return parts, files, nil
		}
		if err != nil {
			return parts, files, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return parts, files, err
		}
		parts = append(parts, part.FormName()+"="+string(content))
		if strings.HasSuffix(part.FormName(), ".path") {
			files = append(files, uploaded{Path: string(content)})
		} else {
			files[len(files)-1].Bytes = int64(len(content))
		}
	}
}

func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func TestUploadForm(t *testing.T) {
	var parts []string
	var length int64
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		length = r.ContentLength
		var files []uploaded
		parts, files, _ = receive(r)
		respond(w, 200, map[string]any{"files": files})
	})
	// A reader may return data together with its end, or nothing at all for a while.
	odd := io.MultiReader(bytes.NewReader(nil), strings.NewReader("b"), bytes.NewReader(nil))
	err := f.toolbox(t).Upload(t.Context(), File{"/x\r\n\"y\"", strings.NewReader("a")}, File{"/empty", odd}, File{"/z", strings.NewReader("")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"files[0].path=/x\r\n\"y\"", "files[0].file=a", "files[1].path=/empty", "files[1].file=b", "files[2].path=/z", "files[2].file="}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("parts mismatch (-want +got):\n%s", diff)
	}
	if length != -1 {
		t.Errorf("Content-Length %d, want a stream", length)
	}
}

func TestUploadNeedsEveryByteConfirmed(t *testing.T) {
	tests := []struct {
		name   string
		files  []uploaded
		errors []string
	}{
		{"a byte missing", []uploaded{{"/a", 3}, {"/b", 1}}, nil},
		{"a file missing", []uploaded{{"/a", 4}}, nil},
		{"another path", []uploaded{{"/a", 4}, {"/c", 2}}, nil},
		{"an error in a success", []uploaded{{"/a", 4}, {"/b", 2}}, []string{"hm"}},
		{"nothing", nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
				receive(r)
				respond(w, 200, map[string]any{"files": test.files, "errors": test.errors})
			})
			err := f.toolbox(t).Upload(t.Context(), File{"/a", strings.NewReader("aaaa")}, File{"/b", strings.NewReader("bb")})
			if e := failure(t, err); e.Reason != ReasonIncomplete || e.Dispatch != DispatchYes {
				t.Errorf("Upload() = %+v, want incomplete", e)
			}
		})
	}
}

// endless is a reader without an end, which counts.
type endless struct{ n int }

func (r *endless) Read(p []byte) (int, error) {
	r.n += len(p)
	return len(p), nil
}

func TestUploadEndsWithAnEarlyRefusal(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		io.CopyN(io.Discard, r.Body, 1000)
		respond(w, 400, map[string]any{"errors": []string{"/a: no space left on device"}, "files": []uploaded{}})
	})
	err := f.toolbox(t).Upload(within(t, time.Minute), File{"/a", &endless{}})
	// The connection may break under the upload before its answer was read.
	if e := failure(t, err); !e.NoSpace() && e.Reason != ReasonLost {
		t.Errorf("Upload() = %+v, want no space", e)
	}
}

func TestUploadReportsTheCallersReader(t *testing.T) {
	broken := errors.New("disk on fire")
	arrived := make(chan error, 1)
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		_, _, err := receive(r)
		arrived <- err
	})
	content := io.MultiReader(strings.NewReader("some"), readFunc(func([]byte) (int, error) { return 0, broken }))
	err := f.toolbox(t).Upload(t.Context(), File{"/a", content})
	if e := failure(t, err); e.Reason != ReasonSource || !errors.Is(err, broken) {
		t.Errorf("Upload() = %+v, want source", e)
	}
	if err := <-arrived; err == nil {
		t.Error("the daemon saw a complete form")
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func TestUploadReturnsWhileAReaderBlocks(t *testing.T) {
	arrived := make(chan struct{})
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 1000))
		close(arrived)
		io.Copy(io.Discard, r.Body)
	})
	reading, release, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	reads := 0
	content := readFunc(func(p []byte) (int, error) {
		switch reads++; reads {
		case 1, 2:
			return len(p), nil
		case 3:
			close(reading)
			<-release
			close(read)
			return len(p), nil
		}
		t.Error("a read began after the end")
		return 0, io.EOF
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-arrived
		<-reading
		cancel()
	}()
	if e := failure(t, f.toolbox(t).Upload(ctx, File{"/a", content})); e.Reason != ReasonCanceled || e.Dispatch != DispatchUnknown {
		t.Errorf("Upload() = %+v, want canceled, dispatch unknown", *e)
	}
	close(release)
	<-read
}

func TestDownloadProvesItsRange(t *testing.T) {
	const content = "0123456789"
	tests := []struct {
		name   string
		offset int64
		head   map[string]string
		status int
		body   string
		want   string
		reason Reason
	}{
		{"whole", 0, map[string]string{"Content-Length": "10"}, 200, content, content, ""},
		{"a part", 4, map[string]string{"Content-Length": "6", "Content-Range": "bytes 4-9/10"}, 206, "456789", "456789", ""},
		{"a proxy without ranges", 4, map[string]string{"Content-Length": "10"}, 200, content, "456789", ""},
		{"another part", 4, map[string]string{"Content-Length": "7", "Content-Range": "bytes 3-9/10"}, 206, "3456789", "", ReasonDecode},
		{"a part with a shorter end", 4, map[string]string{"Content-Length": "2", "Content-Range": "bytes 4-5/10"}, 206, "45", "", ReasonDecode},
		{"a part without a range", 4, map[string]string{"Content-Length": "6"}, 206, "456789", "", ReasonDecode},
		{"a part that was not asked for", 0, map[string]string{"Content-Length": "6", "Content-Range": "bytes 4-9/10"}, 206, "456789", "", ReasonDecode},
		{"without a length", 0, nil, 200, "", "", ReasonDecode},
		{"shorter than the offset", 11, map[string]string{"Content-Length": "10"}, 200, content, "", ReasonDecode},
		{"at the end", 10, map[string]string{"Content-Range": "bytes */10"}, 416, "", "", ""},
		{"beyond the end", 11, map[string]string{"Content-Range": "bytes */10"}, 416, "", "", ReasonStatus},
		{"cut", 0, map[string]string{"Content-Length": "20"}, 200, content, "", ReasonLost},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
				for key, value := range test.head {
					w.Header().Set(key, value)
				}
				w.WriteHeader(test.status)
				if test.head == nil {
					w.(http.Flusher).Flush()
				}
				io.WriteString(w, test.body)
			})
			var seen observed
			box := f.client(t, seen.add).Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL})
			d, err := box.Download(t.Context(), "/f", test.offset)
			var got []byte
			if err == nil {
				got, err = io.ReadAll(d)
				d.Close()
			}
			if test.reason != "" {
				if e := failure(t, err); e.Reason != test.reason || e.Dispatch != DispatchYes {
					t.Errorf("error = %+v, want %s", e, test.reason)
				}
			} else if err != nil || string(got) != test.want || d.Size != 10 {
				t.Errorf("Download() = %q, %v, size %d, want %q, 10", got, err, d.Size, test.want)
			}
			if calls := seen.all(); len(calls) != 1 || (calls[0].Err != nil) != (test.reason != "") {
				t.Errorf("observed %+v, want one call with error: %v", calls, test.reason != "")
			}
		})
	}
}

func TestReadFileNeedsAWholePart(t *testing.T) {
	form := func(write func(*multipart.Writer)) (string, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		w.SetBoundary("DAYTONA-FILE-BOUNDARY")
		write(w)
		return w.FormDataContentType(), b.String()
	}
	kind, whole := form(func(w *multipart.Writer) {
		p, _ := w.CreateFormFile("file", "/f")
		io.WriteString(p, "content")
		w.Close()
	})
	_, missing := form(func(w *multipart.Writer) {
		p, _ := w.CreateFormField("error")
		io.WriteString(p, `{"statusCode":404,"message":"file not found","code":"FILE_NOT_FOUND"}`)
		w.Close()
	})
	_, denied := form(func(w *multipart.Writer) {
		p, _ := w.CreateFormField("error")
		io.WriteString(p, `{"statusCode":403,"message":"no","code":"FILE_ACCESS_DENIED"}`)
		w.Close()
	})
	_, other := form(func(w *multipart.Writer) { w.WriteField("hello", "x"); w.Close() })
	tests := []struct {
		name  string
		kind  string
		body  string
		want  string
		check func(*Error) bool
	}{
		{"whole", kind, whole, "content", nil},
		{"cut in the content", kind, whole[:len(whole)-40], "", func(e *Error) bool { return e.Reason == ReasonDecode }},
		{"cut at the end", kind, strings.TrimSuffix(whole, "--\r\n"), "", func(e *Error) bool { return e.Reason == ReasonDecode }},
		{"missing", kind, missing, "", func(e *Error) bool { return e.NotFound() && e.Status == 404 && e.Structured }},
		{"denied", kind, denied, "", func(e *Error) bool { return !e.NotFound() && e.Status == 403 && e.Forbidden() }},
		{"another part", kind, other, "", func(e *Error) bool { return e.Reason == ReasonDecode }},
		{"no form", "text/html", whole, "", func(e *Error) bool { return e.Reason == ReasonDecode }},
		{"nothing", kind, "", "", func(e *Error) bool { return e.Reason == ReasonDecode }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", test.kind)
				io.WriteString(w, test.body)
			})
			got, err := f.toolbox(t).ReadFile(t.Context(), "/f", 100)
			if test.check == nil {
				if err != nil || string(got) != test.want {
					t.Errorf("ReadFile() = %q, %v, want %q", got, err, test.want)
				}
				return
			}
			if e := failure(t, err); !test.check(e) {
				t.Errorf("ReadFile() = %+v", e)
			}
		})
	}
}

func TestLogsAskForRawBytes(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "\x01\x01\x01\xff\n") })
	b, err := f.toolbox(t).Logs(t.Context(), "s", "c")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got, err := io.ReadAll(b)
	if err != nil || string(got) != "\x01\x01\x01\xff\n" {
		t.Errorf("read %q, %v", got, err)
	}
	r := f.seen()[0]
	if r.Header.Get("X-Daytona-Split-Output") != "true" || r.Header.Get("X-Daytona-SDK-Version") != "" || r.URL.RawQuery != "" {
		t.Errorf("asked with %v %q", r.Header, r.URL.RawQuery)
	}
}
