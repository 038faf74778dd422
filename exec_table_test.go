package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// verdict is the right end of a command that a fault meets. The zero value is the best one: the command ran once, its
// exit is known and its output complete.
type verdict struct {
	kind       Kind     // of the error; empty: none
	dispatched Dispatch // with an error
	exited     bool     // with an error: the exit is known nevertheless
	damaged    bool     // the output cannot be exact, and the result says so
	na         string   // there is no such case, because of this
}

var exact = verdict{}

// refused: the command was not started, and it is known that it never will be.
func refusedAs(kind Kind) verdict { return verdict{kind: kind, dispatched: DispatchedNo} }

// unknown: whether the command was started cannot be known.
func unknownAs(kind Kind) verdict { return verdict{kind: kind, dispatched: DispatchedUnknown} }

// lost: the command was started, and how it ended cannot be known.
func lostAs(kind Kind) verdict { return verdict{kind: kind, dispatched: DispatchedYes} }

func none(reason string) verdict { return verdict{na: reason} }

// position is where in a command's life a fault strikes.
type position int

const (
	beforeDispatch  position = iota // in the dispatch, which is not processed
	replyOfDispatch                 // in the dispatch, which is processed
	whileStreaming                  // in what follows the first part of the output
	atExit                          // in what follows the second of three parts
	finalRead                       // in the read that would bring the last bytes
	positions
)

func (p position) String() string {
	return [...]string{"before dispatch", "reply of dispatch", "while streaming", "at exit", "final read"}[p]
}

// faultRow is a fault, and its right outcome at each position. A fault strikes once, unless it lasts.
type faultRow struct {
	name     string
	fault    func(x *tableCell)
	outcomes map[Transport][positions]verdict
}

// both is a row's outcomes if the transports do not differ.
func both(o ...verdict) map[Transport][positions]verdict {
	return map[Transport][positions]verdict{TransportJournal: [positions]verdict(o), TransportSession: [positions]verdict(o)}
}

// apart is a row's outcomes, a journal's and a session's.
func apart(journal, session []verdict) map[Transport][positions]verdict {
	return map[Transport][positions]verdict{TransportJournal: [positions]verdict(journal), TransportSession: [positions]verdict(session)}
}

// sessionOnly is a row of what only a session's log has.
func sessionOnly(o ...verdict) map[Transport][positions]verdict {
	n := none("a journal has neither sockets nor markers")
	return apart([]verdict{n, n, n, n, n}, o)
}

// The reasons why there is no such case.
var (
	noReplyYet  = none("a connection that is refused has carried nothing")
	isAReply    = none("it is a reply, and so processed")
	noSocketYet = none("there is no socket yet")
	notASocket  = none("the final read is a request")
	noReference = none("the host has no reference before Start returns")
	notThen     = none("it is about the exit")
	wholeLog    = none("it is there all the time: see while streaming")
	sameThing   = none("the proxy processes what it repeats: see the reply of the dispatch")
	noSession   = none("a journal has no session")
)

