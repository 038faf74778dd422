//go:build unix

package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// duplex is a terminal that answers from a prepared text, and remembers what it was sent.
type duplex struct {
	io.Reader
	sent bytes.Buffer
}

func (d *duplex) Write(p []byte) (int, error) { return d.sent.Write(p) }

const terminalMark = "leasehold-xfer-mark"

func terminalOf(rw io.ReadWriter, limit int64) *Terminal {
	return NewTerminal(rw, RemoteExport{Scratch: "/w/.leasehold/." + terminalMark, Dir: "/w"}, limit)
}

// said is what a sandbox says that sends these chunks as base64, for its terminal drops a byte, and ends well.
func said(chunks ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "login banner\r\n$ stty; '%s' '%s'\r\n%s hello\n%[3]s ready\nunclean\r\n%[3]s probed\n", terminalMark[:4], terminalMark[4:], terminalMark)
	sum := sha256.New()
	for _, c := range chunks {
		b.WriteString(base64.StdEncoding.EncodeToString([]byte(c)) + "\n")
		io.WriteString(sum, c)
	}
	fmt.Fprintf(&b, "%s skip ./a socket\n%[1]s ok %s\n", terminalMark, hex.EncodeToString(sum.Sum(nil)))
	return b.String()
}

func TestTerminalFrames(t *testing.T) {
	d := &duplex{Reader: strings.NewReader(said("one", "two"))}
	term := terminalOf(d, 0)
	got, err := io.ReadAll(term)
	if err != nil || string(got) != "onetwo" {
		t.Fatalf("%q, %v, want onetwo", got, err)
	}
	if want := (&Reply{Word: WordOK, Bytes: 6, Sockets: []string{"a socket"}, SocketCount: 1}); !cmp.Equal(want, term.Reply()) {
		t.Errorf("reply mismatch (-want +got):\n%s", cmp.Diff(want, term.Reply()))
	}
	if asked := d.sent.String(); !strings.HasSuffix(asked, "\x00base64\nnext 0\nnext 1\nnext 2\n") {
		t.Errorf("the sandbox was sent %q, want three requests at the end", asked[max(0, len(asked)-100):])
	}
}

// A chunk is asked for only when the one before was taken whole.
func TestTerminalAcknowledgesWhatWasTaken(t *testing.T) {
	d := &duplex{Reader: strings.NewReader(said("first", "second"))}
	term := terminalOf(d, 0)
	buf := make([]byte, 1)
	for i := range len("first") {
		if _, err := term.Read(buf); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(d.sent.String(), "\nnext "); got != 1 {
			t.Errorf("after %d bytes %d chunks were asked for, want 1", i+1, got)
		}
	}
	if _, err := term.Read(buf); err != nil || buf[0] != 's' || !strings.HasSuffix(d.sent.String(), "next 1\n") {
		t.Errorf("%q, %v, want the second chunk to be asked for", buf, err)
	}
}

