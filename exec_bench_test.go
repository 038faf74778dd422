package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// benchRig is a lease on an emulator of its own, of which it is known how long it took to answer.
type benchRig struct {
	server  *emulator.Server
	lease   *Lease
	serving atomic.Int64 // nanoseconds, of all but sockets
}

// newBenchRig starts one whose commands are run by that shell, or by the one that the daemon would choose.
func newBenchRig(b *testing.B, shell string) *benchRig {
	b.Helper()
	r := new(benchRig)
	var err error
	r.server, err = emulator.Start(emulator.Options{Shell: shell, Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get("Upgrade") == "" {
				began := time.Now()
				defer func() { r.serving.Add(int64(time.Since(began))) }()
			}
			next.ServeHTTP(w, q)
		})
	}})
	if err != nil {
		b.Fatal(err)
	}
	p, err := newProvider(Config{APIURL: r.server.URL(), APIKey: r.server.APIKey(), NoBwrap: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			b.Error(err)
		}
		if err := r.server.Close(); err != nil {
			b.Error(err)
		}
	})
	if r.lease, err = p.Acquire(b.Context(), request()); err != nil {
		b.Fatal(err)
	}
	if _, err := r.lease.toolbox(b.Context()); err != nil {
		b.Fatal(err)
	}
	return r
}

// floor is a bare execute of `true`: a keep-alive POST, and a shell.
func (r *benchRig) floor(b *testing.B) {
	if _, err := r.lease.resolved().Execute(b.Context(), "true", 0); err != nil {
		b.Fatal(err)
	}
}

// spent is the time that f takes, and how much of it the server was answering.
func (r *benchRig) spent(f func()) (all, serving time.Duration) {
	r.serving.Store(0)
	began := time.Now()
	f()
	return time.Since(began), time.Duration(r.serving.Load())
}

// eachBenchTransport runs a benchmark on both.
func eachBenchTransport(b *testing.B, f func(b *testing.B, tr Transport)) {
	b.Run("journal", func(b *testing.B) { f(b, TransportJournal) })
	b.Run("session", func(b *testing.B) { f(b, TransportSession) })
}

// BenchmarkCommand measures short commands on a warm lease against a bare execute of `true`, in each shell that a daemon
// may choose, and with the one that it does. It also reports their requests, those of commands whose exit was recorded when
// it was looked for first, sockets and bytes, and the time outside the server: the library's, and the connection's, of
// which the floor has its share.
func BenchmarkCommand(b *testing.B) {
	for _, kind := range []struct {
		name string
		cmd  Command
	}{
		{"true", Command{Args: []string{"true"}, Profiles: ProfilesNone}},
		{"output", Command{Script: "echo out; echo err >&2", Profiles: ProfilesNone}},
		{"profiles", Command{Args: []string{"true"}}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			eachBenchTransport(b, func(b *testing.B, tr Transport) { benchmarkCommand(b, "", tr, kind.cmd) })
		})
	}
	for _, shell := range []string{"zsh", "bash", "dash"} {
		b.Run("true/journal/"+shell, func(b *testing.B) {
			path, err := exec.LookPath(shell)
			if err != nil {
				b.Skip(err)
			}
			benchmarkCommand(b, path, TransportJournal, Command{Args: []string{"true"}, Profiles: ProfilesNone})
		})
	}
}

func benchmarkCommand(b *testing.B, shell string, tr Transport, cmd Command) {
	r := newBenchRig(b, shell)
	cmd.Transport = tr
	run := func() {
		if got, err := r.lease.Executor().Run(b.Context(), cmd); err != nil || !got.Complete {
			b.Fatal(got, err)
		}
	}
	r.floor(b)
	run() // warm
	c := contest{b: b}
	var outside, floorOutside time.Duration
	var requests, sockets, bytes, recorded, recordedRequests float64
	for b.Loop() {
		c.floor(func() {
			all, serving := r.spent(func() { r.floor(b) })
			floorOutside += all - serving
		})
		r.server.ResetRequests()
		c.value(func() {
			all, serving := r.spent(run)
			outside += all - serving
		})
		sent, followed := r.server.Requests(), sockets
		for _, q := range sent {
			requests++
			bytes += float64(q.Sent + q.Received)
			if q.WebSocket {
				sockets++
			}
		}
		if sockets == followed {
			recorded++
			recordedRequests += float64(len(sent))
		}
		b.StartTimer()
	}
	c.report(0)
	n := float64(b.N)
	b.ReportMetric(recordedRequests/max(recorded, 1), "recorded-requests/op")
	b.ReportMetric(requests/n, "requests/op")
	b.ReportMetric(sockets/n, "sockets/op")
	b.ReportMetric(bytes/n, "wire-B/op")
	b.ReportMetric(outside.Seconds()*1e3/n, "outside-server-ms/op")
	b.ReportMetric(floorOutside.Seconds()*1e3/n, "floor-outside-server-ms/op")
}

