package emulator

import (
	"crypto/subtle"
	"net/http"
	"strings"
)

// Key is what an API key may do. The zero value is a key that does not exist (any more): 401.
type Key struct {
	Organization string
	NoWrite      bool // lacks write:sandboxes: it may read and delete
	NoDelete     bool // lacks delete:sandboxes
	// SandboxPaths limits it, as a gateway before the API does, to /sandbox and what is below.
	SandboxPaths bool
	// Masked is a key whose access to its organisation was taken away: the access guard answers 404 for every sandbox, as
	// if there were none, and 403 for what is of no single one.
	Masked bool
}

// SetKey adds an API key, or changes what one may do from the next request on.
func (s *Server) SetKey(apiKey string, k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[apiKey] = k
}

// authenticate finds the key of a request's bearer token.
func (s *Server) authenticate(r *http.Request) (found Key, ok bool) {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer {
		return Key{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.keys {
		if subtle.ConstantTimeCompare([]byte(key), []byte(token)) == 1 {
			found, ok = k, k.Organization != ""
		}
	}
	return found, ok
}

// permit refuses what the key may not do at all, before anything is looked up.
func (k Key) permit(r *http.Request) *apiError {
	path := strings.TrimPrefix(r.URL.Path, "/api")
	sandbox, below := strings.CutPrefix(path, "/sandbox/")
	revokes := r.Method == http.MethodDelete && strings.HasSuffix(path, "/ssh-access") // a write
	switch {
	case k.Masked && below && sandbox != listSegment:
		id, _, _ := strings.Cut(sandbox, "/")
		return notFound(id)
	case k.Masked,
		k.SandboxPaths && path != "/sandbox" && !below,
		k.NoWrite && (r.Method == http.MethodPost || r.Method == http.MethodPut || revokes),
		k.NoDelete && r.Method == http.MethodDelete && !revokes:
		return refuse(http.StatusForbidden, "Forbidden resource")
	}
	return nil
}
