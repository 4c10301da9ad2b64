-- The part of schema fencepost that belongs to package sqlfence: the marks, and
-- the functions that raise them and enter under them. 0002_triggers.sql has the
-- triggers that refuse a writer without a current claim.
--
-- Reading order: verdict, which is the rule; raise and enter, which give P1 and
-- P2; then the other ways to enter, what triggers use (present, and the counters of
-- report-only mode), and the operators' functions.
--
-- No function that runs with its owner's rights (SECURITY DEFINER) runs anybody
-- else's code: names are qualified, or resolved in pg_catalog first.

-- ==== Tables, names and lock keys ====

-- Marks: the highest claim that each resource has admitted. Only the functions
-- below write this table. The row whose resource is '' is the floor: the
-- highest token among the marks that were retired.
CREATE TABLE fencepost.marks (
  resource  text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) <= 512),
  token     bigint      NOT NULL CHECK (token BETWEEN 1 AND 9223372036854775806),
  lease_id  text        NOT NULL DEFAULT '' CHECK (octet_length(lease_id) <= 128),
  raised_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

-- The secret for the lock keys, generated once.
CREATE TABLE fencepost.lock_salt (
  one  boolean PRIMARY KEY DEFAULT true CHECK (one),
  salt bigint  NOT NULL
);
INSERT INTO fencepost.lock_salt (salt) VALUES (hashtextextended(gen_random_uuid()::text, 0));

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
CREATE FUNCTION fencepost.lock_salt()
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce((SELECT salt FROM fencepost.lock_salt), fencepost.no_salt())
$$;

-- lock_key is the key of a resource's advisory lock. Anybody who may log in may
-- take any advisory lock, and so could block every raise of a resource whose
-- key is known: hence the salt. (Anybody who watches pg_locks still sees the
-- keys of held locks: holders distinguishes such sessions.) The collation is
-- explicit because one name may have several hashes under a caller's collation.
-- It is written so that the planner inlines its calls.
CREATE FUNCTION fencepost.lock_key(p_resource text)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.hashtextextended(p_resource COLLATE pg_catalog."C", fencepost.lock_salt())
$$;

-- join_resource is guard.JoinResource: from the values of a template's
-- variables and from its literals, which need no escaping, it builds
-- Template.Name.
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

-- ==== The rule ====

-- verdict is guard.Decide under the rule SameOrNewer, and the only place in this schema
-- that compares a claim with a mark, but for the statements in enter, enter_row and reset
-- that look for the row that has it (package sqlrow compares in statements of its own):
-- 'stale', 'conflict', 'current' (the claim is the mark) or 'newer' (it may be
-- raised). A NULL mark means none. A floor has no lease: a token that equals it
-- is stale.
CREATE FUNCTION fencepost.verdict(p_token bigint, p_lease text, p_mark bigint, p_mark_lease text, p_floor boolean)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN CASE
    WHEN p_mark IS NULL OR p_token > p_mark                       THEN 'newer'
    WHEN (p_token < p_mark OR p_floor) IS NOT FALSE               THEN 'stale' -- NULLs too
    WHEN p_lease = p_mark_lease COLLATE "C"                       THEN 'current'
    ELSE 'conflict'
  END;
END $$;

-- refuse raises the error of a refused claim. Class SF is in the range that
-- the SQL standard leaves to implementations (classes that begin with I to Z).
-- It must be an error: a pipeline would continue after a mere result.
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
-- mark that is being retired is read either as the mark or as the floor.
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
  RAISE EXCEPTION 'fencepost: refuse has returned'; -- not reached
END $$;

