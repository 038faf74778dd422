//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/leasehold-go/leasehold"
)

// serving is the whole program, in this process.
type serving struct {
	client
	stop func() error
}

func serve(t *testing.T, dir string, keep bool) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stderr, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, options{listen: "127.0.0.1:0", dir: dir, keep: keep, tokens: tokens, limits: defaultLimits}, w)
		_ = w.Close()
	}()
	scanner := bufio.NewScanner(stderr)
	url := ""
	for url == "" && scanner.Scan() {
		t.Log(scanner.Text())
		if at, ok := strings.CutPrefix(scanner.Text(), "serving on "); ok {
			url = strings.TrimSuffix(at, "/")
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for scanner.Scan() {
			t.Log(scanner.Text())
		}
	}()
	s := &serving{client: client{t, url, acmeToken}, stop: func() error {
		cancel()
		<-drained
		return <-ended
	}}
	if url == "" {
		t.Fatalf("it does not serve: %v", s.stop())
	}
	return s
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func (c client) runningPid(lease string) (command string, pid int) {
	c.t.Helper()
	command = c.start(lease, "echo $$; exec sleep 600")
	first := c.follow(command, "", func(o observed) bool { return strings.HasSuffix(o.stdout, "\n") })
	pid, err := strconv.Atoi(strings.TrimSpace(first.stdout))
	if err != nil {
		c.t.Fatal(err)
	}
	if !alive(pid) {
		c.t.Fatalf("the command's process %d is not alive", pid)
	}
	return command, pid
}

// alive tells whether a process runs. One that is dead, and that nobody has waited for, does not.
func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		return !strings.Contains(string(stat), ") Z ")
	}
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func list(t *testing.T, dir string) []leasehold.Entry {
	t.Helper()
	store, err := leasehold.NewFileStore(filepath.Join(dir, "list"), leasehold.FileStoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := store.List(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// TestShutdownLeavesNothingBehind: neither a sandbox, nor a process, nor a record of one; and who follows a command is told
// of its end.
func TestShutdownLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, false)
	lease := s.acquire()
	command, pid := s.runningPid(lease)
	response := s.send("GET", command+"/events", nil)
	defer func() { _ = response.Body.Close() }()
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	if end := readEvents(t, response.Body, nil).end; end.State != commandStopped || !end.Result.StopConfirmed {
		t.Errorf("the command's end: %+v, want stopped, and confirmed", end)
	}
	if err := <-ended; err != nil {
		t.Errorf("run() = %v", err)
	}
	if alive(pid) {
		t.Errorf("the command's process %d is alive, want none", pid)
	}
	if got := files(t, filepath.Join(dir, "leases")); len(got) != 0 {
		t.Errorf("leases: %q, want none", got)
	}
	if got := list(t, dir); len(got) != 0 {
		t.Errorf("the list: %+v, want nothing", got)
	}
	for _, name := range files(t, filepath.Join(dir, "sandboxes")) {
		info, err := os.Stat(filepath.Join(dir, "sandboxes", name))
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			if left := files(t, filepath.Join(dir, "sandboxes", name)); len(left) > 0 {
				t.Errorf("sandboxes/%s holds %q, want nothing", name, left)
			}
		}
	}
}

// TestARestartGoesOn: the next process has the leases of the one before, and says of a command that ended unseen that
// nobody knows how.
func TestARestartGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, true)
	lease, kept := s.acquire(), s.acquire()
	s.want(200, "PUT", lease+"/files", archive(t, map[string]string{"mark": "here"}))
	s.want(200, "POST", kept+"/release", releaseRequest{Keep: true})
	command, pid := s.runningPid(lease)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if alive(pid) { // this backend ends with its process
		t.Errorf("the command's process %d is alive, want none", pid)
	}

	s = serve(t, dir, false)
	if end := s.follow(command, "", nil); end.end.State != commandUnknown || strings.TrimSpace(end.stdout) != strconv.Itoa(pid) {
		t.Errorf("the command: %+v, want unknown, with its output", end)
	}
	if got := parse[leaseView](t, s.want(200, "GET", lease, nil)); got.State != leaseActive {
		t.Errorf("the lease: %+v, want active", got)
	}
	if got := parse[leaseView](t, s.want(200, "GET", kept, nil)); got.State != leaseStopped {
		t.Errorf("the lease that was kept: %+v, want stopped", got)
	}
	if _, got, _ := s.run(lease, "cat mark"); got != "here" {
		t.Errorf("mark = %q, want here", got)
	}
	s.want(200, "DELETE", kept, nil)
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if got := list(t, dir); len(got) != 0 {
		t.Errorf("the list: %+v, want nothing", got)
	}
}

// TestACommandOutlivesTheService: where sandboxes do, the next process goes on with a command from the very byte.
func TestACommandOutlivesTheService(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := localProvider(t, dir)
	first := startHostOn(t, p, dir, nil)
	c := first.client(t)
	lease := c.acquire()
	command := c.start(lease, "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 5")
	had := c.follow(command, "", func(o observed) bool { return o.stdout == "one\n" })
	first.stopWork(true)
	first.background.Wait()

	l, err := first.leases.of(first.tenants[0], path.Base(lease))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.set(leaseStopped, ""); err != nil { // so that the next one does not resume it by itself
		t.Fatal(err)
	}
	late := startHostOn(t, p, dir, nil) // ends while it attaches
	if l, err = late.leases.of(late.tenants[0], path.Base(lease)); err != nil {
		t.Fatal(err)
	}
	late.stopWork(true)
	if err := late.resume(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	late.background.Wait()
	if got := l.find(path.Base(command)).view().State; got != commandDetached {
		t.Errorf("the command is %s, want to be let go of", got)
	}

	second := startHostOn(t, p, dir, nil)
	c = second.client(t)
	response := c.send("GET", command+"/events", nil, "Last-Event-ID", had.last)
	defer func() { _ = response.Body.Close() }()
	bound, err := p.Bind(l.ref())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bound.Importer().FS(t.Context(), fstest.MapFS{"go": {Mode: 0o644}}, "", leasehold.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	rest := readEvents(t, response.Body, nil)
	if rest.stdout != "two\n" || rest.end.State != commandExited || *rest.end.Result.ExitCode != 5 || !rest.end.Result.Complete {
		t.Errorf("the rest: %+v %+v, want two, and exit 5", rest, rest.end.Result)
	}
	if whole := c.follow(command, "", nil); whole.stdout != "one\ntwo\n" {
		t.Errorf("the whole: %q, want both lines once", whole.stdout)
	}
}
