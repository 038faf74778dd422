package daytona

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// closedPort is an address at which nobody listens, nor begins to meanwhile: it is that of the near end of a connection.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

// breakAfterRequest reads the request and drops the connection.
func breakAfterRequest(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

// roundTripper is a caller's own transport, which knows nothing of httptrace.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestDispatchIsNoOnlyWithProof(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	refused := "http://" + closedPort(t)
	broken := newFake(t, breakAfterRequest)
	silent := newFake(t, hang)

	// A dialer that never gets through, so that the context ends before a connection is there.
	// An http.Transport goes on dialling in the background; over is the end of that.
	connecting, pass := newDue()
	over := make(chan struct{})
	defer close(over)
	stuck := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		pass()
		<-over
		return nil, errors.New("over")
	}}
	unaware := roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("no idea") })

	tests := []struct {
		name     string
		ctx      context.Context
		config   Config
		reason   Reason
		dispatch Dispatch
	}{
		{"nobody listens", t.Context(), Config{APIURL: refused}, ReasonConnect, DispatchNo},
		{"context over before the call", ended, Config{APIURL: silent.URL}, ReasonCanceled, DispatchNo},
		{"context over while connecting", connecting, Config{APIURL: silent.URL, Transport: stuck}, ReasonTimeout, DispatchNo},
		{"context over while waiting", untilSent(), Config{APIURL: silent.URL}, ReasonTimeout, DispatchUnknown},
		{"connection broken after the request", t.Context(), Config{APIURL: broken.URL}, ReasonLost, DispatchUnknown},
		{"a transport that proves nothing", t.Context(), Config{APIURL: silent.URL, Transport: unaware}, ReasonLost, DispatchUnknown},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.config.APIKey = testKey
			_, err := newClient(t, test.config).Create(test.ctx, CreateRequest{Name: "x"})
			e := failure(t, err)
			if e.Reason != test.reason || e.Dispatch != test.dispatch || e.Status != 0 {
				t.Errorf("reason %s, dispatch %s, status %d, want %s, %s, 0", e.Reason, e.Dispatch, e.Status, test.reason, test.dispatch)
			}
		})
	}
}

func TestAPostIsNeverRepeated(t *testing.T) {
	f := newFake(t, breakAfterRequest)
	box := f.toolbox(t)
	// The first call leaves an idle connection only if it succeeds; a broken one must not be retried either way.
	for range 3 {
		if _, err := box.Execute(t.Context(), "true", 0); err == nil {
			t.Fatal("Execute() succeeded, want an error")
		}
	}
	if got := len(f.seen()); got != 3 {
		t.Errorf("%d requests, want 3", got)
	}
}

func TestAnswersThatBreakOff(t *testing.T) {
	cut := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000")
		w.Write([]byte(`{"id":"box",`))
	}
	f := newFake(t, cut)
	c := f.client(t, nil)

	_, err := c.Get(t.Context(), "box")
	if e := failure(t, err); e.Reason != ReasonLost || e.Dispatch != DispatchYes || e.Status != 200 {
		t.Errorf("Get() = %+v, want lost after a 200", e)
	}
	// What was accepted stays accepted.
	if err := c.Stop(t.Context(), "box"); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
}

func TestAnswersThatAreNoAnswers(t *testing.T) {
	tests := map[string]string{
		"empty":        "",
		"a page":       "<html>",
		"null":         "null",
		"without id":   `{"name":"x","state":"started"}`,
		"another type": `[1]`,
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newFake(t, answer(200, body)).client(t, nil).Get(t.Context(), "box")
			if e := failure(t, err); e.Reason != ReasonDecode || e.Dispatch != DispatchYes || e.Status != 200 {
				t.Errorf("Get() = %+v, want decode, dispatched, 200", e)
			}
		})
	}
}

// TestNoMethodTrustsAnAnswerToBeThere: some of the SDK's own methods panic where a successful answer is empty.
func TestNoMethodTrustsAnAnswerToBeThere(t *testing.T) {
	for _, body := range []string{"", "null", "<html>"} {
		f := newFake(t, answer(200, body))
		c, box := f.client(t, nil), f.toolbox(t)
		for name, call := range map[string]func() error{
			"Create":          func() error { _, err := c.Create(t.Context(), CreateRequest{Name: "x"}); return err },
			"Get":             func() error { _, err := c.Get(t.Context(), "x"); return err },
			"Organization":    func() error { _, err := c.CredentialOrganization(t.Context()); return err },
			"PreviewURL":      func() error { _, _, err := c.PreviewURL(t.Context(), "x", 80); return err },
			"Execute":         func() error { _, err := box.Execute(t.Context(), "true", 0); return err },
			"SessionCommands": func() error { _, err := box.SessionCommands(t.Context(), "s"); return err },
			"StartCommand":    func() error { _, err := box.StartCommand(t.Context(), "s", "true"); return err },
			"Command":         func() error { _, err := box.Command(t.Context(), "s", "c"); return err },
			"ReadFile":        func() error { _, err := box.ReadFile(t.Context(), "/x", 10); return err },
			"DescribePTY":     func() error { _, err := box.DescribePTY(t.Context(), "p"); return err },
		} {
			var e *Error
			if err := call(); !errors.As(err, &e) || e.Reason != ReasonDecode || e.Dispatch != DispatchYes || e.Status != 200 {
				t.Errorf("%s answered with %q: %v, want decode, dispatched, 200", name, body, err)
			}
		}
		for name, call := range map[string]func() error{ // whose status says it all
			"Start":         func() error { return c.Start(t.Context(), "x") },
			"Stop":          func() error { return c.Stop(t.Context(), "x") },
			"Delete":        func() error { return c.Delete(t.Context(), "x") },
			"CreateSession": func() error { return box.CreateSession(t.Context(), "s") },
			"DeleteSession": func() error { return box.DeleteSession(t.Context(), "s") },
			"CreatePTY":     func() error { return box.CreatePTY(t.Context(), PTYRequest{ID: "p"}) },
			"DeletePTY":     func() error { return box.DeletePTY(t.Context(), "p") },
		} {
			if err := call(); err != nil {
				t.Errorf("%s answered with %q: %v, want nil", name, body, err)
			}
		}
	}
}

