package leasehold

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// bwrapUser is the environment variable by which a test that [asUser] repeats knows that it is that user's.
const bwrapUser = "LEASEHOLD_BWRAP_USER"

// accounts is held while users are made and removed: their programs do not wait for each other.
var accounts sync.Mutex

// asUser repeats the calling test, or benchmark, in a process of a user who may run bwrap by sudo, and reports whether
// this is that process. As root it makes the user, with a home directory that is nobody else's business, and the rule, and
// removes both. The user's sudo looks for programs where PATH says, and likes to use a terminal.
func asUser(tb testing.TB, args ...string) bool {
	tb.Helper()
	if os.Getenv(bwrapUser) != "" {
		return true
	}
	lacks := func(format string, args ...any) {
		tb.Helper()
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			tb.Fatalf(format, args...)
		}
		tb.Skipf(format, args...)
	}
	if os.Getuid() != 0 {
		lacks("only root can make a user for this")
	}
	for _, program := range []string{"bwrap", "sudo", "su", "useradd", "userdel"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks("%s is missing", program)
		}
	}
	if out, err := exec.Command("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true").CombinedOutput(); err != nil {
		lacks("bwrap does not work here: %s", out)
	}

	if t, ok := tb.(*testing.T); ok {
		t.Parallel()
	}
	name := "lh-" + strings.ToLower(rand.Text()[:8])
	home, err := os.MkdirTemp("/var/tmp", name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			tb.Error(err)
		}
	})
	accounts.Lock()
	out, err := exec.Command("useradd", "-M", "-d", home, "-s", "/bin/sh", name).CombinedOutput()
	accounts.Unlock()
	if err != nil {
		tb.Fatalf("useradd: %s", out)
	}
	tb.Cleanup(func() {
		accounts.Lock()
		defer accounts.Unlock()
		if out, err := exec.Command("userdel", "-f", name).CombinedOutput(); err != nil {
			tb.Errorf("userdel: %s", out)
		}
	})
	rule := filepath.Join("/etc/sudoers.d", name)
	if err := os.WriteFile(rule, fmt.Appendf(nil, "Defaults:%[1]s !secure_path, use_pty\n%[1]s ALL=(root) NOPASSWD: /usr/bin/bwrap, %[2]s/fakes/*/bwrap\n", name, home), 0o440); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.Remove(rule); err != nil {
			tb.Error(err)
		}
	})
	account, err := user.Lookup(name)
	if err != nil {
		tb.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	if err := os.Chown(home, uid, gid); err != nil {
		tb.Fatal(err)
	}
	binary := filepath.Join(home, "test") // the original is in a directory of root's
	if out, err := exec.Command("cp", os.Args[0], binary).CombinedOutput(); err != nil {
		tb.Fatalf("cp: %s", out)
	}
	cmd := exec.CommandContext(tb.Context(), binary, append(args, "-test.timeout=5m")...) // for what hangs alone
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "USER=" + name, "LOGNAME=" + name, bwrapUser + "=" + name}
	for _, key := range []string{"LEASEHOLD_REQUIRE_ALL", "LEASEHOLD_LONG", "GORACE"} {
		if value, ok := os.LookupEnv(key); ok {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
	}
	out, err = cmd.CombinedOutput()
	out = regexp.MustCompile(`(?m)^=== (RUN|PAUSE|CONT) .*\n`).ReplaceAll(out, nil) // what failed is not to drown in them
	if _, ok := tb.(*testing.B); ok {
		fmt.Printf("%s", out)
	}
	if err != nil {
		tb.Errorf("as user %s: %v\n%s", name, err, out)
	} else if bytes.Contains(out, []byte("no tests to run")) {
		tb.Errorf("as user %s: nothing was tested", name)
	} else {
		tb.Logf("as user %s:\n%s", name, out)
	}
	return false
}

