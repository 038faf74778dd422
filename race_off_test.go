//go:build !race

package leasehold

// share is how many like cases there are to one that runs.
const share = 6

// raced says whether the race detector is on.
const raced = false
