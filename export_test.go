package leasehold

// NewMemoryStore is for the external tests.
func NewMemoryStore() Store { return newMemoryStore() }
