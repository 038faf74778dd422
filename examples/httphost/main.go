// Command httphost is a small HTTP service that gives its tenants leases on sandboxes: create, resume and give back, run
// commands and follow their output, move directories both ways. It is written on the standard library and Leasehold alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	// drainTime bounds what is left of the requests once all were told to end: more than a client is waited for. Then their
	// connections are cut.
	drainTime = writeTime + 15*time.Second
	// shutdownTime bounds the giving back, and the end of the provider: what takes longer is left to the durable list, and to
	// the next process.
	shutdownTime = 2 * time.Minute
)

type options struct {
	listen string
	dir    string // of everything that survives the process
	keep   bool   // at the end, leave leases and commands for the next process
	tokens string // as parseTenants takes them; empty: one is made up
	backend
	limits
}

func main() {
	o := options{tokens: os.Getenv("HTTPHOST_TOKENS"), limits: defaultLimits}
	flag.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address to serve on")
	flag.StringVar(&o.dir, "dir", "httphost-data", "directory for leases, output of commands, and the list of what is to be given back")
	flag.BoolVar(&o.keep, "keep", false, "at the end leave leases and commands as they are, for the next process to go on with")
	flag.StringVar(&o.backend.image, "image", "", "image of the sandboxes, on Daytona (default: the provider's)")
	flag.DurationVar(&o.backend.ttl, "ttl", 24*time.Hour, "lifetime of a sandbox, after which the provider destroys it; 0: none")
	flag.IntVar(&o.limits.leases, "leases", o.limits.leases, "leases that a tenant may have")
	flag.IntVar(&o.limits.commands, "commands", o.limits.commands, "commands that a tenant may have running")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	if err := run(ctx, o, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "httphost:", err)
		stop()
		os.Exit(1)
	}
}

// run serves until ctx ends. Then it stops the commands, gives back every lease but those that a tenant kept, and
// returns when all is proved, or on the durable list.
func run(ctx context.Context, o options, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	tenants, made, err := parseTenants(o.tokens, o.limits)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	provider, sweeper, err := o.backend.open(o.dir, log)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		err = errors.Join(err, provider.Close(closing))
	}()
	s, err := newService(provider, o.dir, tenants, o.limits, log)
	if err != nil {
		return err
	}
	sweeping, endSweeping := context.WithCancel(context.WithoutCancel(ctx))
	defer endSweeping()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		_ = sweeper.Run(sweeping)
	}()

	server := s.server()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(stderr, "serving on http://%s/\n", listener.Addr())
	if made != "" {
		fmt.Fprintf(stderr, "the page, with a token made up for this run: http://%s/#%s\n", listener.Addr(), made)
	}
	select {
	case err = <-served: // the listener failed
	case <-ctx.Done():
	}

	err = errors.Join(err, s.shutDown(server, o.keep, func(ctx context.Context) error {
		_, err := sweeper.Sweep(ctx)
		return err
	}))
	endSweeping()
	<-swept
	return err
}

// shutDown ends the work and the requests, and then, unless all is kept, gives the leases back, for which no client can use
// up the time. sweep tries once more what failed half-way.
func (s *service) shutDown(server *http.Server, keep bool, sweep func(context.Context) error) error {
	s.stopWork(keep)
	draining, drained := context.WithTimeout(context.Background(), drainTime)
	defer drained()
	if err := server.Shutdown(draining); err != nil {
		s.log.Warn("the connections of requests that do not end are cut", "err", err)
		_ = server.Close()
	}
	s.background.Wait()
	if keep {
		return nil
	}
	ending, ended := context.WithTimeout(context.Background(), shutdownTime)
	defer ended()
	return errors.Join(s.giveBackAll(ending), sweep(ending))
}
