package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// oracle judges what operations claim by what is so. It knows the invariants, and neither operations nor faults.
type oracle struct {
	world *world

	lied    bool // an answer said what is not so, and cannot be told from the truth
	forged  bool // what has no proof on its way may have been changed
	lost    bool // a sandbox's container was lost
	ends    bool // somebody else may end a sandbox at any time
	broken  bool // what was to be made came out broken
	stalled bool // a state change never ends
	limited bool // creations were refused by a rate limit, after which they are sent again

	mu       sync.Mutex
	problems []string
	kept     []*commandClaim // to be looked at again in the end
	secrets  []string
}

func (o *oracle) wrong(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problems = append(o.problems, fmt.Sprintf(format, args...))
}

// report fails the test with the problems.
func (o *oracle) report(t *testing.T, cell string) {
	t.Helper()
	for _, p := range o.problems {
		t.Errorf("%s: %s", cell, p)
	}
}

// judge compares what an operation claims with what is so.
func (o *oracle) judge(s *stage, got outcome) *Error {
	o.mu.Lock()
	o.secrets = append(o.secrets, got.secrets...)
	o.mu.Unlock()
	var e *Error
	if got.err != nil {
		e = o.failure(got.err)
		if e.Kind == KindGone && o.there(s.ref.Sandbox) && !o.lost && !o.lied {
			o.wrong("L5: told that the sandbox is gone, which is %q: %v", o.state(s.ref.Sandbox), e)
		}
	}
	o.judgeReceipt(s.ref.Sandbox, got.receipt, got.err)
	o.judgeIdle(got.idle)
	if got.lease != nil {
		o.judgeLease(got.lease)
	}
	if got.envelope != nil && got.err == nil && got.envelope.Observed != s.ref.Sandbox && !o.lied {
		o.wrong("observed %q, want %q", got.envelope.Observed, s.ref.Sandbox)
	}
	if got.command != nil {
		o.judgeCommand(got.command, got.err)
	}
	if c := got.stream; c != nil {
		whole := bytes.Equal(c.got, c.want)
		if !bytes.HasPrefix(c.want, c.got) && !(o.forged && (c.unproved || c.late && got.err != nil)) {
			o.wrong("E2: what arrived is not a beginning of what was sent: %s", difference(c.want, c.got))
		}
		if got.err == nil && !whole && !(c.unproved && o.forged) {
			o.wrong("E2: an end without an error after %d bytes of %d", len(c.got), len(c.want))
		}
	}
	if c := got.transfer; c != nil {
		holds := c.look()
		switch whole := cmp.Equal(c.want, holds); {
		case holds == nil:
		case got.err == nil && !whole:
			o.wrong("F2: the transfer succeeded, and is not complete (-want +got):\n%s", cmp.Diff(c.want, holds))
		case got.err != nil && !cmp.Equal(c.before, holds) && !(whole && c.imports):
			o.wrong("F2: the transfer failed with %v, and left (-before +after):\n%s", got.err, cmp.Diff(c.before, holds))
		}
	}
	if c := got.snapshot; c != nil && got.err == nil && !o.lied {
		if there := slices.Contains(s.server.SnapshotNames(), c.ref.Name); there != c.ready {
			o.wrong("L4: snapshot %s is said to be there: %t, and is: %t", c.ref.Name, c.ready, there)
		}
	}
	if got.ended != nil && got.err == nil && !o.lied {
		o.within("the end of a process that was ended", func() bool { return processEnded(*got.ended) })
	}
	return e
}

// failure checks an error, and returns it.
func (o *oracle) failure(err error) *Error {
	var e *Error
	if !errors.As(err, &e) || sentinels[e.Kind] == nil || e.Op == "" {
		o.wrong("error %T %v is no *Error with an operation and a kind", err, err)
		return &Error{}
	}
	switch e.Dispatched {
	case "", DispatchedNo, DispatchedYes, DispatchedUnknown:
	default:
		o.wrong("error with dispatched %q", e.Dispatched)
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", *e), fmt.Sprint(errors.Unwrap(err))} {
		o.secretIn("the error "+strconv.Quote(text), text)
	}
	if e.Cleanup != nil {
		if data, err := json.Marshal(e.Cleanup); err != nil {
			o.wrong("envelope: %v", err)
		} else if _, err := ParseCleanupEnvelope(data); err != nil {
			o.wrong("envelope: %v", err)
		} else {
			o.secretIn("the envelope", string(data))
		}
	}
	switch e.Kind {
	case KindCanceled, KindClosed, KindNotOwned, KindStore, KindFenced: // before the first step, or between two
		return e
	}
	switch e.Op {
	case "acquire", "resume", "release", "destroy", "cleanup":
		if e.Phase == "" && !errors.Is(e, context.DeadlineExceeded) {
			o.wrong("no phase: %+v", e)
		}
	}
	return e
}

