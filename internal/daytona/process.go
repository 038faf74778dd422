package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"time"
	"unicode/utf8"

	toolbox "github.com/daytonaio/daytona/libs/toolbox-api-client-go"
)

// Execute runs a script to its end and returns its merged output (POST /process/execute). The script is the standard
// input of a non-interactive shell in the daemon's working directory, so a command in it that reads standard input eats
// the rest. The daemon waits for every process that holds the output open. A timeout of zero is none; others are
// rounded up to whole seconds, and end as a 408: the script is killed, its output lost. Ending the context does not end
// the script.
//
// The proxy may deliver a request twice when a connection breaks: the script must guard itself.
func (t *Toolbox) Execute(ctx context.Context, command string, timeout time.Duration) (ExecuteResult, error) {
	return t.ExecuteEnv(ctx, command, nil, timeout)
}

// ExecuteEnv is [Toolbox.Execute] with variables that are added to the daemon's environment. A value longer than
// 128 KiB less the name keeps the shell from starting.
func (t *Toolbox) ExecuteEnv(ctx context.Context, command string, env map[string]string, timeout time.Duration) (ExecuteResult, error) {
	for key, value := range env {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return ExecuteResult{}, badInput(OpExecute)
		}
	}
	// What is not UTF-8 would arrive as something else: JSON cannot carry it.
	if timeout < 0 || timeout > math.MaxInt32*time.Second || !utf8.ValidString(command) {
		return ExecuteResult{}, badInput(OpExecute)
	}
	request := struct {
		Command string            `json:"command"`
		Envs    map[string]string `json:"envs,omitempty"`
		Timeout int64             `json:"timeout,omitempty"`
	}{command, env, int64((timeout + time.Second - 1) / time.Second)}
	var reply struct {
		ExitCode *int   `json:"exitCode"`
		Result   string `json:"result"`
	}
	err := t.do(ctx, OpExecute, func(ctx context.Context) error {
		body, err := json.Marshal(request)
		if err != nil {
			return err
		}
		header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
		resp, err := t.send(ctx, http.MethodPost, t.url(nil, "process", "execute"), header, bytes.NewReader(body))
		if err != nil {
			return err
		}
		if err := readJSON(resp, &reply); err != nil {
			return err
		}
		if reply.ExitCode == nil {
			return errReply // an unknown exit is not 0
		}
		return nil
	})
	if err != nil {
		return ExecuteResult{}, err
	}
	return ExecuteResult{ExitCode: *reply.ExitCode, Output: reply.Result}, nil
}

// CreateSession starts a session: one shell with the daemon's environment and working directory, in which commands run
// one after another. A second session of the same id is a 409.
func (t *Toolbox) CreateSession(ctx context.Context, id string) error {
	return t.do(ctx, OpCreateSession, func(ctx context.Context) error {
		return accepted(ctx, t.tasks.CreateSession(ctx, id))
	}, id)
}

// DeleteSession ends a session's processes (SIGTERM, SIGKILL after 5 s) and deletes its logs. It returns when that is
// done. Processes that have detached themselves from the session's tree survive.
func (t *Toolbox) DeleteSession(ctx context.Context, id string) error {
	return t.do(ctx, OpDeleteSession, func(ctx context.Context) error {
		return accepted(ctx, t.tasks.DeleteSession(ctx, id))
	}, id)
}

// SessionCommands lists the commands of a session, in no order.
func (t *Toolbox) SessionCommands(ctx context.Context, id string) ([]SessionCommand, error) {
	var reply struct {
		ID       string         `json:"sessionId"`
		Commands []commandReply `json:"commands"`
	}
	err := t.do(ctx, OpSessionCommands, func(ctx context.Context) error {
		_, resp, err := t.api.ProcessAPI.GetSession(ctx, id).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if reply.ID != id { // an empty list is proof, so it must be one
			return errReply
		}
		return nil
	}, id)
	if err != nil {
		return nil, err
	}
	commands := make([]SessionCommand, len(reply.Commands))
	for i, c := range reply.Commands {
		commands[i] = SessionCommand(c)
	}
	return commands, nil
}

