package leasehold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// tenants is an emulator with several keys: home and rotated are of one organisation, foreign of another.
func tenants(t *testing.T, cfg Config) (home *rig, with func(key string) *rig) {
	t.Helper()
	cfg.APIKey = "home-key"
	home = newRig(t, cfg, emulator.Options{
		APIKey: cfg.APIKey, Organization: "home", Keys: map[string]string{"rotated-key": "home", "foreign-key": "elsewhere"},
	})
	return home, func(key string) *rig {
		cfg.APIKey = key
		r := &rig{provider: rigProvider(t, home.server, cfg), server: home.server}
		t.Cleanup(func() {
			if err := r.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return r
	}
}

// lostCreation is the envelope of a creation that was done and not answered, whose sandbox was not seen either.
func (r *rig) lostCreation(t *testing.T) CleanupEnvelope {
	t.Helper()
	timeout := r.cfg.Timeout
	r.cfg.Timeout = 5 * time.Second // most of it for the creation, of which nothing is to be seen until then
	defer func() { r.cfg.Timeout = timeout }()
	r.server.SetFaults(
		emulator.Fault{Method: "POST", Path: "/api/sandbox", Action: emulator.DropAfter},
		emulator.Fault{Method: "GET", Path: "/api/sandbox/*", Count: -1, Action: emulator.StatusBefore, Status: 503},
	)
	_, err := r.Acquire(t.Context(), request())
	e := wantError(t, err, KindUncertain)
	if e.Cleanup == nil {
		t.Fatalf("error = %+v, want an envelope", e)
	}
	r.server.SetFaults()
	return *e.Cleanup
}

// TestAccountIsAttestedOnceForRecords: the first acquisition asks, the later ones know, and a record made before a reply
// came names the organisation if the API could tell it.
func TestAccountIsAttestedOnceForRecords(t *testing.T) {
	t.Parallel()
	r, with := tenants(t, Config{})
	if e := r.lostCreation(t); e.Account != "" || e.Credential != r.account.credential {
		t.Errorf("envelope in an empty organisation: account %q, want none: nothing could attest it", e.Account)
	}
	again := with("home-key") // the host restarted
	e := again.lostCreation(t)
	if want := again.account.of("home"); e.Account != want {
		t.Errorf("account = %q, want that of the organisation, %q", e.Account, want)
	}
	again.server.ResetRequests()
	for range 2 {
		if _, err := again.Acquire(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
	}
	if got := again.count()["GET /api/sandbox/paginated"]; got != 0 {
		t.Errorf("%d lists by later acquisitions, want none", got)
	}
}

// TestRotatedKeyOwnsWhatItsOrganisationOwns: leases and envelopes survive a rotation, and not-found is proof for them
// where the organisation can be attested.
func TestRotatedKeyOwnsWhatItsOrganisationOwns(t *testing.T) {
	t.Parallel()
	old, with := tenants(t, Config{Reuse: true})
	keep := old.acquired(t).Ref() // by which the organisation can be attested
	ref := old.acquired(t).Ref()
	envelope := with("home-key").lostCreation(t)
	old.server.SetKey("home-key", emulator.Key{}) // revoked

	_, err := old.Destroy(t.Context(), ref)
	wantError(t, err, KindAuth)
	r := with("rotated-key")
	if _, err := r.Resume(t.Context(), ref); err != nil {
		t.Errorf("Resume() = %v", err)
	}
	if receipt, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
		t.Errorf("Release() = %+v, %v, want stopped", receipt, err)
	}
	for range 2 { // the second finds nothing
		if receipt, err := r.Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Destroy() = %+v, %v, want destroyed", receipt, err)
		}
	}
	if receipt := r.settle(t, &envelope); receipt.State != ReceiptDestroyed {
		t.Errorf("Cleanup() = %+v, want destroyed", receipt)
	}
	if got := r.server.Sandboxes(); len(got) != 1 || got[0] != keep.Sandbox {
		t.Errorf("sandboxes left = %v, want %s", got, keep.Sandbox)
	}
}

// TestForeignKeyOwnsNothing: whatever it is given, it is told so, and touches nothing.
func TestForeignKeyOwnsNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		attests bool // the foreign organisation has a sandbox, by which it can be attested
		kind    Kind
	}{{"attested", true, KindNotOwned}, {"not to be attested", false, KindUncertain}} {
		t.Run(tt.name, func(t *testing.T) {
			home, with := tenants(t, Config{Reuse: true})
			ref := home.acquired(t).Ref()
			envelope := with("home-key").lostCreation(t)
			alive := len(home.server.Sandboxes())
			r := with("foreign-key")
			if tt.attests {
				r.acquired(t)
				alive++
			}
			home.server.ResetRequests()
			observed := envelope
			observed.Observed = home.server.Sandbox(envelope.Name).ID()
			unattested := observed
			unattested.Account = ""
			for name, call := range map[string]func() error{
				"Resume":  func() error { _, err := r.Resume(t.Context(), ref); return err },
				"Release": func() error { _, err := r.Release(t.Context(), ref, ReleaseOptions{}); return err },
				"Retain":  func() error { _, err := r.Release(t.Context(), ref, ReleaseOptions{Retain: true}); return err },
				"Destroy": func() error { _, err := r.Destroy(t.Context(), ref); return err },
				"Cleanup": func() error { _, err := r.Cleanup(t.Context(), observed); return err },
				"Bind": func() error {
					l, err := r.Bind(ref)
					if err == nil {
						_, err = l.toolbox(t.Context())
					}
					return err
				},
			} {
				if err := call(); !errors.Is(err, sentinels[tt.kind]) {
					t.Errorf("%s = %v, want kind %q", name, err, tt.kind)
				}
			}
			_, err := r.Inspect(t.Context(), envelope)
			wantError(t, err, KindUncertain) // by name: nothing is visible
			_, err = r.Cleanup(t.Context(), unattested)
			wantError(t, err, KindNotOwned) // by the credential alone
			r.wantNothingDone(t)
			r.wantSandboxes(t, alive)
		})
	}
}

