package emulator

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
)

// DefaultSnapshot is the name of the snapshot that exists when [Options].Snapshots is empty.
const DefaultSnapshot = "daytona-small"

// Options configure a [Server]. The zero value is a fast, empty, unlimited organisation on a loopback listener.
type Options struct {
	// Dir holds the sandboxes' files and records, so that a later server on the same directory finds its sandboxes again,
	// stopped. Only one server may use it at a time. Empty means a temporary directory that Close removes.
	Dir string
	// APIKey is the key that requests must present. Empty means a random one.
	APIKey string
	// Organization is the organisation of APIKey. Empty means the one recorded in Dir, else a random UUID.
	Organization string
	// Keys are further API keys, each with its organisation: a rotated key, or another tenant. See also Server.SetKey.
	Keys map[string]string
	// Listener is where to serve. Nil means a free port of 127.0.0.1. Close closes it.
	Listener net.Listener
	// TLS makes it serve HTTPS on the listener, and say so in its URLs, as a server that the world can see does. Nil: HTTP.
	TLS *tls.Config
	// InMemory serves on in-memory connections instead, reachable only through Server.Transport and Server.Dial.
	InMemory bool
	// PreviewDomain makes preview URLs of the form {scheme}://{port}-{id}.{PreviewDomain}[:port]. Empty means the path form.
	PreviewDomain string
	// Timing says how long state changes take and requests are held.
	Timing Timing
	// Limits are the organisation's quota and rate limits. They apply to each organisation alone.
	Limits Limits
	// Snapshots are the snapshots that exist, the first being the default. A snapshot named "*" stands for every name.
	// Image-backed creations and builds look here too, by image name, and succeed when nothing is found. They are general
	// snapshots: nobody deletes them.
	// Empty means one active snapshot, DefaultSnapshot.
	Snapshots []Snapshot
	// Regions are the targets that exist, the first being the default. Empty means local, us and eu.
	Regions []string
	// Faults is the initial fault plan; Seed drives its probabilities.
	Faults []Fault
	Seed   uint64
	// Legacy is a server without lifetimes: ttlMinutes is ignored and autoDestroyAt never reported.
	Legacy bool
	// Quirks are passed to each sandbox's toolbox.
	Quirks Quirks
	// Shell is the path of the shell that runs the sandboxes' commands. Empty means the one that the daemon would choose.
	Shell string
	// Middleware, if any, wraps the whole server: it sees each request first and each reply last.
	Middleware func(http.Handler) http.Handler
	// Toolbox, if any, answers in place of every sandbox's toolbox, behind the proxy and the fault plan. It sees paths such
	// as /process/execute. Without processes, which virtual time does not wait for, a test may skip hours. Without a Dir the
	// sandboxes have no files then.
	Toolbox http.Handler
	// Logger receives what goes wrong inside. Nil is silent.
	Logger *slog.Logger
}

// Timing says how long things take. Zero means the default, a negative duration none at all.
type Timing struct {
	Create  time.Duration // unknown to started; default 5 ms
	Build   time.Duration // each of the three stages before an image-backed creation, and each line of a snapshot's build log; default 2 ms
	Start   time.Duration // stopped to started; default 5 ms
	Restore time.Duration // archived to started; default 5 ms
	Stop    time.Duration // default 5 ms
	Archive time.Duration // default 5 ms
	Destroy time.Duration // of a sandbox or a snapshot; default 5 ms
	Capture time.Duration // of a snapshot from a sandbox; default 5 ms

	CreateHold time.Duration // how long a creation's reply waits for the start; default 30 s
	StartHold  time.Duration // the same for start and recover; default 30 s
	Cron       time.Duration // how often intervals, lifetimes and lost containers are looked at; default 10 s
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, def time.Duration) {
		if *d = cmp.Or(*d, def); *d < 0 {
			*d = 0
		}
	}
	const quick = 5 * time.Millisecond
	set(&t.Create, quick)
	set(&t.Build, 2*time.Millisecond)
	set(&t.Start, quick)
	set(&t.Restore, quick)
	set(&t.Stop, quick)
	set(&t.Archive, quick)
	set(&t.Destroy, quick)
	set(&t.Capture, quick)
	set(&t.CreateHold, 30*time.Second)
	set(&t.StartHold, 30*time.Second)
	if t.Cron = cmp.Or(t.Cron, 10*time.Second); t.Cron < 0 {
		t.Cron = 10 * time.Second
	}
	return t
}

