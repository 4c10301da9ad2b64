-- Epochs. A token's bits from 40 up are its epoch, and the floor enforces the
-- epoch: the row '' of fencepost.leases is raised to the first number of the
-- epoch, and every grant is above the floor. The epoch is the base plus the WAL
-- timeline less one, so that a promoted standby, which may lack the last
-- grants, begins above all of them. The row's other columns distinguish a copy
-- from the original: a dump that is restored elsewhere, or a second time in the
-- same place, has different numbers, and then the base is raised above every
-- epoch that was used.
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

-- lock_leases blocks every grant and renewal until the transaction's end; it
-- returns when those in progress have ended, so that what is read after it is
-- newer than they are. A queued lock makes renewals wait behind it, whatever
-- their lock_timeout, so it never waits behind an open transaction: one that is
-- seen twice, a tenth of a second apart.
CREATE FUNCTION fencepost.lock_leases(p_wait_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_modes CONSTANT text[] := ARRAY['RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
                                   'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'];
  v_database oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
  v_there text[];
  v_pid   integer;
BEGIN
  PERFORM fencepost.check_isolation();
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

-- raise_floor raises the floor to a token, in a transaction that waits for the
-- disk. It never lowers it.
CREATE FUNCTION fencepost.raise_floor(p_token bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local');
  INSERT INTO fencepost.leases AS f (resource, token) VALUES ('', p_token)
  ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token < excluded.token;
END $$;

-- purge_leases deletes those of the resources that have been free for
-- p_free_us, and raises the floor to the highest of their tokens in the same
-- transaction. It takes the lock because an acquire that found no row may have
-- read the floor and not inserted its own yet: if another's row came and went
-- in between, it would start again from the old floor. It is one call, so that no client can pause between the lock and its
-- end. It deletes no lease that somebody holds: that would be a force unlock
-- without a record.
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
  ), spent AS (
    DELETE FROM fencepost.spent s USING old WHERE s.resource = old.resource
  )
  SELECT count(*), max(token) INTO o_purged, v_highest FROM dead;
  IF v_highest IS NOT NULL THEN
    PERFORM fencepost.raise_floor(v_highest);
  END IF;
  SELECT coalesce(max(f.token), 0) INTO o_floor FROM fencepost.leases f WHERE f.resource = '';
END $$;

-- raise_epoch returns which server this is and ensures that the floor is in its
-- epoch. It writes only if there is something to raise: the epoch to at least
-- p_epoch and by p_more, the floor to at least p_floor. With p_exclusive no grant
-- that began before it returns ends after that. It has its owner's rights and is
-- for operators.
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
    SELECT * INTO e FROM fencepost.epoch FOR UPDATE; -- somebody else may have done it by now
  END IF;
  o_moved := coalesce(e.leases <> o_leases OR e.database <> v_database OR e.system_identifier <> o_system_identifier, false);
  IF o_raised THEN
    SELECT greatest(e.base, coalesce(max(l.token), 0) >> 40) + CASE WHEN o_moved THEN 1 ELSE 0 END INTO o_epoch FROM fencepost.leases l;
    -- A copy's timeline says nothing about the original's, so there the base
    -- by itself is above all that was used; else base and timeline are, together.
    e.base := greatest(e.base, CASE WHEN o_moved THEN o_epoch ELSE o_epoch - v_shift END, p_epoch - v_shift) + p_more;
  END IF;
  o_base := e.base;
  o_epoch := e.base + v_shift;
  IF o_epoch NOT BETWEEN 0 AND 8388607 THEN
    RAISE EXCEPTION USING ERRCODE = 'numeric_value_out_of_range',
      MESSAGE = format('fencepost: epoch %s is refused, base %s on timeline %s: a token has room for 8388607', o_epoch, e.base, coalesce(o_timeline::text, 'unknown'));
  END IF;
  IF o_raised THEN
    PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local');
    UPDATE fencepost.epoch SET base = e.base, database = v_database, leases = o_leases,
      system_identifier = CASE WHEN o_moved THEN o_system_identifier ELSE coalesce(o_system_identifier, e.system_identifier) END;
  END IF;
  SELECT coalesce(max(f.token), 0) INTO o_floor FROM fencepost.leases f WHERE f.resource = '';
  IF o_floor < greatest(o_epoch << 40, p_floor) THEN
    o_raised := true;
    PERFORM fencepost.raise_floor(greatest(o_epoch << 40, p_floor));
    SELECT f.token INTO o_floor FROM fencepost.leases f WHERE f.resource = '';
  END IF;
END $$;

-- adopt_epoch is raise_epoch for roles that grant, which must call it on this server
-- before any grant: it raises only what this server requires.
CREATE FUNCTION fencepost.adopt_epoch(p_wait_ms integer,
  OUT o_epoch bigint, OUT o_base bigint, OUT o_timeline bigint, OUT o_system_identifier text, OUT o_started timestamptz,
  OUT o_leases oid, OUT o_floor bigint, OUT o_moved boolean, OUT o_raised boolean, OUT o_hidden text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT * FROM fencepost.raise_epoch(0, 0, 0, false, p_wait_ms)
$$;

-- These have their owner's rights, or are of use only to functions that do, so
-- nobody may call them until that is granted.
REVOKE ALL ON FUNCTION fencepost.lock_leases, fencepost.raise_floor, fencepost.purge_leases, fencepost.raise_epoch,
  fencepost.adopt_epoch FROM PUBLIC;

-- What operators did. Only force_unlock writes a record, and none is ever
-- changed: no role gets the right, and the triggers refuse it to the owner too.
CREATE TABLE fencepost.audit (
  id               bigint           NOT NULL,
  at               timestamptz      NOT NULL DEFAULT clock_timestamp(),
  action           text             NOT NULL,
  resource         text COLLATE "C" NOT NULL,
  actor            text             NOT NULL,
  reason           text             NOT NULL,
  database_user    text             NOT NULL DEFAULT session_user,
  request_id       text COLLATE "C" NOT NULL,
  token            bigint           NOT NULL,     -- the invalidated token
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
-- Even if session_replication_role is replica, which disables other triggers.
ALTER TABLE fencepost.audit ENABLE ALWAYS TRIGGER audit_is_append_only;
ALTER TABLE fencepost.audit ENABLE ALWAYS TRIGGER audit_is_not_truncated;

-- force_unlock takes a new token, frees the lease, invalidates its lease ID, for which a
-- delayed acquire may still arrive, and records it, in one transaction that waits
-- for the disk. Waiters are served as by a release. The token is above everything that was
-- granted on this server, and on one that it was promoted from, if the epoch was
-- entered before, which p_started and p_leases verify. A repeated request finds
-- its record. The lease is locked before the record is looked up, so that two
-- requests at once do not both miss it. The record's number is above all others: a
-- sequence would begin again on the subscriber after a switch-over by logical
-- replication.
CREATE FUNCTION fencepost.force_unlock(p_resource text, p_actor text, p_reason text, p_expected text, p_request text,
  p_topic text, p_wait_ms integer, p_started timestamptz, p_leases oid,
  OUT o_status text, OUT o_id bigint, OUT o_at timestamptz, OUT o_token bigint, OUT o_state text, OUT o_cut_token bigint,
  OUT o_lease_id text, OUT o_owner text, OUT o_acquired_at timestamptz, OUT o_expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_there boolean;
  a       fencepost.audit;
BEGIN
  PERFORM fencepost.check_isolation();
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
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local');
  SELECT l.token, l.lease_id, l.owner, l.acquired_at, l.expires_at,
         CASE WHEN l.lease_id IS NULL THEN 'free' WHEN l.expires_at > clock_timestamp() THEN 'held' ELSE 'expired' END
    INTO o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at, o_state
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
    IF o_lease_id IS NOT NULL THEN
      PERFORM fencepost.spend(p_resource, o_lease_id, p_topic, p_wait_ms::text);
    END IF;
    UPDATE fencepost.leases l SET owner = '', acquired_at = '-infinity', expires_at = least(l.expires_at, clock_timestamp()),
      token = 1 + greatest(l.token, (SELECT f.token FROM fencepost.leases f WHERE f.resource = ''))
    WHERE l.resource = p_resource RETURNING l.token INTO o_token;
    PERFORM FROM fencepost.epoch FOR UPDATE; -- one at a time draws a number
    INSERT INTO fencepost.audit (id, action, resource, actor, reason, request_id, token,
      cut_state, cut_token, cut_lease_id, cut_owner, cut_acquired_at, cut_expires_at)
    VALUES ((SELECT coalesce(max(b.id), 0) + 1 FROM fencepost.audit b), 'force_unlock', p_resource, p_actor, p_reason, p_request, o_token,
      o_state, o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at)
    RETURNING id, at INTO o_id, o_at;
  END IF;
END $$;

-- force_unlocked returns who ended a lease, to callers that know its ID.
CREATE FUNCTION fencepost.force_unlocked(p_resource text, p_lease_id text, p_token bigint, OUT o_actor text, OUT o_reason text, OUT o_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.actor, a.reason, a.at FROM fencepost.audit a
   WHERE a.resource = p_resource AND a.cut_lease_id = p_lease_id AND a.cut_token = p_token ORDER BY a.id DESC LIMIT 1
$$;

-- advance_lease raises the token of a resource that nobody holds. It returns the
-- token that every later grant there is above; if that is less than p_token,
-- somebody has it.
CREATE FUNCTION fencepost.advance_lease(p_resource text, p_token bigint, p_wait_ms integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.check_isolation();
  IF p_resource = '' THEN
    RETURN NULL;
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local');
  INSERT INTO fencepost.leases AS l (resource, token, expires_at)
  SELECT p_resource, p_token, clock_timestamp()
   WHERE NOT EXISTS (SELECT FROM fencepost.leases h WHERE h.resource = p_resource
                     AND (h.token >= p_token OR h.lease_id IS NOT NULL AND h.expires_at > clock_timestamp()))
  ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease_id = NULL, owner = '', acquired_at = '-infinity', expires_at = clock_timestamp()
   WHERE l.token < excluded.token AND (l.lease_id IS NULL OR l.expires_at <= clock_timestamp());
  RETURN (SELECT max(l.token) FROM fencepost.leases l WHERE l.resource = ANY (ARRAY[p_resource, '']));
END $$;

CREATE TRIGGER epoch_only_grows AFTER UPDATE ON fencepost.epoch FOR EACH ROW WHEN (NEW.base < OLD.base)
  EXECUTE FUNCTION fencepost.refuse_change('the epoch only grows');
ALTER TABLE fencepost.epoch ENABLE ALWAYS TRIGGER epoch_only_grows;

-- They have their owner's rights, so nobody may call them until that is
-- granted.
REVOKE ALL ON FUNCTION fencepost.force_unlock, fencepost.force_unlocked, fencepost.advance_lease FROM PUBLIC;

-- Record the server now, while the leases are known to be its own.
DO $$ BEGIN PERFORM fencepost.raise_epoch(0, 0, 0, false, 5000); END $$;
