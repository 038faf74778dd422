package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// inBubble runs f in virtual time, on an emulator in memory.
func inBubble(t *testing.T, options emulator.Options, f func(t *testing.T, r *rig, s *Snapshots)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		options.InMemory = true
		server, err := emulator.Start(options)
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{provider: rigProvider(t, server, Config{}), server: server}
		s, err := NewSnapshots(r.provider)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(r.Close(context.Background()), server.Close()); err != nil {
				t.Error(err)
			}
		}()
		f(t, r, s)
	})
}

// snapshotRequests counts requests of a method below /api/snapshots.
func (r *rig) snapshotRequests(method string) (n int) {
	for _, q := range r.server.Requests() {
		if q.Method == method && strings.HasPrefix(q.Path, "/api/snapshots") {
			n++
		}
	}
	return n
}

const smallDockerfile = "FROM debian:13\nRUN make\n"

func TestASnapshotsNameIsItsLabelAndUnique(t *testing.T) {
	inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
		for label, want := range map[string]string{
			"golden": "golden", "  Golden Image! v1.2_x ": "golden-image-v1.2_x", "": "snapshot", "äö/ü": "snapshot", "--a--": "a", "..": "snapshot",
			strings.Repeat("x", 200): strings.Repeat("x", 79), strings.Repeat("x", 78) + "-y": strings.Repeat("x", 78),
		} {
			ref, again := s.Plan(label), s.Plan(label)
			if got := ref.Name[:max(0, len(ref.Name)-17)]; got != want || len(ref.Name) > 96 || ref.Name == again.Name {
				t.Errorf("Plan(%q) = %q and %q, want %q and 16 digits", label, ref.Name, again.Name, want)
			}
			data, err := json.Marshal(ref)
			if err != nil {
				t.Fatal(err)
			}
			if parsed, err := ParseSnapshotRef(data); err != nil || parsed != ref {
				t.Errorf("ParseSnapshotRef(%s) = %+v, %v", data, parsed, err)
			}
		}
		if got := len(r.server.Requests()); got != 0 {
			t.Errorf("%d requests, want 0", got)
		}
	})
}

func TestBadSnapshotsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
		good := s.Plan("x")
		for name, test := range map[string]struct {
			ref     SnapshotRef
			request BuildRequest
			field   string
		}{
			"neither":        {good, BuildRequest{}, "BuildRequest.Image"},
			"both":           {good, BuildRequest{Image: "a:1", Dockerfile: smallDockerfile}, "BuildRequest.Image"},
			"no tag":         {good, BuildRequest{Image: "registry:5000/debian"}, "BuildRequest.Image"},
			"latest":         {good, BuildRequest{Image: "debian:latest"}, "BuildRequest.Image"},
			"no image":       {good, BuildRequest{Image: "a b:1"}, "BuildRequest.Image"},
			"no FROM":        {good, BuildRequest{Dockerfile: "RUN x"}, "BuildRequest.Dockerfile"},
			"NUL":            {good, BuildRequest{Dockerfile: "FROM a\x00"}, "BuildRequest.Dockerfile"},
			"huge":           {good, BuildRequest{Dockerfile: "FROM a" + strings.Repeat("\n", 1<<20)}, "BuildRequest.Dockerfile"},
			"resources":      {good, BuildRequest{Image: "a:1", Resources: Resources{CPU: -1}}, "BuildRequest.Resources.CPU"},
			"timeout":        {good, BuildRequest{Image: "a:1", Timeout: -1}, "BuildRequest.Timeout"},
			"no reference":   {SnapshotRef{}, BuildRequest{Image: "a:1"}, "SnapshotRef.Version"},
			"another's name": {SnapshotRef{Version: 1, Name: "golden", Credential: good.Credential}, BuildRequest{Image: "a:1"}, "SnapshotRef.Name"},
			"bad id":         {SnapshotRef{Version: 1, Name: good.Name, Credential: good.Credential, ID: "../x"}, BuildRequest{Image: "a:1"}, "SnapshotRef.ID"},
		} {
			_, err := s.Build(t.Context(), test.ref, test.request)
			if e := wantError(t, err, KindInvalid); len(e.Fields) == 0 || e.Fields[0].Field != test.field || e.Dispatched != DispatchedNo {
				t.Errorf("%s: Build() = %+v, want the field %s", name, e, test.field)
			}
		}
		_, err := s.Capture(t.Context(), nil, good)
		wantError(t, err, KindInvalid)
		if _, err := NewSnapshots(nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("NewSnapshots(nil) = %v, want ErrInvalid", err)
		}
		wantError(t, s.Delete(t.Context(), SnapshotRef{}), KindInvalid)
		wantError(t, s.Delete(t.Context(), good), KindUncertain)
		if got := len(r.server.Requests()); got != 0 {
			t.Errorf("%d requests, want 0", got)
		}
	})
}

