-- The part of schema fencepost that belongs to package sqlfence: triggers that
-- refuse every writer of a table without a current claim, in any program.
--
-- Reading order: present, and require, which each trigger calls; then guard_body,
-- which writes the trigger of a table, and install_guard.
--
-- Values of types that an application may own are converted to text only by
-- their output function (see guard_body), because the triggers run with their
-- owner's rights.

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

-- present makes a claim known to the triggers for the rest of the transaction.
-- It decides nothing; the triggers compare the claim when something is written.
-- It is the same as setting fencepost.claims directly, with is_local true, to a
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

-- require refuses a write to the resource unless the transaction presented a
-- claim for it and the claim is the resource's mark, and keeps it so until the
-- transaction ends. It keeps no state from one statement to the next: a lock
-- taken inside a savepoint is released with it. A stale writer, which has
-- already locked rows, does not queue for the lock behind a raise, which may be
-- waiting for a session that waits for those rows; marks only grow, so its
-- verdict stands without the lock.
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

-- report is require in report-only mode: it takes no lock and warns of writes
-- that would have been refused.
CREATE FUNCTION fencepost.report(p_resource text, p_table text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.judge(p_resource, c.token, c.lease, false) FROM fencepost.presented(p_resource, p_table) c;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING USING ERRCODE = SQLSTATE, MESSAGE = format('fencepost: would refuse a write of %s: %s', p_table, SQLERRM);
END $$;

-- refuse_truncate refuses to truncate a table that holds many resources: no
-- claim covers them all.
CREATE FUNCTION fencepost.refuse_truncate(p_table text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'SF003',
    MESSAGE = format('fencepost: %s is guarded and has many resources, no claim covers its truncation', p_table),
    DETAIL = json_build_object('resource', '', 'table', p_table)::text,
    HINT = 'Delete the rows of a resource under its claim.';
END $$;

-- guarded lists the tables that were put under triggers, so that missing
-- triggers, or a partition added later, can be detected. parts are the
-- components of the resource's template, in order: {"text"} for a literal,
-- {"variable", "type", "column"} for a variable and the column it is bound to.
CREATE TABLE fencepost.guarded (
  schema_name  text        NOT NULL,
  table_name   text        NOT NULL,
  parts        jsonb       NOT NULL,
  report_only  boolean     NOT NULL,
  installed_at timestamptz NOT NULL DEFAULT now(),
  installed_by text        NOT NULL DEFAULT session_user,
  PRIMARY KEY (schema_name, table_name)
);

-- guard_name is the name of the trigger function of a table.
CREATE FUNCTION fencepost.guard_name(p_schema text, p_table text)
RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'guard_' || left(encode(sha256(convert_to(length(p_schema) || ':' || p_schema || p_table, 'UTF8')), 'hex'), 32)
$$;

-- guard_body is the text of the trigger function of a table. It is specific to
-- the table, so that its plans are kept. It makes one check for each resource
-- that a statement touched, after everything else that may change its rows. An
-- update is checked for the old and the new resources of its rows.
--
-- A column's text is taken with format, which calls the type's output function:
-- those belong to the server or a superuser. A cast would not do: it may be a
-- function of the type's owner, which would run with the rights of this
-- function, and the column's type may change later. quote_all_identifiers is
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

-- guard_obstacle returns why a table cannot be guarded as described; NULL if it
-- can.
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
    RETURN 'has a foreign table as a partition or child, whose writes triggers cannot fully see';
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
      RETURN format('has a column %I that is a virtual generated column', part ->> 'column');
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

-- lock_guards lets one installation run at a time and removes entries of tables
-- that are gone.
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
-- changes nothing, and takes no lock on the table, if everything is in place.
-- It runs with the rights of its caller, who must own the table and be allowed
-- to write in schema fencepost.
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

-- remove_guard removes the triggers. A NULL table only removes the entries of
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
-- this schema but is not listed, with what is wrong with it.
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

REVOKE ALL ON fencepost.guarded FROM PUBLIC;
REVOKE ALL ON FUNCTION
  fencepost.join_resource, fencepost.present, fencepost.presented, fencepost.require, fencepost.report, fencepost.refuse_truncate,
  fencepost.guard_name, fencepost.guard_body, fencepost.guard_tree, fencepost.guard_obstacle, fencepost.guard_problems,
  fencepost.drop_guard_function, fencepost.lock_guards, fencepost.install_guard, fencepost.remove_guard, fencepost.guard_status
  FROM PUBLIC;
