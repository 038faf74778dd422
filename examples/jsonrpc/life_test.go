package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWorker makes the checks in this process. The published host makes the same ones: see interop_test.go.
func TestWorker(t *testing.T) {
	t.Parallel()
	checkWorker(t, startWorker(t, nil))
}

// checkWorker is what every host can expect, one subtest a story.
func checkWorker(t *testing.T, h testHost) {
	t.Run("Probe", func(t *testing.T) { t.Parallel(); checkProbe(t, h) })
	t.Run("Validation", func(t *testing.T) { t.Parallel(); checkValidation(t, h) })
	t.Run("Life", func(t *testing.T) { t.Parallel(); checkLife(t, h) })
	t.Run("Sync", func(t *testing.T) { t.Parallel(); checkSync(t, h) })
	t.Run("Isolation", func(t *testing.T) { t.Parallel(); checkIsolation(t, h) })
	t.Run("Sessions", func(t *testing.T) { t.Parallel(); checkSessions(t, h) })
	t.Run("Refusals", func(t *testing.T) { t.Parallel(); checkRefusals(t, h) })
}

func checkProbe(t *testing.T, h testHost) {
	probed := must[struct {
		OK       bool
		Metadata struct{ RemoteCwd, ShellCommand string }
	}](t, h, "environmentProbe", reusing.params(nil))
	if !probed.OK || probed.Metadata.RemoteCwd == "" || probed.Metadata.ShellCommand == "" {
		t.Errorf("probe = %+v, want ok, with a workspace and a shell", probed)
	}
}

func checkValidation(t *testing.T, h testHost) {
	for name, c := range map[string]struct {
		config object
		want   []string // errors
	}{
		"nothing set":        {object{}, nil},
		"unknown keys":       {object{"runnerLifecycleMode": "warm", "image": nil}, nil},
		"separators":         {object{"target": "a\u2028b"}, nil},
		"wrong type":         {object{"cpu": "many"}, []string{"cpu has the wrong type"}},
		"timeout":            {object{"timeoutMs": -1}, []string{"timeoutMs must be at least 1"}},
		"image and snapshot": {object{"image": "a", "snapshot": "b"}, []string{"image and snapshot are both set: set one"}},
		"all at once":        {object{"cpu": 2, "autoStopInterval": -3}, []string{"autoStopInterval is out of range", "cpu, memory, disk and gpu need an image"}},
		"another's key":      {object{"apiUrl": "https://elsewhere.example"}, []string{"apiUrl needs an apiKey of its own"}},
	} {
		got := must[validation](t, h, "environmentValidateConfig", object{"driverKey": driverKey, "config": c.config})
		ok := got.OK == (len(c.want) == 0) && len(got.Errors) == len(c.want)
		for _, want := range c.want {
			ok = ok && slices.ContainsFunc(got.Errors, func(e string) bool { return strings.HasPrefix(e, want) })
		}
		if !ok {
			t.Errorf("%s: got %v, %q, want errors %q", name, got.OK, got.Errors, c.want)
		}
		if got.OK && *got.Normalized.TimeoutMs != defaultTimeoutMs {
			t.Errorf("%s: normalized timeoutMs = %d, want %d", name, *got.Normalized.TimeoutMs, defaultTimeoutMs)
		}
	}
}

