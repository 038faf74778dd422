package leasehold_test

import (
	"flag"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateAPI = flag.Bool("update-api", false, "write the files that record the public API anew")

// TestThePublicAPIIsTheRecordedOne makes a change of the public API show up in review, as a change of the file. After an
// intended one, `go test -run TestThePublicAPI -update-api .` writes the file anew.
func TestThePublicAPIIsTheRecordedOne(t *testing.T) {
	for dir, file := range map[string]string{".": "api.txt", "storetest": "api-storetest.txt", "pgstore": "api-pgstore.txt"} {
		t.Run(dir, func(t *testing.T) {
			if _, err := os.Stat(dir); err != nil && os.Getenv("LEASEHOLD_REQUIRE_ALL") != "1" {
				t.Skip("a module of its own, which is not here: ", err)
			}
			file, got := filepath.Join("testdata", file), publicAPI(t, dir)
			if *updateAPI {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("the public API is not what %s records (-recorded +present):\n%s", file, diff)
			}
		})
	}
}

// publicAPI prints every exported declaration of a directory's package, without comments and bodies, in order of names.
func publicAPI(t *testing.T, dir string) string {
	t.Helper()
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var entries []string
	add := func(key string, decl ast.Node) {
		var text strings.Builder
		if err := (&printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}).Fprint(&text, fset, decl); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, key+"\x00"+text.String())
	}
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(file)
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if of := receiver(decl); of == "" || ast.IsExported(of) {
					decl.Body = nil
					add(of+"."+decl.Name.Name, decl)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						add(spec.Name.Name, &ast.GenDecl{Tok: token.TYPE, Specs: []ast.Spec{spec}})
					case *ast.ValueSpec:
						add("."+spec.Names[0].Name, &ast.GenDecl{Tok: decl.Tok, Specs: []ast.Spec{spec}})
					}
				}
			}
		}
	}
	slices.Sort(entries)
	var all strings.Builder
	for _, entry := range entries {
		_, text, _ := strings.Cut(entry, "\x00")
		for line := range strings.Lines(text + "\n") {
			if strings.TrimSpace(line) != "" { // where a comment or an unexported field was
				all.WriteString(line)
			}
		}
	}
	return all.String()
}

// receiver is the name of a method's type, or nothing.
func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return ""
	}
	expr := decl.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	return expr.(*ast.Ident).Name
}
