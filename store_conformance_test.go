package leasehold_test

import (
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/storetest"
)

// TestMemoryStoreConforms: the store that the other tests use is one.
func TestMemoryStoreConforms(t *testing.T) {
	storetest.Run(t, func(*testing.T) leasehold.Store { return leasehold.NewMemoryStore() })
}
