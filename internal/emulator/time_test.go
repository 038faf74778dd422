package emulator_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// bubble runs a test with an in-memory server in virtual time. The server is closed before the bubble ends.
func bubble(t *testing.T, opt emulator.Options, test func(t *testing.T, s *server)) {
	t.Helper()
	opt.InMemory = true
	synctest.Test(t, func(t *testing.T) {
		test(t, serve(t, opt))
	})
}

// sleep lets virtual time pass.
func sleep(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestCreationIsHeldForThirtySeconds(t *testing.T) {
	bubble(t, emulator.Options{Timing: emulator.Timing{Create: 33 * time.Second}}, func(t *testing.T, s *server) {
		start := time.Now()
		r := s.must(http.StatusOK, "POST", "/api/sandbox", `{}`)
		if got, want := time.Since(start), 30*time.Second; got != want {
			t.Errorf("held for %v, want %v", got, want)
		}
		if r.str("state") != "creating" {
			t.Errorf("state: got %q, want creating", r.str("state"))
		}
		s.wantState(r.str("id"), "creating")
		sleep(3 * time.Second)
		s.wantState(r.str("id"), "started")
	})
}

func TestIdleConnectionsEndAfterSeventySeconds(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		c, err := s.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			if _, err := io.WriteString(c, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			sleep(time.Minute)
		}
		start := time.Now()
		c.SetReadDeadline(start.Add(time.Hour))
		if _, err := io.Copy(io.Discard, c); err != nil || time.Since(start) != 10*time.Second {
			t.Errorf("the end came after %v, %v; want 70 s after the last request", time.Since(start)+time.Minute, err)
		}
	})
}

func TestStartIsHeldForThirtySeconds(t *testing.T) {
	bubble(t, emulator.Options{Timing: emulator.Timing{Start: 40 * time.Second}}, func(t *testing.T, s *server) {
		sb := s.create(`{}`)
		s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
		sb.Settle(time.Minute)
		start := time.Now()
		r := s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/start", "")
		if got, want := time.Since(start), 30*time.Second; got != want {
			t.Errorf("held for %v, want %v", got, want)
		}
		if r.str("state") != "starting" {
			t.Errorf("state: got %q, want starting", r.str("state"))
		}
		sb.Settle(time.Minute)
		s.wantState(sb.ID(), "started")
	})
}

func TestCreationThatNeverEndsTimesOut(t *testing.T) {
	bubble(t, emulator.Options{Faults: []emulator.Fault{{Method: "POST", Action: emulator.StallChange}}}, func(t *testing.T, s *server) {
		id := s.must(http.StatusOK, "POST", "/api/sandbox", `{}`).str("id")
		sleep(14 * time.Minute)
		s.wantState(id, "creating")
		sleep(time.Minute)
		r := s.must(http.StatusOK, "GET", "/api/sandbox/"+id, "")
		if r.str("state") != "error" || r.str("errorReason") != "Timeout while creating sandbox" {
			t.Errorf("got %s %q, want error by timeout", r.str("state"), r.str("errorReason"))
		}
	})
}

// leaves waits for a sandbox to leave a state and returns after how long.
func leaves(t *testing.T, sb *emulator.Sandbox, state emulator.State, most time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	for sb.State() == state {
		if time.Since(start) > most {
			t.Fatalf("still %s after %v", state, most)
		}
		sleep(time.Second)
	}
	return time.Since(start)
}

func TestUnusedSandboxStops(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":1}`)
		if got := leaves(t, sb, "started", 2*time.Minute); got < time.Minute || got > 71*time.Second {
			t.Errorf("stopped after %v, want 60 to 71 s", got)
		}
		sb.Settle(time.Minute)
		s.wantState(sb.ID(), "stopped")
	})
}

func TestZeroAutoStopNeverStops(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":0}`)
		sleep(48 * time.Hour)
		s.wantState(sb.ID(), "started")
	})
}

func TestRequestsAreActivity(t *testing.T) {
	for _, test := range []struct {
		name  string
		use   func(s *server, id string)
		awake bool
	}{
		{"toolbox", func(s *server, id string) { s.must(200, "GET", "/toolbox/"+id+"/version", "") }, true},
		{"last-activity", func(s *server, id string) { s.must(201, "POST", "/api/sandbox/"+id+"/last-activity", "") }, true},
		{"skipping toolbox", func(s *server, id string) {
			s.must(200, "GET", "/toolbox/"+id+"/version", "", "X-Daytona-Skip-Last-Activity-Update", "true")
		}, false},
		{"read", func(s *server, id string) { s.must(200, "GET", "/api/sandbox/"+id, "") }, false},
		{"list", func(s *server, _ string) { s.must(200, "GET", "/api/sandbox/paginated", "") }, false},
		{"refused", func(s *server, id string) {
			s.must(401, "GET", "/toolbox/"+id+"/version", "", "Authorization", "Bearer x")
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
				sb := s.create(`{"autoStopInterval":1}`)
				for range 6 {
					sleep(30 * time.Second)
					if sb.State() == "started" {
						test.use(s, sb.ID())
					}
				}
				if got := sb.State() == "started"; got != test.awake {
					t.Errorf("awake: got %v, want %v", got, test.awake)
				}
			})
		})
	}
}

