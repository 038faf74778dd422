//go:build unix

package leasehold

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// file is a path of the host's directory that no other turn of the stage uses.
func (s *stage) file(name string) string { return filepath.Join(s.dir, name+strconv.Itoa(s.turn)) }

// matrixCommand is a command of the matrix, and what it does.
type matrixCommand struct {
	transport Transport
	script    string // after it has told that it was started
	stdin     int    // bytes
	out, errs string
	code      int
}

// claim is what is said of the command that is about to run.
func (m matrixCommand) claim(s *stage) *commandClaim {
	return &commandClaim{starts: s.file("starts"), wantOut: []byte(m.out), wantErrs: []byte(m.errs), wantExit: m.code, stdin: int64(m.stdin)}
}

func (m matrixCommand) command(c *commandClaim) Command {
	cmd := Command{Script: "echo $$ >>'" + c.starts + "'\n" + m.script, Transport: m.transport, Profiles: ProfilesNone}
	if m.stdin > 0 {
		cmd.Stdin = bytes.NewReader(bytes.Repeat([]byte("0123456789abcde\n"), m.stdin/16))
	}
	return cmd
}

// finished is the claim, with the result.
func (c *commandClaim) finished(r Result, err error) outcome {
	c.Result, c.out, c.errs = r, r.Stdout, r.Stderr
	return outcome{command: c, err: err}
}

func (m matrixCommand) run(ctx context.Context, s *stage) outcome {
	l, err := s.lease()
	if err != nil {
		return outcome{err: err}
	}
	c := m.claim(s)
	return c.finished(l.Executor().Run(ctx, m.command(c)))
}

// begun starts a command, and has do go on with it. In the end it is stopped.
func (m matrixCommand) begun(do func(context.Context, *stage, *Process, *commandClaim) outcome) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		leased(t, s)
		l, err := s.lease()
		if err != nil {
			t.Fatal(err)
		}
		c := m.claim(s)
		ctx, cancel := context.WithCancel(context.Background())
		p := patiently(t, func() (*Process, error) { return l.Executor().Start(ctx, m.command(c)) })
		eventually(t, "the command begins", func() bool { return len(processes(c.starts)) > 0 })
		s.do = func(ctx context.Context, s *stage) outcome {
			got := do(ctx, s, p, c)
			cancel()
			_, _ = p.Wait()
			return got
		}
	}
}

// attached goes on with the command as another host.
func attached(ctx context.Context, s *stage, p *Process, c *commandClaim) outcome {
	ref := p.Ref()
	p.Detach()
	_, _ = p.Wait()
	l, err := s.lease()
	if err != nil {
		return outcome{err: err}
	}
	q, err := l.Executor().Attach(ctx, ref, Attachment{})
	if err != nil {
		return outcome{err: err}
	}
	return c.finished(q.Wait())
}

func commandOperations() []operation {
	var all []operation
	filler := strings.Repeat("x", 40_000)
	for _, tr := range []Transport{TransportJournal, TransportSession} {
		short := matrixCommand{transport: tr, script: "echo out; echo err >&2; exit 3", out: "out\n", errs: "err\n", code: 3}
		long := matrixCommand{transport: tr, script: "head -c 40000 /dev/zero | tr '\\0' x; echo; echo err >&2; sleep 0.2; echo end; exit 3", out: filler + "\nend\n", errs: "err\n", code: 3}
		input := matrixCommand{transport: tr, script: "wc -c | tr -d ' '; exit 3", stdin: 160_000, out: "160000\n", code: 3}
		all = append(all,
			operation{name: fmt.Sprintf("run on %s", tr), real: true, shares: true, prepare: leased, run: short.run},
			operation{name: fmt.Sprintf("run long on %s", tr), real: true, shares: true, prepare: leased, run: long.run},
			operation{name: fmt.Sprintf("run with input on %s", tr), real: true, shares: true, prepare: leased, run: input.run})
		all = append(all, operation{name: fmt.Sprintf("attach on %s", tr), real: true, once: true, prepare: long.begun(attached), run: done})
		endless := matrixCommand{transport: tr, script: "while :; do sleep 0.02; done", code: 143}
		all = append(all, operation{name: fmt.Sprintf("kill on %s", tr), real: true, once: true, run: done,
			prepare: endless.begun(func(ctx context.Context, _ *stage, p *Process, c *commandClaim) outcome {
				return outcome{err: p.Kill(ctx), ended: &processes(c.starts)[0]}
			})})
		all = append(all, operation{name: fmt.Sprintf("release a lease that is busy on %s", tr), cfg: Config{Reuse: true}, real: true, once: true, run: done,
			prepare: endless.begun(func(ctx context.Context, s *stage, _ *Process, c *commandClaim) outcome {
				receipt, err := s.host.Release(ctx, s.ref, ReleaseOptions{})
				return outcome{receipt: receipt, err: err, ended: &processes(c.starts)[0]}
			})})
	}
	signaled := matrixCommand{transport: TransportJournal, script: "trap 'exit 5' USR1; while :; do sleep 0.02; done", code: 5}
	return append(all, operation{name: "signal", real: true, once: true, run: done,
		prepare: signaled.begun(func(ctx context.Context, _ *stage, p *Process, c *commandClaim) outcome {
			return outcome{err: p.Signal(ctx, "USR1"), ended: &processes(c.starts)[0]}
		})})
}

