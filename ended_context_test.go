//go:build unix

package leasehold

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// untouched is an input that must not be read.
type untouched struct{ t *testing.T }

func (u untouched) Read([]byte) (int, error) {
	u.t.Error("the input was read")
	return 0, io.EOF
}

// A call whose context has ended before sends nothing, reads no input and ends nothing.
func TestACallOnAnEndedContextDoesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, emulator.Options{Shell: "sh"})
	l := r.acquired(t)
	x, imp, exp := l.Executor(), l.Importer(), l.Exporter()
	in, local := untouched{t}, filepath.Join(t.TempDir(), "local")
	terminal := openTerminal(t, l, TerminalOptions{})
	channel := openChannel(t, l, ChannelOptions{Args: []string{"cat"}})
	busy := newRig(t, Config{}, emulator.Options{Shell: "sh"}).acquired(t) // whose commands make requests by themselves
	running := map[Transport]*Process{}
	for _, tr := range []Transport{TransportJournal, TransportSession} {
		running[tr] = started(t, t.Context(), busy, Command{Args: []string{"sleep", "600"}, Transport: tr})
	}
	e := endpointOf(t, l, service(t, echo))
	signed, err := e.Sign(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	ssh := openedSSH(t, l)
	snapshots, err := NewSnapshots(r.provider)
	if err != nil {
		t.Fatal(err)
	}
	plan := snapshots.Plan("ended")
	made := plan
	made.ID = "made"
	files := []FileMapping{{Local: local, Remote: "file"}}
	type call func(ctx context.Context) error
	run := func(tr Transport) call {
		return func(ctx context.Context) error {
			return second(x.Run(ctx, Command{Args: []string{"true"}, Stdin: in, Transport: tr}))
		}
	}
	calls := map[string]call{
		"Run, journal": run(TransportJournal),
		"Run, session": run(TransportSession),
		"Start": func(ctx context.Context) error {
			return second(x.Start(ctx, Command{Args: []string{"true"}, Stdin: in}))
		},
		"Kill, journal": func(ctx context.Context) error { return running[TransportJournal].Kill(ctx) },
		"Kill, session": func(ctx context.Context) error { return running[TransportSession].Kill(ctx) },
		"Signal":        func(ctx context.Context) error { return running[TransportJournal].Signal(ctx, "TERM") },
		"Attach": func(ctx context.Context) error {
			return second(busy.Executor().Attach(ctx, running[TransportJournal].Ref(), Attachment{}))
		},
		"Importer.Dir":   func(ctx context.Context) error { return second(imp.Dir(ctx, t.TempDir(), "in", ImportOptions{})) },
		"Importer.FS":    func(ctx context.Context) error { return second(imp.FS(ctx, fstest.MapFS{}, "in", ImportOptions{})) },
		"Importer.File":  func(ctx context.Context) error { return second(imp.File(ctx, local, "in", ImportOptions{})) },
		"Importer.Files": func(ctx context.Context) error { return second(imp.Files(ctx, files, ImportOptions{})) },
		"Importer.Tar":   func(ctx context.Context) error { return second(imp.Tar(ctx, in, "in", ImportOptions{})) },
		"Exporter.Dir":   func(ctx context.Context) error { return second(exp.Dir(ctx, "", local, ExportOptions{})) },
		"Exporter.File":  func(ctx context.Context) error { return second(exp.File(ctx, "file", local, ExportOptions{})) },
		"Exporter.Files": func(ctx context.Context) error { return second(exp.Files(ctx, files, ExportOptions{})) },
		"Exporter.Tar":   func(ctx context.Context) error { return second(exp.Tar(ctx, "", io.Discard, ExportOptions{})) },
		"WritableDirs":   func(ctx context.Context) error { return second(l.WritableDirs(ctx)) },
		"OpenTerminal":   func(ctx context.Context) error { return second(l.OpenTerminal(ctx, TerminalOptions{})) },
		"AttachTerminal": func(ctx context.Context) error { return second(l.AttachTerminal(ctx, terminal.ID())) },
		"Resize":         func(ctx context.Context) error { return terminal.Resize(ctx, 100, 30) },
		"CloseTerminal":  func(ctx context.Context) error { return l.CloseTerminal(ctx, terminal.ID()) },
		"OpenChannel": func(ctx context.Context) error {
			return second(l.OpenChannel(ctx, ChannelOptions{Args: []string{"cat"}}))
		},
		"CloseChannel":  func(ctx context.Context) error { return l.CloseChannel(ctx, channel.ID()) },
		"Endpoint":      func(ctx context.Context) error { return second(l.Endpoint(ctx, e.Port())) },
		"Sign":          func(ctx context.Context) error { return second(e.Sign(ctx, 0)) },
		"Revoke":        signed.Revoke,
		"DialWebSocket": func(ctx context.Context) error { return second(e.DialWebSocket(ctx, "", WebSocketOptions{})) },
		"RoundTrip": func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL().String(), in)
			if err != nil {
				t.Fatal(err)
			}
			return second(e.Transport().RoundTrip(req))
		},
		"OpenSSH":           func(ctx context.Context) error { return second(l.OpenSSH(ctx, 0)) },
		"RevokeSSH":         l.RevokeSSH,
		"SSHAccess.Revoke":  ssh.Revoke,
		"Build":             func(ctx context.Context) error { return second(snapshots.Build(ctx, plan, BuildRequest{Image: "a:1"})) },
		"Capture":           func(ctx context.Context) error { return second(snapshots.Capture(ctx, l, plan)) },
		"Snapshots.Inspect": func(ctx context.Context) error { return second(snapshots.Inspect(ctx, plan)) },
		"Snapshots.Delete":  func(ctx context.Context) error { return snapshots.Delete(ctx, made) },
		"Acquire":           func(ctx context.Context) error { return second(r.Acquire(ctx, request())) },
		"Probe":             func(ctx context.Context) error { return second(r.Probe(ctx, request())) },
		"Resume":            func(ctx context.Context) error { return second(r.Resume(ctx, l.Ref())) },
		"Release":           func(ctx context.Context) error { return second(r.Release(ctx, l.Ref(), ReleaseOptions{})) },
		"Destroy":           func(ctx context.Context) error { return second(r.Destroy(ctx, l.Ref())) },
	}
	r.server.ResetRequests()
	for name, call := range calls {
		err := call(closedContext(t))
		dispatched := DispatchedNo
		if name == "Attach" { // whose errors say so of the command
			dispatched = DispatchedYes
		}
		if e := new(Error); !errors.As(err, &e) || e.Kind != KindCanceled || e.Dispatched != dispatched || !errors.Is(e, context.Canceled) {
			t.Errorf("%s: error = %v (%+v), want KindCanceled with its cause, and Dispatched %q", name, err, e, dispatched)
		}
	}
	if err := terminal.Resize(t.Context(), 100, 30); err != nil {
		t.Errorf("the terminal was ended: %v", err)
	}
	r.wantRequests(t, "POST /toolbox/*/process/pty/*/resize")
	if _, err := channel.Write([]byte("x")); err != nil {
		t.Errorf("the channel was ended: %v", err)
	}
	for tr, p := range running {
		if err := p.Kill(t.Context()); err != nil {
			t.Errorf("the command of the %s was ended: %v", tr, err)
		}
	}
}
