//go:build unix

package script_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/script"
)

// needsProc skips a test that looks at processes.
func needsProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		missing(t, "/proc")
	}
}

func TestASessionsShortInputComesThroughAPipe(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		for name, tt := range map[string]struct{ stdin, command, want string }{
			"text":           {"hello\nworld", "cat", "hello\nworld"},
			"any bytes":      {"a\x00\xff%s\\n\n", "od -An -c | tr -d ' \\n'", `a\0377%s\n\n`},
			"a dash":         {"-a\x00b", "od -An -c | tr -d ' \\n'", `-a\0b`},
			"not read":       {strings.Repeat("x", 64<<10), "echo y", "y\n"},
			"read in part":   {strings.Repeat("x", 64<<10), "head -c 3", "xxx"},
			"closed":         {"x", "exec <&-; echo z", "z\n"},
			"to a new group": {"in", "setsid cat", "in"},
		} {
			for _, policy := range []script.Profiles{script.LoginProfiles, script.NoProfiles} {
				s := script.Session{ID: "id", Fence: 1, Mark: testMark, Stdin: []byte(tt.stdin), Login: script.Login{Profiles: policy, Script: tt.command + "; exit 4"}}
				got := session(t, argv, s.Text(), dispatch(2, script.Login{Script: "echo next"}))
				want := "@a\n@s\n" + tt.want + "@o\n@o:4\nstatus=4\n@a\n@s\nnext\n@o\n@o:0\nstatus=0\n"
				if plain(got.Stdout) != want || plain(got.Stderr) != "@a\n@e\n@e:4\n@a\n@e\n@e:0\n" {
					t.Errorf("%s: got %q, want %q (stderr %q)", name, plain(got.Stdout), want, plain(got.Stderr))
				}
			}
		}
	})
}

// aside runs a session's dispatch with files in a directory, and returns its output as it comes.
func aside(t *testing.T, argv []string, home, text string) (lines *bufio.Reader, wait func()) {
	t.Helper()
	file := filepath.Join(home, "dispatch")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := shell(t, argv, home, "-c", ". ./dispatch")
	cmd.Env = append(cmd.Env, "TMPDIR="+home)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(out), func() { _ = cmd.Wait() }
}

func TestASessionsInputIsFedAsAJournalsIs(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		for name, tt := range map[string]struct {
			command string
			feed    []string
			states  []script.State
			want    string
		}{
			"to the end":  {"cat; echo end", []string{"a\x00b", "c"}, []script.State{script.StateFed, script.StateFed}, "a\x00bcend\n"},
			"empty":       {"cat; echo end", []string{""}, []script.State{script.StateFed}, "end\n"},
			"ended early": {"read x; echo $x", []string{"line\n"}, []script.State{script.StateFed}, "line\n"},
		} {
			home := t.TempDir()
			j := journals{argv: []string{"sh"}, home: home}
			s := script.Session{ID: "id", Fence: 1, Mark: testMark, Feed: true, Login: script.Login{Script: tt.command}}
			out, wait := aside(t, argv, home, s.Text())
			var got strings.Builder
			next := func() bool {
				line, err := out.ReadString('\n')
				got.WriteString(line)
				return err == nil
			}
			for !strings.Contains(got.String(), testMark+"s\n") && next() {
			}
			for n, chunk := range tt.feed {
				if frame := j.run(t, journal("id").Feed(n, []byte(chunk), n == len(tt.feed)-1, patient)); frame.State != tt.states[n] {
					t.Errorf("%s: chunk %d: %+v, want %s", name, n, frame, tt.states[n])
				}
			}
			for next() {
			}
			wait()
			if want := "@a\n@s\n" + tt.want + "@o\n@o:0\n"; plain(got.String()) != want {
				t.Errorf("%s: got %q, want %q", name, plain(got.String()), want)
			}
			if frame := j.run(t, journal("id").Feed(9, []byte("late"), true, patient)); frame.State != script.StateClosed {
				t.Errorf("%s: a late chunk: %+v, want closed", name, frame)
			}
			run(t, carried(withTemp(shell(t, []string{"sh"}, home), home), s.Remove()))
			wantNoFiles(t, home)
		}
	})
}

