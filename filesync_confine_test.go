//go:build unix

package leasehold

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// Whoever swaps what leads to a file, at the very moment when the sandbox's tar is about to open it, does not get another
// file exported: not through the files of an export, and not through a terminal.
func TestF1SingleFilesAreReadInTheWorkspace(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	writeFiles(t, outside, map[string]string{"f": "secret", "sub/f": "secret"})
	swap := filepath.Join(t.TempDir(), "swap")
	needTerminal(t)
	bin := t.TempDir()
	real, err := exec.LookPath("tar")
	if err != nil {
		t.Fatal(err)
	}
	path := "export PATH=" + bin + ":$PATH\n"
	swapped := filepath.Join(bin, "swapped")
	text := "#!/bin/sh\ncase $* in *--version*) ;; *) sh " + swap + " && echo >" + swapped + " ;; esac\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "tar"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, route := range []Route{RouteFiles, RouteTerminal} {
		t.Run(string(route), func(t *testing.T) {
			var l *Lease
			if route == RouteTerminal {
				var r *rig
				r, l = fullLease(t, emulator.Options{Shell: "bash"})
				writeFiles(t, r.server.Sandbox(l.Ref().Sandbox).Home(), map[string]string{".bash_profile": path})
			} else {
				l = newRig(t, Config{}, emulator.Options{Shell: shellWith(t, path)}).acquired(t)
			}
			ws, host := l.Ref().Workspace, t.TempDir()
			for i, tc := range []struct {
				name, before, swap, file string
				want                     Kind // "": the workspace's own file
			}{
				{name: "nobody swaps"},
				{name: "directory above, while it is opened", swap: "mv d aside && ln -s OUT d"},
				{name: "directory, while it is opened", swap: "mv d/sub aside && ln -s OUT/sub d/sub"},
				{name: "file, while it is opened", swap: "ln -sf OUT/f d/sub/f", want: KindUnsafe},
				{name: "file for a directory", swap: "rm d/sub/f && mkdir d/sub/f", want: KindUnsafe},
				{name: "file for a FIFO", swap: "rm d/sub/f && mkfifo d/sub/f", want: KindUnsafe},
				{name: "directory above", before: "rm -r d && ln -s OUT d", want: KindUnsafe},
				{name: "directory", before: "rm -r d/sub && ln -s OUT/sub d/sub", want: KindUnsafe},
				{name: "directory that links up and down again", before: "mv d e && ln -s ../${PWD##*/}/e d"},
				{name: "file", before: "ln -sf OUT/f d/sub/f", want: KindUnsafe},
				{name: "link within the workspace", before: "mv d e && ln -s e d"},
				{name: "file outside that was asked for", file: outside + "/f"},
			} {
				t.Run(tc.name, func(t *testing.T) {
					for _, name := range []string{ws + "/d", ws + "/e", ws + "/aside", swapped} {
						if err := os.RemoveAll(name); err != nil {
							t.Fatal(err)
						}
					}
					writeFiles(t, ws, map[string]string{"d/sub/f": "mine"})
					script := func(text string) string { return "cd " + ws + "\n" + strings.ReplaceAll(text, "OUT", outside) }
					if out, err := exec.Command("sh", "-c", script(tc.before+"\n")).CombinedOutput(); tc.before != "" && err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					text := "true"
					if tc.swap != "" {
						text = script(tc.swap)
					}
					if err := os.WriteFile(swap, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
					file, want := "d/sub/f", "mine"
					if tc.file != "" {
						file, want = tc.file, "secret"
					}
					local := filepath.Join(host, fmt.Sprint(i))
					result, err := l.Exporter().File(t.Context(), file, local, ExportOptions{})
					got, _ := os.ReadFile(local)
					if _, err := os.Stat(swapped); tc.swap != "" && err != nil {
						t.Errorf("nothing was swapped: %v", err)
					}
					if tc.want != "" {
						wantError(t, err, tc.want)
						if got != nil {
							t.Errorf("%q was exported", got)
						}
						return
					}
					if err != nil || string(got) != want || result.Route != route {
						t.Errorf("%q by %q, %v, want %q by %q", got, result.Route, err, want, route)
					}
				})
			}
			wantNoScratch(t, l, host)
		})
	}
}
