package emulator_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a running emulator and a plain HTTP client of it.
type server struct {
	*emulator.Server
	t      testing.TB
	client *http.Client
	key    string
}

// serve starts an emulator that the end of the test closes.
func serve(t testing.TB, opt emulator.Options) *server {
	t.Helper()
	s, err := emulator.Start(opt)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	transport := s.Transport()
	if transport == nil {
		transport = &http.Transport{}
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &server{Server: s, t: t, client: client, key: s.APIKey()}
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	text   string
	json   map[string]any
}

func (r reply) str(name string) string { s, _ := r.json[name].(string); return s }

// send does one request; what begins with a slash is relative to the server's root.
func (s *server) send(method, address, body string, header ...string) (reply, error) {
	if strings.HasPrefix(address, "/") {
		address = strings.TrimSuffix(s.URL(), "/api") + address
	}
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, address, reader)
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	r := reply{status: resp.StatusCode, header: resp.Header, text: string(text)}
	if bytes.HasPrefix(text, []byte("{")) {
		json.Unmarshal(text, &r.json)
	}
	return r, err
}

// do is send for requests that must be answered.
func (s *server) do(method, address, body string, header ...string) reply {
	s.t.Helper()
	r, err := s.send(method, address, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, address, err)
	}
	return r
}

// must is do for requests that must be answered with a status.
func (s *server) must(status int, method, address, body string, header ...string) reply {
	s.t.Helper()
	r := s.do(method, address, body, header...)
	if r.status != status {
		s.t.Fatalf("%s %s: got status %d (%s), want %d", method, address, r.status, r.text, status)
	}
	return r
}

// create creates a sandbox and waits until it has settled.
func (s *server) create(body string) *emulator.Sandbox {
	s.t.Helper()
	id := s.must(http.StatusOK, "POST", "/api/sandbox", body).str("id")
	sb := s.Sandbox(id)
	if sb == nil {
		s.t.Fatalf("the created sandbox %q is unknown", id)
	}
	sb.Settle(time.Minute)
	return sb
}

func (s *server) state(id string) string {
	s.t.Helper()
	return s.must(http.StatusOK, "GET", "/api/sandbox/"+id, "").str("state")
}

func (s *server) wantState(id, want string) {
	s.t.Helper()
	if got := s.state(id); got != want {
		s.t.Fatalf("state: got %q, want %q", got, want)
	}
}

// execute runs a command in a sandbox.
func (s *server) execute(id, command string) reply {
	s.t.Helper()
	body, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.must(http.StatusOK, "POST", "/toolbox/"+id+"/process/execute", string(body))
}

// needProcesses skips where sandboxes cannot run anything.
func needProcesses(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatal("no /bin/sh")
		}
		t.Skip("no /bin/sh")
	}
}
