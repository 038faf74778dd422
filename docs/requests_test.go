package docs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold"
)

// TestRequestCounts does each operation once, and holds the table of docs/limits.md against the requests that it made.
func TestRequestCounts(t *testing.T) {
	wire := &recorder{next: http.DefaultTransport.(*http.Transport).Clone()}
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{Config: leasehold.Config{Reuse: true, Transport: wire}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := provider.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}

	table := "| operation | requests | which |\n|---|---|---|\n"
	row := func(name string, do func() error) {
		t.Helper()
		wire.take()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines := wire.take()
		table += fmt.Sprintf("| %s | %d | %s |\n", name, len(lines), strings.Join(lines, ", "))
	}
	ctx := t.Context()
	request := leasehold.AcquireRequest{Scope: leasehold.Scope{Tenant: "acme", Environment: "ci", Run: "1"}}
	var lease *leasehold.Lease
	acquire := func() (err error) {
		lease, err = provider.Acquire(ctx, request)
		return err
	}
	row("`Acquire`, the first of a provider", acquire)
	row("`Acquire`", acquire)
	row("`Bind`", func() error { _, err := provider.Bind(lease.Ref()); return err })
	short := func() error {
		_, err := lease.Executor().Run(ctx, leasehold.Command{Args: []string{"true"}})
		return err
	}
	row("`Run`, a short command", short)
	row("`Run`, with up to 64 KiB of input", func() error {
		_, err := lease.Executor().Run(ctx, leasehold.Command{Args: []string{"cat"}, Stdin: strings.NewReader("input")})
		return err
	})
	row("`Importer.Dir`, `FS`, `File`, `Files`", func() error {
		_, err := lease.Importer().Dir(ctx, source, "src", leasehold.ImportOptions{})
		return err
	})
	row("`Importer.Dir`, with `DeltaTimes`, nothing changed", func() error {
		_, err := lease.Importer().Dir(ctx, source, "src", leasehold.ImportOptions{Delta: leasehold.DeltaTimes})
		return err
	})
	readOnly := func() error {
		_, err := lease.Importer().Dir(ctx, source, "bundle", leasehold.ImportOptions{Access: leasehold.AccessReadOnly})
		return err
	}
	row("`Importer.Dir`, with `AccessReadOnly`", readOnly)
	row("`Importer.Dir`, with `AccessReadOnly`, there already", readOnly)
	row("`Exporter.Dir`, `File`, `Files`, `Tar`, up to one piece", func() error {
		_, err := lease.Exporter().Dir(ctx, "src", filepath.Join(t.TempDir(), "out"), leasehold.ExportOptions{})
		return err
	})
	row("`WritableDirs`", func() error { _, err := lease.WritableDirs(ctx); return err })
	row("`Endpoint`", func() error { _, err := lease.Endpoint(ctx, 8080); return err })
	row("`OpenTerminal`", func() error {
		_, err := lease.OpenTerminal(ctx, leasehold.TerminalOptions{ID: "t", Args: []string{"cat"}})
		return err
	})
	row("`CloseTerminal`", func() error { return lease.CloseTerminal(ctx, "t") })
	row("`Idle`", func() error { provider.Idle(); return nil })
	if err := acquire(); err != nil { // one with nothing to clean up
		t.Fatal(err)
	}
	row("`Resume`, of one that runs", func() (err error) { lease, err = provider.Resume(ctx, lease.Ref()); return err })
	row("`Release`, of a reusable one", func() error { _, err := provider.Release(ctx, lease.Ref(), leasehold.ReleaseOptions{}); return err })
	row("`Resume`, of one that is stopped", func() (err error) { lease, err = provider.Resume(ctx, lease.Ref()); return err })
	row("`Release`, with `Retain`", func() error {
		_, err := provider.Release(ctx, lease.Ref(), leasehold.ReleaseOptions{Retain: true})
		return err
	})
	row("`Destroy`, and `Release` of one that is not reusable", func() error { _, err := provider.Destroy(ctx, lease.Ref()); return err })

	madePart(t, "docs/limits.md", "measured", table)
}

// recorder carries requests, and keeps what they were.
type recorder struct {
	next http.RoundTripper

	mu   sync.Mutex
	list []string
}

func (r *recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	path := q.URL.Path[strings.Index(q.URL.Path+"/api/", "/api/"):]
	if _, toolbox, ok := strings.Cut(q.URL.Path, "/toolbox/"); ok {
		_, path, _ = strings.Cut(toolbox, "/") // the sandbox's id
		path = "toolbox " + path
	}
	segments := strings.Split(strings.TrimPrefix(path, "/api/"), "/")
	for i := 1; i < len(segments); i++ {
		switch before := segments[i-1]; {
		case before == "sandbox" && segments[i] != "paginated", before == "autodelete", before == "pty", before == "ports":
			segments[i] = "…"
		}
	}
	r.mu.Lock()
	r.list = append(r.list, "`"+q.Method+" "+strings.Join(segments, "/")+"`")
	r.mu.Unlock()
	return r.next.RoundTrip(q)
}

// take returns the requests since it was last called, without ids. Reads in a row count as one: how many it takes until a
// change is done is the provider's.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Compact(r.list)
	r.list = nil
	return list
}
