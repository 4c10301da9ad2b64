-- What refuses a claim from its mark, for the functions below.
CREATE FUNCTION fencepost.compare(p_resource text, p_token bigint, p_lease text, p_mark bigint, p_mark_lease text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_mark > p_token THEN
    PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, p_mark, p_mark_lease, false);
  ELSIF p_mark = p_token AND p_mark_lease <> p_lease COLLATE "C" THEN
    PERFORM fencepost.refuse('SF002', 'fencing token belongs to another lease', p_resource, p_token, p_lease, p_mark, p_mark_lease, false);
  END IF;
END $$;

-- check_primary refuses a standby, whose locks and marks are not the primary's.
CREATE FUNCTION fencepost.check_primary()
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: this server is a standby';
  END IF;
END $$;

CREATE FUNCTION fencepost.set_timeouts(p_lock_timeout_ms integer, p_idle_timeout_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_lock_timeout_ms > 0 THEN
    PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
  END IF;
  IF p_idle_timeout_ms > 0 THEN
    PERFORM set_config('idle_in_transaction_session_timeout', p_idle_timeout_ms::text, true);
  END IF;
END $$;

-- enter_snapshot is enter for REPEATABLE READ and SERIALIZABLE, as the first
-- statement of a transaction. There the snapshot is older than the lock, so
-- reading the mark is not enough: locking its row fails with 40001 if a raise,
-- which always writes the row, was committed in between. It must not be called
-- inside a savepoint, which it cannot see; enter_row can.
CREATE FUNCTION fencepost.enter_snapshot(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
BEGIN
  PERFORM fencepost.check_primary(), fencepost.check_claim(p_resource, p_token, p_lease);
  IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable') THEN
    RAISE EXCEPTION USING ERRCODE = 'SF005',
      MESSAGE = format('fencepost: isolation level %s is refused, the transaction must be REPEATABLE READ or SERIALIZABLE', current_setting('transaction_isolation'));
  END IF;
  PERFORM fencepost.set_timeouts(p_lock_timeout_ms, p_idle_timeout_ms);
  PERFORM pg_advisory_xact_lock_shared(hashtextextended(p_resource COLLATE "C", 7378697629483820646));
  SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C" FOR SHARE;
  PERFORM fencepost.compare(p_resource, p_token, p_lease, m.token, m.lease_id);
  IF m.token IS DISTINCT FROM p_token THEN
    PERFORM fencepost.refuse('SF004', 'the mark must be raised first', p_resource, p_token, p_lease, m.token, m.lease_id, false);
  END IF;
END $$;

-- enter_row fences a transaction that was begun elsewhere, at any isolation
-- level. It writes the mark's row: under REPEATABLE READ and SERIALIZABLE a
-- raise since the snapshot is then 40001, and the row's xmin tells whether the
-- caller is in a subtransaction (a savepoint, a block with EXCEPTION), whose
-- rollback would free the lock and leave the transaction without a fence; that
-- is refused (SF006). Under READ COMMITTED a claim above the mark is raised
-- here, under the exclusive lock until the transaction ends; above it the
-- snapshot may miss what older holders committed since, so the raise must have
-- come first (SF004). The kind of lock is chosen before it is taken: two that
-- go from shared to exclusive would wait for each other.
CREATE FUNCTION fencepost.enter_row(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m    fencepost.marks;
  f    bigint;
  key  bigint  := hashtextextended(p_resource COLLATE "C", 7378697629483820646);
  snap boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
  mine xid;
BEGIN
  PERFORM fencepost.check_primary(), fencepost.check_claim(p_resource, p_token, p_lease);
  PERFORM fencepost.set_timeouts(p_lock_timeout_ms, p_idle_timeout_ms);
  SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
  PERFORM fencepost.compare(p_resource, p_token, p_lease, m.token, m.lease_id);
  IF m.token = p_token THEN
    PERFORM pg_advisory_xact_lock_shared(key);
  ELSIF snap THEN
    PERFORM fencepost.refuse('SF004', 'the mark must be raised before the transaction begins', p_resource, p_token, p_lease, m.token, m.lease_id, false);
  ELSE
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
      PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_advisory_xact_lock(key);
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    PERFORM fencepost.compare(p_resource, p_token, p_lease, m.token, m.lease_id);
    IF m.resource IS NULL THEN
      SELECT token INTO f FROM fencepost.marks WHERE resource = '';
      IF f >= p_token THEN
        PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, f, '', true);
      END IF;
      INSERT INTO fencepost.marks AS x (resource, token, lease_id) VALUES (p_resource, p_token, p_lease) RETURNING x.xmin INTO mine;
    END IF;
  END IF;
  IF mine IS NULL THEN
    -- The mark as it is under the lock; it may have been raised or retired.
    UPDATE fencepost.marks AS x SET token = p_token, lease_id = p_lease,
        raised_at = CASE WHEN x.token = p_token THEN x.raised_at ELSE clock_timestamp() END
      WHERE x.resource = p_resource COLLATE "C" AND (x.token < p_token AND m.token < p_token OR x.token = p_token AND x.lease_id = p_lease COLLATE "C")
      RETURNING x.xmin INTO mine;
  END IF;
  IF mine IS NULL THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    PERFORM fencepost.compare(p_resource, p_token, p_lease, m.token, m.lease_id);
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'fencepost: the mark was retired or reset meanwhile';
  END IF;
  IF mine <> pg_current_xact_id()::xid THEN
    RAISE EXCEPTION USING ERRCODE = 'SF006', MESSAGE = 'fencepost: entering inside a savepoint or subtransaction is refused: rolling back to it would free the fence';
  END IF;
END $$;

-- holders lists the sessions that entered under a resource's mark and so keep
-- a claim above it from being raised. Who holds the lock exclusively is raising
-- the mark, perhaps above the claim, and is not listed. A claim that could not
-- be raised learns nothing. Who may end those sessions is left to the caller's
-- own rights: this function has its owner's.
CREATE FUNCTION fencepost.holders(p_resource text, p_token bigint, p_lease text)
RETURNS SETOF integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m   fencepost.marks;
  key bigint := hashtextextended(p_resource COLLATE "C", 7378697629483820646);
BEGIN
  PERFORM fencepost.check_server(), fencepost.check_claim(p_resource, p_token, p_lease);
  SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
  PERFORM fencepost.compare(p_resource, p_token, p_lease, m.token, m.lease_id);
  IF m.token = p_token THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT l.pid FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid::bigint = ((key >> 32) & 4294967295) AND l.objid::bigint = (key & 4294967295);
END $$;

-- Every reset of a mark, for ever.
CREATE TABLE fencepost.mark_resets (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  reset_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  resource     text COLLATE "C" NOT NULL,
  from_token   bigint NOT NULL,
  from_lease   text   NOT NULL,
  to_token     bigint NOT NULL,
  to_lease     text   NOT NULL,
  issuers_last bigint NOT NULL CHECK (issuers_last >= to_token),
  actor        text   NOT NULL CHECK (actor ~ '[^[:space:]]' AND octet_length(actor) <= 128),
  reason       text   NOT NULL CHECK (reason ~ '[^[:space:]]' AND octet_length(reason) <= 1024),
  db_role      text   NOT NULL DEFAULT session_user
);

CREATE FUNCTION fencepost.keep_resets()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = 'fencepost: the record of resets is only ever added to';
END $$;
CREATE TRIGGER keep_resets BEFORE UPDATE OR DELETE OR TRUNCATE ON fencepost.mark_resets
  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.keep_resets();
-- Also where session_replication_role is replica, which silences the others.
ALTER TABLE fencepost.mark_resets ENABLE ALWAYS TRIGGER keep_resets;

-- reset puts one mark in the place of another, lower or higher, if it is still
-- the one that the operator saw. It waits for the transactions that entered
-- under it. Nothing else ever lowers a mark.
CREATE FUNCTION fencepost.reset(p_resource text, p_from bigint, p_from_lease text, p_to bigint, p_to_lease text,
  p_issuers_last bigint, p_actor text, p_reason text, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
BEGIN
  PERFORM fencepost.check_server(), fencepost.check_claim(p_resource, p_from, p_from_lease), fencepost.check_claim(p_resource, p_to, p_to_lease);
  IF p_issuers_last IS NULL OR p_to > p_issuers_last THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: the new mark %s is above the last token %L of the issuer', p_to, p_issuers_last);
  END IF;
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
  PERFORM pg_advisory_xact_lock(hashtextextended(p_resource COLLATE "C", 7378697629483820646));
  UPDATE fencepost.marks SET token = p_to, lease_id = p_to_lease, raised_at = clock_timestamp()
    WHERE resource = p_resource COLLATE "C" AND token = p_from AND lease_id = p_from_lease COLLATE "C";
  IF NOT FOUND THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    PERFORM fencepost.refuse('SF007', 'the mark is not the one to be reset', p_resource, p_from, p_from_lease, m.token, m.lease_id, false);
  END IF;
  INSERT INTO fencepost.mark_resets (resource, from_token, from_lease, to_token, to_lease, issuers_last, actor, reason)
    VALUES (p_resource, p_from, p_from_lease, p_to, p_to_lease, p_issuers_last, p_actor, p_reason);
END $$;

REVOKE ALL ON fencepost.mark_resets FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.compare(text, bigint, text, bigint, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.check_primary() FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.set_timeouts(integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.enter_snapshot(text, bigint, text, integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.enter_row(text, bigint, text, integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.holders(text, bigint, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.keep_resets() FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.reset(text, bigint, text, bigint, text, bigint, text, text, integer) FROM PUBLIC;
