package conformance_test

import (
	"slices"
	"strings"
	"testing"
)

// feature is what a case may need and a backend may lack.
type feature string

const (
	// stopping: a sandbox that is stopped is stopped: nothing runs in it any more.
	stopping feature = "stopping"
	// apart: a sandbox has files of its own.
	apart feature = "files apart"
	// hosts: a sandbox runs on when its host has gone, and several hosts use it.
	hosts feature = "several hosts"
	// previews: a port of the sandbox is reached from outside.
	previews feature = "previews"
	// snapshots: sandboxes are made from what was captured of others.
	snapshots feature = "snapshots"
)

// differences says what a backend lacks, and why. Cases that need it are skipped there; the library knows nothing of it.
var differences = map[string]map[feature]string{
	"embedded": {
		hosts: "it is a part of its provider, and its processes end with that: the next one finds its sandboxes stopped",
	},
	"toolbox": {
		stopping:  "the stand-in has nothing to stop the toolbox with: what runs there runs on",
		apart:     "every sandbox of the stand-in is the same toolbox, with the same files",
		previews:  "the stand-in's previews lead to its own machine, and not to the toolbox's",
		snapshots: "the stand-in has no files of the toolbox to make a snapshot of",
	},
	"control plane": {},
}

// TestDifferences: every entry of the table has a reason, and a case that asks for it; and nothing else is skipped.
func TestDifferences(t *testing.T) {
	needed := map[feature]int{}
	total := 0
	for _, topic := range topics(everyTransport, 1) {
		seen := map[string]bool{}
		for _, c := range topic.cases {
			total++
			for _, f := range c.needs {
				needed[f]++
			}
			if seen[c.name] {
				t.Errorf("two cases of %s are called %q", topic.name, c.name)
			}
			seen[c.name] = true
		}
	}
	for backend, lacks := range differences {
		for f, why := range lacks {
			if needed[f] == 0 {
				t.Errorf("%s lacks %q, which no case needs", backend, f)
			}
			if strings.TrimSpace(why) == "" {
				t.Errorf("%s lacks %q for no reason", backend, f)
			}
		}
	}
	for f := range needed {
		if !slices.ContainsFunc([]string{"embedded", "toolbox", "control plane"}, func(backend string) bool { return differences[backend][f] == "" }) {
			t.Errorf("no backend has %q", f)
		}
		if !slices.ContainsFunc([]string{"embedded", "toolbox", "control plane"}, func(backend string) bool { return differences[backend][f] != "" }) {
			t.Errorf("every backend has %q: a case need not ask for it", f)
		}
	}
	t.Logf("%d cases, with commands on every transport", total)
}
