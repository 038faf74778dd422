package script_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
)

// headlessVariable makes the test binary a program whose main thread ends at once, while another one runs. That writes to the
// file which the variable names, waits until there is one more, whose name has ".end" besides, or the first is gone, and exits
// with 3.
const headlessVariable = "LEASEHOLD_TEST_HEADLESS"

func init() {
	file := os.Getenv(headlessVariable)
	if file == "" {
		return
	}
	runtime.LockOSThread()
	main := fmt.Sprintf("/proc/self/task/%d/stat", os.Getpid())
	go func() {
		exists := func(file string) bool { _, err := os.Stat(file); return err == nil }
		for stat := ""; !strings.Contains(stat, ") Z "); time.Sleep(time.Millisecond) {
			read, _ := os.ReadFile(main)
			stat = string(read)
		}
		_ = os.WriteFile(file, []byte(fmt.Sprintln(os.Getpid())), 0o600)
		for exists(file) && !exists(file+".end") {
			time.Sleep(time.Millisecond)
		}
		os.Exit(3)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // and not a raw one: the runtime must know that the thread does not run
}

// headless returns a command that becomes this program, and what waits until its main thread has ended.
func headless(t *testing.T, file string) (command string, wait func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command = headlessVariable + "=" + script.Quote(file) + " exec " + script.Quote(self)
	return command, func() {
		t.Helper()
		eventually(t, "the main thread has ended", func() bool { content, _ := os.ReadFile(file); return len(content) > 0 })
	}
}

// TestE3ACommandRunsAsLongAsAnyOfItsThreads has one whose main thread ends first, which the system shows as it does a process
// that nobody has waited for.
func TestE3ACommandRunsAsLongAsAnyOfItsThreads(t *testing.T) {
	eachJournal(t, func(t *testing.T, j journals) {
		file := filepath.Join(j.home, "exits")
		command, wait := headless(t, file)
		s := start(command)
		s.Wait.Limit = script.Tick
		j.run(t, journal("exits").Start(s))
		wait()
		got := j.run(t, journal("exits").Observe(briefly))
		if got.State != script.StateRunning || got.Exited {
			t.Errorf("got %+v, want a running command", got)
		}
		if got := run(t, shell(t, j.argv, j.home, "-c", script.Look(got.Process.ID, ""))); got.Stdout != script.LookAlive+"\n" {
			t.Errorf("the look says %q", got.Stdout)
		}
		if got := j.run(t, journal("exits").Signal("URG", script.Process{})); got.State != script.StateSent {
			t.Errorf("got %+v, want that the signal was sent", got)
		}
		j.run(t, journal("over").Start(start(":")))
		dir := filepath.Join(j.home, fmt.Sprintf(".leasehold-%d", os.Getuid()))
		for _, id := range []string{"exits", "over"} {
			old := time.Now().Add(-2 * script.KeepJournals)
			if err := os.Chtimes(filepath.Join(dir, id), old, old); err != nil {
				t.Fatal(err)
			}
		}
		sweeping := start(":")
		sweeping.Sweep = true
		j.run(t, journal("sweep").Start(sweeping))
		eventually(t, "the sweep has ended", func() bool {
			_, err := os.Stat(filepath.Join(dir, "over"))
			return err != nil && !sweeps(dir)
		})
		touch(t, file+".end")
		j.wantFrame(t, j.run(t, journal("exits").Observe(patient)), ended(3, "", ""))

		file = filepath.Join(j.home, "stopped")
		command, wait = headless(t, file)
		s = start("setsid sh -c " + script.Quote(command) + " & wait")
		s.Wait.Limit = script.Tick
		j.run(t, journal("stopped").Start(s))
		wait()
		content, _ := os.ReadFile(file)
		if got := j.run(t, journal("stopped").Stop(patient, script.Process{})); got.State != script.StateStopped {
			t.Errorf("got %+v, want stopped", got)
		}
		if child := strings.TrimSpace(string(content)); alive(child) {
			t.Errorf("the stop is confirmed, and the child %s runs", child)
		}
	})
}

// TestTheOutputIsHeldByAnyThread leaves such a process in the background.
func TestTheOutputIsHeldByAnyThread(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		file := filepath.Join(t.TempDir(), "file")
		command, _ := headless(t, file)
		end := ": >" + file + ".end"
		got := session(t, argv, dispatch(1, script.Login{Profiles: script.NoProfiles, Script: "(" + command + ") & " + until(file)}), end)
		if strings.Contains(got.Stdout, testMark+"f\n") || !strings.Contains(got.Stdout, testMark+"o:0\n") {
			t.Errorf("got %q, want that the output is held", plain(got.Stdout))
		}
	})
}

// sweeps reports whether a sweep works in the directory.
func sweeps(dir string) bool {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if at, _ := os.Readlink(link); at == dir {
			return true
		}
	}
	return false
}
