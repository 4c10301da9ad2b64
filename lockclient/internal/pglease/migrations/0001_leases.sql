-- One row per resource. A free row stays, because it holds the resource's last
-- token: deleting it would start the counter again at 1. The row of the
-- resource '' is no lease but the floor: every token granted on a resource that
-- has no row is above it.
CREATE TABLE fencepost.leases (
  resource    text COLLATE "C" NOT NULL,
  token       bigint           NOT NULL,
  lease_id    text             NULL,                        -- NULL: free
  owner       text             NOT NULL DEFAULT '',
  acquired_at timestamptz      NOT NULL DEFAULT '-infinity',
  expires_at  timestamptz      NOT NULL DEFAULT '-infinity',
  wake_until  timestamptz      NULL,                        -- until then somebody waits for the release
  waiters     text[]           NULL,                        -- processes, the longest waiting first
  kept_for    text             NULL,                        -- process that a lease is kept for which was released a moment ago
  metadata    text             NOT NULL DEFAULT '',         -- what the holder says of itself
  not_after   timestamptz      NULL,                        -- end of the attempt that was granted
  spent_until timestamptz      NULL,                        -- until then fencepost.spent may have lease IDs of the resource
  CONSTRAINT leases_pkey PRIMARY KEY (resource),
  CONSTRAINT leases_resource_length CHECK (octet_length(resource) <= 512),
  CONSTRAINT leases_token_range CHECK (token BETWEEN 1 AND 9223372036854775806),
  CONSTRAINT leases_lease_id_length CHECK (octet_length(lease_id) BETWEEN 1 AND 128),
  CONSTRAINT leases_expires_at_finite CHECK (expires_at < 'infinity'),
  CONSTRAINT leases_metadata_length CHECK (octet_length(metadata) <= 1000),
  CONSTRAINT leases_floor_is_free CHECK (resource <> '' OR lease_id IS NULL)
) WITH (
  -- Half of each page is left free and no changing column is indexed, so that
  -- an update stays on its page and touches no index.
  fillfactor = 50,
  -- Vacuum comes after a thousand updates rather than after a fifth of the
  -- table: few rows, changed all the time. Truncating takes a lock that
  -- renewals would wait for.
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 1000
);
COMMENT ON TABLE fencepost.leases IS 'Leases and their fencing tokens. Never delete a row by hand and never lower a token.';

-- Lease IDs that were abandoned: nothing is granted under them any more. No
-- attempt to acquire lives longer than an hour, so none is kept for longer.
CREATE TABLE fencepost.spent (
  resource text COLLATE "C" NOT NULL,
  lease_id text COLLATE "C" NOT NULL,
  until    timestamptz      NOT NULL DEFAULT clock_timestamp() + interval '1 hour',
  CONSTRAINT spent_pkey PRIMARY KEY (resource, lease_id)
);
COMMENT ON TABLE fencepost.spent IS 'Lease IDs that were abandoned, for an hour.';

-- is_spent is volatile, so that it sees what was committed while an acquire
-- waited for the row.
CREATE FUNCTION fencepost.is_spent(p_resource text, p_lease_id text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.spent s WHERE s.resource = p_resource AND s.lease_id = p_lease_id);
END $$;

-- What an issuer calls. Each call is a transaction of its own and one round trip;
-- what is set is local to it. Never call one inside another transaction, where it
-- would last to the end. Arrays hold one element for each operation, all of
-- different resources, in their order. Rows are locked in that order or not waited
-- for, so that two calls never wait for each other.
--
-- Times are clock_timestamp(), not now(): after a wait for the row, now() is the
-- time before the wait. A lease is over at its expires_at, not after it.
--
-- They have the caller's rights and resolve names in pg_catalog alone: a schema on
-- the caller's search_path may have operators of somebody else. Their plans are
-- made once in a session and use the index, also if the table was tiny then.
--
-- A wake mark lasts for five seconds. It outlives its waiter by that, and costs
-- the releases meanwhile a notification. A released lease is kept for a tenth of
-- a second for the process that has waited longest.

-- acquire grants, and says why it does not grant the rest; no row at all means
-- that this is not the server, started at p_started, or not the table that the
-- caller has entered. p_ttls are microseconds, p_process names who asks.
--
-- The token is raised from the row under the row's lock; a default drawn from a
-- sequence would be evaluated before the wait, and the waiter could win with the
-- smaller number. NOT EXISTS makes a refusal a read. The isolation level must be
-- READ COMMITTED, because only there the row is seen as it is once locked. Whether
-- the lease is the caller's own and still running is judged by one moment
-- (excluded.acquired_at) for all columns. That the attempt is in time and its lease
-- ID not spent is asked again behind the row's lock. A grant is on disk before it
-- is answered, else a crash would issue its token again. Who waited and is granted
-- leaves the line, and with it those before it, if the lease was kept for one of
-- them that did not come. o_reclaimed reads the row as it was before: whether the
-- grant replaced a lease that ran out. A refusal without a token means that the
-- lease is free by now, or that the attempt is late.
CREATE FUNCTION fencepost.acquire(p_resources text[], p_lease_ids text[], p_owners text[], p_metadata text[], p_ttls bigint[],
  p_not_after timestamptz[], p_waiting boolean[], p_process text, p_wait_ms text, p_started timestamptz, p_leases bigint)
