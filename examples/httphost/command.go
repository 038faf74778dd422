package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// commandState is what is known of a command.
type commandState string

const (
	commandStarting commandState = "starting" // it may have been handed to the sandbox
	commandRunning  commandState = "running"
	commandDetached commandState = "detached" // it may run, and nobody observes it until its lease is resumed
	commandExited   commandState = "exited"   // with the exit code of its result
	commandStopped  commandState = "stopped"  // because of its timeout, of a limit, or of the service's end
	commandFailed   commandState = "failed"   // it did not begin, and never will
	commandUnknown  commandState = "unknown"  // nobody will ever know
)

func (s commandState) final() bool {
	return s == commandExited || s == commandStopped || s == commandFailed || s == commandUnknown
}

var (
	errUnrecorded = refusal(http.StatusConflict, "the service was killed while it started the command")
	errUnbegun    = refusal(http.StatusConflict, "the command did not begin")
)

// command is one command of a lease, in a directory of its own: command.json, and the log of its output.
type command struct {
	dir string

	mu       sync.Mutex
	record   commandRecord
	log      *outputLog         // nil: nothing is added to it any more
	process  *leasehold.Process // nil: nobody observes it
	detached bool               // on purpose
	changed  chan struct{}      // closed with the next change
	ended    chan struct{}      // closed when nobody observes it any more
}

// commandRecord is a command as it is written down, and, without its last fields, as clients see it.
type commandRecord struct {
	ID        string                `json:"id"`
	Script    string                `json:"script,omitempty"`
	Args      []string              `json:"args,omitempty"`
	Dir       string                `json:"dir,omitempty"`
	StartedAt time.Time             `json:"startedAt"`
	State     commandState          `json:"state"`
	Result    *commandResult        `json:"result,omitempty"` // of one that has ended
	Digest    string                `json:"digest,omitempty"` // of the request
	Ref       *leasehold.CommandRef `json:"ref,omitempty"`
}

type commandResult struct {
	ExitCode      *int           `json:"exitCode,omitempty"` // none: it is not known
	Complete      bool           `json:"complete"`           // the log holds all that was written
	TimedOut      bool           `json:"timedOut,omitempty"`
	StopConfirmed bool           `json:"stopConfirmed,omitempty"`
	StdoutBytes   int64          `json:"stdoutBytes"`
	StderrBytes   int64          `json:"stderrBytes"`
	DurationMs    int64          `json:"durationMs"`
	Kind          leasehold.Kind `json:"kind,omitempty"`
	Error         string         `json:"error,omitempty"`
}

func outputFile(dir string) string { return filepath.Join(dir, "output") }

// newCommand makes room for a command, once for each id.
func (l *lease) newCommand(q commandRequest, digest string, limits limits) (_ *command, made bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.commands[q.ID]; c != nil {
		return c, false, nil
	}
	if len(l.commands) >= limits.history {
		return nil, false, errHistory
	}
	c := &command{dir: filepath.Join(l.dir, "commands", q.ID), changed: make(chan struct{}), ended: make(chan struct{})}
	c.record = commandRecord{
		ID: q.ID, Script: q.Script, Args: q.Args, Dir: q.Dir, StartedAt: time.Now().UTC(), State: commandStarting, Digest: digest,
	}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, false, err
	}
	if c.log, err = openLog(outputFile(c.dir), limits.output); err == nil {
		err = errors.Join(syncDir(filepath.Dir(c.dir)), c.save())
	}
	if err != nil {
		return nil, false, errors.Join(err, os.RemoveAll(c.dir))
	}
	l.commands[q.ID] = c
	return c, true, nil
}

