package main

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIngress(t *testing.T) {
	t.Parallel()
	address, err := url.Parse("wss://43127-box.proxy.example/")
	if err != nil {
		t.Fatal(err)
	}
	got, err := ingressOf(address, http.Header{"X-Token": {"t"}, "X-Skip": {"1"}}, "g1", "/api/runner/x")
	want := ingress{"authenticated_websocket", "wss://43127-box.proxy.example/api/runner/x", []secretHeader{{"X-Skip", "1"}, {"X-Token", "t"}}, "g1"}
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	address.Scheme = "ws"
	if got, err := ingressOf(address, nil, "g1", "/x"); err == nil {
		t.Errorf("an address in the clear: %+v", got)
	}
}
