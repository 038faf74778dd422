package leasehold

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestTLSIsVerified: a server whose certificate nobody vouches for gets no request, whether it is the provider's or the one
// that an endpoint's address leads to; with a transport that trusts it, it does.
func TestTLSIsVerified(t *testing.T) {
	for name, tt := range map[string]struct {
		transport func(*httptest.Server) http.RoundTripper
		trusted   bool
	}{
		"the default transport":       {func(*httptest.Server) http.RoundTripper { return nil }, false},
		"a transport of the caller's": {func(*httptest.Server) http.RoundTripper { return &http.Transport{} }, false},
		"one that trusts that server": {func(s *httptest.Server) http.RoundTripper { return s.Client().Transport }, true},
	} {
		t.Run(name, func(t *testing.T) {
			server, arrived := untrusted(t)
			cfg := Config{APIKey: "key", APIURL: server.URL + "/api", Timeout: 200 * time.Millisecond,
				Transport: tt.transport(server)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.trusted {
				cfg.Timeout = time.Minute
				go func() {
					<-arrived.first
					cancel()
				}()
			}
			p, err := newProvider(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(ctx)
			_, err = p.Acquire(ctx, request())
			var e *Error
			if !errors.As(err, &e) || !tt.trusted && e.Dispatched != DispatchedNo {
				t.Errorf("error = %+v", e)
			}
			if got := arrived.Load(); (got > 0) != tt.trusted {
				t.Errorf("%d requests arrived, trusted: %v", got, tt.trusted)
			}
		})
	}

	// An endpoint: the emulator's answer, whose address leads to that server.
	server, arrived := untrusted(t)
	r := newRig(t, Config{Transport: &http.Transport{}}, emulator.Options{})
	l := r.acquired(t)
	e := endpointOf(t, l, 80)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	address := *e.address
	address.Scheme, address.Host = "https", "127.0.0.1:"+port
	elsewhere := &Endpoint{l: l, port: 80, address: &address, refreshing: make(chan struct{}, 1)}
	elsewhere.grant.Store(e.grant.Load())
	_, err := elsewhere.Client().Get(elsewhere.URL().String())
	if !errors.Is(err, ErrUnavailable) || arrived.Load() != 0 {
		t.Errorf("Get() = %v, and %d requests arrived, want no connection", err, arrived.Load())
	}
	r.cfg.Transport.(*http.Transport).CloseIdleConnections()
}

// untrusted is a server with a certificate of its own making, and what it was asked. Each use has its own: a request
// that its client has given up may arrive after it.
func untrusted(t *testing.T) (*httptest.Server, *visits) {
	v := &visits{first: make(chan struct{})}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.Add(1) == 1 {
			close(v.first)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshakes that fail
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, v
}

// visits counts the requests that a server was sent. first is closed with the first.
type visits struct {
	atomic.Int64
	first chan struct{}
}
