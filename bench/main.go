// Bench measures what Leasehold costs, and judges it by the goals:
//
//	go -C bench run .              # measures, and prints the tables
//	go -C bench run . -docs ../docs  # and writes docs/performance: the results, the tables and the plots
//	go -C bench run . -from results.txt
//
// It runs the benchmarks of the module around it, which know how each thing is measured and what its floor is: the least
// that the same server takes for it, measured in turn with it. What they print is in Go's benchmark format, so that
// benchstat compares two runs. The unit "x-floor" is how many times the floor something takes; "floor-" stands before
// the units of the floor.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	module := flag.String("module", "..", "directory of the module whose benchmarks are run")
	from := flag.String("from", "", "file of results, instead of running anything")
	docs := flag.String("docs", "", "directory whose performance.md gets the tables, with the results and plots beside it")
	only := flag.String("only", "", "run only the benchmarks whose names match this regular expression")
	flag.Parse()

	var output []byte
	var err error
	if *from != "" {
		output, err = os.ReadFile(*from)
	} else {
		output, err = measure(*module, *only, os.Stderr)
	}
	if err != nil {
		return err
	}
	results, err := parse(bytes.NewReader(output))
	if err != nil {
		return err
	}
	fmt.Print(results.tables())
	if *docs == "" {
		return nil
	}
	return document(*docs, output, results)
}

// document writes the results, the plots, and the tables of performance.md.
func document(dir string, output []byte, r *results) error {
	beside := filepath.Join(dir, "performance")
	if err := os.MkdirAll(beside, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(beside, "results.txt"), output, 0o644); err != nil {
		return err
	}
	for _, f := range figures {
		var svg bytes.Buffer
		if err := f.draw(&svg, r); err != nil {
			return fmt.Errorf("%s: %w", f.file, err)
		}
		if err := os.WriteFile(filepath.Join(beside, f.file), svg.Bytes(), 0o644); err != nil {
			return err
		}
	}
	page := filepath.Join(dir, "performance.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err = replaceTables(text, r)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, text, 0o644)
}

const begin, end = "<!-- measured -->\n", "<!-- end -->"

// replaceTables returns a page with these tables between its marks.
func replaceTables(page []byte, r *results) ([]byte, error) {
	head, rest, ok := bytes.Cut(page, []byte(begin))
	_, tail, found := bytes.Cut(rest, []byte(end))
	if !ok || !found {
		return nil, fmt.Errorf("no place for tables, between %q and %q", begin, end)
	}
	var b bytes.Buffer
	for _, part := range [][]byte{head, []byte(begin), []byte(r.tables()), []byte(end), tail} {
		b.Write(part)
	}
	return b.Bytes(), nil
}
