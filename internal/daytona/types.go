package daytona

import "time"

// Language is the value of the label code-toolbox-language, which the control plane expects on every sandbox.
// The API accepts python, javascript and typescript.
type Language string

// State is the state of a sandbox as the control plane names it. An unknown value is kept as it was received.
type State string

// The states of the control plane (SandboxDto.state).
const (
	StateCreating         State = "creating"
	StateRestoring        State = "restoring"
	StateDestroyed        State = "destroyed"
	StateDestroying       State = "destroying"
	StateStarted          State = "started"
	StateStopped          State = "stopped"
	StateStarting         State = "starting"
	StateStopping         State = "stopping"
	StateError            State = "error"
	StateBuildFailed      State = "build_failed"
	StatePendingBuild     State = "pending_build"
	StateBuildingSnapshot State = "building_snapshot"
	StateUnknown          State = "unknown"
	StatePullingSnapshot  State = "pulling_snapshot"
	StateArchived         State = "archived"
	StateArchiving        State = "archiving"
	StateResizing         State = "resizing"
	StateSnapshotting     State = "snapshotting"
	StateForking          State = "forking"
	StatePausing          State = "pausing"
	StatePaused           State = "paused"
	StateResuming         State = "resuming"
)

// Resources are the resources of an image-backed sandbox. Zero leaves a value to the provider's default.
type Resources struct {
	CPU    int // cores
	GPU    int // units
	Memory int // GiB
	Disk   int // GiB
}

// CreateRequest describes one sandbox. Nil intervals leave a value to the provider's default.
type CreateRequest struct {
	Name        string
	Snapshot    string // excludes Image
	Image       string
	Language    Language
	Target      string
	User        string
	Labels      map[string]string // copied
	Env         map[string]string // copied
	Resources   Resources
	AutoStop    *int // minutes
	AutoArchive *int // minutes
	AutoDelete  *int // minutes
	TTL         int  // whole minutes; 0 sends none
}

// Sandbox is a fresh read of one sandbox (SandboxDto), including what the SDK's own Sandbox drops.
type Sandbox struct {
	ID             string
	Name           string
	OrganizationID string
	State          State
	DesiredState   State
	ErrorReason    string // provider text: for classification, never for people or logs
	Recoverable    bool   // the provider can recover it from an error
	NotRecoverable bool   // the provider said that it cannot; both false: it said nothing
	Labels         map[string]string
	Target         string
	Snapshot       string
	User           string
	CPU            float64
	GPU            float64
	Memory         float64 // GiB
	Disk           float64 // GiB
	AutoStop       *int    // minutes; nil: not reported
	AutoArchive    *int
	AutoDelete     *int
	AutoDestroyAt  time.Time // zero: not reported
	CreatedAt      time.Time
	UpdatedAt      time.Time
	ToolboxURL     string // base of the toolbox proxy, without the sandbox id
}

// ExecuteResult is the answer of POST /process/execute: both streams merged, invalid UTF-8 replaced by the daemon.
type ExecuteResult struct {
	ExitCode int // -1: the shell died by a signal, or the directory was bad
	Output   string
}

// SessionCommand is the record of one command in a session.
type SessionCommand struct {
	ID       string
	Command  string
	ExitCode *int // nil: not recorded (yet)
}
