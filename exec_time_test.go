package leasehold

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// scripted is a toolbox in which nothing runs: a test writes the log and the exit of the one command itself, in virtual
// time, and may replace the answer to any request.
type scripted struct {
	began time.Time

	mu     sync.Mutex
	mark   string
	text   string // of the last dispatch
	log    []byte
	exit   *int
	events []string // "<virtual time> <request>"

	// Replacements; nil means the faithful answer.
	onStatus, onLogs, onDelete, onDispatch, onList, onExecute func(w http.ResponseWriter, r *http.Request, s *scripted)
	onFollow                                                  func(ctx context.Context, c *websocket.Conn, s *scripted)
	onConnect                                                 func(r *http.Request)
}

// newScripted returns a lease on it. Both end with the test, which must be in a bubble.
func newScripted(t *testing.T, s *scripted) *Lease {
	t.Helper()
	server, err := emulator.Start(emulator.Options{InMemory: true, Middleware: func(http.Handler) http.Handler { return s }})
	if err != nil {
		t.Fatal(err)
	}
	p := rigProvider(t, server, Config{})
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	s.began = time.Now()
	l := newLease(p, LeaseRef{Sandbox: "box", Workspace: "/work"})
	l.box = p.client.Toolbox(&daytona.Sandbox{ID: "box", ToolboxURL: strings.TrimSuffix(server.URL(), "/api") + "/toolbox"})
	return l
}

