package emulator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// SnapshotState is the state of a snapshot, as the control plane names it.
type SnapshotState string

// The states that the emulator produces.
const (
	SnapshotPending     SnapshotState = "pending"
	SnapshotPulling     SnapshotState = "pulling"
	SnapshotBuilding    SnapshotState = "building"
	SnapshotActive      SnapshotState = "active"
	SnapshotBuildFailed SnapshotState = "build_failed"
	SnapshotFailed      SnapshotState = "error"
	SnapshotRemoving    SnapshotState = "removing"
)

// snapshotRecord is the control plane's row of one snapshot that was created here.
type snapshotRecord struct {
	ID           string        `json:"id"`
	Organization string        `json:"organization"`
	Name         string        `json:"name"`
	Image        string        `json:"image,omitempty"`
	Dockerfile   string        `json:"dockerfile,omitempty"`
	Entrypoint   []string      `json:"entrypoint,omitempty"`
	Region       string        `json:"region"`
	CPU          int           `json:"cpu"`
	GPU          int           `json:"gpu"`
	Memory       int           `json:"memory"`
	Disk         int           `json:"disk"`
	State        SnapshotState `json:"state"`
	ErrorReason  string        `json:"errorReason,omitempty"`
	Log          []byte        `json:"log,omitempty"`
	Files        bool          `json:"files,omitempty"` // it has those of the sandbox that it was made from
	CreatedAt    time.Time     `json:"createdAt"`
	UpdatedAt    time.Time     `json:"updatedAt"`
	LastUsedAt   time.Time     `json:"lastUsedAt,omitzero"`
}

// snapshot is one snapshot. Server.mu guards all of it.
type snapshot struct {
	snapshotRecord
	changed chan struct{} // closed and replaced with each change
}

// ended reports whether nothing more is written to the build's log.
func (n *snapshot) ended() bool {
	return !slices.Contains([]SnapshotState{SnapshotPending, SnapshotPulling, SnapshotBuilding}, n.State)
}

// source is what sandboxes are made from.
func (n *snapshot) source(s *Server) Snapshot {
	made := Snapshot{Name: n.Name, State: string(n.State), CPU: n.CPU, Memory: n.Memory, Disk: n.Disk, Regions: []string{n.Region}}
	if n.Files {
		made.files = s.snapshotFiles(n.ID)
	}
	return made
}

func (s *Server) snapshotDir(id string) string   { return filepath.Join(s.dir, "snapshots", id) }
func (s *Server) snapshotFiles(id string) string { return filepath.Join(s.snapshotDir(id), "home") }

// changeSnapshot edits a record, saves it and wakes whoever waits for it. The caller holds s.mu.
func (s *Server) changeSnapshot(n *snapshot, edit func(*snapshotRecord)) {
	edit(&n.snapshotRecord)
	n.UpdatedAt = time.Now()
	close(n.changed)
	n.changed = make(chan struct{})
	if err := s.saveSnapshot(n); err != nil {
		s.log.Error("saving a snapshot's record", "snapshot", n.ID, "err", err)
	}
}

func (s *Server) insertSnapshot(r snapshotRecord) *snapshot {
	n := &snapshot{changed: make(chan struct{})}
	s.snapshots[r.ID] = n
	s.changeSnapshot(n, func(old *snapshotRecord) { *old = r })
	return n
}

// saveSnapshot writes the record beside the files. The caller holds s.mu.
func (s *Server) saveSnapshot(n *snapshot) error {
	if s.opt.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(s.snapshotDir(n.ID), 0o700); err != nil {
		return err
	}
	text, err := json.MarshalIndent(n.snapshotRecord, "", "\t")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(s.snapshotDir(n.ID), "record.json"), text)
}

// loadSnapshots reads what an earlier server left. What was not finished is gone.
func (s *Server) loadSnapshots() error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		var r snapshotRecord
		text, err := os.ReadFile(filepath.Join(s.snapshotDir(entry.Name()), "record.json"))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil || r.ID != entry.Name() || !slices.Contains([]SnapshotState{SnapshotActive, SnapshotBuildFailed, SnapshotFailed}, r.State) {
			if err := removeTree(s.snapshotDir(entry.Name())); err != nil {
				return err
			}
			continue
		}
		s.insertSnapshot(r)
	}
	return nil
}

