package archive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// CompareOptions are the options of [Load.Compare].
type CompareOptions struct {
	Digests bool   // contents are compared, not times
	Remove  bool   // what the source does not have is to be removed
	Own     string // where the lease's own directory lies by the paths; "" if it does not
	Step    func() // called while files of the source are read; nil for nothing
}

// Bounds of a comparison: the entries of either side, of each of which it holds a small record, and the names of what is
// to be removed, in bytes, which it holds as they are.
const (
	maxCompared = 500_000
	maxRemoved  = 16 << 20
)

// mostRecord bounds one record of a list, in bytes. A path has far less.
const mostRecord = 64 << 10

// twin is what is known of an entry of the source, and whether the receiver has one like it.
type twin struct {
	size   int64
	time   int64  // seconds
	mode   uint16 // as in st_mode
	always bool   // it is sent in any case
	like   bool   // the receiver has one that looks the same
	have   bool   // and it is not sent
}

// Compare reads what [RemoteList] lists, and takes from the load what the receiver has: files and links of the same
// size, mode and time, or with Digests files of the same size, mode and SHA-256, whatever their time. A file with several
// names is always sent. What a matcher excludes, what is reserved, the lease's own directory, wherever the list says that it
// lies, and what leads to it are never removed.
func (l *Load) Compare(ctx context.Context, list io.Reader, opt CompareOptions) error {
	twins := map[nameKey]twin{}
	walk := &treeWriter{ctx: ctx, opt: l.opt, links: map[fileID]string{}}
	walk.opt.Progress = nil
	walk.note = func(name string, fi fs.FileInfo, several bool) {
		mode := uint16(fileMode(fi, l.opt))
		switch {
		case fi.IsDir():
			mode = modeDir
		case fi.Mode()&fs.ModeSymlink != 0:
			mode, several = modeLink, several || opt.Digests
		default:
			mode |= modeFile
		}
		if len(twins) <= maxCompared {
			twins[keyOf(name)] = twin{size: fi.Size(), time: wholeSecond(fi.ModTime()).Unix(), mode: mode, always: several}
		}
	}
	if err := l.walk(walk); err != nil {
		return err
	}
	if len(twins) > maxCompared {
		return failf(ErrLimit, "", "a comparison of more than %d entries", maxCompared)
	}
	c := &comparison{ctx: ctx, l: l, opt: opt, twins: twins, goes: map[nameKey]bool{}, r: bufio.NewReaderSize(list, chunkSize)}
	if err := c.entries(); err != nil {
		return err
	}
	if err := c.digests(); err != nil {
		return err
	}
	c.dirs = slices.DeleteFunc(c.dirs, func(name string) bool { return !c.goes[keyOf(name)] })
	l.have, l.gone, l.spare = twins, c.removal(), c.own
	l.Have, l.Gone = c.had, int64(len(c.files)+len(c.dirs))
	l.Total.Entries -= c.had.Entries
	l.Total.Bytes -= c.had.Bytes
	l.large = slices.DeleteFunc(l.large, func(f large) bool { return l.has(f.name) })
	return nil
}

// Types of a file in st_mode.
const (
	modeType = 0o170000
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

type comparison struct {
	ctx   context.Context
	l     *Load
	opt   CompareOptions
	r     *bufio.Reader
	twins map[nameKey]twin
	had   Summary
	own   string           // the lease's own directory, with all links resolved; "" if it does not lie there
	files []string         // to be removed
	dirs  []string         // too, if they are empty then, parents first
	goes  map[nameKey]bool // those of dirs that hold nothing that is not to be removed
	named int              // bytes of the names of both
	count int
}

var errList = fail(ErrCorrupt, "", "the list of the sandbox's files cannot be understood", nil)

// record reads on to the next "//" and newline, which no path has: find does not repeat a slash.
func (c *comparison) record() (string, error) {
	var b []byte
	for {
		part, err := c.r.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case err == bufio.ErrBufferFull || err == nil && !bytes.HasSuffix(b, []byte("//\n")):
			if len(b) > mostRecord {
				return "", errList
			}
		case err == io.EOF:
			return "", errList // the end comes after a mark
		case err != nil:
			return "", fail(ErrRead, "", "", err)
		default:
			return string(b[:len(b)-len("//\n")]), nil
		}
	}
}

// entries reads the first part of the list.
func (c *comparison) entries() error {
	for {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		text, err := c.record()
		if err != nil {
			return err
		}
		fields := strings.SplitN(text, " ", 4)
		if len(fields) != 4 {
			return errList
		}
		mode, err1 := strconv.ParseUint(fields[0], 16, 32)
		size, err2 := strconv.ParseInt(fields[1], 10, 64)
		at, err3 := strconv.ParseInt(fields[2], 10, 64)
		if errors.Join(err1, err2, err3) != nil {
			return errList
		}
		name, below := strings.CutPrefix(fields[3], "./")
		own, isOwn := strings.CutPrefix(fields[3], "=")
		switch {
		case isOwn && own == "":
			return nil
		case isOwn:
			c.own = own
			continue
		case !below:
			continue // the directory itself
		case strings.HasPrefix(name, "/") || path.Clean(name) != name || strings.HasPrefix(name+"/", "../"):
			return errList // find would not say it so
		}
		if c.count++; c.count > maxCompared {
			return failf(ErrLimit, "", "a comparison of more than %d entries", maxCompared)
		}
		if err := c.entry(name, uint16(mode), size, at); err != nil {
			return err
		}
	}
}

