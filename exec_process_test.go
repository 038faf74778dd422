package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
	"github.com/leasehold-go/leasehold/internal/script"
)

// gate is a file that a command waits for.
type gate struct{ file string }

func newGate(t *testing.T) gate { return gate{filepath.Join(t.TempDir(), "gate")} }

func (g gate) wait() string { return "until [ -e " + g.file + " ]; do sleep 0.01; done; " }

func (g gate) open(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(g.file, nil, 0o600); err != nil {
		t.Error(err)
	}
}

// started starts a command that must start.
func started(t *testing.T, ctx context.Context, l *Lease, cmd Command) *Process {
	t.Helper()
	p, err := l.Executor().Start(ctx, cmd.on(l))
	if err != nil {
		t.Fatalf("Start(%+v) = %v", cmd, err)
	}
	return p
}

// wantEnd waits for the process, which must end on its own.
func wantEnd(t *testing.T, p *Process, want Result) {
	t.Helper()
	got, err := p.Wait()
	if err != nil {
		t.Errorf("Wait() = %v", err)
	}
	if diff := cmp.Diff(want, got, ignoreTime); diff != "" {
		t.Errorf("Wait() mismatch (-want +got):\n%s", diff)
	}
}

func TestStartDeliversWhetherOrNotAnybodyWaits(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		g, out := newGate(t), make(arrivals, 8)
		p := started(t, t.Context(), l, Command{Script: "echo first; " + g.wait() + "echo second; exit 3", Stdout: out})
		out.want(t, "first\n")
		g.open(t)
		out.want(t, "second\n")
		want := finished(3, "", "").on(tr)
		want.StdoutSize = int64(len("first\nsecond\n"))
		wantEnd(t, p, want)
		wantEnd(t, p, want) // again
	})
}

func TestStartFailsLikeRun(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		_, err := l.Executor().Start(t.Context(), Command{})
		wantError(t, err, KindInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = l.Executor().Start(ctx, Command{Args: []string{"true"}}.on(l))
		if e := wantError(t, err, KindCanceled); e.Op != "start" {
			t.Errorf("Op = %q", e.Op)
		}
	})
}

func TestTheEndOfTheContextStopsAStartedCommand(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := started(t, ctx, l, Command{Script: "echo on; sleep 61"})
		cancel()
		got, err := p.Wait()
		wantError(t, err, KindCanceled)
		if !got.StopConfirmed {
			t.Errorf("got %+v, want a confirmed stop", got)
		}
	})
}

func TestSignalsReachTheCommand(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	out := make(arrivals, 8)
	p := started(t, t.Context(), l, Command{Script: "trap 'echo hup' HUP; trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done", Stdout: out})
	for _, step := range []struct{ line, signal string }{{"ready\n", "HUP"}, {"hup\n", "SIGINT"}} {
		out.want(t, step.line)
		if err := p.Signal(t.Context(), step.signal); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := p.Wait(); err != nil || got.ExitCode != 9 {
		t.Errorf("Wait() = %+v, %v; want exit 9", got, err)
	}
	if err := p.Signal(t.Context(), "HUP"); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal() = %v, want that it is done", err)
	}
	p = started(t, t.Context(), l, Command{Args: []string{"sleep", "60"}})
	for _, name := range []string{"; reboot", "", "SIG", "STERM", "int", "KILLL", "15"} {
		e := wantError(t, p.Signal(t.Context(), name), KindInvalid)
		if fieldsOf(e) != "name" || e.Dispatched != DispatchedNo || !strings.Contains(e.Message, strconv.Quote(name)+", and must be one of ABRT, ALRM, ") {
			t.Errorf("%+v does not name the signal %q, what is allowed, and that nothing was sent", e, name)
		}
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	_, _ = p.Wait()
}

// TestASignalThatIsRefusedIsNoEnd: the kill of a command that runs as another user fails.
func TestASignalThatIsRefusedIsNoEnd(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportJournal)
	p := started(t, t.Context(), l, Command{Script: "echo ready; sleep 61"})
	mark := p.x.transport.(*journalRun).journal.Mark
	reply := fmt.Sprintf("\n%[1]s refused - /tmp\n\npid 7 8\nstarted\n%[1]s o\n\n%[1]s e 0\n\n%[1]s . 0\n", mark)
	body, err := json.Marshal(map[string]any{"exitCode": 0, "result": reply})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	_, _ = p.Wait()
	r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/process/execute", Action: emulator.StatusAfter, Status: 200, Body: string(body), Count: -1})
	if err := p.Signal(t.Context(), "URG"); !errors.Is(err, ErrRefused) || errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal() = %v, want that it was refused", err)
	}
	r.wantHits(t)
	r.server.SetFaults()
	mustRun(t, l, Command{Script: "rm $TMPDIR/.leasehold-*/" + p.Ref().ID, Transport: TransportSession}, finished(0, "", ""))
	p.x.transport.(*journalRun).process.Store(&script.Process{ID: 1 << 30, Birth: "1"})
	if err := p.Kill(t.Context()); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Kill() = %v, want that a process is done which is not there", err)
	}
	p.x.transport.(*journalRun).process.Store(nil)
	wantError(t, p.Kill(t.Context()), KindUncertain)
}

