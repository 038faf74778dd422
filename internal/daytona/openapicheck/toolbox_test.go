package openapicheck

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// driveToolboxRefusals makes the toolbox proxy and the daemon refuse.
func driveToolboxRefusals(t *testing.T, server *emulator.Server) {
	ctx, c := deadline(t), client(t, server)
	sb := started(t, server, c, daytona.CreateRequest{Name: "toolbox"})
	box := newCaller(t, sb.ToolboxURL+"/"+sb.ID, server.APIKey())

	t.Run("proxy", func(t *testing.T) {
		newCaller(t, sb.ToolboxURL+"/"+sb.ID, "").call(401, "GET /version", "")
		newCaller(t, sb.ToolboxURL+"/"+sb.ID, "wrong").call(401, "GET /version", "")
		newCaller(t, sb.ToolboxURL+"/none", server.APIKey()).call(401, "GET /version", "")
		newCaller(t, sb.ToolboxURL+"/toolbox", server.APIKey()).call(401, "GET /version", "")
		box.call(404, "GET /nothing", "")
	})
	t.Run("execute", func(t *testing.T) {
		for _, body := range []string{`{`, `{"command":""}`, `{"command":"true","envs":{"a-b":"c"}}`} {
			box.call(400, "POST /process/execute", body)
		}
		box.call(408, "POST /process/execute", `{"command":"exec sleep 30","timeout":1}`)
		box.call(200, "POST /process/execute", `{"command":"true","cwd":"/none"}`)
	})
	t.Run("sessions", func(t *testing.T) {
		box.call(201, "POST /process/session", `{"sessionId":"s"}`)
		box.call(409, "POST /process/session", `{"sessionId":"s"}`)
		for _, body := range []string{`{`, `{"sessionId":""}`, `{"sessionId":"entrypoint"}`} {
			box.call(400, "POST /process/session", body)
		}
		box.call(404, "GET /process/session/none", "")
		box.call(404, "DELETE /process/session/none", "")
		box.call(500, "POST /process/session/none/exec", `{"command":"true"}`)
		box.call(400, "POST /process/session/s/exec", `{"command":" "}`)
		box.call(400, "POST /process/session/s/exec", `{`)
		box.call(404, "GET /process/session/s/command/none", "")
		box.call(404, "GET /process/session/none/command/none", "")
		box.call(404, "GET /process/session/s/command/none/logs", "")
		box.call(404, "GET /process/session/s/command/none/logs?follow=true", "")
		box.call(404, "POST /process/session/s/command/none/input", `{"data":"x"}`)
		var command struct {
			ID string `json:"cmdId"`
		}
		ok(t, "exec", json.Unmarshal(box.call(200, "POST /process/session/s/exec", `{"command":"true"}`), &command))
		box.call(400, "POST /process/session/s/command/"+command.ID+"/input", `{"data":""}`)
		box.call(410, "POST /process/session/s/command/"+command.ID+"/input", `{"data":"x"}`)
		box.call(204, "DELETE /process/session/s", "")
	})
	t.Run("files", func(t *testing.T) {
		for _, line := range []string{
			"GET /files?path=none", "GET /files/info?path=none", "GET /files/download?path=none", "DELETE /files?path=none",
			"POST /files/permissions?path=none&mode=0600", "POST /files/move?source=none&destination=other",
		} {
			box.call(404, line, "")
		}
		ok(t, "files", c.Toolbox(sb).Upload(ctx,
			daytona.File{Path: "a", Content: strings.NewReader("abc")}, daytona.File{Path: "b", Content: strings.NewReader("")},
			daytona.File{Path: "dir/c", Content: strings.NewReader("")}))
		for _, line := range []string{
			"GET /files/info", "GET /files/download", "GET /files/download?path=dir", "DELETE /files", "DELETE /files?path=dir",
			"POST /files/folder", "POST /files/move?source=a", "POST /files/permissions?path=a&mode=x", "GET /files/search?path=.", "GET /files/find?path=.",
			"POST /files/folder?path=a/x&mode=0755",
		} {
			box.call(400, line, "")
		}
		box.call(409, "POST /files/move?source=a&destination=b", "")
		box.call(416, "GET /files/download?path=a", "", "Range: bytes=9-")
		box.call(400, "POST /files/replace", `{`)
		box.call(400, "POST /files/bulk-download", `{"paths":[]}`)
		const form = "Content-Type: multipart/form-data; boundary=b"
		part := func(name, content string) string {
			return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"f\"\r\n\r\n" + content + "\r\n"
		}
		box.call(400, "POST /files/upload?path=d", "--b--\r\n", form)
		box.call(400, "POST /files/upload?path=dir", part("file", "x")+"--b--\r\n", form)
		box.call(400, "POST /files/bulk-upload", part("files[0].path", "dir")+part("files[0].file", "x")+"--b--\r\n", form)
	})
	t.Run("terminals", func(t *testing.T) {
		box.call(201, "POST /process/pty", `{"id":"p"}`)
		box.call(409, "POST /process/pty", `{"id":"p"}`)
		for _, body := range []string{`{`, `{}`, `{"id":"big","cols":1001}`} {
			box.call(400, "POST /process/pty", body)
		}
		box.call(500, "POST /process/pty", `{"id":"lost","cwd":"/none"}`)
		box.call(404, "GET /process/pty/none", "")
		box.call(404, "DELETE /process/pty/none", "")
		box.call(410, "POST /process/pty/none/resize", `{"cols":1,"rows":1}`)
		box.call(400, "POST /process/pty/p/resize", `{"cols":0,"rows":1}`)
		box.call(200, "DELETE /process/pty/p", "")
	})
	t.Run("state", func(t *testing.T) {
		ok(t, "stop", c.Stop(ctx, sb.ID))
		box.call(400, "GET /version", "")
		if state := server.Sandbox(sb.ID).Settle(time.Minute); state != emulator.StateStopped {
			t.Fatalf("state %q, want stopped", state)
		}
		box.call(400, "POST /process/execute", `{"command":"true"}`)
		ok(t, "start", c.Start(ctx, sb.ID))
		server.Sandbox(sb.ID).Settle(time.Minute)
		server.Sandbox(sb.ID).LoseContainer()
		box.call(404, "GET /version", "")
	})
}
