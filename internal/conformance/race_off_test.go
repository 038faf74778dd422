//go:build !race

package conformance_test

// commandShare is how many cases of commands there are to one that runs on a backend that differs from another one only by the
// road to it.
const commandShare = 2
