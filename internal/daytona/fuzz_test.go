package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// FuzzAnswers gives any answer to any request, as a broken proxy or a hostile server does. What is accepted is about what was
// asked for, and complete; what is refused is an error with few of the server's words, none of which are in its text.
func FuzzAnswers(f *testing.F) {
	var answered func(*http.Request) *http.Response
	c, err := New(Config{APIURL: "https://api.example/api", APIKey: testKey, Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
		if q.Body != nil {
			_, _ = io.Copy(io.Discard, q.Body)
			_ = q.Body.Close()
		}
		return answered(q), nil
	})})
	if err != nil {
		f.Fatal(err)
	}
	box := c.Toolbox(&Sandbox{ID: "box", ToolboxURL: "https://proxy.example/toolbox"})

	// Each call returns what is wrong with what it was given to believe.
	want := func(ok bool, format string, args ...any) string {
		if ok {
			return ""
		}
		return fmt.Sprintf(format, args...)
	}
	read := func(body io.ReadCloser) (int, error) {
		defer body.Close()
		data, err := io.ReadAll(body)
		return len(data), err
	}
	calls := []func(ctx context.Context) (wrong string, err error){
		func(ctx context.Context) (string, error) {
			s, err := c.Create(ctx, CreateRequest{Name: "x"})
			return want(err != nil || s.ID != "", "created %+v", s), err
		},
		func(ctx context.Context) (string, error) {
			s, err := c.Get(ctx, "box")
			return want(err != nil || s.ID != "" && (!s.ContainerLost() || strings.Contains(s.ErrorReason, s.ID)), "got %+v", s), err
		},
		func(ctx context.Context) (string, error) {
			_, err := c.CredentialOrganization(ctx)
			return "", err
		},
		func(ctx context.Context) (string, error) {
			address, token, err := c.PreviewURL(ctx, "box", 80)
			return want(err != nil || address != "", "preview %q, %q", address, token), err // a lease looks at the token
		},
		func(ctx context.Context) (string, error) {
			address, token, err := c.SignPreview(ctx, "box", 80, 60)
			return want(err != nil || address != "" && token != "", "signed %q, %q", address, token), err
		},
		func(ctx context.Context) (string, error) {
			a, err := c.CreateSSH(ctx, "box", 60)
			return want(err != nil || sshTokenForm.MatchString(a.Token) && sshCommandForm.MatchString("ssh "+a.Token+"@"+a.Host) && a.Port >= 1 && a.Port <= 65535 && !a.ExpiresAt.IsZero(), "access %+v", a), err
		},
		func(ctx context.Context) (string, error) {
			s, err := c.GetSnapshot(ctx, "s")
			return want(err != nil || s.ID != "", "snapshot %+v", s), err
		},
		func(ctx context.Context) (string, error) {
			address, err := c.BuildLogURL(ctx, "s")
			return want(err != nil || strings.HasPrefix(strings.ToLower(address), "https://"), "the key would go to %q", address), err
		},
		func(ctx context.Context) (string, error) {
			_, err := box.Execute(ctx, "true", 0)
			return "", err
		},
		func(ctx context.Context) (string, error) {
			id, err := box.StartCommand(ctx, "s", "true")
			return want(err != nil || segment(id), "command %q", id), err
		},
		func(ctx context.Context) (string, error) { _, err := box.Command(ctx, "s", "c"); return "", err },
		func(ctx context.Context) (string, error) { _, err := box.SessionCommands(ctx, "s"); return "", err },
		func(ctx context.Context) (string, error) {
			data, err := box.ReadFile(ctx, "/x", 100)
			return want(len(data) <= 100, "%d bytes", len(data)), err
		},
		func(ctx context.Context) (string, error) {
			d, err := box.Download(ctx, "/x", 7)
			if err != nil {
				return "", err
			}
			n, err := read(d)
			return want(d.Offset == 7 && d.Size >= 7 && (err != nil || int64(n) == d.Size-7), "%d bytes of %+v", n, d), err
		},
		func(ctx context.Context) (string, error) {
			b, err := box.Logs(ctx, "s", "c")
			if err == nil {
				_, err = read(b)
			}
			return "", err
		},
		func(ctx context.Context) (string, error) { _, err := box.DescribePTY(ctx, "p"); return "", err },
		func(ctx context.Context) (string, error) {
			return "", box.Upload(ctx, File{Path: "/x", Content: strings.NewReader("x")})
		},
		func(ctx context.Context) (string, error) { _, err := box.ConnectPTY(ctx, "p"); return "", err },
	}
	for call := range calls {
		f.Add(uint8(call), 200, "", []byte(`{"id":"box","name":"x","state":"error","sandboxId":"box","port":80,"url":"https://80-box.x","token":"abcdefgh","expiresAt":"2026-01-01T00:00:00Z","sshCommand":"ssh -p 22 abcdefgh@host","exitCode":0,"result":"","cmdId":"c","size":1,"items":[{"id":"box","labels":{"a":1}}],"commands":[]}`))
	}
	for i, body := range []string{apiNotFound, daemonNotFound, `{"error":"x"}`, `{"errors":["a","b"],"files":null}`, `[]`, `{"statusCode":429}`} {
		f.Add(uint8(3*i), 404-i, "3600", []byte(body))
	}
	f.Add(uint8(12), 200, "multipart/form-data; boundary=b", []byte("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n"))
	f.Add(uint8(13), 206, "bytes 7-8/9", []byte("xy"))
	f.Add(uint8(13), 416, "bytes */7", []byte(""))
	f.Add(uint8(15), 264, "", []byte(""))
	f.Fuzz(func(t *testing.T, call uint8, status int, header string, body []byte) {
		if status < 100 || status > 999 {
			return // no HTTP
		}
		answered = func(q *http.Request) *http.Response {
			h := make(http.Header)
			for _, name := range []string{"Content-Range", "Retry-After", "Location"} {
				h.Set(name, header)
			}
			h.Set("Content-Type", "application/json")
			if strings.HasPrefix(header, "multipart/") {
				h.Set("Content-Type", header)
			}
			return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: q}
		}
		op := int(call) % len(calls)
		wrong, err := calls[op](t.Context())
		if wrong != "" {
			t.Errorf("call %d believes %d %q: %s", op, status, body, wrong)
		}
		if err == nil {
			if status >= 300 && !(op == 13 && status == http.StatusRequestedRangeNotSatisfiable) {
				t.Errorf("call %d succeeds with %d %q", op, status, body)
			}
			return
		}
		var e *Error
		if !errors.As(err, &e) || e.Reason == "" || e.Dispatch == "" {
			t.Fatalf("call %d: error %#v, want an *Error with reason and dispatch", op, err)
		}
		if len(e.Message) > maxMessage+2 || len(e.Code) > 130 || len(e.Error()) > 1000 {
			t.Errorf("kept %d and %d bytes, and %d in the text", len(e.Message), len(e.Code), len(e.Error()))
		}
		if e.Message != "" && len(e.Message) > 20 && strings.Contains(e.Error(), e.Message) {
			t.Errorf("the server's words are in %q", e.Error())
		}
		if e.Structured && e.Reason == ReasonStatus && !json.Valid(body) {
			t.Errorf("structured, and no JSON: %q", body)
		}
		if e.NotFound() && (status != 404 || !e.Structured) {
			t.Errorf("NotFound for %d %q", status, body)
		}
		if e.RetryAfter < 0 || e.RetryAfter > 24*time.Hour {
			t.Errorf("retry after %v, of %q", e.RetryAfter, header)
		}
		class(e)
	})
}