func TestABuildStreamsItsLogToTheEnd(t *testing.T) {
	lines := "FROM debian:13\n" + strings.Repeat("RUN one of many steps\n", 200)
	for name, faults := range map[string][]emulator.Fault{
		"whole":       nil,
		"cut off":     {{Path: "/snapshots/**", Action: emulator.ResetReply, Bytes: 3000, Count: 3}},
		"not yet":     {{Path: "/snapshots/**", Action: emulator.StatusBefore, Status: 502, Count: 2}},
		"no address":  {{Path: "/api/snapshots/*/build-logs-url", Action: emulator.StatusBefore, Status: 500, Count: 2}},
		"duplicated":  {{Method: "POST", Path: "/api/snapshots", Action: emulator.Duplicate}},
		"reply lost":  {{Method: "POST", Path: "/api/snapshots", Action: emulator.DropAfter}},
		"read failed": {{Method: "GET", Path: "/api/snapshots/*", Action: emulator.StatusBefore, Status: 503, Nth: 3, Count: 3}},
		"silent log":  {{Path: "/snapshots/**", Action: emulator.SilentSocket, Bytes: -1, Count: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, emulator.Options{Timing: emulator.Timing{Build: 100 * time.Millisecond}}, func(t *testing.T, r *rig, s *Snapshots) {
				r.server.SetFaults(faults...)
				var log bytes.Buffer
				planned := s.Plan("built")
				ref, err := s.Build(t.Context(), planned, BuildRequest{Dockerfile: lines, Logs: &log})
				if err != nil {
					t.Fatalf("Build() = %v", err)
				}
				r.wantHits(t)
				text := log.String()
				if n := strings.Count(text, "\n"); n != 202 || !strings.HasPrefix(text, "Step 1/201 : FROM debian:13\n") || !strings.HasSuffix(text, "Successfully built "+ref.ID+"\n") {
					t.Errorf("the log has %d lines, from %.40q: want each of 202 once", n, text)
				}
				if ref.Name != planned.Name || ref.ID == "" || ref.Account == "" {
					t.Errorf("Build() = %+v, want the id and the account", ref)
				}
				again, err := s.Build(t.Context(), planned, BuildRequest{Dockerfile: lines}) // as after a restart
				if err != nil || again != ref {
					t.Errorf("a second Build() = %+v, %v, want %+v", again, err, ref)
				}
				if posts := r.snapshotRequests("POST"); posts > 1 && name != "duplicated" || posts > 2 {
					t.Errorf("%d creations were sent, want 1", posts)
				}
			})
		})
	}
}

func TestABuildThatFailsKeepsItsWords(t *testing.T) {
	options := emulator.Options{Snapshots: []emulator.Snapshot{{Name: "debian:13", State: "build_failed", Failure: "secret words"}}}
	inBubble(t, options, func(t *testing.T, r *rig, s *Snapshots) {
		var log bytes.Buffer
		ref, err := s.Build(t.Context(), s.Plan("broken"), BuildRequest{Dockerfile: smallDockerfile, Logs: &log})
		if e := wantError(t, err, KindBroken); e.Phase != PhaseBuild || ref.ID == "" {
			t.Errorf("Build() = %+v, %+v", ref, e)
		}
		wantNoSecret(t, "secret words", err.Error())
		if !strings.HasSuffix(log.String(), "\nERROR: secret words") {
			t.Errorf("log = %q, want the reason at its end", log.String())
		}
		info, err := s.Inspect(t.Context(), ref)
		if err != nil || info.State != SnapshotFailed || info.Ref != ref {
			t.Errorf("Inspect() = %+v, %v, want failed", info, err)
		}
		if err := s.Delete(t.Context(), ref); err != nil || len(r.server.SnapshotNames()) != 0 {
			t.Errorf("Delete() = %v, and %q is left", err, r.server.SnapshotNames())
		}
	})
}

