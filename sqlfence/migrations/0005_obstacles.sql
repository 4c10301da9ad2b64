-- The part of schema fencepost that belongs to package sqlfence: what stands in the
-- way of a raise and has no session.

-- prepared_holders lists the prepared transactions (PREPARE TRANSACTION) that keep
-- a claim above the mark from being raised: nobody can end those but a person. Such
-- a transaction's locks have no process; the lock on its own ID names it. A claim
-- that could not be raised gets no list.
CREATE FUNCTION fencepost.prepared_holders(p_resource text, p_token bigint, p_lease text)
RETURNS TABLE (gid text, prepared timestamptz) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  key bigint := fencepost.lock_key(p_resource);
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_token, p_lease);
  IF fencepost.judge(p_resource, p_token, p_lease, true) = 'current' THEN
    RETURN;
  END IF;
  RETURN QUERY WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted AND pid IS NULL)
    SELECT p.gid, p.prepared FROM locks l
    JOIN locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
    JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND p.database = current_database()
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid::bigint = ((key >> 32) & 4294967295) AND l.objid::bigint = (key & 4294967295);
END $$;

REVOKE ALL ON FUNCTION fencepost.prepared_holders FROM PUBLIC;
