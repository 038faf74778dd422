package emulator_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestStopAndStart(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	path := "/api/sandbox/" + sb.ID()
	if got := s.must(http.StatusOK, "POST", path+"/start", "").str("state"); got != "started" {
		t.Errorf("start of a started one: got %q, want started", got)
	}
	token := s.must(http.StatusOK, "GET", path+"/ports/80/preview-url", "").str("token")
	r := s.must(http.StatusOK, "POST", path+"/stop", "")
	if r.str("state") != "stopping" || r.str("desiredState") != "stopped" {
		t.Errorf("stop: got %s, desired %s; want stopping, desired stopped", r.str("state"), r.str("desiredState"))
	}
	sb.Settle(time.Minute)
	s.wantState(sb.ID(), "stopped")
	if r := s.must(http.StatusBadRequest, "POST", path+"/stop", ""); r.str("message") != "Sandbox is not in a stoppable state" {
		t.Errorf("message: got %q", r.str("message"))
	}
	if got := s.must(http.StatusOK, "POST", path+"/start", "").str("state"); got != "started" {
		t.Errorf("start: got %q, want the final state started", got)
	}
	if again := s.must(http.StatusOK, "GET", path+"/ports/80/preview-url", "").str("token"); again == token {
		t.Error("the preview token survived the restart")
	}
}

func TestPendingChangesConflict(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(s *server) string
	}{
		{"creating", func(s *server) string {
			s.SetFaults(emulator.Fault{Action: emulator.StallChange})
			return s.must(http.StatusOK, "POST", "/api/sandbox", `{}`).str("id")
		}},
		{"stopping", func(s *server) string {
			id := s.create(`{}`).ID()
			s.SetFaults(emulator.Fault{Action: emulator.StallChange})
			s.must(http.StatusOK, "POST", "/api/sandbox/"+id+"/stop", "")
			return id
		}},
		{"starting", func(s *server) string {
			sb := s.create(`{}`)
			s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
			sb.Settle(time.Minute)
			s.SetFaults(emulator.Fault{Action: emulator.StallChange})
			s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/start", "")
			return sb.ID()
		}},
		{"archiving", func(s *server) string {
			sb := s.create(`{}`)
			s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
			sb.Settle(time.Minute)
			s.SetFaults(emulator.Fault{Action: emulator.StallChange})
			s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/archive", "")
			return sb.ID()
		}},
		{"destroying", func(s *server) string {
			id := s.create(`{}`).ID()
			s.SetFaults(emulator.Fault{Action: emulator.StallChange})
			s.must(http.StatusOK, "DELETE", "/api/sandbox/"+id, "")
			return id
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, emulator.Options{Timing: emulator.Timing{CreateHold: -1, StartHold: -1}})
			id := test.prepare(s)
			s.wantState(id, test.name)
			for _, request := range [][2]string{{"DELETE", ""}, {"POST", "/stop"}, {"POST", "/start"}, {"POST", "/archive"}, {"POST", "/recover"}} {
				r := s.must(http.StatusConflict, request[0], "/api/sandbox/"+id+request[1], "")
				if got, want := r.str("message"), "Sandbox state change in progress"; got != want {
					t.Errorf("%s%s: got %q, want %q", request[0], request[1], got, want)
				}
			}
			r := s.must(http.StatusBadRequest, "GET", "/toolbox/"+id+"/version", "")
			if got, want := r.str("message"), "bad request: no IP address found. Is the Sandbox started?"; got != want {
				t.Errorf("proxy: got %q, want %q", got, want)
			}
		})
	}
}

func TestErroredSandboxRefusesUntilRecovered(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	path := "/api/sandbox/" + sb.ID()
	if r := s.must(http.StatusBadRequest, "POST", path+"/recover", ""); r.str("message") == "" {
		t.Error("no message")
	}
	sb.Force("error", "job timed out", false)
	for _, verb := range []string{"/start", "/stop", "/archive", "/recover"} {
		s.must(http.StatusBadRequest, "POST", path+verb, "")
	}
	sb.Force("error", "job timed out", true)
	if r := s.must(http.StatusOK, "GET", path, ""); r.json["recoverable"] != true || r.str("errorReason") != "job timed out" {
		t.Errorf("got recoverable %v and %q", r.json["recoverable"], r.str("errorReason"))
	}
	if r := s.must(http.StatusOK, "POST", path+"/recover", ""); r.str("state") != "started" || r.json["errorReason"] != nil {
		t.Errorf("recovered: got %s, %v; want started without a reason", r.str("state"), r.json["errorReason"])
	}
}

