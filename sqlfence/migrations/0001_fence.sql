-- Schema fencepost, the part of package sqlfence: the marks, the functions that
-- raise them and enter under them, and the triggers that make any writer enter.
--
-- Reading order: verdict, which is the rule; raise and enter, which are P1 and
-- P2; then the other ways in, the operators' functions, and the triggers.
--
-- No function that runs with its owner's rights (SECURITY DEFINER) runs code of
-- anybody else: names are resolved in pg_catalog alone, and values of types that
-- an application may own are turned into text by their output function only
-- (see guard_body).

-- Marks: the highest claim that each resource admitted. Nothing but the
-- functions below touches this table. The row whose resource is '' is the
-- floor: the highest token among the marks that were retired.
CREATE TABLE fencepost.marks (
  resource  text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) <= 512),
  token     bigint      NOT NULL CHECK (token BETWEEN 1 AND 9223372036854775806),
  lease_id  text        NOT NULL DEFAULT '' CHECK (octet_length(lease_id) <= 128),
  raised_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

-- The secret of the keys of the locks, made once.
CREATE TABLE fencepost.lock_salt (
  one  boolean PRIMARY KEY DEFAULT true CHECK (one),
  salt bigint  NOT NULL
);
INSERT INTO fencepost.lock_salt (salt) VALUES (hashtextextended(gen_random_uuid()::text, 0));

-- lock_salt is called IMMUTABLE, which it is for as long as the schema exists,
-- so that a session reads the table once for each of its plans.
CREATE FUNCTION fencepost.lock_salt()
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT salt FROM fencepost.lock_salt
$$;

-- lock_key is the key of a resource's advisory lock. Anybody who may log in may
-- take any advisory lock, and so could hold up every raise of a resource whose
-- key is known: hence the salt. (Who watches pg_locks still sees the keys of
-- locks that are held: holders tells such sessions apart.) The collation is
-- named because under a caller's one name may have several hashes. It is
-- written so that the planner puts it in the place of its calls.
CREATE FUNCTION fencepost.lock_key(p_resource text)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.hashtextextended(p_resource COLLATE pg_catalog."C", fencepost.lock_salt())
$$;

-- verdict is guard.Decide under the rule SameOrNewer, and the only place in SQL
-- that compares a claim with a mark, but for the first look of enter: 'stale',
-- 'conflict', 'current' (the claim is the mark) or 'newer' (it may be raised).
-- A mark of NULL is none. A floor has no lease: a token that equals it is stale.
CREATE FUNCTION fencepost.verdict(p_token bigint, p_lease text, p_mark bigint, p_mark_lease text, p_floor boolean)
RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN p_mark IS NULL OR p_token > p_mark      THEN 'newer'
    WHEN p_token < p_mark OR p_floor             THEN 'stale'
    WHEN p_lease = p_mark_lease COLLATE "C"      THEN 'current'
    ELSE 'conflict'
  END
$$;

-- refuse raises the error of a refused claim. Class SF is in the range that
-- the SQL standard leaves to implementations (classes that begin with I to Z).
-- It must be an error: a pipeline goes on past a mere result.
CREATE FUNCTION fencepost.refuse(p_state text, p_why text, p_resource text, p_token bigint, p_lease text, p_mark bigint, p_mark_lease text, p_floor boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING
    ERRCODE = p_state,
    MESSAGE = format('fencepost: %s: token %s for %L, mark %s', p_why, p_token, p_resource, coalesce(p_mark::text, 'none')),
    DETAIL  = json_build_object('resource', p_resource, 'token', p_token::text, 'leaseId', p_lease,
                'mark', json_build_object('token', coalesce(p_mark, 0)::text, 'leaseId', coalesce(p_mark_lease, ''), 'floor', coalesce(p_floor, false)))::text;
END $$;

-- judge reads the resource's mark, or the floor where it has none, and returns
-- the verdict, 'current' or 'newer'; the others are errors, and so is 'newer'
-- for a caller that cannot raise. Mark and floor are read in one statement: a
-- mark that is being retired is the one or the other.
CREATE FUNCTION fencepost.judge(p_resource text, p_token bigint, p_lease text, p_may_raise boolean)
RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
  v text;
BEGIN
  SELECT * INTO m FROM fencepost.marks WHERE resource IN (p_resource COLLATE "C", '') ORDER BY resource DESC LIMIT 1;
  v := fencepost.verdict(p_token, p_lease, m.token, m.lease_id, m.resource = '');
  CASE
    WHEN v = 'stale' THEN
      PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, m.token, m.lease_id, m.resource = '');
    WHEN v = 'conflict' THEN
      PERFORM fencepost.refuse('SF002', 'fencing token belongs to another lease', p_resource, p_token, p_lease, m.token, m.lease_id, false);
    WHEN v = 'newer' AND NOT p_may_raise THEN
      PERFORM fencepost.refuse('SF004', 'the mark must be raised first', p_resource, p_token, p_lease, m.token, m.lease_id, m.resource = '');
    ELSE
      RETURN v;
  END CASE;
  RETURN NULL; -- not reached
END $$;

-- check_primary refuses a standby, whose locks and marks are not the primary's.
CREATE FUNCTION fencepost.check_primary()
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: this server is a standby';
  END IF;
