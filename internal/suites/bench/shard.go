package main

import (
	"context"
	"errors"
	"hash/fnv"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// sharded spreads resources over issuers by a hash of their names. Each resource
// has one issuer, so an issuer's promises about a resource still hold. The
// number of issuers must not change while leases run: a resource that moves gets
// its tokens from a server that does not know the last one, unless the new one's
// floor is raised first.
type sharded []driver.Issuer

func (s sharded) of(resource string) driver.Issuer {
	h := fnv.New64a()
	h.Write([]byte(resource))
	return s[h.Sum64()%uint64(len(s))]
}

func (s sharded) Limits() driver.Limits { return s[0].Limits() } // all are the same

func (s sharded) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.of(r.Resource).Acquire(ctx, r)
}

func (s sharded) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	var places = map[driver.Issuer][]int{}
	for i, r := range renewals {
		issuer := s.of(r.Claim.Resource)
		places[issuer] = append(places[issuer], i)
	}
	done := make(chan struct{}, len(places))
	for issuer, at := range places {
		go func() {
			mine, out := make([]driver.Renewal, len(at)), make([]driver.Renewed, len(at))
			for k, i := range at {
				mine[k] = renewals[i]
			}
			issuer.Renew(ctx, mine, out)
			for k, i := range at {
				results[i] = out[k]
			}
			done <- struct{}{}
		}()
	}
	for range places {
		<-done
	}
}

func (s sharded) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	return s.of(claim.Resource).Release(ctx, claim)
}

func (s sharded) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	return s.of(w.Resource).Watch(ctx, w, wake)
}

// Why returns the issuer's explanation.
func (s sharded) Why(ctx context.Context, claim guard.Claim) error {
	if e, ok := s.of(claim.Resource).(driver.Explainer); ok {
		return e.Why(ctx, claim)
	}
	return nil
}

func (s sharded) Close() error {
	var errs []error
	for _, issuer := range s {
		errs = append(errs, issuer.Close())
	}
	return errors.Join(errs...)
}
