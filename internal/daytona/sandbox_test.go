package daytona

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCreateSendsWhatWasAskedFor(t *testing.T) {
	ptr := func(n int) *int { return &n }
	tests := []struct {
		name    string
		request CreateRequest
		want    map[string]any
	}{
		{"nothing", CreateRequest{}, map[string]any{"labels": map[string]any{LanguageLabel: "python"}}},
		{
			"a snapshot",
			CreateRequest{
				Name: "n", Snapshot: "s", Language: "typescript", Target: "eu", User: "u", Labels: map[string]string{"a": "b"},
				Env: map[string]string{"K": "V"}, AutoStop: ptr(0), AutoArchive: ptr(60), AutoDelete: ptr(-1), TTL: 30,
			},
			map[string]any{
				"name": "n", "snapshot": "s", "target": "eu", "user": "u", "labels": map[string]any{"a": "b", LanguageLabel: "typescript"},
				"env": map[string]any{"K": "V"}, "autoStopInterval": 0.0, "autoArchiveInterval": 60.0, "autoDeleteInterval": -1.0, "ttlMinutes": 30.0,
			},
		},
		{
			"an image",
			CreateRequest{Image: "debian:12", Resources: Resources{CPU: 1, GPU: 2, Memory: 3, Disk: 4}},
			map[string]any{
				"labels": map[string]any{LanguageLabel: "python"}, "buildInfo": map[string]any{"dockerfileContent": "FROM debian:12"},
				"cpu": 1.0, "gpu": 2.0, "memory": 3.0, "disk": 4.0,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got map[string]any
			f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
				json.NewDecoder(r.Body).Decode(&got)
				answer(200, `{"id":"box"}`)(w, r)
			})
			labels, env := maps.Clone(test.request.Labels), maps.Clone(test.request.Env)
			if _, err := f.client(t, nil).Create(t.Context(), test.request); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("body mismatch (-want +got):\n%s", diff)
			}
			if !maps.Equal(labels, test.request.Labels) || !maps.Equal(env, test.request.Env) {
				t.Errorf("the caller's maps changed: %v %v", test.request.Labels, test.request.Env)
			}
		})
	}
}

func TestTheEnvironmentHasNoInfluence(t *testing.T) {
	// TestMain has set every variable of the SDK's to something that breaks who obeys it.
	var bodies strings.Builder
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(&bodies, r.Body)
		answer(200, `{"id":"box"}`)(w, r)
	})
	c := f.client(t, nil)
	if _, err := c.Create(t.Context(), CreateRequest{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL + "/toolbox"}).CreateSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	requests := f.seen()
	if len(requests) != 2 {
		t.Fatalf("%d requests, want 2", len(requests))
	}
	for _, r := range requests {
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, ","), "wrong") {
				t.Errorf("%s %s: header %s = %q", r.Method, r.URL, name, values)
			}
		}
		if got, want := r.Header.Get("Authorization"), "Bearer "+testKey; got != want {
			t.Errorf("Authorization = %q, want %q", got, want)
		}
		if got := r.Header.Get("Traceparent"); got != "" {
			t.Errorf("Traceparent = %q, want none", got)
		}
	}
	if got := bodies.String(); strings.Contains(got, "wrong") || strings.Contains(got, "target") {
		t.Errorf("bodies %s", got)
	}
}

