package emulator

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	previewHeader = "X-Daytona-Preview-Token"
	previewQuery  = "DAYTONA_SANDBOX_AUTH_KEY"

	skipWarning    = "X-Daytona-Skip-Preview-Warning"
	acceptedCookie = "daytona-preview-page-accepted"

	defaultSignedLife = 60 * time.Second
	longestSignedLife = 24 * time.Hour
)

// signedPreview is what a signed preview token stands for.
type signedPreview struct {
	sandbox string
	port    int
	expires time.Time
}

// previewTarget is the address of a preview: a port and a sandbox's id or a signed token.
type previewTarget struct {
	port int
	key  string
}

func parsePreview(label string) (previewTarget, bool) {
	text, key, found := strings.Cut(label, "-")
	port, err := strconv.Atoi(text)
	return previewTarget{port, key}, found && err == nil && key != "" && port >= 1 && port <= 65535
}

// previewHost tells whether a Host header names a preview.
func (s *Server) previewHost(host string) (string, bool) {
	label, _, found := strings.Cut(host, ".")
	if !found {
		return "", false
	}
	_, ok := parsePreview(label)
	return label, ok
}

func (s *Server) previewAddress(port int, key string) string {
	label := strconv.Itoa(port) + "-" + key
	if s.opt.PreviewDomain == "" {
		return s.root + "/preview/" + label
	}
	scheme, authority, _ := strings.Cut(s.root, "://")
	address := scheme + "://" + label + "." + s.opt.PreviewDomain
	if _, port, err := net.SplitHostPort(authority); err == nil {
		address += ":" + port
	}
	return address
}

func portOf(r *http.Request) (int, *apiError) {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 {
		return 0, refuse(http.StatusBadRequest, "Invalid port")
	}
	return port, nil
}

func (s *Server) previewURL(w http.ResponseWriter, r *http.Request) *apiError {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	var reply struct {
		Sandbox string `json:"sandboxId"`
		URL     string `json:"url"`
		Token   string `json:"token"`
	}
	if _, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		reply.Sandbox, reply.URL, reply.Token = sb.ID, s.previewAddress(port, sb.ID), sb.Token
		return nil
	}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, reply)
	return nil
}

func (s *Server) signPreview(w http.ResponseWriter, r *http.Request) *apiError {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	life := defaultSignedLife
	if text := r.URL.Query().Get("expiresInSeconds"); text != "" {
		seconds, err := strconv.Atoi(text)
		life = time.Duration(seconds) * time.Second
		if err != nil || life < time.Second || life > longestSignedLife {
			return refuse(http.StatusBadRequest, "expiresInSeconds must be between 1 second and 24 hours")
		}
	}
	var reply struct {
		Sandbox string `json:"sandboxId"`
		Port    int    `json:"port"`
		Token   string `json:"token"`
		URL     string `json:"url"`
	}
	if _, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		token := newToken()[:16]
		s.signed[token] = signedPreview{sb.ID, port, time.Now().Add(life)}
		reply.Sandbox, reply.Port, reply.Token, reply.URL = sb.ID, port, token, s.previewAddress(port, token)
		return nil
	}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, reply)
	return nil
}

func (s *Server) expirePreview(w http.ResponseWriter, r *http.Request) *apiError {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	token := r.PathValue("token")
	if _, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		if p := s.signed[token]; p.sandbox == sb.ID && p.port == port {
			delete(s.signed, token)
		}
		return nil // an unknown token too
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// preview serves the preview proxy: to a port of this host, on behalf of a started sandbox.
func (s *Server) preview(w http.ResponseWriter, r *http.Request, label, prefix string) {
	target, ok := parsePreview(label)
	if !ok {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	if warned(r) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, "<!doctype html><title>Preview URL Warning</title>\n")
		return
	}
	presented := r.Header.Get(previewHeader)
	if presented == "" {
		presented = r.URL.Query().Get(previewQuery)
	}
	s.mu.Lock()
	signed, isSigned := s.signed[target.key]
	if isSigned {
		isSigned = signed.port == target.port && time.Now().Before(signed.expires)
		target.key = signed.sandbox
	}
	sb := s.sandboxes[target.key]
	allowed := sb != nil && sb.visible() && (isSigned || sb.Public || (presented != "" && presented == sb.Token))
	s.mu.Unlock()
	if !allowed {
		if prefix == "" {
			http.Redirect(w, r, loginPage(r), http.StatusTemporaryRedirect)
			return
		}
		proxyError(w, r, http.StatusUnauthorized, "UNAUTHORIZED", "unauthorized: authentication failed: preview token is invalid")
		return
	}
	s.through(w, r, sb, func(pw *proxyWriter, r *http.Request, m *machine) {
		if !m.enter(pw) {
			return
		}
		defer m.leave(pw)
		s.forward(pw, withoutPrefix(r, prefix), target.port)
	})
}

// warned reports whether the proxy answers a browser with its warning page.
func warned(r *http.Request) bool {
	accepted, err := r.Cookie(acceptedCookie)
	switch {
	case r.Header.Get(skipWarning) == "true", r.Header.Get("Upgrade") != "", err == nil && accepted.Value == "true":
		return false
	}
	return strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

// loginPage is where the proxy sends whoever presents no valid token: to the provider's login, from which a person would
// come back to the callback of the preview's domain.
func loginPage(r *http.Request) string {
	_, domain, _ := strings.Cut(r.Host, ".")
	query := url.Values{
		"client_id": {"daytona"}, "redirect_uri": {"http://" + domain + "/callback"}, "response_type": {"code"},
		"scope": {"openid profile"}, "state": {newToken()},
	}
	return "http://login.daytona.test/authorize?" + query.Encode()
}

// forward is the reverse proxy to a port of this host. Nothing listening there is a 502 with an empty body.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, port int) {
	address := &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	proxy := &httputil.ReverseProxy{
		Transport: s.direct,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(address)
			p.SetXForwarded()
			p.Out.Host = p.In.Host
			p.Out.Header.Del(previewHeader)
			if query := p.Out.URL.Query(); query.Has(previewQuery) {
				query.Del(previewQuery)
				p.Out.URL.RawQuery = query.Encode()
			}
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			s.log.Debug("preview", "port", port, "err", err)
			w.WriteHeader(http.StatusBadGateway)
		},
		ErrorLog: log.New(slogWriter{s.log}, "", 0),
	}
	proxy.ServeHTTP(w, r)
}
