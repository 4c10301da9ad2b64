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
//     owner, purge, kill -9 of a server whose default is synchronous_commit =
//     off, promotion of a standby that lacks the last grants, dump and restore.
//     The token is raised in the row, under the row's lock, and a grant is on
//     disk before it is answered. What needs an operator is under "Failover and
//     restore".
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
// It notices most failovers and restores, not all of them: see the next
// section.
//
// # Waiting
//
// [Client.Acquire] sets a wake mark on the lease that it waits for, and the
// holder's release sends a notification if there is one. Each client has one
// listening connection of its own, beside the pool, from the first wait until
// half a minute after the last. The waiters of a client stand in line by
// resource and one is woken; among clients there is no order, so a client may
// wait long while others are granted. What is sent on the channel
// "fencepost.leases" is a hash of the resource's name. An expiry is waited for by
// the time that was left.
//
// A notification can be lost with its connection, and a pooler in transaction
// mode accepts LISTEN and delivers nothing. The client sends itself one to find
// out, logs lock_listen_failed once, and polls until notifications arrive. A
// server whose queue of notifications is full, or a role that may not notify,
// fails no release. At worst a waiter looks by itself after two seconds.
//
// # Choosing the TTL
//
// TTL >= p99 of a pause + p99 of a renewal + margin, renewed every third of it or
// sooner: [RecommendTTL] and [CheckTTL]. [Client.RenewalLatency] is measured.
// [Client.Hold] logs lock_margin_low, once until it is better, when less than a
// third of the TTL was left as a renewal was answered.
//
// # Failover and restore
//
// A server that lost the last grants must not issue their tokens again. So a
// token's bits from 40 up are an epoch ([Epoch]): a stored base plus the WAL
// timeline less one. Tokens are small numbers (1, 2, 3) on a server that never
// failed over, and 1,099,511,627,777 and up after the first promotion. Before a
// client is granted anything on a server it has the server enter its epoch,
// durably; every statement that grants checks that it is on that server still,
// so a failover behind a pooler is noticed too. Noticed by themselves are:
//
//   - the promotion of a standby, and recovery to a point in time: each begins
//     a timeline;
//   - a dump that is restored in another cluster, in another database or over
//     itself, and an upgrade by pg_upgrade: the recorded system identifier or
//     object numbers differ, and the base becomes the highest epoch that the
//     leases know of plus one.
//
// Nothing can be seen on the server after these, so the operator calls
// lockadmin's RaiseEpoch, before the applications are started again:
//
//   - a snapshot or file copy of the server's disk was started instead of it:
//     the timeline is the same;
//   - two standbys were promoted without a common WAL archive: both are on one
//     timeline;
//   - the rows alone were copied into a schema that was migrated before, by a
//     dump of the data only or by logical replication;
//   - a dump was restored that is older than a failover, an earlier restore or a
//     call of RaiseEpoch: it knows nothing of the epochs since. Call it until
//     the epoch is above that of the highest token at the resources, or use
//     lockadmin's AdvanceFloor with that token;
//   - a failover or restore of a server that hides its timeline or its
//     identifier. Ordinary roles see both on PostgreSQL as it comes. Where that
//     was changed, the stored base counts alone: Epoch.Hidden says why, and
//     each client logs lock_epoch_hidden once.
//
// An Advance of lockadmin that was acknowledged by a lost server is lost with it:
// repeat it. The server that was left must not be used any longer by anybody
// who holds leases of the new one; its tokens are the lower ones, so the fences
// refuse its holders once a new one has written.
//
// # Rows
//
// The table keeps a row per resource name that was ever leased, until
// lockadmin's Purge deletes those long free, by call or in its PurgeLoop.
// A purge lifts the floor, the token that every later grant is above.
// lockadmin's AdvanceFloor does so by itself, and has to come before
// guard.Store.Retire.
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
// own, never inside a caller's. While somebody waits, one more connection
// listens. Connections must have READ COMMITTED as their default isolation
// level, or every acquire is refused. Statements leave no
// state on a connection, so poolers in transaction mode work, with an exec mode
// of pgx that needs no named prepared statements.
//
// # Operators
//
// Package lockadmin is for somebody on call: who holds what, force-unlock with a
// record, the audit, the epoch, purges, the server's settings and the roles. The
// holder of a lease that was cut learns it at its next renewal, as [ErrForceUnlocked],
// and may write until the resource has seen a higher token.
//
// # Tenants
//
// Options.Namespace confines a client (and lockadmin's an operator) to one tenant's
// resources: every name is one within the namespace, joined injectively as by
// guard.JoinResource, so no name acquires, lists, cuts or audits anything outside.
// Calls that concern all resources are refused to it. It is a boundary inside a
// process, against names that come from outside: two processes with one database
// role can do to each other's rows what the role can.
//
// # Roles
//
// [RolesSQL] and [MigrateWith] make three database roles without a login. The
// issuer, for applications, reads leases and writes them by column; the operator
// reads everything and writes only through functions that keep the rules, so
// there is no cut without a record; the reader reads. None can change or delete
// a record of the audit, nor can the table's owner. No token can be lowered by
// an UPDATE, of whomever. What an issuer is trusted with: it can take or free any
// lease, raise any token, and begin a name that has no row at a token of its
// choice, all without a record. What the owner of the tables is trusted with:
// everything, by dropping a trigger.
//
// A role made by hand needs, to issue, USAGE on the schema fencepost, SELECT on
// fencepost.migrations, and SELECT, INSERT and UPDATE on fencepost.leases and
// fencepost.epoch; to purge, DELETE on fencepost.leases. The functions for
// operators are granted to nobody by the migration.
//
// # Upgrades
//
// [Migrate] takes the schema from any earlier version to this build's, in place:
// running holders keep their leases and their tokens, and roles keep their
// rights. A step may keep grants and renewals out for a moment at its end; it
// waits behind no open transaction for that, and is tried again for some seconds.
// A client refuses a schema that is older or newer than its build, at its first
// acquire; one that runs already goes on. So migrate first, then roll out.
// Until the last process of an older build has ended, do not fail over: it
// grants without entering an epoch, if no newer client did before it.
//
// # Observing
//
// [Options.Observer] gets OpAcquire (one per call, with the whole wait),
// OpContend (an acquire found the lease held; once per call), OpReclaim (a grant
// replaced a lease that had run out), OpRenew, OpRelease, OpLost and
// OpForceUnlock, with the surface "lock". A refused acquire has the reason
// "other" and an error that is [ErrHeld]. The Duration of OpRelease and OpLost is
// how long the lease was held. [Client.Stats] counts all of it by the prefixes in
// Options.StatPrefixes, without an observer. Without a logger and an observer an
// event allocates nothing. examples/expvar and examples/otel make metrics of
// them, and of the fences' events.
//
// [Options.Logger] gets lock_acquired, lock_contended (once per wait),
// lock_acquire_failed, lock_renewed (debug), lock_renew_failed, lock_margin_low,
// lock_released, lock_release_failed and lock_lost, with resource, ownerId,
// leaseId, fencingToken and ttlSeconds; lock_force_unlocked with actor and reason,
// and lock_force_unlock_failed; of the listening connection lock_listen_failed and
// lock_listen_restored; and of the issuer lock_epoch_raised, lock_epoch_hidden,
// lock_advanced, lock_purged and lock_purge_failed. The fences log
// fencing_rejected: httpfence by its own logger, sqlfence and s3fence through
// guard.LogObserver.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The schema
// only goes forward, by numbered steps; tokens keep their meaning.
package lockclient
