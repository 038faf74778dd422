//go:build unix

package leasehold

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// The benchmarks move a tree through the library and the embedded backend and, in the same run, through "tar c | tar x".
// They report the speed of the one as a percentage of the other, of the fastest run of each, since whatever else the
// machine does only ever makes a run slower. They also report the requests of one transfer, and by how much the resident
// memory of library, backend and test together grew at most (Linux). LEASEHOLD_BENCH_MIB is the size of the one large file,
// 256 unless set; the 100,000 files need LEASEHOLD_LONG=1.
func BenchmarkImport2000Files(b *testing.B)   { benchmarkTransfer(b, false, smallFiles) }
func BenchmarkExport2000Files(b *testing.B)   { benchmarkTransfer(b, true, smallFiles) }
func BenchmarkImport100000Files(b *testing.B) { benchmarkTransfer(b, false, tinyFiles) }
func BenchmarkExport100000Files(b *testing.B) { benchmarkTransfer(b, true, tinyFiles) }
func BenchmarkImportLargeFile(b *testing.B)   { benchmarkTransfer(b, false, largeFile) }
func BenchmarkExportLargeFile(b *testing.B)   { benchmarkTransfer(b, true, largeFile) }

func smallFiles(b *testing.B, dir string) int64 {
	manyFiles(b, dir, 2000, 8<<10)
	return 2000 * 8 << 10
}

func tinyFiles(b *testing.B, dir string) int64 {
	if !long() {
		b.Skip("needs LEASEHOLD_LONG=1")
	}
	for i := range 50 { // not all of them in memory at once
		sub := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		manyFiles(b, sub, 2000, 1<<10)
	}
	return 100_000 << 10
}

func largeFile(b *testing.B, dir string) int64 {
	mib := 256
	if text := os.Getenv("LEASEHOLD_BENCH_MIB"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		mib = n
	}
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7)
	}
	for range mib {
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
	}
	return int64(mib) << 20
}

func benchmarkTransfer(b *testing.B, export bool, fill func(*testing.B, string) int64) {
	if _, err := exec.LookPath("tar"); err != nil {
		b.Skip("tar is missing")
	}
	server, p, l := benchLease(b)
	defer server.Close()
	defer p.Close(context.Background())
	base := b.TempDir()
	src := filepath.Join(base, "src")
	if err := os.Mkdir(src, 0o755); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(fill(b, src))
	if export {
		if err := os.Rename(src, filepath.Join(l.Ref().Workspace, "src")); err != nil {
			b.Fatal(err)
		}
		src = filepath.Join(l.Ref().Workspace, "src")
	}
	ours, theirs := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	var requests int
	rss := watchRSS()
	for b.Loop() {
		b.StopTimer()
		plain, dest := filepath.Join(base, "plain"), filepath.Join(base, "dest")
		for _, dir := range []string{plain, dest, filepath.Join(l.Ref().Workspace, "dest")} {
			if err := os.RemoveAll(dir); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.Mkdir(plain, 0o755); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if out, err := exec.Command("sh", "-c", `tar -c -f - -C "$0" . | tar -x -f - -C "$1"`, src, plain).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		theirs = min(theirs, time.Since(start))
		server.ResetRequests()
		b.StartTimer()
		start = time.Now()
		var err error
		if export {
			_, err = l.Exporter().Dir(b.Context(), "src", dest, ExportOptions{})
		} else {
			_, err = l.Importer().Dir(b.Context(), src, "dest", ImportOptions{})
		}
		ours = min(ours, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		requests = len(server.Requests())
	}
	b.ReportMetric(100*theirs.Seconds()/ours.Seconds(), "%of-tar|tar")
	b.ReportMetric(float64(requests), "requests/op")
	if grown, ok := rss(); ok {
		b.ReportMetric(float64(grown)/(1<<20), "MiB-RSS-growth")
	}
}

// watchRSS returns a function that says by how much the peak of the resident memory has grown since.
func watchRSS() func() (int64, bool) {
	runtime.GC()
	debug.FreeOSMemory()
	reset := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) == nil
	before, known := peakRSS()
	return func() (int64, bool) {
		after, ok := peakRSS()
		return after - before, reset && known && ok
	}
}

// peakRSS reads the most memory that the process had resident.
func peakRSS() (int64, bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		return 0, false
	}
	return kib << 10, true
}

// BenchmarkExportTerminal exports from a sandbox whose disk is full.
func BenchmarkExportTerminal(b *testing.B) {
	needTerminal(b)
	server, p, l := benchLease(b)
	defer server.Close()
	defer p.Close(context.Background())
	own := filepath.Join(l.Ref().Workspace, sentinelDir)
	tinyDisk(b, own, "64k")
	fill(b, own, false)
	const size = 64 << 20
	source, dest := filepath.Join(l.Ref().Workspace, "t", "f"), filepath.Join(b.TempDir(), "dest")
	noise(b, source, size)
	b.SetBytes(size)
	rss := watchRSS()
	for b.Loop() {
		result, err := l.Exporter().Dir(b.Context(), "t", dest, ExportOptions{})
		if err != nil || result.Route != RouteTerminal {
			b.Fatalf("%+v, %v", result, err)
		}
	}
	if grown, ok := rss(); ok {
		b.ReportMetric(float64(grown)/(1<<20), "MiB-RSS-growth")
	}
	sameFile(b, source, filepath.Join(dest, "f"))
}

// benchLease returns a lease on an embedded backend.
func benchLease(b *testing.B) (*emulator.Server, *provider, *Lease) {
	server, err := emulator.Start(emulator.Options{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := newProvider(Config{APIKey: server.APIKey(), APIURL: server.URL()})
	if err != nil {
		b.Fatal(err)
	}
	l, err := p.Acquire(b.Context(), request())
	if err != nil {
		b.Fatal(err)
	}
	return server, p, l
}
