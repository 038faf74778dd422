package emulator_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

const dockerfile = `{"name":"built","buildInfo":{"dockerfileContent":"FROM debian:13\n# no step\nRUN true\n"}}`

func TestABuildIsLoggedLineByLine(t *testing.T) {
	bubble(t, emulator.Options{Timing: emulator.Timing{Build: time.Second}}, func(t *testing.T, s *server) {
		made := s.must(http.StatusOK, "POST", "/api/snapshots", dockerfile)
		if got := made.str("state"); got != "pending" {
			t.Errorf("state: got %q, want pending", got)
		}
		id := made.str("id")
		address := s.must(http.StatusOK, "GET", "/api/snapshots/built/build-logs-url", "").str("url")
		s.must(http.StatusBadRequest, "GET", address, "") // no runner yet
		s.must(http.StatusUnauthorized, "GET", address, "", "Authorization", "Bearer x")
		sleep(2500 * time.Millisecond)
		begun := s.must(http.StatusOK, "GET", address, "").text
		if want := "Step 1/2 : FROM debian:13\n"; begun != want {
			t.Errorf("log after 2.5 s: got %q, want %q", begun, want)
		}
		whole := s.must(http.StatusOK, "GET", address+"?follow=true", "").text
		if want := begun + "Step 2/2 : RUN true\nSuccessfully built " + id + "\n"; whole != want {
			t.Errorf("log to its end: got %q, want %q", whole, want)
		}
		if got := s.must(http.StatusOK, "GET", "/api/snapshots/"+id, "").str("state"); got != "active" {
			t.Errorf("state: got %q, want active", got)
		}
		s.must(http.StatusConflict, "POST", "/api/snapshots", dockerfile)
		s.must(http.StatusOK, "POST", "/api/sandbox", `{"snapshot":"built"}`)
	})
}

func TestABuildFails(t *testing.T) {
	options := emulator.Options{Snapshots: []emulator.Snapshot{{Name: "debian:13", State: "build_failed", Failure: "no space"}}}
	bubble(t, options, func(t *testing.T, s *server) {
		s.must(http.StatusOK, "POST", "/api/snapshots", dockerfile)
		log := s.must(http.StatusOK, "GET", "/api/snapshots/built/build-logs?follow=true", "").text
		if !strings.HasSuffix(log, "\nERROR: no space") {
			t.Errorf("log: got %q", log)
		}
		read := s.must(http.StatusOK, "GET", "/api/snapshots/built", "")
		if read.str("state") != "build_failed" || read.str("errorReason") != "no space" {
			t.Errorf("got %q, %q", read.str("state"), read.str("errorReason"))
		}
		s.must(http.StatusBadRequest, "POST", "/api/sandbox", `{"snapshot":"built"}`)
	})
}

func TestSnapshotsAreDeletedByID(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		id := s.must(http.StatusOK, "POST", "/api/snapshots", `{"name":"pulled","imageName":"debian:13"}`).str("id")
		sleep(time.Second)
		s.must(http.StatusBadRequest, "DELETE", "/api/snapshots/pulled", "")
		general := s.must(http.StatusOK, "GET", "/api/snapshots/"+emulator.DefaultSnapshot, "").str("id")
		s.must(http.StatusForbidden, "DELETE", "/api/snapshots/"+general, "")
		s.must(http.StatusOK, "DELETE", "/api/snapshots/"+id, "")
		if got := s.must(http.StatusOK, "GET", "/api/snapshots/pulled", "").str("state"); got != "removing" {
			t.Errorf("state: got %q, want removing", got)
		}
		s.must(http.StatusOK, "DELETE", "/api/snapshots/"+id, "")
		sleep(time.Second)
		s.must(http.StatusNotFound, "DELETE", "/api/snapshots/"+id, "")
		s.must(http.StatusNotFound, "GET", "/api/snapshots/pulled", "")
		for _, bad := range []string{`{"name":"a b","imageName":"debian:13"}`, `{"name":"a","imageName":"debian"}`, `{"name":"a","imageName":"debian:latest"}`, `{"name":"a"}`, `{}`} {
			s.must(http.StatusBadRequest, "POST", "/api/snapshots", bad)
		}
		made := s.must(http.StatusOK, "POST", "/api/snapshots", `{"name":"stays","imageName":"debian:13"}`).str("id")
		s.SetFaults(emulator.Fault{Method: "DELETE", Action: emulator.StallChange})
		s.must(http.StatusOK, "DELETE", "/api/snapshots/"+made, "")
		sleep(24 * time.Hour)
		if got := s.must(http.StatusOK, "GET", "/api/snapshots/stays", "").str("state"); got != "removing" {
			t.Errorf("state after a deletion that never ends: got %q, want removing", got)
		}
		s.SetLimits(emulator.Limits{Snapshots: 2})
		s.must(http.StatusOK, "POST", "/api/snapshots", `{"name":"one","imageName":"debian:13"}`)
		s.must(http.StatusForbidden, "POST", "/api/snapshots", `{"name":"two","imageName":"debian:13"}`)
	})
}

