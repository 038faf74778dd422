package main

import (
	"bytes"
	"context"
	"errors"
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

	var logged bytes.Buffer
	address, end := serve(t, state, slog.NewTextHandler(&logged, nil))
	list := ""
	for tick := time.Tick(20 * time.Millisecond); list != "[]\n"; <-tick {
		list = get(t, "http://"+address+"/leases")
	}
	end()
	if want := "run=left"; strings.Count(logged.String(), want) != 1 {
		t.Errorf("log:\n%s\nwant one line with %q", &logged, want)
	}
}

// TestTheServiceKeepsWhatAHostWantedKept: a host that released its lease to be kept has died before it was stopped, and a
// sweep has stopped it since.
func TestTheServiceKeepsWhatAHostWantedKept(t *testing.T) {
	t.Setenv("DAYTONA_API_KEY", "")
	state := t.TempDir()
	host, store := open(t, state)
	lease := acquire(t, host)
	entries, err := store.List(t.Context(), "", 2)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the list: %+v, %v, want the lease", entries, err)
	}
	if _, err := host.Release(t.Context(), lease.Ref(), leasehold.ReleaseOptions{Retain: true}); err != nil {
		t.Fatal(err)
	}
	record := entries[0].Record
	record.State, record.Orphan = leasehold.StateStopped, leasehold.OrphanRetain
	claim, err := store.Put(t.Context(), record, "sweep")
	if err == nil {
		err = store.Release(t.Context(), claim, record, 0) // and the time until it is asked about again has passed
	}
	if err := errors.Join(err, host.Close(t.Context())); err != nil {
		t.Fatal(err)
	}

	_, end := serve(t, state, slog.DiscardHandler)
	for tick := time.Tick(20 * time.Millisecond); len(entries) == 1 && !entries[0].Record.TriedAt.After(record.TriedAt); <-tick {
		if entries, err = store.List(t.Context(), "", 2); err != nil {
			t.Fatal(err)
		}
	}
	end()
	if len(entries) != 1 || entries[0].Record.State != leasehold.StateStopped {
		t.Errorf("the list: %+v, want the lease, stopped", entries)
	}
	host, _ = open(t, state)
	if _, err := host.Resume(t.Context(), lease.Ref()); err != nil {
		t.Errorf("Resume() = %v, want what was kept", err)
	}
	if err := host.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// serve runs the service, until end is called.
func serve(t *testing.T, state string, log slog.Handler) (address string, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, state, 50*time.Millisecond, listener, slog.New(log)) }()
	return listener.Addr().String(), func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run() = %v, want a clean end", err)
		}
	}
}

// leaveALease is a host that dies with a lease in use.
func leaveALease(t *testing.T, state string) {
	t.Helper()
	host, store := open(t, state)
	acquire(t, host)
	err := host.Close(t.Context())
	entries, listed := store.List(t.Context(), "", 2)
	if err := errors.Join(err, listed); err != nil || len(entries) != 1 {
		t.Fatalf("the list: %+v, %v, want the lease", entries, err)
	}
	if err := store.Renew(t.Context(), entries[0].Owner, 0); err != nil { // its time passes
		t.Fatal(err)
	}
}

func open(t *testing.T, state string) (leasehold.Provider, leasehold.Store) {
	t.Helper()
	store, err := leasehold.NewFileStore(filepath.Join(state, "leases"), leasehold.FileStoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host, err := leasehold.NewLocal(leasehold.LocalConfig{
		Dir: filepath.Join(state, "sandboxes"), Config: leasehold.Config{Store: store},
	})
	if err != nil {
		t.Fatal(err)
	}
	return host, store
}

func acquire(t *testing.T, host leasehold.Provider) *leasehold.Lease {
	t.Helper()
	lease, err := host.Acquire(t.Context(), leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "left"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return lease
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