var markPattern = regexp.MustCompile(`printf '%s\\n' '(~lh\w+)''(\w+)a'`)

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := strings.TrimPrefix(r.URL.Path, "/toolbox/box/process/session")
	what := r.Method
	switch {
	case strings.HasSuffix(at, "/logs") && r.URL.Query().Has("follow"):
		what = "follow"
	case strings.HasSuffix(at, "/logs"):
		what = "snapshot"
	case strings.Contains(at, "/command/"):
		what = "status"
	case strings.HasSuffix(at, "/exec"):
		what = "dispatch"
	case strings.HasPrefix(r.URL.Path, "/api/"):
		what = "sandbox"
	case strings.HasSuffix(at, "/process/execute"):
		what = "execute"
	case r.Method == http.MethodGet && strings.HasPrefix(at, "/leasehold-"):
		what = "list"
	}
	s.mu.Lock()
	s.events = append(s.events, fmt.Sprint(time.Since(s.began), " ", what))
	s.mu.Unlock()
	switch what {
	case "sandbox":
		w.WriteHeader(http.StatusBadGateway)
	case "dispatch":
		var request struct{ Command string }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			panic(err)
		}
		found := markPattern.FindStringSubmatch(request.Command)
		if found != nil { // it is no fence
			s.mu.Lock()
			s.mark, s.text = found[1]+found[2], request.Command
			s.mu.Unlock()
		}
		if s.onDispatch != nil {
			s.onDispatch(w, r, s)
			return
		}
		s.took(w)
	case "list":
		if s.onList == nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		s.onList(w, r, s)
	case "execute":
		if s.onExecute == nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		s.onExecute(w, r, s)
	case "status":
		if s.onStatus != nil {
			s.onStatus(w, r, s)
			return
		}
		s.status(w)
	case "snapshot":
		if s.onLogs != nil {
			s.onLogs(w, r, s)
			return
		}
		_, _ = w.Write(s.content())
	case "follow":
		if s.onConnect != nil {
			s.onConnect(r)
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		ctx := c.CloseRead(r.Context())
		if s.onFollow == nil {
			<-ctx.Done()
			return
		}
		s.onFollow(ctx, c, s)
	case http.MethodDelete:
		if s.onDelete != nil {
			s.onDelete(w, r, s)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

// took is the daemon's answer to a dispatch.
func (s *scripted) took(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write([]byte(`{"cmdId":"cmd"}`))
}

// list answers with the session's list, in which the dispatch has these ids.
func (s *scripted) list(w http.ResponseWriter, r *http.Request, ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	commands := []map[string]any{}
	for _, id := range ids {
		commands = append(commands, map[string]any{"id": id, "command": s.text})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"sessionId": path.Base(r.URL.Path), "commands": commands})
}

// brokenPipe answers a dispatch as the daemon does when the session's shell is dead.
func brokenPipe(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = w.Write([]byte(`{"statusCode":500,"message":"failed to execute command: write |1: broken pipe","timestamp":"0001-01-01T00:00:00Z","path":""}`))
}

// say answers looks at a process, the last word from then on.
func say(what ...string) func(w http.ResponseWriter, _ *http.Request, _ *scripted) {
	n := 0
	return func(w http.ResponseWriter, _ *http.Request, _ *scripted) {
		word := what[min(n, len(what)-1)]
		n++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"exitCode":0,"result":"%s\n"}`, word)
	}
}

func (s *scripted) status(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"id": "cmd", "command": "", "exitCode": s.exit})
}

func (s *scripted) content() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]byte(nil), s.log...)
}

// write appends lines to the log: "o:" or "e:" and the content, in which @ stands for the mark.
func (s *scripted) write(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range lines {
		marker := "\x01\x01\x01"
		if line[0] == 'e' {
			marker = "\x02\x02\x02"
		}
		s.log = append(s.log, marker+strings.ReplaceAll(line[2:], "@", s.mark)+"\n"...)
	}
}

// begin and end are what the wrapper writes.
func (s *scripted) begin() { s.write("o:@a", "o:@s") }

func (s *scripted) end(code int) {
	s.write("o:@o", fmt.Sprintf("o:@o:%d", code), "e:@e", fmt.Sprintf("e:@e:%d", code))
}

// record is what the daemon does a moment later.
func (s *scripted) record(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit = &code
}

// at returns the times of one kind of request.
func (s *scripted) at(what string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var times []time.Duration
	for _, e := range s.events {
		when, kind, _ := strings.Cut(e, " ")
		if kind == what {
			d, err := time.ParseDuration(when)
			if err != nil {
				panic(err)
			}
			times = append(times, d)
		}
	}
	return times
}

// send delivers the log as it is now over a socket.
func (s *scripted) send(ctx context.Context, c *websocket.Conn) {
	_ = c.Write(ctx, websocket.MessageBinary, s.content())
}

func closeCleanly(_ context.Context, c *websocket.Conn, _ *scripted) {
	_ = c.Close(websocket.StatusNormalClosure, "")
}

// run runs a command in the scripted toolbox, while play writes its log in virtual time.
func (s *scripted) run(t *testing.T, l *Lease, cmd Command, play func()) (Result, error) {
	t.Helper()
	cmd.Args, cmd.Profiles, cmd.Transport = []string{"true"}, ProfilesNone, TransportSession
	var wg sync.WaitGroup
	defer wg.Wait()
	if play != nil {
		wg.Go(func() {
			for s.marked() == "" {
				time.Sleep(time.Millisecond) // virtual
			}
			play()
		})
	}
	return l.Executor().Run(t.Context(), cmd)
}

func (s *scripted) marked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark
}

func wantFinished(t *testing.T, got Result, err error, want Result) {
	t.Helper()
	if err != nil {
		t.Errorf("Run() = %v", err)
	}
	if diff := cmp.Diff(want.on(TransportSession), got, ignoreTime); diff != "" {
		t.Errorf("result mismatch (-want +got):\n%s", diff)
	}
}

func wantBetween(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: %v, want %v to %v", what, got, low, high)
	}
}

func TestASilentSocketIsGivenUpForPolling(t *testing.T) {
	for name, s := range map[string]*scripted{
		"silent":             {},
		"never connects":     {onConnect: func(r *http.Request) { <-r.Context().Done() }},
		"silent after bytes": {onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) { s.send(ctx, c); <-ctx.Done() }},
		"late data": {onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) {
			time.Sleep(silenceTime + time.Second/2)
			s.send(context.WithoutCancel(ctx), c)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newScripted(t, s)
				got, err := s.run(t, l, Command{}, func() {
					s.begin()
					s.write("o:one")
					time.Sleep(20 * time.Second)
					s.write("e:two", "o:three")
					s.end(4)
				})
				wantFinished(t, got, err, finished(4, "one\nthree\n", "two\n"))
				wantBetween(t, "duration", got.Duration, 20*time.Second, 21*time.Second)
				if sockets := s.at("follow"); len(sockets) != 1 {
					t.Errorf("sockets at %v, want one", sockets)
				}
			})
		})
	}
}

func TestAClosedSocketIsOpenedOnceMoreAndThenPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onFollow: closeCleanly}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() {
			s.begin()
			time.Sleep(time.Hour)
			s.write("o:late")
			s.record(0)
			s.end(0)
		})
		wantFinished(t, got, err, finished(0, "late\n", ""))
		wantBetween(t, "duration of a silent hour", got.Duration, time.Hour, time.Hour+2*time.Second)
		if n := len(s.at("follow")); n != 2 {
			t.Errorf("%d sockets, want 2", n)
		}
		snapshots := s.at("snapshot")
		for i := 2; i < len(snapshots); i++ { // the first is the glance, before the sockets
			if gap := snapshots[i] - snapshots[i-1]; gap < pollTime {
				t.Fatalf("snapshots %v apart, want at least %v", gap, pollTime)
			}
		}
		if n := len(snapshots); n < 3500 || n > 3605 {
			t.Errorf("%d snapshots in an hour, want one a second", n)
		}
	})
}

func TestTheFirstReadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		s := &scripted{
			onLogs: func(w http.ResponseWriter, r *http.Request, s *scripted) {
				if first {
					first = false
					<-r.Context().Done()
				}
			},
			onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) { s.send(ctx, c); <-ctx.Done() },
		}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() { s.begin(); s.write("o:x"); s.end(0) })
		wantFinished(t, got, err, finished(0, "x\n", ""))
		wantBetween(t, "duration", got.Duration, glanceTime, glanceTime+20*time.Millisecond)
	})
}

func TestEarlyReadsDoNotWaitForTheSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{} // the socket stays open and silent, as it does once in three hundred times
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() {
			s.begin()
			time.Sleep(150 * time.Millisecond)
			s.write("o:x")
			s.end(0)
			s.record(0)
		})
		wantFinished(t, got, err, finished(0, "x\n", ""))
		wantBetween(t, "duration", got.Duration, firstLook+175*time.Millisecond, firstLook+180*time.Millisecond)
		var steps []time.Duration
		for _, at := range s.at("status") {
			steps = append(steps, (at - s.at("follow")[0]).Round(5*time.Millisecond))
		}
		if diff := cmp.Diff([]time.Duration{25 * time.Millisecond, 75 * time.Millisecond, 175 * time.Millisecond}, steps); diff != "" {
			t.Errorf("status reads after the connection (-want +got):\n%s", diff)
		}
	})
}

func TestAFinishedCommandNeedsNoSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onLogs: func(w http.ResponseWriter, r *http.Request, s *scripted) {
			s.begin()
			s.write("e:x")
			s.end(9)
			_, _ = w.Write(s.content())
		}}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, nil)
		wantFinished(t, got, err, finished(9, "", "x\n"))
		if n := len(s.at("dispatch")) + len(s.at("snapshot")); n != 2 || len(s.events) != 3 {
			t.Errorf("requests %v, want a session, a dispatch and a snapshot", s.events)
		}
	})
}

func TestAShortSnapshotTakesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short := 0
		s := &scripted{
			onLogs: func(w http.ResponseWriter, r *http.Request, s *scripted) {
				content := s.content()
				if short++; short < 5 {
					content = content[:len(content)/3]
				}
				_, _ = w.Write(content)
			},
			onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) {
				time.Sleep(time.Second)
				s.send(ctx, c)
				_ = c.Close(websocket.StatusNormalClosure, "")
			},
		}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() {
			s.begin()
			s.write("o:one", "o:two", "o:three")
			time.Sleep(8 * time.Second)
			s.write("o:four")
			s.end(0)
			s.record(0)
		})
		wantFinished(t, got, err, finished(0, "one\ntwo\nthree\nfour\n", ""))
	})
}

func TestEachPollHasItsOwnBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		s := &scripted{onFollow: closeCleanly, onStatus: func(w http.ResponseWriter, r *http.Request, s *scripted) {
			if asked.Add(1) <= 3 {
				<-r.Context().Done()
				return
			}
			s.status(w)
		}}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() { s.begin(); time.Sleep(time.Minute); s.end(0) })
		wantFinished(t, got, err, finished(0, "", ""))
		wantBetween(t, "duration", got.Duration, time.Minute, time.Minute+readTime+time.Second)
	})
}

func TestE3ACommandLostFromSightIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := func(w http.ResponseWriter, _ *http.Request, _ *scripted) { w.WriteHeader(http.StatusBadGateway) }
		s := &scripted{onFollow: closeCleanly, onStatus: dead, onLogs: dead, onDelete: dead}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, nil)
		if e := failed("", err); e == nil || e.Kind != KindUncertain || e.Dispatched != DispatchedYes || got.Exited || got.ExitCode != -1 || got.StopConfirmed {
			t.Errorf("Run() = %+v, %v; want uncertain, dispatched, neither exit nor stop confirmed", got, err)
		}
		wantBetween(t, "duration", got.Duration, blindTime, blindTime+2*pollTime+deleteTime)
	})
}

func TestE5TheTimeoutReturnsEvenIfNothingAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := func(_ http.ResponseWriter, r *http.Request, _ *scripted) { <-r.Context().Done() }
		s := &scripted{onStatus: stuck, onLogs: stuck, onDelete: stuck, onConnect: func(r *http.Request) { <-r.Context().Done() }}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{Timeout: 40 * time.Second}, nil)
		if e := failed("", err); e == nil || e.Kind != KindTimeout || !got.TimedOut || got.StopConfirmed || got.Exited {
			t.Errorf("Run() = %+v, %v; want a timeout without a confirmed stop", got, err)
		}
		wantBetween(t, "duration", got.Duration, 40*time.Second, 40*time.Second+overTime+deleteTime)
	})
}

func TestE5ABlockedWriterDoesNotDelayTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onExecute: say("alive", "gone"), onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) { s.send(ctx, c); <-ctx.Done() }}
		l := newScripted(t, s)
		blocked := writerFunc(func(p []byte) (int, error) { time.Sleep(time.Minute); return len(p), nil })
		got, err := s.run(t, l, Command{Timeout: 10 * time.Second, Stdout: blocked}, func() { s.write("o:@a", "o:@g:78:9", "o:@s", "o:x") })
		if e := failed("", err); e == nil || e.Kind != KindTimeout || !got.StopConfirmed {
			t.Errorf("Run() = %+v, %v; want a timeout and a confirmed stop", got, err)
		}
		wantBetween(t, "the stop", s.at(http.MethodDelete)[0], 10*time.Second, 10*time.Second+100*time.Millisecond)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestE6AnIdleLeaseMakesNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) { s.send(ctx, c); <-ctx.Done() }}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() { s.begin(); s.end(0); s.record(0) })
		wantFinished(t, got, err, finished(0, "", ""))
		synctest.Wait()
		before := len(s.events)
		time.Sleep(10 * time.Minute) // virtual
		synctest.Wait()
		if diff := cmp.Diff([]string{}, s.events[before:]); diff != "" {
			t.Errorf("requests of an idle lease (-want +got):\n%s", diff)
		}
	})
}

func TestAnExitUnderASilentSocketIsNoticed(t *testing.T) {
	for name, s := range map[string]*scripted{
		"silent":         {},
		"never connects": {onConnect: func(r *http.Request) { <-r.Context().Done() }},
		"silent after bytes": {onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) {
			time.Sleep(time.Second)
			s.send(ctx, c)
			<-ctx.Done()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newScripted(t, s)
				got, err := s.run(t, l, Command{}, func() {
					s.begin()
					time.Sleep(3 * time.Second)
					s.write("o:x")
					s.end(0)
					s.record(0)
				})
				wantFinished(t, got, err, finished(0, "x\n", ""))
				wantBetween(t, "duration", got.Duration, 3*time.Second, 6*time.Second)
				if n := len(s.at("status")); n > 9 {
					t.Errorf("%d status reads in 3 s, want few", n)
				}
			})
		})
	}
}

func TestTheFirstReadEndsWithTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onLogs: func(_ http.ResponseWriter, r *http.Request, _ *scripted) { <-r.Context().Done() }}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{Timeout: 50 * time.Millisecond}, nil)
		if e := failed("", err); e == nil || e.Kind != KindTimeout || got.StopConfirmed {
			t.Errorf("Run() = %+v, %v; want a timeout, and no confirmed stop without the log", got, err)
		}
		// The look whether the command has ended has a read of its own, and so has the stop.
		wantBetween(t, "duration", got.Duration, 50*time.Millisecond, 50*time.Millisecond+overTime+glanceTime+50*time.Millisecond)
	})
}

func TestEachConnectionHasItsEarlyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connections := 0
		s := &scripted{onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) {
			if connections++; connections == 1 {
				time.Sleep(380 * time.Millisecond)
				_ = c.Close(websocket.StatusNormalClosure, "")
				return
			}
			<-ctx.Done()
		}}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() {
			s.begin()
			time.Sleep(500 * time.Millisecond)
			s.write("o:x")
			s.end(0)
			s.record(0)
		})
		wantFinished(t, got, err, finished(0, "x\n", ""))
		follow, status := s.at("follow"), s.at("status")
		var steps []time.Duration
		for _, at := range status {
			from := follow[0]
			if len(follow) > 1 && at > follow[1] {
				from = follow[1]
			}
			steps = append(steps, (at - from).Round(5*time.Millisecond))
		}
		const ms = time.Millisecond
		if diff := cmp.Diff([]time.Duration{25 * ms, 75 * ms, 175 * ms, 375 * ms, 25 * ms, 75 * ms, 175 * ms}, steps); diff != "" {
			t.Errorf("status reads after their connections (-want +got):\n%s", diff)
		}
	})
}

func TestAnErrorWhileTheExitIsRecordedIsNotYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		s := &scripted{onStatus: func(w http.ResponseWriter, _ *http.Request, s *scripted) {
			if reads++; reads < 3 {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusInternalServerError)
				fmt.Fprint(w, `{"statusCode":500,"message":"failed to convert exit code to int: strconv.Atoi: parsing \"\": invalid syntax","timestamp":"0001-01-01T00:00:00Z","path":""}`)
				return
			}
			s.status(w)
		}}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() {
			s.begin()
			time.Sleep(20 * time.Millisecond)
			s.write("o:x")
			s.end(5)
			s.record(5)
		})
		wantFinished(t, got, err, finished(5, "x\n", ""))
		wantBetween(t, "duration", got.Duration, 180*time.Millisecond, 200*time.Millisecond)
	})
}

func TestTheFinalSnapshotBringsWhatTheSocketMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onFollow: func(ctx context.Context, c *websocket.Conn, s *scripted) {
			time.Sleep(50 * time.Millisecond)
			_ = c.Write(ctx, websocket.MessageBinary, s.content()[:70])
			<-ctx.Done()
		}}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{}, func() {
			time.Sleep(15 * time.Millisecond)
			s.begin()
			s.write("o:one", "e:two", "o:three")
			s.end(0)
			time.Sleep(100 * time.Millisecond)
			s.record(0)
		})
		wantFinished(t, got, err, finished(0, "one\nthree\n", "two\n"))
		wantBetween(t, "duration", got.Duration, 180*time.Millisecond, 200*time.Millisecond)
	})
}

func TestFailedConnectionsDoNotProlongTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{onFollow: func(_ context.Context, c *websocket.Conn, _ *scripted) { _ = c.CloseNow() }}
		l := newScripted(t, s)
		got, err := s.run(t, l, Command{Timeout: 40 * time.Second}, func() { s.begin(); s.write("o:x") })
		if e := failed("", err); e == nil || e.Kind != KindTimeout || !got.TimedOut || string(got.Stdout) != "x\n" {
			t.Errorf("Run() = %+v, %v; want a timeout and the output so far", got, err)
		}
		wantBetween(t, "duration", got.Duration, 40*time.Second, 41*time.Second)
	})
}
