package main

import (
	"testing"
	"time"
)

// TestTheWorkerGivesUpBeforeTheHost: what the host gives up itself carries no evidence.
func TestTheWorkerGivesUpBeforeTheHost(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]settings{
		"nothing chosen": {}, "a second": {TimeoutMs: new(int64(1000))}, "five minutes": {TimeoutMs: new(int64(300_000))}, "a day": {TimeoutMs: new(int64(86_400_000))},
	} {
		grant := 30 * time.Second // of the host
		if s.TimeoutMs != nil {
			grant += time.Duration(*s.TimeoutMs) * time.Millisecond
		}
		command, call := executeParams{}.timeouts(s)
		own, ownCall := executeParams{TimeoutMs: 2000}.timeouts(s)
		for what, c := range map[string]struct{ worker, host time.Duration }{
			"the provider": {s.timeout(), s.deadline()}, "an acquisition": {s.deadline(), grant},
			"a probe": {atMost(120 * time.Second)(s), min(grant, 120*time.Second)}, "a resume": {atMost(60 * time.Second)(s), min(grant, 60*time.Second)},
			"a command": {command, call}, "its call": {call, grant}, "a command with a timeout": {own, ownCall}, "that call": {ownCall, 32 * time.Second},
		} {
			if c.worker <= 0 || c.worker > c.host-2*time.Second {
				t.Errorf("%s: %s takes up to %s, want 2 s less than %s", name, what, c.worker, c.host)
			}
		}
	}
}

func TestWhatTheLeaseRepeatsOfItsSettings(t *testing.T) {
	t.Parallel()
	s, err := parseSettings([]byte(`{"apiKey":"k","apiUrl":" https://x.example ","cpu":2,"autoDeleteInterval":-1,"image":"a:b","other":1}`))
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseSettings([]byte(asJSON(t, s)))
	if err != nil || providerID("c", s) != providerID("c", again) {
		t.Errorf("settings change on their way through the metadata: %s, %v", asJSON(t, again), err)
	}
	if providerID("c", s) == providerID("d", s) {
		t.Error("two companies share a provider")
	}
}
