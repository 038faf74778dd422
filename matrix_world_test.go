package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// world is an emulator and a host on it, and what happened there. In virtual time its toolbox runs nothing: it answers the
// scripts of set-up and verification itself.
type world struct {
	*rig
	bystander string // id of a foreign sandbox that looks like ours; empty: none
	dir       string // of a real world: a directory of the host, for what commands and transfers leave
	logs      collector

	mu        sync.Mutex
	arrivals  []string       // route of every request since the operation began
	names     map[string]int // creations sent, by name
	content   string         // of the sentinel
	touched   []string       // requests that would change the bystander
	onArrival func(position int)
}

var (
	ownMark    = regexp.MustCompile(`leasehold-[A-Z2-7]{26}`)
	ownContent = regexp.MustCompile(`printf %s '([^']*)' >`)
)

// sentinelSet is the content of the sentinel that a script of set-up writes; empty: it is one of verification.
func sentinelSet(script string) string {
	if content := ownContent.FindStringSubmatch(script); content != nil {
		return content[1]
	}
	return ""
}

// answerScript is what a script of set-up or of verification prints in a sandbox with that workspace and sentinel.
func answerScript(script, workspace, sentinel string) string {
	lines := []string{"content " + sentinel}
	if sentinelSet(script) != "" {
		lines = []string{"workspace ok", "shell sh", "sentinel ok", "path " + workspace}
	}
	var output strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&output, "\n%s %s\n", ownMark.FindString(script), line)
	}
	return output.String()
}

// newWorld is a world in virtual time: it must be called in a bubble.
func newWorld(t *testing.T, cfg Config) *world {
	cfg.Timeout, cfg.CallTimeout = 30*time.Second, 5*time.Second
	w := &world{names: make(map[string]int)}
	w.rig = newRig(t, w.logged(cfg), emulator.Options{InMemory: true, Middleware: w.middleware, Toolbox: http.HandlerFunc(w.toolbox)})
	return w
}

// patience of the host of a real world. Its requests are answered within milliseconds, unless a fault holds them.
const (
	realCallTimeout = 500 * time.Millisecond
	realTimeout     = 5 * time.Second
)

// patiently repeats what a busy machine did not do in time.
func patiently[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	for attempt := 1; ; attempt++ {
		value, err := f()
		if err == nil {
			return value
		}
		if attempt == 20 || !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrUncertain) {
			t.Fatal(err)
		}
	}
}

// newRealWorld is a world whose sandboxes have files and processes.
func newRealWorld(t *testing.T, cfg Config, shell string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "leasehold-matrix-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs after the emulator's: nothing writes there any more
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if cfg.CallTimeout == 0 {
		cfg.Timeout, cfg.CallTimeout = realTimeout, realCallTimeout
	}
	w := &world{names: make(map[string]int), dir: dir}
	w.rig = newRig(t, w.logged(cfg), emulator.Options{Middleware: w.middleware, Shell: shell})
	return w
}

// logged has the host log into the world.
func (w *world) logged(cfg Config) Config {
	cfg.Logger = slog.New(slog.NewTextHandler(&w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return cfg
}

// next is another host on the same emulator, with all the time it wants.
func (w *world) next(t *testing.T) *provider {
	cfg := w.cfg
	if w.dir != "" {
		cfg.Timeout, cfg.CallTimeout = time.Minute, 30*time.Second
	}
	if store, ok := cfg.Store.(promptStore); ok {
		cfg.Store = store.Store
	}
	return rigProvider(t, w.server, cfg)
}

func (w *world) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Foreign") != "" {
			next.ServeHTTP(rw, q)
			return
		}
		w.mu.Lock()
		w.arrivals = append(w.arrivals, route(q.Method, q.URL.Path))
		position, arrived := len(w.arrivals), w.onArrival
		if w.bystander != "" && q.Method != "GET" && strings.Contains(q.URL.Path, w.bystander) {
			w.touched = append(w.touched, q.Method+" "+q.URL.Path)
		}
		if q.Method == "POST" && q.URL.Path == "/api/sandbox" {
			body, _ := io.ReadAll(q.Body)
			q.Body = io.NopCloser(bytes.NewReader(body))
			var creation struct {
				Name string `json:"name"`
			}
			_ = json.Unmarshal(body, &creation)
			w.names[creation.Name]++
		}
		w.mu.Unlock()
		if arrived != nil {
			arrived(position)
		}
		next.ServeHTTP(rw, q)
	})
}

// toolbox answers as the scripts would.
func (w *world) toolbox(rw http.ResponseWriter, q *http.Request) {
	var body struct {
		Command string `json:"command"`
	}
	if err := json.NewDecoder(q.Body).Decode(&body); err != nil || q.URL.Path != "/process/execute" {
		panic(http.ErrAbortHandler)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if content := sentinelSet(body.Command); content != "" {
		w.content = content
	}
	output := answerScript(body.Command, "/home/daytona/workspace", w.content)
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{"exitCode": 0, "result": output})
}

