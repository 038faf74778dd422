//go:build unix

package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is passed on as an archive must not lead whoever extracts it out of the tree, even if that is a simple tool that
// follows the links it has made.
func TestF1NothingIsPassedOnBehindALink(t *testing.T) {
	link := entry{kind: tar.TypeSymlink, name: "a", link: "/outside"}
	for name, members := range map[string][]entry{
		"a file":                 {link, {name: "a/f"}},
		"a file further below":   {link, {name: "a/d/f"}},
		"a directory":            {link, {kind: tar.TypeDir, name: "a/d"}},
		"a link":                 {link, {kind: tar.TypeSymlink, name: "a/l", link: "x"}},
		"the link as directory":  {link, {kind: tar.TypeDir, name: "a"}},
		"a link inside the tree": {{kind: tar.TypeDir, name: "d"}, {kind: tar.TypeSymlink, name: "a", link: "d"}, {name: "a/f"}},
		"a link below":           {{kind: tar.TypeSymlink, name: "d/a", link: "/outside"}, {name: "d/a/f"}},
		"another way to name it": {link, {name: "./a//f"}},
		"a hard link's target":   {link, {kind: tar.TypeLink, name: "h", link: "a/secret"}},
	} {
		_, err := Copy(t.Context(), bytes.NewReader(tarball(t, members...)), io.Discard, ExtractOptions{Links: LinksKeepAbsolute})
		if !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s: error %v, want %v", name, err, ErrUnsafe)
		}
	}
	var out bytes.Buffer
	members := []entry{link, {name: "ab/f"}, {name: "a"}, {kind: tar.TypeLink, name: "h", link: "a"}}
	if sum, err := Copy(t.Context(), bytes.NewReader(tarball(t, members...)), &out, ExtractOptions{Links: LinksKeepAbsolute}); err != nil || sum.Entries != 4 {
		t.Errorf("a link that a file replaces: %d entries, error %v, want 4 and none", sum.Entries, err)
	}
}

