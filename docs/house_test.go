package docs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/leasehold-go/leasehold"

// systems are those that hosts run on.
var systems = []string{"linux", "darwin", "windows"}

// pkg is what `go list` says of a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	CgoFiles     []string
	Module       *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// own reports that the package is the module's, and no test binary.
func (p pkg) own() bool { return p.Module != nil && p.Module.Main }

// list returns the module's packages, and those that they and their tests need on any of the systems, by path.
var list = sync.OnceValues(func() (map[string]pkg, error) {
	found := make(map[string]pkg)
	for _, system := range systems {
		cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Imports,TestImports,XTestImports,CgoFiles,Module", "./...")
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w\n%s", system, err, &stderr)
		}
		for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
			var p pkg
			err := decoder.Decode(&p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			if strings.Contains(p.ImportPath, " [") || strings.HasSuffix(p.ImportPath, ".test") {
				continue // made for a test
			}
			before := found[p.ImportPath]
			p.Imports = union(before.Imports, p.Imports)
			p.TestImports = union(before.TestImports, p.TestImports)
			p.XTestImports = union(before.XTestImports, p.XTestImports)
			p.CgoFiles = union(before.CgoFiles, p.CgoFiles)
			found[p.ImportPath] = p
		}
	}
	return found, nil
})

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// owner is the module of an imported package, of those that go.mod names; empty for the standard library.
func owner(modules []string, path string) string {
	found := ""
	for _, m := range modules {
		if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(found) {
			found = m
		}
	}
	return found
}

// TestWhoImportsWhom holds the table of CONTRIBUTING.md against the packages, and the packages against the rules.
func TestWhoImportsWhom(t *testing.T) {
	direct, modules := requirements(t)
	table := "| package | imports of ours | and of others |\n|---|---|---|\n"
	packages, err := list()
	if err != nil {
		t.Fatal(err)
	}
	ownPackages := 0
	for _, path := range slices.Sorted(maps.Keys(packages)) {
		p := packages[path]
		if !p.own() {
			continue
		}
		ownPackages++
		name := cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), "the root")
		var ours, others []string
		for _, imported := range p.Imports {
			if rest, own := strings.CutPrefix(imported, module); own {
				ours = append(ours, "`"+cmp.Or(strings.TrimPrefix(rest, "/"), "the root")+"`")
			} else if m := owner(modules, imported); m != "" {
				others = append(others, "`"+m+"`")
			}
		}
		row := fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.Join(ours, ", "), strings.Join(slices.Compact(others), ", "))
		if len(ours)+len(others) > 0 || strings.HasPrefix(name, "internal/") {
			table += strings.ReplaceAll(row, "`the root`", "the root")
		}

		inside := strings.HasPrefix(name, "internal/")
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			switch m := owner(modules, imported); {
			case strings.HasPrefix(m, "github.com/daytonaio/") && name != "internal/daytona":
				t.Errorf("%s imports %s: only internal/daytona may", name, imported)
			case m != "" && !slices.Contains(direct, m):
				t.Errorf("%s imports %s, which go.mod does not require directly", name, imported)
			}
		}
		for _, imported := range p.Imports {
			switch rest, own := strings.CutPrefix(imported, module); {
			case !own:
			case inside && !strings.HasPrefix(rest, "/internal/"):
				t.Errorf("%s imports %s: what is internal knows nothing of leases", name, imported)
			case name == "the root" && !strings.HasPrefix(rest, "/internal/"):
				t.Errorf("the root imports %s", imported)
			case strings.HasPrefix(name, "examples/") && rest != "":
				t.Errorf("%s imports %s: an example uses what everybody can", name, imported)
			}
		}
	}
	madePart(t, "CONTRIBUTING.md", "imports", table)
	if ownPackages < 15 {
		t.Errorf("%d packages: the test proves little", ownPackages)
	}
}

var (
	requirement = regexp.MustCompile(`(?m)^\t(\S+) v\S+( // indirect)?$`)
	usedFor     = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\|$")
)

// requirements returns the modules that go.mod requires directly, and all.
func requirements(t *testing.T) (direct, all []string) {
	t.Helper()
	for _, m := range requirement.FindAllStringSubmatch(read(t, "go.mod"), -1) {
		all = append(all, m[1])
		if m[2] == "" {
			direct = append(direct, m[1])
		}
	}
	return direct, all
}

