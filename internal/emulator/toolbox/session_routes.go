package toolbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// entrypoint is the session of the sandbox's own command. It is not in the list, and can only be read.
const entrypoint = "entrypoint"

// sessionView is the daemon's description of a session (schema Session).
type sessionView struct {
	SessionID string        `json:"sessionId"`
	Commands  []commandView `json:"commands"`
}

// commandView is the daemon's description of a session's command (schema Command).
type commandView struct {
	ID       string `json:"id"`
	Command  string `json:"command"`
	ExitCode *int   `json:"exitCode,omitempty"`
}

// sessionExecuteResponse is the answer to a command (schema SessionExecuteResponse): all but the id is null for an
// asynchronous one.
type sessionExecuteResponse struct {
	CommandID string  `json:"cmdId"`
	Output    *string `json:"output"`
	Stdout    *string `json:"stdout"`
	Stderr    *string `json:"stderr"`
	ExitCode  *int    `json:"exitCode"`
}

func (t *Toolbox) routeSessions(mux *http.ServeMux) {
	mux.HandleFunc("GET /process/session", t.listSessions)
	mux.HandleFunc("POST /process/session", t.createSession)
	mux.HandleFunc("GET /process/session/entrypoint", t.getEntrypoint)
	mux.HandleFunc("GET /process/session/{session}", t.getSession)
	mux.HandleFunc("DELETE /process/session/{session}", t.deleteSession)
	mux.HandleFunc("POST /process/session/{session}/exec", t.executeInSession)
	mux.HandleFunc("GET /process/session/{session}/command/{command}", t.getCommand)
	mux.HandleFunc("POST /process/session/{session}/command/{command}/input", t.sendInput)
}

func (t *Toolbox) createSession(w http.ResponseWriter, r *http.Request) {
	var request struct {
		SessionID string `json:"sessionId"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		badRequest(w, r, "invalid request body: "+err.Error())
		return
	}
	if request.SessionID == "" || request.SessionID == entrypoint {
		badRequest(w, r, "invalid session id")
		return
	}
	if !t.work.enter() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer t.work.leave()

	s := newSession(t, request.SessionID)
	if !t.sessions.reserve(s) {
		s.cancel()
		conflict(w, r, "session already exists")
		return
	}
	dir := t.opts.WorkDir
	// Clients before 0.103 expect their sessions at home.
	if v, ok := sdkVersion(r); ok && !v.atLeast(0, 103) {
		dir = t.opts.Home
	}
	if err := s.start(dir); err != nil {
		t.sessions.remove(s)
		s.cancel()
		unmapped(w, fmt.Errorf("failed to start session: %w", err))
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (t *Toolbox) listSessions(w http.ResponseWriter, _ *http.Request) {
	views := []sessionView{}
	for _, s := range t.sessions.list() {
		view, err := s.view()
		if err != nil {
			unmapped(w, err)
			return
		}
		views = append(views, view)
	}
	writeJSON(w, http.StatusOK, views)
}

func (t *Toolbox) getSession(w http.ResponseWriter, r *http.Request) {
	s := t.sessions.get(r.PathValue("session"))
	if s == nil {
		notFound(w, r, "session not found")
		return
	}
	view, err := s.view()
	if err != nil {
		unmapped(w, err)
		return
	}
	writeJSON(w, http.StatusOK, view)
}

// getEntrypoint describes the entrypoint session. An emulated sandbox has no command of its own.
func (t *Toolbox) getEntrypoint(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, sessionView{SessionID: entrypoint, Commands: []commandView{}})
}

func (t *Toolbox) deleteSession(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("session") == entrypoint {
		badRequest(w, r, "cannot delete entrypoint session")
		return
	}
	if !t.work.enter() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer t.work.leave()
	s := t.sessions.get(r.PathValue("session"))
	if s == nil || !s.delete() {
		notFound(w, r, "session not found")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// view describes the session. Reading the exit codes fails as reading one alone does.
func (s *session) view() (sessionView, error) {
	v := sessionView{SessionID: s.id, Commands: []commandView{}}
	for _, c := range s.list() {
		view, err := c.view()
		if err != nil {
			return sessionView{}, err
		}
		v.Commands = append(v.Commands, view)
	}
	return v, nil
}

func (c *command) view() (commandView, error) {
	code, err := c.exitCode()
	return commandView{ID: c.id, Command: c.text, ExitCode: code}, err
}

// executeInSession submits a command. A synchronous one is answered when its exit was recorded; if it ends the shell,
// that is never, or when the session is deleted. Every failure is a 500, an unknown session included.
func (t *Toolbox) executeInSession(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Command           string `json:"command"`
		RunAsync          bool   `json:"runAsync"`
		Async             bool   `json:"async"` // the older name
		SuppressInputEcho bool   `json:"suppressInputEcho"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		badRequest(w, r, "invalid request body: "+err.Error())
		return
	}
	if strings.TrimSpace(request.Command) == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	id := r.PathValue("session")
	if id == entrypoint {
		badRequest(w, r, "cannot execute in entrypoint session")
		return
	}
	if !t.work.enter() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer t.work.leave()

	failed := func(err error) { unmapped(w, fmt.Errorf("failed to execute command: %w", err)) }
	s := t.sessions.get(id)
	if s == nil {
		failed(errSessionNotFound)
		return
	}
	async := request.RunAsync || request.Async
	c, err := s.submit(request.Command, async, !request.SuppressInputEcho)
	if err != nil {
		failed(err)
		return
	}
	if async {
		writeJSON(w, http.StatusAccepted, sessionExecuteResponse{CommandID: c.id})
		return
	}
	response, err := c.wait(r)
	if err != nil {
		failed(err)
		return
	}
	writeJSON(w, http.StatusOK, response)
}

