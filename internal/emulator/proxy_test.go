//go:build unix

package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestProxyMasksWhatItDoesNotKnow(t *testing.T) {
	s := serve(t, emulator.Options{})
	sb := s.create(`{"name":"named"}`)
	gone := s.create(`{}`)
	s.must(http.StatusOK, "DELETE", "/api/sandbox/"+gone.ID(), "")
	gone.Settle(time.Minute)
	for _, id := range []string{"named", "none", gone.ID()} {
		r := s.must(http.StatusUnauthorized, "GET", "/toolbox/"+id+"/version", "")
		if got, want := r.str("message"), "unauthorized: authentication failed: Bearer token is invalid"; got != want {
			t.Errorf("%s: got %q, want %q", id, got, want)
		}
		for _, key := range []string{"statusCode", "message", "code", "timestamp", "path", "method"} {
			if _, found := r.json[key]; !found {
				t.Errorf("%s: the body lacks %q: %s", id, key, r.text)
			}
		}
	}
	s.must(http.StatusUnauthorized, "GET", "/toolbox/"+sb.ID()+"/version", "", "Authorization", "Bearer bad")
	for _, path := range []string{"/toolbox/" + sb.ID(), "/toolbox/" + sb.ID() + "/", "/toolbox/"} {
		s.must(http.StatusNotFound, "GET", path, "")
	}
	if got := s.must(http.StatusOK, "GET", "/toolbox/"+sb.ID()+"/version", "").str("version"); got != "v0.190.0" {
		t.Errorf("version: got %q", got)
	}
	r := s.must(http.StatusOK, "GET", "/api/sandbox/"+sb.ID()+"/toolbox-proxy-url", "")
	if got, want := r.str("url"), strings.TrimSuffix(s.URL(), "/api")+"/toolbox"; got != want {
		t.Errorf("toolbox URL: got %q, want %q", got, want)
	}
	s.must(http.StatusNotFound, "GET", "/api/sandbox/named/toolbox-proxy-url", "")
}

func TestRestartKeepsFilesAndEndsSessions(t *testing.T) {
	needProcesses(t)
	s := serve(t, emulator.Options{})
	sb := s.create(`{"env":{"GREETING":"hello"}}`)
	if got, want := s.execute(sb.ID(), "echo $GREETING $DAYTONA_SANDBOX_ID; pwd; echo data > kept").str("result"), "hello "+sb.ID()+"\n"+sb.Home()+"\n"; got != want {
		t.Errorf("result: got %q, want %q", got, want)
	}
	s.must(http.StatusCreated, "POST", "/toolbox/"+sb.ID()+"/process/session", `{"sessionId":"a"}`)
	s.execute(sb.ID(), "setsid -f sleep 1000 >/dev/null 2>&1; sleep 1000 >/dev/null 2>&1 &")
	pids, err := sb.Processes()
	if err != nil || len(pids) < 3 {
		t.Fatalf("processes: got %v (%v), want at least a session and two sleepers", pids, err)
	}
	s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
	sb.Settle(time.Minute)
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d survived the stop", pid)
		}
	}
	s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/start", "")
	if got := s.execute(sb.ID(), "cat kept").str("result"); got != "data\n" {
		t.Errorf("file after the restart: got %q, want data", got)
	}
	s.must(http.StatusNotFound, "GET", "/toolbox/"+sb.ID()+"/process/session/a", "")
	if got := s.Sandbox(sb.ID()).State(); got != "started" {
		t.Errorf("state: got %q", got)
	}
}

