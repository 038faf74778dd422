package main

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold"
)

type executeParams struct {
	Lease       wireLease      `json:"lease"`
	Command     string         `json:"command"`
	Args        []string       `json:"args"`
	Cwd         string         `json:"cwd"`
	Env         map[string]any `json:"env"` // what is no string is left out
	Stdin       *string        `json:"stdin"`
	TimeoutMs   int64          `json:"timeoutMs"`
	ExecutionID string         `json:"executionId"` // of hosts that cancel
}

type executeResult struct {
	ExitCode *int           `json:"exitCode"` // null: not known
	Signal   *string        `json:"signal"`   // a command that died by signal n has the exit code 128+n, as in a shell
	TimedOut bool           `json:"timedOut"`
	Stdout   string         `json:"stdout"`
	Stderr   string         `json:"stderr"`
	Metadata map[string]any `json:"metadata"`
}

// timeouts are the command's lifetime, which the call says, or else the settings do, and the longer one of the call, for
// which the host waits 30 s more.
func (p executeParams) timeouts(s settings) (command, call time.Duration) {
	switch {
	case p.TimeoutMs > 0:
		command = time.Duration(min(p.TimeoutMs, math.MaxInt32)) * time.Millisecond // more the host cannot wait
		return command, command + hostDefault - reserve
	case s.TimeoutMs != nil:
		return s.timeout(), s.deadline()
	}
	return s.timeout() - reserve, s.deadline()
}

// execute is environmentExecute. An exit code other than 0 is a result, and so is a command that took too long; an error
// means that nobody knows how it ended.
func (w *worker) execute(ctx context.Context, c call, p executeParams) (any, error) {
	ref, err := c.ref(p.Lease.ProviderLeaseID, p.Lease.Metadata)
	if err != nil {
		return nil, err
	}
	lifetime, limit := p.timeouts(c.settings)
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	ctx, done := w.executions.begin(ctx, executionKey{c.key(ref), p.ExecutionID})

	out := newOutput(w.executeLog(ctx))
	cmd := leasehold.Command{
		Args: append([]string{p.Command}, p.Args...), Dir: p.Cwd, Env: make(map[string]string),
		Stdout: &out.stdout, Stderr: &out.stderr, Timeout: lifetime,
	}
	for key, value := range p.Env {
		if text, ok := value.(string); ok {
			cmd.Env[key] = text
		}
	}
	var result leasehold.Result
	err = w.running(ctx, c, p.Lease, func(lease *leasehold.Lease) (err error) {
		if p.Stdin != nil {
			cmd.Stdin = strings.NewReader(*p.Stdin)
		}
		result, err = lease.Executor().Run(ctx, cmd)
		return err
	})
	done(result)
	out.end()

	answer := executeResult{TimedOut: result.TimedOut, Stdout: out.stdout.kept.String(), Stderr: out.stderr.kept.String()}
	answer.Metadata = map[string]any{
		"provider": driverKey, "durationMs": result.Duration.Milliseconds(), "commandExitConfirmed": result.Exited,
		"outputComplete": result.Complete && !out.truncated, "stdoutBytes": result.StdoutSize, "stderrBytes": result.StderrSize,
	}
	switch {
	case result.TimedOut: // an exit code that there may be is that of having been stopped
		answer.Metadata["stopConfirmed"] = result.StopConfirmed
	case err != nil && !(result.Exited && outputLost(err)): // it was stopped, say
		return nil, err
	default:
		answer.ExitCode = &result.ExitCode
	}
	return answer, nil
}

// outputLost reports whether nothing is wrong but that the end of the output did not arrive.
func outputLost(err error) bool {
	return errors.Is(err, leasehold.ErrQuota) || errors.Is(err, leasehold.ErrUncertain)
}

// executions are the commands under way that the host can cancel, by their full scope.
type executions struct {
	mu      sync.Mutex
	running map[executionKey]*execution
}

type executionKey struct {
	leaseKey
	execution string
}

type execution struct {
	cancel  context.CancelFunc
	ended   chan struct{}
	stopped bool // once ended: nothing of it runs any more
}

// begin registers an execution under its id, if it has one, until done is called with what became of it.
func (x *executions) begin(ctx context.Context, key executionKey) (_ context.Context, done func(leasehold.Result)) {
	ctx, cancel := context.WithCancel(ctx)
	if key.execution == "" {
		return ctx, func(leasehold.Result) { cancel() }
	}
	e := &execution{cancel: cancel, ended: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.running == nil {
		x.running = make(map[executionKey]*execution)
	}
	x.running[key] = e
	return ctx, func(result leasehold.Result) {
		cancel()
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.running[key] == e {
			delete(x.running, key)
		}
		e.stopped = result.Exited || result.StopConfirmed || result.Dispatched == leasehold.DispatchedNo
		close(e.ended)
	}
}

type cancelParams struct {
	Lease       wireLease `json:"lease"`
	ExecutionID string    `json:"executionId"`
}

// cancelExecution is environmentCancelExecution. It answers when the command was stopped, and says so only if that was
// confirmed. Of an execution that is not under way it says no.
func (w *worker) cancelExecution(ctx context.Context, c call, p cancelParams) (any, error) {
	ref, err := c.ref(p.Lease.ProviderLeaseID, p.Lease.Metadata)
	if err != nil {
		return nil, err
	}
	key := executionKey{c.key(ref), p.ExecutionID}
	w.executions.mu.Lock()
	e := w.executions.running[key]
	w.executions.mu.Unlock()
	if e == nil {
		return cancelResult{p.ExecutionID, false}, nil
	}
	e.cancel()
	select {
	case <-e.ended:
		return cancelResult{p.ExecutionID, e.stopped}, nil
	case <-ctx.Done():
		return nil, errors.New("the command did not end in time")
	}
}

type cancelResult struct {
	ExecutionID string `json:"executionId"`
	Cancelled   bool   `json:"cancelled"`
}
