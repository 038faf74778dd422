package main

import (
	"bytes"
	"strings"
	"testing"
)

// checkSessions: terminals and channels, from one lease, which another company cannot reach.
func checkSessions(t *testing.T, h testHost) {
	lease := reusing.acquire(t, h)
	on := func(company string, more object) object {
		input := object{"driverKey": driverKey, "companyId": company, "environmentId": "env-1", "providerLeaseId": lease.ID}
		for key, value := range more {
			input[key] = value
		}
		return input
	}
	duplex := func(t *testing.T, args ...string) *testSession {
		t.Helper()
		s, failed := h.openDuplex(t, on("company-1", object{"command": args}))
		if failed != nil {
			t.Fatalf("open: %+v", failed)
		}
		return s
	}

	t.Run("Bytes", func(t *testing.T) {
		piece := make([]byte, 0, 16<<10)
		for i := range cap(piece) {
			piece = append(piece, byte(i*7+i>>8))
		}
		s := duplex(t, "sh", "-c", "head -c 131072; exit 7")
		for range 8 { // one after another, and none waits for the one before
			s.write(piece)
		}
		got, exit := s.until(t, "")
		if want := string(bytes.Repeat(piece, 8)); got != want {
			t.Errorf("%d bytes came back, want the %d that were written", len(got), len(want))
		}
		if !strings.Contains(exit, `"exitCode":7`) || strings.Contains(exit, "transportClosed\":true") {
			t.Errorf("exit = %s, want code 7", exit)
		}
		s.close()
	})
	t.Run("Stop", func(t *testing.T) {
		s := duplex(t, "sh", "-c", "echo up; exec sleep 600")
		s.until(t, "up")
		s.stop()
		if _, exit := s.until(t, ""); !strings.Contains(exit, `"exitCode":137`) {
			t.Errorf("exit = %s, want that of a program that was killed", exit)
		}
		s.close()
	})
	t.Run("Close", func(t *testing.T) {
		s := duplex(t, "cat")
		s.write([]byte("x"))
		s.until(t, "x")
		s.close()
	})
	t.Run("Login", func(t *testing.T) {
		const install = `mkdir -p ~/bin && printf '%s\n' '#!/bin/sh' 'ls -ld "$CODEX_HOME" | cut -c1-10' 'echo "$* code?"' 'read code' 'echo "got <$code>"; exit 3' >~/bin/codex &&
			chmod +x ~/bin/codex && echo 'export PATH=$HOME/bin:$PATH' >>~/.profile`
		if got := must[executeResult](t, h, "environmentExecute", reusing.script(lease, install, nil)); *got.ExitCode != 0 {
			t.Fatalf("%+v", got)
		}
		home := "/tmp/paperclip-adapter-login/5b1f2d0e-6a52-4f0b-9a47-0d6c3c6b9d11"
		s, failed := h.openLogin(t, on("company-1", object{"loginCommandKey": "codex", "sessionHome": home}))
		if failed != nil {
			t.Fatalf("open: %+v", failed)
		}
		if got, _ := s.until(t, "code?"); !strings.Contains(got, "drwx------") || !strings.Contains(got, "login --device-auth code?") {
			t.Errorf("the command printed %q, want its home's mode and its arguments", got)
		}
		s.write([]byte("hé\r"))
		if got, exit := s.until(t, ""); !strings.Contains(got, "got <hé>") || !strings.Contains(exit, `"exitCode":3`) {
			t.Errorf("then %q and %s, want what was typed, and exit code 3", got, exit)
		}
		s.close()
	})
	t.Run("Refused", func(t *testing.T) {
		if _, failed := h.openDuplex(t, on("company-2", object{"command": []string{"true"}})); failed == nil || !strings.Contains(failed.Message, "not known") {
			t.Errorf("another company's channel: %+v, want it refused", failed)
		}
		if _, failed := h.openLogin(t, on("company-1", object{"loginCommandKey": "codex", "sessionHome": "/tmp/x"})); failed == nil {
			t.Error("a login in a directory of the caller's choice was opened")
		}
	})
	must[receipt](t, h, "environmentDestroyLease", reusing.give(lease, nil))
}
