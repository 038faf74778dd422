package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

const (
	pathRead    = "/api/sandbox/*"
	pathPreview = "/api/sandbox/*/ports/*/preview-url"
)

// service is an HTTP server on a port of this host, which is what a port of an emulated sandbox is.
func service(t *testing.T, handler http.HandlerFunc) (port int) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err = strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// echo answers with the method, the path and the body.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
}

func endpointOf(t *testing.T, l *Lease, port int) *Endpoint {
	t.Helper()
	e, err := l.Endpoint(t.Context(), port)
	if err != nil {
		t.Fatalf("Endpoint(%d) = %v", port, err)
	}
	return e
}

// token is the secret that must be seen nowhere.
func (e *Endpoint) token() string { return e.grant.Load().token }

func get(t *testing.T, client *http.Client, address string) string {
	t.Helper()
	resp, err := client.Get(address)
	if err != nil {
		t.Fatalf("Get(%s) = %v", address, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading %s: %v", address, err)
	}
	return string(body)
}

// active is how much is open on the lease.
func active(l *Lease) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active
}

func TestEndpointReachesTheService(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	port := service(t, echo)
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	r.wantRequests(t, "GET /api/sandbox/*", "GET "+pathPreview)
	if e.Port() != port {
		t.Errorf("Port() = %d, want %d", e.Port(), port)
	}
	if got, want := get(t, e.Client(), e.URL().JoinPath("a", "b").String()+"?q=1"), "GET /a/b?q=1 "; got != want {
		t.Errorf("reply = %q, want %q", got, want)
	}
	resp, err := e.Client().Post(e.URL().String()+"/c", "text/plain", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "POST /c body" {
		t.Errorf("reply = %q, %v, want %q", body, err, "POST /c body")
	}
	if resp.Request.Header.Get("X-Daytona-Preview-Token") != "" {
		t.Error("the reply's request carries the token")
	}
	if got := active(l); got != 0 {
		t.Errorf("%d activities are left, want 0", got)
	}
}

func TestEndpointChecksItsArgumentsBeforeAnythingIsSent(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	for _, port := range []int{-1, 0, 65536, 1 << 40} {
		_, err := l.Endpoint(t.Context(), port)
		if e := wantError(t, err, KindInvalid); len(e.Fields) != 1 || e.Fields[0].Field != "port" || e.Dispatched != DispatchedNo {
			t.Errorf("Endpoint(%d) = %+v, want the field port", port, e)
		}
	}
	e := endpointOf(t, l, 80)
	r.server.ResetRequests()
	for _, lifetime := range []time.Duration{-time.Second, time.Millisecond, 24*time.Hour + time.Second} {
		_, err := e.Sign(t.Context(), lifetime)
		if e := wantError(t, err, KindInvalid); len(e.Fields) != 1 || e.Fields[0].Field != "lifetime" {
			t.Errorf("Sign(%v) = %+v, want the field lifetime", lifetime, e)
		}
	}
	for _, path := range []string{"http://x/", "//x/y", "a#b", ":", "user@x:80"} {
		_, err := e.DialWebSocket(t.Context(), path, WebSocketOptions{})
		if err == nil {
			t.Errorf("DialWebSocket(%q) = nil", path)
		}
		if path != "user@x:80" {
			wantError(t, err, KindInvalid)
		}
	}
	r.wantRequests(t)
}

func TestEndpointIsRefusedUnlessItsAddressIsThePortsOwn(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	id := l.ref.Sandbox
	for name, reply := range map[string]struct{ url, token, want string }{
		"http":              {"http://80-" + id + ".daytona.test", "t", "it is not https"},
		"no scheme":         {"80-" + id + ".daytona.test", "t", "it is not https"},
		"another scheme":    {"ftp://80-" + id + ".daytona.test", "t", "it is not https"},
		"user":              {"https://me@80-" + id + ".daytona.test", "t", "user information"},
		"password":          {"https://me:pw@80-" + id + ".daytona.test", "t", "user information"},
		"query":             {"https://80-" + id + ".daytona.test/?token=x", "t", "a query"},
		"empty query":       {"https://80-" + id + ".daytona.test/?", "t", "a query"},
		"fragment":          {"https://80-" + id + ".daytona.test/#x", "t", "a fragment"},
		"empty fragment":    {"https://80-" + id + ".daytona.test/#", "t", "a fragment"},
		"another host":      {"https://daytona.test", "t", "another host"},
		"another port":      {"https://81-" + id + ".daytona.test", "t", "another host"},
		"another sandbox":   {"https://80-x" + id + ".daytona.test", "t", "another host"},
		"no domain":         {"https://80-" + id, "t", "another host"},
		"a path that leads": {"https://80-" + id + ".daytona.test/a/../b", "t", "path"},
		"another loopback":  {"http://127.0.0.1:1/preview/80-" + id, "t", "it is not https"},
		"no url":            {"https://%zz", "t", "no URL"},
		"no token":          {"https://80-" + id + ".daytona.test", "", "no token"},
		"a token of lines":  {"https://80-" + id + ".daytona.test", "a\r\nb", "no token"},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := json.Marshal(map[string]string{"url": reply.url, "token": reply.token})
			if err != nil {
				t.Fatal(err)
			}
			r.server.SetFaults(emulator.Fault{Path: pathPreview, Action: emulator.MergeReply, Body: string(body)})
			defer r.server.SetFaults()
			_, err = l.Endpoint(t.Context(), 80)
			e := wantError(t, err, KindProtocol)
			if e.Phase != PhaseValidation || e.HTTPStatus != 200 || !strings.Contains(e.Message, reply.want) {
				t.Errorf("Endpoint() = %+v, want phase validation and %q", e, reply.want)
			}
			if strings.Contains(err.Error(), "daytona.test") || strings.Contains(err.Error(), "pw") {
				t.Errorf("the error has the provider's words: %v", err)
			}
		})
	}
	good := `{"url":"https://80-` + strings.ToUpper(id) + `.daytona.test/","token":"t"}`
	r.server.SetFaults(emulator.Fault{Path: pathPreview, Action: emulator.MergeReply, Body: good})
	if e := endpointOf(t, l, 80); e.URL().Path != "" || e.WebSocketURL().Scheme != "wss" {
		t.Errorf("URL() = %v, WebSocketURL() = %v", e.URL(), e.WebSocketURL())
	}
	t.Run("clear text is the embedded backend's alone", func(t *testing.T) {
		r.server.SetFaults()
		r.embedded = ""
		_, err := l.Endpoint(t.Context(), 80)
		if e := wantError(t, err, KindProtocol); e.Phase != PhaseValidation {
			t.Errorf("Endpoint() = %+v", e)
		}
	})
}

