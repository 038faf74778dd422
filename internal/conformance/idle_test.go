package conformance_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
)

// wantActive waits until these kinds, and no others, are active beside the sandbox that runs.
func (s *scene) wantActive(t *testing.T, want ...leasehold.ActivityKind) {
	t.Helper()
	want = append(want, leasehold.ActivityAllocation)
	slices.Sort(want)
	s.awaitActive(t, want, func(got []leasehold.ActivityKind) bool { return slices.Equal(got, want) })
}

// wantActiveDuring waits until these kinds are active, beside the requests that they make.
func (s *scene) wantActiveDuring(t *testing.T, want ...leasehold.ActivityKind) {
	t.Helper()
	want = append(want, leasehold.ActivityAllocation)
	s.awaitActive(t, want, func(got []leasehold.ActivityKind) bool {
		return !slices.ContainsFunc(want, func(kind leasehold.ActivityKind) bool { return !slices.Contains(got, kind) })
	})
}

// wantInactive waits until nothing of this kind is active.
func (s *scene) wantInactive(t *testing.T, kind leasehold.ActivityKind) {
	t.Helper()
	s.awaitActive(t, nil, func(got []leasehold.ActivityKind) bool { return !slices.Contains(got, kind) })
}

// awaitActive waits until the kinds of what is active, sorted, are as wanted: what has ended here may take a moment to be
// seen.
func (s *scene) awaitActive(t *testing.T, want []leasehold.ActivityKind, is func([]leasehold.ActivityKind) bool) {
	t.Helper()
	patience := time.After(time.Minute)
	for tick := time.Tick(10 * time.Millisecond); ; {
		report := s.host.Idle(s.lease.Ref().Scope)
		if report.Idle {
			t.Fatalf("idle, want %v", want)
		}
		var got []leasehold.ActivityKind
		for _, a := range report.Active {
			got = append(got, a.Kind)
		}
		slices.Sort(got)
		if is(got) {
			return
		}
		select {
		case <-tick:
		case <-patience:
			t.Fatalf("active are %+v, want %v", report.Active, want)
		}
	}
}

// idleCases ask what is active, one after another on one lease, of which nothing else is made.
var idleCases = []behaviour{
	{name: "a host that has done nothing", test: func(t *testing.T, s *scene) {
		h := s.newHost(t)
		report, err := h.ProveIdle(t.Context())
		if !h.Idle().Idle || !report.Idle || err != nil {
			t.Errorf("Idle() = %+v, ProveIdle() = %+v, %v", h.Idle(), report, err)
		}
	}},
	{name: "commands", test: func(t *testing.T, s *scene) {
		s.wantActive(t)
		says(t, s.lease, "echo x")
		s.wantActive(t)
		p, err := s.lease.Executor().Start(t.Context(), leasehold.Command{Script: "sleep 66", Timeout: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		s.wantActiveDuring(t, leasehold.ActivityCommand)
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.Wait()
		s.wantActive(t)
	}},
	{name: "transfers", test: func(t *testing.T, s *scene) {
		local := t.TempDir()
		put(t, filepath.Join(local, "file"), "x", 0o644)
		imported(t, s.lease, local, "idle", leasehold.ImportOptions{})
		s.wantActive(t)
		exported(t, s.lease, "idle", leasehold.ExportOptions{})
		s.wantActive(t)
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := s.lease.Importer().Tar(t.Context(), r, "idle", leasehold.ImportOptions{})
			done <- err
		}()
		s.wantActiveDuring(t, leasehold.ActivityCall)
		_, err := io.Copy(w, tarOf(t, tar.Header{Name: "file"}))
		if err := errors.Join(err, w.Close(), <-done); err != nil {
			t.Error(err)
		}
		s.wantActive(t)
	}},
	{name: "terminals", test: func(t *testing.T, s *scene) {
		term := terminal(t, s.lease, leasehold.TerminalOptions{Args: shell("cat; exit 3")})
		s.wantActiveDuring(t, leasehold.ActivityTerminal)
		enter(t, term, "\x04")
		wantExit(t, term, 3, "")
		closed(t, term.Close)
		s.wantActive(t)
	}},
	{name: "channels", test: func(t *testing.T, s *scene) {
		ch := channel(t, s.lease, leasehold.ChannelOptions{Args: []string{"cat"}})
		s.wantActiveDuring(t, leasehold.ActivityChannel)
		if err := ch.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantExit(t, ch, 0, "")
		closed(t, ch.Close)
		s.wantActive(t)
	}},
	{name: "endpoints", needs: []feature{previews}, test: func(t *testing.T, s *scene) {
		e := s.endpoint(t, s.lease)
		resp, err := e.Client().Get(e.URL().JoinPath("stream").String())
		if err != nil {
			t.Fatal(err)
		}
		s.wantActiveDuring(t, leasehold.ActivityCommand, leasehold.ActivityEndpoint)
		resp.Body.Close()
		s.wantActiveDuring(t, leasehold.ActivityCommand) // the service
	}},
	{name: "what goes on unwatched", test: func(t *testing.T, s *scene) {
		p, err := s.lease.Executor().Start(t.Context(), leasehold.Command{Script: "sleep 67", Timeout: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p.Detach()
		if _, err := p.Wait(); err == nil {
			t.Error("Wait() of a command that was left = nil")
		}
		s.wantActiveDuring(t, leasehold.ActivityCommand)
		report, err := s.host.ProveIdle(t.Context(), s.lease.Ref().Scope)
		if err != nil || report.Idle {
			t.Errorf("ProveIdle() = %+v, %v; want what was left to count", report, err)
		}
		again, err := s.lease.Executor().Attach(t.Context(), p.Ref(), leasehold.Attachment{})
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		again.Wait()
		// What was asked about it when it was left was not answered, and counts until the sandbox is stopped.
		s.wantInactive(t, leasehold.ActivityCommand)
	}},
	{name: "given back", test: func(t *testing.T, s *scene) {
		scope := s.lease.Ref().Scope
		report, err := s.host.ProveIdle(t.Context(), scope)
		if err != nil || report.Idle {
			t.Errorf("ProveIdle() of a sandbox that runs = %+v, %v", report, err)
		}
		s.host.release(t, s.lease, leasehold.ReleaseOptions{}, leasehold.ReceiptStopped)
		if report := s.host.Idle(scope); !report.Idle {
			t.Errorf("after the receipt there is left %+v", report.Active)
		}
		patience, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for idle := range s.host.IdleChanges(patience) {
			if idle {
				break
			}
		}
		if patience.Err() != nil {
			t.Errorf("the host is not idle: %+v", s.host.Idle().Active)
		}
		report, err = s.host.ProveIdle(t.Context())
		if err != nil || !report.Idle {
			t.Errorf("ProveIdle() = %+v, %v; want idle", report, err)
		}
	}},
}