// Limits of an organisation. Zero values do not limit.
type Limits struct {
	CPU, Memory, Disk                      int // totals of all sandboxes: cores, GiB, GiB; a stopped one counts for disk only
	SandboxCPU, SandboxMemory, SandboxDisk int // of one sandbox
	Sandboxes                              int // number of sandboxes that are not destroyed
	Snapshots                              int // number of snapshots that were created
	NoRunners                              bool
	Suspended                              bool          // nothing is created, started or recovered
	RequestRate, CreateRate, LifecycleRate int           // requests per Window: all, creations, other state changes
	Window                                 time.Duration // default 1 minute
}

// Snapshot is something that sandboxes can be created from: a snapshot, or an image by its name.
type Snapshot struct {
	Name string
	// State is the snapshot's state. Empty means active; a creation from any other is refused, and
	// an image of state build_failed builds and fails.
	State string
	// Failure, if any, makes the runner fail: the sandbox ends as "error" with this reason. Of an image
	// with state build_failed it is the reason of that.
	Failure string
	// Recoverable is reported with Failure.
	Recoverable bool
	// Warm answers a creation with "started" at once, as a warm pool does.
	Warm bool
	// CPU, Memory (GiB) and Disk (GiB) of its sandboxes. Default 1, 1, 3.
	CPU, Memory, Disk int
	// Regions where it exists. Empty means everywhere.
	Regions []string

	files string // directory with the files of its sandboxes; empty: none
}

// Server is a running emulator. Its methods are safe for concurrent use.
type Server struct {
	opt    Options
	dir    string
	log    *slog.Logger
	root   string // scheme and authority, without a slash at the end
	http   *http.Server
	memory *memoryListener // nil on a network listener
	client *http.Transport // to memory
	direct *http.Transport // of the preview proxy to this host's ports
	boxes  *machines
	faults faultPlan
	record requestLog
	unlock func()
	mux    *http.ServeMux // of the control plane

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	serving  chan struct{}  // closed when the accept loop has ended
	conns    sync.WaitGroup // connections that are neither closed nor hijacked
	handlers sync.WaitGroup
	work     sync.WaitGroup // cron and state changes
	closing  sync.Once
	closeErr error

	mu        sync.Mutex // guards the fields below and all of every sandbox that says so
	closed    bool
	limits    Limits
	keys      map[string]Key // by the API key
	sandboxes map[string]*sandbox
	version   uint64 // of the whole control plane; grows with each change
	rates     map[string]*rateWindow
	signed    map[string]signedPreview
	ssh       map[string]sshAccess // by token
	snapshots map[string]*snapshot // those that were created, by id
}

