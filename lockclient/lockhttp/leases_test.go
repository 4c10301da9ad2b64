package lockhttp

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
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

// TestProofsAreBounded: of the proofs of ended leases the latest stay, and all
// proofs of running leases.
func TestProofsAreBounded(t *testing.T) {
	t.Parallel()
	var p proofs
	claim := func(n int) guard.Claim { return guard.Claim{Resource: "r" + strconv.Itoa(n), Token: 1, LeaseID: "L"} }
	end := driver.Now() + time.Hour
	for n := range 1000 {
		p.keep(claim(n), "runs", end)
	}
	const last = 100_000
	for n := 1000; n < last; n++ {
		p.keep(claim(n), "over", time.Duration(n))
	}
	if n := len(p.byClaim); n > 2*(1000+overMost)+1 {
		t.Errorf("%d proofs are kept of 1,000 leases", n)
	}
	for n := range 1000 {
		if p.byClaim[claim(n)].proof != "runs" {
			t.Fatalf("the proof of lease %d is gone", n)
		}
	}
	for n := last - overMost; n < last; n++ {
		if p.byClaim[claim(n)].proof != "over" {
			t.Fatalf("the proof of lease %d is gone, one of the last that ended", n)
		}
	}
	p.end(claim(0), nil) // such as by a release
	if v := p.byClaim[claim(0)]; v.proof != "runs" || v.until > driver.Now() {
		t.Errorf("a lease that was released: %+v", v)
	}
	p.keep(claim(1), "earlier", end-1)
	if p.byClaim[claim(1)].proof != "runs" {
		t.Error("an answer that was overtaken took the place of the later one")
	}
}
