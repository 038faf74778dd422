package conformance_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Backend is something that leases can be had from.
type Backend interface {
	// Lease returns a lease of a sandbox that runs, which the end of the test gives back.
	Lease(t *testing.T) *leasehold.Lease
}

// provided is a Backend made of a provider.
type provided struct{ leasehold.Provider }

// newProvided takes what New or NewLocal returned. The end of the test closes it.
func newProvided(t *testing.T, p leasehold.Provider, err error) provided {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(detached(t)); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return provided{p}
}

// detached is a context for what must be done after the test's own has ended.
func detached(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (p provided) Lease(t *testing.T) *leasehold.Lease {
	t.Helper()
	l, err := p.Acquire(t.Context(), leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "leasehold", Environment: "conformance", Run: "commands"}})
	if err != nil {
		t.Fatalf("Acquire() = %v", err)
	}
	t.Cleanup(func() {
		if receipt, err := p.Destroy(detached(t), l.Ref()); err != nil {
			t.Errorf("Destroy() = %+v, %v", receipt, err)
		}
	})
	return l
}

// embedded is the backend that needs nothing.
func embedded(t *testing.T) Backend {
	p, err := leasehold.NewLocal(leasehold.LocalConfig{})
	return newProvided(t, p, err)
}

// toolbox is a toolbox at a URL, with a stand-in for the control plane around it: every sandbox is that toolbox.
func toolbox(t *testing.T, address, token string) Backend {
	t.Helper()
	target, err := url.Parse(address)
	if err != nil || target.Host == "" {
		t.Fatalf("the toolbox's URL %q is none: %v", address, err)
	}
	connections := &http.Transport{}
	forward := &httputil.ReverseProxy{
		Transport:     connections,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // what fails, the suite notices
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization")
			if token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+token)
			}
		},
	}
	server, err := emulator.Start(emulator.Options{Toolbox: forward})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		connections.CloseIdleConnections()
	})
	p, err := leasehold.New(leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey()})
	return newProvided(t, p, err)
}

// realControlPlane is Daytona, or whatever serves its API.
func realControlPlane(t *testing.T) Backend {
	t.Helper()
	p, err := leasehold.New(leasehold.Config{APIURL: os.Getenv("DAYTONA_API_URL"), APIKey: os.Getenv("DAYTONA_API_KEY"), TTL: 30 * time.Minute})
	return newProvided(t, p, err)
}
