package leasehold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// contest times what a benchmark is about and its floor, one after the other: what else the machine does meets both. All
// benchmarks name their metrics alike, of which the command in bench makes its tables: ms/op is what it is about,
// floor-ms/op the floor, and x-floor how many times the floor it takes. These are of the fastest run of each, since
// whatever else the machine does only ever makes a run slower; median-x-floor is of the medians. MB/s and floor-MB/s are
// the same of a transfer.
type contest struct {
	b              *testing.B
	values, floors []time.Duration
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

func (c *contest) value(f func()) {
	c.b.StartTimer()
	c.values = append(c.values, timed(f))
	c.b.StopTimer()
}

func (c *contest) floor(f func()) {
	c.b.StopTimer()
	c.floors = append(c.floors, timed(f))
}

// report reports what each took, and how fast it was if size is not 0.
func (c *contest) report(size int64) {
	slices.Sort(c.values)
	slices.Sort(c.floors)
	value, floor := c.values[0].Seconds(), c.floors[0].Seconds()
	c.b.ReportMetric(value*1e3, "ms/op")
	c.b.ReportMetric(floor*1e3, "floor-ms/op")
	c.b.ReportMetric(value/floor, "x-floor")
	c.b.ReportMetric(float64(c.values[len(c.values)/2])/float64(c.floors[len(c.floors)/2]), "median-x-floor")
	if size > 0 {
		c.b.ReportMetric(float64(size)/value/1e6, "MB/s")
		c.b.ReportMetric(float64(size)/floor/1e6, "floor-MB/s")
	}
}

// remote starts the embedded backend in a process of its own, so that goroutines, allocations and memory are the
// library's, and returns a provider that works on it. With bare, its sandboxes are nothing but records.
func remote(b *testing.B, bare bool, transport http.RoundTripper) *provider {
	b.Helper()
	host := exec.Command(os.Args[0], "-test.run=^TestServeBenchmarks$")
	host.Env = append(os.Environ(), "LEASEHOLD_SERVE="+map[bool]string{true: "bare", false: "whole"}[bare])
	host.Stderr = os.Stderr
	in, err := host.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := host.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := host.Start(); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	url, key, _ := strings.Cut(strings.TrimSpace(line), " ")
	p, err := newProvider(Config{APIURL: url, APIKey: key, NoBwrap: true, Transport: transport})
	if err != nil {
		b.Fatal(err)
	}
	p.embedded = strings.TrimSuffix(url, "/api")
	b.Cleanup(func() {
		if err := errors.Join(p.Close(context.Background()), in.Close(), host.Wait()); err != nil {
			b.Error(err)
		}
	})
	return p
}

// TestServeBenchmarks is what remote starts.
func TestServeBenchmarks(t *testing.T) {
	kind := os.Getenv("LEASEHOLD_SERVE")
	if kind == "" {
		t.SkipNow()
	}
	var options emulator.Options
	if kind == "bare" {
		options.Toolbox = http.HandlerFunc(new(world).toolbox)
	}
	server, err := emulator.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(server.URL(), server.APIKey())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark has ended
	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

// benchLease returns a lease on an embedded backend.
func benchLease(b *testing.B) (*emulator.Server, *provider, *Lease) {
	server, err := emulator.Start(emulator.Options{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := newProvider(Config{APIKey: server.APIKey(), APIURL: server.URL(), NoBwrap: true})
	if err != nil {
		b.Fatal(err)
	}
	l, err := p.Acquire(b.Context(), request())
	if err != nil {
		b.Fatal(err)
	}
	return server, p, l
}

// create makes a sandbox, reads it, and runs a program in it: the floor of an acquisition.
func create(ctx context.Context, p *provider) (*daytona.Sandbox, error) {
	sb, err := p.client.Create(ctx, daytona.CreateRequest{Labels: map[string]string{"bench": "floor"}})
	if err != nil {
		return nil, err
	}
	if sb, err = p.client.Get(ctx, sb.ID); err != nil {
		return nil, err
	}
	if sb.State != daytona.StateStarted {
		return nil, fmt.Errorf("the sandbox's state is %q", sb.State)
	}
	_, err = p.client.Toolbox(sb).Execute(ctx, "true", time.Minute)
	return sb, err
}

func remove(ctx context.Context, p *provider, sb *daytona.Sandbox) error {
	_, err := p.delete(ctx, "floor", target{id: sb.ID, name: sb.Name, credential: p.account.credential})
	return err
}

// BenchmarkAcquire measures an acquisition against its floor: the creation, one read of a sandbox that runs, and one bare
// execute. The allocations are the library's and the HTTP client's.
func BenchmarkAcquire(b *testing.B) {
	p := remote(b, false, nil)
	c := contest{b: b}
	b.ReportAllocs()
	for b.Loop() {
		var sb *daytona.Sandbox
		var l *Lease
		var err error
		c.floor(func() { sb, err = create(b.Context(), p) })
		if err == nil {
			err = remove(b.Context(), p, sb) // waited for, or its end would be measured with what follows
		}
		if err != nil {
			b.Fatal(err)
		}
		c.value(func() { l, err = p.Acquire(b.Context(), request()) })
		if err == nil {
			_, err = p.Destroy(b.Context(), l.Ref())
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	c.report(0)
	b.ReportMetric((c.values[0]-c.floors[0]).Seconds()*1e3, "added-ms/op")
}

// BenchmarkAcquireAtOnce acquires n leases in parallel, against as many creations, as many of them at a time as the library
// makes. In the last case the server refuses 88. Orphans are sandboxes that no lease has.
func BenchmarkAcquireAtOnce(b *testing.B) {
	for _, crowd := range []struct{ n, refused int }{{1, 0}, {5, 0}, {10, 0}, {25, 0}, {50, 0}, {100, 0}, {100, 88}} {
		b.Run(fmt.Sprintf("n=%d/refused=%d", crowd.n, crowd.refused), func(b *testing.B) {
			server, p, _ := benchLease(b)
			defer server.Close()
			defer p.Close(context.Background())
			before := len(server.Sandboxes())
			c := contest{b: b}
			orphans, requests := 0, 0
			for b.Loop() {
				floor := make([]*daytona.Sandbox, crowd.n)
				c.floor(func() {
					inParallel(b, crowd.n, DefaultMaxCreations, func(i int) (err error) {
						floor[i], err = create(b.Context(), p)
						return err
					})
				})
				inParallel(b, crowd.n, DefaultMaxCreations, func(i int) error { return remove(b.Context(), p, floor[i]) })
				if crowd.refused > 0 {
					server.SetFaults(emulator.Fault{
						Method: "POST", Path: "/api/sandbox", Nth: crowd.n - crowd.refused + 1, Count: crowd.refused,
						Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"0.01"}}, Body: structured(429, "Rate limit exceeded"),
					})
				}
				server.ResetRequests()
				leases := make([]*Lease, crowd.n)
				c.value(func() {
					inParallel(b, crowd.n, crowd.n, func(i int) (err error) {
						leases[i], err = p.Acquire(b.Context(), request())
						return err
					})
				})
				requests += len(server.Requests())
				orphans += len(server.Sandboxes()) - before - crowd.n
				inParallel(b, crowd.n, DefaultMaxCreations, func(i int) error {
					_, err := p.Destroy(b.Context(), leases[i].Ref())
					return err
				})
				b.StartTimer()
			}
			c.report(0)
			b.ReportMetric(float64(orphans)/float64(b.N), "orphans/op")
			b.ReportMetric(float64(requests)/float64(b.N), "requests/op")
		})
	}
}

// inParallel calls f n times, so many at once.
func inParallel(b *testing.B, n, limit int, f func(i int) error) {
	b.Helper()
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error { return f(i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCountedCall is what it costs a call on a lease to be counted, from begin to done. The goal is 200 ns, alone and
// with 64 goroutines.
func BenchmarkCountedCall(b *testing.B) {
	p, err := newProvider(Config{APIKey: "key"})
	if err != nil {
		b.Fatal(err)
	}
	call := func(l *Lease) {
		done, err := l.begin("call")
		if err != nil {
			b.Fatal(err)
		}
		done()
	}
	bind := func(n int64) *Lease {
		ref := LeaseRef{Sandbox: fmt.Sprint(n), Scope: Scope{Tenant: "acme", Environment: "test", Run: "run-1"}}
		return newLease(p, ref)
	}
	b.Run("alone", func(b *testing.B) {
		l := bind(0)
		b.ReportAllocs()
		for b.Loop() {
			call(l)
		}
	})
	for _, leases := range []string{"one lease", "a lease each"} {
		b.Run("64 goroutines/"+leases, func(b *testing.B) {
			all := bind(0)
			var n atomic.Int64
			b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				l := all
				if leases != "one lease" {
					l = bind(n.Add(1))
				}
				for pb.Next() {
					call(l)
				}
			})
		})
	}
}
