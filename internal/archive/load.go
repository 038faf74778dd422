package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
	"github.com/leasehold-go/leasehold/internal/stream"
)

// Load is what an import sends to one directory: an archive, and beside it the large files, each by itself. What the
// archive holds is written twice in the sandbox, as archive and as files. A large file is written once, and put in its
// place by rename.
type Load struct {
	Total Summary // of the walk: entries and bytes that are going to be sent; zero for a stream
	Have  Summary // entries and bytes that the sandbox has, see [Load.Compare]
	Gone  int64   // entries that are to be removed from it

	opt   WriteOptions
	walk  func(*treeWriter) error
	src   Source // to be closed; nil for none
	large []large
	have  map[nameKey]twin // the entries, compared with what the sandbox has; nil when nobody asked
	gone  string           // shell commands that remove what the source does not have,
	spare string           // and where the lease's own directory lies by the sandbox's word, which they leave out
	looks string           // digest of all that the walk saw but content; "" when nobody asked
}

// LargeFile is the size in bytes from which on a file is sent by itself. Putting it in its place takes five small
// programs, about as long as writing so much.
const LargeFile = 8 << 20

// large is one large file as the walk saw it.
type large struct {
	name string
	info fs.FileInfo
	mode fs.FileMode
	open func() (fs.File, error)
	data []extent // of a sparse file, all that is sent of it; nil for everything
}

// Part is one file of an upload. The parts are to be written in order.
type Part struct {
	Name string // path in the scratch directory, see [RemoteImport]
	// Write writes the part, and returns what it holds. It reports its own totals to progress.
	Write func(ctx context.Context, w io.Writer, progress func(entries, bytes int64)) (Summary, error)
}

// LoadTree walks a source, without reading any file. The load closes the source, also when LoadTree fails.
func LoadTree(ctx context.Context, src Source, opt WriteOptions) (*Load, error) {
	return newLoad(ctx, &Load{opt: opt, src: src, walk: func(t *treeWriter) error { return t.tree(src) }})
}

// LoadFiles looks at files of the host, to be sent under names without a slash. A link is followed once; anything but a
// regular file is refused with [ErrSource], and a name that is too long with [ErrLimit]. The load is to be closed.
func LoadFiles(ctx context.Context, files []HostFile, opt WriteOptions) (*Load, error) {
	return newLoad(ctx, &Load{opt: opt, walk: func(t *treeWriter) error {
		for _, f := range files {
			if t.ctx.Err() != nil {
				return context.Cause(t.ctx)
			}
			if err := t.hostFile(f); err != nil {
				return err
			}
		}
		return t.metAll()
	}})
}

// LoadTar sends the entries of a tar stream, each of them checked before it is passed on, within the limits. The stream is read
// once, when the archive is written.
func LoadTar(r io.Reader, limits ExtractOptions, opt WriteOptions) *Load {
	return &Load{opt: opt, walk: func(t *treeWriter) error { return t.stream(&stream.Lively{From: r}, limits) }}
}

func newLoad(ctx context.Context, l *Load) (*Load, error) {
	t := &treeWriter{ctx: ctx, opt: l.opt, links: map[fileID]string{}, found: &l.large}
	t.opt.Progress = nil
	if err := l.walk(t); err != nil {
		l.Close()
		return nil, err
	}
	for i := range l.large {
		if err := l.large[i].findHoles(); err != nil {
			l.Close()
			return nil, err
		}
	}
	l.Total = t.sum
	return l, nil
}

// Close closes the source.
func (l *Load) Close() {
	if l.src != nil {
		l.src.Close()
	}
}

// Digest returns a digest of the load, times excepted. A load that does not look the same any more when it is sent ends
// with [ErrChanged].
func (l *Load) Digest(ctx context.Context) (string, error) {
	content, looks := sha256.New(), sha256.New()
	opt := l.opt
	opt.timeless, opt.RepeatDirs, opt.Progress = true, false, nil
	t := newTreeWriter(ctx, content, opt)
	t.looks = looks
	if _, err := t.finish(l.walk(t)); err != nil {
		return "", err
	}
	l.looks = string(looks.Sum(nil))
	return hex.EncodeToString(content.Sum(nil)), nil
}

