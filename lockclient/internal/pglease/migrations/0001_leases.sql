-- One row per resource. A free row stays, because it holds the resource's last
-- token: deleting it would restart the counter at 1. The row of the resource ''
-- is not a lease but the floor: every token granted on a resource without a row
-- is above it.
CREATE TABLE fencepost.leases (
  resource    text COLLATE "C" NOT NULL,
  token       bigint           NOT NULL,
  lease_id    text             NULL,                        -- NULL: free
  owner       text             NOT NULL DEFAULT '',
  acquired_at timestamptz      NOT NULL DEFAULT '-infinity',
  expires_at  timestamptz      NOT NULL DEFAULT '-infinity',
  wake_until  timestamptz      NULL,                        -- until then somebody waits for the release
  waiters     text[]           NULL,                        -- processes, the longest waiting first
  kept_for    text             NULL,                        -- process for which a lease that was just released is kept
  metadata    text             NOT NULL DEFAULT '',         -- what the holder says about itself
  not_after   timestamptz      NULL,                        -- end of the attempt that was granted
  spent_until timestamptz      NULL,                        -- until then fencepost.spent may have lease IDs of the resource
  reclaimed   boolean          NULL,                        -- whether the last acquire replaced another's lease that ran out
  CONSTRAINT leases_pkey PRIMARY KEY (resource),
  CONSTRAINT leases_resource_length CHECK (octet_length(resource) <= 512),
  CONSTRAINT leases_token_range CHECK (token BETWEEN 1 AND 9223372036854775806),
  CONSTRAINT leases_lease_id_length CHECK (octet_length(lease_id) BETWEEN 1 AND 128),
  CONSTRAINT leases_text_length CHECK (octet_length(metadata) <= 1000 AND octet_length(owner) <= 128),
  CONSTRAINT leases_floor_is_free CHECK (resource <> '' OR lease_id IS NULL)
) WITH (
  -- Half of each page is left free and no changing column is indexed, so that
  -- an update stays on its page and touches no index.
  fillfactor = 50,
  -- Vacuum runs after a thousand updates rather than after a fifth of the
  -- table: few rows that change all the time. Truncating takes a lock that
  -- renewals would wait for.
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 1000
);
COMMENT ON TABLE fencepost.leases IS 'Leases and their fencing tokens. Never delete a row by hand and never lower a token.';

-- Lease IDs that were abandoned: nothing is granted under them any more. No
-- attempt to acquire lives longer than an hour, so no ID is kept longer.
CREATE TABLE fencepost.spent (
  resource text COLLATE "C" NOT NULL,
  lease_id text COLLATE "C" NOT NULL,
  until    timestamptz      NOT NULL DEFAULT clock_timestamp() + interval '1 hour',
  CONSTRAINT spent_pkey PRIMARY KEY (resource, lease_id)
);
CREATE INDEX spent_until ON fencepost.spent (resource, until);
COMMENT ON TABLE fencepost.spent IS 'Lease IDs that were abandoned. They are refused for an hour, and deleted some time after.';

-- is_spent is volatile, so that it sees what was committed while an acquire
-- waited for the row.
CREATE FUNCTION fencepost.is_spent(p_resource text, p_lease_id text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.spent s WHERE s.resource = p_resource AND s.lease_id = p_lease_id AND s.until > clock_timestamp());
END $$;

-- late refuses a grant after the wait for its row.
CREATE FUNCTION fencepost.late()
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'FL001', MESSAGE = 'fencepost: the attempt ended while it waited for its row';
END $$;

-- The functions that an issuer calls. Each call is a transaction of its own and
-- one round trip; settings are local to it. Never call one inside another
-- transaction, where they would last to its end. Arrays hold one element per
-- operation, all of different resources, ordered by resource. Rows are locked in
-- that order or not waited for; rows that an acquire creates come last, so a call
-- of several operations waits for a moment only, and each is then sent by itself.
--
-- Times are clock_timestamp(), not now(): after a wait for a changed row, now() is
-- the time before the wait. A lease is over at its expires_at, not after it.
--
-- They have the caller's rights and resolve names only in pg_catalog: a schema on
-- the caller's search_path may have somebody else's operators. Their plans are
-- made once per session and look up each resource in the index, even if the table
-- was tiny then and reading all of it was faster: hence "resource = ANY", which is
-- an index condition whatever the join order, and in acquire a hash join, since a
-- nested loop would sort the array again for each of its elements. An assignment to v_set is cheaper
-- than PERFORM, which runs a query.
--
-- A wake mark lasts for five seconds. It outlives its waiter by that long, and
-- releases in that time send a notification. A released lease is kept for a
-- tenth of a second for the process that has waited longest.

