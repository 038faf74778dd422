//go:build unix

package script_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

const journalMark = "lhjournalmark0123456789abcdef"

// journals is a place for journals, and a shell that runs their scripts.
type journals struct {
	argv []string
	home string
	env  []string // besides
	uid  uint32   // of the user whose shell it is; 0: the test's
}

// run runs a journal's script as the toolbox does, its reply through JSON included.
func (j journals) run(t testing.TB, text script.Script) script.Frame {
	t.Helper()
	cmd := shell(t, j.argv, j.home)
	cmd.Env = append(cmd.Env, "TMPDIR="+j.home, "p=p", "r=ro", "x=pex", "a=wrong")
	cmd.Env = append(cmd.Env, j.env...)
	if j.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: j.uid, Gid: j.uid}
	}
	got := run(t, carried(cmd, text))
	data, err := json.Marshal(got.Stdout + got.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var output string
	if err := json.Unmarshal(data, &output); err != nil {
		t.Fatal(err)
	}
	frame, err := script.ReadFrame(journalMark, output, script.Inline)
	if err != nil {
		t.Fatalf("%v: %v, printed %q", j.argv, err, output)
	}
	return frame
}

// carried gives a script to a shell as the toolbox does.
func carried(cmd *exec.Cmd, s script.Script) *exec.Cmd {
	for key, value := range s.Env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	cmd.Stdin = strings.NewReader(s.Command)
	return cmd
}

func journal(id string) script.Journal { return script.Journal{ID: id, Mark: journalMark} }

// patient waits for the ends of the streams, too, however busy the machine is.
var patient = script.Wait{Limit: time.Minute, Inline: script.Inline, Ends: true}

func start(command string) script.Start {
	return script.Start{Login: script.Login{Profiles: script.NoProfiles, Script: command}, Wait: patient}
}

func ended(code int, stdout, stderr string) script.Frame {
	return script.Frame{
		State: script.StateRunning, Claimed: true, Started: true, Exit: code, Exited: true,
		Stdout: script.Piece{Bytes: stdout, Whole: true}, Stderr: script.Piece{Bytes: stderr, Whole: true},
	}
}

// wantFrame compares all but what differs from run to run.
func (j journals) wantFrame(t *testing.T, got, want script.Frame) {
	t.Helper()
	if got.Dir != filepath.Join(j.home, fmt.Sprintf(".leasehold-%d", os.Getuid())) {
		t.Errorf("journals are in %q", got.Dir)
	}
	got.Dir, got.Born, got.Process = "", "", script.Process{}
	got.Stdout, got.Stderr = whole(t, got.Stdout), whole(t, got.Stderr)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frame mismatch (-want +got):\n%s", diff)
	}
}

// whole takes the end mark, or what the record says instead, from a piece.
func whole(t *testing.T, p script.Piece) script.Piece {
	t.Helper()
	if p.Empty && p.Bytes == "" && p.Whole {
		return script.Piece{Whole: true}
	}
	end := stream.NewEnd(journal("").End())
	content := string(end.Next([]byte(p.Bytes)))
	if p.Empty || p.Whole != end.Found() {
		t.Errorf("a stream ends like this: %+v", p)
	}
	p.Bytes, p.Last = content, false
	return p
}

// pipes is what a command has open: its output, and what the test itself leaves open in every process.
func pipes(t *testing.T, j journals) string {
	return run(t, shell(t, []string{"sh"}, j.home, "-c", "exec </dev/null 2>/dev/null; "+countPipes+"echo $((n+1))")).Stdout
}

// countPipes makes no pipe itself, which could be seen for a moment.
const countPipes = "n=0; for f in /proc/$$/fd/*; do [ ! -p $f ] || n=$((n+1)); done; "

func eachJournal(t *testing.T, f func(t *testing.T, j journals)) {
	eachShell(t, func(t *testing.T, argv []string) { f(t, journals{argv: argv, home: t.TempDir()}) })
}