// bwrapRig is a rig below the home directory, where /tmp is fresh in each wrapper. Its commands are wrapped.
func bwrapRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(home, "sandboxes")
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, cfg, emulator.Options{Dir: dir})
}

func wrappedLease(t testing.TB, r *rig) *Lease {
	t.Helper()
	l := r.acquired(t)
	if want := (Bwrap{BwrapAvailable: true, SandboxUsername: os.Getenv(bwrapUser)}); l.Ref().Bwrap != want {
		t.Fatalf("Ref().Bwrap = %+v, want %+v", l.Ref().Bwrap, want)
	}
	return l
}

// wrapped is a result of a command that was.
func wrapped(r Result) Result {
	r.Wrapped = true
	return r
}

func TestBwrap(t *testing.T) {
	if !asUser(t, "-test.run=^TestBwrap$", "-test.v") {
		return
	}
	r := bwrapRig(t, Config{Reuse: true})
	l := wrappedLease(t, r)
	ws, home := l.Ref().Workspace, filepath.Dir(l.Ref().Workspace)
	if err := os.WriteFile(filepath.Join(home, ".profile"), []byte("export FROM_PROFILE=yes\necho noise\nexit 4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("group", func(t *testing.T) {
		for name, f := range fewer(map[string]func(*testing.T, *rig, *Lease, Transport){
			"a write that survives":                testBwrapWrites,
			"what the command sees":                testBwrapView,
			"exits and streams":                    testBwrapExits,
			"nothing outlives a timeout":           testBwrapTimeout,
			"secrets are in no process list":       testBwrapSecrets,
			"side by side":                         testBwrapConcurrent,
			"children in the background":           testBwrapBackground,
			"a long script, and a long input":      testBwrapLong,
			"a directory that cannot be entered":   testBwrapNoDir,
			"switched off":                         testBwrapOff,
			"a start-up file that ends by itself":  testBwrapProfiles,
			"a process group, which takes signals": testBwrapSignal,
		}) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachTransport(t, func(t *testing.T, tr Transport) {
					t.Parallel()
					f(t, r, l, tr)
				})
			})
		}
	})
	if entries, err := os.ReadDir(ws); err != nil || len(entries) == 0 {
		t.Errorf("ReadDir(%s) = %v, %v", ws, entries, err)
	}
	if left := processesOf(t, home); len(left) > 0 { // a wrapper names what it lets a command write
		t.Errorf("wrappers are left: %q", left)
	}
}

func testBwrapWrites(t *testing.T, r *rig, l *Lease, tr Transport) {
	ws, home := l.Ref().Workspace, filepath.Dir(l.Ref().Workspace)
	file := filepath.Join(ws, "written-"+string(tr))
	mustRun(t, l, Command{Script: "echo x >" + file + " && id -u && echo done", Transport: tr}, wrapped(finished(0, fmt.Sprintf("%d\ndone\n", os.Getuid()), "")))
	if info, err := os.Stat(file); err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) || info.Size() != 2 {
		t.Errorf("Stat(%s) = %+v, %v; want two bytes of user %d", file, info, err, os.Getuid())
	}
	for _, path := range []string{"/etc/leasehold", home + "/outside", "/leasehold", home} {
		got, err := l.Executor().Run(t.Context(), Command{Script: "( : >" + path + "/x ) || ( : >" + path + " ); echo $?", Transport: tr})
		if err != nil || !got.Wrapped || string(got.Stdout) != "2\n" || !strings.Contains(string(got.Stderr), syscall.EROFS.Error()) && !strings.Contains(string(got.Stderr), "Read-only file system") {
			t.Errorf("a write to %s: %+v %q %q, %v; want EROFS, which the command sees", path, got, got.Stdout, got.Stderr, err)
		}
	}
}

