package daytona

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	api "github.com/daytonaio/daytona/libs/api-client-go"
)

// LanguageLabel is the label that carries a sandbox's [Language].
const LanguageLabel = "code-toolbox-language"

// Create submits one sandbox (POST /sandbox) and returns the record that the provider made of it. The provider holds
// the request for up to 30 s while the sandbox starts, and answers with the state at insertion, so Create proves
// nothing about readiness. If it fails with anything but Dispatch no, a sandbox of that name may exist.
func (c *Client) Create(ctx context.Context, r CreateRequest) (*Sandbox, error) {
	if !r.sendable() {
		return nil, badInput(OpCreate)
	}
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	language := r.Language
	if language == "" {
		language = "python"
	}
	labels[LanguageLabel] = string(language)

	body := api.CreateSandbox{Labels: &labels}
	body.Name, body.Snapshot = nonZero(r.Name), nonZero(r.Snapshot)
	body.Target, body.User = nonZero(r.Target), nonZero(r.User)
	if r.Image != "" {
		body.BuildInfo = &api.CreateBuildInfo{DockerfileContent: "FROM " + r.Image}
	}
	if len(r.Env) > 0 {
		env := maps.Clone(r.Env)
		body.Env = &env
	}
	body.Cpu, body.Gpu = nonZero(int32(r.Resources.CPU)), nonZero(int32(r.Resources.GPU))
	body.Memory, body.Disk = nonZero(int32(r.Resources.Memory)), nonZero(int32(r.Resources.Disk))
	body.AutoStopInterval, body.AutoArchiveInterval, body.AutoDeleteInterval = narrow(r.AutoStop), narrow(r.AutoArchive), narrow(r.AutoDelete)
	if r.TTL != 0 {
		// Newer than the model: v0.205 of the API's specification.
		body.AdditionalProperties = map[string]any{"ttlMinutes": r.TTL}
	}
	return c.sandbox(ctx, OpCreate, func(ctx context.Context) (*http.Response, error) {
		_, resp, err := c.api.SandboxAPI.CreateSandbox(ctx).CreateSandbox(body).Execute()
		return resp, err
	})
}

// sendable reports whether the request arrives as it is: numbers fit the API's integers, and the image is one line of a
// Dockerfile.
func (r *CreateRequest) sendable() bool {
	numbers := []int{r.Resources.CPU, r.Resources.GPU, r.Resources.Memory, r.Resources.Disk, r.TTL}
	for _, interval := range []*int{r.AutoStop, r.AutoArchive, r.AutoDelete} {
		if interval != nil {
			numbers = append(numbers, *interval)
		}
	}
	for _, n := range numbers {
		if n < math.MinInt32 || n > math.MaxInt32 {
			return false
		}
	}
	return !strings.ContainsAny(r.Image, "\r\n")
}

// Get reads one sandbox by id or by name. A sandbox that is being destroyed is found by id only. It may be another one
// than was asked for, if its name looks like the id: compare.
func (c *Client) Get(ctx context.Context, idOrName string) (*Sandbox, error) {
	if !segment(idOrName) {
		return nil, badInput(OpGet)
	}
	return c.sandbox(ctx, OpGet, func(ctx context.Context) (*http.Response, error) {
		address := c.base.JoinPath("sandbox", url.PathEscape(idOrName)).String()
		return c.send(ctx, http.MethodGet, address, http.Header{"Accept": {"application/json"}}, nil)
	})
}

// CredentialOrganization returns the id of the credential's organisation, as the API attests it with any sandbox of it in
// the list; nothing, if there is none. No other call tells it to an API key: GET /organizations is for users, and GET
// /api-keys/current leaves it out. The list needs no permission, and is open to a key that is limited to the paths of
// sandboxes.
func (c *Client) CredentialOrganization(ctx context.Context) (string, error) {
	organization := ""
	err := c.do(ctx, OpList, func(ctx context.Context) error {
		_, resp, err := c.api.SandboxAPI.ListSandboxesPaginated(ctx).Page(1).Limit(1).IncludeErroredDeleted(true).Execute()
		var reply struct {
			Items []sandboxReply `json:"items"`
		}
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if reply.Items == nil {
			return errReply // no list is not an empty one
		}
		if len(reply.Items) == 0 {
			return nil
		}
		s, err := reply.Items[0].sandbox()
		if err != nil {
			return err
		}
		organization = s.OrganizationID
		return nil
	})
	if err != nil {
		return "", err
	}
	return organization, nil
}

