package toolbox

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator/proc"
)

// executeRequest is a request to run a command (schema ExecuteRequest).
type executeRequest struct {
	Command string            `json:"command"`
	Cwd     string            `json:"cwd"`
	Envs    map[string]string `json:"envs"`
	Timeout int               `json:"timeout"` // seconds; 0 means none, whatever the schema says
}

// executeResponse is what came of it (schema ExecuteResponse).
type executeResponse struct {
	ExitCode int    `json:"exitCode"` // -1: a signal killed the shell, or it could not be started
	Result   string `json:"result"`   // stdout and stderr as they came
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (t *Toolbox) routeExecute(mux *http.ServeMux) {
	mux.HandleFunc("POST /process/execute", t.execute)
}

// execute runs a command and answers when it has ended and nobody holds its output any more. The text goes to the
// standard input of a shell, so that the command's own input is the rest of the text. A client that leaves changes
// nothing.
func (t *Toolbox) execute(w http.ResponseWriter, r *http.Request) {
	var request executeRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		badRequest(w, r, "invalid request body: "+err.Error())
		return
	}
	if strings.TrimSpace(request.Command) == "" {
		badRequest(w, r, "command is required")
		return
	}
	for name := range request.Envs {
		if !envName.MatchString(name) {
			badRequest(w, r, "invalid environment variable name: "+name)
			return
		}
	}
	if !t.work.enter() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer t.work.leave()

	response, err := t.run(request)
	switch {
	case errors.Is(err, errExecuteTimeout):
		requestTimeout(w, r, "command execution timeout")
	case errors.Is(err, errClosed):
		w.WriteHeader(http.StatusBadGateway)
	case err != nil:
		unmapped(w, err)
	default:
		writeJSON(w, http.StatusOK, response)
	}
}

var (
	errExecuteTimeout = errors.New("command execution timeout")
	errClosed         = errors.New("toolbox is closed")
)

// run runs the command until its output has no holder. After the timeout its process group is killed; a process that
// left the group and holds the output is waited for nevertheless.
func (t *Toolbox) run(request executeRequest) (executeResponse, error) {
	cmd := t.command(request.Envs, t.shell())
	if request.Cwd != "" {
		cmd.Dir = request.Cwd
		if !filepath.IsAbs(cmd.Dir) {
			cmd.Dir = filepath.Join(t.opts.WorkDir, cmd.Dir)
		}
	}
	script, scriptEnd, err := os.Pipe()
	if err != nil {
		return executeResponse{}, err
	}
	defer scriptEnd.Close()
	output, outputEnd, err := os.Pipe()
	if err != nil {
		script.Close()
		return executeResponse{}, err
	}
	defer output.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = script, outputEnd, outputEnd
	err = t.opts.Group.Start(cmd)
	script.Close()
	outputEnd.Close()
	switch {
	case errors.Is(err, proc.ErrKilled) || errors.Is(err, errors.ErrUnsupported):
		return executeResponse{}, err
	case err != nil:
		return executeResponse{ExitCode: -1, Result: err.Error()}, nil
	}

	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(scriptEnd, request.Command) // a shell that exits early need not read it all
		scriptEnd.Close()
	}()
	ended := make(chan struct{})
	var result strings.Builder
	go func() {
		defer close(ended)
		_, _ = io.Copy(&result, output)
		// The shell is reaped only now: until then its pid, which is also its group's number, cannot be another's.
		_ = cmd.Wait()
	}()
	defer func() {
		scriptEnd.Close()
		<-written
	}()

	var timeout <-chan time.Time
	if request.Timeout > 0 {
		timer := time.NewTimer(time.Duration(request.Timeout) * time.Second)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ended:
		return executeResponse{ExitCode: cmd.ProcessState.ExitCode(), Result: result.String()}, nil
	case <-timeout:
		t.opts.Group.KillProcessGroup(cmd.Process.Pid)
		err = errExecuteTimeout
	case <-t.ctx.Done():
		err = errClosed
	}
	select {
	case <-ended:
	case <-t.ctx.Done():
		t.opts.Group.KillTree(cmd.Process.Pid, 0)
		output.Close()
		<-ended
	}
	return executeResponse{}, err
}