func TestOpenRequestKeepsASandboxAwake(t *testing.T) {
	for _, skip := range []string{"false", "true"} {
		t.Run("skip="+skip, func(t *testing.T) {
			bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
				sb := s.create(`{"autoStopInterval":1}`)
				body, upload := io.Pipe()
				req, err := http.NewRequestWithContext(t.Context(), "POST", strings.TrimSuffix(s.URL(), "/api")+"/toolbox/"+sb.ID()+"/files/bulk-upload", body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+s.key)
				req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
				req.Header.Set("X-Daytona-Skip-Last-Activity-Update", skip)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if resp, err := s.client.Do(req); err == nil {
						resp.Body.Close()
					}
				}()
				sleep(5 * time.Minute)
				if got, want := sb.State() == "started", skip == "false"; got != want {
					t.Errorf("awake with an open request: got %v, want %v", got, want)
				}
				shown := func() time.Time {
					text := s.must(http.StatusOK, "GET", "/api/sandbox/"+sb.ID(), "").str("lastActivityAt")
					at, err := time.Parse(time.RFC3339, text)
					if err != nil {
						t.Fatal(err)
					}
					return at
				}
				used := shown()
				if ago := time.Since(used); skip == "false" && ago >= 50*time.Second {
					t.Errorf("last activity %v ago with an open request, want less than 50 s", ago)
				}
				upload.CloseWithError(errors.New("client leaves"))
				<-done
				sleep(50 * time.Second)
				if got, want := sb.State() == "started", skip == "false"; got != want {
					t.Errorf("awake 50 s after the request: got %v, want %v", got, want)
				}
				if got := shown(); skip == "false" && !got.Equal(used) {
					t.Errorf("last activity after the request: got %v, want %v", got, used)
				}
				sleep(5 * time.Minute)
				if got := sb.State(); got != "stopped" {
					t.Errorf("after the request: got %q, want stopped", got)
				}
			})
		})
	}
}

func TestStopEndsAnOpenRequest(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{}`)
		body, upload := io.Pipe()
		defer upload.Close()
		req, err := http.NewRequestWithContext(t.Context(), "POST", strings.TrimSuffix(s.URL(), "/api")+"/toolbox/"+sb.ID()+"/files/bulk-upload", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		status := make(chan int)
		go func() {
			resp, err := s.client.Do(req)
			if err != nil {
				status <- -1
				return
			}
			resp.Body.Close()
			status <- resp.StatusCode
		}()
		synctest.Wait()
		s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
		if got := <-status; got != http.StatusBadGateway {
			t.Errorf("status of the request: got %d, want 502", got)
		}
		sb.Settle(time.Minute)
		s.wantState(sb.ID(), "stopped")
	})
}

func TestStoppedSandboxIsArchivedAndThenDeleted(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":1,"autoArchiveInterval":10,"autoDeleteInterval":30}`)
		leaves(t, sb, "started", 2*time.Minute)
		sb.Settle(time.Minute)
		if got := leaves(t, sb, "stopped", time.Hour); got < 9*time.Minute || got > 11*time.Minute {
			t.Errorf("archived after %v, want 10 minutes", got)
		}
		sb.Settle(time.Minute)
		if got := leaves(t, sb, "archived", time.Hour); got < 29*time.Minute || got > 31*time.Minute {
			t.Errorf("deleted after %v more, want 30 minutes", got)
		}
		sb.Settle(time.Minute)
		s.must(http.StatusNotFound, "GET", "/api/sandbox/"+sb.ID(), "")
	})
}

func TestDisabledAutoDeleteKeeps(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":1,"autoArchiveInterval":0,"autoDeleteInterval":30}`)
		s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/autodelete/-1", "")
		sleep(24 * time.Hour)
		s.wantState(sb.ID(), "stopped")
		sleep(30 * 24 * time.Hour)
		s.wantState(sb.ID(), "archived")
	})
}

func TestLifetimeEndsInAnyState(t *testing.T) {
	for _, state := range []emulator.State{"started", "stopped", "archived", "error"} {
		t.Run(string(state), func(t *testing.T) {
			bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
				r := s.must(http.StatusOK, "POST", "/api/sandbox", `{"ttlMinutes":30,"autoStopInterval":0}`)
				created, err := time.Parse(time.RFC3339, r.str("createdAt"))
				if err != nil {
					t.Fatal(err)
				}
				if got, want := r.str("autoDestroyAt"), created.Add(30*time.Minute).Format("2006-01-02T15:04:05.000Z"); got != want {
					t.Errorf("autoDestroyAt: got %q, want %q", got, want)
				}
				sb := s.Sandbox(r.str("id"))
				sb.Force(state, "", false)
				s.must(http.StatusCreated, "POST", "/api/sandbox/"+sb.ID()+"/last-activity", "")
				if got := leaves(t, sb, state, time.Hour); got < 30*time.Minute || got > 30*time.Minute+12*time.Second {
					t.Errorf("lived %v, want 30 minutes", got)
				}
				sb.Settle(time.Minute)
				s.must(http.StatusNotFound, "GET", "/api/sandbox/"+sb.ID(), "")
			})
		})
	}
}

