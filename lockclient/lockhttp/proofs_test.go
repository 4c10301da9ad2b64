package lockhttp

import (
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

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
