package openapicheck

import (
	"context"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/daytonaio/daytona/libs/sdk-go/pkg/daytona"
	"github.com/daytonaio/daytona/libs/sdk-go/pkg/options"
	"github.com/daytonaio/daytona/libs/sdk-go/pkg/types"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// driveSDK uses the emulator as programs use Daytona that know nothing of this project.
func driveSDK(t *testing.T, server *emulator.Server) {
	for _, name := range []string{"DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID", "DAYTONA_TARGET", "DAYTONA_EXPERIMENTAL_OTEL_ENABLED"} {
		t.Setenv(name, "") // the SDK lets them change an explicit configuration
	}
	ctx := deadline(t)
	sdk, err := daytona.NewClientWithConfig(&types.DaytonaConfig{APIKey: server.APIKey(), APIUrl: server.URL()})
	ok(t, "client", err)
	// The SDK's connections are those of the default transport.
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	defer sdk.Close(ctx)

	minutes := func(n int) *int { return &n }
	sb, err := sdk.Create(ctx, types.SnapshotParams{
		Snapshot: emulator.DefaultSnapshot,
		SandboxBaseParams: types.SandboxBaseParams{
			Name: "sdk", Labels: map[string]string{"made-by": "sdk"}, EnvVars: map[string]string{"COLOUR": "blue"},
			AutoStopInterval: minutes(20), AutoArchiveInterval: minutes(60), AutoDeleteInterval: minutes(120),
		},
	})
	ok(t, "create", err)
	image, err := sdk.Create(ctx, types.ImageParams{
		Image: "debian:13", Resources: &types.Resources{CPU: 2, Memory: 4, Disk: 5},
		SandboxBaseParams: types.SandboxBaseParams{Name: "sdk-image", Labels: map[string]string{"made-by": "sdk"}},
	})
	ok(t, "create from an image", err)
	ephemeral, err := sdk.Create(ctx, types.SnapshotParams{SandboxBaseParams: types.SandboxBaseParams{Ephemeral: true}})
	ok(t, "create without a name", err)
	ok(t, "delete", ephemeral.Delete(ctx))

	_, err = sdk.Get(ctx, sb.ID)
	ok(t, "get by id", err)
	sb, err = sdk.Get(ctx, "sdk")
	ok(t, "get by name", err)
	one := 1
	list, err := sdk.List(ctx, map[string]string{"made-by": "sdk"}, &one, &one)
	ok(t, "list", err)
	if list.Total != 2 || len(list.Items) != 1 {
		t.Errorf("list: %d of %d items, want 1 of 2", len(list.Items), list.Total)
	}
	_, err = sdk.List(ctx, nil, nil, nil)
	ok(t, "list all", err)

	ok(t, "labels", sb.SetLabels(ctx, map[string]string{"made-by": "sdk", "new": "yes"}))
	ok(t, "auto-archive", sb.SetAutoArchiveInterval(ctx, minutes(30)))
	ok(t, "auto-delete", sb.SetAutoDeleteInterval(ctx, minutes(-1)))
	_, err = sb.GetPreviewLink(ctx, 3000)
	ok(t, "preview link", err)
	signed, err := sb.GetSignedPreviewLink(ctx, 3000, 60)
	ok(t, "signed preview link", err)
	ok(t, "expire", sb.ExpireSignedPreviewLink(ctx, 3000, signed.Token))
	ok(t, "capture", sb.ExperimentalCreateSnapshot(ctx, "sdk-captured"))
	driveSDKSnapshots(t, ctx, sdk)
	_, err = sb.GetWorkingDir(ctx)
	ok(t, "working directory", err)
	home, err := sb.GetUserHomeDir(ctx)
	ok(t, "home directory", err)

	driveSDKProcesses(t, ctx, sb.Process, home)
	driveSDKTerminals(t, ctx, sb.Process)
	driveSDKFiles(t, ctx, sb.FileSystem, home)

	ok(t, "stop", sb.Stop(ctx))
	ok(t, "start", sb.Start(ctx))
	ok(t, "stop", sb.StopWithTimeout(ctx, 10*time.Second, true))
	ok(t, "archive", sb.Archive(ctx))
	server.Sandbox(sb.ID).Settle(time.Minute)
	ok(t, "delete", sb.Delete(ctx))
	ok(t, "delete", image.Delete(ctx))
}

func driveSDKSnapshots(t *testing.T, ctx context.Context, sdk *daytona.Client) {
	_, log, err := sdk.Snapshot.Create(ctx, &types.CreateSnapshotParams{Name: "sdk-built", Image: daytona.Base("debian:13").Run("true")})
	ok(t, "build", err)
	var last string
	for line := range log {
		last = line
	}
	if want := "Created snapshot sdk-built (active)"; last != want {
		t.Errorf("build: the log ended with %q, want %q", last, want)
	}
	list, err := sdk.Snapshot.List(ctx, nil, nil)
	ok(t, "list", err)
	for _, name := range []string{"sdk-built", "sdk-captured"} {
		made, err := sdk.Snapshot.Get(ctx, name)
		ok(t, "snapshot", err)
		ok(t, "delete snapshot", sdk.Snapshot.Delete(ctx, made))
	}
	if list.Total < 3 {
		t.Errorf("list: %d snapshots, want the two made and the general ones", list.Total)
	}
}

func driveSDKProcesses(t *testing.T, ctx context.Context, process *daytona.ProcessService, home string) {
	result, err := process.ExecuteCommand(ctx, `echo "$GREETING $(pwd)"; exit 3`,
		options.WithCwd(home), options.WithCommandEnv(map[string]string{"GREETING": "hello"}), options.WithExecuteTimeout(20*time.Second))
	ok(t, "execute", err)
	if want := "hello " + home; result.ExitCode != 3 || strings.TrimSpace(result.Result) != want {
		t.Errorf("execute: exit code %d, output %q, want 3 and %q", result.ExitCode, result.Result, want)
	}

	ok(t, "session", process.CreateSession(ctx, "sdk session"))
	reply, err := process.ExecuteSessionCommand(ctx, "sdk session", "echo out; echo err >&2", false, false)
	ok(t, "synchronous command", err)
	command := reply["id"].(string)
	reply, err = process.ExecuteSessionCommand(ctx, "sdk session", "read line; echo got $line", true, true)
	ok(t, "asynchronous command", err)
	if _, err := process.GetSessionCommand(ctx, "sdk session", reply["id"].(string)); err != nil {
		t.Errorf("running command: %v", err)
	}
	_, err = process.GetSessionCommand(ctx, "sdk session", command)
	ok(t, "command", err)
	logs, err := process.GetSessionCommandLogs(ctx, "sdk session", command)
	ok(t, "logs", err)
	if logs.GetStdout() != "out\n" || logs.GetStderr() != "err\n" {
		t.Errorf("logs: %q and %q, want %q and %q", logs.GetStdout(), logs.GetStderr(), "out\n", "err\n")
	}
	_, err = process.GetSession(ctx, "sdk session")
	ok(t, "get session", err)
	_, err = process.ListSessions(ctx)
	ok(t, "list sessions", err)
	_, err = process.GetEntrypointSession(ctx)
	ok(t, "entrypoint session", err)
	_, err = process.GetEntrypointLogs(ctx)
	ok(t, "entrypoint logs", err)

	ok(t, "session for a stream", process.CreateSession(ctx, "stream"))
	reply, err = process.ExecuteSessionCommand(ctx, "stream", "echo streamed", false, false)
	ok(t, "command for a stream", err)
	stdout, stderr := make(chan string, 100), make(chan string, 100)
	ok(t, "stream", process.GetSessionCommandLogsStream(ctx, "stream", reply["id"].(string), stdout, stderr))
	ok(t, "delete session", process.DeleteSession(ctx, "stream"))
	ok(t, "delete session", process.DeleteSession(ctx, "sdk session"))
}

func driveSDKTerminals(t *testing.T, ctx context.Context, process *daytona.ProcessService) {
	_, err := process.CreatePtySession(ctx, "plain", options.WithPtySize(types.PtySize{Rows: 30, Cols: 100}))
	ok(t, "terminal", err)
	_, err = process.ResizePtySession(ctx, "plain", types.PtySize{Rows: 40, Cols: 120})
	ok(t, "resize", err)
	_, err = process.GetPtySessionInfo(ctx, "plain")
	ok(t, "terminal info", err)
	terminals, err := process.ListPtySessions(ctx)
	ok(t, "list terminals", err)
	if len(terminals) != 1 {
		t.Errorf("list terminals: %d, want 1", len(terminals))
	}
	// The SDK cannot decode the reply, and reports a failure with status 200.
	_ = process.KillPtySession(ctx, "plain")
	if terminals, err := process.ListPtySessions(ctx); err != nil || len(terminals) != 0 {
		t.Errorf("list terminals after the end: %d, %v, want 0", len(terminals), err)
	}

	handle, err := process.CreatePty(ctx, "connected", options.WithCreatePtyEnv(map[string]string{"COLOUR": "red"}))
	ok(t, "connected terminal", err)
	ok(t, "wait for the connection", handle.WaitForConnection(ctx))
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for range handle.DataChan() {
		}
	}()
	ok(t, "input", handle.SendInput([]byte("exit\n")))
	_, err = handle.Wait(ctx)
	ok(t, "wait", err)
	ok(t, "disconnect", handle.Disconnect())
	<-drained
}

