//go:build unix

package script_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
)

// until is what a command does until a file is there.
func until(file string) string { return "until [ -e '" + file + "' ]; do sleep 0.01; done; " }

// touch makes such a file.
func touch(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// briefly is a wait of a few ticks.
var briefly = script.Wait{Limit: 5 * script.Tick, Inline: script.Inline}

// stopped stops a command, and returns the frame of its exit, which is recorded by a shell that need not have done so by the time
// the stop is confirmed.
func (j journals) stopped(t *testing.T, id string) script.Frame {
	t.Helper()
	if got := j.run(t, journal(id).Stop(patient, script.Process{})); got.State != script.StateStopped {
		t.Errorf("got %+v, want stopped", got)
	}
	return j.run(t, journal(id).Observe(patient))
}

// TestE3WhatMayNotBeSignalledIsNotLost has a user's command become root's, as sudo does.
func TestE3WhatMayNotBeSignalledIsNotLost(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		missing(t, "setpriv")
	}
	if os.Getuid() != 0 {
		missing(t, "root, who can make a program that becomes root's,")
	}
	eachJournal(t, func(t *testing.T, j journals) {
		home, err := os.MkdirTemp("/var/tmp", "lh-") // the test's own directories are closed to others
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(home); err != nil {
				t.Error(err)
			}
		})
		j.home, j.uid = home, 65534
		if err := os.Chown(home, int(j.uid), int(j.uid)); err != nil {
			t.Fatal(err)
		}
		program, err := os.ReadFile(setpriv)
		if err != nil {
			t.Fatal(err)
		}
		sudo, gate := filepath.Join(home, "sudo"), filepath.Join(home, "gate")
		if err := os.WriteFile(sudo, program, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(sudo, 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		s := start("exec " + sudo + " --reuid 0 --regid 0 --clear-groups sh -c " + script.Quote("id -u; "+until(gate)+"exit 3"))
		s.Wait.Output = true
		if got := j.run(t, journal("sudo").Start(s)); got.Stdout.Bytes != "0\n" {
			t.Logf("got %+v", got)
			missing(t, "a directory /var/tmp in which programs can become root's")
		}
		if got := j.run(t, journal("sudo").Observe(briefly)); got.State != script.StateRunning || got.Exited {
			t.Errorf("got %+v, want a running command", got)
		}
		if got := j.run(t, journal("sudo").Signal("TERM", script.Process{})); got.State != script.StateRefused {
			t.Errorf("got %+v, want that the signal was refused", got)
		}
		touch(t, gate)
		if got := j.run(t, journal("sudo").Observe(patient)); got.Exit != 3 {
			t.Errorf("got %+v, want exit 3", got)
		}
		if got := j.run(t, journal("sudo").Signal("TERM", script.Process{})); got.State != script.StateRunning || !got.Exited {
			t.Errorf("got %+v, want to be told of the exit", got)
		}
	})
}

// TestE3AProcessMayHaveAnyName gives the command's process a name of two lines, the second of which looks like its end.
func TestE3AProcessMayHaveAnyName(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/comm"); err != nil {
		missing(t, "/proc/self/comm")
	}
	eachJournal(t, func(t *testing.T, j journals) {
		s := start(`printf 'a\nb) Z 1' >/proc/$$/comm; echo ready; sleep 61 & wait`)
		s.Wait.Output = true
		got := j.run(t, journal("name").Start(s))
		pid := got.Process.ID
		if got.Stdout.Bytes != "ready\n" || pid == 0 {
			t.Fatalf("got %+v, want a running command", got)
		}
		t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) })
		if got := j.run(t, journal("name").Observe(briefly)); got.State != script.StateRunning {
			t.Errorf("got %+v, want a running command", got)
		}
		if got := run(t, shell(t, j.argv, j.home, "-c", script.Look(pid, ""))); got.Stdout != script.LookAlive+"\n" {
			t.Errorf("the look says %q", got.Stdout)
		}
		if got := j.stopped(t, "name"); got.Exit != 143 {
			t.Errorf("got %+v, want exit 143", got)
		}
	})
}

