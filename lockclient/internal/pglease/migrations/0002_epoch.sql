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

-- The server is recorded now, while the leases are known to be its own.
DO $$ BEGIN PERFORM fencepost.raise_epoch(0, 0, 0, false, 5000); END $$;
