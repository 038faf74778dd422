package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rawBlock is a header as bytes, with a right checksum, for what a tar writer refuses to write.
func rawBlock(name string, kind byte, size string, change func(block []byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:136], size)
	copy(b[136:], "00000000000\x00")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	if change != nil {
		change(b)
	}
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// padded fills content up to whole blocks.
func padded(s string) []byte {
	return append([]byte(s), make([]byte, -len(s)&511)...)
}

func octalSize(n int) string { return fmt.Sprintf("%011o\x00", n) }

// paxRecord is one record of an extended header.
func paxRecord(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	n := len(rest) + 1
	for len(strconv.Itoa(n))+len(rest) != n {
		n = len(strconv.Itoa(n)) + len(rest)
	}
	return strconv.Itoa(n) + rest
}

func pax(records ...string) []byte {
	body := strings.Join(records, "")
	return append(rawBlock("PaxHeaders/x", 'x', octalSize(len(body)), nil), padded(body)...)
}

var archiveEnd = make([]byte, 1024)

// Everything here was made by somebody who knows tar well and means harm. Whatever Extract makes of it, nothing outside
// the destination changes, and a failure leaves the destination as it was.
func TestF1HandMadeArchivesDoNoHarm(t *testing.T) {
	file := func(name, body string) []byte {
		return append(rawBlock(name, '0', octalSize(len(body)), nil), padded(body)...)
	}
	globalPath := paxRecord("path", "../outside.txt")
	base256 := func(b byte, rest ...byte) string { return string(append([]byte{b}, rest...)) }
	sparse := func(records ...string) []byte {
		return pax(append([]string{paxRecord("GNU.sparse.major", "1"), paxRecord("GNU.sparse.minor", "0")}, records...)...)
	}
	for name, tc := range map[string]struct {
		data []byte
		want error // nil: it is harmless and extracted
		has  string
	}{
		"pax path out":              {bytes.Join([][]byte{pax(paxRecord("path", "../outside.txt")), file("x", "owned"), archiveEnd}, nil), ErrUnsafe, ""},
		"pax path absolute":         {bytes.Join([][]byte{pax(paxRecord("path", "/etc/owned")), file("x", "owned"), archiveEnd}, nil), ErrUnsafe, ""},
		"pax path with zero byte":   {bytes.Join([][]byte{pax(paxRecord("path", "a\x00b")), file("x", "owned"), archiveEnd}, nil), ErrCorrupt, ""},
		"pax path empty":            {bytes.Join([][]byte{pax(paxRecord("path", "")), file("x", "x"), archiveEnd}, nil), nil, "x"},
		"pax link out":              {bytes.Join([][]byte{pax(paxRecord("linkpath", "../../outside.txt")), rawBlock("l", '2', octalSize(0), nil), archiveEnd}, nil), ErrUnsafe, ""},
		"pax size smaller":          {bytes.Join([][]byte{pax(paxRecord("size", "1")), file("x", "0123456789"), archiveEnd}, nil), nil, "x"},
		"pax size larger":           {bytes.Join([][]byte{pax(paxRecord("size", "600")), file("x", "0123456789"), archiveEnd}, nil), ErrCorrupt, ""},
		"pax size hides a member":   {bytes.Join([][]byte{pax(paxRecord("size", "512")), rawBlock("x", '0', octalSize(0), nil), rawBlock("../outside.txt", '0', octalSize(0), nil), archiveEnd}, nil), nil, "x"},
		"pax size negative":         {bytes.Join([][]byte{pax(paxRecord("size", "-1")), file("x", ""), archiveEnd}, nil), ErrCorrupt, ""},
		"pax size huge":             {bytes.Join([][]byte{pax(paxRecord("size", "9223372036854775807")), file("x", ""), archiveEnd}, nil), ErrLimit, ""},
		"pax record without end":    {append(rawBlock("p", 'x', octalSize(1<<40), nil), archiveEnd...), ErrCorrupt, ""},
		"pax header of 2 MiB":       {bytes.Join([][]byte{pax(paxRecord("comment", strings.Repeat("x", 2<<20))), file("x", ""), archiveEnd}, nil), ErrCorrupt, ""},
		"pax header, then the end":  {append(pax(paxRecord("path", "x")), archiveEnd...), nil, ""},
		"name of 2 MiB":             {bytes.Join([][]byte{rawBlock("././@LongLink", 'L', octalSize(2<<20), nil), make([]byte, 2<<20), archiveEnd}, nil), ErrCorrupt, ""},
		"long name out":             {bytes.Join([][]byte{rawBlock("././@LongLink", 'L', octalSize(15), nil), padded("../outside.txt\x00"), file("x", "owned"), archiveEnd}, nil), ErrUnsafe, ""},
		"size negative":             {bytes.Join([][]byte{rawBlock("x", '0', base256(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), nil), archiveEnd}, nil), ErrCorrupt, ""},
		"size beyond 64 bits":       {bytes.Join([][]byte{rawBlock("x", '0', base256(0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), nil), archiveEnd}, nil), ErrCorrupt, ""},
		"size of 2^62":              {bytes.Join([][]byte{rawBlock("x", '0', base256(0x80, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0), nil), archiveEnd}, nil), ErrLimit, ""},
		"sizes that overflow a sum": {bytes.Join([][]byte{file("a", "a"), rawBlock("x", '0', base256(0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), nil), archiveEnd}, nil), ErrLimit, ""},
		"directory with content":    {bytes.Join([][]byte{rawBlock("d/", '5', octalSize(512), nil), rawBlock("f", '0', octalSize(0), nil), archiveEnd}, nil), nil, "d f"},
		"file with a slash":         {bytes.Join([][]byte{rawBlock("d/", '0', octalSize(0), nil), archiveEnd}, nil), nil, "d"},
		"wrong checksum":            {bytes.Join([][]byte{bytes.Replace(file("x", ""), []byte("ustar"), []byte("ustaR"), 1), archiveEnd}, nil), ErrCorrupt, ""},
		"garbage after one zero":    {bytes.Join([][]byte{file("x", ""), make([]byte, 512), file("y", ""), archiveEnd}, nil), ErrCorrupt, ""},
		"member after the end":      {bytes.Join([][]byte{file("x", ""), archiveEnd, file("y", ""), archiveEnd}, nil), ErrCorrupt, ""},
		"old sparse, out of order": {bytes.Join([][]byte{rawBlock("s", 'S', octalSize(0), func(b []byte) {
			copy(b[257:], "ustar  \x00")
			copy(b[386:], "77777777777\x0000000000010\x00")
			copy(b[483:], "00000000001\x00")
		}), archiveEnd}, nil), ErrCorrupt, ""},
		"sparse of 2^62 bytes":       {bytes.Join([][]byte{sparse(paxRecord("GNU.sparse.name", "s"), paxRecord("GNU.sparse.realsize", "4611686018427387904")), file("x", string(padded("0\n"))), archiveEnd}, nil), ErrLimit, ""},
		"sparse name out":            {bytes.Join([][]byte{sparse(paxRecord("GNU.sparse.name", "../outside.txt"), paxRecord("GNU.sparse.realsize", "0")), file("x", string(padded("0\n"))), archiveEnd}, nil), ErrUnsafe, ""},
		"sparse map without numbers": {bytes.Join([][]byte{sparse(paxRecord("GNU.sparse.name", "s"), paxRecord("GNU.sparse.realsize", "9")), file("x", "zzz"), archiveEnd}, nil), ErrCorrupt, ""},
		"sparse map of millions":     {bytes.Join([][]byte{sparse(paxRecord("GNU.sparse.name", "s"), paxRecord("GNU.sparse.realsize", "9")), file("x", "99999999\n"+strings.Repeat("0\n0\n", 1<<20)), archiveEnd}, nil), ErrCorrupt, ""},
		"sparse, only a hole":        {bytes.Join([][]byte{sparse(paxRecord("GNU.sparse.name", "s"), paxRecord("GNU.sparse.realsize", "100000")), file("x", string(padded("0\n"))), archiveEnd}, nil), nil, "s"},
		"time of 1e18":               {bytes.Join([][]byte{pax(paxRecord("mtime", "999999999999999999")), file("x", ""), archiveEnd}, nil), nil, "x"},
		"time before the epoch":      {bytes.Join([][]byte{pax(paxRecord("mtime", "-99999999999.5")), file("x", ""), archiveEnd}, nil), nil, "x"},
		"mode of all ones":           {bytes.Join([][]byte{rawBlock("x", '0', octalSize(0), func(b []byte) { copy(b[100:], "7777777\x00") }), archiveEnd}, nil), nil, "x"},
		"global path":                {bytes.Join([][]byte{rawBlock("g", 'g', octalSize(len(globalPath)), nil), padded(globalPath), file("x", "x"), archiveEnd}, nil), nil, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			_, err := a.extract(tc.data, ExtractOptions{})
			if tc.want != nil {
				wantKind(t, err, tc.want)
				a.unchanged(t)
				return
			}
			if err != nil {
				t.Fatalf("Extract() = %v, want no error", err)
			}
			a.outsideIntact(t)
			onlyEntries(t, a.dest, strings.Fields(tc.has)...)
		})
	}
}

