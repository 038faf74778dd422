package conformance_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// everyTransport are those that every backend has.
var everyTransport = []leasehold.Transport{leasehold.TransportDefault, leasehold.TransportJournal, leasehold.TransportSession}

// commandCases returns one in so many of the cases on each of the transports.
func commandCases(transports []leasehold.Transport, oneIn int) []behaviour {
	var cases []behaviour
	for _, transport := range transports {
		for i, name := range slices.Sorted(maps.Keys(commandTests)) {
			if i%oneIn > 0 {
				continue
			}
			test := commandTests[name]
			cases = append(cases, behaviour{
				name: cmp.Or(string(transport), "default") + "/" + name,
				test: func(t *testing.T, s *scene) { test(t, commands{s.lease, transport}) },
			})
		}
	}
	return cases
}

// commands runs the commands of one case.
type commands struct {
	l         *leasehold.Lease
	transport leasehold.Transport
}

func (c commands) run(t *testing.T, cmd leasehold.Command) (leasehold.Result, error) {
	t.Helper()
	cmd.Transport = c.transport
	if cmd.Timeout == 0 {
		cmd.Timeout = 2 * time.Minute // nothing of a case runs on for ever
	}
	return c.l.Executor().Run(t.Context(), cmd)
}

// ends runs a command that must end on its own with a code and this output. NUL bytes may be missing where the result
// says that they may.
func (c commands) ends(t *testing.T, cmd leasehold.Command, code int, stdout, stderr string) leasehold.Result {
	t.Helper()
	got, err := c.run(t, cmd)
	if err != nil {
		t.Errorf("Run() = %v, want an end with %d", err, code)
	}
	if !got.Exited || !got.Complete || got.ExitCode != code || got.Dispatched != leasehold.DispatchedYes || got.TimedOut {
		t.Errorf("exited %v, complete %v, code %d, dispatched %s; want an exit with %d", got.Exited, got.Complete, got.ExitCode, got.Dispatched, code)
	}
	for _, s := range []struct {
		name string
		got  []byte
		size int64
		want string
	}{{"stdout", got.Stdout, got.StdoutSize, stdout}, {"stderr", got.Stderr, got.StderrSize, stderr}} {
		if got.Fidelity == leasehold.FidelityLines {
			s.want = strings.ReplaceAll(s.want, "\x00", "")
		}
		if string(s.got) != s.want || s.size != int64(len(s.want)) {
			t.Errorf("%s of %d bytes: %.200q, want %d: %.200q", s.name, s.size, s.got, len(s.want), s.want)
		}
	}
	return got
}

// fails runs a command that must fail with an error, which it returns.
func (c commands) fails(t *testing.T, cmd leasehold.Command, want error) (leasehold.Result, *leasehold.Error) {
	t.Helper()
	got, err := c.run(t, cmd)
	var e *leasehold.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Fatalf("Run() = %+v, %v; want %v", got, err, want)
	}
	if e.Dispatched != got.Dispatched {
		t.Errorf("the error says dispatched %s, the result %s", e.Dispatched, got.Dispatched)
	}
	return got, e
}

func script(text string) leasehold.Command { return leasehold.Command{Script: text} }

// printf is a command that prints these bytes on both streams.
func printf(content string) leasehold.Command {
	var octal strings.Builder
	for _, b := range []byte(content) {
		fmt.Fprintf(&octal, "\\%03o", b)
	}
	return script("printf '" + octal.String() + "'; printf '" + octal.String() + "' >&2")
}

// prints is the case of a command that prints these bytes on both streams.
func prints(content string) func(*testing.T, commands) {
	return func(t *testing.T, c commands) { c.ends(t, printf(content), 0, content, content) }
}

// exits is the case of a script that ends with a code and prints nothing.
func exits(text string, code int) func(*testing.T, commands) {
	return func(t *testing.T, c commands) { c.ends(t, script(text), code, "", "") }
}

// everyByte holds each byte once.
func everyByte() string {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return string(all)
}

// arrivals is a writer that hands on what it gets.
type arrivals chan string

