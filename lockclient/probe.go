package lockclient

import (
	"context"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// ProbeOptions configures [Operator.Probe]. The zero value is the default.
type ProbeOptions struct {
	// Resource is what is leased; empty means "fencepost-probe". Its row stays
	// until a purge.
	Resource string
	// Rounds is how often; 0 means 5, at most 1000.
	Rounds int
	// TTL is the lease's; 0 means 10 s.
	TTL time.Duration
}

// Probed is what [Operator.Probe] measured.
type Probed struct {
	// First is how long the first acquire took, which checks the schema and
	// enters the epoch and may have had to connect. The rest is without it.
	First time.Duration `json:"firstNanoseconds"`
	// Acquire, Renew and Release are how long these took.
	Acquire Latency `json:"acquire"`
	Renew   Latency `json:"renew"`
	Release Latency `json:"release"`
	// Claim is the last lease's.
	Claim guard.Claim `json:"claim"`
}

// Probe acquires, renews and releases a lease for real, a few times, and
// measures. The role needs the rights of an issuer. opts may be nil.
//
// Errors: guard.ErrInvalid, and those of [Client.TryAcquire], [Lease.Renew] and
// [Lease.Release], among them [ErrHeld] if somebody else is probing. Probed is
// what was measured before.
func (o *Operator) Probe(ctx context.Context, opts *ProbeOptions) (p Probed, err error) {
	if opts == nil {
		opts = &ProbeOptions{}
	}
	resource, rounds, ttl := opts.Resource, opts.Rounds, opts.TTL
	if resource == "" {
		resource = "fencepost-probe"
	}
	if rounds == 0 {
		rounds = 5
	}
	if rounds < 0 || rounds > 1000 {
		return Probed{}, guard.Invalid("Rounds", strconv.Itoa(rounds), "must be 0 to 1000")
	}
	if ttl == 0 {
		ttl = 10 * time.Second
	}
	var acquire, renew, release latencies
	defer func() { p.Acquire, p.Renew, p.Release = acquire.read(), renew.read(), release.read() }()
	for round := range rounds + 1 {
		start := time.Now()
		lease, err := o.c.TryAcquire(ctx, resource, &AcquireOptions{TTL: ttl})
		took := time.Since(start)
		if err != nil {
			return p, err
		}
		p.Claim = lease.Claim()
		start = time.Now()
		err = lease.Renew(ctx)
		renewed := time.Since(start)
		start = time.Now()
		if freed := lease.Release(ctx); err == nil {
			err = freed
		}
		if err != nil {
			return p, err
		}
		if round == 0 {
			p.First = took
			continue
		}
		acquire.add(took)
		renew.add(renewed)
		release.add(time.Since(start))
	}
	return p, nil
}