// findSnapshot looks a snapshot of an organisation up, by id or by name. The caller holds s.mu.
func (s *Server) findSnapshot(organization, idOrName string) *snapshot {
	for _, n := range s.snapshots {
		if n.Organization == organization && (n.ID == idOrName || n.Name == idOrName) {
			return n
		}
	}
	return nil
}

// withSnapshot finds the request's snapshot and runs do while holding s.mu.
func (s *Server) withSnapshot(r *http.Request, do func(*snapshot)) (*snapshot, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.findSnapshot(organizationOf(r), r.PathValue("snapshot"))
	if n == nil {
		return nil, refuse(http.StatusNotFound, "Snapshot "+r.PathValue("snapshot")+" not found")
	}
	do(n)
	return n, nil
}

type snapshotDTO struct {
	ID             string     `json:"id"`
	OrganizationID string     `json:"organizationId,omitempty"`
	General        bool       `json:"general"`
	Name           string     `json:"name"`
	ImageName      string     `json:"imageName,omitempty"`
	State          string     `json:"state"`
	Size           *float64   `json:"size"`
	Entrypoint     []string   `json:"entrypoint"`
	CPU            int        `json:"cpu"`
	GPU            int        `json:"gpu"`
	Mem            int        `json:"mem"`
	Disk           int        `json:"disk"`
	ErrorReason    *string    `json:"errorReason"`
	CreatedAt      string     `json:"createdAt"`
	UpdatedAt      string     `json:"updatedAt"`
	LastUsedAt     *string    `json:"lastUsedAt"`
	BuildInfo      *buildInfo `json:"buildInfo,omitempty"`
	RegionIDs      []string   `json:"regionIds,omitempty"`
	RunnerID       string     `json:"initialRunnerId,omitempty"`
	Ref            string     `json:"ref,omitempty"`
}

func (n *snapshot) dto(skew time.Duration) snapshotDTO {
	at := func(t time.Time) string { return timestamp(t.Add(skew)) }
	d := snapshotDTO{
		ID: n.ID, OrganizationID: n.Organization, Name: n.Name, ImageName: n.Image, State: string(n.State), Entrypoint: n.Entrypoint,
		CPU: n.CPU, GPU: n.GPU, Mem: n.Memory, Disk: n.Disk, CreatedAt: at(n.CreatedAt), UpdatedAt: at(n.UpdatedAt), RegionIDs: []string{n.Region},
	}
	if n.ErrorReason != "" {
		d.ErrorReason = &n.ErrorReason
	}
	if !n.LastUsedAt.IsZero() {
		used := at(n.LastUsedAt)
		d.LastUsedAt = &used
	}
	if n.State != SnapshotPending {
		d.RunnerID, d.Ref = runnerID, "registry:6000/daytona/daytona-"+n.ID+":daytona"
	}
	if n.Dockerfile != "" {
		d.BuildInfo = &buildInfo{n.Dockerfile, at(n.CreatedAt), at(n.CreatedAt), "daytona-" + n.ID + ":daytona"}
	}
	if n.State == SnapshotActive {
		size := 0.5
		d.Size = &size
	}
	return d
}

// generalDTO is a snapshot of Options.Snapshots.
func generalDTO(n Snapshot) snapshotDTO {
	epoch := timestamp(time.Unix(0, 0))
	return snapshotDTO{
		ID: uuid.NewSHA1(uuid.NameSpaceURL, []byte(n.Name)).String(), General: true, Name: n.Name, State: cmp.Or(n.State, string(SnapshotActive)),
		CPU: cmp.Or(n.CPU, 1), Mem: cmp.Or(n.Memory, 1), Disk: cmp.Or(n.Disk, 3), CreatedAt: epoch, UpdatedAt: epoch,
	}
}

// generalSnapshot finds one of Options.Snapshots.
func (s *Server) generalSnapshot(idOrName string) *snapshotDTO {
	for _, n := range s.opt.Snapshots {
		if d := generalDTO(n); n.Name != "*" && (d.ID == idOrName || d.Name == idOrName) {
			return &d
		}
	}
	return nil
}

