-- The part of schema fencepost that belongs to package sqlfence: obstacles that have
-- no session, and a schema that was restored without its rows.

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

-- no_salt says why no lock has a key. It is VOLATILE so that it is not called when a
-- query is planned.
CREATE FUNCTION fencepost.no_salt()
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
    MESSAGE = 'fencepost: table fencepost.lock_salt has no row, as after a restore of the schema without its data',
    HINT = 'Restore the data of schema fencepost; or, if no holder is at work, DROP SCHEMA fencepost CASCADE, migrate, and install the triggers again.';
END $$;

-- lock_salt is declared IMMUTABLE, which holds for as long as the schema
-- exists, so that a session reads the table once for each of its plans.
CREATE OR REPLACE FUNCTION fencepost.lock_salt()
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce((SELECT salt FROM fencepost.lock_salt), fencepost.no_salt())
$$;

REVOKE ALL ON FUNCTION fencepost.prepared_holders, fencepost.no_salt FROM PUBLIC;
