package emulator

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// imageRefusal is what the API has against the name of an image.
func imageRefusal(image string) string {
	switch {
	case strings.Contains(image, "@sha256:"):
	case !strings.Contains(image, ":"), strings.HasSuffix(image, ":"):
		return "Image name must include a tag (e.g., ubuntu:22.04) or digest (@sha256:...)"
	case strings.HasSuffix(image, ":latest"):
		return `Images with tag ":latest" are not allowed`
	}
	if !snapshotNameForm.MatchString(image) {
		return "Invalid image name format. Must be lowercase, may contain digits, dots, dashes, and single slashes between components"
	}
	return ""
}

// createSnapshot answers POST /snapshots at once; the build or the pull goes on.
func (s *Server) createSnapshot(w http.ResponseWriter, r *http.Request) *apiError {
	fields, err := parseObject(r)
	if err != nil {
		return err
	}
	f := &fieldReader{fields: fields}
	record := snapshotRecord{
		ID: uuid.NewString(), Organization: organizationOf(r), Name: f.text("name"), Image: f.text("imageName"),
		Region: cmp.Or(f.text("regionId"), s.opt.Regions[0]), CPU: pick(f.number("cpu"), 1), GPU: pick(f.number("gpu"), 0),
		Memory: pick(f.number("memory"), 1), Disk: pick(f.number("disk"), 3), State: SnapshotPending, CreatedAt: time.Now(),
	}
	f.read("entrypoint", "an array", &record.Entrypoint)
	var build struct {
		Dockerfile string `json:"dockerfileContent"`
	}
	built := f.read("buildInfo", "an object", &build)
	record.Dockerfile = build.Dockerfile
	switch {
	case record.Name == "":
		f.messages = append(f.messages, "name should not be empty")
	case built && build.Dockerfile == "":
		f.messages = append(f.messages, "buildInfo.dockerfileContent should not be empty")
	case built == (record.Image != ""):
		f.messages = append(f.messages, "Must specify an image name")
	case !built && imageRefusal(record.Image) != "":
		f.messages = append(f.messages, imageRefusal(record.Image))
	}
	if err := f.err(); err != nil {
		return err
	}
	if !slices.Contains(s.opt.Regions, record.Region) {
		return refuse(http.StatusNotFound, "Region not found")
	}
	base := Snapshot{}
	for _, known := range s.opt.Snapshots {
		if image := cmp.Or(record.Image, imageOf(record.Dockerfile)); known.Name == image {
			base = known
		}
	}
	if fault := faultOf(r); fault.is(RunnerFailure) {
		base = Snapshot{Failure: fault.reason()}
	}
	s.mu.Lock()
	if err := s.nameSnapshot(record.Organization, record.Name); err != nil {
		s.mu.Unlock()
		return err
	}
	n := s.insertSnapshot(record)
	d := n.dto(skewOf(r))
	stall := faultOf(r).stall()
	if !s.closed {
		s.work.Go(func() { s.build(n, base, stall) })
	}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, d)
	return nil
}

// build is what the runner does with a new snapshot: a line of log for each instruction.
func (s *Server) build(n *snapshot, base Snapshot, stall *time.Duration) {
	pace := pace{stall}
	step := func(edit func(*snapshotRecord)) bool {
		if !pace.wait(s.ctx, s.opt.Timing.Build) {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.snapshots[n.ID] != n || n.State == SnapshotRemoving {
			return false
		}
		s.changeSnapshot(n, edit)
		return true
	}
	first := SnapshotBuilding
	if n.Dockerfile == "" {
		first = SnapshotPulling
	}
	if !step(func(r *snapshotRecord) { r.State = first }) {
		return
	}
	var lines []string
	for line := range strings.Lines(n.Dockerfile) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	for i, line := range lines {
		if !step(func(r *snapshotRecord) { r.Log = fmt.Appendf(r.Log, "Step %d/%d : %s\n", i+1, len(lines), line) }) {
			return
		}
	}
	step(func(r *snapshotRecord) {
		switch {
		case base.State == string(SnapshotBuildFailed) || base.Failure != "":
			r.ErrorReason = cmp.Or(base.Failure, "Build failed")
			r.Log = fmt.Appendf(r.Log, "ERROR: %s", r.ErrorReason) // the last line of a failed build has no end
			if r.State = SnapshotBuildFailed; r.Dockerfile == "" {
				r.State = SnapshotFailed
			}
		default:
			if len(lines) > 0 {
				r.Log = fmt.Appendf(r.Log, "Successfully built %s\n", r.ID)
			}
			r.State = SnapshotActive
		}
	})
}

// snapshotLogURL names the proxy's address of a build's log.
func (s *Server) snapshotLogURL(w http.ResponseWriter, r *http.Request) *apiError {
	n, err := s.withSnapshot(r, func(*snapshot) {})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"url": s.root + "/snapshots/" + n.ID + "/build-logs"})
	return nil
}

// snapshotLog is the older way to the log. The real one waits up to 30 s until a runner is found.
func (s *Server) snapshotLog(w http.ResponseWriter, r *http.Request) *apiError {
	n, err := s.withSnapshot(r, func(*snapshot) {})
	if err != nil {
		return err
	}
	if n.Dockerfile == "" {
		return refuse(http.StatusNotFound, "Snapshot with ID "+n.ID+" has no build info")
	}
	s.streamLog(w, r, n)
	return nil
}

// proxySnapshotLog serves /snapshots/{id}/build-logs of the proxy: with the API's credential, and only once a runner
// builds.
func (s *Server) proxySnapshotLog(w http.ResponseWriter, r *http.Request) {
	id, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/snapshots/"), "/")
	key, ok := s.authenticate(r)
	s.mu.Lock()
	n := s.snapshots[id]
	waits := n != nil && n.State == SnapshotPending
	known := ok && n != nil && n.Organization == key.Organization && rest == "build-logs"
	s.mu.Unlock()
	switch {
	case !ok:
		proxyError(w, r, http.StatusUnauthorized, "UNAUTHORIZED", "unauthorized: authentication failed: Bearer token is invalid")
	case !known:
		proxyError(w, r, http.StatusNotFound, "NOT_FOUND", "not found: Snapshot "+id+" not found")
	case waits:
		proxyError(w, r, http.StatusBadRequest, "BAD_REQUEST", "bad request: snapshot has no initial runner")
	default:
		s.streamLog(w, r, n)
	}
}

func (s *Server) streamLog(w http.ResponseWriter, r *http.Request, n *snapshot) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control, sent := http.NewResponseController(w), 0
	for {
		s.mu.Lock()
		text, ended, changed := n.Log[sent:], n.ended(), n.changed
		s.mu.Unlock()
		w.Write(text)
		sent += len(text)
		if ended || r.URL.Query().Get("follow") != "true" {
			return
		}
		control.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
