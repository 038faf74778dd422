package leasehold

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// carrier is a function that carries requests.
type carrier func(*http.Request) (*http.Response, error)

func (c carrier) RoundTrip(req *http.Request) (*http.Response, error) { return c(req) }

// validSSH asks as the gateway does.
func (r *rig) validSSH(t *testing.T, token string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL()+"/sandbox/ssh-access/validate?token="+token, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.server.APIKey())
	client := &http.Client{Transport: r.server.Transport()}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(body), `"valid":true`)
}

// An access that is made while the lease is given back is revoked, although the lease had none when it was closed.
func TestAnSSHAccessThatComesLateIsRevoked(t *testing.T) {
	var r *rig
	var l *Lease
	released := make(chan error, 1)
	server := http.DefaultTransport.(*http.Transport).Clone()
	defer server.CloseIdleConnections()
	r = newRig(t, Config{Reuse: true, Transport: carrier(func(req *http.Request) (*http.Response, error) {
		resp, err := server.RoundTrip(req)
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/ssh-access") {
			go func() {
				_, err := r.Release(t.Context(), l.ref, ReleaseOptions{})
				released <- err
			}()
			<-l.open.Done()
		}
		return resp, err
	})}, emulator.Options{})
	l = r.acquired(t)
	_, err := l.OpenSSH(t.Context(), 0)
	wantError(t, err, KindClosed)
	if err := <-released; err != nil {
		t.Errorf("Release() = %v", err)
	}
	if n := r.count()["DELETE /api/sandbox/*/ssh-access"]; n == 0 {
		t.Error("the access was not revoked")
	}
}

// An access whose reply was overtaken by that of the one before it is revoked with the lease all the same.
func TestSSHAccessesWhoseRepliesCrossAreRevoked(t *testing.T) {
	server := http.DefaultTransport.(*http.Transport).Clone()
	defer server.CloseIdleConnections()
	answered, overtaken := make(chan struct{}), make(chan struct{})
	var made atomic.Int32
	r := newRig(t, Config{Reuse: true, Transport: carrier(func(req *http.Request) (*http.Response, error) {
		resp, err := server.RoundTrip(req)
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/ssh-access") && made.Add(1) == 1 {
			close(answered)
			<-overtaken
		}
		return resp, err
	})}, emulator.Options{})
	l := r.acquired(t)
	first := make(chan error, 1)
	go func() {
		_, err := l.OpenSSH(t.Context(), 0)
		first <- err
	}()
	<-answered
	second := openedSSH(t, l)
	close(overtaken)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if _, err := r.Release(t.Context(), l.ref, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	if r.validSSH(t, second.Token()) {
		t.Error("the access that the provider knows is valid after the release")
	}
}

// An access ends with the lease whoever gives that back: its opener is another process, which is dead by now.
func TestAnSSHAccessEndsWhoeverGivesTheLeaseBack(t *testing.T) {
	for name, giveBack := range map[string]func(t *testing.T, w *world, ref LeaseRef){
		"resumed and released": func(t *testing.T, w *world, ref LeaseRef) {
			if _, err := w.Resume(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"archived": func(t *testing.T, w *world, ref LeaseRef) {
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{Archive: true}); err != nil {
				t.Fatal(err)
			}
		},
		"retained": func(t *testing.T, w *world, ref LeaseRef) {
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{Retain: true}); err != nil {
				t.Fatal(err)
			}
		},
		"swept": func(t *testing.T, w *world, _ LeaseRef) {
			if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Stopped: 1}); got != want {
				t.Errorf("Sweep() = %+v, want %+v", got, want)
			}
		},
		"stopped by the provider, then swept": func(t *testing.T, w *world, ref LeaseRef) {
			time.Sleep(6 * time.Hour)
			if state := w.server.Sandbox(ref.Sandbox).State(); state == "started" {
				t.Error("the sandbox is still started")
			}
			if got, want := sweep(t, sweeper(t, w.provider, SweeperOptions{})), (SweepReport{Stopped: 1}); got != want {
				t.Errorf("Sweep() = %+v, want %+v", got, want)
			}
		},
		"revoked at the second attempt": func(t *testing.T, w *world, ref LeaseRef) {
			w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*/ssh-access", Action: emulator.StatusBefore, Status: 503})
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"refused, and released again": func(t *testing.T, w *world, ref LeaseRef) {
			w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*/ssh-access", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")})
			_, err := w.Release(t.Context(), ref, ReleaseOptions{})
			if e := wantError(t, err, KindAuth); e.Phase != PhaseStop || e.Dispatched != DispatchedYes || !strings.Contains(e.Message, "SSH") {
				t.Errorf("Release() = %+v", e)
			}
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Store: newMemoryStore(), Reuse: true})
				opener := w.another(t, Config{Reuse: true})
				l, err := opener.Acquire(t.Context(), request())
				if err != nil {
					t.Fatal(err)
				}
				access, err := l.OpenSSH(t.Context(), 24*time.Hour)
				if err != nil || !w.validSSH(t, access.Token()) {
					t.Fatalf("OpenSSH() = %v, %v, want a valid one", access, err)
				}
				opener.die()
				time.Sleep(2 * w.cfg.ClaimTime)
				giveBack(t, w, l.ref)
				if w.validSSH(t, access.Token()) {
					t.Error("the token is valid after the lease was given back")
				}
			})
		})
	}
}