func TestKill(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		out := make(arrivals, 1)
		p := started(t, t.Context(), l, Command{Script: "trap '' TERM INT; echo ready; sleep 61", Stdout: out})
		out.want(t, "ready\n")
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := p.Wait()
		if tr == TransportJournal && (err != nil || got.ExitCode != 137) || tr == TransportSession && !(errors.Is(err, ErrCanceled) && got.StopConfirmed) {
			t.Errorf("Wait() = %+v, %v", got, err)
		}
		if err := p.Kill(t.Context()); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Kill() = %v afterwards, want that it is done", err)
		}
	})
}

// TestKillThatIsNotConfirmed: the provider refuses the kill, and then what was left to itself is killed.
func TestKillThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		out := make(arrivals, 8)
		p := started(t, t.Context(), l, Command{Script: "echo ready; sleep 61", Stdout: out})
		out.want(t, "ready\n") // the host knows the process
		r.server.SetFaults(emulator.Fault{Path: "/toolbox/**", Action: emulator.StatusBefore, Status: 403, Body: structured(403, "Forbidden"), Count: -1})
		want := KindUncertain
		if tr == TransportJournal {
			want = KindAuth
		}
		wantError(t, p.Kill(t.Context()), want)
		r.server.SetFaults()
		if tr == TransportSession { // it is observed no more
			if got, err := p.Wait(); !errors.Is(err, ErrCanceled) || got.StopConfirmed {
				t.Errorf("Wait() = %+v, %v; want canceled, and no confirmed stop", got, err)
			}
		} else {
			p.Detach()
			_, _ = p.Wait()
		}
		if err := p.Kill(t.Context()); err != nil {
			t.Errorf("Kill() = %v, of a command that nobody observes and that runs", err)
		}
	})
}

// TestE4KillingWhatNeverBeganHarmsNobody kills a command that had no directory, whose session is another command's by then.
func TestE4KillingWhatNeverBeganHarmsNobody(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		p, err := l.Executor().Start(t.Context(), Command{Args: []string{"true"}, Dir: "no/such"}.on(l))
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Wait()
		wantError(t, err, KindNotFound)
		g := newGate(t)
		next := started(t, t.Context(), l, Command{Script: "echo ready; " + g.wait() + "exit 3"})
		if err := p.Kill(t.Context()); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Kill() = %v, want that it is done", err)
		}
		g.open(t)
		if got, err := next.Wait(); err != nil || got.ExitCode != 3 {
			t.Errorf("Wait() of the next command = %+v, %v; want exit 3", got, err)
		}
	})
}

func TestSignalAfterTheEndOfALease(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		wire, sent := countedWire(t)
		r := newRig(t, Config{Transport: wire}, emulator.Options{})
		l := r.acquired(t)
		p := started(t, t.Context(), l, Command{Script: "echo ready; sleep 61", Transport: tr})
		if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		_, _ = p.Wait()
		before := sent.Load()
		if err := p.Kill(t.Context()); !errors.Is(err, ErrClosed) && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Kill() = %v, of a command whose lease was given back", err)
		}
		if n := sent.Load() - before; n > 0 {
			t.Errorf("%d requests of a kill after the end of the lease", n)
		}
	})
}

