package emulator

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// serve is the whole server: it logs the request, applies the fault plan, and hands the request to the part that its
// address names.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.logged(w, r, func(w http.ResponseWriter, r *http.Request) {
		s.faulted(w, r, s.dispatch)
	})
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	if skew := skewOf(r); skew != 0 {
		w.Header().Set("Date", now(r).UTC().Format(http.TimeFormat))
	}
	path := r.URL.Path
	switch target, byHost := s.previewHost(r.Host); {
	case byHost:
		s.preview(w, r, target, "")
	case strings.HasPrefix(path, "/toolbox/"):
		s.proxy(w, r)
	case strings.HasPrefix(path, "/snapshots/"):
		s.proxySnapshotLog(w, r)
	case strings.HasPrefix(path, "/preview/"):
		target, _, _ := strings.Cut(strings.TrimPrefix(path, "/preview/"), "/")
		s.preview(w, r, target, "/preview/"+target)
	default:
		s.api(w, r)
	}
}

// endpoint is a handler of the control plane; what it returns becomes the error body.
type endpoint func(w http.ResponseWriter, r *http.Request) *apiError

// rateClass is what a request counts as, besides being a request.
type rateClass string

const (
	rateAll       rateClass = "authenticated"
	rateCreate    rateClass = "sandbox-create"
	rateLifecycle rateClass = "sandbox-lifecycle"
)

// routes are the control plane's endpoints. Sandboxes are named by id or name unless the endpoint says otherwise.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(pattern string, class rateClass, e endpoint) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := s.rate(w, r, class); err != nil {
				writeError(w, r, err)
				return
			}
			if faultOf(r).is(LoseContainer) {
				if sb, err := s.withSandbox(r, func(*sandbox) *apiError { return nil }); err == nil {
					s.lose(sb)
				}
			}
			if err := e(w, r); err != nil {
				writeError(w, r, err)
			}
		})
	}
	const sandbox = "/api/sandbox/{sandbox}"
	handle("POST /api/sandbox", rateCreate, s.create)
	handle("GET /api/sandbox", rateAll, s.listCursor)
	handle("GET /api/sandbox/paginated", rateAll, s.listPaginated)
	handle("GET "+sandbox, rateAll, s.read)
	handle("DELETE "+sandbox, rateLifecycle, s.destroy)
	handle("POST "+sandbox+"/start", rateLifecycle, s.held(s.beginStart))
	handle("POST "+sandbox+"/recover", rateLifecycle, s.held(s.beginRecover))
	handle("POST "+sandbox+"/stop", rateLifecycle, s.accepted(s.beginStop))
	handle("POST "+sandbox+"/archive", rateLifecycle, s.accepted(s.beginArchive))
	handle("PUT "+sandbox+"/labels", rateAll, s.putLabels)
	handle("POST "+sandbox+"/public/{public}", rateAll, s.setPublic)
	handle("POST "+sandbox+"/autostop/{interval}", rateAll, s.setInterval(0, func(r *record, n int) { r.AutoStop = n }))
	handle("POST "+sandbox+"/autoarchive/{interval}", rateAll, s.setInterval(0, func(r *record, n int) { r.AutoArchive = n }))
	handle("POST "+sandbox+"/autodelete/{interval}", rateAll, s.setInterval(noLeast, func(r *record, n int) { r.AutoDelete = max(-1, n) }))
	if !s.opt.Legacy {
		handle("POST "+sandbox+"/ttl/{interval}", rateAll, s.setInterval(0, setTTL))
	}
	handle("POST "+sandbox+"/last-activity", rateAll, s.lastActivity)
	handle("GET "+sandbox+"/toolbox-proxy-url", rateAll, s.toolboxURL)
	handle("GET "+sandbox+"/ports/{port}/preview-url", rateAll, s.previewURL)
	handle("GET "+sandbox+"/ports/{port}/signed-preview-url", rateAll, s.signPreview)
	handle("POST "+sandbox+"/ports/{port}/signed-preview-url/{token}/expire", rateAll, s.expirePreview)
	handle("GET "+sandbox+"/build-logs", rateAll, s.buildLogs)
	handle("POST "+sandbox+"/ssh-access", rateAll, s.createSSH)
	handle("DELETE "+sandbox+"/ssh-access", rateAll, s.deleteSSH)
	handle("GET /api/sandbox/ssh-access/validate", rateAll, s.validateSSH)
	handle("POST "+sandbox+"/snapshot", rateLifecycle, s.capture)
	handle("GET /api/snapshots", rateAll, s.listSnapshots)
	handle("POST /api/snapshots", rateAll, s.createSnapshot)
	handle("GET /api/snapshots/{snapshot}", rateAll, s.readSnapshot)
	handle("DELETE /api/snapshots/{snapshot}", rateAll, s.deleteSnapshot)
	handle("GET /api/snapshots/{snapshot}/build-logs", rateAll, s.snapshotLog)
	handle("GET /api/snapshots/{snapshot}/build-logs-url", rateAll, s.snapshotLogURL)
	handle("GET "+sandbox+"/organization", rateAll, s.sandboxOrganization)
	handle("GET /api/organizations", rateAll, s.organizations)
	handle("GET /api/api-keys/current", rateAll, s.currentKey)
	return mux
}