var errSessionEnded = errors.New("session cancelled")

// wait looks for the exit code every 50 ms, so that a synchronous command never takes less. It stops when the client
// has gone, which changes nothing for the command.
func (c *command) wait(r *http.Request) (sessionExecuteResponse, error) {
	ticker := time.NewTicker(c.session.t.opts.Quirks.SyncExecPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.session.ctx.Done():
			return sessionExecuteResponse{}, errSessionEnded
		case <-r.Context().Done():
			return sessionExecuteResponse{}, r.Context().Err()
		}
		code, err := c.exitCode()
		if err != nil {
			return sessionExecuteResponse{}, err
		}
		if code == nil {
			continue
		}
		log, err := c.readLog()
		if err != nil {
			return sessionExecuteResponse{}, fmt.Errorf("failed to read log file: %w", err)
		}
		streams := newLogsView(log)
		if combined(r) {
			streams.Output = string(unmark(log))
		}
		return sessionExecuteResponse{c.id, &streams.Output, &streams.Stdout, &streams.Stderr, code}, nil
	}
}

// find returns the command that a request names, or answers 404.
func (t *Toolbox) find(w http.ResponseWriter, r *http.Request) *command {
	s := t.sessions.get(r.PathValue("session"))
	if s == nil {
		notFound(w, r, "session not found")
		return nil
	}
	c := s.command(r.PathValue("command"))
	if c == nil {
		notFound(w, r, "command not found")
	}
	return c
}

func (t *Toolbox) getCommand(w http.ResponseWriter, r *http.Request) {
	c := t.find(w, r)
	if c == nil {
		return
	}
	view, err := c.view()
	if err != nil {
		unmapped(w, err)
		return
	}
	writeJSON(w, http.StatusOK, view)
}

// sendInput writes a line to the standard input of a running command. A finished one is gone if somebody has read its
// exit code, else its pipe is: 500, as for one that waits for its turn.
func (t *Toolbox) sendInput(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Data string `json:"data"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		badRequest(w, r, "invalid request body: "+err.Error())
		return
	}
	if request.Data == "" {
		badRequest(w, r, "data is required")
		return
	}
	if !t.work.enter() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer t.work.leave()
	c := t.find(w, r)
	if c == nil {
		return
	}
	if c.exitWasRead() {
		gone(w, r, "command has already completed")
		return
	}
	if err := c.send(request.Data); err != nil {
		unmapped(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (c *command) exitWasRead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code != nil
}