-- check_isolation refuses the isolation levels at which a row that was waited
-- for is not seen in its locked version.
CREATE FUNCTION fencepost.check_isolation()
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
END $$;

-- acquire grants, and says why it does not grant the rest; no row at all means
-- that this is not the server, started at p_started, or not the table that the
-- caller has entered. p_ttls are in microseconds, p_process names who asks.
--
-- The token is raised from the row under the row's lock; a number drawn from a
-- sequence before the wait could be the smaller one when the waiter wins. The
-- isolation level must be READ COMMITTED, because only there is a row that was
-- changed during the wait seen in its locked version, and all conditions checked again on
-- it. If it was only locked, or its change was rolled back, nothing is evaluated
-- again: the times are those before the wait, and late refuses a grant whose
-- attempt has ended. One moment, u.now, which is after the wait for a lock
-- on the table, decides for all columns whether the lease is the caller's own and
-- still running; if it ended between that and the end of the wait for its row, it is
-- not granted, and the caller asks again. A grant is on disk before the response, otherwise a crash would
-- issue its token again. A waiter that is granted the lease leaves the queue, and so
-- do those before it, if the lease was kept for one of them that did not come. Only
-- a resource without a row is inserted, because INSERT ON CONFLICT DO UPDATE costs
-- twice an UPDATE; if another was faster, its row is updated in a second round. A
-- refusal without a token means that the lease is free by now, or that the attempt
-- is late. The row of a grant leaves out what the caller has said.
CREATE FUNCTION fencepost.acquire(p_resources text[], p_lease_ids text[], p_owners text[], p_metadata text[], p_ttls bigint[],
  p_not_after timestamptz[], p_waiting boolean[], p_process text, p_wait_ms text, p_started timestamptz, p_leases bigint)
