package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// stateVariable names the directory of what runs on a real control plane have created and not yet seen destroyed.
const stateVariable = "LEASEHOLD_CONFORMANCE_DIR"

// stateDir is that directory, the same for each run: a run that was killed is swept by the next.
func stateDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv(stateVariable); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("%v: set %s", err, stateVariable)
	}
	return filepath.Join(cache, "leasehold-conformance")
}

// sweep destroys what is left of this run, and of runs that were killed: sandboxes in whatever state they are, and
// snapshots. It leaves alone what runs that still live hold.
func (b *backend) sweep(t *testing.T) {
	ctx := detached(t)
	if err := b.list.disown(ctx); err != nil {
		t.Error(err)
	}
	h := b.newHost(t)
	sweeper, err := leasehold.NewSweeper(h.Provider, leasehold.SweeperOptions{
		OnOrphan: func(context.Context, leasehold.Record) leasehold.Disposition { return leasehold.OrphanDestroy },
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := sweeper.Sweep(ctx)
	t.Logf("%s: swept: %+v, %v", b.name, report, err)
	b.sweepSnapshots(ctx, t, h)
	entries, err := b.list.entries(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		name := e.Record.Envelope.Name
		switch {
		case e.Alive:
			t.Logf("%s is held by a run that lives, or was killed just now: it lasts until %v at most", name, e.Record.CreatedAt.Add(lifetime))
		case e.Record.Envelope.Scope.Run == b.run || e.Due.Before(time.Now()):
			t.Errorf("%s, %s, could not be destroyed: it lasts until %v at most", name, e.Record.State, e.Record.CreatedAt.Add(lifetime))
		default:
			t.Logf("%s, %s, is left alone until %v", name, e.Record.State, e.Due)
		}
	}
}

// snapshots makes the snapshots of a host.
func (h *host) snapshots(t *testing.T) *leasehold.Snapshots {
	t.Helper()
	s, err := leasehold.NewSnapshots(h.Provider)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plan returns the reference of a snapshot to come, which the end of the test deletes. They have no lifetime, and no place on
// a list of the library's: so each is noted before it is made.
func (h *host) plan(t *testing.T, label string) leasehold.SnapshotRef {
	t.Helper()
	ref := h.snapshots(t).Plan(label)
	data, err := json.Marshal(ref)
	if err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(h.b.snapshotDir(), ref.Name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(note), 0o700), os.WriteFile(note, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.unmake(detached(t), t, note) })
	return ref
}

func (b *backend) snapshotDir() string { return filepath.Join(b.dir, "snapshots") }

// unmake deletes the snapshot of a note, and then the note.
func (h *host) unmake(ctx context.Context, t *testing.T, note string) {
	data, err := os.ReadFile(note)
	if err != nil {
		t.Error(err)
		return
	}
	ref, err := leasehold.ParseSnapshotRef(data)
	if err != nil {
		t.Errorf("%s: %v", note, err)
		return
	}
	found, err := h.snapshots(t).Inspect(ctx, ref)
	if err == nil {
		err = h.snapshots(t).Delete(ctx, found.Ref)
	}
	if err != nil && !errors.Is(err, leasehold.ErrUncertain) { // there is none of that name
		t.Errorf("the snapshot %s is left: %v", ref.Name, err)
		return
	}
	if err := os.Remove(note); err != nil {
		t.Error(err)
	}
}

// sweepSnapshots deletes what killed runs left. What a run that lives is making can have been noted for no longer than it
// may take.
func (b *backend) sweepSnapshots(ctx context.Context, t *testing.T, h *host) {
	notes, err := filepath.Glob(filepath.Join(b.snapshotDir(), "*"))
	if err != nil {
		t.Error(err)
	}
	for _, note := range notes {
		if info, err := os.Stat(note); err == nil && time.Since(info.ModTime()) > lifetime {
			h.unmake(ctx, t, note)
		}
	}
}

// TestSweepRealControlPlane does only that.
func TestSweepRealControlPlane(t *testing.T) { realControlPlane(t) }

// TestAKilledRunIsSwept: a run on a control plane is killed in the middle of a case. What it left is on the list of the next
// run, which destroys it, once the time is over for which the killed one could be taken to live.
func TestAKilledRunIsSwept(t *testing.T) {
	t.Parallel()
	var executions atomic.Int64
	inTheMiddle := make(chan struct{})
	server := emulated(t, emulator.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The first one sets up the lease that cases share, the second is the case's.
			if strings.HasSuffix(r.URL.Path, "/process/execute") && executions.Add(1) == 2 {
				close(inTheMiddle)
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	dir := memory(t)
	var output bytes.Buffer
	run := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestRealControlPlane$/^commands$/^default$/^nothing$")
	run.Env = append(os.Environ(), "LEASEHOLD_REAL=1", "DAYTONA_API_URL="+server.URL(), "DAYTONA_API_KEY="+server.APIKey(), stateVariable+"="+dir)
	run.Stdout, run.Stderr = &output, &output
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	select {
	case <-inTheMiddle:
		if err := run.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
	case err := <-ended:
		t.Fatalf("the run ended with %v, before it could be killed:\n%s", err, &output)
	}
	for _, want := range []string{"at most", lifetime.String()} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("the run did not say what it would cost, %q is missing:\n%s", want, &output)
		}
	}

	config := leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey()}
	b := unsweptControlPlane(t, config, dir) // of the next run
	b.sweep(t)
	if left := server.Sandboxes(); len(left) != 1 {
		t.Errorf("a sweep that came too early left the sandboxes %v, want the one of the killed run", left)
	}
	entries, err := b.list.entries(t.Context())
	if err != nil || len(entries) != 1 || entries[0].Record.State != leasehold.StateLeased || !entries[0].Alive {
		t.Fatalf("the list is %+v, %v; want the lease, held by the killed run", entries, err)
	}
	if err := b.list.Renew(t.Context(), entries[0].Owner, time.Nanosecond); err != nil { // its time passes
		t.Fatal(err)
	}
	b.sweep(t)
	if left := server.Sandboxes(); len(left) != 0 {
		t.Errorf("a sweep left the sandboxes %v", left)
	}
	b.nothingLeft(t)
}
