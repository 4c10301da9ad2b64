package lockhttp

import (
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestProofsAreBounded: the proofs of leases that are over do not stay, those of
// leases that run do.
func TestProofsAreBounded(t *testing.T) {
	var p proofs
	claim := func(n int) guard.Claim { return guard.Claim{Resource: "r" + strconv.Itoa(n), Token: 1, LeaseID: "L"} }
	end := driver.Now() + time.Hour
	for n := range 1000 {
		p.keep(claim(n), "runs", end)
	}
	for n := 1000; n < 100_000; n++ {
		p.keep(claim(n), "over", 1)
	}
	if n := len(p.byClaim); n > 2001 {
		t.Errorf("%d proofs are kept of 1,000 leases", n)
	}
	for n := range 1000 {
		if p.byClaim[claim(n)].proof != "runs" {
			t.Fatalf("the proof of lease %d is gone", n)
		}
	}
	p.keep(claim(1), "earlier", end-1)
	if p.byClaim[claim(1)].proof != "runs" {
		t.Error("an answer that was overtaken took the place of the later one")
	}
}
