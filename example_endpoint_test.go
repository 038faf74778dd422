//go:build unix

package leasehold_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold"
)

// A local sandbox's ports are this host's: so this server stands for one that a command started in the sandbox.
func startService() (port int, stop func()) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "served ", r.URL.Path) }))
	address, err := url.Parse(server.URL)
	if err != nil {
		panic(err)
	}
	port, err = strconv.Atoi(address.Port())
	if err != nil {
		panic(err)
	}
	return port, server.Close
}

// acquire returns a lease on a local backend, and what ends both.
func acquire(ctx context.Context) (*leasehold.Lease, leasehold.Provider, func()) {
	p, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		panic(err)
	}
	lease, err := p.Acquire(ctx, leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "docs", Run: "1"}})
	if err != nil {
		panic(err)
	}
	return lease, p, func() {
		if _, err := p.Destroy(ctx, lease.Ref()); err != nil {
			panic(err)
		}
		if err := p.Close(ctx); err != nil {
			panic(err)
		}
	}
}

func ExampleLease_Endpoint() {
	ctx := context.Background()
	lease, _, end := acquire(ctx)
	defer end()
	port, stop := startService()
	defer stop()

	endpoint, err := lease.Endpoint(ctx, port)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := endpoint.Client().Get(endpoint.URL().JoinPath("healthz").String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(body), err)
	// Output: 200 served /healthz <nil>
}

func ExampleEndpoint_Sign() {
	ctx := context.Background()
	lease, _, end := acquire(ctx)
	defer end()
	port, stop := startService()
	defer stop()

	endpoint, err := lease.Endpoint(ctx, port)
	if err != nil {
		fmt.Println(err)
		return
	}
	signed, err := endpoint.Sign(ctx, 10*time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer signed.Revoke(ctx)
	resp, err := http.Get(signed.SecretURL() + "/page") // a browser, somewhere else
	if err != nil {
		fmt.Println(err)
		return
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, time.Until(signed.ExpiresAt()) <= 10*time.Minute)
	// Output: 200 true
}

func ExampleLease_OpenSSH() {
	ctx := context.Background()
	lease, _, end := acquire(ctx)
	defer end()

	access, err := lease.OpenSSH(ctx, 30*time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	// access.SecretCommand() is shown to the person who is to log in. What is logged has no secret:
	fmt.Println(access.Host(), access.Port(), bytes.Contains([]byte(access.String()), []byte(access.Token())))
	// Output: localhost 2222 false
}

func ExampleSnapshots() {
	ctx := context.Background()
	lease, p, end := acquire(ctx)
	defer end()
	snapshots, err := leasehold.NewSnapshots(p)
	if err != nil {
		fmt.Println(err)
		return
	}

	dockerfile, err := leasehold.ImageSpec{Base: "golang:1.26", Apt: []string{"git"}}.Dockerfile()
	if err != nil {
		fmt.Println(err)
		return
	}
	planned := snapshots.Plan("Go tools") // store it before the creation is sent
	var log bytes.Buffer
	built, err := snapshots.Build(ctx, planned, leasehold.BuildRequest{Dockerfile: dockerfile, Logs: &log})
	fmt.Println(built.Name[:9], err) // for Config.Snapshot
	firstLine, _, _ := bytes.Cut(log.Bytes(), []byte("\n"))
	fmt.Println(string(firstLine))

	captured, err := snapshots.Capture(ctx, lease, snapshots.Plan("workspace"))
	fmt.Println(captured.Name[:10], err)
	fmt.Println(snapshots.Delete(ctx, built), snapshots.Delete(ctx, captured))
	// Output:
	// go-tools- <nil>
	// Step 1/2 : FROM golang:1.26
	// workspace- <nil>
	// <nil> <nil>
}
