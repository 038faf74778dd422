package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

const (
	defaultCols = 80
	defaultRows = 24
	// maxTerminalSize is the daemon's limit of columns and of rows.
	maxTerminalSize = 1000
	// maxUnread is how much output of a terminal is kept until it is read.
	maxUnread = 1 << 20
)

// TerminalOptions describe a terminal. The zero value is a login shell in the lease's workspace, on 80 columns and 24 rows.
type TerminalOptions struct {
	// ID names the terminal on its lease: 1 to 100 of A-Z a-z 0-9 _ -. With it a terminal can be closed although the answer
	// to its opening was lost, and found again by another process. Empty: one is made up.
	ID string
	// Args are the program, looked up in PATH, and its arguments, of any bytes but NUL. They and Env may take some 100 KiB
	// together. Nil: the login shell of the sandbox's user.
	Args []string
	// Dir is the directory to run in, relative to the lease's workspace, or absolute. Empty: the workspace.
	Dir string
	// Env wins over what the login shell's start-up files set. TERM is xterm-256color if it is not here.
	Env map[string]string
	// Cols and Rows are the size, at most 1000 each. Zero: 80 and 24.
	Cols, Rows int
}

// Terminal is a program that runs interactively on a pseudo-terminal of a sandbox: Read returns what it prints, Write types.
// Its methods are safe for concurrent use. It must be closed, unless the lease is given back.
//
// The connection is looked after: a peer that does not answer a ping within 15 seconds is given up. While a Write waits, as it
// does for a program that does not read, no ping can be sent, and a peer that is gone is noticed when TCP gives it up. What ends
// the connection, ends the Terminal, and not the program: [Lease.AttachTerminal] connects again.
type Terminal struct {
	id string
	c  *console
}

// OpenTerminal starts a program on a new terminal, and returns once it has taken over. What the login shell prints before
// is not part of its output. Ctx bounds the opening alone. The errors:
//
//   - [ErrInvalid]: the options cannot be had; nothing was sent.
//   - [ErrConflict]: the lease has a terminal of this ID.
//   - [ErrNotFound]: the directory cannot be entered.
//   - [ErrRefused]: the sandbox's shell ended at once.
//   - [ErrClosed]: the lease was given back, or the terminal closed, meanwhile.
//   - [ErrTimeout]: it did not begin within [Config.CallTimeout].
//   - Others are the provider's refusals and failures, and the end of ctx. The terminal is removed; should that fail too,
//     giving the lease back removes it, or [Lease.CloseTerminal].
func (l *Lease) OpenTerminal(ctx context.Context, options TerminalOptions) (_ *Terminal, err error) {
	const op = "open terminal"
	ctx, span := l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	var p problems
	if options.Args != nil && len(options.Args) == 0 {
		p.add("TerminalOptions.Args", "is empty")
	}
	cols := checkTerminalSize(&p, "TerminalOptions.Cols", options.Cols, defaultCols)
	rows := checkTerminalSize(&p, "TerminalOptions.Rows", options.Rows, defaultRows)
	login := checkConsole(&p, "TerminalOptions", l, options.ID, options.Args, options.Dir, options.Env)
	text := script.Terminal{Mark: newConsoleMark(), Login: login}
	env := carried(&p, "TerminalOptions.Args", func() (map[string]string, error) { return text.Env(cols, rows) })
	if err := p.err(op); err != nil {
		return nil, err
	}
	name, id := consoleName(ActivityTerminal, options.ID)
	c, opened, err := l.newConsole(ActivityTerminal, op, name, text.Mark, terminalInflow)
	if err != nil {
		return nil, err
	}
	defer opened()
	if err := c.open(ctx, env, terminalEvents{c}); err != nil {
		return nil, err
	}
	return &Terminal{id: id, c: c}, nil
}

