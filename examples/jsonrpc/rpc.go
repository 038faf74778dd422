package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// message is one line of either direction: a request, a notification (no id), or a reply (no method).
type message struct {
	JSONRPC string `json:"jsonrpc"`
	// ID is kept as it came: a reply to 5 with the id "5" answers nobody.
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *rpcError       `json:"error,omitempty"`

	// Invocation comes with a request that is made for a company; its id goes with everything that is sent to the host
	// on behalf of that request.
	Invocation   *invocation `json:"paperclipInvocation,omitempty"`
	InvocationID string      `json:"paperclipInvocationId,omitempty"`
}

type invocation struct {
	ID string `json:"id"`
}

type invocationKey struct{}

// method serves one request. Its context ends with the connection; a method sets its own deadline.
type method func(ctx context.Context, params json.RawMessage) (any, error)

// orderedMethod serves one request of those that take effect in the order in which they come. It is called by the reader
// of the connection, and must not wait; what it returns is called as a method is.
type orderedMethod func(params json.RawMessage) func(context.Context) (any, error)

// then is a result, and what is to be done once it was sent.
type then struct {
	result any
	do     func()
}

// server answers the requests of one connection, each in a goroutine of its own: the host sends many at a time, and
// expects a short one to overtake a long one.
type server struct {
	methods map[string]method
	ordered map[string]orderedMethod
	// unavailable are methods that the protocol knows and this worker does not have.
	unavailable map[string]bool
	out         *lineWriter
	log         *slog.Logger
	handlers    sync.WaitGroup
	underWay    atomic.Int64 // requests not answered yet
}

// serve reads until the input ends, ctx ends, or the host asks to shut down. It returns once every handler has: they see
// their context end. stopping is called before that, and stopped after it. The reply to the shutdown is the last line.
func (s *server) serve(ctx context.Context, in io.Reader, stopping, stopped func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	lines := make(chan []byte)
	ended := make(chan error, 1)
	go func() { ended <- s.read(ctx, newLineReader(in, maxLine), lines) }()

	var goodbye json.RawMessage
	var err error
	for goodbye == nil {
		select {
		case line := <-lines:
			goodbye = s.accept(ctx, line)
			continue
		case err = <-ended:
			if errors.Is(err, io.EOF) { // the host is gone; nothing else would say so
				err = nil
			}
		case <-ctx.Done():
		}
		break
	}
	cancel()
	stopping()
	s.handlers.Wait()
	stopped()
	if goodbye != nil {
		err = s.out.write(message{JSONRPC: "2.0", ID: goodbye, Result: json.RawMessage("null")})
	}
	return err
}

func (s *server) read(ctx context.Context, in *lineReader, lines chan<- []byte) error {
	for {
		line, err := in.next()
		if errors.Is(err, errLineTooLong) {
			s.log.Error("a line of the host was passed over: too long", "limit", maxLine)
			continue
		}
		if err != nil {
			return err
		}
		select {
		case lines <- line:
		case <-ctx.Done():
			return nil
		}
	}
}

// accept starts the handler of a request. It returns the id of a request to shut down.
func (s *server) accept(ctx context.Context, line []byte) (goodbye json.RawMessage) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		code, text := codeInvalidRequest, "the line is not a request"
		if !json.Valid(line) {
			code, text = codeParse, "the line is not JSON"
		}
		s.reply(json.RawMessage("null"), nil, &rpcError{Code: code, Message: text})
		return nil
	}
	switch {
	case m.JSONRPC != "2.0" || m.ID != nil && !validID(m.ID):
		s.reply(json.RawMessage("null"), nil, &rpcError{Code: codeInvalidRequest, Message: "not a request of JSON-RPC 2.0"})
		return nil
	case m.ID == nil || string(m.ID) == "null" || m.Method == "": // nobody waits for an answer, or it is one
		return nil
	case m.Method == "shutdown":
		return m.ID
	}
	if m.Invocation != nil {
		ctx = context.WithValue(ctx, invocationKey{}, m.Invocation.ID)
	}
	serve := s.methods[m.Method]
	if ordered := s.ordered[m.Method]; ordered != nil {
		rest := ordered(m.Params)
		serve = func(ctx context.Context, _ json.RawMessage) (any, error) { return rest(ctx) }
	}
	s.underWay.Add(1)
	s.handlers.Go(func() {
		result, err := s.call(ctx, serve, m)
		s.underWay.Add(-1) // before the host knows
		s.reply(m.ID, result, err)
	})
	return nil
}

// validID refuses objects, lists and truth values.
func validID(id json.RawMessage) bool { return !bytes.ContainsAny(id[:1], "{[tf") }

func (s *server) call(ctx context.Context, serve method, m message) (result any, err error) {
	defer func() {
		if recover() != nil { // the value may hold anything, and the host shows standard error to its users
			s.log.Error("a method panicked", "method", m.Method, "stack", string(debug.Stack()))
			result, err = nil, &rpcError{Code: codeWorker, Message: m.Method + " failed inside the worker"}
		}
	}()
	switch {
	case serve != nil:
		return serve(ctx, m.Params)
	case s.unavailable[m.Method]:
		return nil, &rpcError{Code: codeNotImplemented, Message: m.Method + " is not among what this worker does"}
	}
	return nil, &rpcError{Code: codeMethodNotFound, Message: "unknown method: " + m.Method}
}

func (s *server) reply(id json.RawMessage, result any, err error) {
	m := message{JSONRPC: "2.0", ID: id}
	if t, ok := result.(then); ok {
		defer t.do()
		result = t.result
	}
	if err != nil {
		m.Error = toRPC(err)
	} else if encoded, err := json.Marshal(result); err != nil {
		m.Error = &rpcError{Code: codeWorker, Message: "the result cannot be encoded"}
	} else {
		m.Result = encoded
	}
	if err := s.out.write(m); err != nil {
		s.log.Error("a reply could not be written")
	}
}

// notify sends a notification on behalf of the request that ctx belongs to. Nobody answers it.
func (s *server) notify(ctx context.Context, name string, params any) {
	encoded, err := json.Marshal(params)
	if err == nil {
		id, _ := ctx.Value(invocationKey{}).(string)
		err = s.out.write(message{JSONRPC: "2.0", Method: name, Params: encoded, InvocationID: id})
	}
	if err != nil {
		s.log.Error("a notification could not be written", "method", name)
	}
}
