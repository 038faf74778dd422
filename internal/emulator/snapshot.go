package emulator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
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