func TestABuildIsRefusedForReasons(t *testing.T) {
	inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
		for _, test := range []struct {
			status  int
			message string
			kind    Kind
		}{
			{403, "Snapshot quota exceeded. Maximum allowed: 1", KindQuota}, {403, "Organization is suspended", KindAuth},
			{401, "Invalid credentials", KindAuth}, {429, "Rate limit exceeded", KindRateLimited}, {400, "no", KindRefused},
		} {
			r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/snapshots", Action: emulator.StatusBefore, Status: test.status, Body: structured(test.status, test.message), Count: -1})
			ref, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Image: "debian:13"})
			if e := wantError(t, err, test.kind); e.Phase != PhaseSubmit || e.HTTPStatus != test.status || ref.ID != "" || r.server.Faults()[0].Hits != 1 {
				t.Errorf("Build() = %+v after %d requests, want kind %s after 1", e, r.server.Faults()[0].Hits, test.kind)
			}
		}
	})
}

// What was sent is not denied by a later request that was not.
func TestAnErrorAfterARequestSaysThatItWasSent(t *testing.T) {
	inBubble(t, emulator.Options{Timing: emulator.Timing{Build: time.Hour}}, func(t *testing.T, r *rig, s *Snapshots) {
		lost := func(err error, phase Phase, want Dispatch) {
			t.Helper()
			var e *Error
			if !errors.As(err, &e) || e.Phase != phase || e.Dispatched != want {
				t.Errorf("got %+v, want phase %q and dispatched %q", e, phase, want)
			}
		}
		unread := func(nth int) emulator.Fault {
			return emulator.Fault{Method: "GET", Path: "/api/snapshots/*", Action: emulator.StatusBefore, Status: 403, Nth: nth, Count: -1}
		}
		// The creation was accepted, and the snapshot cannot be read: at once, or later.
		for nth, phase := range map[int]Phase{2: PhaseSubmit, 3: PhaseBuild} {
			r.server.SetFaults(unread(nth))
			_, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Dockerfile: smallDockerfile})
			lost(err, phase, DispatchedYes)
		}
		r.server.SetFaults()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ref, err := s.Build(ctx, s.Plan("y"), BuildRequest{Dockerfile: smallDockerfile})
		lost(err, PhaseBuild, DispatchedYes)

		r.server.SetFaults(unread(1))
		_, err = s.Inspect(t.Context(), ref)
		lost(err, PhaseLookup, DispatchedYes)
		lost(s.Delete(t.Context(), ref), PhaseLookup, DispatchedYes)
		// The deletion is accepted, takes its time, and is waited for no longer.
		r.server.SetFaults(emulator.Fault{Method: "DELETE", Action: emulator.StallChange, Delay: time.Hour})
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lost(s.Delete(ctx, ref), PhaseDelete, DispatchedYes)
	})
}

