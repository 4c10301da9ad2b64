// # When not to use a lock
//
// A lock that need not be there cannot be lost. Before taking a lease for a write
// to a database, look whether the database can refuse the second writer itself.
//
// Once per key: a constraint.
//
//	CREATE UNIQUE INDEX ON invoices (tenant, month);
//	INSERT INTO invoices (tenant, month, total) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;
//
// Once per request, however often it is sent: an idempotency key.
//
//	INSERT INTO payments (request_id, amount) VALUES ($1, $2) ON CONFLICT (request_id) DO NOTHING RETURNING id;
//
// One at a time, for as long as one transaction lasts: a row lock.
//
//	SELECT balance FROM accounts WHERE id = $1 FOR UPDATE;
//	UPDATE accounts SET balance = $2 WHERE id = $1;
//
// Read now, write later, nobody in between: a version column.
//
//	UPDATE documents SET body = $1, version = version + 1 WHERE id = $2 AND version = $3;
//
// Many workers, each job to one of them: a queue, or a partition of the keys.
//
//	SELECT id FROM jobs WHERE done_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
//	SELECT id FROM jobs WHERE hashtext(id::text) & 3 = $1; -- of four workers, the one with this number
//
// A lease is for what outlasts a transaction or is no database: a close of the
// books over many steps, a file in a bucket, a call to another service, one
// scheduler of many. There it needs a fence.
//
// # Runbook
//
// What is seen, what to look at, what to do. Get, List, LongHeld, Audit and
// Inspect only read.
//
//   - An acquire times out, or waits for long. [Operator.Get] says who holds the
//     lease, for how long, and whether it is renewed (Remaining stays near the
//     TTL); [Operator.LongHeld] whether others are stuck as well. If the holder
//     is alive and working, wait. If it hangs, stop its process; its lease runs
//     out. If that cannot be, [Operator.ForceUnlock] with the lease ID that Get
//     showed, and raise the burned claim at the resource.
//   - Two holders are suspected. Compare the tokens in both logs (fencingToken).
//     Different tokens: the one with the lower has lost its lease and not noticed,
//     which the fence is there for; look for lock_lost, and at the TTL against
//     pauses ([CheckTTL]). One token under two lease IDs, reported as a conflict:
//     the issuer was restored and nobody raised its epoch; stop the writers,
//     [Operator.RaiseEpoch], start them again.
//   - Releases fail (lock_release_failed). The lease ends by its TTL, nothing is
//     lost. If it goes on, [Operator.Inspect] and [Operator.Probe]: a server that
//     is away or read-only, or a lock_timeout behind somebody who locks rows.
//   - Acquires are slow though nobody holds the lease. [Operator.Probe] splits the
//     time; [Operator.Inspect] names a pooler (waiters poll), a standby, and a
//     transaction that stays open. A first acquire that is slow alone is a
//     connection being made.
//   - Renewals are near the deadline (lock_margin_low), or leases are lost by
//     healthy holders. The TTL is too short for the pauses: [RecommendTTL] with
//     [Client.RenewalLatency].
//   - Stale rejections rise. A few at a takeover are what fences are for. Many,
//     from one holder: it goes on after its loss, so its work does not watch its
//     context. Many, from all: the mark is above the issuer. Compare the mark with
//     [Operator.Get]: if it is higher, the issuer was restored (see below) or the
//     mark was poisoned; [Operator.Advance] lifts the issuer above a mark that is
//     right.
//   - A backup was restored, a snapshot or a copy was started. Before the
//     applications: [Operator.Epoch] shows whether it was noticed; if it is among
//     those of "Failover and restore" that cannot be seen, [Operator.RaiseEpoch],
//     or [Operator.AdvanceFloor] with the highest mark of the resources.
//   - A failover. Nothing, if Inspection.Hidden is empty: the new timeline is
//     noticed. Otherwise [Operator.RaiseEpoch]. The former primary must stay
//     down. Leases granted in its last moments may be granted again, with higher
//     tokens; fences settle it.
//   - The table grows. [Client.PurgeLoop] in one process; an Inspection's Blocker
//     is a transaction that keeps it out.
//
// # When PostgreSQL is away
//
// This package: no acquire succeeds (guard.ErrUnavailable, or
// guard.ErrOutcomeUnknown for what was under way), a held lease lasts until its
// deadline and is then lost, releases are given up and left to the TTL. sqlfence:
// every write fails, which is what a database that is away does. httpfence on a
// store of sqlfence answers 503 with Retry-After, and admits nothing. s3fence with
// its own marks does not ask PostgreSQL: writes under a token that was granted
// before go on and stay fenced. guard.NewMemory knows of no database. Nothing
// fails open.
package lockclient