func checkLife(t *testing.T, h testHost) {
	lease := reusing.acquire(t, h)
	if secret := string(lease.Metadata); strings.Contains(secret, "apiKey") {
		t.Errorf("the metadata names a key: %s", secret)
	}
	realized := must[struct{ Cwd string }](t, h, "environmentRealizeWorkspace", reusing.params(object{
		"lease": lease, "workspace": object{"localPath": "/host", "remotePath": "/workspace", "mode": "isolated"},
	}))
	if want := lease.workspace(t); realized.Cwd != want {
		t.Errorf("realized %q, want %q", realized.Cwd, want)
	}

	raw, logs, failed := h.call(t, "environmentExecute", reusing.script(lease, `printf 'w\303\266rld '; cat; echo "$A" >&2; exit 7`, object{
		"stdin": "in\u2028put\n", "env": object{"A": "wärn", "N": 1}, "bypassSession": true,
	}))
	if failed != nil {
		t.Fatal(failed)
	}
	var result executeResult
	if err := json.Unmarshal(raw, &result); err != nil {
		t.Fatal(err)
	}
	if result.ExitCode == nil || *result.ExitCode != 7 || result.TimedOut || result.Stdout != "wörld in\u2028put\n" || result.Stderr != "wärn\n" {
		t.Errorf("execute = %s, want exit code 7 and both streams", raw)
	}
	if out, err := joined(logs, "stdout"), joined(logs, "stderr"); out != result.Stdout || err != result.Stderr {
		t.Errorf("streamed %q and %q before the result, want %q and %q", out, err, result.Stdout, result.Stderr)
	}

	slow := must[executeResult](t, h, "environmentExecute", reusing.script(lease, "echo begun; exec sleep 60", object{"timeoutMs": 5000}))
	if slow.ExitCode != nil || !slow.TimedOut || slow.Stdout != "begun\n" || slow.Metadata["stopConfirmed"] != true {
		t.Errorf("after its timeout: %+v, want no exit code, timed out, the output so far, and stopped", slow)
	}

	must[any](t, h, "environmentExecute", reusing.script(lease, "echo kept >file; mkdir -p private/x", nil))
	private := []string{realized.Cwd + "/private", realized.Cwd, realized.Cwd + "/.leasehold", realized.Cwd + "/../file", "/tmp", "/"}
	if got := must[receipt](t, h, "environmentReleaseLease", reusing.give(lease, object{"cancelActiveWork": true, "runPrivatePaths": private})); got != (receipt{*lease.ID, "stopped"}) {
		t.Errorf("release = %+v, want stopped, for the lease's id", got)
	}
	if got := refused(t, h, "environmentExecute", reusing.script(lease, "true", nil)); got.Code != codeWorker || !strings.Contains(got.Message, "given back") {
		t.Errorf("a command on a released lease: %+v, want it refused", got)
	}
	resumed := must[heldLease](t, h, "environmentResumeLease", reusing.give(lease, nil))
	if resumed.ID == nil || *resumed.ID != *lease.ID {
		t.Fatalf("resume = %+v, want the same lease", resumed)
	}
	if got := must[executeResult](t, h, "environmentExecute", reusing.script(resumed, "cat file; ls", nil)); got.Stdout != "kept\nfile\n" {
		t.Errorf("after the resume: %+v, want the file, and the run's own directory gone", got)
	}
	for range 2 { // a reply that was lost is asked for again
		if got := must[receipt](t, h, "environmentDestroyLease", reusing.give(resumed, nil)); got != (receipt{*lease.ID, "destroyed"}) {
			t.Errorf("destroy = %+v, want destroyed, for the lease's id", got)
		}
	}
	lost := must[struct {
		ID       *string `json:"providerLeaseId"`
		Metadata struct{ Expired bool }
	}](t, h, "environmentResumeLease", reusing.give(resumed, nil))
	if lost.ID != nil || !lost.Metadata.Expired {
		t.Errorf("resume of a destroyed lease = %+v, want no id, and why", lost)
	}
}

func joined(logs []executeLog, stream string) string {
	var text strings.Builder
	for _, l := range logs {
		if l.Stream == stream {
			text.WriteString(l.Chunk)
		}
	}
	return text.String()
}