func TestASnapshotThatWasPutAwayCannotBeUsed(t *testing.T) {
	inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
		ref, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Image: "debian:13"})
		if err != nil {
			t.Fatal(err)
		}
		r.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/snapshots/*", Action: emulator.MergeReply, Body: `{"state":"inactive"}`, Count: -1})
		_, err = s.Build(t.Context(), ref, BuildRequest{Image: "debian:13"})
		if e := wantError(t, err, KindConflict); !strings.Contains(e.Error(), "inactive") {
			t.Errorf("Build() = %v, want the state", e)
		}
	})
}

func TestL2AnUncertainSnapshotIsNeitherRepeatedNorAbsent(t *testing.T) {
	inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
		r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/snapshots", Action: emulator.DropBefore, Count: -1})
		ref, err := s.Build(t.Context(), s.Plan("lost"), BuildRequest{Image: "debian:13"})
		if e := wantError(t, err, KindUncertain); e.Phase != PhaseSubmit || e.Dispatched != DispatchedUnknown || r.server.Faults()[0].Hits != 1 {
			t.Errorf("Build() = %+v after %d creations, want one", e, r.server.Faults()[0].Hits)
		}
		_, err = s.Inspect(t.Context(), ref)
		wantError(t, err, KindUncertain)
		wantError(t, s.Delete(t.Context(), ref), KindUncertain)

		// One that appears late is found by its name, and accounted for.
		r.server.SetFaults()
		made, err := s.Build(t.Context(), ref, BuildRequest{Image: "debian:13"})
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Inspect(t.Context(), ref)
		if err != nil || info.Ref != made || info.State != SnapshotReady {
			t.Errorf("Inspect() = %+v, %v, want %+v, ready", info, err, made)
		}
	})
}

func TestL3AForeignSnapshotIsNotTouched(t *testing.T) {
	inBubble(t, emulator.Options{Keys: map[string]string{"other": "another-organisation"}}, func(t *testing.T, r *rig, s *Snapshots) {
		if _, err := r.client.Create(t.Context(), daytona.CreateRequest{Name: "attests"}); err != nil { // the API attests the organisation by it
			t.Fatal(err)
		}
		ours, err := s.Build(t.Context(), s.Plan("ours"), BuildRequest{Image: "debian:13"})
		if err != nil {
			t.Fatal(err)
		}
		sibling, err := s.Build(t.Context(), s.Plan("sibling"), BuildRequest{Image: "debian:13"})
		if err != nil {
			t.Fatal(err)
		}
		r.server.ResetRequests()
		swapped := ours
		swapped.ID = sibling.ID
		wantError(t, s.Delete(t.Context(), swapped), KindNotOwned)
		foreign := ours
		foreign.Credential, foreign.Account = strings.Repeat("0", 64), strings.Repeat("1", 64)
		wantError(t, s.Delete(t.Context(), foreign), KindNotOwned)
		if n := r.snapshotRequests("DELETE"); n != 0 {
			t.Errorf("%d deletions were sent, want 0", n)
		}

		// Not-found under another account's key proves nothing.
		other := rigProvider(t, r.server, Config{APIKey: "other"})
		defer other.Close(context.Background())
		theirs, err := NewSnapshots(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := theirs.Delete(t.Context(), ours); errors.Is(err, ErrGone) || err == nil {
			t.Errorf("Delete() with another account's key = %v, want a refusal", err)
		}
		if got := len(r.server.SnapshotNames()); got != 2 {
			t.Errorf("%d snapshots are left, want 2", got)
		}
	})
}

func TestADeletionIsProvedAndCanBeRepeated(t *testing.T) {
	for name, faults := range map[string][]emulator.Fault{
		"plain":      nil,
		"reply lost": {{Method: "DELETE", Action: emulator.DropAfter, Count: 2}},
		"slow":       {{Method: "DELETE", Action: emulator.StallChange, Delay: time.Minute}},
		"limited":    {{Method: "DELETE", Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"7"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
				ref, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Image: "debian:13"})
				if err != nil {
					t.Fatal(err)
				}
				r.server.SetFaults(faults...)
				for range 2 {
					if err := s.Delete(t.Context(), ref); err != nil {
						t.Fatalf("Delete() = %v", err)
					}
					if left := r.server.SnapshotNames(); len(left) != 0 {
						t.Errorf("%q is left", left)
					}
				}
				_, err = s.Inspect(t.Context(), ref)
				wantError(t, err, KindGone)
			})
		})
	}
}

type brokenLog struct{}

func (brokenLog) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// pickyLog refuses what comes when the build has ended.
type pickyLog struct{ bytes.Buffer }

func (l *pickyLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("Successfully")) || bytes.Contains(p, []byte("ERROR")) {
		return 0, io.ErrClosedPipe
	}
	return l.Buffer.Write(p)
}

func TestTheEndOfALogIsNotThatOfTheBuild(t *testing.T) {
	for name, tc := range map[string]struct {
		options emulator.Options
		want    Kind
		text    string
	}{
		"ready":  {emulator.Options{}, KindIO, "can be used"},
		"failed": {emulator.Options{Snapshots: []emulator.Snapshot{{Name: "debian:13", State: "build_failed", Failure: "x"}}}, KindBroken, "could not be made"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.options, func(t *testing.T, r *rig, s *Snapshots) {
				// It is read when the build has ended, and not before.
				r.server.SetFaults(emulator.Fault{Path: "/api/snapshots/*/build-logs-url", Delay: time.Second, Count: -1})
				_, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Dockerfile: smallDockerfile, Logs: new(pickyLog)})
				if e := wantError(t, err, tc.want); !strings.Contains(e.Error(), tc.text) {
					t.Errorf("Build() = %v, want %q", e, tc.text)
				}
			})
		})
	}
	// A log that is never sent to its end does not hold up the call.
	inBubble(t, emulator.Options{}, func(t *testing.T, r *rig, s *Snapshots) {
		r.server.SetFaults(emulator.Fault{Path: "/snapshots/**", Action: emulator.SilentSocket, Bytes: -1, Count: -1})
		begun := time.Now()
		if _, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Dockerfile: smallDockerfile, Logs: io.Discard}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > DefaultCallTimeout+time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// stuckLog takes nothing until it is closed. It tells of each write.
type stuckLog struct{ writes, closed chan struct{} }

func (l stuckLog) Write([]byte) (int, error) {
	l.writes <- struct{}{}
	<-l.closed
	return 0, io.ErrClosedPipe
}

// A log that is not taken holds up neither the end of the call nor that of the provider.
func TestAStuckLogDoesNotHoldUpABuild(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, tc := range map[string]struct {
		build time.Duration
		end   func(r *rig, cancel context.CancelFunc)
		limit time.Duration
		want  Kind // empty: the snapshot is ready
	}{
		"canceled":        {time.Minute, func(_ *rig, cancel context.CancelFunc) { cancel() }, 0, KindCanceled},
		"out of time":     {time.Minute, nil, 3 * time.Minute, KindTimeout},
		"provider closed": {time.Minute, func(r *rig, _ context.CancelFunc) { r.Close(ended) }, 0, KindClosed},
		"built":           {time.Second, nil, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, emulator.Options{Timing: emulator.Timing{Build: tc.build}}, func(t *testing.T, r *rig, s *Snapshots) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				log := stuckLog{make(chan struct{}, 9), make(chan struct{})}
				built := make(chan error, 1)
				begun := time.Now()
				go func() {
					_, err := s.Build(ctx, s.Plan("x"), BuildRequest{Dockerfile: smallDockerfile, Logs: log, Timeout: tc.limit})
					built <- err
				}()
				<-log.writes
				if tc.end != nil {
					tc.end(r, cancel)
				}
				if err := <-built; tc.want != "" {
					wantError(t, err, tc.want)
				} else if err != nil {
					t.Errorf("Build() = %v", err)
				}
				if took := time.Since(begun); took > 4*time.Minute { // each step of the build takes one
					t.Errorf("it took %v", took)
				}
				close(log.closed)
				synctest.Wait()
				if len(log.writes) > 0 {
					t.Error("there was another write after the end of the call")
				}
			})
		})
	}
}

