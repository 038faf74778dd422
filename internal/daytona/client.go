package daytona

import (
	"net/http"
	"net/url"
	"strings"

	api "github.com/daytonaio/daytona/libs/api-client-go"
)

// Config configures a [Client].
type Config struct {
	// APIURL is the base of the control plane, such as https://app.daytona.io/api. Required.
	APIURL string
	// APIKey is sent as a bearer token to the control plane and to the toolbox proxies it names. Required.
	APIKey string
	// Transport carries every request and websocket. It must honour contexts, and return writable bodies for websocket
	// handshakes, as an http.Transport does. Nil: a pool of the client's own.
	Transport http.RoundTripper
	// Observe is called once for every finished call, from the goroutine that made it. Nil: nobody watches.
	Observe func(Call)
}

// Client speaks to one control plane with one credential. It is safe for concurrent use.
type Client struct {
	config Config
	base   *url.URL
	own    *http.Transport // nil if the caller brought a transport
	http   *http.Client    // without a timeout: calls are bounded by their contexts
	api    *api.APIClient
	limit  int64 // of an answer that is held in memory: maxReply
}

// New returns a client without sending anything. It fails with ReasonInput if the URL or the key cannot be used.
func New(config Config) (*Client, error) {
	base, ok := baseURL(config.APIURL)
	if !ok || !headerSafe(config.APIKey) {
		return nil, badInput(OpNew)
	}
	c := &Client{config: config, base: base, limit: maxReply}
	carrier := config.Transport
	if carrier == nil {
		c.own = newTransport()
		carrier = c.own
	}
	c.http = &http.Client{Transport: &transport{base: carrier, apiKey: config.APIKey}, CheckRedirect: sameOrigin}

	cfg := api.NewConfiguration()
	cfg.Servers = api.ServerConfigurations{{URL: base.String()}}
	cfg.HTTPClient = c.http
	c.api = api.NewAPIClient(cfg)
	return c, nil
}

// Close drops idle connections of the client's own pool. Calls in flight and streams go on; they end with their contexts.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// baseURL parses the base of an API: http or https, a host, and at most a path.
func baseURL(s string) (*url.URL, bool) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, false
	}
	// Braces are placeholders to the generated clients.
	if strings.ContainsAny(s, "{}") {
		return nil, false
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, true
}

func headerSafe(key string) bool {
	if key == "" {
		return false
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] >= 0x7f {
			return false
		}
	}
	return true
}

// segment reports whether s can stand as one segment of a path. Escaping does not help against an empty one, which
// addresses the collection, nor against dots, which clients and proxies resolve.
func segment(s string) bool { return s != "" && s != "." && s != ".." }