type commandReply struct {
	ID       string `json:"id"`
	Command  string `json:"command"`
	ExitCode *int   `json:"exitCode"`
}

// StartCommand submits a command to a session and returns its id without waiting for it. The session's shell sources
// the text: an exit in it ends the session, whose commands then never end. An unknown session is [Error.SessionMissing].
// Unless it failed with Dispatch no, the command may have been started.
func (t *Toolbox) StartCommand(ctx context.Context, session, command string) (string, error) {
	if !utf8.ValidString(command) {
		return "", badInput(OpStartCommand)
	}
	var id string
	err := t.do(ctx, OpStartCommand, func(ctx context.Context) error {
		// What is fed to its input must not appear in its log.
		request := toolbox.NewSessionExecuteRequest(command)
		request.SetRunAsync(true)
		request.SetSuppressInputEcho(true)
		var reply struct {
			ID string `json:"cmdId"`
		}
		_, resp, err := t.api.ProcessAPI.SessionExecuteCommand(ctx, session).Request(*request).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if id = reply.ID; id == "" {
			return errReply
		}
		return nil
	}, session)
	if err != nil {
		return "", err
	}
	return id, nil
}

// Command reads the record of a command. While the daemon writes the exit code, it answers with an error for which
// [Error.NotYet] is true: the command has ended, and its code will be there at the next read.
func (t *Toolbox) Command(ctx context.Context, session, id string) (SessionCommand, error) {
	var c SessionCommand
	err := t.do(ctx, OpCommand, func(ctx context.Context) error {
		var reply commandReply
		_, resp, err := t.api.ProcessAPI.GetSessionCommand(ctx, session, id).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		c = SessionCommand(reply)
		if c.ID != id {
			return errReply
		}
		return nil
	}, session, id)
	if err != nil {
		return SessionCommand{}, err
	}
	return c, nil
}

// Logs returns a snapshot of a command's log: the raw bytes of the daemon's file, in which every line is preceded by
// 01 01 01 (standard output) or 02 02 02 (standard error). The daemon holds the whole file in memory for it. The
// context bounds the reading, too; the caller closes.
func (t *Toolbox) Logs(ctx context.Context, session, id string) (*Body, error) {
	if !t.ready([]string{session, id}) {
		return nil, badInput(OpLogs)
	}
	// Without a version, and with this header, the daemon answers with the file as it is. JSON would replace bytes.
	header := http.Header{"X-Daytona-Split-Output": {"true"}, "Accept": {"text/plain"}}
	body, _, e := t.stream(ctx, OpLogs, t.url(nil, "process", "session", session, "command", id, "logs"), header)
	if e != nil {
		t.c.observe(body.k, e)
		return nil, e
	}
	return body, nil
}

// stream opens a GET whose body the caller reads. It does not observe a failure yet, so that the caller may see a
// success in it.
func (t *Toolbox) stream(ctx context.Context, op, address string, header http.Header) (*Body, *http.Response, *Error) {
	ctx, k := t.c.begin(ctx, op)
	k.limit, k.bare = 0, true
	resp, err := t.send(ctx, http.MethodGet, address, header, nil)
	b := &Body{c: t.c, k: k, ctx: ctx}
	if e := k.outcome(ctx, err); e != nil {
		return b, resp, e
	}
	b.rc = resp.Body
	return b, resp, nil
}

// Body is the body of an answer that is read as it arrives. It ends with io.EOF only where the answer was complete, as
// far as HTTP can tell; otherwise with an [*Error]. It must be closed.
type Body struct {
	c   *Client
	k   *call
	ctx context.Context // of the request, which bounds the reading
	rc  io.ReadCloser
}

// Read reads the next bytes.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	switch err {
	case nil:
		return n, nil
	case io.EOF:
		b.c.observe(b.k, nil)
		return n, io.EOF
	}
	e := b.k.outcome(b.ctx, err)
	b.c.observe(b.k, e)
	return n, e
}

// Close frees the connection at once, read to the end or not. It may be called twice, and during a Read.
func (b *Body) Close() error {
	b.k.closed.Store(true)
	b.rc.Close()
	b.c.observe(b.k, nil)
	return nil
}
