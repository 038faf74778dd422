package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-go/leasehold"
)

// backend says where sandboxes come from: Daytona if DAYTONA_API_KEY is set, else this machine.
type backend struct {
	image string
	ttl   time.Duration
}

// open returns a provider that keeps the list of what it has to give back in dir, and the sweeper of that list.
func (b backend) open(dir string, log *slog.Logger) (leasehold.Provider, *leasehold.Sweeper, error) {
	store, err := leasehold.NewFileStore(filepath.Join(dir, "list"), leasehold.FileStoreOptions{
		OnUnreadable: func(file string, _ error) { log.Error("a record of a sandbox cannot be read", "file", file) },
	})
	if err != nil {
		return nil, nil, err
	}
	config := leasehold.Config{Image: b.image, TTL: b.ttl, Store: store, Logger: log}
	var provider leasehold.Provider
	if os.Getenv("DAYTONA_API_KEY") != "" {
		provider, err = leasehold.New(config)
	} else {
		config.Image = "" // there are none here
		provider, err = leasehold.NewLocal(leasehold.LocalConfig{Config: config, Dir: filepath.Join(dir, "sandboxes")})
	}
	if err != nil {
		return nil, nil, err
	}
	sweeper, err := leasehold.NewSweeper(provider, leasehold.SweeperOptions{
		OnEscalate: func(record leasehold.Record) {
			log.Error("a sandbox cannot be given back", "name", record.Envelope.Name, "failures", record.Failures)
		},
		OnOrphan: func(_ context.Context, record leasehold.Record) leasehold.Disposition { return orphaned(dir, record) },
	})
	if err != nil {
		_ = provider.Close(context.Background())
		return nil, nil, err
	}
	return provider, sweeper, nil
}
