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
// the leases that ended last.
type proofs struct {
	mu      sync.Mutex
	byClaim map[guard.Claim]proven
	sweep   int // when there are more, some of those of ended leases are dropped
}

type proven struct {
	proof string
	until time.Duration // the lease's end, by driver.Now
}

// keep remembers a proof. If responses arrive out of order, the one whose lease
// lasts longer counts.
func (p *proofs) keep(claim guard.Claim, proof string, until time.Duration) {
	if proof == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byClaim == nil {
		p.byClaim = map[guard.Claim]proven{}
	}
	if until >= p.byClaim[claim].until {
		p.byClaim[claim] = proven{proof, until}
	}
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

// end records that a lease is over before its time.
func (p *proofs) end(claim guard.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, ok := p.byClaim[claim]; ok {
		v.until = min(v.until, driver.Now())
		p.byClaim[claim] = v
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
	i.proofs.mu.Lock()
	defer i.proofs.mu.Unlock()
	if v, ok := i.proofs.byClaim[claim]; ok {
		return v.proof, nil
	}
	return "", &guard.InvalidError{
		Field: "proof", Missing: true,
		Problem: "is missing: the lock server sent none (lockhttp.Options.Signer), the lease was acquired through another issuer, or it was over long ago",
	}
}
