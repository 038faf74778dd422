//go:build unix

package leasehold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// transferFaults are what can happen to one request.
var transferFaults = []emulator.Fault{
	{Action: emulator.DropBefore},
	{Action: emulator.DropAfter},
	{Action: emulator.StatusBefore, Status: 401},
	{Action: emulator.StatusBefore, Status: 404},
	{Action: emulator.StatusBefore, Status: 500},
	{Action: emulator.StatusBefore, Status: 502},
	{Action: emulator.StatusBefore, Status: 200, Body: `{}`},
	{Action: emulator.StatusAfter, Status: 500},
	{Action: emulator.StatusAfter, Status: 504},
	{Action: emulator.TruncateBody, Bytes: 0},
	{Action: emulator.TruncateBody, Bytes: 700},
	{Action: emulator.ResetReply, Bytes: 0},
	{Action: emulator.ResetReply, Bytes: 700},
	{Action: emulator.ResetUpload, Bytes: 0},
	{Action: emulator.ResetUpload, Bytes: 9 << 20}, // behind the large file
	{Action: emulator.Duplicate},
	{Action: emulator.MergeReply, Body: `{"result":"nothing","files":[]}`},
	{Action: emulator.ReplayPrefix, Bytes: 1},
	{Action: emulator.ReplayPrefix, Bytes: 512},
	{Action: emulator.DiskFull},
}

