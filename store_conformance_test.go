package leasehold_test

import (
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/storetest"
)

// TestMemoryStoreConforms: the store that the other tests use is one.
func TestMemoryStoreConforms(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) leasehold.Store { return leasehold.NewMemoryStore() })
}

// TestFileStoreConforms: so do two on one directory.
func TestFileStoreConforms(t *testing.T) {
	t.Parallel()
	storetest.RunShared(t, func(t *testing.T) (_, _ leasehold.Store) {
		dir := t.TempDir()
		return openFileStore(t, dir), openFileStore(t, dir)
	})
}

func openFileStore(t *testing.T, dir string) leasehold.Store {
	t.Helper()
	s, err := leasehold.NewFileStore(dir, leasehold.FileStoreOptions{OnUnreadable: func(file string, err error) {
		t.Errorf("unreadable: %s: %v", file, err)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
