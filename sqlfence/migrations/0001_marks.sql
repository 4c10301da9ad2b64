-- Marks: the highest claim that each resource admitted. Nothing but the
-- functions below touches this table. The row whose resource is '' is the
-- floor: the highest token among the marks that were retired.
CREATE TABLE fencepost.marks (
  resource  text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) <= 512),
  token     bigint      NOT NULL CHECK (token BETWEEN 1 AND 9223372036854775806),
  lease_id  text        NOT NULL DEFAULT '' CHECK (octet_length(lease_id) <= 128),
  raised_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

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
                'mark', json_build_object('token', coalesce(p_mark, 0)::text, 'leaseId', coalesce(p_mark_lease, ''), 'floor', p_floor))::text;
END $$;

-- check_server refuses transactions in which the functions would not be safe.
-- READ COMMITTED is required because only there does a statement that follows
-- the lock read with a snapshot newer than the lock. A standby is refused
-- because its locks and its marks are not the primary's.
CREATE FUNCTION fencepost.check_server()
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'SF005',
      MESSAGE = format('fencepost: isolation level %s is refused, the transaction must be READ COMMITTED', current_setting('transaction_isolation'));
  END IF;
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction', MESSAGE = 'fencepost: this server is a standby';
  END IF;
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

-- raise puts a claim in the place of a lower mark. It waits until every
-- transaction that entered under the lower mark has ended, so that what is
-- read after it cannot be overwritten by them. Run it in a transaction of its
-- own, so that the mark survives a rollback of the work. Raising to the claim
-- that already is the mark changes nothing and waits for nobody. The collation
-- is named because a caller's may hash one name to several locks, or take two
-- lease IDs for one.
CREATE FUNCTION fencepost.raise(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
  f bigint;
BEGIN
  PERFORM fencepost.check_server(), fencepost.check_claim(p_resource, p_token, p_lease);
  SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
  -- Marks only grow, so these verdicts stand. Without the lock a stale caller
  -- does not queue in front of the holder's next transactions.
  IF m.token > p_token THEN
    PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, m.token, m.lease_id, false);
  ELSIF m.token = p_token AND m.lease_id <> p_lease COLLATE "C" THEN
    PERFORM fencepost.refuse('SF002', 'fencing token belongs to another lease', p_resource, p_token, p_lease, m.token, m.lease_id, false);
  ELSIF m.token = p_token THEN
    RETURN;
  END IF;
  -- An acknowledged raise must survive a crash, whatever the server's default.
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
  PERFORM pg_advisory_xact_lock(hashtextextended(p_resource COLLATE "C", 7378697629483820646));
  LOOP -- again if the mark was retired between the statements
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    IF NOT FOUND THEN
      SELECT token INTO f FROM fencepost.marks WHERE resource = '';
      IF f >= p_token THEN
        PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, f, '', true);
      END IF;
      INSERT INTO fencepost.marks (resource, token, lease_id) VALUES (p_resource, p_token, p_lease);
      RETURN;
    END IF;
    IF m.token > p_token THEN
      PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, m.token, m.lease_id, false);
    ELSIF m.token = p_token THEN
      IF m.lease_id <> p_lease COLLATE "C" THEN
        PERFORM fencepost.refuse('SF002', 'fencing token belongs to another lease', p_resource, p_token, p_lease, m.token, m.lease_id, false);
      END IF;
      RETURN;
    END IF;
    UPDATE fencepost.marks SET token = p_token, lease_id = p_lease, raised_at = clock_timestamp()
      WHERE resource = p_resource COLLATE "C";
    IF FOUND THEN
      RETURN;
    END IF;
  END LOOP;
END $$;

