-- renew extends leases that still run: o_extended is true, or false for one that
-- runs and is locked by somebody, and there is no row for one that is lost. The later
-- end wins: a renewal with a shorter TTL, or one that comes late, does not shorten a
-- lease, since its holder may rely on the longer one. Only a lease that is renewed
-- alone waits for its row. A renewal is on disk before it is answered, otherwise a
-- crash would restore the earlier expiry while the holder relies on the later.
CREATE OR REPLACE FUNCTION fencepost.renew(p_resources text[], p_lease_ids text[], p_tokens bigint[], p_ttls bigint[], p_wait_ms text)
RETURNS TABLE (o_resource text, o_lease_id text, o_token bigint, o_extended boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
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