func TestEndpointFailuresHaveAPhaseAndAStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	own := func(status int) emulator.Fault {
		return emulator.Fault{Action: emulator.StatusBefore, Status: status, Body: structured(status, "no"), Count: -1}
	}
	page := func(status int) emulator.Fault {
		return emulator.Fault{Action: emulator.StatusBefore, Status: status, Body: "<html>", Count: -1}
	}
	for name, test := range map[string]struct {
		fault  emulator.Fault
		path   string
		kind   Kind
		phase  Phase
		status int
		sent   int // requests of that path
	}{
		"lookup 429":           {own(429), pathRead, KindRateLimited, PhaseLookup, 429, 3},
		"lookup 503":           {own(503), pathRead, KindUnavailable, PhaseLookup, 503, 3},
		"lookup 502 of others": {page(502), pathRead, KindUnavailable, PhaseLookup, 502, 3},
		"lookup 401":           {own(401), pathRead, KindAuth, PhaseLookup, 401, 1},
		"lookup 403":           {own(403), pathRead, KindAuth, PhaseLookup, 403, 1},
		"lookup 404 of others": {page(404), pathRead, KindUnavailable, PhaseLookup, 404, 1},
		"preview 429":          {own(429), pathPreview, KindRateLimited, PhasePreview, 429, 3},
		"preview 500":          {own(500), pathPreview, KindUnavailable, PhasePreview, 500, 3},
		// It may have come after the token: whoever answers for the API may have asked it.
		"preview 502 of others": {page(502), pathPreview, KindUnavailable, PhasePreview, 502, 1},
		"preview 401":           {own(401), pathPreview, KindAuth, PhasePreview, 401, 1},
		"preview 403":           {own(403), pathPreview, KindAuth, PhasePreview, 403, 1},
		"preview 404":           {own(404), pathPreview, KindUnavailable, PhasePreview, 404, 1},
		"preview 400":           {own(400), pathPreview, KindRefused, PhasePreview, 400, 1},
		"no answer":             {emulator.Fault{Action: emulator.DropAfter, Count: -1}, pathPreview, KindUnavailable, PhasePreview, 0, -1},
		"another's":             {emulator.Fault{Action: emulator.MergeReply, Body: `{"name":"other"}`, Count: -1}, pathRead, KindNotOwned, PhaseLookup, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			test.fault.Path, test.fault.Method = test.path, "GET"
			r.server.SetFaults(test.fault)
			_, err := l.Endpoint(t.Context(), 80)
			e := wantError(t, err, test.kind)
			if e.Phase != test.phase || e.HTTPStatus != test.status || e.Sandbox != l.ref.Sandbox || e.Op != "endpoint" {
				t.Errorf("Endpoint() = %+v, want phase %s and status %d", e, test.phase, test.status)
			}
			if hits := r.server.Faults()[0].Hits; test.sent >= 0 && hits != test.sent {
				t.Errorf("%d requests were sent, want %d", hits, test.sent)
			}
		})
	}
	t.Run("the third attempt succeeds", func(t *testing.T) {
		fault := own(503)
		fault.Path, fault.Count = pathPreview, 2
		r.server.SetFaults(fault)
		endpointOf(t, l, 80)
		r.wantHits(t)
	})
	t.Run("not running", func(t *testing.T) {
		r.server.Sandbox(l.ref.Sandbox).Force(emulator.StateStopped, "", false)
		_, err := l.Endpoint(t.Context(), 80)
		if e := wantError(t, err, KindNotRunning); e.Phase != PhaseState {
			t.Errorf("Endpoint() = %+v, want phase state", e)
		}
	})
}