// api serves the control plane: authentication first, then the routes, and the router's own 404 for anything else.
func (s *Server) api(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Daytona-Api-Version", s.apiVersion())
	if r.URL.Path == "/api/health" && r.Method == http.MethodGet {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok", "version": s.apiVersion()})
		return
	}
	if _, pattern := s.mux.Handler(r); pattern == "" {
		writeError(w, r, refuse(http.StatusNotFound, fmt.Sprintf("Cannot %s %s", r.Method, r.URL.RequestURI())))
		return
	}
	key, ok := s.authenticate(r)
	if !ok {
		writeError(w, r, refuse(http.StatusUnauthorized, "Invalid credentials"))
		return
	}
	if err := key.permit(r); err != nil {
		writeError(w, r, err)
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), organizationKey{}, key.Organization)))
}

type organizationKey struct{}

func organizationOf(r *http.Request) string {
	organization, _ := r.Context().Value(organizationKey{}).(string)
	return organization
}

// rateWindow counts the requests of one class and organisation since a time.
type rateWindow struct {
	since time.Time
	count int
}

// rate counts a request and refuses it when its class, or the class of all requests, is exhausted.
func (s *Server) rate(w http.ResponseWriter, r *http.Request, class rateClass) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	length := s.limits.Window
	if length <= 0 {
		length = time.Minute
	}
	for _, c := range []struct {
		class rateClass
		most  int
	}{{rateAll, s.limits.RequestRate}, {rateCreate, s.limits.CreateRate}, {rateLifecycle, s.limits.LifecycleRate}} {
		if c.most <= 0 || (c.class != rateAll && c.class != class) {
			continue
		}
		key, t := organizationOf(r)+" "+string(c.class), time.Now()
		window := s.rates[key]
		if window == nil || t.Sub(window.since) >= length {
			window = &rateWindow{since: t}
			s.rates[key] = window
		}
		window.count++
		left := int((length - t.Sub(window.since) + time.Second - 1) / time.Second)
		w.Header().Set("X-RateLimit-Limit-"+string(c.class), strconv.Itoa(c.most))
		w.Header().Set("X-RateLimit-Remaining-"+string(c.class), strconv.Itoa(max(0, c.most-window.count)))
		w.Header().Set("X-RateLimit-Reset-"+string(c.class), strconv.Itoa(left))
		if window.count > c.most {
			err := refuse(http.StatusTooManyRequests, "Rate limit exceeded")
			err.header = http.Header{"Retry-After": {strconv.Itoa(left)}}
			return err
		}
	}
	return nil
}

