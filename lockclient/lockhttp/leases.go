package lockhttp

import (
	"encoding/base64"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// newLeaseID makes a lease ID that says the grant's TTL and resource, so that any server
// behind one name renews and releases the lease by its ID alone, without a memory and
// without a search: "UUID_TTL_RESOURCE". A resource of more than some sixty bytes does not
// fit, and is left out.
func newLeaseID(ttl time.Duration, resource string) string {
	id := input.NewLeaseID() + "_" + seconds(ttl).String()
	if whole := id + "_" + base64.RawURLEncoding.EncodeToString([]byte(resource)); len(whole) <= guard.MaxLeaseIDLen {
		return whole
	}
	return id
}

// uuidLen is the length of input.NewLeaseID.
const uuidLen = 36

// saidBy returns what newLeaseID wrote into a lease ID; zero values for what it does not
// say, or for a client's own.
func saidBy(leaseID string) (ttl time.Duration, resource string) {
	if len(leaseID) <= uuidLen || leaseID[uuidLen] != '_' {
		return 0, ""
	}
	first, rest, _ := strings.Cut(leaseID[uuidLen+1:], "_")
	if (*seconds)(&ttl).UnmarshalJSON([]byte(first)) != nil {
		return 0, ""
	}
	name, _ := base64.RawURLEncoding.DecodeString(rest) // else it is a client's
	return ttl, string(name)
}

// named fills in the resource of a request that names its lease by the ID alone. Whoever
// presents a lease ID may act for the lease, if it may name the resource.
func (q *request) named() error {
	if q.claim.Resource != "" {
		return nil
	}
	_, resource := saidBy(q.claim.LeaseID)
	if resource == "" {
		return guard.Invalid("resource", "", "is required: only a lease ID that the server made names its resource, if that has at most some 60 bytes")
	}
	if err := q.mayName(resource); err != nil {
		return err
	}
	q.claim.Resource = resource
	return nil
}

// running returns the token of the lease that the request names; 0 if it does not run.
func (q *request) running() (guard.Token, error) {
	watching, err := q.s.watchIssuer(q.Context(), driver.Watch{Resource: q.claim.Resource}, func() {})
	if err == driver.ErrNoWatch {
		return 0, guard.Invalid("fencingToken", "", "is required: this server's issuer cannot look at a lease")
	}
	if err != nil {
		return 0, err
	}
	watching.Stop()
	if held := watching.Held; held != nil && held.LeaseID == q.claim.LeaseID {
		return held.Token, nil
	}
	return 0, nil
}
