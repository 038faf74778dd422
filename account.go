package leasehold

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"sync"
)

// account is what the provider knows of the account it works in: the credential it was configured with, and the
// organisation that the API attested in a reply under that credential.
type account struct {
	endpoint   string
	credential string // fingerprint of endpoint and credential
	org        *attestation
}

// attestation is the organisation the API attested, once it did.
type attestation struct {
	mu sync.Mutex
	id string
}

func newAccount(endpoint, apiKey string) account {
	return account{endpoint: endpoint, credential: fingerprint("credential", endpoint, apiKey), org: &attestation{}}
}

// attest records the organisation of a sandbox that the API returned under our credential, and returns the fingerprint
// of that account.
func (a account) attest(organization string) string {
	if organization == "" {
		return a.credential
	}
	a.org.mu.Lock()
	a.org.id = organization
	a.org.mu.Unlock()
	return fingerprint("organization", a.endpoint, organization)
}

// holds reports whether our credential is proved to belong to the account that the two fingerprints name. If it is, the
// API's own not-found of an id is proof; if not, the id may exist in an account that we cannot see.
func (a account) holds(accountFingerprint, credentialFingerprint string) bool {
	if credentialFingerprint == a.credential {
		return true
	}
	a.org.mu.Lock()
	id := a.org.id
	a.org.mu.Unlock()
	return id != "" && accountFingerprint == fingerprint("organization", a.endpoint, id)
}

// fingerprint is SHA-256 over the parts, each ended by a NUL, which none of them can contain.
func fingerprint(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

var fingerprintForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func checkFingerprint(p *problems, field, value string) {
	if !fingerprintForm.MatchString(value) {
		p.add(field, "is not 64 lower-case hexadecimal digits")
	}
}