// Start starts a server. The caller must Close it.
func Start(opt Options) (*Server, error) {
	s := &Server{
		opt: opt, log: opt.Logger, serving: make(chan struct{}), limits: opt.Limits,
		keys: map[string]Key{}, sandboxes: map[string]*sandbox{},
		rates: map[string]*rateWindow{}, signed: map[string]signedPreview{},
		ssh: map[string]sshAccess{}, snapshots: map[string]*snapshot{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.opt.Timing = opt.Timing.withDefaults()
	if len(opt.Snapshots) == 0 {
		s.opt.Snapshots = []Snapshot{{Name: DefaultSnapshot}}
	}
	if len(opt.Regions) == 0 {
		s.opt.Regions = []string{"local", "us", "eu"}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.faults.set(opt.Faults, opt.Seed, 0)
	s.boxes = newMachines(s.log, opt.Shell)
	s.mux = s.routes()
	if err := s.openDir(); err != nil {
		s.cancel()
		return nil, err
	}
	if s.opt.APIKey == "" {
		s.opt.APIKey = "dtn_" + rand.Text()
	}
	for key, organization := range opt.Keys {
		s.keys[key] = Key{Organization: organization}
	}
	s.keys[s.opt.APIKey] = Key{Organization: s.opt.Organization}
	if err := s.listen(); err != nil {
		s.cancel()
		return nil, errors.Join(err, s.closeDir())
	}
	s.work.Go(s.cron)
	return s, nil
}

// hasFiles reports whether the sandboxes have files: a toolbox of the test's own needs none.
func (s *Server) hasFiles() bool { return s.opt.Dir != "" || s.opt.Toolbox == nil }

// openDir makes the state directory usable and loads what is in it.
func (s *Server) openDir() (err error) {
	if !s.hasFiles() {
		s.unlock = func() {}
	} else if s.opt.Dir == "" {
		if s.dir, err = os.MkdirTemp("", "leasehold-"); err != nil {
			return fmt.Errorf("emulator: %w", err)
		}
		s.boxes.processes.OnHostDeath(s.dir)
		s.unlock = func() {}
	} else {
		if s.dir, err = filepath.Abs(s.opt.Dir); err != nil {
			return fmt.Errorf("emulator: %w", err)
		}
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return fmt.Errorf("emulator: %w", err)
		}
		if s.unlock, err = lockDir(s.dir); err != nil {
			return fmt.Errorf("emulator: %w", err)
		}
	}
	if err := s.load(); err != nil {
		return errors.Join(fmt.Errorf("emulator: %w", err), s.closeDir())
	}
	if s.opt.Organization == "" {
		s.opt.Organization = uuid.NewString()
	}
	if err := s.saveOrganization(); err != nil {
		return errors.Join(fmt.Errorf("emulator: %w", err), s.closeDir())
	}
	return nil
}

func (s *Server) closeDir() error {
	s.unlock()
	if s.opt.Dir != "" || !s.hasFiles() {
		return nil
	}
	return removeTree(s.dir)
}

func (s *Server) listen() error {
	listener := s.opt.Listener
	switch {
	case s.opt.InMemory:
		s.memory = newMemoryListener()
		listener = s.memory
		s.client = &http.Transport{DialContext: s.Dial, IdleConnTimeout: idleTimeout - 20*time.Second}
		s.root = "http://" + memoryHost
	case listener == nil:
		var err error
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return fmt.Errorf("emulator: %w", err)
		}
		fallthrough
	default:
		s.root = "http://" + listener.Addr().String()
		if s.opt.TLS != nil {
			s.root = "https://" + listener.Addr().String()
			listener = tls.NewListener(listener, s.opt.TLS)
		}
	}
	s.direct = &http.Transport{DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, MaxIdleConnsPerHost: 8}
	handler := http.Handler(http.HandlerFunc(s.serve))
	if s.opt.Middleware != nil {
		handler = s.opt.Middleware(handler)
	}
	s.http = &http.Server{
		Handler:     s.counted(handler),
		IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.conns.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.conns.Done()
			}
		},
		ErrorLog: log.New(slogWriter{s.log}, "", 0),
	}
	go func() {
		defer close(s.serving)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("accept loop ended", "err", err)
		}
	}()
	return nil
}

// idleTimeout is when the daemon and the proxy close a connection that carries nothing.
const idleTimeout = 70 * time.Second

// connKey is the context key of a request's net.Conn.
type connKey struct{}

// counted lets Close wait for every handler, those of hijacked connections included.
func (s *Server) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handlers.Add(1)
		defer s.handlers.Done()
		next.ServeHTTP(w, r)
	})
}

// URL is the base URL of the control plane, such as http://127.0.0.1:1234/api.
func (s *Server) URL() string { return s.root + "/api" }

// APIKey is the key that requests present as a bearer token.
func (s *Server) APIKey() string { return s.opt.APIKey }

// Organization is the id of APIKey's organisation.
func (s *Server) Organization() string { return s.opt.Organization }

// Transport reaches an in-memory server, whatever host a URL names. It is nil on a network listener.
// Close closes its idle connections.
func (s *Server) Transport() http.RoundTripper {
	if s.client == nil {
		return nil
	}
	return s.client
}

// Dial connects to an in-memory server; both arguments are ignored. It fails on a network listener and after Close.
func (s *Server) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if s.memory == nil {
		return nil, errors.New("emulator: not in memory")
	}
	return s.memory.dial(ctx)
}

// SetLimits replaces the limits. Rate windows that are open go on.
func (s *Server) SetLimits(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = l
}

// Close ends everything: connections are dropped, the processes of every sandbox killed, temporary state removed, and all
// goroutines waited for. With a Dir, sandboxes are found stopped by the next server. Later calls return the first result.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.http.Close()
	<-s.serving
	errs := []error{s.boxes.close()}
	s.conns.Wait()
	s.handlers.Wait()
	s.work.Wait()
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	s.direct.CloseIdleConnections()
	return errors.Join(append(errs, s.closeDir())...)
}

// slogWriter lets net/http report into the logger.
type slogWriter struct{ log *slog.Logger }

func (w slogWriter) Write(p []byte) (int, error) {
	w.log.Warn("http server", "message", string(p))
	return len(p), nil
}
