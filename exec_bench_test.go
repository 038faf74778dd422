package leasehold

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
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

func newBenchRig(b *testing.B) *benchRig {
	b.Helper()
	r := new(benchRig)
	var err error
	r.server, err = emulator.Start(emulator.Options{Middleware: func(next http.Handler) http.Handler {
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
	p, err := newProvider(Config{APIURL: r.server.URL(), APIKey: r.server.APIKey()})
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

// transport is what a command takes that asks for tr.
func (r *benchRig) transport(b *testing.B, tr Transport) Transport {
	got, err := r.lease.Executor().Run(b.Context(), Command{Args: []string{"true"}, Transport: tr, Profiles: ProfilesNone})
	if err != nil {
		b.Fatal(err)
	}
	return got.Transport
}

// spent is the time that f takes, and how much of it the server was answering.
func (r *benchRig) spent(f func()) (all, serving time.Duration) {
	r.serving.Store(0)
	began := time.Now()
	f()
	return time.Since(began), time.Duration(r.serving.Load())
}

// eachBenchTransport runs a benchmark on the default and on both.
func eachBenchTransport(b *testing.B, f func(b *testing.B, tr Transport)) {
	for name, tr := range map[string]Transport{"default": TransportDefault, "journal": TransportJournal, "session": TransportSession} {
		b.Run(name, func(b *testing.B) { f(b, tr) })
	}
}

// BenchmarkCommand measures short commands on a warm lease against the floor in the same run, one after the other. It
// reports how many times the floor a command takes, its requests, sockets and bytes, and the time outside the server:
// the library's, and the connection's, of which the floor has its share.
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
			eachBenchTransport(b, func(b *testing.B, tr Transport) {
				r, cmd := newBenchRig(b), kind.cmd
				cmd.Transport = tr
				run := func() {
					if got, err := r.lease.Executor().Run(b.Context(), cmd); err != nil || !got.Complete {
						b.Fatal(got, err)
					}
				}
				r.floor(b)
				run() // warm
				var floors, floorServing, commands, serving time.Duration
				var requests, sockets, bytes, n float64
				for b.Loop() {
					b.StopTimer()
					all, inside := r.spent(func() { r.floor(b) })
					floors, floorServing = floors+all, floorServing+inside
					r.server.ResetRequests()
					b.StartTimer()
					all, inside = r.spent(run)
					b.StopTimer()
					commands, serving = commands+all, serving+inside
					for _, q := range r.server.Requests() {
						requests++
						bytes += float64(q.Sent + q.Received)
						if q.WebSocket {
							sockets++
						}
					}
					n++
					b.StartTimer()
				}
				b.ReportMetric(float64(commands)/float64(floors), "x-floor")
				b.ReportMetric(requests/n, "requests/op")
				b.ReportMetric(sockets/n, "sockets/op")
				b.ReportMetric(bytes/n, "wire-B/op")
				b.ReportMetric(float64(commands-serving)/n/1e6, "ms-outside-server/op")
				b.ReportMetric(float64(floors-floorServing)/n/1e6, "ms-outside-server-floor/op")
			})
		})
	}
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
	r := newBenchRig(b)
	connections := new(http.Transport)
	defer connections.CloseIdleConnections()
	p, err := newProvider(Config{APIURL: r.server.URL(), APIKey: r.server.APIKey(), Transport: &recorded{server: connections}})
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
	var total time.Duration
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		run()
		total += time.Since(began)
		n++
	}
	b.ReportMetric(float64(total)/float64(n)/float64(time.Millisecond), "x-goal") // of a millisecond
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

