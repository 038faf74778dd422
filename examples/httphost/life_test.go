package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
)

func (c client) leases() []leaseView {
	c.t.Helper()
	return parse[struct{ Leases []leaseView }](c.t, c.want(200, "GET", "/v1/leases", nil)).Leases
}

func TestTheLifeOfALease(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c := h.client(t)
	if got := c.leases(); len(got) != 0 {
		t.Fatalf("leases at first: %+v, want none", got)
	}
	lease := c.acquire()
	if got := c.leases(); len(got) != 1 || got[0].State != leaseActive || got[0].Environment != "default" {
		t.Fatalf("leases: %+v, want one, active, of the default environment", got)
	}
	end, stdout, stderr := c.run(lease, "echo out; echo err >&2; touch mark; exit 3")
	if stdout != "out\n" || stderr != "err\n" || end.State != commandExited || *end.Result.ExitCode != 3 || !end.Result.Complete {
		t.Errorf("run = %q, %q, %+v, want out, err and a complete exit 3", stdout, stderr, end)
	}
	if got := parse[map[string]any](t, c.want(200, "POST", lease+"/release", releaseRequest{Keep: true})); got["state"] != "stopped" {
		t.Errorf("receipt = %v, want stopped", got)
	}
	c.want(409, "POST", lease+"/commands", commandRequest{Script: "true"})
	if got := c.leases(); len(got) != 1 || got[0].State != leaseStopped {
		t.Errorf("leases: %+v, want one, stopped", got)
	}
	if got := parse[leaseView](t, c.want(200, "POST", lease+"/resume", nil)); got.State != leaseActive {
		t.Errorf("resumed: %+v, want active", got)
	}
	if end, _, _ := c.run(lease, "test -e mark"); *end.Result.ExitCode != 0 {
		t.Errorf("after the resume: %+v, want the file that was there", end.Result)
	}
	if got := parse[map[string]any](t, c.want(200, "DELETE", lease, nil)); got["state"] != "destroyed" {
		t.Errorf("receipt = %v, want destroyed", got)
	}
	c.want(404, "GET", lease, nil)
	if got := c.leases(); len(got) != 0 {
		t.Errorf("leases at last: %+v, want none", got)
	}
}

