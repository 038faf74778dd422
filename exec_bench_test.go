package leasehold

import (
	"context"
	"testing"

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
		{"journal", Command{Args: []string{"true"}, Profiles: ProfilesNone}},
		{"journal-output", Command{Script: "echo out; echo err >&2", Profiles: ProfilesNone}},
		{"journal-profiles", Command{Args: []string{"true"}}},
		{"session", Command{Args: []string{"true"}, Profiles: ProfilesNone, Transport: TransportSession}},
	} {
		measure(tt.name, func(b *testing.B) {
			if _, err := l.Executor().Run(b.Context(), tt.cmd); err != nil {
				b.Fatal(err)
			}
		})
	}
}
