package leasehold

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// BenchmarkAcquire measures an acquisition against its floor in the same run: the creation, one read of a sandbox that
// runs, and one bare execute. It reports the library's own time on top of that, and the ratio.
func BenchmarkAcquire(b *testing.B) {
	server, err := emulator.Start(emulator.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	}()
	p, err := newProvider(Config{APIKey: server.APIKey(), APIURL: server.URL()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := p.Close(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	var floor, acquire time.Duration
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		began := time.Now()
		sb, err := p.client.Create(b.Context(), daytona.CreateRequest{Labels: map[string]string{"bench": "floor"}})
		if err != nil {
			b.Fatal(err)
		}
		if sb, err = p.client.Get(b.Context(), sb.ID); err != nil || sb.State != daytona.StateStarted {
			b.Fatalf("state %q, %v", sb.State, err)
		}
		if _, err := p.client.Toolbox(sb).Execute(b.Context(), "true", time.Minute); err != nil {
			b.Fatal(err)
		}
		floor += time.Since(began)
		if _, err := p.delete(b.Context(), "floor", target{id: sb.ID, name: sb.Name, credential: p.account.credential}); err != nil {
			b.Fatal(err) // waited for, or its end would be measured with what follows
		}
		b.StartTimer()

		began = time.Now()
		l, err := p.Acquire(b.Context(), request())
		acquire += time.Since(began)
		if err != nil {
			b.Fatal(err)
		}

		b.StopTimer()
		if _, err := p.Destroy(b.Context(), l.Ref()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(acquire)/float64(floor), "x-floor")
	b.ReportMetric(float64(acquire-floor)/float64(b.N)/1e6, "ms-added")
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
