package emulator_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestWrongCredentialsAreRefusedWithTheAPIsBody(t *testing.T) {
	s := serve(t, emulator.Options{})
	for _, header := range []string{"Bearer wrong", "", s.key, "Basic " + s.key} {
		r := s.must(http.StatusUnauthorized, "GET", "/api/sandbox/x", "", "Authorization", header)
		var keys []string
		for key := range r.json {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		if diff := cmp.Diff([]string{"error", "message", "path", "statusCode", "timestamp"}, keys); diff != "" {
			t.Errorf("body of %q (-want +got):\n%s", header, diff)
		}
		if got, want := r.str("message"), "Invalid credentials"; got != want {
			t.Errorf("message: got %q, want %q", got, want)
		}
		if got, want := r.str("path"), "/api/sandbox/x"; got != want {
			t.Errorf("path: got %q, want %q", got, want)
		}
	}
}

func TestUnknownRouteIsNotFound(t *testing.T) {
	s := serve(t, emulator.Options{})
	for _, request := range [][2]string{{"GET", "/api/nothing"}, {"PATCH", "/api/sandbox"}, {"GET", "/"}} {
		r := s.must(http.StatusNotFound, request[0], request[1], "")
		if got, want := r.str("message"), "Cannot "+request[0]+" "+request[1]; got != want {
			t.Errorf("message: got %q, want %q", got, want)
		}
	}
}

func TestUnparsableJSONHasThreeFields(t *testing.T) {
	s := serve(t, emulator.Options{})
	r := s.must(http.StatusBadRequest, "POST", "/api/sandbox", `{"name":`)
	if len(r.json) != 3 || r.json["statusCode"] != 400.0 || r.str("error") != "Bad Request" || r.str("message") == "" {
		t.Errorf("body: got %s, want message, error and statusCode", r.text)
	}
}

func TestCreationAnswersWithTheRecordAsInserted(t *testing.T) {
	s := serve(t, emulator.Options{Timing: emulator.Timing{Create: 50 * time.Millisecond}})
	start := time.Now()
	r := s.must(http.StatusOK, "POST", "/api/sandbox", `{"labels":{"a":"b","n":1},"env":{"X":"y"},"unknownField":{"z":1}}`)
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("answered after %v, want it held until the start", took)
	}
	if got, want := r.str("state"), "creating"; got != want {
		t.Errorf("state: got %q, want %q", got, want)
	}
	for _, key := range []string{"id", "organizationId", "name", "user", "env", "labels", "public", "networkBlockAll", "target", "cpu", "gpu", "memory", "disk", "toolboxProxyUrl"} {
		if _, found := r.json[key]; !found {
			t.Errorf("the reply lacks %q", key)
		}
	}
	for _, key := range []string{"networkAllowList", "domainAllowList", "errorReason"} {
		if _, found := r.json[key]; found {
			t.Errorf("the creation's reply has %q", key)
		}
	}
	if r.str("name") != r.str("id") {
		t.Errorf("name: got %q, want the id %q", r.str("name"), r.str("id"))
	}

	read := s.must(http.StatusOK, "GET", "/api/sandbox/"+r.str("id"), "")
	for _, key := range []string{"networkAllowList", "domainAllowList", "errorReason"} {
		if value, found := read.json[key]; !found || value != nil {
			t.Errorf("%s of a read: got %v (present %v), want null", key, value, found)
		}
	}
	want := map[string]any{
		"state": "started", "desiredState": "started", "user": "daytona", "autoStopInterval": 15.0, "autoArchiveInterval": 10080.0,
		"autoDeleteInterval": -1.0, "recoverable": false, "backupState": "None", "labels": map[string]any{"a": "b", "n": "1"},
		"env": map[string]any{"X": "y"}, "snapshot": emulator.DefaultSnapshot, "target": "local", "organizationId": s.Organization(),
	}
	got := map[string]any{}
	for key := range want {
		got[key] = read.json[key]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if read.header.Get("X-Daytona-Api-Version") == "" {
		t.Error("no X-Daytona-Api-Version")
	}
}

func TestCreationIsRefused(t *testing.T) {
	s := serve(t, emulator.Options{
		Snapshots: []emulator.Snapshot{
			{Name: "good"}, {Name: "old", State: "inactive"}, {Name: "far", Regions: []string{"eu"}}, {Name: "big", CPU: 100},
			{Name: "broken", Failure: "no space left on device"},
		},
		Limits: emulator.Limits{CPU: 10, SandboxMemory: 8},
	})
	s.create(`{"name":"taken"}`)
	for _, test := range []struct {
		name, body string
		status     int
		message    string
	}{
		{"region", `{"target":"mars"}`, 404, "Region not found"},
		{"snapshot missing", `{"snapshot":"none"}`, 400, "Snapshot none not found. Did you add it through the Daytona Dashboard?"},
		{"snapshot inactive", `{"snapshot":"old"}`, 400, "Snapshot old is inactive"},
		{"snapshot elsewhere", `{"snapshot":"far","target":"us"}`, 400, "Snapshot far is not available in region us"},
		{"total quota", `{"snapshot":"big"}`, 400, "Total CPU limit exceeded. Maximum allowed: 10."},
		{"sandbox quota", `{"buildInfo":{"dockerfileContent":"FROM x"},"memory":9}`, 400, "memory request 9 exceeds maximum allowed per sandbox (8)"},
		{"name taken", `{"name":"taken"}`, 409, "Sandbox with name taken already exists"},
		{"resources of a snapshot", `{"snapshot":"good","cpu":2}`, 400, "Cannot specify Sandbox resources when using a snapshot"},
		{"snapshot and build", `{"snapshot":"good","buildInfo":{"dockerfileContent":"FROM x"}}`, 400, "Cannot specify a snapshot when using a build info entry"},
		{"HTML name", `{"name":"<b>"}`, 400, "name must not"},
		{"URL name", `{"name":"see https://x"}`, 400, "name must not"},
		{"control name", `{"name":"a\u0007"}`, 400, "name must not"},
		{"labels", `{"labels":[]}`, 400, "labels must be an object"},
		{"several", `{"labels":1,"name":2}`, 400, "labels must be an object, name must be a string"},
		{"negative interval", `{"autoStopInterval":-1}`, 400, "autoStopInterval must not be less than 0"},
		{"fraction", `{"ttlMinutes":1.5}`, 400, "ttlMinutes must be an integer number"},
		{"runner failure", `{"snapshot":"broken","name":"wreck"}`, 400, "Sandbox failed to start: no space left on device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := s.do("POST", "/api/sandbox", test.body)
			if r.status != test.status || !strings.HasPrefix(r.str("message"), test.message) {
				t.Errorf("got %d %q, want %d %q", r.status, r.str("message"), test.status, test.message)
			}
			if r.str("id") != "" {
				t.Errorf("the refusal names a sandbox: %s", r.text)
			}
		})
	}

	wreck := s.must(http.StatusOK, "GET", "/api/sandbox/wreck", "")
	if wreck.str("state") != "error" || wreck.str("errorReason") != "no space left on device" {
		t.Errorf("what the runner left: got %s %q", wreck.str("state"), wreck.str("errorReason"))
	}
	s.must(http.StatusConflict, "POST", "/api/sandbox", `{"name":"wreck"}`)
	s.must(http.StatusOK, "DELETE", "/api/sandbox/wreck", "")
	s.must(http.StatusNotFound, "GET", "/api/sandbox/"+wreck.str("id"), "")
	if got := len(s.Sandboxes()); got > 2 {
		t.Errorf("sandboxes left: got %d, want at most 2", got)
	}

	s.SetLimits(emulator.Limits{NoRunners: true})
	if r := s.must(http.StatusBadRequest, "POST", "/api/sandbox", `{}`); r.str("message") != "No available runners" {
		t.Errorf("message: got %q", r.str("message"))
	}
	s.SetLimits(emulator.Limits{Suspended: true})
	s.must(http.StatusForbidden, "POST", "/api/sandbox", `{}`)
	s.SetLimits(emulator.Limits{Sandboxes: 1})
	s.must(http.StatusBadRequest, "POST", "/api/sandbox", `{}`)
}

