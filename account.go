package leasehold

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"sync"
	"sync/atomic"
	"time"
)

// account is what the provider knows of the account it works in: the credential it was configured with, and the
// organisation that the API attested in a reply under that credential.
type account struct {
	endpoint   string
	credential string        // fingerprint of endpoint and credential
	asking     chan struct{} // holds one token: taken by whoever asks the API for the organisation before anything else
	asked      atomic.Bool   // that was done, whatever came of it

	mu       sync.Mutex
	attested string // fingerprint of endpoint and organisation; empty: not attested yet
}

func newAccount(endpoint, apiKey string) *account {
	return &account{endpoint: endpoint, credential: fingerprint("credential", endpoint, apiKey), asking: make(chan struct{}, 1)}
}

// of returns the fingerprint of an organisation that the API named, or nothing if it named none.
func (a *account) of(organization string) string {
	if organization == "" {
		return ""
	}
	return fingerprint("organization", a.endpoint, organization)
}

// known returns the fingerprint of our organisation, if the API attested it.
func (a *account) known() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attested
}

// learn keeps the first organisation that the API attests. A key does not change its organisation.
func (a *account) learn(attested string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.attested == "" {
		a.attested = attested
	}
}

// recorded returns what a reference says of the account of a sandbox of ours: the organisation that was attested first,
// whatever a later answer names, else our credential.
func (a *account) recorded() string {
	if attested := a.known(); attested != "" {
		return attested
	}
	return a.credential
}

// owns reports whether a sandbox that has the target's name and labels, and of which the API says that it belongs to the
// organisation attested, is the target: it was made under our very credential, or in our organisation.
func (a *account) owns(t target, attested string) bool {
	return t.credential == a.credential || t.attested() && t.account == attested
}

// proves reports whether not-found of the target's id is proof, where attested is what the API attests after it. The
// organisation decides where both name one: a rotated key goes on, and another organisation's key has seen nothing. Else
// the credential must be the one that was recorded, and still be of the organisation that was attested for it.
func (a *account) proves(t target, attested string) bool {
	if t.attested() && attested != "" {
		return t.account == attested
	}
	known := a.known()
	return t.credential == a.credential && (attested == "" || known == "" || attested == known)
}

// attested reports whether the target's organisation is recorded. If it could not be attested, its credential stands in
// for it.
func (t target) attested() bool { return t.account != "" && t.account != t.credential }

// proveOurs proves, where the credential alone does not, that the target is of our account, before its durable record is
// taken over: to take it from a host of another account would be to take the sandbox.
func (p *provider) proveOurs(ctx context.Context, op string, t target) error {
	if p.cfg.Store == nil || t.credential == p.account.credential {
		return nil
	}
	_, err := p.read(ctx, op, t)
	return err
}

// attestTime bounds the question before the first creation, which can do without the answer.
const attestTime = 5 * time.Second

// attestOnce asks for our organisation before the first creation, so that its record names the organisation from the
// beginning: without it a rotated key could not account for a creation whose reply never came. All that come meanwhile
// wait. Without an answer the record names the credential alone.
func (p *provider) attestOnce(ctx context.Context) {
	if p.account.asked.Load() {
		return
	}
	select {
	case p.account.asking <- struct{}{}:
		defer func() { <-p.account.asking }()
	case <-ctx.Done():
		return
	}
	if p.account.asked.Load() {
		return
	}
	limited, cancel := context.WithTimeout(ctx, attestTime)
	defer cancel()
	_, _ = p.attest(limited)
	p.account.asked.Store(ctx.Err() == nil) // else the next one asks
}

// attest asks the API afresh for our organisation, and returns its fingerprint. If the API answers and has no sandbox by
// which to tell, the credential is good, and what it attested before under the same credential holds, if anything.
func (p *provider) attest(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	organization, err := p.looking(target{}).CredentialOrganization(ctx)
	if err != nil {
		return "", err
	}
	attested := p.account.of(organization)
	p.account.learn(attested)
	if attested == "" {
		attested = p.account.known()
	}
	return attested, nil
}

// fingerprint is SHA-256 over the parts, each ended by a NUL, which none of them can contain.
func fingerprint(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

var fingerprintForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func checkFingerprint(p *problems, field, value string) {
	if !fingerprintForm.MatchString(value) {
		p.add(field, "is not 64 lower-case hexadecimal digits")
	}
}
