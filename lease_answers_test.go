package leasehold

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// answers is one row of the table: what the control plane answers, and what becomes of each operation.
type answers struct {
	name string
	// arrange makes the control plane answer so; ref is of a started sandbox.
	arrange func(*testing.T, *world, LeaseRef)
	// resume, stop, retain, archive and destroy are the outcomes: "lease", a receipt's state, or the kind of an error.
	// destroy stands for a release that deletes, and for a cleanup, too.
	resume, stop, retain, archive, destroy string
	// lasting says that the operation cannot be repeated with success when the faults are over.
	lasting bool
}

// whoever is another client of the account, or the provider itself.
func whoever(f func(context.Context, *world, LeaseRef) error) func(*testing.T, *world, LeaseRef) {
	return func(t *testing.T, w *world, ref LeaseRef) {
		t.Helper()
		if err := f(t.Context(), w, ref); err != nil {
			t.Fatal(err)
		}
	}
}

func answersTable() []answers {
	const (
		lease, stopped, destroyed    = "lease", string(ReceiptStopped), string(ReceiptDestroyed)
		gone, timeout, broken        = string(KindGone), string(KindTimeout), string(KindBroken)
		refused, unavailable, auth   = string(KindRefused), string(KindUnavailable), string(KindAuth)
		notOwned, uncertain, limited = string(KindNotOwned), string(KindUncertain), string(KindRateLimited)
	)
	faults := func(list ...emulator.Fault) func(*testing.T, *world, LeaseRef) {
		return func(_ *testing.T, w *world, _ LeaseRef) { w.server.SetFaults(list...) }
	}
	// on is a fault of every request that changes a sandbox's state.
	on := func(f emulator.Fault) []emulator.Fault {
		list := make([]emulator.Fault, 0, 4)
		for _, q := range []string{"POST /api/sandbox/*/stop", "POST /api/sandbox/*/archive", "DELETE /api/sandbox/*", "POST /api/sandbox/*/autodelete/*"} {
			f.Method, f.Path, _ = strings.Cut(q, " ")
			list = append(list, f)
		}
		return list
	}
	read := func(f emulator.Fault) emulator.Fault {
		f.Method, f.Path = "GET", "/api/sandbox/*"
		return f
	}
	list := func(f emulator.Fault) emulator.Fault {
		f.Method, f.Path = "GET", "/api/sandbox/paginated"
		return f
	}
	force := func(state emulator.State, reason string) func(*testing.T, *world, LeaseRef) {
		return func(_ *testing.T, w *world, ref LeaseRef) { w.server.Sandbox(ref.Sandbox).Force(state, reason, false) }
	}
	remove := func(ctx context.Context, w *world, ref LeaseRef) error {
		err := w.client.Delete(ctx, ref.Sandbox)
		w.server.Sandbox(ref.Sandbox).Settle(time.Second)
		return err
	}
	key := func(k emulator.Key) func(*testing.T, *world, LeaseRef) {
		return func(_ *testing.T, w *world, _ LeaseRef) { w.server.SetKey(w.server.APIKey(), k) }
	}
	pending := emulator.Fault{Action: emulator.StatusBefore, Status: 409, Body: structured(409, "Sandbox state change in progress")}
	unstoppable := emulator.Fault{Action: emulator.StatusBefore, Status: 400, Body: structured(400, "Sandbox is not in a stoppable state")}
	times := func(f emulator.Fault, n int) emulator.Fault {
		f.Count = n
		return f
	}
	skewed := func(hours time.Duration) emulator.Fault {
		return emulator.Fault{Count: -1, Action: emulator.SkewClock, Delay: hours * time.Hour}
	}
	date := func(hours time.Duration) http.Header {
		now := time.Now().Add(hours * time.Hour).UTC()
		return http.Header{"Date": {now.Format(http.TimeFormat)}, "Retry-After": {now.Add(3 * time.Second).Format(http.TimeFormat)}}
	}
	return []answers{
		{"nothing unusual", faults(), lease, stopped, stopped, stopped, destroyed, false},
		{"409 pending, three times", faults(on(times(pending, 3))...), lease, stopped, stopped, stopped, destroyed, false},
		{"409 pending, for ever", faults(on(times(pending, -1))...), lease, timeout, uncertain, timeout, timeout, false},
		{"400 not stoppable, once", faults(on(unstoppable)[0]), lease, stopped, stopped, stopped, destroyed, false},
		{"400 not stoppable, for ever", faults(on(times(unstoppable, -1))[0]), lease, refused, refused, refused, destroyed, false},
		{"stuck in starting", whoever(func(ctx context.Context, w *world, ref LeaseRef) error {
			w.server.Sandbox(ref.Sandbox).Force(emulator.StateStopped, "", false)
			w.server.SetFaults(emulator.Fault{Method: "POST", Path: "/api/sandbox/*/start", Action: emulator.StallChange})
			return w.client.Start(ctx, ref.Sandbox)
		}), timeout, timeout, timeout, timeout, timeout, true},
		{"stuck in destroying, for ever", whoever(func(ctx context.Context, w *world, ref LeaseRef) error {
			w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StallChange})
			return w.client.Delete(ctx, ref.Sandbox)
		}), timeout, timeout, timeout, timeout, timeout, true},
		{"errored", force(emulator.StateError, "disk failure"), broken, broken, broken, broken, destroyed, true},
		{"errored, its container lost", whoever(func(_ context.Context, w *world, ref LeaseRef) error {
			w.server.Sandbox(ref.Sandbox).Force(emulator.StateError, lost(ref.Sandbox), false)
			return nil
		}), gone, broken, broken, broken, destroyed, true},
		{"being deleted, and renamed for it", whoever(func(ctx context.Context, w *world, ref LeaseRef) error {
			w.server.SetFaults(emulator.Fault{Method: "DELETE", Path: "/api/sandbox/*", Action: emulator.StallChange, Delay: 3 * time.Second})
			return w.client.Delete(ctx, ref.Sandbox)
		}), gone, destroyed, destroyed, destroyed, destroyed, false},
		{"deleted by somebody else", whoever(remove), gone, destroyed, destroyed, destroyed, destroyed, false},
		{"the list shows it, the id does not", whoever(func(ctx context.Context, w *world, ref LeaseRef) error {
			w.server.SetFaults(list(emulator.Fault{Count: -1, Action: emulator.StaleList}))
			return remove(ctx, w, ref)
		}), gone, destroyed, destroyed, destroyed, destroyed, false},
		{"the id shows it, the list does not", faults(list(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 200, Body: `{"items":[],"total":0,"page":1,"totalPages":0}`})),
			lease, stopped, stopped, stopped, destroyed, false},
		{"deleted, and the list is refused", whoever(func(ctx context.Context, w *world, ref LeaseRef) error {
			w.server.SetFaults(list(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden resource")}))
			return remove(ctx, w, ref)
		}), auth, auth, auth, auth, auth, false},
		{"deleted, and the list is a proxy's page", whoever(func(ctx context.Context, w *world, ref LeaseRef) error {
			w.server.SetFaults(list(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 502, Body: "<html>"}))
			return remove(ctx, w, ref)
		}), unavailable, unavailable, unavailable, unavailable, unavailable, false},
		{"404 without a body, once", faults(read(emulator.Fault{Action: emulator.StatusBefore, Status: 404})), lease, stopped, stopped, stopped, destroyed, false},
		{"404 without a body, for ever", faults(read(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 404})), unavailable, unavailable, unavailable, unavailable, unavailable, false},
		{"404 page of a proxy, for ever", faults(read(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 404, Body: "<html>Not found"})), unavailable, unavailable, unavailable, unavailable, unavailable, false},
		{"404 of a path that is not served", faults(read(emulator.Fault{Count: -1, Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Cannot GET /api/sandbox/x")})), unavailable, unavailable, unavailable, unavailable, unavailable, false},
		{"404 without a body to every change, twice", faults(on(emulator.Fault{Count: 2, Action: emulator.StatusBefore, Status: 404})...), lease, stopped, stopped, stopped, destroyed, false},
		{"the API's 404 to every change, twice", faults(on(emulator.Fault{Count: 2, Action: emulator.StatusBefore, Status: 404, Body: structured(404, "Sandbox with ID or name x not found")})...), lease, stopped, stopped, stopped, destroyed, false},
		{"401 of the toolbox proxy", faults(emulator.Fault{Path: "/toolbox/**", Count: -1, Action: emulator.StatusBefore, Status: 401, Body: `{"statusCode":401,"message":"unauthorized: authentication failed: Bearer token is invalid","code":"UNAUTHORIZED","timestamp":"2026-01-01T00:00:00Z","path":"/toolbox/x","method":"POST"}`}),
			auth, stopped, stopped, stopped, destroyed, false},
		{"every request is swallowed", faults(emulator.Fault{Count: -1, Action: emulator.SilentSocket}), timeout, timeout, timeout, timeout, timeout, false},
		{"account changed: the key was revoked", key(emulator.Key{}), auth, auth, auth, auth, auth, false},
		{"account changed: the key's user left it", key(emulator.Key{Organization: "home", Masked: true}), auth, auth, auth, auth, auth, false},
		{"account changed: the key is of another one", whoever(func(ctx context.Context, w *world, _ LeaseRef) error {
			w.server.SetKey(w.server.APIKey(), emulator.Key{Organization: "elsewhere"})
			content := w.content
			_, err := w.Acquire(ctx, request()) // by which that one can be attested
			w.content = content
			return err
		}), notOwned, notOwned, notOwned, notOwned, notOwned, false},
		{"the provider's clock is 6 h ahead", faults(skewed(6)), lease, stopped, stopped, stopped, destroyed, false},
		{"the provider's clock is 6 h behind", faults(skewed(-6)), lease, stopped, stopped, stopped, destroyed, false},
		{"429 until a date, by a clock that is 6 h ahead", faults(emulator.Fault{Path: "/api/**", Action: emulator.StatusBefore, Status: 429, Header: date(6)}), lease, stopped, stopped, stopped, destroyed, false},
		{"429 until a date, by a clock that is 6 h behind", faults(emulator.Fault{Path: "/api/**", Action: emulator.StatusBefore, Status: 429, Header: date(-6)}), lease, stopped, stopped, stopped, destroyed, false},
		{"429 for an hour", faults(emulator.Fault{Path: "/api/**", Count: -1, Action: emulator.StatusBefore, Status: 429, Header: http.Header{"Retry-After": {"3600"}}}), limited, limited, limited, limited, limited, false},
	}
}

// TestEveryAnswer: for each way in which the control plane can answer, what becomes of resume, stop, retain, archive and
// destroy. No receipt is issued but for a fact, nothing is deleted by an operation that is to keep it, and what failed can
// be repeated once the answers are the usual ones.
func TestEveryAnswer(t *testing.T) {
	for _, row := range answersTable() {
		want := map[string]string{
			"resume a running one": row.resume, "release and stop": row.stop, "release and retain": row.retain,
			"release and archive": row.archive, "release and delete": row.destroy, "destroy": row.destroy, "cleanup": row.destroy,
		}
		t.Run(row.name, func(t *testing.T) {
			for _, op := range named(operations(), slices.Sorted(maps.Keys(want))...) {
				synctest.Test(t, func(t *testing.T) { answerCell(t, row, op, want[op.name]) })
			}
		})
	}
}

func answerCell(t *testing.T, row answers, op operation, want string) {
	s := &stage{world: newWorld(t, op.cfg)}
	s.host = s.provider
	op.prepare(t, s)
	row.arrange(t, s.world, s.ref)
	s.begin(nil)
	began := time.Now()
	got := op.run(t.Context(), s)
	if took := time.Since(began); took > s.world.cfg.Timeout {
		t.Errorf("%s: took %v, over the budget of %v", op.name, took, s.world.cfg.Timeout)
	}
	if outcome := got.name(t, op.name, s.world); outcome != want {
		t.Errorf("%s = %q (%v), want %q", op.name, outcome, got.err, want)
	}
	s.alive() // waits: an errored one is gone for the API before it is for the runner
	judge := &oracle{world: s.world}
	judge.judgeReceipt(s.ref.Sandbox, got.receipt, got.err)
	if keeps := !strings.Contains(op.name, "delete") && op.name != "destroy" && op.name != "cleanup"; keeps && slices.Contains(s.arrived(), "DELETE /api/sandbox/*") {
		t.Errorf("%s deleted what it was to keep", op.name)
	}
	if !row.lasting && got.err != nil {
		s.server.SetFaults()
		s.server.SetKey(s.server.APIKey(), emulator.Key{Organization: s.server.Organization()})
		again := op.run(t.Context(), s)
		if again.err != nil && !(strings.HasPrefix(op.name, "resume") && s.server.Sandbox(s.ref.Sandbox).State() == "destroyed") {
			t.Errorf("%s, repeated when all is well: %v", op.name, again.err)
		}
		judge.judgeReceipt(s.ref.Sandbox, again.receipt, again.err)
	}
	judge.report(t, op.name)
}

// TestBlackHole: against a provider that swallows every request an operation ends after one CallTimeout. Not a creation, which
// is waited for longer, and then looked for by its name.
func TestBlackHole(t *testing.T) {
	for _, op := range named(operations(), "resume a running one", "resume a stopped one", "release and delete", "release and stop",
		"release and retain", "release and archive", "destroy", "inspect", "cleanup") {
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stage{world: newWorld(t, op.cfg)}
				s.host = s.provider
				op.prepare(t, s)
				s.server.SetFaults(emulator.Fault{Count: -1, Action: emulator.SilentSocket})
				began := time.Now()
				got := op.run(t.Context(), s)
				wantError(t, got.err, KindTimeout)
				if took, most := time.Since(began), s.world.cfg.CallTimeout+s.world.cfg.CallTimeout/5; took > most {
					t.Errorf("took %v, want at most %v", took, most)
				}
			})
		})
	}
}