func TestNameIsFreeAgainWithTheDeletion(t *testing.T) {
	s := serve(t, emulator.Options{Timing: emulator.Timing{Destroy: time.Hour}})
	id := s.create(`{"name":"a b/c"}`).ID()
	if got := s.must(http.StatusOK, "GET", "/api/sandbox/a%20b%2Fc", "").str("id"); got != id {
		t.Fatalf("by name: got %q, want %q", got, id)
	}
	r := s.must(http.StatusOK, "DELETE", "/api/sandbox/a%20b%2Fc", "")
	if !strings.HasPrefix(r.str("name"), "DESTROYED_a b/c_") || r.str("state") != "destroying" {
		t.Errorf("deleted: got %q %q, want DESTROYED_a b/c_… destroying", r.str("name"), r.str("state"))
	}
	if r := s.must(http.StatusNotFound, "GET", "/api/sandbox/a%20b%2Fc", ""); r.str("message") != "Sandbox with ID or name a b/c not found" {
		t.Errorf("message: got %q", r.str("message"))
	}
	s.wantState(id, "destroying")
	if r := s.must(http.StatusConflict, "DELETE", "/api/sandbox/"+id, ""); r.str("message") != "Sandbox state change in progress" {
		t.Errorf("message: got %q", r.str("message"))
	}
	if again := s.create(`{"name":"a b/c"}`).ID(); again == id {
		t.Error("the new sandbox has the old one's id")
	}
}

