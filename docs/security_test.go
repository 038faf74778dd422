package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testName  = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	threatRow = regexp.MustCompile(`(?m)^\| .* \|$`)
)

// sources calls f with every Go file of every module here, as paths from root.
func sources(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules" || entry.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			f(path, read(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestThreatsHaveTests wants each row of what an attacker can try to name tests, and each test that docs/security.md names
// to be there, and each fuzz target to be named.
func TestThreatsHaveTests(t *testing.T) {
	var tests []string
	sources(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				tests = append(tests, m[1])
			}
		}
	})
	text := read(t, "docs/security.md")
	var named []string
	for _, m := range testName.FindAllStringSubmatch(text, -1) {
		named = append(named, m[1])
		if !slices.Contains(tests, m[1]) {
			t.Errorf("docs/security.md names %s, which is not there", m[1])
		}
	}
	for _, name := range tests {
		if strings.HasPrefix(name, "Fuzz") && !slices.Contains(named, name) {
			t.Errorf("docs/security.md does not say what %s is for", name)
		}
	}
	_, threats, _ := strings.Cut(text, "\n## What each can try\n")
	rows := 0
	for _, row := range threatRow.FindAllString(threats, -1) {
		if strings.HasPrefix(row, "| tries |") || strings.HasPrefix(row, "| what |") || strings.HasPrefix(row, "|---") {
			continue
		}
		if rows++; !testName.MatchString(row) {
			t.Errorf("no test holds %s", row)
		}
	}
	if rows < 40 {
		t.Errorf("%d rows were looked at: the test proves little", rows)
	}
}

// TestNoCertificateGoesUnverified: nothing here turns the verification of certificates off.
func TestNoCertificateGoesUnverified(t *testing.T) {
	files := 0
	forbidden := "Insecure" + "SkipVerify"
	sources(t, func(path, text string) {
		if files++; strings.Contains(text, forbidden) {
			t.Errorf("%s has %s", filepath.ToSlash(path), forbidden)
		}
	})
	if files < 100 {
		t.Errorf("%d files were looked at: the test proves little", files)
	}
}
