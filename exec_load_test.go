package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestLoadManyShortCommands runs them over many leases, each command with a result of its own.
func TestLoadManyShortCommands(t *testing.T) {
	leases, commands := 10, 8 // each
	if long() {
		leases, commands = 50, 20
	}
	eachTransport(t, func(t *testing.T, tr Transport) {
		r := newRig(t, Config{}, emulator.Options{})
		dir := t.TempDir()
		var all sync.WaitGroup
		for i := range leases {
			l := r.acquired(t)
			all.Go(func() {
				for j := range commands {
					code, text := (i+j)%256, fmt.Sprintf("%d %d\n", i, j)
					cmd := Command{Script: fmt.Sprintf("echo %[1]d %[2]d; echo %[1]d %[2]d >&2; echo >>%[3]s/%[1]d-%[2]d; exit %[4]d", i, j, dir, code), Profiles: ProfilesNone, Transport: tr}
					mustRun(t, l, cmd, finished(code, text, text))
				}
			})
		}
		all.Wait()
		starts, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(starts) != leases*commands {
			t.Errorf("%d commands were started, %v; want %d", len(starts), err, leases*commands)
		}
		for _, file := range starts {
			if info, err := os.Stat(file); err != nil || info.Size() != 1 {
				t.Errorf("%s was not started once: %v, %v", filepath.Base(file), info.Size(), err)
			}
		}
	})
}

// stalling is a writer that takes nothing until something has happened, and counts what it then gets.
type stalling struct {
	until func()
	once  sync.Once
	check func(p []byte)
	size  int64
	heap  uint64 // the most there was
}

func (s *stalling) Write(p []byte) (int, error) {
	s.once.Do(s.until)
	s.check(p)
	if before := s.size; before>>22 != (before+int64(len(p)))>>22 { // each 4 MiB
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		s.heap = max(s.heap, stats.HeapAlloc)
	}
	s.size += int64(len(p))
	return len(p), nil
}

// TestLoadALargeOutputIntoASlowWriter: the writer takes nothing until the command has ended, which it does all the same,
// and then everything arrives, through little memory.
func TestLoadALargeOutputIntoASlowWriter(t *testing.T) {
	const bound = 48 << 20
	eachTransport(t, func(t *testing.T, tr Transport) {
		size := int64(64 << 20)
		switch {
		case tr == TransportSession:
			size = 8 << 20 // of lines; the log takes its time, and the daemon keeps a snapshot in memory
		case long():
			size = 2 << 30
		}
		_, l := execRig(t, tr)
		ended := filepath.Join(t.TempDir(), "ended")
		line := strings.Repeat("0123456789abcdef", 64)[:1023] + "\n"
		at := int64(0)
		out := &stalling{
			until: func() {
				eventually(t, "the command ends while nobody takes its output", func() bool { _, err := os.Stat(ended); return err == nil })
			},
			check: func(p []byte) {
				for len(p) > 0 {
					from := int(at % int64(len(line)))
					n := min(len(p), len(line)-from)
					if string(p[:n]) != line[from:from+n] {
						t.Errorf("byte %d and those that follow are wrong", at)
					}
					at, p = at+int64(n), p[n:]
				}
			},
		}
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		cmd := Command{Script: fmt.Sprintf("yes %s | head -c %d; : >%s", line[:len(line)-1], size, ended), Stdout: out, Profiles: ProfilesNone}
		got, err := l.Executor().Run(t.Context(), cmd.on(l))
		if err != nil || !got.Complete || got.ExitCode != 0 || out.size != size || got.StdoutSize != size {
			t.Errorf("Run() = %+v, %v; %d bytes arrived, want %d", got, err, out.size, size)
		}
		grown := int64(out.heap) - int64(before.HeapAlloc)
		t.Logf("%d MiB: the heap grew by %.1f MiB at most", size>>20, float64(grown)/(1<<20))
		if grown > bound && tr == TransportJournal {
			t.Errorf("the heap grew by %d bytes for an output of %d, want at most %d", grown, size, bound)
		}
	})
}