// without returns a directory for PATH that has all programs but one.
func without(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(from)
		for _, e := range entries {
			if e.Name() != name {
				_ = os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())) // the first one counts
			}
		}
	}
	return dir
}

// TestE5AStopGoesByTheClock stops a command that ignores SIGTERM, on a machine whose pauses take longer than they should: the
// kill comes in time nevertheless.
func TestE5AStopGoesByTheClock(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		if j.argv[0] == "busybox" {
			t.Skip("busybox's sleep is its own")
		}
		s := start("trap '' TERM; echo ready; while :; do sleep 63; done")
		s.Wait.Output = true
		if got := j.run(t, journal("stop").Start(s)); got.Exited || got.Stdout.Bytes != "ready\n" {
			t.Fatalf("got %+v, want a running command", got)
		}
		dir := t.TempDir()
		pauses := filepath.Join(dir, "pauses")
		slow := "#!/bin/sh\necho >>" + pauses + "\nPATH=${PATH#*:} exec sleep 1.1\n"
		if err := os.WriteFile(filepath.Join(dir, "sleep"), []byte(slow), 0o700); err != nil {
			t.Fatal(err)
		}
		j.env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		if got := j.run(t, journal("stop").Stop(script.Wait{}, script.Process{})); got.State != script.StateStopped {
			t.Errorf("got %+v, want stopped", got)
		}
		// Two at most before the kill, and one after it; the rest are for the exit to be recorded. Counted, there were eight before it.
		if n, _ := os.ReadFile(pauses); len(n) < 1 || len(n) > 8 {
			t.Errorf("%d pauses, want the kill after 2 s", len(n))
		}
	})
}

// TestE3AStopIsNoExit: a command that a signal stops goes on when another one says so. Bash tells of both, where it controls
// jobs in place of setsid.
func TestE3AStopIsNoExit(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		if j.argv[0] == "zsh" {
			t.Skip("zsh continues what it waits for")
		}
		for id, path := range map[string]string{"setsid": "", "no-setsid": without(t, "setsid")} {
			s := start("sleep 0.1; kill -STOP $$; exit 3")
			s.Wait.Limit = briefly.Limit
			if j.env = nil; path != "" {
				j.env, s.Login.Profiles = []string{"PATH=" + path}, script.LoginProfiles // bash is the shell for these
			}
			got := j.run(t, journal(id).Start(s))
			eventually(t, "the command is stopped", func() bool {
				if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", got.Process.ID)); strings.Contains(string(stat), ") T ") {
					return true
				}
				got = j.run(t, journal(id).Observe(script.Wait{}))
				return false
			})
			if got := j.run(t, journal(id).Observe(briefly)); got.State != script.StateRunning || got.Exited {
				t.Errorf("got %+v, want a command that has not ended", got)
			}
			if got := j.run(t, journal(id).Signal("CONT", script.Process{})); got.State != script.StateSent {
				t.Errorf("got %+v, want that the signal was sent", got)
			}
			j.wantFrame(t, j.run(t, journal(id).Observe(patient)), ended(3, "", ""))
		}
	})
}

func TestSignalsHaveTheSameNamesInAllShells(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		got := run(t, shell(t, argv, t.TempDir(), "-c", `for s in `+strings.Join(script.Signals, " ")+`; do sleep 62 & kill -$s $! || echo $s; kill -KILL $!; done`))
		if got.Stdout != "" && (argv[0] != "zsh" || got.Stdout != "ABRT\n") {
			t.Errorf("unknown: %q", got.Stdout)
		}
	})
}

