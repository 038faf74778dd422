package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/script"
)

// A path in the sandbox cannot be longer than the 4,096 bytes of Linux, not for tar and not for the shell. A deeper tree is
// sent in segments: from certain directories on, what lies in them is archived below a directory of its own at the top.
// Where that belongs is in a list. The shell renames each of them to its place, the deepest ones first: all the paths it
// needs for that are short, and the path of the whole is never needed.

// Names at the top of the extracted tree: of the directory that has the segments, and of the list, in which each line
// calls "join", see remote_import.sh.
const (
	segmentsDir  = StagePrefix + "deep"
	SegmentsList = StagePrefix + "joins"
)

const (
	// segmentSlack is how much longer the path of an entry may become behind the directory after which the next segment
	// begins: a directory's name, an entry's, and the segment's own.
	segmentSlack = 255 + 1 + 255 + 1 + len(segmentsDir) + 1 + 2*segmentID
	segmentID    = 16 // bytes
)

// place returns where the archive has an entry. It depends on nothing but the path, so that the walks that describe a
// tree and the one that sends it agree.
func (o *WriteOptions) place(name string, isDir bool) string {
	most := max(1, o.MaxName-segmentSlack)
	if o.Segment == 0 || len(name) < most && strings.Count(name, "/")+1 < o.Segment {
		return name
	}
	cut, start, levels := 0, 0, 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' || i == len(name) && !isDir {
			continue
		}
		if levels++; levels == o.Segment || i-start >= most {
			cut, start, levels = i, i+1, 0
		}
	}
	if cut == 0 {
		return name
	}
	id := sha256.Sum256([]byte(name[:cut]))
	return segmentsDir + "/" + hex.EncodeToString(id[:segmentID]) + name[cut:]
}

// fits makes sure that an entry can be sent.
func (o *WriteOptions) fits(name string) error {
	whole := o.Prefix + name
	switch {
	case o.MaxName > 0 && (len(o.place(whole, false)) > o.MaxName || len(o.place(whole, true)) > o.MaxName):
		return failf(ErrLimit, name, "its path has more than %d bytes", o.MaxName)
	case o.MaxPath > 0 && len(whole) > o.MaxPath:
		return failf(ErrLimit, name, "its path has more than %d bytes", o.MaxPath)
	case o.MaxDepth > 0 && strings.Count(name, "/") >= o.MaxDepth:
		return failf(ErrLimit, name, "more than %d levels deep", o.MaxDepth)
	}
	return nil
}

// joins returns the lines of [SegmentsList].
func (t *treeWriter) joins() iter.Seq[string] {
	return func(yield func(string) bool) {
		for d, name := range t.backward() {
			if !d.segment {
				continue
			}
			parent, base := split(name)
			place, mode, stamp := "", "-", "-"
			if d.above >= 0 {
				above := t.dirs[d.above]
				place, mode, stamp = t.opt.place(parent, true)+"/", fmt.Sprintf("%o", above.mode), touchStamp(time.Unix(above.time, 0))
			}
			segment := script.Quote("./" + t.opt.place(name, true))
			if !yield(fmt.Sprintf("join %s %s %s %o %s %s\n", segment, script.Quote("./"+place), script.Quote(base), d.mode, mode, stamp)) {
				return
			}
		}
	}
}
