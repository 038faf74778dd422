package docs

import (
	"encoding/json"
	"fmt"
	"go/doc/comment"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// imports are what the documents' snippets may use without saying so, by the name they use.
var imports = map[string]string{
	"bytes": "bytes", "context": "context", "embed": "embed", "errors": "errors", "fmt": "fmt", "io": "io", "json": "encoding/json",
	"log": "log", "http": "net/http", "os": "os", "slog": "log/slog", "strings": "strings", "sync": "sync", "testing": "testing",
	"time": "time", "errgroup": "golang.org/x/sync/errgroup", "leasehold": "github.com/leasehold-go/leasehold",
}

var (
	block       = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	declaration = regexp.MustCompile(`\A(//.*\n)*(func|type|const|import) `)
)

// TestCodeCompiles compiles every Go block of the README, of the documents and of the package comment. A block is a whole
// file, declarations, or statements of a function that has what a host has.
func TestCodeCompiles(t *testing.T) {
	moduleDir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	const under = "docs/snippets" // a directory that is there for the compiler only
	replace := map[string]string{}
	dir := t.TempDir()
	add := func(name, code string) {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(moduleDir, under, name)] = file
	}
	for _, document := range documents(t) {
		if document != "README.md" && filepath.Dir(document) != "docs" {
			continue // those of other modules, and of examples, which are compiled themselves
		}
		text := read(t, document)
		for i, at := range block.FindAllStringSubmatchIndex(text, -1) {
			code, line := text[at[2]:at[3]], 1+strings.Count(text[:at[2]], "\n")
			name := fmt.Sprintf("%s_%d", strings.NewReplacer("/", "_", ".", "_").Replace(document), i)
			add(name+"/snippet.go", file(code, filepath.Join(moduleDir, document), line))
		}
	}
	for _, b := range new(comment.Parser).Parse(parsed(t, ".").Doc).Content {
		if code, ok := b.(*comment.Code); ok {
			first, _, _ := strings.Cut(code.Text, "\n")
			before, _, _ := strings.Cut(read(t, "doc.go"), first)
			add(fmt.Sprintf("doc_go_%d/snippet.go", len(replace)), file(code.Text, filepath.Join(moduleDir, "doc.go"), 1+strings.Count(before, "\n")))
		}
	}
	if len(replace) < 15 {
		t.Fatalf("%d blocks: the test proves nothing", len(replace))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlayFile, "./"+under+"/...")
	cmd.Dir = moduleDir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the documents' code: %v\n%s", err, out)
	}
}

// file makes a block a whole file, in which compiler errors name the document's line.
func file(code, document string, line int) string {
	at := fmt.Sprintf("//line %s:%d\n", document, line)
	if strings.HasPrefix(code, "package ") || strings.HasPrefix(code, "// ") && strings.Contains(code, "\npackage ") {
		return at + strings.Replace(code, "package main\n", "package snippet\n", 1) // which needs no linking
	}
	var b strings.Builder
	b.WriteString("package snippet\n\n")
	var used []string
	statements := !declaration.MatchString(code)
	for name, path := range imports {
		if regexp.MustCompile(`(^|[^\w.])`+name+`\.`).MatchString(code) || statements && (name == "context" || name == "leasehold") {
			used = append(used, fmt.Sprintf("import %s %q\n", name, path))
		}
	}
	b.WriteString(strings.Join(used, ""))
	if statements {
		b.WriteString("func _(ctx context.Context, provider leasehold.Provider, lease *leasehold.Lease, store leasehold.Store) error {\n")
		return b.String() + "{\n" + at + code + "}\nreturn nil\n}\n"
	}
	return b.String() + at + code
}