func TestImageBackedCreationPassesTheBuildStates(t *testing.T) {
	s := serve(t, emulator.Options{
		Timing:    emulator.Timing{Build: 30 * time.Millisecond},
		Snapshots: []emulator.Snapshot{{Name: "good"}, {Name: "bad:1", State: "build_failed", Failure: "pip: not found"}, {Name: "ugly:1", Failure: "boom"}},
	})
	r := s.must(http.StatusOK, "POST", "/api/sandbox", `{"buildInfo":{"dockerfileContent":"FROM alpine:3\nRUN true\n"},"cpu":2,"memory":4,"disk":5}`)
	if got, want := r.str("state"), "pending_build"; got != want {
		t.Errorf("state: got %q, want %q", got, want)
	}
	if r.json["cpu"] != 2.0 || r.json["memory"] != 4.0 || r.json["disk"] != 5.0 {
		t.Errorf("resources: got %v %v %v, want 2 4 5", r.json["cpu"], r.json["memory"], r.json["disk"])
	}
	logs := s.must(http.StatusOK, "GET", "/api/sandbox/"+r.str("id")+"/build-logs?follow=true", "").text
	for _, state := range []string{"building_snapshot", "pulling_snapshot", "started"} {
		if !strings.Contains(logs, state+"\n") {
			t.Errorf("build logs: got %q, want %q in it", logs, state)
		}
	}
	for image, want := range map[string]emulator.State{"bad:1": "build_failed", "ugly:1": "error"} {
		sb := s.create(fmt.Sprintf(`{"buildInfo":{"dockerfileContent":"FROM %s"}}`, image))
		if got := sb.State(); got != want {
			t.Errorf("%s: got %q, want %q", image, got, want)
		}
	}
	s.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.StallChange})
	waiting := s.must(http.StatusOK, "POST", "/api/sandbox", `{"buildInfo":{"dockerfileContent":"FROM alpine:3"}}`).str("id")
	s.must(http.StatusOK, "DELETE", "/api/sandbox/"+waiting, "")
	if got := s.Sandbox(waiting).Settle(time.Minute); got != "destroyed" {
		t.Errorf("deleted while waiting for its build: got %q, want destroyed", got)
	}
}

func TestWarmSnapshotIsStartedAtOnce(t *testing.T) {
	s := serve(t, emulator.Options{Snapshots: []emulator.Snapshot{{Name: "*", Warm: true}}})
	if got := s.must(http.StatusOK, "POST", "/api/sandbox", `{"snapshot":"anything"}`).str("state"); got != "started" {
		t.Errorf("state: got %q, want started", got)
	}
}