func driveSDKFiles(t *testing.T, ctx context.Context, files *daytona.FileSystemService, home string) {
	t.Setenv("TMPDIR", t.TempDir()) // the SDK leaves a copy of each download there
	folder := path.Join(home, "sdk")
	ok(t, "folder", files.CreateFolder(ctx, folder, options.WithMode("0755")))
	file := path.Join(folder, "a.txt")
	ok(t, "upload", files.UploadFile(ctx, []byte("first line\nsecond line\n"), file))
	content, err := files.DownloadFile(ctx, file, nil)
	ok(t, "download", err)
	if string(content) != "first line\nsecond line\n" {
		t.Errorf("download: %q", content)
	}
	info, err := files.GetFileInfo(ctx, file)
	ok(t, "info", err)
	if info.Size != int64(len(content)) {
		t.Errorf("info: size %d, want %d", info.Size, len(content))
	}
	list, err := files.ListFiles(ctx, folder)
	ok(t, "list files", err)
	if len(list) != 1 {
		t.Errorf("list files: %d, want 1", len(list))
	}
	_, err = files.SearchFiles(ctx, folder, "*.txt")
	ok(t, "search", err)
	_, err = files.FindFiles(ctx, folder, "second")
	ok(t, "find", err)
	_, err = files.ReplaceInFiles(ctx, []string{file, path.Join(folder, "missing")}, "second", "other")
	ok(t, "replace", err)
	ok(t, "permissions", files.SetFilePermissions(ctx, file, options.WithPermissionMode("0600")))
	ok(t, "move", files.MoveFiles(ctx, file, path.Join(folder, "b.txt")))
	ok(t, "delete file", files.DeleteFile(ctx, path.Join(folder, "b.txt"), false))
	ok(t, "delete folder", files.DeleteFile(ctx, folder, true))
}
