package daytona

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/daytonaio/daytona/libs/sdk-go/pkg/daytona"
	"github.com/daytonaio/daytona/libs/sdk-go/pkg/options"
	sdktypes "github.com/daytonaio/daytona/libs/sdk-go/pkg/types"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestTheSDKWorksWithTheEmulator drives the emulator with the SDK as its authors ship it, own HTTP client and websockets
// included: what satisfies only this package is no Daytona.
func TestTheSDKWorksWithTheEmulator(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // the SDK leaves a copy of each download there
	needProcesses(t)
	for name := range hostileEnvironment {
		t.Setenv(name, "") // the SDK obeys it
	}
	s, err := emulator.Start(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// The SDK has no transport of its own.
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	client, err := sdk.NewClientWithConfig(&sdktypes.DaytonaConfig{APIKey: s.APIKey(), APIUrl: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 90*time.Second)
	defer client.Close(ctx)

	sb, err := client.Create(ctx, sdktypes.SnapshotParams{SandboxBaseParams: sdktypes.SandboxBaseParams{Name: "sdk", Labels: map[string]string{"team": "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s = %v", what, err)
		}
	}
	if got, err := client.Get(ctx, "sdk"); err != nil || got.ID != sb.ID || got.State != "started" {
		t.Errorf("Get() = %+v, %v", got, err)
	}
	if got, err := client.List(ctx, map[string]string{"team": "a"}, nil, nil); err != nil || len(got.Items) != 1 || got.Total != 1 {
		t.Errorf("List() = %+v, %v", got, err)
	}
	check("SetLabels()", sb.SetLabels(ctx, map[string]string{"team": "b"}))
	if link, err := sb.GetPreviewLink(ctx, 3000); err != nil || link.URL == "" || link.Token == "" {
		t.Errorf("GetPreviewLink() = %+v, %v", link, err)
	}
	if dir, err := sb.GetWorkingDir(ctx); err != nil || dir == "" {
		t.Errorf("GetWorkingDir() = %q, %v", dir, err)
	}

	got, err := sb.Process.ExecuteCommand(ctx, "echo $K; exit 4", options.WithCommandEnv(map[string]string{"K": "value"}), options.WithExecuteTimeout(10*time.Second))
	if err != nil || got.ExitCode != 4 || got.Result != "value\n" {
		t.Errorf("ExecuteCommand() = %+v, %v", got, err)
	}
	sdkSession(t, ctx, sb)
	sdkTerminal(t, ctx, sb)
	sdkFiles(t, ctx, sb)

	check("Stop()", sb.Stop(ctx))
	check("Start()", sb.Start(ctx))
	if got, err := sb.Process.ExecuteCommand(ctx, "cat kept"); err != nil || got.Result != "kept" {
		t.Errorf("after the restart: %+v, %v", got, err)
	}
	check("Delete()", sb.Delete(ctx))
}

func sdkSession(t *testing.T, ctx context.Context, sb *sdk.Sandbox) {
	t.Helper()
	if err := sb.Process.CreateSession(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	now, err := sb.Process.ExecuteSessionCommand(ctx, "s", "echo out; echo err >&2", false, false)
	for err != nil && strings.Contains(err.Error(), "failed to convert exit code") { // the daemon looked while it was written
		now, err = sb.Process.ExecuteSessionCommand(ctx, "s", "echo out; echo err >&2", false, false)
	}
	if err != nil || fmt.Sprint(now["stdout"]) != "out\n" || fmt.Sprint(now["stderr"]) != "err\n" || fmt.Sprint(now["exitCode"]) != "0" {
		t.Errorf("synchronous command: %v, %v", now, err)
	}
	later, err := sb.Process.ExecuteSessionCommand(ctx, "s", "for i in 1 2 3; do echo out $i; echo err $i >&2; done", true, false)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := later["id"].(string)
	stdout, stderr := make(chan string, 100), make(chan string, 100)
	if err := sb.Process.GetSessionCommandLogsStream(ctx, "s", id, stdout, stderr); err != nil {
		t.Errorf("GetSessionCommandLogsStream() = %v", err)
	}
	collect := func(c chan string) string {
		var all strings.Builder
		for s := range c {
			all.WriteString(s)
		}
		return all.String()
	}
	if out, errs := collect(stdout), collect(stderr); out != "out 1\nout 2\nout 3\n" || errs != "err 1\nerr 2\nerr 3\n" {
		t.Errorf("streamed %q and %q", out, errs)
	}
	if status, err := sb.Process.GetSessionCommand(ctx, "s", id); err != nil || fmt.Sprint(status["exitCode"]) != "0" {
		t.Errorf("GetSessionCommand() = %v, %v", status, err)
	}
	if logs, err := sb.Process.GetSessionCommandLogs(ctx, "s", id); err != nil || logs.GetStdout() != "out 1\nout 2\nout 3\n" {
		t.Errorf("GetSessionCommandLogs() = %+v, %v", logs, err)
	}
	if session, err := sb.Process.GetSession(ctx, "s"); err != nil || session["sessionId"] != "s" {
		t.Errorf("GetSession() = %v, %v", session, err)
	}
	if list, err := sb.Process.ListSessions(ctx); err != nil || len(list) != 1 {
		t.Errorf("ListSessions() = %v, %v", list, err)
	}
	if err := sb.Process.DeleteSession(ctx, "s"); err != nil {
		t.Errorf("DeleteSession() = %v", err)
	}
}

func sdkTerminal(t *testing.T, ctx context.Context, sb *sdk.Sandbox) {
	t.Helper()
	p, err := sb.Process.CreatePty(ctx, "p", options.WithCreatePtySize(sdktypes.PtySize{Cols: 80, Rows: 24}))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitForConnection(ctx); err != nil {
		t.Fatal(err)
	}
	if list, err := sb.Process.ListPtySessions(ctx); err != nil || len(list) != 1 || list[0].ID != "p" {
		t.Errorf("ListPtySessions() = %v, %v", list, err)
	}
	if info, err := p.Resize(ctx, 100, 50); err != nil || info.Cols != 100 || info.Rows != 50 {
		t.Errorf("Resize() = %+v, %v", info, err)
	}
	if err := p.SendInput([]byte("echo done-$((40+2)); read x; exit 0\n")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	answered := false
	for data := range p.DataChan() {
		out.Write(data)
		if !answered && strings.Contains(out.String(), "done-42") {
			answered = true
			if err := p.SendInput([]byte("\n")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !answered {
		t.Errorf("output %q", out.String())
	}
	if result, err := p.Wait(ctx); err != nil || result.ExitCode == nil || *result.ExitCode != 0 {
		t.Errorf("Wait() = %+v, %v", result, err)
	}
	if err := p.Disconnect(); err != nil {
		t.Errorf("Disconnect() = %v", err)
	}
}

func sdkFiles(t *testing.T, ctx context.Context, sb *sdk.Sandbox) {
	t.Helper()
	fs := sb.FileSystem
	if err := fs.CreateFolder(ctx, "d/e"); err != nil {
		t.Errorf("CreateFolder() = %v", err)
	}
	content := bytes.Repeat([]byte{0, 1, 0xff, '\n'}, 10_000)
	if err := fs.UploadFile(ctx, content, "d/e/f"); err != nil {
		t.Fatal(err)
	}
	if got, err := fs.DownloadFile(ctx, "d/e/f", nil); err != nil || !bytes.Equal(got, content) {
		t.Errorf("DownloadFile() = %d bytes, %v", len(got), err)
	}
	if info, err := fs.GetFileInfo(ctx, "d/e/f"); err != nil || info.Size != int64(len(content)) {
		t.Errorf("GetFileInfo() = %+v, %v", info, err)
	}
	if list, err := fs.ListFiles(ctx, "d/e"); err != nil || len(list) != 1 || list[0].Name != "f" {
		t.Errorf("ListFiles() = %v, %v", list, err)
	}
	if err := fs.SetFilePermissions(ctx, "d/e/f", options.WithPermissionMode("0600")); err != nil {
		t.Errorf("SetFilePermissions() = %v", err)
	}
	if err := fs.MoveFiles(ctx, "d/e/f", "d/g"); err != nil {
		t.Errorf("MoveFiles() = %v", err)
	}
	if err := fs.DeleteFile(ctx, "d", true); err != nil {
		t.Errorf("DeleteFile() = %v", err)
	}
	if err := fs.UploadFile(ctx, []byte("kept"), "kept"); err != nil {
		t.Errorf("UploadFile() = %v", err)
	}
}