func TestEphemeralSandboxIsGoneWithTheStop(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{"name":"brief","autoDeleteInterval":0}`)
	if got := s.must(http.StatusOK, "POST", "/api/sandbox/brief/stop", "").str("state"); got != "destroying" {
		t.Errorf("state: got %q, want destroying", got)
	}
	s.must(http.StatusNotFound, "GET", "/api/sandbox/brief", "")
	sb.Settle(time.Minute)
	s.must(http.StatusNotFound, "GET", "/api/sandbox/"+sb.ID(), "")
}

func TestArchivedSandboxKeepsItsFiles(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	path := "/api/sandbox/" + sb.ID()
	if r := s.must(http.StatusBadRequest, "POST", path+"/archive", ""); r.str("message") != "Sandbox is not stopped" {
		t.Errorf("message: got %q", r.str("message"))
	}
	file := filepath.Join(sb.Home(), "kept")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(http.StatusOK, "POST", path+"/stop", "")
	sb.Settle(time.Minute)
	if got := s.must(http.StatusOK, "POST", path+"/archive", "").str("state"); got != "archiving" {
		t.Errorf("archive: got %q, want archiving", got)
	}
	sb.Settle(time.Minute)
	s.wantState(sb.ID(), "archived")
	if got := s.must(http.StatusOK, "POST", path+"/start", "").str("state"); got != "started" {
		t.Errorf("start: got %q, want started", got)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file: %v", err)
	}
	s.must(http.StatusOK, "DELETE", path, "")
	sb.Settle(time.Minute)
	if _, err := os.Stat(sb.Home()); !os.IsNotExist(err) {
		t.Errorf("the home of a destroyed sandbox: got %v, want not exist", err)
	}
}

func TestUnknownStateIsReportedAsItIs(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	sb.Force("hibernating", "", false)
	s.wantState(sb.ID(), "hibernating")
	s.must(http.StatusBadRequest, "POST", "/api/sandbox/"+sb.ID()+"/start", "")
	sb.Force("started", "", false)
	s.must(http.StatusOK, "GET", "/toolbox/"+sb.ID()+"/version", "")
}

func TestStateDirectoryIsFoundAgain(t *testing.T) {
	dir := t.TempDir()
	start := func() *server {
		t.Helper()
		return serve(t, emulator.Options{Dir: dir, APIKey: "key"})
	}
	first := start()
	if _, err := emulator.Start(emulator.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server: got %v, want it refused", err)
	}
	organization := first.Organization()
	running := first.create(`{"name":"running","labels":{"a":"b"},"ttlMinutes":60}`)
	if err := os.WriteFile(filepath.Join(running.Home(), "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	archived := first.create(`{"name":"archived"}`)
	archived.Force("archived", "", false)
	errored := first.create(`{"name":"errored"}`)
	errored.Force("error", "boom", true)
	first.SetFaults(emulator.Fault{Method: "DELETE", Action: emulator.StallChange})
	dying := first.create(`{"name":"dying"}`)
	first.must(http.StatusOK, "DELETE", "/api/sandbox/dying", "")
	before := running.DestroyAt()
	if err := first.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}

	second := start()
	if got := second.Organization(); got != organization {
		t.Errorf("organization: got %q, want %q", got, organization)
	}
	for id, want := range map[string]string{running.ID(): "stopped", archived.ID(): "archived", errored.ID(): "error"} {
		second.wantState(id, want)
	}
	second.must(http.StatusNotFound, "GET", "/api/sandbox/"+dying.ID(), "")
	if _, err := os.Stat(dying.Home()); !os.IsNotExist(err) {
		t.Errorf("the home of the sandbox whose destruction had begun: got %v, want not exist", err)
	}
	again := second.Sandbox("running")
	if got := again.DestroyAt(); !got.Equal(before) {
		t.Errorf("end of the lifetime: got %v, want %v", got, before)
	}
	if got := again.Labels()["a"]; got != "b" {
		t.Errorf("label: got %q, want b", got)
	}
	second.must(http.StatusOK, "POST", "/api/sandbox/running/start", "")
	if content, err := os.ReadFile(filepath.Join(again.Home(), "file")); err != nil || string(content) != "content" {
		t.Errorf("file: got %q, %v", content, err)
	}
	second.must(http.StatusOK, "DELETE", "/api/sandbox/running", "")
	again.Settle(time.Minute)
	if records, err := filepath.Glob(filepath.Join(dir, "records", "*")); err != nil || len(records) != 2 {
		t.Errorf("records: got %v (%v), want 2", records, err)
	}
}

func TestDamagedRecordIsReported(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "records"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "records", "x.json"), []byte(`{"id":`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the failure must release the lock
		if _, err := emulator.Start(emulator.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "record x.json is damaged") {
			t.Errorf("got %v, want a damaged record", err)
		}
	}
}

func TestTemporaryStateIsRemoved(t *testing.T) {
	s, err := emulator.Start(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := &server{Server: s, t: t, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, key: s.APIKey()}
	sb := client.create(`{}`)
	locked := filepath.Join(sb.Home(), "locked", "deeper")
	if err := os.MkdirAll(locked, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(locked), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}
	if _, err := os.Lstat(sb.Home()); !os.IsNotExist(err) {
		t.Errorf("home: got %v, want not exist", err)
	}
	if _, err := client.send("GET", "/api/health", ""); err == nil {
		t.Error("a closed server answers")
	}
}