// TestNotFoundIsAttestedAfresh: a key that was good when the sandbox was seen, and whose access was taken away since, is
// answered as if there were no sandbox. That is no proof, and no receipt.
func TestNotFoundIsAttestedAfresh(t *testing.T) {
	for name, key := range map[string]emulator.Key{
		"masked":                      {Organization: "home", Masked: true},
		"moved to another account":    {Organization: "elsewhere"},
		"revoked":                     {},
		"without permission to write": {Organization: "home", NoWrite: true, NoDelete: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, with := tenants(t, Config{Reuse: true})
			ref := r.acquired(t).Ref()
			with("foreign-key").acquired(t)
			r.server.SetKey("home-key", key)
			for name, call := range map[string]func() (Receipt, error){
				"Release": func() (Receipt, error) { return r.Release(t.Context(), ref, ReleaseOptions{}) },
				"Retain":  func() (Receipt, error) { return r.Release(t.Context(), ref, ReleaseOptions{Retain: true}) },
				"Destroy": func() (Receipt, error) { return r.Destroy(t.Context(), ref) },
				"Resume": func() (Receipt, error) {
					_, err := r.Resume(t.Context(), ref)
					if key.NoWrite && err == nil { // it runs, and reading needs no permission
						err = &Error{Kind: KindAuth}
					}
					return Receipt{}, err
				},
			} {
				receipt, err := call()
				if receipt != (Receipt{}) || !errors.Is(err, ErrAuth) && !errors.Is(err, ErrNotOwned) {
					t.Errorf("%s = %+v, %v, want no receipt, and ErrAuth or ErrNotOwned", name, receipt, err)
				}
			}
			if got := r.server.Sandbox(ref.Sandbox).State(); got != emulator.StateStarted {
				t.Errorf("state = %q, want started", got)
			}
			r.server.SetKey("home-key", emulator.Key{Organization: "home"}) // and given back
			if _, err := r.Resume(t.Context(), ref); err != nil {
				t.Errorf("Resume() = %v: the sandbox was not kept", err)
			}
		})
	}
}

