-- The part of schema fencepost that belongs to package sqlfence: a floor that no
-- retirement lifts out of reach, and that can be repaired like a mark.

-- retire_up_to deletes marks that were last raised before the given time and raises
-- the floor to the highest token among them, in one step. It refuses to raise the
-- floor above the last token of the issuer: every resource without a mark would
-- refuse every holder until the issuer gets there, if it ever does. A concurrent
-- raise either finds the mark, then finds the row gone in its update and starts
-- over, or does not find it, and then finds the floor; a row that it raises
-- meanwhile is compared again and stays.
CREATE FUNCTION fencepost.retire_up_to(p_before timestamptz, p_lock_timeout_ms integer, p_issuers_last bigint, OUT retired bigint, OUT floor bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
BEGIN
  PERFORM fencepost.check_level('read committed');
  PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
  -- One at a time, under the lock of the floor's name, which no claim can have:
  -- two would delete the same rows in different orders, and deadlock.
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(''));
  WITH deleted AS (
    DELETE FROM fencepost.marks WHERE resource <> '' AND raised_at < p_before RETURNING *
  ), top AS (
    SELECT * FROM deleted ORDER BY token DESC LIMIT 1
  ) SELECT (SELECT count(*) FROM deleted), t.resource, t.token, t.lease_id INTO retired, m.resource, m.token, m.lease_id FROM (SELECT) one LEFT JOIN top t ON true;
  IF retired > 0 AND (m.token > p_issuers_last) IS NOT FALSE THEN
    PERFORM fencepost.refuse('SF008', format('the floor would be above the last token %L of the issuer; reset this mark first', p_issuers_last),
      m.resource, m.token, m.lease_id, m.token, m.lease_id, false);
  ELSIF retired > 0 THEN
    INSERT INTO fencepost.marks AS f (resource, token) VALUES ('', m.token)
      ON CONFLICT (resource) DO UPDATE SET token = greatest(f.token, excluded.token), raised_at = clock_timestamp();
  END IF;
  SELECT f.token INTO floor FROM fencepost.marks f WHERE f.resource = '';
  floor := coalesce(floor, 0);
END $$;

-- retire without the issuer's last token leaves at least one token above the
-- floor.
CREATE OR REPLACE FUNCTION fencepost.retire(p_before timestamptz, p_lock_timeout_ms integer, OUT retired bigint, OUT floor bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT * FROM fencepost.retire_up_to(p_before, p_lock_timeout_ms, 9223372036854775805)
$$;

-- reset_floor replaces the floor with another, lower or higher, if it is still the
-- one that the operator saw, and records that as the reset of a mark without a
-- name. Nothing waits for it: no transaction enters under a floor.
CREATE FUNCTION fencepost.reset_floor(p_from bigint, p_to bigint, p_issuers_last bigint, p_actor text, p_reason text, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim('floor', p_from, ''), fencepost.check_claim('floor', p_to, '');
  IF p_issuers_last IS NULL OR p_to > p_issuers_last THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: the new floor %s is above the last token %L of the issuer', p_to, p_issuers_last);
  END IF;
  PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(''));
  UPDATE fencepost.marks SET token = p_to, raised_at = clock_timestamp() WHERE resource = '' AND token = p_from;
  IF NOT FOUND THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = '';
    PERFORM fencepost.refuse('SF007', 'the floor is not the one to be reset', '', p_from, '', m.token, '', true);
  END IF;
  INSERT INTO fencepost.mark_resets (resource, from_token, from_lease, to_token, to_lease, issuers_last, actor, reason)
    VALUES ('', p_from, '', p_to, '', p_issuers_last, p_actor, p_reason);
END $$;

REVOKE ALL ON FUNCTION fencepost.retire_up_to, fencepost.reset_floor FROM PUBLIC;
