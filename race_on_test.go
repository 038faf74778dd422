//go:build race

package leasehold

// sampled reports whether the i-th of many like cases runs. The race detector makes each several times as dear, and finds
// in a fifth of them what it finds in all.
func sampled(i int) bool { return long() || i%5 == 0 }
