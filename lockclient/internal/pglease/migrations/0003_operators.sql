-- What operators did. A record is written by force_unlock and by nothing else,
-- and never changed: no role gets the right, and the triggers refuse it to the
-- owner as well.
CREATE TABLE fencepost.audit (
  id               bigint           NOT NULL GENERATED ALWAYS AS IDENTITY,
  at               timestamptz      NOT NULL DEFAULT clock_timestamp(),
  action           text             NOT NULL,
  resource         text COLLATE "C" NOT NULL,
  actor            text             NOT NULL,
  reason           text             NOT NULL,
  database_user    text             NOT NULL DEFAULT session_user,
  request_id       text COLLATE "C" NOT NULL,
  token            bigint           NOT NULL,     -- that was burned
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
-- Also where session_replication_role is replica, which silences the others.
ALTER TABLE fencepost.audit ENABLE ALWAYS TRIGGER audit_is_append_only;
ALTER TABLE fencepost.audit ENABLE ALWAYS TRIGGER audit_is_not_truncated;

-- force_unlock burns a token, frees the lease and records it, in one
-- transaction that waits for the disk. It is above everything that was granted
-- on this server, and on one that it was promoted from, if the epoch was entered
-- before, which is what p_started and p_leases are compared for. A request that
-- is repeated finds its record. The lease is locked before the record is looked
-- for, so that two at once do not both miss it.
CREATE FUNCTION fencepost.force_unlock(p_resource text, p_actor text, p_reason text, p_expected text, p_request text,
  p_topic text, p_wait_ms integer, p_started timestamptz, p_leases oid,
  OUT o_status text, OUT o_id bigint, OUT o_at timestamptz, OUT o_token bigint, OUT o_state text, OUT o_cut_token bigint,
  OUT o_lease_id text, OUT o_owner text, OUT o_acquired_at timestamptz, OUT o_expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_there boolean;
  v_wake  timestamptz;
  a       fencepost.audit;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
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
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  SELECT l.token, l.lease_id, l.owner, l.acquired_at, l.expires_at, l.wake_until,
         CASE WHEN l.lease_id IS NULL THEN 'free' WHEN l.expires_at > clock_timestamp() THEN 'held' ELSE 'expired' END
    INTO o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at, v_wake, o_state
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
    WITH burned AS (
      UPDATE fencepost.leases l SET lease_id = NULL, owner = '', acquired_at = '-infinity', expires_at = least(l.expires_at, clock_timestamp()),
        token = 1 + greatest(l.token, (SELECT f.token FROM fencepost.leases f WHERE f.resource = ''))
      WHERE l.resource = p_resource RETURNING l.token)
    INSERT INTO fencepost.audit (action, resource, actor, reason, request_id, token,
      cut_state, cut_token, cut_lease_id, cut_owner, cut_acquired_at, cut_expires_at)
    SELECT 'force_unlock', p_resource, p_actor, p_reason, p_request, b.token,
      o_state, o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at FROM burned b
    RETURNING id, at, token INTO o_id, o_at, o_token;
    -- Without a topic nothing is sent: pg_notify makes an empty one of NULL.
    IF v_wake > clock_timestamp() AND p_topic IS NOT NULL THEN
      PERFORM pg_notify('fencepost.leases', p_topic);
    END IF;
  END IF;
END $$;

-- force_unlocked says who ended a lease, to whoever knows its ID.
CREATE FUNCTION fencepost.force_unlocked(p_resource text, p_lease_id text, p_token bigint, OUT o_actor text, OUT o_reason text, OUT o_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.actor, a.reason, a.at FROM fencepost.audit a
   WHERE a.resource = p_resource AND a.cut_lease_id = p_lease_id AND a.cut_token = p_token ORDER BY a.id DESC LIMIT 1
$$;

-- advance_lease raises the token of a resource that nobody holds; NULL means that
-- it is high enough or that somebody has it.
CREATE FUNCTION fencepost.advance_lease(p_resource text, p_token bigint, p_wait_ms integer)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_token bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_transaction_state',
      MESSAGE = format('fencepost: isolation level %s is refused, set default_transaction_isolation to read committed', current_setting('transaction_isolation'));
  END IF;
  IF p_resource = '' THEN
    RETURN NULL;
  END IF;
  PERFORM set_config('lock_timeout', p_wait_ms::text, true);
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  INSERT INTO fencepost.leases AS l (resource, token, expires_at)
  SELECT p_resource, p_token, clock_timestamp()
   WHERE NOT EXISTS (SELECT FROM fencepost.leases h WHERE h.resource = p_resource
                     AND (h.token >= p_token OR h.lease_id IS NOT NULL AND h.expires_at > clock_timestamp()))
  ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease_id = NULL, owner = '', acquired_at = '-infinity', expires_at = clock_timestamp()
   WHERE l.token < excluded.token AND (l.lease_id IS NULL OR l.expires_at <= clock_timestamp())
  RETURNING l.token INTO v_token;
  RETURN v_token;
END $$;

CREATE TRIGGER epoch_only_grows AFTER UPDATE ON fencepost.epoch FOR EACH ROW WHEN (NEW.base < OLD.base)
  EXECUTE FUNCTION fencepost.refuse_change('the epoch only grows');
ALTER TABLE fencepost.epoch ENABLE ALWAYS TRIGGER epoch_only_grows;

-- They have their owner's rights, so they are nobody's until they are granted.
REVOKE ALL ON FUNCTION fencepost.force_unlock, fencepost.force_unlocked, fencepost.advance_lease FROM PUBLIC;

-- What may be done to a row of leases, whoever does it by hand or by mistake:
--
--   - A token only grows, and a row is not renamed: its name would begin anew.
--   - No lease is further away from its end than the longest TTL, which is 24
--     hours, and an hour for clocks.
--   - Who has not the rights of the table's owner, such as an issuer, leaves the
--     floor alone, skips no token (a purge would make it the floor) and sets no
--     wake mark that keeps a row for long.
--
-- The triggers come after the change and have conditions, so that a renewal pays
-- nothing that can be measured; before it, they would lock the row once more.
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
    v_why := 'the floor is lifted by an operator alone';
  ELSIF NEW.token > 1 + greatest(v_token, (SELECT max(f.token) FROM fencepost.leases f WHERE f.resource = '')) THEN
    v_why := 'a grant takes the next token';
  ELSIF NEW.wake_until > clock_timestamp() + interval '1 minute' THEN
    v_why := 'a wake mark lasts a minute at most';
  ELSE
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format('fencepost: %s of fencepost.leases is refused: %s', TG_OP, v_why);
END $$;

-- At the end, so that the lock is short.
DO $$ BEGIN
  -- CREATE TRIGGER waits for writers, and new ones behind it: this waits with care.
  PERFORM fencepost.lock_leases(100);
  CREATE TRIGGER leases_insert AFTER INSERT ON fencepost.leases FOR EACH ROW
    WHEN (NEW.resource = '' OR NEW.token > 1 OR NEW.expires_at > clock_timestamp() + interval '25 hours'
          OR NEW.wake_until > clock_timestamp() + interval '1 minute')
    EXECUTE FUNCTION fencepost.check_lease();
  CREATE TRIGGER leases_update AFTER UPDATE ON fencepost.leases FOR EACH ROW
    WHEN (NEW.resource = '' OR NEW.resource <> OLD.resource OR NEW.token < OLD.token OR NEW.token > OLD.token + 1
          OR NEW.expires_at > clock_timestamp() + interval '25 hours' OR NEW.wake_until > clock_timestamp() + interval '1 minute')
    EXECUTE FUNCTION fencepost.check_lease();
  ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_insert;
  ALTER TABLE fencepost.leases ENABLE ALWAYS TRIGGER leases_update;
END $$;
