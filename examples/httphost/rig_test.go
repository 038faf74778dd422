package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	acmeToken  = "acme-token-0123456789"
	otherToken = "other-token-0123456789"
	tokens     = "acme:" + acmeToken + ",other:" + otherToken
)

// plain is a client that opens a connection for each request, so that one that is cut is nobody else's.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// host is a service on the embedded backend, behind a real listener.
type host struct {
	*service
	url    string
	dir    string
	server *httptest.Server
}

// localProvider starts an embedded backend, which ends with the test.
func localProvider(t *testing.T, dir string) leasehold.Provider {
	t.Helper()
	p, err := leasehold.NewLocal(leasehold.LocalConfig{Dir: filepath.Join(dir, "sandboxes")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return p
}

func startHost(t *testing.T, change func(*limits)) *host {
	t.Helper()
	dir := t.TempDir()
	return startHostOn(t, localProvider(t, dir), dir, change)
}

func startHostOn(t *testing.T, p leasehold.Provider, dir string, change func(*limits)) *host {
	t.Helper()
	l := defaultLimits
	if change != nil {
		change(&l)
	}
	tenants, _, err := parseTenants(tokens, l)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newService(p, dir, tenants, l, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config = s.server()
	server.Start()
	h := &host{service: s, url: server.URL, dir: dir, server: server}
	t.Cleanup(func() {
		h.stopWork(false)
		server.Close()
		h.background.Wait()
	})
	return h
}

// client is a tenant.
type client struct {
	t          *testing.T
	url, token string
}

func (h *host) client(t *testing.T) client { return client{t, h.url, acmeToken} }

// send sends a request with a body: none, bytes, a reader, or a value as JSON.
func (c client) send(method, path string, body any, header ...string) *http.Response {
	c.t.Helper()
	var reader io.Reader
	switch body := body.(type) {
	case nil:
	case io.Reader:
		reader = body
	case []byte:
		reader = bytes.NewReader(body)
	default:
		data, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, reader)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := plain.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return response
}

// want sends a request, and returns the body of an answer of that status.
func (c client) want(status int, method, path string, body any, header ...string) []byte {
	c.t.Helper()
	response := c.send(method, path, body, header...)
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	if response.StatusCode != status {
		c.t.Fatalf("%s %s = %d %s, want %d", method, path, response.StatusCode, data, status)
	}
	return data
}

func parse[T any](t *testing.T, data []byte) (value T) {
	t.Helper()
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return value
}

// acquire returns the path of a new lease.
func (c client) acquire() string {
	c.t.Helper()
	return "/v1/leases/" + parse[leaseView](c.t, c.want(201, "POST", "/v1/leases", leaseRequest{})).ID
}

// start returns the path of a new command.
func (c client) start(lease, script string) string {
	c.t.Helper()
	return lease + "/commands/" + parse[commandRecord](c.t, c.want(201, "POST", lease+"/commands", commandRequest{Script: script})).ID
}

// run returns a command at its end, with its output.
func (c client) run(lease, script string) (commandRecord, string, string) {
	c.t.Helper()
	o := c.follow(c.start(lease, script), "", nil)
	return o.end, o.stdout, o.stderr
}

// observed is what a stream of events told.
type observed struct {
	stdout, stderr, last string
	events               int
	end                  commandRecord
}

// follow reads the events of a command from behind an event, to their end or until enough says so after one of them.
func (c client) follow(command, last string, enough func(observed) bool) observed {
	c.t.Helper()
	response := c.events(command, last)
	defer func() { _ = response.Body.Close() }() // which cuts the connection
	if response.StatusCode != 200 {
		c.t.Fatalf("events of %s: %s", command, response.Status)
	}
	return readEvents(c.t, response.Body, enough)
}

// events asks for the events of a command. Those of another one may count for a moment after their end, or a cut.
func (c client) events(command, last string) *http.Response {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		response := c.send("GET", command+"/events", nil, "Last-Event-ID", last)
		if response.StatusCode != http.StatusTooManyRequests || time.Since(began) > time.Minute {
			return response
		}
		_ = response.Body.Close()
	}
}

func readEvents(t *testing.T, body io.Reader, enough func(observed) bool) (o observed) {
	t.Helper()
	var event, data string
	for line := range lines(t, body) {
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "id":
			o.last = value
		case "event":
			event = value
		case "data":
			data = value
		case "":
			o.events++
			switch event {
			case "stdout":
				o.stdout += fromBase64(t, data)
			case "stderr":
				o.stderr += fromBase64(t, data)
			case "end":
				o.end = parse[commandRecord](t, []byte(data))
				return o
			}
			if enough != nil && enough(o) {
				return o
			}
		}
	}
	t.Fatalf("the events ended without an end, after %+v", o)
	return o
}

func lines(t *testing.T, r io.Reader) func(func(string) bool) {
	return func(yield func(string) bool) {
		var line []byte
		b := make([]byte, 1) // no more than is asked for: what comes later is another reader's
		for {
			if _, err := io.ReadFull(r, b); err != nil {
				t.Logf("the events ended: %v", err)
				return
			}
			if b[0] != '\n' {
				line = append(line, b[0])
				continue
			}
			if !yield(string(line)) {
				return
			}
			line = line[:0]
		}
	}
}

func fromBase64(t *testing.T, data string) string {
	t.Helper()
	p, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// archive returns a tar archive of files.
func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
