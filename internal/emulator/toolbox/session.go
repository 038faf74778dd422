package toolbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// sessionGrace is how long the processes of a deleted session have between SIGTERM and SIGKILL.
const sessionGrace = 5 * time.Second

var errSessionNotFound = errors.New("not found: session not found")

// A session is one shell that runs commands one after another, each by sourcing a file. What a command does to the
// shell stays: its directory, its variables, and its end. A session whose shell was ended by a command stays in the
// list, its running and queued commands never finish, and further ones break the pipe.
type session struct {
	t     *Toolbox
	id    string
	dir   string        // of the session's commands
	ready chan struct{} // closed when start has returned

	ctx    context.Context // ends with the deletion, after the processes have ended, or with the toolbox
	cancel context.CancelFunc
	work   sync.WaitGroup

	shell  *exec.Cmd
	stdin  *os.File      // the shell's script, one line for each command
	status chan int      // the exit codes that the shell reports, each after its command
	dead   chan struct{} // closed when the shell was reaped
	wake   chan struct{} // tells the runner of a new command

	mu       sync.Mutex
	started  bool
	ended    bool // deletion has begun
	commands map[string]*command
	queue    []*command
}

// sessionTable holds the sessions of a toolbox. The zero value is empty and ready.
type sessionTable struct {
	mu     sync.Mutex
	closed bool
	byID   map[string]*session
}

// reserve makes the id the session's own. It fails when the id is taken.
func (p *sessionTable) reserve(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.byID[s.id]; taken || p.closed {
		return false
	}
	if p.byID == nil {
		p.byID = make(map[string]*session)
	}
	p.byID[s.id] = s
	return true
}

// get returns a session that runs, or nil. It waits for one that is being started.
func (p *sessionTable) get(id string) *session {
	p.mu.Lock()
	s := p.byID[id]
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	<-s.ready
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return nil
	}
	return s
}

func (p *sessionTable) remove(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID[s.id] == s {
		delete(p.byID, s.id)
	}
}

// list returns the sessions in random order, as the daemon does.
func (p *sessionTable) list() []*session {
	p.mu.Lock()
	ids := slices.Collect(maps.Keys(p.byID))
	p.mu.Unlock()
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	var sessions []*session
	for _, id := range ids {
		if s := p.get(id); s != nil {
			sessions = append(sessions, s)
		}
	}
	return sessions
}

// close kills the sessions of a toolbox whose context has ended, and waits for their goroutines.
func (p *sessionTable) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	sessions := p.list()
	if len(sessions) == 0 {
		return
	}
	pids := make([]int, 0, len(sessions))
	for _, s := range sessions {
		pids = append(pids, s.shell.Process.Pid)
	}
	sessions[0].t.opts.Group.KillTrees(pids, 0)
	for _, s := range sessions {
		s.finish()
		p.remove(s)
	}
}

func newSession(t *Toolbox, id string) *session {
	s := &session{
		t:        t,
		id:       id,
		dir:      filepath.Join(t.stateDir(), folderName(id)),
		ready:    make(chan struct{}),
		status:   make(chan int, 1),
		dead:     make(chan struct{}),
		wake:     make(chan struct{}, 1),
		commands: make(map[string]*command),
	}
	s.ctx, s.cancel = context.WithCancel(t.ctx)
	return s
}

// folderName keeps a session's folder inside the sessions' folder, whatever the id.
func folderName(id string) string {
	name := url.PathEscape(id)
	if strings.HasPrefix(name, ".") {
		name = "%2E" + name[1:]
	}
	return name
}

// start starts the shell in a directory. It is called once.
func (s *session) start(dir string) (err error) {
	defer close(s.ready)
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	script, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer script.Close()
	reports, stdout, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return err
	}
	defer stdout.Close()
	s.shell = s.t.command(nil, s.t.shell())
	s.shell.Dir = dir
	s.shell.Stdin, s.shell.Stdout = script, stdout
	if err := s.t.opts.Group.Start(s.shell); err != nil {
		stdin.Close()
		reports.Close()
		return err
	}
	s.stdin = stdin
	s.work.Go(func() {
		defer close(s.dead)
		_ = s.shell.Wait()
	})
	s.work.Go(func() { s.readReports(reports) })
	s.work.Go(s.runCommands)
	// A process that holds the shell's stdout must not keep the reader of reports after the session.
	context.AfterFunc(s.ctx, func() { reports.Close() })
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	return nil
}

// readReports passes on the exit codes that the shell prints.
func (s *session) readReports(reports *os.File) {
	defer reports.Close()
	for lines := bufio.NewScanner(reports); lines.Scan(); {
		code, err := strconv.Atoi(lines.Text())
		if err != nil {
			continue
		}
		select {
		case s.status <- code:
		case <-s.ctx.Done():
			return
		}
	}
}

// submit queues a command. It fails with the daemon's own words.
func (s *session) submit(text string, async, echo bool) (*command, error) {
	c := &command{
		session: s,
		id:      uuid.NewString(),
		text:    text,
		async:   async,
		echo:    echo,
	}
	c.dir = filepath.Join(s.dir, c.id)
	if err := c.store(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errSessionNotFound
	}
	s.commands[c.id] = c
	select {
	case <-s.dead:
		// What the daemon gets when it writes to the standard input of a shell that has ended.
		return nil, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
	default:
	}
	s.queue = append(s.queue, c)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return c, nil
}

func (s *session) command(id string) *command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commands[id]
}

// list returns the commands in random order, as the daemon does.
func (s *session) list() []*command {
	s.mu.Lock()
	commands := slices.Collect(maps.Values(s.commands))
	s.mu.Unlock()
	rand.Shuffle(len(commands), func(i, j int) { commands[i], commands[j] = commands[j], commands[i] })
	return commands
}

// runCommands runs the queue until the session or its shell ends.
func (s *session) runCommands() {
	for {
		select {
		case <-s.wake:
		case <-s.dead:
			return
		case <-s.ctx.Done():
			return
		}
		for {
			s.mu.Lock()
			if len(s.queue) == 0 {
				s.mu.Unlock()
				break
			}
			c := s.queue[0]
			s.queue = s.queue[1:]
			s.mu.Unlock()
			if !c.run() {
				return
			}
		}
	}
}

// delete ends the session's processes, then the session, then its files. It reports whether this call did it; another
// one that is under way is waited for.
func (s *session) delete() bool {
	s.mu.Lock()
	first := !s.ended
	s.ended = true
	s.mu.Unlock()
	if !first {
		<-s.ctx.Done()
		return false
	}
	delay := time.NewTimer(max(0, s.t.opts.Quirks.SessionDeleteDelay))
	defer delay.Stop()
	s.t.opts.Group.KillTree(s.shell.Process.Pid, sessionGrace)
	select {
	case <-delay.C:
	case <-s.t.ctx.Done():
	}
	s.finish()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.opts.Logger.Warn("session folder not removed", "error", err)
	}
	s.t.sessions.remove(s)
	return true
}

// finish ends the session, whose processes were killed, and waits for its goroutines.
func (s *session) finish() {
	s.cancel()
	s.stdin.Close()
	s.work.Wait()
}

// quote makes one word for any Bourne shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// line is what the shell is told to run a command. The braces keep the redirections from staying. The shell's own
// standard output, which no command inherits, carries the exit code.
func (s *session) line(c *command, input string) string {
	return fmt.Sprintf("{ . %s; } <%s >%s 2>%s; command printf '%%d\\n' \"$?\"\n",
		quote(c.file("command.sh")), quote(input), quote(c.file("stdout.pipe")), quote(c.file("stderr.pipe")))
}
