package conformance_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	_ "embed" // the service
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// service is the program that listens in the sandbox. It needs nothing but Python, which most sandboxes have. It is told the
// address to listen on, takes a port that previews lead to, and says which.
//
//go:embed testdata/service.py
var service string

// serveIn starts the service in a sandbox, and returns its port. The end of the test ends it.
func (s *scene) serveIn(t *testing.T, l *leasehold.Lease) int {
	t.Helper()
	if got, err := l.Executor().Run(t.Context(), leasehold.Command{Args: []string{"python3", "-c", "import http.server"}}); err != nil || got.ExitCode != 0 {
		missing(t, fmt.Sprintf("the sandbox has no python3 for a service: %d, %v", got.ExitCode, err))
	}
	out := make(arrivals, 16)
	p, err := l.Executor().Start(t.Context(), leasehold.Command{Args: []string{"python3", "-c", service, s.serve}, Stdout: out, Timeout: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill(detached(t)) // its lease may have been given back
		p.Wait()
	})
	text := ""
	for !strings.HasSuffix(text, "\n") {
		select {
		case more := <-out:
			text += more
		case <-time.After(time.Minute):
			t.Fatalf("the service said %q within a minute, and no port", text)
		}
	}
	port, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// endpoint serves in a sandbox, and returns the endpoint of it.
func (s *scene) endpoint(t *testing.T, l *leasehold.Lease) *leasehold.Endpoint {
	t.Helper()
	e, err := l.Endpoint(t.Context(), s.serveIn(t, l))
	if err != nil {
		t.Fatalf("Endpoint() = %v", err)
	}
	return e
}

// fetch sends a request, and returns the status and the body.
func fetch(t *testing.T, by http.RoundTripper, method, address string, header http.Header, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, body)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := by.RoundTrip(req) // without following redirects: that of a proxy leads to its login
	if err != nil {
		t.Fatalf("%s %s: %v", method, req.URL.Path, err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, req.URL.Path, err)
	}
	return resp.StatusCode, string(content)
}

