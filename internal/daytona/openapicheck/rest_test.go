package openapicheck

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// caller sends single requests with the server's key.
type caller struct {
	t    *testing.T
	base string
	key  string
	http *http.Client
}

func newCaller(t *testing.T, base, key string) *caller {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &caller{t, base, key, &http.Client{Transport: transport}}
}

// call sends a request, demands a status, and returns the reply's body. The line is method, path and query.
// A header is "Name: value".
func (c *caller) call(want int, line, body string, header ...string) []byte {
	c.t.Helper()
	method, target, _ := strings.Cut(line, " ")
	request, err := http.NewRequestWithContext(deadline(c.t), method, c.base+target, nil)
	ok(c.t, line, err)
	if body != "" {
		request.Body, request.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		request.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := c.http.Do(request)
	ok(c.t, line, err)
	defer response.Body.Close()
	reply, err := io.ReadAll(response.Body)
	ok(c.t, line, err)
	if response.StatusCode != want {
		c.t.Errorf("%s: status %d, want %d: %s", line, response.StatusCode, want, short(reply))
	}
	return reply
}

// driveRest makes the requests that neither client can make.
func driveRest(t *testing.T, server *emulator.Server) {
	sb := started(t, server, client(t, server), daytona.CreateRequest{Name: "rest"})
	api := newCaller(t, server.URL(), server.APIKey())
	image := api.call(200, "POST /sandbox", `{"name":"rest-image","buildInfo":{"dockerfileContent":"FROM debian:13\n"},"cpu":1,"memory":1,"disk":1}`)
	var built struct{ ID string }
	ok(t, "create", json.Unmarshal(image, &built))
	server.Sandbox(built.ID).Settle(time.Minute)

	api.call(200, "GET /health", "")
	api.call(200, "GET /organizations", "")
	api.call(200, "GET /api-keys/current", "")
	api.call(200, "GET /sandbox?limit=1", "")
	api.call(200, "GET /sandbox/"+sb.ID+"/toolbox-proxy-url", "")
	api.call(200, "GET /sandbox/"+sb.ID+"/organization", "")
	api.call(200, "GET /sandbox/rest-image/build-logs?follow=true", "")
	var access struct{ Token string }
	ok(t, "ssh", json.Unmarshal(api.call(200, "POST /sandbox/rest/ssh-access?expiresInMinutes=5", ""), &access))
	api.call(200, "GET /sandbox/ssh-access/validate?token="+access.Token, "")
	api.call(200, "GET /snapshots?page=1&limit=1&name=daytona", "")
	api.call(200, "POST /snapshots", `{"name":"rest-built","buildInfo":{"dockerfileContent":"FROM debian:13\n"}}`)
	api.call(200, "GET /snapshots/rest-built/build-logs?follow=true", "")
	api.call(200, "POST /sandbox/rest/public/true", "")
	api.call(200, "POST /sandbox/rest/autostop/30", "")
	api.call(200, "POST /sandbox/rest/ttl/90", "")
	api.call(201, "POST /sandbox/"+sb.ID+"/last-activity", "")
	api.call(200, "GET /sandbox/paginated", "") // with the lifetime
	api.call(200, "DELETE /sandbox/rest-image", "")

	box := newCaller(t, sb.ToolboxURL+"/"+sb.ID, server.APIKey())
	box.call(200, "POST /init", `{"token":"t"}`)
	box.call(200, "GET /version", "")
	box.call(200, "GET /project-dir", "")
	box.call(200, "GET /files", "")
	box.call(200, "GET /files?path=.", "")
	box.call(201, "POST /process/session", `{"sessionId":"s"}`)
	var command struct {
		ID string `json:"cmdId"`
	}
	ok(t, "exec", json.Unmarshal(box.call(200, "POST /process/session/s/exec", `{"command":"echo x"}`), &command))
	logs := "GET /process/session/s/command/" + command.ID + "/logs"
	for _, header := range []string{"Accept: */*", "X-Daytona-SDK-Version: 0.100.0", "X-Daytona-SDK-Version: v0.170.0", "X-Daytona-Split-Output: true"} {
		box.call(200, logs, "", header)
	}
	ok(t, "exec", json.Unmarshal(box.call(202, "POST /process/session/s/exec", `{"command":"sh -c 'echo ready; read line'","runAsync":true}`), &command))
	reading := "/process/session/s/command/" + command.ID
	for !bytes.Contains(box.call(200, "GET "+reading+"/logs", ""), []byte("ready")) { // before it runs it takes no input
	}
	box.call(204, "POST "+reading+"/input", `{"data":"word"}`)
	box.call(204, "DELETE /process/session/s", "")

	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "served "+r.URL.Path) }))
	defer page.Close()
	at, err := url.Parse(page.URL)
	ok(t, "port", err)
	var preview struct{ URL, Token string }
	ok(t, "preview", json.Unmarshal(api.call(200, "GET /sandbox/"+sb.ID+"/ports/"+at.Port()+"/preview-url", ""), &preview))
	if got := newCaller(t, preview.URL, "").call(200, "GET /x", "", "X-Daytona-Preview-Token: "+preview.Token); !bytes.Equal(got, []byte("served /x")) {
		t.Errorf("preview: %q", got)
	}
}

