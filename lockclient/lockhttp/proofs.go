package lockhttp

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// proofs are those of the leases that run, as the server last sent them.
type proofs struct {
	mu      sync.Mutex
	byClaim map[guard.Claim]proven
	sweep   int // when there are so many, those of leases that are over go
}

type proven struct {
	proof string
	until time.Duration // the lease's end, by driver.Now
}

// keep remembers a proof. Of two answers that overtook each other the one whose
// lease lasts longer counts.
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
		now := driver.Now()
		maps.DeleteFunc(p.byClaim, func(_ guard.Claim, v proven) bool { return v.until <= now })
		p.sweep = max(64, 2*len(p.byClaim))
	}
}

func (p *proofs) drop(claim guard.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byClaim, claim)
}

// Proof returns the proof that the lock server issued a claim, as it came with
// the last grant or renewal: for Proof of httpfence's TransportOptions. It asks
// nobody, so the context does not matter.
//
// The error is [guard.ErrMissing]: the server signs nothing ([Options.Signer]),
// this issuer has not acquired the lease, or the lease is over.
func (i *Issuer) Proof(_ context.Context, claim guard.Claim) (string, error) {
	i.proofs.mu.Lock()
	defer i.proofs.mu.Unlock()
	if v, ok := i.proofs.byClaim[claim]; ok {
		return v.proof, nil
	}
	return "", &guard.InvalidError{
		Field: "proof", Missing: true,
		Problem: "is missing: the lock server sent none (lockhttp.Options.Signer), the lease was acquired through another issuer, or it is over",
	}
}