// endpointCases reach a service in the sandbox from outside.
var endpointCases = []behaviour{
	{name: "HTTP", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e := s.endpoint(t, s.lease)
		at := e.URL().JoinPath("a b", "c")
		at.RawQuery = "q=1&r=%20"
		if status, got := fetch(t, e.Transport(), "GET", at.String(), http.Header{"X-Case": {"mine"}}, nil); status != 200 || got != "GET /a%20b/c?q=1&r=%20 mine" {
			t.Errorf("GET = %d %q", status, got)
		}
		if status, _ := fetch(t, e.Transport(), "GET", e.URL().JoinPath("teapot").String(), nil, nil); status != http.StatusTeapot {
			t.Errorf("the status is %d, want the service's own, 418", status)
		}
		content := make([]byte, 300_000)
		rand.Read(content)
		if status, got := fetch(t, e.Transport(), "POST", e.URL().JoinPath("echo").String(), nil, bytes.NewReader(content)); status != 200 || got != string(content) {
			t.Errorf("POST = %d and %d bytes, want the %d that were sent", status, len(got), len(content))
		}
	}},
	{name: "a reply arrives while it is written", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e := s.endpoint(t, s.lease)
		resp, err := e.Client().Get(e.URL().JoinPath("stream").String())
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := bufio.NewReader(resp.Body)
		if line, err := r.ReadString('\n'); line != "first\n" || err != nil {
			t.Fatalf("the reply begins with %q, %v", line, err)
		}
		fetch(t, e.Transport(), "POST", e.URL().JoinPath("go").String(), nil, strings.NewReader("on"))
		if rest, err := io.ReadAll(r); string(rest) != "second\n" || err != nil {
			t.Errorf("the reply goes on with %q, %v", rest, err)
		}
	}},
	{name: "WebSocket", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e := s.endpoint(t, s.lease)
		socket, err := e.DialWebSocket(t.Context(), "/socket?a=b", leasehold.WebSocketOptions{})
		if err != nil {
			t.Fatalf("DialWebSocket() = %v", err)
		}
		defer socket.Close()
		for _, size := range []int{1, 125, 126, 70_000} {
			content := bytes.Repeat([]byte{0, 0xff, '\n', byte(size)}, size/4+1)[:size]
			if _, err := socket.Write(content); err != nil {
				t.Fatalf("Write() = %v", err)
			}
			got := make([]byte, size)
			if _, err := io.ReadFull(socket, got); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes came back otherwise, %v", size, err)
			}
		}
		_, err = e.DialWebSocket(t.Context(), "/teapot", leasehold.WebSocketOptions{})
		if e := wantError(t, "a WebSocket to what is none", err, leasehold.ErrRefused); e.HTTPStatus != http.StatusTeapot {
			t.Errorf("the status is %d, want 418", e.HTTPStatus)
		}
	}},
	{name: "the token opens it, and goes nowhere else", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e := s.endpoint(t, s.lease)
		address := e.URL().JoinPath("hello").String()
		if status, got := fetch(t, s.outside, "GET", address, e.SecretHeader(), nil); status != 200 || !strings.HasPrefix(got, "GET /hello") {
			t.Errorf("with the token: %d %q", status, got)
		}
		wrong := e.SecretHeader()
		for name := range wrong {
			wrong.Set(name, "wrong")
		}
		for what, header := range map[string]http.Header{"without a token": nil, "with a wrong token": wrong} {
			if status, got := fetch(t, s.outside, "GET", address, header, nil); status < 300 || strings.HasPrefix(got, "GET /hello") {
				t.Errorf("%s: %d %q, want a refusal", what, status, got)
			}
		}
		var reached atomic.Int64
		elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
		defer elsewhere.Close()
		if resp, err := e.Client().Get(elsewhere.URL); !errors.Is(err, leasehold.ErrInvalid) || reached.Load() != 0 {
			t.Errorf("elsewhere: %v, %v, and %d requests arrived; want a refusal", resp, err, reached.Load())
		}
		for _, shown := range []string{fmt.Sprint(e), fmt.Sprintf("%+v", e), fmt.Sprintf("%#v", e)} {
			if strings.Contains(shown, e.SecretHeader().Get("X-Daytona-Preview-Token")) {
				t.Errorf("it shows its token: %s", shown)
			}
		}
	}},
	{name: "a signed address", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e := s.endpoint(t, s.lease)
		signed, err := e.Sign(t.Context(), time.Minute)
		if err != nil {
			t.Fatalf("Sign() = %v", err)
		}
		if status, got := fetch(t, s.outside, "GET", signed.SecretURL(), nil, nil); status != 200 || !strings.HasPrefix(got, "GET /") {
			t.Errorf("with the signed address: %d %q", status, got)
		}
		for range 2 {
			if err := signed.Revoke(t.Context()); err != nil {
				t.Errorf("Revoke() = %v", err)
			}
		}
	}},
	{name: "nothing listens", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e, err := s.lease.Endpoint(t.Context(), 9)
		if err != nil {
			t.Fatalf("Endpoint() = %v", err)
		}
		resp, err := e.Client().Get(e.URL().String())
		if err == nil {
			defer resp.Body.Close()
			if resp.StatusCode < 400 {
				t.Errorf("the status is %d where nothing listens", resp.StatusCode)
			}
		}
		for _, port := range []int{0, -1, 65536} {
			_, err := s.lease.Endpoint(t.Context(), port)
			if e := wantError(t, "Endpoint() of a bad port", err, leasehold.ErrInvalid); e.Dispatched != leasehold.DispatchedNo {
				t.Errorf("dispatched %s, want no", e.Dispatched)
			}
		}
	}},
	{name: "a generation is of one run of the sandbox", needs: []feature{previews, stopping}, leases: 1, test: func(t *testing.T, s *scene) {
		h := s.newHost(t, reusable)
		l := h.acquire(t)
		first := s.endpoint(t, l)
		same, err := l.Endpoint(t.Context(), first.Port())
		if err != nil || same.Generation() != first.Generation() || same.URL().String() != first.URL().String() {
			t.Errorf("asked again: %v, %v; want %v", same, err, first)
		}
		h.release(t, l, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		if _, err := first.Client().Get(first.URL().String()); !errors.Is(err, leasehold.ErrClosed) {
			t.Errorf("through an endpoint of a lease that was given back: %v, want ErrClosed", err)
		}
		_, err = l.Endpoint(t.Context(), first.Port())
		wantError(t, "Endpoint() of a lease that was given back", err, leasehold.ErrClosed)
		again := s.endpoint(t, h.resume(t, l.Ref()))
		if again.Generation() == first.Generation() {
			t.Errorf("after the restart the generation is still %q", again.Generation())
		}
		if status, got := fetch(t, again.Transport(), "GET", again.URL().JoinPath("hello").String(), nil, nil); status != 200 || !strings.HasPrefix(got, "GET /hello") {
			t.Errorf("after the restart: %d %q", status, got)
		}
	}},
}
