// Command jsonrpc is a sandbox provider for hosts that speak Paperclip's plugin protocol: a worker process that serves
// JSON-RPC 2.0 on its standard input and output, one message a line, for all companies of the host at once.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shutdownTime bounds the end of the worker, by less than the 10 s after which the host ends it.
const shutdownTime = 8 * time.Second

func main() {
	// Only the protocol may write to standard output: what prints there by mistake goes where the host logs it.
	stdout := os.Stdout
	os.Stdout = os.Stderr

	signal.Ignore(syscall.SIGPIPE) // a host that is gone is found out by the end of the input
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	w := newWorker(stdout, options{
		localDir: os.Getenv("LEASEHOLD_LOCAL_DIR"),
		log:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	w.ending = func() { time.AfterFunc(shutdownTime, func() { os.Exit(1) }) }
	if err := w.serve(ctx, os.Stdin); err != nil {
		w.log.Error("the worker ended: its input or output failed")
		os.Exit(1)
	}
}

type options struct {
	// localDir makes every environment one of the embedded backend, with its sandboxes in this directory. Empty: Daytona.
	localDir string
	log      *slog.Logger
}

// worker is the state of the process: nothing in it needs to survive a restart.
type worker struct {
	options
	server     *server
	providers  providers
	leases     leaseTable
	executions executions
	sessions   sessions
	ending     func() // called when the end begins
}

func newWorker(out io.Writer, o options) *worker {
	w := &worker{options: o, ending: func() {}}
	w.providers.open = w.openProvider
	w.server = &server{out: &lineWriter{w: out}, log: o.log, unavailable: make(map[string]bool)}
	w.server.methods, w.server.ordered = w.methods(), w.orderedMethods()
	for _, name := range unavailable {
		w.server.unavailable[name] = true
	}
	return w
}

// serve answers the host until it asks for the end, its side of the input closes, or ctx ends. Leases outlive the
// worker: what the host did not give back is the host's to resume or destroy.
func (w *worker) serve(ctx context.Context, in io.Reader) error {
	return w.server.serve(ctx, in, w.ending, func() { // not before the methods have ended: some still stop commands
		w.sessions.closeAll()
		w.providers.close(context.Background())
	})
}
