package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// pipe is what a [leasehold.Terminal] and a [leasehold.Channel] have in common.
type pipe interface {
	io.ReadWriteCloser
	Wait(context.Context) (leasehold.Exit, error)
}

const (
	// maxInputs is how many writes to one session may be under way: as many as the host has on one route.
	maxInputs = 256
	// closeWait bounds a close. The host gives it 10 s, and then kills the worker with everything that other sessions do.
	closeWait = 8 * time.Second
)

var (
	errNoSession   = &rpcError{Code: codeWorker, Message: "there is no such session"}
	errSessionOver = &rpcError{Code: codeWorker, Message: "the session is closed"}
)

// sessions are the terminals and channels. Each has two names: the host's route, by which it is closed even if the answer
// to its opening was lost, and the worker's own, by which it is used. One that has ended is known until the host closes it:
// a close that is not answered with both names is none to the host, which then kills the worker.
type sessions struct {
	mu      sync.Mutex
	byRoute map[string]*session
	byID    map[string]*session
	pumps   sync.WaitGroup
}

type session struct {
	route, id string
	cancel    context.CancelFunc // of the opening
	inputs    chan input
	closed    chan struct{}
	close     sync.Once

	mu   sync.Mutex
	pipe pipe // nil until it is open
}

type input struct {
	data []byte
	done chan<- error
}

// openParams are the parameters that the two kinds of session share. No configuration comes with them.
type openParams struct {
	Route           string `json:"hostRouteId"`
	DriverKey       string `json:"driverKey"`
	CompanyID       string `json:"companyId"`
	EnvironmentID   string `json:"environmentId"`
	ProviderLeaseID string `json:"providerLeaseId"`
}

// observer is told of a session's output and of its end, by one goroutine.
type observer interface {
	data(p []byte)
	exit(leasehold.Exit)
}

// open opens a session on a lease that an earlier call has made known, and returns the worker's name of it. What it
// prints is read once the host was told of that name.
func (w *worker) open(ctx context.Context, p openParams, start func(context.Context, *leasehold.Lease) (pipe, error), to func(*session) observer,
) (_ *session, read func(), err error) {
	if p.DriverKey != driverKey || p.Route == "" {
		return nil, nil, invalidParams("params name another driver, or no route")
	}
	known, err := w.leases.get(leaseKey{p.CompanyID, p.EnvironmentID, p.ProviderLeaseID})
	if err != nil {
		return nil, nil, err
	}
	provider, done, err := w.providers.get(p.CompanyID, known.settings)
	if err != nil {
		return nil, nil, err
	}
	lease, err := provider.Bind(known.ref)
	if err != nil {
		done()
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{route: p.Route, id: uuid.NewString(), cancel: cancel, inputs: make(chan input, maxInputs), closed: make(chan struct{})}
	if err := w.sessions.add(s); err != nil {
		done()
		return nil, nil, err
	}
	opened, err := start(ctx, lease)
	if err == nil && !s.set(opened) { // closed meanwhile
		_ = opened.Close()
		err = errSessionOver
	}
	if err != nil {
		w.sessions.remove(s)
		done()
		return nil, nil, err
	}
	observe := to(s)
	w.sessions.pumps.Go(s.write)
	return s, func() {
		w.sessions.pumps.Go(func() {
			defer done()
			s.read(observe)
		})
	}, nil
}

// read passes on what the session prints until it has ended or is closed.
func (s *session) read(to observer) {
	buffer := make([]byte, maxChunk)
	for {
		n, err := s.pipe.Read(buffer)
		if s.isClosed() {
			return // the host wants to hear no more
		}
		if n > 0 {
			to.data(buffer[:n])
		}
		if err != nil {
			break
		}
	}
	exit, _ := s.pipe.Wait(context.Background()) // its output has ended, so it has
	if !s.isClosed() {
		to.exit(exit)
	}
	_ = s.end()
}

// write gives the session its input, in the order of the calls.
func (s *session) write() {
	for {
		select {
		case in := <-s.inputs:
			_, err := s.pipe.Write(in.data)
			in.done <- err
		case <-s.closed:
			return
		}
	}
}

// input queues data for the session, and returns what waits until the session has taken it. It is called in the order in
// which the host wrote.
func (s *session) input(data []byte) func(context.Context) (any, error) {
	done := make(chan error, 1)
	select {
	case s.inputs <- input{data, done}:
	default:
		return func(context.Context) (any, error) { return nil, errors.New("too many writes are under way") }
	}
	return func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, hostDefault-reserve)
		defer cancel()
		select {
		case err := <-done:
			return nil, err
		case <-s.closed:
			return nil, errSessionOver
		case <-ctx.Done():
			return nil, &rpcError{Code: codeWorker, Message: "the program has not yet taken the input"}
		}
	}
}

// set makes the session usable, unless it was closed before.
func (s *session) set(p pipe) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pipe = p
	return !s.isClosed()
}

func (s *session) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// end closes the session and its program, or gives up its opening. It may be called again.
func (s *session) end() error {
	s.close.Do(func() { close(s.closed) })
	s.cancel()
	return s.stop()
}

// stop ends the program. Its end is then told like any other.
func (s *session) stop() error {
	s.mu.Lock()
	opened := s.pipe
	s.mu.Unlock()
	if opened == nil {
		return nil
	}
	return opened.Close()
}

func (t *sessions) add(s *session) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byRoute[s.route] != nil {
		return invalidParams("params.hostRouteId is in use")
	}
	if t.byRoute == nil {
		t.byRoute, t.byID = make(map[string]*session), make(map[string]*session)
	}
	t.byRoute[s.route], t.byID[s.id] = s, s
	return nil
}

func (t *sessions) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byRoute[s.route] == s { // it may be another's by now
		delete(t.byRoute, s.route)
	}
	delete(t.byID, s.id)
}

// find returns the session of a worker's name, of the route too if one is given.
func (t *sessions) find(route, id string) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[id]
	if s == nil || route != "" && s.route != route {
		return nil, errNoSession
	}
	return s, nil
}

// closeRoute closes the session of a route, and returns the worker's name of it, or nothing if there is none. The host
// takes the answer for the end of the route, and so it is, even if the sandbox could not be reached to end the program:
// that ends with the lease.
func (t *sessions) closeRoute(route string) (id string) {
	t.mu.Lock()
	s := t.byRoute[route]
	t.mu.Unlock()
	if s == nil {
		return ""
	}
	ended := make(chan struct{})
	t.pumps.Go(func() {
		defer close(ended)
		_ = s.end()
	})
	select {
	case <-ended:
	case <-time.After(closeWait):
	}
	t.remove(s)
	return s.id
}

// closeAll closes every session, and waits until nothing of them is under way.
func (t *sessions) closeAll() {
	t.mu.Lock()
	var open []*session
	for _, s := range t.byRoute {
		open = append(open, s)
	}
	t.mu.Unlock()
	for _, s := range open {
		t.pumps.Go(func() { _ = s.end() })
	}
	t.pumps.Wait()
}

// queued is a method whose calls take effect in the order in which they came. The first part is called by the reader
// of the connection and must not wait; what it returns is called in a goroutine of its own.
func queued[P any](accept func(P) func(context.Context) (any, error)) orderedMethod {
	return func(params json.RawMessage) func(context.Context) (any, error) {
		p, err := decode[P](params)
		if err != nil {
			return func(context.Context) (any, error) { return nil, err }
		}
		return accept(p)
	}
}
