package daytona

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"
)

// The limits on the life of an SSH access. The API states none; a day is what its dashboard offers.
const (
	MinSSHMinutes = 1
	MaxSSHMinutes = 24 * 60
)

// SSHAccess is a credential of the provider's SSH gateway: the user name is the token.
type SSHAccess struct {
	Token     string
	ExpiresAt time.Time
	Host      string
	Port      int
}

// The hosted service and its gateway, which older versions of it do not name. No other server's token is for that.
const (
	hostedDomain   = "daytona.io"
	defaultSSHHost = "ssh.app." + hostedDomain
)

// hosted reports whether the API is the hosted service's.
func (c *Client) hosted() bool {
	host := strings.ToLower(c.base.Hostname())
	return host == hostedDomain || strings.HasSuffix(host, "."+hostedDomain)
}

// sshCommandForm is the command that the API suggests: ssh [-p PORT] TOKEN@HOST.
var sshCommandForm = regexp.MustCompile(`^ssh (?:-p ([1-9][0-9]{0,4}) )?([A-Za-z0-9_-]+)@([A-Za-z0-9]([A-Za-z0-9.-]{0,252}))$`)

var sshTokenForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{7,255}$`)

// CreateSSH makes a credential for the sandbox. Of a reply whose command is not of the expected form nothing is taken: it
// would be run by a shell. One without a command is taken from the hosted service alone. The API revokes the credentials that
// there were before.
func (c *Client) CreateSSH(ctx context.Context, id string, minutes int) (*SSHAccess, error) {
	if !segment(id) || minutes < MinSSHMinutes || minutes > MaxSSHMinutes {
		return nil, badInput(OpCreateSSH)
	}
	var reply struct {
		SandboxID string `json:"sandboxId"`
		Token     string `json:"token"`
		ExpiresAt string `json:"expiresAt"`
		Command   string `json:"sshCommand"`
	}
	var access *SSHAccess
	err := c.do(ctx, OpCreateSSH, func(ctx context.Context) error {
		_, resp, err := c.api.SandboxAPI.CreateSshAccess(ctx, id).ExpiresInMinutes(float32(minutes)).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		access = &SSHAccess{Token: reply.Token, ExpiresAt: instant(reply.ExpiresAt), Host: defaultSSHHost, Port: 22}
		if reply.SandboxID != id || access.ExpiresAt.IsZero() || !sshTokenForm.MatchString(reply.Token) {
			return errReply
		}
		if reply.Command == "" && c.hosted() {
			return nil
		}
		parts := sshCommandForm.FindStringSubmatch(reply.Command)
		if parts == nil || parts[2] != reply.Token {
			return errReply
		}
		access.Host = parts[3]
		if parts[1] != "" {
			access.Port = atoi(parts[1])
		}
		if access.Port > 65535 {
			return errReply
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return access, nil
}

// atoi reads digits that a pattern has checked.
func atoi(digits string) (n int) {
	for _, d := range digits {
		n = n*10 + int(d-'0')
	}
	return n
}

// RevokeSSH ends the sandbox's credential with that token, or all of them without one. That there is none is a success, also
// where the API does not know of any.
func (c *Client) RevokeSSH(ctx context.Context, id, token string) error {
	err := c.change(ctx, OpRevokeSSH, id, func(ctx context.Context) error {
		request := c.api.SandboxAPI.RevokeSshAccess(ctx, id)
		if token != "" {
			request = request.Token(token)
		}
		_, _, err := request.Execute()
		return err
	})
	var e *Error
	if errors.As(err, &e) && e.Structured && e.says(wordNoRoute) {
		return nil
	}
	return err
}