func TestSandboxRecordsAreReadTolerantly(t *testing.T) {
	const complete = `{"id":"box","name":"n","organizationId":"org","state":"started","desiredState":"stopped","errorReason":"why",
		"recoverable":true,"labels":{"a":"b"},"target":"eu","snapshot":"s","user":"u","cpu":1,"gpu":0,"memory":2.5,"disk":3,
		"autoStopInterval":15,"autoArchiveInterval":60,"autoDeleteInterval":-1,"autoDestroyAt":"2026-01-02T03:04:05.678Z",
		"createdAt":"2026-01-01T00:00:00.000Z","updatedAt":"2026-01-01T00:00:01Z","toolboxProxyUrl":"https://proxy/toolbox",
		"env":{},"public":false,"networkBlockAll":false}`
	ptr := func(n int) *int { return &n }
	tests := []struct {
		name string
		body string
		want *Sandbox
	}{
		{"complete", complete, &Sandbox{
			ID: "box", Name: "n", OrganizationID: "org", State: StateStarted, DesiredState: StateStopped, ErrorReason: "why", Recoverable: true,
			Labels: map[string]string{"a": "b"}, Target: "eu", Snapshot: "s", User: "u", CPU: 1, Memory: 2.5, Disk: 3,
			AutoStop: ptr(15), AutoArchive: ptr(60), AutoDelete: ptr(-1), AutoDestroyAt: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC),
			CreatedAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UpdatedAt: time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC),
			ToolboxURL: "https://proxy/toolbox",
		}},
		{"the least", `{"id":"box"}`, &Sandbox{ID: "box", Labels: map[string]string{}}},
		{"nulls", `{"id":"box","errorReason":null,"labels":null,"state":null,"recoverable":null,"autoDestroyAt":null}`, &Sandbox{ID: "box", Labels: map[string]string{}}},
		{"unknown state and fields", `{"id":"box","state":"hibernating","desiredState":"moon","future":{"x":[1]},"recoverable":false}`,
			&Sandbox{ID: "box", State: "hibernating", DesiredState: "moon", NotRecoverable: true, Labels: map[string]string{}}},
		{"labels that are no strings", `{"id":"box","labels":{"n":1,"s":"x"}}`, &Sandbox{ID: "box", Labels: map[string]string{"n": "1", "s": "x"}}},
		{"a malformed time", `{"id":"box","autoDestroyAt":"tomorrow"}`, &Sandbox{ID: "box", Labels: map[string]string{}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := newFake(t, answer(200, test.body)).client(t, nil).Get(t.Context(), "box")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Get() mismatch (-want +got):\n%s", diff)
			}
			page := answer(200, `{"items":[`+test.body+`],"total":1,"page":1,"totalPages":1}`)
			if of, err := newFake(t, page).client(t, nil).CredentialOrganization(t.Context()); of != test.want.OrganizationID || err != nil {
				t.Errorf("CredentialOrganization() = %q, %v; want %q", of, err, test.want.OrganizationID)
			}
		})
	}
}

func TestContainerLostNeedsTheExactStatement(t *testing.T) {
	reason := func(a, b string) string {
		return "not found: failed to inspect sandbox container " + a + ": Error response from daemon: No such container: " + b
	}
	lost := Sandbox{ID: "b.x", State: StateError, NotRecoverable: true, ErrorReason: reason("b.x", "b.x")}
	tests := []struct {
		name   string
		change func(*Sandbox)
		want   bool
	}{
		{"exact", func(*Sandbox) {}, true},
		{"another state", func(s *Sandbox) { s.State = StateStopped }, false},
		{"recoverable", func(s *Sandbox) { s.Recoverable, s.NotRecoverable = true, false }, false},
		{"recoverability not stated", func(s *Sandbox) { s.NotRecoverable = false }, false},
		{"another id", func(s *Sandbox) { s.ErrorReason = reason("b.x", "bax") }, false},
		{"more words", func(s *Sandbox) { s.ErrorReason += "." }, false},
		{"another thing", func(s *Sandbox) {
			s.ErrorReason = strings.Replace(s.ErrorReason, "No such container", "No such volume", 1)
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := lost
			test.change(&s)
			if got := s.ContainerLost(); got != test.want {
				t.Errorf("ContainerLost() = %v, want %v", got, test.want)
			}
		})
	}
}

func TestPreviewURLRefusesAnotherSandboxes(t *testing.T) {
	f := newFake(t, answer(200, `{"sandboxId":"other","url":"http://x","token":"t"}`))
	_, _, err := f.client(t, nil).PreviewURL(t.Context(), "box", 80)
	if e := failure(t, err); e.Reason != ReasonDecode {
		t.Errorf("PreviewURL() = %+v, want decode", e)
	}
}

