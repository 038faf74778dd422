package pgstore

import (
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/storetest"
)

func TestConforms(t *testing.T) {
	storetest.Run(t, func(t *testing.T) leasehold.Store { return newStore(t) })
}