-- refuse_entry says why enter found no mark that equals the claim.
CREATE FUNCTION fencepost.refuse_entry(p_resource text, p_token bigint, p_lease text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  m fencepost.marks;
BEGIN
  PERFORM fencepost.check_server(), fencepost.check_claim(p_resource, p_token, p_lease);
  SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
  IF m.token = p_token AND m.lease_id <> p_lease COLLATE "C" THEN
    PERFORM fencepost.refuse('SF002', 'fencing token belongs to another lease', p_resource, p_token, p_lease, m.token, m.lease_id, false);
  ELSIF m.token > p_token THEN
    PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, p_token, p_lease, m.token, m.lease_id, false);
  END IF;
  PERFORM fencepost.refuse('SF004', 'the mark must be raised first', p_resource, p_token, p_lease, m.token, m.lease_id, false);
END $$;

-- enter fences the transaction that calls it: it holds the resource's lock in
-- shared mode until the transaction ends, so that no raise can pass it, and
-- compares the claim with the mark as it is under that lock. It writes
-- nothing; one holder may run many transactions side by side. A claim above
-- the mark is told to raise first (SF004). The timeouts keep a stopped holder
-- from blocking its successor for ever; 0 leaves the session's own.
--
-- Every fenced transaction pays for it, so it is written for speed: it pins no
-- search_path, which would cost as much as its work, and so names the schema
-- of every operator, function, type and collation, since they would be the
-- caller's otherwise; and it asks in one expression, since each is set up
-- anew in each transaction. Only CASE fixes an order of evaluation
-- (PostgreSQL documentation, 4.2.14). NULLs and tokens out of range equal no
-- mark, so they need no look of their own.
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
    ELSE pg_catalog.pg_advisory_xact_lock_shared(
      pg_catalog.hashtextextended(p_resource COLLATE pg_catalog."C", 7378697629483820646)) IS NULL
  END) THEN
    PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease);
    RAISE EXCEPTION 'fencepost: not entered'; -- never without the lock
  END IF;
  -- A statement of its own: its snapshot is newer than the lock.
  PERFORM FROM fencepost.marks m WHERE m.resource OPERATOR(pg_catalog.=) p_resource COLLATE pg_catalog."C"
    AND m.token OPERATOR(pg_catalog.=) p_token AND m.lease_id OPERATOR(pg_catalog.=) p_lease COLLATE pg_catalog."C";
  IF NOT FOUND THEN
    PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease);
    RAISE EXCEPTION 'fencepost: not entered';
  END IF;
END $$;

-- retire forgets marks that were last raised before the given time and lifts
-- the floor to the highest token among them, in one step. A raise that runs at
-- the same time either finds the mark, and then its update finds the row gone
-- and starts over, or does not find it, and then its next statement finds the
-- floor; a row that it raises meanwhile is compared again and stays.
CREATE FUNCTION fencepost.retire(p_before timestamptz, p_lock_timeout_ms integer, OUT retired bigint, OUT floor bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  top bigint;
BEGIN
  PERFORM fencepost.check_server();
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
  -- One at a time, under the lock of the floor's name, which no claim can have:
  -- two would delete the same rows in different orders, and deadlock.
  PERFORM pg_advisory_xact_lock(hashtextextended('', 7378697629483820646));
  WITH gone AS (
    DELETE FROM fencepost.marks WHERE resource <> '' AND raised_at < p_before RETURNING token
  ) SELECT count(*), max(token) INTO retired, top FROM gone;
  IF retired > 0 THEN
    INSERT INTO fencepost.marks AS m (resource, token) VALUES ('', top)
      ON CONFLICT (resource) DO UPDATE SET token = greatest(m.token, excluded.token), raised_at = clock_timestamp();
  END IF;
  SELECT m.token INTO floor FROM fencepost.marks m WHERE m.resource = '';
  floor := coalesce(floor, 0);
END $$;

-- Only the owner, who migrates, may use these until somebody is granted to.
REVOKE ALL ON fencepost.marks FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.refuse(text, text, text, bigint, text, bigint, text, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.check_server() FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.check_claim(text, bigint, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.refuse_entry(text, bigint, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.raise(text, bigint, text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.enter(text, bigint, text, integer, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencepost.retire(timestamptz, integer) FROM PUBLIC;
