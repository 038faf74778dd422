//go:build unix

package script_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/script"
)

// shells are the shells a toolbox may use for its sessions, as far as this machine has them.
func shells(t testing.TB) [][]string {
	t.Helper()
	var found [][]string
	for _, s := range [][]string{{"sh"}, {"bash"}, {"dash"}, {"zsh"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(s[0]); err == nil {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		t.Fatal("no shell found")
	}
	return found
}

// missing skips a test that needs a program which this machine does not have.
func missing(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatalf("%s is missing", program)
	}
	t.Skipf("%s is missing", program)
}

// shell returns a command for one of them, in a home directory of its own.
func shell(t testing.TB, argv []string, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], args...)...)
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH") + ":/image/bin", "FROM_DAEMON=yes"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// TestMain lets more tests run beside each other than there are processors: most wait for shells.
func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		if err := flag.Set(parallel.Name, strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func eachShell(t *testing.T, f func(t *testing.T, argv []string)) {
	for _, argv := range shells(t) {
		t.Run(strings.Join(argv, " "), func(t *testing.T) {
			t.Parallel()
			f(t, argv)
		})
	}
}

// eventually waits for something that a process does. Thousands of files take a busy machine minutes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after 5 minutes: %s", what)
		}
	}
}

// outcome is what a shell did.
type outcome struct {
	Stdout, Stderr string
	Exit           int
}

func run(t testing.TB, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("shell: %v (stderr %q)", err, stderr.String())
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestQuoteSurvivesEveryShell(t *testing.T) {
	t.Parallel()
	every := make([]byte, 0, 255)
	for b := 1; b < 256; b++ {
		every = append(every, byte(b))
	}
	words := []string{"", " ", "'", "''", "'\\''", `"`, `\`, "$HOME", "`id`", "$(id)", "a\nb\n", "-n", "*", "~", "!", "\xff\xfe", string(every)}
	eachShell(t, func(t *testing.T, argv []string) {
		for _, w := range words {
			got := run(t, shell(t, argv, t.TempDir(), "-c", "printf %s "+script.Quote(w)))
			if got.Stdout != w || got.Exit != 0 {
				t.Errorf("printf %%s Quote(%q) = %q, exit %d, stderr %q", w, got.Stdout, got.Exit, got.Stderr)
			}
		}
		got := run(t, shell(t, argv, t.TempDir(), "-c", "printf '<%s>' "+script.QuoteAll(words)))
		if want := "<" + strings.Join(words, "><") + ">"; got.Stdout != want {
			t.Errorf("QuoteAll: got %q, want %q", got.Stdout, want)
		}
	})
}

// FuzzQuote: what is quoted is what it was, for every shell. Each shell is started once, and told one word after another.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "'", "a'b", "\n", "\xff", `\'`, "$x", "\\\n"} {
		f.Add(s)
	}
	type listener struct {
		argv []string
		in   io.Writer
		out  *bufio.Reader
	}
	var listeners []listener
	for _, argv := range shells(f) {
		cmd := shell(f, argv, f.TempDir())
		in, err := cmd.StdinPipe()
		if err != nil {
			f.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			f.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				f.Errorf("%v: %v", argv, err)
			}
		})
		listeners = append(listeners, listener{argv, in, bufio.NewReader(out)})
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "\x00") {
			return
		}
		for _, l := range listeners {
			if _, err := io.WriteString(l.in, `printf '%s\000' `+script.Quote(s)+"\n"); err != nil {
				t.Fatal(err)
			}
			if got, err := l.out.ReadString(0); err != nil || got != s+"\x00" {
				t.Fatalf("%v: printf Quote(%q) = %q, %v", l.argv, s, got, err)
			}
		}
	})
}

func TestValidKey(t *testing.T) {
	for key, want := range map[string]bool{
		"A": true, "_": true, "a9": true, "PATH_2": true, "": false, "9a": false, "a-b": false, "a b": false,
		"a=b": false, "é": false, "a\x00": false, "a\n": false, "$a": false,
	} {
		if got := script.ValidKey(key); got != want {
			t.Errorf("ValidKey(%q) = %v, want %v", key, got, want)
		}
	}
}

