// Package lockclient is a lease client: it gets a lease on a named resource for
// one holder at a time, with a fencing token that grows with every grant, and
// notifies the holder when the lease is over.
//
//	issuer, err := pglock.New(pool, nil) // PostgreSQL; pglock.Migrate makes its schema
//	if err != nil {
//		return err
//	}
//	client, err := lockclient.New(issuer, "worker-7", nil)
//	if err != nil {
//		return err
//	}
//	defer client.Close(ctx)
//	err = client.Hold(ctx, "tenant_123:billing-close:2026-04", nil, func(ctx context.Context) error {
//		claim, _ := guard.ClaimFrom(ctx) // the fences find it there themselves
//		return closeBooks(ctx, claim)
//	})
//
// [Client.Hold] waits for the lease, renews it while the function runs, and ends the
// function's context when the lease is lost. [Client.TryHold] does not wait. With
// [Client.Acquire], [Lease.KeepAlive] and [Lease.Context] a program does the same in its
// own order. Leader election is Hold in a loop.
//
// A lease does not stop a stale holder from writing; a fence does: present the
// token where you write, with package sqlfence, httpfence or s3fence.
//
// The issuer is PostgreSQL (package pglock), etcd, ZooKeeper, Redis, a lock server or
// any other driver.Issuer. ISSUERS.md compares them and lists the limits of waiting,
// clocks and failover.
//
// # What it guarantees
//
//   - Tokens only grow (P3): per resource, across release, expiry, change of
//     owner, purge, kill -9 of the issuer's server. Each issuer's documentation
//     says which failovers and restores this covers, and which need an operator.
//   - One token, one lease (P4): no two grants of a resource have one token. The
//     same lease ID under the same owner gets its own token back while its lease
//     runs, which is how an acquire whose response was lost is repeated.
//   - By the issuer's clock no two leases on a resource run at one time.
//   - The holder knows that its lease is lost before the issuer grants it to
//     another (P7): its deadline counts from before its request was sent, less
//     0.1 % for drift. A grant whose response arrives after that deadline is not
//     returned. No logger and no observer can delay it.
//   - Abandoned means abandoned (P8): an attempt takes no effect after the end of its
//     timeout or of its context's deadline, by the server's clock; etcd and ZooKeeper
//     bound it otherwise, as their packages say. A release of a grant whose response was
//     lost invalidates the lease ID for an hour, the longest that an attempt may live.
//   - A renewal never brings back a lease that ended, and a release never frees
//     a successor's, however late or often they arrive.
//   - Nothing unknown is called success (P5). Errors say whether nothing was
//     written (guard.ErrUnavailable) or the outcome is unknown
//     (guard.ErrOutcomeUnknown).
//
// # What it does not
//
// It does not stop a stale holder from writing. A process may be paused after
// it has called [Lease.Valid] and before it writes; no lock can prevent that,
// since no lock is consulted. P7 is a convenience; safety is P1, and it needs a
// fence. ISSUERS.md says when a holder may believe in its lease for too long: a
// promotion without synchronous replication, a server's clock that steps, a sleep.
//
// # Use
//
// [Client.Acquire] joins the issuer's queue of waiters. A release notifies the
// process that has waited longest, and PostgreSQL keeps the lease for it for a tenth
// of a second. If that process has died, the next in the queue asks then.
// [Client.TryAcquire] may overtake the queue. A waiter whose notification is lost
// asks on its own: on PostgreSQL after two seconds, on etcd and ZooKeeper five, through a
// lock server fifteen. A wait goes on while the issuer is down.
//
// # Names, tenants, compatibility
//
// A name that a guard.Template (P9) declares is built by the template, and a
// fence with the same template checks the claim's resource against it.
// [Options.Namespace] confines a client to one tenant's resources. It is a
// boundary inside a process; database roles are package pgadmin's.
//
// Until version 1 exported names may change between minor versions.
//
// # Observing
//
// [Options.Observer] gets OpAcquire (one per call, with the whole wait),
// OpContend, OpReclaim (a grant replaced a lease that had run out), OpRenew,
// OpRelease and OpLost, with the surface "lock"; guard/guardotel counts them.
// [Options.Logger] gets lock_acquired, lock_contended (once per wait), lock_renewed
// (debug), lock_released, and as warnings lock_acquire_failed, lock_acquire_retried
// (once per wait), lock_renew_failed (once until a renewal succeeds), lock_margin_low,
// lock_release_failed, lock_lost and lock_events_dropped, with resource, ownerId,
// leaseId, fencingToken and ttlSeconds. lock_margin_low says that less than a third of the
// TTL was left when the response to a renewal arrived: choose a longer one, by
// [RecommendTTL].
//
// # Where to read on
//
// client.go and options.go make a client. acquire.go asks once, wait.go until there is a
// lease, in the queue of internal/waiting (half of which is for the lock server). lease.go
// is a lease and its release; keeper.go renews all of them and notices a loss;
// hold.go is both for a function. events.go reports, ttl.go and errors.go are small.
// driver/driver.go is the port. On PostgreSQL a request goes through issuer.go, batch.go
// and server.go of internal/pglease to fencepost.acquire in its
// migrations/0001_leases.sql; listen.go wakes waiters.
package lockclient