// withSandbox finds the request's sandbox and runs do while holding s.mu.
func (s *Server) withSandbox(r *http.Request, do func(*sandbox) *apiError) (*sandbox, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.find(organizationOf(r), r.PathValue("sandbox"))
	if err == nil {
		err = do(sb)
	}
	return sb, err
}

// reply answers with the sandbox as it is now.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, sb *sandbox) *apiError {
	s.mu.Lock()
	dto := s.dto(sb.now(), skewOf(r)).full()
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, dto)
	return nil
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) *apiError {
	sb, err := s.withSandbox(r, func(*sandbox) *apiError { return nil })
	if err != nil {
		return err
	}
	return s.reply(w, r, sb)
}

// accepted makes the endpoint of a state change whose reply does not wait for it.
func (s *Server) accepted(begin func(*sandbox, *time.Duration) *apiError) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		var dto fullDTO
		_, err := s.withSandbox(r, func(sb *sandbox) *apiError {
			err := begin(sb, faultOf(r).stall())
			dto = s.dto(sb.now(), skewOf(r)).full() // before the change goes on
			return err
		})
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, dto)
		return nil
	}
}

func (s *Server) destroy(w http.ResponseWriter, r *http.Request) *apiError {
	return s.accepted(s.beginDestroy)(w, r)
}

// held makes the endpoint of a start, whose reply waits for it.
func (s *Server) held(begin func(*sandbox, *time.Duration) *apiError) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		sb, err := s.withSandbox(r, func(sb *sandbox) *apiError { return begin(sb, faultOf(r).stall()) })
		if err != nil {
			return err
		}
		s.settled(r.Context(), sb, s.opt.Timing.StartHold)
		s.mu.Lock()
		failed, reason := sb.State == StateError && !sb.pending, sb.ErrorReason
		s.mu.Unlock()
		if failed {
			return refuse(http.StatusBadRequest, "Sandbox failed to start: "+reason)
		}
		return s.reply(w, r, sb)
	}
}

func (s *Server) putLabels(w http.ResponseWriter, r *http.Request) *apiError {
	fields, err := parseObject(r)
	if err != nil {
		return err
	}
	f := &fieldReader{fields: fields}
	if _, found := fields["labels"]; !found {
		return refuse(http.StatusBadRequest, "labels must be an object")
	}
	labels := f.texts("labels")
	if err := f.err(); err != nil {
		return err
	}
	if _, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		s.change(sb, func(r *record) { r.Labels = labels })
		return nil
	}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"labels": labels})
	return nil
}

func (s *Server) setPublic(w http.ResponseWriter, r *http.Request) *apiError {
	public, bad := strconv.ParseBool(r.PathValue("public"))
	if bad != nil {
		return refuse(http.StatusBadRequest, "Validation failed (boolean string is expected)")
	}
	sb, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		s.change(sb, func(r *record) { r.Public = public })
		return nil
	})
	if err != nil {
		return err
	}
	return s.reply(w, r, sb)
}

// noLeast is the least of an interval that may have any value.
const noLeast = -1 << 31

// setInterval makes the endpoint that sets a number of minutes.
func (s *Server) setInterval(least int, set func(*record, int)) endpoint {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		n, bad := strconv.Atoi(r.PathValue("interval"))
		switch {
		case bad != nil:
			return refuse(http.StatusBadRequest, "Validation failed (numeric string is expected)")
		case n < least:
			return refuse(http.StatusBadRequest, "Interval must be non-negative")
		}
		sb, err := s.withSandbox(r, func(sb *sandbox) *apiError {
			s.change(sb, func(r *record) { set(r, n) })
			return nil
		})
		if err != nil {
			return err
		}
		return s.reply(w, r, sb)
	}
}

// setTTL anchors a lifetime at the present; 0 removes it.
func setTTL(r *record, minutes int) {
	r.DestroyAt = time.Time{}
	if minutes > 0 {
		r.DestroyAt = time.Now().Add(time.Duration(minutes) * time.Minute)
	}
}

