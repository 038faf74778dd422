package openapicheck

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// driveClient makes every request that this project's own client can make.
func driveClient(t *testing.T, server *emulator.Server) {
	ctx, c := deadline(t), client(t, server)
	minutes := func(n int) *int { return &n }
	sb := started(t, server, c, daytona.CreateRequest{
		Name: "client", Snapshot: emulator.DefaultSnapshot, Language: "python", Target: "us", User: "daytona",
		Labels: map[string]string{"made-by": "client"}, Env: map[string]string{"COLOUR": "green"},
		AutoStop: minutes(0), AutoArchive: minutes(0), AutoDelete: minutes(-1), TTL: 60,
	})
	started(t, server, c, daytona.CreateRequest{
		Name: "client-image", Image: "debian:13", Resources: daytona.Resources{CPU: 1, Memory: 2, Disk: 3},
	})
	got, err := c.Get(ctx, "client")
	ok(t, "get", err)
	if got.AutoDestroyAt.IsZero() {
		t.Error("get: no time of destruction, want one after an hour")
	}
	organization, err := c.CredentialOrganization(ctx)
	ok(t, "organisation", err)
	if organization != got.OrganizationID {
		t.Errorf("organisation: %q, want %q", organization, got.OrganizationID)
	}
	ok(t, "auto-delete", c.SetAutoDelete(ctx, sb.ID, 5))
	_, _, err = c.PreviewURL(ctx, sb.ID, 8080)
	ok(t, "preview", err)

	_, token, err := c.SignPreview(ctx, sb.ID, 8080, 60)
	ok(t, "signed preview", err)
	ok(t, "expire", c.ExpirePreview(ctx, sb.ID, 8080, token))
	ssh, err := c.CreateSSH(ctx, sb.ID, 30)
	ok(t, "ssh", err)
	ok(t, "revoke ssh", c.RevokeSSH(ctx, sb.ID, ssh.Token))
	ok(t, "revoke all ssh", c.RevokeSSH(ctx, sb.ID, ""))
	driveClientSnapshots(t, server, c, sb.ID)

	box := c.Toolbox(got)
	driveClientCommands(t, box)
	driveClientFiles(t, box, "client")
	driveClientTerminal(t, box)

	settle := func() { server.Sandbox(sb.ID).Settle(time.Minute) }
	ok(t, "stop", c.Stop(ctx, sb.ID))
	settle()
	ok(t, "archive", c.Archive(ctx, sb.ID))
	settle()
	ok(t, "start from the archive", c.Start(ctx, sb.ID))
	settle()
	server.Sandbox(sb.ID).Force(emulator.StateError, "timeout while starting", true)
	ok(t, "recover", c.Recover(ctx, sb.ID))
	settle()
}

func driveClientSnapshots(t *testing.T, server *emulator.Server, c *daytona.Client, sandbox string) {
	ctx := deadline(t)
	built, err := c.CreateSnapshot(ctx, daytona.SnapshotRequest{
		Name: "client-built", Dockerfile: "FROM debian:13\nRUN true\n", Entrypoint: []string{"sleep", "infinity"}, Region: "us",
		Resources: daytona.Resources{CPU: 1, Memory: 2, Disk: 3},
	})
	ok(t, "build", err)
	address, err := c.BuildLogURL(ctx, built.ID)
	ok(t, "address of the log", err)
	for {
		log, err := c.BuildLog(ctx, address, true)
		if err != nil {
			status(t, "log", err, 400) // the build has not begun
			continue
		}
		_, err = io.Copy(io.Discard, log)
		ok(t, "log", err)
		log.Close()
		break
	}
	_, err = c.CreateSnapshot(ctx, daytona.SnapshotRequest{Name: "client-pulled", Image: "debian:13"})
	ok(t, "pull", err)
	ok(t, "capture", c.Capture(ctx, sandbox, "client-captured"))
	server.Sandbox(sandbox).Settle(time.Minute)
	for _, name := range []string{"client-built", "client-pulled", "client-captured"} {
		read, err := c.GetSnapshot(ctx, name)
		ok(t, "snapshot", err)
		ok(t, "delete snapshot", c.DeleteSnapshot(ctx, read.ID))
	}
}

