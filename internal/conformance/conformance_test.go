package conformance_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// topic is a part of the suite.
type topic struct {
	name  string
	alone bool // its cases run one after another, on a lease of their own
	cases []behaviour
}

// behaviour is what every backend must do.
type behaviour struct {
	name   string
	needs  []feature // what a backend may lack, by differences
	leases int       // how many it acquires, beside the one of all
	test   func(*testing.T, *scene)
}

// scene is what a case works on.
type scene struct {
	*backend
	host  *host            // which has
	lease *leasehold.Lease // one that other cases use at the same time
}

// topics are the whole suite, with the commands, or one of so many of them, run on each of the transports.
func topics(transports []leasehold.Transport, oneIn int) []topic {
	return []topic{
		{name: "leases", cases: leaseCases},
		{name: "commands", cases: commandCases(transports, oneIn)},
		{name: "files", cases: fileCases},
		{name: "terminals", cases: terminalCases},
		{name: "channels", cases: channelCases},
		{name: "endpoints", cases: endpointCases},
		{name: "snapshots", cases: snapshotCases},
		{name: "cleanup", cases: cleanupCases},
		{name: "idleness", alone: true, cases: idleCases},
	}
}

// lifetime is the TTL of every sandbox on a control plane.
const lifetime = 30 * time.Minute

// conform runs the suite on a backend.
func conform(t *testing.T, b *backend) {
	all := topics(b.transports, b.oneIn)
	most := b.most(all)
	t.Logf("%s: creates at most %d sandboxes, of which at most %d at a time", b.name, most, parallel()+2)
	switch {
	case b.config.TTL > 0:
		t.Logf("%s: each is destroyed at its end, or by the provider after %v: at most %v of sandboxes", b.name, b.config.TTL, time.Duration(most)*b.config.TTL)
	case b.lacks(lifetimes) != "":
		t.Logf("%s: each is destroyed at its end; left alone, it is stopped after %d minutes, and most of those are deleted %d minutes later: the next run destroys what is left",
			b.name, *b.config.AutoStopMinutes, *b.config.AutoDeleteMinutes)
	}
	var ran, lacking atomic.Int64
	t.Cleanup(func() {
		t.Logf("%s: %d cases ran, %d did not because of a difference; %d sandboxes were created", b.name, ran.Load(), lacking.Load(), b.list.created.Load())
		if created := b.list.created.Load(); created > int64(most) {
			t.Errorf("%d sandboxes were created, and at most %d announced", created, most)
		}
	})
	shared := b.scene(t)
	for _, topic := range all {
		t.Run(topic.name, func(t *testing.T) {
			t.Parallel()
			on := shared
			if topic.alone {
				on = b.scene(t)
			}
			for _, c := range topic.cases {
				t.Run(c.name, func(t *testing.T) {
					if why := b.lacks(c.needs...); why != "" {
						lacking.Add(1)
						t.Skipf("the backend %q differs: %s", b.name, why)
					}
					ran.Add(1)
					if !topic.alone {
						t.Parallel()
					}
					c.test(t, on)
				})
			}
		})
	}
}

// scene acquires a lease for many cases.
func (b *backend) scene(t *testing.T) *scene {
	t.Helper()
	h := b.newHost(t, reusable)
	return &scene{b, h, h.acquire(t)}
}

// most is how many sandboxes the suite creates, if all of it runs.
func (b *backend) most(all []topic) int {
	sum := 1
	for _, topic := range all {
		if topic.alone {
			sum++
		}
		for _, c := range topic.cases {
			if b.lacks(c.needs...) == "" {
				sum += c.leases
			}
		}
	}
	return sum
}

// TestEmbedded runs the suite on the backend that needs nothing.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	b := newBackend(t, "embedded", memory(t))
	b.embedded = true
	b.transports = []leasehold.Transport{leasehold.TransportDefault, leasehold.TransportSession} // the default is a journal there
	t.Cleanup(func() { b.nothingLeft(t) })
	conform(t, b)
}

// TestToolboxByURL is the road to a real toolbox, gone with an emulated one on a listener of its own.
func TestToolboxByURL(t *testing.T) {
	t.Parallel()
	other := emulated(t, emulator.Options{})
	p, err := leasehold.New(leasehold.Config{APIURL: other.URL(), APIKey: other.APIKey()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(detached(t)) })
	l, err := p.Acquire(t.Context(), leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "a", Environment: "toolbox", Run: "only"}})
	if err != nil {
		t.Fatal(err)
	}
	other.ResetRequests()
	t.Cleanup(func() {
		if n := len(other.Requests()); n < len(fileCases) {
			t.Errorf("%d requests came to the toolbox: the suite ran elsewhere", n)
		}
	})
	b := toolbox(t, strings.TrimSuffix(other.URL(), "/api")+"/toolbox/"+l.Ref().Sandbox, other.APIKey())
	b.sampled()
	conform(t, b)
}

// TestRealToolbox runs the suite on a toolbox daemon.
func TestRealToolbox(t *testing.T) {
	address := os.Getenv("LEASEHOLD_TOOLBOX_URL")
	if address == "" {
		t.Skip("LEASEHOLD_TOOLBOX_URL names no toolbox")
	}
	b := toolbox(t, address, os.Getenv("LEASEHOLD_TOOLBOX_TOKEN"))
	b.transports = everyTransport
	conform(t, b)
}

