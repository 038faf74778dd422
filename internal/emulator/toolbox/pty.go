package toolbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	ptyCols    = 80
	ptyRows    = 24
	ptyMaxSize = 1000 // columns or rows
	ptyTerm    = "xterm-256color"
)

// ptyTable holds the terminals of a toolbox. The zero value is empty and ready.
type ptyTable struct {
	mu       sync.Mutex
	closed   bool
	sessions map[string]*ptySession
}

// ptyInfo is the daemon's description of a terminal (schema PtySessionInfo).
type ptyInfo struct {
	ID        string            `json:"id"`
	Cwd       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	Cols      uint16            `json:"cols"`
	Rows      uint16            `json:"rows"`
	CreatedAt time.Time         `json:"createdAt"`
	Active    bool              `json:"active"`
	LazyStart bool              `json:"lazyStart"`
}

// routePTY adds the /process/pty endpoints. Their errors are {"error": "..."}.
func (t *Toolbox) routePTY(mux *http.ServeMux) {
	mux.HandleFunc("GET /process/pty", t.listPTYs)
	mux.HandleFunc("POST /process/pty", t.createPTY)
	mux.HandleFunc("GET /process/pty/{id}", t.getPTY)
	mux.HandleFunc("DELETE /process/pty/{id}", t.deletePTY)
	mux.HandleFunc("POST /process/pty/{id}/resize", t.resizePTY)
	mux.HandleFunc("GET /process/pty/{id}/connect", t.connectPTY)
}

func ptyError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]string{"error": message})
}

// add registers a session under its id. It fails when the id is taken or the table was closed.
func (p *ptyTable) add(s *ptySession) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.sessions[s.id]; taken || p.closed {
		return false
	}
	if p.sessions == nil {
		p.sessions = make(map[string]*ptySession)
	}
	p.sessions[s.id] = s
	return true
}

func (p *ptyTable) get(id string) *ptySession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions[id]
}

// remove takes a session out and reports whether it was there; an id that another session has meanwhile
// is left alone.
func (p *ptyTable) remove(s *ptySession) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[s.id] != s {
		return false
	}
	delete(p.sessions, s.id)
	return true
}

func (p *ptyTable) list() []*ptySession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.sessions))
}

// close kills every session. No further one can be added.
func (p *ptyTable) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for _, s := range p.list() {
		if p.remove(s) {
			s.kill()
		}
	}
}

func (t *Toolbox) createPTY(w http.ResponseWriter, r *http.Request) {
	var request struct {
		ID        string            `json:"id"`
		Cwd       string            `json:"cwd"`
		Envs      map[string]string `json:"envs"`
		Cols      *uint16           `json:"cols"`
		Rows      *uint16           `json:"rows"`
		LazyStart bool              `json:"lazyStart"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		ptyError(w, http.StatusBadRequest, err.Error())
		return
	}
	info := ptyInfo{
		ID:        request.ID,
		Cwd:       request.Cwd,
		Envs:      request.Envs,
		Cols:      ptyCols,
		Rows:      ptyRows,
		CreatedAt: time.Now(),
		LazyStart: request.LazyStart,
	}
	if info.ID == "" {
		ptyError(w, http.StatusBadRequest, "session ID is required")
		return
	}
	if t.ptys.get(info.ID) != nil {
		ptyError(w, http.StatusConflict, taken(info.ID))
		return
	}
	if info.Cwd == "" {
		info.Cwd = t.opts.WorkDir
	}
	if info.Envs == nil {
		info.Envs = make(map[string]string)
	}
	if info.Envs["TERM"] == "" {
		info.Envs["TERM"] = ptyTerm
	}
	for _, size := range []struct {
		name  string
		asked *uint16
		value *uint16
	}{{"cols", request.Cols, &info.Cols}, {"rows", request.Rows, &info.Rows}} {
		if size.asked == nil {
			continue
		}
		if *size.asked > ptyMaxSize {
			ptyError(w, http.StatusBadRequest, fmt.Sprintf("invalid value for %s - must be less than 1000", size.name))
			return
		}
		*size.value = *size.asked
	}

	s := newPTYSession(t, info)
	if !t.ptys.add(s) {
		ptyError(w, http.StatusConflict, taken(info.ID))
		return
	}
	if !info.LazyStart {
		if err := s.start(); err != nil {
			t.ptys.remove(s)
			t.opts.Logger.Debug("terminal did not start", "pty", info.ID, "error", err)
			ptyError(w, http.StatusInternalServerError, "failed to start PTY session")
			return
		}
	}
	writeJSON(w, http.StatusCreated, map[string]string{"sessionId": info.ID})
}

func taken(id string) string {
	return fmt.Sprintf("PTY session with ID '%s' already exists", id)
}

func (t *Toolbox) listPTYs(w http.ResponseWriter, r *http.Request) {
	infos := []ptyInfo{}
	for _, s := range t.ptys.list() {
		infos = append(infos, s.describe())
	}
	writeJSON(w, http.StatusOK, map[string]any{"sessions": infos})
}

func (t *Toolbox) getPTY(w http.ResponseWriter, r *http.Request) {
	s := t.ptys.get(r.PathValue("id"))
	if s == nil {
		ptyError(w, http.StatusNotFound, "PTY session not found")
		return
	}
	writeJSON(w, http.StatusOK, s.describe())
}

// deletePTY kills the shell and its descendants. Clients are told exit code 137.
func (t *Toolbox) deletePTY(w http.ResponseWriter, r *http.Request) {
	s := t.ptys.get(r.PathValue("id"))
	if s == nil || !t.ptys.remove(s) {
		ptyError(w, http.StatusNotFound, "PTY session not found")
		return
	}
	s.kill()
	writeJSON(w, http.StatusOK, map[string]string{"message": "PTY session deleted"})
}

// resizePTY sets the size; the kernel tells the foreground processes by SIGWINCH. A session that is not
// there, or not any more, is 410 and not 404.
func (t *Toolbox) resizePTY(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Cols uint16 `json:"cols"`
		Rows uint16 `json:"rows"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		ptyError(w, http.StatusBadRequest, err.Error())
		return
	}
	for name, value := range map[string]uint16{"cols": request.Cols, "rows": request.Rows} {
		if value < 1 || value > ptyMaxSize {
			ptyError(w, http.StatusBadRequest, name+" must be from 1 to 1000")
			return
		}
	}
	id := r.PathValue("id")
	s := t.ptys.get(id)
	if s == nil {
		ptyError(w, http.StatusGone, fmt.Sprintf("PTY session %s not found", id))
		return
	}
	if info := s.describe(); !info.Active && !info.LazyStart {
		ptyError(w, http.StatusGone, fmt.Sprintf("PTY session '%s' has terminated and cannot be resized", id))
		return
	}
	info, err := s.resize(request.Cols, request.Rows)
	if err != nil {
		ptyError(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, info)
}
