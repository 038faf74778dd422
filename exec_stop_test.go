package leasehold

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestE5AStopMissesNobody stops a command whose group consists, but for the command itself, of processes that each start
// the next one and end, and which a look at the process table finds by chance only.
func TestE5AStopMissesNobody(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		dir := t.TempDir()
		hop, hops := filepath.Join(dir, "hop"), filepath.Join(dir, "hops")
		if err := os.WriteFile(hop, []byte("trap '' TERM\necho >>"+hops+"\n[ -e "+dir+"/end ] || sh "+hop+" &\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
				t.Error(err)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := started(t, ctx, l, Command{Script: "sh " + hop + " & sleep 62", Profiles: ProfilesNone})
		size := func() int64 {
			info, err := os.Stat(hops)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		eventually(t, "they hop", func() bool { return size() > 10 })
		cancel()
		got, err := p.Wait()
		wantError(t, err, KindCanceled)
		if !got.StopConfirmed {
			t.Errorf("got %+v, want a confirmed stop", got)
		}
		after := size()
		mustRun(t, l, Command{Args: []string{"sleep", "0.2"}, Profiles: ProfilesNone}, finished(0, "", ""))
		if now := size(); now != after {
			t.Errorf("the stop was confirmed after %d hops, and then there were %d", after, now)
		}
	})
}

// TestE5ACancellationBeginsNothing ends the context while profiles are read.
func TestE5ACancellationBeginsNothing(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		dir := t.TempDir()
		reading, ran := filepath.Join(dir, "reading"), filepath.Join(dir, "ran")
		mustRun(t, l, Command{Profiles: ProfilesNone, Script: "echo ': >" + reading + "; sleep 61' >\"$HOME/.profile\""}, finished(0, "", ""))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := started(t, ctx, l, Command{Script: ": >" + ran})
		eventually(t, "profiles are read", func() bool { _, err := os.Stat(reading); return err == nil })
		cancel()
		got, err := p.Wait()
		wantError(t, err, KindCanceled)
		if _, err := os.Stat(ran); err == nil || got.Exited || got.ExitCode != -1 || !got.StopConfirmed {
			t.Errorf("got %+v (the command ran: %v), want a confirmed stop of what had not begun", got, err == nil)
		}
	})
}

// TestE5AnEmptyLogProvesNothing stops a command whose log, which is to tell its process, found no room.
func TestE5AnEmptyLogProvesNothing(t *testing.T) {
	t.Parallel()
	var filling atomic.Bool
	var writes atomic.Int64
	full := func() bool { return filling.Load() && writes.Add(1) > 1 } // there is room for the dispatch
	r := newRig(t, Config{}, emulator.Options{Quirks: emulator.Quirks{DiskFull: full}})
	l := r.acquired(t)
	transportOf.Store(l, TransportSession)
	filling.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	orphan := filepath.Join(t.TempDir(), "orphan")
	p := started(t, ctx, l, Command{Script: "(sh -c 'echo $$ >" + orphan + ".new; mv " + orphan + ".new " + orphan + "; exec sleep 620' >/dev/null 2>&1 </dev/null &); sleep 62"})
	eventually(t, "the command has begun", func() bool { _, err := os.Stat(orphan); return err == nil })
	cancel()
	got, err := p.Wait()
	wantError(t, err, KindCanceled)
	if got.StopConfirmed {
		t.Errorf("got %+v, want a stop that is not confirmed: who looks after what the command has started?", got)
	}
	if p, err := os.FindProcess(processIn(t, orphan)); err == nil {
		_ = p.Kill()
	}
}

