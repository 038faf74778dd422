package docs

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// state is a box of the diagram of a lease's life, around its centre.
type state struct {
	name, note string
	x, y       int
}

// change is an arrow of it, with its words beside.
type change struct {
	path, anchor string
	x, y         int
	words        []string
}

const boxWidth, boxHeight = 190, 52

var states = []state{
	{"being acquired", "until workspace and expiry are proved", 140, 60},
	{"in use", "a *Lease; commands, files, services", 560, 60},
	{"stopped", "or archived; a LeaseRef is kept", 560, 220},
	{"unaccounted for", "an envelope; with a Store, a record", 140, 380},
	{"gone", "proved; nothing is paid for", 560, 380},
}

var changes = []change{
	{"M235,60 H465", "middle", 350, 50, []string{"ready"}},
	{"M530,86 V194", "end", 520, 112, []string{"Release of a reusable", "one, or with Retain;", "auto-stop; a sweep,", "after its host's death"}},
	{"M590,194 V86", "start", 600, 145, []string{"Resume"}},
	{"M560,246 V354", "start", 570, 296, []string{"Destroy; auto-delete;", "TTL"}},
	{"M655,60 C760,110 760,330 655,380", "start", 742, 205, []string{"Release; Destroy;", "TTL; proved loss;", "a sweep, after its", "host's death"}},
	{"M205,86 L490,354", "end", 330, 262, []string{"failed,", "and cleaned up"}},
	{"M110,86 V354", "end", 100, 225, []string{"failed, and", "uncertain"}},
	{"M235,380 H465", "middle", 350, 370, []string{"Inspect, then Cleanup; a sweep"}},
}

// diagram returns the SVG. Its colours are those of a light page, on a ground of its own.
func diagram() string {
	var b strings.Builder
	fmt.Fprint(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 890 440" font-family="system-ui, sans-serif" font-size="13" role="img" aria-labelledby="title">
<title id="title">The life of a lease: being acquired, in use, stopped, gone, or unaccounted for</title>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L10,5 L0,10 Z" fill="#444"/></marker></defs>
<rect width="890" height="440" fill="#fff"/>
`)
	for _, c := range changes {
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="#444" stroke-width="1.5" marker-end="url(#head)"/>`+"\n", c.path)
		for i, words := range c.words {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" fill="#222">%s</text>`+"\n", c.x, c.y+17*i, c.anchor, html.EscapeString(words))
		}
	}
	for _, s := range states {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" rx="8" fill="#eef3fb" stroke="#3b5b92"/>`+"\n", s.x-boxWidth/2, s.y-boxHeight/2, boxWidth, boxHeight)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" font-weight="bold">%s</text>`+"\n", s.x, s.y-5, html.EscapeString(s.name))
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" font-size="9.5" fill="#333">%s</text>`+"\n", s.x, s.y+14, html.EscapeString(s.note))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func TestDiagramIsUpToDate(t *testing.T) {
	made(t, "docs/leases.svg", diagram())
}

// made compares a file with what it should be, or writes it.
func made(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join(root, path), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, path); got != want {
		t.Errorf("%s is not what it is made from: go test ./docs -update writes it anew. It is:\n%s\nwant:\n%s", path, got, want)
	}
}

// madePart does that with the part of a document between a mark and the end mark that follows.
func madePart(t *testing.T, path, mark, want string) {
	t.Helper()
	begin, end := "<!-- "+mark+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(read(t, path), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s lacks %q or %q", path, begin, end)
	}
	made(t, path, before+begin+want+end+after)
}
