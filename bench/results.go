package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// results are the metrics of benchmarks, by name, without "Benchmark" and the number of processors, and by unit, as the
// benchmark reported it.
type results struct {
	metrics map[string]map[string]float64
	order   []string // of the names
	config  map[string]string
	loads   []string
}

var processors = regexp.MustCompile(`-\d+$`)

// parse reads Go's benchmark format. A line that begins as a result and is none is an error.
func parse(r io.Reader) (*results, error) {
	all := &results{metrics: map[string]map[string]float64{}, config: map[string]string{}}
	reader := benchfmt.NewReader(r, "results")
	for reader.Scan() {
		switch record := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, record
		case *benchfmt.Result:
			all.add(record)
		}
	}
	return all, reader.Err()
}

func (r *results) add(record *benchfmt.Result) {
	name := processors.ReplaceAllString(record.Name.String(), "")
	if r.metrics[name] == nil {
		r.order = append(r.order, name)
	}
	units := map[string]float64{}
	for _, v := range record.Values {
		if v.OrigUnit != "" { // before it was made seconds, or bytes
			units[v.OrigUnit] = v.OrigValue
		} else {
			units[v.Unit] = v.Value
		}
	}
	r.metrics[name] = units
	for _, c := range record.Config {
		r.config[c.Key] = string(c.Value)
	}
	if load := record.GetConfig("load"); len(r.loads) == 0 || r.loads[len(r.loads)-1] != load {
		r.loads = append(r.loads, load)
	}
}

// machine says where and under which load the results were taken.
func (r *results) machine() string {
	var parts []string
	for _, key := range []string{"cpu", "cores", "kernel", "go", "files"} {
		value := r.config[key]
		switch {
		case value == "":
			continue
		case key == "cores":
			value += " cores"
		case key == "kernel":
			value = "Linux " + value
		case key == "go":
			value = strings.Replace(value, "go", "Go ", 1)
		case key == "files":
			value = "files on " + value
		}
		parts = append(parts, value)
	}
	return fmt.Sprintf("%s; load when each part began: %s", strings.Join(parts, ", "), strings.Join(r.loads, ", "))
}
