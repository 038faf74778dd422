package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
)

func newProvider(t *testing.T) leasehold.Provider {
	t.Helper()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := provider.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return provider
}

func TestTheAgentRepairsTheProject(t *testing.T) {
	var out bytes.Buffer
	answer, err := work(t.Context(), newProvider(t), scripted{}, &out)
	if err != nil || answer != "The test passes." {
		t.Errorf("work() = %q, %v, want a passing test", answer, err)
	}
	for _, want := range []string{"exit 1\ngot \"helo, gopher\"", "> greet.sh\n# Says hello", "exit 0\nok\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the turns lack %q:\n%s", want, &out)
		}
	}
}

// steps is a model that takes the steps whatever it sees.
type steps []Step

func (s steps) Next(_ context.Context, turns []Turn) (Step, error) { return s[len(turns)], nil }

func TestWhatFailsInTheSandboxIsForTheModelToSee(t *testing.T) {
	var out bytes.Buffer
	model := steps{
		{Run: "exit 3"}, {Read: "nothing"}, {Run: "ln -s /etc/passwd link"}, {Read: "link"},
		{Run: "head -c 100000 /dev/zero >large"}, {Read: "large"},
		{Run: "mkdir dir"}, {Read: "dir"}, {Read: "a\x00b"}, {Run: "a\x00b"}, {Run: "head -c 100000 large | tr '\\0' x"},
		{Run: `rm -rf "$PWD"`}, {Run: "true"}, {Answer: "done"},
	}
	answer, err := work(t.Context(), newProvider(t), model, &out)
	if err != nil || answer != "done" {
		t.Errorf("work() = %q, %v, want every failure to be a turn", answer, err)
	}
	for _, want := range []string{
		"exit 3\n", "> nothing\ncannot be read: ", "> link\ncannot be read: ", "> large\ncannot be read: ",
		"> dir\ncannot be read: ", "> a\x00b\ncannot be read: ", "> a\x00b\ncannot be run: ",
		"xxx\n(cut: it wrote 100000 bytes of output, and 0 of errors)", "> true\ncannot be run: ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the turns lack %q:\n%s", want, &out)
		}
	}
}
