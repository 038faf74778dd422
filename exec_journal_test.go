package leasehold

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestAShortCommandTakesOneRequest(t *testing.T) {
	r, l := execRig(t, TransportDefault)
	mustRun(t, l, Command{Args: []string{"true"}, Transport: TransportJournal}, finished(0, "", "")) // resolves the lease
	r.atLast(t, func() bool {
		got, err := l.Executor().Run(t.Context(), Command{Script: "echo out; echo err >&2; exit 3", Transport: TransportDefault})
		one := r.took("POST /toolbox/*/process/execute")
		if err != nil || (got.Delivery == DeliveryReply) != one || got.Transport != TransportJournal || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" {
			t.Errorf("Run() = %+v, %v after %q", got, err, r.requests())
		}
		return one
	})
}

// TestE3FaultsOfAJournalsRequests breaks each request of a command that ends on its own. The result must be the whole one.
func TestE3FaultsOfAJournalsRequests(t *testing.T) {
	t.Parallel()
	execute := "/toolbox/*/process/execute"
	for _, nth := range []int{1, 2, 3} {
		for name, f := range map[string]emulator.Fault{
			"reply lost":       {Action: emulator.DropAfter},
			"delivered twice":  {Action: emulator.Duplicate},
			"500 after":        {Action: emulator.StatusAfter, Status: 500},
			"502 after":        {Action: emulator.StatusAfter, Status: 502},
			"429 after":        {Action: emulator.StatusAfter, Status: 429},
			"truncated":        {Action: emulator.TruncateBody, Bytes: 40},
			"reset":            {Action: emulator.ResetReply, Bytes: 40},
			"not JSON":         {Action: emulator.StatusAfter, Status: 200, Body: "<html>"},
			"another reply":    {Action: emulator.StatusAfter, Status: 200, Body: `{"exitCode":0,"result":"ok"}`},
			"lost before":      {Action: emulator.DropBefore},
			"502 before":       {Action: emulator.StatusBefore, Status: 502},
			"408 before":       {Action: emulator.StatusBefore, Status: 408},
			"late":             {Action: emulator.DelayRequest, Delay: 200 * time.Millisecond},
			"download lost":    {Path: "/toolbox/*/files/download", Action: emulator.DropBefore, Count: 2},
			"download reset":   {Path: "/toolbox/*/files/download", Action: emulator.ResetReply, Bytes: 1000},
			"download refused": {Path: "/toolbox/*/files/download", Action: emulator.StatusBefore, Status: 502},
		} {
			if nth == 1 && (strings.HasSuffix(name, "before") || name == "429 after") || nth > 1 && strings.HasPrefix(name, "download") {
				continue // a dispatch that did not arrive is another test's
			}
			t.Run(fmt.Sprint(name, " ", nth), func(t *testing.T) {
				t.Parallel()
				r, l := execRig(t, TransportJournal)
				if f.Path == "" {
					f.Path = execute
				}
				f.Nth = nth
				r.server.SetFaults(f)
				line := strings.Repeat("\x00\xff", 40000)
				// Each piece waits for the one before it to arrive, and so needs a request of its own.
				var out strings.Builder
				oneCame, lineCame := newGate(t), newGate(t)
				stdout := writerFunc(func(p []byte) (int, error) {
					n, err := out.Write(p)
					if out.Len() >= len("one") {
						oneCame.open(t)
					}
					if out.Len() >= len("one"+line) {
						lineCame.open(t)
					}
					return n, err
				})
				c := newCounter(t)
				script := "printf one; " + oneCame.wait() + "printf '" + strings.Repeat(`\000\377`, 40000) + "'; echo two >&2; " + lineCame.wait() + "printf three; " + c.script()
				want := "one" + line + "threeran\n"
				got, err := l.Executor().Run(t.Context(), Command{Script: script, Stdout: stdout, Transport: TransportJournal, Timeout: 2 * time.Minute})
				if err != nil || !got.Complete || got.ExitCode != 3 || out.String() != want || string(got.Stderr) != "two\n" || got.StdoutSize != int64(len(want)) {
					t.Errorf("Run() = %+v, %v; stdout of %d bytes, right: %v", got, err, out.Len(), out.String() == want)
				}
				c.want(t, 1)
				r.wantHits(t)
			})
		}
	}
}

