package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"

	"github.com/leasehold-go/leasehold/internal/script"
)

//go:embed remote_terminal.sh
var terminalScript string

const (
	// terminalChunk is how many bytes the sandbox sends before it waits. The daemon drops a client for whom more than 256
	// frames wait, and a frame may be as small as a write to a terminal that the kernel splits: 2 KiB.
	terminalChunk = 256 << 10
	// terminalNoise bounds what a login shell prints before it does as it was told.
	terminalNoise = 1 << 20
	// terminalSkips bounds the lines about what was left out: the script sends no more than 32 KiB of names.
	terminalSkips = 32 << 10
	// terminalPatience is how many seconds the sandbox waits for the host.
	terminalPatience = 120
	terminalTools    = "bash tar dd base64 sha256sum tee sed head stty"
)

// Terminal reads the archive of a [RemoteExport] from a terminal on which a login shell runs, in the environment of
// [TerminalEnv]. The sandbox sends one chunk
// at a time, and the next one only when Read is called and all earlier bytes have been taken. It ends with io.EOF only
// when tar has ended well and the digest of what was read is the one of what tar wrote. Where the way to the terminal
// proves to keep every byte, the archive comes as it is, else as base64.
type Terminal struct {
	rw    io.ReadWriter
	in    *bufio.Reader
	r     RemoteExport
	mark  string
	limit int64

	began bool
	plain bool   // every byte survives the way
	chunk []byte // decoded, not read yet
	text  []byte // space for a chunk as it arrives
	space []byte // and decoded
	next  int
	sum   hash.Hash
	size  int64
	reply *Reply // the last word
	err   error
}

// NewTerminal makes a reader of an archive of at most limit bytes; 0 is no limit. The mark is the base of the scratch
// directory's name. None is made.
func NewTerminal(rw io.ReadWriter, r RemoteExport, limit int64) *Terminal {
	return &Terminal{
		rw: rw, in: bufio.NewReaderSize(rw, 64<<10), r: r, mark: markOf(r),
		limit: limit, sum: sha256.New(),
	}
}

// Reply returns the sandbox's last word, once Read returned an error, and nil if there was none.
func (t *Terminal) Reply() *Reply { return t.reply }

// Size returns how much was read.
func (t *Terminal) Size() int64 { return t.size }

// markOf returns the base of the scratch directory's name.
func markOf(r RemoteExport) string {
	return strings.TrimPrefix(r.Scratch[strings.LastIndexByte(r.Scratch, '/')+1:], ".")
}

// TerminalEnv returns the environment of the login shell. What it holds makes the terminal raw, so that nothing is echoed or
// changed, and has Bash read the script.
func TerminalEnv(r RemoteExport) map[string]string {
	mark := markOf(r)
	tools := "for t in " + terminalTools + `; do command -v $t >/dev/null 2>&1 || { printf '%s missing %s\n' "$1" $t; exit; }; done; ` +
		`case $(tar --version 2>/dev/null) in *"GNU tar"*) ;; *) printf '%s missing GNU tar\n' "$1"; exit ;; esac; ` +
		`dd iflag=fullblock count=0 </dev/null 2>/dev/null || { printf '%s missing GNU dd\n' "$1"; exit; }; ` +
		`base64 -w 0 </dev/null >/dev/null 2>&1 || { printf '%s missing GNU base64\n' "$1"; exit; }; ` +
		`printf '%s hello\n' "$1"; ` +
		`exec bash --noprofile --norc -c 'IFS= read -r -d "" script && eval "$script"'`
	return script.CarryTerminal("stty raw -echo\nexec sh -c " + script.QuoteAll([]string{tools, "leasehold", mark}) + "\n")
}

// script returns what Bash reads then, up to a zero byte.
func (t *Terminal) script() string {
	mood := "strict"
	if t.r.Live {
		mood = "live"
	}
	args := append([]string{t.mark, strconv.Itoa(terminalChunk), strconv.Itoa(terminalPatience), mood}, t.r.source()...)
	return "set -- " + script.QuoteAll(args) + "\n" + ownScript + sourceScript + terminalScript + "\x00"
}

// Read reads the next bytes of the archive.
func (t *Terminal) Read(p []byte) (int, error) {
	for len(t.chunk) == 0 {
		if t.err == nil {
			t.err = t.more()
			if t.err == io.EOF && t.reply == nil { // of the connection, which proves nothing
				t.err = fail(ErrCorrupt, "", "the terminal ended before the archive", nil)
			}
		}
		if t.err != nil {
			return 0, t.err
		}
	}
	n := copy(p, t.chunk)
	t.chunk = t.chunk[n:]
	return n, nil
}

var errNoise = failf(ErrCorrupt, "", "the terminal prints what nobody asked for")

// MissingTool is the error of a sandbox that lacks a program which the transfer needs.
type MissingTool string

func (m MissingTool) Error() string { return string(m) + " is missing in the sandbox" }

// missingTool reads what is said in the place of "hello". Any process of the sandbox may say it: only a program that was asked
// for gets into a message.
func missingTool(said string) error {
	for _, tool := range append(strings.Fields(terminalTools), "GNU tar", "GNU dd", "GNU base64") {
		if said == "missing "+tool {
			return MissingTool(tool)
		}
	}
	return errNoise
}

