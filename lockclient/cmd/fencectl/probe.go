package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// probed is how long the steps of a lease took, each a few times, the shortest first.
type probed struct{ acquire, renew, release []time.Duration }

const probeRounds = 5

// probe acquires, renews and releases a lease for real, a few times. The first
// round does not count: it checks the schema, enters the epoch and may have to
// connect. On an error, what was measured before it is returned.
func (s *session) probe(ctx context.Context, resource string) (p probed, err error) {
	quiet := slog.New(slog.DiscardHandler)
	issuer, err := pglock.New(s.pool, &pglock.Options{OpTimeout: s.timeout, Logger: quiet})
	if err != nil {
		return p, err
	}
	client, err := lockclient.New(issuer, "operator", &lockclient.Options{OpTimeout: s.timeout, Logger: quiet})
	if err != nil {
		return p, err
	}
	defer client.Close(ctx)
	defer func() {
		for _, took := range [][]time.Duration{p.acquire, p.renew, p.release} {
			slices.Sort(took)
		}
	}()
	for round := range probeRounds + 1 {
		began := time.Now()
		lease, err := client.TryAcquire(ctx, resource, &lockclient.AcquireOptions{TTL: 10 * time.Second})
		if err != nil {
			return p, err
		}
		acquired := time.Now()
		err = lease.Renew(ctx)
		renewed := time.Now()
		if freed := lease.Release(ctx); err == nil {
			err = freed
		}
		if err != nil {
			return p, err
		}
		if round > 0 {
			p.acquire, p.renew, p.release = append(p.acquire, acquired.Sub(began)), append(p.renew, renewed.Sub(acquired)), append(p.release, time.Since(renewed))
		}
	}
	return p, nil
}
