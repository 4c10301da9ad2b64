package lockadmin

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// ProbeOptions configures [Operator.Probe]. The zero value is the default.
type ProbeOptions struct {
	// Resource is what is leased; empty means "fencepost-probe". Its row stays
	// until a purge.
	Resource string
	// Rounds is how many times to do so; 0 means 5, at most 1000.
	Rounds int
	// TTL is the lease's; 0 means 10 s.
	TTL time.Duration
}

// Probed is what [Operator.Probe] measured.
type Probed struct {
	// First is how long the first acquire took, which checks the schema, enters
	// the epoch and may have had to connect. The other fields exclude it.
	First time.Duration `json:"firstNanoseconds"`
	// Acquire, Renew and Release are how long these took.
	Acquire lockclient.Latency `json:"acquire"`
	Renew   lockclient.Latency `json:"renew"`
	Release lockclient.Latency `json:"release"`
	// Claim is the last lease's.
	Claim guard.Claim `json:"claim"`
}

// Probe acquires, renews and releases a lease for real, a few times, and
// measures. The role needs the rights of an issuer. opts may be nil.
//
// Errors: guard.ErrInvalid, and those of lockclient's TryAcquire, Renew and
// Release, among them lockclient.ErrHeld if somebody else is probing. On an
// error, Probed is what was measured before it.
func (o *Operator) Probe(ctx context.Context, opts *ProbeOptions) (p Probed, err error) {
	set := pglease.Of(opts)
	resource, rounds, ttl := cmp.Or(set.Resource, "fencepost-probe"), cmp.Or(set.Rounds, 5), cmp.Or(set.TTL, 10*time.Second)
	if rounds < 0 || rounds > 1000 {
		return Probed{}, guard.Invalid("Rounds", strconv.Itoa(rounds), "must be 0 to 1000")
	}
	client, err := lockclient.New(o.server.Pool, "operator", &lockclient.Options{
		Namespace: o.tenant, OpTimeout: o.server.OpTimeout, LockTimeout: o.server.LockTimeout, Observer: o.observer,
	})
	if err != nil {
		return Probed{}, err
	}
	defer client.Close(ctx)
	var acquire, renew, release []time.Duration
	defer func() { p.Acquire, p.Renew, p.Release = latency(acquire), latency(renew), latency(release) }()
	for round := range rounds + 1 {
		began := time.Now()
		lease, err := client.TryAcquire(ctx, resource, &lockclient.AcquireOptions{TTL: ttl})
		if err != nil {
			return p, err
		}
		acquired := time.Now()
		p.Claim = lease.Claim()
		err = lease.Renew(ctx)
		renewed := time.Now()
		if freed := lease.Release(ctx); err == nil {
			err = freed
		}
		switch {
		case err != nil:
			return p, err
		case round == 0:
			p.First = acquired.Sub(began)
		default:
			acquire, renew, release = append(acquire, acquired.Sub(began)), append(renew, renewed.Sub(acquired)), append(release, time.Since(renewed))
		}
	}
	return p, nil
}

func latency(took []time.Duration) lockclient.Latency {
	if len(took) == 0 {
		return lockclient.Latency{}
	}
	n := len(took)
	l := lockclient.Latency{Count: n, Last: took[n-1]}
	slices.Sort(took)
	l.Max, l.P50, l.P99 = took[n-1], took[(n*50+99)/100-1], took[(n*99+99)/100-1]
	return l
}
