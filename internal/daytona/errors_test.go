package daytona

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func apiError(status int, message string) string {
	return fmt.Sprintf(`{"path":"/api/sandbox","timestamp":"2026-01-01T00:00:00Z","statusCode":%d,"error":"E","message":%q}`, status, message)
}

func daemonError(status int, code, message string) string {
	return fmt.Sprintf(`{"statusCode":%d,"message":%q,"code":%q,"timestamp":"2026-01-01T00:00:00Z","path":"/x","method":"GET"}`, status, message, code)
}

// class is what the helpers of an Error say.
func class(e *Error) []string {
	var is []string
	for _, c := range []struct {
		name string
		is   bool
	}{
		{"NotFound", e.NotFound()}, {"Unauthorized", e.Unauthorized()}, {"Forbidden", e.Forbidden()}, {"RateLimited", e.RateLimited()},
		{"Pending", e.Pending()}, {"NameTaken", e.NameTaken()}, {"Quota", e.Quota()}, {"NoRunner", e.NoRunner()},
		{"StartFailed", e.StartFailed()}, {"NotStarted", e.NotStarted()},
		{"ContainerGone", e.ContainerGone()}, {"NotYet", e.NotYet()}, {"SessionMissing", e.SessionMissing()}, {"ShellGone", e.ShellGone()},
		{"NoSpace", e.NoSpace()}, {"NotDirectory", e.NotDirectory()},
	} {
		if c.is {
			is = append(is, c.name)
		}
	}
	return is
}