func TestNamesOfOtherSystemsAreKeptOrRefused(t *testing.T) {
	names := []string{`..\..\outside.txt`, `C:\Windows\x`, "C:x", "NUL", "con.txt", "a:stream", "trailing.", "trailing ", "line\nbreak", "tab\tbell\a", "\xff\xfe", `quo"te`, "~", "-rf", "$(id)"}
	for _, name := range names {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			a := newArena(t)
			_, err := a.extract(tarball(t, entry{name: name, body: "x"}), ExtractOptions{})
			switch {
			case err == nil:
				a.outsideIntact(t)
				onlyEntries(t, a.dest, name)
			case !windows:
				t.Errorf("Extract() = %v, want no error", err)
			default:
				a.unchanged(t)
			}
		})
	}
}

// What is skipped is not looked at; it must be there nevertheless, and zeros in it are no end of the archive.
func TestF2CutAfterSkippedContentIsNoticed(t *testing.T) {
	exclude, err := NewMatcher([]string{"skip"})
	if err != nil {
		t.Fatal(err)
	}
	data := tarball(t, entry{name: "a", body: "a"}, entry{name: "skip", body: strings.Repeat("\x00", 4096)})
	for cut := 1024; cut < len(data); cut += 512 {
		a := newArena(t)
		if _, err := a.extract(data[:cut], ExtractOptions{Exclude: exclude}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d of %d: error %v, want one that is %q", cut, len(data), err, ErrCorrupt)
		}
		a.unchanged(t)
	}
	a := newArena(t)
	if _, err := a.extract(data, ExtractOptions{Exclude: exclude}); err != nil {
		t.Error(err)
	}
}

