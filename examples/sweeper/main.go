// Command sweeper is a service that gives back what killed hosts left: it works off a durable list for as long as it runs,
// and shows the list over HTTP. Without DAYTONA_API_KEY it runs on the embedded backend.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold-go/leasehold"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where to listen")
	state := flag.String("state", "state", "directory of the list")
	interval := flag.Duration("interval", 30*time.Second, "between two passes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *addr)
	if err == nil {
		err = run(ctx, *state, *interval, listener, slog.Default())
	}
	if err != nil {
		slog.Error("sweeper", "error", err)
		os.Exit(1)
	}
}

// run serves and sweeps until ctx ends, and leaves nothing running.
func run(ctx context.Context, state string, interval time.Duration, listener net.Listener, logger *slog.Logger) (err error) {
	store, err := leasehold.NewFileStore(filepath.Join(state, "leases"), leasehold.FileStoreOptions{
		OnUnreadable: func(file string, err error) { logger.Error("unreadable record", "file", file, "error", err) },
	})
	if err != nil {
		return err
	}
	config := leasehold.Config{Store: store, Logger: logger}
	var provider leasehold.Provider
	if os.Getenv("DAYTONA_API_KEY") != "" {
		provider, err = leasehold.New(config)
	} else {
		provider, err = leasehold.NewLocal(leasehold.LocalConfig{Dir: filepath.Join(state, "sandboxes"), Config: config})
	}
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, provider.Close(closing))
	}()
	sweeper, err := leasehold.NewSweeper(provider, leasehold.SweeperOptions{
		Interval: interval,
		OnOrphan: func(_ context.Context, r leasehold.Record) leasehold.Disposition {
			if r.State == leasehold.StateStopped { // its host wanted it kept, and did not live to stop it
				return leasehold.OrphanKeep
			}
			logger.Info("its host is dead", "sandbox", r.Envelope.Name, "run", r.Envelope.Scope.Run, "state", r.State)
			return leasehold.OrphanDestroy
		},
		OnEscalate: func(r leasehold.Record) { // page somebody: money may be running out
			logger.Error("not accounted for", "sandbox", r.Envelope.Name, "attempts", r.Failures, "outcome", r.Outcome)
		},
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: list(store), ReadHeaderTimeout: 10 * time.Second}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { // a dead sweeper ends the service: whoever supervises it starts it again
		if err := sweeper.Run(ctx); !errors.Is(err, leasehold.ErrCanceled) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(closing)
	})
	return group.Wait()
}

// list shows what is on the list: of a record its state, whose it is, and how often it resisted.
func list(store leasehold.Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leases", func(w http.ResponseWriter, r *http.Request) {
		entries, err := store.List(r.Context(), r.FormValue("after"), 100)
		if err != nil {
			http.Error(w, "the list cannot be read", http.StatusServiceUnavailable)
			return
		}
		rows := []map[string]any{}
		for _, e := range entries {
			rows = append(rows, map[string]any{"attempt": e.Record.Envelope.Attempt, "scope": e.Record.Envelope.Scope,
				"state": e.Record.State, "alive": e.Alive, "failures": e.Record.Failures})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(rows)
	})
	return mux
}
