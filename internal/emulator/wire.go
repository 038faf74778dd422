package emulator

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// apiError is a refusal of the control plane.
type apiError struct {
	status  int
	message string
	header  http.Header // extra headers of the reply, or nil
	syntax  bool        // the body has three fields: the request's JSON could not be parsed
}

func (e *apiError) Error() string { return e.message }

func refuse(status int, message string) *apiError { return &apiError{status: status, message: message} }

func notFound(idOrName string) *apiError {
	return refuse(http.StatusNotFound, "Sandbox with ID or name "+idOrName+" not found")
}

var (
	errPending   = refuse(http.StatusConflict, "Sandbox state change in progress")
	errSuspended = refuse(http.StatusForbidden, "Organization is suspended") // it may still stop and delete
)

// ErrorBody is the control plane's own error body, for faults that must look like its refusals.
func ErrorBody(status int, message string) string {
	return string(errorBody("/api", status, message, time.Now()))
}

func errorBody(path string, status int, message string, now time.Time) []byte {
	return encode(struct {
		Path       string `json:"path"`
		Timestamp  string `json:"timestamp"`
		StatusCode int    `json:"statusCode"`
		Error      string `json:"error"`
		Message    string `json:"message"`
	}{path, timestamp(now), status, http.StatusText(status), message})
}

// daemonErrorBody is the error body of the daemon, which the proxies share.
func daemonErrorBody(r *http.Request, status int, code, message string, now time.Time) []byte {
	return encode(struct {
		StatusCode int    `json:"statusCode"`
		Message    string `json:"message"`
		Code       string `json:"code"`
		Timestamp  string `json:"timestamp"`
		Path       string `json:"path"`
		Method     string `json:"method"`
	}{status, message, code, now.UTC().Format(time.RFC3339Nano), r.URL.Path, r.Method})
}

func writeError(w http.ResponseWriter, r *http.Request, err *apiError) {
	for name, values := range err.header {
		w.Header()[name] = values
	}
	if err.syntax {
		writeBody(w, err.status, encode(struct {
			Message    string `json:"message"`
			Error      string `json:"error"`
			StatusCode int    `json:"statusCode"`
		}{err.message, http.StatusText(err.status), err.status}))
		return
	}
	writeBody(w, err.status, errorBody(r.URL.Path, err.status, err.message, now(r)))
}

func writeJSON(w http.ResponseWriter, status int, value any) { writeBody(w, status, encode(value)) }

func writeBody(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	w.Write(body)
}

// encode marshals values of this package's own types, which cannot fail.
func encode(value any) []byte {
	body, err := json.Marshal(value)
	if err != nil {
		panic("emulator: " + err.Error())
	}
	return body
}

// timestamp is a time as the control plane writes it.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// now is the time that a request sees: a skewed clock is a fault.
func now(r *http.Request) time.Time { return time.Now().Add(skewOf(r)) }

// sandboxDTO is a SandboxDto. Its fields that can be null are apart, because a creation's reply leaves nulls out.
type sandboxDTO struct {
	listItem
	Env       map[string]string `json:"env"`
	BlockAll  bool              `json:"networkBlockAll"`
	Volumes   []any             `json:"volumes"`
	BuildInfo *buildInfo        `json:"buildInfo,omitempty"`
}

// listItem is what the cursor form of the list tells of a sandbox.
type listItem struct {
	ID             string            `json:"id"`
	OrganizationID string            `json:"organizationId"`
	Name           string            `json:"name"`
	Snapshot       string            `json:"snapshot,omitempty"`
	User           string            `json:"user"`
	Labels         map[string]string `json:"labels"`
	Public         bool              `json:"public"`
	Target         string            `json:"target"`
	CPU            int               `json:"cpu"`
	GPU            int               `json:"gpu"`
	Memory         int               `json:"memory"`
	Disk           int               `json:"disk"`
	State          State             `json:"state"`
	DesiredState   State             `json:"desiredState"`
	Recoverable    bool              `json:"recoverable"`
	BackupState    string            `json:"backupState"`
	AutoStop       int               `json:"autoStopInterval"`
	AutoArchive    int               `json:"autoArchiveInterval"`
	AutoDelete     int               `json:"autoDeleteInterval"`
	AutoDestroyAt  string            `json:"autoDestroyAt,omitempty"`
	CreatedAt      string            `json:"createdAt"`
	UpdatedAt      string            `json:"updatedAt"`
	LastActivityAt string            `json:"lastActivityAt,omitempty"`
	Class          string            `json:"sandboxClass"`
	DaemonVersion  string            `json:"daemonVersion,omitempty"`
	RunnerID       string            `json:"runnerId,omitempty"`
	ToolboxURL     string            `json:"toolboxProxyUrl"`
	ErrorReason    string            `json:"errorReason,omitempty"`
}

// fullDTO is a sandboxDTO whose absent values are null.
type fullDTO struct {
	sandboxDTO
	AllowList   *string `json:"networkAllowList"`
	DomainList  *string `json:"domainAllowList"`
	ErrorReason *string `json:"errorReason"`
}

func (d sandboxDTO) full() fullDTO {
	f := fullDTO{sandboxDTO: d}
	if d.listItem.ErrorReason != "" {
		f.ErrorReason = &d.listItem.ErrorReason
	}
	return f
}

type buildInfo struct {
	Dockerfile  string `json:"dockerfileContent"`
	CreatedAt   string `json:"createdAt"`
	UpdatedAt   string `json:"updatedAt"`
	SnapshotRef string `json:"snapshotRef"`
}

// dto renders a record at a given clock skew.
func (s *Server) dto(r *record, skew time.Duration) sandboxDTO {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return timestamp(t.Add(skew))
	}
	d := sandboxDTO{
		listItem: listItem{
			ID: r.ID, OrganizationID: r.Organization, Name: r.Name, Snapshot: r.Snapshot, User: r.User,
			Labels: r.Labels, Public: r.Public, Target: r.Target,
			CPU: r.CPU, GPU: r.GPU, Memory: r.Memory, Disk: r.Disk,
			State: r.shown(), DesiredState: r.Desired, Recoverable: r.Recoverable, BackupState: "None",
			AutoStop: r.AutoStop, AutoArchive: r.AutoArchive, AutoDelete: r.AutoDelete,
			CreatedAt: at(r.CreatedAt), UpdatedAt: at(r.UpdatedAt), LastActivityAt: at(r.ActiveAt),
			Class: "container", ToolboxURL: s.root + "/toolbox", ErrorReason: r.ErrorReason,
		},
		Env: r.Env, BlockAll: r.BlockAll, Volumes: []any{},
	}
	if !s.opt.Legacy {
		d.AutoDestroyAt = at(r.DestroyAt)
	}
	if r.WasStarted {
		d.DaemonVersion, d.RunnerID = daemonVersion, runnerID
	}
	if r.Dockerfile != "" {
		d.BuildInfo = &buildInfo{r.Dockerfile, at(r.CreatedAt), at(r.CreatedAt), "daytona-" + strings.ToLower(r.ID) + ":daytona"}
	}
	return d
}

const (
	daemonVersion = "v0.190.0"
	runnerID      = "00000000-0000-4000-8000-000000000001"
)

func (s *Server) apiVersion() string {
	if s.opt.Legacy {
		return "v0.190.0"
	}
	return "v0.205.1"
}