func testBwrapView(t *testing.T, r *rig, l *Lease, tr Transport) {
	script := `echo "$HOME $USER $LOGNAME $A ${SUDO_USER-none} ${SUDO_COMMAND-none} ${MAIL-none} ${SHELL-none} $(umask) $(pwd) $(id -un) $PATH"
ls /tmp; [ -w "${TMPDIR:-/tmp}" ] && [ -c /dev/null ] && [ -r /proc/self/stat ] && echo >/dev/null && echo fine
if [ -t 0 ] || [ -t 1 ] || [ -t 2 ]; then echo terminal; fi
for f in 3 4 5 6 7 8 9; do if (: >&$f) 2>/dev/null; then echo open $f; fi; done
env | grep -i leasehold | grep -v LEASEHOLD_SANDBOX`
	cmd := Command{Script: script, Env: map[string]string{"A": "it's\n\"mine\" \\ $HOME"}, Dir: "sub dir", Transport: tr, NoBwrap: true}
	if err := os.MkdirAll(filepath.Join(l.Ref().Workspace, "sub dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	plain, err := l.Executor().Run(t.Context(), Command{Script: strings.Replace(script, "ls /tmp;", "", 1), Env: cmd.Env, Dir: cmd.Dir, Transport: tr, NoBwrap: true})
	if err != nil || plain.Wrapped || !strings.Contains(string(plain.Stdout), "fine\n") {
		t.Fatalf("Run() = %+v %q %q, %v", plain, plain.Stdout, plain.Stderr, err)
	}
	cmd.NoBwrap = false
	got, err := l.Executor().Run(t.Context(), cmd)
	if err != nil || !got.Wrapped {
		t.Fatalf("Run() = %+v %q %q, %v", got, got.Stdout, got.Stderr, err)
	}
	if diff := cmp.Diff(string(plain.Stdout), string(got.Stdout)); diff != "" {
		t.Errorf("what a command sees without and with the wrapper (-plain +wrapped):\n%s", diff)
	}
}

func testBwrapExits(t *testing.T, r *rig, l *Lease, tr Transport) {
	for script, want := range map[string]Result{
		"exit 3":                                 finished(3, "", ""),
		"kill -9 $$":                             finished(137, "", ""),
		"kill -15 $$":                            finished(143, "", ""),
		"kill -11 $$":                            finished(139, "", ""),
		"exit 255":                               finished(255, "", ""),
		"no-such-program 2>/dev/null":            finished(127, "", ""),
		"cat; echo err >&2; echo e >/dev/stderr": finished(0, "in\nlast", "err\ne\n"),
	} {
		mustRun(t, l, Command{Script: script, Stdin: strings.NewReader("in\nlast"), Transport: tr}, wrapped(want))
	}
	if tr == TransportJournal {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		every = bytes.Repeat(every, 400)
		got, err := l.Executor().Run(t.Context(), Command{Args: []string{"sh", "-c", "tee /dev/fd/2"}, Stdin: bytes.NewReader(every), Transport: tr})
		if err != nil || !got.Wrapped || !bytes.Equal(got.Stdout, every) || !bytes.Equal(got.Stderr, every) {
			t.Errorf("Run() = %+v, %v; want all %d bytes back on both streams", got, err, len(every))
		}
	}
}

func testBwrapTimeout(t *testing.T, r *rig, l *Lease, tr Transport) {
	for _, script := range []string{
		"echo up; sleep %[1]d & exec sleep %[1]d",
		"trap '' TERM; echo up; sleep %[1]d & sleep %[1]d; sleep %[1]d",
		"setsid sleep %[1]d & echo up; sleep %[1]d",
		"sleep %[1]d", // the timeout ends it, the others are cancelled
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			seconds := longTime()
			cmd := Command{Script: strings.ReplaceAll(script, "%[1]d", seconds), Transport: tr}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if strings.Contains(script, "up") {
				cmd.Stdout = writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
			} else {
				cmd.Timeout = 5 * time.Second
			}
			got, err := l.Executor().Run(ctx, cmd)
			if err == nil || !got.StopConfirmed || got.Dispatched != DispatchedYes || got.Stderr != nil {
				t.Errorf("Run() = %+v %q, %v; want a confirmed stop", got, got.Stderr, err)
			}
			if left := processesOf(t, seconds); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// longTime is an argument for sleep by which its process is known: none of another test has it, in this process or another.
func longTime() string { return strconv.Itoa(1e6 + mathrand.IntN(1e9)) }

// processesOf returns the command lines of the machine's processes that have a text in them, once those have had the time
// to end. The text has to be this test's own.
func processesOf(t *testing.T, text string) (lines []string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		lines = nil
		paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range paths {
			data, _ := os.ReadFile(path)
			if line := strings.ReplaceAll(string(data), "\x00", " "); strings.Contains(line, text) {
				lines = append(lines, line)
			}
		}
		if len(lines) == 0 {
			break
		}
	}
	return lines
}

func testBwrapSecrets(t *testing.T, r *rig, l *Lease, tr Transport) {
	secret := rand.Text()
	reader, w := io.Pipe()
	var found []string
	var look sync.WaitGroup
	look.Go(func() {
		_, _ = io.ReadFull(reader, make([]byte, 3))
		paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range paths {
			if data, _ := os.ReadFile(path); bytes.Contains(data, []byte(secret)) {
				found = append(found, strings.ReplaceAll(string(data), "\x00", " "))
			}
		}
		_ = os.WriteFile(filepath.Join(l.Ref().Workspace, "looked-"+string(tr)), nil, 0o600)
		_, _ = io.Copy(io.Discard, reader)
	})
	got, err := l.Executor().Run(t.Context(), Command{
		Script: `echo up; while [ ! -e looked-` + string(tr) + ` ]; do sleep 0.02; done; [ ${#SECRET} = ` + strconv.Itoa(len(secret)) + ` ]`,
		Env:    map[string]string{"SECRET": secret}, Stdout: w, Transport: tr,
	})
	w.Close()
	look.Wait()
	if err != nil || got.ExitCode != 0 || !got.Wrapped || len(found) > 0 {
		t.Errorf("Run() = %+v %q, %v; the variable was in the arguments of %q", got, got.Stderr, err, found)
	}
}

func testBwrapConcurrent(t *testing.T, r *rig, l *Lease, tr Transport) {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			text := fmt.Sprintf("%s-%d", tr, i)
			mustRun(t, l, Command{Script: "echo " + text + " | tee file-" + text + "; exit " + strconv.Itoa(i), Transport: tr}, wrapped(finished(i, text+"\n", "")))
		})
	}
	all.Wait()
}

