package lockhttp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestExpiredLeasesDoNotCount: a lease counts until it is over, and a request without
// an answer until it can no longer be granted. A request for a lease that runs does not
// make that count for longer.
func TestExpiredLeasesDoNotCount(t *testing.T) {
	claim := guard.Claim{Resource: "r", LeaseID: "a", Token: 1}
	for name, test := range map[string]struct {
		granted, again bool
		until          time.Duration
	}{
		"granted":                            {true, false, 60 * time.Second},
		"no answer":                          {false, false, 65 * time.Second},
		"granted, and asked again, answered": {true, true, 60 * time.Second},
	} {
		for _, early := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				id := &Identity{Subject: "s", Limits: Limits{Leases: 1}}
				var u usage
				began := time.Now()
				for n := 0; n == 0 || n == 1 && test.again; n++ {
					u.hold(id, tokenless(claim), began.Add(65*time.Second))
					if test.granted {
						u.runs(id, claim, began.Add(60*time.Second))
					}
				}
				wait := test.until
				if early {
					wait--
				}
				time.Sleep(wait)
				if _, ok := u.hold(id, guard.Claim{Resource: "r", LeaseID: "b"}, time.Now().Add(time.Minute)); ok == early {
					t.Errorf("%s: another lease after %v: %t", name, wait, ok)
				}
			})
		}
	}
}