func TestTheTokenGoesNowhereElse(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	var stolen []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		stolen = append(stolen, req.Header.Get("X-Daytona-Preview-Token"))
	}))
	defer thief.Close()
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/away" {
			http.Redirect(w, req, thief.URL, http.StatusFound)
			return
		}
		if req.URL.Path == "/inside" {
			http.Redirect(w, req, "/there?q=1", http.StatusFound)
			return
		}
		echo(w, req)
	})
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	_, err := e.Client().Get(e.URL().String() + "/away")
	wantError(t, err, KindInvalid)
	if len(stolen) != 0 {
		t.Errorf("the other host saw %q, want nothing", stolen)
	}
	if got := get(t, e.Client(), e.URL().String()+"/inside"); got != "GET /there?q=1 " {
		t.Errorf("reply = %q, want that after the redirect", got)
	}
	for _, address := range []string{
		"https://" + e.address.Host + e.address.Path, "http://me@" + e.address.Host + e.address.Path, "http://127.0.0.1:1" + e.address.Path,
	} {
		_, err := e.Client().Get(address)
		wantError(t, err, KindInvalid)
	}
	// What would pass for a path of the API is one of the service's.
	if got := get(t, e.Client(), r.server.URL()+"/sandbox"); got != "GET /api/sandbox " {
		t.Errorf("reply = %q, want the service's", got)
	}
}

// wantNoSecret fails the test if one of the texts has the secret.
func wantNoSecret(t *testing.T, secret string, texts ...string) {
	t.Helper()
	if secret == "" {
		t.Fatal("no secret to look for")
	}
	for _, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("the secret is in %q", text)
		}
	}
}

// printed are the ways in which a value comes into logs.
func printed(t *testing.T, value any) []string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{string(encoded)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		texts = append(texts, fmt.Sprintf(verb, value), fmt.Sprintf(verb, []any{value}), fmt.Sprintf(verb, struct{ V any }{value}))
	}
	for _, handler := range []func(io.Writer) slog.Handler{
		func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var out bytes.Buffer
		slog.New(handler(&out)).Info("x", "value", value)
		texts = append(texts, out.String())
	}
	return texts
}