func testBwrapBackground(t *testing.T, r *rig, l *Lease, tr Transport) {
	file := filepath.Join(l.Ref().Workspace, "late-"+string(tr))
	go_ := file + "-go"
	mustRun(t, l, Command{Script: "(while [ ! -e " + go_ + " ]; do sleep 0.02; done; echo late >" + file + ") >/dev/null 2>&1 & echo up", Transport: tr}, wrapped(finished(0, "up\n", "")))
	mustRun(t, l, Command{Script: ": >" + go_ + "; while [ ! -s " + file + " ]; do sleep 0.02; done; cat " + file, Transport: tr, Timeout: time.Minute}, wrapped(finished(0, "late\n", "")))
}

func testBwrapLong(t *testing.T, r *rig, l *Lease, tr Transport) {
	script := ": '" + strings.Repeat("x", 200<<10) + "'\ncat | wc -c"
	mustRun(t, l, Command{Script: script, Stdin: strings.NewReader(strings.Repeat("y", 200<<10)), Transport: tr}, wrapped(finished(0, "204800\n", "")))
	value := strings.Repeat("'z", 30<<10)
	mustRun(t, l, Command{Script: `echo ${#A} ${#B}`, Env: map[string]string{"A": value, "B": value}, Transport: tr}, wrapped(finished(0, "61440 61440\n", "")))
}