func faultTable() []faultRow {
	once := func(before, after bubbleFault) func(*tableCell) {
		return func(x *tableCell) { x.strike(before, after, false) }
	}
	lasting := func(before, after bubbleFault) func(*tableCell) {
		return func(x *tableCell) { x.strike(before, after, true) }
	}
	status := func(code int) (before, after bubbleFault) { return statusBefore(code), statusAfter(code) }
	uncertain, unavailable := lostAs(KindUncertain), refusedAs(KindUnavailable)
	rows := []faultRow{
		{"nothing", func(*tableCell) {}, both(wholeLog, wholeLog, exact, wholeLog, wholeLog)},
		{"connection refused", func(x *tableCell) { x.refuse(false) }, both(unavailable, noReplyYet, exact, exact, exact)},
		{"reset", once(dropBefore, dropAfter), both(unavailable, exact, exact, exact, exact)},
		{"black hole", once(holdBefore, holdAfter), both(unavailable, exact, exact, exact, exact)},
		{"401", once(status(401)), both(refusedAs(KindAuth), exact, exact, exact, exact)},
		{"403", once(status(403)), both(refusedAs(KindAuth), exact, exact, exact, exact)},
		{"408", once(status(408)), both(unavailable, exact, exact, exact, exact)},
		{"429", once(status(429)), both(refusedAs(KindRateLimited), exact, exact, exact, exact)},
		{"500", once(status(500)), both(unavailable, exact, exact, exact, exact)},
		{"502, empty body", once(status(502)), both(unavailable, exact, exact, exact, exact)},
		{"503", once(status(503)), both(unavailable, exact, exact, exact, exact)},
		{"truncated JSON", once(nil, truncated), both(isAReply, exact, exact, exact, exact)},
		{"the proxy repeats the POST", once(nil, repeated), both(sameThing, exact, exact, exact, exact)},

		{"connection refused for good", func(x *tableCell) { x.refuse(true) }, both(unavailable, noReplyYet, uncertain, uncertain, uncertain)},
		{"reset for good", lasting(dropBefore, dropAfter), both(unknownAs(KindUncertain), unknownAs(KindUncertain), uncertain, uncertain, uncertain)},
		{"black hole for good", lasting(holdBefore, holdAfter), both(unknownAs(KindUncertain), unknownAs(KindUncertain), uncertain, uncertain, uncertain)},
		{"502 for good", lasting(status(502)), both(unknownAs(KindUncertain), unknownAs(KindUncertain), uncertain, uncertain, uncertain)},
		{"401 for good", lasting(status(401)), both(unknownAs(KindAuth), unknownAs(KindAuth), uncertain, uncertain, uncertain)},
		{"429 for good", lasting(status(429)), both(unknownAs(KindRateLimited), unknownAs(KindRateLimited), uncertain, uncertain, uncertain)},

		{"sandbox stopped", (*tableCell).stopSandbox, both(refusedAs(KindNotRunning), unknownAs(KindNotRunning), lostAs(KindNotRunning), lostAs(KindNotRunning), lostAs(KindNotRunning))},
		{"session deleted", func(x *tableCell) { x.loseSession(false) }, apart(
			[]verdict{noSession, noSession, noSession, noSession, noSession},
			[]verdict{exact, uncertain, uncertain, uncertain, uncertain})},
		{"daemon restarted", func(x *tableCell) { x.loseSession(true) }, apart(
			[]verdict{exact, exact, exact, exact, exact}, // the command goes on
			[]verdict{exact, unknownAs(KindUncertain), uncertain, uncertain, uncertain})},
		{"log unreadable for good", func(x *tableCell) { x.strike(statusBefore(502), nil, true); x.spare = "status" }, sessionOnly(notThen, notThen, notThen, notThen, verdict{kind: KindUncertain, dispatched: DispatchedYes, exited: true})},
		{"exit code never recorded", func(x *tableCell) { x.ending = "kill -9 $PPID" }, both(notThen, notThen, notThen, uncertain, notThen)},
		{"host restarted", func(x *tableCell) { x.restartHost = true }, both(noReference, noReference, exact, exact, exact)},

		{"marker bytes in the output", func(x *tableCell) { x.prefix = "\x01\x01\x01\x02\x02\x02é" }, both(wholeLog, wholeLog, exact, wholeLog, wholeLog)},
		{"log without markers", func(x *tableCell) { x.box.filter = withoutMarkers }, sessionOnly(wholeLog, wholeLog, verdict{damaged: true}, wholeLog, wholeLog)},
	}
	for _, code := range []int{1000, 1001, 1006, 1011} {
		sends := code
		if code == 1006 {
			sends = 0 // that is what a lost connection is called
		}
		rows = append(rows,
			faultRow{fmt.Sprint("socket closes with ", code), func(x *tableCell) { x.breakSocket(sends, 1) }, sessionOnly(noSocketYet, noSocketYet, exact, exact, notASocket)},
			faultRow{fmt.Sprint("every socket closes with ", code), func(x *tableCell) { x.breakSocket(sends, -1) }, sessionOnly(noSocketYet, noSocketYet, exact, exact, notASocket)})
	}
	for _, n := range []int{1, 2, 3, 5, 40, 333} {
		rows = append(rows, faultRow{fmt.Sprintf("replay of a prefix of %d bytes", n), func(x *tableCell) { x.replay(n) }, sessionOnly(noSocketYet, noSocketYet, exact, wholeLog, notASocket)})
	}
	for _, n := range []int{1, 2, 5} { // runes have two bytes, markers three, and no part ends where a frame does
		rows = append(rows, faultRow{fmt.Sprintf("frames of %d bytes", n), func(x *tableCell) { x.box.frame = n }, sessionOnly(noSocketYet, noSocketYet, exact, wholeLog, notASocket)})
	}
	return rows
}