func checkSync(t *testing.T, h testHost) {
	ephemeral := tenant{"company-1", object{"timeoutMs": 60_000}}
	lease := ephemeral.acquire(t, h)
	workspace, local := lease.workspace(t), t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(local, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	secret := write("secret", "s\n")
	write("tree/sub/a", "a\n")
	write("tree/node_modules/b", "b\n")
	write("bundle/tool", "t\n")

	in := ephemeral.params(object{"lease": lease, "operations": []object{{
		"operationId": "op-1",
		"files": []object{
			{"sourcePath": secret, "targetPath": workspace + "/dir/secret", "kind": "file", "mode": 0o600},
			{"sourcePath": filepath.Join(local, "tree"), "targetPath": workspace + "/tree", "kind": "directory", "exclude": []string{"node_modules"}, "access": "rw", "writablePath": "/srv/final"},
			{"sourcePath": filepath.Join(local, "bundle"), "targetPath": workspace + "/bundle", "kind": "directory", "mode": 0o555},
		},
		"postUploadCommands": []object{{"command": "pwd >where && ls tree >listed"}},
	}}})
	for range 2 { // the bundle is read-only, and is sent again
		got := must[syncAnswer](t, h, "environmentSyncIn", in)
		if len(got.Operations) != 1 || got.Operations[0].ID != "op-1" || got.Operations[0].Files < 3 {
			t.Errorf("sync in = %+v, want one operation", got)
		}
	}
	seen := must[executeResult](t, h, "environmentExecute", ephemeral.script(lease, "stat -c %a dir/secret bundle/tool; cat where listed; grep . .leasehold/writable", nil))
	if want := "600\n444\n" + workspace + "\nsub\n\"/srv/final\"\n"; seen.Stdout != want {
		t.Errorf("in the sandbox: %q, want %q", seen.Stdout, want)
	}

	must[any](t, h, "environmentExecute", ephemeral.script(lease, "mkdir out && echo x >out/x && ln -s /etc/passwd out/link && echo y >y && chmod 644 y out/x", nil))
	out := filepath.Join(t.TempDir(), "in")
	got := must[syncAnswer](t, h, "environmentSyncOut", ephemeral.params(object{"lease": lease, "operations": []object{{
		"operationId": "op-2",
		"files": []object{
			{"sourcePath": workspace + "/y", "targetPath": filepath.Join(out, "y"), "kind": "file"},
			{"sourcePath": workspace + "/out", "targetPath": filepath.Join(out, "out"), "kind": "directory"},
		},
	}}}))
	if len(got.Operations) != 1 || got.Operations[0].Bytes != 4 {
		t.Errorf("sync out = %+v, want 4 bytes", got)
	}
	for name, want := range map[string]os.FileMode{"y": 0o600, "out": os.ModeDir | 0o700} {
		if info, err := os.Lstat(filepath.Join(out, name)); err != nil || info.Mode() != want {
			t.Errorf("%s on the host: %v, %v, want mode %v", name, info, err, want)
		}
	}
	if content, err := os.ReadFile(filepath.Join(out, "out", "x")); string(content) != "x\n" {
		t.Errorf("out/x = %q, %v", content, err)
	}
	if _, err := os.Lstat(filepath.Join(out, "out", "link")); !os.IsNotExist(err) {
		t.Errorf("the link out of the sandbox: %v, want it left out", err)
	}

	missing := refused(t, h, "environmentSyncOut", ephemeral.params(object{"lease": lease, "operations": []object{{
		"operationId": "op-3", "files": []object{{"sourcePath": workspace + "/nothing", "targetPath": filepath.Join(out, "z"), "kind": "file"}},
	}}}))
	if data := asJSON(t, missing.Data); missing.Code != codeWorker || !strings.Contains(data, `"errorCode":"ENOENT"`) {
		t.Errorf("a missing source: %+v, want the diagnostic ENOENT", missing)
	}
	failed := refused(t, h, "environmentSyncIn", ephemeral.params(object{"lease": lease, "operations": []object{{
		"operationId": "op-4", "files": []object{}, "postUploadCommands": []object{{"command": "exit 3"}, {"command": "touch late"}},
	}}}))
	if !strings.Contains(failed.Message, "exit code 3") {
		t.Errorf("a failed command: %q, want its exit code", failed.Message)
	}
	if got := must[receipt](t, h, "environmentReleaseLease", ephemeral.give(lease, nil)); got.State != "destroyed" {
		t.Errorf("release of a lease that is not reused = %+v, want destroyed", got)
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	encoded, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// checkIsolation: nothing of a lease is another company's, whatever the call claims.
func checkIsolation(t *testing.T, h testHost) {
	lease := reusing.acquire(t, h)
	other := tenant{"company-2", reusing.config}
	for name, params := range map[string]object{
		"environmentExecute":          other.script(lease, "true", nil),
		"environmentRealizeWorkspace": other.params(object{"lease": lease}),
		"environmentSyncIn":           other.params(object{"lease": lease, "operations": []object{}}),
		"environmentResumeLease":      other.give(lease, nil),
		"environmentReleaseLease":     other.give(lease, nil),
		"environmentDestroyLease":     other.give(lease, nil),
		"environmentStopLease":        other.give(lease, nil),
	} {
		if got := refused(t, h, name, params); got.Code != codeWorker || !strings.Contains(got.Message, "not one of this company") {
			t.Errorf("%s for another company: %+v, want it refused", name, got)
		}
	}
	renamed := lease
	id := "another"
	renamed.ID = &id
	if got := refused(t, h, "environmentDestroyLease", reusing.give(renamed, nil)); !strings.Contains(got.Message, "not one of this company") {
		t.Errorf("destroy under another id: %+v, want it refused", got)
	}
	if got := must[executeResult](t, h, "environmentExecute", reusing.script(lease, "echo here", nil)); got.Stdout != "here\n" {
		t.Errorf("after all that: %+v, want the lease untouched", got)
	}
	must[receipt](t, h, "environmentDestroyLease", reusing.give(lease, nil))
}

func checkRefusals(t *testing.T, h testHost) {
	lease := reusing.acquire(t, h)
	operation := func(mapping object) object {
		return reusing.params(object{"lease": lease, "operations": []object{{"operationId": "x", "files": []object{mapping}}}})
	}
	workspace := lease.workspace(t)
	for name, c := range map[string]struct {
		method string
		params object
		code   int
		want   string
	}{
		"another driver":       {"environmentProbe", object{"driverKey": "other", "companyId": "c", "environmentId": "e"}, codeInvalidParams, "driverKey"},
		"no company":           {"environmentProbe", object{"driverKey": driverKey, "environmentId": "e"}, codeInvalidParams, "no company"},
		"bad settings":         {"environmentProbe", tenant{"c", object{"cpu": 1}}.params(nil), codeInvalidParams, "need an image"},
		"bad run":              {"environmentAcquireLease", reusing.params(object{"runId": "a/b"}), codeWorker, "AcquireRequest.Scope.Run"},
		"no lease":             {"environmentExecute", reusing.params(object{"lease": object{"providerLeaseId": nil}, "command": "true"}), codeWorker, "no lease"},
		"no reference":         {"environmentResumeLease", reusing.params(object{"providerLeaseId": "x", "leaseMetadata": object{}}), codeWorker, "does not hold"},
		"bad variable":         {"environmentExecute", reusing.script(lease, "true", object{"env": object{"a-b": "c"}}), codeWorker, `has the key "a-b"`},
		"no such directory":    {"environmentExecute", reusing.script(lease, "true", object{"cwd": workspace + "/nothing"}), codeWorker, "cannot be entered"},
		"a relative host path": {"environmentSyncIn", operation(object{"sourcePath": "a", "targetPath": workspace + "/a", "kind": "file"}), codeInvalidParams, "host's path"},
		"a host path with ..":  {"environmentSyncOut", operation(object{"sourcePath": workspace + "/a", "targetPath": "/tmp/../etc/a", "kind": "file"}), codeInvalidParams, "host's path"},
		"out of the workspace": {"environmentSyncOut", operation(object{"sourcePath": "/etc/passwd", "targetPath": "/tmp/a", "kind": "file"}), codeInvalidParams, "not in the workspace"},
		"a sibling's name":     {"environmentSyncOut", operation(object{"sourcePath": workspace + "x/a", "targetPath": "/tmp/a", "kind": "file"}), codeInvalidParams, "not in the workspace"},
		"an unknown kind":      {"environmentSyncIn", operation(object{"sourcePath": "/a", "targetPath": workspace + "/a", "kind": "socket"}), codeInvalidParams, "kind"},
		"a known method":       {"environmentTask", reusing.params(nil), codeNotImplemented, "environmentTask"},
		"an unknown method":    {"environmentNoSuchMethod", reusing.params(nil), codeMethodNotFound, "environmentNoSuchMethod"},
	} {
		got := refused(t, h, c.method, c.params)
		if got.Code != c.code || !strings.Contains(got.Message, c.want) {
			t.Errorf("%s: %d %q, want %d and %q", name, got.Code, got.Message, c.code, c.want)
		}
	}
	must[receipt](t, h, "environmentDestroyLease", reusing.give(lease, nil))
	must[any](t, h, "environmentReleaseLease", reusing.params(object{"providerLeaseId": nil}))
}

// TestTheEndOfTheInputEndsEverything: the command under way is stopped, not waited for.
func TestTheEndOfTheInputEndsEverything(t *testing.T) {
	t.Parallel()
	h := startWorker(t, nil)
	lease := reusing.acquire(t, h)
	begun := make(chan struct{})
	h.onLog(func(executeLog) { close(begun) })
	ended := make(chan *rpcError)
	go func() {
		_, _, failed := h.call(t, "environmentExecute", reusing.script(lease, "echo begun; exec sleep 600", object{"timeoutMs": 600_000}))
		ended <- failed
	}()
	<-begun
	_ = h.in.Close()
	if failed := <-ended; failed == nil || failed.Code != codeWorker {
		t.Errorf("the command = %+v, want an error", failed)
	}
	if err := <-h.served; err != nil {
		t.Errorf("serve() = %v, want nil", err)
	}
}

func TestACommandIsCancelled(t *testing.T) {
	t.Parallel()
	h := startWorker(t, nil)
	lease := reusing.acquire(t, h)
	begun := make(chan struct{})
	h.onLog(func(executeLog) { close(begun) })
	ended := make(chan *rpcError)
	go func() {
		_, _, failed := h.call(t, "environmentExecute", reusing.script(lease, "echo begun; exec sleep 600", object{"timeoutMs": 600_000, "executionId": "x-1"}))
		ended <- failed
	}()
	<-begun
	cancel := func(n tenant, id string) cancelResult {
		return must[cancelResult](t, h, "environmentCancelExecution", n.params(object{"lease": lease, "executionId": id, "reason": "operator"}))
	}
	if got := cancel(reusing, "x-2"); got != (cancelResult{"x-2", false}) {
		t.Errorf("cancel of an unknown execution = %+v, want no", got)
	}
	if got := cancel(reusing, "x-1"); got != (cancelResult{"x-1", true}) {
		t.Errorf("cancel = %+v, want yes", got)
	}
	if failed := <-ended; failed == nil || failed.Code != codeWorker {
		t.Errorf("the command = %+v, want an error", failed)
	}
	if got := cancel(reusing, "x-1"); got.Cancelled {
		t.Errorf("cancel after the end = %+v, want no", got)
	}
}

func TestStopKeepsWhatWouldBeDeleted(t *testing.T) {
	t.Parallel()
	h := startWorker(t, nil)
	ephemeral := tenant{"company-1", object{"timeoutMs": 60_000}}
	lease := ephemeral.acquire(t, h)
	if got := must[receipt](t, h, "environmentStopLease", ephemeral.give(lease, nil)); got != (receipt{*lease.ID, "stopped"}) {
		t.Errorf("stop = %+v, want stopped", got)
	}
	if got := must[heldLease](t, h, "environmentResumeLease", ephemeral.give(lease, nil)); got.ID == nil || *got.ID != *lease.ID {
		t.Errorf("resume = %+v, want the lease", got)
	}
	if got := must[receipt](t, h, "environmentReleaseLease", ephemeral.give(lease, object{"resourceDisposition": "stop_and_retain"})); got.State != "stopped" {
		t.Errorf("release that retains = %+v, want stopped", got)
	}
	must[receipt](t, h, "environmentDestroyLease", ephemeral.give(lease, nil))
}

func TestPrivatePaths(t *testing.T) {
	for dir, want := range map[string]bool{
		"/w/s/run": true, "/w/s/run/a b": true, "/tmp/run": true, "/tmp/.other": true,
		"": false, "/": false, "run": false, "/w": false, "/w/s": false, "/w/s/": false, "/w/s/../s/run": false, "/w/sibling": false, "/etc/run": false,
		"/w/s/.leasehold": false, "/w/s/.leasehold/x": false, "/tmp": false, "/tmp/.leasehold-1000": false, "/tmp/.leasehold-1000/x": false, "/tmp/a\x00b": false,
	} {
		if got := isPrivate("/w/s", dir); got != want {
			t.Errorf("isPrivate(%q) = %v, want %v", dir, got, want)
		}
	}
	if isPrivate("/tmp/a/b", "/tmp/a") {
		t.Error("a directory that holds the workspace is taken for a run's own")
	}
}
