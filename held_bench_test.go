package leasehold

import (
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// BenchmarkHeld is what it costs a host to hold n of a thing, each: goroutines, memory, and requests in a second in which
// nothing is done with them. The embedded backend is another process's. Of HTTP's own connections none is left open.
func BenchmarkHeld(b *testing.B) {
	for _, held := range []struct {
		what string
		n    []int
		open func(b *testing.B, l *Lease) (close func() error, err error)
	}{
		{"leases", []int{1, 10, 100, 1000}, nil},
		{"commands", []int{1, 10}, func(b *testing.B, l *Lease) (func() error, error) {
			process, err := l.Executor().Start(b.Context(), Command{Args: []string{"sleep", "1000"}, Profiles: ProfilesNone})
			if err != nil {
				return nil, err
			}
			return func() error {
				if err := process.Kill(b.Context()); err != nil {
					return err
				}
				_, err := process.Wait()
				return err
			}, nil
		}},
		{"terminals", []int{1, 10}, func(b *testing.B, l *Lease) (func() error, error) {
			terminal, err := l.OpenTerminal(b.Context(), TerminalOptions{Args: []string{"sleep", "1000"}})
			if err != nil {
				return nil, err
			}
			return terminal.Close, nil
		}},
		{"channels", []int{1, 10}, func(b *testing.B, l *Lease) (func() error, error) {
			channel, err := l.OpenChannel(b.Context(), ChannelOptions{Args: []string{"cat"}})
			if err != nil {
				return nil, err
			}
			return channel.Close, nil
		}},
		{"endpoints", []int{1, 10}, func(b *testing.B, l *Lease) (func() error, error) {
			_, err := l.Endpoint(b.Context(), 8080)
			return func() error { return nil }, err
		}},
	} {
		for _, n := range held.n {
			b.Run(fmt.Sprintf("%s=%d", held.what, n), func(b *testing.B) { benchmarkHeld(b, n, held.open) })
		}
	}
}

// countingTransport counts requests.
type countingTransport struct {
	*http.Transport
	requests atomic.Int64
}

func (t *countingTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	return t.Transport.RoundTrip(q)
}

func benchmarkHeld(b *testing.B, n int, open func(*testing.B, *Lease) (func() error, error)) {
	transport := &countingTransport{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	p := remote(b, open == nil, transport)
	first, err := p.Acquire(b.Context(), request()) // what the provider needs once is no lease's
	if err != nil {
		b.Fatal(err)
	}
	look := func() (goroutines int, heap uint64) {
		transport.CloseIdleConnections()
		<-time.After(100 * time.Millisecond) // until their goroutines have ended
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return runtime.NumGoroutine(), stats.HeapAlloc
	}
	for b.Loop() {
		goroutines, heap := look()
		var group errgroup.Group
		if group.SetLimit(1); open == nil {
			group.SetLimit(DefaultMaxCreations)
		}
		leases, closers := make([]*Lease, n), make([]func() error, n)
		for i := range n {
			group.Go(func() (err error) {
				if open == nil {
					leases[i], err = p.Acquire(b.Context(), request())
				} else {
					closers[i], err = open(b, first)
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		moreGoroutines, moreHeap := look()
		before := transport.requests.Load()
		<-time.After(time.Second)
		b.ReportMetric(float64(transport.requests.Load()-before)/float64(n), "requests/each/s")
		b.ReportMetric(float64(moreGoroutines-goroutines)/float64(n), "goroutines/each")
		b.ReportMetric((float64(moreHeap)-float64(heap))/float64(n)/1024, "heap-KiB/each")
		for i := range n {
			group.Go(func() error {
				if open == nil {
					_, err := p.Destroy(b.Context(), leases[i].Ref())
					return err
				}
				return closers[i]()
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}