func TestAnotherOrganizationSeesNothing(t *testing.T) {
	s := serve(t, emulator.Options{Keys: map[string]string{"other": "org-2", "rotated": "org-1"}, Organization: "org-1"})
	id := s.create(`{"name":"mine"}`).ID()
	s.key = "rotated"
	s.wantState(id, "started")
	s.key = "other"
	s.must(http.StatusNotFound, "GET", "/api/sandbox/"+id, "")
	s.must(http.StatusNotFound, "DELETE", "/api/sandbox/mine", "")
	s.must(http.StatusUnauthorized, "GET", "/toolbox/"+id+"/version", "")
	if got := s.must(http.StatusOK, "GET", "/api/sandbox/paginated", "").json["total"]; got != 0.0 {
		t.Errorf("total: got %v, want 0", got)
	}
	s.create(`{"name":"mine"}`)
	if r := s.must(http.StatusOK, "GET", "/api/organizations", ""); !strings.Contains(r.text, `"id":"org-2"`) {
		t.Errorf("organizations: got %s, want org-2", r.text)
	}
	s.must(http.StatusOK, "GET", "/api/api-keys/current", "")
}

func TestRatesAreLimitedPerClass(t *testing.T) {
	bubble(t, emulator.Options{Limits: emulator.Limits{CreateRate: 2, LifecycleRate: 1}}, func(t *testing.T, s *server) {
		id := s.create(`{}`).ID()
		s.create(`{}`)
		r := s.must(http.StatusTooManyRequests, "POST", "/api/sandbox", `{}`)
		for name, want := range map[string]string{"Retry-After": "60", "X-RateLimit-Limit-sandbox-create": "2", "X-RateLimit-Remaining-sandbox-create": "0"} {
			if got := r.header.Get(name); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		s.must(http.StatusOK, "GET", "/api/sandbox/"+id, "")
		s.must(http.StatusOK, "POST", "/api/sandbox/"+id+"/stop", "")
		s.must(http.StatusTooManyRequests, "DELETE", "/api/sandbox/"+id, "")
	})
}

func TestLabelsAreReplaced(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{"labels":{"a":"1","b":"2"}}`)
	s.must(http.StatusOK, "PUT", "/api/sandbox/"+sb.ID()+"/labels", `{"labels":{"c":"3"}}`)
	if diff := cmp.Diff(map[string]string{"c": "3"}, sb.Labels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	s.must(http.StatusBadRequest, "PUT", "/api/sandbox/"+sb.ID()+"/labels", `{"labels":"c"}`)
	s.must(http.StatusBadRequest, "PUT", "/api/sandbox/"+sb.ID()+"/labels", `{}`)
}

func TestIntervalsAreSet(t *testing.T) {
	s := serve(t, emulator.Options{})
	id := s.create(`{"autoStopInterval":0,"autoDeleteInterval":60}`).ID()
	for _, test := range []struct {
		route, value string
		status       int
		field        string
		want         any
	}{
		{"autostop", "5", 200, "autoStopInterval", 5.0},
		{"autostop", "-1", 400, "", nil},
		{"autostop", "x", 400, "", nil},
		{"autoarchive", "0", 200, "autoArchiveInterval", 0.0},
		{"autodelete", "-1", 200, "autoDeleteInterval", -1.0},
		{"autodelete", "0", 200, "autoDeleteInterval", 0.0},
		{"public", "true", 200, "public", true},
	} {
		r := s.must(test.status, "POST", "/api/sandbox/"+id+"/"+test.route+"/"+test.value, "")
		if got := r.json[test.field]; got != test.want {
			t.Errorf("%s/%s: got %v, want %v", test.route, test.value, got, test.want)
		}
	}
}

func TestListsPageAndFilter(t *testing.T) {
	s := serve(t, emulator.Options{})
	for i := range 5 {
		s.create(fmt.Sprintf(`{"name":"s%d","labels":{"parity":"%d","all":"x"}}`, i, i%2))
	}
	s.must(http.StatusOK, "POST", "/api/sandbox/s4/stop", "")
	s.Sandbox("s4").Settle(time.Minute)
	s.Sandbox("s3").Force("error", "x", false)
	names := func(r reply) string {
		var all []string
		items, _ := r.json["items"].([]any)
		for _, item := range items {
			all = append(all, item.(map[string]any)["name"].(string))
		}
		return strings.Join(all, " ")
	}
	for _, test := range []struct{ query, want string }{
		{"", "s4 s3 s2 s1 s0"},
		{"?sort=name&order=asc", "s0 s1 s2 s3 s4"},
		{"?limit=2&page=2", "s2 s1"},
		{"?limit=2&page=4", ""},
		{`?labels={"parity":"1","all":"x"}`, "s3 s1"},
		{`?labels={"parity":"2"}`, ""},
		{"?states=stopped", "s4"},
		{"?states=stopped&states=error", "s4 s3"},
		{"?name=s1", "s1"},
	} {
		if got := names(s.must(http.StatusOK, "GET", "/api/sandbox/paginated"+strings.ReplaceAll(test.query, `"`, "%22"), "")); got != test.want {
			t.Errorf("%s: got %q, want %q", test.query, got, test.want)
		}
	}
	r := s.must(http.StatusOK, "GET", "/api/sandbox/paginated?limit=2", "")
	if r.json["total"] != 5.0 || r.json["totalPages"] != 3.0 || r.json["page"] != 1.0 {
		t.Errorf("page: got %v of %v with %v in all, want 1 of 3 with 5", r.json["page"], r.json["totalPages"], r.json["total"])
	}
	for _, bad := range []string{"?limit=201", "?limit=0", "?page=0", "?page=x", "?labels={"} {
		s.must(http.StatusBadRequest, "GET", "/api/sandbox/paginated"+bad, "")
	}

	var seen []string
	for cursor := ""; ; {
		r := s.must(http.StatusOK, "GET", "/api/sandbox?limit=2&cursor="+cursor, "")
		seen = append(seen, names(r))
		if cursor = r.str("nextCursor"); cursor == "" {
			break
		}
		if strings.Contains(r.text, `"env"`) {
			t.Errorf("an item of the cursor form has an env: %s", r.text)
		}
	}
	if got, want := strings.Join(seen, "|"), "s4 s3|s2 s1|s0"; got != want {
		t.Errorf("cursor pages: got %q, want %q", got, want)
	}

	s.must(http.StatusOK, "DELETE", "/api/sandbox/s3", "")
	s.must(http.StatusOK, "DELETE", "/api/sandbox/s0", "")
	for _, id := range s.Sandboxes() {
		s.Sandbox(id).Settle(time.Minute)
	}
	if got, want := names(s.must(http.StatusOK, "GET", "/api/sandbox/paginated", "")), "s4 s2 s1"; got != want {
		t.Errorf("after deletions: got %q, want %q", got, want)
	}
}

func TestConcurrentUse(t *testing.T) {
	s := serve(t, emulator.Options{Limits: emulator.Limits{CreateRate: 12}})
	const callers = 40
	results := make(chan int, callers)
	for i := range callers {
		go func() {
			r, err := s.send("POST", "/api/sandbox", fmt.Sprintf(`{"name":"n%d"}`, i))
			if err != nil || r.status != http.StatusOK {
				results <- r.status
				return
			}
			path := "/api/sandbox/" + r.str("id")
			for _, request := range [][2]string{{"POST", path + "/stop"}, {"GET", path}, {"POST", path + "/start"}, {"GET", "/api/sandbox/paginated"}, {"PUT", path + "/labels"}} {
				s.send(request[0], request[1], `{"labels":{}}`)
			}
			s.Sandbox(r.str("id")).Settle(time.Minute)
			deleted, _ := s.send("DELETE", path, "")
			s.Sandbox(r.str("id")).Settle(time.Minute)
			results <- deleted.status
		}()
	}
	got := map[int]int{}
	for range callers {
		got[<-results]++
	}
	if diff := cmp.Diff(map[int]int{200: 12, 429: 28}, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if left := s.Sandboxes(); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
}
