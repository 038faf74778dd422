package daytona

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

func TestTheProxysRefusalsAreToldFromTheServices(t *testing.T) {
	own := daemonError(401, "UNAUTHORIZED", "unauthorized: authentication failed: Auth key header is invalid")
	const login = "https://idp.test/authorize?client_id=d&response_type=code&redirect_uri=https%3A%2F%2Fpreview.test%2Fcallback"
	for name, test := range map[string]struct {
		status   int
		location string
		kind     string
		body     string
		refused  int // 0: it is an answer
	}{
		"its words":               {401, "", "application/json", own, 401},
		"not started":             {400, "", "application/json", daemonError(400, "BAD_REQUEST", "bad request: no IP address found. Is the Sandbox started?"), 400},
		"no container":            {404, "", "application/json", daemonError(404, "NOT_FOUND", "sandbox container not found"), 404},
		"its login":               {307, login, "", "", 401},
		"a service's 401":         {401, "", "application/json", `{"message":"authentication failed"}`, 0},
		"a framework's 401":       {401, "", "application/json", `{"statusCode":401,"message":"authentication failed","timestamp":"t","path":"/"}`, 0},
		"with a method":           {401, "", "application/json", daemonError(401, "UNAUTHORIZED", "authentication failed"), 0},
		"with the prefix":         {401, "", "application/json", `{"statusCode":401,"message":"unauthorized: authentication failed","timestamp":"t","path":"/"}`, 0},
		"a service's 400":         {400, "", "application/json", daemonError(400, "BAD_REQUEST", "which? is the sandbox started?"), 0},
		"as text":                 {401, "", "text/plain", own, 0},
		"another status":          {403, "", "application/json", own, 0},
		"a status that disagrees": {400, "", "application/json", own, 0},
		"no JSON":                 {401, "", "application/json", "authentication failed", 0},
		"a long one":              {401, "", "application/json", own + strings.Repeat(" ", 5000), 0},
		"another redirect":        {302, login, "", "", 0},
		"a redirect inside":       {307, "/login?client_id=d&response_type=code", "", "", 0},
		"a service's login":       {307, strings.Replace(login, "preview.test", "80-x.preview.test", 1), "", "", 0},
		"no location":             {307, "", "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(http.MethodGet, "https://80-x.preview.test/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp := &http.Response{StatusCode: test.status, Header: http.Header{"Content-Type": {test.kind}}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(test.body))}
			if test.location != "" {
				resp.Header.Set("Location", test.location)
			}
			e := refusal(req, resp)
			switch {
			case (e != nil) != (test.refused != 0), e != nil && (e.Status != test.refused || e.Dispatch != DispatchNo):
				t.Errorf("refusal() = %+v, want status %d", e, test.refused)
			case e == nil:
				if body, err := io.ReadAll(resp.Body); err != nil || string(body) != test.body {
					t.Errorf("the body is %d bytes by now, %v, want %d", len(body), err, len(test.body))
				}
			}
		})
	}
}

