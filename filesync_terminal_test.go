//go:build unix

package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// needTerminal skips the test where an export through a terminal cannot work.
func needTerminal(t testing.TB) {
	t.Helper()
	for _, tool := range []string{"bash", "tar", "dd", "base64", "sha256sum", "stty"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing", tool)
		}
	}
}

// fill writes to a disk until there is no room, or makes files until there are no inodes.
func fill(t testing.TB, dir string, inodes bool) {
	t.Helper()
	text := `dd if=/dev/zero of="$0/filler" bs=4096 2>/dev/null; [ -s "$0/filler" ]`
	if inodes {
		text = `i=0; while : >"$0/filler$i" && [ $i -lt 1000 ]; do i=$((i+1)); done 2>/dev/null; [ $i -lt 1000 ]`
	}
	if out, err := exec.Command("bash", "-c", text, dir).CombinedOutput(); err != nil {
		t.Fatalf("the disk was not filled: %v %s", err, out)
	}
}

// Sandboxes without room, each in another way. The archive comes through a terminal, whole and the same.
func TestF2ExportFromASandboxWithoutRoom(t *testing.T) {
	t.Parallel()
	needTerminal(t)
	for name, tc := range fewer(map[string]struct {
		profile string // what each shell of the sandbox does first; $BIN is a directory on its PATH
		prepare func(t *testing.T, own string)
	}{
		"0 bytes free": {prepare: func(t *testing.T, own string) {
			tinyDisk(t, own, "64k")
			fill(t, own, false)
		}},
		"0 inodes free": {prepare: func(t *testing.T, own string) {
			tinyDisk(t, own, "1m,nr_inodes=20")
			fill(t, own, true)
		}},
		"too little for one piece":  {prepare: func(t *testing.T, own string) { tinyDisk(t, own, "256k") }},
		"files limited, by signal":  {profile: "ulimit -f 64"},
		"files limited, by error":   {profile: "trap '' XFSZ; ulimit -f 64"},
		"quota":                     {profile: shim("dd", `case $* in *of=*) echo "dd: error writing: Disk quota exceeded" >&2; exit 1;; esac; exec REAL "$@"`)},
		"tools of another language": {profile: shim("dd", `case $* in *of=*) echo "dd: Auf dem Gerät ist kein Speicherplatz mehr verfügbar" >&2; exit 1;; esac; exec REAL "$@"`)},
		"/dev/full":                 {profile: shim("dd", `for a; do case $a in of=*) a=of=/dev/full;; esac; set -- "$@" "$a"; shift; done; exec REAL "$@"`)},
	}) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{Shell: shellWith(t, tc.profile)})
			l := r.acquired(t)
			local, host := sampleTree(t), t.TempDir()
			writeFiles(t, local, map[string]string{"big": strings.Repeat("0123456789abcdef", 60_000)})
			source, dest := filepath.Join(l.Ref().Workspace, "source"), filepath.Join(host, "dest")
			if out, err := exec.Command("cp", "-a", local, source).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if tc.prepare != nil {
				tc.prepare(t, filepath.Join(l.Ref().Workspace, sentinelDir))
			}
			writeFiles(t, dest, map[string]string{"earlier": "gone"})
			for range 2 { // a second export connects anew
				r.server.ResetRequests()
				result, err := l.Exporter().Dir(t.Context(), "source", dest, ExportOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if result.Route != RouteTerminal {
					t.Errorf("route %q, want %q", result.Route, RouteTerminal)
				}
				wantTree(t, local, dest)
				wantTree(t, local, source)
				removed := 0
				for _, q := range r.requests() {
					if strings.HasPrefix(q, "DELETE /toolbox/*/process/pty/") {
						removed++
					}
				}
				if removed != 1 {
					t.Errorf("%d terminals were removed, want 1: %v", removed, r.requests())
				}
			}
			file := filepath.Join(host, "file")
			result, err := l.Exporter().File(t.Context(), "source/big", file, ExportOptions{Mode: 0o600})
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if want := strings.Repeat("0123456789abcdef", 60_000); err != nil || string(data) != want || result.Route != RouteTerminal {
				t.Errorf("%d bytes, %v, route %q, want %d bytes through the terminal", len(data), err, result.Route, len(want))
			}
			wantNoScratch(t, l, host)
			if diff := cmp.Diff([]string{"dest", "file"}, names(t, host)); diff != "" {
				t.Errorf("host mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// names returns the names in a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// shim is a profile that puts a program of a sandbox aside; REAL in the new one's text stands for it.
func shim(tool, text string) string {
	real, err := exec.LookPath(tool)
	if err != nil {
		return "exit 1"
	}
	return "cat >$BIN/" + tool + " <<'END'\n#!/bin/sh\n" + strings.ReplaceAll(text, "REAL", real) + "\nEND\nchmod +x $BIN/" + tool
}

// shellWith makes a shell that does something first.
func shellWith(t *testing.T, profile string) string {
	t.Helper()
	if profile == "" {
		return ""
	}
	bin := t.TempDir()
	text := "#!/bin/bash\nBIN=" + bin + "\nexport PATH=$BIN:$PATH\n" + profile + "\nexec bash \"$@\"\n"
	path := filepath.Join(t.TempDir(), "shell")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// fullLease is a lease whose own directory has no room.
func fullLease(t *testing.T, options emulator.Options) (*rig, *Lease) {
	t.Helper()
	needTerminal(t)
	r := newRig(t, Config{}, options)
	l := r.acquired(t)
	own := filepath.Join(l.Ref().Workspace, sentinelDir)
	tinyDisk(t, own, "64k")
	fill(t, own, false)
	return r, l
}

const connectPath = "/toolbox/*/process/pty/*/connect"

// What goes wrong with a terminal is an error that changes nothing, and the next export works.
func TestF2TerminalThatFails(t *testing.T) {
	t.Parallel()
	r, l := fullLease(t, emulator.Options{})
	ws, host := l.Ref().Workspace, t.TempDir()
	noise(t, filepath.Join(ws, "t", "f"), 3<<20)
	noise(t, filepath.Join(ws, "t", "g"), 3<<20)
	writeFiles(t, host, map[string]string{"dest/earlier": "kept", "file": "kept"})
	before := tree(t, host)
	small := filepath.Join(t.TempDir(), "small")
	tinyDisk(t, small, "1m")
	for name, tc := range fewer(map[string]struct {
		faults  []emulator.Fault
		options ExportOptions
		dest    string
		want    Kind
	}{
		"disconnects at once":     {faults: []emulator.Fault{{Path: connectPath, Action: emulator.CloseSocket, Bytes: 0}}, want: KindUnavailable},
		"disconnects half way":    {faults: []emulator.Fault{{Path: connectPath, Action: emulator.CloseSocket, Bytes: 2 << 20}}, want: KindUnavailable},
		"slow consumer":           {faults: []emulator.Fault{{Path: connectPath, Action: emulator.CloseSocket, Code: 1008, Body: "slow consumer", Bytes: 2 << 20}}, want: KindUnavailable},
		"resets":                  {faults: []emulator.Fault{{Path: connectPath, Action: emulator.ResetReply, Bytes: 1 << 20}}, want: KindUnavailable},
		"falls silent":            {faults: []emulator.Fault{{Path: connectPath, Action: emulator.SilentSocket, Bytes: 1 << 20}}, options: ExportOptions{StallTimeout: 1e9}, want: KindTimeout},
		"repeats itself":          {faults: []emulator.Fault{{Path: connectPath, Action: emulator.ReplayPrefix, Bytes: 1 << 20}}, want: KindProtocol},
		"cannot be made":          {faults: []emulator.Fault{{Method: "POST", Path: "/toolbox/*/process/pty", Action: emulator.StatusBefore, Status: 500}}, want: KindUnavailable},
		"larger than the disk":    {faults: []emulator.Fault{{Path: "/api/sandbox/*", Action: emulator.MergeReply, Body: `{"disk":0.004}`, Count: -1}}, want: KindLimit},
		"the host keeps a space":  {options: ExportOptions{Reserve: 1 << 60}, want: KindLimit},
		"the host has no room":    {options: ExportOptions{Reserve: -1}, dest: small, want: KindIO},
		"the host has few bytes":  {options: ExportOptions{Reserve: 512 << 10}, dest: small, want: KindLimit},
		"more than was permitted": {options: ExportOptions{MaxBytes: 4 << 20}, want: KindLimit},
	}) {
		t.Run(name, func(t *testing.T) {
			r.server.SetFaults(tc.faults...)
			defer r.server.SetFaults()
			dest := host
			if tc.dest != "" {
				dest = tc.dest
			}
			_, err := l.Exporter().Dir(t.Context(), "t", filepath.Join(dest, "dest"), tc.options)
			for tc.want == KindTimeout && r.server.Faults()[0].Hits == 0 && tc.options.StallTimeout < time.Minute { // a busy machine stood still before there was a terminal
				wantError(t, err, tc.want)
				tc.options.StallTimeout *= 2
				_, err = l.Exporter().Dir(t.Context(), "t", filepath.Join(dest, "dest"), tc.options)
			}
			wantError(t, err, tc.want)
			r.wantHits(t)
			if diff := cmp.Diff(before, tree(t, host)); diff != "" {
				t.Errorf("host mismatch (-before +after):\n%s", diff)
			}
			wantNoScratch(t, l, dest)
			wantNoTerminals(t, r, l)
		})
	}
	for name, faults := range map[string][]emulator.Fault{
		"its creation's answer is lost": {{Method: "POST", Path: "/toolbox/*/process/pty", Action: emulator.DropAfter}},
		"its removal's answer is lost":  {{Method: "DELETE", Path: "/toolbox/**", Action: emulator.DropAfter, Count: 2}},
		"its removal fails at first":    {{Method: "DELETE", Path: "/toolbox/**", Action: emulator.StatusBefore, Status: 502, Count: 2}},
		"all goes well":                 nil,
	} {
		t.Run(name, func(t *testing.T) {
			r.server.SetFaults(faults...)
			defer r.server.SetFaults()
			dest := filepath.Join(t.TempDir(), "dest")
			if _, err := l.Exporter().Dir(t.Context(), "t", dest, ExportOptions{}); err != nil {
				t.Fatal(err)
			}
			r.wantHits(t)
			sameFile(t, filepath.Join(ws, "t", "f"), filepath.Join(dest, "f"))
			wantNoTerminals(t, r, l)
		})
	}
	if err := os.Symlink("/etc", filepath.Join(ws, "t", "etc")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		do   func() error
		want Kind
	}{
		"unsafe link": {func() error {
			_, err := l.Exporter().Dir(t.Context(), "t", filepath.Join(host, "dest"), ExportOptions{})
			return err
		}, KindUnsafe},
		"file that is a link": {func() error {
			_, err := l.Exporter().File(t.Context(), "t/etc", filepath.Join(host, "file"), ExportOptions{})
			return err
		}, KindUnsafe},
		"file that is missing": {func() error {
			_, err := l.Exporter().File(t.Context(), "t/nope", filepath.Join(host, "file"), ExportOptions{})
			return err
		}, KindNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, tc.do(), tc.want)
			if diff := cmp.Diff(before, tree(t, host)); diff != "" {
				t.Errorf("host mismatch (-before +after):\n%s", diff)
			}
			wantNoTerminals(t, r, l)
		})
	}
}

// A terminal whose connection is lost after some bytes is worth another attempt, and the next export, on a terminal of its
// own, works.
func TestF2TerminalLostAndConnectedAgain(t *testing.T) {
	t.Parallel()
	r, l := fullLease(t, emulator.Options{})
	host := t.TempDir()
	source, dest := filepath.Join(l.Ref().Workspace, "t", "f"), filepath.Join(host, "dest")
	noise(t, source, 1<<20)
	writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
	before := tree(t, host)
	for i, k := range []int64{0, 1, 512, 1 << 10, 300 << 10, 1 << 20} {
		action := []emulator.Action{emulator.CloseSocket, emulator.ResetReply}[i%2]
		r.server.SetFaults(emulator.Fault{Path: connectPath, Action: action, Bytes: k})
		_, err := l.Exporter().Dir(t.Context(), "t", dest, ExportOptions{})
		if e := wantError(t, err, KindUnavailable); !e.Retryable {
			t.Errorf("%s after %d bytes: %v is not retryable", action, k, err)
		}
		r.wantHits(t)
		if diff := cmp.Diff(before, tree(t, host)); diff != "" {
			t.Errorf("%s after %d bytes: host mismatch (-before +after):\n%s", action, k, diff)
		}
		r.server.SetFaults()
		second := filepath.Join(host, "second")
		result, err := l.Exporter().Dir(t.Context(), "t", second, ExportOptions{})
		if err != nil || result.Route != RouteTerminal {
			t.Fatalf("%+v, %v, want one through a terminal", result, err)
		}
		sameFile(t, source, filepath.Join(second, "f"))
		if err := os.RemoveAll(second); err != nil {
			t.Fatal(err)
		}
	}
	wantNoScratch(t, l, host)
	wantNoTerminals(t, r, l)
}

func TestManyFilesThroughATerminal(t *testing.T) {
	t.Parallel()
	files := 300
	if long() {
		files = 100_000
	}
	r, l := fullLease(t, emulator.Options{})
	source, dest := filepath.Join(l.Ref().Workspace, "t"), filepath.Join(t.TempDir(), "dest")
	writeFiles(t, source, map[string]string{"dir/f": ""})
	manyFiles(t, filepath.Join(source, "dir"), files, 1<<10)
	result, err := l.Exporter().Dir(t.Context(), "t", dest, ExportOptions{})
	if err != nil || result.Route != RouteTerminal || result.Bytes != int64(files)<<10 {
		t.Fatalf("%+v, %v, want %d files through a terminal", result, err, files)
	}
	if want, got := treeDigest(t, source), treeDigest(t, dest); got != want {
		t.Errorf("the host got another tree")
	}
	wantNoTerminals(t, r, l)
}

// wantNoTerminals fails the test if a terminal is left in the sandbox.
func wantNoTerminals(t *testing.T, r *rig, l *Lease) {
	t.Helper()
	drained(t, l)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL()+"/toolbox/"+l.Ref().Sandbox+"/process/pty", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.URL.Path = strings.Replace(request.URL.Path, "/api/toolbox", "/toolbox", 1)
	request.Header.Set("Authorization", "Bearer "+r.server.APIKey())
	resp, err := (&http.Client{Transport: r.server.Transport()}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Sessions []struct {
			ID string `json:"id"`
		} `json:"sessions"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.StatusCode != http.StatusOK || list.Sessions == nil {
		t.Fatalf("list of terminals: %v, status %d", err, resp.StatusCode)
	}
	if len(list.Sessions) > 0 {
		t.Errorf("terminals are left: %v", list.Sessions)
	}
}

// A context that ends while a terminal sends: the caller returns at once, and nothing is left on either side.
func TestF3CancelledTerminalLeavesNothing(t *testing.T) {
	t.Parallel()
	slow := newHoldup()
	_, l := fullLease(t, emulator.Options{Middleware: slow.wrap})
	host := t.TempDir()
	noise(t, filepath.Join(l.Ref().Workspace, "t", "f"), 8<<20)
	writeFiles(t, host, map[string]string{"dest/earlier": "kept"})
	before := tree(t, host)
	cause := errors.New("the user left")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	slow.hold("DELETE /toolbox/*/process/pty/*", "")
	_, err := l.Exporter().Dir(ctx, "t", filepath.Join(host, "dest"), ExportOptions{Progress: func(p Progress) {
		if p.Bytes > 1<<20 {
			cancel(cause)
		}
	}})
	slow.open() // the caller does not wait for the removal of the terminal
	if wantError(t, err, KindCanceled); !errors.Is(err, cause) {
		t.Errorf("%v does not hold the context's cause", err)
	}
	wantNoScratch(t, l, host)
	slow.wantPatience(t)
	if diff := cmp.Diff(before, tree(t, host)); diff != "" {
		t.Errorf("host mismatch (-before +after):\n%s", diff)
	}
}

// The tools that a terminal needs are named when they are missing, or of another make.
func TestTerminalNeedsItsTools(t *testing.T) {
	for tool, replace := range map[string]string{"base64": "base64", "GNU tar": "tar", "GNU dd": "dd", "sha256sum": "", "bash": ""} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			r, l := fullLease(t, emulator.Options{Shell: "bash"})
			bin := t.TempDir()
			for _, name := range []string{"sh", "bash", "tar", "dd", "base64", "sha256sum", "tee", "sed", "head", "stty"} {
				path, err := exec.LookPath(name)
				if err != nil {
					t.Fatal(err)
				}
				switch name {
				case tool: // missing
				case replace:
					err = os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nexit 1\n"), 0o755)
				default:
					err = os.Symlink(path, filepath.Join(bin, name))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			home := r.server.Sandbox(l.Ref().Sandbox).Home()
			writeFiles(t, home, map[string]string{".bash_profile": "PATH=" + bin + "\n"})
			writeFiles(t, l.Ref().Workspace, map[string]string{"t/f": strings.Repeat("x", 100_000)})
			_, err := l.Exporter().Dir(t.Context(), "t", filepath.Join(t.TempDir(), "dest"), ExportOptions{})
			if e := wantError(t, err, KindQuota); !strings.Contains(e.Error(), tool) {
				t.Errorf("%q does not name %s", e.Error(), tool)
			}
			wantNoTerminals(t, r, l)
		})
	}
}