// more asks for the next chunk. All that was read before has been taken.
func (t *Terminal) more() error {
	if !t.began {
		if err := t.begin(); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(t.rw, "next %d\n", t.next); err != nil {
		return err
	}
	end := []byte(t.mark + " ")
	start, err := t.in.Peek(len(end))
	if err != nil && err != io.EOF {
		return err
	}
	if bytes.Equal(start, end) {
		text, err := t.line(t.mostEnd())
		if err != nil {
			return err
		}
		return t.finish(text)
	}
	n, err := t.frame()
	if err != nil {
		return err
	}
	t.chunk = t.space[:n]
	t.size += int64(n)
	t.sum.Write(t.chunk)
	t.next++
	if t.limit > 0 && t.size > t.limit {
		return failf(ErrLimit, "", "the archive has more than the %d bytes of the sandbox's disk", t.limit)
	}
	return nil
}

// mostEnd is the length of the longest line that ends an archive.
func (t *Terminal) mostEnd() int { return len(t.mark) + 64<<10 }

// frame reads a chunk into t.space, and returns its length.
func (t *Terminal) frame() (int, error) {
	if t.plain {
		if _, err := io.ReadFull(t.in, t.space); err != nil {
			return 0, noEnd(err)
		}
		if b, err := t.in.ReadByte(); err != nil {
			return 0, err
		} else if b != '\n' {
			return 0, errNoise
		}
		return len(t.space), nil
	}
	text, err := t.line(terminalChunk)
	if err != nil {
		return 0, err
	}
	n, err := base64.StdEncoding.Strict().Decode(t.space, text)
	if err != nil || n == 0 {
		return 0, errNoise
	}
	return n, nil
}

// noEnd keeps the end of the connection from being taken for the archive's.
func noEnd(err error) error {
	if err == io.ErrUnexpectedEOF {
		return io.EOF // which Read turns into an error of its own
	}
	return err
}

// begin starts the script, and waits until it is ready.
func (t *Terminal) begin() error {
	t.began = true
	t.text = make([]byte, 0, terminalChunk)
	if _, err := io.WriteString(t.rw, script.TerminalLine); err != nil {
		return err
	}
	_, said, err := t.await(terminalNoise)
	if err != nil {
		return err
	}
	if said != "hello" {
		return missingTool(said)
	}
	if _, err := io.WriteString(t.rw, t.script()); err != nil {
		return err
	}
	text, err := t.line(len(t.mark) + 100)
	if err != nil {
		return err
	}
	if string(text) != t.mark+" ready" {
		return t.finish(text)
	}
	// A line discipline, or whatever carries the terminal, might take some bytes for commands, or for text.
	probe, said, err := t.await(4 << 10)
	if err != nil {
		return err
	}
	if said != "probed" {
		return errNoise
	}
	want := make([]byte, 256, 257)
	for i := range want {
		want[i] = byte(i)
	}
	want = append(want, '\n')
	mode := "base64\n"
	if t.plain = bytes.Equal(probe, want); t.plain {
		mode = "raw\n"
	}
	t.space = make([]byte, terminalChunk)
	_, err = io.WriteString(t.rw, mode)
	return err
}

// await reads up to the mark, and returns what was before it and the rest of its line.
func (t *Terminal) await(most int) (before []byte, said string, _ error) {
	want := []byte(t.mark + " ")
	for !bytes.HasSuffix(before, want) {
		b, err := t.in.ReadByte()
		if err != nil {
			return nil, "", err
		}
		if before = append(before, b); len(before) > most {
			return nil, "", errNoise
		}
	}
	text, err := t.line(200)
	return before[:len(before)-len(want)], string(text), err
}

// line reads a line of at most so many characters, without its end. Its bytes are valid until the next call.
func (t *Terminal) line(most int) ([]byte, error) {
	t.text = t.text[:0]
	for {
		part, err := t.in.ReadSlice('\n')
		t.text = append(t.text, part...)
		switch {
		case len(t.text) > most+2: // the end may be CR LF
			return nil, errNoise
		case err == bufio.ErrBufferFull:
		case err != nil:
			return nil, err
		default:
			return bytes.TrimSuffix(t.text[:len(t.text)-1], []byte("\r")), nil
		}
	}
}

// finish takes the last words in, of which the first line was read.
func (t *Terminal) finish(text []byte) error {
	r := &Reply{}
	for {
		said, ok := strings.CutPrefix(string(text), t.mark+" ")
		if !ok {
			return errNoise
		}
		word, arg, _ := strings.Cut(said, " ")
		if word == "skip" {
			if r.SocketCount++; len(r.Sockets) < MaxSkipped {
				r.Sockets = append(r.Sockets, strings.TrimPrefix(arg, "./"))
			}
			if r.SocketCount > terminalSkips {
				return errNoise
			}
			var err error
			if text, err = t.line(64 << 10); err != nil {
				return err
			}
			continue
		}
		r.Word, t.reply = Word(word), r
		if r.Word == WordOK && arg != hex.EncodeToString(t.sum.Sum(nil)) {
			return fail(ErrCorrupt, "", "it arrived with another digest", nil)
		}
		if r.Word != WordOK {
			r.Bytes, _ = strconv.ParseInt(arg, 10, 64)
			return fail(ErrRead, "", "the sandbox gave up", nil)
		}
		r.Bytes = t.size
		return io.EOF
	}
}
