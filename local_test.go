//go:build unix

package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func newLocal(t *testing.T, config LocalConfig) Provider {
	t.Helper()
	p, err := NewLocal(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLocal(t, p) })
	return p
}

func closeLocal(t *testing.T, p Provider) {
	t.Helper()
	if err := p.Close(context.Background()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func TestALaterLocalProviderResumesFromTheDirectory(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	first := newLocal(t, LocalConfig{Dir: dir})
	lease, err := first.Acquire(ctx, AcquireRequest{Scope: Scope{Tenant: "acme", Environment: "test", Run: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Executor().Run(ctx, Command{Script: "echo kept >note"}); err != nil {
		t.Fatal(err)
	}
	stored, err := json.Marshal(lease.Ref())
	if err != nil {
		t.Fatal(err)
	}
	closeLocal(t, first)

	ref, err := ParseLeaseRef(stored)
	if err != nil {
		t.Fatal(err)
	}
	second := newLocal(t, LocalConfig{Dir: dir})
	lease, err = second.Resume(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	result, err := lease.Executor().Run(ctx, Command{Args: []string{"cat", "note"}})
	if err != nil || string(result.Stdout) != "kept\n" {
		t.Errorf("Run() = %q, %v, want %q", result.Stdout, err, "kept\n")
	}
	if receipt, err := second.Destroy(ctx, ref); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Destroy() = %v, %v", receipt, err)
	}
	if _, err := second.Resume(ctx, ref); !errors.Is(err, ErrGone) {
		t.Errorf("Resume() of a destroyed sandbox = %v, want ErrGone", err)
	}
}

func TestNewLocalSaysWhyTheDirectoryCannotBeUsed(t *testing.T) {
	used := t.TempDir()
	newLocal(t, LocalConfig{Dir: used})
	for name, test := range map[string]struct{ dir, want string }{
		"in use":         {used, used + " is in use by another backend"},
		"cannot be made": {filepath.Join("/dev/null", "x"), "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewLocal(LocalConfig{Dir: test.dir})
			if err == nil {
				closeLocal(t, p)
			}
			if !errors.Is(err, ErrIO) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("NewLocal() = %v, want ErrIO and %q", err, test.want)
			}
		})
	}
}