// localTree is what is imported: a directory with what a tree may have.
func (s *stage) localTree(t *testing.T, large bool) string {
	t.Helper()
	dir := s.file("local")
	writeFiles(t, dir, map[string]string{"d/small": "new", "empty": "", "d/run": "new"})
	if err := errors.Join(os.Symlink("d/small", filepath.Join(dir, "link")), os.Chmod(filepath.Join(dir, "d", "run"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if large {
		fillFile(t, filepath.Join(dir, "d", "large"), archive.LargeFile+5)
	}
	return dir
}

// moved prepares a transfer between the host's tree and a target that holds something already, in a directory of its own.
// The tree is in the sandbox, too.
func moved(large, imports bool, want func(tree map[string]string) map[string]string, do func(ctx context.Context, l *Lease, local, source, target string) error) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		leased(t, s)
		local := s.localTree(t, large)
		source := filepath.Join(s.ref.Workspace, fmt.Sprint("source", s.turn))
		if err := os.CopyFS(source, os.DirFS(local)); err != nil {
			t.Fatal(err)
		}
		whole := tree(t, local)
		if !imports {
			whole = tree(t, source)
		}
		if want != nil {
			whole = want(whole)
		}
		s.do = func(ctx context.Context, s *stage) outcome {
			root := s.dir
			if imports {
				root = s.ref.Workspace
			}
			target := filepath.Join(root, fmt.Sprint("target", s.turn))
			err := errors.Join(os.MkdirAll(filepath.Join(target, "d"), 0o755), os.WriteFile(filepath.Join(target, small), []byte("old"), 0o644))
			if err != nil {
				if imports && s.server.Sandbox(s.ref.Sandbox).State() != emulator.StateStarted {
					return outcome{} // somebody else has ended it: there is nothing to import into
				}
				t.Fatal(err)
			}
			before := tree(t, target)
			l, err := s.lease()
			if err == nil {
				err = do(ctx, l, local, source, target)
			}
			look := func() map[string]string {
				drained(t, l)
				if _, err := os.Lstat(target); err != nil {
					return nil
				}
				after := tree(t, target)
				maps.DeleteFunc(after, func(name, _ string) bool { return strings.Contains("/"+name, "/"+archive.StagePrefix) }) // see judgeScratch
				return after
			}
			return outcome{err: err, transfer: &transferClaim{want: whole, before: before, look: look, imports: imports}}
		}
	}
}

// readOnly is a tree without the permission to write.
func readOnly(tree map[string]string) map[string]string {
	sealed := make(map[string]string)
	for name, what := range tree {
		if mode, rest, found := strings.Cut(what, " "); found && mode != "->" {
			what = strings.ReplaceAll(mode, "w", "-") + " " + rest
		} else if !found {
			what = strings.ReplaceAll(what, "w", "-")
		}
		sealed[name] = what
	}
	return sealed
}

// oneFile is what a transfer of one file makes of the target.
func oneFile(tree map[string]string) map[string]string {
	return map[string]string{"d": tree["d"], "d/small": tree["d/small"]}
}

// small is the file that single transfers are about.
var small = filepath.Join("d", "small")

func transferOperations() []operation {
	add := func(name string, prepare func(*testing.T, *stage), shell func(*testing.T) string) operation {
		return operation{name: name, real: true, shares: true, prepare: prepare, shell: shell, run: done}
	}
	return []operation{
		add("import a directory", moved(false, true, nil, func(ctx context.Context, l *Lease, local, _, target string) error {
			_, err := l.Importer().Dir(ctx, local, target, ImportOptions{})
			return err
		}), nil),
		add("import a directory with a large file", moved(true, true, nil, func(ctx context.Context, l *Lease, local, _, target string) error {
			_, err := l.Importer().Dir(ctx, local, target, ImportOptions{})
			return err
		}), nil),
		add("import a file", moved(false, true, oneFile, func(ctx context.Context, l *Lease, local, _, target string) error {
			_, err := l.Importer().File(ctx, filepath.Join(local, small), filepath.Join(target, small), ImportOptions{})
			return err
		}), nil),
		add("import a tar", moved(false, true, nil, func(ctx context.Context, l *Lease, local, _, target string) error {
			var stream bytes.Buffer
			w := tar.NewWriter(&stream)
			if err := errors.Join(w.AddFS(os.DirFS(local)), w.Close()); err != nil {
				return err
			}
			_, err := l.Importer().Tar(ctx, &stream, target, ImportOptions{})
			return err
		}), nil),
		add("import what differs", moved(false, true, nil, func(ctx context.Context, l *Lease, local, _, target string) error {
			_, err := l.Importer().Dir(ctx, local, target, ImportOptions{Delta: DeltaDigests, Delete: true})
			return err
		}), nil),
		add("import a read-only bundle", moved(false, true, readOnly, func(ctx context.Context, l *Lease, local, _, target string) error {
			_, err := l.Importer().Dir(ctx, local, target, ImportOptions{Access: AccessReadOnly})
			return err
		}), nil),
		add("import a writable directory, and list those", moved(false, true, nil, func(ctx context.Context, l *Lease, local, _, target string) error {
			if _, err := l.Importer().Dir(ctx, local, target, ImportOptions{Access: AccessReadWrite}); err != nil {
				return err
			}
			dirs, err := l.WritableDirs(ctx)
			if err == nil && len(dirs) == 0 {
				return errors.New("there are no writable directories")
			}
			return err
		}), nil),
		add("export a directory", moved(false, false, nil, func(ctx context.Context, l *Lease, _, source, target string) error {
			_, err := l.Exporter().Dir(ctx, source, target, ExportOptions{})
			return err
		}), nil),
		add("export a file", moved(false, false, oneFile, func(ctx context.Context, l *Lease, _, source, target string) error {
			_, err := l.Exporter().File(ctx, source+"/d/small", filepath.Join(target, small), ExportOptions{})
			return err
		}), nil),
		add("export a tar", moved(false, false, nil, func(ctx context.Context, l *Lease, _, source, target string) error {
			var stream bytes.Buffer
			if _, err := l.Exporter().Tar(ctx, source, &stream, ExportOptions{}); err != nil {
				return err
			}
			return unpack(&stream, target)
		}), nil),
		add("export through a terminal", moved(false, false, nil, func(ctx context.Context, l *Lease, _, source, target string) error {
			r, err := l.Exporter().Dir(ctx, source, target, ExportOptions{})
			if err == nil && r.Route != RouteTerminal {
				return fmt.Errorf("route %q", r.Route)
			}
			return err
		}), func(t *testing.T) string {
			needTerminal(t)
			return shellWith(t, shim("dd", `case $* in *of=*) echo "dd: error writing: Disk quota exceeded" >&2; exit 1;; esac; exec REAL "$@"`))
		}),
	}
}

// unpack makes a directory what a tar stream holds.
func unpack(stream io.Reader, dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
		return err
	}
	for r := tar.NewReader(stream); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name, mode := filepath.Join(dir, h.Name), h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			err = errors.Join(os.MkdirAll(name, 0o755), os.Chmod(name, mode.Perm()))
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, name)
		default:
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = errors.Join(os.WriteFile(name, data, 0o600), os.Chmod(name, mode.Perm()))
			}
		}
		if err != nil {
			return err
		}
	}
}

