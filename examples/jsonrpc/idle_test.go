package main

import (
	"testing"
)

// TestIdleSleep: a worker may sleep when it holds no sandbox that runs, and nothing is under way.
func TestIdleSleep(t *testing.T) {
	t.Parallel()
	h := startWorker(t, nil)
	background := func() string {
		t.Helper()
		got := must[idleAnswer](t, h, "prepareIdleSleep", object{"ownerId": "o-1", "expiresAt": "2030-01-01T00:00:00Z"})
		if got.OwnerID != "o-1" || string(got.ExpiresAt) != `"2030-01-01T00:00:00Z"` {
			t.Errorf("prepareIdleSleep = %+v, want owner and time repeated", got)
		}
		must[any](t, h, "releaseIdleSleep", object{"ownerId": "o-1"})
		return got.Background
	}
	expect := func(when, want string) {
		t.Helper()
		if got := background(); got != want {
			t.Errorf("%s: background work %s, want %s", when, got, want)
		}
	}
	expect("at first", "none")
	lease := reusing.acquire(t, h)
	expect("with a lease", "present")
	must[receipt](t, h, "environmentReleaseLease", reusing.give(lease, nil))
	expect("after its release", "none")

	resumed := must[heldLease](t, h, "environmentResumeLease", reusing.give(lease, nil))
	begun := make(chan struct{})
	h.onLog(func(executeLog) { close(begun) })
	_, ended := h.send(t, "environmentExecute", reusing.script(resumed, "echo begun; exec sleep 600", object{"executionId": "x"}))
	<-begun
	expect("during a command", "present")
	must[any](t, h, "environmentCancelExecution", reusing.params(object{"lease": resumed, "executionId": "x"}))
	<-ended
	must[receipt](t, h, "environmentDestroyLease", reusing.give(resumed, nil))
	expect("at last", "none")
}
