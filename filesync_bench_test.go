//go:build unix

package leasehold

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// The benchmarks move a tree through the library and the embedded backend and, in the same run, through "tar c | tar x".
// They report the speed of the one as a percentage of the other, of the fastest run of each, since whatever else the
// machine does only ever makes a run slower. LEASEHOLD_BENCH_MIB is the size of the one large file,
// 256 unless set.
func BenchmarkImport2000Files(b *testing.B) { benchmarkTransfer(b, false, smallFiles) }
func BenchmarkExport2000Files(b *testing.B) { benchmarkTransfer(b, true, smallFiles) }
func BenchmarkImportLargeFile(b *testing.B) { benchmarkTransfer(b, false, largeFile) }
func BenchmarkExportLargeFile(b *testing.B) { benchmarkTransfer(b, true, largeFile) }

func smallFiles(b *testing.B, dir string) int64 {
	manyFiles(b, dir, 2000, 8<<10)
	return 2000 * 8 << 10
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
	server, err := emulator.Start(emulator.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	p, err := newProvider(Config{APIKey: server.APIKey(), APIURL: server.URL()})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close(context.Background())
	l, err := p.Acquire(b.Context(), request())
	if err != nil {
		b.Fatal(err)
	}
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
		b.StartTimer()
		start = time.Now()
		if export {
			_, err = l.Exporter().Dir(b.Context(), "src", dest, ExportOptions{})
		} else {
			_, err = l.Importer().Dir(b.Context(), src, "dest", ImportOptions{})
		}
		ours = min(ours, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100*theirs.Seconds()/ours.Seconds(), "%of-tar|tar")
}
