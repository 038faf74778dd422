package leasehold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// Variables that make the test binary a host that waits to be killed.
const (
	hostDirVariable  = "LEASEHOLD_TEST_HOST_DIR"
	hostStepVariable = "LEASEHOLD_TEST_HOST_STEP"
)

func init() {
	if dir := os.Getenv(hostDirVariable); dir != "" {
		beHost(dir, os.Getenv(hostStepVariable))
	}
}

// beHost takes a lease, prints its reference, and is in the middle of step until it is killed.
func beHost(dir, step string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "host:", err)
			os.Exit(1)
		}
	}
	plan := NewFaultPlan(1)
	p, err := NewLocal(LocalConfig{Dir: dir, Config: Config{Reuse: true}, Faults: plan})
	check(err)
	l, err := p.Acquire(context.Background(), request())
	check(err)
	data, err := json.Marshal(l.Ref())
	check(err)
	stall := func(method, path string) {
		plan.Set(Fault{Method: method, Path: path, Action: FaultStallChange})
		go func() {
			for tick := time.Tick(5 * time.Millisecond); plan.State()[0].Hits == 0; { // nothing reports the request's arrival
				<-tick
			}
			fmt.Println(string(data))
		}()
	}
	switch step {
	case "release":
		stall("POST", "/api/sandbox/*/stop")
		_, _ = p.Release(context.Background(), l.Ref(), ReleaseOptions{})
	case "destroy":
		stall("DELETE", "/api/sandbox/*")
		_, _ = p.Destroy(context.Background(), l.Ref())
	default:
		fmt.Println(string(data))
	}
	select {}
}