// TestLoadAWriterThatFailsInTheMiddle: what prints for ever is stopped.
func TestLoadAWriterThatFailsInTheMiddle(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		full := errors.New("full")
		size := 0
		out := writerFunc(func(p []byte) (int, error) {
			if size += len(p); size > 1<<20 {
				return 0, full
			}
			return len(p), nil
		})
		alive := filepath.Join(t.TempDir(), "pid")
		got, err := runFails(t, t.Context(), l, Command{Script: "echo $$ >" + alive + "; while :; do echo 0123456789; done", Stdout: out, Profiles: ProfilesNone}, KindIO, DispatchedYes)
		if !errors.Is(err, full) || !got.StopConfirmed || got.Complete {
			t.Errorf("Run() = %+v, %v; want the writer's error, a confirmed stop, and incomplete", got, err)
		}
		wantDead(t, alive)
	})
}

// TestLoadAReaderThatNeverEnds: the command ends when it likes, and the reader is let go.
func TestLoadAReaderThatNeverEnds(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr Transport) {
		_, l := execRig(t, tr)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		release := make(chan struct{})
		defer close(release)
		line := []byte(strings.Repeat("x", 63) + "\n")
		read := 0
		endless := readerFunc(func(p []byte) (int, error) {
			if read > 8<<20 { // whoever takes so much takes everything
				<-release
				return 0, io.EOF
			}
			n := copy(p, line)
			read += n
			return n, nil
		})
		got, err := l.Executor().Run(ctx, Command{Script: "head -c 100000 | wc -c | tr -d ' '; exit 3", Stdin: endless}.on(l))
		if err != nil || got.ExitCode != 3 || string(got.Stdout) != "100000\n" || got.StdinSize == 0 || got.StdinSize > 4<<20 {
			t.Errorf("Run() = %+v, %v; want exit 3 after 100,000 bytes, and few more taken", got, err)
		}
	})
}

// TestLoadLargeCommands: what is large runs, or is refused before anything is sent, with the limit.
func TestLoadLargeCommands(t *testing.T) {
	size := 2 << 20
	if long() {
		size = 8 << 20
	}
	comment := strings.Repeat("# "+strings.Repeat("x", 97)+"\n", size/100)
	manyVariables := make(map[string]string)
	for i := range 40 {
		manyVariables[fmt.Sprintf("V%d", i)] = strings.Repeat("v", size/40)
	}
	for name, tt := range fewer(map[string]struct {
		cmd   Command
		input int
		out   string
		runs  map[Transport]bool
	}{
		"script":       {Command{Script: comment + "echo end; exit 5"}, 0, "end\n", map[Transport]bool{TransportJournal: true, TransportSession: true}},
		"argument":     {Command{Args: []string{"sh", "-c", "echo ${#1}; exit 5", "sh", strings.Repeat("a", size)}}, 0, "", nil},
		"arguments":    {Command{Args: append([]string{"sh", "-c", "echo $#; exit 5"}, strings.Split(strings.Repeat("abcdefg ", size/8), " ")...)}, 0, "", nil},
		"one variable": {Command{Script: "echo ${#A}; exit 5", Env: map[string]string{"A": strings.Repeat("a", size)}}, 0, "", nil},
		"variables":    {Command{Script: "echo ${#V7}; exit 5", Env: manyVariables}, 0, "", nil},
		"input":        {Command{Script: "wc -c | tr -d ' '; exit 5"}, size, fmt.Sprintln(size), map[Transport]bool{TransportJournal: true, TransportSession: true}},
	}) {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, tr Transport) {
				t.Parallel()
				r, l := execRig(t, tr)
				cmd := tt.cmd
				cmd.Profiles = ProfilesNone
				if tt.input > 0 {
					cmd.Stdin = bytes.NewReader(make([]byte, tt.input))
				}
				if tt.runs[tr] {
					want := finished(5, tt.out, "")
					mustRun(t, l, cmd, want)
					return
				}
				_, err := runFails(t, t.Context(), l, cmd, KindInvalid, DispatchedNo)
				if !regexp.MustCompile(`\d{5,}`).MatchString(err.Message) {
					t.Errorf("the message %q does not name the limit", err.Message)
				}
				r.wantRequests(t)
			})
		})
	}
}

