package lockhttp

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// proofs are those of the running leases, as the server last sent them, and of
// the leases that ended last, with who ended them by force.
type proofs struct {
	mu      sync.Mutex
	byClaim map[guard.Claim]proven
	sweep   int // when there are more, some of those of ended leases are dropped
}

type proven struct {
	proof string
	cut   *cut
	until time.Duration // the lease's end, by driver.Now
}

func (p *proofs) get(claim guard.Claim) proven {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byClaim[claim]
}

// keep remembers a proof. If responses arrive out of order, the one whose lease
// lasts longer counts.
func (p *proofs) keep(claim guard.Claim, proof string, until time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if proof != "" && until >= p.byClaim[claim].until {
		p.put(claim, proven{proof: proof, until: until})
	}
}

// end records that a lease is over before its time, and who did that by force, if anybody.
func (p *proofs) end(claim guard.Claim, by *cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.byClaim[claim]; v.proof != "" || by != nil {
		p.put(claim, proven{v.proof, cmp.Or(by, v.cut), min(cmp.Or(v.until, driver.Now()), driver.Now())})
	}
}

func (p *proofs) put(claim guard.Claim, v proven) {
	if p.byClaim == nil {
		p.byClaim = map[guard.Claim]proven{}
	}
	p.byClaim[claim] = v
	if len(p.byClaim) > p.sweep {
		p.forget(driver.Now())
		p.sweep = max(2*overMost, 2*len(p.byClaim))
	}
}

// overMost is how many proofs of ended leases are kept: those that ended last. A
// late holder presents its proof, and the resource refuses it as stale; one that
// comes later than that gets an error that the proof is missing.
const overMost = 1000

// forget keeps overMost of the proofs of ended leases.
func (p *proofs) forget(now time.Duration) {
	var over []guard.Claim
	for claim, v := range p.byClaim {
		if v.until <= now {
			over = append(over, claim)
		}
	}
	slices.SortFunc(over, func(a, b guard.Claim) int { return cmp.Compare(p.byClaim[a].until, p.byClaim[b].until) })
	for _, claim := range over[:max(0, len(over)-overMost)] {
		delete(p.byClaim, claim)
	}
}

// Proof returns the proof that the lock server issued a claim, from the last
// grant or renewal. It is for Proof of httpfence's TransportOptions. It sends
// nothing, so the context does not matter.
//
// It keeps the proofs of the last thousand ended leases, so that the resource
// refuses a late holder as stale for as long as the proof is valid
// (SignerOptions.Leeway of guard/proof).
//
// The error is [guard.ErrMissing]: the server signs nothing ([Options.Signer]),
// or this issuer has not acquired the lease, or a thousand ended after it.
func (i *Issuer) Proof(_ context.Context, claim guard.Claim) (string, error) {
	if proof := i.proofs.get(claim).proof; proof != "" {
		return proof, nil
	}
	return "", &guard.InvalidError{
		Field: "proof", Missing: true,
		Problem: "is missing: the lock server sent none (lockhttp.Options.Signer), the lease was acquired through another issuer, or it was over long ago",
	}
}