// TestAccountThatCannotBeAttested: an API that names no organisation leaves the credential's hash.
func TestAccountThatCannotBeAttested(t *testing.T) {
	r, with := tenants(t, Config{Reuse: true})
	r.server.SetFaults(emulator.Fault{Path: "/api/**", Count: -1, Action: emulator.MergeReply, Body: `{"organizationId":null}`})
	ref := r.acquired(t).Ref()
	if ref.Account != r.account.credential || ref.Credential != r.account.credential {
		t.Errorf("account %s, credential %s, want both to be the credential's hash %s", ref.Account, ref.Credential, r.account.credential)
	}
	if _, err := r.Resume(t.Context(), ref); err != nil {
		t.Errorf("Resume() = %v", err)
	}
	_, err := with("rotated-key").Destroy(t.Context(), ref)
	wantError(t, err, KindNotOwned)
	r.server.SetFaults() // from now on it does, and the same credential goes on
	for range 2 {
		if receipt, err := r.Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
			t.Errorf("Destroy() = %+v, %v, want destroyed", receipt, err)
		}
	}
}

// TestSuspendedOrganisation: nothing new runs, nothing is lost, and what there is can be given back.
func TestSuspendedOrganisation(t *testing.T) {
	r := newRig(t, Config{Reuse: true}, emulator.Options{})
	running, stopped := r.acquired(t).Ref(), r.acquired(t).Ref()
	if _, err := r.Release(t.Context(), stopped, ReleaseOptions{}); err != nil {
		t.Fatal(err)
	}
	r.server.SetLimits(emulator.Limits{Suspended: true})
	_, err := r.Acquire(t.Context(), request())
	if e := wantError(t, err, KindAuth); e.Cleanup != nil || e.Retryable || e.HTTPStatus != 403 {
		t.Errorf("Acquire() = %+v, want 403, no envelope, not retryable", e)
	}
	_, err = r.Resume(t.Context(), stopped)
	wantError(t, err, KindAuth)
	if _, err := r.Resume(t.Context(), running); err != nil {
		t.Errorf("Resume() of a running one = %v", err)
	}
	if receipt, err := r.Release(t.Context(), running, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
		t.Errorf("Release() = %+v, %v, want stopped", receipt, err)
	}
	if receipt, err := r.Destroy(t.Context(), running); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Destroy() = %+v, %v, want destroyed", receipt, err)
	}
	r.server.SetLimits(emulator.Limits{})
	if _, err := r.Resume(t.Context(), stopped); err != nil {
		t.Errorf("Resume() after the suspension = %v", err)
	}
}

// TestKeyWithoutDeletePermission: acquisitions work, deletions say why they do not, and what could not be deleted stays on
// record until a key that may comes.
func TestKeyWithoutDeletePermission(t *testing.T) {
	r, with := tenants(t, Config{Reuse: true})
	r.server.SetKey("home-key", emulator.Key{Organization: "home", NoDelete: true})
	ref := r.acquired(t).Ref()
	if receipt, err := r.Release(t.Context(), ref, ReleaseOptions{}); err != nil || receipt.State != ReceiptStopped {
		t.Errorf("Release() = %+v, %v, want stopped", receipt, err)
	}
	_, err := r.Destroy(t.Context(), ref)
	if e := wantError(t, err, KindAuth); e.Phase != PhaseDelete || e.HTTPStatus != 403 {
		t.Errorf("Destroy() = %+v, want phase delete and 403", e)
	}
	_, err = r.Probe(t.Context(), request())
	probed := wantError(t, err, KindAuth)

	r.server.SetFaults(emulator.Fault{Method: "POST", Path: "/toolbox/*/process/execute", Count: -1, Action: emulator.StatusBefore, Status: 403})
	_, err = r.Acquire(t.Context(), request())
	failed := wantError(t, err, KindAuth)
	r.server.SetFaults()
	r.wantSandboxes(t, 3)
	allowed := with("rotated-key")
	for name, e := range map[string]*Error{"Probe": probed, "Acquire": failed} {
		if e.Cleanup == nil || e.Cleanup.Observed == "" || e.Cleanup.Account == "" {
			t.Fatalf("%s = %+v, want an envelope with id and account", name, e)
		}
		_, err := r.Cleanup(t.Context(), *e.Cleanup)
		wantError(t, err, KindAuth)
		if receipt := allowed.settle(t, e.Cleanup); receipt.State != ReceiptDestroyed {
			t.Errorf("Cleanup() with a key that may = %+v, want destroyed", receipt)
		}
	}
	if receipt, err := allowed.Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Destroy() with a key that may = %+v, %v, want destroyed", receipt, err)
	}
	r.wantSandboxes(t, 0)
}