// TestAShellsOwnStartUpFilesChangeNothing gives the shells start-up files and an environment which change what words mean.
func TestAShellsOwnStartUpFilesChangeNothing(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"options":   "set -efuC; set -a\nIFS=:/0e\n",
		"aliases":   "alias cat=false printf='echo no' eval=echo unset=true set=true rm='rm -i' dd=false read=false\nshopt -s expand_aliases 2>/dev/null\n",
		"functions": "for f in cat printf read kill dd true [ test rm echo umask mkfifo sleep; do eval \"$f() { return 1; }\"; done 2>/dev/null\n",
		"talk":      "echo talk; echo talk >&2\n",
	}
	eachJournal(t, func(t *testing.T, j journals) {
		for name, text := range files {
			home := t.TempDir()
			file := filepath.Join(home, ".zshenv")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			j.env = []string{"BASH_ENV=" + file, "ENV=" + file, "ZDOTDIR=" + home}
			j.wantFrame(t, j.run(t, journal(name).Start(start("echo out; echo err >&2; sleep 0.1; env | grep ^_[a-z]; exit 3"))), ended(3, "out\n", "err\n"))
		}
		j.env = []string{"BASH_FUNC_cat%%=() { echo no; }", "BASH_FUNC_printf%%=() { return 1; }", "BASH_FUNC_[%%=() { return 1; }", "BASH_FUNC_read%%=() { return 1; }"}
		j.wantFrame(t, j.run(t, journal("exported").Start(start("echo out; exit 3"))), ended(3, "out\n", ""))
		j.env = []string{"POSIXLY_CORRECT=1"}
		j.wantFrame(t, j.run(t, journal("posix").Start(start("echo $POSIXLY_CORRECT; sleep 0.1; echo err >&2"))), ended(0, "1\n", "err\n"))
	})
}

// TestE1WhoeverTakesTheDirectoryAwayProvesNothing has the command do that, and delivers its dispatch again.
func TestE1WhoeverTakesTheDirectoryAwayProvesNothing(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		for name, take := range map[string]string{"file": ": >$d", "link": "ln -s /nowhere $d"} {
			j.home = t.TempDir()
			id := fmt.Sprintf("%s-%s-%d", name, filepath.Base(j.argv[0]), os.Getpid()) // the mark of a refusal is in a place that all share
			t.Cleanup(func() { _ = os.Remove(fmt.Sprintf("/dev/shm/.leasehold-%d-%s", os.Getuid(), id)) })
			dir := filepath.Join(j.home, fmt.Sprintf(".leasehold-%d", os.Getuid()))
			if err := exec.Command("mkfifo", dir+".fifo").Run(); err != nil {
				t.Fatal(err)
			}
			ran, err := os.OpenFile(dir+".fifo", os.O_RDWR, 0) // so that no writer waits for a reader
			if err != nil {
				t.Fatal(err)
			}
			dispatch := journal(id).Start(start("d='" + dir + "'; mv $d $d.moved; " + take + "; echo >>$d.ran; echo >$d.fifo"))
			j.run(t, dispatch)
			_, err = ran.Read(make([]byte, 1)) // the dispatch is answered once the directory has moved, which is too early
			if closed := ran.Close(); err != nil || closed != nil {
				t.Fatal(err, closed)
			}
			for kind, again := range map[string]script.Script{"copy": dispatch, "settle": journal(id).Settle(patient), "stop": journal(id).Stop(patient, script.Process{})} {
				if got := j.run(t, again); got.State != script.StateNoneAgain {
					t.Errorf("%s, %s: state %q, want %q", name, kind, got.State, script.StateNoneAgain)
				}
			}
			if ran, err := os.ReadFile(dir + ".ran"); err != nil || string(ran) != "\n" {
				t.Errorf("%s: the command ran %d times (%v), want once", name, len(ran), err)
			}
		}
	})
}

func TestADirectoryWhoseNameHoldsANewlineIsNotUsed(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		odd := filepath.Join(t.TempDir(), "a\nb")
		if err := os.Mkdir(odd, 0o700); err != nil {
			t.Fatal(err)
		}
		j.env = []string{"TMPDIR=" + odd}
		id := fmt.Sprintf("newline-%d-%s", os.Getpid(), filepath.Base(j.argv[0]))
		got := j.run(t, journal(id).Start(start("exit 3")))
		t.Cleanup(func() {
			files, err := filepath.Glob(filepath.Join(got.Dir, id+"*"))
			if err != nil {
				t.Error(err)
			}
			for _, file := range files {
				_ = os.Remove(file)
			}
		})
		if want := fmt.Sprintf("/tmp/.leasehold-%d", os.Getuid()); got.Dir != want || got.Exit != 3 {
			t.Errorf("got %+v, want exit 3, and journals in %s", got, want)
		}
	})
}

