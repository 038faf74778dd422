//go:build race

package conformance_test

// oneIn says that one case of commands in so many runs on a backend that differs from another one only by the road to it. The
// race detector makes each dearer.
const oneIn = 3