// excuses reports whether an error, after the faults, has a good reason.
func (o *oracle) excuses(err error) bool {
	switch {
	case o.lied, o.broken && errors.Is(err, ErrBroken):
		return true
	case o.lost: // and until the control plane has noticed, the proxy's not-found proves nothing
		return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrGone) || errors.Is(err, ErrBroken) || errors.Is(err, ErrNotRunning) || errors.Is(err, ErrTimeout)
	}
	return false
}

// secretIn looks for what must not be seen.
func (o *oracle) secretIn(where, text string) {
	o.mu.Lock()
	secrets := slices.Clone(o.secrets)
	o.mu.Unlock()
	for _, secret := range append(secrets, o.world.server.APIKey(), secretWords, "hibernating", "<html>") {
		if secret != "" && strings.Contains(text, secret) {
			o.wrong("S1: %q in %s", secret, where)
		}
	}
}

// state is what a sandbox is in.
func (o *oracle) state(id string) emulator.State {
	if sb := o.world.server.Sandbox(id); sb != nil {
		return sb.State()
	}
	return emulator.StateDestroyed
}

func (o *oracle) there(id string) bool {
	if id == "" {
		return false
	}
	state := o.state(id)
	return state != emulator.StateDestroyed && state != emulator.StateDestroying
}

func (o *oracle) judgeReceipt(sandbox string, receipt Receipt, err error) {
	if err != nil || receipt == (Receipt{}) {
		if receipt != (Receipt{}) {
			o.wrong("L4: receipt %+v with error %v", receipt, err)
		}
		return
	}
	if o.lied {
		return
	}
	switch state := o.state(sandbox); receipt.State {
	case ReceiptDestroyed:
		if state != emulator.StateDestroyed {
			o.wrong("L4: receipt %q, and the sandbox is %q", receipt.State, state)
		}
	case ReceiptStopped:
		if !resting(state) {
			o.wrong("L4: receipt %q, and the sandbox is %q", receipt.State, state)
		}
	default:
		o.wrong("L4: receipt %+v", receipt)
	}
}

// judgeLease checks that what was leased is there, runs, and can be stored.
func (o *oracle) judgeLease(l *Lease) {
	ref := l.Ref()
	data, err := json.Marshal(ref)
	if err == nil {
		_, err = ParseLeaseRef(data)
	}
	if err != nil {
		o.wrong("the lease's JSON form: %v", err)
	}
	o.secretIn("the reference", string(data))
	if state := o.state(ref.Sandbox); state != emulator.StateStarted && !o.lied {
		o.wrong("L7: leased %s, which is %q", ref.Sandbox, state)
	}
}

// judgeIdle checks that nothing of ours runs that the host began and that it says nothing of.
func (o *oracle) judgeIdle(report *IdleReport) {
	if report == nil || !report.Idle || o.lied || o.lost {
		return
	}
	for _, id := range o.world.server.Sandboxes() {
		if state := o.state(id); id != o.world.bystander && state == emulator.StateStarted {
			o.wrong("I1: said to be idle, and sandbox %s is %q", id, state)
		}
	}
}

