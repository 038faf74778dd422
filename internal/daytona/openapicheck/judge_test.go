package openapicheck

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tally counts exchanges by document, operation and status.
type tally map[string]map[string]map[int]int

func (c tally) add(document, operation string, status int) {
	if c[document] == nil {
		c[document] = map[string]map[int]int{}
	}
	if c[document][operation] == nil {
		c[document][operation] = map[int]int{}
	}
	c[document][operation][status]++
}

// judge holds exchanges against the documents. The problems are what neither a document nor a known difference says,
// known differences that did not occur, and operations that were required and not exercised. The report says how many
// exchanges of each operation were compared.
func judge(documents map[string]*Document, differences []difference, required map[string][]string, exchanges []*Exchange) (problems []string, report string) {
	counts, table, previews := tally{}, newKnown(differences), 0
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, e := range exchanges {
		name, path := locate(e)
		switch {
		case e.Aborted:
			problem("%s %s: the server dropped the connection", e.Method, e.URL.Path)
			continue
		case name == "":
			previews++
			continue
		}
		result := documents[name].Check(e, path)
		for _, finding := range result.Findings {
			if err := table.explain(name, finding, e); err != nil {
				problem("%v\n\trequest: %s\n\treply:   %s", err, short(e.Body), short(e.ReplyBody))
			}
			if finding.Kind == Operation {
				result.Path = table.template(name, e.Method, result.Path)
			}
		}
		counts.add(name, e.Method+" "+result.Path, e.Status)
	}
	for _, unused := range table.unused() {
		problem("known difference that did not occur: %s", unused)
	}
	for _, name := range slices.Sorted(maps.Keys(required)) {
		for _, operation := range required[name] {
			if len(counts[name][operation]) == 0 {
				problem("%s: %s was not exercised", filepath.Base(name), operation)
			}
		}
	}
	return problems, fmt.Sprintf("compared exchanges per operation and status, and %d of the preview proxy, which no document describes:\n%v", previews, counts)
}

// locate tells which document describes an exchange, and its path below that document's root. No document describes
// the preview proxy.
func locate(e *Exchange) (document, path string) {
	switch escaped := e.URL.EscapedPath(); {
	case strings.HasPrefix(escaped, "/api/"):
		return control, strings.TrimPrefix(escaped, "/api")
	case strings.HasPrefix(escaped, "/toolbox/"):
		_, path, _ := strings.Cut(strings.TrimPrefix(escaped, "/toolbox/"), "/")
		return toolbox, "/" + path
	default:
		return "", ""
	}
}

func (c tally) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s\n", filepath.Base(name))
		for _, operation := range slices.Sorted(maps.Keys(c[name])) {
			total := 0
			var each []string
			for _, status := range slices.Sorted(maps.Keys(c[name][operation])) {
				n := c[name][operation][status]
				total += n
				each = append(each, fmt.Sprintf("%d x%d", status, n))
			}
			fmt.Fprintf(&b, "  %4d  %-80s %s\n", total, operation, strings.Join(each, ", "))
		}
	}
	return b.String()
}

func TestJudgeFindsWhatIsWrong(t *testing.T) {
	document, err := Load([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	documents := map[string]*Document{control: document, toolbox: document}
	known := []difference{{document: control, operations: []string{"GET /boxes/first"}, status: 500, kind: Status, instead: nothingElse}}
	required := map[string][]string{control: {"GET /boxes/first"}, toolbox: {"GET /boxes/first"}}
	right := []*Exchange{
		exchange("GET /api/boxes/first", "", "", 500, "", ""),
		exchange("GET /toolbox/id/boxes/first", "", "", 204, "", ""),
		exchange("GET /preview/80-id/", "", "", 200, "", ""),
	}
	aborted := exchange("GET /api/boxes/first", "", "", 0, "", "")
	aborted.Aborted = true
	for _, test := range []struct {
		name      string
		exchanges []*Exchange
		want      []string // beginnings
	}{
		{"nothing", right, nil},
		{"dropped", append(slices.Clone(right), aborted), []string{"GET /api/boxes/first: the server dropped"}},
		{"unexplained", append(slices.Clone(right), exchange("GET /toolbox/id/boxes/first", "", "", 500, "", "")), []string{"GET /boxes/first 500: status"}},
		{"explained, but otherwise", append(slices.Clone(right), exchange("GET /api/boxes/first", "", "", 500, "", "x")), []string{"GET /boxes/first 500: status"}},
		{"not exercised", right[:1], []string{"toolbox-api-client-go: GET /boxes/first was not exercised"}},
		{"difference that is gone", append(slices.Clone(right[1:]), exchange("GET /api/boxes/first", "", "", 204, "", "")),
			[]string{"known difference that did not occur: GET /boxes/first 500"}},
	} {
		got, report := judge(documents, known, required, test.exchanges)
		if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
			t.Errorf("%s: problems %q, want those that begin with %q", test.name, got, test.want)
		}
		if want := "GET /boxes/first"; !strings.Contains(report, want) {
			t.Errorf("%s: report %q lacks %q", test.name, report, want)
		}
	}
}