func driveClientCommands(t *testing.T, box *daytona.Toolbox) {
	ctx := deadline(t)
	result, err := box.Execute(ctx, "echo executed", 10*time.Second)
	ok(t, "execute", err)
	if result.Output != "executed\n" || result.ExitCode != 0 {
		t.Errorf("execute: %+v, want exit code 0 and %q", result, "executed\n")
	}
	const session = "client/session"
	ok(t, "session", box.CreateSession(ctx, session))
	id, err := box.StartCommand(ctx, session, `sh -c 'echo ready; echo over; exit 4'`)
	ok(t, "command", err)
	follow, err := box.Follow(ctx, session, id)
	ok(t, "follow", err)
	defer follow.Close()
	output := bufio.NewReader(follow)
	_, err = output.ReadString('\n')
	ok(t, "first line", err)
	// Ends once the exit code was recorded.
	followed, err := io.ReadAll(output)
	ok(t, "follow to the end", err)
	if !strings.Contains(string(followed), "over\n") {
		t.Errorf("follow: %q, want it to contain %q", followed, "over\n")
	}
	command, err := box.Command(ctx, session, id)
	ok(t, "status", err)
	if command.ExitCode == nil || *command.ExitCode != 4 {
		t.Errorf("status: %+v, want exit code 4", command)
	}
	logs, err := box.Logs(ctx, session, id)
	ok(t, "logs", err)
	_, err = io.Copy(io.Discard, logs)
	ok(t, "logs to the end", err)
	logs.Close()
	_, err = box.SessionCommands(ctx, session)
	ok(t, "commands of the session", err)
	ok(t, "delete session", box.DeleteSession(ctx, session))
}

func driveClientFiles(t *testing.T, box *daytona.Toolbox, dir string) {
	ctx := deadline(t)
	ok(t, "upload", box.Upload(ctx,
		daytona.File{Path: dir + "/text", Content: strings.NewReader("some text")},
		daytona.File{Path: dir + "/empty", Content: strings.NewReader("")},
	))
	for offset, want := range map[int64]string{0: "some text", 5: "text", 9: ""} {
		download, err := box.Download(ctx, dir+"/text", offset)
		ok(t, "download", err)
		content, err := io.ReadAll(download)
		ok(t, "download to the end", err)
		if string(content) != want {
			t.Errorf("download from %d: %q, want %q", offset, content, want)
		}
		download.Close()
	}
	empty, err := box.Download(ctx, dir+"/empty", 0)
	ok(t, "download of an empty file", err)
	empty.Close()
	content, err := box.ReadFile(ctx, dir+"/text", 100)
	ok(t, "read", err)
	if string(content) != "some text" {
		t.Errorf("read: %q", content)
	}
	if _, err := box.ReadFile(ctx, dir+"/missing", 100); err == nil {
		t.Error("read of a missing file: no error")
	}
}

func driveClientTerminal(t *testing.T, box *daytona.Toolbox) {
	ctx := deadline(t)
	for _, id := range []string{"exits", "deleted"} {
		ok(t, "terminal", box.CreatePTY(ctx, daytona.PTYRequest{ID: id, Dir: "/", Env: map[string]string{"COLOUR": "red"}, Cols: 90, Rows: 30}))
		ok(t, "resize", box.ResizePTY(ctx, id, 100, 40))
		terminal, err := box.ConnectPTY(ctx, id)
		ok(t, "connect", err)
		if id == "exits" {
			_, err = io.WriteString(terminal, "exit 5\n")
			ok(t, "input", err)
		} else {
			ok(t, "delete terminal", box.DeletePTY(ctx, id))
		}
		_, err = io.Copy(io.Discard, terminal)
		ok(t, "terminal to its end", err)
		if _, exited := terminal.Exit(); !exited {
			t.Errorf("terminal %q: no exit", id)
		}
		terminal.Close()
	}
}