// BenchmarkRelay is how fast a large output gets to a writer, while the command prints it, against a download of as many
// bytes from the same server, and by how much the heap grows meanwhile, the server's part included.
func BenchmarkRelay(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b)
		size, script := int64(256<<20), "head -c 268435456 /dev/zero"
		if r.transport(b, tr) == TransportSession {
			size, script = 16<<20, "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 16777216" // a log has lines
		}
		file := filepath.Join(b.TempDir(), "content")
		content, err := os.Create(file)
		if err == nil {
			err = errors.Join(content.Truncate(size), content.Close())
		}
		if err != nil {
			b.Fatal(err)
		}
		var floor, relay time.Duration
		var grown uint64
		b.SetBytes(size)
		for b.Loop() {
			b.StopTimer()
			began := time.Now()
			body, err := r.lease.resolved().Download(b.Context(), file, 0)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, body); err != nil || n != size {
				b.Fatal(n, err)
			}
			body.Close()
			floor += time.Since(began)
			runtime.GC()
			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			out := new(heapWatch)
			b.StartTimer()
			began = time.Now()
			got, err := r.lease.Executor().Run(b.Context(), Command{Script: script, Stdout: out, Profiles: ProfilesNone, Transport: tr})
			relay += time.Since(began)
			if err != nil || got.StdoutSize != size {
				b.Fatal(got.StdoutSize, err)
			}
			grown = max(grown, max(out.most, before.HeapAlloc)-before.HeapAlloc)
		}
		b.ReportMetric(float64(relay)/float64(floor), "x-download")
		b.ReportMetric(float64(grown)/(1<<20), "MiB-heap-growth")
	})
}

// BenchmarkRecovery is how many bytes are moved for one byte of a log whose transfer breaks five times, with resets of the
// connection, which lose what it held.
func BenchmarkRecovery(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b)
		size, script := int64(128<<20), "head -c 134217728 /dev/zero"
		fault := emulator.Fault{Path: "/toolbox/*/files/download", Action: emulator.ResetReply, Bytes: 12 << 20}
		if r.transport(b, tr) == TransportSession {
			size, script = 16<<20, "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 16777216"
			fault = emulator.Fault{Path: logsPath, Action: emulator.ResetReply, Bytes: 3 << 20}
		}
		var moved, wanted float64
		for b.Loop() {
			r.server.SetFaults(fault, fault, fault, fault, fault)
			r.server.ResetRequests()
			got, err := r.lease.Executor().Run(b.Context(), Command{Script: script, Stdout: io.Discard, Profiles: ProfilesNone, Transport: tr})
			if err != nil || got.StdoutSize != size {
				b.Fatal(got.StdoutSize, err)
			}
			for _, q := range r.server.Requests() {
				moved += float64(q.Sent)
			}
			wanted += float64(size)
		}
		b.ReportMetric(moved/wanted, "x-log")
	})
}

// BenchmarkInput is how fast an input gets to a command, against an upload of as many bytes to the same server.
func BenchmarkInput(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b)
		content := make([]byte, 4<<20)
		file := filepath.Join(b.TempDir(), "content")
		var floor, input time.Duration
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			b.StopTimer()
			began := time.Now()
			if err := r.lease.resolved().Upload(b.Context(), daytona.File{Path: file, Content: bytes.NewReader(content)}); err != nil {
				b.Fatal(err)
			}
			floor += time.Since(began)
			b.StartTimer()
			began = time.Now()
			if _, err := r.lease.Executor().Run(b.Context(), Command{Script: "cat >/dev/null", Stdin: bytes.NewReader(content), Profiles: ProfilesNone, Transport: tr}); err != nil {
				b.Fatal(err)
			}
			input += time.Since(began)
		}
		b.ReportMetric(float64(input)/float64(floor), "x-upload")
	})
}

// BenchmarkFirstByte is how long it takes from the moment a line is written until the caller has it, against the floor.
func BenchmarkFirstByte(b *testing.B) {
	eachBenchTransport(b, func(b *testing.B, tr Transport) {
		r := newBenchRig(b)
		gate := filepath.Join(b.TempDir(), "gate")
		var latency, floor time.Duration
		n := 0
		for b.Loop() {
			all, _ := r.spent(func() { r.floor(b) })
			floor += all
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
			latency += arrived.Sub(time.Unix(0, written))
			n++
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				b.Fatal(err)
			}
			if _, err := p.Wait(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(latency)/float64(n)/1e6, "ms-to-first-byte")
		b.ReportMetric(float64(latency)/float64(floor), "x-floor")
	})
}