// TestE4ChildrenMayWriteOnWhenNobodyListens has a child in the background write first once the command and every request have
// ended.
func TestE4ChildrenMayWriteOnWhenNobodyListens(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		end, speak, lived := filepath.Join(j.home, "end"), filepath.Join(j.home, "speak"), filepath.Join(j.home, "lived")
		s := start(until(end) + "(" + until(speak) + "echo late; echo late >&2; : >" + lived + ") & exit 3")
		s.Wait.Limit = briefly.Limit
		if got := j.run(t, journal("child").Start(s)); got.Exited {
			t.Fatalf("got %+v, want a running command", got)
		}
		touch(t, end)
		if got := j.run(t, journal("child").Observe(script.Wait{Limit: time.Minute})); got.Exit != 3 {
			t.Errorf("got %+v, want exit 3", got)
		}
		touch(t, speak)
		eventually(t, "the child lives on", func() bool { _, err := os.Stat(lived); return err == nil })
	})
}

// TestE2AKilledCopierIsNoFullDisk kills what copies the output into the file.
func TestE2AKilledCopierIsNoFullDisk(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		gate := filepath.Join(j.home, "gate")
		s := start("echo x; " + until(gate) + "echo y; exit 3")
		s.Wait.Output = true
		got := j.run(t, journal("copier").Start(s))
		links, err := filepath.Glob("/proc/[0-9]*/fd/1")
		if err != nil || len(links) == 0 {
			missing(t, "/proc/*/fd")
		}
		killed := 0
		for _, link := range links {
			name, _ := os.ReadFile(filepath.Join(link, "../../comm"))
			file, _ := os.Readlink(link)
			if pid := 0; file == filepath.Join(got.Dir, "copier.o") && string(name) == "cat\n" {
				if _, err := fmt.Sscanf(link, "/proc/%d", &pid); err != nil {
					t.Fatal(err)
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				killed++
			}
		}
		touch(t, gate)
		got = j.run(t, journal("copier").Observe(patient))
		if killed != 1 || got.Exit != 3 || got.Stdout.Bytes != "x\n" || got.Stdout.Cut || !got.Stdout.Last {
			t.Errorf("killed %d, got %+v; want exit 3, and an output without its end for no reason that is known", killed, got)
		}
	})
}

// TestE1AMarkOfARefusalProvesNothingWhileThereIsARecord: whoever refuses for lack of room may be too late to see the record,
// and too late to be seen.
func TestE1AMarkOfARefusalProvesNothingWhileThereIsARecord(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/shm"); err != nil {
		missing(t, "/dev/shm")
	}
	eachJournal(t, func(t *testing.T, j journals) {
		unique := func(name string) (script.Journal, string) {
			id := fmt.Sprintf("%s-%s-%d", name, filepath.Base(j.argv[0]), os.Getpid())
			refusal := fmt.Sprintf("/dev/shm/.leasehold-%d-%s", os.Getuid(), id)
			t.Cleanup(func() { _ = os.Remove(refusal) })
			return journal(id), refusal
		}
		gate := filepath.Join(j.home, "gate")
		begun, refusal := unique("begun")
		s := start("echo begun; " + until(gate) + "exit 3")
		s.Wait.Output = true
		dir := j.run(t, begun.Start(s)).Dir
		touch(t, refusal)
		for kind, text := range map[string]script.Script{"copy": begun.Start(s), "settle": begun.Settle(briefly)} {
			if got := j.run(t, text); got.State != script.StateRunning || got.Process.ID == 0 {
				t.Errorf("%s: got %+v, want to be told of the command that runs", kind, got)
			}
		}
		touch(t, gate)
		if got := j.stopped(t, begun.ID); !got.Exited {
			t.Errorf("got %+v, want an exit", got)
		}

		open, refusal := unique("open") // claimed, and there may be no room yet for the rest
		if err := os.WriteFile(filepath.Join(dir, open.ID), []byte("\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		touch(t, refusal)
		if got := j.run(t, open.Settle(briefly)); got.State != script.StateUnwritable {
			t.Errorf("got %+v, want that nothing is known while somebody has the record", got)
		}

		refused, refusal := unique("refused")
		touch(t, refusal)
		for range 2 {
			if got := j.run(t, refused.Start(start("touch "+j.home+"/ran"))); got.State != script.StateFull {
				t.Errorf("got %+v, want that there is no room", got)
			}
		}
		if _, err := os.Stat(j.home + "/ran"); err == nil {
			t.Error("a command ran that had been refused")
		}
	})
}

// TestE5WhatTheRecordBecameKeepsNobody: no script waits at a pipe, nor takes anything else for a record.
func TestE5WhatTheRecordBecameKeepsNobody(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		dir := j.run(t, journal("first").Start(start("true"))).Dir
		for kind, put := range map[string]func(name string) error{
			"pipe":      func(name string) error { return syscall.Mkfifo(name, 0o600) },
			"directory": func(name string) error { return os.Mkdir(name, 0o700) },
			"link":      func(name string) error { return os.Symlink("nowhere", name) },
		} {
			open := journal(kind)
			if err := put(filepath.Join(dir, open.ID)); err != nil {
				t.Fatal(err)
			}
			for what, text := range map[string]script.Script{"start": open.Start(start("touch " + j.home + "/ran")), "settle": open.Settle(briefly), "stop": open.Stop(briefly, script.Process{})} {
				if got := j.run(t, text); got.State != script.StateUnwritable && kind != "link" || got.State == script.StateRunning {
					t.Errorf("%s, %s: got %+v, want that nothing is known", kind, what, got)
				}
			}
			if got := j.run(t, open.Observe(briefly)); got.State != script.StateGone {
				t.Errorf("%s: got %+v, want that the record is gone", kind, got)
			}
		}
		if _, err := os.Stat(j.home + "/ran"); err == nil {
			t.Error("a command ran that had no record")
		}
	})
}