// untilEnd closes something when the caller's patience ends: reads and writes have no context.
func untilEnd(ctx context.Context, c io.Closer) (end func()) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	return func() {
		if stop() {
			_ = c.Close()
		}
	}
}

// typed opens a terminal, types when it is asked to, and reads to the end.
func typed(ctx context.Context, s *stage) outcome {
	l, err := s.lease()
	if err != nil {
		return outcome{err: err}
	}
	c := &streamClaim{want: []byte("ready\r\nx\r\ngot x\r\n"), unproved: true}
	term, err := l.OpenTerminal(ctx, TerminalOptions{Args: shell("echo ready; read x; echo got $x; exit 4")})
	if err != nil {
		return outcome{err: err}
	}
	defer untilEnd(ctx, term)()
	buf, sent := make([]byte, 4096), false
	for {
		n, err := term.Read(buf)
		c.got = append(c.got, buf[:n]...)
		if !sent && bytes.Contains(c.got, []byte("ready\r\n")) {
			sent = true
			_, _ = io.WriteString(term, "x\r")
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return outcome{err: err, stream: c}
		}
	}
	exit, err := term.Wait(ctx)
	if err == nil && (exit != Exit{State: ExitExited, Code: 4}) {
		return outcome{err: fmt.Errorf("the terminal's exit is %+v", exit), stream: c}
	}
	return outcome{err: err, stream: c}
}

