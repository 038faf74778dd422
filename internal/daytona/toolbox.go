package daytona

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	sdk "github.com/daytonaio/daytona/libs/sdk-go/pkg/daytona"
	sdktypes "github.com/daytonaio/daytona/libs/sdk-go/pkg/types"
	toolbox "github.com/daytonaio/daytona/libs/toolbox-api-client-go"
)

// Toolbox speaks to the daemon inside one sandbox, through the proxy that the sandbox's record names. It is safe for
// concurrent use and holds no connection of its own. Unless its context is [Quiet], every call counts as activity, for
// as long as its request or socket is open.
type Toolbox struct {
	c     *Client
	base  *url.URL // of this sandbox; nil if the record names no usable proxy
	api   *toolbox.APIClient
	tasks *sdk.ProcessService
}

// Toolbox binds to the sandbox without I/O. If its record names no usable proxy (none, or one in clear text while the
// API is reached through TLS), every call fails with ReasonInput.
func (c *Client) Toolbox(sb *Sandbox) *Toolbox {
	t := &Toolbox{c: c}
	base, ok := baseURL(sb.ToolboxURL)
	if !ok || !segment(sb.ID) || c.base.Scheme == "https" && base.Scheme != "https" {
		return t
	}
	t.base = base.JoinPath(url.PathEscape(sb.ID))

	cfg := toolbox.NewConfiguration()
	cfg.Servers = toolbox.ServerConfigurations{{URL: t.base.String()}}
	cfg.HTTPClient = c.http
	t.api = toolbox.NewAPIClient(cfg)
	t.tasks = sdk.NewProcessService(t.api, nil, sdktypes.CodeLanguagePython)
	return t
}

// do makes one call whose path holds the given segments, each of which must be one.
func (t *Toolbox) do(ctx context.Context, op string, f func(context.Context) error, segments ...string) error {
	if !t.ready(segments) {
		return badInput(op)
	}
	return t.c.do(ctx, op, f)
}

func (t *Toolbox) ready(segments []string) bool {
	for _, s := range segments {
		if !segment(s) {
			return false
		}
	}
	return t.base != nil
}

// url builds the address of a call. The elements are escaped, so that an id cannot leave its place.
func (t *Toolbox) url(query url.Values, elements ...string) string {
	for i, e := range elements {
		elements[i] = url.PathEscape(e)
	}
	u := t.base.JoinPath(elements...)
	u.RawQuery = query.Encode()
	return u.String()
}

func (t *Toolbox) send(ctx context.Context, method, address string, header http.Header, body io.Reader) (*http.Response, error) {
	return t.c.send(ctx, method, address, header, body)
}

// send sends a plain request. On an error status, or without an answer, it returns an error for call.outcome to replace.
func (c *Client) send(ctx context.Context, method, address string, header http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	for key, values := range header {
		req.Header[key] = values
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return resp, errReply
	}
	return resp, nil
}

// readJSON reads the answer of send.
func readJSON(resp *http.Response, into any) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