// faultyTree has a large file, so that an import has every kind of part.
func faultyTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"d/small": "new", "empty": "", "d/run": "new"})
	large := filepath.Join(dir, "d", "large")
	fillFile(t, large, archive.LargeFile+5)
	if err := errors.Join(os.Chmod(large, 0o640),
		os.Symlink("d/small", filepath.Join(dir, "link")), os.Chmod(filepath.Join(dir, "d", "run"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each fault hits each request once. Either the transfer is complete, or it is an error and nothing can be seen of it.
// Only an import whose last answer was replaced by a refusal may be an error although it is complete: no answer says so.
func TestF2OneFaultAtEachRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := faultyTree(t)
	want := tree(t, local)
	if _, err := l.Importer().Dir(t.Context(), local, "source", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	type cell struct {
		export     bool
		nth, fault int
	}
	var cells []cell
	requests := map[bool]int{false: 2, true: 3}
	for _, export := range []bool{false, true} {
		for nth := 1; nth <= requests[export]; nth++ {
			for fault := range transferFaults {
				cells = append(cells, cell{export, nth, fault})
			}
		}
	}
	for _, c := range sampled(t, cells, func(c cell) string { return fmt.Sprint(c.export, c.fault) }) {
		export, nth, fault := c.export, c.nth, transferFaults[c.fault]
		fault.Path, fault.Nth = "/toolbox/**", nth
		name := fmt.Sprintf("export %v, request %d, %s %d %d", export, nth, fault.Action, fault.Status, fault.Bytes)
		t.Run(name, func(t *testing.T) {
			host := t.TempDir()
			remote := filepath.Join(l.Ref().Workspace, fmt.Sprintf("target %v %d %d", export, nth, c.fault))
			dest := remote
			if export {
				dest = filepath.Join(host, "dest")
			}
			writeFiles(t, dest, map[string]string{"d/small": "old"})
			before := tree(t, dest)
			r.server.SetFaults(fault)
			var err error
			if export {
				_, err = l.Exporter().Dir(t.Context(), "source", dest, ExportOptions{})
			} else {
				_, err = l.Importer().Dir(t.Context(), local, remote, ImportOptions{})
			}
			drained(t, l)
			hit := r.server.Faults()[0].Hits > 0
			r.server.SetFaults()
			if !hit {
				t.Errorf("the fault never hit: the test proves nothing")
			}
			got := tree(t, dest)
			complete := cmp.Equal(want, got)
			switch {
			case err == nil && !complete:
				t.Errorf("the transfer succeeded, and is not complete (-want +got):\n%s", cmp.Diff(want, got))
			case err != nil && !complete && !cmp.Equal(before, got):
				t.Errorf("the transfer failed with %v, and left (-before +after):\n%s", err, cmp.Diff(before, got))
			case err != nil && complete && (export || nth == 1):
				t.Errorf("the transfer failed with %v, and is complete", err)
			}
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Errorf("error %v is of another type", err)
			}
			wantNoScratch(t, l, remote, host)
		})
	}
	wantTree(t, local, filepath.Join(l.Ref().Workspace, "source"))
}

func TestTransfersFromALostContainerAreErrors(t *testing.T) {
	t.Parallel()
	for _, export := range []bool{false, true} {
		for nth := 1; nth <= 2; nth++ {
			t.Run(fmt.Sprintf("export %v, request %d", export, nth), func(t *testing.T) {
				r := newRig(t, Config{}, emulator.Options{})
				l := r.acquired(t)
				host := t.TempDir()
				writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
				writeFiles(t, l.Ref().Workspace, map[string]string{"f": "x"})
				r.server.SetFaults(emulator.Fault{Path: "/toolbox/**", Nth: nth, Action: emulator.LoseContainer})
				var err error
				if export {
					_, err = l.Exporter().Dir(t.Context(), "", filepath.Join(host, "dest"), ExportOptions{})
				} else {
					_, err = l.Importer().Dir(t.Context(), host, "", ImportOptions{})
				}
				var e *Error
				if !errors.As(err, &e) {
					t.Errorf("error %v, want an *Error", err)
				}
				r.wantHits(t)
				if diff := cmp.Diff(map[string]string{"dest": "drwxr-xr-x", "dest/earlier": "-rw-r--r-- kept"}, tree(t, host)); diff != "" {
					t.Errorf("host mismatch (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// The context ends before the transfer, when a request arrives, or when it has been handled.
func TestF3ContextThatEndsAtEachRequest(t *testing.T) {
	t.Parallel()
	for name, export := range map[string]bool{"import": false, "export": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endContextAtEachRequest(t, export)
		})
	}
}

func endContextAtEachRequest(t *testing.T, export bool) {
	type step struct {
		nth     int64 // request that ends the context; 0: none does
		handled bool  // when it was handled
		seen    atomic.Int64
		cancel  context.CancelCauseFunc
		ended   chan struct{} // closed when it was handled
		took    time.Duration
	}
	cause := errors.New("enough")
	var now atomic.Pointer[step]
	r := newRig(t, Config{}, emulator.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := now.Load()
			hit := s != nil && strings.HasPrefix(r.URL.Path, "/toolbox/") && s.seen.Add(1) == s.nth
			if hit && !s.handled {
				s.cancel(cause)
			}
			if hit {
				began := time.Now()
				defer func() {
					s.took = time.Since(began)
					close(s.ended)
				}()
			}
			next.ServeHTTP(w, r)
			if hit && s.handled {
				s.cancel(cause)
			}
		})
	}})
	l := r.acquired(t)
	local := faultyTree(t)
	want := tree(t, local)
	if _, err := l.Importer().Dir(t.Context(), local, "source", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	requests := int64(2)
	if export {
		requests = 3
	}
	for nth := range requests + 1 {
		for _, handled := range []bool{false, true} {
			t.Run(fmt.Sprintf("request %d, handled %v", nth, handled), func(t *testing.T) {
				host := t.TempDir()
				remote := filepath.Join(l.Ref().Workspace, fmt.Sprintf("target %d %v", nth, handled))
				dest := remote
				if export {
					dest = filepath.Join(host, "dest")
				}
				writeFiles(t, dest, map[string]string{"d/small": "old"})
				before := tree(t, dest)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := &step{nth: nth, handled: handled, cancel: cancel, ended: make(chan struct{})}
				if nth == 0 {
					cancel(cause)
				}
				now.Store(s)
				var err error
				if export {
					_, err = l.Exporter().Dir(ctx, "source", dest, ExportOptions{})
				} else {
					_, err = l.Importer().Dir(ctx, local, remote, ImportOptions{})
				}
				drained(t, l)
				now.Store(nil)
				if seen := s.seen.Load(); seen < nth || nth == 0 && seen > 0 {
					t.Fatalf("%d requests were made, and the context ended at number %d", seen, nth)
				}
				if nth > 0 {
					<-s.ended
				}
				if !handled && s.took >= scratchSecondLook*time.Second { // on a busy machine: what it made may be younger than the last look
					for _, dir := range []string{dest, filepath.Join(l.Ref().Workspace, sentinelDir)} {
						for _, name := range stages(t, dir) {
							if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				wantNoScratch(t, l, remote, host)
				got := tree(t, dest)
				switch {
				case err != nil:
					if e := wantError(t, err, KindCanceled); !errors.Is(e, cause) {
						t.Errorf("%v does not hold the context's cause", err)
					}
					// An import that is being published is not stopped half way.
					if !cmp.Equal(before, got) && !(cmp.Equal(want, got) && nth == requests && !export) {
						t.Errorf("the target is not as before (-before +after):\n%s", cmp.Diff(before, got))
					}
				case nth == 0:
					t.Error("a context that had ended did not end the transfer")
				case !cmp.Equal(want, got):
					t.Errorf("the transfer succeeded, and is not complete (-want +got):\n%s", cmp.Diff(want, got))
				}
			})
		}
	}
}

func TestConcurrentTransfersOfOneDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	const imports = 8
	host := t.TempDir()
	want := map[string]string{"shared": "drwxr-xr-x"}
	for i := range imports {
		own := fmt.Sprintf("shared/of %d", i)
		writeFiles(t, filepath.Join(host, fmt.Sprint(i)), map[string]string{own + "/f": "x", "shared/same": "same"})
		want[own], want[own+"/f"], want["shared/same"] = "drwxr-xr-x", "-rw-r--r-- x", "-rw-r--r-- same"
	}
	var wg sync.WaitGroup
	for i := range imports {
		wg.Go(func() {
			if _, err := l.Importer().Dir(t.Context(), filepath.Join(host, fmt.Sprint(i)), "target", ImportOptions{}); err != nil {
				t.Errorf("import %d: %v", i, err)
			}
		})
	}
	// Exports of what is being changed are whole, or say that it changed.
	writeFiles(t, filepath.Join(l.Ref().Workspace, "target"), map[string]string{"shared/same": "same"})
	back := filepath.Join(host, "back")
	for range 2 {
		wg.Go(func() {
			_, err := l.Exporter().Dir(t.Context(), "target", back, ExportOptions{})
			var e *Error
			if err != nil && (!errors.As(err, &e) || e.Kind != KindConflict || !e.Retryable) {
				t.Errorf("export: %v", err)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(want, tree(t, filepath.Join(l.Ref().Workspace, "target"))); diff != "" {
		t.Errorf("target mismatch (-want +got):\n%s", diff)
	}
	if _, err := l.Exporter().Dir(t.Context(), "target", back, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	wantTree(t, filepath.Join(l.Ref().Workspace, "target"), back)
	wantNoScratch(t, l, host, filepath.Join(l.Ref().Workspace, "target"))
}

// tinyDisk mounts a disk of a size such as "2m".
func tinyDisk(t testing.TB, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=755,size="+size, "leasehold", dir).CombinedOutput(); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatalf("no tmpfs can be mounted: %s", out)
		}
		t.Skip("no tmpfs can be mounted: needs root")
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
}

func TestF2FullDisksChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	host := t.TempDir()
	disk := filepath.Join(host, "disk")
	tinyDisk(t, disk, "2m")
	small := filepath.Join(l.Ref().Workspace, "small")
	tinyDisk(t, small, "2m")
	writeFiles(t, host, map[string]string{
		"fits once/f": strings.Repeat("x", 1500<<10), "too much/f": strings.Repeat("x", 3<<20), "large/f": strings.Repeat("x", archive.LargeFile),
	})
	writeFiles(t, small, map[string]string{"earlier": "kept"})
	for _, name := range []string{"fits once", "too much", "large"} {
		t.Run("import of what is "+name, func(t *testing.T) {
			_, err := l.Importer().Dir(t.Context(), filepath.Join(host, name), "small", ImportOptions{})
			wantError(t, err, KindQuota)
			_, err = l.Importer().File(t.Context(), filepath.Join(host, name, "f"), "small/f", ImportOptions{})
			wantError(t, err, KindQuota)
			wantNoScratch(t, l, small)
			if diff := cmp.Diff(map[string]string{"earlier": "-rw-r--r-- kept"}, tree(t, small)); diff != "" {
				t.Errorf("sandbox mismatch (-want +got):\n%s", diff)
			}
		})
	}
	writeFiles(t, disk, map[string]string{"dest/earlier": "kept", "file": "kept"})
	if _, err := l.Importer().Dir(t.Context(), filepath.Join(host, "too much"), "much", ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	for reserve, kind := range map[int64]Kind{-1: KindIO, 0: KindLimit, 64 << 10: KindLimit} {
		t.Run(fmt.Sprintf("export with reserve %d", reserve), func(t *testing.T) {
			_, err := l.Exporter().Dir(t.Context(), "much", filepath.Join(disk, "dest"), ExportOptions{Reserve: reserve})
			wantError(t, err, kind)
			_, err = l.Exporter().File(t.Context(), "much/f", filepath.Join(disk, "file"), ExportOptions{Reserve: reserve})
			wantError(t, err, kind)
			_, err = l.Exporter().Dir(t.Context(), "much", disk, ExportOptions{}) // the mount point itself
			if err == nil {
				t.Error("a mount point was replaced")
			}
			wantNoScratch(t, l, disk, host)
			if diff := cmp.Diff(map[string]string{"dest": "drwxr-xr-x", "dest/earlier": "-rw-r--r-- kept", "file": "-rw-r--r-- kept"}, tree(t, disk)); diff != "" {
				t.Errorf("host mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestF2ReadOnlyDisksAreErrors(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	disk, sealed := filepath.Join(t.TempDir(), "disk"), filepath.Join(l.Ref().Workspace, "sealed")
	for _, dir := range []string{disk, sealed} {
		tinyDisk(t, dir, "1m")
		writeFiles(t, dir, map[string]string{"dest/f": "kept"})
		if out, err := exec.Command("mount", "-o", "remount,ro", dir).CombinedOutput(); err != nil {
			t.Fatalf("remount: %s", out)
		}
	}
	local := faultyTree(t)
	for name, do := range map[string]func() error{
		"import": func() error {
			_, err := l.Importer().Dir(t.Context(), local, "sealed/dest", ImportOptions{})
			return err
		},
		"import file": func() error {
			_, err := l.Importer().File(t.Context(), local+"/d/run", "sealed/dest/f", ImportOptions{})
			return err
		},
		"export": func() error {
			_, err := l.Exporter().Dir(t.Context(), "sealed/dest", disk+"/dest", ExportOptions{Reserve: -1})
			return err
		},
		"export file": func() error {
			_, err := l.Exporter().File(t.Context(), "sealed/dest/f", disk+"/dest/f", ExportOptions{Reserve: -1})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var e *Error
			if err := do(); !errors.As(err, &e) {
				t.Errorf("error %v, want an *Error", err)
			}
			wantNoScratch(t, l, disk, sealed)
			for _, dir := range []string{disk, sealed} {
				if diff := cmp.Diff(map[string]string{"dest": "drwxr-xr-x", "dest/f": "-rw-r--r-- kept"}, tree(t, dir)); diff != "" {
					t.Errorf("%s mismatch (-want +got):\n%s", dir, diff)
				}
			}
		})
	}
}

// killedHost is what a process that will be killed has to do.
type killedHost struct {
	URL, Key      string
	Ref           LeaseRef
	Local, Remote string
	Export        bool
}

const killedHostEnv = "LEASEHOLD_TEST_KILLED_HOST"

// TestKilledHost is the process that TestF2HostKilledInATransfer kills. By itself it does nothing.
func TestKilledHost(t *testing.T) {
	text := os.Getenv(killedHostEnv)
	if text == "" {
		return
	}
	var h killedHost
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		t.Fatal(err)
	}
	p, err := newProvider(Config{APIKey: h.Key, APIURL: h.URL})
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.Bind(h.Ref)
	if err != nil {
		t.Fatal(err)
	}
	half := func(p Progress) {
		if p.Bytes > 1<<20 && !p.Done {
			fmt.Println("half way")
			select {}
		}
	}
	if h.Export {
		_, err = l.Exporter().Dir(t.Context(), h.Remote, h.Local, ExportOptions{Progress: half})
	} else {
		_, err = l.Importer().Dir(t.Context(), h.Local, h.Remote, ImportOptions{Progress: half})
	}
	t.Fatalf("the transfer came to its end: %v", err)
}

func TestF2HostKilledInATransfer(t *testing.T) {
	t.Parallel()
	notRaced(t)
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	local := t.TempDir()
	large := filepath.Join(local, "large") // reports come every 50 ms
	writeFiles(t, local, map[string]string{"d/small": "new"})
	fillFile(t, large, 128<<20)
	for name, export := range map[string]bool{"import": false, "export": true} {
		t.Run(name, func(t *testing.T) {
			host := t.TempDir()
			h := killedHost{URL: r.server.URL(), Key: r.server.APIKey(), Ref: l.Ref(), Local: local, Remote: name, Export: export}
			dest := filepath.Join(l.Ref().Workspace, name)
			if export {
				if _, err := l.Importer().Dir(t.Context(), local, name, ImportOptions{}); err != nil {
					t.Fatal(err)
				}
				dest = filepath.Join(host, "dest")
				h.Local = dest
			}
			writeFiles(t, dest, map[string]string{"d/small": "old"})
			before := tree(t, dest)
			text, err := json.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "-test.run", "^TestKilledHost$", "-test.v")
			cmd.Env = append(os.Environ(), killedHostEnv+"="+string(text))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.Contains(lines.Text(), "half way") {
				t.Log(lines.Text())
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // killed

			parent := dest
			if export {
				parent = host
			}
			left := stages(t, parent)
			if len(left) != 1 {
				t.Errorf("the killed process left %q, want one stage", left)
			}
			after := tree(t, dest)
			for name := range after {
				if strings.HasPrefix(name, archive.StagePrefix) {
					delete(after, name)
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("target mismatch (-before +after):\n%s", diff)
			}
			// The next one works beside what is left, and removes it when it is old enough.
			old := time.Now().Add(-48 * time.Hour)
			for _, stage := range left {
				if err := os.Chtimes(filepath.Join(parent, stage), old, old); err != nil {
					t.Fatal(err)
				}
			}
			if export {
				_, err = l.Exporter().Dir(t.Context(), name, dest, ExportOptions{})
			} else {
				_, err = l.Importer().Dir(t.Context(), local, name, ImportOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, local, dest)
			if left := stages(t, parent); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
}

// stages returns the names of the stages in a directory.
func stages(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), archive.StagePrefix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// The caller's function may wait for somebody who left with the context.
func TestAProgressThatWaitsDoesNotKeepACanceledImport(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	l := r.acquired(t)
	dir := t.TempDir()
	fillFile(t, filepath.Join(dir, "big"), 16<<20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	release, waited := make(chan struct{}), make(chan struct{})
	returned := make(chan error)
	go func() {
		_, err := l.Importer().Dir(ctx, dir, "in", ImportOptions{Progress: func(Progress) {
			calls.Add(1)
			cancel()
			<-release
			close(waited)
		}})
		returned <- err
	}()
	select {
	case err := <-returned:
		wantError(t, err, KindCanceled)
	case <-time.After(time.Minute):
		t.Error("the import has not returned a minute after its context ended")
		defer func() { <-returned }()
	}
	close(release)
	<-waited
	wantNoScratch(t, l)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d reports, want none after the context ended", n)
	}
}
