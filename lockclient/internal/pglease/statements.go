package pglease

// Each of these is one statement in a transaction of its own. Settings are made
// inside the statement, local to its transaction: that needs no further round
// trip and leaves no trace on a pooled connection. Never run one inside a
// caller's transaction, where they would last to its end.
//
// Times are clock_timestamp(), not now(): after a wait for the row, now() is
// the time before the wait. A lease is over at its expires_at, not after it.
//
// Arrays hold one element for each operation, all of different resources.
// Statements that wait for rows take them in the order of the resources; those
// that may not wait skip what is locked. So two of them never wait for each
// other.
//
// The arrays of what is combined come through a SELECT of their own, which hides
// their lengths from the planner: a plan for any length looks as good as one for
// this one, so the server keeps it. Else it would plan every acquire anew, which
// takes longer than to carry it out.

// A wake mark lasts for five seconds. It outlives its waiter by that, and costs
// the releases meanwhile a notification. A released lease is kept for a tenth of
// a second for the process that has waited longest.

// keptFor says that nobody has l, and that it is kept for another process than the asking one.
const keptFor = `l.lease_id IS NULL AND l.kept_for IS NOT NULL AND l.kept_for <> $8::text AND l.expires_at > clock_timestamp() - interval '100 ms'`

// AcquireSQL grants; a row is one that was granted. $1 resources, $2 lease IDs,
// $3 owners, $4 metadata, $5 TTLs in microseconds, $6 not after, $7 whether it
// waits, $8 the asking process, $9 lock_timeout in milliseconds.
//
// The token is raised from the row under the row's lock; a default drawn from a
// sequence would be evaluated before the wait, and the waiter could win with
// the smaller number. NOT EXISTS makes a refusal a read. The isolation level
// must be READ COMMITTED, because only there the row is seen as it is once
// locked. Whether the lease is the caller's own and still running is judged by
// one moment (excluded.acquired_at) for all columns. That the attempt is in time
// and its lease ID not spent is asked again behind the row's lock. A grant is on
// disk before it is answered, else a crash would issue its token again. Who waited
// and is granted leaves the line, and with it those before it, if the lease was
// kept for one of them that did not come. The last
// column reads the row as it was before: whether the grant replaced a lease that
// ran out.
const AcquireSQL = acquireInsert + acquireConflict

// acquireThereSQL is AcquireSQL on the server that was entered, and gives no row
// on any other. $10 when the server was started, $11 the number of the table.
const acquireThereSQL = acquireInsert +
	`  AND pg_postmaster_start_time() = $10::timestamptz AND 'fencepost.leases'::regclass::oid::bigint = $11::bigint
` + acquireConflict

const acquireInsert = `INSERT INTO fencepost.leases AS l (resource, token, lease_id, owner, metadata, acquired_at, expires_at, not_after)
SELECT u.resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1,
       u.lease_id, u.owner, u.metadata, clock_timestamp(), clock_timestamp() + u.ttl * interval '1 microsecond', u.not_after
FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::text[]), (SELECT $5::bigint[]),
  (SELECT $6::timestamptz[]), (SELECT $7::boolean[]))
  AS u(resource, lease_id, owner, metadata, ttl, not_after, waiting)
WHERE NOT EXISTS (SELECT FROM fencepost.leases l WHERE l.resource = u.resource
                  AND (l.lease_id <> u.lease_id AND l.expires_at > clock_timestamp() OR u.waiting AND ` + keptFor + `))
  AND u.not_after > clock_timestamp()
  AND current_setting('transaction_isolation') = 'read committed'
  AND set_config('lock_timeout', $9::text, true) IS NOT NULL
`

const acquireConflict = `ORDER BY u.resource
ON CONFLICT (resource) DO UPDATE SET
  token = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
               THEN l.token ELSE greatest(l.token + 1, excluded.token) END,
  acquired_at = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
                     THEN l.acquired_at ELSE clock_timestamp() END,
  expires_at = CASE WHEN l.lease_id = excluded.lease_id
                    THEN greatest(l.expires_at, clock_timestamp() + (excluded.expires_at - excluded.acquired_at))
                    ELSE clock_timestamp() + (excluded.expires_at - excluded.acquired_at) END,
  lease_id = excluded.lease_id, owner = excluded.owner, metadata = excluded.metadata, not_after = excluded.not_after, kept_for = NULL,
  waiters = CASE WHEN NOT ($8::text = ANY (l.waiters) AND (SELECT u.waiting FROM unnest($1::text[], $7::boolean[]) AS u(resource, waiting) WHERE u.resource = l.resource))
                   THEN l.waiters
                 WHEN l.lease_id IS NULL AND l.kept_for <> $8::text THEN l.waiters[array_position(l.waiters, $8::text) + 1:]
                 ELSE array_remove(l.waiters, $8::text) END
WHERE (l.lease_id IS NULL OR l.lease_id = excluded.lease_id OR l.expires_at <= clock_timestamp())
  AND excluded.not_after > clock_timestamp()
  AND (l.spent_until IS NULL OR l.spent_until <= clock_timestamp() OR NOT fencepost.is_spent(l.resource, excluded.lease_id))
RETURNING l.resource, l.token, l.acquired_at, clock_timestamp(),
  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END,
  (SELECT o.lease_id <> l.lease_id AND o.expires_at <= l.acquired_at FROM fencepost.leases o WHERE o.resource = l.resource)`

