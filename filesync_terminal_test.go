//go:build unix

package leasehold

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
func fill(t *testing.T, dir string, inodes bool) {
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
	needTerminal(t)
	for name, tc := range map[string]struct {
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
	} {
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
