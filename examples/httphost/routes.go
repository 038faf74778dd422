package main

import (
	"embed"
	"net/http"
)

// handler answers one request of a tenant, or of anybody where the route is open: then there is none.
type handler func(w http.ResponseWriter, r *http.Request, t *tenant) error

type route struct {
	pattern string // of http.ServeMux
	open    bool   // without a token
	handler handler
}

// routes is everything that the service answers; openapi.json describes the same.
func (s *service) routes() []route {
	return []route{
		{"GET /healthz", true, s.health},
		{"GET /openapi.json", true, asset("openapi.json", "application/json")},
		{"GET /{$}", true, asset("page/index.html", "text/html; charset=utf-8")},
		{"GET /style.css", true, asset("page/style.css", "text/css; charset=utf-8")},
		{"GET /app.js", true, asset("page/app.js", "text/javascript; charset=utf-8")},
		{"GET /screen.js", true, asset("page/screen.js", "text/javascript; charset=utf-8")},
		{"GET /icon.svg", true, asset("page/icon.svg", "image/svg+xml")},

		{"GET /v1/idle", false, s.idle},
		{"GET /v1/leases", false, s.listLeases},
		{"POST /v1/leases", false, s.createLease},
		{"GET /v1/leases/{lease}", false, s.showLease},
		{"DELETE /v1/leases/{lease}", false, s.destroyLease},
		{"POST /v1/leases/{lease}/resume", false, s.resumeLease},
		{"POST /v1/leases/{lease}/release", false, s.releaseLease},
		{"GET /v1/leases/{lease}/files", false, s.download},
		{"PUT /v1/leases/{lease}/files", false, s.upload},
		{"GET /v1/leases/{lease}/commands", false, s.listCommands},
		{"POST /v1/leases/{lease}/commands", false, s.startCommand},
		{"GET /v1/leases/{lease}/commands/{command}", false, s.showCommand},
		{"GET /v1/leases/{lease}/commands/{command}/events", false, s.events},
		{"POST /v1/leases/{lease}/commands/{command}/signal", false, s.signalCommand},
	}
}

// The page loads nothing from elsewhere, and nothing elsewhere can frame it or send its forms.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range s.routes() {
		mux.HandleFunc(route.pattern, func(w http.ResponseWriter, r *http.Request) {
			var t *tenant
			if !route.open {
				if t = s.tenants.of(r); t == nil {
					w.Header().Set("WWW-Authenticate", `Bearer realm="leases"`)
					writeProblem(w, errUnauthorized)
					return
				}
			}
			if err := route.handler(w, r, t); err != nil {
				s.fail(w, r, err)
			}
		})
	}
	return onTime(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	}))
}

//go:embed openapi.json page
var assets embed.FS

// asset serves an embedded file.
func asset(name, contentType string) handler {
	return func(w http.ResponseWriter, r *http.Request, _ *tenant) error {
		data, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(data)
		return nil
	}
}