// everyCall makes each call of the package once, with a given id in every place that takes one.
func everyCall(c *Client, box *Toolbox, id string) map[string]func(context.Context) error {
	drop := func(_ any, err error) error { return err }
	return map[string]func(context.Context) error{
		OpCreate:          func(ctx context.Context) error { return drop(c.Create(ctx, CreateRequest{Name: id})) },
		OpGet:             func(ctx context.Context) error { return drop(c.Get(ctx, id)) },
		OpList:            func(ctx context.Context) error { return drop(c.CredentialOrganization(ctx)) },
		OpStart:           func(ctx context.Context) error { return c.Start(ctx, id) },
		OpStop:            func(ctx context.Context) error { return c.Stop(ctx, id) },
		OpArchive:         func(ctx context.Context) error { return c.Archive(ctx, id) },
		OpRecover:         func(ctx context.Context) error { return c.Recover(ctx, id) },
		OpDelete:          func(ctx context.Context) error { return c.Delete(ctx, id) },
		OpSetAutoDelete:   func(ctx context.Context) error { return c.SetAutoDelete(ctx, id, -1) },
		OpPreviewURL:      func(ctx context.Context) error { _, _, err := c.PreviewURL(ctx, id, 8080); return err },
		OpExecute:         func(ctx context.Context) error { return drop(box.Execute(ctx, "true", time.Second)) },
		OpCreateSession:   func(ctx context.Context) error { return box.CreateSession(ctx, id) },
		OpDeleteSession:   func(ctx context.Context) error { return box.DeleteSession(ctx, id) },
		OpSessionCommands: func(ctx context.Context) error { return drop(box.SessionCommands(ctx, id)) },
		OpStartCommand:    func(ctx context.Context) error { return drop(box.StartCommand(ctx, id, "true")) },
		OpCommand:         func(ctx context.Context) error { return drop(box.Command(ctx, id, "cmd")) },
		OpLogs: func(ctx context.Context) error {
			body, err := box.Logs(ctx, id, "cmd")
			if err == nil {
				body.Close()
			}
			return err
		},
		OpFollow: func(ctx context.Context) error {
			l, err := box.Follow(ctx, id, "cmd")
			if err == nil {
				l.Close()
			}
			return err
		},
		OpUpload: func(ctx context.Context) error { return box.Upload(ctx, File{"/x", strings.NewReader("x")}) },
		OpDownload: func(ctx context.Context) error {
			d, err := box.Download(ctx, "/x", 0)
			if err == nil {
				d.Close()
			}
			return err
		},
		OpReadFile:  func(ctx context.Context) error { return drop(box.ReadFile(ctx, "/x", 10)) },
		OpCreatePTY: func(ctx context.Context) error { return box.CreatePTY(ctx, PTYRequest{ID: id}) },
		OpConnectPTY: func(ctx context.Context) error {
			p, err := box.ConnectPTY(ctx, id)
			if err == nil {
				p.Close()
			}
			return err
		},
		OpResizePTY: func(ctx context.Context) error { return box.ResizePTY(ctx, id, 80, 24) },
		OpDeletePTY: func(ctx context.Context) error { return box.DeletePTY(ctx, id) },
	}
}

