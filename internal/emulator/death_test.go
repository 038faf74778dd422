//go:build linux

package emulator_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// hostVariable makes the test binary a host that waits to be killed.
const hostVariable = "LEASEHOLD_TEST_HOST"

func init() {
	if os.Getenv(hostVariable) != "" {
		beHost()
	}
}

// beHost prints the home and the processes of a sandbox and waits for its end.
func beHost() {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "host:", err)
			os.Exit(1)
		}
	}
	s, err := emulator.Start(emulator.Options{})
	check(err)
	post := func(path, body string) {
		req, err := http.NewRequest("POST", strings.TrimSuffix(s.URL(), "/api")+path, strings.NewReader(body))
		check(err)
		req.Header.Set("Authorization", "Bearer "+s.APIKey())
		resp, err := http.DefaultClient.Do(req)
		check(err)
		resp.Body.Close()
		if resp.StatusCode >= 300 {
			check(errors.New(resp.Status))
		}
	}
	post("/api/sandbox", `{"name":"s"}`)
	sb := s.Sandbox("s")
	post("/toolbox/"+sb.ID()+"/process/execute", `{"command":"setsid -f sleep 1000 >/dev/null 2>&1; sleep 1000 >/dev/null 2>&1 &"}`)
	post("/toolbox/"+sb.ID()+"/process/session", `{"sessionId":"a"}`)
	pids, err := sb.Processes()
	check(err)
	fmt.Println("home", sb.Home())
	fmt.Println("pids", strings.Trim(fmt.Sprint(pids), "[]"))
	select {}
}

func TestNothingSurvivesTheHost(t *testing.T) {
	needProcesses(t)
	host := exec.CommandContext(t.Context(), os.Args[0])
	host.Env = append(os.Environ(), hostVariable+"=1")
	host.Stderr = os.Stderr
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	var home string
	var pids []int
	for lines := bufio.NewScanner(out); pids == nil && lines.Scan(); {
		switch words := strings.Fields(lines.Text()); {
		case len(words) == 2 && words[0] == "home":
			home = words[1]
		case len(words) > 1 && words[0] == "pids":
			for _, word := range words[1:] {
				pid, err := strconv.Atoi(word)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) < 3 || home == "" {
		t.Fatalf("the host: got home %q and processes %v, want three at least", home, pids)
	}
	host.Process.Kill()
	host.Wait()

	// Nothing reports the watcher's end, so this looks until nothing is left, or for too long.
	left := func() (what []string) {
		for _, pid := range pids {
			if alive(pid) {
				what = append(what, fmt.Sprint("process ", pid))
			}
		}
		if _, err := os.Stat(home); !os.IsNotExist(err) {
			what = append(what, home)
		}
		return what
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		what := left()
		if what == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("left a minute after the host's death: %v", what)
		}
	}
}