// toolbox is a toolbox at a URL, with a stand-in for the control plane around it: every sandbox is that toolbox.
func toolbox(t *testing.T, address, token string) *backend {
	t.Helper()
	target, err := url.Parse(address)
	if err != nil || target.Host == "" {
		t.Fatalf("the toolbox's URL %q is none: %v", address, err)
	}
	connections := &http.Transport{}
	t.Cleanup(connections.CloseIdleConnections)
	server := emulated(t, emulator.Options{Toolbox: &httputil.ReverseProxy{
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
	}})
	b := newBackend(t, "toolbox", memory(t))
	b.config = leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey(), Workspace: "leasehold-" + b.run}
	t.Cleanup(func() { b.nothingLeft(t) })
	t.Cleanup(func() { b.removeWorkspaces(t) })
	return b
}

// removeWorkspaces removes what the sandboxes of a backend left in the files that they share.
func (b *backend) removeWorkspaces(t *testing.T) {
	h, ctx := b.newHost(t), detached(t)
	l, err := h.Acquire(ctx, b.request())
	if err != nil {
		t.Errorf("Acquire() = %v, and the workspaces are left", err)
		return
	}
	all, _, found := strings.Cut(l.Ref().Workspace, b.config.Workspace)
	if !found {
		t.Errorf("the workspace %q is not below %q", l.Ref().Workspace, b.config.Workspace)
		return
	}
	all += b.config.Workspace
	if got, err := l.Executor().Run(ctx, leasehold.Command{Script: `chmod -R u+rwX "$ALL"; rm -rf -- "$ALL"`, Dir: "/", Env: map[string]string{"ALL": all}, NoBwrap: true}); err != nil || got.ExitCode != 0 {
		t.Errorf("removing %q: %+v, %v", all, got, err)
	}
	if _, err := h.Destroy(ctx, l.Ref()); err != nil {
		t.Errorf("Destroy() = %v", err)
	}
}

// TestControlPlaneByURL is the road to a real control plane, gone with an emulated one: it is known by its URL and a key, and
// it and its previews speak HTTPS.
func TestControlPlaneByURL(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(http.NotFoundHandler()) // for a certificate, of which the client knows the issuer
	certified.Close()
	server := emulated(t, emulator.Options{
		TLS:           &tls.Config{Certificates: certified.TLS.Certificates},
		PreviewDomain: "example.com", // which is in the certificate
	})
	at, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	issuers := x509.NewCertPool()
	issuers.AddCert(certified.Certificate())
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: issuers},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) { // for the resolver
			return new(net.Dialer).DialContext(ctx, network, at.Host)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	b := controlPlane(t, leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey(), Transport: transport}, memory(t), "")
	b.outside, b.serve = transport, "127.0.0.1"
	b.sampled()
	t.Cleanup(func() {
		creations := 0
		for _, q := range server.Requests() {
			if q.Method == http.MethodPost && q.Path == "/api/sandbox" {
				creations++
			}
		}
		if listed := b.list.created.Load(); int64(creations) != listed {
			t.Errorf("%d sandboxes were created, and %d were on the list before", creations, listed)
		}
	})
	conform(t, b)
}

// TestRealControlPlane runs the suite on Daytona, or whatever serves its API.
func TestRealControlPlane(t *testing.T) {
	b := realControlPlane(t)
	b.transports = everyTransport
	conform(t, b)
}

// realControlPlane is the one that the environment names.
func realControlPlane(t *testing.T) *backend {
	t.Helper()
	switch {
	case os.Getenv("LEASEHOLD_REAL") != "1":
		t.Skip("LEASEHOLD_REAL is not 1: sandboxes of a real control plane cost money")
	case !testing.Verbose():
		t.Fatal("without -v nobody would see what it costs before it does")
	}
	return controlPlane(t, leasehold.Config{APIURL: os.Getenv("DAYTONA_API_URL"), APIKey: os.Getenv("DAYTONA_API_KEY")}, stateDir(t), os.Getenv(lacksVariable))
}

// controlPlane is one that lives on after the run. What is left, of this run or of an earlier one with the same dir and
// account, is swept at the end.
func controlPlane(t *testing.T, config leasehold.Config, dir, lacks string) *backend {
	t.Helper()
	b := unsweptControlPlane(t, config, dir)
	if lacks != "" {
		b.declare(t, lacks)
	}
	t.Cleanup(func() { b.sweep(t) })
	return b
}

func unsweptControlPlane(t *testing.T, config leasehold.Config, dir string) *backend {
	t.Helper()
	b := newBackend(t, "control plane", filepath.Join(dir, credential(t, config)))
	b.config, b.serve = config, "0.0.0.0"
	b.config.TTL = lifetime
	return b
}

// emulated starts an emulator, which the end of the test ends.
func emulated(t *testing.T, options emulator.Options) *emulator.Server {
	t.Helper()
	server, err := emulator.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// nothingLeft fails the test if the list of a backend that ends with it is not empty.
func (b *backend) nothingLeft(t *testing.T) {
	entries, err := b.list.entries(detached(t))
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		t.Errorf("left on the list: %s, %s, %s", e.Record.Envelope.Name, e.Record.State, e.Record.Envelope.Scope.Agent)
	}
}

// lacks returns why a backend lacks a feature; nothing if it has all of them.
func (b *backend) lacks(needs ...feature) string {
	i := slices.IndexFunc(needs, func(f feature) bool { return b.lacking[f] != "" })
	if i < 0 {
		return ""
	}
	return b.lacking[needs[i]]
}
