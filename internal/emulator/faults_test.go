package emulator_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// hits fails the test unless the n-th fault was hit so often.
func (s *server) hits(n, want int) {
	s.t.Helper()
	if got := s.Faults()[n].Hits; got != want {
		s.t.Errorf("hits of fault %d: got %d, want %d", n, got, want)
	}
}

// pattern does n requests and shows which of them were answered with 503.
func (s *server) pattern(n int) string {
	s.t.Helper()
	var shown strings.Builder
	for range n {
		if s.do("GET", "/api/organizations", "").status == 503 {
			shown.WriteByte('x')
		} else {
			shown.WriteByte('.')
		}
	}
	return shown.String()
}

func TestFaultsChooseTheirRequests(t *testing.T) {
	bad := func(f emulator.Fault) emulator.Fault {
		f.Action, f.Status = emulator.StatusBefore, 503
		return f
	}
	for _, test := range []struct {
		name  string
		fault emulator.Fault
		want  string // of 6 times GET /api/organizations: which fail
	}{
		{"first", bad(emulator.Fault{}), "x....."},
		{"third", bad(emulator.Fault{Nth: 3}), "..x..."},
		{"two from the second", bad(emulator.Fault{Nth: 2, Count: 2}), ".xx..."},
		{"all", bad(emulator.Fault{Count: -1}), "xxxxxx"},
		{"all from the fifth", bad(emulator.Fault{Nth: 5, Count: -1}), "....xx"},
		{"other method", bad(emulator.Fault{Method: "POST", Count: -1}), "......"},
		{"path", bad(emulator.Fault{Path: "/api/organizations"}), "x....."},
		{"segment", bad(emulator.Fault{Path: "/api/*"}), "x....."},
		{"rest", bad(emulator.Fault{Path: "/api/**"}), "x....."},
		{"too long", bad(emulator.Fault{Path: "/api/organizations/*"}), "......"},
		{"too short", bad(emulator.Fault{Path: "/api"}), "......"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, emulator.Options{Faults: []emulator.Fault{test.fault}})
			if got := s.pattern(6); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			s.hits(0, strings.Count(test.want, "x"))
		})
	}
}

func TestProbabilityDependsOnTheSeedOnly(t *testing.T) {
	run := func(seed uint64) string {
		s := serve(t, emulator.Options{Seed: seed, Faults: []emulator.Fault{{Probability: 0.5, Count: -1, Action: emulator.StatusBefore, Status: 503}}})
		return s.pattern(32)
	}
	first, again, other := run(1), run(1), run(2)
	if first != again {
		t.Errorf("the same seed: got %q and %q", first, again)
	}
	if first == other || !strings.Contains(first, "x") || !strings.Contains(first, ".") {
		t.Errorf("got %q, and %q of another seed", first, other)
	}
}

func TestLaterFaultTakesWhatTheEarlierLeaves(t *testing.T) {
	s := serve(t, emulator.Options{Faults: []emulator.Fault{
		{Path: "/api/organizations", Action: emulator.StatusBefore, Status: 502},
		{Path: "/api/**", Action: emulator.StatusBefore, Status: 429, Header: http.Header{"retry-after": {"7"}}, Body: emulator.ErrorBody(429, "slow down")},
	}})
	if r := s.must(502, "GET", "/api/organizations", ""); r.text != "" {
		t.Errorf("body: got %q, want none", r.text)
	}
	r := s.must(429, "GET", "/api/organizations", "")
	if r.header.Get("Retry-After") != "7" || r.str("message") != "slow down" {
		t.Errorf("got Retry-After %q and %q", r.header.Get("Retry-After"), r.str("message"))
	}
	s.must(200, "GET", "/api/organizations", "")
	got := s.Faults()
	if diff := cmp.Diff([]int{3, 1, 2, 1}, []int{got[0].Seen, got[0].Hits, got[1].Seen, got[1].Hits}); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
	requests := s.Requests()
	if requests[0].Fault != emulator.StatusBefore || requests[2].Fault != "" {
		t.Errorf("faults in the log: got %q and %q", requests[0].Fault, requests[2].Fault)
	}
	s.SetFaults()
	if len(s.Faults()) != 0 {
		t.Error("the plan was not replaced")
	}
}

