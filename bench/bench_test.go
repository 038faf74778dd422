package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const docs = "../docs"

// published are the results that the documents show.
func published(t *testing.T) ([]byte, *results) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docs, "performance", "results.txt"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return text, r
}

// TestThePublishedTables wants the documents to say what the results say.
func TestThePublishedTables(t *testing.T) {
	text, r := published(t)
	page, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := replaceTables(page, r)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, want) {
		t.Errorf("performance.md has other tables than its results have:\n%s", r.tables())
	}
	if strings.Contains(r.tables(), "not measured") {
		t.Errorf("a goal or a cost without a result:\n%s", r.tables())
	}
	if bytes.Contains(text, []byte("FAIL")) {
		t.Errorf("a benchmark failed:\n%s", text)
	}
	for _, f := range figures {
		var svg bytes.Buffer
		if err := f.draw(&svg, r); err != nil {
			t.Errorf("%s: %v", f.file, err)
		}
		shown, err := os.ReadFile(filepath.Join(docs, "performance", f.file))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(shown, svg.Bytes()) {
			t.Errorf("%s is not what the results look like", f.file)
		}
		wantXML(t, f.file, shown)
		if !bytes.Contains(page, []byte("(performance/"+f.file+")")) {
			t.Errorf("performance.md does not show %s", f.file)
		}
	}
}

func wantXML(t *testing.T, name string, text []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}

// TestEachGoalHasItsBenchmark wants the benchmarks to be there, and to be run.
func TestEachGoalHasItsBenchmark(t *testing.T) {
	names, err := filepath.Glob("../*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var code []byte
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, text...)
	}
	var wanted []string
	for _, g := range goals {
		wanted = append(wanted, g.bench)
	}
	for _, c := range costs {
		wanted = append(wanted, c.bench)
	}
	for _, f := range figures {
		for _, l := range f.lines {
			wanted = append(wanted, l.bench)
		}
	}
	for _, bench := range wanted {
		name, _, _ := strings.Cut(bench, "/")
		if !bytes.Contains(code, []byte("\nfunc Benchmark"+name+"(b *testing.B) {")) {
			t.Errorf("there is no Benchmark%s", name)
		}
		if !slices.ContainsFunc(suites, func(s suite) bool {
			first, _, _ := strings.Cut(s.bench, "/")
			return regexp.MustCompile(first).MatchString("Benchmark" + name)
		}) {
			t.Errorf("Benchmark%s is never run", name)
		}
	}
}

func TestTables(t *testing.T) {
	r, err := parse(strings.NewReader(`goos: linux
cpu: Some CPU
cores: 2
kernel: 6.1
go: go1.26
load: 1.50
BenchmarkCommand/true/journal-2   	      10	  1234567 ns/op	        20.00 ms/op	         5.000 floor-ms/op	         1.000 requests/op	         4.000 x-floor
load: 2.50
BenchmarkImport/files=2000-2      	       5	  1234567 ns/op	        80.00 MB/s	       100.0 floor-MB/s	         1.250 x-floor	        64.00 RSS-growth-MiB
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	got := r.tables()
	for _, want := range []string{
		"Some CPU, 2 cores, Linux 6.1, Go 1.26; load when each part began: 1.50, 2.50\n",
		"| short command, journal | 1 requests/op |  |  | ≤ 1 requests/op | met |\n",
		"| … end to end | 20 ms/op | 5 ms/op | 4 | ≤ 2.5 floors | **missed** |\n",
		"| import, 2,000 × 8 KiB | 80 MB/s | 100 MB/s | 0.8 | ≥ 60 % of the floor | met |\n",
		"| … memory | 64 RSS-growth-MiB |  |  | < 64 RSS-growth-MiB | **missed** |\n",
		"| the library's own time | | | | ≤ 1 ms/op | not measured |\n",
		"| a short command | not measured |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	var svg bytes.Buffer
	if err := figures[0].draw(&svg, r); err == nil {
		t.Error("a plot of nothing")
	}
}

func TestResultsThatAreNone(t *testing.T) {
	for _, text := range []string{"BenchmarkX-2 1 12 ns/op 3", "BenchmarkX-2 one 12 ns/op"} {
		if r, err := parse(strings.NewReader(text + "\n")); err == nil && len(r.order) > 0 {
			t.Errorf("%q: parsed as %v", text, r.metrics)
		}
	}
	if _, err := replaceTables([]byte("no marks"), &results{}); err == nil {
		t.Error("tables without a place were put somewhere")
	}
}
