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
	var asked atomic.Int64
	arrived := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case arrived <- struct{}{}:
		default:
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshakes that fail
	server.StartTLS()
	defer server.Close()
	cfg := Config{APIKey: "key", APIURL: server.URL + "/api", Timeout: 200 * time.Millisecond}
	for name, tt := range map[string]struct {
		transport http.RoundTripper
		trusted   bool
	}{
		"the default transport":       {nil, false},
		"a transport of the caller's": {&http.Transport{}, false},
		"one that trusts that server": {server.Client().Transport, true},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			cfg := cfg
			cfg.Transport = tt.transport
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.trusted {
				cfg.Timeout = time.Minute
				go func() {
					<-arrived
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
			if got := asked.Load(); (got > 0) != tt.trusted {
				t.Errorf("%d requests arrived, trusted: %v", got, tt.trusted)
			}
		})
	}

	// An endpoint: the emulator's answer, whose address leads to that server.
	r := newRig(t, Config{Transport: &http.Transport{}}, emulator.Options{})
	l := r.acquired(t)
	e := endpointOf(t, l, 80)
	asked.Store(0)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	address := *e.address
	address.Scheme, address.Host = "https", "127.0.0.1:"+port
	elsewhere := &Endpoint{l: l, port: 80, address: &address, refreshing: make(chan struct{}, 1)}
	elsewhere.grant.Store(e.grant.Load())
	_, err := elsewhere.Client().Get(elsewhere.URL().String())
	if !errors.Is(err, ErrUnavailable) || asked.Load() != 0 {
		t.Errorf("Get() = %v, and %d requests arrived, want no connection", err, asked.Load())
	}
	r.cfg.Transport.(*http.Transport).CloseIdleConnections()
}
