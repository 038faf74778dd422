//go:build race

package leasehold

// oneIn says that one like case in so many runs. The race detector makes each several times as dear.
const oneIn = 30

// raced says whether the race detector is on.
const raced = true
