//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAFullDiskTakesWholeFramesOnly: what the disk took of one that does not fit is taken back. A limit for files stands for
// the disk, in a process of its own.
func TestAFullDiskTakesWholeFramesOnly(t *testing.T) {
	const size, variable = 100, "HTTPHOST_FULL_DISK"
	if os.Getenv(variable) == "" {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), variable+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("on a disk that is full: %v\n%s", err, out)
		}
		return
	}
	l, err := openLog(filepath.Join(t.TempDir(), "output"), 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.file.Close() }()
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = size
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := l.append(streamOut, []byte("fits")); err != nil {
		t.Fatal(err)
	}
	if err := l.append(streamOut, []byte(strings.Repeat("x", size))); err == nil {
		t.Error("append() of what does not fit = nil, want an error")
	}
	if info, err := l.file.Stat(); err != nil || info.Size() != frameHeader+4 || l.size != info.Size() {
		t.Errorf("the log has %d bytes, %v, and counts %d, want one whole frame", info.Size(), err, l.size)
	}
}