// alive tells whether a process runs. One that is dead, and that nobody has waited for, does not.
func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		return !strings.Contains(string(stat), ") Z ")
	}
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func TestSandboxesEndCutsOffItsRequests(t *testing.T) {
	needProcesses(t)
	for _, end := range []struct {
		name string
		do   func(s *server, sb *emulator.Sandbox)
	}{
		{"stop", func(s *server, sb *emulator.Sandbox) {
			s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
		}},
		{"delete", func(s *server, sb *emulator.Sandbox) { s.must(http.StatusOK, "DELETE", "/api/sandbox/"+sb.ID(), "") }},
		{"loss", func(_ *server, sb *emulator.Sandbox) { sb.LoseContainer() }},
	} {
		t.Run(end.name, func(t *testing.T) {
			s := serve(t, emulator.Options{})
			sb := s.create(`{}`)
			ready := filepath.Join(sb.Home(), "ready")
			if err := syscall.Mkfifo(ready, 0o600); err != nil {
				t.Fatal(err)
			}
			status := make(chan int, 1)
			go func() {
				r, err := s.send("POST", "/toolbox/"+sb.ID()+"/process/execute", `{"command":"echo > ready; sleep 1000"}`)
				if err != nil {
					r.status = -1
				}
				status <- r.status
			}()
			conn := s.session(sb.ID(), "long", "echo started; sleep 1000")
			defer conn.CloseNow()
			if _, frame, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(frame), "started") {
				t.Fatalf("first frame: got %q, %v", frame, err)
			}
			if _, err := os.ReadFile(ready); err != nil { // until the command runs
				t.Fatal(err)
			}
			end.do(s, sb)
			if got := <-status; got != http.StatusBadGateway {
				t.Errorf("the open request: got status %d, want 502", got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, _, err := conn.Read(ctx)
			if got := websocket.CloseStatus(err); err == nil || got != -1 || ctx.Err() != nil {
				t.Errorf("the open socket: got %v, want it dropped without a close frame", err)
			}
		})
	}
}

// session starts an asynchronous command in a new session and follows its log.
func (s *server) session(sandbox, session, command string) *websocket.Conn {
	s.t.Helper()
	base := "/toolbox/" + sandbox + "/process/session"
	s.must(http.StatusCreated, "POST", base, `{"sessionId":"`+session+`"}`)
	id := s.must(http.StatusAccepted, "POST", base+"/"+session+"/exec", `{"runAsync":true,"command":"`+command+`"}`).str("cmdId")
	conn, err := s.dial(base + "/" + session + "/command/" + id + "/logs?follow=true")
	if err != nil {
		s.t.Fatalf("following: %v", err)
	}
	return conn
}

func (s *server) dial(path string) (*websocket.Conn, error) {
	conn, _, err := websocket.Dial(s.t.Context(), strings.TrimSuffix(s.URL(), "/api")+path, &websocket.DialOptions{
		HTTPClient: s.client, HTTPHeader: http.Header{"Authorization": {"Bearer " + s.key}},
	})
	return conn, err
}

func TestLogCountsRequestsAndBytes(t *testing.T) {
	needProcesses(t)
	s := serve(t, emulator.Options{})
	sb := s.create(`{"name":"counted"}`)
	s.ResetRequests()
	file := strings.Repeat("x", 1<<20)
	if err := os.WriteFile(filepath.Join(sb.Home(), "big"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := s.must(http.StatusOK, "GET", "/toolbox/"+sb.ID()+"/files/download?path=big", ""); r.text != file {
		t.Errorf("download: got %d bytes, want %d equal ones", len(r.text), len(file))
	}
	command := `{"command":"true"}`
	s.must(http.StatusOK, "POST", "/toolbox/"+sb.ID()+"/process/execute", command)
	s.must(http.StatusUnauthorized, "GET", "/api/sandbox/counted", "", "Authorization", "x")
	conn := s.session(sb.ID(), "s", "echo out")
	for {
		if _, _, err := conn.Read(t.Context()); err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Errorf("follow: got %v, want a normal closure", err)
			}
			break
		}
	}
	requests := s.Requests()
	for len(requests) == 6 && !requests[5].Done { // the handler returns after the close frame
		requests = s.Requests()
	}
	if len(requests) != 6 {
		t.Fatalf("requests: got %d, want 6: %+v", len(requests), requests)
	}
	if got := requests[0]; got.Method != "GET" || got.Path != "/toolbox/"+sb.ID()+"/files/download" || got.Query != "path=big" || got.Status != 200 || got.Sent != 1<<20 || !got.Done {
		t.Errorf("download: got %+v", got)
	}
	if got := requests[1]; got.Received != int64(len(command)) || got.Sent == 0 || got.Duration <= 0 {
		t.Errorf("execute: got %+v", got)
	}
	if got := requests[2].Status; got != http.StatusUnauthorized {
		t.Errorf("unauthorized: got status %d", got)
	}
	if got := requests[5]; !got.WebSocket || got.Status != 101 || got.Sent == 0 || got.Received == 0 {
		t.Errorf("follow: got %+v", got)
	}
}

func TestPreviewReachesAPortOfTheSandbox(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer conn.CloseNow()
			kind, data, err := conn.Read(r.Context())
			if err == nil {
				conn.Write(r.Context(), kind, data)
				conn.Close(4001, "done")
			}
			return
		}
		w.Header().Set("X-Seen", r.Header.Get("X-Daytona-Preview-Token")+r.URL.RawQuery)
		io.WriteString(w, r.Method+" "+r.URL.Path)
	}))
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(address.Host)
	if err != nil {
		t.Fatal(err)
	}

	s := serve(t, emulator.Options{})
	sb := s.create(`{"name":"web"}`)
	ports := "/api/sandbox/web/ports/"
	link := s.must(http.StatusOK, "GET", ports+port+"/preview-url", "")
	if link.str("sandboxId") != sb.ID() || link.str("token") == "" {
		t.Errorf("preview URL: got %s", link.text)
	}
	for _, test := range []struct {
		name, address string
		header        []string
		status        int
	}{
		{"header", link.str("url") + "/a/b?q=1", []string{"X-Daytona-Preview-Token", link.str("token")}, 200},
		{"query", link.str("url") + "/a/b?DAYTONA_SANDBOX_AUTH_KEY=" + link.str("token") + "&q=1", nil, 200},
		{"host", strings.TrimSuffix(s.URL(), "/api") + "/a/b?q=1", []string{"Host", port + "-" + sb.ID() + ".preview.test", "X-Daytona-Preview-Token", link.str("token")}, 200},
		{"signed", s.must(http.StatusOK, "GET", ports+port+"/signed-preview-url", "").str("url") + "/a/b?q=1", nil, 200},
		{"no token", link.str("url") + "/a/b", nil, 401},
		{"wrong token", link.str("url") + "/a/b", []string{"X-Daytona-Preview-Token", "x"}, 401},
		{"wrong token, by host", strings.TrimSuffix(s.URL(), "/api") + "/a/b", []string{"Host", port + "-" + sb.ID() + ".preview.test", "X-Daytona-Preview-Token", "x"}, 307},
		{"no port", strings.TrimSuffix(s.URL(), "/api") + "/preview/x-y/", nil, 404},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := s.must(test.status, "GET", test.address, "", test.header...)
			if test.status != 200 {
				return
			}
			if r.text != "GET /a/b" {
				t.Errorf("body: got %q, want GET /a/b", r.text)
			}
			if got := r.header.Get("X-Seen"); got != "q=1" {
				t.Errorf("what the upstream saw of the token and the query: got %q, want q=1", got)
			}
		})
	}

	conn, _, err := websocket.Dial(t.Context(), link.str("url")+"/socket", &websocket.DialOptions{
		HTTPClient: s.client, HTTPHeader: http.Header{"X-Daytona-Preview-Token": {link.str("token")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("ping")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := conn.Read(t.Context()); err != nil || string(data) != "ping" {
		t.Errorf("echo: got %q, %v", data, err)
	}
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != 4001 {
		t.Errorf("close: got %v, want 4001", err)
	}

	for _, bad := range []string{"0", "65536", "x"} {
		s.must(http.StatusBadRequest, "GET", ports+bad+"/preview-url", "")
	}
	near, err := net.Dial("tcp", address.Host) // nobody can listen on the port of its near end
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	_, closed, err := net.SplitHostPort(near.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	if r := s.must(http.StatusBadGateway, "GET", s.must(http.StatusOK, "GET", ports+closed+"/signed-preview-url", "").str("url")+"/", ""); r.text != "" {
		t.Errorf("nothing listening: got body %q, want none", r.text)
	}
	signed := s.must(http.StatusOK, "GET", ports+port+"/signed-preview-url", "")
	s.must(http.StatusOK, "POST", ports+port+"/signed-preview-url/"+signed.str("token")+"/expire", "")
	s.must(http.StatusUnauthorized, "GET", signed.str("url")+"/", "")
	s.must(http.StatusOK, "POST", "/api/sandbox/web/public/true", "")
	s.must(http.StatusOK, "GET", link.str("url")+"/", "")
	s.must(http.StatusOK, "POST", "/api/sandbox/web/stop", "")
	s.must(http.StatusBadRequest, "GET", link.str("url")+"/", "")
}

func TestPreviewDomainMakesHostNames(t *testing.T) {
	s := serve(t, emulator.Options{PreviewDomain: "preview.localhost"})
	sb := s.create(`{}`)
	address, err := url.Parse(s.must(http.StatusOK, "GET", "/api/sandbox/"+sb.ID()+"/ports/80/preview-url", "").str("url"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := address.Host, "80-"+sb.ID()+".preview.localhost:"+base.Port(); got != want {
		t.Errorf("host: got %q, want %q", got, want)
	}
}

func TestCloseKillsWhatRuns(t *testing.T) {
	needProcesses(t)
	s, err := emulator.Start(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &server{Server: s, t: t, client: &http.Client{Transport: transport}, key: s.APIKey()}
	sb := client.create(`{}`)
	client.execute(sb.ID(), "setsid -f sleep 1000 >/dev/null 2>&1")
	conn := client.session(sb.ID(), "s", "echo x; sleep 1000")
	defer conn.CloseNow()
	pids, err := sb.Processes()
	if err != nil || len(pids) < 2 {
		t.Fatalf("processes: got %v, %v", pids, err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d survived the server", pid)
		}
	}
	if _, err := os.Stat(sb.Home()); !os.IsNotExist(err) {
		t.Errorf("home: got %v, want not exist", err)
	}
}
