package emulator_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/emulator"
)

// TestKeysAreLimited states what each kind of key is refused, and how.
func TestKeysAreLimited(t *testing.T) {
	s := serve(t, emulator.Options{Organization: "home"})
	id := s.must(http.StatusOK, "POST", "/api/sandbox", `{"name":"box"}`).str("id")
	requests := [][2]string{
		{"GET", "/api/sandbox/" + id}, {"GET", "/api/sandbox/paginated"}, {"POST", "/api/sandbox/" + id + "/autostop/5"},
		{"GET", "/api/api-keys/current"}, {"GET", "/toolbox/" + id + "/version"}, {"DELETE", "/api/sandbox/nothing"},
	}
	for _, tt := range []struct {
		name string
		key  emulator.Key
		want []int
	}{
		{"unlimited", emulator.Key{Organization: "home"}, []int{200, 200, 200, 200, 200, 404}},
		{"without write permission", emulator.Key{Organization: "home", NoWrite: true}, []int{200, 200, 403, 200, 200, 404}},
		{"without delete permission", emulator.Key{Organization: "home", NoDelete: true}, []int{200, 200, 200, 200, 200, 403}},
		{"for paths of sandboxes only", emulator.Key{Organization: "home", SandboxPaths: true}, []int{200, 200, 200, 403, 200, 404}},
		{"of a user that left", emulator.Key{Organization: "home", Masked: true}, []int{404, 403, 404, 403, 401, 404}},
		{"of another organisation", emulator.Key{Organization: "elsewhere"}, []int{404, 200, 404, 200, 401, 404}},
		{"revoked", emulator.Key{}, []int{401, 401, 401, 401, 401, 401}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.SetKey("limited", tt.key)
			for i, q := range requests {
				s.must(tt.want[i], q[0], q[1], "", "Authorization", "Bearer limited")
			}
		})
	}
}

// TestSuspendedOrganization: what there is can be stopped and deleted, and nothing comes to run.
func TestSuspendedOrganization(t *testing.T) {
	s := serve(t, emulator.Options{})
	id := s.must(http.StatusOK, "POST", "/api/sandbox", "").str("id")
	s.SetLimits(emulator.Limits{Suspended: true})
	box := "/api/sandbox/" + id
	s.must(http.StatusForbidden, "POST", "/api/sandbox", "")
	s.must(http.StatusOK, "GET", box, "")
	s.must(http.StatusOK, "POST", box+"/stop", "")
	s.Sandbox(id).Settle(time.Minute)
	s.must(http.StatusForbidden, "POST", box+"/start", "")
	s.Sandbox(id).Force(emulator.StateError, "timeout while starting", true)
	s.must(http.StatusForbidden, "POST", box+"/recover", "")
	s.must(http.StatusOK, "DELETE", box, "")
}
