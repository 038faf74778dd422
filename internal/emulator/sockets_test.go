//go:build unix

package emulator_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// frames reads a socket to its end.
func frames(ctx context.Context, conn *websocket.Conn) (string, error) {
	var all strings.Builder
	for {
		_, data, err := conn.Read(ctx)
		if err != nil {
			return all.String(), err
		}
		all.Write(data)
	}
}

func TestSocketFaults(t *testing.T) {
	needProcesses(t)
	const line = "\x01\x01\x01hello\n"
	for _, test := range []struct {
		name   string
		fault  emulator.Fault
		output string
		code   websocket.StatusCode // -1: no close frame
		reason string
	}{
		{"none", emulator.Fault{Action: emulator.DelayRequest}, line, 1000, ""},
		{"early close", emulator.Fault{Action: emulator.CloseSocket, Code: 1011, Body: "boom"}, "", 1011, "boom"},
		{"early close after output", emulator.Fault{Action: emulator.CloseSocket, Code: 4000, Bytes: 1}, line, 4000, ""},
		{"drop", emulator.Fault{Action: emulator.CloseSocket}, "", -1, ""},
		{"reset", emulator.Fault{Action: emulator.ResetReply, Bytes: 2}, "", -1, ""},
		{"replay", emulator.Fault{Action: emulator.ReplayPrefix, Bytes: 1}, line + line, 1000, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, emulator.Options{Quirks: emulator.Quirks{FollowLinger: 50 * time.Millisecond}})
			sb := s.create(`{}`)
			test.fault.Path = "/toolbox/*/process/session/*/command/*/logs"
			s.SetFaults(test.fault)
			conn := s.session(sb.ID(), "s", "echo hello")
			defer conn.CloseNow()
			output, err := frames(t.Context(), conn)
			if output != test.output {
				t.Errorf("output: got %q, want %q", output, test.output)
			}
			if got := websocket.CloseStatus(err); got != test.code {
				t.Errorf("end: got %v, want close code %d", err, test.code)
			}
			var closed websocket.CloseError
			if errors.As(err, &closed) && closed.Reason != test.reason {
				t.Errorf("reason: got %q, want %q", closed.Reason, test.reason)
			}
			s.hits(0, 1)
		})
	}
}

func TestSilentSocketDeliversNothing(t *testing.T) {
	needProcesses(t)
	for _, test := range []struct {
		name   string
		bytes  int64
		output string
	}{{"from the start", 0, ""}, {"after the first frame", 1, "\x01\x01\x01one\n"}} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, emulator.Options{Quirks: emulator.Quirks{FollowLinger: 20 * time.Millisecond}})
			sb := s.create(`{}`)
			gate := filepath.Join(sb.Home(), "gate")
			if err := syscall.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
			s.SetFaults(emulator.Fault{Path: "/toolbox/*/process/session/*/command/*/logs", Action: emulator.SilentSocket, Bytes: test.bytes})
			conn := s.session(sb.ID(), "s", "echo one; cat gate; echo two")
			defer conn.CloseNow()
			if test.output != "" {
				_, data, err := conn.Read(t.Context())
				if err != nil || string(data) != test.output {
					t.Errorf("before the silence: got %q, %v; want %q", data, err, test.output)
				}
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil { // until the command reads it
				t.Fatal(err)
			}
			// The daemon ends its side after its linger; the client must not see even that.
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, data, err := conn.Read(ctx); err == nil || ctx.Err() == nil {
				t.Errorf("in the silence: got %q, %v; want nothing until the client's own deadline", data, err)
			}
		})
	}
}

func TestHandshakeThatIsNeverAnswered(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":0}`)
		s.SetFaults(emulator.Fault{Action: emulator.SilentSocket, Bytes: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		_, _, err := websocket.Dial(ctx, strings.TrimSuffix(s.URL(), "/api")+"/toolbox/"+sb.ID()+"/process/pty/x/connect", &websocket.DialOptions{
			HTTPClient: s.client, HTTPHeader: http.Header{"Authorization": {"Bearer " + s.key}},
		})
		if err == nil || time.Since(start) != time.Hour {
			t.Errorf("got %v after %v, want the client's own hour", err, time.Since(start))
		}
	})
}

func TestDuplicatedExecuteRunsTwice(t *testing.T) {
	needProcesses(t)
	s := serve(t, emulator.Options{})
	sb := s.create(`{}`)
	s.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Action: emulator.Duplicate})
	if got := s.execute(sb.ID(), "echo x >> count; wc -l < count").str("result"); strings.TrimSpace(got) != "2" {
		t.Errorf("runs: got %q, want 2", got)
	}
	s.hits(0, 1)
}
