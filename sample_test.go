package leasehold

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// long reports whether tests are to be as large as they should be from time to time.
func long() bool { return os.Getenv("LEASEHOLD_LONG") == "1" }

// unlessLong is oneIn, or in a long run 1: all cases run.
func unlessLong(oneIn int) int {
	if long() {
		return 1
	}
	return oneIn
}

// sampled returns one in so many like cases, the same each time: at least one of each kind, and each kind begins one
// further than the one before, so that they are spread over all in which cases of a kind differ.
func sampled[C any](t *testing.T, cases []C, kind func(C) string) []C {
	t.Helper()
	return sampledOf(t, unlessLong(oneIn), cases, kind)
}

// sampledOf is sampled with a number of its own.
func sampledOf[C any](t *testing.T, oneIn int, cases []C, kind func(C) string) []C {
	t.Helper()
	size, begin, seen := make(map[string]int), make(map[string]int), make(map[string]int)
	for _, c := range cases {
		size[kind(c)]++
	}
	var taken []C
	for _, c := range cases {
		k := kind(c)
		if seen[k] == 0 {
			begin[k] = len(begin)
		}
		if (begin[k]+seen[k])%min(oneIn, size[k]) == 0 {
			taken = append(taken, c)
		}
		seen[k]++
	}
	t.Logf("%d of %d cases", len(taken), len(cases))
	return taken
}

// notRaced skips a test of what happens elsewhere than in this process, or of its memory, of which the race detector says
// nothing.
func notRaced(t *testing.T) {
	t.Helper()
	if raced && !long() {
		t.Skip("the race detector has nothing to say of it")
	}
}

// fewer returns one in four of the cases of a table under the race detector, and else all: for cases that differ in what
// happens in the sandbox, of which the race detector says nothing.
func fewer[C any](cases map[string]C) map[string]C {
	if !raced || long() {
		return cases
	}
	taken := make(map[string]C)
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		if i%4 == 0 {
			taken[name] = cases[name]
		}
	}
	return taken
}

// atOnce calls functions that wait more than they compute, some at a time.
func atOnce(calls []func()) { someAtOnce(8, calls) }

func someAtOnce(n int, calls []func()) {
	queue := make(chan func())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for call := range queue {
				call()
			}
		})
	}
	for _, call := range calls {
		queue <- call
	}
	close(queue)
	wg.Wait()
}

// anySeed differs each time.
func anySeed() uint64 { return rand.Uint64() >> 32 << 16 }

// seeds returns the first seed of a test of random schedules, and how many there are of them: ordinarily those given, in a
// long run many, which differ each time, or the one that LEASEHOLD_SEED names.
func seeds(t *testing.T, start, ordinary, many uint64) (first, n uint64) {
	t.Helper()
	if first, n = start, ordinary; long() {
		first, n = anySeed(), many
	}
	if seed := os.Getenv("LEASEHOLD_SEED"); seed != "" {
		var err error
		if first, err = strconv.ParseUint(seed, 10, 64); err != nil {
			t.Fatal(err)
		}
		n = 1
	}
	t.Logf("%d schedules, LEASEHOLD_SEED=%d and those that follow", n, first)
	return first, n
}