// recorded answers the dispatches of commands that are all alike as the server answered the first one: what remains is
// the library's own time.
type recorded struct {
	server http.RoundTripper
	mark   string
	reply  []byte
}

var scriptMark = regexp.MustCompile(`lh[a-z2-7]{26}`)

func (a *recorded) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	mark := string(scriptMark.Find(body))
	if mark == "" {
		return nil, errors.New("a request without a mark")
	}
	if a.reply == nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		response, err := a.server.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if a.reply, err = io.ReadAll(response.Body); err != nil {
			return nil, err
		}
		a.mark = mark
	}
	reply := bytes.ReplaceAll(a.reply, []byte(a.mark), []byte(mark))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(reply)), ContentLength: int64(len(reply)), Request: r}, nil
}

// BenchmarkLibraryTime is what a short command costs the host, apart from the server and the connection.
func BenchmarkLibraryTime(b *testing.B) {
	r := newBenchRig(b, "")
	connections := new(http.Transport)
	defer connections.CloseIdleConnections()
	p, err := newProvider(Config{APIURL: r.server.URL(), APIKey: r.server.APIKey(), NoBwrap: true, Transport: &recorded{server: connections}})
	if err != nil {
		b.Fatal(err)
	}
	l := newLease(p, r.lease.Ref())
	l.box = p.client.Toolbox(&daytona.Sandbox{ID: r.lease.Ref().Sandbox, ToolboxURL: strings.TrimSuffix(r.server.URL(), "/api") + "/toolbox"})
	run := func() {
		if got, err := l.Executor().Run(b.Context(), Command{Args: []string{"true"}, Transport: TransportJournal}); err != nil || !got.Complete {
			b.Fatal(got, err)
		}
	}
	run() // is the one that is recorded
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
	b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N), "ms/op")
	if err := p.Close(context.Background()); err != nil {
		b.Error(err)
	}
}

// heapWatch is a writer that notes the largest heap.
type heapWatch struct {
	most uint64
	size int64
}

func (h *heapWatch) Write(p []byte) (int, error) {
	if h.size>>24 != (h.size+int64(len(p)))>>24 { // each 16 MiB
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		h.most = max(h.most, stats.HeapAlloc)
	}
	h.size += int64(len(p))
	return len(p), nil
}

// BenchmarkRelay is how fast an output gets to a writer, while the command prints it, against a download of as many bytes
// from the same server, and by how much the heap grows meanwhile, the server's part included.
func BenchmarkRelay(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		sizes := []int64{1, 4, 16, 64, 256}
		if tr == TransportSession {
			sizes = []int64{1, 4, 16}
		}
		for _, mib := range sizes {
			b.Run(fmt.Sprintf("MiB=%d", mib), func(b *testing.B) { benchmarkRelay(b, tr, mib<<20) })
		}
	})
}

func benchmarkRelay(b *testing.B, tr Transport, size int64) {
	r := newBenchRig(b, "")
	file := filepath.Join(b.TempDir(), "content")
	content, err := os.Create(file)
	if err == nil {
		err = errors.Join(content.Truncate(size), content.Close())
	}
	if err != nil {
		b.Fatal(err)
	}
	c := contest{b: b}
	var grown uint64
	for b.Loop() {
		c.floor(func() { download(b, r.lease, file, size) })
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		out := new(heapWatch)
		c.value(func() { r.print(b, tr, size, out) })
		grown = max(grown, max(out.most, before.HeapAlloc)-before.HeapAlloc)
		b.StartTimer()
	}
	c.report(size)
	b.ReportMetric(float64(grown)/(1<<20), "heap-growth-MiB")
}