// driveRefusals makes the control plane refuse.
func driveRefusals(t *testing.T, server *emulator.Server) {
	c := client(t, server)
	sb := started(t, server, c, daytona.CreateRequest{Name: "refused"})
	api := newCaller(t, server.URL(), server.APIKey())
	t.Run("credential", func(t *testing.T) {
		for _, key := range []string{"", "wrong"} {
			stranger := newCaller(t, server.URL(), key)
			stranger.call(401, "GET /sandbox/refused", "")
			stranger.call(401, "GET /sandbox/paginated", "")
			stranger.call(401, "POST /sandbox", `{}`)
			stranger.call(401, "DELETE /sandbox/refused", "")
		}
	})
	t.Run("unknown sandbox", func(t *testing.T) {
		for _, line := range []string{
			"GET /sandbox/none", "DELETE /sandbox/none", "POST /sandbox/none/start", "POST /sandbox/none/stop", "POST /sandbox/none/archive",
			"POST /sandbox/none/recover", "POST /sandbox/none/autodelete/1", "POST /sandbox/none/last-activity",
			"GET /sandbox/none/ports/1/preview-url", "GET /sandbox/refused/toolbox-proxy-url",
			"POST /sandbox/none/ports/1/signed-preview-url/none/expire", "POST /sandbox/none/ssh-access", "DELETE /sandbox/none/ssh-access",
			"GET /snapshots/none", "DELETE /snapshots/00000000-0000-4000-8000-000000000000",
		} {
			api.call(404, line, "")
		}
		api.call(404, "PUT /sandbox/none/labels", `{"labels":{}}`)
		api.call(404, "POST /sandbox", `{"target":"nowhere"}`)
		api.call(404, "GET /nothing", "")
	})
	t.Run("creation", func(t *testing.T) {
		api.call(409, "POST /sandbox", `{"name":"refused"}`)
		for _, body := range []string{
			`{"name":`, `{"name":1}`, `{"name":"<b>"}`, `{"snapshot":"none"}`, `{"snapshot":"inactive"}`, `{"cpu":2}`, `{"autoStopInterval":-1}`,
			`{"name":"fails","snapshot":"broken"}`,
		} {
			api.call(400, "POST /sandbox", body)
		}
		api.call(200, "GET /sandbox/fails", "")
		api.call(400, "POST /sandbox/fails/start", "")
		api.call(400, "POST /sandbox/fails/stop", "")
		api.call(200, "GET /sandbox/paginated?states=error", "")
		api.call(200, "DELETE /sandbox/fails", "")
		server.SetLimits(emulator.Limits{Sandboxes: 1})
		api.call(400, "POST /sandbox", `{}`)
		server.SetLimits(emulator.Limits{Suspended: true})
		api.call(403, "POST /sandbox", `{}`)
		server.SetLimits(emulator.Limits{CreateRate: 1})
		api.call(400, "POST /sandbox", `{"snapshot":"none"}`)
		api.call(429, "POST /sandbox", `{}`)
		server.SetLimits(emulator.Limits{RequestRate: 1})
		api.call(200, "GET /sandbox/refused", "")
		api.call(429, "GET /sandbox/refused", "")
		server.SetLimits(emulator.Limits{})
	})
	t.Run("arguments", func(t *testing.T) {
		for _, line := range []string{
			"GET /sandbox/paginated?limit=201", "GET /sandbox/paginated?page=0", "GET /sandbox/paginated?labels=x", "GET /sandbox?cursor=none",
			"POST /sandbox/refused/autostop/x", "POST /sandbox/refused/autoarchive/-1", "GET /sandbox/refused/ports/0/preview-url",
			"GET /sandbox/refused/ports/1/signed-preview-url?expiresInSeconds=0", "POST /sandbox/refused/recover",
		} {
			api.call(400, line, "")
		}
		api.call(400, "POST /sandbox/refused/ssh-access?expiresInMinutes=x", "")
		api.call(400, "DELETE /snapshots/refused", "")
		api.call(400, "POST /snapshots", `{"name":"a b","imageName":"debian:13"}`)
		api.call(400, "POST /snapshots", `{`)
		api.call(400, "POST /sandbox/refused/snapshot", `{}`)
		api.call(200, "POST /snapshots", `{"name":"twice","imageName":"debian:13"}`)
		api.call(409, "POST /snapshots", `{"name":"twice","imageName":"debian:13"}`)
		api.call(409, "POST /sandbox/refused/snapshot", `{"name":"twice"}`)
		var general struct{ ID string }
		ok(t, "general snapshot", json.Unmarshal(api.call(200, "GET /snapshots/inactive", ""), &general))
		api.call(403, "DELETE /snapshots/"+general.ID, "")
		api.call(400, "PUT /sandbox/refused/labels", `{}`)
		api.call(400, "PUT /sandbox/refused/labels", `{`)
	})
	t.Run("state change", func(t *testing.T) {
		server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/stop", Action: emulator.StallChange})
		api.call(200, "POST /sandbox/refused/stop", "")
		api.call(200, "GET /sandbox/refused", "")
		for _, line := range []string{"POST /sandbox/refused/stop", "POST /sandbox/refused/start", "DELETE /sandbox/refused"} {
			api.call(409, line, "")
		}
		server.Sandbox(sb.ID).Force(emulator.StateStopped, "", false) // the change, which would go on for ever, is over
		api.call(400, "POST /sandbox/refused/stop", "")
		api.call(200, "POST /sandbox/refused/start", "")
	})
}