// AttachTerminal connects to a terminal that runs, which another process opened, or whose connection was lost. What it printed
// while nobody was connected is lost, but an exit is not, for ten minutes. The program does not notice. Ctx bounds the
// connecting alone. An earlier Terminal of this id and provider ends with [ErrClosed]. AttachTerminal fails with [ErrNotFound] if
// there is no terminal of this id, with [ErrTimeout] after [Config.CallTimeout], and otherwise as [Lease.OpenTerminal] does.
func (l *Lease) AttachTerminal(ctx context.Context, id string) (_ *Terminal, err error) {
	const op = "attach terminal"
	ctx, span := l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	var p problems
	checkConsoleID(&p, "id", id, true)
	if err := p.err(op); err != nil {
		return nil, err
	}
	if err := unsent(ctx, op, l.ref.Sandbox); err != nil {
		return nil, err
	}
	name, id := consoleName(ActivityTerminal, id)
	if old := l.consoles.find(name); old != nil {
		old.leave()
	}
	c, opened, err := l.newConsole(ActivityTerminal, op, name, "", terminalInflow)
	if err != nil {
		return nil, err
	}
	defer opened()
	err = c.opening(ctx, func(ctx context.Context) error {
		env, err := c.box.DescribePTY(ctx, name)
		c.dispatched(err)
		if err != nil {
			var remote *daytona.Error
			c.gone = errors.As(err, &remote) && remote.NotFound()
			return err
		}
		if c.mark = script.CarriedMark(env); c.mark == "" {
			c.foreign.Store(true)
			return c.fail(KindNotFound, "there is a terminal of this id, and it is not this library's")
		}
		c.begin(nil)
		return c.connect(terminalEvents{c})
	})
	if err != nil {
		c.leave()
		return nil, err
	}
	return &Terminal{id: id, c: c}, nil
}

// CloseTerminal ends the terminal of this id, and what runs on it, whoever opened it and whether or not anybody was told that
// it was. It returns nil if there is none.
func (l *Lease) CloseTerminal(ctx context.Context, id string) error {
	return l.closeConsole(ctx, ActivityTerminal, "close terminal", id)
}

// Format writes which terminal it is, whatever the verb.
func (t *Terminal) Format(s fmt.State, _ rune) { t.c.format(s, "terminal", t.id) }

// ID returns the id of the terminal on its lease.
func (t *Terminal) ID() string { return t.id }

// Read returns what the program printed, as soon as there is something. Up to 1 MiB is kept until it is read; then the
// connection is not read any more, and if that lasts until the daemon's own queue is full it closes the connection: Read
// returns what was kept, and then [ErrLimit], or [ErrUnavailable] if not even the daemon's word for that got through.
//
// It returns [io.EOF] when the program has ended and all that it printed was read, [ErrClosed] after Close, and another error
// once the connection has ended.
func (t *Terminal) Read(p []byte) (int, error) { return t.c.in.Read(p) }

// Write types p. It returns when all was handed to the connection; a program that does not read makes it wait, sooner or
// later, and Close ends that. In a terminal that is not raw, p is subject to what terminals do: lines of more than 4095 bytes
// are cut, and control characters have their meaning.
func (t *Terminal) Write(p []byte) (int, error) { return t.c.write("write", p) }

// Resize changes the size, of which the program is told by SIGWINCH. It fails with [ErrInvalid] for sizes that are not 1 to
// 1000, and with [ErrClosed] if the program has ended.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	const op = "resize terminal"
	var p problems
	if checkTerminalSize(&p, "cols", cols, 0) == 0 {
		p.add("cols", "must be 1 to %d", maxTerminalSize)
	}
	if checkTerminalSize(&p, "rows", rows, 0) == 0 {
		p.add("rows", "must be 1 to %d", maxTerminalSize)
	}
	if err := p.err(op); err != nil {
		return err
	}
	if err := t.c.tooLate(op); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, t.c.l.p.cfg.CallTimeout)
	defer cancel()
	err := t.c.box.ResizePTY(ctx, t.c.name, cols, rows)
	var remote *daytona.Error
	if errors.As(err, &remote) && (remote.NotFound() || remote.Status == http.StatusGone && remote.Structured) {
		e := t.c.fail(KindClosed, "the terminal has ended")
		e.Op, e.Dispatched = op, DispatchedYes
		return e
	}
	return t.c.l.observe(op, err)
}