// tableCell is one case of the table.
type tableCell struct {
	*bubbleRig
	transport Transport
	at        position

	// What a fault may set.
	ending      string // of the command, in place of its exit
	prefix      string // of each line
	restartHost bool
	action      func() // at the position
	dispatch    bubbleFault
	observation bubbleFault
	left        int    // observations to be hit
	lasts       bool   // all of them
	spare       string // requests of this kind are not met
	asks        bool   // what observes must ask again

	dir    string
	ready  atomic.Bool // the command is to be dispatched
	struck atomic.Bool // the position is reached, as far as that is an observation
	hits   atomic.Int64
	mu     sync.Mutex
	out    bytes.Buffer
	parts  int // of out, that have arrived
}

const (
	tableExit = 7
	part1     = 40 // lines of each stream
	part2     = 80
	part3     = 2500 // too much for a reply
)

// script writes three numbered parts on both streams. It goes on when the host has the part before, or soon.
func (x *tableCell) script() string {
	ending := x.ending
	if ending == "" {
		ending = "exit " + strconv.Itoa(tableExit)
	}
	gate := func(n int) string {
		if x.transport == TransportSession {
			return "" // the box has run it before anything arrives
		}
		return fmt.Sprintf("n=0; while [ ! -e '%s/gate%d' ] && [ $n -lt 20 ]; do n=$((n+1)); sleep 0.01; done\n", x.dir, n)
	}
	print := func(from, to int) string {
		return fmt.Sprintf("seq -f '%[1]so%%g' %[2]d %[3]d; seq -f '%[1]se%%g' %[2]d %[3]d >&2\n", x.prefix, from, to)
	}
	return ": " + x.box.word + "\necho x >>'" + x.dir + "/starts'\n" + print(1, part1) + gate(2) + print(part1+1, part2) + gate(3) + print(part2+1, part3) + ending
}

// wanted is what it writes.
func (x *tableCell) wanted(stream string) []byte {
	var b bytes.Buffer
	for i := 1; i <= part3; i++ {
		fmt.Fprintf(&b, "%s%s%d\n", x.prefix, stream, i)
	}
	return b.Bytes()
}

// Write takes standard output. The parts that have arrived let the command go on, and the fault strike.
func (x *tableCell) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.out.Write(p)
	for lasts := []int{part1, part2}; x.parts < len(lasts); x.parts++ {
		if !bytes.Contains(x.out.Bytes(), fmt.Appendf(nil, "%so%d\n", x.prefix, lasts[x.parts])) {
			break
		}
		if err := os.WriteFile(fmt.Sprintf("%s/gate%d", x.dir, x.parts+2), nil, 0o600); err != nil {
			return 0, err
		}
		switch second := x.parts == 1; {
		case !second && x.at == whileStreaming, second && x.at == atExit, second && x.at == finalRead && x.transport == TransportJournal:
			x.reached()
		}
	}
	return len(p), nil
}

// reached lets the fault strike.
func (x *tableCell) reached() {
	if x.struck.Swap(true) {
		return
	}
	if x.action != nil {
		x.action()
		x.hits.Add(1)
	}
	if x.observation != nil || x.asks {
		x.box.drop()
	}
}

// strike sets a fault of requests: before is that of one that is not processed, after that of one that is.
func (x *tableCell) strike(before, after bubbleFault, lasts bool) {
	x.dispatch, x.observation, x.left, x.lasts = before, after, 1, lasts
	if x.at == replyOfDispatch {
		x.dispatch = after
	}
	if before != nil {
		x.observation = before
	}
}

// refuse lets no connection come about.
func (x *tableCell) refuse(lasts bool) {
	x.left, x.lasts = 1, lasts
	x.host.refuse = func(r *http.Request) bool {
		kind := kindOf(r)
		switch {
		case kind == "other" || kind == "session" || !x.ready.Load():
			return false
		case x.at == beforeDispatch && (kind == "exec" || kind == "execute"), x.struck.Load() && x.observes(kind):
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.hit()
		}
		return false
	}
	x.asks = true
}

// hit reports whether the fault strikes once more.
func (x *tableCell) hit() bool {
	if x.left == 0 && !x.lasts {
		return false
	}
	x.left--
	x.hits.Add(1)
	return true
}