RETURNS TABLE (o_resource text, o_granted boolean, o_token bigint, o_acquired_at timestamptz, o_now timestamptz, o_reclaimed boolean,
  o_spent boolean, o_lease_id text, o_owner text, o_metadata text, o_expires_at timestamptz, o_remaining bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_granted bigint;
  v_missing bigint;
  v_created bigint;
  v_set     text;
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
    PERFORM fencepost.check_isolation();
  END IF;
  v_set := set_config('lock_timeout', p_wait_ms, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    v_set := set_config('synchronous_commit', 'on', true);
  END IF;
  LOOP
    RETURN QUERY
    UPDATE fencepost.leases l SET
      token = CASE WHEN l.lease_id = u.lease_id AND l.owner = u.owner AND l.expires_at > u.now THEN l.token
                   ELSE greatest(l.token, (SELECT f.token FROM fencepost.leases f WHERE f.resource = '')) + 1 END,
      acquired_at = CASE WHEN l.lease_id = u.lease_id AND l.owner = u.owner AND l.expires_at > u.now THEN l.acquired_at ELSE clock_timestamp() END,
      expires_at = greatest(CASE WHEN l.lease_id = u.lease_id THEN l.expires_at END, clock_timestamp() + u.ttl * interval '1 microsecond'),
      lease_id = u.lease_id, owner = u.owner, metadata = u.metadata, not_after = u.not_after, kept_for = NULL,
      reclaimed = l.lease_id <> u.lease_id,
      waiters = CASE WHEN l.waiters IS NULL OR NOT (u.waiting AND p_process = ANY (l.waiters)) THEN l.waiters
                     WHEN l.lease_id IS NULL AND l.kept_for <> p_process THEN l.waiters[array_position(l.waiters, p_process) + 1:]
                     ELSE array_remove(l.waiters, p_process) END
    FROM (SELECT unnest(p_resources) AS resource, unnest(p_lease_ids) AS lease_id, unnest(p_owners) AS owner, unnest(p_metadata) AS metadata,
            unnest(p_ttls) AS ttl, unnest(p_not_after) AS not_after, unnest(p_waiting) AS waiting, clock_timestamp() AS now
          OFFSET 0) AS u -- conditions stay outside and are checked again
    WHERE l.resource = u.resource AND l.resource = ANY (p_resources)
      AND (l.lease_id IS NULL AND (u.waiting AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms') IS NOT TRUE
           OR l.lease_id = u.lease_id AND l.owner = u.owner AND l.expires_at > clock_timestamp()
           OR l.lease_id IS NOT NULL AND l.expires_at <= CASE WHEN l.lease_id = u.lease_id AND l.owner = u.owner THEN u.now ELSE clock_timestamp() END)
      AND u.not_after > clock_timestamp()
      AND (l.spent_until IS NULL OR l.spent_until <= clock_timestamp() OR NOT fencepost.is_spent(l.resource, u.lease_id))
    RETURNING l.resource, CASE WHEN l.not_after > clock_timestamp() THEN true ELSE fencepost.late() END,
      l.token, l.acquired_at, clock_timestamp(), l.reclaimed, false, NULL::text, NULL::text, NULL::text, NULL::timestamptz, NULL::bigint;
    GET DIAGNOSTICS v_granted = ROW_COUNT;
    EXIT WHEN v_granted = cardinality(p_resources) OR v_created IS NOT NULL;
    v_missing := cardinality(p_resources) - (SELECT count(*) FROM fencepost.leases l WHERE l.resource = ANY (p_resources));
    EXIT WHEN v_missing = 0;
    RETURN QUERY
    INSERT INTO fencepost.leases AS l (resource, token, lease_id, owner, metadata, acquired_at, expires_at, not_after)
    SELECT u.resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1,
           u.lease_id, u.owner, u.metadata, clock_timestamp(), clock_timestamp() + u.ttl * interval '1 microsecond', u.not_after
    FROM unnest(p_resources, p_lease_ids, p_owners, p_metadata, p_ttls, p_not_after) AS u(resource, lease_id, owner, metadata, ttl, not_after)
    WHERE NOT EXISTS (SELECT FROM fencepost.leases h WHERE h.resource = u.resource AND h.resource = ANY (p_resources))
      AND u.not_after > clock_timestamp()
    ORDER BY u.resource COLLATE "C"
    ON CONFLICT (resource) DO NOTHING
    RETURNING l.resource, CASE WHEN l.not_after > clock_timestamp() THEN true ELSE fencepost.late() END,
      l.token, l.acquired_at, clock_timestamp(), l.reclaimed, false, NULL::text, NULL::text, NULL::text, NULL::timestamptz, NULL::bigint;
    GET DIAGNOSTICS v_created = ROW_COUNT;
    v_granted := v_granted + v_created;
    EXIT WHEN v_missing - v_created = cardinality(p_resources) - (SELECT count(*) FROM fencepost.leases l WHERE l.resource = ANY (p_resources));
  END LOOP;
  IF v_granted < cardinality(p_resources) THEN
    RETURN QUERY
    SELECT u.resource, false, l.token, NULL::timestamptz, clock_timestamp(), false,
      EXISTS (SELECT FROM fencepost.spent s WHERE s.resource = u.resource AND s.lease_id = u.lease_id AND s.until > clock_timestamp()),
      coalesce(l.lease_id, ''), l.owner, l.metadata, l.expires_at, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint
    FROM unnest(p_resources, p_lease_ids, p_owners) AS u(resource, lease_id, owner)
    LEFT JOIN fencepost.leases l ON l.resource = u.resource AND l.resource = ANY (p_resources)
      AND ((l.lease_id <> u.lease_id OR l.lease_id = u.lease_id AND l.owner <> u.owner) AND l.expires_at > clock_timestamp()
           OR l.lease_id IS NULL AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms');
  END IF;
END $$;

-- renew extends leases that still run: o_extended is true, or false for one that
-- runs and is locked by somebody, and there is no row for one that is lost. The later
-- end wins: a renewal with a shorter TTL, or one that comes late, does not shorten a
-- lease, since its holder may rely on the longer one. Only a lease that is renewed
-- by itself waits for its row. A renewal is on disk before the response, otherwise a
-- crash would restore the earlier expiry while the holder relies on the later.
CREATE FUNCTION fencepost.renew(p_resources text[], p_lease_ids text[], p_tokens bigint[], p_ttls bigint[], p_wait_ms text)
RETURNS TABLE (o_resource text, o_lease_id text, o_token bigint, o_extended boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_extended bigint;
  v_set      text;
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    v_set := set_config('synchronous_commit', 'on', true);
  END IF;
  IF cardinality(p_resources) = 1 THEN
    v_set := set_config('lock_timeout', p_wait_ms, true);
    PERFORM FROM fencepost.leases l WHERE l.resource = p_resources[1] AND l.lease_id = p_lease_ids[1] AND l.token = p_tokens[1] FOR NO KEY UPDATE;
  END IF;
  RETURN QUERY
  WITH mine AS MATERIALIZED (
    SELECT l.resource, u.ttl
    FROM unnest(p_resources, p_lease_ids, p_tokens, p_ttls) AS u(resource, lease_id, token, ttl)
    JOIN fencepost.leases l ON l.resource = u.resource
    WHERE l.resource = ANY (p_resources)
      AND l.lease_id = u.lease_id AND l.token = u.token AND l.expires_at > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED
  )
  UPDATE fencepost.leases l SET expires_at = greatest(l.expires_at, clock_timestamp() + m.ttl * interval '1 microsecond')
  FROM mine m WHERE l.resource = m.resource AND l.resource = ANY (p_resources)
  RETURNING l.resource, l.lease_id, l.token, true;
  GET DIAGNOSTICS v_extended = ROW_COUNT;
  IF v_extended < cardinality(p_resources) THEN
    RETURN QUERY
    SELECT u.resource, u.lease_id, u.token, false FROM unnest(p_resources, p_lease_ids, p_tokens) AS u(resource, lease_id, token)
    JOIN fencepost.leases l ON l.resource = u.resource AND l.resource = ANY (p_resources)
      AND l.lease_id = u.lease_id AND l.token = u.token AND l.expires_at > clock_timestamp();
  END IF;
END $$;

-- release frees leases and returns which; the others are no longer the caller's. It
-- need not reach the disk: a release that a crash undoes costs the next holder one
-- TTL, and the token stays. It notifies only if somebody waits, since all commits
-- of the server that notify are serialized, and not without a topic. It names the
-- process that has waited longest and keeps the lease for it; those after it are
-- named too, in case it does not come.
CREATE FUNCTION fencepost.release(p_resources text[], p_lease_ids text[], p_tokens bigint[], p_topics text[], p_wait_ms text)
RETURNS TABLE (o_resource text, o_told boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_set text;
BEGIN
  v_set := set_config('lock_timeout', p_wait_ms, true);
  v_set := set_config('synchronous_commit', 'off', true);
  RETURN QUERY
  UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()),
    kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] END,
    waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] END
  FROM unnest(p_resources, p_lease_ids, p_tokens, p_topics) AS u(resource, lease_id, token, topic)
  WHERE l.resource = u.resource AND l.resource = ANY (p_resources) AND l.lease_id = u.lease_id AND l.token = u.token
  RETURNING l.resource, CASE WHEN l.wake_until > clock_timestamp() AND u.topic <> '' THEN fencepost.wake(u.topic, l.kept_for, l.waiters) ELSE false END;
END $$;

-- wake notifies the process for which a lease is kept, and those next in the queue, whose
-- turn it is if that one does not come. Nobody else is notified,
-- since each would cost the next holder time; if no process is named, everybody
-- is. It returns true. A function in SQL would be planned in each call.
CREATE FUNCTION fencepost.wake(p_topic text, p_kept_for text, p_waiters text[])
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_payload text := concat_ws(' ', p_topic, p_kept_for, nullif(array_to_string(p_waiters[1:3], ' '), ''));
  v_name    text;
  v_void    text;
BEGIN
  FOREACH v_name IN ARRAY CASE WHEN p_kept_for IS NULL THEN ARRAY[NULL::text] ELSE p_kept_for || p_waiters[1:3] END LOOP
    v_void := pg_notify(concat_ws('.', 'fencepost.leases', v_name), v_payload);
  END LOOP;
  RETURN true;
END $$;

-- This function invalidates a lease ID: it frees its lease, whatever the token, and
-- ensures that nothing is granted under the ID any more. A resource without a row gets one,
-- so that an acquire in progress finds it. The change is on disk before the
-- response. An ID that was spent before is spent for
-- an hour from now. Of those whose hour has passed, a few are deleted: more than come.
CREATE FUNCTION fencepost.spend(p_resource text, p_lease_id text, p_topic text, p_wait_ms text, OUT o_freed boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_set text;
  v_now timestamptz := clock_timestamp();
BEGIN
  v_set := set_config('lock_timeout', p_wait_ms, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    v_set := set_config('synchronous_commit', 'on', true);
  END IF;
  INSERT INTO fencepost.leases AS l (resource, token, spent_until)
  VALUES (p_resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1, clock_timestamp() + interval '1 hour')
  ON CONFLICT (resource) DO UPDATE SET spent_until = excluded.spent_until;
  DELETE FROM fencepost.spent s WHERE s.resource = p_resource AND s.lease_id = ANY (p_lease_id || ARRAY(
    SELECT o.lease_id FROM fencepost.spent o WHERE o.resource = p_resource AND o.until <= v_now ORDER BY o.until LIMIT 100));
  INSERT INTO fencepost.spent (resource, lease_id) VALUES (p_resource, p_lease_id);
  UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()), not_after = NULL,
    kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] ELSE l.kept_for END,
    waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] ELSE l.waiters END
  WHERE l.resource = p_resource AND l.lease_id = p_lease_id
  RETURNING CASE WHEN l.wake_until > clock_timestamp() AND p_topic <> '' THEN fencepost.wake(p_topic, l.kept_for, l.waiters) END IS NULL INTO o_freed;
  o_freed := o_freed IS NOT NULL;
END $$;

-- watch returns who has the lease, or for whom it is kept; no row means that it is
-- free now. With a lease ID it sets the wake mark, and puts the process at the end
-- of the queue unless it is in it; o_marked says that the mark was set, or that an
-- earlier one lasts, and is NULL if the queue is full: 128 processes are the most. Without one it only looks, where
-- a lease that a standby does not have yet does not look like one that is over. The
-- mark need not reach the disk: a server that crashes takes the listening
-- connections with it.
CREATE FUNCTION fencepost.watch(p_resource text, p_lease_id text, p_process text, p_wait_ms text)
RETURNS TABLE (o_token bigint, o_lease_id text, o_owner text, o_metadata text, o_expires_at timestamptz, o_remaining bigint, o_marked boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_set text;
BEGIN
  IF p_lease_id <> '' THEN
    v_set := set_config('lock_timeout', p_wait_ms, true);
    v_set := set_config('synchronous_commit', 'off', true);
    UPDATE fencepost.leases l SET wake_until = clock_timestamp() + interval '5 s',
      waiters = CASE WHEN l.wake_until IS NULL OR l.wake_until <= clock_timestamp() THEN ARRAY[p_process]
                     WHEN p_process = ANY (l.waiters) THEN l.waiters ELSE coalesce(l.waiters, '{}') || p_process END
    WHERE l.resource = p_resource AND (l.wake_until >= clock_timestamp() + interval '2.5 s' AND p_process = ANY (l.waiters)) IS NOT TRUE
      AND (l.wake_until > clock_timestamp() AND cardinality(l.waiters) >= 128 AND NOT p_process = ANY (l.waiters)) IS NOT TRUE
      AND (l.lease_id <> p_lease_id AND l.expires_at > clock_timestamp()
           OR l.lease_id IS NULL AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms');
  ELSIF current_setting('transaction_read_only')::boolean THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: who has a lease is looked up only on the primary, in a transaction that may write';
  END IF;
  RETURN QUERY
  SELECT l.token, coalesce(l.lease_id, ''), l.owner, l.metadata, l.expires_at, (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000000)::bigint,
    CASE WHEN p_lease_id <> '' AND l.wake_until > clock_timestamp() AND cardinality(l.waiters) >= 128 AND NOT p_process = ANY (l.waiters) THEN NULL
         ELSE (l.wake_until >= clock_timestamp() + interval '2 s' AND p_process = ANY (l.waiters)) IS TRUE END
  FROM fencepost.leases l
  WHERE l.resource = p_resource
    AND (l.lease_id <> p_lease_id AND l.expires_at > clock_timestamp()
         OR p_lease_id <> '' AND l.lease_id IS NULL AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms');
END $$;

-- unwatch takes a process out of the queue: none of its waiters is there any more.
-- Otherwise the lease would be kept for it, once for each such process. The change need
-- not reach the disk.
CREATE FUNCTION fencepost.unwatch(p_resource text, p_process text, p_wait_ms text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM set_config('lock_timeout', p_wait_ms, true), set_config('synchronous_commit', 'off', true);
  UPDATE fencepost.leases l SET waiters = array_remove(l.waiters, p_process)
  WHERE l.resource = p_resource AND p_process = ANY (l.waiters);
END $$;

-- What may be done to a row of leases, even by hand or by mistake:
--
--   - A token only grows, and a row is not renamed: the tokens of its name
--     would restart.
--   - No lease ends later than the longest TTL from now, which is 24 hours,
--     plus an hour for clocks.
--   - A role without the rights of the table's owner, such as an issuer, cannot
--     raise the floor, skip a token (a purge would make it the floor), or set a
--     wake mark or an end of spent lease IDs that keeps a row for long.
--
-- The triggers run after the change, because before it they would lock the row
-- once more. Like a CHECK constraint, a trigger's condition is parsed again in each
-- statement: hence one trigger for each group of columns, with the least condition.
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
    v_why := 'only an operator raises the floor';
  ELSIF NEW.token > 1 + greatest(v_token, (SELECT max(f.token) FROM fencepost.leases f WHERE f.resource = '')) THEN
    v_why := 'a grant takes the next token';
  ELSIF NEW.wake_until > clock_timestamp() + interval '1 minute' THEN
    v_why := 'a wake mark lasts a minute at most';
  ELSIF NEW.spent_until > clock_timestamp() + interval '2 hours' THEN
    v_why := 'a lease ID is spent for an hour';
  ELSE
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format('fencepost: %s of fencepost.leases is refused: %s', TG_OP, v_why);
END $$;
CREATE TRIGGER leases_insert AFTER INSERT ON fencepost.leases FOR EACH ROW
  WHEN (NEW.resource = '' OR NEW.token > 1 OR NEW.expires_at > clock_timestamp() + interval '25 hours'
        OR NEW.wake_until > clock_timestamp() + interval '1 minute' OR NEW.spent_until > clock_timestamp() + interval '2 hours')
  EXECUTE FUNCTION fencepost.check_lease();
CREATE TRIGGER leases_token AFTER UPDATE OF token ON fencepost.leases FOR EACH ROW
  WHEN (NEW.resource = '' OR NEW.token < OLD.token OR NEW.token > OLD.token + 1)
  EXECUTE FUNCTION fencepost.check_lease();
CREATE TRIGGER leases_expiry AFTER UPDATE OF expires_at ON fencepost.leases FOR EACH ROW
  WHEN (NEW.expires_at > clock_timestamp() + interval '25 hours')
  EXECUTE FUNCTION fencepost.check_lease();
CREATE TRIGGER leases_wake AFTER UPDATE OF resource, wake_until, spent_until ON fencepost.leases FOR EACH ROW
  WHEN (NEW.resource = '' OR NEW.resource <> OLD.resource OR NEW.wake_until > clock_timestamp() + interval '1 minute'
        OR NEW.spent_until > clock_timestamp() + interval '2 hours')
  EXECUTE FUNCTION fencepost.check_lease();
ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_insert;
ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_token;
ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_expiry;
ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_wake;