func TestTenantsSeeNothingOfEachOther(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c, other := h.client(t), client{t, h.url, otherToken}
	lease := c.acquire()
	command := c.start(lease, "exec sleep 600")
	if got := other.leases(); len(got) != 0 {
		t.Errorf("another tenant's leases: %+v, want none", got)
	}
	for _, route := range h.routes() {
		method, path, _ := strings.Cut(route.pattern, " ")
		if strings.Contains(path, "{lease}") {
			path = strings.ReplaceAll(path, "/v1/leases/{lease}", lease)
			path = strings.ReplaceAll(path, lease+"/commands/{command}", command)
			other.want(404, method, path, nil)
		}
	}
	type report struct {
		Idle   bool
		Active []activityView
	}
	if got := parse[report](t, other.want(200, "GET", "/v1/idle?prove=true", nil)); !got.Idle || len(got.Active) > 0 {
		t.Errorf("another tenant's report: %+v, want idle", got)
	}
	if got := parse[report](t, c.want(200, "GET", "/v1/idle?prove=true", nil)); got.Idle {
		t.Errorf("report during a command: %+v, want a command and its sandbox", got)
	}
	c.want(204, "POST", command+"/signal", signalRequest{"TERM"})
	if end := c.follow(command, "", nil).end; end.State != commandExited || *end.Result.ExitCode != 128+15 {
		t.Errorf("after TERM: %+v, want exit 143", end)
	}
	c.want(409, "POST", command+"/signal", signalRequest{"TERM"})
	c.want(200, "DELETE", lease, nil)
	if got := parse[report](t, c.want(200, "GET", "/v1/idle?prove=true", nil)); !got.Idle {
		t.Errorf("report at last: %+v, want idle", got)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	for _, route := range h.routes() {
		method, path, _ := strings.Cut(route.pattern, " ")
		path = strings.NewReplacer("{lease}", "x", "{command}", "y", "{$}", "").Replace(path)
		for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + acmeToken, "Bearer " + acmeToken[:20], "Bearer " + acmeToken + "x"} {
			r, err := http.NewRequestWithContext(t.Context(), method, h.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", authorization)
			response, err := plain.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			want := http.StatusUnauthorized
			if route.open {
				want = http.StatusOK
			}
			if response.StatusCode != want || (want == http.StatusUnauthorized) != (response.Header.Get("WWW-Authenticate") != "") {
				t.Errorf("%s with %q = %s, want %d and a challenge with 401", route.pattern, authorization, response.Status, want)
			}
		}
	}
	for _, bad := range []string{"acme", "acme:short", ":" + acmeToken, tokens + ",acme:0123456789abcdef", tokens + ",third:" + acmeToken} {
		if _, _, err := parseTenants(bad, defaultLimits); err == nil || strings.Contains(err.Error(), acmeToken) {
			t.Errorf("parseTenants(%q) = %v, want an error without the token", bad, err)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	h := startHost(t, func(l *limits) {
		l.leases, l.commands, l.history, l.streams, l.body, l.upload, l.output = 1, 1, 2, 1, 1000, 10_000, 5000
	})
	c := h.client(t)
	lease := c.acquire()
	c.want(429, "POST", "/v1/leases", nil)

	c.want(413, "POST", lease+"/commands", commandRequest{Script: strings.Repeat("#", 1000)})
	c.want(400, "POST", lease+"/commands", []byte(`{"script":"true"} {}`))
	c.want(400, "POST", lease+"/commands", []byte(`{"scrip":"true"}`))
	c.want(400, "POST", lease+"/commands", commandRequest{ID: "../x", Script: "true"})
	c.want(400, "POST", lease+"/commands", commandRequest{})
	c.want(400, "POST", lease+"/commands", commandRequest{Script: "true", TimeoutSeconds: 86_401})
	c.want(413, "PUT", lease+"/files", archive(t, map[string]string{"small": "x", "large": strings.Repeat("x", 20_000)}))
	if _, got, _ := c.run(lease, "ls -A | grep -v '^[.]leasehold$'"); got != "" {
		t.Errorf("the workspace after an upload that is too large: %q, want nothing", got)
	}

	command := c.start(lease, "echo begun; exec sleep 600")
	c.want(429, "POST", lease+"/commands", commandRequest{Script: "true"})
	response := c.events(command, "")
	readEvents(t, response.Body, func(o observed) bool { return o.stdout == "begun\n" })
	c.want(429, "GET", command+"/events", nil)
	_ = response.Body.Close()
	c.want(204, "POST", command+"/signal", signalRequest{"KILL"})
	c.follow(command, "", nil)
	c.want(429, "POST", lease+"/commands", commandRequest{Script: "true"}) // as many as it may have had
	c.want(200, "DELETE", lease, nil)
	c.acquire()

	other := client{t, h.url, otherToken} // whose limits are its own
	end, stdout, _ := other.run(other.acquire(), "head -c 4000 /dev/zero; sleep 0.3; head -c 4000 /dev/zero; exec sleep 600")
	if end.State != commandStopped || end.Result.Kind != "limit" || len(stdout) > 5000 {
		t.Errorf("a command that writes too much = %+v after %d bytes, want stopped within 5000", end, len(stdout))
	}
}

// hook is a log that calls a function with each message.
type hook struct {
	slog.Handler
	f func(message string)
}

func (h hook) Handle(_ context.Context, r slog.Record) error {
	h.f(r.Message)
	return nil
}

// TestAResumeAttachesAlone: a lease is not active, and so cannot be resumed again, before its commands are attached to, each
// once; and one that this process is about to start is left alone.
func TestAResumeAttachesAlone(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c := h.client(t)
	lease := c.acquire()
	l, err := h.leases.of(h.tenants[0], path.Base(lease))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := l.use(h.provider)
	if err != nil {
		t.Fatal(err)
	}
	process, err := bound.Executor().Start(t.Context(), leasehold.Command{Script: "true"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	starting, _, err := l.newCommand(commandRequest{ID: "starting"}, "", h.limits)
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := l.newCommand(commandRequest{ID: "left"}, "", h.limits)
	if err != nil {
		t.Fatal(err)
	}
	left.record.State, left.record.Ref = commandDetached, new(process.Ref())
	h.endCommands() // so that what is attached to says so
	var states []leaseState
	h.log = slog.New(hook{slog.NewTextHandler(io.Discard, nil), func(message string) {
		if message == "a command cannot be observed" {
			states = append(states, l.state())
		}
	}})
	c.want(200, "POST", lease+"/resume", nil)
	if !slices.Equal(states, []leaseState{leaseResuming}) || l.state() != leaseActive {
		t.Errorf("the lease was %q while one command was attached to, and then %q, want resuming, and active", states, l.state())
	}
	if got := starting.view().State; got != commandStarting {
		t.Errorf("a command on its way is %s after a resume, want starting", got)
	}
	starting.finish(commandUnknown, leasehold.Result{}, nil)
	left.finish(commandUnknown, leasehold.Result{}, nil)
	if _, err := left.stream(streamOut).Write([]byte("late")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("what comes after the end is taken with %v, want ErrClosed", err)
	}
}

func TestArchivesBothWays(t *testing.T) {
	t.Parallel()
	h := startHost(t, nil)
	c := h.client(t)
	lease := c.acquire()
	c.want(200, "PUT", lease+"/files?path=src/app", archive(t, map[string]string{"a.txt": "alpha", "b/c.bin": "\x00\xff"}))
	if end, stdout, _ := c.run(lease, "cat src/app/a.txt src/app/b/c.bin; printf made > src/app/made"); stdout != "alpha\x00\xff" {
		t.Errorf("in the sandbox: %q, %+v, want both files", stdout, end)
	}
	got := untar(t, c.want(200, "GET", lease+"/files?path=src", nil))
	for name, want := range map[string]string{"app/a.txt": "alpha", "app/b/c.bin": "\x00\xff", "app/made": "made"} {
		if got[name] != want {
			t.Errorf("%s in the archive = %q, want %q", name, got[name], want)
		}
	}
	for _, bad := range []map[string]string{{"../x": ""}, {"/x": ""}} {
		c.want(422, "PUT", lease+"/files", archive(t, bad))
	}
	whole := archive(t, map[string]string{"cut": strings.Repeat("x", 5000)})
	c.want(400, "PUT", lease+"/files", whole[:3000])
	for _, bad := range []string{"/etc", "../x", "a/../../x", "a//b"} {
		c.want(400, "GET", lease+"/files?path="+bad, nil)
		c.want(400, "PUT", lease+"/files?path="+bad, whole)
	}
	c.want(404, "GET", lease+"/files?path=missing", nil)
	if end, stdout, _ := c.run(lease, "ls"); stdout != "src\n" {
		t.Errorf("the workspace: %q, %+v, want src alone", stdout, end)
	}

	h.limits.download = 1000
	c.run(lease, "head -c 5000 /dev/zero >big")
	response := c.send("GET", lease+"/files", nil)
	defer func() { _ = response.Body.Close() }()
	if cut, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a download that is too large: %s, %d bytes, %v, want it cut short", response.Status, len(cut), err)
	}
}
