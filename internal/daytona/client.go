package daytona

import (
	"context"
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
	// Track is called for every request with the credential, which those of [Client.Preview] lack, before it is handed to
	// Transport, and what it returns once, when the transport is done with it: it failed, or its body or websocket has come
	// to its end or was closed. That may be after the caller has left. Settled says that nothing can come of it any more: it
	// changes nothing (GET), was not sent, or was answered by other than 408 and 5xx, behind which a request may still be on
	// its way. Nil: nobody counts.
	Track func(ctx context.Context, r Request) (end func(settled bool))
}

// Request is what is known of a request before it is sent.
type Request struct {
	Op    string
	Owner any // see [Client.For]
}

// Client speaks to one control plane with one credential. It is safe for concurrent use.
type Client struct {
	config Config
	base   *url.URL
	own    *http.Transport   // nil if the caller brought a transport
	bare   http.RoundTripper // the caller's or our own, which adds no credential
	http   *http.Client      // without a timeout: calls are bounded by their contexts
	api    *api.APIClient
	limit  int64 // of an answer that is held in memory: maxReply
	owner  any   // of its calls
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
	c.bare = carrier
	c.config.APIKey = "" // the transport has it, where no print of a value that holds a client reaches
	c.http = &http.Client{Transport: &transport{base: carrier, apiKey: config.APIKey, track: config.Track}, CheckRedirect: noRedirect}

	cfg := api.NewConfiguration()
	cfg.Servers = api.ServerConfigurations{{URL: base.String()}}
	cfg.HTTPClient = c.http
	c.api = api.NewAPIClient(cfg)
	return c, nil
}

// For returns a client that is the same in everything, but tells Config.Track whose its calls are, and those of the
// toolboxes that are bound with it.
func (c *Client) For(owner any) *Client {
	owned := *c
	owned.owner = owner
	return &owned
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