// observes reports that a request of this kind is met by faults of the position.
func (x *tableCell) observes(kind string) bool {
	if kind == x.spare {
		return false
	}
	if x.at == finalRead {
		return kind == "snapshot" || kind == "download" || x.lasts && (kind == "status" || kind == "execute")
	}
	return kind != "delete" && kind != "session" && kind != "other"
}

// meet is the box's fault.
func (x *tableCell) meet(kind string, r *http.Request) bubbleFault {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case !x.ready.Load():
		return nil
	case kind == "dispatch" && x.at <= replyOfDispatch && x.dispatch != nil:
		f := x.dispatch
		if !x.lasts {
			x.dispatch = nil
		}
		x.struck.Store(x.lasts) // and meets the rest, too
		x.hits.Add(1)
		return f
	case kind == "socket" && x.at == finalRead && x.transport == TransportSession:
		return statusBefore(502) // else a socket would bring the last bytes
	case x.struck.Load() && x.observation != nil && x.observes(kind) && x.hit():
		return x.observation
	}
	return nil
}

// stopSandbox stops the sandbox under the command.
func (x *tableCell) stopSandbox() {
	stop := func() {
		if err := x.client.Stop(context.Background(), x.lease.Ref().Sandbox); err != nil {
			panic(err)
		}
		x.server.Sandbox(x.lease.Ref().Sandbox).Settle(time.Minute)
	}
	x.action = stop
	if x.at == replyOfDispatch {
		x.dispatch = func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
			next(httptest.NewRecorder(), r)
			stop()
			panic(http.ErrAbortHandler)
		}
	}
}

// loseSession deletes the session under the command, or restarts the daemon.
func (x *tableCell) loseSession(restart bool) {
	lose := func() {
		x.box.restart(restart)
		if restart {
			x.box.drop()
		}
	}
	x.action = lose
	if x.at == replyOfDispatch {
		x.dispatch = func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
			reply := httptest.NewRecorder()
			next(reply, r)
			lose()
			if restart {
				panic(http.ErrAbortHandler)
			}
			pass(w, reply, reply.Body.Len())
		}
	}
}

// breakSocket ends sockets early: while streaming after some bytes, at the exit after all of them.
func (x *tableCell) breakSocket(code, count int) {
	x.box.fault = x.onSockets(count, func(s *bubbleSession, c *bubbleCommand, w http.ResponseWriter, r *http.Request) {
		limit := len(c.log)
		if x.at == whileStreaming {
			limit /= 7
		}
		x.box.follow(w, r, s, c, limit, code)
	})
}

// replay delivers a prefix twice: on one socket, which starts over, and on the next.
func (x *tableCell) replay(n int) {
	x.box.fault = x.onSockets(-1, func(s *bubbleSession, c *bubbleCommand, w http.ResponseWriter, r *http.Request) {
		x.box.follow(w, r, s, c, n, 0)
	})
}

func (x *tableCell) onSockets(count int, do func(*bubbleSession, *bubbleCommand, http.ResponseWriter, *http.Request)) func(string, *http.Request) bubbleFault {
	return func(kind string, _ *http.Request) bubbleFault {
		if kind != "socket" || count == 0 {
			return nil
		}
		count--
		x.hits.Add(1)
		return func(w http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
			// The box's routes are not those of this request.
			parts := strings.Split(r.URL.Path, "/") // "", process, session, id, command, id, logs
			r.SetPathValue("session", parts[3])
			r.SetPathValue("command", parts[5])
			if s, c := x.box.find(w, r); c != nil {
				do(s, c, w, r)
			}
		}
	}
}

// withoutMarkers is a log as it is when something on the way, such as a runner, removes them.
func withoutMarkers(log []byte) []byte {
	log = bytes.ReplaceAll(log, []byte("\x01\x01\x01"), nil)
	return bytes.ReplaceAll(log, []byte("\x02\x02\x02"), nil)
}

func statusBefore(code int) bubbleFault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) { w.WriteHeader(code) }
}

func statusAfter(code int) bubbleFault {
	return func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		next(httptest.NewRecorder(), r)
		w.WriteHeader(code)
	}
}

func dropBefore(http.ResponseWriter, *http.Request, http.HandlerFunc) { panic(http.ErrAbortHandler) }

