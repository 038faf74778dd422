// Package toolbox is the daemon that runs inside a sandbox, as a handler: commands, sessions, logs, terminals and files
// of one emulated sandbox, which is a directory and the processes of a [proc.Group].
//
// It behaves like the daemon v0.190, the unpleasant parts included, since a client that only knows a tidy daemon fails
// on the real one. Paths are those of the toolbox's OpenAPI document. What a client can see of the daemon was measured;
// how it is done here is another matter: most of all, the daemon labels the output of session commands with loops of
// the shell, at 2 to 6 MB/s, and this package does it in Go. Comments name the other differences.
//
// Where the system has no named pipes or process groups, as on Windows, files work and processes cannot be started.
package toolbox

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/emulator/proc"
)

// Version is the version that the toolbox reports.
const Version = "v0.190.0"

// Options configure a Toolbox.
type Options struct {
	Home    string            // HOME of every process; sessions are kept in its .daytona/sessions. Required, absolute
	WorkDir string            // where processes start and relative paths begin; empty means Home
	TempDir string            // TMPDIR of every process; empty means os.TempDir()
	Env     map[string]string // added to the environment of every process
	Group   *proc.Group       // the sandbox's processes. Required to run anything
	Shell   string            // path of the shell that runs commands; empty means the one that the daemon would choose
	Quirks  Quirks            // the zero value has the measured times, and none of the losses that are left to chance
	Logger  *slog.Logger      // nil is silent
}

// Quirks are the daemon's measured weaknesses, as far as a test may want more or less of them.
type Quirks struct {
	// ExitCodeWindow is how long the record of an exit code exists without its content. A status read meanwhile is
	// answered with 500. Zero means 100 µs, which hits a client that polls every millisecond about as often as was
	// measured, in 35 of 300 commands, and on a busy machine more often. Negative means never.
	ExitCodeWindow time.Duration
	// FollowLinger is how long a follow socket must have seen no output before it looks for the exit code and closes,
	// reading every 20 ms. Zero means 1 s; negative means that each read looks.
	FollowLinger time.Duration
	// FollowNeverCloses decides, for each follow socket, whether it stays open after the exit. The daemon forgets to
	// close 5 of 1,600. Nil means never.
	FollowNeverCloses func() bool
	// SnapshotTailLoss decides, for each socket without follow, whether the last frame is lost, which happens to about
	// every second one. Nil means never.
	SnapshotTailLoss func() bool
	// SyncExecPoll is how often a synchronous command looks for its exit code. Zero means 50 ms.
	SyncExecPoll time.Duration
	// SessionDeleteDelay is the least time that the deletion of a session takes. Zero means 100 ms; negative means none.
	SessionDeleteDelay time.Duration
	// PTYTailLoss decides, for each terminal, whether its last output is lost, which happens to 5 to 8 %. Nil means
	// never.
	PTYTailLoss func() bool
	// DiskFull says whether the disk has no room at this moment: files cannot be written, session commands cannot be
	// submitted, output of running ones is lost and their exit codes are never recorded. Nil means never.
	DiskFull func() bool
}

// withDefaults replaces zero by the measured values.
func (q Quirks) withDefaults() Quirks {
	set := func(d *time.Duration, measured time.Duration) {
		if *d == 0 {
			*d = measured
		}
	}
	set(&q.ExitCodeWindow, 100*time.Microsecond)
	set(&q.FollowLinger, time.Second)
	set(&q.SyncExecPoll, 50*time.Millisecond)
	set(&q.SessionDeleteDelay, 100*time.Millisecond)
	return q
}

// A Toolbox is the daemon of one sandbox, from its start to its stop. Create it with New.
type Toolbox struct {
	opts   Options
	mux    *http.ServeMux
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	sh     func() string // the shell, looked up once

	work     taskGroup
	sessions sessionTable
	ptys     ptyTable
}