// TestE5TheTimeoutIsNotTheOutputs has a writer that takes longer than a command may that has ended in time.
func TestE5TheTimeoutIsNotTheOutputs(t *testing.T) {
	root := scratchRoot(t)
	eachTransport(t, func(t *testing.T, tr Transport) {
		for name, attached := range map[string]bool{"run": false, "attached": true} {
			dir := filepath.Join(root, string(tr)+name)
			synctest.Test(t, func(t *testing.T) {
				b := newBubbleRig(t, dir)
				child := filepath.Join(dir, "child")
				cmd := Command{
					Script:  ": leaseholdcommand; sleep 600 >/dev/null 2>&1 & echo $! >" + child + "; yes | head -c 300000; exit 3",
					Timeout: time.Minute, Transport: tr, Profiles: ProfilesNone,
				}
				var size int64
				slow := writerFunc(func(p []byte) (int, error) {
					if size == 0 {
						time.Sleep(3 * time.Minute) // virtual
					}
					size += int64(len(p))
					return len(p), nil
				})
				if cmd.Stdout = slow; attached {
					cmd.Stdout = nil
				}
				p, err := b.lease.Executor().Start(t.Context(), cmd)
				if err != nil {
					t.Fatal(err)
				}
				if attached {
					ref := p.Ref()
					p.Detach()
					_, _ = p.Wait()
					b.box.steps = []time.Duration{0, time.Minute / 2} // what runs ends after the attachment
					if p, err = b.lease.Executor().Attach(t.Context(), ref, Attachment{Stdout: slow}); err != nil {
						t.Fatal(err)
					}
				}
				got, err := p.Wait()
				if err != nil || !got.Complete || got.ExitCode != 3 || got.TimedOut || size != 300000 {
					t.Errorf("Wait() = %+v, %v with %d bytes; want exit 3 and all of the output", got, err, size)
				}
				wantAlive(t, child)
			})
		}
	})
}

// TestE1NotStartedIsNoProofOfASecondDelivery has the sandbox stop under a dispatch, which the proxy then delivers again.
func TestE1NotStartedIsNoProofOfASecondDelivery(t *testing.T) {
	root := scratchRoot(t)
	eachTransport(t, func(t *testing.T, tr Transport) {
		dir := filepath.Join(root, string(tr))
		synctest.Test(t, func(t *testing.T) {
			b := newBubbleRig(t, dir)
			b.box.fault = func(kind string, _ *http.Request) bubbleFault {
				if kind != "dispatch" {
					return nil
				}
				return func(_ http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
					next(httptest.NewRecorder(), r)
					time.Sleep(replayTime) // virtual
					sandbox := b.lease.Ref().Sandbox
					if err := b.client.Stop(context.Background(), sandbox); err != nil {
						t.Error(err)
					}
					b.server.Sandbox(sandbox).Settle(time.Minute)
					panic(http.ErrAbortHandler)
				}
			}
			b.server.SetFaults(emulator.Fault{Path: dispatchPath(tr), Action: emulator.Duplicate})
			starts := counter{filepath.Join(dir, "starts")}
			cmd := Command{Script: ": leaseholdcommand; " + starts.script(), Transport: tr, Profiles: ProfilesNone}
			runFails(t, t.Context(), b.lease, cmd, KindNotRunning, DispatchedUnknown)
			starts.want(t, 1)
			b.wantHits(t)
		})
	})
}

// TestE5AStopEndsWhatAnEndedCommandLeft ends the context while a writer keeps back the end of a command that has ended, but
// not without leaving a child.
func TestE5AStopEndsWhatAnEndedCommandLeft(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		alive := filepath.Join(t.TempDir(), "pid")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := writerFunc(func(p []byte) (int, error) {
			cancel()
			eventually(t, "the child is dead", func() bool {
				data, err := os.ReadFile(alive)
				pid, notYet := strconv.Atoi(strings.TrimSpace(string(data)))
				return err == nil && notYet == nil && processEnded(pid)
			})
			return len(p), nil
		})
		got, err := l.Executor().Run(ctx, Command{Script: "sleep 63 & echo $! >" + alive + "; echo x", Stdout: out, Profiles: ProfilesNone}.on(l))
		if !errors.Is(err, ErrCanceled) || !got.StopConfirmed {
			t.Errorf("Run() = %+v, %v; want canceled, and a confirmed stop", got, err)
		}
		wantDead(t, alive)
	})
}

