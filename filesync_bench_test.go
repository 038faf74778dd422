//go:build unix

package leasehold

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// The benchmarks move a tree through the library and the embedded backend, and through "tar c | tar x": that is the floor.
// They also report the requests of one transfer, and by how much the resident memory of library, backend and test together
// grew at most (Linux). LEASEHOLD_BENCH_MIB is the size of the one large file, 256 unless set; more than 2,000 files
// need LEASEHOLD_LONG=1.
func BenchmarkImport(b *testing.B) { eachTree(b, false) }
func BenchmarkExport(b *testing.B) { eachTree(b, true) }

func eachTree(b *testing.B, export bool) {
	counts := []int{10, 100, 1000, 2000}
	if long() {
		counts = append(counts, 10_000, 100_000)
	}
	for _, count := range counts {
		b.Run(fmt.Sprintf("files=%d", count), func(b *testing.B) { benchmarkTransfer(b, export, smallFiles(count)) })
	}
	mib := 256
	if text := os.Getenv("LEASEHOLD_BENCH_MIB"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		mib = n
	}
	b.Run(fmt.Sprintf("MiB=%d", mib), func(b *testing.B) { benchmarkTransfer(b, export, largeFile(mib)) })
}

// smallFiles fills a directory with files of 8 KiB, and returns their size.
func smallFiles(count int) func(*testing.B, string) int64 {
	return func(b *testing.B, dir string) int64 {
		const each = 2000 // not all of them in memory at once
		for i := 0; i < count; i += each {
			sub := filepath.Join(dir, strconv.Itoa(i))
			if err := os.Mkdir(sub, 0o755); err != nil {
				b.Fatal(err)
			}
			manyFiles(b, sub, min(each, count-i), 8<<10)
		}
		return int64(count) * 8 << 10
	}
}

func largeFile(mib int) func(*testing.B, string) int64 {
	return func(b *testing.B, dir string) int64 {
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
	size := fill(b, src)
	if export {
		if err := os.Rename(src, filepath.Join(l.Ref().Workspace, "src")); err != nil {
			b.Fatal(err)
		}
		src = filepath.Join(l.Ref().Workspace, "src")
	}
	c := contest{b: b}
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
		c.floor(func() {
			if out, err := exec.Command("sh", "-c", `tar -c -f - -C "$0" . | tar -x -f - -C "$1"`, src, plain).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		})
		server.ResetRequests()
		c.value(func() {
			var err error
			if export {
				_, err = l.Exporter().Dir(b.Context(), "src", dest, ExportOptions{})
			} else {
				_, err = l.Importer().Dir(b.Context(), src, "dest", ImportOptions{})
			}
			if err != nil {
				b.Fatal(err)
			}
		})
		requests += len(server.Requests())
		b.StartTimer()
	}
	c.report(size)
	b.ReportMetric(float64(requests)/float64(b.N), "requests/op")
	if grown, ok := rss(); ok {
		b.ReportMetric(float64(grown)/(1<<20), "RSS-growth-MiB")
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

// BenchmarkExportTerminal exports from a sandbox whose disk is full. The floor is a terminal of this machine that prints as
// many bytes, none of which is acknowledged.
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
	c := contest{b: b}
	rss := watchRSS()
	for b.Loop() {
		c.floor(func() {
			cat := exec.Command("sh", "-c", `stty raw; exec cat "$0"`, source)
			terminal, err := pty.Start(cat)
			if err != nil {
				b.Fatal(err)
			}
			defer terminal.Close()
			if n, _ := io.Copy(io.Discard, terminal); n != size { // its end is an error
				b.Fatalf("%d bytes came through the terminal, want %d", n, size)
			}
			if err := cat.Wait(); err != nil {
				b.Fatal(err)
			}
		})
		c.value(func() {
			result, err := l.Exporter().Dir(b.Context(), "t", dest, ExportOptions{})
			if err != nil || result.Route != RouteTerminal {
				b.Fatalf("%+v, %v", result, err)
			}
		})
		b.StartTimer()
	}
	c.report(size)
	if grown, ok := rss(); ok {
		b.ReportMetric(float64(grown)/(1<<20), "RSS-growth-MiB")
	}
	sameFile(b, source, filepath.Join(dest, "f"))
}