// TestAnotherHostGoesOn detaches one provider, and attaches a second one to the same sandbox from the offsets reached.
func TestAnotherHostGoesOn(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		g, out := newGate(t), make(arrivals, 8)
		p := started(t, t.Context(), l, Command{Script: "printf 'one\ntwo\n'; echo err >&2; " + g.wait() + "echo three; echo more >&2; exit 5", Stdout: out, Timeout: time.Minute})
		out.want(t, "one\ntwo\n")
		stored, err := json.Marshal(p.Ref())
		if err != nil {
			t.Fatal(err)
		}
		p.Detach()
		if got, err := p.Wait(); !errors.Is(err, ErrCanceled) || got.Exited || got.StopConfirmed {
			t.Errorf("Wait() = %+v, %v; want to know nothing of its end", got, err)
		}

		second := rigProvider(t, r.server, Config{})
		t.Cleanup(func() {
			if err := second.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		other, err := second.Bind(l.Ref())
		if err != nil {
			t.Fatal(err)
		}
		ref, err := ParseCommandRef(stored)
		if err != nil {
			t.Fatal(err)
		}
		q, err := other.Executor().Attach(t.Context(), ref, Attachment{From: Offsets{Stdout: 4, Stderr: 2}})
		if err != nil {
			t.Fatal(err)
		}
		g.open(t)
		wantEnd(t, q, finished(5, "two\nthree\n", "r\nmore\n").on(tr))
		for _, l := range []*Lease{other, l} { // either goes on with other commands
			for range 2 {
				mustRun(t, l, Command{Args: []string{"echo", "next"}, Transport: tr}, finished(0, "next\n", ""))
			}
		}
	})
}

// TestTheOutputMayBeReadLater reads it from a pipe once Attach, or a Start whose reply was lost, has returned.
func TestTheOutputMayBeReadLater(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		read := func(in *io.PipeReader, out *io.PipeWriter, p *Process, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := p.Wait()
				out.CloseWithError(err)
			}()
			if got, err := io.ReadAll(in); err != nil || string(got) != "out\n" {
				t.Errorf("read %q, %v", got, err)
			}
		}
		in, out := io.Pipe()
		r.server.SetFaults(emulator.Fault{Path: dispatchPath(tr), Action: emulator.DropAfter})
		p, err := l.Executor().Start(t.Context(), Command{Script: "echo out", Stdout: out}.on(l))
		read(in, out, p, err)
		r.wantHits(t)
		in, out = io.Pipe()
		q, err := l.Executor().Attach(t.Context(), p.Ref(), Attachment{Stdout: out})
		read(in, out, q, err)
	})
}

// TestTheInputIsTakenBeforeTheOutputIsRead writes all of the input before it reads the output, which is there at once.
func TestTheInputIsTakenBeforeTheOutputIsRead(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		stdin, in := io.Pipe()
		out, stdout := io.Pipe()
		p, err := l.Executor().Start(t.Context(), Command{Script: "echo first; wc -c", Stdin: stdin, Stdout: stdout}.on(l))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(make([]byte, 300_000)); err != nil {
			t.Fatal(err)
		}
		in.Close()
		go func() {
			_, err := p.Wait()
			stdout.CloseWithError(err)
		}()
		if got, err := io.ReadAll(out); err != nil || string(got) != "first\n300000\n" {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

// TestE3AnExitIsHadAfterTheDeadline attaches when the command's time is over: to one that has ended, and to one that has not.
func TestE3AnExitIsHadAfterTheDeadline(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		alive := filepath.Join(t.TempDir(), "alive")
		p := started(t, t.Context(), l, Command{Script: "sleep 61 & echo $! >" + alive + "; echo out; exit 3", Timeout: time.Minute, Profiles: ProfilesNone})
		if _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		ref := p.Ref()
		ref.Deadline = time.Now().Add(-time.Hour).UTC()
		// What cannot be looked at now can be later: that is no time-out.
		r.server.SetFaults(emulator.Fault{Path: map[Transport]string{TransportJournal: executePath, TransportSession: logsPath}[tr], Action: emulator.StatusBefore, Status: 502})
		_, err := l.Executor().Attach(t.Context(), ref, Attachment{})
		wantError(t, err, KindUnavailable)
		r.wantHits(t)
		r.server.SetFaults()
		q, err := l.Executor().Attach(t.Context(), ref, Attachment{})
		if err != nil {
			t.Fatal(err)
		}
		wantEnd(t, q, finished(3, "out\n", "").on(tr))
		if got := q.Ref(); got != ref {
			t.Errorf("Ref() = %+v, want %+v", got, ref)
		}
		wantAlive(t, alive)

		p = started(t, t.Context(), l, Command{Script: "echo ready; sleep 62", Profiles: ProfilesNone})
		ref = p.Ref()
		p.Detach()
		_, _ = p.Wait()
		ref.Deadline = time.Now().Add(-time.Hour).UTC()
		if q, err = l.Executor().Attach(t.Context(), ref, Attachment{}); err != nil {
			t.Fatal(err)
		}
		got, err := q.Wait()
		wantError(t, err, KindTimeout)
		if !got.TimedOut || !got.StopConfirmed {
			t.Errorf("got %+v, want a timeout and a confirmed stop", got)
		}
	})
}