func TestEveryCallIsOneRequestWithTheRightHeaders(t *testing.T) {
	const id = "a b/c?d#e%2F{x}é"
	const escaped = "a%20b%2Fc%3Fd%23e%252F%7Bx%7D%C3%A9"
	bare := map[string]bool{OpLogs: true, OpDownload: true}
	withoutID := map[string]bool{
		OpCreate: true, OpList: true, OpExecute: true, OpCreateSession: true,
		OpUpload: true, OpDownload: true, OpReadFile: true, OpCreatePTY: true,
	}
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusTeapot)
	})
	var seen observed
	c := f.client(t, seen.add)
	for op, call := range everyCall(c, c.Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL + "/toolbox"}), id) {
		t.Run(op, func(t *testing.T) {
			before, calls := len(f.seen()), len(seen.all())
			e := failure(t, call(Quiet(t.Context())))
			if e.Op != op || e.Status != http.StatusTeapot || e.Reason != ReasonStatus || e.Dispatch != DispatchYes {
				t.Errorf("error = %+v, want %s, status, 418, dispatched", e, op)
			}
			requests := f.seen()[before:]
			if len(requests) != 1 {
				t.Fatalf("%d requests, want 1", len(requests))
			}
			if got := seen.all()[calls:]; len(got) != 1 || got[0].Op != op || got[0].Err != e {
				t.Errorf("observed %+v, want this call", got)
			}
			r := requests[0]
			if !withoutID[op] && !strings.Contains(r.RequestURI, "/"+escaped) {
				t.Errorf("path %q, want it to hold %q", r.RequestURI, escaped)
			}
			want := map[string]string{
				"Authorization": "Bearer " + testKey, "Accept-Encoding": "identity", "X-Daytona-Organization-Id": "",
				"X-Daytona-Skip-Last-Activity-Update": "true", "X-Daytona-Sdk-Version": "v0.170.0",
			}
			if bare[op] {
				want["X-Daytona-Sdk-Version"] = ""
			}
			for name, value := range want {
				if got := strings.Join(r.Header.Values(name), ","); got != value {
					t.Errorf("%s = %q, want %q", name, got, value)
				}
			}
		})
	}
}

func TestIdsThatAreNoPathSegmentSendNothing(t *testing.T) {
	f := newFake(t, answer(200, "{}"))
	c := f.client(t, nil)
	for _, id := range []string{"", ".", ".."} {
		for _, box := range []*Toolbox{c.Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL}), c.Toolbox(&Sandbox{ID: id, ToolboxURL: f.URL})} {
			for op, call := range everyCall(c, box, id) {
				needsID := !strings.HasPrefix(op, "file_") && op != OpCreate && op != OpList && op != OpExecute
				if !needsID {
					continue
				}
				if e := failure(t, call(t.Context())); e.Op != op || e.Reason != ReasonInput || e.Dispatch != DispatchNo {
					t.Errorf("%s(%q) = %+v, want input, not dispatched", op, id, e)
				}
			}
		}
	}
	if got := f.seen(); len(got) != 0 {
		t.Errorf("%d requests, want 0", len(got))
	}
}

func TestWhatCannotBeSentFaithfullyIsRefused(t *testing.T) {
	f := newFake(t, answer(200, "{}"))
	c := f.client(t, nil)
	box := c.Toolbox(&Sandbox{ID: "box", ToolboxURL: f.URL})
	big := 1 << 40
	_, err1 := box.Execute(t.Context(), "echo \xff", 0)
	_, err2 := box.Execute(t.Context(), "true", -time.Second)
	_, err3 := box.StartCommand(t.Context(), "s", "echo \xff")
	_, err4 := box.ReadFile(t.Context(), "/\xff", 1)
	_, err5 := c.Create(t.Context(), CreateRequest{AutoStop: &big})
	_, err6 := c.Create(t.Context(), CreateRequest{Image: "x\nRUN rm -rf /"})
	_, err7 := box.Download(t.Context(), "/x", -1)
	_, _, err8 := c.PreviewURL(t.Context(), "box", 65536)
	for i, err := range []error{
		err1, err2, err3, err4, err5, err6, err7, err8,
		c.SetAutoDelete(t.Context(), "box", -2), c.SetAutoDelete(t.Context(), "box", 1<<25),
		box.CreatePTY(t.Context(), PTYRequest{ID: "p", Cols: 1001}), box.ResizePTY(t.Context(), "p", 0, 24),
	} {
		if e := failure(t, err); e.Reason != ReasonInput || e.Dispatch != DispatchNo {
			t.Errorf("%d: %+v, want input, not dispatched", i+1, e)
		}
	}
	if got := f.seen(); len(got) != 0 {
		t.Errorf("%d requests, want 0", len(got))
	}
}

func ExampleError() {
	e := &Error{Op: OpStart, Reason: ReasonStatus, Status: 409, Message: "Sandbox state change in progress"}
	fmt.Println(e, e.Pending())
	// Output: daytona: start: status (HTTP 409) true
}
