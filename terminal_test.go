//go:build unix

package leasehold

import (
	"io"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestTerminalRunsACommand(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "sh"} {
		t.Run(shell, func(t *testing.T) {
			r := newRig(t, Config{}, emulator.Options{Shell: shell})
			l := r.acquired(t)
			term, err := l.OpenTerminal(t.Context(), TerminalOptions{Args: []string{"sh", "-c", "stty size; pwd; echo $TERM; exit 3"}, Cols: 100, Rows: 30})
			if err != nil {
				t.Fatal(err)
			}
			defer term.Close()
			got, err := io.ReadAll(term)
			if want := "30 100\r\n" + l.Ref().Workspace + "\r\nxterm-256color\r\n"; string(got) != want || err != nil {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
			exit, err := term.Wait(t.Context())
			if exit.Code != 3 || err != nil {
				t.Errorf("Wait() = %+v, %v", exit, err)
			}
		})
	}
}

func TestTerminalShellAttachClose(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	l := r.acquired(t)
	term, err := l.OpenTerminal(t.Context(), TerminalOptions{ID: "login", Env: map[string]string{"PS1": "$ "}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.OpenTerminal(t.Context(), TerminalOptions{ID: "login"})
	wantError(t, err, KindConflict)
	if err := term.Resize(t.Context(), 120, 40); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(term, "stty size; echo got$((1+1))\n"); err != nil {
		t.Error(err)
	}
	readUntil(t, term, "40 120\r\ngot2\r\n")
	again, err := l.AttachTerminal(t.Context(), "login")
	if err != nil {
		t.Fatal(err)
	}
	_, err = term.Wait(t.Context())
	wantError(t, err, KindClosed)
	if err := term.Close(); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(again, "echo again$((1+1)); exit 4\n"); err != nil {
		t.Error(err)
	}
	readUntil(t, again, "again2\r\n")
	exit, err := again.Wait(t.Context())
	if exit.Code != 4 || err != nil {
		t.Errorf("Wait() = %+v, %v", exit, err)
	}
	if err := l.CloseTerminal(t.Context(), "login"); err != nil {
		t.Error(err)
	}
	wantNoTerminals(t, r, l)
}

func readUntil(t *testing.T, r io.Reader, want string) string {
	t.Helper()
	var got []byte
	buf := make([]byte, 4096)
	for !strings.Contains(string(got), want) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	return string(got)
}

func TestConsolesEndWithTheLease(t *testing.T) {
	r := newRig(t, Config{}, emulator.Options{Shell: "bash"})
	l := r.acquired(t)
	term, err := l.OpenTerminal(t.Context(), TerminalOptions{Args: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := l.OpenChannel(t.Context(), ChannelOptions{Args: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = term.Wait(t.Context())
	wantError(t, err, KindClosed)
	exit, err := ch.Wait(t.Context())
	if exit.Code != 137 || err != nil {
		t.Errorf("Wait() = %+v, %v", exit, err)
	}
	_, err = ch.Write([]byte("x"))
	wantError(t, err, KindClosed)
}
