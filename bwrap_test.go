package leasehold

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/script"
)

func TestBwrapPlan(t *testing.T) {
	ok := Bwrap{BwrapAvailable: true, SandboxUsername: "daytona"}
	const ws, list = "/home/daytona/work", "/home/daytona/work/.leasehold/writable"
	many := make([]string, maxBinds)
	for i := range many {
		many[i] = fmt.Sprint("/many/", i)
	}
	long := strings.Repeat("'", maxPath-2)
	for name, tt := range map[string]struct {
		probe Bwrap
		list  writableList
		want  *script.Bwrap
	}{
		"workspace alone": {ok, writableList{}, &script.Bwrap{User: "daytona", Writable: []string{ws}, List: list}},
		"nested, repeated and like ones": {
			ok, writableList{[]string{"/d/sub", "/d", "/b", ws + "/in", "/b", "/d.x", ws, "/home/daytona"}, 9},
			&script.Bwrap{User: "daytona", Writable: []string{ws, "/b", "/d", "/d.x", "/home/daytona"}, List: list, Lines: 9},
		},
		"own /proc": {Bwrap{true, "daytona", BwrapSharedProc}, writableList{}, &script.Bwrap{User: "daytona", Writable: []string{ws}, SharedProc: true, List: list}},
		"own /tmp":  {Bwrap{true, "daytona", BwrapSharedTmp}, writableList{}, &script.Bwrap{User: "daytona", Writable: []string{ws}, SharedTmp: true, List: list}},
		"too many":  {ok, writableList{many, maxBinds}, nil},
		"many":      {ok, writableList{many[1:], maxBinds}, &script.Bwrap{User: "daytona", Writable: append([]string{ws}, slices.Sorted(slices.Values(many[1:]))...), List: list, Lines: maxBinds}},
		"too long":  {ok, writableList{[]string{"/" + long, "/a" + long, "/b" + long}, 3}, nil},
		"long":      {ok, writableList{[]string{"/" + long}, 3}, &script.Bwrap{User: "daytona", Writable: []string{ws, "/" + long}, List: list, Lines: 3}},
	} {
		if diff := cmp.Diff(tt.want, planBwrap(tt.probe, ws, tt.list)); diff != "" {
			t.Errorf("%s: planBwrap() mismatch (-want +got):\n%s", name, diff)
		}
	}
}

func TestOutermostDirectories(t *testing.T) {
	dir := rapid.Custom(func(t *rapid.T) string {
		return "/" + path.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "a.b", "a b", "é", "'"}), 0, 4).Draw(t, "names")...)
	})
	rapid.Check(t, func(t *rapid.T) {
		workspace, others := dir.Draw(t, "workspace"), rapid.SliceOf(dir).Draw(t, "others")
		before := slices.Clone(others)
		got := outermost(workspace, others)
		if !slices.Equal(before, others) {
			t.Fatalf("outermost() changed its argument: %q, was %q", others, before)
		}
		if got[0] != workspace {
			t.Fatalf("outermost() = %q, want the workspace %q first", got, workspace)
		}
		for _, want := range others {
			if !slices.ContainsFunc(got, func(d string) bool { return d == want || within(want, d) }) {
				t.Fatalf("outermost() = %q: %q is not covered", got, want)
			}
		}
		for i, d := range got {
			if i > 0 && !slices.Contains(others, d) {
				t.Fatalf("outermost() = %q: nobody asked for %q", got, d)
			}
			for _, other := range got[i+1:] {
				if other == d || within(other, d) {
					t.Fatalf("outermost() = %q: %q covers %q", got, d, other)
				}
			}
		}
		slices.Reverse(others)
		if again := outermost(workspace, others); !slices.Equal(got, again) {
			t.Fatalf("outermost() = %q, and of the reverse %q", got, again)
		}
	})
}