func TestACaptureHasTheFiles(t *testing.T) {
	needProcesses(t)
	dir := t.TempDir()
	first := serve(t, emulator.Options{Dir: dir})
	sb := first.create(`{"name":"original"}`)
	first.execute(sb.ID(), "mkdir -p d && echo kept >d/file && ln -s file d/link && chmod 750 d/file")
	if got := first.must(http.StatusOK, "POST", "/api/sandbox/original/snapshot", `{"name":"made"}`).str("state"); got != "snapshotting" {
		t.Errorf("state: got %q, want snapshotting", got)
	}
	sb.Settle(time.Minute)
	first.wantState(sb.ID(), "started")
	first.must(http.StatusConflict, "POST", "/api/sandbox/original/snapshot", `{"name":"made"}`)
	if diff := cmp.Diff([]string{"made"}, first.SnapshotNames()); diff != "" {
		t.Errorf("snapshots mismatch (-want +got):\n%s", diff)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	second := serve(t, emulator.Options{Dir: dir}) // which still has it
	copied := second.create(`{"snapshot":"made"}`)
	if got, want := second.execute(copied.ID(), "cat d/link; stat -c %a d/file").str("result"), "kept\n750\n"; got != want {
		t.Errorf("files of a sandbox from the snapshot: got %q, want %q", got, want)
	}
}

func TestWhileItIsCapturedNothingInASandboxAnswers(t *testing.T) {
	bubble(t, emulator.Options{Toolbox: http.NotFoundHandler(), Timing: emulator.Timing{Capture: time.Minute}}, func(t *testing.T, s *server) {
		sb := s.create(`{}`)
		path := "/api/sandbox/" + sb.ID()
		s.must(http.StatusOK, "POST", path+"/snapshot", `{"name":"slow"}`)
		s.must(http.StatusConflict, "POST", path+"/stop", "")
		begun := time.Now()
		s.must(http.StatusNotFound, "GET", "/toolbox/"+sb.ID()+"/x", "")
		if waited := time.Since(begun); waited != time.Minute {
			t.Errorf("the toolbox answered after %v, want 1m0s", waited)
		}
		s.SetFaults(emulator.Fault{Path: "/api/sandbox/*/snapshot", Action: emulator.RunnerFailure})
		s.must(http.StatusOK, "POST", path+"/snapshot", `{"name":"fails"}`)
		sb.Settle(time.Hour)
		s.must(http.StatusNotFound, "GET", "/api/snapshots/fails", "")
		s.wantState(sb.ID(), "started")
	})
}

func TestANewSSHAccessRevokesTheOneBefore(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":0}`)
		path := "/api/sandbox/" + sb.ID() + "/ssh-access"
		valid := func(token string) any {
			return s.must(http.StatusOK, "GET", "/api/sandbox/ssh-access/validate?token="+token, "").json["valid"]
		}
		first := s.must(http.StatusOK, "POST", path, "").str("token")
		second := s.must(http.StatusOK, "POST", path+"?expiresInMinutes=2", "")
		if valid(first) != false || valid(second.str("token")) != true {
			t.Errorf("valid: got %v and %v, want false and true", valid(first), valid(second.str("token")))
		}
		if got, want := second.str("sshCommand"), "ssh -p 2222 "+second.str("token")+"@localhost"; got != want || len(second.str("token")) != 32 {
			t.Errorf("command: got %q, want %q", got, want)
		}
		sleep(2 * time.Minute)
		if valid(second.str("token")) != false {
			t.Error("valid after its end")
		}
		third := s.must(http.StatusOK, "POST", path, "").str("token")
		s.must(http.StatusOK, "DELETE", path+"?token=x", "")
		if valid(third) != true {
			t.Error("another token's revocation revoked it")
		}
		s.must(http.StatusOK, "DELETE", path+"?token="+third, "")
		s.must(http.StatusOK, "DELETE", path+"?token="+third, "")
		if valid(third) != false {
			t.Error("valid after its revocation")
		}
		s.must(http.StatusBadRequest, "POST", path+"?expiresInMinutes=x", "")
		s.must(http.StatusNotFound, "POST", "/api/sandbox/none/ssh-access", "")
	})
}

func TestABrowserIsWarnedFirst(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{}`)
		address := s.must(http.StatusOK, "GET", "/api/sandbox/"+sb.ID()+"/ports/1/preview-url", "").str("url") + "/"
		browser := []string{"User-Agent", "Mozilla/5.0"}
		if r := s.must(http.StatusOK, "GET", address, "", browser...); !strings.Contains(r.text, "Preview URL Warning") {
			t.Errorf("got %q, want the warning", r.text)
		}
		s.must(http.StatusUnauthorized, "GET", address, "", append(browser, "X-Daytona-Skip-Preview-Warning", "true")...)
		s.must(http.StatusUnauthorized, "GET", address, "", append(browser, "Cookie", "daytona-preview-page-accepted=true")...)
	})
}