// TestWithoutRoomForAJournalASessionRuns makes the directory of journals impossible.
func TestWithoutRoomForAJournalASessionRuns(t *testing.T) {
	r, l := execRig(t, TransportDefault)
	var dir string
	if got, err := l.Executor().Run(t.Context(), Command{Script: `printf %s "${TMPDIR:-/tmp}/.leasehold-$(id -u)"`, Transport: TransportSession}); err != nil {
		t.Fatal(err)
	} else {
		dir = string(got.Stdout)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	c := newCounter(t)
	got, err := l.Executor().Run(t.Context(), Command{Script: c.script(), Transport: TransportDefault})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(finished(3, "ran\n", "").on(TransportSession), got, ignoreTime); diff != "" {
		t.Errorf("Run() mismatch (-want +got):\n%s", diff)
	}
	c.want(t, 1)
	runFails(t, t.Context(), l, Command{Args: []string{"true"}, Transport: TransportJournal}, KindUnavailable, DispatchedNo)
	r.wantHits(t)
}

func TestE4JournalsRunConcurrently(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	const n = 64
	meet := newMeeting(t, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			script := fmt.Sprintf("%s; echo out %d; echo err %d >&2; exit %d", meet.script(i), i, i, i)
			mustRun(t, l, Command{Script: script, Profiles: ProfilesNone, Timeout: 2 * time.Minute}, finished(i, fmt.Sprintf("out %d\n", i), fmt.Sprintf("err %d\n", i)))
		})
	}
	meet.await(t)
	wg.Wait()
}

func TestE5AJournalsTimeoutStopsAll(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportJournal)
	alive := filepath.Join(t.TempDir(), "pid")
	r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/process/execute", Nth: 2, Action: emulator.DropAfter}) // the stop's reply
	script := "trap '' TERM; sleep 62 & echo $! >" + alive + "; echo ready; wait; sleep 63"
	got, _ := runFails(t, t.Context(), l, Command{Script: script, Timeout: 5 * time.Second}, KindTimeout, DispatchedYes)
	if !got.TimedOut || !got.StopConfirmed || !got.Exited || got.ExitCode != 137 || string(got.Stdout) != "ready\n" {
		t.Errorf("got %+v, want a timeout, a confirmed stop, its exit and the output", got)
	}
	wantDead(t, alive)
	r.wantHits(t)
}

