package archive

import (
	_ "embed"
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
)

var (
	//go:embed remote_source.sh
	sourceScript string
	//go:embed remote_export.sh
	exportScript string
)

// RemoteExport is an archive that a script makes in the sandbox, in pieces: so it needs a small fixed amount of the
// sandbox's disk, and the host has the first piece while the later ones are made.
type RemoteExport struct {
	Scratch string   // scratch directory, absolute, in the lease's own, which is never archived; its base from [StageName]
	Dir     string   // what to archive: a directory, absolute,
	Files   []string // or these files, absolute, in that order; the members of the archive are called "./" and their last name
	Root    string   // those that lie in it, by their paths, must do so with all links resolved; absolute
	Live    bool     // files that change while they are read are no failure
	Exclude *Matcher // of a directory

	PieceSize int64 // a multiple of 64 KiB; 0 is [PieceSize]
	Patience  int   // seconds after which a script ends itself when nobody asks for anything; 0 is [Patience]
}

const (
	// PieceSize is large enough that the requests for a piece cost little beside its content.
	PieceSize = 32 << 20
	// PieceCount is how many pieces are on the sandbox's disk at a time, the one that is being written included.
	PieceCount = 4
	// Patience is how long the script waits to be asked for something. A host that is slow with a piece asks in between.
	Patience = 180

	pieceBlock = 64 << 10
)

// Make returns the script that begins, as text for a POSIX shell's standard input. Its reply has the first piece.
func (r RemoteExport) Make() string {
	mood := "strict"
	if r.Live {
		mood = "live"
	}
	size, patience := r.PieceSize, r.Patience
	if size == 0 {
		size = PieceSize
	}
	if patience == 0 {
		patience = Patience
	}
	args := []string{
		"make", r.Scratch, "0", strconv.FormatInt(size/pieceBlock, 10), strconv.Itoa(PieceCount), strconv.Itoa(patience), mood,
	}
	return command(sweepScript+ownScript+sourceScript+exportScript, append(args, r.source()...)...)
}

// source returns the arguments that say what to archive.
func (r RemoteExport) source() []string {
	own := path.Dir(r.Scratch)
	if r.Files != nil {
		args := []string{"files", own, r.Root}
		for files := r.Files; len(files) > 0; {
			dir := path.Dir(files[0])
			n := slices.IndexFunc(files, func(file string) bool { return path.Dir(file) != dir })
			if n < 0 {
				n = len(files)
			}
			args = append(args, strconv.Itoa(n), dir)
			for _, file := range files[:n] {
				args = append(args, path.Base(file))
			}
			files = files[n:]
		}
		return args
	}
	return append([]string{"dir", own, r.Dir}, r.Exclude.TarArgs()...)
}

// Take returns the script that removes the pieces before one that is still needed, and waits until the wanted one is
// whole or there will be none. While it is being made, the reply may be [WordBusy]. It also says that somebody is there.
func (r RemoteExport) Take(wanted, needed int) string {
	return command(exportScript, "take", r.Scratch, strconv.Itoa(wanted), strconv.Itoa(needed))
}

// Path returns where a piece is.
func (r RemoteExport) Path(piece int) string { return path.Join(r.Scratch, strconv.Itoa(piece)) }

// Piece is one piece of an archive.
type Piece struct {
	Number int
	Size   int64
	Sum    uint32 // as of [Sum], if Summed
	Summed bool   // some small systems have no cksum
}

func parsePiece(text string) (Piece, bool) {
	var p Piece
	fields := strings.Split(text, " ")
	if len(fields) != 3 {
		return p, false
	}
	number, err1 := strconv.Atoi(fields[0])
	sum, err2 := strconv.ParseUint(fields[1], 10, 32)
	size, err3 := strconv.ParseInt(fields[2], 10, 64)
	p = Piece{number, size, uint32(sum), err2 == nil}
	return p, err1 == nil && (p.Summed || fields[1] == "-") && err3 == nil && number >= 0 && size > 0
}

// Sum computes the checksum of the POSIX tool cksum. The zero value has seen nothing.
//
// It is the CRC of IEEE 802.3 as [crc32] computes it, of bytes whose bits are in the opposite order, and with the length
// at the end.
type Sum struct {
	crc  uint32 // as the tool's register, its bits in the opposite order
	size int64
	buf  [4096]byte
}

// Write adds bytes. It never fails.
func (s *Sum) Write(p []byte) (int, error) {
	s.size += int64(len(p))
	s.add(p)
	return len(p), nil
}

func (s *Sum) add(p []byte) {
	for len(p) > 0 {
		n := copy(s.buf[:], p)
		turn(s.buf[:n])
		s.crc = ^crc32.Update(^s.crc, crc32.IEEETable, s.buf[:n])
		p = p[n:]
	}
}

// turn reverses the bits of each byte.
func turn(p []byte) {
	for ; len(p) >= 8; p = p[8:] {
		binary.LittleEndian.PutUint64(p, bits.ReverseBytes64(bits.Reverse64(binary.LittleEndian.Uint64(p))))
	}
	for i, b := range p {
		p[i] = bits.Reverse8(b)
	}
}

// Sum32 returns the checksum of what was written.
func (s *Sum) Sum32() uint32 {
	end := Sum{crc: s.crc}
	for n := s.size; n > 0; n >>= 8 {
		end.add([]byte{byte(n)})
	}
	return ^bits.Reverse32(end.crc)
}
