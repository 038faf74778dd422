package leasehold

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// TestNextStep states what each goal asks for in every state of the control plane's list.
func TestNextStep(t *testing.T) {
	w, d, f := stepWait, stepDone, stepFail
	tests := []struct {
		state                                daytona.State
		recoverable                          bool
		started, stopped, archived, destroys step
	}{
		{daytona.StateCreating, false, w, w, w, stepDelete},
		{daytona.StateRestoring, false, w, w, w, stepDelete},
		{daytona.StateDestroyed, false, w, w, w, w},
		{daytona.StateDestroying, false, w, w, w, w},
		{daytona.StateStarted, false, d, stepStop, stepStop, stepDelete},
		{daytona.StateStopped, false, stepStart, d, stepArchive, stepDelete},
		{daytona.StateStarting, false, w, w, w, stepDelete},
		{daytona.StateStopping, false, w, w, w, stepDelete},
		{daytona.StateError, false, f, f, f, stepDelete},
		{daytona.StateError, true, stepRecover, f, f, stepDelete},
		{daytona.StateBuildFailed, false, f, f, f, stepDelete},
		{daytona.StatePendingBuild, false, w, w, w, stepDelete},
		{daytona.StateBuildingSnapshot, false, w, w, w, stepDelete},
		{daytona.StateUnknown, false, w, w, w, stepDelete},
		{daytona.StatePullingSnapshot, false, w, w, w, stepDelete},
		{daytona.StateArchived, false, stepStart, d, d, stepDelete},
		{daytona.StateArchiving, false, w, d, d, stepDelete},
		{daytona.StateResizing, false, w, w, w, stepDelete},
		{daytona.StateSnapshotting, false, w, w, w, stepDelete},
		{daytona.StateForking, false, w, w, w, stepDelete},
		{daytona.StatePausing, false, w, w, w, stepDelete},
		{daytona.StatePaused, false, stepStart, stepStop, stepStop, stepDelete},
		{daytona.StateResuming, false, w, w, w, stepDelete},
		{"a state of the future", false, w, w, w, stepDelete},
		{"", false, w, w, w, stepDelete},
	}
	for _, tt := range tests {
		for g, want := range map[goal]step{goalStarted: tt.started, goalStopped: tt.stopped, goalArchived: tt.archived, goalDestroyed: tt.destroys} {
			if got := next(g, tt.state, tt.recoverable); got != want {
				t.Errorf("next(goal %d, %q, recoverable %t) = %d, want %d", g, tt.state, tt.recoverable, got, want)
			}
		}
	}
}

func TestTargetDescribes(t *testing.T) {
	want := target{id: "id-1", name: "leasehold-create-a", labels: map[string]string{"k": "v", "l": "w"}}
	ours := func() *daytona.Sandbox {
		return &daytona.Sandbox{ID: "id-1", Name: "leasehold-create-a", State: daytona.StateStarted, Labels: map[string]string{"k": "v", "l": "w", "added": "by the provider"}}
	}
	tests := []struct {
		name   string
		change func(*daytona.Sandbox)
		want   bool
	}{
		{"ours", func(*daytona.Sandbox) {}, true},
		{"another id", func(s *daytona.Sandbox) { s.ID = "id-2" }, false},
		{"another name", func(s *daytona.Sandbox) { s.Name = "other" }, false},
		{"a label differs", func(s *daytona.Sandbox) { s.Labels["l"] = "x" }, false},
		{"a label is missing", func(s *daytona.Sandbox) { delete(s.Labels, "k") }, false},
		{"renamed by its deletion", func(s *daytona.Sandbox) {
			s.Name, s.State = "DESTROYED_leasehold-create-a_1700000000000", daytona.StateDestroying
		}, true},
		{"renamed without a deletion", func(s *daytona.Sandbox) { s.Name = "DESTROYED_leasehold-create-a_1700000000000" }, false},
		{"another one's deletion", func(s *daytona.Sandbox) {
			s.Name, s.State = "DESTROYED_leasehold-create-b_1700000000000", daytona.StateDestroying
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sb := ours()
			tt.change(sb)
			if got := want.describes(sb); got != tt.want {
				t.Errorf("describes() = %t, want %t", got, tt.want)
			}
		})
	}
}