func TestE3WhatHappensUnderAJournal(t *testing.T) {
	t.Parallel()
	t.Run("the recorder is killed", func(t *testing.T) {
		_, l := execRig(t, TransportJournal)
		g := newGate(t)
		run := startRunning(t, t.Context(), l, Command{Script: g.wait() + "kill -9 $PPID; sleep 0.2"})
		g.open(t)
		run.wait(t, KindUncertain)
		wantNoExit(t, run)
	})
	t.Run("the sandbox is stopped", func(t *testing.T) {
		r, l := execRig(t, TransportJournal)
		run := startRunning(t, t.Context(), l, Command{Script: "sleep 60"})
		ref := l.Ref()
		if err := r.client.Stop(t.Context(), ref.Sandbox); err != nil {
			t.Fatal(err)
		}
		run.wait(t, KindNotRunning)
		wantNoExit(t, run)
		if _, err := r.Resume(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		mustRun(t, l, Command{Args: []string{"echo", "next"}}, finished(0, "next\n", ""))
	})
	t.Run("the sandbox is restarted", func(t *testing.T) {
		r, l := execRig(t, TransportJournal)
		out := make(arrivals, 8)
		p := started(t, t.Context(), l, Command{Script: "echo begun; sleep 60", Stdout: out})
		out.want(t, "begun\n") // all of it, before what copies it is stopped
		p.Detach()
		_, _ = p.Wait()
		if err := r.client.Stop(t.Context(), l.Ref().Sandbox); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Resume(t.Context(), l.Ref()); err != nil {
			t.Fatal(err)
		}
		q, err := l.Executor().Attach(t.Context(), p.Ref(), Attachment{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.Wait()
		wantError(t, err, KindUncertain)
		if got.Exited || got.ExitCode != -1 || string(got.Stdout) != "begun\n" {
			t.Errorf("got %+v, want no exit, and the output", got)
		}
	})
	t.Run("the lease is given back", func(t *testing.T) {
		r, l := execRig(t, TransportJournal)
		run := startRunning(t, t.Context(), l, Command{Script: "sleep 60"})
		if _, err := r.Release(t.Context(), l.Ref(), ReleaseOptions{}); err != nil {
			t.Fatal(err)
		}
		run.wait(t, KindClosed)
		runFails(t, t.Context(), l, Command{Args: []string{"true"}}, KindClosed, DispatchedNo)
	})
	t.Run("the journal is removed", func(t *testing.T) {
		_, l := execRig(t, TransportJournal)
		alive := filepath.Join(t.TempDir(), "alive")
		out, known := untilKnown(t)
		got, _ := runFails(t, t.Context(), l, Command{Script: "echo $$ >" + alive + "; " + known + "rm -rf $TMPDIR/.leasehold-*; sleep 60", Stdout: out}, KindUncertain, DispatchedYes)
		if got.Exited || got.ExitCode != -1 || !got.StopConfirmed {
			t.Errorf("got %+v, want no exit, and that it does not go on", got)
		}
		wantDead(t, alive)
	})
}

// TestRecoveryMovesLittleTwice breaks the transfer of output that is not text, five times. Each break loses what the
// sockets held, which does not grow with the output.
func TestRecoveryMovesLittleTwice(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportJournal)
	var faults []emulator.Fault
	for range 5 {
		faults = append(faults, emulator.Fault{Path: "/toolbox/*/files/download", Action: emulator.ResetReply, Bytes: 12 << 20})
	}
	r.server.SetFaults(faults...)
	var moved, size int64
	out := writerFunc(func(p []byte) (int, error) { size += int64(len(p)); return len(p), nil })
	got, err := l.Executor().Run(t.Context(), Command{Script: "head -c 134217728 /dev/zero", Stdout: out, Transport: TransportJournal})
	for _, q := range r.server.Requests() {
		moved += q.Sent
	}
	if err != nil || !got.Complete || size != 128<<20 || moved > size*11/10 {
		t.Errorf("Run() = %+v, %v; %d bytes moved for %d", got, err, moved, size)
	}
	r.wantHits(t)
}

// TestE1ACommandThatRemovesItsJournalStartsOnce: what the exit leaves behind is not taken for a journal that never was.
func TestE1ACommandThatRemovesItsJournalStartsOnce(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]string{"removed": "rm -rf $TMPDIR/.leasehold-*/*", "emptied": "for f in $TMPDIR/.leasehold-*/*; do : >$f; done"} {
		for _, exit := range []string{"exit 3", "sleep 1; exit 3"} {
			t.Run(name+", "+exit, func(t *testing.T) {
				t.Parallel()
				_, l := execRig(t, TransportDefault)
				c := newCounter(t)
				got, err := l.Executor().Run(t.Context(), Command{Script: "echo x >>" + c.file + "; " + harm + "; " + exit, Transport: TransportDefault, Timeout: 10 * time.Second})
				c.want(t, 1)
				if got.Dispatched == DispatchedNo || err == nil && (!got.Exited || got.ExitCode != 3) {
					t.Errorf("Run() = %+v, %v for a command that ran", got, err)
				}
			})
		}
	}
}

// TestE2OutputIsAPipe: what opens its output again by name does not cut off what is there.
func TestE2OutputIsAPipe(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		mustRun(t, l, Command{Script: "echo one; echo two >/dev/stdout; echo three; echo e1 >&2; echo e2 >/dev/stderr"}, finished(0, "one\ntwo\nthree\n", "e1\ne2\n"))
		mustRun(t, l, Command{Script: "echo one; echo two | tee /dev/stderr /dev/stdout; echo three"}, finished(0, "one\ntwo\ntwo\nthree\n", "two\n"))
	})
}