// TestAnotherProcessGoesOn: a host is killed between or in the middle of its calls. With the reference that it stored,
// another process on the same directory resumes the lease, or is told that it is gone only if it was being destroyed.
func TestAnotherProcessGoesOn(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"work", "release", "destroy"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			host := exec.CommandContext(t.Context(), os.Args[0])
			host.Env = append(os.Environ(), hostDirVariable+"="+dir, hostStepVariable+"="+step)
			host.Stderr = os.Stderr
			out, err := host.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := host.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatalf("the host said %q: %v", line, err)
			}
			if _, err := NewLocal(LocalConfig{Dir: dir}); !errors.Is(err, ErrIO) {
				t.Errorf("NewLocal() on a directory in use = %v, want ErrIO", err)
			}
			if err := host.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = host.Wait() // killed

			ref, err := ParseLeaseRef([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewLocal(LocalConfig{Dir: dir, Config: Config{Reuse: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			_, err = p.Resume(t.Context(), ref)
			if err != nil && !(step == "destroy" && errors.Is(err, ErrGone)) { // the deletion may not have come to the record
				t.Fatalf("Resume() = %v", err)
			}
			creation := creationOperation{Attempt: ref.Attempt, Name: ref.Name, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential}
			receipt, err := p.Cleanup(t.Context(), *creation.envelope(PhaseCreate, ref.Sandbox))
			if err != nil || receipt.State != ReceiptDestroyed {
				t.Errorf("Cleanup() = %+v, %v, want destroyed", receipt, err)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// countedWire is a transport, and how many requests were sent on it. In the server's log, one that was given up may come later.
func countedWire(t *testing.T) (http.RoundTripper, *atomic.Int64) {
	wire, sent := &http.Transport{}, new(atomic.Int64)
	t.Cleanup(wire.CloseIdleConnections)
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		sent.Add(1)
		return wire.RoundTrip(q)
	}), sent
}

// TestHostileTransports: whatever a caller's transport returns is an error, or waited for no longer than the budget.
func TestHostileTransports(t *testing.T) {
	t.Parallel()
	const key = "secret-key"
	reply := func(status int, body io.ReadCloser) roundTripper {
		return func(q *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: body, Request: q}, nil
		}
	}
	text := func(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
	for name, transport := range map[string]roundTripper{
		"nothing at all":        func(*http.Request) (*http.Response, error) { return nil, nil },
		"no body":               reply(200, nil),
		"no body, and an error": reply(500, nil),
		"no header": func(q *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 404, Body: text("{}"), Request: q}, nil
		},
		"continue":            reply(100, text(`{"id":"x"}`)),
		"switching protocols": reply(101, text(`{"id":"x"}`)),
		"early hints":         reply(103, nil),
		"no status":           reply(0, text(`{"id":"x"}`)),
		"an error that quotes the credential": func(q *http.Request) (*http.Response, error) {
			return nil, errors.New(q.Header.Get("Authorization") + secretWords)
		},
		"slow": func(q *http.Request) (*http.Response, error) {
			<-q.Context().Done()
			return nil, q.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := newProvider(Config{APIKey: key, APIURL: "http://127.0.0.1:1/api", Transport: transport, Timeout: 200 * time.Millisecond, CallTimeout: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			ref := validRef()
			ref.Credential = p.account.credential
			creation := creationOperation{Attempt: ref.Attempt, Name: ref.Name, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential}
			envelope := *creation.envelope(PhaseCreate, ref.Sandbox)
			_, acquired := p.Acquire(t.Context(), request())
			_, resumed := p.Resume(t.Context(), ref)
			_, released := p.Release(t.Context(), ref, ReleaseOptions{Retain: true})
			_, destroyed := p.Destroy(t.Context(), ref)
			_, inspected := p.Inspect(t.Context(), envelope)
			_, cleaned := p.Cleanup(t.Context(), envelope)
			for _, err := range []error{acquired, resumed, released, destroyed, inspected, cleaned} {
				e, ok := err.(*Error)
				if !ok || e.Kind == KindGone {
					t.Fatalf("error = %v", err)
				}
				if s := fmt.Sprintf("%+v %v", *e, e.cause); strings.Contains(s, key) || strings.Contains(s, secretWords) {
					t.Errorf("S1: %s", s)
				}
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEverybodyAtOnce: every call of a provider from many goroutines, on a few leases, while it is closed.
func TestEverybodyAtOnce(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{Toolbox: http.HandlerFunc((&world{}).toolbox)})
	refs := []LeaseRef{r.acquired(t).Ref(), r.acquired(t).Ref()}
	var wg sync.WaitGroup
	for i := range 16 {
		ref := refs[i%len(refs)]
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, call := range []func() error{
				func() error { _, err := r.Resume(ctx, ref); return err },
				func() error {
					l, err := r.Bind(ref)
					if err == nil {
						_, err = l.toolbox(ctx)
					}
					return err
				},
				func() error { _, err := r.Release(ctx, ref, ReleaseOptions{}); return err },
				func() error { _, err := r.Acquire(ctx, request()); return err },
				func() error {
					if i == 7 {
						return r.Close(ctx)
					}
					cancel()
					_, err := r.Destroy(ctx, ref)
					return err
				},
			} {
				if err := call(); err != nil {
					if _, ok := err.(*Error); !ok {
						t.Errorf("%T %v", err, err)
					}
				}
			}
		})
	}
	wg.Wait()
	_, err := r.Resume(t.Context(), refs[0])
	wantError(t, err, KindClosed)
}

// TestHugeLabels: what is refused is not repeated at length.
func TestHugeLabels(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	many := make(map[string]string)
	for i := range 100_000 {
		many[fmt.Sprintf("leasehold-%d", i)] = "x"
	}
	for _, labels := range []map[string]string{many, {"leasehold-" + strings.Repeat("x", 1<<20): "x"}, {"k": strings.Repeat("x", 1<<20)}} {
		q := request()
		q.Labels = labels
		_, err := r.Acquire(t.Context(), q)
		if e := wantError(t, err, KindInvalid); len(e.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(e.Error()))
		}
	}
	r.wantRequests(t)
}

// TestSetUpOfASandboxThatStops: it is started again, rather than waited for until the budget ends.
func TestSetUpOfASandboxThatStops(t *testing.T) {
	w := &world{}
	var r *rig
	var once sync.Once
	r = newRig(t, Config{}, emulator.Options{Toolbox: http.HandlerFunc(w.toolbox), Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
			if strings.HasSuffix(q.URL.Path, "/process/execute") {
				once.Do(func() { r.server.Sandbox(r.server.Sandboxes()[0]).Force(emulator.StateStopped, "", false) })
			}
			next.ServeHTTP(rw, q)
		})
	}})
	if _, err := r.Acquire(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	if got := r.count()["POST /api/sandbox/*/start"]; got != 1 {
		t.Errorf("%d starts, want 1", got)
	}
}

// TestSightingsAreBounded: envelopes that nobody ever cleans up do not pile up in memory.
func TestSightingsAreBounded(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	for i := range 3 * maxSightings {
		r.sighted(fmt.Sprint("attempt-", i), "id")
	}
	if len(r.sightings) > maxSightings || len(r.seen) > maxSightings || r.sighting(fmt.Sprint("attempt-", 3*maxSightings-1)) != "id" {
		t.Errorf("%d sightings and %d attempts are kept, want %d and the newest", len(r.sightings), len(r.seen), maxSightings)
	}
}

// TestCreationIsNotSubmittedForACallerThatLeft: what the caller took with it says that nothing was sent.
func TestCreationIsNotSubmittedForACallerThatLeft(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	a := &acquisition{p: r.provider, op: "acquire", request: request(), began: time.Now(), until: time.Now().Add(time.Minute), phase: PhaseCreate, creation: r.newCreation(request().Scope, false, nil)}
	if e := a.abandon(failed("acquire", context.Canceled)); e.Cleanup != nil {
		t.Errorf("envelope %+v before anything was sent", e.Cleanup)
	}
	_, err := a.create(t.Context(), t.Context())
	wantError(t, err, KindCanceled)
	r.wantRequests(t)
}

// TestInspectCancelled: the caller keeps its envelope.
func TestInspectCancelled(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	ref := r.acquired(t).Ref()
	creation := creationOperation{Attempt: ref.Attempt, Name: ref.Name, Scope: ref.Scope, Labels: ref.Labels, Credential: ref.Credential}
	envelope := *creation.envelope(PhaseCreate, "")
	ctx, cancel := context.WithCancel(t.Context())
	r.server.SetFaults(emulator.Fault{Method: "GET", Action: emulator.SilentSocket})
	go func() {
		for tick := time.Tick(5 * time.Millisecond); r.server.Faults()[0].Hits == 0; {
			<-tick
		}
		cancel()
	}()
	got, err := r.Inspect(ctx, envelope)
	wantError(t, err, KindCanceled)
	if got.Name != envelope.Name {
		t.Errorf("Inspect() = %+v, want the envelope it was given", got)
	}
	closing, end := context.WithCancel(t.Context())
	end()
	_ = r.Close(closing) // the read that hangs is not waited for
}

// TestAcceptedWithoutEffect: a change that the provider accepts, and does not make, is asked for with a pause in between.
func TestAcceptedWithoutEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		s := &stage{world: w, host: w.provider}
		leased(t, s)
		ref := s.ref
		w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 200})
		w.begin(nil)
		_, err := w.Destroy(t.Context(), ref)
		wantError(t, err, KindTimeout)
		if got, most := len(w.arrived()), 2*int(w.cfg.Timeout/time.Second)+20; got > most {
			t.Errorf("%d requests in %v, want at most %d", got, w.cfg.Timeout, most)
		}
	})
}