END $$;

-- check_level refuses transactions of another isolation level than the caller
-- is safe under. What reads a mark under its lock needs READ COMMITTED: only
-- there does a statement that follows the lock see what was committed before it.
CREATE FUNCTION fencepost.check_level(VARIADIC p_levels text[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> ALL (p_levels) THEN
    RAISE EXCEPTION USING ERRCODE = 'SF005', MESSAGE = format('fencepost: isolation level %s is refused, the transaction must be %s',
      current_setting('transaction_isolation'), upper(array_to_string(p_levels, ' or ')));
  END IF;
  PERFORM fencepost.check_primary();
END $$;

-- check_claim refuses malformed claims of callers that are not this module.
CREATE FUNCTION fencepost.check_claim(p_resource text, p_token bigint, p_lease text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_resource IS NULL OR p_resource = '' OR p_lease IS NULL
     OR p_token IS NULL OR p_token NOT BETWEEN 1 AND 9223372036854775806 THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: invalid claim: resource %L, token %L, lease %L', p_resource, p_token, p_lease);
  END IF;
END $$;

-- set_timeouts bounds waiting for a lock and idling in the transaction, so that
-- a stopped holder does not block its successor for ever; 0 leaves the session's.
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

-- make_durable makes the transaction's commit survive a crash, as an
-- acknowledged mark must, whatever the server's default.
CREATE FUNCTION fencepost.make_durable()
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- raise puts a claim in the place of a lower mark. It waits until every
-- transaction that entered under the lower mark has ended, so that what is
-- read after it cannot be overwritten by them. Run it in a transaction of its
-- own, so that the mark survives a rollback of the work. Raising to the claim
-- that already is the mark changes nothing and waits for nobody.
CREATE FUNCTION fencepost.raise(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_token, p_lease);
  -- Marks only grow, so a refusal stands without the lock, and a stale caller
  -- does not queue in front of the holder's next transactions.
  IF fencepost.judge(p_resource, p_token, p_lease, true) = 'current' THEN
    RETURN;
  END IF;
  PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(p_resource));
  FOR tries IN 1..10 LOOP -- again if the mark was retired meanwhile
    IF fencepost.judge(p_resource, p_token, p_lease, true) = 'current' THEN
      RETURN;
    END IF;
    UPDATE fencepost.marks SET token = p_token, lease_id = p_lease, raised_at = clock_timestamp() WHERE resource = p_resource COLLATE "C";
    IF NOT FOUND THEN
      INSERT INTO fencepost.marks (resource, token, lease_id) VALUES (p_resource, p_token, p_lease);
    END IF;
  END LOOP;
  RAISE EXCEPTION 'fencepost: not raised';
END $$;

-- enter fences the transaction that calls it: it holds the resource's lock in
-- shared mode until the transaction ends, so that no raise can pass it, and
-- compares the claim with the mark as it is under that lock. It writes
-- nothing; one holder may run many transactions side by side. A claim above
-- the mark is told to raise first (SF004).
--
-- Every fenced transaction pays for it, so it is written for speed: it pins no
-- search_path, which would cost as much as its work, and so names the schema
-- of every operator, function, type and collation, since they would be the
-- caller's otherwise; and it asks in one expression, since each is set up
-- anew in each transaction. Only CASE fixes an order of evaluation
-- (PostgreSQL documentation, 4.2.14). It is the exception to "verdict alone
-- compares": that the claim equals the mark is asked of the index, and only the
-- answer no is passed on to judge. NULLs and tokens out of range equal no mark.
CREATE FUNCTION fencepost.enter(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
  IF (CASE
    WHEN pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'
      OR pg_catalog.pg_is_in_recovery() OR p_resource OPERATOR(pg_catalog.=) '' THEN true
    WHEN p_lock_timeout_ms OPERATOR(pg_catalog.>) 0
      AND pg_catalog.set_config('lock_timeout', p_lock_timeout_ms::pg_catalog.text, true) IS NULL THEN true
    WHEN p_idle_timeout_ms OPERATOR(pg_catalog.>) 0
      AND pg_catalog.set_config('idle_in_transaction_session_timeout', p_idle_timeout_ms::pg_catalog.text, true) IS NULL THEN true
    ELSE pg_catalog.pg_advisory_xact_lock_shared(fencepost.lock_key(p_resource)) IS NULL
  END) THEN
    PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease);
  END IF;
  -- A statement of its own: its snapshot is newer than the lock.
  PERFORM FROM fencepost.marks m WHERE m.resource OPERATOR(pg_catalog.=) p_resource COLLATE pg_catalog."C"
    AND m.token OPERATOR(pg_catalog.=) p_token AND m.lease_id OPERATOR(pg_catalog.=) p_lease COLLATE pg_catalog."C";
  IF NOT FOUND THEN
    PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease);
  END IF;
END $$;

-- refuse_entry says why enter found no mark that equals the claim. It never
-- returns.
CREATE FUNCTION fencepost.refuse_entry(p_resource text, p_token bigint, p_lease text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_token, p_lease);
  PERFORM fencepost.judge(p_resource, p_token, p_lease, false);
  RAISE EXCEPTION 'fencepost: not entered';
END $$;

-- enter_snapshot is enter for REPEATABLE READ and SERIALIZABLE, as the first
-- statement of a transaction. There the snapshot is older than the lock, so
-- reading the mark is not enough: locking its row fails with 40001 if a raise,
-- which always writes the row, was committed in between. It must not be called
-- inside a savepoint, which it cannot see; enter_row can.
CREATE FUNCTION fencepost.enter_snapshot(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.check_level('repeatable read', 'serializable'), fencepost.check_claim(p_resource, p_token, p_lease);
  PERFORM fencepost.set_timeouts(p_lock_timeout_ms, p_idle_timeout_ms);
  PERFORM pg_advisory_xact_lock_shared(fencepost.lock_key(p_resource));
  PERFORM FROM fencepost.marks WHERE resource = p_resource COLLATE "C" FOR SHARE;
  PERFORM fencepost.judge(p_resource, p_token, p_lease, false);
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
  may_raise boolean := current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable');
  seen      text;
  mine      xid;
BEGIN
  PERFORM fencepost.check_primary(), fencepost.check_claim(p_resource, p_token, p_lease);
  PERFORM fencepost.set_timeouts(p_lock_timeout_ms, p_idle_timeout_ms);
  seen := fencepost.judge(p_resource, p_token, p_lease, may_raise);
  IF seen = 'current' THEN
    PERFORM pg_advisory_xact_lock_shared(fencepost.lock_key(p_resource));
    UPDATE fencepost.marks AS x SET lease_id = p_lease
      WHERE x.resource = p_resource COLLATE "C" AND x.token = p_token AND x.lease_id = p_lease COLLATE "C" RETURNING x.xmin INTO mine;
  ELSE
    PERFORM fencepost.make_durable();
    PERFORM pg_advisory_xact_lock(fencepost.lock_key(p_resource));
    PERFORM fencepost.judge(p_resource, p_token, p_lease, true);
    UPDATE fencepost.marks AS x SET token = p_token, lease_id = p_lease, raised_at = clock_timestamp()
      WHERE x.resource = p_resource COLLATE "C" RETURNING x.xmin INTO mine;
    IF mine IS NULL THEN
      INSERT INTO fencepost.marks AS x (resource, token, lease_id) VALUES (p_resource, p_token, p_lease) RETURNING x.xmin INTO mine;
    END IF;
  END IF;
  IF mine IS NULL THEN -- raised, retired or reset before the lock was there
    PERFORM fencepost.judge(p_resource, p_token, p_lease, true);
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'fencepost: the mark was retired or reset meanwhile';
  END IF;
  IF mine <> pg_current_xact_id()::xid THEN
    RAISE EXCEPTION USING ERRCODE = 'SF006', MESSAGE = 'fencepost: entering inside a savepoint or subtransaction is refused: rolling back to it would free the fence';
  END IF;
END $$;

-- holders lists the sessions that keep a claim above the mark from being
-- raised. Those that entered also have a lock on the table of marks, which only
-- the functions here and a reader can take; the others merely took an advisory
-- lock that happens, or was meant, to be the same. Who holds the lock
-- exclusively is raising the mark, perhaps above the claim, and is not listed.
-- A claim that could not be raised learns nothing. Who may end those sessions
-- is left to the caller's own rights: this function has its owner's.
CREATE FUNCTION fencepost.holders(p_resource text, p_token bigint, p_lease text)
RETURNS TABLE (pid integer, entered boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  key bigint := fencepost.lock_key(p_resource);
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_token, p_lease);
  IF fencepost.judge(p_resource, p_token, p_lease, true) = 'current' THEN
    RETURN;
  END IF;
  RETURN QUERY WITH locks AS MATERIALIZED (
      SELECT * FROM pg_locks WHERE granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
    SELECT l.pid, EXISTS (SELECT FROM locks t WHERE t.pid = l.pid AND t.locktype = 'relation' AND t.relation = 'fencepost.marks'::regclass)
    FROM locks l
    WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
      AND l.classid::bigint = ((key >> 32) & 4294967295) AND l.objid::bigint = (key & 4294967295);
END $$;

-- retire forgets marks that were last raised before the given time and lifts
-- the floor to the highest token among them, in one step. A raise that runs at
-- the same time either finds the mark, and then its update finds the row gone
-- and starts over, or does not find it, and then finds the floor; a row that it
-- raises meanwhile is compared again and stays.
CREATE FUNCTION fencepost.retire(p_before timestamptz, p_lock_timeout_ms integer, OUT retired bigint, OUT floor bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  top bigint;
BEGIN
  PERFORM fencepost.check_level('read committed');
  PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
  -- One at a time, under the lock of the floor's name, which no claim can have:
  -- two would delete the same rows in different orders, and deadlock.
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(''));
  WITH deleted AS (
    DELETE FROM fencepost.marks WHERE resource <> '' AND raised_at < p_before RETURNING token
  ) SELECT count(*), max(token) INTO retired, top FROM deleted;
  IF retired > 0 THEN
    INSERT INTO fencepost.marks AS m (resource, token) VALUES ('', top)
      ON CONFLICT (resource) DO UPDATE SET token = greatest(m.token, excluded.token), raised_at = clock_timestamp();
  END IF;
  SELECT m.token INTO floor FROM fencepost.marks m WHERE m.resource = '';
  floor := coalesce(floor, 0);
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
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_from, p_from_lease), fencepost.check_claim(p_resource, p_to, p_to_lease);
  IF p_issuers_last IS NULL OR p_to > p_issuers_last THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: the new mark %s is above the last token %L of the issuer', p_to, p_issuers_last);
  END IF;
  PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(p_resource));
  UPDATE fencepost.marks SET token = p_to, lease_id = p_to_lease, raised_at = clock_timestamp()
    WHERE resource = p_resource COLLATE "C" AND token = p_from AND lease_id = p_from_lease COLLATE "C";
  IF NOT FOUND THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    PERFORM fencepost.refuse('SF007', 'the mark is not the one to be reset', p_resource, p_from, p_from_lease, m.token, m.lease_id, false);
  END IF;
  INSERT INTO fencepost.mark_resets (resource, from_token, from_lease, to_token, to_lease, issuers_last, actor, reason)
    VALUES (p_resource, p_from, p_from_lease, p_to, p_to_lease, p_issuers_last, p_actor, p_reason);
END $$;

-- Triggers: they refuse every writer of a table without a current claim,
-- whatever program it is.

-- join_resource is guard.JoinResource: of the values of a template's variables
-- and of its literals, which have nothing to escape, it makes Template.Name.
CREATE FUNCTION fencepost.join_resource(VARIADIC p_parts text[])
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part text;
  name text;
BEGIN
  FOREACH part IN ARRAY p_parts LOOP
    IF part IS NULL OR part = '' THEN
      RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
        MESSAGE = format('fencepost: invalid resource: one of its parts is empty or NULL: %s', left(p_parts::text, 200));
    END IF;
    part := replace(replace(part, '%', '%25'), ':', '%3A');
    name := CASE WHEN name IS NULL THEN part ELSE name || ':' || part END;
  END LOOP;
  IF name IS NULL OR octet_length(name) > 512 OR name ~ '[\u0001-\u001f\u007f-\u009f]' COLLATE "C" THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: invalid resource: it must be 1 to 512 bytes without control characters, its parts are %s', left(p_parts::text, 200));
  END IF;
  RETURN name;
END $$;

-- present makes a claim known to the triggers for the rest of the transaction.
-- It decides nothing; the triggers compare the claim when something is written.
-- It is the same as setting fencepost.claims oneself, with is_local true, to a
-- JSON array of claims. It takes no lock: a writer that only presents locks its
-- rows first and the resource at the end of its statement.
CREATE FUNCTION fencepost.present(p_resource text, p_token bigint, p_lease text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  others jsonb;
BEGIN
  PERFORM fencepost.check_claim(p_resource, p_token, p_lease);
  SELECT jsonb_agg(c) INTO others
    FROM jsonb_array_elements(nullif(current_setting('fencepost.claims', true), '')::jsonb) c
    WHERE c ->> 'resource' <> p_resource COLLATE "C";
  PERFORM set_config('fencepost.claims', (coalesce(others, '[]') || jsonb_build_array(
    jsonb_build_object('resource', p_resource, 'token', p_token::text, 'leaseId', p_lease)))::text, true);
END $$;

-- presented returns the claim that the transaction presented for a resource.
CREATE FUNCTION fencepost.presented(p_resource text, p_table text, OUT token bigint, OUT lease text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claims text := current_setting('fencepost.claims', true);
BEGIN
  IF claims <> '' THEN
    SELECT (c ->> 'token')::bigint, coalesce(c ->> 'leaseId', '') INTO token, lease
      FROM jsonb_array_elements(claims::jsonb) c WHERE c ->> 'resource' = p_resource COLLATE "C";
  END IF;
  IF lease IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'SF003',
      MESSAGE = format('fencepost: no claim for %L was presented, and %s is guarded', p_resource, p_table),
      DETAIL = json_build_object('resource', p_resource, 'table', p_table)::text,
      HINT = 'Call fencepost.present(resource, token, lease) in the same transaction; in Go, set Options.PresentClaims of package sqlfence, or call Present.';
  END IF;
END $$;

-- require refuses a write of the resource unless the transaction presented a
-- claim for it and the claim is the resource's mark, and keeps it so until the
-- transaction ends. It remembers nothing from one statement to the next: a lock
-- that was taken inside a savepoint goes with it. A stale writer, who has locked
-- rows already, does not queue for the lock behind a raise, which may wait for
-- one who waits for those rows; marks only grow, so its verdict stands without
-- the lock.
CREATE FUNCTION fencepost.require(p_resource text, p_table text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claim record;
BEGIN
  SELECT * INTO claim FROM fencepost.presented(p_resource, p_table);
  IF NOT pg_try_advisory_xact_lock_shared(fencepost.lock_key(p_resource)) THEN
    PERFORM fencepost.judge(p_resource, claim.token, claim.lease, true);
  END IF;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    PERFORM fencepost.enter(p_resource, claim.token, claim.lease, 0, 0);
  ELSE
    PERFORM fencepost.enter_snapshot(p_resource, claim.token, claim.lease, 0, 0);
  END IF;
END $$;

-- report is require in report-only mode: it takes no lock and warns of what
-- would have been refused.
CREATE FUNCTION fencepost.report(p_resource text, p_table text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.judge(p_resource, c.token, c.lease, false) FROM fencepost.presented(p_resource, p_table) c;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING USING ERRCODE = SQLSTATE, MESSAGE = format('fencepost: would refuse a write of %s: %s', p_table, SQLERRM);
END $$;

-- refuse_truncate refuses to empty a table that holds many resources: no claim
-- covers them all.
CREATE FUNCTION fencepost.refuse_truncate(p_table text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'SF003',
    MESSAGE = format('fencepost: %s is guarded and has many resources, no claim covers its truncation', p_table),
    DETAIL = json_build_object('resource', '', 'table', p_table)::text,
    HINT = 'Delete the rows of a resource under its claim.';
END $$;

-- guarded lists the tables that were put under triggers, so that triggers that
-- are gone, or a partition that came later, are noticed. parts are the
-- components of the resource's template, in order: {"text"} for a literal,
-- {"variable", "type", "column"} for a variable and the column it is bound to.
CREATE TABLE fencepost.guarded (
  schema_name  text        NOT NULL,
  table_name   text        NOT NULL,
  parts        jsonb       NOT NULL,
  report_only  boolean     NOT NULL,
  installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  installed_by text        NOT NULL DEFAULT session_user,
  PRIMARY KEY (schema_name, table_name)
);

-- guard_name is the name of the trigger function of a table.
CREATE FUNCTION fencepost.guard_name(p_schema text, p_table text)
RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'guard_' || left(encode(sha256(convert_to(length(p_schema) || ':' || p_schema || p_table, 'UTF8')), 'hex'), 32)
$$;

-- guard_body is the text of the trigger function of a table. It is made for
-- the table, so that its plans are kept; one check for each resource that a
-- statement touched, after everything else that may change its rows. An update
-- is checked for the resources that its rows left and those they came to.
--
-- A column's text is taken with format, which calls the type's output function:
-- those are the server's or a superuser's. A cast would not do: it may be a
-- function of the type's owner, which would run with the rights of this
-- function, and the type may be another one tomorrow. quote_all_identifiers is
-- pinned because the text is compared with the one installed.
CREATE FUNCTION fencepost.guard_body(p_schema text, p_table text, p_parts jsonb, p_report_only boolean)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
DECLARE
  label    text := quote_literal(format('%I.%I', p_schema, p_table));
  judge    text := CASE WHEN p_report_only THEN 'report' ELSE 'require' END;
  truncate text := format('PERFORM fencepost.refuse_truncate(%s);', label);
  rows_of  text;
BEGIN
  SELECT 'SELECT ARRAY[' || string_agg(CASE WHEN part ? 'column' THEN format('format(''%%s'', %I)', part ->> 'column')
           ELSE quote_literal(part ->> 'text') END || ' COLLATE "C"', ', ' ORDER BY n) || '] FROM '
    INTO rows_of FROM jsonb_array_elements(p_parts) WITH ORDINALITY AS x(part, n);
  IF NOT EXISTS (SELECT FROM jsonb_array_elements(p_parts) part WHERE part ? 'column') THEN
    SELECT format('PERFORM fencepost.%s(%L, %s);', judge, fencepost.join_resource(VARIADIC array_agg(part ->> 'text' ORDER BY n)), label)
      INTO truncate FROM jsonb_array_elements(p_parts) WITH ORDINALITY AS x(part, n);
  END IF;
  RETURN format($body$
#variable_conflict use_column
DECLARE
  parts text[];
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    %1$s
  ELSIF TG_OP = 'INSERT' THEN
    FOR parts IN %2$sfencepost_new GROUP BY 1 LOOP
      PERFORM fencepost.%4$s(fencepost.join_resource(VARIADIC parts), %3$s);
    END LOOP;
  ELSIF TG_OP = 'DELETE' THEN
    FOR parts IN %2$sfencepost_old GROUP BY 1 LOOP
      PERFORM fencepost.%4$s(fencepost.join_resource(VARIADIC parts), %3$s);
    END LOOP;
  ELSE
    FOR parts IN %2$sfencepost_old UNION %2$sfencepost_new LOOP
      PERFORM fencepost.%4$s(fencepost.join_resource(VARIADIC parts), %3$s);
    END LOOP;
  END IF;
  RETURN NULL;%5$s
END $body$, truncate, rows_of, label, judge, CASE WHEN p_report_only THEN '
EXCEPTION WHEN OTHERS THEN -- report-only refuses nothing, malformed claims and rows included
  RAISE WARNING USING ERRCODE = SQLSTATE, MESSAGE = ''fencepost: would refuse a write of '' || ' || label || ' || '': '' || SQLERRM;
  RETURN NULL;' ELSE '' END);
END $$;

-- guard_tree lists a table with its partitions and inheritance children.
CREATE FUNCTION fencepost.guard_tree(p_table oid)
RETURNS SETOF oid LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE tree(relid) AS (
    SELECT p_table UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = relid
  ) SELECT relid FROM tree
$$;

-- guard_obstacle says why a table cannot be guarded as described; NULL if it can.
CREATE FUNCTION fencepost.guard_obstacle(p_table oid, p_parts jsonb)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c    pg_class;
  a    record;
  part jsonb;
BEGIN
  SELECT * INTO c FROM pg_class WHERE oid = p_table;
  IF NOT FOUND THEN
    RETURN 'does not exist';
  ELSIF getdatabaseencoding() <> 'UTF8' THEN
    RETURN format('is in a database with encoding %s, resources are UTF-8', getdatabaseencoding());
  ELSIF c.relkind NOT IN ('r', 'p') THEN
    RETURN 'is not a table: triggers of a view or foreign table do not see every write of its rows';
  ELSIF c.relpersistence = 't' THEN
    RETURN 'is a temporary table';
  ELSIF c.relnamespace IN ('fencepost'::regnamespace, 'pg_catalog'::regnamespace) THEN
    RETURN 'belongs to a schema that is not the application''s';
  ELSIF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = p_table) THEN
    RETURN format('is a partition or child of %s, which must be guarded instead', (SELECT inhparent::regclass FROM pg_inherits WHERE inhrelid = p_table LIMIT 1));
  ELSIF EXISTS (SELECT FROM pg_class WHERE oid IN (SELECT fencepost.guard_tree(p_table)) AND relkind NOT IN ('r', 'p')) THEN
    RETURN 'has a foreign table as a partition or child, whose writes no trigger sees in full';
  ELSIF EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid WHERE tgrelid IN (SELECT fencepost.guard_tree(p_table))
      AND tgname IN ('fencepost_insert', 'fencepost_update', 'fencepost_delete', 'fencepost_truncate') AND pronamespace <> 'fencepost'::regnamespace) THEN
    RETURN 'has a trigger of somebody else''s under a name that begins with fencepost_';
  END IF;
  IF p_parts IS NULL OR jsonb_typeof(p_parts) <> 'array' OR jsonb_array_length(p_parts) = 0 THEN
    RETURN 'has no parts that name its resources';
  END IF;
  FOR part IN SELECT jsonb_array_elements(p_parts) LOOP
    IF coalesce(part ->> 'text', part ->> 'column', '') = '' OR (part ? 'text' AND part ? 'column') THEN
      RETURN format('has a part that is neither a column nor a text: %s', part);
    END IF;
    CONTINUE WHEN part ? 'text';
    SELECT attnotnull, attgenerated, t.typname, t.typtype, t.typowner, t.oid AS typoid, coalesce(l.collisdeterministic, true) AS deterministic, d.typtype AS own INTO a
      FROM pg_attribute JOIN pg_type d ON d.oid = atttypid
      JOIN pg_type t ON t.oid = CASE d.typtype WHEN 'd' THEN d.typbasetype ELSE d.oid END
      LEFT JOIN pg_collation l ON l.oid = attcollation
      WHERE attrelid = p_table AND attname = part ->> 'column' AND attnum > 0 AND NOT attisdropped;
    IF NOT FOUND THEN
      RETURN format('has no column %I', part ->> 'column');
    ELSIF NOT a.attnotnull THEN
      RETURN format('has a column %I that may be NULL, which names no resource', part ->> 'column');
    ELSIF a.attgenerated NOT IN ('', 's') THEN
      RETURN format('has a column %I that is computed when it is read', part ->> 'column');
    ELSIF NOT (a.typtype = 'e' OR a.typoid IN ('text'::regtype, 'varchar'::regtype, 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype)) THEN
      RETURN format('has a column %I of type %s; only text, varchar, smallint, integer, bigint, uuid and enums have one text for equal values under every setting', part ->> 'column', a.typname);
    ELSIF a.typtype = 'e' AND (a.own = 'd' OR a.typowner <> c.relowner) THEN
      RETURN format('has a column %I of the enum %s, which must be the table owner''s own and no domain: its owner may rename its values, and so the resources', part ->> 'column', a.typname);
    ELSIF part ->> 'type' = 'int' AND a.typoid NOT IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) OR part ->> 'type' = 'uuid' AND a.typoid <> 'uuid'::regtype THEN
      RETURN format('has a column %I of type %s, but the variable %s of the template is of type %s', part ->> 'column', a.typname, part ->> 'variable', part ->> 'type');
    ELSIF part ->> 'type' NOT IN ('', 'int', 'uuid') THEN
      RETURN format('has a variable %s of an unknown type', part ->> 'variable');
    ELSIF NOT a.deterministic THEN
      RETURN format('has a column %I under a collation in which different texts are equal', part ->> 'column');
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- guard_problems compares what is installed with what should be.
CREATE FUNCTION fencepost.guard_problems(p_table oid, p_parts jsonb, p_report_only boolean)
RETURNS TABLE (relation text, problem text) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  root   text := p_table::regclass::text;
  s      text;
  t      text;
  f      pg_proc;
  o      record;
BEGIN
  SELECT nspname, relname INTO s, t FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = p_table;
  IF NOT FOUND THEN
    RETURN QUERY SELECT root, 'the table does not exist'::text;
    RETURN;
  END IF;
  IF fencepost.guard_obstacle(p_table, p_parts) IS NOT NULL THEN
    RETURN QUERY SELECT root, 'the table ' || fencepost.guard_obstacle(p_table, p_parts);
    RETURN;
  END IF;
  IF NOT EXISTS (SELECT FROM fencepost.guarded WHERE schema_name = s AND table_name = t) THEN
    RETURN QUERY SELECT root, 'the table is not listed in fencepost.guarded'::text;
  ELSIF NOT EXISTS (SELECT FROM fencepost.guarded WHERE schema_name = s AND table_name = t AND parts = p_parts AND report_only = p_report_only) THEN
    RETURN QUERY SELECT root, 'the table is listed in fencepost.guarded with another resource or mode'::text;
  END IF;
  SELECT * INTO f FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname = fencepost.guard_name(s, t) AND pronargs = 0;
  IF NOT FOUND THEN
    RETURN QUERY SELECT root, format('the trigger function fencepost.%s is missing', fencepost.guard_name(s, t));
    RETURN;
  END IF;
  IF f.prosrc <> fencepost.guard_body(s, t, p_parts, p_report_only) OR NOT f.prosecdef
     OR f.proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp'] THEN
    RETURN QUERY SELECT root, format('the trigger function fencepost.%s is not of this version, or not for this resource or mode', f.proname);
  END IF;
  FOR o IN
    SELECT r.relid, e.event, g.oid AS found, g.tgenabled, g.tgtype = e.type AND g.tgfoid = f.oid AND g.tgattr = '' AND g.tgqual IS NULL
      AND g.tgoldtable IS NOT DISTINCT FROM CASE WHEN e.event IN ('update', 'delete') THEN 'fencepost_old'::name END
      AND g.tgnewtable IS NOT DISTINCT FROM CASE WHEN e.event IN ('insert', 'update') THEN 'fencepost_new'::name END AS matches
    FROM fencepost.guard_tree(p_table) AS r(relid)
    CROSS JOIN (VALUES ('insert', 4), ('delete', 8), ('update', 16), ('truncate', 32)) AS e(event, type)
    LEFT JOIN pg_trigger g ON g.tgrelid = r.relid AND g.tgname = 'fencepost_' || e.event
    ORDER BY r.relid::regclass::text, e.event
  LOOP
    IF o.found IS NULL THEN
      RETURN QUERY SELECT o.relid::regclass::text, format('the trigger fencepost_%s is missing', o.event);
    ELSIF NOT o.matches THEN
      RETURN QUERY SELECT o.relid::regclass::text, format('the trigger fencepost_%s is another one', o.event);
    ELSIF o.tgenabled <> 'A' THEN
      RETURN QUERY SELECT o.relid::regclass::text, CASE o.tgenabled WHEN 'D' THEN format('the trigger fencepost_%s is disabled', o.event)
        ELSE format('the trigger fencepost_%s is not enabled ALWAYS', o.event) END;
    END IF;
  END LOOP;
END $$;

-- drop_guard_function drops a table's trigger function once nothing uses it.
CREATE FUNCTION fencepost.drop_guard_function(p_schema text, p_table text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f oid := to_regprocedure(format('fencepost.%I()', fencepost.guard_name(p_schema, p_table)));
BEGIN
  IF f IS NOT NULL AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgfoid = f) THEN
    EXECUTE format('DROP FUNCTION fencepost.%I()', fencepost.guard_name(p_schema, p_table));
  END IF;
END $$;

-- lock_guards lets one installation run at a time and forgets tables that are
-- gone.
CREATE FUNCTION fencepost.lock_guards(p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.set_timeouts(p_lock_timeout_ms, 0);
  PERFORM pg_advisory_xact_lock(hashtextextended('fencepost.guarded', 0));
  PERFORM fencepost.drop_guard_function(schema_name, table_name) FROM fencepost.guarded
    WHERE to_regclass(format('%I.%I', schema_name, table_name)) IS NULL;
  DELETE FROM fencepost.guarded WHERE to_regclass(format('%I.%I', schema_name, table_name)) IS NULL;
END $$;

-- install_guard puts a table, its partitions and children under triggers. It
-- changes nothing, and takes no lock on the table, if all is as it should be.
-- It runs with the rights of its caller, who must own the table and may write
-- in schema fencepost.
CREATE FUNCTION fencepost.install_guard(p_table regclass, p_parts jsonb, p_report_only boolean, p_lock_timeout_ms integer)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  obstacle text := fencepost.guard_obstacle(p_table, p_parts);
  s        text;
  t        text;
  relation oid;
  event    text;
BEGIN
  IF obstacle IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('fencepost: %s cannot be guarded: it %s', p_table, obstacle);
  END IF;
  PERFORM fencepost.lock_guards(p_lock_timeout_ms);
  IF NOT EXISTS (SELECT FROM fencepost.guard_problems(p_table, p_parts, p_report_only)) THEN
    RETURN false;
  END IF;
  SELECT nspname, relname INTO s, t FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = p_table;
  EXECUTE format('CREATE OR REPLACE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
    fencepost.guard_name(s, t), fencepost.guard_body(s, t, p_parts, p_report_only));
  EXECUTE format('REVOKE ALL ON FUNCTION fencepost.%I() FROM PUBLIC', fencepost.guard_name(s, t));
  -- The lock on the root keeps partitions from being attached meanwhile.
  EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', p_table);
  FOR relation IN SELECT fencepost.guard_tree(p_table) LOOP
    FOREACH event IN ARRAY ARRAY['insert', 'update', 'delete', 'truncate'] LOOP
      EXECUTE format('DROP TRIGGER IF EXISTS fencepost_%s ON %s', event, relation::regclass);
      EXECUTE format('CREATE TRIGGER fencepost_%1$s AFTER %1$s ON %2$s %3$s FOR EACH STATEMENT EXECUTE FUNCTION fencepost.%4$I()', event, relation::regclass,
        CASE event WHEN 'insert' THEN 'REFERENCING NEW TABLE AS fencepost_new' WHEN 'delete' THEN 'REFERENCING OLD TABLE AS fencepost_old'
                   WHEN 'update' THEN 'REFERENCING OLD TABLE AS fencepost_old NEW TABLE AS fencepost_new' ELSE '' END, fencepost.guard_name(s, t));
      EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER fencepost_%s', relation::regclass, event);
    END LOOP;
  END LOOP;
  INSERT INTO fencepost.guarded (schema_name, table_name, parts, report_only) VALUES (s, t, p_parts, p_report_only)
    ON CONFLICT (schema_name, table_name) DO UPDATE SET parts = excluded.parts, report_only = excluded.report_only,
      installed_at = excluded.installed_at, installed_by = excluded.installed_by;
  RETURN true;
END $$;

-- remove_guard takes the triggers away again. A NULL table only forgets the
-- tables that are gone.
CREATE FUNCTION fencepost.remove_guard(p_table regclass, p_lock_timeout_ms integer)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s        text;
  t        text;
  relation oid;
  name     text;
  removed  boolean;
BEGIN
  PERFORM fencepost.lock_guards(p_lock_timeout_ms);
  SELECT nspname, relname INTO s, t FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = p_table;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM fencepost.guarded WHERE schema_name = s AND table_name = t;
  removed := FOUND;
  FOR relation, name IN
    SELECT tgrelid, tgname FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid
      WHERE tgrelid IN (SELECT fencepost.guard_tree(p_table)) AND pronamespace = 'fencepost'::regnamespace AND starts_with(proname, 'guard_')
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', name, relation::regclass);
    removed := true;
  END LOOP;
  PERFORM fencepost.drop_guard_function(s, t);
  RETURN removed;
END $$;

-- guard_status lists every guarded table, and every table that has triggers of
-- this schema without being listed, with what is wrong about it.
CREATE FUNCTION fencepost.guard_status()
RETURNS TABLE (schema_name text, table_name text, parts jsonb, report_only boolean, relation text, problem text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT g.schema_name, g.table_name, g.parts, g.report_only, coalesce(p.relation, format('%I.%I', g.schema_name, g.table_name)),
      CASE WHEN c.oid IS NULL THEN 'the table does not exist, or not under this name' ELSE p.problem END
    FROM fencepost.guarded g
    LEFT JOIN pg_class c ON c.oid = to_regclass(format('%I.%I', g.schema_name, g.table_name))
    LEFT JOIN LATERAL fencepost.guard_problems(c.oid, g.parts, g.report_only) p ON c.oid IS NOT NULL
  UNION ALL
  SELECT DISTINCT n.nspname::text, c.relname::text, NULL::jsonb, NULL::boolean, c.oid::regclass::text, 'the table has triggers and is not listed in fencepost.guarded'
    FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid JOIN pg_class c ON c.oid = tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pronamespace = 'fencepost'::regnamespace AND starts_with(p.proname, 'guard_') AND tgparentid = 0
      AND NOT EXISTS (SELECT FROM fencepost.guarded g
        WHERE c.oid IN (SELECT fencepost.guard_tree(to_regclass(format('%I.%I', g.schema_name, g.table_name)))))
$$;

-- Only the owner, who migrates, may use any of this until somebody is granted to.
REVOKE ALL ON fencepost.marks, fencepost.lock_salt, fencepost.mark_resets, fencepost.guarded FROM PUBLIC;
REVOKE ALL ON FUNCTION
  fencepost.lock_salt, fencepost.lock_key, fencepost.verdict, fencepost.refuse, fencepost.judge, fencepost.check_primary,
  fencepost.check_level, fencepost.check_claim, fencepost.set_timeouts, fencepost.make_durable, fencepost.raise, fencepost.enter,
  fencepost.refuse_entry, fencepost.enter_snapshot, fencepost.enter_row, fencepost.holders, fencepost.retire,
  fencepost.keep_resets, fencepost.reset, fencepost.join_resource, fencepost.present, fencepost.presented, fencepost.require,
  fencepost.report, fencepost.refuse_truncate, fencepost.guard_name, fencepost.guard_body, fencepost.guard_tree,
  fencepost.guard_obstacle, fencepost.guard_problems, fencepost.drop_guard_function, fencepost.lock_guards,
  fencepost.install_guard, fencepost.remove_guard, fencepost.guard_status
  FROM PUBLIC;