// TestLoadASilentHour counts what a command costs that says nothing for an hour.
func TestLoadASilentHour(t *testing.T) {
	hour := time.Hour
	if raced && !long() {
		hour = 10 * time.Minute
	}
	dir := scratchRoot(t)
	for tr, most := range map[Transport]int{
		TransportJournal: int(hour/waitTime) + 10,       // each waits in the sandbox
		TransportSession: 2*int(hour/pollTime) + 2*60*3, // a status and a snapshot a second, and a look at the shell now and then
	} {
		t.Run(string(tr), func(t *testing.T) {
			dir := filepath.Join(dir, string(tr))
			synctest.Test(t, func(t *testing.T) {
				b := newBubbleRig(t, dir)
				b.box.steps = []time.Duration{0, hour}
				var begun atomic.Bool
				gate := filepath.Join(dir, "gate")
				if tr == TransportJournal {
					b.box.fault = silent(t, b.box, hour, gate, &begun)
				}
				wait := ""
				if tr == TransportJournal {
					wait = "until [ -e '" + gate + "' ]; do /bin/sleep 0.01; done; "
				}
				out := writerFunc(func(p []byte) (int, error) {
					begun.Store(begun.Load() || bytes.IndexByte(p, '\n') >= 0) // a line may come in pieces
					return len(p), nil
				})
				b.server.ResetRequests()
				began := time.Now()
				got, err := b.lease.Executor().Run(t.Context(), Command{Script: ": " + b.box.word + "; echo begun; " + wait + "echo ended; exit 3", Stdout: out, Transport: tr, Profiles: ProfilesNone})
				took, requests := time.Since(began), len(b.server.Requests())
				if err != nil || !got.Complete || got.ExitCode != 3 || got.StdoutSize != int64(len("begun\nended\n")) {
					t.Errorf("Run() = %+v, %v; want exit 3 and 12 bytes", got, err)
				}
				wantBetween(t, "the hour", took, hour, hour+2*waitTime)
				t.Logf("%d requests in a silent hour", requests)
				if requests > most {
					t.Errorf("%d requests in an hour, want at most %d", requests, most)
				}
			})
		})
	}
}

// silent makes waiting in the sandbox a matter of virtual time: after the first such request once the host knows that the
// command has begun, which shows what is answered when nothing happens, others get the same answer after the time that they
// would have waited. After the hour the command goes on. The first one's ticks take no time, since its shell has a sleep that
// does not before the hour is over, and so those before it may be over before the command says anything.
func silent(t *testing.T, box *bubbleBox, hour time.Duration, gate string, begun *atomic.Bool) func(string, *http.Request) bubbleFault {
	if _, err := exec.LookPath("dash"); err == nil {
		box.shell = "dash" // which waits by sleep
	}
	bin := filepath.Join(box.dir, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	sleep := "#!/bin/sh\nif [ -e '" + gate + "' ]; then exec /bin/sleep \"$@\"; fi\n"
	if err := os.WriteFile(filepath.Join(bin, "sleep"), []byte(sleep), 0o700); err != nil {
		t.Fatal(err)
	}
	box.path = bin
	var mu sync.Mutex
	var nothing *httptest.ResponseRecorder
	began := time.Now()
	return func(kind string, _ *http.Request) bubbleFault {
		if kind != "execute" {
			return nil
		}
		return func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case time.Since(began) >= hour:
				if err := os.WriteFile(gate, nil, 0o600); err != nil {
					panic(err)
				}
				next(w, r)
				return
			case !begun.Load():
				next(w, r)
				return
			case nothing == nil:
				nothing = httptest.NewRecorder()
				next(nothing, r)
			}
			select {
			case <-time.After(waitTime):
				pass(w, nothing, nothing.Body.Len())
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
	}
}

// TestE6AnIdleLeaseOfEitherTransportMakesNoRequest looks for ten minutes after a command.
func TestE6AnIdleLeaseOfEitherTransportMakesNoRequest(t *testing.T) {
	root := scratchRoot(t)
	for _, tr := range []Transport{TransportDefault, TransportJournal, TransportSession} {
		t.Run("transport "+string(tr), func(t *testing.T) {
			dir := filepath.Join(root, "idle"+string(tr))
			synctest.Test(t, func(t *testing.T) {
				b := newBubbleRig(t, dir)
				for range 3 {
					if got, err := b.lease.Executor().Run(t.Context(), Command{Args: []string{"true"}, Transport: tr}); err != nil {
						t.Fatalf("Run() = %+v, %v", got, err)
					}
				}
				time.Sleep(time.Second) // virtual
				b.server.ResetRequests()
				time.Sleep(10 * time.Minute) // virtual
				synctest.Wait()
				b.wantRequests(t)
			})
		})
	}
}