// TestE3AnExitThatProvesNothingIsHadAfterTheDeadline attaches, late or just in time, to a command that ended in time although the
// code that the daemon recorded may be the wrapper's own. The log, which tells, is slow.
func TestE3AnExitThatProvesNothingIsHadAfterTheDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		code  int
		fault bubbleFault // of the dispatch
	}{
		"the command's code is the one of a refusal": {script.RefusedStatus, nil},
		"the reference names the refused delivery":   {3, repeated},
	} {
		for when, left := range map[string]time.Duration{"late": -time.Hour, "just in time": 50 * time.Millisecond} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				dir := scratchRoot(t)
				synctest.Test(t, func(t *testing.T) {
					b := newBubbleRig(t, dir)
					b.box.fault = func(kind string, _ *http.Request) bubbleFault {
						switch kind {
						case "dispatch":
							return tt.fault
						case "snapshot":
							return propertyActions["slow"](20)
						}
						return nil
					}
					p, err := b.lease.Executor().Start(t.Context(), Command{Script: fmt.Sprint(": leaseholdcommand; echo out; exit ", tt.code), Transport: TransportSession})
					if err != nil {
						t.Fatal(err)
					}
					ref := p.Ref()
					wantEnd(t, p, finished(tt.code, "out\n", "").on(TransportSession))
					ref.Deadline = time.Now().Add(left).UTC()
					q, err := b.lease.Executor().Attach(t.Context(), ref, Attachment{})
					if err != nil {
						t.Fatal(err)
					}
					wantEnd(t, q, finished(tt.code, "out\n", "").on(TransportSession))
				})
			})
		}
	}
}

func attachError(t *testing.T, l *Lease, ref CommandRef, from Offsets) error {
	_, err := l.Executor().Attach(t.Context(), ref, Attachment{From: from})
	return err
}

// TestE3TheOutputOfWhatIsStoppedAfterTheDeadlineIsHad attaches late to a command that runs, by the delivery that waits behind it.
func TestE3TheOutputOfWhatIsStoppedAfterTheDeadlineIsHad(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportSession)
	r.server.SetFaults(emulator.Fault{Path: dispatchPath(TransportSession), Action: emulator.Duplicate})
	out := make(arrivals, 8)
	p := started(t, t.Context(), l, Command{Script: "echo out; sleep 61", Stdout: out})
	ref := p.Ref()
	out.want(t, "out\n")
	r.wantHits(t)
	p.Detach()
	_, _ = p.Wait()
	ref.Deadline = time.Now().Add(-time.Hour).UTC()
	q, err := l.Executor().Attach(t.Context(), ref, Attachment{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := q.Wait()
	wantError(t, err, KindTimeout)
	if !got.StopConfirmed || string(got.Stdout) != "out\n" {
		t.Errorf("got %+v, want a confirmed stop, and the output so far", got)
	}
}

func TestAttachIsForCommandsOfTheLease(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	p := started(t, t.Context(), l, Command{Args: []string{"true"}})
	ref := p.Ref()
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*CommandRef){
		"version":   func(r *CommandRef) { r.Version = 2 },
		"sandbox":   func(r *CommandRef) { r.Sandbox = "other" },
		"attempt":   func(r *CommandRef) { r.Attempt = "other" },
		"id":        func(r *CommandRef) { r.ID = "x; reboot" },
		"transport": func(r *CommandRef) { r.Transport = "" },
		"session":   func(r *CommandRef) { r.Session = "s" },
		"path":      func(r *CommandRef) { r.ID = "../" + r.ID[3:] },
		"upper":     func(r *CommandRef) { r.ID = strings.ToUpper(r.ID) },
		"no mark":   func(r *CommandRef) { r.Mark = "" },
	} {
		t.Run(name, func(t *testing.T) {
			r := ref
			change(&r)
			_, err := l.Executor().Attach(t.Context(), r, Attachment{})
			wantError(t, err, KindInvalid)
		})
	}
	foreign := ref
	foreign.Sandbox = "other"
	for want, err := range map[string]error{
		"Attachment.From":            attachError(t, l, ref, Offsets{Stderr: -1}),
		"CommandRef":                 attachError(t, l, foreign, Offsets{}),
		"CommandRef Attachment.From": attachError(t, l, foreign, Offsets{Stdout: -1}),
	} {
		if e := wantError(t, err, KindInvalid); fieldsOf(e) != want || e.Dispatched != DispatchedNo {
			t.Errorf("%v names %s, want %s, and nothing sent", e, fieldsOf(e), want)
		}
	}
	ref.ID = strings.Repeat("a", 26)
	_, err := l.Executor().Attach(t.Context(), ref, Attachment{})
	if e := wantError(t, err, KindNotFound); e.Dispatched != DispatchedYes {
		t.Errorf("dispatched %s, want yes: there is no reference to a command that was not", e.Dispatched)
	}
}

