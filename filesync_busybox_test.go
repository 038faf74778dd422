//go:build unix

package leasehold

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// busyboxShell makes a shell of busybox whose PATH has nothing but busybox's tools, and a profile that does so for a login.
func busyboxShell(t *testing.T) (shell, profile string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatal("busybox is missing")
		}
		t.Skip("busybox is missing")
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name := range strings.FieldsSeq(string(applets)) {
		if name == "busybox" || name == "bash" {
			continue
		}
		if err := os.Symlink(busybox, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	profile = "export PATH=" + bin + "\n"
	shell = filepath.Join(t.TempDir(), "shell")
	text := "#!" + busybox + " sh\nunset ENV\n" + profile + "exec sh \"$@\"\n"
	if err := os.WriteFile(shell, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return shell, profile
}

// A sandbox that has nothing but busybox takes part in every transfer but the one through a terminal, and says what that
// would need.
func TestSandboxOfBusybox(t *testing.T) {
	t.Parallel()
	shell, _ := busyboxShell(t)
	r := newRig(t, Config{}, emulator.Options{Shell: shell})
	l := r.acquired(t)
	ws, host, in, out := l.Ref().Workspace, t.TempDir(), l.Importer(), l.Exporter()
	local := filepath.Join(host, "local")
	writeFiles(t, local, map[string]string{"a/b/c": "deep", "-C": "dash", "line\nbreak": "newline", "empty": "", "sealed/f": "sealed", strings.Repeat("n", 255): "long"})
	fillFile(t, filepath.Join(local, "a", "large"), 9<<20)
	old := time.Unix(1_000_000_000, 0)
	for _, err := range []error{
		os.Link(filepath.Join(local, "empty"), filepath.Join(local, "zz")), os.Symlink("a/b", filepath.Join(local, "link")),
		os.Mkdir(filepath.Join(local, "void"), 0o700), os.Chmod(filepath.Join(local, "sealed"), 0o555),
		os.Chtimes(filepath.Join(local, "a", "b", "c"), old, old),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	same := func(dir string) {
		t.Helper()
		wantTree(t, local, dir)
		for _, name := range []string{"a", "a/b", "a/b/c", "a/large", "sealed"} {
			want, err1 := os.Stat(filepath.Join(local, name))
			got, err2 := os.Stat(filepath.Join(dir, name))
			if err1 != nil || err2 != nil || got.ModTime().Unix() != want.ModTime().Unix() {
				t.Errorf("%s has not the time that it had", name)
			}
		}
	}
	must := func(result TransferResult, err error) TransferResult {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	must(in.Dir(t.Context(), local, "tree", ImportOptions{}))
	same(filepath.Join(ws, "tree"))
	if result := must(out.Dir(t.Context(), "tree", filepath.Join(host, "dest"), ExportOptions{})); result.Route != RouteFiles {
		t.Errorf("route %q", result.Route)
	}
	same(filepath.Join(host, "dest"))

	for _, delta := range []Delta{DeltaTimes, DeltaDigests} {
		writeFiles(t, local, map[string]string{"a/changed": string(delta)})
		writeFiles(t, ws, map[string]string{"tree/extra": "gone"})
		result := must(in.Dir(t.Context(), local, "tree", ImportOptions{Delta: delta, Delete: true}))
		if result.Removed != 1 || result.Unchanged < 5 || result.Bytes > 1000 {
			t.Errorf("%s: %+v, want few bytes sent and one entry removed", delta, result)
		}
		wantTree(t, local, filepath.Join(ws, "tree"))
	}

	must(in.Dir(t.Context(), local, "bundle", ImportOptions{Access: AccessReadOnly}))
	if result := must(in.Dir(t.Context(), local, "bundle", ImportOptions{Access: AccessReadOnly})); result.Entries != 0 || result.Unchanged == 0 {
		t.Errorf("a bundle again: %+v, want nothing sent", result)
	}
	must(in.File(t.Context(), filepath.Join(local, "a", "large"), "files/large", ImportOptions{}))
	must(out.Files(t.Context(), []FileMapping{
		{Remote: "files/large", Local: filepath.Join(host, "large")}, {Remote: "tree/a/b/c", Local: filepath.Join(host, "c")},
	}, ExportOptions{}))
	sameFile(t, filepath.Join(local, "a", "large"), filepath.Join(host, "large"))
	sameFile(t, filepath.Join(local, "a", "b", "c"), filepath.Join(host, "c"))
	wantNoScratch(t, l, host)
}

func TestFullSandboxOfBusyboxSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	shell, profile := busyboxShell(t)
	r, l := fullLease(t, emulator.Options{Shell: shell})
	writeFiles(t, r.server.Sandbox(l.Ref().Sandbox).Home(), map[string]string{".profile": profile})
	writeFiles(t, l.Ref().Workspace, map[string]string{"t/f": strings.Repeat("x", 100_000)})
	_, err := l.Exporter().Dir(t.Context(), "t", filepath.Join(t.TempDir(), "dest"), ExportOptions{})
	if wantError(t, err, KindQuota); !strings.Contains(err.Error(), "bash") {
		t.Errorf("%v does not name bash", err)
	}
	wantNoTerminals(t, r, l)
}
