package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// TestOpenAPI: the document has each route, and nothing else; each parameter of a path is declared.
func TestOpenAPI(t *testing.T) {
	type operation struct {
		OperationID string            `json:"operationId"`
		Security    []json.RawMessage `json:"security"`
		Responses   map[string]any    `json:"responses"`
	}
	data, err := assets.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc := parse[struct {
		Paths      map[string]map[string]json.RawMessage
		Components map[string]map[string]json.RawMessage
	}](t, data)
	described := make(map[string]operation)
	ids := make(map[string]string)
	for path, item := range doc.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			route := strings.ToUpper(method) + " " + path
			op := parse[operation](t, raw)
			described[route] = op
			if other := ids[op.OperationID]; op.OperationID == "" || other != "" {
				t.Errorf("%s has the id %q, which must be its own, not that of %q", route, op.OperationID, other)
			}
			ids[op.OperationID] = route
			if len(op.Responses) == 0 {
				t.Errorf("%s has no responses", route)
			}
		}
		for _, parameter := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
			if want := `"#/components/parameters/` + parameter[1] + `"`; !strings.Contains(string(item["parameters"]), want) {
				t.Errorf("%s lacks the parameter %s: %s", path, want, item["parameters"])
			}
		}
	}
	for _, route := range new(service).routes() {
		pattern := strings.TrimSuffix(route.pattern, "{$}")
		op, ok := described[pattern]
		if !ok {
			t.Errorf("%s is not in the document", pattern)
		}
		if open := op.Security != nil && len(op.Security) == 0; open != route.open {
			t.Errorf("%s: open is %v in the document, want %v", pattern, open, route.open)
		}
		delete(described, pattern)
	}
	for route := range described {
		t.Errorf("%s is in the document, and not served", route)
	}
	for _, ref := range regexp.MustCompile(`"#/components/(\w+)/(\w+)"`).FindAllStringSubmatch(string(data), -1) {
		if doc.Components[ref[1]][ref[2]] == nil {
			t.Errorf("%s is not in the document", ref[0])
		}
	}
}