// A service may keep its answer open: it is handed out with all that it said and says, whenever that comes.
func TestAnOpenAnswerIsNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		pieces [2]string // before and after the answer is handed out
		end    error
	}{
		"nothing yet":   {[2]string{"", `{"late":true}`}, nil},
		"a beginning":   {[2]string{`{"statusCode":`, `401}`}, nil},
		"breaks off":    {[2]string{`{"statusCode":`, `4`}, io.ErrUnexpectedEOF},
		"a little more": {[2]string{`{`, strings.Repeat(" ", 2*maxRefusal)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body, service := io.Pipe()
				read := make(chan struct{})
				go func() {
					io.WriteString(service, test.pieces[0])
					<-read
					io.WriteString(service, test.pieces[1])
					service.CloseWithError(test.end)
				}()
				req, err := http.NewRequest(http.MethodGet, "https://80-x.preview.test/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp := &http.Response{StatusCode: 401, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: -1, Body: body}
				if e := refusal(req, resp); e != nil {
					t.Errorf("refusal() = %+v, want none", e)
				}
				close(read)
				text, err := io.ReadAll(resp.Body)
				if want := test.pieces[0] + test.pieces[1]; string(text) != want || err != test.end {
					t.Errorf("the body is %d bytes, %v, want %d and %v", len(text), err, len(want), test.end)
				}
			})
		})
	}
	// Nobody waits for one that is closed unread.
	synctest.Test(t, func(t *testing.T) {
		body, _ := io.Pipe()
		resp := &http.Response{Body: body}
		peek(resp)
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestABuildsLogIsNotReadInClearText(t *testing.T) {
	for address, want := range map[string]bool{
		"https://proxy.test/snapshots/1/build-logs": true, "http://proxy.test/snapshots/1/build-logs": false, "https://me@proxy.test/": false, "ftp://proxy.test": false, "": false,
	} {
		c, err := New(Config{APIURL: "https://api.test/api", APIKey: "key", Transport: answering(`{"url":"` + address + `"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.BuildLogURL(t.Context(), "1"); (err == nil) != want || want && got != address {
			t.Errorf("BuildLogURL() = %q, %v of %q, want it taken: %v", got, err, address, want)
		}
	}
}

// A token opens a sandbox: a reply that names no gateway has it sent to the hosted one only if it is the hosted service's.
func TestAnSSHTokenIsForItsOwnServersGateway(t *testing.T) {
	for api, hosted := range map[string]bool{
		"https://app.daytona.io/api": true, "https://APP.Daytona.io:443/api": true,
		"https://daytona.test/api": false, "https://app.daytona.io.test/api": false, "https://notdaytona.io/api": false,
	} {
		c, err := New(Config{APIURL: api, APIKey: "key", Transport: answering(`{"sandboxId":"box","token":"abcdefgh","expiresAt":"2026-01-01T00:00:00Z"}`)})
		if err != nil {
			t.Fatal(err)
		}
		access, err := c.CreateSSH(t.Context(), "box", 60)
		switch {
		case !hosted:
			if e := failure(t, err); e.Reason != ReasonDecode || access != nil {
				t.Errorf("%s: CreateSSH() = %+v, %v, want none", api, access, err)
			}
		case err != nil || access.Host != "ssh.app.daytona.io" || access.Port != 22 || access.Token != "abcdefgh":
			t.Errorf("%s: CreateSSH() = %+v, %v, want the hosted gateway", api, access, err)
		}
	}
}

// answering is a transport that gives one answer.
type answering string

func (a answering) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(a)),
		Body: io.NopCloser(strings.NewReader(string(a))), Request: req,
	}, nil
}

// pipeListener accepts connections that take nothing before it is read.
type pipeListener struct {
	net.Listener
	accepted chan net.Conn
	closed   chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error { close(l.closed); return nil }

// inSocket opens a socket to a service, in virtual time. What the service writes and reads, the other side must take and give.
func inSocket(t *testing.T, serve func(ctx context.Context, conn *websocket.Conn), f func(t *testing.T, conn net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := &pipeListener{accepted: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			serve(t.Context(), conn)
			_ = conn.CloseNow()
		})}
		go func() { _ = server.Serve(listener) }()
		carrier := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			listener.accepted <- there
			return here, nil
		}}
		conn, _, err := DialSocket(t.Context(), carrier, "http://service/", SocketRequest{})
		if err != nil {
			t.Fatal(err)
		}
		f(t, conn)
		_ = conn.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		carrier.CloseIdleConnections()
	})
}

// deaf is a service that reads nothing, and so cannot be told of the end either.
func deaf(ctx context.Context, _ *websocket.Conn) { <-ctx.Done() }

func TestASocketIsClosedWhileAWriteWaits(t *testing.T) {
	inSocket(t, deaf, func(t *testing.T, conn net.Conn) {
		written := make(chan error)
		go func() {
			_, err := conn.Write(make([]byte, 1<<20))
			written <- err
		}()
		synctest.Wait()
		began := time.Now()
		_ = conn.Close()
		if took := time.Since(began); took >= time.Second {
			t.Errorf("Close() took %s", took)
		}
		if e := failure(t, <-written); e.Reason != ReasonClosed {
			t.Errorf("Write() = %+v, want that it was closed", e)
		}
	})
}

// wantTimeout fails the test unless err is that of a deadline of a connection.
func wantTimeout(t *testing.T, err error) {
	t.Helper()
	if e := failure(t, err); e.Reason != ReasonTimeout || !errors.Is(e, os.ErrDeadlineExceeded) {
		t.Errorf("error = %+v, want that of the deadline", e)
	}
}

func TestASocketsDeadlineEndsACallAndTheSocket(t *testing.T) {
	one := make([]byte, 1)
	for name, call := range map[string]func(net.Conn) (int, error){
		"a Read":  func(conn net.Conn) (int, error) { return conn.Read(one) },
		"a Write": func(conn net.Conn) (int, error) { return conn.Write(make([]byte, 1<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			inSocket(t, deaf, func(t *testing.T, conn net.Conn) {
				began := time.Now()
				_ = conn.SetDeadline(began.Add(time.Minute))
				_, err := call(conn)
				wantTimeout(t, err)
				if took := time.Since(began); took != time.Minute {
					t.Errorf("it failed after %s, want a minute", took)
				}
				_ = conn.SetDeadline(time.Time{})
				for range 10 {
					_, err = conn.Read(one)
					if e := failure(t, err); e.Reason != ReasonClosed {
						t.Fatalf("Read() = %+v, want that it was closed", e)
					}
					_, err = conn.Write(one)
					if e := failure(t, err); e.Reason != ReasonClosed {
						t.Fatalf("Write() = %+v, want that it was closed", e)
					}
				}
			})
		})
	}
}

func TestASocketsDeadlineThatPassedBetweenCallsCanBeMoved(t *testing.T) {
	echo := func(ctx context.Context, conn *websocket.Conn) {
		for {
			kind, data, err := conn.Read(ctx)
			if err != nil || conn.Write(ctx, kind, data) != nil {
				return
			}
		}
	}
	for name, left := range map[string]time.Duration{"by a wait": time.Minute, "when it was set": 0, "long before it was set": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			inSocket(t, echo, func(t *testing.T, conn net.Conn) {
				one := make([]byte, 1)
				for range 20 {
					_ = conn.SetDeadline(time.Now().Add(left))
					time.Sleep(left)
					_, err := conn.Read(one)
					wantTimeout(t, err)
					_, err = conn.Write(one)
					wantTimeout(t, err)
					_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
					_ = conn.SetWriteDeadline(time.Time{})
					if _, err := conn.Write([]byte("x")); err != nil {
						t.Fatal(err)
					}
					if _, err := conn.Read(one); err != nil || string(one) != "x" {
						t.Fatalf("Read() = %q, %v, want what was sent", one, err)
					}
				}
			})
		})
	}
}

func TestASocketsDeadlineIsMovedWhileACallWaits(t *testing.T) {
	inSocket(t, deaf, func(t *testing.T, conn net.Conn) {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		began, read := time.Now(), make(chan error)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		_ = conn.SetReadDeadline(began.Add(time.Hour))
		wantTimeout(t, <-read)
		if took := time.Since(began); took != time.Hour {
			t.Errorf("Read() failed after %s, want an hour", took)
		}
	})
}
