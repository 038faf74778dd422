package proc

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestKillEndsEveryProcessOfTheGroup(t *testing.T) {
	needs(t, "setsid")
	s := newSupervisor(t)
	dir, otherDir := t.TempDir(), t.TempDir()
	g, other := s.Group("one"), s.Group("two")
	run(t, g, dir, manyKinds)
	run(t, other, otherDir, manyKinds)
	mine, others := pids(t, dir), pids(t, otherDir)

	if err := g.Kill(); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	for kind, pid := range mine {
		if alive(pid) {
			t.Errorf("the %s process %d is alive after Kill", kind, pid)
		}
	}
	for kind, pid := range others {
		if !alive(pid) {
			t.Errorf("the %s process %d of another group died", kind, pid)
		}
	}
	if left, err := g.Processes(); err != nil || len(left) > 0 {
		t.Errorf("Processes = %v, %v; want none", left, err)
	}
	if err := g.Kill(); err != nil {
		t.Errorf("second Kill: %v", err)
	}
}

func TestKillEndsProcessesThatKeepForking(t *testing.T) {
	s := newSupervisor(t)
	dir := t.TempDir()
	g := s.Group("forking")
	run(t, g, dir, restless)
	pidIn(t, filepath.Join(dir, "ready"))
	if err := g.Kill(); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	if left, err := g.Processes(); err != nil || len(left) > 0 {
		t.Errorf("Processes = %v, %v; want none", left, err)
	}
}

func TestNothingStartsAfterKill(t *testing.T) {
	s := newSupervisor(t)
	g := s.Group("sandbox")
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(g.Command("true")); !errors.Is(err, ErrKilled) {
		t.Errorf("Start after Kill = %v, want %v", err, ErrKilled)
	}
	again := s.Group("sandbox")
	if again == g {
		t.Fatal("the killed group came back")
	}
	cmd := again.Command("true")
	if err := again.Start(cmd); err != nil {
		t.Errorf("Start in the next group of the same sandbox: %v", err)
	} else if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, g := range map[string]*Group{"old": again, "new": s.Group("sandbox")} {
		if err := g.Start(g.Command("true")); !errors.Is(err, ErrKilled) {
			t.Errorf("Start in the %s group after Close = %v, want %v", name, err, ErrKilled)
		}
	}
}

func TestStartsThatRaceWithKillLeaveNothing(t *testing.T) {
	s := newSupervisor(t)
	g := s.Group("sandbox")
	var wg sync.WaitGroup
	first := make(chan struct{})
	var once sync.Once
	for range 8 {
		wg.Go(func() {
			for {
				cmd := g.Command("sleep", "1000")
				if err := g.Start(cmd); err != nil {
					if !errors.Is(err, ErrKilled) {
						t.Errorf("Start = %v, want %v", err, ErrKilled)
					}
					return
				}
				once.Do(func() { close(first) })
				wg.Go(func() { _ = cmd.Wait() })
			}
		})
	}
	<-first
	if err := g.Kill(); err != nil {
		t.Errorf("Kill: %v", err)
	}
	wg.Wait()
	if left, err := g.Processes(); err != nil || len(left) > 0 {
		t.Errorf("Processes = %v, %v; want none", left, err)
	}
}