// GNU tar leaves out what the patterns match, and nothing else: what it leaves out the host never sees.
func TestF2TarLeavesOutNoMoreThanThePatternsMatch(t *testing.T) {
	needTool(t, "tar")
	dir := t.TempDir()
	names := []string{
		"\u00e9", "a\u00e9b", "e\u0301", "x", "xy", "xyz", ".h", "..h", "a.b", "a*b", `a\b`, "[x]", "a[b", "-x", "a b", "a\nb", "\xff", "a\xffb", "A", "!x", "#x", "~x", "{x}", "+(x)", "^x",
	}
	dirs := []string{"", "x", "\u00e9d", "xy/x", "a.b.d"}
	for _, d := range dirs { // before the files, of which some are called like them
		for _, d := range dirs {
			if err := os.MkdirAll(filepath.Join(dir, "t", d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range names {
			path := filepath.Join(dir, "t", d, n)
			if _, err := os.Lstat(path); err == nil {
				continue
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	patterns := []string{
		"?", "??", "???", "a?b", "/??", "x/??", "*/?", "?d", "*", "*b", "a*", ".*", "/x", "x/x", "xy/*", `a\*b`, `\[x\]`, `a\\b`, `a\[b`, "-x", "a b", "a\nb", "*.b", `\?`,
		"!x"[1:], "#x", "~x", "{x}", "+(x)", "^x", "\u00e9", "\xff", "a\xff*", "/*/x", "*/*/x", `\x`, `\-x`, "a.b", "**", "x/**", "x/", "[!x]", "[^x]", "[a-b]*", "]",
	}
	for _, p := range patterns {
		m, err := NewMatcher([]string{p})
		if err != nil {
			t.Errorf("NewMatcher(%q): %v", p, err)
			continue
		}
		cmd := exec.Command("tar", append(append([]string{"-c", "-f", "-"}, m.TarArgs()...), ".")...)
		cmd.Dir = filepath.Join(dir, "t")
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tar for %q: %v", p, err)
		}
		sent := map[string]bool{}
		for r := tar.NewReader(bytes.NewReader(out)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			sent[strings.Trim(strings.TrimPrefix(h.Name, "."), "/")] = true
		}
		err = filepath.WalkDir(cmd.Dir, func(path string, d os.DirEntry, err error) error {
			name, _ := filepath.Rel(cmd.Dir, path)
			if name == "." {
				return err
			}
			switch matched := m.MatchBelow(name, d.IsDir()); {
			case !sent[name] && !matched:
				t.Errorf("tar left out %q for the pattern %q, which does not match it", name, p)
			case sent[name] && matched && !slices.Contains(m.TarArgs(), "--hard-dereference"):
				t.Errorf("tar sent %q for the pattern %q, which matches it, and may send links to it", name, p)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// endless gives the same text for ever, up to a bound that no reader should reach.
type endless struct {
	text string
	left int
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, errReadOn
	}
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	e.left -= n
	return n, nil
}

var errReadOn = errors.New("somebody read on")

// A list that has no end takes no more memory than one that has, nor much more time, and ends the comparison.
func TestF3ListsWithoutEnd(t *testing.T) {
	src := t.TempDir()
	put(t, src, map[string]string{"f": "x"})
	long := "81a4 1 1 ./" + strings.Repeat(strings.Repeat("n", 200)+"/", 100) + "n"
	const entries = "81a4 1 1 ./f//\n0 0 0 =//\n"
	for name, tc := range map[string]struct {
		begin string
		then  endless
		want  error
	}{
		"a digest without end":  {entries, endless{text: "a", left: 1 << 20}, ErrCorrupt},
		"digests without end":   {entries, endless{text: strings.Repeat("a", 64) + "  ./f\n", left: 1 << 30}, ErrLimit},
		"an entry without end":  {"", endless{text: "a", left: 1 << 20}, ErrCorrupt},
		"entries without end":   {"", endless{text: "81a4 1 1 ./f//\n", left: 1 << 30}, ErrLimit},
		"long names to remove":  {"", endless{text: long + "//\n", left: 1 << 26}, ErrLimit},
		"a digest that is cut":  {entries + strings.Repeat("a", 64) + "  ./f\n", endless{}, ErrRead},
		"the end of the second": {entries + "0 0 0 =//\n", endless{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			hashed := 0
			load := loadTree(t, src, WriteOptions{})
			err := load.Compare(t.Context(), io.MultiReader(strings.NewReader(tc.begin), &tc.then),
				CompareOptions{Digests: true, Remove: true, Step: func() { hashed++ }})
			if !errors.Is(err, tc.want) || errors.Is(err, errReadOn) != (tc.want == ErrRead) {
				t.Errorf("error %v, want %v before the list was read on", err, tc.want)
			}
			if hashed > 2 {
				t.Errorf("a file of one byte was read %d times", hashed)
			}
			if err != nil && load.gone != "" {
				t.Errorf("%d bytes of names are to be removed", len(load.gone))
			}
		})
	}
}

// What stays leads to nothing that is held, but for the directories that would be removed without it.
func TestF3ListsOfWhatStaysAreNotHeld(t *testing.T) {
	var before, during heap
	before.Write(nil)
	r, w := io.Pipe()
	go func() {
		for i := range 30 {
			fmt.Fprintf(w, "81a4 1 1 ./%d%s/%sx//\n", i, strings.Repeat("/a", 10_000), StagePrefix)
		}
		during.Write(nil)
		_, err := io.WriteString(w, "0 0 0 =//\n0 0 0 =//\n")
		w.CloseWithError(err)
	}()
	load := loadTree(t, t.TempDir(), WriteOptions{Reserved: Reserved("")})
	if err := load.Compare(t.Context(), r, CompareOptions{Remove: true}); err != nil {
		t.Fatal(err)
	}
	if used := int64(during.most) - int64(before.most); used > 3<<20 {
		t.Errorf("%d bytes were held, want at most 3 MiB", used)
	}
}

// A copy in the place of a hard link, for which a file system may have no room in its inode, counts as content.
func TestF3CopiesInThePlaceOfLinksAreBounded(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"f": "12345678"})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var sum Summary
	opt := ExtractOptions{MaxBytes: 20, Reserve: -1}.withDefaults()
	x := &extractor{m: newMembers(t.Context(), nil, opt, &sum), opt: opt, sum: &sum, root: root, at: root, space: newSpace(root, opt)}
	for i, want := range []error{nil, nil, ErrLimit} {
		name := string(rune('a' + i))
		_, err := x.place(name, name, func() error { return x.copyFile("f", name, name, os.ErrInvalid) })
		if !errors.Is(err, want) {
			t.Errorf("copy %d: error %v, want %v", i, err, want)
		}
	}
	onlyEntries(t, dir, "a", "b", "f")
}

// Two files never become one, whatever paths lead there.
func TestF2TwoFilesOfOneDestinationAreRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "d"), map[string]string{"f": "earlier"})
	if err := os.Symlink("d", filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	data := tarball(t, entry{name: "./f", body: "1"}, entry{name: "./g", body: "2"})
	_, err := ExtractFiles(t.Context(), bytes.NewReader(data), []Target{{"./f", filepath.Join(dir, "d", "f"), 0}, {"./g", filepath.Join(dir, "l", "f"), 0}}, ExtractOptions{})
	wantKind(t, err, ErrType)
	if got, err := os.ReadFile(filepath.Join(dir, "d", "f")); err != nil || string(got) != "earlier" {
		t.Errorf("the file is %q, %v, want what it was", got, err)
	}
	onlyEntries(t, filepath.Join(dir, "d"), "f")
}

func TestF2FilesThatTheHostCannotTellApartAreRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"A": ""})
	_, err := os.Stat(filepath.Join(dir, "a"))
	folds := err == nil
	data := tarball(t, entry{name: "1", body: "1"}, entry{name: "2", body: "2"})
	paths := []string{filepath.Join(dir, "Report"), filepath.Join(dir, "report")}
	_, err = ExtractFiles(t.Context(), bytes.NewReader(data), []Target{{"1", paths[0], 0}, {"2", paths[1], 0}}, ExtractOptions{})
	if folds {
		wantKind(t, err, ErrType)
		onlyEntries(t, dir, "A", "Report")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	onlyEntries(t, dir, "A", "Report", "report")
	// As it looks where names are folded: what was published under one name is there under the other.
	var stages []*stage
	for i, path := range paths {
		st, err := newStage(path, false)
		if err != nil {
			t.Fatal(err)
		}
		defer st.close()
		if i == 1 {
			if err := errors.Join(os.Remove(path), os.Link(paths[0], path)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, st.name), []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err = st.publishFile(stages); i == 0 && err != nil || i == 1 && !errors.Is(err, ErrType) {
			t.Errorf("%s: %v", path, err)
		}
		stages = append(stages, st)
	}
}
