package main

import (
	"context"
	"log/slog"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	clients "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencepost-go/fencepost/lockclient"
)

// election is this replica's part in the election, with the intervals that client-go recommends.
func election(kube clients.Interface, identity string) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: meta.ObjectMeta{Namespace: "billing", Name: "balances"}, Client: kube.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true, Name: "balances",
	}
}

// campaign takes part in the election until ctx ends, and runs work while this replica leads and holds the
// lease. work presents the claim in its context with every write. A takeover from a replica that is gone
// waits for both: LeaseDuration, and what is left of the lease's TTL.
func campaign(ctx context.Context, config leaderelection.LeaderElectionConfig, locks *lockclient.Client, work func(context.Context) error) {
	for ctx.Err() == nil {
		term, resign := context.WithCancel(ctx)
		config.Callbacks = leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { // ctx ends when the election is lost
				// RunOrDie renews the election until its context ends: without resign, a leader
				// that lost the lease, or whose work returned, would go on leading and do nothing.
				defer resign()
				if err := locks.Hold(ctx, "billing:balances", nil, work); err != nil {
					slog.Error("the leader's work ended", "replica", config.Lock.Identity(), "error", err)
				}
			},
			OnStoppedLeading: func() {},
		}
		leaderelection.RunOrDie(term, config)
		resign()
		select { // another replica's turn
		case <-ctx.Done():
		case <-time.After(config.RetryPeriod):
		}
	}
}