RETURNS TABLE (o_resource text, o_granted boolean, o_token bigint, o_acquired_at timestamptz, o_now timestamptz, o_reclaimed boolean,
  o_spent boolean, o_lease_id text, o_owner text, o_metadata text, o_expires_at timestamptz, o_remaining bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_granted bigint;
BEGIN
  IF p_leases <> 'fencepost.leases'::regclass::oid::bigint THEN
    RETURN;
  END IF;
  IF p_started IS NOT NULL THEN -- else it is hidden
    IF p_started <> pg_postmaster_start_time() THEN
      RETURN;
    END IF;
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  RETURN QUERY
  INSERT INTO fencepost.leases AS l (resource, token, lease_id, owner, metadata, acquired_at, expires_at, not_after)
  SELECT u.resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1,
         u.lease_id, u.owner, u.metadata, clock_timestamp(), clock_timestamp() + u.ttl * interval '1 microsecond', u.not_after
  FROM unnest(p_resources, p_lease_ids, p_owners, p_metadata, p_ttls, p_not_after, p_waiting)
    AS u(resource, lease_id, owner, metadata, ttl, not_after, waiting)
  WHERE NOT EXISTS (SELECT FROM fencepost.leases h WHERE h.resource = u.resource
                    AND (h.lease_id <> u.lease_id AND h.expires_at > clock_timestamp()
                         OR u.waiting AND h.lease_id IS NULL AND h.kept_for <> p_process AND h.expires_at > clock_timestamp() - interval '100 ms'))
    AND u.not_after > clock_timestamp()
  ORDER BY u.resource
  ON CONFLICT (resource) DO UPDATE SET
    token = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
                 THEN l.token ELSE greatest(l.token + 1, excluded.token) END,
    acquired_at = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
                       THEN l.acquired_at ELSE clock_timestamp() END,
    expires_at = CASE WHEN l.lease_id = excluded.lease_id
                      THEN greatest(l.expires_at, clock_timestamp() + (excluded.expires_at - excluded.acquired_at))
                      ELSE clock_timestamp() + (excluded.expires_at - excluded.acquired_at) END,
    lease_id = excluded.lease_id, owner = excluded.owner, metadata = excluded.metadata, not_after = excluded.not_after, kept_for = NULL,
    waiters = CASE WHEN l.waiters IS NULL OR NOT (p_process = ANY (l.waiters) AND p_waiting[array_position(p_resources, l.resource)]) THEN l.waiters
                   WHEN l.lease_id IS NULL AND l.kept_for <> p_process THEN l.waiters[array_position(l.waiters, p_process) + 1:]
                   ELSE array_remove(l.waiters, p_process) END
  WHERE (l.lease_id IS NULL OR l.lease_id = excluded.lease_id OR l.expires_at <= clock_timestamp())
    AND excluded.not_after > clock_timestamp()
    AND (l.spent_until IS NULL OR l.spent_until <= clock_timestamp() OR NOT fencepost.is_spent(l.resource, excluded.lease_id))
  RETURNING l.resource, true, l.token, l.acquired_at, clock_timestamp(),
    (SELECT o.lease_id <> l.lease_id AND o.expires_at <= l.acquired_at FROM fencepost.leases o WHERE o.resource = l.resource),
    false, l.lease_id, l.owner, l.metadata, l.expires_at, 0::bigint;
  GET DIAGNOSTICS v_granted = ROW_COUNT;
  IF v_granted < cardinality(p_resources) THEN
    RETURN QUERY
    SELECT u.resource, false, l.token, l.acquired_at, clock_timestamp(), false,
      EXISTS (SELECT FROM fencepost.spent s WHERE s.resource = u.resource AND s.lease_id = u.lease_id AND s.until > clock_timestamp()),
      coalesce(l.lease_id, ''), l.owner, l.metadata, l.expires_at, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
    FROM unnest(p_resources, p_lease_ids) AS u(resource, lease_id)
    LEFT JOIN fencepost.leases l ON l.resource = u.resource
      AND (l.lease_id <> u.lease_id AND l.expires_at > clock_timestamp()
           OR l.lease_id IS NULL AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms');
  END IF;
END $$;

-- renew extends leases that still run: o_extended is true, false for one that
-- runs and is locked by somebody, and there is no row for one that is lost. One
-- lease alone waits for its row. A renewal is on disk before it is answered, else
-- a crash would bring the earlier expiry back while the holder counts on the later.
CREATE FUNCTION fencepost.renew(p_resources text[], p_lease_ids text[], p_tokens bigint[], p_ttls bigint[], p_wait_ms text)
RETURNS TABLE (o_resource text, o_extended boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_extended bigint;
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  IF cardinality(p_resources) = 1 THEN
    PERFORM set_config('lock_timeout', p_wait_ms, true);
    PERFORM FROM fencepost.leases l WHERE l.resource = p_resources[1] AND l.lease_id = p_lease_ids[1] AND l.token = p_tokens[1] FOR NO KEY UPDATE;
  END IF;
  RETURN QUERY
  WITH mine AS MATERIALIZED (
    SELECT l.resource, u.ttl
    FROM unnest(p_resources, p_lease_ids, p_tokens, p_ttls) AS u(resource, lease_id, token, ttl)
    JOIN fencepost.leases l ON l.resource = u.resource
    WHERE l.lease_id = u.lease_id AND l.token = u.token AND l.expires_at > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED
  )
  UPDATE fencepost.leases l SET expires_at = clock_timestamp() + m.ttl * interval '1 microsecond'
  FROM mine m WHERE l.resource = m.resource
  RETURNING l.resource, true;
  GET DIAGNOSTICS v_extended = ROW_COUNT;
  IF v_extended < cardinality(p_resources) THEN
    RETURN QUERY
    SELECT u.resource, false FROM unnest(p_resources, p_lease_ids, p_tokens) AS u(resource, lease_id, token)
    JOIN fencepost.leases l ON l.resource = u.resource AND l.lease_id = u.lease_id AND l.token = u.token AND l.expires_at > clock_timestamp();
  END IF;
END $$;

-- release frees leases and returns whose; the others are not the caller's any
-- more. It need not reach the disk: a release that a crash undoes costs the next
-- holder one TTL, and the token stays. It notifies only where somebody waits, since
-- every commit that notifies takes its turn with every other one of the server, and
-- not without a topic. Who has waited longest is named and the lease kept for it;
-- those after it are named as well, in case it does not come.
CREATE FUNCTION fencepost.release(p_resources text[], p_lease_ids text[], p_tokens bigint[], p_topics text[], p_wait_ms text)
RETURNS TABLE (o_resource text, o_told boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM set_config('lock_timeout', p_wait_ms, true), set_config('synchronous_commit', 'off', true);
  RETURN QUERY
  UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()),
    kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] END,
    waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] END
  FROM unnest(p_resources, p_lease_ids, p_tokens, p_topics) AS u(resource, lease_id, token, topic)
  WHERE l.resource = u.resource AND l.lease_id = u.lease_id AND l.token = u.token
  RETURNING l.resource, CASE WHEN l.wake_until > clock_timestamp() AND u.topic <> '' THEN fencepost.wake(u.topic, l.kept_for, l.waiters) ELSE false END;
END $$;

-- wake says for whom a lease is kept, and whose turn it is if that one does not
-- come.
CREATE FUNCTION fencepost.wake(p_topic text, p_kept_for text, p_waiters text[])
RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_notify('fencepost.leases',
    p_topic || ' ' || coalesce(p_kept_for, '') || coalesce(' ' || nullif(array_to_string(p_waiters[1:7], ' '), ''), '')) IS NOT NULL
$$;

-- spend frees the lease of a lease ID, whatever its token, and sees to it that
-- nothing is granted under the ID any more. A resource that has no row gets one,
-- so that an acquire that is under way meets it. It is on disk before it is
-- answered.
CREATE FUNCTION fencepost.spend(p_resource text, p_lease_id text, p_topic text, p_wait_ms text, OUT o_freed boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM set_config('lock_timeout', p_wait_ms, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  DELETE FROM fencepost.spent s WHERE s.resource = p_resource AND s.until <= clock_timestamp();
  INSERT INTO fencepost.spent AS s (resource, lease_id) VALUES (p_resource, p_lease_id) ON CONFLICT (resource, lease_id) DO NOTHING;
  INSERT INTO fencepost.leases AS l (resource, token, spent_until)
  VALUES (p_resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1, clock_timestamp() + interval '1 hour')
  ON CONFLICT (resource) DO UPDATE SET spent_until = excluded.spent_until;
  UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()), not_after = NULL,
    kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] ELSE l.kept_for END,
    waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] ELSE l.waiters END
  WHERE l.resource = p_resource AND l.lease_id = p_lease_id
  RETURNING CASE WHEN l.wake_until > clock_timestamp() THEN fencepost.wake(p_topic, l.kept_for, l.waiters) END IS NULL INTO o_freed;
  o_freed := o_freed IS NOT NULL;
