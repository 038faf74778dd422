package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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

func TestAKilledHostGoesOnWhereItWas(t *testing.T) {
	server, err := emulator.Start(emulator.Options{}) // it outlives the host, as a provider does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	state := t.TempDir()
	host := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-state", state, "-api", server.URL(), "-script",
			"echo one; until [ -e gate ]; do sleep 0.05; done; echo two")
		cmd.Env = append(os.Environ(), "RESTART_HOST=1", "DAYTONA_API_KEY="+server.APIKey())
		cmd.Stderr = os.Stderr
		return cmd
	}

	first := host()
	stdout, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for lines := bufio.NewScanner(stdout); !(seen["started"] && seen["one"]) && lines.Scan(); {
		seen[lines.Text()] = true
	}
	if !seen["started"] || !seen["one"] {
		t.Fatalf("the first host ended early, having written %v", seen)
	}
	if err := first.Process.Kill(); err != nil { // kill -9
		t.Fatal(err)
	}
	_ = first.Wait()
	openGate(t, server, state)

	out, err := host().Output()
	if err != nil {
		t.Fatalf("the second host: %v, output:\n%s", err, out)
	}
	if want := "going on from byte 4\ntwo\nexit 0\nsandbox destroyed\n"; string(out) != want {
		t.Errorf("the second host wrote %q, want %q", out, want)
	}
	if got, err := os.ReadFile(filepath.Join(state, "output")); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("the output is %q, %v, want each line once", got, err)
	}
	var creations int
	for _, q := range server.Requests() {
		if q.Method == "POST" && strings.HasSuffix(q.Path, "/api/sandbox") {
			creations++
		}
	}
	if left := server.Sandboxes(); creations != 1 || len(left) != 0 {
		t.Errorf("%d creations, want 1; sandboxes left: %v", creations, left)
	}
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