// A chunk's writer that is slow to end finds the command's files gone: it leaves none of its own.
func TestAWriterThatComesAfterTheRemovalLeavesNothing(t *testing.T) {
	t.Parallel()
	base64, err := exec.LookPath("base64")
	if err != nil {
		t.Fatal(err)
	}
	eachShell(t, func(t *testing.T, argv []string) {
		home := t.TempDir()
		slow := "#!/bin/sh\n" + base64 + ` "$@"; status=$?; until [ -e "$HOME/removed" ]; do sleep 0.02; done; exit $status` + "\n"
		if err := os.WriteFile(filepath.Join(home, "base64"), []byte(slow), 0o700); err != nil {
			t.Fatal(err)
		}
		s := script.Session{ID: "id", Fence: 1, Mark: testMark, Feed: true, Login: script.Login{Profiles: script.NoProfiles, Script: "head -c 1; exec <&-; until [ -e removed ]; do sleep 0.02; done"}}
		out, wait := aside(t, argv, home, s.Text())
		feeding := carried(withTemp(shell(t, argv, home), home), journal("id").Feed(0, make([]byte, script.MaxChunk), true, script.Wait{}))
		feeding.Env = append(feeding.Env, "PATH="+home+":"+os.Getenv("PATH"))
		alive, held, err := os.Pipe() // ends with the last process of the script
		if err != nil {
			t.Fatal(err)
		}
		defer alive.Close()
		feeding.ExtraFiles = append(make([]*os.File, 16), held)
		var got strings.Builder
		for !strings.Contains(got.String(), "\x00") { // the command has something of the chunk, and reads no more
			if !strings.Contains(got.String(), testMark+"s\n") {
				line, err := out.ReadString('\n')
				if got.WriteString(line); err != nil {
					t.Fatalf("%q, %v", got.String(), err)
				}
				if strings.Contains(line, testMark+"s") {
					err := feeding.Start()
					if held.Close(); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			b, err := out.ReadByte()
			if got.WriteByte(b); err != nil {
				t.Fatalf("%q, %v", got.String(), err)
			}
		}
		run(t, carried(withTemp(shell(t, []string{"sh"}, home), home), s.Remove()))
		if err := os.WriteFile(filepath.Join(home, "removed"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = feeding.Wait()
		_, _ = out.WriteTo(&got)
		wait()
		if _, err := io.Copy(io.Discard, alive); err != nil {
			t.Fatal(err)
		}
		wantNoFiles(t, home)
	})
}

func withTemp(cmd *exec.Cmd, dir string) *exec.Cmd {
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	return cmd
}

func wantNoFiles(t *testing.T, home string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(home, ".leasehold-*", "id*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestASessionCarriesWhatIsTooLongForAnArgument(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("# it's long\n", 300_000)
	arg := strings.Repeat("'x", 50_000)
	eachShell(t, func(t *testing.T, argv []string) {
		for name, tt := range map[string]struct {
			login script.Login
			want  string
		}{
			"script of 3 MiB":  {script.Login{Script: long + "echo $# end"}, "0 end\n"},
			"and not text":     {script.Login{Script: long[:200_000] + "\n# \xff\xfe\necho end"}, "end\n"},
			"many arguments":   {script.Login{Args: []string{"sh", "-c", "echo ${#1} ${#2} ${#3}", "x", arg, arg, arg}}, "100000 100000 100000\n"},
			"much environment": {script.Login{Args: []string{"sh", "-c", "echo ${#A} ${#B}"}, Env: map[string]string{"A": arg, "B": arg}}, "100000 100000\n"},
		} {
			for _, policy := range []script.Profiles{script.LoginProfiles, script.NoProfiles} {
				tt.login.Profiles = policy
				s := script.Session{ID: "id", Fence: 1, Mark: testMark, Login: tt.login}
				if !s.Files() {
					t.Errorf("%s needs no files: the test proves nothing", name)
				}
				home := t.TempDir()
				out, wait := aside(t, argv, home, s.Text())
				var got strings.Builder
				if _, err := out.WriteTo(&got); err != nil {
					t.Fatal(err)
				}
				wait()
				if want := "@a\n@s\n" + tt.want + "@o\n@o:0\n"; plain(got.String()) != want {
					t.Errorf("%s: got %.200q, want %q", name, plain(got.String()), want)
				}
				run(t, carried(withTemp(shell(t, []string{"sh"}, home), home), s.Remove()))
				wantNoFiles(t, home)
			}
		}
	})
}

func TestWithoutRoomForItsFilesASessionsCommandIsNotStarted(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		home := t.TempDir()
		text := script.Session{ID: "id", Fence: 1, Mark: testMark, Feed: true, Login: script.Login{Script: "echo started"}}.Text()
		out, wait := aside(t, argv, home, "TMPDIR="+home+"/none\n"+text)
		var got strings.Builder
		if _, err := out.WriteTo(&got); err != nil {
			t.Fatal(err)
		}
		wait()
		if want := "@a\n@n\n@o\n@o:255\n"; plain(got.String()) != want {
			t.Errorf("got %q, want %q", plain(got.String()), want)
		}
	})
}

func TestASessionTellsWhetherItsOutputIsHeld(t *testing.T) {
	t.Parallel()
	needsProc(t)
	const child = "until [ -e over ]; do sleep 0.1; done"
	eachShell(t, func(t *testing.T, argv []string) {
		for name, tt := range map[string]struct {
			command string
			free    bool
		}{
			"nothing left":          {"echo x", true},
			"a quiet child":         {child + " >/dev/null 2>&1 &", true},
			"a child":               {child + " &", false},
			"a child of its own":    {"setsid sh -c '" + child + "' &", false},
			"a daemon":              {"(setsid sh -c '" + child + " & " + child + "' &)", false},
			"stderr only":           {child + " >/dev/null &", false},
			"another number for it": {child + " 7>&1 >/dev/null 2>&1 &", false},
		} {
			free := false
			for range 20 { // where many processes come and go it is not always sure
				got := session(t, argv, dispatch(1, script.Login{Profiles: script.NoProfiles, Script: tt.command}), ": >over")
				free = strings.Contains(got.Stdout, testMark+"f\n")
				if free || !tt.free {
					break
				}
			}
			if free != tt.free {
				t.Errorf("%s: free %v, want %v", name, free, tt.free)
			}
		}
	})
}

var processMark = regexp.MustCompile(testMark + `g:([1-9][0-9]*):([0-9]*)\n`)

func TestAGroupIsStoppedWithItsOrphans(t *testing.T) {
	t.Parallel()
	needsProc(t)
	eachShell(t, func(t *testing.T, argv []string) {
		stop := func(pid int, start string) string {
			return run(t, carried(shell(t, argv, t.TempDir()), script.Session{ID: "x"}.StopGroup(pid, start))).Stdout
		}
		home, trap := t.TempDir(), ""
		if argv[0] == "dash" {
			trap = "trap \"\" TERM HUP; " // which takes SIGKILL
		}
		// The orphan's parent ends at once, and so does the leader of the group.
		got := session(t, argv, dispatch(1, script.Login{Profiles: script.NoProfiles, Script: "sh -c '" + trap + "sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >" + home + "/orphan'"}))
		m := processMark.FindStringSubmatch(got.Stdout)
		if m == nil {
			t.Fatalf("no process is told: %q", got.Stdout)
		}
		var pid int
		if _, err := fmt.Sscan(m[1], &pid); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(home + "/orphan")
		if err != nil {
			t.Fatal(err)
		}
		orphan := strings.TrimSpace(string(data))
		if !alive(orphan) {
			t.Fatal("the orphan does not run: the test proves nothing")
		}
		if said := stop(pid, m[2]); said != script.LookGone+"\n" || alive(orphan) {
			t.Errorf("said %q, orphan alive: %v; want gone", said, alive(orphan))
		}
		// A stranger of the same number is left alone.
		stranger := shell(t, []string{"sleep"}, home, "1000")
		if err := stranger.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
		if said := stop(stranger.Process.Pid, "1"); said != script.LookGone+"\n" || !alive(fmt.Sprint(stranger.Process.Pid)) {
			t.Errorf("said %q, stranger alive: %v; want gone and alive", said, alive(fmt.Sprint(stranger.Process.Pid)))
		}
	})
}

// TestTheDeadDoNotFailAStop has a parent that waits for nobody, and a machine whose pauses take longer than they should.
func TestTheDeadDoNotFailAStop(t *testing.T) {
	t.Parallel()
	needsProc(t)
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "sleep"), []byte("#!/bin/sh\nPATH=${PATH#*:} exec sleep 2.1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	dead := shell(t, []string{"sleep"}, home, "1000")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	stop := carried(shell(t, []string{"sh"}, home), script.Session{ID: "x"}.StopGroup(dead.Process.Pid, ""))
	stop.Env = append(stop.Env, "PATH="+home+":"+os.Getenv("PATH"))
	if said := run(t, stop).Stdout; said != script.LookGone+"\n" {
		t.Errorf("said %q, want gone", said)
	}
	_ = dead.Wait()
}

func alive(pid string) bool {
	threads, _ := filepath.Glob("/proc/" + pid + "/task/*/stat")
	for _, thread := range threads {
		if stat, err := os.ReadFile(thread); err == nil && !strings.Contains(string(stat), ") Z ") {
			return true
		}
	}
	return false
}
