package lockhttp

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestGrantedIsBounded: the leases that a server remembers are bounded for each subject.
// One that is over is forgotten and makes room; one that was extended stays.
func TestGrantedIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		count := func(subject string) int {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.of[subject]
		}
		add := func(subject string, i int, lasts time.Duration) {
			g.add(subject, claim(i), time.Minute, time.Now().Add(lasts))
		}
		for i := range grantedMost {
			add("one", i, time.Duration(1+i%2)*time.Hour)
		}
		add("one", grantedMost, time.Hour)
		add("another", grantedMost+1, 5*time.Hour)
		if !knows(0) || knows(grantedMost) || !knows(grantedMost+1) || count("one") != grantedMost {
			t.Errorf("%d leases of one subject, of %d at most", count("one"), grantedMost)
		}
		g.add("another", claim(0), 0, time.Now().Add(3*time.Hour)) // extended by another, and still the first one's
		g.add("another", claim(0), 0, time.Now().Add(time.Minute)) // no renewal shortens it
		time.Sleep(90 * time.Minute)
		if !knows(0) || knows(2) || !knows(1) || count("one") != grantedMost/2+1 || g.ttl(claim(0)) != time.Minute {
			t.Errorf("extended: %t, over: %t, runs: %t; %d leases", knows(0), knows(2), knows(1), count("one"))
		}
		add("one", grantedMost, time.Hour)
		g.remove(guard.Claim{Resource: claim(1).Resource, Token: 2, LeaseID: claim(1).LeaseID})
		if !knows(grantedMost) || !knows(1) {
			t.Error("there is room, or another token's lease was forgotten")
		}
		g.remove(claim(1))
		g.remove(claim(1))
		if knows(1) || count("one") != grantedMost/2+1 {
			t.Errorf("%d leases after one was removed and one added", count("one"))
		}
		newer := claim(0)
		newer.Token = 2
		g.add("another", newer, time.Minute, time.Now().Add(time.Hour)) // another lease under the same ID
		if g.others(newer, "another") || !g.others(newer, "one") || g.others(claim(0), "another") || count("one") != grantedMost/2 {
			t.Errorf("%d leases after another identity has one", count("one"))
		}
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		if len(g.by) != 0 || len(g.of) != 0 {
			t.Errorf("%d IDs and %d subjects are left", len(g.by), len(g.of))
		}
	})
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
