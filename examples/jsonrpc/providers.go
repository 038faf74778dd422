package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

// idleTime is how long a provider without calls is kept. One is replaced when its environment's settings change.
const idleTime = time.Hour

// closeTime bounds the end of a provider.
const closeTime = 5 * time.Second

// providers holds one provider for each company and settings. One process serves every company of a host: nothing that
// a provider caches, counts or waits for is shared between two of them.
type providers struct {
	open func(id string, s settings) (leasehold.Provider, error)

	mu      sync.Mutex
	entries map[string]*providerEntry
}

type providerEntry struct {
	leasehold.Provider
	users int
	used  time.Time
}

// get returns the provider. done must be called after its last use.
func (p *providers) get(company string, s settings) (_ leasehold.Provider, done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := providerID(company, s)
	entry := p.entries[id]
	if entry == nil {
		opened, err := p.open(id, s)
		if err != nil {
			return nil, nil, err
		}
		entry = &providerEntry{Provider: opened}
		if p.entries == nil {
			p.entries = make(map[string]*providerEntry)
		}
		p.entries[id] = entry
	}
	entry.users++
	p.evict() // others
	return entry.Provider, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		entry.users--
		entry.used = time.Now()
	}), nil
}

// all returns the providers there are.
func (p *providers) all() []leasehold.Provider {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []leasehold.Provider
	for _, entry := range p.entries {
		all = append(all, entry.Provider)
	}
	return all
}

// evict closes the providers that nobody used for a while, and that have nothing to remember.
func (p *providers) evict() {
	for id, entry := range p.entries {
		if entry.users == 0 && time.Since(entry.used) > idleTime && entry.Idle().Idle {
			delete(p.entries, id)
			go closeProvider(context.Background(), entry)
		}
	}
}

// close closes them all. Leases outlive their provider.
func (p *providers) close(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var wg sync.WaitGroup
	for _, entry := range p.entries {
		wg.Go(func() { closeProvider(ctx, entry) })
	}
	wg.Wait()
	p.entries = nil
}

func closeProvider(ctx context.Context, p leasehold.Provider) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	_ = p.Close(ctx)
}

// providerID is a digest, because the settings hold a credential.
func providerID(company string, s settings) string {
	encoded, _ := json.Marshal(s) // strings and numbers
	sum := sha256.Sum256(append([]byte(company+"\x00"), encoded...))
	return hex.EncodeToString(sum[:])
}

// openProvider opens the provider of settings: Daytona, or the embedded backend if the worker was started with a
// directory for it. No setting chooses the embedded one: its commands run on this machine, as the worker's user.
func (w *worker) openProvider(id string, s settings) (leasehold.Provider, error) {
	if found := w.problems(s); len(found) > 0 {
		return nil, invalidParams(found[0])
	}
	config := s.config(w.log)
	if w.localDir == "" {
		return leasehold.New(config)
	}
	config.APIKey, config.APIURL = "", ""
	return leasehold.NewLocal(leasehold.LocalConfig{Config: config, Dir: filepath.Join(w.localDir, id[:32])})
}