// Start asks for the sandbox to be started. The provider holds the request for up to 30 s; success means accepted.
// Starting a started sandbox succeeds.
func (c *Client) Start(ctx context.Context, id string) error {
	return c.change(ctx, OpStart, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.StartSandbox(ctx, id).Execute()
		return err
	})
}

// Stop asks for the sandbox to be stopped. Success means accepted. The stop of one whose auto-delete is 0 deletes it.
func (c *Client) Stop(ctx context.Context, id string) error {
	return c.change(ctx, OpStop, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.StopSandbox(ctx, id).Execute()
		return err
	})
}

// Archive asks for a stopped sandbox to be moved to cold storage. Success means accepted.
func (c *Client) Archive(ctx context.Context, id string) error {
	return c.change(ctx, OpArchive, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.ArchiveSandbox(ctx, id).Execute()
		return err
	})
}

// Recover asks for a sandbox in state error to be recovered, which the API permits where [Sandbox.Recoverable] is true.
// Success means accepted.
func (c *Client) Recover(ctx context.Context, id string) error {
	return c.change(ctx, OpRecover, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.RecoverSandbox(ctx, id).Execute()
		return err
	})
}

// Delete asks for the sandbox to be destroyed. Success means accepted: its name is free, and its id is found until the
// destruction ended.
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.change(ctx, OpDelete, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.DeleteSandbox(ctx, id).Execute()
		return err
	})
}

// SetAutoDelete sets how many minutes after its stop a sandbox is deleted: -1 never, 0 at once.
func (c *Client) SetAutoDelete(ctx context.Context, id string, minutes int) error {
	// The parameter is a float32; beyond 24 bits it would be another number.
	if minutes < -1 || minutes > 1<<24 {
		return badInput(OpSetAutoDelete)
	}
	return c.change(ctx, OpSetAutoDelete, id, func(ctx context.Context) error {
		_, _, err := c.api.SandboxAPI.SetAutoDeleteInterval(ctx, id, float32(minutes)).Execute()
		return err
	})
}

// PreviewURL returns the address of a port of the sandbox, and the token that opens it (header
// x-daytona-preview-token). Each start of the sandbox makes a new token.
func (c *Client) PreviewURL(ctx context.Context, id string, port int) (url, token string, err error) {
	if !segment(id) || port < 1 || port > 65535 {
		return "", "", badInput(OpPreviewURL)
	}
	var reply struct {
		SandboxID string `json:"sandboxId"`
		URL       string `json:"url"`
		Token     string `json:"token"`
	}
	err = c.do(ctx, OpPreviewURL, func(ctx context.Context) error {
		_, resp, err := c.api.SandboxAPI.GetPortPreviewUrl(ctx, id, float32(port)).Execute()
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		if reply.URL == "" || reply.SandboxID != "" && reply.SandboxID != id {
			return errReply
		}
		return nil
	})
	if err != nil {
		return "", "", err
	}
	return reply.URL, reply.Token, nil
}

// change makes a call whose success is its status: what the answer says of the sandbox is old when it arrives, and a
// model that refuses it must not turn an accepted change into a failure.
func (c *Client) change(ctx context.Context, op, id string, f func(context.Context) error) error {
	if !segment(id) {
		return badInput(op)
	}
	return c.do(ctx, op, func(ctx context.Context) error { return accepted(ctx, f(ctx)) })
}

// accepted takes a successful status for the success: whatever became of the body, and whatever the client above the
// transport made of it.
func accepted(ctx context.Context, err error) error {
	k := ctx.Value(callKey{}).(*call)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status >= 200 && k.status < 300 {
		k.bodyErr = nil
		return nil
	}
	return err
}