func TestRepliesAreClassified(t *testing.T) {
	const html = "<html><body><h1>404 Not Found</h1>Sandbox with ID or name x not found</body></html>"
	tests := []struct {
		name       string
		op         string
		status     int
		body       string
		structured bool
		class      []string
	}{
		{"the API's not found", OpGet, 404, apiNotFound, true, []string{"NotFound"}},
		{"a proxy's page", OpGet, 404, html, false, nil},
		{"an empty 404", OpGet, 404, "", false, nil},
		{"a 404 whose body says another status", OpGet, 404, apiError(400, "Sandbox with ID or name x not found"), false, nil},
		{"a 404 of the daemon's shape for an API call", OpGet, 404, daemonNotFound, false, nil},
		{"a 404 without the path", OpGet, 404, `{"timestamp":"t","statusCode":404,"error":"Not Found","message":"Sandbox not found"}`, false, nil},
		{"a path the API does not serve", OpDelete, 404, apiError(404, "Cannot DELETE /api/v9/sandbox/x not found"), true, nil},
		{"a JSON syntax error", OpCreate, 400, `{"message":"Unexpected token","error":"Bad Request","statusCode":400}`, false, nil},
		{"a bad credential", OpGet, 401, apiError(401, "Invalid credentials"), true, []string{"Unauthorized"}},
		{"a missing permission", OpDelete, 403, apiError(403, "Forbidden resource"), true, []string{"Forbidden"}},
		{"too many requests", OpCreate, 429, apiError(429, "Too Many Requests"), true, []string{"RateLimited"}},
		{"a name that is taken", OpCreate, 409, apiError(409, "Sandbox with name x already exists"), true, []string{"NameTaken"}},
		{"a pending change", OpStop, 409, apiError(409, "Sandbox state change in progress"), true, []string{"Pending"}},
		{"a lost race", OpDelete, 409, apiError(409, "Sandbox was modified by another operation"), true, []string{"Pending"}},
		{"a conflict in unknown words", OpStart, 409, apiError(409, "come back later"), true, []string{"Pending"}},
		{"an organisation's quota", OpCreate, 400, apiError(400, "Total CPU limit exceeded. Maximum allowed: 10.\nSee the dashboard"), true, []string{"Quota"}},
		{"a sandbox's quota", OpCreate, 403, apiError(403, "Disk request 20GB exceeds maximum allowed per sandbox (10GB)."), true, []string{"Quota"}},
		{"no machine", OpCreate, 400, apiError(400, "No available runners"), true, []string{"NoRunner"}},
		{"a failed start", OpCreate, 400, apiError(400, "Sandbox failed to start: boom"), true, []string{"StartFailed"}},
		{"a stopped sandbox behind the proxy", OpExecute, 400, daemonError(400, "BAD_REQUEST", "bad request: no IP address found. Is the Sandbox started?"), true, []string{"NotStarted"}},
		{"the same with a code of its own", OpExecute, 400, daemonError(400, "SANDBOX_NOT_RUNNING", "bad request"), true, []string{"NotStarted"}},
		{"a lost container", OpExecute, 404, daemonError(404, "NOT_FOUND", "sandbox container not found"), true, []string{"ContainerGone"}},
		{"an unknown session", OpSessionCommands, 404, daemonNotFound, true, []string{"NotFound", "SessionMissing"}},
		{"exec in an unknown session", OpStartCommand, 500, `{"statusCode":500,"message":"failed to execute command: not found: session not found","timestamp":"0001-01-01T00:00:00Z","path":""}`, true, []string{"SessionMissing"}},
		{"exec in a session whose shell has died", OpStartCommand, 500, `{"statusCode":500,"message":"failed to execute command: write |1: broken pipe","timestamp":"0001-01-01T00:00:00Z","path":""}`, true, []string{"ShellGone"}},
		{"a broken pipe in a proxy's page", OpStartCommand, 500, "broken pipe", false, nil},
		{"a broken pipe of another call", OpCommand, 500, `{"statusCode":500,"message":"write |1: broken pipe","timestamp":"0001-01-01T00:00:00Z","path":""}`, true, nil},
		{"a status read while the exit code is written", OpCommand, 500, `{"statusCode":500,"message":"failed to convert exit code to int: strconv.Atoi: parsing \"\": invalid syntax","timestamp":"0001-01-01T00:00:00Z","path":""}`, true, []string{"NotYet"}},
		{"another 500", OpCommand, 500, `{"statusCode":500,"message":"boom","timestamp":"0001-01-01T00:00:00Z","path":""}`, true, nil},
		{"a missing file", OpDownload, 404, "", false, nil},
		{"a missing terminal", OpResizePTY, 404, `{"error":"PTY session not found"}`, true, []string{"NotFound"}},
		{"the terminal's shape for another call", OpExecute, 404, `{"error":"not found"}`, false, nil},
		{"an upload to below a file", OpUpload, 400, `{"errors":["/f/x: mkdir /f: not a directory"],"files":[]}`, true, []string{"NotDirectory"}},
		{"an upload to a full disk", OpUpload, 400, `{"errors":["/x: write /x: no space left on device"],"files":[]}`, true, []string{"NoSpace"}},
		{"null", OpGet, 404, "null", false, nil},
		{"a list", OpGet, 404, "[]", false, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := parseReply(test.op, test.status, []byte(test.body))
			e := &Error{Op: test.op, Reason: ReasonStatus, Status: test.status, Structured: r.structured, Code: r.code, Message: r.message}
			if e.Structured != test.structured {
				t.Errorf("Structured = %v, want %v", e.Structured, test.structured)
			}
			if diff := cmp.Diff(test.class, class(e)); diff != "" {
				t.Errorf("classification mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorTextHoldsNothingOfTheProviders(t *testing.T) {
	const secret = "s3cr3t-provider-text"
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Secret", secret)
		answer(400, apiError(400, secret))(w, r)
	})
	_, err := f.client(t, nil).Get(t.Context(), secret+"-id")
	e := failure(t, err)
	if e.Message != secret {
		t.Errorf("Message = %q, want %q", e.Message, secret)
	}
	for _, hidden := range []string{secret, testKey, f.URL} {
		if strings.Contains(e.Error(), hidden) {
			t.Errorf("Error() = %q, want it without %q", e, hidden)
		}
	}
	if got, want := e.Error(), "daytona: get: status (HTTP 400)"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	for next := error(e); next != nil; next = errors.Unwrap(next) {
		if strings.Contains(next.Error(), secret) {
			t.Errorf("chain holds %q", next)
		}
	}
}

func TestErrorMessageIsBounded(t *testing.T) {
	tests := []struct {
		name string
		size int
		want int
	}{
		{"longer than what is kept", 10_000, maxMessage},
		{"longer than what is read", 1 << 20, 0}, // cut in the middle, so no JSON: nothing is made of it
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, answer(400, apiError(400, strings.Repeat("x", test.size))))
			_, err := f.client(t, nil).Get(t.Context(), "box")
			e := failure(t, err)
			if e.Status != 400 || len(e.Message) != test.want {
				t.Errorf("status %d, %d bytes of message, want 400 and %d", e.Status, len(e.Message), test.want)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := map[string]time.Duration{
		"":                              0,
		"7":                             7 * time.Second,
		"1.5":                           1500 * time.Millisecond,
		"-3":                            0,
		"NaN":                           0,
		"+Inf":                          24 * time.Hour,
		"soon":                          0,
		"99999999999":                   24 * time.Hour,
		"Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second,
		"Fri, 02 Jan 2026 03:04:00 GMT": 0,
	}
	for value, want := range tests {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("retryAfter(%q) = %v, want %v", value, got, want)
		}
	}
	for _, skew := range []time.Duration{-6 * time.Hour, 6 * time.Hour} {
		theirs := now.Add(skew)
		h := http.Header{"Date": {theirs.Format(http.TimeFormat)}, "Retry-After": {theirs.Add(10 * time.Second).Format(http.TimeFormat)}}
		if got, want := retryAfter(h, now), 10*time.Second; got != want {
			t.Errorf("retryAfter() by a clock that is %v off = %v, want %v", skew, got, want)
		}
	}
}

func TestRateLimitKeepsRetryAfter(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "3")
		answer(429, apiError(429, "slow down"))(w, r)
	})
	_, err := f.client(t, nil).Create(t.Context(), CreateRequest{Name: "x"})
	e := failure(t, err)
	if !e.RateLimited() || e.RetryAfter != 3*time.Second || e.Dispatch != DispatchYes {
		t.Errorf("error = %+v, want rate limited, 3 s, dispatched", e)
	}
}

func TestContextEndIsTheCause(t *testing.T) {
	reason := errors.New("the host's reason")
	tests := []struct {
		name   string
		ctx    func() (context.Context, context.CancelFunc)
		reason Reason
		cause  error
	}{
		{"deadline", func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 30*time.Millisecond)
		}, ReasonTimeout, context.DeadlineExceeded},
		{"deadline with a cause", func() (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(context.Background(), 30*time.Millisecond, reason)
		}, ReasonTimeout, reason},
		{"cancelled with a cause", func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(context.Background())
			timer := time.AfterFunc(30*time.Millisecond, func() { cancel(reason) })
			return ctx, func() { timer.Stop() }
		}, ReasonCanceled, reason},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLive(t, emulator.Options{InMemory: true})
				l.SetFaults(emulator.Fault{Action: emulator.SilentSocket, Bytes: -1})
				ctx, cancel := test.ctx()
				defer cancel()
				_, err := l.Get(ctx, "box")
				e := failure(t, err)
				if e.Reason != test.reason || e.Dispatch != DispatchUnknown || !errors.Is(err, test.cause) {
					t.Errorf("error = %+v, want %s, dispatch unknown, cause %v", e, test.reason, test.cause)
				}
			})
		})
	}
}
