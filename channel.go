package leasehold

import (
	"context"
	"fmt"
	"io"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// ChannelOptions describe a channel. Args is required; the zero value of every other field is useful.
type ChannelOptions struct {
	// ID names the channel on its lease: 1 to 100 of A-Z a-z 0-9 _ -. With it a channel can be closed although the answer to
	// its opening was lost. Empty: one is made up.
	ID string
	// Args are the program, looked up in PATH, and its arguments, of any bytes but NUL. No shell reads them. They and Env may
	// take some 100 KiB together.
	Args []string
	// Dir is the directory to run in, relative to the lease's workspace, or absolute. Empty: the workspace.
	Dir string
	// Env wins over what the login shell's start-up files set.
	Env map[string]string
	// Stderr receives the program's standard error. It is called by one goroutine, and a writer that waits makes the program
	// wait, once it has written some 100 KiB more. If it fails, the channel is closed. Nil: standard error is discarded.
	Stderr io.Writer
}

// Channel is a program's standard input and output as one stream of bytes, of any value, in each direction: Read returns what
// it writes, and Write gives it input. Neither is lost, added to or changed: output that was, on a connection that does so,
// is followed by an error. Its methods are safe for concurrent use. It must be closed, unless the lease is given back.
//
// Either side makes the other wait: at most some 400 KiB of output that was not read is held, and half as much input that
// the program has not taken.
type Channel struct {
	id     string
	c      *console
	events *channelEvents
}

// OpenChannel starts a program with a channel to it, and returns once it has taken over. Ctx bounds the opening alone. The
// sandbox needs stty, dd, base64, tr and cat, of GNU or BusyBox. The errors are those of [Lease.OpenTerminal]; [ErrRefused] is
// also that of a sandbox that lacks one of these. A program that is not found, or cannot be executed, is no error: the exit
// code is 127, or 126.
func (l *Lease) OpenChannel(ctx context.Context, options ChannelOptions) (_ *Channel, err error) {
	const op = "open channel"
	ctx, span := l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	var p problems
	if len(options.Args) == 0 {
		p.add("ChannelOptions.Args", "is empty")
	}
	login := checkConsole(&p, "ChannelOptions", l, options.ID, options.Args, options.Dir, options.Env)
	text := script.Terminal{Mark: newConsoleMark(), Login: login}
	env := carried(&p, "ChannelOptions.Args", func() (map[string]string, error) { return text.Channel(options.Stderr != nil) })
	if err := p.err(op); err != nil {
		return nil, err
	}
	name, id := consoleName(ActivityChannel, options.ID)
	var e *channelEvents
	c, opened, err := l.newConsole(ActivityChannel, op, name, text.Mark, func(c *console) {
		e = newChannelEvents(c, options.Stderr)
		c.farewell = e.input.kill
	})
	if err != nil {
		return nil, err
	}
	defer opened()
	if err := c.open(ctx, env, e); err != nil {
		return nil, err
	}
	return &Channel{id: id, c: c, events: e}, nil
}

// CloseChannel ends the channel of this id, and its program, whoever opened it and whether or not anybody was told that it
// was. It returns nil if there is none.
func (l *Lease) CloseChannel(ctx context.Context, id string) error {
	return l.closeConsole(ctx, ActivityChannel, "close channel", id)
}

// Format writes which channel it is, whatever the verb.
func (ch *Channel) Format(s fmt.State, _ rune) { ch.c.format(s, "channel", ch.id) }

// ID returns the id of the channel on its lease.
func (ch *Channel) ID() string { return ch.id }

// Read returns what the program wrote to its standard output, as soon as there is something. It returns [io.EOF] when the
// program has ended and all was read, [ErrClosed] after Close, and another error if the connection ended first: then
// something may be missing.
func (ch *Channel) Read(p []byte) (int, error) { return ch.c.in.Read(p) }

// Write gives the program input. It waits while some 200 KiB are held that the program has not taken. It fails with
// [ErrClosed] after CloseWrite and Close, and once the program has ended or reads no more.
func (ch *Channel) Write(p []byte) (int, error) { return ch.events.input.write(p) }

// ReadFrom writes what r has until its end, in pieces as large as they can be, for [io.Copy]. What r returns is written at
// once. It fails with [io.ErrNoProgress] if r returns nothing, and no error, a hundred times in a row.
func (ch *Channel) ReadFrom(r io.Reader) (int64, error) {
	buf := make([]byte, inputWindow)
	from := stream.Lively{From: r}
	var sum int64
	for {
		n, err := from.Read(buf)
		if n > 0 {
			n, writeErr := ch.Write(buf[:n])
			if sum += int64(n); writeErr != nil {
				return sum, writeErr
			}
		}
		if err == io.EOF {
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// CloseWrite ends the program's input, once it has taken what was written. It waits for a Write under way, which a program
// that does not read may keep until Close. Nothing else ends the input: a channel that breaks kills the program.
func (ch *Channel) CloseWrite() error { return ch.events.input.end() }

// Wait waits for the end of the program or of the connection, and says which it was. The error is nil with [ExitExited], if
// standard error came whole where it is wanted, and else says why that or the exit is not known. What the program wrote can
// still be read. It can be called at any time, and again.
func (ch *Channel) Wait(ctx context.Context) (Exit, error) { return ch.c.wait(ctx) }

// Close ends the channel, and the program if it runs. It returns within seconds, and nil if the program's terminal is known to
// be gone; if not, it may be called again. What was not read is lost, and so is what the writer of standard error does not
// take within a moment.
func (ch *Channel) Close() error {
	ch.c.in.drop(ch.c.closed("read"))
	err := ch.c.close(context.Background(), "close")
	ch.events.giveUp()
	return err
}