// The environment of a process that executes a program reads as empty for a moment.
func TestAProcessIsSeenWhileItExecutes(t *testing.T) {
	needs(t, "setsid")
	g := NewSupervisor().Group("g")
	t.Cleanup(func() {
		if err := g.sup.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	const forever = `exec sh -c "$0" "$0"`
	run(t, g, dir, `setsid -f sh -c 'echo $$ >pid; exec sh -c "$0" "$0"' '`+forever+`' </dev/null >/dev/null 2>&1`)
	pid := pidIn(t, filepath.Join(dir, "pid"))
	for i := range 100 {
		if found, err := g.Processes(); err != nil || !slices.Contains(found, pid) {
			t.Fatalf("look %d: Processes = %v, %v; want %d among them", i, found, err, pid)
		}
	}
	if err := g.Kill(); err != nil {
		t.Errorf("Kill: %v", err)
	}
	if alive(pid) {
		t.Error("it is alive after Kill")
	}
}

func TestCloseKillsAllGroups(t *testing.T) {
	needs(t, "setsid")
	s := NewSupervisor()
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		run(t, s.Group(strconv.Itoa(i)), dir, manyKinds)
	}
	var all []map[string]int
	for _, dir := range dirs {
		all = append(all, pids(t, dir))
	}
	watcher := s.watch
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	for _, found := range all {
		for kind, pid := range found {
			if alive(pid) {
				t.Errorf("the %s process %d is alive after Close", kind, pid)
			}
		}
	}
	if !watcher.gone() {
		t.Error("the watcher is there after Close")
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestNothingSurvivesTheHost(t *testing.T) {
	needs(t, "setsid", "grep", "awk", "tr")
	for name, end := range map[string]func(hostProcess) error{
		"killed": func(h hostProcess) error { return h.cmd.Process.Kill() },
		"exited": func(h hostProcess) error { return h.in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			// A name that a shell would take apart.
			dir := filepath.Join(t.TempDir(), "odd 'name'\n$(x) \\0 é")
			if err := os.MkdirAll(filepath.Join(dir, "closed"), 0o755); err != nil {
				t.Fatal(err)
			}
			keep := filepath.Join(t.TempDir(), "keep")
			if err := os.WriteFile(keep, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Dir(keep), filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(filepath.Join(dir, "closed"), 0); err != nil {
				t.Fatal(err)
			}
			host := startHost(t, dir)
			found := pids(t, dir)
			if err := end(host); err != nil {
				t.Fatal(err)
			}
			until(t, "no process of the host is left", func() bool {
				for _, pid := range found {
					if alive(pid) {
						return false
					}
				}
				left, err := marked(host.mark, nil)
				return err == nil && len(left) == 0
			})
			until(t, "the directory is gone", func() bool {
				_, err := os.Lstat(dir)
				return errors.Is(err, os.ErrNotExist)
			})
			until(t, "the watcher is gone", func() bool { return len(commandLines(t, host.mark)) == 0 })
			if left, err := marked(host.mark, nil); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if _, err := os.Stat(keep); err != nil {
				t.Errorf("behind the link: %v", err)
			}
		})
	}
}

// commandLines returns the processes with a word in their command line.
func commandLines(t *testing.T, word string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(word)) {
			found = append(found, path)
		}
	}
	return found
}

// A host may itself run in a sandbox of another one. The end of the outer sandbox is the end of the inner ones.
func TestKillReachesSandboxesInTheSandbox(t *testing.T) {
	needs(t, "setsid")
	outer := newSupervisor(t)
	g := outer.Group("outer")
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host := g.Command(self)
	host.Env = append(os.Environ(), hostVariable+"="+dir)
	stdin, err := host.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := g.Start(host); err != nil {
		t.Fatal(err)
	}
	found := pids(t, dir)
	if err := g.Kill(); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	_ = host.Wait()
	for kind, pid := range found {
		if alive(pid) {
			t.Errorf("the inner %s process %d is alive", kind, pid)
		}
	}
}

func TestWatcherStartsWithTheFirstProcess(t *testing.T) {
	s := newSupervisor(t)
	g := s.Group("sandbox")
	s.OnHostDeath(t.TempDir())
	g.Command("true")
	if found := commandLines(t, s.mark); len(found) > 0 {
		t.Fatalf("watcher before the first process: %v", found)
	}
	start := func() {
		t.Helper()
		cmd := g.Command("true")
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	start()
	start()
	var found []string
	until(t, "one watcher runs", func() bool { found = commandLines(t, s.mark); return len(found) == 1 })

	// Somebody killed it: the next process has a new one.
	watcher, err := strconv.Atoi(strings.Split(found[0], "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(watcher, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the watcher is gone", s.watch.gone)
	start()
	until(t, "another watcher runs", func() bool {
		found := commandLines(t, s.mark)
		return len(found) == 1 && !strings.Contains(found[0], "/"+strconv.Itoa(watcher)+"/")
	})
}

func TestSupervisorInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSupervisor()
		s.Group("sandbox")
		s.OnHostDeath("/nowhere")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestProcessHasItsOwnSessionAndTheMark(t *testing.T) {
	s := newSupervisor(t)
	g := s.Group("sandbox")
	for name, env := range map[string][]string{
		"host's environment": nil,
		"own environment":    {"A=b", Variable + "=forged"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := g.Command("/bin/sh", "-c", `read -r pid comm state ppid pgrp session rest </proc/$$/stat; echo "$$ $pgrp $session $`+Variable+`"`)
			cmd.Env = env
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := g.Start(cmd); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			pid := strconv.Itoa(cmd.Process.Pid)
			if got, want := out.String(), pid+" "+pid+" "+pid+" "+s.outer+"/"+g.mark+"\n"; got != want {
				t.Errorf("pid, group, session, mark = %q, want %q", got, want)
			}
		})
	}
}

func TestKillTree(t *testing.T) {
	needs(t, "setsid")
	s := newSupervisor(t)

	t.Run("asks first", func(t *testing.T) {
		dir := t.TempDir()
		g := s.Group("polite")
		cmd := run(t, g, dir, `trap 'echo $$ >asked; exit 0' TERM; echo $$ >ready; while :; do sleep 0.01; done`)
		pidIn(t, filepath.Join(dir, "ready"))
		g.KillTree(cmd.Process.Pid, patience)
		if pid := pidIn(t, filepath.Join(dir, "asked")); pid != cmd.Process.Pid {
			t.Errorf("asked %d, want %d", pid, cmd.Process.Pid)
		}
		if left, _ := g.Processes(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})

	t.Run("waits for the grace period", func(t *testing.T) {
		dir := t.TempDir()
		g := s.Group("stubborn")
		cmd := run(t, g, dir, `trap '' TERM; echo $$ >ready; sleep 1000 & sleep 1000`)
		pidIn(t, filepath.Join(dir, "ready"))
		const grace = 150 * time.Millisecond
		start := time.Now()
		g.KillTree(cmd.Process.Pid, grace)
		if took := time.Since(start); took < grace {
			t.Errorf("took %v, want at least %v", took, grace)
		}
		if left, _ := g.Processes(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})

	t.Run("does not ask without a grace period", func(t *testing.T) {
		dir := t.TempDir()
		g := s.Group("at once")
		cmd := run(t, g, dir, `trap 'echo $$ >asked; exit 0' TERM; echo $$ >ready; while :; do sleep 0.01; done`)
		pidIn(t, filepath.Join(dir, "ready"))
		g.KillTree(cmd.Process.Pid, 0)
		if _, err := os.Stat(filepath.Join(dir, "asked")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the process was asked: %v", err)
		}
	})

	t.Run("reaches the group and the tree, not what left both", func(t *testing.T) {
		dir := t.TempDir()
		g := s.Group("tree")
		cmd := run(t, g, dir, `
setsid sh -c 'echo $$ >session; exec sleep 1000' &
(sh -c 'echo $$ >orphan; exec sleep 1000' &)
setsid -f sh -c 'echo $$ >daemon; exec sleep 1000'
sleep 1000`)
		session := pidIn(t, filepath.Join(dir, "session"))
		orphan := pidIn(t, filepath.Join(dir, "orphan"))
		daemon := pidIn(t, filepath.Join(dir, "daemon"))
		g.KillTree(cmd.Process.Pid, patience)
		for name, pid := range map[string]int{"session leader": session, "member of the group": orphan, "leader": cmd.Process.Pid} {
			if alive(pid) {
				t.Errorf("the %s is alive", name)
			}
		}
		if !alive(daemon) {
			t.Error("the detached daemon died")
		}
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		if alive(daemon) {
			t.Error("the detached daemon survived Kill")
		}
	})

	t.Run("knows only its own group", func(t *testing.T) {
		stranger := exec.Command("sleep", "1000")
		if err := stranger.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = stranger.Process.Kill()
			_ = stranger.Wait()
		}()
		s.Group("other").KillTree(stranger.Process.Pid, 0)
		if !alive(stranger.Process.Pid) {
			t.Error("a stranger died")
		}
	})
}

// Where there is no /proc, the watcher knows process groups only. That part of its script runs on Linux as well.
func TestWatcherKillsProcessGroups(t *testing.T) {
	needs(t, "ps", "awk", "setsid")
	s := newSupervisor(t)
	dir := t.TempDir()
	g, other := s.Group("sandbox"), s.Group("other")
	cmd := run(t, g, dir, `
setsid sh -c 'echo $$ >session; exec sleep 1000' &
(sh -c 'echo $$ >orphan; exec sleep 1000' &)
trap '' TERM
wait`)
	bystander := run(t, other, dir, "exec sleep 1000")
	found := []int{cmd.Process.Pid, pidIn(t, filepath.Join(dir, "session")), pidIn(t, filepath.Join(dir, "orphan"))}

	const probe = "/proc/self/environ"
	if !strings.Contains(watcherScript, probe) {
		t.Fatal("the script does not ask for /proc")
	}
	watcher := exec.Command("/bin/sh", "-c", strings.ReplaceAll(watcherScript, probe, "/no"+probe), "sh", "mark")
	watcher.Stdin = strings.NewReader("group " + strconv.Itoa(cmd.Process.Pid) + "\n")
	if out, err := watcher.CombinedOutput(); err != nil {
		t.Fatalf("watcher: %v\n%s", err, out)
	}
	for _, pid := range found {
		if alive(pid) {
			t.Errorf("process %d of %v is alive", pid, found)
		}
	}
	if !alive(bystander.Process.Pid) {
		t.Error("a process of another group died")
	}
}
