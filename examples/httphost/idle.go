package main

import (
	"net/http"
	"slices"
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
	active := s.activeOf(t)
	if r.URL.Query().Get("prove") == "true" && len(active) > 0 {
		var scopes []leasehold.Scope
		for _, a := range active {
			if !slices.Contains(scopes, a.Scope) {
				scopes = append(scopes, a.Scope)
			}
		}
		if _, err := s.provider.ProveIdle(r.Context(), scopes...); err != nil {
			s.log.Warn("idleness was not proved", "err", err) // the report is good all the same
		}
		active = s.activeOf(t)
	}
	views := []activityView{}
	for _, a := range active {
		views = append(views, activityView{
			a.Kind, a.Op, a.Scope.Environment, a.Scope.Run, a.Sandbox, a.Since, a.Unwatched,
		})
	}
	return writeJSON(w, http.StatusOK, map[string]any{"idle": len(views) == 0, "active": views})
}

// activeOf returns the activities of a tenant, in all its scopes.
func (s *service) activeOf(t *tenant) []leasehold.Activity {
	return slices.DeleteFunc(s.provider.Idle().Active, func(a leasehold.Activity) bool { return a.Scope.Tenant != t.name })
}
