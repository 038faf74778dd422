package archive

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Matcher decides which paths of a tree are left out.
//
// A pattern is a slash-separated path of globs, in the language of [path.Match] for each component:
//
//   - a pattern without a slash, such as "*.o" or "node_modules", matches an entry of that name at any depth;
//   - a pattern with a slash at its start or inside, such as "/build" or "docs/*.pdf", is anchored at the root of the tree;
//   - a component "**" stands for any number of components, none included: "src/**/testdata";
//   - a slash at the end restricts the pattern to directories: "tmp/";
//   - what lies below a matched directory is left out with it.
//
// "*" also matches names that start with a dot. There is no negation. The nil Matcher matches nothing.
type Matcher struct {
	patterns []pattern
}

type pattern struct {
	parts    []string
	anchored bool
	dirOnly  bool
}

// maxBadPatterns is how many an error names.
const maxBadPatterns = 10

// NewMatcher compiles patterns. An error names the bad ones.
func NewMatcher(patterns []string) (*Matcher, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	m := &Matcher{}
	var bad []string
	for _, text := range patterns {
		p, problem := parsePattern(text)
		if problem != "" {
			bad = append(bad, strconv.Quote(text[:min(len(text), 200)])+" "+problem)
		}
		m.patterns = append(m.patterns, p)
	}
	if n := len(bad) - maxBadPatterns; n > 0 {
		bad = append(bad[:maxBadPatterns], fmt.Sprintf("and %d more", n))
	}
	if len(bad) > 0 {
		return nil, errors.New(strings.Join(bad, "; "))
	}
	return m, nil
}

// parsePattern returns what is wrong with a pattern, or "".
func parsePattern(text string) (p pattern, problem string) {
	rest := text
	if strings.HasSuffix(rest, "/") {
		p.dirOnly = true
		rest = strings.TrimRight(rest, "/")
	}
	p.anchored = strings.Contains(rest, "/")
	rest = strings.TrimPrefix(rest, "/")
	p.parts = strings.Split(rest, "/")
	for _, part := range p.parts {
		switch part {
		case "", ".", "..":
			return p, `has an empty, "." or ".." component`
		}
		if _, err := path.Match(part, "x"); err != nil {
			return p, "is malformed"
		}
	}
	switch {
	case strings.HasPrefix(rest, "!"):
		return p, "is a negation, which is not supported"
	case strings.ContainsRune(text, 0):
		return p, "contains a zero byte"
	}
	return p, ""
}

// Match reports whether the entry itself is matched. The caller leaves out what lies below a matched directory.
func (m *Matcher) Match(name string, isDir bool) bool {
	return m != nil && m.match(strings.Split(name, "/"), isDir)
}

// match reports whether the entry whose path has these components is matched.
func (m *Matcher) match(parts []string, isDir bool) bool {
	base := parts[len(parts)-1]
	for i := range m.patterns {
		p := &m.patterns[i]
		if p.dirOnly && !isDir {
			continue
		}
		if !p.anchored {
			if p.parts[0] == "**" {
				return true
			}
			if ok, _ := path.Match(p.parts[0], base); ok {
				return true
			}
			continue
		}
		if matchParts(p.parts, parts) {
			return true
		}
	}
	return false
}

// MatchBelow reports whether the entry or one of the directories above it is matched.
func (m *Matcher) MatchBelow(name string, isDir bool) bool {
	if m == nil {
		return false
	}
	parts := strings.Split(name, "/")
	for n := range parts {
		if m.match(parts[:n+1], n+1 < len(parts) || isDir) {
			return true
		}
	}
	return false
}

// matchParts matches components. Only the last "**" is ever tried again, so the time is bounded by the product of the
// two lengths.
func matchParts(pat, name []string) bool {
	pi, ni, star, mark := 0, 0, -1, 0
	for ni < len(name) {
		if pi < len(pat) && pat[pi] == "**" {
			star, mark = pi, ni
			pi++
			continue
		}
		if pi < len(pat) {
			if ok, _ := path.Match(pat[pi], name[ni]); ok {
				pi++
				ni++
				continue
			}
		}
		if star < 0 {
			return false
		}
		mark++
		pi, ni = star+1, mark
	}
	for pi < len(pat) && pat[pi] == "**" {
		pi++
	}
	return pi == len(pat)
}

// TarArgs returns arguments that make GNU tar leave out the same entries of an archive of ".". Patterns whose meaning
// differs there ("**", "?", which is a byte there and a character here, character classes, directories only) are left to
// the reader of the archive, which applies all patterns anyway: the arguments save bytes, they do not decide. But then no
// file is archived as a link to another name of it, which the reader may leave out.
func (m *Matcher) TarArgs() []string {
	if m == nil {
		return nil
	}
	args := []string{"--wildcards", "--no-wildcards-match-slash"}
	whole := true
	for _, p := range m.patterns {
		text := strings.Join(p.parts, "/")
		if p.dirOnly || hasOther(text) || strings.Contains(text, "**") {
			whole = false
			continue
		}
		root, _ := path.Match(text, ".")
		switch {
		case p.anchored:
			args = append(args, "--anchored", "--exclude=./"+text)
		case root: // such as ".*", which would match the whole archive
			args = append(args, "--no-anchored", "--exclude=*/"+text)
		default:
			args = append(args, "--no-anchored", "--exclude="+text)
		}
	}
	if !whole {
		args = append(args, "--hard-dereference")
	}
	return args
}

// hasOther reports whether a glob has a "?" or a character class.
func hasOther(glob string) bool {
	for i := 0; i < len(glob); i++ {
		switch glob[i] {
		case '\\':
			i++
		case '[', '?':
			return true
		}
	}
	return false
}

// Literal returns a pattern that matches exactly this path of a tree.
func Literal(name string) string {
	var b strings.Builder
	b.WriteByte('/')
	for i := 0; i < len(name); i++ {
		if strings.IndexByte(`*?[\`, name[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(name[i])
	}
	return b.String()
}