// loadCommands reads the commands of earlier processes.
func (l *lease) loadCommands(limit int64) error {
	l.commands = make(map[string]*command)
	entries, err := os.ReadDir(filepath.Join(l.dir, "commands"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		c := &command{dir: filepath.Join(l.dir, "commands", entry.Name()), changed: make(chan struct{}), ended: make(chan struct{})}
		if err := readFile(filepath.Join(c.dir, "command.json"), &c.record); err != nil {
			if errors.Is(err, os.ErrNotExist) { // it was on its way in or out, and never started
				err = os.RemoveAll(c.dir)
			}
			if err != nil {
				return err
			}
			continue
		}
		if c.record.State.final() {
			close(c.ended)
		} else {
			c.record.State = commandDetached
			if c.log, err = openLog(outputFile(c.dir), limit); err != nil {
				return err
			}
		}
		l.commands[entry.Name()] = c
	}
	return nil
}

// forget removes a command that did not begin.
func (l *lease) forget(c *command) error {
	l.mu.Lock()
	delete(l.commands, c.record.ID)
	l.mu.Unlock()
	c.finish(commandFailed, leasehold.Result{}, errUnbegun) // for who has asked for its events meanwhile
	return os.RemoveAll(c.dir)
}

// detach lets go of the lease's commands, which go on.
func (l *lease) detach() {
	for _, c := range l.all() {
		c.detach()
	}
}

// settle waits until nobody observes a command of the lease any more.
func (l *lease) settle() {
	for _, c := range l.all() {
		if c.observed() != nil {
			<-c.ended
		}
	}
}

// loseCommands ends what nobody observes, and nobody can any more.
func (l *lease) loseCommands(why string) {
	for _, c := range l.all() {
		if c.view().State == commandDetached {
			c.finish(commandUnknown, leasehold.Result{}, refusal(http.StatusConflict, why))
		}
	}
}

// save writes the record. c.mu is held, or nobody else has the command yet.
func (c *command) save() error { return writeFile(filepath.Join(c.dir, "command.json"), c.record) }

// wake tells those who wait for a change. c.mu is held.
func (c *command) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// progress returns how much of the log there is, if it may still grow, what is known, and what is closed with the next change.
func (c *command) progress() (size int64, record commandRecord, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log != nil {
		size = c.log.size
	}
	return size, c.record, c.changed
}

// view is the record as clients see it.
func (c *command) view() commandRecord {
	_, record, _ := c.progress()
	record.Digest, record.Ref = "", nil
	return record
}

func (c *command) observed() *leasehold.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

// offsets returns where the log ends, if something may be added to it.
func (c *command) offsets() (_ leasehold.Offsets, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil {
		return leasehold.Offsets{}, false
	}
	return c.log.bytes, true
}

// stream returns the writer that the library gives one of the streams to.
func (c *command) stream(stream byte) io.Writer { return &streamWriter{c, stream} }

type streamWriter struct {
	command *command
	stream  byte
}

func (w *streamWriter) Write(p []byte) (int, error) {
	c := w.command
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil {
		return 0, os.ErrClosed
	}
	if err := c.log.append(w.stream, p); err != nil {
		return 0, err
	}
	c.wake()
	return len(p), nil
}

// observe writes down the reference of a command that runs.
func (c *command) observe(p *leasehold.Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ref := p.Ref()
	c.process, c.record.Ref, c.record.State = p, &ref, commandRunning
	c.wake()
	return c.save()
}

func (c *command) detach() {
	c.mu.Lock()
	c.detached = true
	p := c.process
	c.mu.Unlock()
	if p != nil {
		p.Detach()
	}
}

// outcome waits for the end of a command, and says what became of it. One that was started just now, and is not found, could
// not enter its directory.
func (c *command) outcome(p *leasehold.Process, fresh bool) (commandState, leasehold.Result, error) {
	result, err := p.Wait()
	c.mu.Lock()
	detached := c.detached && errors.Is(err, leasehold.ErrCanceled)
	c.mu.Unlock()
	switch {
	case detached:
		return commandDetached, result, err
	case result.Dispatched == leasehold.DispatchedNo, fresh && errors.Is(err, leasehold.ErrNotFound):
		return commandFailed, result, err
	case result.StopConfirmed:
		return commandStopped, result, err
	case result.Exited:
		return commandExited, result, err
	}
	return commandUnknown, result, err
}

// finish ends the observation of a command. The log is whole by then, as far as it ever will be.
func (c *command) finish(state commandState, result leasehold.Result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil { // its observation has ended before
		return
	}
	c.record.State, c.process = state, nil
	if state.final() {
		r := &commandResult{
			Complete: result.Complete, TimedOut: result.TimedOut, StopConfirmed: result.StopConfirmed,
			StdoutBytes: c.log.bytes.Stdout, StderrBytes: c.log.bytes.Stderr,
			DurationMs: time.Since(c.record.StartedAt).Milliseconds(),
		}
		if state == commandExited {
			r.ExitCode = &result.ExitCode
		}
		if errors.Is(err, errOutputLimit) {
			r.Kind, r.Error = leasehold.KindLimit, fmt.Sprintf("it wrote more than %d bytes", c.log.limit)
		} else if err != nil {
			p := problemOf(err)
			r.Kind, r.Error = p.Kind, p.Detail
		}
		c.record.Result = r
	}
	err = errors.Join(c.save(), c.log.file.Close())
	if err != nil && c.record.Result != nil {
		c.record.Result.Complete = false // the disk, or the directory, is gone
	}
	c.log = nil
	c.wake()
	close(c.ended)
}