func (s *Server) lastActivity(w http.ResponseWriter, r *http.Request) *apiError {
	_, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		s.change(sb, func(r *record) { r.ActiveAt = time.Now() })
		return nil
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// toolboxURL takes an id only.
func (s *Server) toolboxURL(w http.ResponseWriter, r *http.Request) *apiError {
	if _, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		if id := r.PathValue("sandbox"); sb.ID != id {
			return notFound(id)
		}
		return nil
	}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"url": s.root + "/toolbox"})
	return nil
}

// buildLogs has one line for each stage that the sandbox has reached.
func (s *Server) buildLogs(w http.ResponseWriter, r *http.Request) *apiError {
	sb, err := s.withSandbox(r, func(sb *sandbox) *apiError {
		if sb.Dockerfile == "" {
			return refuse(http.StatusNotFound, "Sandbox with ID "+sb.ID+" has no build info")
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control := http.NewResponseController(w)
	for last, shown := State(""), false; ; {
		s.mu.Lock()
		state, pending, changed := sb.State, sb.pending, sb.changed
		s.mu.Unlock()
		if !shown || state != last {
			fmt.Fprintf(w, "%s\n", state)
			last, shown = state, true
		}
		if !pending || r.URL.Query().Get("follow") != "true" {
			return nil
		}
		control.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
}

// organization is an OrganizationDto with the fields that the specification requires.
func (s *Server) organization(id string) map[string]any {
	s.mu.Lock()
	l := s.limits
	s.mu.Unlock()
	limit := func(n int) any {
		if n <= 0 {
			return nil
		}
		return n
	}
	most := func(n int) int {
		if n <= 0 {
			return 1 << 20
		}
		return n
	}
	epoch := timestamp(time.Unix(0, 0))
	return map[string]any{
		"id": id, "name": "Personal", "createdBy": "emulator", "personal": true, "createdAt": epoch, "updatedAt": epoch,
		"suspended": l.Suspended, "suspendedAt": epoch, "suspendedUntil": epoch, "suspensionReason": "", "suspensionCleanupGracePeriodHours": 0,
		"maxCpuPerSandbox": most(l.SandboxCPU), "maxMemoryPerSandbox": most(l.SandboxMemory), "maxDiskPerSandbox": most(l.SandboxDisk),
		"snapshotDeactivationTimeoutMinutes": 20160, "sandboxLimitedNetworkEgress": false, "experimentalConfig": map[string]any{},
		"defaultRegionId": s.opt.Regions[0], "authenticatedRateLimit": limit(l.RequestRate), "sandboxCreateRateLimit": limit(l.CreateRate),
		"sandboxLifecycleRateLimit": limit(l.LifecycleRate), "authenticatedRateLimitTtlSeconds": nil,
		"sandboxCreateRateLimitTtlSeconds": nil, "sandboxLifecycleRateLimitTtlSeconds": nil,
	}
}

// organizations lists the one organisation of the key.
func (s *Server) organizations(w http.ResponseWriter, r *http.Request) *apiError {
	writeJSON(w, http.StatusOK, []any{s.organization(organizationOf(r))})
	return nil
}

func (s *Server) sandboxOrganization(w http.ResponseWriter, r *http.Request) *apiError {
	if _, err := s.withSandbox(r, func(*sandbox) *apiError { return nil }); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.organization(organizationOf(r)))
	return nil
}

func (s *Server) currentKey(w http.ResponseWriter, r *http.Request) *apiError {
	writeJSON(w, http.StatusOK, map[string]any{
		"name": "emulator", "value": "dtn_********", "createdAt": timestamp(time.Unix(0, 0)), "userId": "emulator",
		"permissions": []string{"write:sandboxes", "delete:sandboxes"}, "lastUsedAt": nil, "expiresAt": nil,
	})
	return nil
}