func testBwrapNoDir(t *testing.T, r *rig, l *Lease, tr Transport) {
	runFails(t, t.Context(), l, Command{Args: []string{"true"}, Dir: "nowhere", Transport: tr}, KindNotFound, DispatchedYes)
}

func testBwrapOff(t *testing.T, r *rig, l *Lease, tr Transport) {
	file := filepath.Join(filepath.Dir(l.Ref().Workspace), "off-"+string(tr))
	mustRun(t, l, Command{Script: ": >" + file, Transport: tr, NoBwrap: true}, finished(0, "", ""))
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func testBwrapProfiles(t *testing.T, r *rig, l *Lease, tr Transport) {
	mustRun(t, l, Command{Script: `echo $FROM_PROFILE`, Transport: tr}, wrapped(finished(0, "yes\n", "")))
	mustRun(t, l, Command{Script: `echo ${FROM_PROFILE-none}`, Profiles: ProfilesNone, Transport: tr}, wrapped(finished(0, "none\n", "")))
}

func testBwrapSignal(t *testing.T, r *rig, l *Lease, tr Transport) {
	if tr == TransportSession {
		return // which cannot pass on signals
	}
	reader, w := io.Pipe()
	p, err := l.Executor().Start(t.Context(), Command{Script: "trap 'echo int; exit 9' INT; echo up; while :; do sleep 0.02; done", Stdout: w, Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(reader, make([]byte, 3))
	if err := p.Signal(t.Context(), "INT"); err != nil {
		t.Errorf("Signal() = %v", err)
	}
	text := make([]byte, 4)
	_, _ = io.ReadFull(reader, text)
	got, err := p.Wait()
	if err != nil || got.ExitCode != 9 || !got.Wrapped || string(text) != "int\n" {
		t.Errorf("Wait() = %+v, %v after %q; want the trap's exit 9", got, err, text)
	}
}

// fake puts a program before the others in PATH. PATH is the daemon's, and that of the user's sudo.
func fake(t *testing.T, program, text string) {
	t.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, "fakes", strings.ToLower(rand.Text()))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text+"\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestBwrapProbe(t *testing.T) {
	notRaced(t)
	if !asUser(t, "-test.run=^TestBwrapProbe$", "-test.v") {
		return
	}
	real, err := exec.LookPath("bwrap")
	if err != nil {
		t.Fatal(err)
	}
	name, seconds := os.Getenv(bwrapUser), longTime()
	refuse := func(option string) string {
		return `for a; do if [ "$a" = ` + option + ` ]; then echo "bwrap: refused" >&2; exit 1; fi; done; exec ` + real + ` "$@"`
	}
	idUn := func(text string) string { return "if [ \"$1\" = -un ]; then " + text + "; fi; exec /usr/bin/id \"$@\"" }
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T)
		want  Bwrap
	}{
		{"nothing missing", func(*testing.T) {}, Bwrap{true, name, ""}},
		{"no bwrap", func(t *testing.T) { t.Setenv("PATH", pathWithout(t, "bwrap")) }, Bwrap{false, "", BwrapNoBwrap}},
		{"no sudo", func(t *testing.T) { t.Setenv("PATH", pathWithout(t, "sudo")) }, Bwrap{false, "", BwrapNoSudoRule}},
		{"no su", func(t *testing.T) { t.Setenv("PATH", pathWithout(t, "su")) }, Bwrap{false, "", BwrapNoSu}},
		{"no rule", func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Symlink(real, filepath.Join(dir, "bwrap")); err != nil { // sudo knows it by its inode
				t.Fatal(err)
			}
			if out, err := exec.Command("cp", "--remove-destination", real, filepath.Join(dir, "bwrap")).CombinedOutput(); err != nil {
				t.Fatalf("cp: %s", out)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		}, Bwrap{false, name, BwrapNoSudoRule}},
		{"su refuses", func(t *testing.T) { fake(t, "su", "exit 1") }, Bwrap{false, name, BwrapNoSu}},
		{"su without PAM and a session, as BusyBox's", func(t *testing.T) {
			fake(t, "su", `exec setpriv --reuid "$3" --regid "$3" --init-groups /bin/sh -c "$5"`)
		}, Bwrap{true, name, ""}},
		{"user without a name", func(t *testing.T) { fake(t, "id", idUn("exit 1")) }, Bwrap{false, "", BwrapNoUser}},
		{"user with an odd name", func(t *testing.T) { fake(t, "id", idUn("echo -c; exit")) }, Bwrap{false, "", BwrapNoUser}},
		{"another user's name", func(t *testing.T) { fake(t, "id", idUn("echo nobody; exit")) }, Bwrap{false, "nobody", BwrapWorkspace}},
		{"no namespaces", func(t *testing.T) { fake(t, "bwrap", refuse("--ro-bind")) }, Bwrap{false, name, BwrapNamespacesRefused}},
		{"no /proc", func(t *testing.T) { fake(t, "bwrap", refuse("--proc")) }, Bwrap{true, name, BwrapSharedProc}},
		{"old bwrap", func(t *testing.T) { fake(t, "bwrap", refuse("--perms")) }, Bwrap{true, name, BwrapSharedTmp}},
		{"no bind", func(t *testing.T) { fake(t, "bwrap", refuse("--bind-try")) }, Bwrap{false, name, BwrapWorkspace}},
		{"bwrap without --new-session", func(t *testing.T) { fake(t, "bwrap", refuse("--new-session")) }, Bwrap{false, name, BwrapOther}},
		{"bwrap hangs", func(t *testing.T) { fake(t, "bwrap", "exec sleep "+seconds) }, Bwrap{false, name, BwrapTimedOut}},
		{"id hangs", func(t *testing.T) { fake(t, "id", idUn("sleep "+seconds)) }, Bwrap{false, "", BwrapTimedOut}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var cfg Config
			if tt.want.BwrapReason == BwrapTimedOut {
				cfg.CallTimeout = 6 * time.Second // half of it is the probe's
			}
			r := bwrapRig(t, cfg)
			tt.spoil(t)
			l := r.acquired(t)
			if diff := cmp.Diff(tt.want, l.Ref().Bwrap); diff != "" {
				t.Errorf("Ref().Bwrap mismatch (-want +got):\n%s", diff)
			}
			if left := processesOf(t, seconds); len(left) > 0 {
				t.Errorf("the probe left behind: %q", left)
			}
			want := finished(0, "ran\n", "")
			want.Wrapped = tt.want.BwrapAvailable
			mustRun(t, l, Command{Script: "echo ran >f; cat f; : >/tmp/lh-$$ && : >/dev/shm/lh-$$ && rm /tmp/lh-$$ /dev/shm/lh-$$", Transport: TransportJournal}, want)
			if tt.want.BwrapAvailable {
				got, err := l.Executor().Run(t.Context(), Command{Script: ": >../outside"})
				if err != nil || got.ExitCode == 0 || !got.Wrapped {
					t.Errorf("Run() = %+v, %v; want a refused write", got, err)
				}
			}
		})
	}
}

