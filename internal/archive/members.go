package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"path/filepath"
	"strings"
	"time"
)

// members reads the headers of an untrusted archive, and proves its end.
type members struct {
	ctx    context.Context
	src    *source
	tr     *tar.Reader
	opt    ExtractOptions
	sum    *Summary
	count  int64  // members seen
	bytes  int64  // content promised by their headers
	joined bool   // other archives may follow the first one
	clear  string // a directory that was found not to be excluded, nor any above it

	omitted map[nameKey]Reason // what was left out and listed, and so its other names
}

// source counts the bytes that the tar reader consumes, bounds them, and remembers whether it has met the end of the
// stream. It hides Seek: a tar reader that could seek would skip content without proving that it exists.
type source struct {
	ctx   context.Context
	r     *bufio.Reader
	n     int64
	limit int64
	ended bool  // the end of the stream was read
	err   error // of the reader below, other than io.EOF; an *Error when the limit was reached
}

func (s *source) Read(p []byte) (int, error) {
	switch {
	case s.err != nil:
		return 0, s.err
	case s.ctx.Err() != nil:
		s.err = context.Cause(s.ctx)
		return 0, s.err
	case s.n > s.limit:
		s.err = fail(ErrLimit, "", "more headers and skipped content than its entries can need", nil)
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	switch err {
	case nil:
	case io.EOF:
		s.ended = true
	default:
		s.err = err
	}
	return n, err
}

// memberOverhead is what the limits grant each member of an archive beside its content: headers, long names, extended
// attributes, and content that is skipped.
const memberOverhead = 64 << 10

func newMembers(ctx context.Context, r io.Reader, opt ExtractOptions, sum *Summary) *members {
	src := &source{ctx: ctx, r: bufio.NewReaderSize(r, chunkSize), limit: opt.MaxBytes}
	if overhead := opt.MaxEntries; overhead < (math.MaxInt64-src.limit)/memberOverhead {
		src.limit += overhead * memberOverhead
	} else {
		src.limit = math.MaxInt64
	}
	return &members{ctx: ctx, src: src, tr: tar.NewReader(src), opt: opt, sum: sum}
}

// next returns the next member with its checked name, "" for the root of the tree; io.EOF after a proved end.
func (m *members) next() (*tar.Header, string, error) {
	for {
		h, err := m.tr.Next()
		if err == io.EOF {
			if err = m.end(); err == errAnother {
				continue
			}
			return nil, "", err
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are judged below, under rules of our own
			return nil, "", m.readError(err, "")
		}
		if err := m.another(); err != nil {
			return nil, "", err
		}
		if h.Typeflag == tar.TypeXGlobalHeader { // as written by "git archive"; tar.Reader applies nothing of it
			continue
		}
		name, err := m.name(h.Name)
		return h, name, err
	}
}

// excluded reports whether a member, or a directory above it, is to be left out. Mostly it lies where the last one did.
func (m *members) excluded(name string, isDir bool) bool {
	if m.opt.Exclude == nil {
		return false
	}
	dir, _ := split(name)
	if dir != m.clear && m.opt.Exclude.MatchBelow(name, isDir) || m.opt.Exclude.Match(name, isDir) {
		return true
	}
	if m.clear = dir; isDir {
		m.clear = name
	}
	return false
}

// omit leaves a member out, and lists it.
func (m *members) omit(name string, r Reason) {
	if m.omitted == nil {
		m.omitted = map[nameKey]Reason{}
	}
	m.omitted[keyOf(name)] = r
	m.sum.Skip(name, r)
}

// unsafeLink applies the policy to a link that is not allowed.
func (m *members) unsafeLink(name, detail string) error {
	if m.opt.Links != LinksOmit {
		return fail(ErrUnsafe, name, detail, nil)
	}
	m.omit(name, ReasonLink)
	return nil
}

// another counts a member, or a directory that none names.
func (m *members) another() error {
	if m.count++; m.count > m.opt.MaxEntries {
		return failf(ErrLimit, "", "more than %d members", m.opt.MaxEntries)
	}
	return nil
}

// end is called when the tar reader saw an end. It also says so when the stream merely stopped between two members, as
// a cut archive does: only if the two zero blocks came has it not yet met the end of the stream. Zeros may follow, which
// is how tar fills its last record; anything else is refused, because nobody would ever have looked at it.
func (m *members) end() error {
	if m.src.err != nil {
		return m.readError(m.src.err, "")
	}
	if m.src.ended {
		return fail(ErrCorrupt, "", "the stream ended before the end of the archive", nil)
	}
	first := m.src.n
	buf := make([]byte, 32<<10)
	if m.joined {
		buf = buf[:512]
	}
	for {
		n, err := m.endRead(buf)
		for _, b := range buf[:n] {
			if b != 0 && m.joined {
				m.tr = tar.NewReader(io.MultiReader(bytes.NewReader(buf[:n]), m.src))
				return errAnother
			}
			if b != 0 {
				return fail(ErrCorrupt, "", "data follows the end of the archive", nil)
			}
		}
		if m.src.n-first > maxPadding {
			return fail(ErrCorrupt, "", "the padding after the end of the archive has no end", nil)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return m.readError(err, "")
		}
	}
	m.sum.Archive = m.src.n
	return io.EOF
}

// errAnother says that another archive follows.
var errAnother = errors.New("another archive")

// endRead reads what follows the end of an archive: whole blocks if another one may follow.
func (m *members) endRead(p []byte) (int, error) {
	if !m.joined {
		return m.src.Read(p)
	}
	n, err := io.ReadFull(m.src, p)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}

// admit counts the content that a member promises.
func (m *members) admit(h *tar.Header, name string) error {
	if h.Size < 0 || h.Size > m.opt.MaxBytes-m.bytes {
		return failf(ErrLimit, name, "more than %d bytes of content", m.opt.MaxBytes)
	}
	m.bytes += h.Size
	return nil
}

// copied counts content that was taken from the archive.
func (m *members) copied(n int64, name string) error {
	m.sum.Bytes += n
	if most := m.opt.MaxRatio; most > 0 && m.sum.Bytes/most > m.src.n {
		return failf(ErrLimit, name, "more than %d bytes of content for each byte of the archive", most)
	}
	return nil
}

// isSparse reports whether a member may have holes.
func isSparse(h *tar.Header) bool {
	return h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != ""
}

// maxPadding bounds the zeros after the end: tar's record size is 10 KiB, and 256 KiB or more with option -b.
const maxPadding = 4 << 20

// readError tells a broken stream from a damaged archive.
func (m *members) readError(err error, name string) error {
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	if own, ok := m.src.err.(*Error); ok {
		return own
	}
	if m.src.err != nil {
		return fail(ErrRead, name, "", m.src.err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fail(ErrCorrupt, name, "the stream ended before the end of the archive", nil)
	}
	return fail(ErrCorrupt, name, "its headers cannot be understood", nil)
}

// name checks a member's name and brings it into the form "a/b"; the root of the tree is "".
func (m *members) name(raw string) (string, error) {
	if len(raw) > m.opt.MaxName {
		return "", failf(ErrLimit, raw, "its name has more than %d bytes", m.opt.MaxName)
	}
	if raw == "" {
		return "", fail(ErrUnsafe, raw, "an empty name", nil)
	}
	if raw[0] == '/' {
		return "", fail(ErrUnsafe, raw, "an absolute name", nil)
	}
	depth, plain := 0, true
	for part := range strings.SplitSeq(raw, "/") {
		switch {
		case part == "" || part == ".":
			plain = false
		case part == "..":
			return "", fail(ErrUnsafe, raw, `a name with ".."`, nil)
		case !validPart(part):
			return "", fail(ErrUnsafe, raw, "a name that this system cannot hold", nil)
		default:
			depth++
		}
	}
	if depth > m.opt.MaxDepth {
		return "", failf(ErrLimit, raw, "more than %d levels deep", m.opt.MaxDepth)
	}
	if plain {
		return raw, nil
	}
	var clean strings.Builder
	for part := range strings.SplitSeq(raw, "/") {
		if part == "" || part == "." {
			continue
		}
		if clean.Len() > 0 {
			clean.WriteByte('/')
		}
		clean.WriteString(part)
	}
	return clean.String(), nil
}

// validPart reports whether the host can hold a component under exactly that name. On Unix everything but a zero byte
// is fine, which tar cannot carry in a name.
func validPart(part string) bool {
	if strings.IndexByte(part, 0) >= 0 {
		return false
	}
	if !windows {
		return true
	}
	return !strings.ContainsAny(part, `\:*?"<>|`) && filepath.IsLocal(part) &&
		!strings.HasSuffix(part, ".") && !strings.HasSuffix(part, " ")
}

// checkTarget judges the target of a symbolic link that lies in the given directory of the tree ("" is the root).
//
// The target must be relative; ".." may stand only at its start, and no more often than the directory is deep. That is
// stricter than cleaning the path and looking whether it leaves the tree, and has to be: a path such as "l/../../x"
// looks harmless and leaves the tree when l is a link to a place less deep. When every link obeys this rule, following
// any chain of them only ever goes down from a real directory inside the tree.
func checkTarget(dir, target string) bool {
	if target == "" || target[0] == '/' || len(target) > 4096 {
		return false
	}
	up := 0
	if dir != "" {
		up = strings.Count(dir, "/") + 1
	}
	down := false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			if down || up == 0 {
				return false
			}
			up--
		case !validPart(part):
			return false
		default:
			down = true
		}
	}
	return true
}

// linkAllowed judges a symbolic link under the policy for links.
func (m *members) linkAllowed(dir, target string) bool {
	if m.opt.Links == LinksKeepAbsolute && len(target) <= 4096 && strings.HasPrefix(target, "/") {
		return true
	}
	return checkTarget(dir, target)
}

// sensibleTime reports whether the host can be asked to store a time; an archive can claim any.
func sensibleTime(t time.Time) bool { return t.Unix() > 0 && t.Unix() < 1<<33 }

// regular reports whether a type of member is a file with content.
func regular(kind byte) bool {
	return kind == tar.TypeReg || kind == tar.TypeCont || kind == tar.TypeGNUSparse
}
