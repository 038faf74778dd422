package emulator

import (
	"crypto/rand"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

const defaultSSHMinutes = 60

// sshAccess is a credential of the SSH gateway. A sandbox has one at most.
type sshAccess struct {
	id, sandbox, token string
	created, expires   time.Time
}

// createSSH makes a new credential, and thereby revokes the one before. It does not ask for the sandbox's state.
func (s *Server) createSSH(w http.ResponseWriter, r *http.Request) *apiError {
	minutes := float64(defaultSSHMinutes)
	if text := r.URL.Query().Get("expiresInMinutes"); text != "" {
		var err error
		if minutes, err = strconv.ParseFloat(text, 64); err != nil || math.IsNaN(minutes) || math.IsInf(minutes, 0) {
			return refuse(http.StatusBadRequest, "Validation failed (numeric string is expected)")
		}
	}
	access := sshAccess{id: uuid.NewString(), token: newAlphanumeric(32), created: time.Now()}
	access.expires = access.created.Add(time.Duration(minutes * float64(time.Minute)))
	if _, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		s.revokeSSH(sb.ID, "")
		access.sandbox = sb.ID
		s.ssh[access.token] = access
		return nil
	}); err != nil {
		return err
	}
	at := func(t time.Time) string { return timestamp(t.Add(skewOf(r))) }
	writeJSON(w, http.StatusOK, map[string]string{
		"id": access.id, "sandboxId": access.sandbox, "token": access.token, "expiresAt": at(access.expires),
		"createdAt": at(access.created), "updatedAt": at(access.created),
		"sshCommand": "ssh -p 2222 " + access.token + "@localhost",
	})
	return nil
}

// revokeSSH forgets a sandbox's credentials, or the one with the token. The caller holds s.mu.
func (s *Server) revokeSSH(sandbox, token string) {
	for t, access := range s.ssh {
		if access.sandbox == sandbox && (token == "" || token == t) {
			delete(s.ssh, t)
		}
	}
}

// deleteSSH answers with the sandbox, also where there was no such credential.
func (s *Server) deleteSSH(w http.ResponseWriter, r *http.Request) *apiError {
	sb, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		s.revokeSSH(sb.ID, r.URL.Query().Get("token"))
		return nil
	})
	if err != nil {
		return err
	}
	return s.reply(w, r, sb)
}

// validateSSH is what the gateway asks.
func (s *Server) validateSSH(w http.ResponseWriter, r *http.Request) *apiError {
	s.mu.Lock()
	access, found := s.ssh[r.URL.Query().Get("token")]
	sb := s.sandboxes[access.sandbox]
	valid := found && time.Now().Before(access.expires) && sb != nil && sb.visible() && sb.Organization == organizationOf(r)
	s.mu.Unlock()
	reply := struct {
		Valid   bool   `json:"valid"`
		Sandbox string `json:"sandboxId"`
	}{Valid: valid}
	if valid {
		reply.Sandbox = access.sandbox
	}
	writeJSON(w, http.StatusOK, reply)
	return nil
}

// newAlphanumeric returns an unguessable text of letters and digits.
func newAlphanumeric(n int) string {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	text := make([]byte, n)
	for i := range text {
		for {
			var b [1]byte
			rand.Read(b[:])
			if int(b[0]) < 256-256%len(letters) { // else the first letters would be likelier
				text[i] = letters[int(b[0])%len(letters)]
				break
			}
		}
	}
	return string(text)
}
