package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

// exchange gives lines to a server with a few methods, and returns the lines that it answered by the time it ended.
func exchange(t *testing.T, in io.Reader) []string {
	t.Helper()
	var out strings.Builder
	s := &server{
		out: &lineWriter{w: &out}, log: slog.New(slog.DiscardHandler), unavailable: map[string]bool{"known": true},
		methods: map[string]method{
			"echo":  func(_ context.Context, params json.RawMessage) (any, error) { return params, nil },
			"void":  func(context.Context, json.RawMessage) (any, error) { return nil, nil },
			"fail":  func(context.Context, json.RawMessage) (any, error) { return nil, errors.New("key=secret") },
			"panic": func(context.Context, json.RawMessage) (any, error) { panic("key=secret") },
			"wait": func(ctx context.Context, _ json.RawMessage) (any, error) {
				<-ctx.Done()
				return nil, &rpcError{Code: codeWorker, Message: "interrupted"}
			},
		},
	}
	if err := s.serve(t.Context(), in, func() {}, func() {}); err != nil {
		t.Errorf("serve() = %v", err)
	}
	if out.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a number stays a number": {`{"jsonrpc":"2.0","id":5,"method":"echo","params":{"a":1}}`, `{"jsonrpc":"2.0","id":5,"result":{"a":1}}`},
		"text stays text":         {`{"jsonrpc":"2.0","id":"5","method":"void","params":{}}`, `{"jsonrpc":"2.0","id":"5","result":null}`},
		"big ids":                 {`{"jsonrpc":"2.0","id":9007199254740993,"method":"void"}`, `{"jsonrpc":"2.0","id":9007199254740993,"result":null}`},
		"separators":              {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":\"\u2028\"}", `{"jsonrpc":"2.0","id":1,"result":"\u2028"}`},
		"an unknown method":       {`{"jsonrpc":"2.0","id":1,"method":"nope"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown method: nope"}}`},
		"a method it lacks":       {`{"jsonrpc":"2.0","id":1,"method":"known"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"known is not among what this worker does"}}`},
		"another's error text":    {`{"jsonrpc":"2.0","id":1,"method":"fail"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"the call failed inside the worker"}}`},
		"a panic":                 {`{"jsonrpc":"2.0","id":1,"method":"panic"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"panic failed inside the worker"}}`},
		"no JSON":                 {`{"jsonrpc":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"the line is not JSON"}}`},
		"no version":              {`{"id":1,"method":"void"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a request of JSON-RPC 2.0"}}`},
		"a batch":                 {`[{"jsonrpc":"2.0","id":1,"method":"void"}]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the line is not a request"}}`},
		"an id that is an object": {`{"jsonrpc":"2.0","id":{},"method":"void"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a request of JSON-RPC 2.0"}}`},
		"a notification":          {`{"jsonrpc":"2.0","method":"void"}`, ``},
		"the id null":             {`{"jsonrpc":"2.0","id":null,"method":"void"}`, ``},
		"a reply":                 {`{"jsonrpc":"2.0","id":7,"result":{}}`, ``},
		"the shutdown is last":    {`{"jsonrpc":"2.0","id":1,"method":"shutdown","params":{}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"void"}`, `{"jsonrpc":"2.0","id":1,"result":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(exchange(t, strings.NewReader(c.in+"\n")), "\n"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestAShortCallOvertakesALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, host := io.Pipe()
		answers := make(chan []string)
		go func() { answers <- exchange(t, in) }()
		_, _ = io.WriteString(host, `{"jsonrpc":"2.0","id":1,"method":"wait"}`+"\n"+`{"jsonrpc":"2.0","id":2,"method":"void"}`+"\n")
		synctest.Wait() // the second is answered, the first cannot be
		_ = host.Close()
		want := []string{
			`{"jsonrpc":"2.0","id":2,"result":null}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"interrupted"}}`, // by the end of the input
		}
		if got := <-answers; strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}
