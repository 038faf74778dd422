package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestARequestSaysWhatItsSandboxIsMadeFrom(t *testing.T) {
	t.Parallel()
	type made struct {
		Snapshot  string
		Image     bool
		CPU, Disk int
		Reuse     bool
	}
	tests := map[string]struct {
		cfg     Config
		request AcquireRequest
		want    made
	}{
		"nothing":                {Config{}, AcquireRequest{}, made{}},
		"configuration":          {Config{Image: "debian:13", Resources: Resources{CPU: 2}, Reuse: true}, AcquireRequest{}, made{Image: true, CPU: 2, Reuse: true}},
		"snapshot for image":     {Config{Image: "debian:13", Resources: Resources{CPU: 2}}, AcquireRequest{Snapshot: "small"}, made{Snapshot: "small"}},
		"image for snapshot":     {Config{Snapshot: "small"}, AcquireRequest{Image: "debian:13", Resources: Resources{Disk: 3}}, made{Image: true, Disk: 3}},
		"image for image":        {Config{Image: "debian:12", Resources: Resources{CPU: 2}}, AcquireRequest{Image: "debian:13"}, made{Image: true}},
		"resources of the image": {Config{Image: "debian:13", Resources: Resources{CPU: 2}}, AcquireRequest{Resources: Resources{Disk: 5}}, made{Image: true, Disk: 5}},
		"reuse":                  {Config{}, AcquireRequest{Reuse: true}, made{Reuse: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got made
			seen := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if q.Method == "POST" && q.URL.Path == "/api/sandbox" {
						body, _ := io.ReadAll(q.Body)
						q.Body = io.NopCloser(strings.NewReader(string(body)))
						var creation struct {
							Snapshot  string            `json:"snapshot"`
							BuildInfo json.RawMessage   `json:"buildInfo"`
							CPU       int               `json:"cpu"`
							Disk      int               `json:"disk"`
							Labels    map[string]string `json:"labels"`
						}
						if err := json.Unmarshal(body, &creation); err != nil {
							t.Error(err)
						}
						got = made{creation.Snapshot, creation.BuildInfo != nil, creation.CPU, creation.Disk, creation.Labels["leasehold-reuse"] == "true"}
					}
					next.ServeHTTP(w, q)
				})
			}
			r := newRig(t, test.cfg, emulator.Options{Middleware: seen, Snapshots: []emulator.Snapshot{{Name: "small"}}})
			test.request.Scope = request().Scope
			l, err := r.Acquire(t.Context(), test.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("the creation mismatches (-want +got):\n%s", diff)
			}
			want := ReceiptDestroyed
			if test.want.Reuse {
				want = ReceiptStopped
			}
			if receipt, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil || receipt.State != want {
				t.Errorf("Release() = %+v, %v, want %s", receipt, err, want)
			}
		})
	}
	t.Run("reuse of what is deleted when it stops", func(t *testing.T) {
		r := newRig(t, Config{AutoDeleteMinutes: new(0)}, emulator.Options{})
		q := request()
		q.Reuse = true
		_, err := r.Acquire(t.Context(), q)
		if e := wantError(t, err, KindInvalid); e.Fields[0].Field != "AcquireRequest.Reuse" {
			t.Errorf("fields = %+v, want AcquireRequest.Reuse", e.Fields)
		}
		r.wantRequests(t)
	})
}

// TestCloseEndsCallsAndLeavesCommands: whoever closes the provider need not end its calls one by one.
func TestCloseEndsCallsAndLeavesCommands(t *testing.T) {
	t.Parallel()
	wire, sent := countedWire(t)
	r := newRig(t, Config{Transport: wire}, emulator.Options{})
	l := r.acquired(t)
	pid := filepath.Join(l.Ref().Workspace, "pid")
	var calls sync.WaitGroup
	call := func(name string, f func() error) {
		calls.Go(func() {
			if err := f(); !errors.Is(err, ErrClosed) {
				t.Errorf("%s = %v, want ErrClosed", name, err)
			}
		})
	}
	p, err := l.Executor().Start(t.Context(), Command{Script: "echo $$ >pid; echo started; exec sleep 60", Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	call("Wait()", func() error {
		got, err := p.Wait()
		if got.Exited || got.StopConfirmed || got.Dispatched != DispatchedYes {
			t.Errorf("Wait() = %+v, want a command that was left to itself", got)
		}
		return err
	})
	began := make(chan struct{})
	session := Command{Script: "echo started; exec sleep 60", Transport: TransportSession, Stdout: writerFunc(func(p []byte) (int, error) {
		close(began)
		return len(p), nil
	})}
	call("Run() on a session", func() error { _, err := l.Executor().Run(t.Context(), session); return err })
	<-began
	feed, hold := io.Pipe()
	defer hold.Close()
	reading := make(chan struct{})
	once := sync.OnceFunc(func() { close(reading) })
	call("Tar()", func() error {
		_, err := l.Importer().Tar(t.Context(), readerFunc(func(p []byte) (int, error) { once(); return feed.Read(p) }), "in", ImportOptions{})
		return err
	})
	<-reading
	term, err := l.OpenTerminal(t.Context(), TerminalOptions{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	call("Terminal.Wait()", func() error { _, err := term.Wait(t.Context()); return err })

	eventually(t, "the command to say who it is", func() bool { data, err := os.ReadFile(pid); return err == nil && len(data) > 0 })
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	calls.Wait()
	data, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(data))); err != nil {
		t.Errorf("the command is gone: %v", err)
	}

	before := sent.Load()
	ctx := context.Background()
	_, err = l.Executor().Run(ctx, Command{Args: []string{"true"}})
	wantError(t, err, KindClosed)
	_, err = l.Exporter().Dir(ctx, "", filepath.Join(t.TempDir(), "out"), ExportOptions{})
	wantError(t, err, KindClosed)
	_, err = l.OpenTerminal(ctx, TerminalOptions{})
	wantError(t, err, KindClosed)
	_, err = l.Endpoint(ctx, 8080)
	wantError(t, err, KindClosed)
	if n := sent.Load() - before; n > 0 {
		t.Errorf("%d requests of a provider that is closed", n)
	}
}

// TestCloseEndsWhatWaits: for an answer, for the next pass, or for a writer of the caller's.
func TestCloseEndsWhatWaits(t *testing.T) {
	r := newRig(t, Config{Store: newMemoryStore(), CallTimeout: 2 * time.Second}, emulator.Options{})
	l := r.acquired(t)
	sweeper, err := NewSweeper(r.provider, SweeperOptions{Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/files/**", Count: -1, Action: emulator.SilentSocket, Bytes: -1})
	blocked, unblock := make(chan struct{}), make(chan struct{})
	defer close(unblock)
	ends := make(chan error, 2)
	go func() { _, err := l.WritableDirs(t.Context()); ends <- err }()
	go func() { ends <- sweeper.Run(t.Context()) }()
	go func() {
		_, _ = l.Executor().Run(t.Context(), Command{Script: "echo x", Stdout: writerFunc(func(p []byte) (int, error) {
			close(blocked)
			<-unblock
			return len(p), nil
		})})
	}()
	<-blocked
	eventually(t, "a request that is not answered", func() bool { return r.server.Faults()[0].Hits > 0 })
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	for range 2 {
		if err := <-ends; !errors.Is(err, ErrClosed) {
			t.Errorf("it ended with %v, want ErrClosed", err)
		}
	}
}
