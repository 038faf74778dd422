package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// The test's binary is the program, if it is told so: a host that can be killed.
func TestMain(m *testing.M) {
	if os.Getenv("RESTART_HOST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// script says one, and two when its gate is open.
const script = "echo one; until [ -e gate ]; do sleep 0.05; done; echo two"

// startServer starts what outlives the host, as a provider does, and returns it with how a host on a state is started.
func startServer(t *testing.T, state string) (*emulator.Server, func(script string) *exec.Cmd) {
	t.Helper()
	server, err := emulator.Start(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server, func(script string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-state", state, "-api", server.URL(), "-script", script)
		cmd.Env = append(os.Environ(), "RESTART_HOST=1", "DAYTONA_API_KEY="+server.APIKey())
		cmd.Stderr = os.Stderr
		return cmd
	}
}

// kill runs a host until its command has said one, and kills it.
func kill(t *testing.T, host *exec.Cmd) {
	t.Helper()
	stdout, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for lines := bufio.NewScanner(stdout); !(seen["started"] && seen["one"]) && lines.Scan(); {
		seen[lines.Text()] = true
	}
	if !seen["started"] || !seen["one"] {
		t.Fatalf("the first host ended early, having written %v", seen)
	}
	if err := host.Process.Kill(); err != nil { // kill -9
		t.Fatal(err)
	}
	_ = host.Wait()
}

func TestAKilledHostGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	server, host := startServer(t, state)
	kill(t, host(script))
	openGate(t, server, state)

	out, err := host(script).Output()
	if err != nil {
		t.Fatalf("the second host: %v, output:\n%s", err, out)
	}
	if want := "going on from byte 4\ntwo\nexit 0\nsandbox destroyed\n"; string(out) != want {
		t.Errorf("the second host wrote %q, want %q", out, want)
	}
	if got, err := os.ReadFile(filepath.Join(state, "output")); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("the output is %q, %v, want each line once", got, err)
	}
	if left := server.Sandboxes(); creations(server) != 1 || len(left) != 0 {
		t.Errorf("%d creations, want 1; sandboxes left: %v", creations(server), left)
	}

	// The next command begins its own output.
	if out, err := host("echo three").Output(); err != nil || !strings.HasSuffix(string(out), "exit 0\nsandbox destroyed\n") {
		t.Errorf("the next command: %v, output %q", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(state, "output")); err != nil || string(got) != "three\n" {
		t.Errorf("the output of the next command is %q, %v, want its own alone", got, err)
	}
	// A host that was killed when the result was known has only to give back.
	if err := os.WriteFile(filepath.Join(state, "command"), []byte(`{"Exit":5}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := host("echo again").Output(); err != nil || string(out) != "exit 5\n" || creations(server) != 2 {
		t.Errorf("after the result: %v, output %q, %d creations in all, want exit 5 and 2", err, out, creations(server))
	}
	if got, err := filepath.Glob(filepath.Join(state, "command*")); err != nil || len(got) > 0 {
		t.Errorf("left behind: %v, %v, want nothing", got, err)
	}
}

// TestACommandWithoutAnEnd: whatever took the command while its host was dead, one start says so and gives back what is left,
// and nothing runs a second time unless it is asked for.
func TestACommandWithoutAnEnd(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(server *emulator.Server, state string) error{
		"its sandbox was stopped": func(server *emulator.Server, _ string) error {
			box := server.Sandbox(server.Sandboxes()[0])
			box.Force(emulator.StateStopped, "", false)
			box.Force(emulator.StateStarted, "", false)
			return nil
		},
		"its sandbox is stopped": func(server *emulator.Server, _ string) error {
			server.Sandbox(server.Sandboxes()[0]).Force(emulator.StateStopped, "", false)
			return nil
		},
		"its sandbox is gone": func(server *emulator.Server, _ string) error {
			server.Sandbox(server.Sandboxes()[0]).Force(emulator.StateDestroyed, "", false)
			return nil
		},
		"its lease was swept": func(server *emulator.Server, state string) error {
			server.Sandbox(server.Sandboxes()[0]).Force(emulator.StateDestroyed, "", false)
			return os.RemoveAll(filepath.Join(state, "leases"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			server, host := startServer(t, state)
			kill(t, host(script))
			if err := strike(server, state); err != nil {
				t.Fatal(err)
			}

			second := host("echo twice")
			second.Stderr = nil // it is in the error
			out, err := second.Output()
			failed, ok := errors.AsType[*exec.ExitError](err)
			if !ok || !strings.Contains(string(failed.Stderr), errLost.Error()) {
				t.Errorf("the second host: %+v, output %q, want it to say that the end can never be known", err, out)
			}
			if left := server.Sandboxes(); creations(server) != 1 || len(left) != 0 {
				t.Errorf("%d creations, want 1; sandboxes left: %v", creations(server), left)
			}
			if out, err := host("echo again").Output(); err != nil || string(out) != "started\nagain\nexit 0\nsandbox destroyed\n" && string(out) != "again\nstarted\nexit 0\nsandbox destroyed\n" {
				t.Errorf("the third host: %v, output %q, want a command of its own", err, out)
			}
		})
	}
}

// heard is an output that tells when a line came, but for dots.
type heard chan string

func (h heard) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if line != ".\n" {
			h <- line
		}
	}
	return len(p), nil
}

// unhurried returns a reply once what it began with a sandbox is done: that takes real time, and a host whose time is virtual would
// not wait for it.
type unhurried struct {
	http.RoundTripper
	server *emulator.Server
}

func (u unhurried) RoundTrip(q *http.Request) (*http.Response, error) {
	r, err := u.RoundTripper.RoundTrip(q)
	for _, id := range u.server.Sandboxes() {
		u.server.Sandbox(id).Settle(time.Minute)
	}
	return r, err
}

// TestAnOutageIsNoEnd: for minutes the sandbox cannot be reached, and the command goes on. The host's time is virtual, and stands
// still while a connection is open.
func TestAnOutageIsNoEnd(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	server, _ := startServer(t, state)
	wait := "; until [ -e %d ]; do echo .; sleep 0.05; done; " // nobody is kept waiting for output
	script := "echo one" + fmt.Sprintf(wait, 1) + "echo two" + fmt.Sprintf(wait, 2) + "echo three"
	synctest.Test(t, func(t *testing.T) {
		host := func() (heard, chan error) {
			server.SetFaults()
			out, ended := make(heard, 100), make(chan error, 1)
			go func() {
				config := leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey(), Transport: unhurried{&http.Transport{DisableKeepAlives: true}, server}}
				ended <- run(t.Context(), state, config, script, out)
				close(out)
			}()
			return out, ended
		}
		until := func(out heard, want ...string) {
			for missing := len(want); missing > 0; {
				line, ok := <-out
				if !ok {
					t.Fatalf("the host ended before it said %q", want)
				}
				if slices.Contains(want, line) {
					missing--
				}
			}
		}
		open := func(gate string) {
			if err := os.WriteFile(filepath.Join(server.Sandbox(server.Sandboxes()[0]).Home(), "workspace", gate), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		outage := func(ended chan error) {
			t.Helper()
			server.SetFaults(emulator.Fault{Path: "/toolbox/**", Count: -1, Action: emulator.StatusBefore, Status: 502})
			if err := <-ended; err == nil || errors.Is(err, errLost) || len(server.Sandboxes()) != 1 {
				t.Fatalf("in an outage: %v, %d sandboxes, want an error that is not the command's end, and the sandbox", err, len(server.Sandboxes()))
			}
		}
		out, ended := host()
		until(out, "started\n", "one\n")
		outage(ended)
		open("1")
		out, ended = host()
		until(out, "two\n")
		outage(ended)
		open("2")
		out, ended = host()
		if err := <-ended; err != nil || creations(server) != 1 || len(server.Sandboxes()) != 0 {
			t.Errorf("after the outages: %v, %d creations, sandboxes left: %v; want nil, 1 and none", err, creations(server), server.Sandboxes())
		}
		until(out, "exit 0\n")
		if got, err := os.ReadFile(filepath.Join(state, "output")); err != nil || strings.ReplaceAll(string(got), ".\n", "") != "one\ntwo\nthree\n" {
			t.Errorf("the output is %q, %v, want each line but the dots once", got, err)
		}
	})
}

func creations(server *emulator.Server) (n int) {
	for _, q := range server.Requests() {
		if q.Method == "POST" && strings.HasSuffix(q.Path, "/api/sandbox") {
			n++
		}
	}
	return n
}

// openGate lets the command go on, as another host that has the reference of the lease.
func openGate(t *testing.T, server *emulator.Server, state string) {
	t.Helper()
	store, err := leasehold.NewFileStore(filepath.Join(state, "leases"), leasehold.FileStoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := store.List(t.Context(), "", 2)
	if err != nil || len(entries) != 1 || entries[0].Record.Lease == nil {
		t.Fatalf("the list has %+v, %v, want the one lease", entries, err)
	}
	provider, err := leasehold.New(leasehold.Config{APIURL: server.URL(), APIKey: server.APIKey()})
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Close(context.Background())
	lease, err := provider.Bind(*entries[0].Record.Lease)
	if err != nil {
		t.Fatal(err)
	}
	if result, err := lease.Executor().Run(t.Context(), leasehold.Command{Args: []string{"touch", "gate"}}); err != nil || result.ExitCode != 0 {
		t.Fatalf("touch: %+v, %v", result, err)
	}
}