func (a arrivals) Write(p []byte) (int, error) {
	a <- string(p)
	return len(p), nil
}

// await reads what arrives until it is want.
func (a arrivals) await(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for got := ""; got != want; {
		select {
		case p := <-a:
			got += p
		case <-timeout:
			t.Fatalf("got %q within a minute, want %q", got, want)
		}
		if !strings.HasPrefix(want, got) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// commandTests are what every transport must do, by name.
var commandTests = map[string]func(t *testing.T, c commands){
	// Bytes.
	"nothing":             prints(""),
	"text":                prints("hello\nworld\n"),
	"no final newline":    prints("a\nb"),
	"newlines only":       prints("\n\n\n"),
	"carriage returns":    prints("a\r\nb\rc"),
	"NUL":                 prints("\x00a\x00\n\x00b"),
	"every byte":          prints(everyByte() + "\n" + everyByte()),
	"invalid UTF-8":       prints("\xff\xfe\n\x80\xc3\xe2\x82"),
	"replacement runes":   prints("\uFFFD\n\uFFFD"),
	"marker bytes":        prints("\x01\x01\x01a\n\x02\x02\x02b\nc\x02\x02\x02d\x01\x01\x01\n\x01\n\x02\x02"),
	"backslashes, blanks": prints(" \\a \\\n\t\\\\ \n "),
	"streams apart": func(t *testing.T, c commands) {
		c.ends(t, script("for i in 1 2 3; do echo o$i; echo e$i >&2; done"), 0, "o1\no2\no3\n", "e1\ne2\ne3\n")
	},
	"streams opened again by name": func(t *testing.T, c commands) {
		c.ends(t, script("echo o1; echo o2 >/dev/stdout; echo o3; echo e1 >&2; echo e2 >/dev/stderr; echo e3 >&2"), 0, "o1\no2\no3\n", "e1\ne2\ne3\n")
	},
	"one MiB": func(t *testing.T, c commands) {
		line := strings.Repeat("0123456789abcdef", 4)[:63] + "\n"
		cmd := script(`l=` + line[:63] + `; i=0; b=; while [ $i -lt 64 ]; do b="$b$l
"; i=$((i+1)); done; i=0; while [ $i -lt 256 ]; do printf %s "$b"; i=$((i+1)); done`)
		cmd.CaptureLimit = 2 << 20
		c.ends(t, cmd, 0, strings.Repeat(line, 1<<20/len(line)), "")
	},
	"more than the capture limit": func(t *testing.T, c commands) {
		cmd := script("printf 0123456789; printf abc >&2")
		cmd.CaptureLimit = 4
		got, err := c.run(t, cmd)
		if err != nil || string(got.Stdout) != "0123" || string(got.Stderr) != "abc" || got.StdoutSize != 10 || !got.Truncated {
			t.Errorf("Run() = %+v, %v; want 0123 of 10 bytes, and truncated", got, err)
		}
	},
	"output arrives while the command runs": func(t *testing.T, c commands) {
		out := make(arrivals, 16)
		cmd := script("echo $$; while [ ! -e gate-$$ ]; do sleep 0.05; done; rm gate-$$; echo second")
		cmd.Stdout, cmd.Transport, cmd.Timeout = out, c.transport, 2*time.Minute
		p, err := c.l.Executor().Start(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		pid := ""
		for !strings.HasSuffix(pid, "\n") {
			pid += <-out
		}
		c.ends(t, script(": >gate-"+strings.TrimSpace(pid)), 0, "", "")
		out.await(t, "second\n")
		if got, err := p.Wait(); err != nil || got.ExitCode != 0 {
			t.Errorf("Wait() = %+v, %v", got, err)
		}
	},

	// Ends.
	"exit 0":          exits("exit 0", 0),
	"exit 1":          exits("false", 1),
	"exit 2":          exits("exit 2", 2),
	"exit 125":        exits("exit 125", 125),
	"exit 255":        exits("exit 255", 255),
	"not executable":  exits("f=x-$$; : >$f; ./$f 2>/dev/null; r=$?; rm $f; exit $r", 126),
	"not found":       exits("no-such-command-anywhere 2>/dev/null", 127),
	"kills itself":    exits("kill -9 $$", 137),
	"kills its group": exits("kill -9 0", 137),
	"dies of TERM":    exits("kill $$", 143),
	"set -e":          exits("set -e; false; echo no", 1),
	"exec":            exits("exec sh -c 'exit 4'", 4),
	"closes all":      exits("exec <&- >&- 2>&-; exit 5", 5),
	"a syntax error":  exits("exec 2>/dev/null\nif (; then", 2),
	"arguments": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Args: []string{"printf", "<%s>", "a b", "", "'\"$x`", "\xff\n", "-n", "*"}}, 0, "<a b><><'\"$x`><\xff\n><-n><*>", "")
	},
	"a command does not harm the next": func(t *testing.T, c commands) {
		for _, text := range []string{"exit 3", "cd /; export A=1; umask 777; set -e", "kill -9 0", "exec true", "trap '' TERM; alias echo=false"} {
			if _, err := c.run(t, script(text)); err != nil {
				t.Errorf("%q: %v", text, err)
			}
			c.ends(t, script(`echo "next$A"`), 0, "next\n", "")
		}
	},

	// Surroundings.
	"workspace": func(t *testing.T, c commands) {
		c.ends(t, script("pwd -P"), 0, c.l.Ref().Workspace+"\n", "")
	},
	"directory, absolute": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: "pwd", Dir: "/"}, 0, "/\n", "")
	},
	"directory, relative": func(t *testing.T, c commands) {
		name := "a b'" + string(c.transport)
		c.ends(t, leasehold.Command{Args: []string{"mkdir", "-p", name}}, 0, "", "")
		c.ends(t, leasehold.Command{Script: `printf %s "${PWD##*/}"`, Dir: name}, 0, name, "")
	},
	"directory, missing": func(t *testing.T, c commands) {
		got, _ := c.fails(t, leasehold.Command{Script: "echo no", Dir: "no/such/directory"}, leasehold.ErrNotFound)
		if got.Exited || got.ExitCode != -1 || got.StdoutSize != 0 {
			t.Errorf("got %+v, want no exit and no output", got)
		}
	},
	"environment": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: `printf '%s|%s|%s|%s' "$A" "$B" "$GIT_TERMINAL_PROMPT" "${EMPTY-unset}"`, Env: map[string]string{"A": "it's\n$x `y`", "B": "\xff\\", "EMPTY": ""}}, 0, "it's\n$x `y`|\xff\\|0|", "")
	},
	"environment, over the profiles": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: `printf %s "$PATH"`, Env: map[string]string{"PATH": "/only:/this"}}, 0, "/only:/this", "")
	},
	"environment, bad key": func(t *testing.T, c commands) {
		if got, _ := c.fails(t, leasehold.Command{Script: "true", Env: map[string]string{"A-B": ""}}, leasehold.ErrInvalid); got.Dispatched != leasehold.DispatchedNo {
			t.Errorf("dispatched %s, want no", got.Dispatched)
		}
	},
	"without profiles": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: "echo ok", Profiles: leasehold.ProfilesNone}, 0, "ok\n", "")
	},
	"profiles print nothing": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Args: []string{"true"}, Profiles: leasehold.ProfilesLogin}, 0, "", "")
	},

	// Input.
	"no input": exits("cat", 0),
	"empty input": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: "cat", Stdin: strings.NewReader("")}, 0, "", "")
	},
	"input is not read": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: "exit 6", Stdin: strings.NewReader("ignored")}, 6, "", "")
	},
	"input of any bytes": func(t *testing.T, c commands) {
		c.ends(t, leasehold.Command{Script: "od -An -v -tx1 | tr -d ' \\n'", Stdin: strings.NewReader(everyByte())}, 0, fmt.Sprintf("%x", everyByte()), "")
	},
	"input of 300,000 bytes": func(t *testing.T, c commands) {
		content := bytes.Repeat([]byte(everyByte()), 1200)[:300_000]
		got := c.ends(t, leasehold.Command{Script: "sha256sum", Stdin: bytes.NewReader(content)}, 0, fmt.Sprintf("%x  -\n", sha256.Sum256(content)), "")
		if got.StdinSize != int64(len(content)) {
			t.Errorf("%d bytes of input, want %d", got.StdinSize, len(content))
		}
	},
	"a reader that fails": func(t *testing.T, c commands) {
		broken := errors.New("broken")
		_, err := c.fails(t, leasehold.Command{Script: "cat >/dev/null; sleep 60", Stdin: io.MultiReader(strings.NewReader("x"), reader(func([]byte) (int, error) { return 0, broken }))}, leasehold.ErrIO)
		if !errors.Is(err, broken) {
			t.Errorf("%v is not the reader's error", err)
		}
	},

	// Time.
	"timeout": func(t *testing.T, c commands) {
		cmd := script("echo begun; sleep 61 & wait; sleep 62")
		cmd.Timeout = 5 * time.Second
		got, _ := c.fails(t, cmd, leasehold.ErrTimeout)
		if !got.TimedOut || !got.StopConfirmed || got.Complete && !got.Exited {
			t.Errorf("got %+v, want a timeout and a confirmed stop", got)
		}
	},
	"cancel": func(t *testing.T, c commands) {
		out := make(arrivals, 16)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, err := c.l.Executor().Start(ctx, leasehold.Command{Script: "echo begun; sleep 63", Stdout: out, Transport: c.transport, Timeout: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		out.await(t, "begun\n")
		cancel()
		if got, err := p.Wait(); !errors.Is(err, leasehold.ErrCanceled) || !got.StopConfirmed || got.TimedOut {
			t.Errorf("Wait() = %+v, %v; want canceled, and a confirmed stop", got, err)
		}
	},
	"kill": func(t *testing.T, c commands) {
		out := make(arrivals, 16)
		p, err := c.l.Executor().Start(t.Context(), leasehold.Command{Script: "trap '' INT; echo begun; sleep 64", Stdout: out, Transport: c.transport, Timeout: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		out.await(t, "begun\n") // before that, a session can only be deleted, which may take longer than Kill waits
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := p.Wait(); err == nil && got.ExitCode != 137 || err != nil && !errors.Is(err, leasehold.ErrCanceled) {
			t.Errorf("Wait() = %+v, %v; want an exit with 137, or canceled", got, err)
		}
	},
	"a writer that fails": func(t *testing.T, c commands) {
		full := errors.New("full")
		r, w := io.Pipe()
		r.CloseWithError(full)
		cmd := script("echo x; sleep 65")
		cmd.Stdout = w
		if got, err := c.fails(t, cmd, leasehold.ErrIO); !errors.Is(err, full) || !got.StopConfirmed {
			t.Errorf("Run() = %+v, %v; want the writer's error, and a confirmed stop", got, err)
		}
	},
	"a child in the background neither blocks nor dies": func(t *testing.T, c commands) {
		file := "child" + string(c.transport)
		c.ends(t, script("(until [ -e "+file+" ]; do sleep 0.05; done; rm "+file+") & echo started"), 0, "started\n", "")
		c.ends(t, script(": >"+file+"; while [ -e "+file+" ]; do sleep 0.05; done"), 0, "", "")
	},
	"commands run at the same time": func(t *testing.T, c commands) {
		const n = 16
		dir := "together" + string(c.transport)
		c.ends(t, leasehold.Command{Args: []string{"mkdir", dir}}, 0, "", "")
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				// Each waits for all: in a queue none would ever end.
				c.ends(t, leasehold.Command{Dir: dir, Script: fmt.Sprintf(": >%d; until [ $(ls | wc -l) -ge %d ]; do sleep 0.1; done; echo %d; exit %d", i, n, i, i)}, i, fmt.Sprintf("%d\n", i), "")
			})
		}
		all.Wait()
	},
}

type reader func([]byte) (int, error)

func (f reader) Read(p []byte) (int, error) { return f(p) }