// refusedSQL says why AcquireSQL gave no row, one row for each operation. $1
// resources, $2 lease IDs, $3 the asking process. A NULL token
// means that the lease is free by now.
const refusedSQL = `SELECT u.n, current_setting('transaction_isolation'), clock_timestamp(),
  EXISTS (SELECT FROM fencepost.spent s WHERE s.resource = u.resource AND s.lease_id = u.lease_id AND s.until > clock_timestamp()),
  ` + holderColumns + `
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(resource, lease_id, n)
LEFT JOIN fencepost.leases l ON l.resource = u.resource
  AND (l.lease_id <> u.lease_id AND l.expires_at > clock_timestamp() OR l.lease_id IS NULL AND l.kept_for <> $3::text AND l.expires_at > clock_timestamp() - interval '100 ms')`

// holderColumns are who has the lease l, or for whom it is kept.
const holderColumns = `l.token, coalesce(l.lease_id, ''), l.owner, l.metadata, l.expires_at,
  (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint`

// renewOneSQL extends a lease that still runs; no row means that it is lost. $1
// resource, $2 lease ID, $3 token, $4 TTL in microseconds, $5 lock_timeout in
// milliseconds. It is on disk before it is answered, else a crash would bring
// the earlier expiry back while the holder counts on the later one.
const renewOneSQL = `UPDATE fencepost.leases l SET expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE l.resource = $1::text AND l.lease_id = $2::text AND l.token = $3::bigint AND l.expires_at > clock_timestamp()
  AND set_config('lock_timeout', $5::text, true) IS NOT NULL
RETURNING l.token, ` + durable

const durable = `CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END`

// renewSQL extends those that are not locked by anybody. $1 resources, $2 lease
// IDs, $3 tokens, $4 TTLs in microseconds.
const renewSQL = `WITH asked AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS u(resource, lease_id, token, ttl)
), mine AS MATERIALIZED (
  SELECT l.resource, u.lease_id, u.token, u.ttl FROM asked u JOIN fencepost.leases l ON l.resource = u.resource
   WHERE l.lease_id = u.lease_id AND l.token = u.token FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE fencepost.leases l SET expires_at = clock_timestamp() + m.ttl * interval '1 microsecond'
FROM mine m WHERE l.resource = m.resource AND l.lease_id = m.lease_id AND l.token = m.token AND l.expires_at > clock_timestamp()
RETURNING l.resource, ` + durable

// stillSQL returns those of the leases that run: what renewSQL left out and is
// not lost. $1 resources, $2 lease IDs, $3 tokens.
const stillSQL = `SELECT u.resource FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u(resource, lease_id, token)
JOIN fencepost.leases l ON l.resource = u.resource AND l.lease_id = u.lease_id AND l.token = u.token AND l.expires_at > clock_timestamp()`

// releaseOneSQL frees a lease; no row means that it is not the caller's any more.
// $1 resource, $2 lease ID, $3 token, $4 lock_timeout in milliseconds, $5 the
// resource's topic. It need not reach the disk: a release that a crash undoes
// costs the next holder one TTL, and the token stays. It notifies only where
// somebody waits: every commit that notifies takes its turn with every other one
// of the server. Who has waited longest is named, and the lease kept for it.
const releaseOneSQL = releaseSet + `
WHERE l.resource = $1::text AND l.lease_id = $2::text AND l.token = $3::bigint
  AND set_config('lock_timeout', $4::text, true) IS NOT NULL
RETURNING l.resource, set_config('synchronous_commit', 'off', true), ` + notify + `'` + Channel + `', $5::text || ' ' || ` + line + `) END IS NULL`

// quietReleaseSQL is releaseOneSQL for where a notification fails the statement:
// waiters look by themselves, a lease that is not released keeps them waiting.
const quietReleaseSQL = releaseSet + `
WHERE l.resource = $1::text AND l.lease_id = $2::text AND l.token = $3::bigint
  AND set_config('lock_timeout', $4::text, true) IS NOT NULL
RETURNING l.resource, set_config('synchronous_commit', 'off', true)`

const (
	releaseSet = `UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()),
  kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] END,
  waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] END`
	notify = `CASE WHEN l.wake_until > clock_timestamp() THEN pg_notify(`
	// line is for whom the lease is kept, and whose turn it is if that one does
	// not come.
	line = `coalesce(l.kept_for, '') || coalesce(' ' || nullif(array_to_string(l.waiters[1:7], ' '), ''), '')`
)