// piped opens a channel, and has it return what it is sent.
func piped(ctx context.Context, s *stage) outcome {
	l, err := s.lease()
	if err != nil {
		return outcome{err: err}
	}
	c := &streamClaim{want: bytes.Repeat(allBytes(256), 80), late: true}
	ch, err := l.OpenChannel(ctx, ChannelOptions{Args: []string{"cat"}})
	if err != nil {
		return outcome{err: err}
	}
	defer untilEnd(ctx, ch)()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := ch.Write(c.want); err == nil {
			_ = ch.CloseWrite()
		}
	}()
	c.got, err = io.ReadAll(ch)
	if err != nil {
		_ = ch.Close()
	}
	<-sent
	if err != nil {
		return outcome{err: err, stream: c}
	}
	exit, err := ch.Wait(ctx)
	if err == nil && (exit != Exit{State: ExitExited}) {
		return outcome{err: fmt.Errorf("the channel's exit is %+v", exit), stream: c}
	}
	return outcome{err: err, stream: c}
}

// opened is a terminal or a channel.
type opened interface {
	io.WriteCloser
	ID() string
	Wait(context.Context) (Exit, error)
}

// consoleBegun opens something that tells its process, and has do go on with it.
func consoleBegun(open func(ctx context.Context, l *Lease, args []string) (opened, error), do func(ctx context.Context, l *Lease, id string) (io.Closer, error)) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		leased(t, s)
		l, err := s.lease()
		if err != nil {
			t.Fatal(err)
		}
		starts := s.file("starts")
		c := patiently(t, func() (opened, error) { return open(t.Context(), l, shell("echo $$ >>'"+starts+"'; cat")) })
		eventually(t, "the program begins", func() bool { return len(processes(starts)) > 0 })
		pid := processes(starts)[0]
		s.do = func(ctx context.Context, s *stage) outcome {
			other, err := do(ctx, l, c.ID())
			got := outcome{err: err}
			if other == nil && err == nil {
				got.ended = &pid
			}
			for _, c := range []io.Closer{other, c} {
				if c != nil {
					_ = c.Close()
				}
			}
			return got
		}
	}
}