func (c *Client) sandbox(ctx context.Context, op string, f func(context.Context) (*http.Response, error)) (*Sandbox, error) {
	var s *Sandbox
	err := c.do(ctx, op, func(ctx context.Context) error {
		resp, err := f(ctx)
		var reply sandboxReply
		if err := decode(resp, err, &reply); err != nil {
			return err
		}
		s, err = reply.sandbox()
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// decode reads the body of an answer: of a generated client's once more, which puts it back after reading it. Its own
// decoding, and so its error, matter only where there is no answer.
func decode(resp *http.Response, err error, into any) error {
	if resp == nil || resp.StatusCode < 200 || resp.StatusCode >= 300 {
		if err == nil {
			err = errReply
		}
		return err
	}
	return readJSON(resp, into)
}

// sandboxReply is the SandboxDto, with every field optional but the id.
type sandboxReply struct {
	ID              string                     `json:"id"`
	Name            string                     `json:"name"`
	OrganizationID  string                     `json:"organizationId"`
	State           State                      `json:"state"`
	DesiredState    State                      `json:"desiredState"`
	ErrorReason     string                     `json:"errorReason"`
	Recoverable     *bool                      `json:"recoverable"`
	Labels          map[string]json.RawMessage `json:"labels"`
	Target          string                     `json:"target"`
	Snapshot        string                     `json:"snapshot"`
	User            string                     `json:"user"`
	CPU             float64                    `json:"cpu"`
	GPU             float64                    `json:"gpu"`
	Memory          float64                    `json:"memory"`
	Disk            float64                    `json:"disk"`
	AutoStop        *float64                   `json:"autoStopInterval"`
	AutoArchive     *float64                   `json:"autoArchiveInterval"`
	AutoDelete      *float64                   `json:"autoDeleteInterval"`
	AutoDestroyAt   string                     `json:"autoDestroyAt"`
	CreatedAt       string                     `json:"createdAt"`
	UpdatedAt       string                     `json:"updatedAt"`
	ToolboxProxyURL string                     `json:"toolboxProxyUrl"`
}

func (r *sandboxReply) sandbox() (*Sandbox, error) {
	if r.ID == "" {
		return nil, errReply
	}
	s := &Sandbox{
		ID: r.ID, Name: r.Name, OrganizationID: r.OrganizationID,
		State: r.State, DesiredState: r.DesiredState, ErrorReason: r.ErrorReason,
		Recoverable:    r.Recoverable != nil && *r.Recoverable,
		NotRecoverable: r.Recoverable != nil && !*r.Recoverable,
		Labels:         make(map[string]string, len(r.Labels)),
		Target:         r.Target, Snapshot: r.Snapshot, User: r.User,
		CPU: r.CPU, GPU: r.GPU, Memory: r.Memory, Disk: r.Disk,
		AutoStop: widen(r.AutoStop), AutoArchive: widen(r.AutoArchive), AutoDelete: widen(r.AutoDelete),
		AutoDestroyAt: instant(r.AutoDestroyAt), CreatedAt: instant(r.CreatedAt), UpdatedAt: instant(r.UpdatedAt),
		ToolboxURL: r.ToolboxProxyURL,
	}
	for key, raw := range r.Labels {
		// The API does not check values: a foreign sandbox may carry a number where we would write a string.
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		s.Labels[key] = value
	}
	return s, nil
}

// ContainerLost reports whether this record proves that the sandbox's container is gone for good: it is in state error,
// explicitly not recoverable, and its reason is exactly the runner's statement about this very id. Nothing less does.
func (s *Sandbox) ContainerLost() bool {
	const format = "not found: failed to inspect sandbox container %[1]s: Error response from daemon: No such container: %[1]s"
	return s.State == StateError && s.NotRecoverable && s.ErrorReason == fmt.Sprintf(format, s.ID)
}

// instant parses a time of the API. What is missing or malformed is zero, which nobody takes for a confirmation.
func instant(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

func nonZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func narrow(v *int) *int32 {
	if v == nil {
		return nil
	}
	n := int32(*v)
	return &n
}

func widen(v *float64) *int {
	if v == nil {
		return nil
	}
	n, err := strconv.Atoi(strconv.FormatFloat(*v, 'f', 0, 64))
	if err != nil {
		return nil
	}
	return &n
}
