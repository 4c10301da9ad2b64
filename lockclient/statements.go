package lockclient

import "github.com/fencepost-go/fencepost/lockclient/internal/pglease"

// Each of these is one statement in a transaction of its own. Settings are made
// inside the statement, local to its transaction: that needs no further round
// trip and leaves no trace on a pooled connection. Never run one inside a
// caller's transaction, where they would last to its end.
//
// Times are clock_timestamp(), not now(): after a wait for the row, now() is
// the time before the wait. A lease is over at its expires_at, not after it.

// acquireSQL grants or refuses; a row means granted. $1 resource, $2 lease ID,
// $3 owner, $4 TTL in microseconds, $5 lock_timeout in milliseconds.
//
// The token is raised from the row under the row's lock; a default drawn from a
// sequence would be evaluated before the wait, and the waiter could win with
// the smaller number. NOT EXISTS makes a refusal a read. The isolation level
// must be READ COMMITTED, because only there the row is seen as it is once
// locked. Whether the lease is the caller's own and still running is judged by
// one moment (excluded.acquired_at) for all columns. A grant is on disk before
// it is answered, else a crash would issue its token again. The last column reads
// the row as it was before: whether the grant replaced a lease that ran out.
const acquireSQL = acquireInsert + acquireConflict

// acquireThereSQL is acquireSQL on the server that was entered, and gives no row
// on any other. $6 when the server was started, $7 the number of the table.
const acquireThereSQL = acquireInsert +
	`  AND pg_postmaster_start_time() = $6::timestamptz AND 'fencepost.leases'::regclass::oid::bigint = $7::bigint
` + acquireConflict

const acquireInsert = `INSERT INTO fencepost.leases AS l (resource, token, lease_id, owner, acquired_at, expires_at)
SELECT $1::text, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1,
       $2::text, $3::text, clock_timestamp(), clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE NOT EXISTS (SELECT FROM fencepost.leases h
                  WHERE h.resource = $1::text AND h.lease_id <> $2::text AND h.expires_at > clock_timestamp())
  AND current_setting('transaction_isolation') = 'read committed'
  AND set_config('lock_timeout', $5::text, true) IS NOT NULL
`

const acquireConflict = `ON CONFLICT (resource) DO UPDATE SET
  token = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
               THEN l.token ELSE greatest(l.token + 1, excluded.token) END,
  acquired_at = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
                     THEN l.acquired_at ELSE clock_timestamp() END,
  expires_at = CASE WHEN l.lease_id = excluded.lease_id
                    THEN greatest(l.expires_at, clock_timestamp() + $4::bigint * interval '1 microsecond')
                    ELSE clock_timestamp() + $4::bigint * interval '1 microsecond' END,
  lease_id = excluded.lease_id, owner = excluded.owner
WHERE l.lease_id IS NULL OR l.lease_id = excluded.lease_id OR l.expires_at <= clock_timestamp()
RETURNING l.token, l.acquired_at, l.expires_at,
  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END,
  (SELECT o.lease_id <> $2::text AND o.expires_at <= l.acquired_at FROM fencepost.leases o WHERE o.resource = $1::text)`

// holderSQL says why acquireSQL gave no row. $1 resource, $2 own lease ID. It
// always gives one row; a NULL token means that the lease is free by now.
const holderSQL = `SELECT current_setting('transaction_isolation'), l.token, l.lease_id, l.owner, l.expires_at,
  (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
FROM (VALUES (1)) AS one LEFT JOIN fencepost.leases l
  ON l.resource = $1::text AND l.lease_id <> $2::text AND l.expires_at > clock_timestamp()`

// renewSQL extends a lease that still runs; no row means that it is lost. $1
// resource, $2 lease ID, $3 token, $4 TTL in microseconds, $5 lock_timeout in
// milliseconds. It is on disk before it is answered, else a crash would bring
// the earlier expiry back while the holder counts on the later one.
const renewSQL = `UPDATE fencepost.leases l SET expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE l.resource = $1::text AND l.lease_id = $2::text AND l.token = $3::bigint AND l.expires_at > clock_timestamp()
  AND set_config('lock_timeout', $5::text, true) IS NOT NULL
RETURNING l.token,
  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END`

// releaseSQL frees a lease; no row means that it is not the caller's any more.
// $1 resource, $2 lease ID, $3 token or 0 for an acquire whose token is not
// known, $4 lock_timeout in milliseconds, $5 the resource's topic. It need not
// reach the disk: a release that a crash undoes costs the next holder one TTL,
// and the token stays. It notifies only where somebody waits: every commit that
// notifies takes its turn with every other one of the server.
const releaseSQL = releaseSet + `, CASE WHEN l.wake_until > clock_timestamp() THEN pg_notify('` + pglease.Channel + `', $5::text) END IS NULL`

// quietReleaseSQL is releaseSQL for where a notification fails the statement:
// waiters look by themselves, a lease that is not released keeps them waiting.
const quietReleaseSQL = releaseSet

const releaseSet = `UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp())
WHERE l.resource = $1::text AND l.lease_id = $2::text AND ($3::bigint = 0 OR l.token = $3::bigint)
  AND set_config('lock_timeout', $4::text, true) IS NOT NULL
RETURNING l.token, set_config('synchronous_commit', 'off', true)`

// watchSQL sets the wake mark on a lease that is held by another, unless there
// is one for half as long, and says who has it; no row means that it is free
// now. $1 resource, $2 own lease ID, $3 the mark's duration in microseconds, $4
// lock_timeout in milliseconds. Where the UPDATE waited for a release it finds
// nothing held, while the SELECT still shows the lease as it was: marked is
// false then, unless the mark was there before. It need not reach the disk: a
// server that crashes takes the listening connections with it.
const watchSQL = `WITH mark AS (
  UPDATE fencepost.leases l SET wake_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
  WHERE l.resource = $1::text AND l.lease_id <> $2::text AND l.expires_at > clock_timestamp()
    AND (l.wake_until IS NULL OR l.wake_until < clock_timestamp() + $3::bigint * interval '0.5 microsecond')
    AND set_config('lock_timeout', $4::text, true) IS NOT NULL
  RETURNING set_config('synchronous_commit', 'off', true))
SELECT l.token, l.lease_id, l.owner, l.expires_at, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint,
  EXISTS (SELECT FROM mark) OR coalesce(l.wake_until >= clock_timestamp() + $3::bigint * interval '0.5 microsecond', false)
FROM fencepost.leases l
WHERE l.resource = $1::text AND l.lease_id <> $2::text AND l.expires_at > clock_timestamp()`