func (s *Server) readSnapshot(w http.ResponseWriter, r *http.Request) *apiError {
	if d := s.generalSnapshot(r.PathValue("snapshot")); d != nil {
		writeJSON(w, http.StatusOK, d)
		return nil
	}
	var d snapshotDTO
	if _, err := s.withSnapshot(r, func(n *snapshot) { d = n.dto(skewOf(r)) }); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) *apiError {
	page, limit := 1, 100
	for name, into := range map[string]*int{"page": &page, "limit": &limit} {
		if text := r.URL.Query().Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || name == "limit" && n > 200 {
				return refuse(http.StatusBadRequest, name+" must not be less than 1")
			}
			*into = n
		}
	}
	s.mu.Lock()
	items := []snapshotDTO{}
	for _, n := range s.snapshots {
		if n.Organization == organizationOf(r) {
			items = append(items, n.dto(skewOf(r)))
		}
	}
	s.mu.Unlock()
	slices.SortFunc(items, func(a, b snapshotDTO) int {
		return cmp.Or(strings.Compare(b.CreatedAt, a.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	for _, n := range s.opt.Snapshots {
		if n.Name != "*" {
			items = append(items, generalDTO(n)) // last
		}
	}
	items = slices.DeleteFunc(items, func(d snapshotDTO) bool {
		return !strings.Contains(strings.ToLower(d.Name), strings.ToLower(r.URL.Query().Get("name")))
	})
	total := len(items)
	from := min((page-1)*limit, total)
	writeJSON(w, http.StatusOK, map[string]any{
		"items": items[from:min(from+limit, total)], "total": total, "page": page, "totalPages": (total + limit - 1) / limit,
	})
	return nil
}

// snapshotNameForm is the API's rule for the names of snapshots and images.
var snapshotNameForm = regexp.MustCompile(`^[a-zA-Z0-9_.\-:]+(/[a-zA-Z0-9_.\-:]+)*(@sha256:[a-f0-9]{64})?$`)

// nameSnapshot checks the name of a new snapshot. The caller holds s.mu.
func (s *Server) nameSnapshot(organization, name string) *apiError {
	switch {
	case !snapshotNameForm.MatchString(name):
		return refuse(http.StatusBadRequest, "Invalid snapshot name format. May contain letters, digits, dots, colons, and dashes")
	case s.limits.Suspended:
		return errSuspended
	case s.limits.Snapshots > 0 && s.countSnapshots(organization) >= s.limits.Snapshots:
		return refuse(http.StatusForbidden, fmt.Sprintf("Snapshot quota exceeded. Maximum allowed: %d", s.limits.Snapshots))
	case s.findSnapshot(organization, name) != nil:
		return refuse(http.StatusConflict, fmt.Sprintf("Snapshot with name %q already exists for this organization", name))
	}
	return nil
}

// countSnapshots counts an organisation's snapshots. The caller holds s.mu.
func (s *Server) countSnapshots(organization string) (count int) {
	for _, n := range s.snapshots {
		if n.Organization == organization {
			count++
		}
	}
	return count
}

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

// capture answers POST /sandbox/{id}/snapshot. The sandbox is "snapshotting" meanwhile, and then what it was; the
// snapshot appears at the end, if it does.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) *apiError {
	fields, err := parseObject(r)
	if err != nil {
		return err
	}
	f := &fieldReader{fields: fields}
	name := f.text("name")
	if name == "" {
		f.messages = append(f.messages, "name should not be empty")
	}
	if err := f.err(); err != nil {
		return err
	}
	fault := faultOf(r)
	fails := fault.is(RunnerFailure)
	var d fullDTO
	_, err = s.withSandbox(r, func(sb *sandbox) *apiError {
		if sb.State != StateStarted && sb.State != StateStopped {
			return refuse(http.StatusBadRequest, "Sandbox must be in started or stopped state to create a snapshot")
		}
		if sb.pending || sb.Desired == StateDestroyed {
			return errPending
		}
		if err := s.nameSnapshot(sb.Organization, name); err != nil {
			return err
		}
		before := sb.State
		s.change(sb, func(r *record) { r.State = StateSnapshotting })
		s.begin(sb, fault.stall(), func(o *outcome) {
			if o.wait(s.opt.Timing.Capture) {
				s.captured(o, before, name, fails)
			}
		})
		d = s.dto(sb.now(), skewOf(r)).full()
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// captured copies a sandbox's files and ends the capture. Its processes, unlike those of a paused container, go on meanwhile:
// a file that they write to is copied as it is when its turn comes.
func (s *Server) captured(o *outcome, before State, name string, fails bool) {
	made := snapshotRecord{ID: uuid.NewString(), Name: name, State: SnapshotActive, CreatedAt: time.Now(), Files: s.hasFiles()}
	s.mu.Lock()
	sb := o.sb.record
	s.mu.Unlock()
	made.Organization, made.Region = sb.Organization, sb.Target
	made.CPU, made.GPU, made.Memory, made.Disk = sb.CPU, sb.GPU, sb.Memory, sb.Disk
	if made.Files && !fails {
		if err := copyTree(s.snapshotFiles(made.ID), s.homeDir(sb.ID)); err != nil {
			s.log.Error("capturing a sandbox's files", "sandbox", sb.ID, "err", err)
			fails = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.sb.op != o.op {
		return
	}
	if !fails && s.findSnapshot(made.Organization, name) == nil {
		s.insertSnapshot(made)
	}
	o.sb.pending = false
	s.change(o.sb, func(r *record) { r.State = before })
}

// deleteSnapshot takes an id only, unlike the read. A snapshot that is being removed can be deleted again.
func (s *Server) deleteSnapshot(w http.ResponseWriter, r *http.Request) *apiError {
	id := r.PathValue("snapshot")
	if _, err := uuid.Parse(id); err != nil {
		return refuse(http.StatusBadRequest, "Validation failed (uuid is expected)")
	}
	if s.generalSnapshot(id) != nil {
		return refuse(http.StatusForbidden, "You cannot delete a general snapshot")
	}
	stall := faultOf(r).stall()
	if _, err := s.withSnapshot(r, func(n *snapshot) {
		again := n.State == SnapshotRemoving
		s.changeSnapshot(n, func(r *snapshotRecord) { r.State = SnapshotRemoving })
		if !again && !s.closed {
			s.work.Go(func() { s.removeSnapshot(n, stall) })
		}
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) removeSnapshot(n *snapshot, stall *time.Duration) {
	pace := pace{stall}
	if !pace.wait(s.ctx, s.opt.Timing.Destroy) {
		return
	}
	s.mu.Lock()
	delete(s.snapshots, n.ID)
	close(n.changed)
	n.changed = make(chan struct{})
	s.mu.Unlock()
	if s.hasFiles() {
		if err := removeTree(s.snapshotDir(n.ID)); err != nil {
			s.log.Error("removing a snapshot's files", "snapshot", n.ID, "err", err)
		}
	}
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

// SnapshotNames lists the names of the snapshots that were created and not yet removed, sorted.
func (s *Server) SnapshotNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	for _, n := range s.snapshots {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// copyTree copies directories, regular files and links, the first two with their permissions and times of modification. What
// else there is has no meaning in another sandbox. What vanishes meanwhile is not copied: processes may be at work there.
func copyTree(to, from string) error {
	c := treeCopy{to: to, from: from}
	err := filepath.WalkDir(from, c.visit)
	for _, f := range slices.Backward(c.finish) {
		err = errors.Join(err, f())
	}
	return err
}

type treeCopy struct {
	to, from string
	finish   []func() error // of directories, whose content changes their times, and which may forbid it in the end
}

// visit is a fs.WalkDirFunc.
func (c *treeCopy) visit(path string, entry fs.DirEntry, err error) error {
	vanished := func(err error) bool { return errors.Is(err, fs.ErrNotExist) && path != c.from }
	if err != nil && !vanished(err) {
		return err
	}
	info, err := entry.Info()
	switch {
	case vanished(err) && entry.IsDir():
		return fs.SkipDir
	case vanished(err):
		return nil
	case err != nil:
		return err
	}
	target := filepath.Join(c.to, strings.TrimPrefix(path, c.from))
	switch {
	case entry.IsDir():
		c.finish = append(c.finish, func() error { return likeness(target, info) })
		return os.MkdirAll(target, 0o700)
	case entry.Type() == fs.ModeSymlink:
		link, err := os.Readlink(path)
		if err == nil {
			err = os.Symlink(link, target)
		} else if vanished(err) {
			err = nil
		}
		return err
	case entry.Type().IsRegular():
		in, err := os.Open(path)
		if vanished(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer in.Close()
		return copyFile(target, in, info)
	}
	return nil
}

func copyFile(target string, in *os.File, info fs.FileInfo) error {
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return likeness(target, info)
}

// likeness gives a file or a directory the permissions and the time of another.
func likeness(target string, info fs.FileInfo) error {
	return errors.Join(os.Chtimes(target, time.Time{}, info.ModTime()), os.Chmod(target, info.Mode()))
}