// Revoke may come late: it succeeds where the access has ended, and ends it where giving the lease back did not.
func TestAnSSHAccessIsRevokedAfterItsLease(t *testing.T) {
	for name, giveBack := range map[string]func(t *testing.T, w *world, ref LeaseRef){
		"released": func(t *testing.T, w *world, ref LeaseRef) {
			if _, err := w.Release(t.Context(), ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"destroyed": func(t *testing.T, w *world, ref LeaseRef) {
			if _, err := w.Destroy(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		},
		"destroyed by another host": func(t *testing.T, w *world, ref LeaseRef) {
			if _, err := w.another(t, Config{}).Destroy(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		},
		"not released": func(t *testing.T, w *world, ref LeaseRef) {
			w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*/ssh-access", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")})
			_, err := w.Release(t.Context(), ref, ReleaseOptions{})
			wantError(t, err, KindAuth)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Reuse: true})
				l := w.acquired(t)
				access := openedSSH(t, l)
				giveBack(t, w, l.ref)
				for range 2 {
					if err := access.Revoke(t.Context()); err != nil {
						t.Errorf("Revoke() = %v", err)
					}
				}
				if w.validSSH(t, access.Token()) {
					t.Error("the token is valid after its revocation")
				}
			})
		})
	}
	t.Run("and the next lease's is left alone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Config{Reuse: true})
			l := w.acquired(t)
			access := openedSSH(t, l)
			if _, err := w.Release(t.Context(), l.ref, ReleaseOptions{}); err != nil {
				t.Fatal(err)
			}
			again, err := w.Resume(t.Context(), l.ref)
			if err != nil {
				t.Fatal(err)
			}
			next := openedSSH(t, again)
			if err := access.Revoke(t.Context()); err != nil || !w.validSSH(t, next.Token()) {
				t.Errorf("Revoke() = %v, want the next access left alone", err)
			}
			wantError(t, l.RevokeSSH(t.Context()), KindClosed)
			w.server.SetFaults(emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Sandbox with ID or name x not found")},
				emulator.Fault{Method: "GET", Path: "/api/sandbox/paginated", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")})
			wantError(t, access.Revoke(t.Context()), KindAuth)
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantError(t, access.Revoke(t.Context()), KindClosed)
		})
	})
}

// A provider that has no such accesses has none to revoke.
func TestAReleaseDoesNotNeedSSH(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	l := r.acquired(t)
	r.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*/ssh-access", Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Cannot DELETE /api/sandbox/x/ssh-access"), Count: -1})
	if _, err := r.Release(t.Context(), l.ref, ReleaseOptions{}); err != nil {
		t.Errorf("Release() = %v", err)
	}
	r.wantHits(t)
}

// Neither of what a request may say of its destination reaches the wire: the token would follow it.
func TestAnEndpointsRequestsGoToItsHostAlone(t *testing.T) {
	server := http.DefaultTransport.(*http.Transport).Clone()
	defer server.CloseIdleConnections()
	var hosts []string
	r := newRig(t, Config{Transport: carrier(func(req *http.Request) (*http.Response, error) {
		if req.Header.Get("X-Daytona-Preview-Token") != "" {
			hosts = append(hosts, req.Host, req.URL.Host)
		}
		return server.RoundTrip(req)
	})}, emulator.Options{})
	e := endpointOf(t, r.acquired(t), service(t, echo))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.URL().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "elsewhere.example"
	resp, err := e.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(hosts) != 2 || hosts[0] != "" && hosts[0] != e.address.Host || hosts[1] != e.address.Host {
		t.Errorf("hosts %q, want %q alone", hosts, e.address.Host)
	}
	req.URL.Opaque = "//elsewhere.example/"
	_, err = e.Client().Do(req)
	wantError(t, err, KindInvalid)
	if len(hosts) != 2 {
		t.Errorf("hosts %q, want none more", hosts)
	}
}

// openedSSH makes an SSH access.
func openedSSH(t *testing.T, l *Lease) *SSHAccess {
	t.Helper()
	access, err := l.OpenSSH(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return access
}