// TestKeyForSandboxPathsOnly: no call of a lease's life, the proof of its end included, needs another path.
func TestKeyForSandboxPathsOnly(t *testing.T) {
	r, with := tenants(t, Config{Reuse: true})
	r.server.SetKey("home-key", emulator.Key{Organization: "home", SandboxPaths: true})
	ref := r.acquired(t).Ref()
	keep := r.acquired(t).Ref()
	if ref.Account == ref.Credential {
		t.Error("the account is not attested")
	}
	if _, err := r.Release(t.Context(), ref, ReleaseOptions{Retain: true}); err != nil {
		t.Errorf("Release() = %v", err)
	}
	if _, err := r.Resume(t.Context(), ref); err != nil {
		t.Errorf("Resume() = %v", err)
	}
	if receipt, err := r.Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Destroy() = %+v, %v, want destroyed", receipt, err)
	}
	r.server.SetKey("rotated-key", emulator.Key{Organization: "home", SandboxPaths: true})
	if receipt, err := with("rotated-key").Destroy(t.Context(), ref); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Destroy() with a rotated key = %+v, %v, want destroyed", receipt, err)
	}
	if receipt, err := with("rotated-key").Destroy(t.Context(), keep); err != nil || receipt.State != ReceiptDestroyed {
		t.Errorf("Destroy() with a rotated key = %+v, %v, want destroyed", receipt, err)
	}
}

// TestEnvelopesNameTheAccount that was attested by the time they are made, so that a rotated key can go on with them.
func TestEnvelopesNameTheAccount(t *testing.T) {
	for name, tt := range map[string]struct {
		post emulator.Fault
		want Kind
	}{
		"seen by the compensation alone": {emulator.Fault{Action: emulator.StatusAfter, Status: 400, Body: structured(400, "no")}, KindRefused},
		"learnt by another acquisition":  {emulator.Fault{Action: emulator.DropBefore}, KindUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Store: newMemoryStore()})
				tt.post.Method, tt.post.Path = "POST", "/api/sandbox"
				w.server.SetFaults(tt.post, emulator.Fault{Method: "DELETE", Count: -1, Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden")})
				ended := make(chan error, 1)
				go func() { _, err := w.Acquire(t.Context(), request()); ended <- err }()
				if tt.want == KindUncertain {
					time.Sleep(time.Second) // virtual
					w.acquired(t)
				}
				e := wantError(t, <-ended, tt.want)
				if e.Cleanup == nil {
					t.Fatalf("error = %+v, want an envelope", e)
				}
				account := w.account.of(w.server.Organization())
				if e.Cleanup.Account != account {
					t.Errorf("the envelope's account is %q, want %q", e.Cleanup.Account, account)
				}
				if r := listed(t, w.cfg.Store)[e.Cleanup.Attempt]; r.Envelope.Account != account {
					t.Errorf("the record's account is %q, want %q", r.Envelope.Account, account)
				}
				w.server.SetFaults()
				w.server.SetKey("rotated-key", emulator.Key{Organization: w.server.Organization()})
				rotated := &rig{provider: w.another(t, Config{APIKey: "rotated-key"}), server: w.server}
				if tt.want == KindRefused {
					rotated.settle(t, e.Cleanup)
				} else if _, err := rotated.Inspect(t.Context(), *e.Cleanup); !errors.Is(err, ErrUncertain) {
					t.Errorf("Inspect() under a rotated key = %v, want ErrUncertain", err)
				}
			})
		})
	}
}
