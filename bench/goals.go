package main

import (
	"fmt"
	"strconv"
	"strings"
)

// goal is one thing that is promised.
type goal struct {
	what  string
	bench string // the benchmark that measures it
	unit  string // in which it reports it
	bound bound
}

// bound is what a value must keep, or its ratio to the floor, in time.
type bound struct {
	text string
	met  func(value, ratio float64) bool
}

func atMost(most float64) bound {
	return bound{"≤ " + number(most), func(value, _ float64) bool { return value <= most }}
}

func below(most float64) bound {
	return bound{"< " + number(most), func(value, _ float64) bool { return value < most }}
}

func atLeast(least float64) bound {
	return bound{"≥ " + number(least), func(value, _ float64) bool { return value >= least }}
}

// floors is for what may take so many times the floor.
func floors(most float64) bound {
	return bound{"≤ " + number(most) + " floors", func(_, ratio float64) bool { return ratio <= most }}
}

// speed is for what must have so many percent of the floor's speed.
func speed(percent float64) bound {
	return bound{"≥ " + number(percent) + " % of the floor", func(_, ratio float64) bool { return ratio <= 100/percent }}
}

var goals = []goal{
	{"short command, journal", "Command/true/journal", "requests/op", atMost(1)},
	{"… end to end", "Command/true/journal", "ms/op", floors(2.5)},
	{"short command, session, its exit recorded", "Command/true/session", "recorded-requests/op", atMost(2)},
	{"… never the daemon's late close, 1 s", "Command/true/session", "ms/op", below(1000)},
	{"the library's own time", "LibraryTime", "ms/op", atMost(1)},
	{"first byte, journal", "FirstByte/journal", "ms/op", atMost(100)},
	{"first byte, session", "FirstByte/session", "ms/op", atMost(100)},
	{"256 MiB of output", "Relay/journal/MiB=256", "MB/s", atLeast(300)},
	{"… memory", "Relay/journal/MiB=256", "heap-growth-MiB", below(64)},
	{"a log of 128 MiB, five breaks", "Recovery/journal", "moved-MiB/op", floors(1.1)},
	{"import, 2,000 × 8 KiB", "Import/files=2000", "MB/s", speed(60)},
	{"… memory", "Import/files=2000", "RSS-growth-MiB", below(64)},
	{"export, 2,000 × 8 KiB", "Export/files=2000", "MB/s", speed(60)},
	{"… memory", "Export/files=2000", "RSS-growth-MiB", below(64)},
	{"import, 1 GiB", "Import/MiB=1024", "MB/s", speed(60)},
	{"… memory", "Import/MiB=1024", "RSS-growth-MiB", below(64)},
	{"export, 1 GiB", "Export/MiB=1024", "MB/s", speed(60)},
	{"… memory", "Export/MiB=1024", "RSS-growth-MiB", below(64)},
	{"export through a terminal", "ExportTerminal", "MB/s", atLeast(20)},
	{"acquire, beside create and ready", "Acquire", "added-ms/op", atMost(5)},
	{"100 acquisitions at once, 88 refused", "AcquireAtOnce/n=100/refused=88", "orphans/op", atMost(0)},
	{"idle leases, 1,000", "Held/leases=1000", "requests/each/s", atMost(0)},
	{"… goroutines", "Held/leases=1000", "goroutines/each", below(0.01)},
}

// cost is what something takes, for which there is no goal.
type cost struct {
	what  string
	bench string
	units []string
}

var costs = []cost{
	{"an acquisition", "Acquire", []string{"allocs/op", "B/op"}},
	{"a short command", "LibraryTime", []string{"allocs/op", "B/op"}},
	{"a lease that is held", "Held/leases=1000", held},
	{"a command that runs", "Held/commands=10", held},
	{"a terminal that is open", "Held/terminals=10", held},
	{"a channel that is open", "Held/channels=10", held},
	{"an endpoint", "Held/endpoints=10", held},
}

var held = []string{"goroutines/each", "heap-KiB/each", "requests/each/s"}

// tables returns the goals, what came of them, and the costs, as Markdown.
func (r *results) tables() string {
	var b strings.Builder
	b.WriteString(r.machine() + "\n\n")
	b.WriteString("| goal | value | floor | ratio | wanted | |\n|---|---|---|---|---|---|\n")
	for _, g := range goals {
		b.WriteString(r.row(g))
	}
	b.WriteString("\n| what | costs |\n|---|---|\n")
	for _, c := range costs {
		var parts []string
		for _, unit := range c.units {
			if value, ok := r.metrics[c.bench][unit]; ok {
				parts = append(parts, number(value)+" "+unit)
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", c.what, orDash(strings.Join(parts, ", ")))
	}
	return b.String()
}

func (r *results) row(g goal) string {
	metrics := r.metrics[g.bench]
	value, ok := metrics[g.unit]
	if !ok {
		return fmt.Sprintf("| %s | | | | %s %s | not measured |\n", g.what, g.bound.text, g.unit)
	}
	floor, ratio, multiple := "", "", metrics["x-floor"]
	if f, ok := metrics["floor-"+g.unit]; ok {
		floor, ratio = number(f)+" "+g.unit, number(value/f)
	}
	verdict := "**missed**"
	if g.bound.met(value, multiple) {
		verdict = "met"
	}
	wanted := g.bound.text
	if !strings.Contains(wanted, "floor") {
		wanted += " " + g.unit
	}
	return fmt.Sprintf("| %s | %s %s | %s | %s | %s | %s |\n", g.what, number(value), g.unit, floor, ratio, wanted, verdict)
}

func orDash(s string) string {
	if s == "" {
		return "not measured"
	}
	return s
}

// number writes three digits.
func number(x float64) string {
	if x >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
