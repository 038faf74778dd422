//go:build !race

package leasehold

// oneIn says that one like case in so many runs.
const oneIn = 6

// raced says whether the race detector is on.
const raced = false
