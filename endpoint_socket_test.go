package leasehold

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestAWebSocketThroughAnEndpoint(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	codes := make(chan websocket.StatusCode, 10)
	port := service(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/ws/echo" {
			http.Error(w, "no", http.StatusTeapot)
			return
		}
		conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{Subprotocols: []string{"two"}})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(-1)
		for {
			kind, data, err := conn.Read(req.Context())
			if err != nil {
				codes <- websocket.CloseStatus(err)
				return
			}
			switch string(data) {
			case "bye":
				conn.Close(websocket.StatusNormalClosure, "")
				return
			case "worse":
				conn.Close(websocket.StatusInternalError, "secret words")
				return
			case "query":
				data = []byte(req.URL.RawQuery + req.Header.Get("X-Mine"))
			}
			if conn.Write(req.Context(), kind, data) != nil {
				return
			}
		}
	})
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	r.server.Sandbox(l.ref.Sandbox).RotateToken() // noticed by the handshake
	opening, opened := context.WithCancel(t.Context())
	conn, err := e.DialWebSocket(opening, "/ws/echo?a=1", WebSocketOptions{Subprotocols: []string{"one", "two"}, Header: http.Header{"X-Mine": {"mine"}}})
	if err != nil {
		t.Fatal(err)
	}
	opened() // bounds the opening alone
	defer conn.Close()
	if conn.Subprotocol() != "two" {
		t.Errorf("Subprotocol() = %q, want two", conn.Subprotocol())
	}
	var _ net.Conn = conn
	payload := bytes.Repeat([]byte{0, 1, 2, 255}, 100_000)
	go conn.Write(payload)
	got := make([]byte, len(payload))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, payload) {
		t.Errorf("%d bytes back, %v, want what was sent", len(got), err)
	}
	if _, err := io.WriteString(conn, "query"); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(got); err != nil || string(got[:n]) != "a=1mine" {
		t.Errorf("Read() = %q, %v, want the query and the header", got[:n], err)
	}
	if active(l) != 1 {
		t.Errorf("%d activities, want 1", active(l))
	}
	io.WriteString(conn, "bye")
	if _, err := conn.Read(got); err != io.EOF {
		t.Errorf("Read() = %v, want io.EOF", err)
	}
	conn.Close()
	if active(l) != 0 {
		t.Errorf("%d activities are left, want 0", active(l))
	}

	// Closed on this side, and regularly, although a Read waits.
	reading, err := e.DialWebSocket(t.Context(), "ws/echo", WebSocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(reading, "x")
	reads := make(chan error)
	go func() {
		_, err := reading.Read(got) // the echo
		reads <- err
		_, err = reading.Read(got)
		reads <- err
	}()
	if err := <-reads; err != nil {
		t.Error(err)
	}
	reading.Close()
	if e := wantError(t, <-reads, KindClosed); e.Retryable {
		t.Errorf("%+v is to be tried again", e)
	}
	_, err = reading.Read(got)
	wantError(t, err, KindClosed)
	_, err = reading.Write(got)
	wantError(t, err, KindClosed)
	if code := <-codes; code != websocket.StatusNormalClosure {
		t.Errorf("the service was told %v, want a regular end", code)
	}

	// A deadline ends the Read that waits, and the connection.
	late, err := e.DialWebSocket(t.Context(), "ws/echo", WebSocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	late.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err = late.Read(got)
	if f := wantError(t, err, KindTimeout); !errors.Is(f, os.ErrDeadlineExceeded) || !os.IsTimeout(err) || f.Retryable {
		t.Errorf("Read() = %+v, want a timeout with the cause os.ErrDeadlineExceeded, and not to be tried again", f)
	}
	_, err = late.Write(got[:1])
	wantError(t, err, KindClosed)
	late.Close()

	text, err := e.DialWebSocket(t.Context(), "ws/echo", WebSocketOptions{Text: true})
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	io.WriteString(text, "worse")
	_, err = text.Read(got)
	wantError(t, err, KindUnavailable)
	wantNoSecret(t, "secret words", err.Error())

	_, err = e.DialWebSocket(t.Context(), "elsewhere", WebSocketOptions{})
	if f := wantError(t, err, KindRefused); f.HTTPStatus != http.StatusTeapot {
		t.Errorf("error = %+v, want the service's status", f)
	}

	// Another package's socket, on the client.
	other, _, err := websocket.Dial(t.Context(), e.WebSocketURL().JoinPath("ws/echo").String(), &websocket.DialOptions{HTTPClient: e.Client()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.CloseNow()
	if err := other.Write(t.Context(), websocket.MessageText, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := other.Read(t.Context()); err != nil || string(data) != "hi" {
		t.Errorf("Read() = %q, %v, want hi", data, err)
	}
	other.CloseNow()
	if active(l) != 0 {
		t.Errorf("%d activities are left, want 0", active(l))
	}
}

func TestASignedURLNeedsNoHeader(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{})
	port := service(t, echo)
	l := r.acquired(t)
	e := endpointOf(t, l, port)
	before := time.Now()
	signed, err := e.Sign(t.Context(), 90*time.Second+time.Millisecond) // rounded down
	if err != nil {
		t.Fatal(err)
	}
	if at := signed.ExpiresAt(); at.Before(before.Add(90*time.Second)) || at.After(time.Now().Add(90*time.Second)) {
		t.Errorf("ExpiresAt() = %v, want 90 s from now", at)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	if got := get(t, client, signed.SecretURL()+"/x"); got != "GET /x " {
		t.Errorf("reply = %q, want that of the service", got)
	}
	for range 2 {
		if err := signed.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := client.Get(signed.SecretURL() + "/x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		t.Error("the revoked URL still opens the service")
	}
	r.server.SetFaults(emulator.Fault{Path: "/api/sandbox/*/ports/*/signed-preview-url", Action: emulator.MergeReply, Body: `{"url":"https://evil.test"}`})
	_, err = e.Sign(t.Context(), 0)
	if f := wantError(t, err, KindProtocol); f.Phase != PhaseValidation {
		t.Errorf("error = %+v, want phase validation", f)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.server.ResetRequests()
	wantError(t, signed.Revoke(t.Context()), KindClosed)
	r.wantRequests(t)
}
