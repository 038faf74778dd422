//go:build race

package leasehold

// share is how many like cases there are to one that runs. The race detector makes each several times as dear.
const share = 30

// raced says whether the race detector is on.
const raced = true