func TestCreationFaults(t *testing.T) {
	for _, test := range []struct {
		name    string
		fault   emulator.Fault
		status  int // 0: the connection fails
		created bool
		message string
	}{
		{"drop before", emulator.Fault{Action: emulator.DropBefore}, 0, false, ""},
		{"drop after", emulator.Fault{Action: emulator.DropAfter}, 0, true, ""},
		{"status before", emulator.Fault{Action: emulator.StatusBefore, Status: 502}, 502, false, ""},
		{"status after", emulator.Fault{Action: emulator.StatusAfter, Status: 502}, 502, true, ""},
		{"default status", emulator.Fault{Action: emulator.StatusAfter}, 500, true, ""},
		{"runner failure", emulator.Fault{Action: emulator.RunnerFailure, Body: "no disk"}, 400, true, "Sandbox failed to start: no disk"},
		{"delay", emulator.Fault{Delay: time.Millisecond}, 200, true, ""},
		{"truncated", emulator.Fault{Action: emulator.TruncateBody, Bytes: 10}, 0, true, ""},
		{"reset reply", emulator.Fault{Action: emulator.ResetReply, Bytes: 10}, 0, true, ""},
		{"reset upload", emulator.Fault{Action: emulator.ResetUpload, Bytes: 3}, 0, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.fault.Method, test.fault.Path = "POST", "/api/sandbox"
			s := serve(t, emulator.Options{Faults: []emulator.Fault{test.fault}})
			r, err := s.send("POST", "/api/sandbox", `{"name":"n"}`)
			if (err != nil) != (test.status == 0) || (test.status != 0 && r.status != test.status) {
				t.Errorf("got status %d and %v, want %d", r.status, err, test.status)
			}
			if test.message != "" && r.str("message") != test.message {
				t.Errorf("message: got %q, want %q", r.str("message"), test.message)
			}
			if got := s.Sandbox("n") != nil; got != test.created {
				t.Errorf("created: got %v, want %v", got, test.created)
			}
			s.hits(0, 1)
		})
	}
}

func TestTruncatedAndResetBodiesKeepTheirBeginning(t *testing.T) {
	for _, action := range []emulator.Action{emulator.TruncateBody, emulator.ResetReply} {
		s := serve(t, emulator.Options{})
		id := s.create(`{}`).ID()
		whole := s.must(http.StatusOK, "GET", "/api/sandbox/"+id, "").text
		s.SetFaults(emulator.Fault{Action: action, Bytes: 20})
		r, err := s.send("GET", "/api/sandbox/"+id, "")
		if err == nil || r.status != 200 || (r.text != whole[:20] && action == emulator.TruncateBody) || !strings.HasPrefix(whole, r.text) {
			t.Errorf("%s: got %d %q, %v; want the first 20 bytes and an error", action, r.status, r.text, err)
		}
	}
}

func TestMergedReply(t *testing.T) {
	s := serve(t, emulator.Options{})
	id := s.create(`{}`).ID()
	merge := emulator.Fault{Action: emulator.MergeReply, Body: `{"state":"hibernating","novel":{"a":[1]}}`}
	s.SetFaults(merge)
	r := s.must(http.StatusOK, "GET", "/api/sandbox/"+id, "")
	if r.str("state") != "hibernating" || r.json["novel"] == nil || r.str("id") != id {
		t.Errorf("got %s", r.text)
	}
	s.SetFaults(merge)
	list := s.must(http.StatusOK, "GET", "/api/sandbox/paginated", "")
	if item := list.json["items"].([]any)[0].(map[string]any); item["state"] != "hibernating" || list.json["total"] != 1.0 {
		t.Errorf("list: got %s", list.text)
	}
	s.wantState(id, "started")
}