func TestAJournalHoldsWhatTheCommandDid(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for name, tt := range map[string]struct {
			start script.Start
			want  script.Frame
		}{
			"streams":     {start("printf out; printf 'err\n\n' >&2; exit 7"), ended(7, "out", "err\n\n")},
			"nothing":     {start(":"), ended(0, "", "")},
			"signal":      {start("kill -9 $$"), ended(137, "", "")},
			"group":       {start("kill -9 0"), ended(137, "", "")},
			"interrupt":   {start("kill -2 $$; echo no"), ended(130, "", "")},
			"closed":      {start("exec <&- >&- 2>&-; exit 5"), ended(5, "", "")},
			"syntax":      {start("if"), ended(2, "", "sh: 1: Syntax error: end of file unexpected (expecting \"then\")\n")},
			"no input":    {start("cat"), ended(0, "", "")},
			"input":       {script.Start{Login: script.Login{Args: []string{"od", "-An", "-c"}}, Stdin: []byte("a\x00\xff\n"), Wait: patient}, ended(0, "   a  \\0 377  \\n\n", "")},
			"dash":        {script.Start{Login: script.Login{Args: []string{"od", "-An", "-c"}}, Stdin: []byte("-a\x00b"), Wait: patient}, ended(0, "   -   a  \\0   b\n", "")},
			"descriptors": {start(countPipes + "echo $n"), ended(0, pipes(t, j), "")},
			"environment": {script.Start{Login: script.Login{Profiles: script.NoProfiles, Args: []string{"sh", "-c", `printf %s "$a$p$r$x$_leasehold$FROM_DAEMON"`}, Env: map[string]string{"a": "A"}}, Wait: patient}, ended(0, "Apropexyes", "")},
			"mark":        {start("echo '" + journalMark[:9] + "'; printf '\n'" + journalMark[9:]), ended(0, journalMark[:9]+"\n\n"+journalMark[9:], "")},
			"directory":   {script.Start{Login: script.Login{Dir: "/no/such", Args: []string{"true"}}, Wait: patient}, script.Frame{}},
			"long":        {start("echo '" + strings.Repeat("x", 200<<10) + "' | wc -c; exit 3"), ended(3, "204801\n", "")},
			"long words": {
				script.Start{Login: script.Login{Env: map[string]string{"A": strings.Repeat("y", 120000), "B": strings.Repeat("z", 120000)}, Script: "echo ${#A} ${#B}"}, Wait: patient},
				ended(0, "120000 120000\n", ""),
			},
			"bytes in the text": {start("printf '%s\n' '\xff\xfe' | od -An -tx1"), ended(0, " ff fe 0a\n", "")},
		} {
			if name == "syntax" {
				if got, _ := os.Readlink("/bin/sh"); !strings.HasSuffix(got, "dash") {
					continue
				}
			}
			t.Run(name, func(t *testing.T) {
				got := j.run(t, journal(strings.ReplaceAll(name, " ", "-")).Start(tt.start))
				if name == "directory" {
					if !got.NoDir || got.Started || got.Exit != script.RefusedStatus || got.Stderr.Bytes == "" {
						t.Errorf("got %+v, want no directory and a reason", got)
					}
					return
				}
				j.wantFrame(t, got, tt.want)
			})
		}
		t.Run("any bytes", func(t *testing.T) {
			file := filepath.Join(j.home, "every")
			if err := os.WriteFile(file, every, 0o600); err != nil {
				t.Fatal(err)
			}
			got := j.run(t, journal("any").Start(start("cat "+file)))
			if got.Stdout.Bytes != string(every[:128]) || got.Stdout.Whole || !got.Stderr.Whole {
				t.Errorf("got %+v, want the exact beginning, and to be told that it is not all", got.Stdout)
			}
			stored, err := os.ReadFile(filepath.Join(got.Dir, "any.o"))
			if err != nil || string(stored) != string(every)+journal("any").End() {
				t.Errorf("the file holds %q, %v", stored, err)
			}
		})
	})
}