func TestF2TerminalThatIsDisturbed(t *testing.T) {
	whole := said("one", "two")
	for name, tc := range map[string]struct {
		text  string
		limit int64
		want  error
	}{
		"another digest":    {strings.Replace(whole, base64.StdEncoding.EncodeToString([]byte("two")), base64.StdEncoding.EncodeToString([]byte("tWo")), 1), 0, ErrCorrupt},
		"a chunk is lost":   {strings.Replace(whole, base64.StdEncoding.EncodeToString([]byte("two"))+"\n", "", 1), 0, ErrCorrupt},
		"an empty line":     {strings.Replace(whole, "\n"+terminalMark+" skip", "\n\n"+terminalMark+" skip", 1), 0, ErrCorrupt},
		"a message between": {strings.Replace(whole, "\n"+terminalMark+" skip", "\nBroadcast message\n"+terminalMark+" skip", 1), 0, ErrCorrupt},
		"a line too long":   {strings.Replace(whole, terminalMark+" skip", strings.Repeat("A", terminalChunk+4)+"\n"+terminalMark+" skip", 1), 0, ErrCorrupt},
		"endless noise":     {strings.Repeat("noise ", terminalNoise), 0, ErrCorrupt},
		"endless sockets":   {strings.Replace(whole, terminalMark+" skip", strings.Repeat(terminalMark+" skip ./s\n", 1<<16)+terminalMark+" skip", 1), 0, ErrCorrupt},
		"too much":          {whole, 5, ErrLimit},
		"tar failed":        {strings.Replace(whole, " ok ", " changed ", 1), 0, ErrRead},
		"cut at the end":    {whole[:len(whole)-70], 0, ErrCorrupt},
		"cut half way":      {whole[:strings.Index(whole, base64.StdEncoding.EncodeToString([]byte("two")))], 0, ErrCorrupt},
		"cut before":        {"login: ", 0, ErrCorrupt},
		"odd tool missing":  {terminalMark + " missing \x1b[31mx\n", 0, ErrCorrupt},
		"tool that is GNU":  {terminalMark + " missing GNU tar\n", 0, MissingTool("GNU tar")},
	} {
		t.Run(name, func(t *testing.T) {
			term := terminalOf(&duplex{Reader: strings.NewReader(tc.text)}, tc.limit)
			_, err := io.Copy(io.Discard, term)
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

// FuzzTerminal: whatever a terminal prints, the reader ends, holds little, and says that the archive is whole only if
// the digest of what it returned was printed.
func FuzzTerminal(f *testing.F) {
	f.Add([]byte(said("one", "two")))
	f.Add([]byte(said()))
	clean := terminalMark + " hello\n" + terminalMark + " ready\n"
	for i := range 256 {
		clean += string([]byte{byte(i)})
	}
	clean += "\n" + terminalMark + " probed\n"
	f.Add([]byte(clean + strings.Repeat("x", terminalChunk) + "\n" + terminalMark + " ok 00\n"))
	f.Add([]byte(clean + terminalMark + " ok e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"))
	f.Add([]byte(terminalMark + " hello\n" + terminalMark + " denied 3\n"))
	f.Add([]byte(terminalMark + " missing tar\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		term := terminalOf(&duplex{Reader: bytes.NewReader(text)}, 1<<20)
		got := sha256.New()
		n, err := io.Copy(got, term)
		if n != term.Size() && err == nil {
			t.Errorf("%d bytes were returned, %d counted", n, term.Size())
		}
		if r := term.Reply(); err == nil && (r == nil || r.Word != WordOK || !bytes.Contains(text, []byte(hex.EncodeToString(got.Sum(nil))))) {
			t.Errorf("an end without the digest was accepted, with the reply %+v", r)
		}
		if cap(term.text) > 4*terminalChunk {
			t.Errorf("%d bytes were held", cap(term.text))
		}
	})
}

// The script by itself, on pipes instead of a terminal, with the names and kinds of files of the other tests.
func TestTerminalScriptSendsTheTree(t *testing.T) {
	for name, clean := range map[string]bool{"raw": true, "base64": false} {
		t.Run(name, func(t *testing.T) { sendTree(t, clean) })
	}
}

// A tar that dies in the middle of a record leaves a chunk that is not full. It is filled up, since nothing else tells where
// it ends, and then the sandbox says how tar ended.
func TestTerminalWhoseTarDies(t *testing.T) {
	needTool(t, "bash")
	for _, size := range []int{1, terminalChunk/8 + 1, 2*terminalChunk - 1} {
		bin := t.TempDir()
		tar := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != --version ] || { echo 'tar (GNU tar) 1.35'; exit; }\nhead -c %d /dev/zero\nexit 2\n", size)
		if err := os.WriteFile(filepath.Join(bin, "tar"), []byte(tar), 0o755); err != nil {
			t.Fatal(err)
		}
		src := t.TempDir()
		term, wait := terminalOn(t, RemoteExport{Scratch: filepath.Join(src, ".leasehold", StageName()), Dir: src}, true, "PATH="+bin+":"+os.Getenv("PATH"))
		n, err := io.Copy(io.Discard, term)
		var failure *Error
		if !errors.As(err, &failure) || failure.Kind != ErrRead || term.Reply() == nil || term.Reply().Word == WordOK {
			t.Errorf("%d bytes: %v, reply %+v; want that the sandbox gave up", size, err, term.Reply())
		}
		if want := int64((size + terminalChunk - 1) / terminalChunk * terminalChunk); n != want {
			t.Errorf("%d bytes: %d came, want %d", size, n, want)
		}
		wait()
	}
}

// terminalOn runs the script where a login shell would.
func terminalOn(t *testing.T, request RemoteExport, clean bool, env ...string) (term *Terminal, wait func()) {
	t.Helper()
	cmd := exec.Command("sh")
	cmd.Env = append(os.Environ(), env...)
	for key, value := range TerminalEnv(request) {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var from io.Reader = out
	if !clean {
		from = unclean{out}
	}
	term = NewTerminal(struct {
		io.Reader
		io.Writer
	}{from, crlf{in}}, request, 0)
	return term, func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the script ended with %v", err)
		}
	}
}

func sendTree(t *testing.T, clean bool) {
	needTool(t, "bash")
	src, dest := t.TempDir(), filepath.Join(t.TempDir(), "dest")
	oddTree(t, src)
	put(t, src, map[string]string{"large": strings.Repeat("0123456789", 100_000)})
	request := RemoteExport{Scratch: filepath.Join(src, ".leasehold", StageName()), Dir: src}
	term, wait := terminalOn(t, request, clean)
	sum, err := Extract(context.Background(), term, dest, ExtractOptions{ReserveStep: 1})
	if err != nil {
		t.Fatal(err)
	}
	wait()
	t.Cleanup(func() { removeAll(t, dest) })
	if diff := cmp.Diff(describe(t, src), describe(t, dest)); diff != "" {
		t.Errorf("tree mismatch (-want +got):\n%s", diff)
	}
	if term.plain != clean {
		t.Errorf("the archive came as it is: %v, want %v", term.plain, clean)
	}
	if sum.Archive != term.Size() {
		t.Errorf("the archive has %d bytes, %d came", sum.Archive, term.Size())
	}
}

// unclean drops the bytes of value 0 and sets no eighth bit.
type unclean struct{ io.Reader }

func (u unclean) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	kept := p[:0]
	for _, b := range p[:n] {
		if b != 0 {
			kept = append(kept, b&0x7f)
		}
	}
	return len(kept), err
}

// crlf types a carriage return as a shell without a terminal wants it.
type crlf struct{ io.Writer }

func (w crlf) Write(p []byte) (int, error) {
	_, err := w.Writer.Write(bytes.ReplaceAll(p, []byte("\r"), []byte("\n")))
	return len(p), err
}

// Sum is what the tool says.
func TestSumIsTheOneOfCksum(t *testing.T) {
	needTool(t, "cksum")
	for _, size := range []int{0, 1, 7, 8, 9, 255, 256, 4095, 4096, 4097, 70_000} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i*i + i/7)
		}
		cmd := exec.Command("cksum")
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var sum Sum
		sum.Write(data[:size/3])
		sum.Write(data[size/3:])
		if got, want := fmt.Sprintf("%d %d", sum.Sum32(), sum.Size()), strings.TrimSpace(string(out)); got != want {
			t.Errorf("%d bytes: sum %s, want %s", size, got, want)
		}
	}
}

