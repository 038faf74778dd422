//go:build unix

package toolbox

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSessionLogLines(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	long := strings.Repeat("x", 300_000)
	if err := os.WriteFile(w.at("long"), []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ command, want string }{
		"nothing":             {"true", ""},
		"lines":               {`printf 'a\nb\n'`, out + "a\n" + out + "b\n"},
		"no final newline":    {`printf 'a\nb'`, out + "a\n" + out + "b\n"},
		"empty lines":         {`printf '\n\n'`, out + "\n" + out + "\n"},
		"carriage return":     {`printf 'a\r\nb\rc\n'`, out + "a\r\n" + out + "b\rc\n"},
		"NUL":                 {`printf 'a\000b\n\000\n'`, out + "ab\n" + out + "\n"},
		"only NUL at the end": {`printf 'a\n\000\000'`, out + "a\n"},
		"invalid UTF-8":       {`printf '\377\300\n'`, out + "\xff\xc0\n"},
		"blanks":              {`printf '  a  \n\t\n'`, out + "  a  \n" + out + "\t\n"},
		"backslash":           {`printf '%s\n' 'a\b\'`, out + `a\b\` + "\n"},
		"marks in the data":   {`printf '\001\001\001x\002\002\002\n'`, out + "\x01\x01\x01x\x02\x02\x02\n"},
		"stderr":              {`printf 'a\nb' >&2`, err + "a\n" + err + "b\n"},
		"long line":           {"cat long", out + long + "\n"},
		"long line and more":  {"cat long; echo; cat long", out + long + "\n" + out + long + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.output("s", test.command); got != test.want {
				t.Errorf("log = %q, want %q", abbreviate(got), abbreviate(test.want))
			}
		})
	}
}

func TestSessionLogIsBufferedByLine(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	w.gate("gate")
	id := w.start("s", `printf 'line\nprompt: '; printf 'error: ' >&2; echo >printed; read x <gate; echo answer`)
	until(t, "all was printed", func() bool { return w.exists("printed") })
	until(t, "the whole line is there", func() bool { return w.log("s", id) != "" })
	for range 20 {
		if got, want := w.log("s", id), out+"line\n"; got != want {
			t.Fatalf("log = %q, want %q", got, want)
		}
	}
	w.open("gate")
	w.exitCode("s", id)
	if got, want := inOrder(w.log("s", id)), out+"line\n"+out+"prompt: answer\n"+err+"error: \n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

func TestLogSnapshotFormats(t *testing.T) {
	w := serve(t, swift)
	w.createSession("s")
	id := w.start("s", `printf 'a\377\n'; until [ -s .daytona/sessions/s/*/output.log ]; do sleep 0.01; done; echo b >&2; echo >done`)
	w.exitCode("s", id)
	marked := out + "a\xff\n" + err + "b\n"
	const plain = "a\xff\nb\n"
	const text = "text/plain; charset=utf-8"
	for name, test := range map[string]struct {
		header     []string
		kind, body string
	}{
		"no version":              {nil, text, plain},
		"split on request":        {[]string{"X-Daytona-Split-Output", "true"}, text, marked},
		"split not wanted":        {[]string{"X-Daytona-Split-Output", "false"}, text, plain},
		"ancient":                 {[]string{"X-Daytona-SDK-Version", "0.26.9"}, text, plain},
		"first with marks":        {[]string{"X-Daytona-SDK-Version", "0.27.0"}, text, marked},
		"last with marks":         {[]string{"X-Daytona-SDK-Version", "v0.166.3"}, text, marked},
		"accept means nothing":    {[]string{"Accept", "application/json"}, text, plain},
		"version that is no such": {[]string{"X-Daytona-SDK-Version", "new"}, text, plain},
		"subprotocol":             {[]string{"Sec-WebSocket-Protocol", "X-Daytona-SDK-Version~0.100.0"}, text, marked},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.do("GET", commandPath("s", id)+"/logs", nil, test.header...)
			r.want(t, http.StatusOK)
			if got := r.header.Get("Content-Type"); got != test.kind || r.body != test.body {
				t.Errorf("%s %q, want %s %q", got, r.body, test.kind, test.body)
			}
		})
	}
	for _, version := range []string{"0.167.0", "v0.170.0", "1.0.0", "0.200.1-beta.2"} {
		t.Run(version, func(t *testing.T) {
			r := w.do("GET", commandPath("s", id)+"/logs", nil, "X-Daytona-SDK-Version", version)
			r.want(t, http.StatusOK)
			want := map[string]string{"output": out + "a\ufffd\n" + err + "b\n", "stdout": "a\ufffd\n", "stderr": "b\n"}
			if diff := cmp.Diff(want, decode[map[string]string](t, r)); diff != "" {
				t.Errorf("logs mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSplitTakesMarksInTheDataForMarks(t *testing.T) {
	stdout, stderr := split([]byte("lost" + out + "a" + err + "b\n" + out + "\x01c\x02\x02\n"))
	if string(stdout) != "a\x01c\x02\x02\n" || string(stderr) != "b\n" {
		t.Errorf("split = %q, %q", stdout, stderr)
	}
}

func TestUnmarkerAgreesWithUnmark(t *testing.T) {
	log := []byte(out + "a\n" + out + out + "\x01" + err + "\x02\n" + err + "\x01\x01" + out + "b\x02\x02" + err + "\x01\x01")
	want := unmark(log)
	for size := 1; size <= len(log); size++ {
		var u unmarker
		var got []byte
		for piece := range slices.Chunk(log, size) {
			got = append(got, u.next(piece)...)
		}
		got = append(got, u.rest()...)
		if string(got) != string(want) {
			t.Errorf("pieces of %d: %q, want %q", size, got, want)
		}
	}
}