// untilKnown returns where the output of a command is to go, and what its script does until the host has got some of it, and so
// knows its process.
func untilKnown(t *testing.T) (out io.Writer, script string) {
	proceed := filepath.Join(t.TempDir(), "proceed")
	out = writerFunc(func(p []byte) (int, error) { return len(p), os.WriteFile(proceed, nil, 0o600) })
	return out, "echo x; until [ -e " + proceed + " ]; do sleep 0.05; done; "
}

// TestE5AStopNeedsNoRecord: a command whose process is known is stopped, and not taken for one that never started.
func TestE5AStopNeedsNoRecord(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	dir := t.TempDir()
	removed, alive := filepath.Join(dir, "removed"), filepath.Join(dir, "alive")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, known := untilKnown(t)
	type outcome struct {
		got Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		got, err := l.Executor().Run(ctx, Command{
			Script: "echo $$ >" + alive + "; " + known + "rm -rf $TMPDIR/.leasehold-*/*; : >" + removed + "; sleep 60",
			Stdout: out, Transport: TransportJournal,
		})
		done <- outcome{got, err}
	}()
	eventually(t, "the record is removed", func() bool { _, err := os.Stat(removed); return err == nil })
	cancel()
	if o := <-done; o.err == nil || o.got.Dispatched != DispatchedYes || !o.got.StopConfirmed || o.got.Exited {
		t.Errorf("Run() = %+v, %v; want dispatched, a confirmed stop and no exit", o.got, o.err)
	}
	wantDead(t, alive)
}

// TestE2WhatComesAfterTheEndIsNotOutput: children in the background neither hold up the result nor die, and what they write
// is not part of it.
func TestE2WhatComesAfterTheEndIsNotOutput(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportJournal)
	g, lived := newGate(t), filepath.Join(t.TempDir(), "lived")
	script := "(" + g.wait() + "echo late; echo late >&2; : >" + lived + ") & echo now; echo now >&2; exit 3"
	mustRun(t, l, Command{Script: script, Profiles: ProfilesNone}, finished(3, "now\n", "now\n"))
	g.open(t)
	eventually(t, "the child survives its output's end", func() bool { _, err := os.Stat(lived); return err == nil })
}

func TestE3AStreamWithoutItsEndIsNotComplete(t *testing.T) {
	_, l := execRig(t, TransportJournal)
	got, _ := runFails(t, t.Context(), l, Command{Script: "echo x; rm $TMPDIR/.leasehold-*/*.o; exit 3"}, KindUncertain, DispatchedYes)
	if !got.Exited || got.ExitCode != 3 || got.Complete {
		t.Errorf("got %+v, want exit 3 and no complete output", got)
	}
}

// TestE5WhatTheRecordBecomesDoesNotHoldUpRun: nobody waits at a FIFO, or reads a directory.
func TestE5WhatTheRecordBecomesDoesNotHoldUpRun(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{"FIFO": "mkfifo", "directory": "mkdir"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, l := execRig(t, TransportJournal)
			alive := filepath.Join(t.TempDir(), "alive")
			out, known := untilKnown(t)
			script := "echo $$ >" + alive + "; " + known + "for f in $TMPDIR/.leasehold-*/*.o; do f=${f%.o}; rm $f; " + change + " $f; done; sleep 60"
			got, _ := runFails(t, t.Context(), l, Command{Script: script, Timeout: time.Minute, Stdout: out}, KindUncertain, DispatchedYes)
			if got.Exited || !got.StopConfirmed {
				t.Errorf("got %+v, want no exit and a confirmed stop", got)
			}
			wantDead(t, alive)
		})
	}
}

