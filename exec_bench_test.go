package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// benchLease returns a lease on an emulator of its own.
func benchLease(b *testing.B) (*emulator.Server, *Lease) {
	b.Helper()
	server, err := emulator.Start(emulator.Options{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := newProvider(Config{APIURL: server.URL(), APIKey: server.APIKey()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			b.Error(err)
		}
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	})
	l, err := p.Acquire(b.Context(), request())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := l.toolbox(b.Context()); err != nil {
		b.Fatal(err)
	}
	return server, l
}

// BenchmarkCommand compares a short command, both streams apart, with the floor: a bare execute of `true` on the same
// server. Requests per command are reported too.
func BenchmarkCommand(b *testing.B) {
	server, l := benchLease(b)
	measure := func(name string, run func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			run(b) // warm
			server.ResetRequests()
			n := 0
			for b.Loop() {
				run(b)
				n++
			}
			b.ReportMetric(float64(len(server.Requests()))/float64(n), "requests/op")
		})
	}
	measure("floor", func(b *testing.B) {
		if _, err := l.resolved().Execute(b.Context(), "true", 0); err != nil {
			b.Fatal(err)
		}
	})
	for _, tt := range []struct {
		name string
		cmd  Command
	}{
		{"journal", Command{Args: []string{"true"}, Profiles: ProfilesNone, Transport: TransportJournal}},
		{"journal-output", Command{Script: "echo out; echo err >&2", Profiles: ProfilesNone, Transport: TransportJournal}},
		{"journal-profiles", Command{Args: []string{"true"}, Transport: TransportJournal}},
		{"session", Command{Args: []string{"true"}, Profiles: ProfilesNone, Transport: TransportSession}},
	} {
		measure(tt.name, func(b *testing.B) {
			if _, err := l.Executor().Run(b.Context(), tt.cmd); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkRelay is how fast a large output gets to a writer, while the command prints it.
func BenchmarkRelay(b *testing.B) {
	_, l := benchLease(b)
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		got, err := l.Executor().Run(b.Context(), Command{Script: "head -c 268435456 /dev/zero", Stdout: io.Discard, Profiles: ProfilesNone, Transport: TransportJournal})
		if err != nil || got.StdoutSize != size {
			b.Fatal(got.StdoutSize, err)
		}
	}
}

// BenchmarkInput is how fast an input gets to a command.
func BenchmarkInput(b *testing.B) {
	_, l := benchLease(b)
	content := make([]byte, 8<<20)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		if _, err := l.Executor().Run(b.Context(), Command{Script: "cat >/dev/null", Stdin: bytes.NewReader(content), Profiles: ProfilesNone, Transport: TransportJournal}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFirstByte is how long it takes from the moment a byte is written until the caller has it.
func BenchmarkFirstByte(b *testing.B) {
	_, l := benchLease(b)
	var total time.Duration
	n := 0
	for b.Loop() {
		in, w := io.Pipe()
		out := make(arrivals, 1)
		p, err := l.Executor().Start(b.Context(), Command{Script: "sleep 0.15; date +%s%N; read x", Stdin: in, Stdout: out, Profiles: ProfilesNone, Transport: TransportJournal})
		if err != nil {
			b.Fatal(err)
		}
		line := <-out
		arrived := time.Now()
		written, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		total += arrived.Sub(time.Unix(0, written))
		n++
		w.Close()
		_, _ = p.Wait()
	}
	b.ReportMetric(float64(total.Milliseconds())/float64(n), "ms-to-first-byte")
}

// answering is a transport that answers every script of a journal at once: what remains is the library's own time.
type answering struct{}

var marked = regexp.MustCompile(`_m=(\w+)`)

func (answering) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	m := string(marked.FindSubmatch(body)[1])
	frame, err := json.Marshal("\n" + m + " run /tmp/j\npid 7 1\nstarted\nexit 0\n" + m + " o\n\n" + m + " e 0\n\n" + m + " . 0\n")
	if err != nil {
		return nil, err
	}
	reply := `{"exitCode":0,"result":` + string(frame) + `}`
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(reply)), ContentLength: int64(len(reply)), Request: r}, nil
}

// BenchmarkLibraryTime is what a short command costs the host, apart from the server and the connection.
func BenchmarkLibraryTime(b *testing.B) {
	p, err := newProvider(Config{APIURL: "http://127.0.0.1:1/api", APIKey: "key", Transport: answering{}})
	if err != nil {
		b.Fatal(err)
	}
	l := newLease(p, LeaseRef{Sandbox: "box", Workspace: "/work"})
	l.box = p.client.Toolbox(&daytona.Sandbox{ID: "box", ToolboxURL: "http://127.0.0.1:1/toolbox"})
	b.ReportAllocs()
	for b.Loop() {
		if got, err := l.Executor().Run(b.Context(), Command{Args: []string{"true"}, Transport: TransportJournal}); err != nil || !got.Complete {
			b.Fatal(got, err)
		}
	}
	if err := p.Close(b.Context()); err != nil {
		b.Error(err)
	}
}