// judgeCommand checks what a result says.
func (o *oracle) judgeCommand(c *commandClaim, err error) {
	var e *Error
	if errors.As(err, &e) && e.Dispatched != c.Dispatched {
		o.wrong("E3: the error says dispatched %q, and the result %q: %v", e.Dispatched, c.Dispatched, err)
	}
	stopped := err != nil && c.ExitCode > 128 // by a stop, perhaps one whose answer was lost
	if c.Exited && c.ExitCode != c.wantExit && !stopped || !c.Exited && c.ExitCode != -1 {
		o.wrong("E3: exited %t with code %d, and the command's is %d", c.Exited, c.ExitCode, c.wantExit)
	}
	if err == nil && !(c.Complete && c.Exited) {
		o.wrong("E3: no error, and complete %t, exited %t", c.Complete, c.Exited)
	}
	if c.Dispatched == DispatchedYes && !(c.StopConfirmed && !c.Exited) && !o.lost && !o.ends {
		o.within("the start of a command that was dispatched", func() bool { return len(processes(c.starts)) > 0 || c.StopConfirmed })
	}
	pids := processes(c.starts)
	if c.StopConfirmed && len(pids) > 0 && !processEnded(pids[0]) {
		o.within("the end of a command whose stop was confirmed", func() bool { return processEnded(pids[0]) })
	}
	// A sandbox that ends kills its processes in any order, and so does a session that is deleted because nothing else could be
	// asked for: a command may see the end of an input that was cut off.
	deleted := c.Transport == TransportSession && !c.StopConfirmed
	cut := (o.lost || o.ends || deleted) && err != nil && c.StdinSize < c.stdin
	if c.Fidelity != FidelityDamaged && !cut {
		for _, stream := range []struct{ want, got []byte }{{c.wantOut, c.out}, {c.wantErrs, c.errs}} {
			if !bytes.HasPrefix(stream.want, stream.got) {
				o.wrong("E2: the output is not a beginning of what the command wrote: %s", difference(stream.want, stream.got))
			} else if err == nil && len(stream.got) != len(stream.want) {
				o.wrong("E2: complete with %d bytes, want %d", len(stream.got), len(stream.want))
			}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, c)
}

// judgeStarts looks, when all is over, how often commands were started.
func (o *oracle) judgeStarts() {
	for _, c := range o.kept {
		if n := len(processes(c.starts)); n > 1 || n > 0 && c.Dispatched == DispatchedNo {
			o.wrong("E1: dispatched %q, and started %d times", c.Dispatched, n)
		}
	}
}

// processes returns the processes that have left their id in a file.
func processes(file string) (pids []int) {
	data, _ := os.ReadFile(file)
	for _, word := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			panic(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// within waits for what must come to be so.
func (o *oracle) within(what string, ok func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			o.wrong("%s did not come", what)
			return
		}
	}
}

// scratch is what transfers and terminals have left so far, with a faulty network that has kept them from removing it.
func (o *oracle) scratch(workspace string) map[string]bool {
	left := make(map[string]bool)
	for _, dir := range []string{workspace, o.world.dir} {
		if dir == "" {
			continue
		}
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(d.Name(), archive.StagePrefix) {
				left[path] = true
			}
			return nil
		})
	}
	return left
}

// judgeScratch looks whether a transfer or a terminal has left anything beside what was there before.
func (o *oracle) judgeScratch(workspace string, before map[string]bool) {
	if o.lost || workspace == "" {
		return
	}
	o.within("F3: the removal of all scratch", func() bool { // a request that was delivered twice may still be at work
		left := o.scratch(workspace)
		maps.DeleteFunc(left, func(path string, _ bool) bool { return before[path] })
		return len(left) == 0
	})
}

// judgeWorld looks, when nothing is under way any more, at all that must hold whatever was asked for: creations are sent
// once, what is left is known to somebody, and what is not ours is as it was.
func (o *oracle) judgeWorld(known ...string) {
	w := o.world
	w.mu.Lock()
	for name, sent := range w.names {
		if sent > 1 && !o.limited {
			o.problems = append(o.problems, fmt.Sprintf("L2: %d creations of %s were sent", sent, name))
		}
	}
	for _, q := range w.touched {
		o.problems = append(o.problems, "L3: a foreign sandbox was touched: "+q)
	}
	w.mu.Unlock()
	if w.bystander != "" {
		if state := o.state(w.bystander); state != emulator.StateStarted {
			o.wrong("L3: the foreign sandbox is %q", state)
		}
	}
	if !o.lied {
		for _, id := range w.alive() {
			name := w.server.Sandbox(id).Name()
			if !slices.Contains(known, id) && !slices.Contains(known, name) {
				o.wrong("L2: sandbox %s (%s) is left, and nobody knows of it: %q", id, o.state(id), known)
			}
		}
	}
	o.secretIn("the log", string(w.logs.bytes()))
}

// settle has another host give back everything that is known, without faults, after which nothing of ours is left.
func (o *oracle) settle(ctx context.Context, next *provider, refs []LeaseRef, envelopes []CleanupEnvelope) {
	for _, ref := range refs {
		if receipt, err := next.Destroy(ctx, ref); err != nil || receipt.State != ReceiptDestroyed {
			o.wrong("Destroy() in the end = %+v, %v", receipt, err)
		}
	}
	for _, e := range envelopes {
		there := o.world.server.Sandbox(e.Name)
		observed, err := next.Inspect(ctx, e)
		if err == nil && observed.Observed == "" {
			o.wrong("L2: Inspect() = %+v without an id, nor an error", observed)
		}
		if err == nil {
			var receipt Receipt
			receipt, err = next.Cleanup(ctx, observed)
			o.judgeReceipt(observed.Observed, receipt, err)
		}
		if err != nil && (there != nil && o.there(there.ID()) || !errors.Is(err, ErrUncertain)) {
			o.wrong("L2: the envelope's sandbox cannot be cleaned up: %v", err)
		}
	}
	if left := o.world.alive(); len(left) > 0 && !o.lied {
		o.wrong("%d sandboxes are left in the end: %v", len(left), left)
	}
}
