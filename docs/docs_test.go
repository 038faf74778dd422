package docs

import (
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the documents' made parts anew")

// root is the module's directory, from here.
const root = ".."

// documents returns the Markdown files of the module, as paths from root.
func documents(t *testing.T) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules" || entry.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("documents: %q, %v", files, err)
	}
	return files
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	span    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the fragments that a document has, as GitHub makes them of headings.
func anchors(text string) []string {
	var found []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found = append(found, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	checked := 0
	for _, document := range documents(t) {
		text := span.ReplaceAllString(fence.ReplaceAllString(read(t, document), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			path := document
			if target != "" {
				path = filepath.Join(filepath.Dir(document), target)
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s links to %s, which is not there", document, m[1])
			} else if fragment != "" && !slices.Contains(anchors(read(t, path)), fragment) {
				t.Errorf("%s links to %s, which has no such heading: %q", document, m[1], anchors(read(t, path)))
			}
		}
	}
	if checked < 20 {
		t.Errorf("%d links were checked: the test proves nothing", checked)
	}
}

// parsed returns the root package's declarations, without its tests.
func parsed(t *testing.T, dir string) *doc.Package {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, "github.com/leasehold-go/leasehold")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// constants returns the names of the constants of a type, in order.
func constants(t *testing.T, p *doc.Package, typeName string) []string {
	t.Helper()
	var found []string
	for _, typ := range p.Types {
		for _, c := range typ.Consts {
			for _, spec := range c.Decl.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok || typ.Name != typeName {
					continue
				}
				for _, name := range v.Names {
					found = append(found, name.Name)
				}
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("no constants of type %s", typeName)
	}
	return found
}

// TestTablesNameEverything wants every value of a closed set in the document that explains it.
func TestTablesNameEverything(t *testing.T) {
	p := parsed(t, ".")
	for document, types := range map[string][]string{
		"docs/errors.md":    {"Kind", "Phase", "Reason"},
		"docs/commands.md":  {"Transport", "Fidelity", "Delivery"},
		"docs/files.md":     {"LinkPolicy", "Access", "Delta", "Route"},
		"docs/idleness.md":  {"ActivityKind"},
		"docs/leases.md":    {"ReceiptState"},
		"docs/ownership.md": {"RecordState", "Disposition"},
	} {
		text := read(t, document)
		for _, typ := range types {
			for _, name := range constants(t, p, typ) {
				if !strings.Contains(text, "`"+name+"`") {
					t.Errorf("%s does not name %s", document, name)
				}
			}
		}
	}
	text := read(t, "docs/errors.md")
	for _, name := range constants(t, p, "Kind") {
		if row := "| `" + name + "` | `Err" + strings.TrimPrefix(name, "Kind") + "` |"; !strings.Contains(text, row) {
			t.Errorf("docs/errors.md has no row that begins %s", row)
		}
	}
}

func TestEachExportedNameIsDocumented(t *testing.T) {
	for _, dir := range []string{".", "storetest", "pgstore"} {
		p := parsed(t, dir)
		want := func(comment, name string) {
			if token.IsExported(name) && strings.TrimSpace(comment) == "" {
				t.Errorf("%s: %s has no comment", dir, name)
			}
		}
		values := func(groups []*doc.Value) {
			for _, group := range groups {
				for _, spec := range group.Decl.Specs {
					v := spec.(*ast.ValueSpec)
					for _, name := range v.Names {
						want(group.Doc+v.Doc.Text()+v.Comment.Text(), name.Name)
					}
				}
			}
		}
		funcs := func(list []*doc.Func, receiver string) {
			for _, f := range list {
				if token.IsExported(f.Name) {
					want(f.Doc, receiver+f.Name)
				}
			}
		}
		want(p.Doc, "Package")
		values(p.Consts)
		values(p.Vars)
		funcs(p.Funcs, "")
		for _, typ := range p.Types {
			want(typ.Doc, typ.Name)
			values(typ.Consts)
			values(typ.Vars)
			funcs(typ.Funcs, "")
			funcs(typ.Methods, typ.Name+".")
		}
	}
}

// TestEachEntryPointHasAnExample wants one for each thing that a host can do with the package.
func TestEachEntryPointHasAnExample(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(root, "example*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range doc.Examples(file) {
			if example.Output == "" {
				t.Errorf("Example%s has no output: it is not run", example.Name)
			}
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(data)
	}
	called := func(name string) bool {
		return regexp.MustCompile(`\.` + name + `\(`).MatchString(code.String())
	}
	p := parsed(t, ".")
	for _, typ := range p.Types {
		for _, f := range typ.Funcs {
			if !called(f.Name) {
				t.Errorf("no example calls leasehold.%s", f.Name)
			}
		}
		if slices.Contains([]string{"Lease", "Executor", "Process", "Importer", "Exporter", "Snapshots", "Sweeper", "Terminal", "Channel"}, typ.Name) {
			for _, m := range typ.Methods {
				if !slices.Contains([]string{"Read", "Write", "ReadFrom", "Format"}, m.Name) && !called(m.Name) { // those are called through io and fmt
					t.Errorf("no example calls %s.%s", typ.Name, m.Name)
				}
			}
		}
		if typ.Name == "Provider" {
			methods := typ.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.InterfaceType).Methods.List
			for _, m := range methods {
				if !called(m.Names[0].Name) {
					t.Errorf("no example calls Provider.%s", m.Names[0].Name)
				}
			}
		}
	}
}
