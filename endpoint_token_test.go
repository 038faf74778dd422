package leasehold

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestAGenerationIsOfARunAndNotOfAToken(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	port := service(t, echo)
	l := r.acquired(t)
	first := endpointOf(t, l, port)
	r.server.Sandbox(l.ref.Sandbox).RotateToken()
	second := endpointOf(t, l, port)
	if first.Generation() != second.Generation() || first.token() == second.token() {
		t.Errorf("after the rotation: generations %q and %q, want the same; tokens equal: %v", first.Generation(), second.Generation(), first.token() == second.token())
	}
	if _, err := r.Release(t.Context(), l.ref, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := r.Resume(t.Context(), l.ref)
	if err != nil {
		t.Fatal(err)
	}
	third := endpointOf(t, l, port)
	if third.Generation() == first.Generation() || third.URL().String() != first.URL().String() {
		t.Errorf("after the restart: generation %q and address %v, want another generation of %v", third.Generation(), third.URL(), first.URL())
	}
}

// A request need not come from net/http: one without a header is sent like any other, a second time too.
func TestARequestWithoutAHeader(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	port := service(t, echo)
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	r.server.Sandbox(l.ref.Sandbox).RotateToken()
	resp, err := e.Transport().RoundTrip(&http.Request{URL: e.URL()})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("status %d, want 200", resp.StatusCode)
	}
	if active(l) != 0 {
		t.Errorf("%d activities are left, want 0", active(l))
	}
}

func TestATokenThatWasReplacedIsAskedForOnce(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	var seen []string
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		seen = append(seen, req.Method+" "+string(body))
		if req.URL.Path == "/own" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	previews := func() (n int) {
		for _, q := range r.server.Requests() {
			if strings.HasSuffix(q.Path, "/preview-url") {
				n++
			}
		}
		return n
	}
	method := http.MethodPost
	send := func(body io.Reader, path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, e.URL().JoinPath(path).String(), body)
		if err != nil {
			t.Fatal(err)
		}
		return e.Client().Do(req)
	}

	r.server.Sandbox(l.ref.Sandbox).RotateToken()
	old := e.token()
	resp, err := send(strings.NewReader("again"), "x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(seen) != 1 || seen[0] != "POST again" || previews() != 2 || e.token() == old {
		t.Errorf("the service saw %q, and the token was asked for %d times, want one request and twice", seen, previews())
	}

	r.server.Sandbox(l.ref.Sandbox).RotateToken()
	_, err = send(io.NopCloser(strings.NewReader("once")), "x") // a body that cannot be had again
	if f := wantError(t, err, KindAuth); !f.Retryable || f.Dispatched != DispatchedNo || f.Phase != PhasePreview || len(seen) != 1 {
		t.Errorf("error = %+v, and the service saw %q", f, seen)
	}
	if resp, err = send(io.NopCloser(strings.NewReader("later")), "x"); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(seen) != 2 || previews() != 3 {
		t.Errorf("the service saw %q, and the token was asked for %d times, want two requests and three times", seen, previews())
	}

	if resp, err = send(nil, "own"); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || previews() != 3 {
		t.Errorf("the service's own 401: status %d, and the token was asked for %d times, want 401 and three times", resp.StatusCode, previews())
	}

	// A token that is refused although it is the last one.
	r.server.SetFaults(emulator.Fault{Path: "/preview/**", Action: emulator.StatusBefore, Status: 401, Count: -1, Body: `{"statusCode":401,"message":"unauthorized: authentication failed: Auth key header is invalid","timestamp":"2026-01-01T00:00:00Z","path":"/","method":"POST"}`})
	_, err = send(strings.NewReader("never"), "x")
	if f := wantError(t, err, KindAuth); f.Retryable || f.Dispatched != DispatchedNo || previews() != 4 {
		t.Errorf("error = %+v, and the token was asked for %d times, want four", f, previews())
	}
	wantNoSecret(t, e.token(), err.Error())
	r.server.SetFaults()

	// The refusal of a HEAD cannot be read, and so is not told from the service's own.
	method = http.MethodHead
	r.server.Sandbox(l.ref.Sandbox).RotateToken()
	for n, path := range []string{"x", "own"} {
		if resp, err = send(nil, path); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := []int{http.StatusOK, http.StatusUnauthorized}[n]; resp.StatusCode != want {
			t.Errorf("HEAD of %s: status %d, want %d", path, resp.StatusCode, want)
		}
	}
	if last := seen[len(seen)-1]; previews() != 6 || last != "HEAD " {
		t.Errorf("the service saw %q, and the token was asked for %d times, want HEAD and six times", seen, previews())
	}
}

// throughTLS is a transport that pretends to TLS in front of an emulator in memory.
type throughTLS struct{ to http.RoundTripper }

func (t throughTLS) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "https" {
		req = req.Clone(req.Context())
		req.URL.Scheme = "http"
	}
	return t.to.RoundTrip(req)
}

func TestALoginPageInsteadOfTheServiceMeansTheToken(t *testing.T) {
	server, err := emulator.Start(emulator.Options{InMemory: true, PreviewDomain: "preview.test"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	r := &rig{provider: rigProvider(t, server, Config{Transport: throughTLS{server.Transport()}}), server: server}
	defer r.Close(context.Background())
	login := "https://idp.test/authorize?client_id=app&redirect_uri=https%3A%2F%2Fapp.test%2Fcallback&response_type=code"
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/own":
			http.Redirect(w, req, login, http.StatusTemporaryRedirect)
		case "/inside":
			http.Redirect(w, req, "/x", http.StatusFound)
		default:
			echo(w, req)
		}
	})
	l := r.acquired(t)
	https := `{"url":"https://` + strconv.Itoa(port) + "-" + l.ref.Sandbox + `.preview.test"}`
	server.SetFaults(emulator.Fault{Path: pathPreview, Action: emulator.MergeReply, Body: https, Count: -1})
	e := endpointOf(t, l, port)
	server.Sandbox(l.ref.Sandbox).RotateToken()
	if got := get(t, e.Client(), e.URL().String()+"/x"); got != "GET /x " {
		t.Errorf("reply = %q, want that of the service", got)
	}
	if got := get(t, e.Client(), e.URL().String()+"/inside"); got != "GET /x " {
		t.Errorf("reply = %q, want that after the redirect", got)
	}
	// The login of the service's own users is the service's answer, and where it leads is not the endpoint.
	_, err = e.Client().Get(e.URL().String() + "/own")
	wantError(t, err, KindInvalid)
	if strings.Contains(err.Error(), e.token()) {
		t.Errorf("the error has the token: %v", err)
	}
	// A browser behind a reverse proxy is not shown the provider's warning.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.URL().String()+"/y", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "Mozilla/5.0")
	resp, err := e.Transport().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "GET /y " {
		t.Errorf("reply = %q, want that of the service", body)
	}
	if len(req.Header) != 1 {
		t.Errorf("the caller's header was changed: %v", req.Header)
	}
}