// TestWhatWasGivenIsTheCallers: once a call has returned, its caller may change the labels it gave, or was given, whatever goes
// on in the background, and whatever is still known of the sandbox.
func TestWhatWasGivenIsTheCallers(t *testing.T) {
	spoil := func(labels map[string]string) {
		for key := range labels {
			labels[key] = "changed"
		}
		labels["another"] = "one"
	}
	for name, tt := range map[string]struct {
		cfg  Config
		call func(context.Context, *provider, LeaseRef) error // with the reference's own labels
		want emulator.State                                   // in the end; empty: gone
	}{
		"Release": {Config{Reuse: true}, func(ctx context.Context, p *provider, ref LeaseRef) error {
			_, err := p.Release(ctx, ref, ReleaseOptions{Retain: true})
			return err
		}, emulator.StateStopped},
		"Destroy": {Config{}, func(ctx context.Context, p *provider, ref LeaseRef) error {
			_, err := p.Destroy(ctx, ref)
			return err
		}, ""},
		"Resume": {Config{Reuse: true}, func(ctx context.Context, p *provider, ref LeaseRef) error {
			_, err := p.Resume(ctx, ref)
			return err
		}, emulator.StateStarted},
		"Cleanup": {Config{}, func(ctx context.Context, p *provider, ref LeaseRef) error {
			envelope := leaseRecord(ref).Envelope
			envelope.Labels = ref.Labels
			_, err := p.Cleanup(ctx, envelope)
			return err
		}, ""},
	} {
		t.Run(name+" goes on", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tt.cfg)
				ref := w.acquired(t).Ref()
				if tt.want == emulator.StateStarted {
					w.server.Sandbox(ref.Sandbox).Force(emulator.StateStopped, "", false)
				}
				w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Delay: 2 * time.Second})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantError(t, tt.call(ctx, w.provider, ref), KindTimeout)
				spoil(ref.Labels)
				time.Sleep(w.cfg.Timeout)
				var got emulator.State
				if left := w.alive(); len(left) > 0 {
					got = w.server.Sandbox(left[0]).State()
				}
				if got != tt.want {
					t.Errorf("the sandbox is %q in the end, want %q", got, tt.want)
				}
				w.wantHits(t)
			})
		})
	}
	failed := func(call func(context.Context, *world, LeaseRef) error, want ...string) func(t *testing.T) {
		return func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				ref := w.acquired(t).Ref()
				w.server.SetFaults(emulator.Fault{Method: "DELETE", Count: -1, Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")})
				wantError(t, call(t.Context(), w, ref), KindAuth)
				spoil(ref.Labels)
				w.server.SetFaults()
				w.wantProof(t, want...)
			})
		}
	}
	t.Run("Destroy has failed", failed(func(ctx context.Context, w *world, ref LeaseRef) error {
		_, err := w.Destroy(ctx, ref)
		return err
	}, "allocation acquire?", "cleanup destroy?"))
	t.Run("Cleanup has failed", failed(func(ctx context.Context, w *world, ref LeaseRef) error {
		envelope := leaseRecord(ref).Envelope
		envelope.Labels = ref.Labels
		_, err := w.Cleanup(ctx, envelope)
		return err
	}, "allocation acquire?", "cleanup cleanup?"))
	t.Run("Inspect has found it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.server.SetFaults(
				emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.DropAfter},
				emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 503},
			)
			_, err := w.Acquire(t.Context(), request())
			e := wantError(t, err, KindUncertain)
			w.server.SetFaults()
			found, err := w.Inspect(t.Context(), *e.Cleanup)
			if err != nil || found.Observed == "" || found.Account == "" {
				t.Fatalf("Inspect() = %+v, %v, want its id and account", found, err)
			}
			spoil(e.Cleanup.Labels)
			spoil(found.Labels)
			w.wantProof(t, "allocation inspect?")
		})
	})
	t.Run("a plan of faults", func(t *testing.T) {
		faults := []Fault{{Path: "/api/**", Header: http.Header{"A": {"a"}}}}
		want := []FaultState{{Fault: Fault{Path: "/api/**", Header: http.Header{"A": {"a"}}}}}
		made, set := NewFaultPlan(1, faults...), NewFaultPlan(1)
		set.Set(faults...)
		faults[0].Path = "/toolbox/**"
		faults[0].Header.Set("A", "b")
		for _, plan := range []*FaultPlan{made, set} {
			plan.State()[0].Header.Set("A", "c")
			if diff := cmp.Diff(want, plan.State()); diff != "" {
				t.Errorf("the plan was changed (-want +got):\n%s", diff)
			}
		}
	})
}