// begin forgets what happened so far and calls f for each request to come.
func (w *world) begin(f func(position int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrivals, w.onArrival = nil, f
	clear(w.names)
}

func (w *world) arrived() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.arrivals)
}

// alive lists our sandboxes that are not destroyed, once pending changes have ended.
func (w *world) alive() []string {
	for _, id := range w.server.Sandboxes() {
		w.server.Sandbox(id).Settle(time.Minute)
	}
	return slices.DeleteFunc(w.server.Sandboxes(), func(id string) bool { return id == w.bystander })
}

// idsAfter are the segments of a path after which there is an id or a number.
var idsAfter = map[string]bool{
	"sandbox": true, "toolbox": true, "session": true, "command": true, "pty": true, "autodelete": true, "ports": true, "preview": true,
	"snapshots": true, "signed-preview-url": true,
}

// route is a request as "METHOD path", with the ids and numbers in the path replaced by *.
func route(method, path string) string {
	segments := strings.Split(path, "/")
	for i := 1; i < len(segments); i++ {
		if idsAfter[segments[i-1]] && segments[i] != "paginated" && segments[i] != "connect" {
			segments[i] = "*"
		}
	}
	return method + " " + strings.Join(segments, "/")
}

// plant makes a foreign sandbox that looks like ours: a name of our form, and every label, but of another creation. It
// returns the id.
func plant(t testing.TB, server *emulator.Server, key, name string) string {
	t.Helper()
	labels := map[string]string{"leasehold-attempt": uuid.NewString(), "leasehold-provider": "daytona", "leasehold-tenant": "acme", "leasehold-environment": "test", "leasehold-run": "run-1", "leasehold-reuse": "false"}
	body, err := json.Marshal(map[string]any{"name": name, "labels": labels, "autoStopInterval": 0})
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequest("POST", server.URL()+"/sandbox", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+key)
	q.Header.Set("Foreign", "yes")
	transport := server.Transport()
	if transport == nil {
		transport = &http.Transport{DisableKeepAlives: true}
	}
	reply, err := transport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var made struct{ ID string }
	if err := json.NewDecoder(reply.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatalf("planting a foreign sandbox: %v", err)
	}
	return made.ID
}

// stage is a world on which everything is ready for an operation.
type stage struct {
	*world
	host     *provider // that is asked
	ref      LeaseRef  // of the lease that there is; the zero value: none
	envelope CleanupEnvelope
	snapshot SnapshotRef
	turn     int                                   // how often the operation was asked for
	do       func(context.Context, *stage) outcome // what was prepared
	end      []func()                              // give back what the stage itself has open
}

// by is the stage for another host, which asks once more.
func (s *stage) by(host *provider) *stage {
	other := *s
	other.host, other.turn = host, s.turn+1
	return &other
}

// lease is the host's own.
func (s *stage) lease() (*Lease, error) { return s.host.Bind(s.ref) }

// outcome is what an operation returned, which is what it claims.
type outcome struct {
	err      error
	lease    *Lease
	receipt  Receipt
	envelope *CleanupEnvelope // observed
	idle     *IdleReport
	command  *commandClaim
	stream   *streamClaim
	transfer *transferClaim
	snapshot *snapshotClaim
	ended    *int     // a process that is said to run no more
	secrets  []string // that were given to the caller alone
}

// name is the outcome in one word.
func (o outcome) name(t *testing.T, cell string, w *world) string {
	t.Helper()
	switch {
	case o.err != nil:
		judge := oracle{world: w}
		e := judge.failure(o.err)
		judge.report(t, cell)
		return string(e.Kind)
	case o.lease != nil:
		return "lease"
	}
	return string(o.receipt.State)
}

// commandClaim is what is said of a command.
type commandClaim struct {
	Result
	starts    string // a file with the id of a process for each start
	out, errs []byte // what arrived
	wantOut   []byte
	wantErrs  []byte
	wantExit  int
	stdin     int64 // bytes that it reads to the end before it writes
}

// streamClaim is what arrived on a stream, and what was sent.
type streamClaim struct {
	got, want []byte
	unproved  bool // the protocol has no proof of what is sent: it can be changed on its way
	late      bool // the proof follows: what was changed on its way arrives, and then an error
}

// transferClaim is what a target is to hold, and held.
type transferClaim struct {
	want, before map[string]string
	look         func() map[string]string // once nothing goes on in the background; nil: the target has gone with its sandbox
	imports      bool                     // an answer that was lost may be that of a publication
}

// snapshotClaim is what is said of a snapshot.
type snapshotClaim struct {
	ref   SnapshotRef
	ready bool // else it is gone
}

// errHost is a cause of the caller's own.
var errHost = errors.New("the host's own reason")
