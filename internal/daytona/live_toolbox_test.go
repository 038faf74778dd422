package daytona

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestExecute(t *testing.T) {
	box := newLive(t, emulator.Options{}).box(t)
	tests := []struct {
		name    string
		command string
		want    ExecuteResult
	}{
		{"output and exit code", "echo out; exit 3", ExecuteResult{3, "out\n"}},
		{"merged streams", "echo out; echo err >&2", ExecuteResult{0, "out\nerr\n"}},
		{"standard input is the script", "cat\necho X", ExecuteResult{0, "echo X\n"}},
		{"no output", "true", ExecuteResult{0, ""}},
		{"quotes", `printf '%s' "<&>'é\"$HOME" | wc -c >/dev/null; printf '<&>"é'`, ExecuteResult{0, `<&>"é`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := box.Execute(t.Context(), test.command, 0)
			if err != nil {
				t.Fatal(err)
			}
			// The script's own bytes may end without a newline when cat returns them.
			got.Output, test.want.Output = strings.TrimSuffix(got.Output, "\n"), strings.TrimSuffix(test.want.Output, "\n")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Execute() mismatch (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("timeout", func(t *testing.T) {
		start := time.Now()
		_, err := box.Execute(t.Context(), "sleep 60", 50*time.Millisecond) // rounded up to a second
		if e := failure(t, err); e.Status != 408 || e.Code != "REQUEST_TIMEOUT" {
			t.Errorf("Execute() = %+v, want timed out", e)
		}
		if d := time.Since(start); d < time.Second || d >= 50*time.Second {
			t.Errorf("ended after %v, want one second", d)
		}
	})
	t.Run("the context ends", func(t *testing.T) {
		_, err := box.Execute(untilSent(), "sleep 60", 0)
		if e := failure(t, err); e.Reason != ReasonTimeout || e.Dispatch != DispatchUnknown {
			t.Errorf("Execute() = %+v, want timeout, dispatch unknown", e)
		}
	})
}

func TestExecuteNeedsAnExitCode(t *testing.T) {
	_, err := newFake(t, answer(200, `{"result":"x"}`)).toolbox(t).Execute(t.Context(), "true", 0)
	if e := failure(t, err); e.Reason != ReasonDecode || e.Dispatch != DispatchYes {
		t.Errorf("Execute() = %+v, want decode", e)
	}
}

// finished waits for a command's exit code.
func finished(t *testing.T, box *Toolbox, session, id string) SessionCommand {
	t.Helper()
	var c SessionCommand
	eventually(t, func() bool {
		var err error
		c, err = box.Command(t.Context(), session, id)
		if err != nil && !failure(t, err).NotYet() {
			t.Fatal(err)
		}
		return err == nil && c.ExitCode != nil
	})
	return c
}

func TestSessionCommands(t *testing.T) {
	box := newLive(t, emulator.Options{}).box(t)
	ctx := t.Context()
	if err := box.CreateSession(ctx, "s 1"); err != nil {
		t.Fatal(err)
	}
	if e := failure(t, box.CreateSession(ctx, "s 1")); e.Status != 409 || e.Pending() || e.NameTaken() {
		t.Errorf("second session = %+v, want a plain 409", e)
	}
	_, err := box.StartCommand(ctx, "none", "true")
	if e := failure(t, err); !e.SessionMissing() || e.Status != 500 {
		t.Errorf("unknown session = %+v, want session missing", e)
	}
	command := `printf 'a\377b\n'; printf 'err\n' >&2; (exit 7)`
	id, err := box.StartCommand(ctx, "s 1", command)
	if err != nil {
		t.Fatal(err)
	}
	got := finished(t, box, "s 1", id)
	if got.ID != id || got.Command != command || *got.ExitCode != 7 {
		t.Errorf("Command() = %+v, want exit 7", got)
	}
	list, err := box.SessionCommands(ctx, "s 1")
	if diff := cmp.Diff([]SessionCommand{got}, list); diff != "" || err != nil {
		t.Errorf("SessionCommands() = %v, mismatch (-want +got):\n%s", err, diff)
	}
	logs, err := box.Logs(ctx, "s 1", id)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(logs)
	logs.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"\x01\x01\x01a\xffb\n", "\x02\x02\x02err\n"} {
		if !bytes.Contains(raw, []byte(line)) {
			t.Errorf("log %q, want it to hold %q", raw, line)
		}
	}
	_, err = box.Command(ctx, "s 1", "none")
	if e := failure(t, err); !e.NotFound() {
		t.Errorf("unknown command = %+v, want not found", e)
	}

	said, err := box.StartCommand(ctx, "s 1", "echo said")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := box.Follow(ctx, "s 1", said)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	want := "\x01\x01\x01said\n"
	buf := make([]byte, len(want))
	if _, err := io.ReadFull(stream, buf); err != nil || string(buf) != want {
		t.Errorf("followed %q, %v, want %q", buf, err, want)
	}
	finished(t, box, "s 1", said)

	if err := box.DeleteSession(ctx, "s 1"); err != nil {
		t.Fatal(err)
	}
	if e := failure(t, box.DeleteSession(ctx, "s 1")); !e.NotFound() {
		t.Errorf("second deletion = %+v, want not found", e)
	}
}

func TestAStatusReadDuringTheExitIsNotYet(t *testing.T) {
	l := newLive(t, emulator.Options{Quirks: emulator.Quirks{ExitCodeWindow: time.Second}})
	box := l.box(t)
	if err := box.CreateSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	id, err := box.StartCommand(t.Context(), "s", "true")
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, time.Minute)
	seen := false
	for {
		c, err := box.Command(ctx, "s", id)
		if err != nil {
			if e := failure(t, err); !e.NotYet() {
				t.Fatal(e)
			}
			seen = true
			continue
		}
		if c.ExitCode != nil {
			break
		}
	}
	if !seen {
		t.Error("no read hit the window")
	}
}

func TestUploadAndDownload(t *testing.T) {
	l := newLive(t, emulator.Options{})
	box := l.box(t)
	ctx := t.Context()
	big := make([]byte, 3<<20)
	rand.Read(big)
	files := map[string][]byte{
		"up/empty": nil, "up/small": []byte("small"), "up/big": big,
		"up/odd \"name\"\n; filename=é": []byte("odd"), "up/deep/er/file": []byte("deep"),
	}
	var list []File
	for path, content := range files {
		list = append(list, File{path, bytes.NewReader(content)})
	}
	if err := box.Upload(ctx, list...); err != nil {
		t.Fatal(err)
	}
	for path, content := range files {
		for _, offset := range []int64{0, 1, int64(len(content)) / 2, int64(len(content))} {
			if offset > int64(len(content)) {
				continue
			}
			d, err := box.Download(ctx, path, offset)
			if err != nil {
				t.Fatalf("Download(%q, %d) = %v", path, offset, err)
			}
			got, err := io.ReadAll(d)
			d.Close()
			if err != nil || !bytes.Equal(got, content[offset:]) || d.Size != int64(len(content)) || d.Offset != offset {
				t.Errorf("Download(%q, %d): %d bytes, %v, size %d, offset %d", path, offset, len(got), err, d.Size, d.Offset)
			}
		}
		got, err := box.ReadFile(ctx, path, 4<<20)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("ReadFile(%q): %d bytes, %v, want %d", path, len(got), err, len(content))
		}
	}

	_, err := box.Download(ctx, "up/small", 6)
	if e := failure(t, err); e.Status != 416 {
		t.Errorf("beyond the end = %+v, want 416", e)
	}
	_, err = box.Download(ctx, "up/none", 0)
	if e := failure(t, err); e.Status != 404 || e.NotFound() {
		t.Errorf("missing = %+v, want a 404 that proves nothing", e)
	}
	_, err = box.ReadFile(ctx, "up/none", 10)
	if e := failure(t, err); !e.NotFound() || e.Code != CodeFileNotFound {
		t.Errorf("missing = %+v, want not found", e)
	}
	_, err = box.ReadFile(ctx, "up/small", 4)
	if e := failure(t, err); e.Reason != ReasonLimit {
		t.Errorf("larger than the limit = %+v, want limit", e)
	}
	// No download at the end of a file is a failure, so that polling for new bytes is none.
	for _, c := range l.observed.all() {
		if c.Op == OpDownload && c.Err != nil && c.Err.Status != 404 && c.Err.Status != 416 {
			t.Errorf("observed %+v", c)
		}
	}
}

func TestAFullDiskIsSaid(t *testing.T) {
	l := newLive(t, emulator.Options{})
	box := l.box(t)
	l.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/*/files/bulk-upload", Action: emulator.DiskFull})
	if e := failure(t, box.Upload(t.Context(), File{"f", strings.NewReader("x")})); !e.NoSpace() {
		t.Errorf("Upload() = %+v, want no space", e)
	}
}

func TestPTY(t *testing.T) {
	l := newLive(t, emulator.Options{})
	box := l.box(t)
	ctx := within(t, time.Minute)
	if err := box.CreatePTY(ctx, PTYRequest{ID: "p/1", Env: map[string]string{"PS1": "$ "}, Cols: 90, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	if e := failure(t, box.CreatePTY(ctx, PTYRequest{ID: "p/1"})); e.Status != 409 {
		t.Errorf("second terminal = %+v, want 409", e)
	}
	p, err := box.ConnectPTY(ctx, "p/1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := box.ResizePTY(ctx, "p/1", 100, 40); err != nil {
		t.Error(err)
	}
	if _, err := p.Write([]byte("stty size; echo done-$((40+2)); read x; exit 5\n")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	buf := make([]byte, 7) // smaller than any frame of interest
	for !strings.Contains(out.String(), "done-42") {
		n, err := p.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			t.Fatalf("read %q, %v", out.String(), err)
		}
	}
	if !strings.Contains(out.String(), "40 100") {
		t.Errorf("output %q, want the size 40 100", out.String())
	}
	if _, ok := p.Exit(); ok {
		t.Error("an exit before the end")
	}
	if _, err := p.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&out, p); err != nil {
		t.Fatalf("read to the end: %v", err)
	}
	if exit, ok := p.Exit(); !ok || exit.Code != 5 {
		t.Errorf("Exit() = %+v, %v, want code 5", exit, ok)
	}
	if e := failure(t, box.DeletePTY(ctx, "p/1")); !e.NotFound() {
		t.Errorf("deletion after the exit = %+v, want not found", e)
	}

	if err := box.CreatePTY(ctx, PTYRequest{ID: "p2"}); err != nil {
		t.Fatal(err)
	}
	p2, err := box.ConnectPTY(ctx, "p2")
	if err != nil {
		t.Fatal(err)
	}
	defer p2.Close()
	if err := box.DeletePTY(ctx, "p2"); err != nil {
		t.Errorf("DeletePTY() = %v, want nil", err)
	}
	if _, err := io.Copy(io.Discard, p2); err != nil {
		t.Errorf("read to the end: %v", err)
	}
	if exit, ok := p2.Exit(); !ok || exit.Code != 137 || exit.Reason != "SIGKILL" {
		t.Errorf("Exit() = %+v, %v, want 137 SIGKILL", exit, ok)
	}

	_, err = box.ConnectPTY(ctx, "none")
	if e := failure(t, err); e.Status != http.StatusSwitchingProtocols || e.Reason != ReasonEnded {
		t.Errorf("unknown terminal = %+v, want ended after the handshake", e)
	}
}

func TestPTYInputLargerThanTheDaemonTakes(t *testing.T) {
	box := newLive(t, emulator.Options{}).box(t)
	ctx := within(t, time.Minute)
	if err := box.CreatePTY(ctx, PTYRequest{ID: "p"}); err != nil {
		t.Fatal(err)
	}
	p, err := box.ConnectPTY(ctx, "p")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const size = 200_000 // of 64 KiB at most in one frame
	if _, err := fmt.Fprintf(p, "stty raw -echo; echo ready-$((1+1)); head -c %d | wc -c; exit 0\n", size); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(out.String(), "ready-2") {
		n, err := p.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			t.Fatal(err)
		}
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := p.Write(bytes.Repeat([]byte("x"), size))
		wrote <- err
	}()
	if _, err := io.Copy(&out, p); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), fmt.Sprint(size)) {
		t.Errorf("output %q, want %d", out.String(), size)
	}
}