func TestAJournalsCommandStartsOnce(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		count := filepath.Join(j.home, "count")
		text := journal("once").Start(start("echo x >>" + count + "; sleep 0.2; echo done"))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { j.wantFrame(t, j.run(t, text), ended(0, "done\n", "")) })
		}
		wg.Wait()
		j.wantFrame(t, j.run(t, text), ended(0, "done\n", ""))
		j.wantFrame(t, j.run(t, journal("once").Settle(patient)), ended(0, "done\n", ""))
		if got, _ := os.ReadFile(count); string(got) != "x\n" {
			t.Errorf("started %d times, want once", len(got)/2)
		}
	})
}

func TestAJournalThatWasSettledStartsNothing(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		for name, settle := range map[string]script.Script{"settle": journal("settle").Settle(patient), "stop": journal("stop").Stop(script.Wait{Inline: script.Inline}, script.Process{})} {
			got := j.run(t, settle)
			if got.State != script.StateNone && got.State != script.StateNoneNew {
				t.Errorf("%s: got %+v, want none", name, got)
			}
			late := start("touch " + j.home + "/ran")
			late.Wait.Limit = 200 * time.Millisecond
			if got := j.run(t, journal(name).Start(late)); got.Exited || got.Started {
				t.Errorf("%s: got %+v, want nothing started", name, got)
			}
			if _, err := os.Stat(j.home + "/ran"); err == nil {
				t.Errorf("%s: the command ran", name)
			}
		}
	})
}

func TestAJournalTellsOfOutputAndEnd(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		gate := filepath.Join(j.home, "gate")
		s := start("printf one; until [ -e " + gate + " ]; do sleep 0.01; done; printf two >&2; until [ -e " + gate + "2 ]; do sleep 0.01; done; exit 4")
		s.Wait.Output = true
		got := j.run(t, journal("live").Start(s))
		if got.Exited || got.Stdout.Bytes != "one" || got.Process.ID == 0 {
			t.Fatalf("got %+v, want the first output", got)
		}
		wait := script.Wait{Limit: time.Minute, Output: true, Stdout: 3, Inline: script.Inline}
		open := func(name string) func() {
			return func() {
				if err := os.WriteFile(name, nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		}
		time.AfterFunc(150*time.Millisecond, open(gate))
		got = j.run(t, journal("live").Observe(wait))
		if got.Exited || got.Stdout.Bytes != "" || got.Stderr.Bytes != "two" {
			t.Errorf("got %+v, want the second output", got)
		}
		wait.Stderr = 1
		if got = j.run(t, journal("live").Observe(wait)); got.Stderr.Bytes != "wo" {
			t.Errorf("got %+v, want what is beyond the offset, at once", got)
		}
		wait.Stderr = 3
		time.AfterFunc(150*time.Millisecond, open(gate+"2"))
		if got = j.run(t, journal("live").Observe(wait)); !got.Exited || got.Exit != 4 {
			t.Errorf("got %+v, want the exit", got)
		}
	})
}

func TestAJournalsCommandIsStoppedWithItsChildren(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		s := start("trap '' TERM; sleep 61 & (setsid sleep 62 & wait) & echo ready; wait; while :; do sleep 63; done")
		s.Wait.Output = true
		if got := j.run(t, journal("stop").Start(s)); got.Exited || got.Stdout.Bytes != "ready\n" {
			t.Fatalf("got %+v, want a running command", got)
		}
		if got := j.stopped(t, "stop"); !got.Exited || got.Exit != 137 {
			t.Errorf("got %+v, want exit 137", got)
		}
	})
}

func TestALostProcessIsNoticed(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		s := start("kill -9 $PPID; echo out; exec sleep 0.3")
		s.Wait.Limit = time.Second
		got := j.run(t, journal("lost").Start(s))
		if got.State != script.StateLost {
			got = j.run(t, journal("lost").Observe(patient))
		}
		if got.State != script.StateLost || got.Exited || got.Stdout.Bytes != "out\n" {
			t.Errorf("got %+v, want lost, no exit, and the output", got)
		}
	})
}

