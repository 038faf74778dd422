package leasehold

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/activity"
	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// BenchmarkRecord measures what the durable record of one lease costs: three writes until it is acquired, two until it is
// given back. On a disk nearly all of that is the disk's, which flush-ms has apart: two flushes, of a file and of its
// directory, for each of the first four writes, and one for the removal.
func BenchmarkRecord(b *testing.B) {
	disk, memory := b.TempDir(), ""
	if dir, err := os.MkdirTemp("/dev/shm", "leasehold"); err == nil {
		memory = dir
		defer os.RemoveAll(dir)
	}
	for _, at := range []struct{ name, dir string }{{"disk", disk}, {"tmpfs", memory}} {
		b.Run(at.name, func(b *testing.B) {
			if at.dir == "" {
				b.Skip("no tmpfs at /dev/shm")
			}
			s, err := NewFileStore(at.dir, FileStoreOptions{})
			if err != nil {
				b.Fatal(err)
			}
			cfg := Config{Store: s, ClaimTime: time.Hour, CallTimeout: time.Minute}
			g := newLedger(&cfg, activity.New[tenancy, target]().Subject(tenancy{}, ""))
			defer g.close(b.Context())
			check := func(err error) {
				if err != nil {
					b.Fatal(err)
				}
			}
			var acquired, flushed time.Duration
			b.ReportAllocs()
			for b.Loop() {
				r, lease := storedRecord(), leasedRecord()
				lease.Envelope.Name, lease.Envelope.Attempt, lease.Envelope.Labels = r.Envelope.Name, r.Envelope.Attempt, r.Envelope.Labels
				lease.Lease.Name, lease.Lease.Attempt, lease.Lease.Labels = r.Envelope.Name, r.Envelope.Attempt, r.Envelope.Labels
				began := time.Now()
				check(g.open(b.Context(), "bench", r))
				check(g.note(b.Context(), "bench", r.Envelope.Attempt, DispatchedYes, func(r *Record) { r.Envelope.Observed = lease.Envelope.Observed }))
				check(g.note(b.Context(), "bench", r.Envelope.Attempt, DispatchedYes, func(r *Record) { *r = lease }))
				acquired += time.Since(began)
				_, err := g.end(b.Context(), "bench", *lease.Lease, OrphanDestroy)
				check(err)
				g.settle(b.Context(), r.Envelope.Attempt, true)

				b.StopTimer()
				began = time.Now()
				f, err := os.Create(filepath.Join(at.dir, ".tmp-0"))
				check(err)
				_, err = f.Write(make([]byte, 1500))
				check(err)
				check(f.Sync())
				check(f.Close())
				check(os.Rename(f.Name(), filepath.Join(at.dir, ".tmp-1")))
				check(syncDir(at.dir))
				flushed += time.Since(began)
				b.StartTimer()
			}
			b.ReportMetric(float64(acquired)/float64(b.N)/1e6, "acquire-ms")
			b.ReportMetric(3*float64(flushed)/float64(b.N)/1e6, "flush-ms")
		})
	}
}

// BenchmarkSweep measures a pass over the records of a dead host whose sandboxes run: 500, or 10,000 with
// LEASEHOLD_LONG=1. The list is a directory on tmpfs where there is one, and the provider an emulator in memory.
func BenchmarkSweep(b *testing.B) {
	records := 500
	if os.Getenv("LEASEHOLD_LONG") == "1" {
		records = 10000
	}
	server, err := emulator.Start(emulator.Options{InMemory: true, Toolbox: http.NotFoundHandler()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	for _, concurrency := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("concurrency %d", concurrency), func(b *testing.B) {
			parent := "/dev/shm"
			if _, err := os.Stat(parent); err != nil {
				parent = b.TempDir()
			}
			dir, err := os.MkdirTemp(parent, "leasehold")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s, err := NewFileStore(dir, FileStoreOptions{})
			if err != nil {
				b.Fatal(err)
			}
			p, err := newProvider(Config{APIKey: server.APIKey(), APIURL: server.URL(), Transport: server.Transport(), Store: s})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = p.Close(context.Background()) }()
			sweeper, err := NewSweeper(p, SweeperOptions{Concurrency: concurrency})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				strand(b, p, records)
				b.StartTimer()
				report, err := sweeper.Sweep(b.Context())
				if err != nil || report.Destroyed != records {
					b.Fatalf("Sweep() = %+v, %v, want %d destroyed", report, err, records)
				}
			}
			b.ReportMetric(float64(records), "records")
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(records)/1e6, "ms/record")
		})
	}
}

// strand creates sandboxes, and leaves records of their creations behind, as a host does that is killed.
func strand(b *testing.B, p *provider, n int) {
	b.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			op := p.newCreation(request().Scope, false, nil)
			r := Record{Version: recordVersion, State: StateCreating, Orphan: OrphanDestroy, Envelope: *op.envelope(PhaseCreate, "")}
			if _, err := p.cfg.Store.Put(b.Context(), r, "dead"); err != nil {
				b.Error(err)
			}
			if _, err := p.client.Create(b.Context(), daytona.CreateRequest{Name: op.Name, Labels: op.Labels}); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}
