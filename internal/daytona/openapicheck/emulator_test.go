package openapicheck

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The documents, by the client modules that ship them.
const (
	control = "github.com/daytonaio/daytona/libs/api-client-go"
	toolbox = "github.com/daytonaio/daytona/libs/toolbox-api-client-go"
)

// required are the operations that the emulator serves for leases, commands, sessions, logs, files, terminals and
// previews: each must have been exercised. Those that a document lacks are in the table of known differences.
var required = map[string][]string{
	control: {
		"POST /sandbox",
		"GET /sandbox",
		"GET /sandbox/paginated",
		"GET /sandbox/{sandboxIdOrName}",
		"DELETE /sandbox/{sandboxIdOrName}",
		"POST /sandbox/{sandboxIdOrName}/start",
		"POST /sandbox/{sandboxIdOrName}/stop",
		"POST /sandbox/{sandboxIdOrName}/archive",
		"POST /sandbox/{sandboxIdOrName}/recover",
		"PUT /sandbox/{sandboxIdOrName}/labels",
		"POST /sandbox/{sandboxIdOrName}/public/{isPublic}",
		"POST /sandbox/{sandboxIdOrName}/autostop/{interval}",
		"POST /sandbox/{sandboxIdOrName}/autoarchive/{interval}",
		"POST /sandbox/{sandboxIdOrName}/autodelete/{interval}",
		"POST /sandbox/{sandboxIdOrName}/ttl/{ttlMinutes}",
		"POST /sandbox/{sandboxId}/last-activity",
		"GET /sandbox/{sandboxId}/toolbox-proxy-url",
		"GET /sandbox/{sandboxId}/organization",
		"GET /sandbox/{sandboxIdOrName}/build-logs",
		"GET /sandbox/{sandboxIdOrName}/ports/{port}/preview-url",
		"GET /sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url",
		"POST /sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url/{token}/expire",
		"POST /sandbox/{sandboxIdOrName}/ssh-access",
		"DELETE /sandbox/{sandboxIdOrName}/ssh-access",
		"GET /sandbox/ssh-access/validate",
		"POST /sandbox/{sandboxIdOrName}/snapshot",
		"GET /snapshots",
		"POST /snapshots",
		"GET /snapshots/{id}",
		"DELETE /snapshots/{id}",
		"GET /snapshots/{id}/build-logs",
		"GET /snapshots/{id}/build-logs-url",
		"GET /organizations",
		"GET /api-keys/current",
		"GET /health",
	},
	toolbox: {
		"GET /version",
		"GET /work-dir",
		"GET /user-home-dir",
		"POST /init",
		"POST /process/execute",
		"GET /process/session",
		"POST /process/session",
		"GET /process/session/entrypoint",
		"GET /process/session/entrypoint/logs",
		"GET /process/session/{sessionId}",
		"DELETE /process/session/{sessionId}",
		"POST /process/session/{sessionId}/exec",
		"GET /process/session/{sessionId}/command/{commandId}",
		"GET /process/session/{sessionId}/command/{commandId}/logs",
		"POST /process/session/{sessionId}/command/{commandId}/input",
		"GET /process/pty",
		"POST /process/pty",
		"GET /process/pty/{sessionId}",
		"DELETE /process/pty/{sessionId}",
		"GET /process/pty/{sessionId}/connect",
		"POST /process/pty/{sessionId}/resize",
		"GET /files",
		"DELETE /files",
		"GET /files/info",
		"POST /files/folder",
		"POST /files/permissions",
		"POST /files/move",
		"POST /files/upload",
		"POST /files/bulk-upload",
		"GET /files/download",
		"POST /files/bulk-download",
		"GET /files/search",
		"GET /files/find",
		"POST /files/replace",
	},
}

// TestEmulatorSpeaksAsTheDocumentsSay drives an emulator through the SDK, through this project's own client and
// through plain requests that fail, and then holds every exchange against the documents.
func TestEmulatorSpeaksAsTheDocumentsSay(t *testing.T) {
	if runtime.GOOS == "windows" {
		lacks(t, "sandboxes cannot run on windows")
	}
	documents := map[string]*Document{control: document(t, control), toolbox: document(t, toolbox)}

	recorder := &Recorder{}
	server, err := emulator.Start(emulator.Options{
		Snapshots: []emulator.Snapshot{
			{Name: emulator.DefaultSnapshot},
			{Name: "inactive", State: "pulling"},
			{Name: "broken", Failure: "timeout while creating", Recoverable: true},
		},
		// Without it, the replies that read an exit code would be 500 now and then.
		Quirks:     emulator.Quirks{ExitCodeWindow: -1},
		Middleware: recorder.Middleware,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })

	t.Run("SDK", func(t *testing.T) { driveSDK(t, server) })
	t.Run("client", func(t *testing.T) { driveClient(t, server) })
	t.Run("other endpoints", func(t *testing.T) { driveRest(t, server) })
	t.Run("refusals of the control plane", func(t *testing.T) { driveRefusals(t, server) })
	t.Run("refusals of the toolbox", func(t *testing.T) { driveToolboxRefusals(t, server) })
	if err := server.Close(); err != nil { // waits for every handler
		t.Error(err)
	}
	if t.Failed() {
		t.Fatal("the exchanges are not judged, because not all of them happened")
	}
	problems, report := judge(documents, differences, required, recorder.Exchanges())
	for _, problem := range problems {
		t.Error(problem)
	}
	t.Log(report)
}

// document loads the document of a client module, from where the go tool has put the module.
func document(t *testing.T, module string) *Document {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		lacks(t, fmt.Sprintf("the go tool cannot say where %s is: %v", module, err))
	}
	data, err := os.ReadFile(filepath.Join(string(bytes.TrimSpace(out)), "api", "openapi.yaml"))
	if err != nil {
		lacks(t, fmt.Sprintf("no OpenAPI document: %v", err))
	}
	document, err := Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// lacks skips the test, or fails it where every capability is demanded.
func lacks(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// deadline bounds what one part of the test does.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// client is this project's own client of a server.
func client(t *testing.T, server *emulator.Server) *daytona.Client {
	t.Helper()
	c, err := daytona.New(daytona.Config{APIURL: server.URL(), APIKey: server.APIKey()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// started creates a sandbox and waits for it. The test that made it deletes it.
func started(t *testing.T, server *emulator.Server, c *daytona.Client, request daytona.CreateRequest) *daytona.Sandbox {
	t.Helper()
	sb, err := c.Create(deadline(t), request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := c.Delete(ctx, sb.ID); err != nil {
			t.Errorf("delete: %v", err)
		}
	})
	if state := server.Sandbox(sb.ID).Settle(time.Minute); state != emulator.StateStarted {
		t.Fatalf("state %q after the creation, want %q", state, emulator.StateStarted)
	}
	return sb
}

// ok fails the test if a call did.
func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// status fails the test if a call did not fail with a status.
func status(t *testing.T, what string, err error, want int) {
	t.Helper()
	e, isError := err.(*daytona.Error)
	if !isError || e.Status != want {
		t.Errorf("%s: %v, want status %d (%s)", what, err, want, http.StatusText(want))
	}
}
