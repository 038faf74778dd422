package main

import (
	"context"

	"github.com/leasehold-go/leasehold"
)

// duplexPair names a channel on every message about it.
type duplexPair struct {
	Route string `json:"hostRouteId"`
	ID    string `json:"workerSessionId,omitempty"`
}

// openDuplex is duplexChannelOpen: a program's standard input and output as one stream of bytes each. Its standard
// error is discarded.
func (w *worker) openDuplex(ctx context.Context, p struct {
	openParams
	Command []string `json:"command"`
}) (any, error) {
	s, read, err := w.open(ctx, p.openParams, func(ctx context.Context, lease *leasehold.Lease) (pipe, error) {
		return asPipe(lease.OpenChannel(ctx, leasehold.ChannelOptions{Args: p.Command}))
	}, func(s *session) observer { return duplexObserver{w, duplexPair{s.route, s.id}} })
	if err != nil {
		return nil, err
	}
	return then{duplexPair{s.route, s.id}, read}, nil
}

// asPipe keeps a nil pointer from becoming a pipe that is not nil.
func asPipe[P pipe](p P, err error) (pipe, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

type duplexObserver struct {
	w    *worker
	pair duplexPair
}

func (o duplexObserver) data(p []byte) {
	o.w.server.notify(context.Background(), "duplexChannel.data", struct {
		duplexPair
		Chunk []byte `json:"chunk"` // base64
	}{o.pair, p})
}

// exit tells an exit from the end of the connection, after which the program may go on, and both from not knowing.
func (o duplexObserver) exit(exit leasehold.Exit) {
	o.w.server.notify(context.Background(), "duplexChannel.exit", struct {
		duplexPair
		ExitCode        *int `json:"exitCode"`
		TransportClosed bool `json:"transportClosed,omitempty"`
	}{o.pair, exitCode(exit), exit.State == leasehold.ExitDisconnected})
}

func exitCode(exit leasehold.Exit) *int {
	if exit.State != leasehold.ExitExited {
		return nil
	}
	return &exit.Code
}

type duplexInput struct {
	duplexPair
	Data []byte `json:"data"` // base64; what is not, is not written
}

// writeDuplex is duplexChannelWrite.
func (w *worker) writeDuplex(p duplexInput) func(context.Context) (any, error) {
	s, err := w.sessions.find(p.Route, p.ID)
	if err != nil {
		return func(context.Context) (any, error) { return nil, err }
	}
	return s.input(p.Data)
}

// stopDuplex is duplexChannelStop: the program is ended.
func (w *worker) stopDuplex(_ context.Context, p duplexPair) (any, error) {
	s, err := w.sessions.find(p.Route, p.ID)
	if err != nil {
		return nil, nil // it has ended
	}
	return nil, s.stop()
}

// closeDuplex is duplexChannelClose.
func (w *worker) closeDuplex(_ context.Context, p duplexPair) (any, error) {
	return duplexPair{p.Route, w.sessions.closeRoute(p.Route)}, nil
}
