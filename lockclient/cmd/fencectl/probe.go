package main

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// steps are those of a lease.
var steps = [3]string{"acquire", "renew", "release"}

// probed is how long each of the steps took, a few times, the shortest first.
type probed [len(steps)][]time.Duration

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
	var lease *lockclient.Lease
	run := [len(steps)]func() error{
		func() (err error) {
			lease, err = client.TryAcquire(ctx, resource, &lockclient.AcquireOptions{TTL: 10 * time.Second})
			return err
		},
		func() error { return lease.Renew(ctx) },
		func() error { return lease.Release(ctx) },
	}
	for round := range probeRounds + 1 {
		var failed error
		for step, run := range run {
			began := time.Now()
			if failed = cmp.Or(failed, run()); step == 0 && failed != nil {
				break // there is nothing to release
			}
			if round > 0 && failed == nil {
				p[step] = append(p[step], time.Since(began))
				slices.Sort(p[step])
			}
		}
		if failed != nil {
			return p, failed
		}
	}
	return p, nil
}