-- mark shows a resource's mark, and the floor, to those who may not read the table.
CREATE FUNCTION fencepost.mark(p_resource text, OUT token bigint, OUT lease text, OUT floor bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT m.token, m.lease_id, f.token FROM (SELECT) AS one
    LEFT JOIN fencepost.marks m ON m.resource = p_resource COLLATE "C" AND p_resource <> '' LEFT JOIN fencepost.marks f ON f.resource = ''
$$;

-- ==== Checks and settings of a transaction ====

-- check_level refuses transactions with an isolation level that is not safe for
-- the caller. Reading a mark under its lock needs READ COMMITTED: only there
-- does a statement that follows the lock see what was committed before it. It also
-- refuses a standby, whose locks and marks are not the primary's.
CREATE FUNCTION fencepost.check_level(VARIADIC p_levels text[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> ALL (p_levels) THEN
    RAISE EXCEPTION USING ERRCODE = 'SF005', MESSAGE = format('fencepost: isolation level %s is refused, the transaction must be %s',
      current_setting('transaction_isolation'), replace(upper(array_to_string(p_levels, ' or ')), ' OR ', ' or '));
  END IF;
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: this server is a standby';
  END IF;
END $$;

-- check_claim refuses malformed claims from callers outside this module, by the rules of
-- guard.Claim's Validate. enter calls it only if the claim is not the mark: a mark has passed it.
CREATE FUNCTION fencepost.check_claim(p_resource text, p_token bigint, p_lease text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (octet_length(p_resource) BETWEEN 1 AND 512 AND octet_length(p_lease) <= 128 AND p_token BETWEEN 1 AND 9223372036854775806
      AND p_resource || p_lease !~ '[\u0001-\u001f\u007f-\u009f]' COLLATE "C") IS NOT TRUE THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: invalid claim: resource %s, token %s, lease ID %s', coalesce(to_json(left(p_resource, 600))::text, 'NULL'),
        coalesce(p_token::text, 'NULL'), coalesce(to_json(left(p_lease, 600))::text, 'NULL')),
      HINT = 'A resource has 1 to 512 bytes and a lease ID at most 128, both without control characters; a token is 1 to 9223372036854775806.';
  END IF;
END $$;

-- set_timeouts bounds waiting for a lock and idling in the transaction, so that a
-- stopped holder does not block its successor forever; 0 leaves the session's
-- setting.
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
-- acknowledged mark must, whatever the server's default is.
CREATE FUNCTION fencepost.make_durable()
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- ==== Raising and entering ====

-- raise replaces a lower mark with a claim. It waits until every transaction
-- that entered under the lower mark has ended, so that these cannot overwrite
-- what is read after the raise. Run it in a transaction of its own, so that the
-- mark survives a rollback of the work. Raising to the claim that already is
-- the mark waits for no transaction and changes nothing. But where COMMITs wait for a
-- synchronous standby, that of the first raise may have given up its wait: so a message is
-- written to the WAL, which locks nothing, and the standby that has it has the mark, too.
CREATE FUNCTION fencepost.raise(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seen text;
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_token, p_lease);
  -- But for a reset marks only grow, so a refusal stands without the lock, and a stale
  -- caller does not queue in front of the holder's next transactions.
  seen := fencepost.judge(p_resource, p_token, p_lease, true);
  IF seen <> 'current' THEN
    PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
    PERFORM pg_advisory_xact_lock(fencepost.lock_key(p_resource));
    seen := fencepost.judge(p_resource, p_token, p_lease, true);
  END IF;
  IF seen <> 'current' THEN
    UPDATE fencepost.marks SET token = p_token, lease_id = p_lease, raised_at = clock_timestamp() WHERE resource = p_resource COLLATE "C";
    IF NOT FOUND THEN -- there was none, or it was retired in the meantime
      INSERT INTO fencepost.marks (resource, token, lease_id) VALUES (p_resource, p_token, p_lease);
    END IF;
  ELSIF current_setting('synchronous_standby_names') <> '' THEN
    PERFORM fencepost.make_durable(), pg_logical_emit_message(true, 'fencepost', 'raise');
  END IF;
END $$;

-- enter fences the transaction that calls it: it holds the resource's lock in
-- shared mode until the transaction ends, so that no raise can pass it, and
-- compares the claim with the mark as it is under that lock. It writes nothing;
-- one holder may run many transactions concurrently. A claim above the mark is
-- refused and must be raised first (SF004).
--
-- Every fenced transaction pays for it, so it is written for speed. It pins no
-- search_path, which would cost as much as its work, and so names the schema of
-- every operator, function, type and collation, since they would otherwise be
-- the caller's. It uses a single expression, since each is set up anew in each
-- transaction. Only CASE fixes an order of evaluation (PostgreSQL
-- documentation, 4.2.14). Call it with one search_path in a session: with another
-- one the server makes its plans again. The index
-- tells whether the claim equals the mark, and only if not is judge called. NULLs and tokens out of range equal no mark.
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
-- inside a savepoint, which it cannot detect; enter_row can.
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
-- here, under the exclusive lock until the transaction ends; at the levels
-- above, the snapshot may miss what older holders committed since, so the raise
-- must have come first (SF004). The kind of lock is chosen before it is taken:
-- two that go from shared to exclusive would wait for each other.
CREATE FUNCTION fencepost.enter_row(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  may_raise boolean := current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable');
  seen      text;
  mine      xid;
BEGIN
  PERFORM fencepost.check_level('read uncommitted', 'read committed', 'repeatable read', 'serializable'), fencepost.check_claim(p_resource, p_token, p_lease);
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
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'fencepost: the mark was retired or reset in the meantime';
  END IF;
  IF mine <> pg_current_xact_id()::xid THEN
    RAISE EXCEPTION USING ERRCODE = 'SF006', MESSAGE = 'fencepost: entering inside a savepoint or subtransaction is refused: rolling back to it would free the fence';
  END IF;
END $$;

-- ==== For triggers ====

-- claims returns what the transaction has presented. The setting fencepost.claims has the
-- transaction's ID before the JSON: what was set for the session, by SET in place of SET
-- LOCAL, would else be the claim of whoever gets the session next from a pooler. Each
-- resource that a statement writes reads all claims, hence their number is bounded.
CREATE FUNCTION fencepost.claims()
RETURNS jsonb LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  setting text  := current_setting('fencepost.claims', true);
  claims  jsonb := '[]';
BEGIN
  IF split_part(setting, ' ', 1) = pg_current_xact_id()::text THEN
    claims := substr(setting, strpos(setting, ' ') + 1)::jsonb;
    IF jsonb_array_length(claims) > 64 THEN
      RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('fencepost: %s claims were presented, a transaction can have 64', jsonb_array_length(claims));
    END IF;
  END IF;
  RETURN claims;
END $$;

-- present makes a claim known to the triggers for the rest of the transaction.
-- It decides nothing; the triggers compare the claim when something is written.
-- It takes no lock: a writer that only presents locks its
-- rows first and the resource at the end of its statement.
CREATE FUNCTION fencepost.present(p_resource text, p_token bigint, p_lease text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.check_claim(p_resource, p_token, p_lease);
  PERFORM set_config('fencepost.claims', concat(pg_current_xact_id(), ' ', coalesce(jsonb_agg(c), '[]') || jsonb_build_array(
      jsonb_build_object('resource', p_resource, 'token', p_token::text, 'leaseId', p_lease))), true)
    FROM jsonb_array_elements(fencepost.claims()) c WHERE c ->> 'resource' <> p_resource COLLATE "C";
  PERFORM fencepost.claims(); -- they may be too many
END $$;

-- presented returns the claim that the transaction presented for a resource.
CREATE FUNCTION fencepost.presented(p_resource text, p_table text, OUT token bigint, OUT lease text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  offered text;
BEGIN
  SELECT c ->> 'token', coalesce(c ->> 'leaseId', '') INTO offered, lease
    FROM jsonb_array_elements(fencepost.claims()) c WHERE c ->> 'resource' = p_resource COLLATE "C";
  IF lease IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'SF003',
      MESSAGE = format('fencepost: no claim for %L was presented in this transaction, and %s is guarded', p_resource, p_table),
      DETAIL = json_build_object('resource', p_resource, 'table', p_table)::text,
      HINT = 'Call fencepost.present(resource, token, lease) in the same transaction; in Go, write in InTx of package sqlfence, or call Present.';
  ELSIF offered IS NULL OR offered !~ '^[1-9][0-9]{0,18}$' OR octet_length(offered) = 19 AND offered > '9223372036854775806' COLLATE "C" THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('fencepost: invalid claim: token %L', offered);
  END IF;
  token := offered::bigint;
END $$;

-- counters names the sequences of a guard in report-only mode, one for each reason.
-- A sequence counts without a lock, so that writers do not wait for each other, and
-- keeps what a transaction counted that is rolled back.
CREATE FUNCTION fencepost.counters(p_guard text)
RETURNS TABLE (reason text, name text) LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT r, format('fencepost.%I', p_guard || '_' || r) FROM unnest(ARRAY['stale', 'conflict', 'missing', 'unavailable', 'other']) r
$$;

-- count_refusal counts a write that would have been refused, and warns of the first
-- hundred for each reason and then of each thousandth. It fails for no writer.
CREATE FUNCTION fencepost.count_refusal(p_guard text, p_table text, p_state text, p_why text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  BEGIN
    SELECT nextval(to_regclass(name)) INTO n FROM fencepost.counters(p_guard)
      WHERE reason = CASE p_state WHEN 'SF001' THEN 'stale' WHEN 'SF002' THEN 'conflict' WHEN 'SF003' THEN 'missing' WHEN 'SF004' THEN 'unavailable' ELSE 'other' END;
  EXCEPTION WHEN OTHERS THEN
    n := NULL;
  END;
  IF n IS NULL OR n <= 100 OR n % 1000 = 0 THEN
    RAISE WARNING USING ERRCODE = p_state, MESSAGE = format('fencepost: would refuse a write of %s: %s', p_table, p_why)
      || CASE WHEN n > 100 THEN format(' (and %s before it)', n - 1) ELSE '' END;
  END IF;
END $$;

-- ==== For operators: who is in the way, retirement, resets ====

-- holders lists what keeps a claim from being raised or, if it is the mark, from being
-- entered under: sessions, and prepared transactions (PREPARE TRANSACTION), which only a
-- person can end. kind is 'entered'; 'raising' for a session that raises the mark,
-- perhaps above the claim; or 'stranger'. The first two also have a lock on the table of
-- marks, which only the functions here and a reader can take; a stranger only took an
-- advisory lock that is the same by accident or on purpose. The locks of a prepared
-- transaction have no process; the lock on its own ID names it. A claim that could
-- not be raised is an error.
CREATE FUNCTION fencepost.holders(p_resource text, p_token bigint, p_lease text)
RETURNS TABLE (pid integer, kind text, gid text, prepared timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  key     bigint := fencepost.lock_key(p_resource);
  current boolean;
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(p_resource, p_token, p_lease);
  current := fencepost.judge(p_resource, p_token, p_lease, true) = 'current';
  RETURN QUERY WITH locks AS MATERIALIZED (SELECT l.* FROM pg_locks l
      WHERE granted AND (l.database IS NULL OR l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))),
    held AS (SELECT l.pid, l.virtualtransaction, l.mode FROM locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
        AND l.classid::bigint = ((key >> 32) & 4294967295) AND l.objid::bigint = (key & 4294967295))
    SELECT h.pid, CASE WHEN NOT EXISTS (SELECT FROM locks t WHERE t.pid = h.pid AND t.locktype = 'relation' AND t.relation = 'fencepost.marks'::regclass) THEN 'stranger'
        WHEN h.mode = 'ShareLock' THEN 'entered' ELSE 'raising' END, NULL::text, NULL::timestamptz
      FROM held h WHERE h.pid <> pg_backend_pid() AND NOT (current AND h.mode = 'ShareLock')
    UNION ALL
    SELECT NULL, 'entered', p.gid, p.prepared
      FROM held h JOIN locks x ON x.virtualtransaction = h.virtualtransaction AND x.locktype = 'transactionid'
      JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
      WHERE h.pid IS NULL AND x.pid IS NULL AND p.database = current_database() AND NOT (current AND h.mode = 'ShareLock');
END $$;

-- session is what the server shows of a session, and whether the caller may end it. It ends
-- the session if that is in one of the transactions p_end. The server judges both by the
-- role at the moment; here that is the login, because after SET ROLE (Vault's
-- recipe, or a login without INHERIT) not even the login's own sessions can be seen.
CREATE FUNCTION fencepost.session(p_pid integer, p_end text[])
RETURNS TABLE (login text, application text, state text, transaction text, began timestamptz, changed timestamptz, event text, may_end boolean, ended boolean)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET role = 'none' AS $$
  SELECT s.*, CASE WHEN s.may_end AND s.transaction = ANY (p_end) THEN pg_terminate_backend(p_pid) ELSE false END FROM (
    SELECT r.rolname::text, a.application_name, a.state, CASE WHEN a.xact_start IS NOT NULL THEN concat(a.pid, '@', extract(epoch FROM a.xact_start)) END AS transaction,
        a.xact_start, a.state_change, a.wait_event_type, (pg_has_role(me.oid, r.oid, 'USAGE') OR pg_has_role(me.oid, 'pg_signal_backend', 'USAGE')) AND (me.rolsuper OR NOT r.rolsuper) AS may_end
      FROM pg_stat_get_activity(p_pid) a JOIN pg_roles r ON r.oid = a.usesysid JOIN pg_roles me ON me.rolname = session_user) s
$$;

-- retire deletes marks that were last raised before the given time and raises
-- the floor to the highest token among them, in one step. It refuses to raise the
-- floor above the last token of the issuer: every resource without a mark would
-- refuse every holder until the issuer gets there, if it ever does. Without that
-- token it leaves one above the floor. A concurrent
-- raise either finds the mark, then finds the row gone in its update and
-- inserts it, or does not find it, and then finds the floor; a row that it has
-- raised by then is compared again and stays.
CREATE FUNCTION fencepost.retire(p_before timestamptz, p_lock_timeout_ms integer, p_issuers_last bigint DEFAULT 9223372036854775805, OUT retired bigint, OUT floor bigint)
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

-- Every reset of a mark, kept forever.
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
  RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = 'fencepost: the record of resets is append-only';
END $$;
CREATE TRIGGER keep_resets BEFORE UPDATE OR DELETE OR TRUNCATE ON fencepost.mark_resets
  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.keep_resets();
-- It also fires where session_replication_role is replica, which disables other
-- triggers.
ALTER TABLE fencepost.mark_resets ENABLE ALWAYS TRIGGER keep_resets;

-- reset replaces a mark with another, lower or higher, if it is still the one
-- that the operator saw. It waits for the transactions that entered under it.
-- Nothing else ever lowers a mark. An empty resource means the floor, which has no
-- lease and under which no transaction enters.
CREATE FUNCTION fencepost.reset(p_resource text, p_from bigint, p_from_lease text, p_to bigint, p_to_lease text,
  p_issuers_last bigint, p_actor text, p_reason text, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m     fencepost.marks;
  named text := CASE WHEN p_resource = '' THEN 'floor' ELSE p_resource END; -- a claim has a name
BEGIN
  PERFORM fencepost.check_level('read committed'), fencepost.check_claim(named, p_from, p_from_lease), fencepost.check_claim(named, p_to, p_to_lease);
  IF p_issuers_last IS NULL OR p_to > p_issuers_last OR p_resource = '' AND p_to_lease <> '' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = format('fencepost: the new mark %s is above the last token %L of the issuer, or a floor with a lease', p_to, p_issuers_last);
  END IF;
  PERFORM fencepost.make_durable(), set_config('lock_timeout', p_lock_timeout_ms::text, true);
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(p_resource));
  UPDATE fencepost.marks SET token = p_to, lease_id = p_to_lease, raised_at = clock_timestamp()
    WHERE resource = p_resource COLLATE "C" AND token = p_from AND lease_id = p_from_lease COLLATE "C";
  IF NOT FOUND THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    PERFORM fencepost.refuse('SF007', 'the mark is not the one to be reset', p_resource, p_from, p_from_lease, m.token, m.lease_id, p_resource = '');
  END IF;
  INSERT INTO fencepost.mark_resets (resource, from_token, from_lease, to_token, to_lease, issuers_last, actor, reason)
    VALUES (p_resource, p_from, p_from_lease, p_to, p_to_lease, p_issuers_last, p_actor, p_reason);
END $$;

-- Only the owner, who migrates, may use any of this until others are granted
-- rights.
REVOKE ALL ON fencepost.marks, fencepost.lock_salt, fencepost.mark_resets FROM PUBLIC;
REVOKE ALL ON FUNCTION
  fencepost.no_salt, fencepost.lock_salt, fencepost.lock_key, fencepost.join_resource, fencepost.verdict, fencepost.refuse, fencepost.judge, fencepost.mark,
  fencepost.check_level, fencepost.check_claim, fencepost.set_timeouts, fencepost.make_durable,
  fencepost.raise, fencepost.enter, fencepost.refuse_entry, fencepost.enter_snapshot, fencepost.enter_row, fencepost.holders, fencepost.session,
  fencepost.retire, fencepost.keep_resets, fencepost.reset,
  fencepost.claims, fencepost.present, fencepost.presented, fencepost.counters, fencepost.count_refusal
  FROM PUBLIC;
