-- spend frees the lease of a lease ID, whatever its token, and ensures that
-- nothing is granted under the ID any more. A resource without a row gets one,
-- so that an acquire in progress finds it. The change is on disk before it is
-- answered. An ID that was spent before is spent for
-- an hour from now.
CREATE OR REPLACE FUNCTION fencepost.spend(p_resource text, p_lease_id text, p_topic text, p_wait_ms text, OUT o_freed boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_set text;
BEGIN
  v_set := set_config('lock_timeout', p_wait_ms, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    v_set := set_config('synchronous_commit', 'on', true);
  END IF;
  DELETE FROM fencepost.spent s WHERE s.resource = p_resource AND (s.until <= clock_timestamp() OR s.lease_id = p_lease_id);
  INSERT INTO fencepost.spent AS s (resource, lease_id) VALUES (p_resource, p_lease_id) ON CONFLICT (resource, lease_id) DO NOTHING;
  INSERT INTO fencepost.leases AS l (resource, token, spent_until)
  VALUES (p_resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1, clock_timestamp() + interval '1 hour')
  ON CONFLICT (resource) DO UPDATE SET spent_until = excluded.spent_until;
  UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()), not_after = NULL,
    kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] ELSE l.kept_for END,
    waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] ELSE l.waiters END
  WHERE l.resource = p_resource AND l.lease_id = p_lease_id
  RETURNING CASE WHEN l.wake_until > clock_timestamp() AND p_topic <> '' THEN fencepost.wake(p_topic, l.kept_for, l.waiters) END IS NULL INTO o_freed;
  o_freed := o_freed IS NOT NULL;
END $$;

-- watch returns who has the lease, or for whom it is kept; no row means that it is
-- free now. With a lease ID it sets the wake mark, and puts the process at the end
-- of the line unless it is in it; o_marked says that the mark was set, or that an
-- earlier one lasts, and is NULL if the line is full: 128 processes are the most. Without one the call is an onlooker's and writes nothing. The
-- mark need not reach the disk: a server that crashes takes the listening
-- connections with it.
CREATE OR REPLACE FUNCTION fencepost.watch(p_resource text, p_lease_id text, p_process text, p_wait_ms text)
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

-- unwatch takes a process out of the line: none of its waiters is there any more.
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