// TestBwrapCostsNoRequest: the probe rides on the set-up, and on the look at the workspace; a command takes one request.
func TestBwrapCostsNoRequest(t *testing.T) {
	if !asUser(t, "-test.run=^TestBwrapCostsNoRequest$", "-test.v") {
		return
	}
	acquire := func(cfg Config) (*rig, *Lease, []string) {
		r := bwrapRig(t, cfg)
		l, err := r.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		requests := r.requests()
		r.server.ResetRequests()
		return r, l, requests
	}
	_, off, plain := acquire(Config{NoBwrap: true})
	if got, want := off.Ref().Bwrap, (Bwrap{BwrapReason: BwrapOff}); got != want {
		t.Errorf("Ref().Bwrap = %+v, want %+v", got, want)
	}
	r, l, probed := acquire(Config{Reuse: true})
	if diff := cmp.Diff(plain, probed); diff != "" {
		t.Errorf("requests of an acquisition without and with a probe (-without +with):\n%s", diff)
	}
	run := func(l *Lease) {
		t.Helper()
		mustRun(t, l, Command{Script: "echo ok", Transport: TransportJournal}, wrapped(finished(0, "ok\n", "")))
	}
	takesOne := func(l *Lease) {
		t.Helper()
		r.atLast(t, func() bool {
			run(l)
			return r.took("POST /toolbox/*/process/execute")
		})
	}
	run(l) // reads the sandbox
	takesOne(l)

	ref := l.Ref()
	if _, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	stored := ref
	stored.Bwrap = Bwrap{BwrapReason: BwrapNoSu} // the image has got one since
	resumed, err := r.Resume(t.Context(), stored)
	if err != nil || resumed.Ref().Bwrap != ref.Bwrap || resumed.Ref().key() != ref.key() {
		t.Fatalf("Resume() = %+v, %v; want what a new probe finds: %+v", resumed.Ref().Bwrap, err, ref.Bwrap)
	}
	run(resumed) // and reads the list of writable directories
	takesOne(resumed)

	other := rigProvider(t, r.server, Config{Reuse: true})
	defer other.Close(context.Background())
	bound, err := other.Bind(ref) // as another host: what the reference says is enough
	if err != nil {
		t.Fatal(err)
	}
	run(bound)
	report, err := r.Probe(t.Context(), request())
	if err != nil || report.Bwrap != ref.Bwrap {
		t.Errorf("Probe() = %+v, %v; want %+v", report, err, ref.Bwrap)
	}
}