END $$;

-- watch says who has the lease, or for whom it is kept; no row means that it is
-- free now. With a lease ID it sets the wake mark, and puts the process at the end
-- of the line unless it is in it; o_marked says that this was done, or had been and
-- lasts. Without one it is an onlooker's and writes nothing. The mark need not
-- reach the disk: a server that crashes takes the listening connections with it.
CREATE FUNCTION fencepost.watch(p_resource text, p_lease_id text, p_process text, p_wait_ms text)
RETURNS TABLE (o_token bigint, o_lease_id text, o_owner text, o_metadata text, o_expires_at timestamptz, o_remaining bigint, o_marked boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  IF p_lease_id <> '' THEN
    PERFORM set_config('lock_timeout', p_wait_ms, true), set_config('synchronous_commit', 'off', true);
    UPDATE fencepost.leases l SET wake_until = clock_timestamp() + interval '5 s',
      waiters = CASE WHEN l.wake_until IS NULL OR l.wake_until <= clock_timestamp() THEN ARRAY[p_process]
                     WHEN p_process = ANY (l.waiters) THEN l.waiters ELSE coalesce(l.waiters, '{}') || p_process END
    WHERE l.resource = p_resource AND (l.wake_until >= clock_timestamp() + interval '2.5 s' AND p_process = ANY (l.waiters)) IS NOT TRUE
      AND (l.lease_id <> p_lease_id AND l.expires_at > clock_timestamp()
           OR l.lease_id IS NULL AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms');
  END IF;
  RETURN QUERY
  SELECT l.token, coalesce(l.lease_id, ''), l.owner, l.metadata, l.expires_at, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint,
    (l.wake_until >= clock_timestamp() + interval '2 s' AND p_process = ANY (l.waiters)) IS TRUE
  FROM fencepost.leases l
  WHERE l.resource = p_resource
    AND (l.lease_id <> p_lease_id AND l.expires_at > clock_timestamp()
         OR p_lease_id <> '' AND l.lease_id IS NULL AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms');
END $$;

-- Epochs. A token's bits from 40 up are its epoch, and the epoch is put to work
-- by the floor: the row '' of fencepost.leases is lifted to the first number of
-- the epoch, and every grant is above the floor. The epoch is the base plus the
-- WAL timeline less one, so that a standby that is promoted, and may lack the
-- last grants, begins above all of them. What else the row holds tells a copy
-- from the original: a dump that is restored elsewhere, or a second time in the
-- same place, gives other numbers, and then the base goes above every epoch
-- that was used.
CREATE TABLE fencepost.epoch (
  one               boolean NOT NULL DEFAULT true,
  base              bigint  NOT NULL DEFAULT 0,
  system_identifier text    NULL,                 -- of the cluster; NULL: not known
  database          oid     NULL,                 -- of this database
  leases            oid     NULL,                 -- of fencepost.leases; NULL: nothing recorded yet
  CONSTRAINT epoch_pkey PRIMARY KEY (one),
  CONSTRAINT epoch_one_row CHECK (one),
  CONSTRAINT epoch_base_range CHECK (base BETWEEN 0 AND 8388607)
);
COMMENT ON TABLE fencepost.epoch IS 'One row: which server the leases belong to, and the base of the epoch. Never change it by hand.';

-- lock_leases keeps every grant and renewal out until the transaction's end; it
-- returns when those under way have ended, so that what is read after it is
-- newer than they are. A lock that waits in the queue makes renewals wait behind
-- it, whatever their lock_timeout, so it never waits behind an open transaction:
-- a transaction that is there twice, a tenth of a second apart, is one.
CREATE FUNCTION fencepost.lock_leases(p_wait_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_modes CONSTANT text[] := ARRAY['RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
                                   'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'];
  v_database oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
  v_there text[];
  v_pid   integer;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
  SELECT array_agg(k.virtualtransaction) INTO v_there FROM pg_locks k
   WHERE k.relation = 'fencepost.leases'::regclass AND k.database = v_database AND k.granted
     AND k.mode = ANY (v_modes) AND k.pid IS DISTINCT FROM pg_backend_pid();
  IF v_there IS NOT NULL THEN
    PERFORM pg_sleep(0.1);
    SELECT coalesce(k.pid, 0) INTO v_pid FROM pg_locks k
     WHERE k.relation = 'fencepost.leases'::regclass AND k.database = v_database AND k.granted
       AND k.mode = ANY (v_modes) AND k.virtualtransaction = ANY (v_there) LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
        MESSAGE = format('fencepost: an open transaction, of server process %s, has a lock on fencepost.leases', v_pid);
    END IF;
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  LOCK TABLE fencepost.leases IN SHARE ROW EXCLUSIVE MODE;
END $$;

-- lift_floor raises the floor to a token, in a transaction that waits for the
-- disk. It never lowers it.
CREATE FUNCTION fencepost.lift_floor(p_token bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  INSERT INTO fencepost.leases AS f (resource, token) VALUES ('', p_token)
  ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token < excluded.token;
END $$;

-- purge_leases deletes those of the resources that have been free for so long,
-- and lifts the floor to the highest of their tokens in the same transaction.
-- The lock is there because an acquire may have read the floor and be waiting
-- for a row that is deleted here: it would begin again from the old floor. It
-- is one call, so that no client's pause falls between the lock and its end. It
-- reaches no lease that somebody holds: that would be a force unlock without a
-- record.
CREATE FUNCTION fencepost.purge_leases(p_resources text[], p_free_us bigint, p_wait_ms integer,
  OUT o_purged bigint, OUT o_floor bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_highest bigint;
BEGIN
  PERFORM fencepost.lock_leases(p_wait_ms);
  WITH old AS (
    SELECT l.resource FROM fencepost.leases l
     WHERE l.resource = ANY (p_resources) AND l.resource <> ''
       AND l.expires_at < clock_timestamp() - greatest(p_free_us, 0) * interval '1 microsecond'
       AND (l.wake_until IS NULL OR l.wake_until < clock_timestamp())
       AND (l.spent_until IS NULL OR l.spent_until < clock_timestamp())
       FOR UPDATE SKIP LOCKED
  ), dead AS (
    DELETE FROM fencepost.leases l USING old WHERE l.resource = old.resource RETURNING l.token
  )
  SELECT count(*), max(token) INTO o_purged, v_highest FROM dead;
  IF v_highest IS NOT NULL THEN
    PERFORM fencepost.lift_floor(v_highest);
  END IF;
  SELECT coalesce(max(f.token), 0) INTO o_floor FROM fencepost.leases f WHERE f.resource = '';
END $$;

-- raise_epoch says on which server this is and sees to it that the floor is in
-- its epoch. It writes only where something is to be raised: the epoch to at least
-- p_epoch and by p_more, the floor to at least p_floor. With p_exclusive no grant
-- that began before it returns ends after. It has its owner's rights and is for
-- operators.
CREATE FUNCTION fencepost.raise_epoch(p_epoch bigint, p_more bigint, p_floor bigint, p_exclusive boolean, p_wait_ms integer,
  OUT o_epoch bigint, OUT o_base bigint, OUT o_timeline bigint, OUT o_system_identifier text, OUT o_started timestamptz,
  OUT o_leases oid, OUT o_floor bigint, OUT o_moved boolean, OUT o_raised boolean, OUT o_hidden text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  e          fencepost.epoch;
  v_database oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
  v_shift    bigint;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: this server is a standby';
  END IF;
  -- Each of these may be denied to the role, or be missing or closed where
  -- PostgreSQL is run as a service.
  BEGIN
    SELECT s.system_identifier::text INTO o_system_identifier FROM pg_control_system() s;
  EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported OR raise_exception THEN
    o_hidden := concat_ws('; ', o_hidden, SQLERRM);
  END;
  BEGIN
    o_timeline := ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint;
  EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported OR raise_exception THEN
    o_hidden := concat_ws('; ', o_hidden, SQLERRM);
  END;
  BEGIN
    o_started := pg_postmaster_start_time();
  EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported OR raise_exception THEN
    o_hidden := concat_ws('; ', o_hidden, SQLERRM);
  END;
  o_leases := 'fencepost.leases'::regclass;
  v_shift := coalesce(o_timeline, 1) - 1;
  IF p_exclusive THEN
    PERFORM fencepost.lock_leases(p_wait_ms);
  ELSE
    PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  END IF;

  SELECT * INTO e FROM fencepost.epoch;
  o_raised := e.leases IS NULL OR e.leases <> o_leases OR e.database <> v_database
           OR o_system_identifier IS NOT NULL AND e.system_identifier IS DISTINCT FROM o_system_identifier
           OR e.base + v_shift < p_epoch OR p_more > 0;
  IF o_raised THEN
    INSERT INTO fencepost.epoch DEFAULT VALUES ON CONFLICT (one) DO NOTHING;
    SELECT * INTO e FROM fencepost.epoch FOR UPDATE; -- somebody else may have done it meanwhile
  END IF;
  o_moved := coalesce(e.leases <> o_leases OR e.database <> v_database OR e.system_identifier <> o_system_identifier, false);
  IF o_raised THEN
    SELECT greatest(e.base, coalesce(max(l.token), 0) >> 40) + CASE WHEN o_moved THEN 1 ELSE 0 END INTO o_epoch FROM fencepost.leases l;
    -- A copy's timeline says nothing about the original's, so there the base
    -- alone is above all that was used; else base and timeline are, together.
    e.base := greatest(e.base, CASE WHEN o_moved THEN o_epoch ELSE o_epoch - v_shift END, p_epoch - v_shift) + p_more;
  END IF;
  o_base := e.base;
  o_epoch := e.base + v_shift;
  IF o_epoch NOT BETWEEN 0 AND 8388607 THEN
    RAISE EXCEPTION USING ERRCODE = 'numeric_value_out_of_range',
      MESSAGE = format('fencepost: epoch %s is refused, base %s on timeline %s: a token has room for 8388607', o_epoch, e.base, coalesce(o_timeline::text, 'unknown'));
  END IF;
  IF o_raised THEN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
      PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    UPDATE fencepost.epoch SET base = e.base, database = v_database, leases = o_leases,
      system_identifier = CASE WHEN o_moved THEN o_system_identifier ELSE coalesce(o_system_identifier, e.system_identifier) END;
  END IF;
  SELECT coalesce(max(f.token), 0) INTO o_floor FROM fencepost.leases f WHERE f.resource = '';
  IF o_floor < greatest(o_epoch << 40, p_floor) THEN
    o_raised := true;
    PERFORM fencepost.lift_floor(greatest(o_epoch << 40, p_floor));
    SELECT f.token INTO o_floor FROM fencepost.leases f WHERE f.resource = '';
  END IF;
END $$;

-- adopt_epoch is raise_epoch for whoever grants: it raises nothing but what this
-- server asks for.
CREATE FUNCTION fencepost.adopt_epoch(p_wait_ms integer,
  OUT o_epoch bigint, OUT o_base bigint, OUT o_timeline bigint, OUT o_system_identifier text, OUT o_started timestamptz,
  OUT o_leases oid, OUT o_floor bigint, OUT o_moved boolean, OUT o_raised boolean, OUT o_hidden text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT e.* INTO o_epoch, o_base, o_timeline, o_system_identifier, o_started, o_leases, o_floor, o_moved, o_raised, o_hidden
    FROM fencepost.raise_epoch(0, 0, 0, false, p_wait_ms) e;
END $$;

-- enter_epoch is what whoever grants must have called on this server. The time of
-- the server's start is what the caller itself may see, because each of its grants
-- compares it.
CREATE FUNCTION fencepost.enter_epoch(p_wait_ms integer,
  OUT o_epoch bigint, OUT o_base bigint, OUT o_timeline bigint, OUT o_system_identifier text, OUT o_started timestamptz,
  OUT o_leases oid, OUT o_floor bigint, OUT o_moved boolean, OUT o_raised boolean, OUT o_hidden text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT e.* INTO o_epoch, o_base, o_timeline, o_system_identifier, o_started, o_leases, o_floor, o_moved, o_raised, o_hidden
    FROM fencepost.adopt_epoch(p_wait_ms) e;
  BEGIN
    PERFORM pg_postmaster_start_time();
  EXCEPTION WHEN insufficient_privilege THEN
    o_hidden := concat_ws('; ', o_hidden, SQLERRM);
    o_started := NULL;
  END;
END $$;

-- These have their owner's rights, or are of use to those alone, so they are
-- nobody's until they are granted.
REVOKE ALL ON FUNCTION fencepost.lock_leases, fencepost.lift_floor, fencepost.purge_leases, fencepost.raise_epoch,
  fencepost.adopt_epoch, fencepost.enter_epoch FROM PUBLIC;

-- What operators did. A record is written by force_unlock and by nothing else,
-- and never changed: no role gets the right, and the triggers refuse it to the
-- owner as well.
CREATE TABLE fencepost.audit (
  id               bigint           NOT NULL GENERATED ALWAYS AS IDENTITY,
  at               timestamptz      NOT NULL DEFAULT clock_timestamp(),
  action           text             NOT NULL,
  resource         text COLLATE "C" NOT NULL,
  actor            text             NOT NULL,
  reason           text             NOT NULL,
  database_user    text             NOT NULL DEFAULT session_user,
  request_id       text COLLATE "C" NOT NULL,
  token            bigint           NOT NULL,     -- that was burned
  cut_state        text             NOT NULL,     -- what the resource was before: held, expired or free
  cut_token        bigint           NOT NULL,
  cut_lease_id     text COLLATE "C" NULL,
  cut_owner        text             NOT NULL,     -- '' if nobody had the token
  cut_acquired_at  timestamptz      NOT NULL,
  cut_expires_at   timestamptz      NOT NULL,
  CONSTRAINT audit_pkey PRIMARY KEY (id),
  CONSTRAINT audit_request_id_key UNIQUE (request_id),
  CONSTRAINT audit_actor CHECK (actor ~ '[^[:space:]]' AND octet_length(actor) <= 128),
  CONSTRAINT audit_reason CHECK (reason ~ '[^[:space:]]' AND octet_length(reason) <= 1000),
  CONSTRAINT audit_request_id CHECK (octet_length(request_id) BETWEEN 1 AND 128)
);
CREATE INDEX audit_resource_id ON fencepost.audit (resource, id);
CREATE INDEX audit_at ON fencepost.audit (at);
COMMENT ON TABLE fencepost.audit IS 'What operators did to leases. Append-only.';

CREATE FUNCTION fencepost.refuse_change()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
    MESSAGE = pg_catalog.format('fencepost: %s of %s.%s is refused: %s', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]);
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON fencepost.audit
  FOR EACH ROW EXECUTE FUNCTION fencepost.refuse_change('it is append-only');
CREATE TRIGGER audit_is_not_truncated BEFORE TRUNCATE ON fencepost.audit
  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.refuse_change('it is append-only');
-- Also where session_replication_role is replica, which silences the others.
ALTER TABLE fencepost.audit ENABLE ALWAYS TRIGGER audit_is_append_only;
ALTER TABLE fencepost.audit ENABLE ALWAYS TRIGGER audit_is_not_truncated;

-- force_unlock burns a token, frees the lease and records it, in one
-- transaction that waits for the disk. It is above everything that was granted
-- on this server, and on one that it was promoted from, if the epoch was entered
-- before, which is what p_started and p_leases are compared for. A request that
-- is repeated finds its record. The lease is locked before the record is looked
-- for, so that two at once do not both miss it.
CREATE FUNCTION fencepost.force_unlock(p_resource text, p_actor text, p_reason text, p_expected text, p_request text,
  p_topic text, p_wait_ms integer, p_started timestamptz, p_leases oid,
  OUT o_status text, OUT o_id bigint, OUT o_at timestamptz, OUT o_token bigint, OUT o_state text, OUT o_cut_token bigint,
  OUT o_lease_id text, OUT o_owner text, OUT o_acquired_at timestamptz, OUT o_expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_there boolean;
  v_wake  timestamptz;
  a       fencepost.audit;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
  IF p_leases <> 'fencepost.leases'::regclass THEN
    o_status := 'moved';
    RETURN;
  END IF;
  IF p_started IS NOT NULL THEN -- else it is hidden, perhaps from this function's owner as well
    IF p_started <> pg_postmaster_start_time() THEN
      o_status := 'moved';
      RETURN;
    END IF;
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  SELECT l.token, l.lease_id, l.owner, l.acquired_at, l.expires_at, l.wake_until,
         CASE WHEN l.lease_id IS NULL THEN 'free' WHEN l.expires_at > clock_timestamp() THEN 'held' ELSE 'expired' END
    INTO o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at, v_wake, o_state
    FROM fencepost.leases l WHERE l.resource = p_resource AND l.resource <> '' FOR NO KEY UPDATE;
  v_there := FOUND;
  IF o_state = 'free' THEN -- nobody held it; who had it before is not who is cut
    o_owner := '';
    o_acquired_at := '-infinity';
  END IF;
  SELECT * INTO a FROM fencepost.audit b WHERE b.request_id = p_request;
  IF FOUND THEN
    o_status := CASE WHEN a.resource = p_resource THEN 'repeated' ELSE 'foreign' END;
    o_id := a.id; o_at := a.at; o_token := a.token; o_state := a.cut_state; o_cut_token := a.cut_token;
    o_lease_id := a.cut_lease_id; o_owner := a.cut_owner; o_acquired_at := a.cut_acquired_at; o_expires_at := a.cut_expires_at;
  ELSIF NOT v_there THEN
    o_status := 'not found';
  ELSIF p_expected <> '' AND o_lease_id IS DISTINCT FROM p_expected THEN
    o_status := 'changed';
    o_at := clock_timestamp();
  ELSE
    o_status := 'cut';
    WITH burned AS (
      UPDATE fencepost.leases l SET lease_id = NULL, owner = '', acquired_at = '-infinity', expires_at = least(l.expires_at, clock_timestamp()),
        token = 1 + greatest(l.token, (SELECT f.token FROM fencepost.leases f WHERE f.resource = ''))
      WHERE l.resource = p_resource RETURNING l.token)
    INSERT INTO fencepost.audit (action, resource, actor, reason, request_id, token,
      cut_state, cut_token, cut_lease_id, cut_owner, cut_acquired_at, cut_expires_at)
    SELECT 'force_unlock', p_resource, p_actor, p_reason, p_request, b.token,
      o_state, o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at FROM burned b
    RETURNING id, at, token INTO o_id, o_at, o_token;
    -- Without a topic nothing is sent: pg_notify makes an empty one of NULL.
    IF v_wake > clock_timestamp() AND p_topic IS NOT NULL THEN
      PERFORM pg_notify('fencepost.leases', p_topic);
    END IF;
  END IF;
END $$;

-- force_unlocked says who ended a lease, to whoever knows its ID.
CREATE FUNCTION fencepost.force_unlocked(p_resource text, p_lease_id text, p_token bigint, OUT o_actor text, OUT o_reason text, OUT o_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.actor, a.reason, a.at FROM fencepost.audit a
   WHERE a.resource = p_resource AND a.cut_lease_id = p_lease_id AND a.cut_token = p_token ORDER BY a.id DESC LIMIT 1
$$;

-- advance_lease raises the token of a resource that nobody holds; NULL means that
-- it is high enough or that somebody has it.
CREATE FUNCTION fencepost.advance_lease(p_resource text, p_token bigint, p_wait_ms integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_token bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
  IF p_resource = '' THEN
    RETURN NULL;
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  INSERT INTO fencepost.leases AS l (resource, token, expires_at)
  SELECT p_resource, p_token, clock_timestamp()
   WHERE NOT EXISTS (SELECT FROM fencepost.leases h WHERE h.resource = p_resource
                     AND (h.token >= p_token OR h.lease_id IS NOT NULL AND h.expires_at > clock_timestamp()))
  ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease_id = NULL, owner = '', acquired_at = '-infinity', expires_at = clock_timestamp()
   WHERE l.token < excluded.token AND (l.lease_id IS NULL OR l.expires_at <= clock_timestamp())
  RETURNING l.token INTO v_token;
  RETURN v_token;
END $$;

CREATE TRIGGER epoch_only_grows AFTER UPDATE ON fencepost.epoch FOR EACH ROW WHEN (NEW.base < OLD.base)
  EXECUTE FUNCTION fencepost.refuse_change('the epoch only grows');
ALTER TABLE fencepost.epoch ENABLE ALWAYS TRIGGER epoch_only_grows;

-- They have their owner's rights, so they are nobody's until they are granted.
REVOKE ALL ON FUNCTION fencepost.force_unlock, fencepost.force_unlocked, fencepost.advance_lease FROM PUBLIC;

-- What may be done to a row of leases, whoever does it by hand or by mistake:
--
--   - A token only grows, and a row is not renamed: its name would begin anew.
--   - No lease is further away from its end than the longest TTL, which is 24
--     hours, and an hour for clocks.
--   - Who has not the rights of the table's owner, such as an issuer, leaves the
--     floor alone, skips no token (a purge would make it the floor) and sets no
--     wake mark that keeps a row for long.
--
-- The triggers come after the change and have conditions, so that a renewal pays
-- nothing that can be measured; before it, they would lock the row once more.
CREATE FUNCTION fencepost.check_lease()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_token bigint := 0;
  v_why   text;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    v_token := OLD.token;
  END IF;
  IF NEW.token < v_token OR TG_OP = 'UPDATE' AND NEW.resource <> OLD.resource THEN
    v_why := 'a token only grows';
  ELSIF NEW.expires_at > clock_timestamp() + interval '25 hours' AND (TG_OP = 'INSERT' OR NEW.expires_at > OLD.expires_at) THEN
    v_why := 'a lease lasts 24 hours at most';
  ELSIF pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'USAGE') THEN
    RETURN NULL;
  ELSIF NEW.resource = '' THEN
    v_why := 'the floor is lifted by an operator alone';
  ELSIF NEW.token > 1 + greatest(v_token, (SELECT max(f.token) FROM fencepost.leases f WHERE f.resource = '')) THEN
    v_why := 'a grant takes the next token';
  ELSIF NEW.wake_until > clock_timestamp() + interval '1 minute' THEN
    v_why := 'a wake mark lasts a minute at most';
  ELSE
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format('fencepost: %s of fencepost.leases is refused: %s', TG_OP, v_why);
END $$;
CREATE TRIGGER leases_insert AFTER INSERT ON fencepost.leases FOR EACH ROW
  WHEN (NEW.resource = '' OR NEW.token > 1 OR NEW.expires_at > clock_timestamp() + interval '25 hours'
        OR NEW.wake_until > clock_timestamp() + interval '1 minute')
  EXECUTE FUNCTION fencepost.check_lease();
CREATE TRIGGER leases_update AFTER UPDATE ON fencepost.leases FOR EACH ROW
  WHEN (NEW.resource = '' OR NEW.resource <> OLD.resource OR NEW.token < OLD.token OR NEW.token > OLD.token + 1
        OR NEW.expires_at > clock_timestamp() + interval '25 hours' OR NEW.wake_until > clock_timestamp() + interval '1 minute')
  EXECUTE FUNCTION fencepost.check_lease();
ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_insert;
ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_update;

-- The server is recorded now, while the leases are known to be its own.
DO $$ BEGIN PERFORM fencepost.raise_epoch(0, 0, 0, false, 5000); END $$;