// blocks is an archive without an end, made as it is read.
type blocks struct {
	block []byte
	rest  []byte
}

func (b *blocks) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		b.rest = b.block
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// The reader of the archive is never done with it: something of it must have a bound.
func TestF3EndlessArchivesEnd(t *testing.T) {
	opt := ExtractOptions{MaxEntries: 1000, MaxBytes: 1 << 20}
	for name, block := range map[string][]byte{
		"of files":          rawBlock("f", '0', octalSize(0), nil),
		"of devices":        rawBlock("n", '3', octalSize(0), nil),
		"of long names":     append(rawBlock("././@LongLink", 'L', octalSize(9), nil), padded("long name")...),
		"of pax headers":    pax(paxRecord("comment", "more")),
		"of global headers": append(rawBlock("g", 'g', octalSize(11), nil), padded("11 a=bcdef\n")...),
		"of skipped bytes":  append(rawBlock("odd", 'Z', octalSize(1<<30), nil), padded("x")...),
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := Extract(ctx, &blocks{block: block}, a.dest, opt)
			wantKind(t, err, ErrLimit)
			a.unchanged(t)
		})
	}
}

// streamOf is a stream of so many tar members, each made as it is read, and then its end.
type streamOf struct {
	count  int
	member func(i int) []byte
	at     int
	rest   []byte
}

func (s *streamOf) Read(p []byte) (int, error) {
	switch {
	case len(s.rest) > 0:
	case s.at < s.count:
		s.rest = s.member(s.at)
	case s.at == s.count:
		s.rest = archiveEnd
	default:
		return 0, io.EOF
	}
	n := copy(p, s.rest)
	if s.rest = s.rest[n:]; len(s.rest) == 0 {
		s.at++
	}
	return n, nil
}

// longMember is a member without content, of a name that takes a header of its own.
func longMember(name string, kind byte, mode string) []byte {
	b := append(rawBlock("././@LongLink", 'L', octalSize(len(name)), nil), padded(name)...)
	return append(b, rawBlock("long", kind, octalSize(0), func(h []byte) { copy(h[100:], mode) })...)
}

// sendStream sends what an import of a stream sends.
func sendStream(t *testing.T, w io.Writer, stream io.Reader, limits ExtractOptions) (Summary, error) {
	opt := WriteOptions{RepeatDirs: true, MaxName: 4000, Segment: 256, MaxPath: MaxPath, MaxDepth: MaxDepth}
	return LoadTar(stream, limits, opt).Parts()[0].Write(t.Context(), w, nil)
}