// TestE5AStopIsNoEndOfTheInput stops a command that does not mind SIGTERM, or whose child does not, while it waits for more of
// its input.
func TestE5AStopIsNoEndOfTheInput(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	const reads = `trap "" TERM; read line; echo >"$begun"; cat >/dev/null; echo >"$ended"`
	for name, c := range map[string]struct {
		script string
		stop   func(cancel func(), in *io.PipeWriter)
	}{
		"end of the context": {reads, func(cancel func(), _ *io.PipeWriter) { cancel() }},
		"failing reader":     {reads, func(_ func(), in *io.PipeWriter) { in.CloseWithError(broken) }},
		"child":              {"sh -c '" + reads + "'; echo after", func(cancel func(), _ *io.PipeWriter) { cancel() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachTransport(t, func(t *testing.T, tr Transport) {
				t.Parallel()
				_, l := execRig(t, tr)
				dir := t.TempDir()
				begun, ended := filepath.Join(dir, "begun"), filepath.Join(dir, "ended")
				exists := func(file string) bool { _, err := os.Stat(file); return err == nil }
				in, w := io.Pipe()
				defer w.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p := started(t, ctx, l, Command{Script: c.script, Stdin: in, Profiles: ProfilesNone, Env: map[string]string{"begun": begun, "ended": ended}})
				if _, err := io.WriteString(w, "line\n"); err != nil {
					t.Fatal(err)
				}
				eventually(t, "it has begun", func() bool { return exists(begun) })
				c.stop(cancel, w)
				got, err := p.Wait()
				if err == nil || exists(ended) {
					t.Errorf("Wait() = %+v, %v; want an error, and that the command did not go on (it did: %t)", got, err, exists(ended))
				}
			})
		})
	}
}

func TestAttachBeyondTheEndIsInvalid(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		for name, from := range map[string]Offsets{"stdout": {Stdout: 4}, "stderr": {Stderr: 1}, "both": {Stdout: 1 << 40, Stderr: 1 << 40}} {
			t.Run(name, func(t *testing.T) {
				g := newGate(t)
				p := started(t, t.Context(), l, Command{Script: g.wait() + "printf one", Profiles: ProfilesNone})
				q, err := l.Executor().Attach(t.Context(), p.Ref(), Attachment{From: from})
				if err != nil {
					t.Fatal(err)
				}
				g.open(t)
				_, err = q.Wait()
				if e := wantError(t, err, KindInvalid); e.Dispatched != DispatchedYes {
					t.Errorf("dispatched %s, want yes", e.Dispatched)
				}
				if _, err := p.Wait(); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestTheInputOfALostDispatchCounts keeps the reply to a dispatch back until the command's timeout.
func TestTheInputOfALostDispatchCounts(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr Transport) {
		r, l := execRig(t, tr)
		mustRun(t, l, Command{Args: []string{"true"}, Profiles: ProfilesNone}, finished(0, "", ""))
		r.server.SetFaults(emulator.Fault{Path: dispatchPath(tr), Action: emulator.DropAfter})
		cmd := Command{Script: "cat; sleep 64", Stdin: strings.NewReader("12345678"), Timeout: 5 * time.Second, Profiles: ProfilesNone}
		got, _ := runFails(t, t.Context(), l, cmd, KindTimeout, DispatchedYes)
		if got.StdinSize != 8 || !got.StopConfirmed {
			t.Errorf("got %+v, want 8 bytes of input and a confirmed stop", got)
		}
		r.wantHits(t)
	})
}

func TestAReadThatEndsItsGoroutineIsNoEnd(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		in := readerFunc(func([]byte) (int, error) { runtime.Goexit(); return 0, nil })
		runFails(t, t.Context(), l, Command{Args: []string{"cat"}, Stdin: in}, KindIO, DispatchedNo)
	})
}