func TestCheckRefusesWhatCannotBeSent(t *testing.T) {
	long := strings.Repeat("x", script.MaxWord)
	tests := map[string]struct {
		login script.Login
		want  string
	}{
		"fine":            {script.Login{Args: []string{"true", ""}}, ""},
		"empty script":    {script.Login{}, ""},
		"NUL in argument": {script.Login{Args: []string{"echo", "a\x00b"}}, ".Args holds a NUL byte in argument 1"},
		"NUL in script":   {script.Login{Script: "\x00"}, ".Script holds a NUL byte"},
		"NUL in dir":      {script.Login{Dir: "/\x00", Args: []string{"true"}}, ".Dir holds a NUL byte"},
		"NUL in value":    {script.Login{Env: map[string]string{"A": "\x00"}, Args: []string{"true"}}, ".Env holds a NUL byte in the value of A"},
		"bad key":         {script.Login{Env: map[string]string{"A-B": "x"}, Args: []string{"true"}}, `.Env has the key "A-B", and a key must match`},
		"value in a key":  {script.Login{Env: map[string]string{"A=secret": ""}, Args: []string{"true"}}, `.Env has the key "A", and a key must match`},
		"empty program":   {script.Login{Args: []string{""}}, ".Args has an argument 0, a program's name, that is empty or"},
		"dashed program":  {script.Login{Args: []string{"-x"}}, ".Args has an argument 0, a program's name, that is empty or starts with a dash"},
		"long argument":   {script.Login{Args: []string{"echo", long + "x"}}, ".Args has an argument 1 that is longer than the 131071 bytes"},
		"long value":      {script.Login{Env: map[string]string{"A": long}, Args: []string{"true"}}, ".Env has a value of A that is longer than the 131071"},
		"several": {
			script.Login{Dir: "\x00", Env: map[string]string{"A-B": "", "9": ""}, Args: []string{"\x00", "\x00"}},
			".Dir .Env .Env .Args .Args",
		},
		"long in sum":     {script.Login{Args: []string{"echo", long[1000:], long[1000:]}}, ""},
		"long script":     {script.Login{Script: long + long}, ""},
		"too long in sum": {script.Login{Args: slices.Repeat([]string{long[:100000]}, 16)}, " has arguments and an environment of 1600016 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var fields, problems []string
			tt.login.Check(func(field, problem string) {
				fields = append(fields, field)
				problems = append(problems, field+" "+problem)
			})
			got := strings.Join(problems, "; ")
			if len(fields) > 1 {
				got = strings.Join(fields, " ")
			}
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("Check() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLogin(t *testing.T) {
	tests := map[string]struct {
		files map[string]string // below the home directory
		login script.Login
		want  outcome
	}{
		"arguments arrive as they are": {
			login: script.Login{Args: []string{"printf", "<%s>", "a b", "", "'", "$HOME", "x\ny"}},
			want:  outcome{Stdout: "<a b><><'><$HOME><x\ny>"},
		},
		"exit code": {login: script.Login{Args: []string{"sh", "-c", "exit 7"}}, want: outcome{Exit: 7}},
		"script":    {login: script.Login{Script: "echo $((1+1)); exit 3"}, want: outcome{Stdout: "2\n", Exit: 3}},
		"environment wins over profiles": {
			files: map[string]string{".profile": "export A=profile B=profile"},
			login: script.Login{Env: map[string]string{"A": "it's\nmine"}, Script: `printf %s "$A|$B|$FROM_DAEMON"`},
			want:  outcome{Stdout: "it's\nmine|profile|yes"},
		},
		"git defaults": {
			login: script.Login{Script: `echo $GIT_TERMINAL_PROMPT $GCM_INTERACTIVE $GIT_ASKPASS $SSH_ASKPASS $SSH_ASKPASS_REQUIRE`},
			want:  outcome{Stdout: "0 Never echo echo force\n"},
		},
		"git defaults give way": {
			login: script.Login{Env: map[string]string{"GIT_ASKPASS": "mine"}, Script: `echo $GIT_ASKPASS`},
			want:  outcome{Stdout: "mine\n"},
		},
		"profiles say nothing, read nothing, have no arguments": {
			files: map[string]string{".profile": "echo noise; echo noise >&2; cat; export N=$#"},
			login: script.Login{Script: `cat; echo "$N"`},
			want:  outcome{Stdout: "input\n0\n"},
		},
		"bash_profile rather than bashrc": {
			files: map[string]string{".bash_profile": "export A=1", ".bashrc": "export B=1", ".zprofile": "export C=1"},
			login: script.Login{Script: `echo "$A-$B-$C"`},
			want:  outcome{Stdout: "1--1\n"},
		},
		"bashrc alone": {
			files: map[string]string{".bashrc": "export B=1"},
			login: script.Login{Script: `echo "$A-$B-$C"`},
			want:  outcome{Stdout: "-1-\n"},
		},
		"no profiles": {
			files: map[string]string{".profile": "export A=1"},
			login: script.Login{Profiles: script.NoProfiles, Script: `echo "$A-$FROM_DAEMON"`},
			want:  outcome{Stdout: "-yes\n"},
		},
		"a profile that exits": {
			files: map[string]string{".profile": "export A=1; exit 9"},
			login: script.Login{Script: `echo "$A"; cat; echo err >&2; exit 4`},
			want:  outcome{Stdout: "1\ninput\n", Stderr: "err\n", Exit: 4},
		},
		"a signal while profiles are read": {
			files: map[string]string{".profile": "kill -TERM $$; exit 9"},
			login: script.Login{Script: "echo ran"},
			want:  outcome{Exit: 143},
		},
		"another one, after a profile that has its own traps": {
			files: map[string]string{".profile": "trap 'A=1' INT TERM; trap - INT TERM", ".bash_profile": "kill -INT $$; exit 9"},
			login: script.Login{Script: "echo ran"},
			want:  outcome{Exit: 130},
		},
		"a profile that does not parse": {
			files: map[string]string{".profile": "export A=1\nif (; then\n"},
			login: script.Login{Script: `cat; exit 4`},
			want:  outcome{Stdout: "input\n", Exit: 4},
		},
		"a profile with set -eux and a failure": {
			files: map[string]string{".profile": "set -eux; export A=1; false; export A=2"},
			login: script.Login{Script: `echo "$A$UNSET"; cat`},
			want:  outcome{Stdout: "1\ninput\n"},
		},
		"a profile that hides cd and env": {
			files: map[string]string{".profile": "cd() { exit 8; }; env() { exit 8; }"},
			login: script.Login{Dir: "/", Args: []string{"pwd"}},
			want:  outcome{Stdout: "/\n"},
		},
		"a profile with declare -x": {
			files: map[string]string{".bash_profile": "declare -x A=1 || export A=1"},
			login: script.Login{Script: `echo "$A"`},
			want:  outcome{Stdout: "1\n"},
		},
		"variables that shells hold read-only": {
			files: map[string]string{".profile": "readonly A=1"},
			login: script.Login{Env: map[string]string{"A": "2", "UID": "77", "PPID": "78"}, Args: []string{"sh", "-c", "env | grep -E '^(A|UID)=' | sort"}},
			want:  outcome{Stdout: "A=2\nUID=77\n"},
		},
		"a profile that sets PATH anew keeps what was there, behind its own": {
			files: map[string]string{".profile": "PATH=/usr/bin:/bin:/mine"},
			login: script.Login{Script: `case $PATH in /usr/bin:/bin:/mine:*) echo first ;; *) echo "$PATH" ;; esac
case :$PATH: in *:/image/bin:*) echo kept ;; *) echo "$PATH" ;; esac
case $PATH in *:/bin:*:/bin*) echo twice ;; esac`},
			want: outcome{Stdout: "first\nkept\n"},
		},
		"a profile that unsets PATH": {
			files: map[string]string{".profile": "unset PATH"},
			login: script.Login{Script: `case :$PATH: in *:/image/bin:*) echo kept ;; esac`},
			want:  outcome{Stdout: "kept\n"},
		},
		"missing directory": {
			login: script.Login{Dir: "/nowhere", Mark: script.NewMark("0123456789abcdef0123456789abcdef"), Args: []string{"echo", "ran"}},
			want:  outcome{Stdout: "~lh0123456789abcdef0123456789abcdefd\n", Stderr: "cd", Exit: script.RefusedStatus},
		},
		"mark before the command": {
			login: script.Login{Mark: script.NewMark("0123456789abcdef0123456789abcdef"), Args: []string{"echo", "ran"}},
			want:  outcome{Stdout: "~lh0123456789abcdef0123456789abcdefs\nran\n"},
		},
		"unknown program": {login: script.Login{Args: []string{"no-such-program"}}, want: outcome{Stderr: "no-such-program", Exit: 127}},
		"program with an equals sign": {
			files: map[string]string{"a=b": "#!/bin/sh\nprintf '<%s>' \"$0\" \"$@\"\n"},
			login: script.Login{Dir: ".", Args: []string{"./a=b", "x y"}},
			want:  outcome{Stdout: "<./a=b><x y>"},
		},
		"parameters are not for the script": {login: script.Login{Script: `echo "$0 $#"`}, want: outcome{Stdout: "sh 0\n"}},
		"only three descriptors": {
			login: script.Login{Script: "for f in 3 4 5 6 7 8 9; do if (: >&$f) 2>/dev/null; then echo open $f; fi; done"},
		},
	}
	inner := [][]string{{"sh"}, {"bash"}, {"dash"}, {"busybox", "sh"}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, argv := range inner {
				if _, err := exec.LookPath(argv[0]); err != nil {
					continue
				}
				home := t.TempDir()
				for file, text := range tt.files {
					if err := os.WriteFile(filepath.Join(home, file), []byte(text), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				tt.login.Check(func(field, problem string) { t.Fatal(field, problem) })
				cmd := shell(t, argv, home, "-c", tt.login.Text(), "sh")
				cmd.Stdin = strings.NewReader("input\n")
				got := run(t, cmd)
				if got.Stdout != tt.want.Stdout || got.Exit != tt.want.Exit || !strings.Contains(got.Stderr, tt.want.Stderr) || (tt.want.Stderr == "" && got.Stderr != "") {
					t.Errorf("%v:\n got %+v\nwant %+v", argv, got, tt.want)
				}
			}
		})
	}
}

// TestE5ASignalBeginsNothing ends bash before each of its steps to a command.
func TestE5ASignalBeginsNothing(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		missing(t, "bash")
	}
	home := t.TempDir()
	struck, steps := filepath.Join(home, "struck"), filepath.Join(home, "steps")
	strike := `set -T; trap 'if [ $((n += 1)) = "$STEP" ]; then : >struck; kill -TERM $$; fi' DEBUG`
	for file, text := range map[string]string{steps: strike, filepath.Join(home, ".profile"): "A=1"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for step := 1; ; step++ {
		_ = os.Remove(struck)
		cmd := shell(t, []string{"bash"}, home, "-c", script.Login{Args: []string{"echo", "ran"}}.Text())
		cmd.Env = append(cmd.Env, "BASH_ENV="+steps, fmt.Sprint("STEP=", step))
		got := run(t, cmd)
		if _, err := os.Stat(struck); err != nil {
			if step < 10 || got.Stdout != "ran\n" {
				t.Errorf("nothing struck at step %d: %+v", step, got)
			}
			return
		}
		if got.Stdout != "" || got.Exit != 143 && got.Exit != -1 {
			t.Errorf("step %d: %+v, want that nothing ran", step, got)
		}
	}
}

// session runs several dispatches in one shell, as the daemon does: each is a file that the shell sources.
func session(t *testing.T, argv []string, dispatches ...string) outcome {
	t.Helper()
	home := t.TempDir()
	var input strings.Builder
	for i, d := range dispatches {
		file := filepath.Join(home, fmt.Sprintf("dispatch-%d", i))
		if err := os.WriteFile(file, []byte(d), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&input, "{ . %s; }\necho status=$?\n", script.Quote(file))
	}
	cmd := shell(t, argv, home)
	cmd.Stdin = strings.NewReader(input.String() + "exit 77\n")
	return run(t, cmd)
}

const testMark = "~lh0123456789abcdef0123456789abcdef"

func dispatch(fence uint64, login script.Login) string {
	return script.Session{ID: "id-1", Fence: fence, Login: login, Mark: testMark}.Text()
}

var otherMarks = regexp.MustCompile(`@p:[1-9][0-9]*\n|@g:[1-9][0-9]*:[0-9]*\n|@f\n`)

// plain replaces the mark by @ for reading, and leaves out the processes, and whether something holds the output.
func plain(s string) string {
	return otherMarks.ReplaceAllString(strings.ReplaceAll(s, testMark, "@"), "")
}

func TestE1ASessionRunsADispatchOnce(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		one := dispatch(1, script.Login{Script: "echo one"})
		two := dispatch(2, script.Login{Script: "echo two"})
		four := dispatch(4, script.Login{Script: "echo four"})
		got := session(t, argv, one, one, two, one, script.Fence("f", 4), four, script.Fence("f", 3), dispatch(5, script.Login{Script: "echo five"}))
		want := "@a\n@s\none\n@o\n@o:0\nstatus=0\n" +
			"@r\nstatus=255\n" +
			"@a\n@s\ntwo\n@o\n@o:0\nstatus=0\n" +
			"@r\nstatus=255\n" +
			"status=0\n" +
			"@r\nstatus=255\n" +
			"status=0\n" +
			"@a\n@s\nfive\n@o\n@o:0\nstatus=0\n"
		if plain(got.Stdout) != want || got.Exit != 77 {
			t.Errorf("got %q, exit %d\nwant %q, exit 77", plain(got.Stdout), got.Exit, want)
		}
		if want := "@a\n@e\n@e:0\n@r\n@a\n@e\n@e:0\n@r\n@r\n@a\n@e\n@e:0\n"; plain(got.Stderr) != want {
			t.Errorf("stderr %q, want %q", plain(got.Stderr), want)
		}
	})
}

func TestE4NothingACommandDoesHarmsTheSession(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script string
		stdout string
		exit   int
	}{
		"exit":               {"echo x; exit 3", "x\n", 3},
		"exec":               {"exec sh -c 'echo y; exit 4'", "y\n", 4},
		"set -e":             {"set -e; false; echo no", "", 1},
		"syntax error":       {"echo a\nif (; then", "a\n", 2},
		"kill itself":        {"kill -9 $$", "", 137},
		"terminate itself":   {"kill $$", "", 143},
		"kill its group":     {"kill -9 0", "", 137},
		"closes everything":  {"exec <&- >&- 2>&-; exit 5", "", 5},
		"reads to the end":   {"cat; echo end", "end\n", 0},
		"no newline":         {"printf abc", "abc", 0},
		"unset and redefine": {"_leasehold_n=0; _leasehold_rc=9; unset _leasehold_n; printf() { :; }; exit 6", "", 6},
		"background child":   {"sleep 0.2 & echo started", "started\n", 0},
		"trap":               {"trap 'echo bye' EXIT; exit 2", "bye\n", 2},
		"not found":          {"exec no-such-program", "", 127},
		"return":             {"return 5 2>/dev/null; exit 5", "", 5},
	}
	eachShell(t, func(t *testing.T, argv []string) {
		for name, tt := range tests {
			for _, policy := range []script.Profiles{script.LoginProfiles, script.NoProfiles} {
				got := session(t, argv, dispatch(1, script.Login{Profiles: policy, Script: tt.script}), dispatch(2, script.Login{Profiles: policy, Script: "echo next"}))
				want := fmt.Sprintf("@a\n@s\n%s@o\n@o:%d\nstatus=%d\n@a\n@s\nnext\n@o\n@o:0\nstatus=0\n", tt.stdout, tt.exit, tt.exit)
				if plain(got.Stdout) != want || got.Exit != 77 {
					t.Errorf("%s, policy %d:\n got %q, exit %d\nwant %q, exit 77\nstderr %q", name, policy, plain(got.Stdout), got.Exit, want, plain(got.Stderr))
				}
				if strings.Contains(got.Stderr, "Killed") || strings.Contains(got.Stderr, "Terminated") {
					t.Errorf("%s: the shell's own words are in the command's stderr: %q", name, plain(got.Stderr))
				}
			}
		}
	})
}

