package openapicheck

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// difference is a way in which the emulator, faithful to the real server, is not as a document says.
type difference struct {
	document   string
	operations []string // method and path template; every one must occur. Empty: whichever, at least one
	status     int      // 0: whichever
	kind       Kind
	at         string                // as Finding.At
	instead    func(*Exchange) error // what holds in the document's place; nil: nothing more than the rest of the document
	why        string                // what differs
	source     string                // who says that the server is like this
}

// Sources of the differences.
const (
	measured = "measured against API, proxy and daemon v0.190.0"
	read     = "read in the source of the API or the daemon, v0.190.0"
	v190     = "the OpenAPI document of api-client-go v0.190.0"
	v205     = "the OpenAPI document of v0.205"
	chosen   = "nobody: chosen, because the real reply is not known"
	clients  = "the source of sdk-go v0.170.0 and of its generated clients"
)

// known is a table of differences that keeps count of their use.
type known struct {
	table []difference
	used  []map[string]bool // per difference: the operations in which it occurred
}

func newKnown(table []difference) *known {
	k := &known{table: table}
	for range table {
		k.used = append(k.used, map[string]bool{})
	}
	return k
}

// explain finds the first difference that a finding is, and holds the exchange against what is true instead.
func (k *known) explain(document string, f Finding, e *Exchange) error {
	for i, d := range k.table {
		operation, applies := d.applies(document, f)
		if !applies {
			continue
		}
		k.used[i][operation] = true
		if d.instead == nil {
			return nil
		}
		if err := d.instead(e); err != nil {
			return fmt.Errorf("%v\n\tknown difference (%s), but then: %w", f, d.why, err)
		}
		return nil
	}
	return fmt.Errorf("%v", f)
}

func (d *difference) applies(document string, f Finding) (operation string, ok bool) {
	if d.document != document || d.kind != f.Kind || d.at != f.At || d.status != 0 && d.status != f.Status {
		return "", false
	}
	if len(d.operations) == 0 {
		return "", true
	}
	i := slices.IndexFunc(d.operations, func(o string) bool { return sameOperation(o, f.Method, f.Path) })
	if i < 0 {
		return "", false
	}
	return d.operations[i], true
}

// sameOperation compares an operation of the table with a finding's path, which is a template itself, or a real path
// if the document has no such operation.
func sameOperation(operation, method, path string) bool {
	want, template, _ := strings.Cut(operation, " ")
	_, fits := match(strings.Split(template, "/"), strings.Split(path, "/"))
	return want == method && (template == path || fits && !strings.Contains(path, "{"))
}

// template is the path template that the table has for an operation without document, or else the path itself.
func (k *known) template(document, method, path string) string {
	for _, d := range k.table {
		if operation, ok := d.applies(document, Finding{Method: method, Path: path, Status: d.status, Kind: Operation}); ok && operation != "" {
			_, template, _ := strings.Cut(operation, " ")
			return template
		}
	}
	return path
}

// unused lists what the table explains although it did not occur.
func (k *known) unused() []string {
	var unused []string
	for i, d := range k.table {
		operations := d.operations
		if len(operations) == 0 {
			operations = []string{""}
		}
		for _, operation := range operations {
			if !k.used[i][operation] {
				unused = append(unused, fmt.Sprintf("%s %d: %s %s: %s", operation, d.status, d.kind, d.at, d.why))
			}
		}
	}
	return unused
}

// object demands a JSON object with exactly these members. Of two kinds of them the value is known: a statusCode is
// the reply's status.
func object(members ...string) func(*Exchange) error {
	slices.Sort(members)
	return func(e *Exchange) error {
		if kind := e.Reply.Get("Content-Type"); kind != "application/json; charset=utf-8" {
			return fmt.Errorf("content type %q, want JSON", kind)
		}
		var have map[string]any
		if err := json.Unmarshal(e.ReplyBody, &have); err != nil {
			return fmt.Errorf("body %s: %w", short(e.ReplyBody), err)
		}
		if got := slices.Sorted(maps.Keys(have)); !slices.Equal(got, members) {
			return fmt.Errorf("members %q, want %q", got, members)
		}
		if code, found := have["statusCode"]; found && code != float64(e.Status) {
			return fmt.Errorf("statusCode %v in a reply with status %d", code, e.Status)
		}
		return nil
	}
}

