package main

import (
	"context"
	"errors"
	"regexp"

	"github.com/leasehold-go/leasehold"
)

// loginCommands are the commands that a host may run on a login terminal: it sends a key, never a command. Each is given
// the session's own directory for what it stores, if it takes one.
var loginCommands = map[string]struct {
	args []string
	home string // variable
}{
	"claude": {args: []string{"claude", "setup-token"}},
	"codex":  {args: []string{"codex", "login", "--device-auth"}, home: "CODEX_HOME"},
	"grok":   {args: []string{"grok", "login", "--device-auth"}, home: "GROK_HOME"},
}

var loginHome = regexp.MustCompile(`^/tmp/paperclip-adapter-login/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// openLogin is loginPtyOpen. What the user types goes over the terminal only, never into an argument.
func (w *worker) openLogin(ctx context.Context, p struct {
	openParams
	Key  string `json:"loginCommandKey"`
	Home string `json:"sessionHome"`
}) (any, error) {
	command, ok := loginCommands[p.Key]
	if !ok || !loginHome.MatchString(p.Home) {
		return nil, invalidParams("LOGIN_PTY_DESCRIPTOR_REJECTED")
	}
	s, read, err := w.open(ctx, p.openParams, func(ctx context.Context, lease *leasehold.Lease) (pipe, error) {
		// A terminal's login shell need not be one that reads the files in which the image puts its tools on PATH.
		prepared, err := lease.Executor().Run(ctx, leasehold.Command{
			Args: []string{"sh", "-c", `mkdir -p -m 700 -- "$1" && printf %s "$PATH"`, "sh", p.Home},
		})
		if err == nil && prepared.ExitCode != 0 {
			err = &rpcError{Code: codeWorker, Message: "LOGIN_PTY_HOME_REJECTED"}
		}
		if err != nil {
			return nil, err
		}
		options := leasehold.TerminalOptions{Args: command.args, Cols: 120, Rows: 30, Env: map[string]string{"PATH": string(prepared.Stdout)}}
		if command.home != "" {
			options.Env[command.home] = p.Home
		}
		return asPipe(lease.OpenTerminal(ctx, options))
	}, func(s *session) observer { return &loginObserver{w: w, session: s} })
	if err != nil {
		return nil, err
	}
	return then{map[string]string{"workerSessionId": s.id}, read}, nil
}

type loginObserver struct {
	w       *worker
	session *session
	text    text
}

func (o *loginObserver) data(p []byte) { o.send(o.text.add(p)) }

func (o *loginObserver) send(chunk string) {
	if chunk != "" {
		o.w.server.notify(context.Background(), "loginPty.output", map[string]string{
			"hostRouteId": o.session.route, "workerSessionId": o.session.id, "chunk": chunk,
		})
	}
}

func (o *loginObserver) exit(exit leasehold.Exit) {
	o.send(o.text.rest())
	o.w.server.notify(context.Background(), "loginPty.exit", map[string]any{
		"hostRouteId": o.session.route, "workerSessionId": o.session.id, "exitCode": exitCode(exit),
	})
}

type loginPair struct {
	Route string `json:"hostRouteId,omitempty"`
	ID    string `json:"workerSessionId"`
}

type loginInput struct {
	ID   string `json:"workerSessionId"`
	Data string `json:"data"`
}

// typeLogin is loginPtyInput.
func (w *worker) typeLogin(p loginInput) func(context.Context) (any, error) {
	s, err := w.sessions.find("", p.ID)
	if err != nil {
		return func(context.Context) (any, error) { return nil, err }
	}
	return s.input([]byte(p.Data))
}

// stopLogin is loginPtyStop.
func (w *worker) stopLogin(_ context.Context, p loginPair) (any, error) {
	s, err := w.sessions.find("", p.ID)
	if errors.Is(err, errNoSession) {
		return nil, nil
	}
	return nil, s.stop()
}

// closeLogin is loginPtyClose.
func (w *worker) closeLogin(_ context.Context, p loginPair) (any, error) {
	w.sessions.closeRoute(p.Route)
	return map[string]string{"hostRouteId": p.Route}, nil
}
