package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

func TestTheServiceGivesBackWhatADeadHostLeft(t *testing.T) {
	t.Setenv("DAYTONA_API_KEY", "")
	state := t.TempDir()
	leaveALease(t, state)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var logged bytes.Buffer
	go func() {
		ended <- run(ctx, state, 50*time.Millisecond, listener, slog.New(slog.NewTextHandler(&logged, nil)))
	}()

	list := ""
	for tick := time.Tick(20 * time.Millisecond); list != "[]\n"; <-tick {
		list = get(t, "http://"+listener.Addr().String()+"/leases")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run() = %v, want a clean end", err)
	}
	if want := "run=left"; strings.Count(logged.String(), want) != 1 {
		t.Errorf("log:\n%s\nwant one line with %q", &logged, want)
	}
}

// leaveALease is a host that dies with a lease in use.
func leaveALease(t *testing.T, state string) {
	t.Helper()
	store, err := leasehold.NewFileStore(filepath.Join(state, "leases"), leasehold.FileStoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host, err := leasehold.NewLocal(leasehold.LocalConfig{
		Dir: filepath.Join(state, "sandboxes"), Config: leasehold.Config{Store: store, ClaimTime: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Acquire(t.Context(), leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "left"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := host.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
