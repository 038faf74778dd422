package daytona

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// hostileEnvironment holds every variable that the SDK or the generated clients look at, with values that break a
// client which obeys them. The whole package is tested under it.
var hostileEnvironment = map[string]string{
	"DAYTONA_API_KEY":                   "wrong-key",
	"DAYTONA_JWT_TOKEN":                 "wrong-token",
	"DAYTONA_ORGANIZATION_ID":           "wrong-organization",
	"DAYTONA_API_URL":                   "http://127.0.0.1:1/wrong",
	"DAYTONA_SERVER_URL":                "http://127.0.0.1:1/wrong",
	"DAYTONA_TARGET":                    "wrong-target",
	"DAYTONA_EXPERIMENTAL_OTEL_ENABLED": "true",
}

func TestMain(m *testing.M) {
	for key, value := range hostileEnvironment {
		os.Setenv(key, value)
	}
	goleak.VerifyTestMain(m)
}

const testKey = "test-key-0123456789"

// fake is a server that answers with a handler and remembers what it was asked.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

func newFake(t *testing.T, handler http.HandlerFunc) *fake {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r)
		f.mu.Unlock()
		handler(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) seen() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*http.Request(nil), f.requests...)
}

// observed collects calls.
type observed struct {
	mu    sync.Mutex
	calls []Call
}

func (o *observed) add(c Call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, c)
}

func (o *observed) all() []Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Call(nil), o.calls...)
}

// client returns a client of the server, whose API is below /api and whose toolbox proxy below /toolbox.
func (f *fake) client(t *testing.T, observe func(Call)) *Client {
	t.Helper()
	return newClient(t, Config{APIURL: f.URL + "/api", APIKey: testKey, Observe: observe})
}

func (f *fake) toolbox(t *testing.T) *Toolbox {
	t.Helper()
	return f.client(t, nil).Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL + "/toolbox"})
}

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	c, err := New(config)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// answer is a handler with one fixed answer.
func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write([]byte(body))
	}
}

// hang is a handler that says nothing until the client is gone, which the server notices once the body was read.
func hang(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// failure asserts that err is an *Error, and returns it.
func failure(t *testing.T, err error) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error = %#v, want an *Error", err)
	}
	return e
}

// within bounds a test that would otherwise hang.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// due is a context whose end is that of a deadline.
type due struct{ context.Context }

func (d due) Err() error {
	if d.Context.Err() == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// newDue returns a context whose deadline passes at the call of a function. By the clock it could pass before a request has come
// as far as it is to come.
func newDue() (ctx context.Context, pass func()) {
	ctx, end := context.WithCancelCause(context.Background())
	return due{ctx}, func() { end(context.DeadlineExceeded) }
}

// untilSent returns a context whose deadline passes when a request was sent.
func untilSent() context.Context {
	ctx, pass := newDue()
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { pass() }})
}

const (
	apiNotFound    = `{"path":"/api/sandbox/x","timestamp":"2026-01-01T00:00:00Z","statusCode":404,"error":"Not Found","message":"Sandbox with ID or name x not found"}`
	daemonNotFound = `{"statusCode":404,"message":"not found: session not found","code":"NOT_FOUND","timestamp":"2026-01-01T00:00:00Z","path":"/process/session/s","method":"GET"}`
)

// needProcesses skips a test where the emulator cannot run anything.
func needProcesses(t *testing.T) {
	t.Helper()
	if processesWork {
		return
	}
	const reason = "sandboxes need the processes of a Unix system"
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// eventually asks again until the answer is yes.
func eventually(t *testing.T, yes func() bool) {
	t.Helper()
	ctx := within(t, time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it never became so")
		}
	}
}