// Wait waits for the end of the program or of the connection, and says which it was. The error is nil with [ExitExited], and
// else says why the exit is not known. It can be called at any time, and again. A terminal whose output is not read may never
// come to its end.
func (t *Terminal) Wait(ctx context.Context) (Exit, error) { return t.c.wait(ctx) }

// Close ends the terminal, and what runs on it. It returns within seconds, and nil if the terminal is known to be gone; if
// not, it may be called again. What was not read is lost. Of a Terminal that [Lease.AttachTerminal] has replaced it returns nil,
// and the terminal lives on.
func (t *Terminal) Close() error {
	t.c.in.drop(t.c.closed("read"))
	return t.c.close(context.Background(), "close")
}

func terminalInflow(c *console) { c.in = newInflow(c.life, maxUnread, nil) }

// terminalEvents takes what a terminal sends.
type terminalEvents struct{ c *console }

func (t terminalEvents) Data(_ stream.Stream, p []byte) {
	if !t.c.heard {
		t.c.in.put(p)
	}
}

func (t terminalEvents) Round(stream.Stream, int64) error { return nil }

func (t terminalEvents) Ended(stream.Stream) {}

// Said hears the exit, and tells the script that it was heard, so that it ends. It may be said again meanwhile.
func (t terminalEvents) Said(word, arg string) error {
	if word != script.SaysExit {
		return t.c.said(word, arg)
	}
	code, err := strconv.Atoi(arg)
	if err != nil {
		return stream.ErrDuplex
	}
	if t.c.heard {
		return nil
	}
	t.c.heard = true
	t.c.begin(nil)
	t.c.in.end(io.EOF)
	t.c.settle(exited(code), nil)
	t.c.hangUp(script.Terminal{Mark: t.c.mark}.Ack())
	return nil
}

func (t terminalEvents) receivingEnded(err error) (remove bool) {
	if t.c.heard {
		return true
	}
	t.c.settle(t.c.unheard(err), t.c.reason("wait", err))
	t.c.in.end(t.c.reason("read", err))
	return false
}

func checkTerminalSize(p *problems, field string, size, standard int) int {
	switch {
	case size == 0:
		return standard
	case size < 0 || size > maxTerminalSize:
		p.add(field, "must be 1 to %d", maxTerminalSize)
		return 1
	}
	return size
}

// checkConsole returns the command of a console in the form that the script builder takes.
func checkConsole(p *problems, options string, l *Lease, id string, args []string, dir string, env map[string]string) script.Login {
	checkConsoleID(p, options+".ID", id, false)
	login := script.Login{Profiles: script.NoProfiles, Args: slices.Clone(args), Env: maps.Clone(env), Dir: l.inWorkspace(dir)}
	login.Check(p.of(options))
	return login
}

var consoleID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

func checkConsoleID(p *problems, field, id string, required bool) {
	if (id != "" || required) && !consoleID.MatchString(id) {
		p.add(field, "must be 1 to 100 of A-Z a-z 0-9 _ -")
	}
}

// carried returns the environment that carries a command, or adds why it cannot.
func carried(p *problems, field string, build func() (map[string]string, error)) map[string]string {
	env, err := build()
	if err != nil {
		p.add(field, "cannot be sent: %s", err)
	}
	return env
}

// consoleName returns the name of a terminal in the sandbox, and the id that the host knows it by.
func consoleName(kind ActivityKind, id string) (name, known string) {
	if id == "" {
		id = strings.ToLower(rand.Text())
	}
	return "leasehold-" + string(kind) + "-" + id, id
}

func newConsoleMark() string { return "lh" + strings.ToLower(rand.Text()) }
