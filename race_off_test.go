//go:build !race

package leasehold

// sampled reports whether the i-th of many like cases runs: each.
func sampled(int) bool { return true }
