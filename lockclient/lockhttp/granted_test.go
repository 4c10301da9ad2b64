package lockhttp

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestGrantedIsBounded: the leases that a server remembers are bounded; leases that
// are over make room, and those that run stay.
func TestGrantedIsBounded(t *testing.T) {
	var g granted
	claim := func(i int) guard.Claim {
		return guard.Claim{Resource: fmt.Sprint("r", i%3), Token: 1, LeaseID: fmt.Sprint("id ", i/3)}
	}
	knows := func(i int) bool {
		for _, c := range g.claims(claim(i).LeaseID) {
			if c == claim(i) {
				return true
			}
		}
		return false
	}
	add := func(i int, ttl time.Duration, until time.Time) {
		g.add(fmt.Sprint("subject ", i%16), claim(i), ttl, until)
	}
	over, runs := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	for i := range grantedMost {
		until := runs
		if i%2 == 1 {
			until = over
		}
		add(i, time.Minute, until)
	}
	if !knows(0) || knows(1) {
		t.Errorf("one that runs is known: %t, one that is over: %t", knows(0), knows(1))
	}
	add(grantedMost, time.Minute, runs) // takes the room of those that are over
	if !knows(0) || knows(1) || !knows(grantedMost) || g.count != grantedMost/2+1 {
		t.Errorf("%d leases; the first is known: %t, one that is over: %t, the last: %t", g.count, knows(0), knows(1), knows(grantedMost))
	}
	for i := grantedMost + 1; i < 2*grantedMost; i++ {
		add(i, time.Minute, runs)
	}
	if g.count != grantedMost || knows(2*grantedMost-1) {
		t.Errorf("%d leases, of %d at most", g.count, grantedMost)
	}
	g.remove(claim(0))
	g.remove(claim(0))
	add(2*grantedMost-1, 0, runs)
	if knows(0) || !knows(2*grantedMost-1) || g.count != grantedMost || g.lease(claim(2*grantedMost-1)).ttl != 0 {
		t.Errorf("%d leases after one was removed and one added", g.count)
	}
	for i := range 2 * grantedMost {
		g.remove(claim(i))
	}
	g.remove(claim(1)) // it is over, and went when room was made
	if g.count != 0 || len(g.by) != 0 || len(g.of) != 0 {
		t.Errorf("%d leases, %d IDs and %d subjects are left", g.count, len(g.by), len(g.of))
	}
	for i := range grantedShare + 1 {
		g.add("one", claim(i), time.Minute, runs)
	}
	if g.count != grantedShare {
		t.Errorf("%d leases of one subject, of %d at most", g.count, grantedShare)
	}
}

// TestLeaseIDSaysTTL: the TTL in a lease ID is exact to the microsecond.
func TestLeaseIDSaysTTL(t *testing.T) {
	for range 100_000 {
		ttl := time.Duration(rand.Int64N(1e9*1e6)) * time.Microsecond
		if rand.IntN(2) == 0 {
			ttl = ttl.Truncate(time.Second)
		}
		if id := newLeaseID(ttl); ttlOf(id) != ttl {
			t.Fatalf("%s for %v", id, ttl)
		}
	}
}
