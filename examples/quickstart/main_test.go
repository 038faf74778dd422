package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold"
)

func inputDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.txt"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRunDoesTheWholeJob(t *testing.T) {
	to := filepath.Join(t.TempDir(), "out.txt")
	var stdout, stderr bytes.Buffer
	err := run(t.Context(), options{
		backend: "local", dir: inputDir(t), command: "tr a-z A-Z <in.txt | tee out.txt; echo warning >&2", export: "out.txt", to: to,
	}, &stdout, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || string(got) != "HELLO\n" {
		t.Errorf("exported %q, %v, want %q", got, err, "HELLO\n")
	}
	for _, want := range []string{"acquire a lease on the local backend", "HELLO\n", "exit 0", "release the lease: destroyed"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, &stdout)
		}
	}
	if stderr.String() != "warning\n" {
		t.Errorf("stderr = %q, want the command's", stderr.String())
	}
}

func TestRunReportsTheCommandsFailureAndReleases(t *testing.T) {
	var stdout bytes.Buffer
	err := run(t.Context(), options{backend: "local", dir: inputDir(t), command: "exit 3"}, &stdout, &stdout)
	if err == nil || !strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("run() = %v, want exit code 3", err)
	}
	if !strings.Contains(stdout.String(), "release the lease: destroyed") {
		t.Errorf("not released:\n%s", &stdout)
	}
}

// watched calls f once, when what was written contains a word.
type watched struct {
	bytes.Buffer
	word string
	once sync.Once
	f    func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.word) {
		w.once.Do(w.f)
	}
	return n, err
}

func TestAnInterruptStillReleases(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	stdout := &watched{word: "\nstarted\n", f: cancel}
	err := run(ctx, options{backend: "local", dir: inputDir(t), command: "echo started; sleep 600"}, stdout, stdout)
	if !errors.Is(err, leasehold.ErrCanceled) {
		t.Errorf("run() = %v, want ErrCanceled", err)
	}
	if !strings.Contains(stdout.String(), "release the lease: destroyed") {
		t.Errorf("not released:\n%s", stdout)
	}
}

func TestUnknownBackend(t *testing.T) {
	if err := run(t.Context(), options{backend: "moon", dir: "."}, nil, nil); err == nil || !strings.Contains(err.Error(), "-backend") {
		t.Errorf("run() = %v, want an error that names -backend", err)
	}
}
