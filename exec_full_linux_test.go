package leasehold

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// smallDisk mounts a file system of a few pages where the lease's journals are.
func smallDisk(t *testing.T, l *Lease, options string) string {
	t.Helper()
	got, err := l.Executor().Run(t.Context(), Command{Script: `printf %s "${TMPDIR:-/tmp}/.leasehold-$(id -u)"`, Transport: TransportSession})
	if err != nil {
		t.Fatal(err)
	}
	dir := string(got.Stdout)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("leasehold-test", dir, "tmpfs", 0, options+",mode=700"); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatal(err)
		}
		t.Skipf("a file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestE2ADiskThatFillsUpCostsTheEndOfTheOutput(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	smallDisk(t, l, "size=512k")
	got, _ := runFails(t, t.Context(), l, Command{Script: "head -c 4000000 /dev/zero && echo written >&2; exit 3"}, KindQuota, DispatchedYes)
	if !got.Exited || got.ExitCode != 3 || got.Complete || got.StdoutSize == 0 || got.StdoutSize >= 4000000 {
		t.Errorf("got exit %d (%v), complete %v, %d bytes; want exit 3 and a part of the output", got.ExitCode, got.Exited, got.Complete, got.StdoutSize)
	}
}

func TestWithAFullDiskASessionRuns(t *testing.T) {
	_, l := execRig(t, TransportDefault)
	dir := smallDisk(t, l, "size=64k")
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 128<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	c := newCounter(t)
	got, err := l.Executor().Run(t.Context(), Command{Script: c.script(), Timeout: 30 * time.Second})
	if err != nil || got.Transport != TransportSession || got.ExitCode != 3 || string(got.Stdout) != "ran\n" {
		t.Errorf("Run() = %+v, %v; want exit 3 in a session", got, err)
	}
	c.want(t, 1)
}

// TestAFullDiskDoesNotHoldUpTheInput has a command fill the disk, and read its input afterwards.
func TestAFullDiskDoesNotHoldUpTheInput(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportJournal)
	smallDisk(t, l, "size=512k")
	content := numbered(300_000)
	got, _ := runFails(t, t.Context(), l, Command{Script: `head -c 4000000 /dev/zero; [ "$(wc -c)" -eq 300000 ] && exit 3`, Stdin: bytes.NewReader(content), Timeout: 2 * time.Minute}, KindQuota, DispatchedYes)
	if !got.Exited || got.ExitCode != 3 || got.Complete || got.StdinSize != int64(len(content)) {
		t.Errorf("got exit %d (%v), complete %v, %d bytes taken; want exit 3 after the whole input", got.ExitCode, got.Exited, got.Complete, got.StdinSize)
	}
}

// TestADispatchWithoutRoomLeavesNothing leaves room for the record, and none for the input that the dispatch carries.
func TestADispatchWithoutRoomLeavesNothing(t *testing.T) {
	_, l := execRig(t, TransportDefault)
	dir := smallDisk(t, l, "size=64k")
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := l.Executor().Run(t.Context(), Command{Script: "wc -c; exit 3", Stdin: bytes.NewReader(numbered(60 << 10)), Timeout: 2 * time.Minute})
	if err != nil || got.Transport != TransportSession || got.ExitCode != 3 || strings.TrimSpace(string(got.Stdout)) != "61440" {
		t.Errorf("Run() = %+v, %v; want exit 3 in a session", got, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || e.Name() != "fill" && e.Name() != "born" && info.Size() > 0 {
			t.Errorf("left behind: %s, %v", e.Name(), err)
		}
	}
}
