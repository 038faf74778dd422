package main

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold"
)

type ingressParams struct {
	Lease wireLease `json:"lease"`
	Port  int       `json:"port"`
	Path  string    `json:"path"`
}

// ingress is an address of a port of the sandbox. The credential is in the headers only.
type ingress struct {
	Kind       string         `json:"kind"`
	URL        string         `json:"websocketUrl"`
	Headers    []secretHeader `json:"secretHeaders"`
	Generation string         `json:"generation"`
}

type secretHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// runnerIngress is environmentRunnerIngressEndpoint.
func (w *worker) runnerIngress(ctx context.Context, c call, p ingressParams) (any, error) {
	if !path.IsAbs(p.Path) || path.Clean(p.Path) != p.Path || strings.ContainsAny(p.Path, "?#%") {
		return nil, invalidParams("params.path is not a plain absolute path")
	}
	var endpoint *leasehold.Endpoint
	err := w.running(ctx, c, p.Lease, func(lease *leasehold.Lease) (err error) {
		endpoint, err = lease.Endpoint(ctx, p.Port)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ingressOf(endpoint.WebSocketURL(), endpoint.SecretHeader(), endpoint.Generation(), p.Path)
}

// ingressOf adds the path that was asked for to an endpoint's address. The host takes an address for what it is only if
// it is encrypted, and has that path and no other.
func ingressOf(address *url.URL, headers http.Header, generation, path string) (any, error) {
	if address.Scheme != "wss" || strings.Trim(address.Path, "/") != "" {
		return nil, &rpcError{Code: codeWorker, Message: "the embedded backend has no addresses that a host would take"}
	}
	address.Path = path
	found := ingress{Kind: "authenticated_websocket", URL: address.String(), Generation: generation}
	for name, values := range headers {
		for _, value := range values {
			found.Headers = append(found.Headers, secretHeader{name, value})
		}
	}
	slices.SortFunc(found.Headers, func(a, b secretHeader) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}