func TestAJournalNeedsADirectory(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		j.home = filepath.Join(j.home, "none")
		late := journal("nowhere" + strings.ReplaceAll(fmt.Sprint(time.Now().UnixNano()), "-", "")).Start(start("echo x"))
		cmd := shell(t, j.argv, "/")
		cmd.Env = append(cmd.Env, "TMPDIR="+j.home)
		got, err := script.ReadFrame(journalMark, run(t, carried(cmd, late)).Stdout, script.Inline)
		if err != nil || got.State != script.StateFull {
			t.Fatalf("got %+v, %v; want no room", got, err)
		}
		if err := os.Mkdir(j.home, 0o700); err != nil {
			t.Fatal(err)
		}
		if got := j.run(t, late); got.State != script.StateFull || got.Started {
			t.Errorf("got %+v, want a late copy to be refused", got)
		}
	})
}

func TestJournalsAreRemovedAndSwept(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, j journals) {
		dir := j.run(t, journal("old").Start(start("echo x"))).Dir
		j.run(t, journal("dead").Start(start("echo x")))
		for i := range 20_000 { // more than the arguments of one process hold
			name := fmt.Sprintf("%s.%0200d", [...]string{"old", "dead"}[i%2], i)
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := start("echo begun; exec sleep 300")
		s.Wait.Output = true
		j.run(t, journal("alive").Start(s))
		past := time.Now().Add(-25 * time.Hour)
		for _, name := range []string{"dead", "alive", "alive.o", "dead.o"} {
			if err := os.Chtimes(filepath.Join(dir, name), past, past); err != nil {
				t.Fatal(err)
			}
		}
		s = start("echo next")
		s.Drop, s.Sweep = []string{"old"}, true
		j.run(t, journal("next").Start(s))
		names := func() (names []string) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if name := e.Name(); name != "alive.ho" && name != "next.ho" { // some shells make one
					names = append(names, name)
				}
			}
			return names
		}
		want := []string{"alive", "alive.e", "alive.o", "born", "next", "next.e", "next.o", "old"}
		eventually(t, fmt.Sprintf("what is left is %q", want), func() bool { return cmp.Equal(names(), want) })
		if got := j.run(t, journal("alive").Stop(script.Wait{Inline: script.Inline}, script.Process{})); got.State != script.StateStopped {
			t.Errorf("got %+v, want stopped", got)
		}
	})
}

// FuzzReadFrame: of a reply that a sandbox made up nothing is taken for output that is not in it, and what a journal's script
// prints comes back as it was, up to what JSON cannot carry.
func FuzzReadFrame(f *testing.F) {
	seed := "\n" + journalMark + " run /tmp\nexit 3\n" + journalMark + " o\nx\n" + journalMark + " e 0\n\n" + journalMark + " . 0\n"
	f.Add(seed, "x\n", "", 3)
	f.Add(seed, "\n"+journalMark, "\xff", -1)
	f.Fuzz(func(t *testing.T, output, stdout, stderr string, code int) {
		frame, err := script.ReadFrame(journalMark, output, script.Inline)
		got := frame.Stdout.Bytes + frame.Stderr.Bytes
		if err == nil && strings.Contains(got, "\uFFFD") || len(got) > len(output) || frame.Exited && !strings.Contains(output, "exit ") {
			t.Errorf("%q: what JSON replaced, or nobody sent, was taken for output or an exit: %+v", output, frame)
		}
		if strings.Contains(stdout+"\n"+stderr, "\n"+journalMark) {
			return // no command knows the mark
		}
		printed := fmt.Sprintf("\n%[1]s run - /tmp\n\npid 7 8\nstarted\nexit %[2]d\n%[1]s o\n%[3]s\n%[1]s e 0\n%[4]s\n%[1]s . 0\n", journalMark, code, stdout, stderr)
		frame, err = script.ReadFrame(journalMark, strings.ToValidUTF8(printed, "\uFFFD"), script.Inline)
		if err != nil || !frame.Exited || frame.Exit != code || frame.State != script.StateRunning || frame.Dir != "/tmp" {
			t.Fatalf("got %+v, %v, want exit %d", frame, err, code)
		}
		for _, stream := range []struct {
			want string
			got  script.Piece
		}{{stdout, frame.Stdout}, {stderr, frame.Stderr}} {
			exact := utf8.ValidString(stream.want) && !strings.Contains(stream.want, "\uFFFD")
			if !strings.HasPrefix(stream.want, stream.got.Bytes) || exact && stream.got.Bytes != stream.want || stream.got.Whole != (exact && len(stream.want) < script.Inline) {
				t.Errorf("got %+v of %q", stream.got, stream.want)
			}
		}
	})
}