func TestLifetimeIsAnchoredAgain(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"ttlMinutes":10,"autoStopInterval":0}`)
		sleep(9 * time.Minute)
		s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/ttl/20", "")
		sleep(19 * time.Minute)
		s.wantState(sb.ID(), "started")
		r := s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/ttl/0", "")
		if got := r.str("autoDestroyAt"); got != "" {
			t.Errorf("autoDestroyAt: got %q, want none", got)
		}
		sleep(time.Hour)
		s.wantState(sb.ID(), "started")
		s.must(http.StatusBadRequest, "POST", "/api/sandbox/"+sb.ID()+"/ttl/-1", "")
	})
}

func TestLegacyServerKnowsNoLifetimes(t *testing.T) {
	bubble(t, emulator.Options{Legacy: true}, func(t *testing.T, s *server) {
		r := s.must(http.StatusOK, "POST", "/api/sandbox", `{"ttlMinutes":1,"autoStopInterval":0}`)
		if got, found := r.json["autoDestroyAt"]; found {
			t.Errorf("autoDestroyAt: got %v, want none", got)
		}
		s.must(http.StatusNotFound, "POST", "/api/sandbox/"+r.str("id")+"/ttl/5", "")
		sleep(time.Hour)
		s.wantState(r.str("id"), "started")
	})
}

func TestSignedPreviewExpires(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{"autoStopInterval":0}`)
		path := "/api/sandbox/" + sb.ID() + "/ports/1/signed-preview-url"
		signed := s.must(http.StatusOK, "GET", path+"?expiresInSeconds=5", "").str("url")
		s.must(http.StatusOK, "POST", "/api/sandbox/"+sb.ID()+"/stop", "")
		sb.Settle(time.Minute)
		s.must(http.StatusBadRequest, "GET", signed+"/", "") // admitted, and not running
		sleep(5 * time.Second)
		s.must(http.StatusUnauthorized, "GET", signed+"/", "")
		for _, bad := range []string{"0", "86401", "x"} {
			s.must(http.StatusBadRequest, "GET", path+"?expiresInSeconds="+bad, "")
		}
	})
}

func TestLostContainerIsNoticedByTheControlPlane(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{}`)
		sb.LoseContainer()
		r := s.must(http.StatusNotFound, "GET", "/toolbox/"+sb.ID()+"/version", "")
		if got, want := r.str("message"), "sandbox container not found"; got != want {
			t.Errorf("proxy: got %q, want %q", got, want)
		}
		sleep(11 * time.Second)
		want := "not found: failed to inspect sandbox container " + sb.ID() + ": Error response from daemon: No such container: " + sb.ID()
		read := s.must(http.StatusOK, "GET", "/api/sandbox/"+sb.ID(), "")
		if read.str("state") != "error" || read.str("errorReason") != want || read.json["recoverable"] != false {
			t.Errorf("got %s, recoverable %v, %q", read.str("state"), read.json["recoverable"], read.str("errorReason"))
		}
		stopped := s.create(`{}`)
		s.must(http.StatusOK, "POST", "/api/sandbox/"+stopped.ID()+"/stop", "")
		stopped.Settle(time.Minute)
		stopped.LoseContainer()
		s.wantState(stopped.ID(), "stopped")
		if r := s.must(http.StatusBadRequest, "POST", "/api/sandbox/"+stopped.ID()+"/start", ""); !strings.Contains(r.str("message"), "No such container") {
			t.Errorf("start: got %q", r.str("message"))
		}
	})
}

func TestRateWindowEnds(t *testing.T) {
	bubble(t, emulator.Options{Limits: emulator.Limits{RequestRate: 1, Window: 10 * time.Second}}, func(t *testing.T, s *server) {
		s.must(http.StatusOK, "GET", "/api/sandbox/paginated", "")
		sleep(4 * time.Second)
		if got := s.must(http.StatusTooManyRequests, "GET", "/api/sandbox/paginated", "").header.Get("Retry-After"); got != "6" {
			t.Errorf("Retry-After: got %q, want 6", got)
		}
		sleep(6 * time.Second)
		s.must(http.StatusOK, "GET", "/api/sandbox/paginated", "")
	})
}

func TestDestroyedSandboxIsForgotten(t *testing.T) {
	bubble(t, emulator.Options{}, func(t *testing.T, s *server) {
		sb := s.create(`{}`)
		s.must(http.StatusOK, "DELETE", "/api/sandbox/"+sb.ID(), "")
		sleep(9 * time.Minute)
		if got := s.Sandbox(sb.ID()); got == nil || got.State() != "destroyed" {
			t.Errorf("soon after: got %v, want destroyed", got)
		}
		sleep(2 * time.Minute)
		if s.Sandbox(sb.ID()) != nil {
			t.Error("it is remembered for ever")
		}
	})
}