func TestTheEndOfABuildsCallIsNotThatOfTheBuild(t *testing.T) {
	inBubble(t, emulator.Options{Timing: emulator.Timing{Build: time.Minute}}, func(t *testing.T, r *rig, s *Snapshots) {
		ref, err := s.Build(t.Context(), s.Plan("x"), BuildRequest{Dockerfile: smallDockerfile, Logs: brokenLog{}})
		if e := wantError(t, err, KindIO); !errors.Is(err, io.ErrClosedPipe) || ref.ID == "" || e.Phase != PhaseBuild {
			t.Errorf("Build() = %+v, %v, want the writer's error", ref, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Build(ctx, ref, BuildRequest{Dockerfile: smallDockerfile})
		wantError(t, err, KindTimeout)
		_, err = s.Build(t.Context(), ref, BuildRequest{Dockerfile: smallDockerfile, Timeout: time.Second})
		wantError(t, err, KindTimeout)
		time.Sleep(10 * time.Minute)
		info, err := s.Inspect(t.Context(), ref)
		if err != nil || info.State != SnapshotReady {
			t.Errorf("Inspect() = %+v, %v, want ready", info, err)
		}
		if report := r.Idle(); !report.Idle {
			t.Errorf("Idle() = %+v, want nothing active", report)
		}
		go func() {
			time.Sleep(time.Second)
			ended, end := context.WithCancel(context.Background())
			end()
			r.Close(ended)
		}()
		_, err = s.Build(t.Context(), s.Plan("y"), BuildRequest{Dockerfile: smallDockerfile})
		wantError(t, err, KindClosed)
		_, err = s.Build(t.Context(), s.Plan("z"), BuildRequest{Dockerfile: smallDockerfile})
		wantError(t, err, KindClosed)
	})
}

func TestACaptureIsASandboxsFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{})
	s, err := NewSnapshots(r.provider)
	if err != nil {
		t.Fatal(err)
	}
	l := r.acquired(t)
	if _, err := l.Executor().Run(t.Context(), Command{Script: "echo kept >file"}); err != nil {
		t.Fatal(err)
	}
	r.server.ResetRequests()
	r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/snapshot", Action: emulator.DropAfter})
	ref, err := s.Capture(t.Context(), l, s.Plan("golden"))
	if err != nil {
		t.Fatalf("Capture() = %v", err)
	}
	r.wantHits(t)
	if again, err := s.Capture(t.Context(), l, ref); err != nil || again != ref {
		t.Errorf("a second Capture() = %+v, %v, want %+v", again, err, ref)
	}
	copied := rigProvider(t, r.server, Config{Snapshot: ref.Name})
	defer copied.Close(context.Background())
	other, err := copied.Acquire(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	home := r.server.Sandbox(other.ref.Sandbox).Home()
	text, err := os.ReadFile(filepath.Join(home, "workspace", "file"))
	if err != nil || string(text) != "kept\n" {
		t.Errorf("the file in a sandbox from the snapshot = %q, %v", text, err)
	}

	r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/snapshot", Action: emulator.RunnerFailure})
	r.cfg.CallTimeout = 2 * time.Second // as long as a snapshot is looked for that there is not
	_, err = s.Capture(t.Context(), l, s.Plan("fails"))
	if e := wantError(t, err, KindUncertain); e.Phase != PhaseBuild || e.Dispatched != DispatchedYes || e.Sandbox != l.ref.Sandbox {
		t.Errorf("Capture() = %+v", e)
	}
	if _, err := copied.Destroy(t.Context(), other.ref); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Destroy(t.Context(), l.ref); err != nil {
		t.Fatal(err)
	}
	_, err = s.Capture(t.Context(), l, s.Plan("late"))
	wantError(t, err, KindClosed)
}

func TestAnSSHAccessEndsWithItsLease(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	l := r.acquired(t)
	valid := func(token string) bool { return r.validSSH(t, token) }
	for _, lifetime := range []time.Duration{-1, time.Second, 25 * time.Hour} {
		_, err := l.OpenSSH(t.Context(), lifetime)
		if e := wantError(t, err, KindInvalid); e.Fields[0].Field != "lifetime" {
			t.Errorf("OpenSSH(%v) = %+v", lifetime, e)
		}
	}
	first := openedSSH(t, l)
	if at := time.Until(first.ExpiresAt()); at < 59*time.Minute || at > time.Hour {
		t.Errorf("it ends in %v, want an hour", at)
	}
	if got, want := strings.Join(first.SecretCommand(), " "), "ssh -p 2222 "+first.Token()+"@localhost"; got != want || !valid(first.Token()) {
		t.Errorf("SecretCommand() = %q, want %q", got, want)
	}
	for range 2 {
		if err := first.Revoke(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if valid(first.Token()) {
		t.Error("the token is valid after its revocation")
	}

	second, err := l.OpenSSH(t.Context(), 90*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Release(t.Context(), l.ref, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	if valid(second.Token()) {
		t.Error("the token is valid after the release, and would open the sandbox when it is resumed")
	}
	_, err = l.OpenSSH(t.Context(), 0)
	wantError(t, err, KindClosed)

	l, err = r.Resume(t.Context(), l.ref)
	if err != nil {
		t.Fatal(err)
	}
	r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/ssh-access", Action: emulator.DropAfter, Count: 2})
	_, err = l.OpenSSH(t.Context(), 0)
	if e := wantError(t, err, KindUnavailable); e.Dispatched != DispatchedUnknown {
		t.Errorf("OpenSSH() = %+v, want unknown", e)
	}
	for name, body := range map[string]string{
		"a command for a shell": `{"sshCommand":"ssh -o ProxyCommand=evil x@y"}`, "another token": `{"sshCommand":"ssh abcdefgh@host"}`,
		"no token": `{"token":"","sshCommand":""}`, "another sandbox": `{"sandboxId":"x"}`, "a token of words": `{"token":"-oProxyCommand","sshCommand":""}`,
		"no gateway": `{"sshCommand":""}`,
	} {
		r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/ssh-access", Action: emulator.MergeReply, Body: body})
		if _, err := l.OpenSSH(t.Context(), 0); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: OpenSSH() = %v, want ErrProtocol", name, err)
		}
	}
	last, err := l.OpenSSH(t.Context(), 0)
	if err != nil || !valid(last.Token()) {
		t.Errorf("OpenSSH() = %v, %v", last, err)
	}
	if err := l.RevokeSSH(t.Context()); err != nil || valid(last.Token()) {
		t.Errorf("RevokeSSH() = %v", err)
	}
	if _, err := r.Destroy(t.Context(), l.ref); err != nil {
		t.Fatal(err)
	}
}

func TestAnImageSpecIsQuoted(t *testing.T) {
	text, err := ImageSpec{
		Base: "python:3.12-slim", Env: map[string]string{"B": `a "b" $C \`, "A": ""}, Apt: []string{"git", "libc6-dev=2.*"}, Pip: []string{"numpy>=2,<3", "x[y]"},
		Dir: "/my app", Run: []string{"make && make install"}, Labels: map[string]string{"who": `it's "us"`}, User: "1000:1000",
		Entrypoint: []string{"sh", "-c", `echo "a, b"`}, Cmd: []string{"x"},
	}.Dockerfile()
	if err != nil {
		t.Fatal(err)
	}
	want := `FROM python:3.12-slim
ENV A=""
ENV B="a \"b\" \$C \\"
RUN apt-get update && apt-get install -y 'git' 'libc6-dev=2.*' && rm -rf /var/lib/apt/lists/*
RUN pip install 'numpy>=2,<3' 'x[y]'
WORKDIR "/my app"
RUN make && make install
LABEL who="it's \"us\""
USER 1000:1000
ENTRYPOINT ["sh","-c","echo \"a, b\""]
CMD ["x"]
`
	if text != want {
		t.Errorf("Dockerfile() = %s\nwant %s", text, want)
	}
	_, err = ImageSpec{
		Env: map[string]string{"A B": "x", "C": "a\nRUN evil"}, Apt: []string{"a;b"}, Pip: []string{"-r x"}, Dir: "a\nb", Run: []string{"a\nb", "c \\", " "},
		Labels: map[string]string{"k": "a\rb", "": "x"}, User: "a b",
	}.Dockerfile()
	e := wantError(t, err, KindInvalid)
	var fields []string
	for _, f := range e.Fields {
		fields = append(fields, strings.TrimPrefix(f.Field, "ImageSpec."))
	}
	if got, want := strings.Join(fields, " "), "Base Env Env.C Apt Pip Dir Run Run Run Labels Labels.k User"; got != want {
		t.Errorf("fields = %q, want %q", got, want)
	}
	for _, base := range []string{"ubuntu", "ubuntu@sha256:" + strings.Repeat("0a", 32)} {
		if text, err := (ImageSpec{Base: base}).Dockerfile(); err != nil || text != "FROM "+base+"\n" {
			t.Errorf("Dockerfile() = %q, %v, want it from %s", text, err, base)
		}
	}
}
