package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// The limits of an SSH access's life.
const (
	DefaultSSHLifetime = time.Hour
	MaxSSHLifetime     = daytona.MaxSSHMinutes * time.Minute // 24 hours
)

// SSHAccess is a way for a person into the sandbox, through the provider's SSH gateway. Its token is all that the gateway
// asks for. Printed, logged or encoded it shows gateway and end, and not the token.
type SSHAccess struct {
	l       *Lease
	host    string
	port    int
	expires time.Time
	secret  *sshSecret
}

type sshSecret struct{ token string }

// OpenSSH makes an SSH access to the sandbox for lifetime, which is rounded down to whole minutes: one minute to
// [MaxSSHLifetime]; zero: [DefaultSSHLifetime]. A sandbox has one at a time: the provider revokes the one before.
//
// It ends at its time, when it is revoked, and when the lease is given back, whoever does that: this process, another, or a
// [Sweeper]. If it is not known whether one was made ([DispatchedUnknown]), one may exist that nobody knows the token of; it
// is revoked with the lease. The provider does not take a person's work for activity of the library's: without other use the
// sandbox may be stopped for idleness, as far as the gateway does not prevent it. It fails with [ErrProtocol] if a server other
// than Daytona's own names no gateway.
func (l *Lease) OpenSSH(ctx context.Context, lifetime time.Duration) (_ *SSHAccess, err error) {
	const op = "ssh open"
	if lifetime == 0 {
		lifetime = DefaultSSHLifetime
	}
	lifetime = lifetime.Truncate(time.Minute)
	if lifetime < time.Minute || lifetime > MaxSSHLifetime {
		var p problems
		p.add("lifetime", "is out of range: 1 minute to 24 hours")
		return nil, p.err(op)
	}
	ctx, span := l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	done, err := l.begin(op)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := l.whileOpen(ctx)
	defer cancel()
	if _, err := l.toolbox(ctx); err != nil { // ours, and running
		return nil, l.orClosed(failed(op, err))
	}
	call, stop := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
	defer stop()
	made, err := l.client.CreateSSH(call, l.ref.Sandbox, int(lifetime/time.Minute))
	if err != nil {
		e := failed(op, err)
		e.Sandbox = l.ref.Sandbox
		if e.Dispatched != DispatchedNo && (e.HTTPStatus == 0 || e.HTTPStatus >= 500 || e.HTTPStatus < 300) {
			l.endLateSSH(ctx, op)
		}
		return nil, l.orClosed(e)
	}
	if l.endLateSSH(ctx, op) {
		return nil, l.orClosed(&Error{Op: op, Dispatched: DispatchedYes})
	}
	return &SSHAccess{l: l, host: made.Host, port: made.Port, expires: made.ExpiresAt, secret: &sshSecret{made.Token}}, nil
}

// endLateSSH revokes an access that was made while the lease was given back, which may not have known of it any more. It
// reports whether that was so.
func (l *Lease) endLateSSH(ctx context.Context, op string) bool {
	late := l.ended() != nil
	if late {
		_ = l.endSSH(context.WithoutCancel(ctx), op, "") // else it ends at its time
	}
	return late
}

// RevokeSSH ends every SSH access to the sandbox, whoever made it. It may be called when there is none. It fails with
// [ErrClosed] once the lease is being given back, which does the same.
func (l *Lease) RevokeSSH(ctx context.Context) error { return l.revokeSSH(ctx, "") }

// Revoke ends the access. It may be called again, after the lease was given back too, and of one that has ended: with its
// sandbox, say. It fails with [ErrClosed] once the provider is closed.
func (a *SSHAccess) Revoke(ctx context.Context) error { return a.l.revokeSSH(ctx, a.secret.token) }

func (l *Lease) revokeSSH(ctx context.Context, token string) (err error) {
	const op = "ssh revoke"
	ctx, span := l.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	done, err := l.begin(op)
	switch {
	case err == nil:
		defer done()
	case token == "" || l.p.isClosed(): // whoever has the lease next may have let somebody in
		return err
	}
	ctx, end := l.p.untilClosed(ctx)
	defer end()
	switch _, err := l.read(ctx, op); {
	case token != "" && errors.Is(err, ErrGone):
		return nil
	case err != nil:
		return err
	}
	return l.endSSH(ctx, op, token)
}

// endSSH revokes the access with the token; without one, all of the sandbox's.
func (l *Lease) endSSH(ctx context.Context, op, token string) error {
	ctx, cancel := context.WithTimeout(ctx, l.p.cfg.CallTimeout)
	defer cancel()
	if err := l.client.RevokeSSH(ctx, l.ref.Sandbox, token); err != nil {
		e := failed(op, err)
		e.Sandbox = l.ref.Sandbox
		return e
	}
	return nil
}

// Host returns the gateway's name.
func (a *SSHAccess) Host() string { return a.host }

// Port returns the gateway's port.
func (a *SSHAccess) Port() int { return a.port }

// ExpiresAt returns when it ends, by the provider's clock.
func (a *SSHAccess) ExpiresAt() time.Time { return a.expires }

// Token returns the token, which is the user name: a secret, never to be logged.
func (a *SSHAccess) Token() string { return a.secret.token }

// SecretCommand returns the ssh command that opens a shell, with the token: to be shown to the person, never to be logged.
// Its arguments need no quoting.
func (a *SSHAccess) SecretCommand() []string {
	command := []string{"ssh"}
	if a.port != 22 {
		command = append(command, "-p", strconv.Itoa(a.port))
	}
	return append(command, a.secret.token+"@"+a.host)
}

// String returns the gateway and the end.
func (a *SSHAccess) String() string {
	return fmt.Sprintf("ssh access at %s port %d until %s", a.host, a.port, a.expires.UTC().Format(time.RFC3339))
}

// Format writes String, whatever the verb.
func (a *SSHAccess) Format(f fmt.State, _ rune) { io.WriteString(f, a.String()) }

// LogValue returns the gateway and the end.
func (a *SSHAccess) LogValue() slog.Value {
	return slog.GroupValue(slog.String("host", a.host), slog.Int("port", a.port), slog.Time("expires", a.expires))
}

// MarshalJSON encodes host, port and expiresAt.
func (a *SSHAccess) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Host      string    `json:"host"`
		Port      int       `json:"port"`
		ExpiresAt time.Time `json:"expiresAt"`
	}{a.host, a.port, a.expires})
}
