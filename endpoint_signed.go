package leasehold

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// The limits of a signed URL's life.
const (
	DefaultSignedLifetime = time.Minute
	MaxSignedLifetime     = daytona.MaxSignedPreview * time.Second // 24 hours
)

// SignedURL is an address of an endpoint that needs no header, for a browser or a program that cannot set one. It is a
// secret itself: whoever has it reaches the service until it expires, is revoked, or the sandbox stops. It does not end with
// the lease. Printed, logged or encoded it does not show the address.
type SignedURL struct {
	e       *Endpoint
	expires time.Time
	secret  *signedSecret
}

type signedSecret struct{ address, token string }

// Sign makes an address that opens the endpoint for lifetime, which is rounded down to whole seconds: one second to
// [MaxSignedLifetime]; zero: [DefaultSignedLifetime]. Prefer [Endpoint.Transport], which shows the token to nobody.
//
// It fails with [ErrInvalid] for a lifetime out of range, and with [ErrClosed] once the lease is being given back, before
// anything is sent; with [ErrProtocol] if the address is not the port's; and with [ErrNotFound], [ErrAuth], [ErrRefused],
// [ErrRateLimited], [ErrUnavailable], [ErrCanceled], or [ErrTimeout], after [Config.CallTimeout] at the latest.
func (e *Endpoint) Sign(ctx context.Context, lifetime time.Duration) (_ *SignedURL, err error) {
	const op = "endpoint sign"
	if lifetime == 0 {
		lifetime = DefaultSignedLifetime
	}
	lifetime = lifetime.Truncate(time.Second)
	if lifetime < time.Second || lifetime > MaxSignedLifetime {
		var p problems
		p.add("lifetime", "is out of range: 1 second to 24 hours")
		return nil, p.err(op)
	}
	done, err := e.l.begin(op)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := e.l.whileOpen(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, e.l.p.cfg.CallTimeout)
	defer stop()
	fail := func(phase Phase, err *Error) (*SignedURL, error) {
		err.Op, err.Phase, err.Sandbox = op, phase, e.l.ref.Sandbox
		return nil, e.l.orClosed(err)
	}
	before := time.Now() // the provider's count begins later, so that this end is never too late
	raw, token, err := e.l.client.SignPreview(ctx, e.l.ref.Sandbox, e.port, int(lifetime/time.Second))
	if err != nil {
		return fail(PhasePreview, failed(op, err))
	}
	address, problem := endpointAddress(raw, e.port, token, e.l.p.embedded)
	if problem != "" {
		return fail(PhaseValidation, &Error{Kind: KindProtocol, HTTPStatus: 200, Dispatched: DispatchedYes, Message: "the provider signed an address that is not the port's: " + problem})
	}
	return &SignedURL{e: e, expires: before.Add(lifetime), secret: &signedSecret{address.String(), token}}, nil
}

// SecretURL returns the address: a secret, never to be logged.
func (s *SignedURL) SecretURL() string { return s.secret.address }

// ExpiresAt returns when it ends, by the host's clock.
func (s *SignedURL) ExpiresAt() time.Time { return s.expires }

// Revoke ends it early. It may be called again, after the lease was given back too, and of one that has ended. It fails with
// [ErrClosed] once the provider is closed, with [ErrTimeout] after [Config.CallTimeout], and as the provider refuses it.
func (s *SignedURL) Revoke(ctx context.Context) error {
	const op = "endpoint revoke"
	l := s.e.l
	if l.p.isClosed() {
		return &Error{Op: op, Kind: KindClosed, Sandbox: l.ref.Sandbox, Dispatched: DispatchedNo, Message: errProviderClosed.Error()}
	}
	ctx, end := l.p.untilClosed(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
	defer cancel()
	if err := l.client.ExpirePreview(ctx, l.ref.Sandbox, s.e.port, s.secret.token); err != nil {
		e := failed(op, err)
		e.Sandbox = l.ref.Sandbox
		return e
	}
	return nil
}

// String returns the port and the end.
func (s *SignedURL) String() string {
	return fmt.Sprintf("signed URL of port %d until %s", s.e.port, s.expires.UTC().Format(time.RFC3339))
}

// Format writes String, whatever the verb.
func (s *SignedURL) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// LogValue returns the port and the end.
func (s *SignedURL) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("port", s.e.port), slog.Time("expires", s.expires))
}

// MarshalJSON encodes port and expiresAt.
func (s *SignedURL) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Port      int       `json:"port"`
		ExpiresAt time.Time `json:"expiresAt"`
	}{s.e.port, s.expires})
}