func streamOperations() []operation {
	terminal := func(ctx context.Context, l *Lease, args []string) (opened, error) {
		return l.OpenTerminal(ctx, TerminalOptions{Args: args})
	}
	channel := func(ctx context.Context, l *Lease, args []string) (opened, error) {
		return l.OpenChannel(ctx, ChannelOptions{Args: args})
	}
	return []operation{
		{name: "use a terminal", real: true, shares: true, prepare: leased, run: typed},
		{name: "use a channel", real: true, shares: true, prepare: leased, run: piped},
		{name: "attach a terminal", real: true, once: true, run: done, prepare: consoleBegun(terminal, func(ctx context.Context, l *Lease, id string) (io.Closer, error) {
			t, err := l.AttachTerminal(ctx, id)
			if err != nil {
				return nil, err
			}
			return t, t.Resize(ctx, 100, 30)
		})},
		{name: "close a terminal", real: true, once: true, run: done, prepare: consoleBegun(terminal, func(ctx context.Context, l *Lease, id string) (io.Closer, error) {
			return nil, l.CloseTerminal(ctx, id)
		})},
		{name: "close a channel", real: true, once: true, run: done, prepare: consoleBegun(channel, func(ctx context.Context, l *Lease, id string) (io.Closer, error) {
			return nil, l.CloseChannel(ctx, id)
		})},
		{name: "release with an open terminal", cfg: Config{Reuse: true}, real: true, once: true, run: done, prepare: func(t *testing.T, s *stage) {
			consoleBegun(terminal, nil)(t, s)
			s.do = func(ctx context.Context, s *stage) outcome {
				receipt, err := s.host.Release(ctx, s.ref, ReleaseOptions{})
				return outcome{receipt: receipt, err: err}
			}
		}},
		{name: "ask an endpoint", real: true, shares: true, run: done, prepare: served(func(ctx context.Context, e *Endpoint) outcome {
			c := &streamClaim{want: []byte("POST /a?b=1 body"), unproved: true}
			q, err := http.NewRequestWithContext(ctx, "POST", e.URL().JoinPath("a").String()+"?b=1", strings.NewReader("body"))
			if err != nil {
				return outcome{err: err}
			}
			reply, err := e.Transport().RoundTrip(q)
			if err != nil {
				return outcome{err: err}
			}
			defer reply.Body.Close()
			c.got, err = io.ReadAll(reply.Body)
			return outcome{err: err, stream: c}
		})},
		{name: "a socket through an endpoint", real: true, shares: true, run: done, prepare: served(func(ctx context.Context, e *Endpoint) outcome {
			c := &streamClaim{want: bytes.Repeat([]byte{0, 1, 2, 255}, 500), unproved: true}
			conn, err := e.DialWebSocket(ctx, "/ws", WebSocketOptions{})
			if err != nil {
				return outcome{err: err}
			}
			defer untilEnd(ctx, conn)()
			if _, err := conn.Write(c.want); err != nil {
				return outcome{err: err}
			}
			c.got = make([]byte, len(c.want))
			n, err := io.ReadFull(conn, c.got)
			c.got = c.got[:n]
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				err = &Error{Op: "read", Kind: KindUnavailable, Message: "the socket ended"}
			}
			return outcome{err: err, stream: c}
		})},
	}
}

// served prepares an endpoint to a service that returns what it is sent.
func served(do func(context.Context, *Endpoint) outcome) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		leased(t, s)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/ws" {
				echo(w, r)
				return
			}
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer conn.CloseNow()
			for {
				kind, data, err := conn.Read(r.Context())
				if err != nil || conn.Write(r.Context(), kind, data) != nil {
					return
				}
			}
		}))
		s.end = append(s.end, server.Close)
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(u.Port())
		if err != nil {
			t.Fatal(err)
		}
		s.do = func(ctx context.Context, s *stage) outcome {
			l, err := s.lease()
			if err != nil {
				return outcome{err: err}
			}
			e, err := l.Endpoint(ctx, port)
			if err != nil {
				return outcome{err: err}
			}
			got := do(ctx, e)
			got.secrets = append(got.secrets, e.token())
			return got
		}
	}
}

// sandboxOperations are those that need a sandbox with files and processes.
func sandboxOperations() []operation {
	all := append(commandOperations(), transferOperations()...)
	all = append(all, streamOperations()...)
	return append(all,
		operation{name: "acquire a sandbox with processes", real: true, prepare: nothing, run: acquired},
		operation{name: "resume a sandbox with processes", cfg: Config{Reuse: true}, real: true, prepare: atRest, run: resumed},
	)
}
