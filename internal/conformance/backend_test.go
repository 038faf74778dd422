package conformance_test

import (
	"context"
	"flag"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold"
)

func TestMain(m *testing.M) {
	// Cases wait more than they work. A -parallel on the command line wins.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// backend is something that leases can be had from.
type backend struct {
	name       string             // its column in differences
	lacking    map[feature]string // what it lacks by that, and why
	transports []leasehold.Transport
	oneIn      int              // one case of commands in so many runs
	config     leasehold.Config // of every provider; a Workspace is one that sandboxes share, and is cut into one for each
	embedded   bool             // providers are those of NewLocal
	list       *list
	dir        string            // beside the list: the snapshots of the run
	run        string            // of every scope, so that a run's sandboxes can be told from another's
	serve      string            // the address on which a service in a sandbox listens for the preview proxy
	vanishing  sync.Mutex        // held while a host that vanished is swept, which no other case's sweep is to do
	outside    http.RoundTripper // reaches what everybody can: previews, without the library
}

// newBackend returns one whose list is in dir.
func newBackend(t *testing.T, name, dir string) *backend {
	t.Helper()
	store, err := leasehold.NewFileStore(filepath.Join(dir, "sandboxes"), leasehold.FileStoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &backend{
		name: name, lacking: maps.Clone(differences[name]), transports: []leasehold.Transport{leasehold.TransportDefault}, oneIn: 1, list: &list{Store: store}, dir: dir,
		run: "run-" + uuid.NewString(), serve: "127.0.0.1",
		outside: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
	}
}

// sampled takes a share of the commands, unless all are asked for.
func (b *backend) sampled() {
	if !long() {
		b.oneIn = oneIn
	}
}

// open makes a provider. dir is where an embedded one keeps its sandboxes.
func (b *backend) open(config leasehold.Config, dir string) (leasehold.Provider, error) {
	config.Store = b.list
	if b.embedded {
		return leasehold.NewLocal(leasehold.LocalConfig{Config: config, Dir: dir})
	}
	return leasehold.New(config)
}

// host is what has leases of a backend: a provider, and what it takes to begin anew.
type host struct {
	leasehold.Provider
	b      *backend
	config leasehold.Config
	dir    string
}

// newHost returns a host, which the end of the test closes.
func (b *backend) newHost(t *testing.T, change ...func(*leasehold.Config)) *host {
	t.Helper()
	h := &host{b: b, config: b.config}
	if h.config.Workspace != "" {
		h.config.Workspace = path.Join(h.config.Workspace, uuid.NewString())
	}
	for _, f := range change {
		f(&h.config)
	}
	if b.embedded {
		h.dir = t.TempDir()
	}
	h.begin(t)
	t.Cleanup(func() { h.end(t) })
	return h
}

func reusable(c *leasehold.Config) { c.Reuse = true }

func (h *host) begin(t *testing.T) {
	t.Helper()
	p, err := h.b.open(h.config, h.dir)
	if err != nil {
		t.Fatal(err)
	}
	h.Provider = p
}

func (h *host) end(t *testing.T) {
	t.Helper()
	if err := h.Close(detached(t)); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// restart ends the host, without giving anything back, and begins the next one in its place.
func (h *host) restart(t *testing.T) {
	t.Helper()
	h.end(t)
	h.begin(t)
}

// acquire returns a lease, whose sandbox is destroyed at the end of the test by whoever is the host then.
func (h *host) acquire(t *testing.T) *leasehold.Lease {
	t.Helper()
	l, err := h.Acquire(t.Context(), h.b.request())
	if err != nil {
		t.Fatalf("Acquire() = %v", err)
	}
	ref := l.Ref()
	t.Cleanup(func() {
		if receipt, err := h.Destroy(detached(t), ref); err != nil || receipt.State != leasehold.ReceiptDestroyed || receipt.Sandbox != ref.Sandbox {
			t.Errorf("Destroy() = %+v, %v; want the receipt of %s", receipt, err, ref.Sandbox)
		}
	})
	return l
}

// request asks for a lease in a scope of its own.
func (b *backend) request() leasehold.AcquireRequest {
	return leasehold.AcquireRequest{Scope: leasehold.Scope{
		Tenant: "leasehold", Environment: "conformance", Run: b.run, Agent: "case-" + uuid.NewString(), Workspace: "main",
	}}
}

// detached is a context for what must be done after the test's own has ended.
func detached(t *testing.T) context.Context { return detachedFor(t, 2*time.Minute) }

func detachedFor(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}

// restTime is how long a sandbox that was stopped by a run that has vanished is left alone by other runs.
const restTime = 10 * time.Minute

// list is a store of all that a run has created. It differs from what the library makes of a store in one thing: of a sandbox
// that was given back stopped, whoever has its reference is to take care. Here that is this list, since a run may vanish.
type list struct {
	leasehold.Store
	created atomic.Int64
	owners  sync.Map // of this process
}

func (l *list) Put(ctx context.Context, record leasehold.Record, owner string) (leasehold.Claim, error) {
	if record.State == leasehold.StateCreating {
		l.created.Add(1)
	}
	l.owners.Store(owner, true)
	return l.Store.Put(ctx, record, owner)
}

func (l *list) Delete(ctx context.Context, claim leasehold.Claim) error {
	record := claim.Record
	if record.State == leasehold.StateEnding && record.Orphan != leasehold.OrphanDestroy {
		record.State = leasehold.StateStopped
		return l.Store.Release(ctx, claim, record, restTime)
	}
	return l.Store.Delete(ctx, claim)
}

// disown makes what closed hosts of this process hold due at once, instead of when their claims have run out.
func (l *list) disown(ctx context.Context) error {
	var failure error
	l.owners.Range(func(owner, _ any) bool {
		failure = l.Renew(ctx, owner.(string), time.Nanosecond)
		return failure == nil
	})
	return failure
}

// entries returns all records.
func (l *list) entries(ctx context.Context) ([]leasehold.Entry, error) {
	const page = 100
	var all []leasehold.Entry
	for after := ""; ; {
		some, err := l.List(ctx, after, page)
		all = append(all, some...)
		if err != nil || len(some) < page {
			return all, err
		}
		after = some[len(some)-1].Record.Envelope.Attempt
	}
}

// missing skips a test that lacks a capability of the machine or of the sandbox, or fails it where all are required.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatalf("LEASEHOLD_REQUIRE_ALL=1 and %s", what)
	}
	t.Skip(what)
}

// long reports whether cases are to be as large as they should be from time to time.
func long() bool { return os.Getenv("LEASEHOLD_LONG") == "1" }

// parallel is how many cases run at the same time.
func parallel() int { return flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int) }

// memory returns a directory for what many small writes are flushed to.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "leasehold")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