// download reads a file of this size.
func download(b *testing.B, l *Lease, file string, size int64) {
	body, err := l.resolved().Download(b.Context(), file, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer body.Close()
	if n, err := io.Copy(io.Discard, body); err != nil || n != size {
		b.Fatal(n, err)
	}
}

// print runs a command that prints so many bytes. The session's log has lines.
func (r *benchRig) print(b *testing.B, tr Transport, size int64, out io.Writer) {
	script := fmt.Sprintf("head -c %d /dev/zero", size)
	if tr == TransportSession {
		script = fmt.Sprintf("yes 0123456789012345678901234567890123456789012345678901234567890 | head -c %d", size)
	}
	got, err := r.lease.Executor().Run(b.Context(), Command{Script: script, Stdout: out, Profiles: ProfilesNone, Transport: tr})
	if err != nil || got.StdoutSize != size {
		b.Fatal(got.StdoutSize, err)
	}
}

// BenchmarkRecovery is how many bytes are moved for a log whose transfer breaks five times, with resets of the connection,
// which lose what it held. The floor is the log.
func BenchmarkRecovery(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b, "")
		size := int64(128 << 20)
		fault := emulator.Fault{Path: "/toolbox/*/files/download", Action: emulator.ResetReply, Bytes: 12 << 20}
		if tr == TransportSession {
			size = 16 << 20
			fault = emulator.Fault{Path: logsPath, Action: emulator.ResetReply, Bytes: 3 << 20}
		}
		var moved int64
		for b.Loop() {
			r.server.SetFaults(fault, fault, fault, fault, fault)
			r.server.ResetRequests()
			r.print(b, tr, size, io.Discard)
			for _, q := range r.server.Requests() {
				moved += q.Sent
			}
		}
		value, floor := float64(moved)/float64(b.N), float64(size)
		b.ReportMetric(value/(1<<20), "moved-MiB/op")
		b.ReportMetric(floor/(1<<20), "floor-moved-MiB/op")
		b.ReportMetric(value/floor, "x-floor")
	})
}

// BenchmarkInput is how fast an input gets to a command, against an upload of as many bytes to the same server.
func BenchmarkInput(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b, "")
		content := make([]byte, 4<<20)
		file := filepath.Join(b.TempDir(), "content")
		c := contest{b: b}
		for b.Loop() {
			c.floor(func() {
				if err := r.lease.resolved().Upload(b.Context(), daytona.File{Path: file, Content: bytes.NewReader(content)}); err != nil {
					b.Fatal(err)
				}
			})
			c.value(func() {
				if _, err := r.lease.Executor().Run(b.Context(), Command{Script: "cat >/dev/null", Stdin: bytes.NewReader(content), Profiles: ProfilesNone, Transport: tr}); err != nil {
					b.Fatal(err)
				}
			})
			b.StartTimer()
		}
		c.report(int64(len(content)))
	})
}

// BenchmarkFirstByte is how long it takes from the moment a line is written until the caller has it, against the floor.
func BenchmarkFirstByte(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b, "")
		gate := filepath.Join(b.TempDir(), "gate")
		c := contest{b: b}
		for b.Loop() {
			c.floor(func() { r.floor(b) })
			b.StartTimer()
			out := make(arrivals, 16)
			p, err := r.lease.Executor().Start(b.Context(), Command{Script: "sleep 0.15; date +%s%N; until [ -e " + gate + " ]; do sleep 0.01; done; rm " + gate, Stdout: out, Profiles: ProfilesNone, Transport: tr})
			if err != nil {
				b.Fatal(err)
			}
			line := <-out
			arrived := time.Now()
			written, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			c.values = append(c.values, arrived.Sub(time.Unix(0, written)))
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				b.Fatal(err)
			}
			if _, err := p.Wait(); err != nil {
				b.Fatal(err)
			}
		}
		c.report(0)
	})
}