// A directory that no member names takes an entry, too, and the names of all of them have a bound.
func TestF3DirectoriesOfAStreamAreBounded(t *testing.T) {
	member := func(i int) []byte { return longMember(strconv.Itoa(i)+strings.Repeat("/a", 200)+"/f", '0', "") }
	_, err := sendStream(t, io.Discard, &streamOf{count: 1000, member: member}, ExtractOptions{MaxEntries: 1000})
	wantKind(t, err, ErrLimit)
	for most, want := range map[int64]error{11: nil, 10: ErrLimit} { // ten directories and a file
		_, err := sendStream(t, io.Discard, bytes.NewReader(tarball(t, entry{name: strings.Repeat("d/", 10) + "f"})), ExtractOptions{MaxEntries: most})
		if !errors.Is(err, want) {
			t.Errorf("of at most %d entries: error %v, want %v", most, err, want)
		}
	}
	opt := ExtractOptions{}.withDefaults()
	w := newTreeWriter(t.Context(), io.Discard, WriteOptions{RepeatDirs: true})
	stream := &streamed{t: w, m: newMembers(t.Context(), nil, opt, &w.sum), kinds: map[nameKey]byte{}, named: maxDirNames - len("dir"+"dir")}
	for _, name := range []string{"dir", "dir/dir", "dir"} {
		if err := stream.member(&tar.Header{Typeflag: tar.TypeDir}, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantKind(t, stream.member(&tar.Header{Typeflag: tar.TypeReg}, "d/f"), ErrLimit)
}

// heap notes the most that is in use while something is written. It looks at the first of every ten pieces.
type heap struct {
	most  uint64
	count int
}

func (h *heap) Write(p []byte) (int, error) {
	if h.count++; h.count%10 != 1 {
		return len(p), nil
	}
	var now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&now)
	h.most = max(h.most, now.HeapAlloc)
	return len(p), nil
}

// Neither the paths of a stream's directories nor the commands that set their modes are held.
func TestF3MemoryDoesNotGrowWithThePathsOfAStream(t *testing.T) {
	for name, stream := range map[string]*streamOf{
		"deep": {count: 1, member: func(i int) []byte {
			return longMember(strconv.Itoa(i)+strings.Repeat("/a directory", MaxDepth/4)+"/f", '0', "")
		}},
		"unusable": {count: 1000, member: func(i int) []byte {
			return longMember(fmt.Sprintf("%s%d/", strings.Repeat("n/", 200)+strings.Repeat("m", 3000)+"/", i), '5', "0000000\x00")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var before, during heap
			before.Write(nil)
			if _, err := sendStream(t, &during, stream, ExtractOptions{}); err != nil {
				t.Fatal(err)
			}
			if used := int64(during.most) - int64(before.most); used > 3<<20 {
				t.Errorf("%d bytes were held, want at most 3 MiB", used)
			}
		})
	}
}

// Members of one name, in a directory with many others, must not cost a reading of the directory each.
func TestDuplicateMembersReplaceEachOther(t *testing.T) {
	const others, again = 500, 1000
	var b bytes.Buffer
	for i := range others {
		b.Write(rawBlock("d/"+strconv.Itoa(i), '2', octalSize(0), func(h []byte) { copy(h[157:], "x") }))
	}
	for range again {
		b.Write(rawBlock("d/dup", '2', octalSize(0), func(h []byte) { copy(h[157:], "x") }))
	}
	b.Write(archiveEnd)
	a := newArena(t)
	sum, err := a.extract(b.Bytes(), ExtractOptions{})
	if err != nil || sum.Entries != others+1 {
		t.Errorf("%+v, %v, want %d entries", sum, err, others+1)
	}
}

// Each destination here cannot take the result; what was there stays.
func TestF2DestinationsThatCannotBePublished(t *testing.T) {
	data := tarball(t, entry{name: "f", body: "f"})
	t.Run("parent is a file", func(t *testing.T) {
		a := newArena(t)
		_, err := Extract(t.Context(), bytes.NewReader(data), filepath.Join(a.base, "outside.txt", "dest"), ExtractOptions{})
		wantKind(t, err, ErrDest)
		a.unchanged(t)
	})
	t.Run("parent is a link", func(t *testing.T) { // the host's own, which is followed
		a := newArena(t)
		link := filepath.Join(a.base, "link")
		if err := os.Symlink("in", link); err != nil {
			t.Skip(err)
		}
		if _, err := Extract(t.Context(), bytes.NewReader(data), filepath.Join(link, "dest"), ExtractOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		a.outsideIntact(t)
		onlyEntries(t, a.dest, "f")
	})
	t.Run("name of 255 bytes", func(t *testing.T) {
		dest := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
		if _, err := Extract(t.Context(), bytes.NewReader(data), dest, ExtractOptions{}); err != nil {
			t.Fatal(err)
		}
		onlyEntries(t, dest, "f")
	})
	t.Run("no path", func(t *testing.T) {
		t.Chdir(t.TempDir())
		if err := os.WriteFile("precious", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Extract(t.Context(), bytes.NewReader(data), "", ExtractOptions{})
		wantKind(t, err, ErrType)
		_, err = extractFile(t.Context(), bytes.NewReader(data), "", ExtractOptions{})
		wantKind(t, err, ErrType)
		onlyEntries(t, ".", "precious")
	})
	for name, swap := range map[string]func(dest string) error{
		"became a file": func(dest string) error { return os.WriteFile(dest, []byte("theirs"), 0o600) },
		"became a link": func(dest string) error { return os.Symlink("..", dest) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			opt := ExtractOptions{Progress: func(int64, int64) { // while the archive is read
				if err := errors.Join(os.RemoveAll(a.dest), swap(a.dest)); err != nil {
					t.Error(err)
				}
			}}
			_, err := a.extract(data, opt)
			wantKind(t, err, ErrType)
			a.outsideIntact(t)
			if fi, err := os.Lstat(a.dest); err != nil || fi.IsDir() {
				t.Errorf("%v, %v, want what took the destination's place", fi, err)
			}
		})
	}
}

// hostileTree is a file system in which reading one file goes wrong.
type hostileTree struct {
	fs.FS
	name string
	err  error
}

func (h hostileTree) Open(name string) (fs.File, error) {
	if name == h.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: h.err}
	}
	return h.FS.Open(name)
}