func TestADispatchIsUTF8WhateverTheCommand(t *testing.T) {
	t.Parallel()
	every := make([]byte, 0, 255)
	for b := 1; b < 256; b++ {
		every = append(every, byte(b))
	}
	arg := string(every) + "7\xff7%s\\n\xc3"
	eachShell(t, func(t *testing.T, argv []string) {
		d := dispatch(1, script.Login{Args: []string{"printf", "%s", arg}, Env: map[string]string{"A": "\xfe"}})
		if !utf8.ValidString(d) {
			t.Error("the dispatch is not valid UTF-8")
		}
		got := session(t, argv, d)
		if want := "@a\n@s\n" + arg + "@o\n@o:0\nstatus=0\n"; plain(got.Stdout) != want {
			t.Errorf("got %q\nwant %q\nstderr %q", plain(got.Stdout), want, got.Stderr)
		}
	})
}

func TestE4StderrIsTheCommandsAlone(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, argv []string) {
		got := session(t, argv, dispatch(1, script.Login{Script: "echo oops >&2; kill -9 $$"}))
		if want := "@a\noops\n@e\n@e:137\n"; plain(got.Stderr) != want {
			t.Errorf("stderr %q, want %q", plain(got.Stderr), want)
		}
	})
}

func TestNoProcessListingHoldsTheMark(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ps"); err != nil {
		missing(t, "ps")
	}
	eachShell(t, func(t *testing.T, argv []string) {
		d := dispatch(1, script.Login{Script: "ps -eo args; env; cat dispatch-0"})
		if strings.Contains(d, testMark) {
			t.Error("the dispatch holds the mark as a whole")
		}
		got := session(t, argv, d)
		if n := strings.Count(strings.ReplaceAll(got.Stdout, testMark+"f\n", ""), testMark); n != 6 {
			t.Errorf("the mark appears %d times, want 6 (accepted, shell, process, started, end twice)", n)
		}
	})
}

func TestWithoutSetsidTheCommandHasAGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, argv := range shells(t) {
		if argv[0] == "dash" || argv[0] == "sh" || argv[0] == "busybox" {
			continue // job control without a terminal is bash's and zsh's
		}
		bin := t.TempDir()
		for _, name := range []string{"env", "sh", "sleep", "cat", "rm", "bash"} {
			path, err := exec.LookPath(name)
			if err != nil {
				missing(t, name)
			}
			if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
		home := t.TempDir()
		text := dispatch(1, script.Login{Script: "echo in; cat; kill -9 0"}) + "\necho status=$?\n"
		file := filepath.Join(home, "d")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := shell(t, argv, home, "-c", ". ./d; exit 77")
		cmd.Env = []string{"HOME=" + home, "PATH=" + bin}
		got := run(t, cmd)
		if want := "@a\n@s\nin\n@o\n@o:137\nstatus=137\n"; plain(got.Stdout) != want || got.Exit != 77 {
			t.Errorf("%v: got %q, exit %d, want %q, exit 77 (stderr %q)", argv, plain(got.Stdout), got.Exit, want, plain(got.Stderr))
		}
		if want := "@a\n@e\n@e:137\n"; plain(got.Stderr) != want {
			t.Errorf("%v: stderr %q, want %q", argv, plain(got.Stderr), want)
		}
	}
}