// releaseSQL frees those that are not locked by anybody. $1 resources, $2 lease
// IDs, $3 tokens, $4 topics.
const releaseSQL = `WITH asked AS MATERIALIZED (
  SELECT * FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[]), (SELECT $4::text[])) AS u(resource, lease_id, token, topic)
), mine AS MATERIALIZED (
  SELECT l.resource, u.lease_id, u.token, u.topic FROM asked u JOIN fencepost.leases l ON l.resource = u.resource
   WHERE l.lease_id = u.lease_id AND l.token = u.token FOR NO KEY UPDATE OF l SKIP LOCKED
)
` + releaseSet + `
FROM mine m WHERE l.resource = m.resource AND l.lease_id = m.lease_id AND l.token = m.token
RETURNING l.resource, set_config('synchronous_commit', 'off', true), ` + notify + `'` + Channel + `', m.topic || ' ' || ` + line + `) END IS NULL`

// spendSQL frees the lease of a lease ID, whatever its token, and sees to it that
// nothing is granted under the ID any more. A resource that has no row gets one,
// so that an acquire that is under way meets it. $1 resource, $2 lease ID, $3
// lock_timeout in milliseconds, $4 the resource's topic. It is on disk before it
// is answered. The second column reads the row as it was before.
const spendSQL = `WITH old AS (
  DELETE FROM fencepost.spent s WHERE s.resource = $1::text AND s.until <= clock_timestamp()
), spent AS (
  INSERT INTO fencepost.spent AS s (resource, lease_id) VALUES ($1::text, $2::text)
  ON CONFLICT (resource, lease_id) DO NOTHING
)
INSERT INTO fencepost.leases AS l (resource, token, spent_until)
SELECT $1::text, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1, clock_timestamp() + interval '1 hour'
 WHERE set_config('lock_timeout', $3::text, true) IS NOT NULL
ON CONFLICT (resource) DO UPDATE SET spent_until = clock_timestamp() + interval '1 hour',
  lease_id = CASE WHEN l.lease_id = $2::text THEN NULL ELSE l.lease_id END,
  expires_at = CASE WHEN l.lease_id = $2::text THEN least(l.expires_at, clock_timestamp()) ELSE l.expires_at END,
  not_after = CASE WHEN l.lease_id = $2::text THEN NULL ELSE l.not_after END,
  kept_for = CASE WHEN l.lease_id = $2::text AND l.wake_until > clock_timestamp() THEN l.waiters[1] ELSE l.kept_for END,
  waiters = CASE WHEN l.lease_id = $2::text AND l.wake_until > clock_timestamp() THEN l.waiters[2:] ELSE l.waiters END
RETURNING ` + durable + `,
  l.lease_id IS NULL AND coalesce((SELECT o.lease_id = $2::text FROM fencepost.leases o WHERE o.resource = $1::text), false),
  CASE WHEN l.lease_id IS NULL AND l.wake_until > clock_timestamp() THEN pg_notify('` + Channel + `', $4::text || ' ' || ` + line + `) END IS NULL`

// watchSQL sets the wake mark on a lease that is held by another, or kept for
// another, and puts the process at the end of the line unless it is in it; it
// says who has the lease. No row means that it is free now. $1 resource, $2 own
// lease ID, $3 the process, $4 lock_timeout in milliseconds. Where the UPDATE
// waited for a release it finds nothing held, while the SELECT still shows the
// lease as it was: marked is false then, unless the mark was there before. It
// need not reach the disk: a server that crashes takes the listening connections
// with it.
const watchSQL = `WITH mark AS (
  UPDATE fencepost.leases l SET wake_until = clock_timestamp() + interval '5 s',
    waiters = CASE WHEN l.wake_until IS NULL OR l.wake_until <= clock_timestamp() THEN ARRAY[$3::text]
                   WHEN $3::text = ANY (l.waiters) THEN l.waiters ELSE coalesce(l.waiters, '{}') || $3::text END
  WHERE l.resource = $1::text AND ` + watched + ` AND NOT ` + marked + `
    AND set_config('lock_timeout', $4::text, true) IS NOT NULL
  RETURNING set_config('synchronous_commit', 'off', true))
SELECT ` + holderColumns + `, EXISTS (SELECT FROM mark) OR ` + marked + `
FROM fencepost.leases l WHERE l.resource = $1::text AND ` + watched

const (
	watched = `(l.lease_id <> $2::text AND l.expires_at > clock_timestamp()
    OR l.lease_id IS NULL AND l.kept_for <> $3::text AND l.expires_at > clock_timestamp() - interval '100 ms')`
	marked = `(l.wake_until >= clock_timestamp() + interval '2.5 s' AND $3::text = ANY (l.waiters)) IS TRUE`
)

// onlookSQL says who has the lease. $1 resource.
const onlookSQL = `SELECT ` + holderColumns + ` FROM fencepost.leases l
WHERE l.resource = $1::text AND l.lease_id IS NOT NULL AND l.expires_at > clock_timestamp()`
