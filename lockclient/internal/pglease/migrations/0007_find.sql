-- find_leases returns the leases that run under a lease ID. It reads all leases: an
-- index of lease IDs would be written with every acquire and every release. A lease
-- that a policy of row-level security hides, or that a standby does not have yet,
-- would look like one that is over, so the call fails there.
--
-- Usable from version 6.
CREATE FUNCTION fencepost.find_leases(p_lease_id text)
RETURNS TABLE (o_resource text, o_token bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET row_security = off SET jit = off AS $$
BEGIN
  IF current_setting('transaction_read_only')::boolean THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: leases are looked for only on the primary, in a transaction that may write';
  END IF;
  RETURN QUERY SELECT l.resource, l.token FROM fencepost.leases l
    WHERE l.lease_id = p_lease_id AND l.expires_at > clock_timestamp() AND l.resource <> '' LIMIT 100;
END $$;