func TestS1NothingShowsAToken(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRig(t, Config{Logger: logger}, emulator.Options{})
	port := service(t, echo)
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	wantNoSecret(t, e.token(), printed(t, e)...)
	if header := e.SecretHeader(); header.Get("X-Daytona-Preview-Token") != e.token() || strings.Contains(e.URL().String(), e.token()) {
		t.Errorf("SecretHeader() = %v of %v", header, e.URL())
	}

	var traced []string
	trace := &httptrace.ClientTrace{WroteHeaderField: func(name string, values []string) {
		traced = append(traced, name+": "+strings.Join(values, " "))
	}}
	ctx := httptrace.WithClientTrace(t.Context(), trace)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := e.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(traced) < 3 {
		t.Errorf("traced %q, want the headers", traced)
	}
	wantNoSecret(t, e.token(), traced...)
	traced = nil
	if _, err := l.OpenSSH(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	if len(traced) < 3 {
		t.Errorf("traced %q, want the headers", traced)
	}
	wantNoSecret(t, r.server.APIKey(), traced...)

	signed, err := e.Sign(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	wantNoSecret(t, signed.secret.token, printed(t, signed)...)
	access, err := l.OpenSSH(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	wantNoSecret(t, access.Token(), printed(t, access)...)
	for _, secret := range []string{e.token(), signed.secret.token, access.Token(), r.server.APIKey()} {
		wantNoSecret(t, secret, log.String())
	}
}

func TestAnEndpointEndsWithItsLease(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	inside := make(chan struct{})
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/socket":
			conn, err := websocket.Accept(w, req, nil)
			if err != nil {
				return
			}
			<-conn.CloseRead(req.Context()).Done()
			conn.CloseNow()
		case "/slow":
			io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
			close(inside)
			<-req.Context().Done()
		default:
			echo(w, req)
		}
	})
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	resp, err := e.Client().Get(e.URL().String() + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	unread, err := e.Client().Get(e.URL().String() + "/x") // nobody reads it, and nobody closes it in time
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Body.Close()
	socket, err := e.DialWebSocket(t.Context(), "socket", WebSocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if got := active(l); got != 3 {
		t.Errorf("%d activities, want 3: a body under way, one that is not read, and a socket", got)
	}
	<-inside
	begun := time.Now()
	if _, err := r.Destroy(t.Context(), l.ref); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(begun); waited >= drainTime {
		t.Errorf("the release waited %v for what it ends itself", waited)
	}
	_, err = resp.Body.Read(make([]byte, 1))
	wantError(t, err, KindClosed)
	_, err = socket.Read(make([]byte, 1))
	wantError(t, err, KindClosed)
	_, err = e.Client().Get(e.URL().String())
	wantError(t, err, KindClosed)
	_, err = e.DialWebSocket(t.Context(), "socket", WebSocketOptions{})
	wantError(t, err, KindClosed)
	_, err = e.Sign(t.Context(), 0)
	wantError(t, err, KindClosed)
	_, err = l.Endpoint(t.Context(), port)
	wantError(t, err, KindClosed)
	if got := active(l); got != 0 {
		t.Errorf("%d activities are left, want 0", got)
	}
}

func TestAnEndpointOfAStoppedSandbox(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	port := service(t, echo)
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	r.server.Sandbox(l.ref.Sandbox).Force(emulator.StateStopped, "", false)
	_, err := e.Client().Get(e.URL().String())
	if f := wantError(t, err, KindNotRunning); f.Dispatched != DispatchedNo || f.HTTPStatus != 400 {
		t.Errorf("error = %+v", f)
	}
	if got := active(l); got != 0 {
		t.Errorf("%d activities are left, want 0", got)
	}
}

func TestAServicesOwnRefusalsAreItsAnswers(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	big := strings.Repeat("x", 100_000)
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch req.URL.Path {
		case "/400":
			w.WriteHeader(400)
			io.WriteString(w, `{"statusCode":400,"message":"no"}`)
		case "/401":
			w.WriteHeader(401)
			w.(http.Flusher).Flush() // without a length
			io.WriteString(w, `{"x":"`+big+`"}`)
		case "/404":
			w.WriteHeader(404)
		}
	})
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	for path, want := range map[string]string{"/400": `{"statusCode":400,"message":"no"}`, "/401": `{"x":"` + big + `"}`, "/404": ""} {
		if got := get(t, e.Client(), e.URL().String()+path); got != want {
			t.Errorf("%s: %d bytes, want %d", path, len(got), len(want))
		}
	}
}

func TestACanceledRequestSaysSo(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	})
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := e.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	_, err = io.ReadAll(resp.Body)
	wantError(t, err, KindCanceled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled in it", err)
	}
	_, err = e.Client().Do(req)
	if wantError(t, err, KindCanceled); os.IsTimeout(err) {
		t.Errorf("error = %v, which is no timeout", err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	_, err = e.Client().Do(req.WithContext(late))
	if wantError(t, err, KindTimeout); !os.IsTimeout(err) { // the client's error asks ours
		t.Errorf("error = %v, which is a timeout", err)
	}
	if got := active(l); got != 0 {
		t.Errorf("%d activities are left, want 0", got)
	}
}
