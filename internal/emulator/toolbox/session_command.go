package toolbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A command is one command of a session, in a folder of its own:
//
//	command.sh   its text
//	output.log   its output: each line with the mark of its stream in front
//	exit_code    its exit code, once both streams have no holder any more
//	*.pipe       its streams, while it runs
type command struct {
	session *session
	id      string
	text    string
	dir     string
	async   bool // has an open standard input; else one that is at its end
	echo    bool // what is sent to its input appears in its log

	mu    sync.Mutex
	log   *os.File // while it runs
	input *os.File // while it runs, and only of an asynchronous one
	code  *int     // once somebody read it
}

func (c *command) file(name string) string { return filepath.Join(c.dir, name) }

// store writes the command's file and an empty log.
func (c *command) store() error {
	if c.session.t.diskFull() {
		return &fs.PathError{Op: "write", Path: c.file("command.sh"), Err: syscall.ENOSPC}
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(c.file("command.sh"), []byte(c.text+"\n"), 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.file("output.log"), nil, 0o600)
}

// exitCode reads the record of the exit. It returns nil as long as there is none, and the daemon's error for a record
// that was created and not yet written.
func (c *command) exitCode() (*int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code != nil {
		return c.code, nil
	}
	content, err := os.ReadFile(c.file("exit_code"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read exit code file: %w", err)
	}
	code, err := strconv.Atoi(strings.TrimRight(string(content), "\n"))
	if err != nil {
		return nil, fmt.Errorf("failed to convert exit code to int: %w", err)
	}
	c.code = &code
	return c.code, nil
}

// exited says whether the record of the exit exists, be it empty.
func (c *command) exited() bool {
	_, err := os.Stat(c.file("exit_code"))
	return err == nil
}

// run has the shell run the command, and returns when its exit was recorded. It returns false when nothing can follow
// in this session: its shell is gone, or the session itself.
func (c *command) run() bool {
	s := c.session
	streams, err := c.open()
	if err != nil {
		s.t.opts.Logger.Error("session command cannot run", "error", err)
		return false
	}
	defer streams.close()
	defer c.close()

	var labels sync.WaitGroup
	labels.Go(func() { label(streams.stdout, stdoutMark, c.append) })
	labels.Go(func() { label(streams.stderr, stderrMark, c.append) })
	labelled := make(chan struct{})
	go func() {
		defer close(labelled)
		labels.Wait()
	}()

	code, reported := 0, false
	if _, err := s.stdin.WriteString(s.line(c, streams.inputPath)); err == nil {
		select {
		case code = <-s.status:
			reported = true
		case <-s.dead:
			// A shell that reported the exit and was killed a moment later: both may be ready.
			select {
			case code = <-s.status:
				reported = true
			default:
			}
		case <-s.ctx.Done():
		}
	}
	c.closeInput()
	streams.release()
	select {
	case <-labelled:
	case <-s.ctx.Done():
		streams.close()
		<-labelled
		return false
	}
	if !reported {
		return false
	}
	c.record(code)
	return true
}

// record writes the exit code as a shell's redirection does: first the file, then its content.
func (c *command) record(code int) {
	content := []byte(strconv.Itoa(code) + "\n")
	window := c.session.t.opts.Quirks.ExitCodeWindow
	if window < 0 && !c.session.t.diskFull() {
		// Without a window the record must appear at once.
		err := os.WriteFile(c.file("exit_code.new"), content, 0o600)
		if err == nil {
			err = os.Rename(c.file("exit_code.new"), c.file("exit_code"))
		}
		if err != nil {
			c.session.t.opts.Logger.Warn("exit code not recorded", "error", err)
		}
		return
	}
	f, err := os.OpenFile(c.file("exit_code"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		c.session.t.opts.Logger.Warn("exit code not recorded", "error", err)
		return
	}
	defer f.Close()
	if c.session.t.diskFull() {
		return
	}
	timer := time.NewTimer(window)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.session.ctx.Done():
	}
	_, _ = f.Write(content)
}

// append adds whole lines to the log, also once the command has ended: the echo of an input may come that late. On a full disk
// they are lost.
func (c *command) append(lines []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session.t.diskFull() {
		return
	}
	log := c.log
	if log == nil {
		var err error
		if log, err = os.OpenFile(c.file("output.log"), os.O_WRONLY|os.O_APPEND, 0); err != nil {
			return // it went with its session
		}
		defer log.Close()
	}
	_, _ = log.Write(lines)
}

// send writes to the command's standard input, with a newline, and waits while the pipe is full.
func (c *command) send(data string) error {
	c.mu.Lock()
	input := c.input
	c.mu.Unlock()
	if input == nil {
		return fmt.Errorf("failed to open input pipe: %w",
			&fs.PathError{Op: "open", Path: c.file("input.pipe"), Err: syscall.ENOENT})
	}
	data += "\n"
	if _, err := input.WriteString(data); err != nil {
		return fmt.Errorf("failed to write to input pipe: %w", err)
	}
	if c.echo {
		c.append(append([]byte(stdoutMark), data...))
	}
	return nil
}

// streams are the ends of a running command's pipes that are not the command's.
type streams struct {
	stdout, stderr *os.File   // read
	writers        []*os.File // keep the readers from seeing an end before the shell has opened its ends
	inputPath      string
}

// release lets the readers see the end of the output, once the shell has reported that it closed its ends.
func (p *streams) release() {
	for _, w := range p.writers {
		w.Close()
	}
	p.writers = nil
}

func (p *streams) close() {
	p.release()
	for _, f := range []*os.File{p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// open makes the command's pipes and opens its log.
func (c *command) open() (_ *streams, err error) {
	p := &streams{inputPath: os.DevNull}
	defer func() {
		if err != nil {
			p.close()
			c.close()
		}
	}()
	for _, stream := range []struct {
		name string
		read **os.File
	}{{"stdout.pipe", &p.stdout}, {"stderr.pipe", &p.stderr}} {
		path := c.file(stream.name)
		if err := makePipe(path); err != nil {
			return nil, err
		}
		if *stream.read, err = openPipe(path, os.O_RDONLY); err != nil {
			return nil, err
		}
		w, err := openPipe(path, os.O_WRONLY)
		if err != nil {
			return nil, err
		}
		p.writers = append(p.writers, w)
	}
	var input *os.File
	if c.async {
		p.inputPath = c.file("input.pipe")
		if err := makePipe(p.inputPath); err != nil {
			return nil, err
		}
		// Open for both, so that neither this nor the shell's own open has to wait for the other.
		if input, err = openPipe(p.inputPath, os.O_RDWR); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(c.file("output.log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		if input != nil {
			input.Close()
		}
		return nil, err
	}
	c.mu.Lock()
	c.input, c.log = input, log
	c.mu.Unlock()
	return p, nil
}

// closeInput ends the command's input, and with it a send that waits for room.
func (c *command) closeInput() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.input != nil {
		c.input.Close()
		c.input = nil
	}
}

// close closes what open opened for the command itself, and removes its pipes.
func (c *command) close() {
	c.closeInput()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log != nil {
		c.log.Close()
		c.log = nil
	}
	for _, name := range []string{"input.pipe", "stdout.pipe", "stderr.pipe"} {
		_ = os.Remove(c.file(name))
	}
}
