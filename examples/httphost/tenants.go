package main

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"regexp"
	"strings"
)

// limits are what one tenant, or one request, may take.
type limits struct {
	leases   int   // that a tenant has
	commands int   // of a tenant, running
	history  int   // commands of a lease, those that have ended included
	streams  int   // of events, to a tenant
	body     int64 // bytes of a JSON request
	upload   int64 // bytes of an archive
	download int64 // bytes of files in an archive
	output   int64 // bytes that a command may write
}

var defaultLimits = limits{
	leases: 20, commands: 8, history: 100, streams: 32, body: 1 << 20, upload: 4 << 30, download: 4 << 30, output: 256 << 20,
}

// tenant is a user of the service. Tenants see nothing of each other.
type tenant struct {
	name     string
	token    [sha256.Size]byte // its digest
	commands slots
	streams  slots
}

type tenants []*tenant

var tenantName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// minToken is how short a token may be: shorter ones can be guessed.
const minToken = 16

// parseTenants reads pairs of name:token, with commas between them. Of an empty text it makes one tenant, with a token that
// it returns. Errors do not repeat the text.
func parseTenants(text string, l limits) (_ tenants, made string, err error) {
	if text == "" {
		made = rand.Text()
		text = "default:" + made
	}
	var all tenants
	for pair := range strings.SplitSeq(text, ",") {
		name, token, _ := strings.Cut(strings.TrimSpace(pair), ":")
		if !tenantName.MatchString(name) || len(token) < minToken {
			return nil, "", errors.New("HTTPHOST_TOKENS is not name:token,name:token with tokens of 16 bytes or more")
		}
		for _, other := range all {
			if other.name == name || other.token == sha256.Sum256([]byte(token)) {
				return nil, "", errors.New("HTTPHOST_TOKENS names a tenant, or a token, twice")
			}
		}
		all = append(all, &tenant{
			name: name, token: sha256.Sum256([]byte(token)),
			commands: newSlots(l.commands), streams: newSlots(l.streams),
		})
	}
	return all, made, nil
}

// of returns whose token a request bears, or nil. Digests are compared, all of them and in constant time, so that how long
// it takes tells nothing about any token.
func (all tenants) of(r *http.Request) *tenant {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	given := sha256.Sum256([]byte(token))
	var found *tenant
	for _, t := range all {
		if subtle.ConstantTimeCompare(given[:], t.token[:]) == 1 {
			found = t
		}
	}
	return found
}

// slots bound how many of something there are at a time.
type slots chan struct{}

func newSlots(n int) slots { return make(slots, n) }

// take takes a slot if one is free.
func (s slots) take() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slots) free() { <-s }