// Nobody takes the pieces: the script ends, and removes them.
func TestExportScriptIsNotPatientForEver(t *testing.T) {
	src := t.TempDir()
	put(t, src, map[string]string{"f": strings.Repeat("0123456789abcdef", 100_000)})
	r := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Dir: src, PieceSize: 64 << 10, Patience: 1}
	if got := deliver(t, "/usr/bin:/bin", r.Make(), r.Scratch); len(got.Pieces) == 0 || got.Word != "" {
		t.Fatalf("%+v, want pieces and no end", got)
	}
	wait := `n=0; while [ -d "$0" ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done; [ ! -d "$0" ]`
	if err := exec.Command("sh", "-c", wait, r.Scratch).Run(); err != nil {
		t.Error("the pieces are still there after 30 s")
	}
	if got := deliver(t, "/usr/bin:/bin", r.Take(1, 1), r.Scratch); got.Word != WordGone {
		t.Errorf("a late request is told %+v, want gone", got)
	}
}

// All the pieces, taken one by one, are the archive; late and repeated requests do no harm.
func TestExportScriptPieces(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			path, src, dest := userland(t, kind), t.TempDir(), filepath.Join(t.TempDir(), "dest")
			put(t, src, map[string]string{"a": strings.Repeat("0123456789abcdef", 20_000), "b": "end"})
			r := RemoteExport{Scratch: filepath.Join(t.TempDir(), StageName()), Dir: src, PieceSize: 64 << 10}
			var data []byte
			reply := deliver(t, path, r.Make(), r.Scratch)
			next := 0
			for {
				for _, p := range reply.Pieces {
					if p.Number == next {
						data = append(data, pieces(t, r, Reply{Pieces: []Piece{p}})...)
						next++
					}
				}
				if n := len(glob(t, r.Scratch+"/[0-9]*")); n > PieceCount {
					t.Errorf("%d pieces are on the disk, want at most %d", n, PieceCount)
				}
				if reply.Word != "" && reply.Word != WordBusy {
					break
				}
				if next > 1 {
					deliver(t, path, r.Take(next-1, next-1), r.Scratch) // a late one
				}
				reply = deliver(t, path, r.Take(next, next), r.Scratch)
			}
			if reply.Word != WordOK || reply.Bytes != int64(len(data)) || next < 5 {
				t.Fatalf("%d pieces with %d bytes, then %+v", next, len(data), reply)
			}
			if _, err := Extract(context.Background(), bytes.NewReader(data), dest, ExtractOptions{}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(contents(t, src), contents(t, dest)); diff != "" {
				t.Errorf("content mismatch (-want +got):\n%s", diff)
			}
		})
	}
}