func dropAfter(_ http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	next(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

func holdBefore(_ http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

func holdAfter(_ http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	next(httptest.NewRecorder(), r)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// pass passes on the first bytes of a reply, and drops the connection if they are not all.
func pass(w http.ResponseWriter, reply *httptest.ResponseRecorder, n int) {
	for name, values := range reply.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(reply.Body.Len()))
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body.Bytes()[:n])
	if n < reply.Body.Len() {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func truncated(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	if kindOf(r) == "socket" {
		panic(http.ErrAbortHandler)
	}
	reply := httptest.NewRecorder()
	next(reply, r)
	pass(w, reply, reply.Body.Len()/2)
}

func repeated(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	if kindOf(r) != "socket" {
		next(httptest.NewRecorder(), r)
	}
	next(w, r)
}

// TestOutcomesOfFaults runs each cell of the table in virtual time. Whatever the outcome is, these hold: the command
// started at most once, each byte was delivered once and in order, a result without a recorded exit has no exit code, one
// without an error is complete, and nothing is left running on the host.
func TestOutcomesOfFaults(t *testing.T) {
	root := scratchRoot(t)
	type cell struct {
		kind, name string
		run        func(*testing.T)
	}
	var cells []cell
	reasons := 0
	for i, row := range faultTable() {
		for _, tr := range []Transport{TransportJournal, TransportSession} {
			for at, want := range row.outcomes[tr] {
				if want.na != "" {
					reasons++
					continue
				}
				dir, kind := filepath.Join(root, fmt.Sprint(i, tr, at)), fmt.Sprintf("%s/%s", row.name, tr)
				cells = append(cells, cell{kind, fmt.Sprintf("%s/%s", kind, position(at)), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { runCell(t, dir, row, tr, position(at), want) })
				}})
			}
		}
	}
	t.Logf("%d cells; %d more make no sense, for the reasons given", len(cells), reasons)
	var runs []func()
	for _, c := range sampled(t, cells, func(c cell) string { return c.kind }) {
		runs = append(runs, func() { t.Run(c.name, c.run) })
	}
	atOnce(runs)
}

// scratchRoot is a directory that is removed once nothing writes to it any more.
func scratchRoot(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "leasehold-table-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eventually(t, "the commands end", func() bool { return os.RemoveAll(root) == nil }) })
	return root
}

func runCell(t *testing.T, dir string, row faultRow, tr Transport, at position, want verdict) {
	x := &tableCell{bubbleRig: newBubbleRig(t, dir), transport: tr, at: at, dir: dir}
	x.box.fault = x.meet
	row.fault(x)
	if x.at == finalRead && tr == TransportSession {
		x.box.ends = x.reached
	}
	if at == beforeDispatch && x.action != nil {
		// A command before has left a session, and long enough ago for the next one to look at it. Without a look its loss
		// would leave open whether an earlier delivery of the dispatch still found it.
		if got, err := x.lease.Executor().Run(t.Context(), Command{Args: []string{"true"}, Transport: tr, Profiles: ProfilesNone}); err != nil {
			t.Fatalf("Run() = %+v, %v", got, err)
		}
		time.Sleep(2 * freshTime) // virtual
		x.action()
		x.hits.Add(1)
	}
	x.ready.Store(true)

	var errs collector
	cmd := Command{Script: x.script(), Stdout: x, Stderr: &errs, Transport: tr, Profiles: ProfilesNone}
	began := time.Now()
	var got Result
	var err error
	if x.restartHost {
		got, err = x.onTwoHosts(t, cmd, &errs)
	} else {
		got, err = x.lease.Executor().Run(t.Context(), cmd)
	}
	took := time.Since(began)

	if row.name != "nothing" && x.hits.Load() == 0 && (x.observation != nil || x.dispatch != nil || x.action != nil || x.asks) {
		t.Error("the fault was never met: the cell proves nothing")
	}
	x.check(t, got, err, want, errs.bytes())
	if took > blindTime+2*time.Minute {
		t.Errorf("it took %v", took)
	}
}

// check compares the result with the verdict, and looks at what holds in every cell.
func (x *tableCell) check(t *testing.T, got Result, err error, want verdict, errs []byte) {
	t.Helper()
	var e *Error
	errors.As(err, &e)
	switch {
	case want.kind == "" && err != nil:
		t.Errorf("Run() = %v, want no error", err)
	case want.kind != "" && (e == nil || e.Kind != want.kind || e.Dispatched != want.dispatched):
		t.Errorf("Run() = %+v, want kind %s, dispatched %s", e, want.kind, want.dispatched)
	}
	if exited := want.kind == "" || want.exited; got.Exited != exited {
		t.Errorf("exited %v, want %v", got.Exited, exited)
	}
	if want.damaged != (got.Fidelity == FidelityDamaged) {
		t.Errorf("fidelity %s, want damaged: %v", got.Fidelity, want.damaged)
	}
	for _, problem := range x.violations(got, err, errs) {
		t.Error(problem)
	}
}

// violations are what is wrong with a result whatever happened.
func (x *tableCell) violations(got Result, err error, errs []byte) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	starts := 0
	if data, readErr := os.ReadFile(x.dir + "/starts"); readErr == nil {
		starts = bytes.Count(data, []byte("\n"))
	}
	x.mu.Lock()
	out := bytes.Clone(x.out.Bytes())
	x.mu.Unlock()
	wantOut, wantErrs := x.wanted("o"), x.wanted("e")

	var e *Error
	if errors.As(err, &e); err != nil && (e == nil || e.Dispatched != got.Dispatched) {
		wrong("the error is %+v, and the result says dispatched %s", err, got.Dispatched)
	}
	if starts > 1 || got.Dispatched == DispatchedNo && starts != 0 || got.Dispatched == DispatchedYes && starts != 1 {
		wrong("dispatched %s, and started %d times", got.Dispatched, starts)
	}
	if !got.Exited && got.ExitCode != -1 || got.Exited && got.ExitCode != tableExit && !got.StopConfirmed {
		wrong("exited %v with code %d; the command's is %d", got.Exited, got.ExitCode, tableExit)
	}
	if err == nil && !(got.Complete && got.Exited) || got.Complete && err != nil && !errors.Is(err, ErrCanceled) && !got.StopConfirmed {
		wrong("complete %v, exited %v, and error %v", got.Complete, got.Exited, err)
	}
	if got.Fidelity == FidelityDamaged && x.transport == TransportSession {
		return problems // and says so
	}
	if !bytes.HasPrefix(wantOut, out) || !bytes.HasPrefix(wantErrs, errs) {
		wrong("the output is not a beginning of what the command wrote:\n%s\n%s", difference(wantOut, out), difference(wantErrs, errs))
	}
	if err == nil && (len(out) != len(wantOut) || len(errs) != len(wantErrs)) {
		wrong("complete with %d and %d bytes, want %d and %d", len(out), len(errs), len(wantOut), len(wantErrs))
	}
	return problems
}

// difference shows where got leaves want.
func difference(want, got []byte) string {
	n := 0
	for n < min(len(want), len(got)) && want[n] == got[n] {
		n++
	}
	if n == len(got) {
		return "a beginning"
	}
	return fmt.Sprintf("at byte %d of %d: got %q, want %q", n, len(got), got[n:min(n+40, len(got))], want[min(n, len(want)):min(n+40, len(want))])
}

// collector is a writer that a test reads.
type collector struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (c *collector) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *collector) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.buf.Bytes())
}

// onTwoHosts starts the command, loses the host at the position, and goes on with another from what the first has taken.
func (x *tableCell) onTwoHosts(t *testing.T, cmd Command, errs *collector) (Result, error) {
	died := make(chan struct{})
	x.action = func() {
		x.host.die()
		close(died)
	}
	first, err := x.lease.Executor().Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	ref := first.Ref()
	<-died
	_ = x.Close(context.Background())
	_, _ = first.Wait()
	if data, err := os.ReadFile(x.dir + "/starts"); err != nil || len(data) == 0 {
		t.Fatalf("the first host started nothing: %v", err)
	}

	next := newHost(x.server)
	p := rigProvider(t, x.server, Config{Transport: next})
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		next.die()
		next.base.CloseIdleConnections()
	})
	l, err := p.Bind(x.lease.Ref())
	if err != nil {
		t.Fatal(err)
	}
	x.mu.Lock()
	from := Offsets{Stdout: int64(x.out.Len()), Stderr: int64(len(errs.bytes()))}
	x.mu.Unlock()
	second, err := l.Executor().Attach(t.Context(), ref, Attachment{From: from, Stdout: x, Stderr: errs})
	if err != nil {
		t.Fatalf("Attach() = %v", err)
	}
	return second.Wait()
}
