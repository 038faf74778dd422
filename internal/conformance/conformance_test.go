package conformance_test

import (
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

func TestEmbeddedBackend(t *testing.T) { Commands(t, embedded(t), transports...) }

// TestToolboxBehindAURL is the way to a real toolbox, gone with an emulated one on a listener of its own.
func TestToolboxBehindAURL(t *testing.T) {
	other, err := emulator.Start(emulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	p, err := leasehold.New(leasehold.Config{APIURL: other.URL(), APIKey: other.APIKey()})
	sandbox := newProvided(t, p, err).Lease(t).Ref().Sandbox
	other.ResetRequests()
	Commands(t, toolbox(t, strings.TrimSuffix(other.URL(), "/api")+"/toolbox/"+sandbox, other.APIKey()), leasehold.TransportDefault)
	if n := len(other.Requests()); n < len(commandCases)/2 {
		t.Errorf("%d requests came to the toolbox: the suite ran elsewhere", n)
	}
}

func TestRealToolbox(t *testing.T) {
	address := os.Getenv("LEASEHOLD_TOOLBOX_URL")
	if address == "" {
		t.Skip("LEASEHOLD_TOOLBOX_URL names no toolbox")
	}
	Commands(t, toolbox(t, address, os.Getenv("LEASEHOLD_TOOLBOX_TOKEN")), transports...)
}

func TestRealControlPlane(t *testing.T) {
	if os.Getenv("LEASEHOLD_REAL") != "1" {
		t.Skip("LEASEHOLD_REAL is not 1: sandboxes of a real control plane cost money")
	}
	Commands(t, realControlPlane(t), transports...)
}
