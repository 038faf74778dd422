package main

import (
	"net/http"
	"time"

	"github.com/leasehold-go/leasehold"
)

// health says whether the service takes new work. It asks nobody.
func (s *service) health(w http.ResponseWriter, _ *http.Request, _ *tenant) error {
	if s.ending.Load() {
		return errEnding
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

type activityView struct {
	Kind        leasehold.ActivityKind `json:"kind"`
	Op          string                 `json:"op"`
	Environment string                 `json:"environment"`
	Run         string                 `json:"run"`
	Sandbox     string                 `json:"sandbox,omitempty"`
	Since       time.Time              `json:"since"`
	Unwatched   bool                   `json:"unwatched,omitempty"`
}

// idle reports what of a tenant is active. With prove=true sandboxes that nobody here watches are looked at first.
func (s *service) idle(w http.ResponseWriter, r *http.Request, t *tenant) error {
	tenant := leasehold.Scope{Tenant: t.name}
	report := s.provider.Idle(tenant)
	if r.URL.Query().Get("prove") == "true" {
		var err error
		if report, err = s.provider.ProveIdle(r.Context(), tenant); err != nil {
			s.log.Warn("idleness was not proved", "err", err) // the report is good all the same
		}
	}
	views := []activityView{}
	for _, a := range report.Active {
		views = append(views, activityView{
			a.Kind, a.Op, a.Scope.Environment, a.Scope.Run, a.Sandbox, a.Since, a.Unwatched,
		})
	}
	return writeJSON(w, http.StatusOK, map[string]any{"idle": report.Idle, "active": views})
}
