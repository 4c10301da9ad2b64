// Package lockclient is a PostgreSQL lease client: it grants a lease on a named
// resource to one holder at a time, with a fencing token that grows with every
// grant, and tells the holder when the lease is over.
//
//	if err := lockclient.Migrate(ctx, pool); err != nil {
//		return err
//	}
//	client, err := lockclient.New(pool, "worker-7", nil)
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	opts := &lockclient.HoldOptions{TTL: 30 * time.Second}
//	err = client.Hold(ctx, "tenant_123:billing-close:2026-04", opts, func(ctx context.Context) error {
//		claim, _ := guard.ClaimFrom(ctx) // the fences find it there themselves
//		return closeBooks(ctx, claim)
//	})
//
// # What it guarantees
//
//   - Tokens only grow (P3): per resource, across release, expiry, change of
//     owner, and kill -9 of a server whose default is synchronous_commit = off.
//     The token is raised in the row, under the row's lock, and a grant is on
//     disk before it is answered.
//   - One token, one lease (P4): no two grants of a resource have one token.
//     The same lease ID gets its own token back while its lease runs, which is
//     how an acquire whose answer was lost is repeated.
//   - By the server's clock no two leases on a resource run at one time.
//   - A lost lease is known before the server gives it away (P7): the holder's
//     deadline counts from before its request was sent, less 0.1 % for drift.
//     An answer that comes after that deadline is not handed out.
//   - A renewal never brings back a lease that ended, and a release never frees
//     a successor's, however late or often they arrive.
//   - Nothing unknown is called success (P5). Errors say whether nothing was
//     written (guard.ErrUnavailable) or the outcome could not be learned
//     (guard.ErrOutcomeUnknown).
//
// # What it does not
//
// It does not stop a stale holder from writing. A process may be paused after
// it has looked at [Lease.Valid] and before it writes; no lock can help, since
// no lock is asked. P7 is comfort; the safety is P1, and it needs a fence:
// present the token where you write, with package sqlfence, httpfence or
// s3fence.
//
// Tokens also have to survive what the server cannot see, such as a restored
// snapshot or a failover to a standby that had not received the last grants;
// this version does not detect these. It queues nobody: [Client.Acquire] polls,
// and of several waiters any may be next.
//
// # Clocks
//
// Whether a lease is over is decided by the server's clock alone. P7 assumes
// that it does not step, and that the two clocks run at the same speed within
// 0.1 %. On Linux the holder's clock is CLOCK_BOOTTIME, which goes on while the
// machine is suspended. Elsewhere it is Go's monotonic clock, which may stand
// still then: such a holder believes in its lease for as long as it slept.
// [Lease.Valid], [Lease.Remaining] and [Lease.Err] read the clock at each call.
// [Lease.Done] and the context of [Client.Hold] depend on timers, which stand
// still in a suspended machine, and follow within a second.
//
// # Connections
//
// Leases are acquired on the caller's pool. Renewals and releases have a small
// pool of their own, so that a caller who keeps all of his connections does not
// lose his leases. Statements are sent one by one, each a transaction of its
// own, never inside a caller's. Connections must have READ COMMITTED as their
// default isolation level, or every acquire is refused. Statements leave no
// state on a connection, so poolers in transaction mode work, with an exec mode
// of pgx that needs no named prepared statements.
//
// The application's role needs USAGE on the schema fencepost, SELECT on
// fencepost.migrations, and SELECT, INSERT and UPDATE on fencepost.leases.
//
// # Observing
//
// [Options.Observer] gets OpAcquire (one per call, with the whole wait),
// OpRenew, OpRelease and OpLost with the surface "lock". A refused acquire has
// the reason "other" and an error that is [ErrHeld]. [Options.Logger] gets
// lock_acquired, lock_contended (once per wait), lock_acquire_failed,
// lock_renewed (debug), lock_renew_failed, lock_released, lock_release_failed
// and lock_lost, with resource, ownerId, leaseId, fencingToken and ttlSeconds.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The schema
// only goes forward, by numbered steps; tokens keep their meaning.
package lockclient