func TestGitOnTheNetworkHasATimeout(t *testing.T) {
	for args, want := range map[string]bool{
		"git push": true, "git -C /x -c a=b fetch --all": true, "/usr/bin/git clone u": true, "git ls-remote": true, "git --no-pager pull": true,
		"git remote update": true, "git submodule update": true, "git remote -v": false, "git status": false, "git commit -m push": false, "sh -c push": false, "git": false, "": false,
	} {
		if got := usesNetwork(strings.Fields(args)); got != want {
			t.Errorf("usesNetwork(%q) = %v, want %v", args, got, want)
		}
	}
}

// TestE2AJournalIsExactWhateverTheSize takes more than a reply, more than a download's buffer, and any bytes.
func TestE2AJournalIsExactWhateverTheSize(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportJournal)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	content := bytes.Repeat(every, 256<<10) // 64 MiB
	file := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	same := func() (*comparison, *comparison) { return &comparison{want: content}, &comparison{want: content} }
	out, errs := same()
	got, err := l.Executor().Run(t.Context(), Command{Script: fmt.Sprintf("cat %s; cat %s >&2", file, file), Stdout: out, Stderr: errs, Transport: TransportJournal})
	if err != nil || !got.Complete || out.at != len(content) || errs.at != len(content) || out.differs || errs.differs {
		t.Errorf("Run() = %+v, %v; %d and %d bytes, different: %v, %v", got, err, out.at, errs.at, out.differs, errs.differs)
	}
}

// comparison compares what is written with what is wanted.
type comparison struct {
	want    []byte
	at      int
	differs bool
}

func (c *comparison) Write(p []byte) (int, error) {
	end := min(c.at+len(p), len(c.want))
	c.differs = c.differs || !bytes.Equal(p, c.want[c.at:end])
	c.at += len(p)
	return len(p), nil
}

// leftTransport is a transport whose observation ends the command's life and learns of it before anybody else does.
type leftTransport struct {
	transport
	x     *execution
	cause error
	stops int
}

func (l *leftTransport) prepare(context.Context) error { return nil }

func (l *leftTransport) dispatch(context.Context) error {
	l.x.dispatched = DispatchedYes
	return nil
}

func (l *leftTransport) observe(life, _ context.Context) error {
	for range 1000 { // which hear of it in any order, and what would stop the command is one of them
		context.AfterFunc(life, func() {})
	}
	go l.x.abort(l.cause)
	for life.Err() == nil { // to wait for it would take longer
	}
	return life.Err()
}

func (l *leftTransport) stop(context.Context) bool {
	l.stops++
	return true
}

func (l *leftTransport) settle() error { return nil }

// TestWhatIsLeftIsNotStopped, even if the observation ends before all have heard why.
func TestWhatIsLeftIsNotStopped(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	for cause, want := range map[error]int{errDetached: 0, errProviderClosed: 0, errKilled: 1, context.Canceled: 1} {
		for range 30 {
			tr := &leftTransport{cause: cause}
			tr.x = &execution{l: l, op: "run", stdout: newOutput(nil, 0), stderr: newOutput(nil, 0)}
			if err := tr.x.attempt(t.Context(), tr); err == nil {
				t.Errorf("%v: no error", cause)
			}
			if tr.stops != want {
				t.Fatalf("%v: stopped %d times, want %d", cause, tr.stops, want)
			}
		}
	}
}