// TestE1WhatNobodyBeginsIsLostForGood keeps back whoever is to begin a command, until nobody waits for that any more.
func TestE1WhatNobodyBeginsIsLostForGood(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		missing(t, "bash")
	}
	eachJournal(t, func(t *testing.T, j journals) {
		bin := t.TempDir()
		j.env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		argv, err := locate(j.argv)
		if err != nil {
			t.Fatal(err)
		}
		j.argv = argv
		for id, give := range map[string]func() script.Frame{
			"lost": func() script.Frame {
				record := filepath.Join(j.home, fmt.Sprintf(".leasehold-%d", os.Getuid()), "lost")
				if old := time.Now().Add(-3 * time.Minute); os.Chtimes(record, old, old) != nil {
					t.Fatal("there is no record")
				}
				return j.run(t, journal("lost").Observe(briefly))
			},
			"stopped": func() script.Frame { return j.run(t, journal("stopped").Stop(briefly, script.Process{})) },
		} {
			gate, ran := filepath.Join(j.home, "gate-"+id), filepath.Join(j.home, "ran-"+id)
			late := "#!/bin/sh\n" + until(gate) + "exec " + bash + ` "$@"` + "\n"
			if err := os.WriteFile(filepath.Join(bin, "bash"), []byte(late), 0o700); err != nil {
				t.Fatal(err)
			}
			s := start(": >" + ran)
			s.Login.Profiles, s.Wait.Limit = script.LoginProfiles, briefly.Limit // bash is the shell for these
			if got := j.run(t, journal(id).Start(s)); got.State != script.StateRunning || !got.Claimed || got.Process.ID != 0 {
				t.Fatalf("got %+v, want a command that was claimed, and has not begun", got)
			}
			if got := give(); got.State != script.State(id) || got.Process.ID != 0 {
				t.Errorf("got %+v, want %s", got, id)
			}
			touch(t, gate)
			if got := j.run(t, journal(id).Observe(patient)); !got.Exited || got.Started {
				t.Errorf("got %+v, want an exit of what came too late", got)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Errorf("%s, and then the command ran", id)
			}
		}
	})
}

// locate returns the arguments with the program's path.
func locate(argv []string) ([]string, error) {
	path, err := exec.LookPath(argv[0])
	return append([]string{path}, argv[1:]...), err
}
