package lockhttp

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestLeaseIDSays: the TTL in a lease ID is exact to the microsecond, and the resource is
// whole or left out.
func TestLeaseIDSays(t *testing.T) {
	for range 100_000 {
		ttl := time.Duration(rand.Int64N(1e9*1e6)) * time.Microsecond
		if rand.IntN(2) == 0 {
			ttl = ttl.Truncate(time.Second)
		}
		resource := strings.Repeat("é_/-", 1+rand.IntN(40))
		id := newLeaseID(ttl, resource)
		said, name := saidBy(id)
		if said != ttl || name != resource && (name != "" || len(resource) < 50) || guard.ValidateLeaseID(id) != nil {
			t.Fatalf("%s for %v of %s", id, ttl, resource)
		}
	}
	for _, own := range []string{"job-7", "", strings.Repeat("x", 60), strings.Repeat("x", 36) + "_y_cg", strings.Repeat("x", 36) + "_5_!"} {
		if _, name := saidBy(own); name != "" {
			t.Errorf("%q names %q", own, name)
		}
	}
}