// New returns a toolbox. It starts nothing and touches no file.
func New(opts Options) *Toolbox {
	if opts.WorkDir == "" {
		opts.WorkDir = opts.Home
	}
	if opts.TempDir == "" {
		opts.TempDir = os.TempDir()
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	opts.Quirks = opts.Quirks.withDefaults()
	t := &Toolbox{opts: opts, mux: http.NewServeMux(), sh: sync.OnceValue(findShell)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.routeServer(t.mux)
	t.routeExecute(t.mux)
	t.routeSessions(t.mux)
	t.routeLogs(t.mux)
	t.routeFiles(t.mux)
	t.routePTY(t.mux)
	return t
}

// ServeHTTP answers one request of the toolbox API. Each answer has an X-Request-Id: the request's own, or a new one.
// A closed toolbox answers 502 without a body, as the runner in front of a dead daemon does.
func (t *Toolbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = uuid.NewString()
	}
	w.Header().Set("X-Request-Id", id)
	if t.ctx.Err() != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	// A path without a handler for its method is not found: the daemon's router has no 405.
	if _, pattern := t.mux.Handler(r); pattern == "" {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	t.mux.ServeHTTP(w, r)
}

// Close ends the daemon as its death would: sockets drop without a close frame, commands and terminals are killed, their
// requests end. It waits for all goroutines of the toolbox. Processes that detached themselves are left to
// [proc.Group.Kill]. Files stay.
func (t *Toolbox) Close() {
	t.cancel()
	t.ptys.close()
	t.sessions.close()
	t.work.wait()
}

func (t *Toolbox) routeServer(mux *http.ServeMux) {
	dir := func(dir string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string]string{"dir": dir})
		}
	}
	mux.HandleFunc("GET /work-dir", dir(t.opts.WorkDir))
	mux.HandleFunc("GET /project-dir", dir(t.opts.WorkDir))
	mux.HandleFunc("GET /user-home-dir", dir(t.opts.Home))
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": Version})
	})
	mux.HandleFunc("POST /init", func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Token string `json:"token"`
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.Token == "" {
			badRequest(w, r, "invalid request body")
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"message": "Auth token set and telemetry initialized"})
	})
}

// shell returns the path of the shell that runs commands.
func (t *Toolbox) shell() string {
	if t.opts.Shell != "" {
		return t.opts.Shell
	}
	return t.sh()
}

// findShell prefers zsh to bash, as far as /etc/shells lists them, then takes $SHELL, then sh.
func findShell() string {
	listed, _ := os.ReadFile("/etc/shells")
	for _, name := range []string{"zsh", "bash"} {
		for _, path := range []string{"/usr/bin/" + name, "/bin/" + name} {
			if _, err := os.Stat(path); err == nil && strings.Contains(string(listed), path) {
				return path
			}
		}
	}
	if shell := os.Getenv("SHELL"); shell != "" {
		return shell
	}
	return "sh"
}

// command returns a command of the sandbox, with the toolbox's environment and additions, in the working directory.
func (t *Toolbox) command(env map[string]string, name string, args ...string) *exec.Cmd {
	cmd := t.opts.Group.Command(name, args...)
	cmd.Dir = t.opts.WorkDir
	cmd.Env = t.environ(env)
	return cmd
}

// inherited are the host's variables that a sandbox sees: those that describe the machine. Everything else stays
// outside, credentials above all, since a real sandbox knows nothing of its host.
var inherited = []string{
	"PATH", "USER", "LOGNAME", "SHELL", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"SYSTEMROOT", "SystemRoot", "PATHEXT",
}

// environ is the environment of the sandbox's processes: a later entry replaces an earlier one of the same name.
func (t *Toolbox) environ(add map[string]string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	env = append(env, "HOME="+t.opts.Home, "TMPDIR="+t.opts.TempDir)
	for _, more := range []map[string]string{t.opts.Env, add} {
		for name, value := range more {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// stateDir is where the daemon keeps the commands, logs and exit codes of its sessions.
func (t *Toolbox) stateDir() string { return filepath.Join(t.opts.Home, ".daytona", "sessions") }

// A taskGroup counts goroutines until it is closed by waiting for them.
type taskGroup struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// enter counts the calling goroutine, or one that it is about to start, until leave. It reports false once wait was
// called.
func (g *taskGroup) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Add(1)
	return true
}

func (g *taskGroup) leave() { g.wg.Done() }

func (g *taskGroup) wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}
