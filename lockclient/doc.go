// Package lockclient is a lease client: it gets a lease on a named resource for
// one holder at a time, with a fencing token that grows with every grant, and
// tells the holder when the lease is over. PostgreSQL issues the leases, or with
// [NewWith] any other driver.Issuer: see ISSUERS.md for which to choose.
//
// # What it guarantees
//
//   - Tokens only grow (P3): per resource, across release, expiry, change of
//     owner, purge, kill -9 of a server whose default is synchronous_commit =
//     off, promotion of a standby that lacks the last grants, dump and restore.
//     What needs an operator is documented in package lockadmin.
//   - One token, one lease (P4): no two grants of a resource have one token. The
//     same lease ID under the same owner gets its own token back while its lease
//     runs, which is how an acquire whose answer was lost is repeated.
//   - By the issuer's clock no two leases on a resource run at one time.
//   - A lost lease is known before the issuer grants it to another (P7): the
//     holder's deadline counts from before its request was sent, less 0.1 % for
//     drift. A grant that is answered after that deadline is not returned.
//   - Given up is over (P8): an attempt carries its end by the server's clock and
//     takes no effect later. A release of a grant whose answer was lost spends
//     the lease ID: an attempt that the network delayed is refused when it
//     arrives, for an hour, the longest that an attempt may live.
//   - A renewal never brings back a lease that ended, and a release never frees
//     a successor's, however late or often they arrive.
//   - Nothing unknown is called success (P5). Errors say whether nothing was
//     written (guard.ErrUnavailable) or the outcome could not be learned
//     (guard.ErrOutcomeUnknown).
//
// # What it does not
//
// It does not stop a stale holder from writing. A process may be paused after
// it has called [Lease.Valid] and before it writes; no lock can prevent that,
// since no lock is consulted. P7 is a convenience; safety is P1, and it needs a
// fence: present the token where you write, with package sqlfence, httpfence or
// s3fence.
//
// P7 has a limit. A renewal that had not reached the standby when the server
// answered it is lost when that standby is promoted: the new server may grant
// the lease to another up to a TTL before its holder's deadline. With
// synchronous replication that does not happen. The next holder's token is
// always higher, so a fence refuses the old one. P7 also assumes that the
// server's clock does not step.
//
// # Use
//
//	if err := lockclient.Migrate(ctx, pool); err != nil {
//		return err
//	}
//	client, err := lockclient.New(pool, "worker-7", nil)
//	if err != nil {
//		return err
//	}
//	defer client.Close(ctx)
//	opts := &lockclient.HoldOptions{TTL: 30 * time.Second}
//	err = client.Hold(ctx, "tenant_123:billing-close:2026-04", opts, func(ctx context.Context) error {
//		claim, _ := guard.ClaimFrom(ctx) // the fences find it there themselves
//		return closeBooks(ctx, claim)
//	})
//
// A name that a guard.Template (P9) declares is built by the template:
//
//	name, err := template.Name(tenant, period)
//
// and a fence with the same template checks the claim's resource against it.
//
// # Waiting
//
// [Client.Acquire] sets a wake mark on the lease that it waits for and joins
// the line there. The holder's release notifies if there is a mark, names the
// process that has waited longest, and keeps the lease for it for a tenth of a
// second. If that one has died, the next in line asks then; the others hold
// back. Each client has one listening connection of its own, beside the pool,
// from the first wait until half a minute after the last. The payload on its
// channel, "fencepost.leases" and a random name, is a hash of the resource's
// name. [Client.TryAcquire] may overtake the line. PostgreSQL signals every
// listening session of the database at each release, so a lease changes hands
// among 40 processes 0.6 to 0.8 times as often as among 8.
//
// A notification can be lost with its connection; the waiter then asks on its
// own after two seconds. Behind a pooler the client does not listen, since
// LISTEN would stay on a server process that other applications get: it
// recognises a pooler by the server process's number, logs lock_listen_failed,
// and polls ([Options.Wake]). A full notification queue, or a role that may not
// notify, does not fail a release. A release need not reach the disk: a server
// that crashes right after it has the lease back for the rest of its TTL.
//
// # Many leases
//
// The client renews the leases that are kept alive, those due at about the same time
// together, without a goroutine for each; a row that is locked delays no other
// row. Acquires that arrive while one is in flight are sent as one statement, and
// so are releases; none waits for a stuck one while the pool has room.
//
// # Choosing the TTL
//
// TTL >= p99 of a pause + p99 of a renewal + margin, renewed every third of it or
// sooner: [RecommendTTL] and [CheckTTL]. [Client.RenewalLatency] is measured.
// The event lock_margin_low reports that less than a third of the TTL was left
// when a renewal was answered.
//
// # Clocks
//
// The issuer's clock alone decides whether a lease is over. On Linux the
// holder's clock is CLOCK_BOOTTIME, which keeps running while the machine is
// suspended. Elsewhere it is Go's monotonic clock, which may stop then: such a
// holder believes in its lease for as long as it slept. [Lease.Valid],
// [Lease.Remaining] and [Lease.Err] read the clock at each call; [Lease.Done]
// and the context of [Client.Hold] follow within a second of waking.
//
// # Connections
//
// Leases are acquired on the caller's pool. Renewals and releases have a small
// pool of their own, so that a caller that uses up all connections of its pool
// does not lose its leases. Each statement is a transaction of its own, never
// part of a caller's. Connections must have READ COMMITTED as their default
// isolation level, or every acquire is refused. Statements leave no state on a
// connection, so poolers in transaction mode work if pgx uses an exec mode that
// needs no named prepared statements.
//
// # Tenants and roles
//
// [Options.Namespace] confines a client to one tenant's resources: every name is
// one within the namespace, joined injectively as by guard.JoinResource. It is a
// boundary inside a process; database roles are package lockadmin's.
//
// # Upgrades
//
// [Migrate] brings the schema to this build's version while holders run. A
// client refuses a schema that is older or newer than its build, at its first
// acquire; a running client goes on. So migrate first, then roll out.
//
// # Observing
//
// [Options.Observer] gets OpAcquire (one per call, with the whole wait),
// OpContend, OpReclaim (a grant replaced a lease that had run out), OpRenew,
// OpRelease and OpLost, with the surface "lock". [Client.Stats] counts all of it
// by the prefixes in Options.StatPrefixes. [Options.Logger] gets lock_acquired,
// lock_contended (once per wait), lock_renewed (debug), lock_released, and as
// warnings lock_acquire_failed, lock_renew_failed, lock_margin_low,
// lock_release_failed and lock_lost, with resource, ownerId, leaseId, fencingToken
// and ttlSeconds; for the listening connection lock_listen_failed and
// lock_listen_restored; and for the server lock_epoch_raised and
// lock_epoch_hidden. A warning is logged when the condition is new and once a
// minute while it lasts; suppressed is the number of those left out.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The schema
// only goes forward, by numbered steps; tokens keep their meaning.
package lockclient