// TestE3WhatNobodyBeginsIsUncertain kills whoever has claimed a command before it can begin, as lack of room for processes does.
func TestE3WhatNobodyBeginsIsUncertain(t *testing.T) {
	t.Parallel()
	dir := scratchRoot(t)
	made, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := made.ModTime().Add(-10 * time.Minute) // too old for one that begins, and too young for the sweep beside the dispatch
	synctest.Test(t, func(t *testing.T) {
		b := newBubbleRig(t, dir)
		b.box.path = filepath.Join(dir, "bin")
		if err := os.Mkdir(b.box.path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.box.path, "bash"), []byte("#!/bin/sh\nkill -9 $PPID\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		b.box.fault = func(string, *http.Request) bubbleFault {
			records, err := filepath.Glob(filepath.Join(dir, "tmp/.leasehold-*/*"))
			if err != nil {
				t.Error(err)
			}
			for _, record := range records {
				_ = os.Chtimes(record, old, old)
			}
			return nil
		}
		// Bash is the shell for profiles.
		got, err := b.lease.Executor().Run(t.Context(), Command{Args: []string{"true"}, Transport: TransportJournal})
		if e := wantError(t, err, KindUncertain); e.Dispatched != DispatchedUnknown || !got.StopConfirmed || got.Exited {
			t.Errorf("Run() = %+v, %v; want dispatched unknown, and that it will not begin", got, err)
		}
	})
}

// TestE1ARefusalInPlaceOfTheReplyIsSettledFirst: the command ran, whatever something on the way says.
func TestE1ARefusalInPlaceOfTheReplyIsSettledFirst(t *testing.T) {
	for _, status := range []int{401, 403, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			r, l := execRig(t, TransportJournal)
			r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/process/execute", Action: emulator.StatusAfter, Status: status})
			c := newCounter(t)
			mustRun(t, l, Command{Script: c.script()}, finished(3, "ran\n", ""))
			c.want(t, 1)
			r.wantHits(t)
		})
	}
}

// TestE1ARemovedDirectoryProvesNothing: the reply is lost, and the record with all others gone, when the command is settled.
func TestE1ARemovedDirectoryProvesNothing(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"first command": 0, "later command": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := execRig(t, TransportJournal)
			for range before {
				mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
			}
			r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/process/execute", Action: emulator.DropAfter})
			c := newCounter(t)
			runFails(t, t.Context(), l, Command{Script: "rm -rf $TMPDIR/.leasehold-*; " + c.script(), Timeout: time.Minute}, KindUncertain, DispatchedUnknown)
			c.want(t, 1)
			r.wantHits(t)
		})
	}
}