func TestSkewedClock(t *testing.T) {
	s := serve(t, emulator.Options{Faults: []emulator.Fault{{Method: "POST", Action: emulator.SkewClock, Delay: time.Hour}}})
	r := s.must(http.StatusOK, "POST", "/api/sandbox", `{"ttlMinutes":30}`)
	for field, want := range map[string]time.Duration{"createdAt": time.Hour, "autoDestroyAt": 90 * time.Minute} {
		at, err := time.Parse(time.RFC3339, r.str(field))
		if got := time.Until(at); err != nil || got > want || got < want-time.Minute {
			t.Errorf("%s: got %v from now (%v), want %v", field, got, err, want)
		}
	}
	date, err := http.ParseTime(r.header.Get("Date"))
	if err != nil || time.Until(date) < 59*time.Minute {
		t.Errorf("Date: got %q", r.header.Get("Date"))
	}
	if got := time.Until(s.Sandbox(r.str("id")).DestroyAt()); got > 30*time.Minute {
		t.Errorf("the lifetime itself is off: %v", got)
	}
}

func TestStaleLists(t *testing.T) {
	s := serve(t, emulator.Options{})
	old := s.create(`{"name":"old"}`)
	names := func(path string) string {
		r := s.must(http.StatusOK, "GET", path, "")
		var all []string
		for _, item := range r.json["items"].([]any) {
			all = append(all, item.(map[string]any)["name"].(string)+"="+item.(map[string]any)["state"].(string))
		}
		return strings.Join(all, " ")
	}
	s.SetFaults(emulator.Fault{Action: emulator.StaleList, Path: "/api/sandbox/paginated", Count: -1}, emulator.Fault{Action: emulator.StaleList, Path: "/api/sandbox", Method: "GET"})
	s.create(`{"name":"new"}`)
	s.must(http.StatusOK, "DELETE", "/api/sandbox/old", "")
	old.Settle(time.Minute)
	for _, path := range []string{"/api/sandbox/paginated", "/api/sandbox", "/api/sandbox/paginated"} {
		if got, want := names(path), "old=started"; got != want {
			t.Errorf("stale %s: got %q, want %q", path, got, want)
		}
	}
	s.hits(0, 2)
	s.hits(1, 1)
	if got, want := names("/api/sandbox"), "new=started"; got != want {
		t.Errorf("fresh: got %q, want %q", got, want)
	}
	s.must(http.StatusNotFound, "GET", "/api/sandbox/"+old.ID(), "")
}

func TestListThatLagsBehind(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		s.SetFaults(emulator.Fault{Action: emulator.StaleList, Delay: 10 * time.Second, Count: -1, Path: "/api/sandbox/paginated"})
		s.create(`{}`)
		for _, want := range []float64{0, 0, 0, 1} {
			sleep(3 * time.Second)
			if got := s.must(http.StatusOK, "GET", "/api/sandbox/paginated", "").json["total"]; got != want {
				t.Errorf("total: got %v, want %v", got, want)
			}
		}
	})
}

func TestStalledChanges(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":0}`)
		s.SetFaults(emulator.Fault{Path: "/api/sandbox/*/stop", Action: emulator.StallChange, Delay: time.Hour})
		s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
		sleep(59 * time.Minute)
		s.wantState(sb.ID(), "stopping")
		sleep(time.Minute)
		s.wantState(sb.ID(), "stopped")
		s.SetFaults(emulator.Fault{Method: "DELETE", Action: emulator.StallChange})
		s.must(http.StatusOK, "DELETE", "/api/sandbox/"+sb.ID(), "")
		sleep(240 * time.Hour)
		s.wantState(sb.ID(), "destroying")
	})
}