func TestBwrapWritableDirectories(t *testing.T) {
	if !asUser(t, "-test.run=^TestBwrapWritableDirectories$", "-test.v") {
		return
	}
	r := bwrapRig(t, Config{Reuse: true, Workspace: "my 'own' \"work\"\n$HOME \\ é"})
	l := wrappedLease(t, r)
	home, local := filepath.Dir(l.Ref().Workspace), t.TempDir()
	writeFiles(t, local, map[string]string{"f": "x"})
	other := rigProvider(t, r.server, Config{Reuse: true})
	defer other.Close(context.Background())
	theirs, err := other.Bind(l.Ref())
	if err != nil {
		t.Fatal(err)
	}
	write := func(l *Lease, dir string, wantWrapped bool, wantCode int) {
		t.Helper()
		got, err := l.Executor().Run(t.Context(), Command{Args: []string{"sh", "-c", `: >"$1/new"`, "sh", dir}})
		if err != nil || got.Wrapped != wantWrapped || got.ExitCode != wantCode {
			t.Errorf("a write to %q: %+v %q, %v; want exit %d, wrapped %v", dir, got, got.Stderr, err, wantCode, wantWrapped)
		}
	}
	in := func(l *Lease, dir string) {
		t.Helper()
		if _, err := l.Importer().Dir(t.Context(), local, dir, ImportOptions{Access: AccessReadWrite}); err != nil {
			t.Fatal(err)
		}
	}
	odd, nested := home+"/odd \"dir'\n$x\\", home+"/odd \"dir'\n$x\\/nested"
	write(l, l.Ref().Workspace, true, 0)
	in(l, nested)
	write(l, nested, true, 0)
	write(l, odd, true, 2)
	in(l, odd)
	write(l, odd, true, 0)
	write(l, nested, true, 0)
	write(theirs, odd, true, 0)

	// Another host's import: that is noticed, and a write that survives is not refused.
	in(theirs, home+"/theirs")
	write(l, home+"/theirs", false, 0)
	write(l, home+"/theirs", true, 0)
	write(l, home, true, 2)

	// A directory that is gone is no obstacle.
	if err := os.RemoveAll(odd); err != nil {
		t.Fatal(err)
	}
	write(l, home+"/theirs", true, 0)
	write(l, odd, true, 2)
	if err := os.RemoveAll(filepath.Join(home, "theirs")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write(l, l.Ref().Workspace, true, 0)
}

// TestBwrapThatWorksNoMore: what a probe found is not what a command meets. It runs nevertheless, once, and its streams are
// its own.
func TestBwrapThatWorksNoMore(t *testing.T) {
	if !asUser(t, "-test.run=^TestBwrapThatWorksNoMore$", "-test.v") {
		return
	}
	for i, name := range []string{"sudo refuses", "sudo dies", "bwrap refuses", "su refuses", "sudo is gone", "su stays root"} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, tr Transport) {
				if i > 1 && (i%2 == 0) == (tr == TransportSession) {
					return // the other transport will do
				}
				r := bwrapRig(t, Config{})
				l := wrappedLease(t, r)
				switch name {
				case "sudo refuses":
					fake(t, "sudo", "echo a password is required; echo a password is required >&2; exit 1")
				case "bwrap refuses":
					fake(t, "bwrap", "echo no >&2; exit 1")
				case "su refuses":
					fake(t, "su", "echo no >&2; exit 126")
				case "su stays root":
					fake(t, "su", `shift 3; exec /bin/sh "$@"`)
				case "sudo is gone":
					t.Setenv("PATH", pathWithout(t, "sudo"))
				case "sudo dies":
					fake(t, "sudo", "kill -9 $$")
					runFails(t, t.Context(), l, Command{Script: "echo x >>ran", Transport: tr}, KindRefused, DispatchedYes)
					if _, err := os.Stat(filepath.Join(l.Ref().Workspace, "ran")); err == nil {
						t.Error("the command ran")
					}
					return
				}
				script := "cat; echo x >>ran; wc -l <ran; echo err >&2; exit 5"
				want := finished(5, "in1\n", "err\n")
				if name == "sudo refuses" {
					want = finished(5, "a password is required\nin1\n", "err\n") // what it says on standard output is beyond us
				}
				mustRun(t, l, Command{Script: script, Stdin: strings.NewReader("in"), Transport: tr}, want)
				if got, want := l.Ref().Bwrap, (Bwrap{false, os.Getenv(bwrapUser), BwrapOther}); got != want {
					t.Errorf("Ref().Bwrap = %+v, want %+v", got, want)
				}
			})
		})
	}
}

// BenchmarkBwrap runs a command without and with the wrapper in turn.
func BenchmarkBwrap(b *testing.B) {
	if !asUser(b, "-test.run=^$", "-test.bench=^BenchmarkBwrap$", fmt.Sprintf("-test.benchtime=%dx", 100)) {
		return
	}
	r := bwrapRig(b, Config{})
	l := wrappedLease(b, r)
	run := func(off bool) time.Duration {
		began := time.Now()
		got, err := l.Executor().Run(b.Context(), Command{Args: []string{"true"}, NoBwrap: off})
		if err != nil || got.ExitCode != 0 || got.Wrapped == off {
			b.Fatalf("Run() = %+v, %v", got, err)
		}
		return time.Since(began)
	}
	run(true)
	run(false)
	var plain, wrapped []time.Duration
	for b.Loop() {
		plain, wrapped = append(plain, run(true)), append(wrapped, run(false))
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return all[len(all)/2].Seconds() * 1000
	}
	b.ReportMetric(median(plain), "plain-ms")
	b.ReportMetric(median(wrapped), "wrapped-ms")
	b.ReportMetric(median(wrapped)-median(plain), "overhead-ms")
}