func (c *comparison) entry(name string, mode uint16, size, at int64) error {
	key := keyOf(name)
	isDir := mode&modeType == modeDir
	mine, ok := c.twins[key]
	switch {
	case !ok && c.opt.Remove:
		if c.kept(name, isDir) {
			// Those that lead to it were listed before: where one is not to be removed, none above it is.
			for dir, _ := split(name); c.goes[keyOf(dir)]; dir, _ = split(dir) {
				delete(c.goes, keyOf(dir))
			}
		} else {
			if c.named += len(name); c.named > maxRemoved {
				return failf(ErrLimit, "", "more than %d bytes of names that are to be removed", maxRemoved)
			}
			if isDir {
				c.dirs = append(c.dirs, name)
				c.goes[key] = true
			} else {
				c.files = append(c.files, name)
			}
		}
		return nil
	case !ok:
		return nil
	case isDir && mine.mode == modeDir:
		mine.like = true
	case mode&modeType == modeLink && mine.mode == modeLink:
		mine.like = mine.size == size && mine.time == at
	default:
		mine.like = mine.mode == mode && mine.size == size && (mine.time == at || c.opt.Digests)
	}
	c.twins[key] = mine
	if mine.like && !mine.always && (!c.opt.Digests || isDir) {
		c.keep(key, mine)
	}
	return nil
}

// kept reports whether an entry is not the import's to remove.
func (c *comparison) kept(name string, isDir bool) bool {
	if c.l.opt.Exclude.MatchBelow(name, isDir) {
		return true
	}
	for _, own := range []string{c.own, c.opt.Own} {
		if own != "" && (within(name, own) || within(own, name)) {
			return true
		}
	}
	if c.l.opt.Reserved == nil {
		return false
	}
	for ; name != ""; name, _ = split(name) {
		if c.l.opt.Reserved(name) {
			return true
		}
	}
	return false
}

func (c *comparison) keep(key nameKey, t twin) {
	if t.have {
		return
	}
	t.have = true
	c.twins[key] = t
	c.had.Entries++
	if t.mode&modeType == modeFile {
		c.had.Bytes += t.size
	}
}

// plainName undoes what sha256sum of GNU does to a name, in a line that begins with a backslash. That of busybox does
// nothing to a newline: such a file finds no match, and is sent.
var plainName = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")

// line reads a line of the second part of the list.
func (c *comparison) line() (string, error) {
	var b []byte
	for {
		part, err := c.r.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case err == io.EOF || len(b) > mostRecord:
			return "", errList
		case err == bufio.ErrBufferFull:
		case err != nil:
			return "", fail(ErrRead, "", "", err)
		default:
			return string(b[:len(b)-1]), nil
		}
	}
}

// digests reads the second part of the list. It has a line for each file, or several where a newline in a name is one.
func (c *comparison) digests() error {
	for n := 0; ; n++ {
		line, err := c.line()
		switch {
		case err != nil:
			return err
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case line == "0 0 0 =//":
			return nil
		case n > 2*maxCompared:
			return failf(ErrLimit, "", "a comparison of more than %d entries", maxCompared)
		}
		line, escaped := strings.CutPrefix(line, `\`)
		digest, name, ok := strings.Cut(line, "  ./")
		if escaped {
			name = plainName.Replace(name)
		}
		if !ok || len(digest) != 2*sha256.Size {
			continue
		}
		key := keyOf(name)
		mine := c.twins[key]
		if !mine.like || mine.always || mine.mode&modeType != modeFile {
			continue
		}
		own, err := c.digest(name)
		if err != nil {
			return err
		}
		if own == digest {
			c.keep(key, mine)
		}
		mine = c.twins[key]
		mine.like = false // it is hashed once, however often it is listed
		c.twins[key] = mine
	}
}

// digest hashes a file of the source.
func (c *comparison) digest(name string) (string, error) {
	f, err := c.l.open(name)
	if err != nil {
		return "", sourceError(name, err)
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 64<<10)
	from := stream.Lively{From: f}
	for {
		if c.ctx.Err() != nil {
			return "", context.Cause(c.ctx)
		}
		n, err := from.Read(buf)
		h.Write(buf[:n])
		if c.opt.Step != nil {
			c.opt.Step()
		}
		if err == io.EOF {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", sourceError(name, err)
		}
	}
}

// removal returns the shell commands that remove what the source does not have. A directory stays as long as something
// is in it.
func (c *comparison) removal() string {
	var b strings.Builder
	slices.Reverse(c.dirs)
	for _, list := range []struct {
		command, end string
		names        []string
	}{{"rm -f --", " || exit 1\n", c.files}, {"rmdir --", " || :\n", c.dirs}} {
		for names := range slices.Chunk(list.names, 64) {
			b.WriteString(list.command)
			for _, name := range names {
				b.WriteString(" " + script.Quote("./"+name))
			}
			b.WriteString(list.end)
		}
	}
	return b.String()
}

// has reports whether the receiver has an entry.
func (l *Load) has(name string) bool { return l.have[keyOf(name)].have }

// open opens a file of the source.
func (l *Load) open(name string) (fs.File, error) {
	if l.opt.Follow {
		return l.src.reopen(name)()
	}
	return l.src.open(name)
}