// nothingElse demands that there is no body.
func nothingElse(e *Exchange) error {
	if len(e.ReplyBody) > 0 {
		return fmt.Errorf("body %s, want none", short(e.ReplyBody))
	}
	return nil
}

// either demands that one of several holds.
func either(all ...func(*Exchange) error) func(*Exchange) error {
	return func(e *Exchange) error {
		var failed []string
		for _, f := range all {
			err := f(e)
			if err == nil {
				return nil
			}
			failed = append(failed, err.Error())
		}
		return fmt.Errorf("%s", strings.Join(failed, "; "))
	}
}

// The bodies of errors.
var (
	apiError      = object("path", "timestamp", "statusCode", "error", "message")
	apiSyntax     = object("message", "error", "statusCode")
	daemonError   = object("statusCode", "message", "code", "timestamp", "path", "method")
	daemonUnknown = object("statusCode", "message", "timestamp", "path")
	ptyError      = object("error")
)

func TestKnownDifferencesApplyOnlyToWhatTheyName(t *testing.T) {
	table := []difference{
		{document: control, operations: []string{"GET /a/{x}", "GET /b"}, kind: Status, status: 404, instead: nothingElse},
		{document: control, kind: ResponseBody, at: "/extra"},
		{document: toolbox, operations: []string{"POST /c/{x}"}, kind: Operation},
	}
	k := newKnown(table)
	for _, test := range []struct {
		name     string
		document string
		finding  Finding
		body     string
		explains bool
	}{
		{"as named", control, Finding{Method: "GET", Path: "/a/{x}", Kind: Status, Status: 404}, "", true},
		{"another status", control, Finding{Method: "GET", Path: "/a/{x}", Kind: Status, Status: 405}, "", false},
		{"another document", toolbox, Finding{Method: "GET", Path: "/a/{x}", Kind: Status, Status: 404}, "", false},
		{"another method", control, Finding{Method: "PUT", Path: "/a/{x}", Kind: Status, Status: 404}, "", false},
		{"another template", control, Finding{Method: "GET", Path: "/a/{y}", Kind: Status, Status: 404}, "", false},
		{"another kind", control, Finding{Method: "GET", Path: "/a/{x}", Kind: ResponseType, Status: 404}, "", false},
		{"what holds instead does not", control, Finding{Method: "GET", Path: "/a/{x}", Kind: Status, Status: 404}, "x", false},
		{"any operation", control, Finding{Method: "PUT", Path: "/z", Kind: ResponseBody, At: "/extra", Status: 200}, "", true},
		{"another place", control, Finding{Method: "PUT", Path: "/z", Kind: ResponseBody, At: "/other", Status: 200}, "", false},
		{"a path without a document", toolbox, Finding{Method: "POST", Path: "/c/17", Kind: Operation, Status: 200}, "", true},
	} {
		err := k.explain(test.document, test.finding, &Exchange{ReplyBody: []byte(test.body)})
		if (err == nil) != test.explains {
			t.Errorf("%s: %v, want explained: %v", test.name, err, test.explains)
		}
	}
	if got := k.template(toolbox, "POST", "/c/17"); got != "/c/{x}" {
		t.Errorf("template %q, want %q", got, "/c/{x}")
	}
	if got := k.unused(); len(got) != 1 || !strings.HasPrefix(got[0], "GET /b ") {
		t.Errorf("unused %q, want GET /b alone", got)
	}
}

func TestKnownDifferencesSayWhyAndWhoSaysSo(t *testing.T) {
	for i, d := range differences {
		if d.document == "" || d.kind == "" || d.why == "" || d.source == "" {
			t.Errorf("difference %d (%s %v, %d) lacks a document, kind, reason or source", i, d.kind, d.operations, d.status)
		}
	}
}
