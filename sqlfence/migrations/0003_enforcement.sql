-- Enforcement: triggers that refuse every writer of a table without a current
-- claim, whatever program it is. The functions here judge a writer; the next
-- migration puts tables under them.

-- join_resource is guard.JoinResource.
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
-- JSON array of claims.
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

-- require refuses a write of the resource unless the transaction presented a
-- claim for it and the claim is the resource's mark, and keeps it so until the
-- transaction ends. It remembers nothing from one statement to the next: a lock
-- that was taken inside a savepoint goes with it. A stale writer, who has locked
-- rows already, does not queue for the lock behind a raise, which may wait for
-- one who waits for those rows; marks only grow, so its verdict stands without
-- the lock. In report-only mode no lock is taken, and it warns of what it would
-- have refused.
CREATE FUNCTION fencepost.require(p_resource text, p_table text, p_report_only boolean)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claims text := current_setting('fencepost.claims', true);
  claim  jsonb;
  m      fencepost.marks;
BEGIN
  IF claims <> '' THEN
    SELECT c INTO claim FROM jsonb_array_elements(claims::jsonb) c WHERE c ->> 'resource' = p_resource COLLATE "C";
  END IF;
  IF p_report_only THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    IF claim IS NULL OR m.token IS DISTINCT FROM (claim ->> 'token')::bigint OR m.lease_id <> coalesce(claim ->> 'leaseId', '') COLLATE "C" THEN
      RAISE WARNING USING
        ERRCODE = CASE WHEN claim IS NULL THEN 'SF003' WHEN m.token > (claim ->> 'token')::bigint THEN 'SF001'
                       WHEN m.token = (claim ->> 'token')::bigint THEN 'SF002' ELSE 'SF004' END,
        MESSAGE = format('fencepost: would refuse a write of %s: resource %L, claim %s, mark %s', p_table, p_resource,
                    coalesce(claim ->> 'token', 'none'), coalesce(m.token::text, 'none'));
    END IF;
    RETURN;
  END IF;
  IF claim IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'SF003',
      MESSAGE = format('fencepost: no claim for %L was presented, and %s is guarded', p_resource, p_table),
      DETAIL = json_build_object('resource', p_resource, 'table', p_table)::text,
      HINT = 'Call fencepost.present(resource, token, lease) in the same transaction; in Go, set Options.PresentClaims of package sqlfence, or call Present.';
  END IF;
  IF NOT pg_try_advisory_xact_lock_shared(hashtextextended(p_resource COLLATE "C", 7378697629483820646)) THEN
    SELECT * INTO m FROM fencepost.marks WHERE resource = p_resource COLLATE "C";
    IF m.token > (claim ->> 'token')::bigint THEN
      PERFORM fencepost.refuse('SF001', 'stale fencing token', p_resource, (claim ->> 'token')::bigint, coalesce(claim ->> 'leaseId', ''), m.token, m.lease_id, false);
    END IF;
  END IF;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    PERFORM fencepost.enter(p_resource, (claim ->> 'token')::bigint, coalesce(claim ->> 'leaseId', ''), 0, 0);
  ELSE
    PERFORM fencepost.enter_snapshot(p_resource, (claim ->> 'token')::bigint, coalesce(claim ->> 'leaseId', ''), 0, 0);
  END IF;
END $$;

-- refuse_truncate refuses to empty a table that holds many resources: no claim
-- covers them all.
CREATE FUNCTION fencepost.refuse_truncate(p_table text, p_report_only boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_report_only THEN
    RAISE WARNING USING ERRCODE = 'SF003', MESSAGE = format('fencepost: would refuse to truncate %s', p_table);
    RETURN;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'SF003',
    MESSAGE = format('fencepost: %s is guarded and has many resources, no claim covers its truncation', p_table),
    DETAIL = json_build_object('resource', '', 'table', p_table)::text,
    HINT = 'Delete the rows of a resource under its claim.';
END $$;

-- guarded lists the tables that were put under triggers, so that triggers that
-- are gone, or a partition that came later, are noticed.
CREATE TABLE fencepost.guarded (
  schema_name  text        NOT NULL,
  table_name   text        NOT NULL,
  parts        jsonb       NOT NULL,
  report_only  boolean     NOT NULL,
  installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  installed_by text        NOT NULL DEFAULT session_user,
  PRIMARY KEY (schema_name, table_name)
);

REVOKE ALL ON fencepost.guarded FROM PUBLIC;
DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname IN ('join_resource', 'present', 'require', 'refuse_truncate') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
  END LOOP;
END $$;