// Nothing reports whether a comparison left nothing to send and nothing to remove.
func (l *Load) Nothing() bool { return l.have != nil && l.Total.Entries == 0 && l.gone == "" }

// Parts returns what is to be uploaded. The archive comes last; its summary says how long it is.
func (l *Load) Parts() []Part {
	var parts []Part
	for i, f := range l.large {
		parts = append(parts, Part{fmt.Sprintf("%s/%d", remoteLarge, i), f.write})
	}
	for _, list := range [][2]string{{remoteLarge + "/" + remotePlaces, l.places()}, {remoteGone, l.gone}} {
		if name, text := list[0], list[1]; text != "" {
			parts = append(parts, Part{name, func(_ context.Context, w io.Writer, _ func(entries, bytes int64)) (Summary, error) {
				if _, err := io.WriteString(w, text); err != nil {
					return Summary{}, fail(ErrWrite, "", "", err)
				}
				return Summary{}, nil
			}})
		}
	}
	return append(parts, Part{RemoteArchive, func(ctx context.Context, w io.Writer, progress func(entries, bytes int64)) (Summary, error) {
		opt := l.opt
		opt.Progress = progress
		t := newTreeWriter(ctx, w, opt)
		t.apart = l.large
		if l.have != nil {
			t.have = l.has
		}
		if l.looks == "" {
			return t.finish(l.walk(t))
		}
		looks := sha256.New()
		t.looks = looks
		err := l.walk(t)
		if err == nil && string(looks.Sum(nil)) != l.looks {
			err = fail(ErrChanged, "", "it was written to", nil)
		}
		return t.finish(err)
	}})
}

// places returns the shell commands that put the large files in their places, see remote_import.sh.
func (l *Load) places() string {
	var b strings.Builder
	for i, f := range l.large {
		if f.data != nil {
			var sum int64
			for _, e := range f.data {
				sum += e.size
			}
			fmt.Fprintf(&b, "spread %d %d %d", i, sum, f.info.Size())
			for _, e := range f.data {
				fmt.Fprintf(&b, " %d %d", e.offset/block, (e.size+block-1)/block)
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "put %d %s %d %o %s\n", i, script.Quote(l.opt.place(l.opt.Prefix+f.name, false)), f.info.Size(), f.mode, touchStamp(wholeSecond(f.info.ModTime())))
	}
	return b.String()
}

// touchStamp returns a time for the tool touch, in UTC, "-" if that cannot take it.
func touchStamp(at time.Time) string {
	if at = at.UTC(); at.Year() < 1 || at.Year() > 9999 {
		return "-"
	}
	return at.Format("200601021504.05")
}

// Stage returns what the sandbox has to do with the uploaded load, whose archive has so many bytes.
func (l *Load) Stage(dir string, bytes int64) RemoteStage {
	return RemoteStage{Dir: dir, Bytes: bytes, Places: int64(len(l.places())), Gone: int64(len(l.gone)), Spared: l.spare}
}

// write writes the content, if the file is still the one that the walk saw.
func (l large) write(ctx context.Context, w io.Writer, progress func(entries, bytes int64)) (Summary, error) {
	t := &treeWriter{ctx: ctx, opt: WriteOptions{Progress: progress}, buf: make([]byte, chunkSize)}
	f, err := l.open()
	if err != nil {
		return t.sum, sourceError(l.name, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return t.sum, sourceError(l.name, err)
	}
	if err := unchanged(l.name, l.info, fi); err != nil {
		return t.sum, err
	}
	if l.data != nil {
		err = t.copyData(w, f, fi, l)
	} else {
		err = t.copy(w, f, fi, l.name)
	}
	return t.sum, err
}

// parents returns the directories that hold large files.
func parents(files []large) map[string]bool {
	dirs := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	return dirs
}
