//go:build unix

package script_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/leasehold-go/leasehold/internal/script"
)

func TestBwrapLine(t *testing.T) {
	const files = ` ${1:+--bind "$1" "$1" --ro-bind-try "$1.s" "$1.s" --ro-bind-try "$1.c" "$1.c"}`
	const su = ` --die-with-parent --new-session -- su -s /bin/sh `
	for name, tt := range map[string]struct {
		wrapper script.Bwrap
		want    string
	}{
		"workspace": {
			script.Bwrap{User: "daytona", Writable: []string{"/work"}},
			`sudo -n bwrap --ro-bind / / --dev /dev --proc /proc --perms 1777 --tmpfs /dev/shm --perms 1777 --tmpfs /tmp --bind-try '/work' '/work'` + files + su + `'daytona' -c 'true'`,
		},
		"more directories, with odd names": {
			script.Bwrap{User: "o'hara", Writable: []string{"/w", "/a b", "/it's\n$x"}},
			`sudo -n bwrap --ro-bind / / --dev /dev --proc /proc --perms 1777 --tmpfs /dev/shm --perms 1777 --tmpfs /tmp --bind-try '/w' '/w' --bind-try '/a b' '/a b' --bind-try '/it'\''s` + "\n" + `$x' '/it'\''s` + "\n" + `$x'` + files + su + `'o'\''hara' -c 'true'`,
		},
		"own /proc": {
			script.Bwrap{User: "u", Writable: []string{"/w"}, SharedProc: true},
			`sudo -n bwrap --ro-bind / / --dev /dev --perms 1777 --tmpfs /dev/shm --perms 1777 --tmpfs /tmp --bind-try '/w' '/w'` + files + su + `'u' -c 'true'`,
		},
		"own /tmp": {
			script.Bwrap{User: "u", Writable: []string{"/w"}, SharedTmp: true},
			`sudo -n bwrap --ro-bind / / --dev /dev --proc /proc --bind-try /dev/shm /dev/shm --bind-try /tmp /tmp --bind-try '/w' '/w'` + files + su + `'u' -c 'true'`,
		},
	} {
		if diff := cmp.Diff(tt.want, tt.wrapper.Line("'true'")); diff != "" {
			t.Errorf("%s: Line() mismatch (-want +got):\n%s", name, diff)
		}
	}
}

// TestBwrapLineSurvivesEveryShell reads the words that sudo gets, with and without a command's files.
func TestBwrapLineSurvivesEveryShell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := filepath.Join(dir, "words")
	if err := os.WriteFile(filepath.Join(dir, "sudo"), []byte("#!/bin/sh\nprintf '%s\\0' \"$@\" >\"$OUT\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	word := rapid.StringOfN(rapid.SampledFrom([]rune("/aZ0 .-_'\"\\\n\t$`*?[]{}()<>|&;#~!=%é\u2028")), 1, 30, -1)
	all := slices.DeleteFunc(shells(t), func(argv []string) bool { return argv[0] == "zsh" }) // which is nobody's /bin/sh
	rapid.Check(t, func(t *rapid.T) {
		argv := rapid.SampledFrom(all).Draw(t, "shell")
		b := script.Bwrap{User: word.Draw(t, "user"), Writable: rapid.SliceOfN(word, 1, 4).Draw(t, "writable")}
		text, files := word.Draw(t, "script"), rapid.SampledFrom([]string{"", "/tmp/j", "/a 'b\n$c"}).Draw(t, "files")
		want := []string{"-n", "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", "/dev/shm", "--perms", "1777", "--tmpfs", "/tmp"}
		for _, d := range b.Writable {
			want = append(want, "--bind-try", d, d)
		}
		if files != "" {
			want = append(want, "--bind", files, files, "--ro-bind-try", files+".s", files+".s", "--ro-bind-try", files+".c", files+".c")
		}
		want = append(want, "--die-with-parent", "--new-session", "--", "su", "-s", "/bin/sh", b.User, "-c", text)
		args := append(append([]string{}, argv[1:]...), "-c", b.Line(script.Quote(text)), "sh", files)
		cmd := exec.Command(argv[0], args...)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "OUT=" + out}
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, text)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%v: the words of %q mismatch (-want +got):\n%s", argv, b.Line(script.Quote(text)), diff)
		}
	})
}

