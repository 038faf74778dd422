package daytona

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	api "github.com/daytonaio/daytona/libs/api-client-go"
)

// SnapshotState is the state of a snapshot as the control plane names it. An unknown value is kept as it was received.
type SnapshotState string

// The states of the control plane (SnapshotDto.state).
const (
	SnapshotBuilding    SnapshotState = "building"
	SnapshotPending     SnapshotState = "pending"
	SnapshotPulling     SnapshotState = "pulling"
	SnapshotActive      SnapshotState = "active"
	SnapshotInactive    SnapshotState = "inactive"
	SnapshotFailed      SnapshotState = "error"
	SnapshotBuildFailed SnapshotState = "build_failed"
	SnapshotRemoving    SnapshotState = "removing"
)

// Snapshot is a fresh read of one snapshot (SnapshotDto).
type Snapshot struct {
	ID             string
	Name           string
	OrganizationID string // empty for a general one
	General        bool   // the provider's, for everybody
	State          SnapshotState
	CPU            float64
	GPU            float64
	Memory         float64 // GiB
	Disk           float64 // GiB
	Size           float64 // GiB; 0: not reported
	CreatedAt      time.Time
}

// SnapshotRequest describes one snapshot to build, or to pull.
type SnapshotRequest struct {
	Name       string
	Image      string // excludes Dockerfile
	Dockerfile string
	Entrypoint []string
	Region     string
	Resources  Resources
}

// CreateSnapshot submits a snapshot (POST /snapshots). Success means accepted: the build or pull goes on. If it fails with
// anything but Dispatch no, a snapshot of that name may exist.
func (c *Client) CreateSnapshot(ctx context.Context, r SnapshotRequest) (*Snapshot, error) {
	for _, n := range []int{r.Resources.CPU, r.Resources.GPU, r.Resources.Memory, r.Resources.Disk} {
		if n < 0 || n > math.MaxInt32 {
			return nil, badInput(OpCreateSnapshot)
		}
	}
	body := api.CreateSnapshot{Name: r.Name, Entrypoint: slices.Clone(r.Entrypoint)}
	body.ImageName, body.RegionId = nonZero(r.Image), nonZero(r.Region)
	if r.Dockerfile != "" {
		body.BuildInfo = &api.CreateBuildInfo{DockerfileContent: r.Dockerfile}
	}
	body.Cpu, body.Gpu = nonZero(int32(r.Resources.CPU)), nonZero(int32(r.Resources.GPU))
	body.Memory, body.Disk = nonZero(int32(r.Resources.Memory)), nonZero(int32(r.Resources.Disk))
	return c.snapshot(ctx, OpCreateSnapshot, func(ctx context.Context) (*http.Response, error) {
		_, resp, err := c.api.SnapshotsAPI.CreateSnapshot(ctx).CreateSnapshot(body).Execute()
		return resp, err
	})
}

// Capture submits a snapshot of a sandbox's files (POST /sandbox/{id}/snapshot). Success means accepted: the sandbox is
// snapshotting, and the snapshot appears later, or not.
func (c *Client) Capture(ctx context.Context, id, name string) error {
	return c.change(ctx, OpCapture, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.CreateSandboxSnapshot(ctx, id).CreateSandboxSnapshot(api.CreateSandboxSnapshot{Name: name}).Execute()
		return err
	})
}

// GetSnapshot reads one snapshot by id or by name. It may be another one than was asked for: compare.
func (c *Client) GetSnapshot(ctx context.Context, idOrName string) (*Snapshot, error) {
	if !segment(idOrName) {
		return nil, badInput(OpGetSnapshot)
	}
	return c.snapshot(ctx, OpGetSnapshot, func(ctx context.Context) (*http.Response, error) {
		_, resp, err := c.api.SnapshotsAPI.GetSnapshot(ctx, idOrName).Execute()
		return resp, err
	})
}

// DeleteSnapshot asks for a snapshot to be removed, by id only. Success means accepted; it may be repeated until the
// snapshot is gone.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return c.change(ctx, OpDeleteSnapshot, id, func(ctx context.Context) error {
		_, err := c.api.SnapshotsAPI.RemoveSnapshot(ctx, id).Execute()
		return err
	})
}

// BuildLogURL returns the address of a build's log on the provider's proxy.
func (c *Client) BuildLogURL(ctx context.Context, id string) (string, error) {
	if !segment(id) {
		return "", badInput(OpBuildLogURL)
	}
	var reply struct {
		URL string `json:"url"`
	}
	err := c.do(ctx, OpBuildLogURL, func(ctx context.Context) error {
		_, resp, err := c.api.SnapshotsAPI.GetSnapshotBuildLogsUrl(ctx, id).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		// The credential goes there: not in clear text, where the API is reached through TLS.
		if base, ok := baseURL(reply.URL); !ok || c.base.Scheme == "https" && base.Scheme != "https" {
			return errReply
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return reply.URL, nil
}

// BuildLog opens a build's log, from its start every time. With follow it goes on as long as the build does, or as the
// server has patience. The proxy refuses (400) until the build has begun. The context bounds the stream.
func (c *Client) BuildLog(ctx context.Context, address string, follow bool) (*Body, error) {
	base, ok := baseURL(address)
	if !ok {
		return nil, badInput(OpBuildLog)
	}
	if follow {
		base.RawQuery = url.Values{"follow": {"true"}}.Encode()
	}
	ctx, k := c.begin(ctx, OpBuildLog)
	k.limit, k.bare = 0, true
	resp, err := c.send(ctx, http.MethodGet, base.String(), nil, nil)
	if e := k.outcome(ctx, err); e != nil {
		c.observe(k, e)
		return nil, e
	}
	return &Body{c: c, k: k, ctx: ctx, rc: resp.Body}, nil
}

func (c *Client) snapshot(ctx context.Context, op string, f func(context.Context) (*http.Response, error)) (*Snapshot, error) {
	var s *Snapshot
	err := c.do(ctx, op, func(ctx context.Context) error {
		resp, err := f(ctx)
		var reply struct {
			ID             string        `json:"id"`
			Name           string        `json:"name"`
			OrganizationID string        `json:"organizationId"`
			General        bool          `json:"general"`
			State          SnapshotState `json:"state"`
			CPU            float64       `json:"cpu"`
			GPU            float64       `json:"gpu"`
			Memory         float64       `json:"mem"`
			Disk           float64       `json:"disk"`
			Size           float64       `json:"size"`
			CreatedAt      string        `json:"createdAt"`
		}
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if reply.ID == "" || reply.Name == "" {
			return errReply
		}
		s = &Snapshot{
			ID: reply.ID, Name: reply.Name, OrganizationID: reply.OrganizationID, General: reply.General, State: reply.State,
			CPU: reply.CPU, GPU: reply.GPU, Memory: reply.Memory, Disk: reply.Disk, Size: reply.Size, CreatedAt: instant(reply.CreatedAt),
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}
