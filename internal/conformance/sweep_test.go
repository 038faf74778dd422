package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// stateVariable names the directory of what runs on real control planes have created and not yet seen destroyed.
const stateVariable = "LEASEHOLD_CONFORMANCE_DIR"

// stateDir is that directory, the same for each run: a run that was killed is swept by the next on the same account.
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
	ctx := detachedFor(t, 10*time.Minute) // there may be dozens, each of which takes the provider a while
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
	b.sweepSnapshots(t, h)
	entries, err := b.list.entries(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		name := e.Record.Envelope.Name
		switch {
		case e.Alive:
			t.Logf("%s is held by a run that lives, or was killed just now: it lasts %s", name, b.lasts(e.Record))
		case e.Record.Envelope.Scope.Run == b.run || e.Due.Before(time.Now()):
			t.Errorf("%s, %s, could not be destroyed: it lasts %s", name, e.Record.State, b.lasts(e.Record))
		default:
			t.Logf("%s, %s, is left alone until %v", name, e.Record.State, e.Due)
		}
	}
}

// lasts says how long a sandbox lasts that nobody destroys.
func (b *backend) lasts(r leasehold.Record) string {
	if b.lacks(lifetimes) != "" {
		return "until it is destroyed"
	}
	return fmt.Sprintf("until %v at most", r.CreatedAt.Add(lifetime))
}

// credential returns the library's fingerprint of an address and a key, which tells nothing of the key. What one account
// has made another can neither find nor account for, so each has a directory of its own.
func credential(t *testing.T, config leasehold.Config) string {
	t.Helper()
	p, err := leasehold.New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(detached(t))
	s, err := leasehold.NewSnapshots(p)
	if err != nil {
		t.Fatal(err)
	}
	return s.Plan("").Credential
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
// a list of the library's: so each is noted before it is made, and again when its id is known.
func (h *host) plan(t *testing.T, label string) leasehold.SnapshotRef {
	t.Helper()
	ref := h.snapshots(t).Plan(label)
	h.note(t, ref)
	t.Cleanup(func() { h.unmake(detached(t), t, h.b.noteOf(ref)) })
	return ref
}

// note writes down all that is known of a snapshot.
func (h *host) note(t *testing.T, ref leasehold.SnapshotRef) {
	t.Helper()
	data, err := json.Marshal(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(h.b.snapshotDir(), 0o700), os.WriteFile(h.b.noteOf(ref), data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (b *backend) noteOf(ref leasehold.SnapshotRef) string {
	return filepath.Join(b.snapshotDir(), ref.Name)
}

func (b *backend) snapshotDir() string { return filepath.Join(b.dir, "snapshots") }

// unmake deletes the snapshot of a note, and then the note. One that was never seen may still be made, although its call
// has failed: its note stays until that can no longer be.
func (h *host) unmake(ctx context.Context, t *testing.T, note string) {
	ref, settled, err := readNote(note)
	if err != nil {
		t.Errorf("%s: %v", note, err)
		return
	}
	found, err := h.snapshots(t).Inspect(ctx, ref)
	if err == nil {
		ref = found.Ref
		h.note(t, ref)
		err = h.snapshots(t).Delete(ctx, ref)
	}
	unseen := ref.ID == "" && errors.Is(err, leasehold.ErrUncertain)
	switch {
	case unseen && !settled:
		t.Logf("the snapshot %s is not there, and may still be made: a run that comes %v later looks again", ref.Name, lifetime)
		return
	case err != nil && !unseen && !errors.Is(err, leasehold.ErrGone):
		t.Errorf("the snapshot %s is left: %v", ref.Name, err)
		return
	}
	if err := os.Remove(note); err != nil {
		t.Error(err)
	}
}

// readNote reads a note, and tells whether it is so old that what it names has been made by now, or never will be.
func readNote(note string) (ref leasehold.SnapshotRef, settled bool, err error) {
	info, err := os.Stat(note)
	if err != nil {
		return ref, false, err
	}
	settled = time.Since(info.ModTime()) > lifetime
	data, err := os.ReadFile(note)
	if err != nil {
		return ref, settled, err
	}
	ref, err = leasehold.ParseSnapshotRef(data)
	return ref, settled, err
}

// sweepSnapshots deletes what killed runs left, and what was made after its call had failed. What a run that lives is making
// can have been noted for no longer than it may take.
func (b *backend) sweepSnapshots(t *testing.T, h *host) {
	notes, err := filepath.Glob(filepath.Join(b.snapshotDir(), "*"))
	if err != nil {
		t.Error(err)
	}
	for _, note := range notes {
		if _, settled, _ := readNote(note); settled {
			h.unmake(detached(t), t, note)
		}
	}
}

// TestSweepRealControlPlane does only that.
func TestSweepRealControlPlane(t *testing.T) { realControlPlane(t) }

// onControlPlane is a run, in a process of its own, of some cases on a control plane that is known by its URL and a key alone.
func onControlPlane(t *testing.T, server *emulator.Server, dir, cases string) *exec.Cmd {
	run := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestRealControlPlane$/"+cases)
	run.Env = append(os.Environ(), "LEASEHOLD_REAL=1", "DAYTONA_API_URL="+server.URL(), "DAYTONA_API_KEY="+server.APIKey(), stateVariable+"="+dir)
	return run
}

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
	run := onControlPlane(t, server, dir, "^commands$/^default$/^nothing$")
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

	elsewhere := emulated(t, emulator.Options{})
	foreign := unsweptControlPlane(t, leasehold.Config{APIURL: elsewhere.URL(), APIKey: elsewhere.APIKey()}, dir)
	foreign.sweep(t)
	foreign.nothingLeft(t) // that is another account's

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

// TestALateSnapshotIsSwept: a snapshot appears after the call for it has failed, and after the end of the test has looked for
// it. It is still noted, and a later run deletes it. The note of one that never appears goes in the end.
func TestALateSnapshotIsSwept(t *testing.T) {
	t.Parallel()
	server := emulated(t, emulator.Options{})
	b := unsweptControlPlane(t, leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey()}, memory(t))
	h := b.newHost(t)
	var late, never leasehold.SnapshotRef
	t.Run("calls that fail", func(t *testing.T) { late, never = h.plan(t, "late"), h.plan(t, "never") })
	made, err := h.snapshots(t).Build(t.Context(), late, leasehold.BuildRequest{Image: "debian:12.9-slim"})
	if err != nil {
		t.Fatal(err)
	}
	b.sweep(t)
	if _, err := h.snapshots(t).Inspect(t.Context(), made); err != nil {
		t.Errorf("a sweep that came too early: %v", err)
	}
	for _, ref := range []leasehold.SnapshotRef{late, never} {
		if err := os.Chtimes(b.noteOf(ref), time.Time{}, time.Now().Add(-lifetime-time.Minute)); err != nil {
			t.Fatal(err) // the end of the call took the note along
		}
	}
	b.sweep(t)
	_, err = h.snapshots(t).Inspect(t.Context(), made)
	wantError(t, "Inspect() after the sweep", err, leasehold.ErrGone)
	if left, err := os.ReadDir(b.snapshotDir()); err != nil || len(left) != 0 {
		t.Errorf("the notes %v are left, %v", left, err)
	}
}