func TestUnreadableSourcesAreNamed(t *testing.T) {
	dir := t.TempDir()
	put := func(name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put("d/secret")
	for _, name := range []string{"d", "d/secret"} {
		_, err := writeTree(t.Context(), io.Discard, FS(hostileTree{os.DirFS(dir), name, fs.ErrPermission}), WriteOptions{})
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrSource || e.Name != name {
			t.Errorf("error %v, want one that cannot read %q", err, name)
		}
	}
}

func TestF2SourceThatIsSwappedEndsTheArchive(t *testing.T) {
	for name, swap := range map[string]func(dir string) error{
		"directory by a link": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "e"), 0o755), os.Remove(filepath.Join(dir, "d")), os.Symlink("e", filepath.Join(dir, "d")))
		},
		"directory by a link to outside": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "d")), os.Symlink("/etc", filepath.Join(dir, "d")))
		},
		"directory by a file": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "d")), os.WriteFile(filepath.Join(dir, "d"), nil, 0o600))
		},
		"directory by a FIFO": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "d")), makeFIFO(filepath.Join(dir, "d")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "d"), 0o755); err != nil {
				t.Fatal(err)
			}
			// The swap happens between the look at "d" and its opening: when it is reported.
			opt := WriteOptions{Progress: func(int64, int64) {
				if err := swap(dir); err != nil {
					t.Skipf("this system cannot do that: %v", err)
				}
			}}
			_, err := writeTree(t.Context(), io.Discard, open(t, dir), opt)
			if !errors.Is(err, ErrChanged) && !errors.Is(err, ErrSource) {
				t.Errorf("error %v, want one that is %q or %q", err, ErrChanged, ErrSource)
			}
		})
	}
	t.Run("file by a FIFO", func(t *testing.T) {
		dir := t.TempDir()
		for _, f := range []string{"a", "b"} {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		src := swapped{open(t, dir), func() {
			if err := errors.Join(os.Remove(filepath.Join(dir, "b")), makeFIFO(filepath.Join(dir, "b"))); err != nil {
				t.Skipf("this system cannot do that: %v", err)
			}
		}}
		_, err := writeTree(t.Context(), io.Discard, src, WriteOptions{})
		wantKind(t, err, ErrChanged)
	})
}

// swapped is a source that changes between the look at b and its opening.
type swapped struct {
	Source
	do func()
}

func (s swapped) open(name string) (fs.File, error) {
	if name == "b" {
		s.do()
	}
	return s.Source.open(name)
}

func TestLoopsOfLinksAreArchivedAsLinks(t *testing.T) {
	dir := t.TempDir()
	for name, target := range map[string]string{"self": "self", "up": ".", "a": "b", "b": "a"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Skip(err)
		}
	}
	data, sum := pack(t, dir, WriteOptions{})
	if sum.Entries != 4 {
		t.Errorf("%d entries, want 4", sum.Entries)
	}
	a := newArena(t)
	if _, err := a.extract(data, ExtractOptions{}); err != nil {
		t.Fatal(err)
	}
	onlyEntries(t, a.dest, "a", "b", "self", "up")
}