func TestHugeAnswersAreRefused(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		chunk := strings.Repeat(" ", 1<<20)
		for range 3 {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
		io.WriteString(w, `{"id":"box"}`)
	})
	c := f.client(t, nil)
	if _, err := c.Get(t.Context(), "box"); err != nil {
		t.Errorf("Get() below the limit = %v, want nil", err)
	}
	c.limit = 2 << 20
	_, err := c.Get(t.Context(), "box")
	if e := failure(t, err); e.Reason != ReasonLimit {
		t.Errorf("Get() = %+v, want limit", e)
	}
}

func TestRedirectsAreAnswers(t *testing.T) {
	other := newFake(t, answer(200, `{"id":"box"}`))
	for name, to := range map[string]string{"same origin": "/api/elsewhere", "other origin": other.URL + "/api/elsewhere"} {
		for _, status := range []int{302, 307} {
			t.Run(fmt.Sprintf("%s, %d", name, status), func(t *testing.T) {
				f := newFake(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, status) })
				if e := failure(t, f.client(t, nil).Delete(t.Context(), "box")); e.Status != status || e.Dispatch != DispatchYes {
					t.Errorf("Delete() = %+v, want the status %d", e, status)
				}
				if got := len(f.seen()); got != 1 {
					t.Errorf("%d requests, want 1", got)
				}
			})
		}
	}
	if got := len(other.seen()); got != 0 {
		t.Errorf("the other origin saw %d requests, want 0", got)
	}
}

func TestObserveSeesEachCallOnce(t *testing.T) {
	var seen observed
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			answer(404, apiNotFound)(w, r)
			return
		}
		answer(200, `{"id":"box"}`)(w, r)
	})
	c := f.client(t, seen.add)
	c.Get(t.Context(), "box")
	c.Delete(t.Context(), "box")
	c.Get(t.Context(), "") // refused here: no call
	calls := seen.all()
	if len(calls) != 2 {
		t.Fatalf("observed %+v, want 2 calls", calls)
	}
	get, del := calls[0], calls[1]
	if get.Op != OpGet || get.Method != "GET" || get.Status != 200 || get.Err != nil || get.Received != int64(len(`{"id":"box"}`)) || get.Duration <= 0 || get.Start.IsZero() {
		t.Errorf("observed %+v", get)
	}
	if del.Op != OpDelete || del.Method != "DELETE" || del.Status != 404 || del.Err == nil || !del.Err.NotFound() {
		t.Errorf("observed %+v", del)
	}
}

func TestNewRefusesWhatItCannotUse(t *testing.T) {
	tests := map[string]Config{
		"no URL":            {APIKey: "k"},
		"no key":            {APIURL: "https://x"},
		"no host":           {APIURL: "https:///api", APIKey: "k"},
		"another scheme":    {APIURL: "ftp://x", APIKey: "k"},
		"user info":         {APIURL: "https://u:p@x", APIKey: "k"},
		"a query":           {APIURL: "https://x?a=b", APIKey: "k"},
		"an empty query":    {APIURL: "https://x?", APIKey: "k"},
		"a fragment":        {APIURL: "https://x#a", APIKey: "k"},
		"a placeholder":     {APIURL: "https://x/{a}", APIKey: "k"},
		"a newline in key":  {APIURL: "https://x", APIKey: "k\nX: y"},
		"a space in key":    {APIURL: "https://x", APIKey: "k k"},
		"a non-ASCII key":   {APIURL: "https://x", APIKey: "ké"},
		"an unparsable URL": {APIURL: "https://x\x00", APIKey: "k"},
	}
	for name, config := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := New(config)
			if c != nil {
				t.Error("New() returned a client")
			}
			if e := failure(t, err); e.Reason != ReasonInput || e.Dispatch != DispatchNo {
				t.Errorf("New() = %+v, want input, not dispatched", e)
			}
		})
	}
}

func TestACredentialDoesNotFallBackToClearText(t *testing.T) {
	c := newClient(t, Config{APIURL: "https://api.invalid/api", APIKey: testKey, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		t.Error("a request was made")
		return nil, errors.New("refused")
	})})
	for _, address := range []string{"http://proxy.invalid/toolbox", "", "https://u@proxy.invalid", "proxy.invalid"} {
		_, err := c.Toolbox(&Sandbox{ID: "box", ToolboxURL: address}).Execute(t.Context(), "true", 0)
		if e := failure(t, err); e.Reason != ReasonInput || e.Dispatch != DispatchNo {
			t.Errorf("through %q: %+v, want input, not dispatched", address, e)
		}
	}
}