// TestEachRequirementHasAReason wants each direct requirement in CONTRIBUTING.md, with what it is for, and no other.
func TestEachRequirementHasAReason(t *testing.T) {
	direct, _ := requirements(t)
	_, text, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## What it requires\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var listed []string
	for _, m := range usedFor.FindAllStringSubmatch(text, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(direct)
	slices.Sort(listed)
	if !slices.Equal(direct, listed) {
		t.Errorf("CONTRIBUTING.md has reasons for %q, and go.mod requires %q", listed, direct)
	}
}

var exposed = regexp.MustCompile(`\b([a-z][A-Za-z0-9]*)\.[A-Z]`)

// TestThePublicAPIExposesNoOtherModule: its types are its own, the standard library's, and OpenTelemetry's TracerProvider.
func TestThePublicAPIExposesNoOtherModule(t *testing.T) {
	may := []string{"context", "fmt", "fs", "http", "io", "iter", "net", "slog", "time", "trace", "url"}
	var seen []string
	for line := range strings.Lines(read(t, "testdata/api.txt")) {
		if strings.HasPrefix(line, "const ") || strings.HasPrefix(line, "var ") {
			continue // values, whose types are ours
		}
		for _, m := range exposed.FindAllStringSubmatch(line, -1) {
			if seen = append(seen, m[1]); !slices.Contains(may, m[1]) {
				t.Errorf("the public API has %s", strings.TrimSpace(line))
			}
			if m[1] == "trace" && !strings.Contains(line, "trace.TracerProvider") {
				t.Errorf("the public API has more of OpenTelemetry than its TracerProvider: %s", strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(seen)
	if seen = slices.Compact(seen); len(seen) < len(may)-1 {
		t.Errorf("only %q were seen: the test proves little", seen)
	}
}

// maxFileLines is how long a file may be that tells one story.
const maxFileLines = 700

func TestFilesTellOneStory(t *testing.T) {
	files := 0
	sources(t, func(path, text string) {
		files++
		if lines := strings.Count(text, "\n"); lines > maxFileLines {
			t.Errorf("%s has %d lines, and may have %d", path, lines, maxFileLines)
		}
	})
	if files < 100 {
		t.Errorf("%d files: the test proves little", files)
	}
}

// TestVersionsOfStoredValues holds the table of docs/compatibility.md against the code, and the Go version against go.mod.
func TestVersionsOfStoredValues(t *testing.T) {
	document := read(t, "docs/compatibility.md")
	for value, where := range map[string]struct{ file, constant string }{
		"`LeaseRef`":        {"lease.go", `const leaseRefVersion = (\d+)`},
		"`CommandRef`":      {"exec_process.go", `const commandRefVersion = (\d+)`},
		"`SnapshotRef`":     {"snapshot.go", `const snapshotRefVersion = (\d+)`},
		"`CleanupEnvelope`": {"cleanup.go", `const envelopeVersion = (\d+)`},
		"`Record`":          {"store.go", `const recordVersion = (\d+)`},
		"file of a record":  {"store_file.go", `fileVersion = (\d+)`},
		"sentinel":          {"lease_setup.go", `sentinel\{Version: (\d+)`},
	} {
		version := regexp.MustCompile(where.constant).FindStringSubmatch(read(t, where.file))
		if version == nil {
			t.Errorf("%s has no %s", where.file, where.constant)
		} else if row := "| " + value + " | " + version[1] + " |"; !strings.Contains(document, row) {
			t.Errorf("docs/compatibility.md has no row that begins %s", row)
		}
	}
	minimum := regexp.MustCompile(`(?m)^go (1\.\d+)\.\d+$`).FindStringSubmatch(read(t, "go.mod"))
	for path, words := range map[string]string{"README.md": "need Go %s,", "docs/compatibility.md": "names, %s,"} {
		if minimum == nil || !strings.Contains(read(t, path), fmt.Sprintf(words, minimum[1])) {
			t.Errorf("%s does not name the Go version of go.mod, %q", path, minimum)
		}
	}
}
