package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// figure is a plot of costs against sizes, both by powers of ten.
type figure struct {
	file, title, x, y string
	lines             []line
}

// line is a metric of a benchmark's cases, whose names differ in a number: it stands for the "*".
type line struct {
	name, bench, unit string
}

var figures = []figure{
	{"output.svg", "Output, until the caller has it", "MiB", "ms", []line{
		{"journal", "Relay/journal/MiB=*", "ms/op"},
		{"session", "Relay/session/MiB=*", "ms/op"},
		{"floor: a download", "Relay/journal/MiB=*", "floor-ms/op"},
	}},
	{"output-memory.svg", "Output: growth of the heap", "MiB of output", "MiB", []line{
		{"journal", "Relay/journal/MiB=*", "heap-growth-MiB"},
		{"session", "Relay/session/MiB=*", "heap-growth-MiB"},
	}},
	{"files.svg", "Trees of files of 8 KiB", "files", "ms", []line{
		{"import", "Import/files=*", "ms/op"},
		{"export", "Export/files=*", "ms/op"},
		{"floor: tar | tar", "Import/files=*", "floor-ms/op"},
	}},
	{"acquire.svg", "Leases acquired at once, until all are there", "leases", "ms", []line{
		{"acquired", "AcquireAtOnce/n=*/refused=0", "ms/op"},
		{"floor: create, read, execute", "AcquireAtOnce/n=*/refused=0", "floor-ms/op"},
	}},
	{"held.svg", "Leases held: memory for each", "leases", "KiB", []line{
		{"heap", "Held/leases=*", "heap-KiB/each"},
	}},
}

// points returns the line's points, by size. What is not above 0 has no place on such a scale.
func (l line) points(r *results) plotter.XYs {
	before, after, _ := strings.Cut(l.bench, "*")
	var all plotter.XYs
	for _, name := range r.order {
		text, ok := strings.CutPrefix(name, before)
		text, found := strings.CutSuffix(text, after)
		size, err := strconv.ParseFloat(text, 64)
		cost := r.metrics[name][l.unit]
		if ok && found && err == nil && size > 0 && cost > 0 {
			all = append(all, plotter.XY{X: size, Y: cost})
		}
	}
	slices.SortFunc(all, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	return all
}

// draw writes the figure as SVG.
func (f figure) draw(w io.Writer, r *results) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.title, f.x, f.y
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, l := range f.lines {
		points := l.points(r)
		if len(points) == 0 {
			return fmt.Errorf("no results of %s in %s", l.bench, l.unit)
		}
		shown, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		shown.Color, dots.Color, dots.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		if strings.HasPrefix(l.unit, "floor-") {
			shown.Dashes = plotutil.Dashes(1)
		}
		p.Add(shown, dots)
		p.Legend.Add(l.name, shown, dots)
	}
	canvas := vgsvg.New(14*vg.Centimeter, 9*vg.Centimeter)
	p.Draw(draw.New(canvas))
	_, err := canvas.WriteTo(w)
	return err
}
