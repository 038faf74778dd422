package conformance_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
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
	// lifetimes: a sandbox is destroyed at a time that is fixed when it is created.
	lifetimes feature = "lifetimes"
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
	declared: {
		previews:  "the addresses of its previews are not https, and the library sends a token to no other",
		lifetimes: "it is older than v0.205, and has none: what bounds the cost is said at the beginning",
	},
}

// declared is the column of what some real control planes lack: each the features that lacksVariable names, with commas
// between them.
const (
	declared      = "control plane, declared"
	lacksVariable = "LEASEHOLD_LACKS"
)

// declare takes features from a backend, if they are ones that may be declared to be lacking.
func (b *backend) declare(t *testing.T, names string) {
	t.Helper()
	for name := range strings.SplitSeq(names, ",") {
		why := differences[declared][feature(name)]
		if why == "" {
			t.Fatalf("%s: %q is not among %q", lacksVariable, name, slices.Sorted(maps.Keys(differences[declared])))
		}
		b.lacking[feature(name)] = why
	}
	if b.lacks(lifetimes) != "" {
		b.config.TTL, b.config.AutoStopMinutes, b.config.AutoDeleteMinutes = 0, new(leasehold.DefaultAutoStopMinutes), new(int(lifetime.Minutes()))
	}
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
		with := 0
		for _, lacks := range differences {
			if lacks[f] == "" {
				with++
			}
		}
		switch with {
		case 0:
			t.Errorf("no backend has %q", f)
		case len(differences):
			t.Errorf("every backend has %q: a case need not ask for it", f)
		}
	}
	t.Logf("%d cases, with commands on every transport", total)
}

// TestDeclaredDifferences: the suite runs on a control plane without lifetimes, and whose previews are not https, if that is
// declared; and a feature that nobody may lack is not left out.
func TestDeclaredDifferences(t *testing.T) {
	t.Parallel()
	server := emulated(t, emulator.Options{Legacy: true})
	for _, c := range []struct {
		lacks, want string // the latter in what it prints
		passes      bool
	}{
		{"", "did not confirm the requested expiry", false},
		{"lifetimes,previews", `stopped after 15 minutes, and most of those are deleted 30 minutes later(?s:.*)3 cases ran, 2 did not because of a difference`, true},
		{"stopping", `"stopping" is not among`, false},
	} {
		run := onControlPlane(t, server, memory(t), "^(leases|endpoints|idleness)$/^(what a reference says|a lifetime|a signed address|commands|given back)$")
		run.Env = append(run.Env, lacksVariable+"="+c.lacks)
		output, err := run.CombinedOutput()
		if (err == nil) != c.passes || !regexp.MustCompile(c.want).Match(output) {
			t.Errorf("lacking %q, the run ended with %v, want passed %v, and %q:\n%s", c.lacks, err, c.passes, c.want, output)
		}
	}
	if left := server.Sandboxes(); len(left) != 0 {
		t.Errorf("the sandboxes %v are left", left)
	}
}