func TestLostContainerFault(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	s.SetFaults(emulator.Fault{Path: "/toolbox/**", Nth: 2, Action: emulator.LoseContainer})
	s.must(http.StatusOK, "GET", "/toolbox/"+sb.ID()+"/version", "")
	s.must(http.StatusNotFound, "GET", "/toolbox/"+sb.ID()+"/version", "")
	s.must(http.StatusNotFound, "GET", "/toolbox/"+sb.ID()+"/version", "")
	s.wantState(sb.ID(), "started")
	s.hits(0, 1)
	other := s.create(`{}`)
	s.must(http.StatusOK, "POST", "/api/sandbox/"+other.ID()+"/stop", "")
	other.Settle(time.Minute)
	s.SetFaults(emulator.Fault{Path: "/api/sandbox/*/start", Action: emulator.LoseContainer})
	s.must(http.StatusBadRequest, "POST", "/api/sandbox/"+other.ID()+"/start", "")
	s.wantState(other.ID(), "error")
}

func TestDiskFullFault(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	upload := func() int {
		return s.do("POST", "/toolbox/"+sb.ID()+"/files/upload?path=f",
			"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\ncontent\r\n--b--\r\n",
			"Content-Type", "multipart/form-data; boundary=b").status
	}
	s.SetFaults(emulator.Fault{Path: "/toolbox/*/files/upload", Action: emulator.DiskFull})
	got := []int{upload(), upload()}
	sb.SetDiskFull(true)
	got = append(got, upload())
	sb.SetDiskFull(false)
	got = append(got, upload())
	for i, ok := range []bool{false, true, false, true} {
		if (got[i] == http.StatusOK) != ok {
			t.Errorf("uploads: got %v, want success %v of the one at %d", got, ok, i)
		}
	}
	s.hits(0, 1)
}

func TestReplayedPrefixOfABody(t *testing.T) {
	s := serve(t, emulator.Options{})
	whole := s.must(http.StatusOK, "GET", "/api/organizations", "").text
	s.SetFaults(emulator.Fault{Action: emulator.ReplayPrefix, Bytes: 5})
	if got, want := s.must(http.StatusOK, "GET", "/api/organizations", "").text, whole[:5]+whole; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSilentRequestIsNeverAnswered(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		s.SetFaults(emulator.Fault{Action: emulator.SilentSocket, Method: "POST"})
		s.client.Timeout = 24 * time.Hour
		start := time.Now()
		if r, err := s.send("POST", "/api/sandbox", `{"name":"n"}`); err == nil {
			t.Errorf("got status %d, want no reply", r.status)
		}
		if got := time.Since(start); got != 24*time.Hour {
			t.Errorf("failed after %v, want the client's own 24 h", got)
		}
		if s.Sandbox("n") != nil {
			t.Error("the request was processed")
		}
	})
}

func TestDuplicateOfACreationConflictsWithItself(t *testing.T) {
	s := serve(t, emulator.Options{Faults: []emulator.Fault{{Method: "POST", Path: "/api/sandbox", Action: emulator.Duplicate}}})
	s.must(http.StatusConflict, "POST", "/api/sandbox", `{"name":"twice"}`)
	if got := len(s.Sandboxes()); got != 1 {
		t.Errorf("sandboxes: got %d, want 1", got)
	}
	s.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.Duplicate})
	s.must(http.StatusOK, "POST", "/api/sandbox", `{}`)
	if got := len(s.Sandboxes()); got != 3 {
		t.Errorf("sandboxes after an anonymous creation: got %d, want 3", got)
	}
	s.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.Duplicate})
	s.must(http.StatusBadGateway, "POST", "/api/sandbox", `{"name":"large","pad":"`+strings.Repeat("x", 256<<10)+`"}`)
	if s.Sandbox("large") == nil {
		t.Error("the large request was not processed")
	}
}

func TestOverlappingDuplicate(t *testing.T) {
	bubble(t, emulator.Options{Timing: emulator.Timing{Create: 20 * time.Second}}, func(t *testing.T, s *server) {
		s.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.Duplicate, Delay: 5 * time.Second})
		start := time.Now()
		s.must(http.StatusOK, "POST", "/api/sandbox", `{}`)
		if got, want := time.Since(start), 25*time.Second; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
		if got := len(s.Sandboxes()); got != 2 {
			t.Errorf("sandboxes: got %d, want 2", got)
		}
	})
}