// TestE1NoRoomIsNoProof: a dispatch that found no room says nothing of its copies.
func TestE1NoRoomIsNoProof(t *testing.T) {
	r, _ := execRig(t, TransportJournal)
	var count atomic.Int32
	wire := &http.Transport{}
	t.Cleanup(wire.CloseIdleConnections)
	provider := rigProvider(t, r.server, Config{Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
		reply, err := wire.RoundTrip(q)
		if err != nil || !strings.HasSuffix(q.URL.Path, "/process/execute") || count.Add(1) > 1 {
			return reply, err
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err != nil {
			return nil, err
		}
		body = bytes.Replace(body, []byte(" run "), []byte(" unwritable "), 1)
		reply.Body, reply.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		reply.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return reply, nil
	})})
	t.Cleanup(func() {
		if err := provider.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	l, err := provider.Acquire(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	count.Store(0)
	c := newCounter(t)
	got, err := l.Executor().Run(t.Context(), Command{Script: c.script(), Profiles: ProfilesNone})
	if e := wantError(t, err, KindUncertain); e.Retryable || e.Dispatched != DispatchedYes || got.ExitCode != 3 {
		t.Errorf("Run() = %+v, %+v; want to be told that it was started", got, e)
	}
	c.want(t, 1)
}

// TestAJournalThatCouldNotBeRemovedIsRemovedLater: nobody knows whether a dispatch that failed came to it.
func TestAJournalThatCouldNotBeRemovedIsRemovedLater(t *testing.T) {
	t.Parallel()
	r, l := execRig(t, TransportJournal)
	taken := func() int {
		l.journals.mu.Lock()
		defer l.journals.mu.Unlock()
		return len(l.journals.taken)
	}
	for range maxTaken {
		l.journals.done(rand.Text(), 1)
	}
	r.server.SetFaults(emulator.Fault{Path: "/toolbox/*/process/execute", Action: emulator.StatusBefore, Status: 503, Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = l.Executor().Run(ctx, Command{Args: []string{"true"}}.on(l))
	r.wantHits(t)
	if got := taken(); got != maxTaken {
		t.Errorf("%d journals are to be removed, want %d", got, maxTaken)
	}
	r.server.SetFaults()
	mustRun(t, l, Command{Args: []string{"true"}}, finished(0, "", ""))
	if got := taken(); got != 1 {
		t.Errorf("%d journals are to be removed, want the last one", got)
	}
}

func TestAttachBeyondTheEnd(t *testing.T) {
	t.Parallel()
	_, l := execRig(t, TransportJournal)
	for _, from := range []Offsets{{Stdout: 5}, {Stderr: 1}, {Stdout: 100}, {Stdout: -1}} {
		p := started(t, t.Context(), l, Command{Script: "echo out; " + "sleep 1"})
		ref := p.Ref()
		p.Detach()
		_, _ = p.Wait()
		q, err := l.Executor().Attach(t.Context(), ref, Attachment{From: from})
		if err == nil {
			_, err = q.Wait()
		}
		wantError(t, err, KindInvalid)
		if q, err = l.Executor().Attach(t.Context(), ref, Attachment{From: Offsets{Stdout: 4}}); err != nil {
			t.Errorf("Attach() at the end = %v", err)
		} else if got, err := q.Wait(); err != nil || got.StdoutSize != 0 || !got.Complete {
			t.Errorf("Wait() = %+v, %v; want the exit and no output", got, err)
		}
	}
}

// TestAJournalNeedsNoWritableRoot runs a command that sees the whole file system read-only. Its journal is kept outside.
func TestAJournalNeedsNoWritableRoot(t *testing.T) {
	bwrap, err := exec.LookPath("bwrap")
	if err == nil {
		err = exec.Command(bwrap, "--ro-bind", "/", "/", "true").Run()
	}
	if err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_ALL") == "1" {
			t.Fatalf("bwrap does not work here: %v", err)
		}
		t.Skipf("bwrap does not work here: %v", err)
	}
	_, l := execRig(t, TransportJournal)
	script := "cat; echo err >&2; echo again >/dev/stderr; : >$TMPDIR/written; exit 3"
	got, err := l.Executor().Run(t.Context(), Command{
		Args: []string{"bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--", "sh", "-c", script}, Stdin: strings.NewReader("in\n"), Transport: TransportJournal,
	})
	if err != nil || got.ExitCode == 0 || string(got.Stdout) != "in\n" || !strings.HasPrefix(string(got.Stderr), "err\nagain\n") || !strings.Contains(string(got.Stderr), "written") {
		t.Errorf("Run() = %+v %q %q, %v; want the input back, both messages, and a refused write", got, got.Stdout, got.Stderr, err)
	}
}
