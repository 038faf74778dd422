package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// hostVariable makes the test binary a host that runs processes in the directory it names, and then waits.
const hostVariable = "LEASEHOLD_TEST_HOST"

// patience bounds every wait of a test for something that happens at once on an idle machine.
const patience = time.Minute

func TestMain(m *testing.M) {
	if dir := os.Getenv(hostVariable); dir != "" {
		os.Exit(beHost(dir))
	}
	goleak.VerifyTestMain(m)
}

// beHost is a process with sandboxes that never cleans up. It writes its supervisor's mark to its output and ends with
// its input.
func beHost(dir string) int {
	s := NewSupervisor()
	s.OnHostDeath(dir)
	for i, script := range []string{manyKinds, restless} {
		g := s.Group(strconv.Itoa(i))
		cmd := g.Command("/bin/sh", "-c", script)
		cmd.Dir = dir
		if err := g.Start(cmd); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	fmt.Println(s.mark)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// headlessVariable makes the test binary a program whose main thread ends, while another one runs, which then writes its process
// to the file that the variable names, and runs for some minutes.
const headlessVariable = "LEASEHOLD_TEST_HEADLESS"

func init() {
	file := os.Getenv(headlessVariable)
	if file == "" {
		return
	}
	runtime.LockOSThread()
	go func() {
		for stat := ""; !strings.Contains(stat, ") Z "); time.Sleep(time.Millisecond) {
			read, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", os.Getpid()))
			stat = string(read)
		}
		_ = os.WriteFile(file, []byte(fmt.Sprintln(os.Getpid())), 0o600)
		time.Sleep(5 * time.Minute)
		os.Exit(1)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // and not a raw one: the runtime must know that the thread does not run
}

// manyKinds is a script with processes of every kind that must die. It writes a file when all of them run.
var manyKinds = "self='" + executable() + "'\n" + `
trap '' TERM HUP INT
setsid -f sh -c 'trap "" TERM HUP; cd /; echo $$ >"$0/daemon"; exec sleep 1000' "$PWD" </dev/null >/dev/null 2>&1
(sh -c 'echo $$ >orphan; exec sleep 1000' &)
env -i /bin/sh -c 'echo $$ >unmarked; exec sleep 1000' &
(env -i /bin/sh -c 'echo $$ >unmarkedorphan; exec sleep 1000' &)
sh -c 'echo $$ >stopped; kill -STOP $$; sleep 1000' &
LEASEHOLD_TEST_HEADLESS=headless setsid -f "$self" </dev/null >/dev/null 2>&1
until [ -s daemon ] && [ -s orphan ] && [ -s unmarked ] && [ -s unmarkedorphan ] && [ -s stopped ] && [ -s headless ]; do sleep 0.01; done
echo $$ >main.tmp
mv main.tmp main
sleep 1000
`

// restless is a script that exits at once and leaves processes each of which forks another one and exits.
const restless = `
hop() { (sleep 0.01; hop) & }
for i in 1 2 3 4 5 6 7 8; do hop; done
echo $$ >ready
`

var kinds = []string{"daemon", "orphan", "unmarked", "unmarkedorphan", "stopped", "headless", "main"}

func executable() string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return self
}

// pids reads the pids that manyKinds wrote to dir, as soon as all are there.
func pids(t *testing.T, dir string) map[string]int {
	t.Helper()
	found := make(map[string]int)
	until(t, "all processes of "+dir+" run", func() bool {
		_, err := os.Stat(filepath.Join(dir, "main"))
		return err == nil
	})
	for _, kind := range kinds {
		found[kind] = pidIn(t, filepath.Join(dir, kind))
	}
	return found
}

// pidIn waits for a file with a pid.
func pidIn(t *testing.T, path string) (pid int) {
	t.Helper()
	until(t, path+" holds a pid", func() bool {
		content, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(content), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil
	})
	return pid
}

func alive(pid int) bool {
	_, ok := stat(pid)
	return ok
}

// until waits for a condition, which it looks at often.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("did not come true in %v: %s", patience, what)
		}
	}
}

// needs skips the test when a program of the machine is missing, which is a failure where everything must be there.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatalf("%s is not installed", p)
		}
		t.Skipf("%s is not installed", p)
	}
}

// newSupervisor returns a supervisor that is closed with the test.
func newSupervisor(t *testing.T) *Supervisor {
	t.Helper()
	s := NewSupervisor()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// run starts a shell script in a group. The test reaps it.
func run(t *testing.T, g *Group, dir, script string) *exec.Cmd {
	t.Helper()
	cmd := g.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	if err := g.Start(cmd); err != nil {
		t.Fatalf("Start: %v", err)
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = g.Kill()
		<-reaped
	})
	return cmd
}

// hostProcess is a host that a test can kill.
type hostProcess struct {
	cmd  *exec.Cmd
	in   io.Closer
	dir  string
	mark string // of its supervisor
}

func startHost(t *testing.T, dir string, env ...string) hostProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, hostVariable+"="+dir)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	mark, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the host said nothing: %v", err)
	}
	return hostProcess{cmd, in, dir, strings.TrimSpace(mark)}
}