// passing puts stand-ins for sudo, bwrap and su into a directory, which run what they are given with the environment that
// sudo leaves, and without its descriptors. What they say on standard error is not the command's.
func passing(t *testing.T, with string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sudo":  `echo sudo >&2; shift; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec env -i "PATH=$PATH" SUDO_USER=x MAIL=x HOME=/root USER=root LOGNAME=root SHELL=/bin/root "$@"`,
		"bwrap": `echo bwrap >&2; while [ "$1" != -- ]; do shift; done; shift; exec "$@"`,
		"su":    "echo su >&2; user=$3; export HOME=/home/$3 USER=$3 LOGNAME=$3; " + with + ` -c "$5"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestBwrapHandsOver: through sudo and su, in each shell that may be the daemon's and each that may be /bin/sh, a command
// gets the environment, the streams and the place in its process group that it has without them.
func TestBwrapHandsOver(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		missing(t, "/proc")
	}
	const command = `cat; echo err >&2
echo "<$V> <$DAEMON> ${SUDO_USER-none} ${MAIL-none} $HOME $USER $LOGNAME ${SHELL-none} $(umask)"
env | grep _leasehold
read -r s </proc/self/stat; set -- ${s##*) }; [ "$3" = $$ ] && echo leads
exit 6`
	text := func(p script.Piece) string { return strings.TrimSuffix(p.Bytes, "\x17"+journalMark) }
	value := "a'b\"c\\d\n$HOME `x` *\té\x01~!"
	for _, su := range []string{"exec setsid sh", "exec sh", "sh"} {
		path := passing(t, su)
		eachShell(t, func(t *testing.T, argv []string) {
			for _, profiles := range []script.Profiles{script.NoProfiles, script.LoginProfiles} {
				j := journals{argv: argv, home: t.TempDir(), env: []string{"PATH=" + path + ":/usr/bin:/bin", "DAEMON=" + value, "USER=me", "LOGNAME=me"}}
				s := start(command)
				s.Login.Env, s.Login.Profiles, s.Stdin = map[string]string{"V": value}, profiles, []byte("in\n")
				plain := j.run(t, journal("bwrap-plain").Start(s))
				s.Login.Bwrap = &script.Bwrap{User: "someone", Writable: []string{"/w"}}
				got := j.run(t, journal("bwrap-wrapped").Start(s))
				if !got.Wrapped || got.Stale || plain.Wrapped {
					t.Errorf("wrapped %v, stale %v; and without the wrapper %v", got.Wrapped, got.Stale, plain.Wrapped)
				}
				if want := text(plain.Stdout); got.Exit != 6 || text(got.Stdout) != want || text(got.Stderr) != "err\n" || !strings.HasSuffix(want, "leads\n") {
					t.Errorf("%v, profiles %v: exit %d, %q, stderr %q; want what it is without the wrapper\n%q", argv, profiles, got.Exit, text(got.Stdout), text(got.Stderr), want)
				}

				list := filepath.Join(t.TempDir(), "the list's")
				if err := os.WriteFile(list, []byte("\n\"/a\"\n\"/b\"\nnot a line"), 0o600); err != nil {
					t.Fatal(err)
				}
				for lines, id := range map[int]string{3: "bwrap-fresh", 2: "bwrap-stale"} {
					s := start("echo ran")
					s.Login.Bwrap = &script.Bwrap{User: "someone", Writable: []string{"/w"}, List: list, Lines: lines}
					got := j.run(t, journal(id).Start(s))
					if got.Wrapped != (lines == 3) || got.Stale == got.Wrapped || text(got.Stdout) != "ran\n" || text(got.Stderr) != "" {
						t.Errorf("%v, a list of 3 lines where %d were known: %+v", argv, lines, got)
					}
				}
			}
		})
	}

	// Who the user is is su's word where the daemon has none.
	j := journals{argv: []string{"sh"}, home: t.TempDir(), env: []string{"PATH=" + passing(t, "exec setsid sh") + ":/usr/bin:/bin"}}
	s := start(`echo "$USER $LOGNAME"`)
	s.Login.Bwrap = &script.Bwrap{User: "someone"}
	if got := j.run(t, journal("bwrap-user").Start(s)); text(got.Stdout) != "someone someone\n" {
		t.Errorf("without USER: %+v", got)
	}
}
