package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// suite is the benchmarks that are run in one go.
type suite struct {
	bench string // regular expression, as in go test -bench
	time  string // for each, as in go test -benchtime
}

var suites = []suite{
	{"^Benchmark(Command|LibraryTime|FirstByte|Acquire|CountedCall|Admission)$", "1s"},
	{"^Benchmark(Relay|Recovery|Input|Channel|ExportTerminal)$", "3x"},
	{"^Benchmark(Import|Export)$/^files=", "5x"},
	{"^Benchmark(Import|Export)$/^MiB=", "3x"},
	{"^Benchmark(AcquireAtOnce)$", "3x"},
	{"^Benchmark(Held)$", "1x"},
}

// large is the size of the large file that is moved, in MiB.
const large = 1024

// measure runs the benchmarks and returns what they print, with what the machine was and how busy, in Go's benchmark
// format. It copies that to w as it comes.
func measure(module, only string, w io.Writer) ([]byte, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "leasehold.test")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the benchmarks: %w\n%s", err, out)
	}
	var output bytes.Buffer
	w = io.MultiWriter(w, &output)
	fmt.Fprint(w, machine())
	for _, s := range suites {
		if only != "" {
			s.bench = only
		}
		fmt.Fprintf(w, "load: %s\n", load())
		cmd := exec.Command(binary, "-test.run", "^$", "-test.bench", s.bench, "-test.benchtime", s.time)
		cmd.Dir, cmd.Stdout, cmd.Stderr = module, w, w
		cmd.Env = append(os.Environ(), fmt.Sprintf("LEASEHOLD_BENCH_MIB=%d", large))
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("benchmarks %s: %w", s.bench, err)
		}
		if only != "" {
			break
		}
	}
	return output.Bytes(), nil
}

// machine describes where this runs, as configuration lines.
func machine() string {
	kernel := "unknown"
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(release))
	}
	files := "unknown"
	if kind, err := exec.Command("stat", "-f", "-c", "%T", os.TempDir()).Output(); err == nil {
		files = strings.TrimSpace(string(kind))
	}
	return fmt.Sprintf("cores: %d\nkernel: %s\ngo: %s\nfiles: %s\n", runtime.NumCPU(), kernel, runtime.Version(), files)
}

// load returns how busy the machine was in the last minute: runnable processes.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	last, _, _ := strings.Cut(string(text), " ")
	return last
}