func TestBwrapProbeIsRead(t *testing.T) {
	for line, want := range map[string]Bwrap{
		"ok daytona":                     {true, "daytona", ""},
		"ok daytona\n":                   {true, "daytona", ""},
		"shared-proc d.a-y_1":            {true, "d.a-y_1", BwrapSharedProc},
		"shared-tmp élise@example.org":   {true, "élise@example.org", BwrapSharedTmp},
		"ok":                             {false, "", BwrapNoUser},
		"ok ":                            {false, "", BwrapNoUser},
		"ok -c":                          {false, "", BwrapNoUser},
		"ok two words":                   {false, "", BwrapNoUser},
		"ok a\nb":                        {false, "", BwrapNoUser},
		"ok bad\uFFFD":                   {false, "", BwrapNoUser},
		"ok " + strings.Repeat("x", 257): {false, "", BwrapNoUser},
		"root":                           {false, "", BwrapRootUser},
		"no-user ":                       {false, "", BwrapNoUser},
		"no-bwrap":                       {false, "", BwrapNoBwrap},
		"no-sudo-rule daytona":           {false, "daytona", BwrapNoSudoRule},
		"no-su daytona":                  {false, "daytona", BwrapNoSu},
		"namespaces-refused daytona":     {false, "daytona", BwrapNamespacesRefused},
		"workspace-not-bindable daytona": {false, "daytona", BwrapWorkspace},
		"timed-out":                      {false, "", BwrapTimedOut},
		"other daytona":                  {false, "daytona", BwrapOther},
		"something new daytona":          {false, "", BwrapOther},
		"":                               {false, "", BwrapOther},
	} {
		if got := readBwrap(line); got != want {
			t.Errorf("readBwrap(%q) = %+v, want %+v", line, got, want)
		}
	}
}

func TestBwrapInReferences(t *testing.T) {
	r := validRef()
	r.Bwrap = Bwrap{true, "daytona", BwrapSharedProc}
	data, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(data), `"bwrapAvailable":true,"sandboxUsername":"daytona","bwrapReason":"proc-refused"`) {
		t.Fatalf("Marshal() = %s, %v", data, err)
	}
	got, err := ParseLeaseRef(data)
	if diff := cmp.Diff(r, got); err != nil || diff != "" {
		t.Errorf("ParseLeaseRef() = %v, mismatch (-want +got):\n%s", err, diff)
	}
	if r.key() != validRef().key() {
		t.Error("what a probe found is part of the lease's identity")
	}
	for name, bad := range map[string]Bwrap{
		"LeaseRef.SandboxUsername": {BwrapAvailable: true},
		"LeaseRef.BwrapReason":     {BwrapReason: "no; such"},
	} {
		r.Bwrap = bad
		var e *Error
		if err := r.check("test"); !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != name {
			t.Errorf("check(%+v) = %v, want a problem of %s", bad, err, name)
		}
	}
	r.Bwrap = Bwrap{BwrapAvailable: true, SandboxUsername: "-c"}
	if err := r.check("test"); !errors.Is(err, ErrInvalid) {
		t.Errorf("check(%+v) = %v, want ErrInvalid", r.Bwrap, err)
	}
}

// TestBwrapChangesNothingWithoutIt: the user of these tests is root, or has no rule. The rest of the tests do not probe.
func TestBwrapChangesNothingWithoutIt(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	r.cfg.NoBwrap = false
	t.Setenv("PATH", pathWithout(t, "sudo"))
	l := r.acquired(t)
	if got := l.Ref().Bwrap; got.BwrapAvailable || got.BwrapReason == "" || got.BwrapReason == BwrapOther {
		t.Errorf("Ref().Bwrap = %+v, want a reason", got)
	}
	mustRun(t, l, Command{Script: "echo plain", Transport: TransportJournal}, finished(0, "plain\n", ""))
}

// pathWithout returns a PATH that lacks a program.
func pathWithout(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(from)
		for _, e := range entries {
			if e.Name() != program {
				_ = os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())) // or an earlier one is there
			}
		}
	}
	return dir
}
