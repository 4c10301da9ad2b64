-- The part of schema fencepost that belongs to package sqlfence: triggers that
-- refuse every writer of a table without a current claim, in any program. They see
-- every row, and are bound to their table whatever its name.
--
-- They are row triggers: a statement trigger does not see every row of its table. A MERGE
-- that moves a row to another partition shows it in no transition table, or in one of
-- two; and what is written through another table, under which the guarded one was put by
-- ATTACH PARTITION or INHERIT, or directly into a partition, fires that table's statement
-- triggers. Row triggers cost little because their WHEN is false for all rows of a
-- resource but the first in a transaction.
--
-- Reading order: guard_when, guard_body, which is what a trigger runs, and what that calls: require, with
-- present in 0001_marks.sql, or report (report-only mode) or refuse_truncate (many
-- resources); then install_guard, guard_problems.
--
-- Values of types that an application may own are converted to text only by
-- their output function (see guard_body), because the triggers run with their
-- owner's rights.

-- ==== What triggers call ====

-- require refuses a write to the resource unless the transaction presented a
-- claim for it and the claim is the resource's mark, and keeps it so until the
-- transaction ends, or is rolled back to a savepoint from before. A stale writer, which has
-- already locked rows, does not queue for the lock behind a raise, which may be
-- waiting for a session that waits for those rows; marks only grow, so its
-- verdict stands without the lock. The mark is read by a statement of its own, whose
-- snapshot is newer than the lock.
CREATE FUNCTION fencepost.require(p_resource text, p_table text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claim record;
BEGIN
  SELECT * INTO claim FROM fencepost.presented(p_resource, p_table);
  IF NOT pg_try_advisory_xact_lock_shared(fencepost.lock_key(p_resource)) THEN
    PERFORM fencepost.judge(p_resource, claim.token, claim.lease, true);
    PERFORM pg_advisory_xact_lock_shared(fencepost.lock_key(p_resource));
  END IF;
  IF current_setting('transaction_isolation') = 'read committed' THEN
    PERFORM fencepost.judge(p_resource, claim.token, claim.lease, false);
  ELSE
    PERFORM fencepost.check_level('read committed', 'repeatable read', 'serializable');
    PERFORM fencepost.enter_snapshot(p_resource, claim.token, claim.lease, 0, 0);
  END IF;
END $$;

-- report is require in report-only mode: it takes no lock, and counts and warns of
-- writes that would have been refused.
CREATE FUNCTION fencepost.report(p_resource text, p_table text, p_guard text)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.judge(p_resource, c.token, c.lease, false) FROM fencepost.presented(p_resource, p_table) c;
EXCEPTION WHEN OTHERS THEN
  PERFORM fencepost.count_refusal(p_guard, p_table, SQLSTATE, SQLERRM);
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

-- ==== What triggers are: their functions, conditions and tables ====

-- guarded lists the tables that were put under triggers, so that missing
-- triggers, or a partition added later, can be detected. guard is the name of a
-- table's trigger function, which no two tables share: the table is the one that has
-- triggers with this function, and its name here is the one that it had at the last
-- installation. parts are the components of the resource's template, in order:
-- {"text"} for a literal, {"variable", "type", "column"} for a variable and the
-- column it is bound to. columns are the numbers of these columns, in order.
CREATE TABLE fencepost.guarded (
  guard        text        PRIMARY KEY,
  schema_name  text        NOT NULL,
  table_name   text        NOT NULL,
  parts        jsonb       NOT NULL,
  columns      int2[]      NOT NULL,
  report_only  boolean     NOT NULL,
  installed_at timestamptz NOT NULL DEFAULT now(),
  installed_by text        NOT NULL DEFAULT session_user
);

-- guard_when is the WHEN of a row trigger: true for the first row of each resource. It
-- lists the resources of the rows that it has let through to a check. The check takes a
-- lock, and keeps the mark as it is, until the transaction ends or is rolled back to a
-- savepoint before it: so long does the list last, which is a local setting. A list that
-- is too long forgets, and costs checks. It runs with the rights of whoever writes, and so
-- calls only system functions.
CREATE FUNCTION fencepost.guard_when(p_event text, p_guard text, p_parts jsonb)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
DECLARE
  list text := format('coalesce(current_setting(%L, true), '''')', 'fencepost.' || p_guard);
  old  text := fencepost.guard_key('OLD.', p_parts);
  new  text := fencepost.guard_key('NEW.', p_parts);
BEGIN
  RETURN CASE WHEN p_event <> 'truncate' THEN format('CASE WHEN %s THEN false ELSE set_config(%L, right(%s || %s, 8000), true) <> '''' END',
    CASE p_event WHEN 'insert' THEN format('strpos(%s, %s) > 0', list, new) WHEN 'delete' THEN format('strpos(%s, %s) > 0', list, old)
      WHEN 'update' THEN format('strpos(%s, %s) > 0 AND strpos(%1$s, %s) > 0', list, old, new) END,
    'fencepost.' || p_guard, list, CASE p_event WHEN 'insert' THEN new WHEN 'delete' THEN old ELSE old || ' || ' || new END) END;
END $$;

-- guard_key is the expression for the key of a row: the values that name its resource,
-- quoted, so that no key is a part of another one or of two. The columns may have
-- different collations, with which strpos could not compare.
CREATE FUNCTION fencepost.guard_key(p_row text, p_parts jsonb)
RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
  SELECT format('format(%L%s) COLLATE "C"', ' ' || coalesce(string_agg('%L', ',' ORDER BY n), '') || ';', coalesce(string_agg(format(', %s%I', p_row, part ->> 'column'), '' ORDER BY n), ''))
    FROM jsonb_array_elements(p_parts) WITH ORDINALITY AS x(part, n) WHERE part ? 'column'
$$;

-- replicated reports whether a logical subscription's worker is writing: what it copies
-- at first (statement triggers fire), applies (row triggers) and truncates (statement
-- triggers) was checked on the publisher.
CREATE FUNCTION fencepost.replicated()
RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pg_stat_get_subscription(NULL) WHERE pid = pg_backend_pid())
$$;

-- guard_body is the text of a trigger function. It is specific to the resource,
-- so that its plans are kept, and not to the table's name. It makes its check at the end of
-- the statement, after everything else that may change its rows, for the old and the new
-- resource of a row.
--
-- A column's text is taken with format, which calls the type's output function:
-- those belong to the server or a superuser. A cast would not do: it may be a
-- function of the type's owner, which would run with the rights of this
-- function. quote_all_identifiers is pinned because the text is compared with the one
-- installed.
CREATE FUNCTION fencepost.guard_body(p_guard text, p_parts jsonb, p_report_only boolean)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
DECLARE
  judge    text := CASE WHEN p_report_only THEN format('PERFORM fencepost.report(%%s, label, %L);', p_guard) ELSE 'PERFORM fencepost.require(%s, label);' END;
  truncate text := 'PERFORM fencepost.refuse_truncate(label);';
  of_row   text[] := ARRAY(
    SELECT 'ARRAY[' || string_agg(CASE WHEN part ? 'column' THEN format('format(''%%s'', %s%I)', prefix, part ->> 'column')
        ELSE quote_literal(part ->> 'text') END || ' COLLATE "C"', ', ' ORDER BY n) || ']'
      FROM unnest(ARRAY['OLD.', 'NEW.']) WITH ORDINALITY AS p(prefix, k), jsonb_array_elements(p_parts) WITH ORDINALITY AS x(part, n)
      GROUP BY k ORDER BY k);
BEGIN
  IF NOT EXISTS (SELECT FROM jsonb_array_elements(p_parts) part WHERE part ? 'column') THEN
    SELECT format(judge, quote_literal(fencepost.join_resource(VARIADIC array_agg(part ->> 'text' ORDER BY n))))
      INTO truncate FROM jsonb_array_elements(p_parts) WITH ORDINALITY AS x(part, n);
  END IF;
  RETURN format($body$
DECLARE
  was     text[];
  becomes text[];
  label   text := format('%%I.%%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
BEGIN
  IF current_setting('session_replication_role') = 'replica' AND fencepost.replicated() THEN
    RETURN NULL;
  END IF;%5$s
  IF TG_OP = 'TRUNCATE' THEN
    %1$s
    RETURN NULL;
  END IF;
  PERFORM fencepost.refuse_swapped(TG_RELID, TG_NAME, label, %8$L);
  IF TG_OP <> 'INSERT' THEN
    was := %2$s;
    %4$s
  END IF;
  IF TG_OP <> 'DELETE' THEN
    becomes := %3$s;
    IF becomes IS DISTINCT FROM was THEN
      %7$s
    END IF;
  END IF;%6$s
  RETURN NULL;
END $body$, truncate, of_row[1], of_row[2], format(judge, 'fencepost.join_resource(VARIADIC was)'),
    CASE WHEN p_report_only THEN '
  BEGIN' ELSE '' END,
    CASE WHEN p_report_only THEN '
  EXCEPTION WHEN OTHERS THEN -- report-only refuses nothing, malformed claims and rows included
    PERFORM fencepost.count_refusal(' || quote_literal(p_guard) || ', label, SQLSTATE, SQLERRM);
  END;' ELSE '' END, format(judge, 'fencepost.join_resource(VARIADIC becomes)'),
    (SELECT array_agg(part ->> 'column') FROM jsonb_array_elements(p_parts) part WHERE part ? 'column'));
END $$;

-- refuse_swapped refuses a write where a column that names the resource was renamed and
-- another one has its name now: the trigger's WHEN goes by the column, and its function by
-- the name, so that the WHEN could pass over a resource that the function has not seen.
CREATE FUNCTION fencepost.refuse_swapped(p_relation oid, p_trigger name, p_table text, p_columns text[])
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT m[1]::int2 FROM pg_trigger t, regexp_matches(t.tgqual::text, ':varattno (\d+)', 'g') m WHERE t.tgrelid = p_relation AND t.tgname = p_trigger
      EXCEPT SELECT attnum FROM pg_attribute WHERE attrelid = p_relation AND attname = ANY (p_columns)) THEN
    RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
      MESSAGE = format('fencepost: %s is guarded by columns that were renamed since', p_table), HINT = 'Install the triggers again.';
  END IF;
END $$;

-- guard_name is the name of the trigger function of a table: the one that its
-- triggers have, NULL if there is none.
CREATE FUNCTION fencepost.guard_name(p_table oid)
RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT p.proname::text FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = p_table AND p.pronamespace = 'fencepost'::regnamespace AND starts_with(p.proname, 'guard_')
    GROUP BY p.proname ORDER BY EXISTS (SELECT FROM fencepost.guarded WHERE guard = p.proname) DESC, count(*) DESC, p.proname LIMIT 1
$$;

-- guard_table finds the table of a guard by its triggers, whatever its name is
-- now; if several have them and none is another's ancestor, the one that has the
-- name, then the one with row triggers, which a partition loses when it is
-- detached. A guard whose triggers are gone is found only by the name.
CREATE FUNCTION fencepost.guard_table(p_guard text, p_schema text, p_table text)
RETURNS oid LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH named AS (SELECT to_regclass(format('%I.%I', p_schema, p_table))::oid AS relid),
  has AS (SELECT tgrelid, tgfoid, bool_or(tgname <> 'fencepost_truncate') AS rows FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid
    WHERE pronamespace = 'fencepost'::regnamespace AND proname = p_guard GROUP BY 1, 2)
  SELECT coalesce(
    (SELECT tgrelid FROM has WHERE NOT EXISTS (SELECT FROM pg_inherits JOIN has h ON h.tgrelid = inhparent WHERE inhrelid = has.tgrelid)
      ORDER BY tgrelid = (SELECT relid FROM named) DESC NULLS LAST, rows DESC, tgrelid LIMIT 1),
    (SELECT relid FROM named WHERE fencepost.guard_name(relid) IS NULL))
$$;

-- guard_tree lists a table with its partitions and inheritance children.
CREATE FUNCTION fencepost.guard_tree(p_table oid)
RETURNS SETOF oid LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE tree(relid) AS (
    SELECT p_table UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = relid
  ) SELECT relid FROM tree
$$;

-- guard_late lists the partitions that were attached after the triggers were installed:
-- they have row triggers from their root, and none for TRUNCATE.
CREATE FUNCTION fencepost.guard_late(p_table oid)
RETURNS SETOF oid LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT relid FROM fencepost.guard_tree(p_table) AS r(relid) JOIN pg_class c ON c.oid = relid WHERE c.relispartition AND relid <> p_table
    AND NOT EXISTS (SELECT FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid WHERE tgrelid = relid AND tgparentid = 0 AND p.pronamespace = 'fencepost'::regnamespace)
$$;

-- guard_columns are the numbers of the columns in parts, in order.
CREATE FUNCTION fencepost.guard_columns(p_table oid, p_parts jsonb)
RETURNS int2[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY(SELECT a.attnum FROM jsonb_array_elements(p_parts) WITH ORDINALITY AS x(part, n)
    JOIN pg_attribute a ON a.attrelid = p_table AND a.attname = part ->> 'column' ORDER BY n)
$$;

-- ==== Installation, its checks and its removal ====

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
  ELSIF EXISTS (SELECT FROM pg_inherits WHERE inhrelid IN (SELECT fencepost.guard_tree(p_table)) AND inhparent NOT IN (SELECT fencepost.guard_tree(p_table))) THEN
    RETURN (SELECT format('has the child %s, which also inherits from %s: writes through that one cost a check for each row', inhrelid::regclass, inhparent::regclass) FROM pg_inherits
      WHERE inhrelid IN (SELECT fencepost.guard_tree(p_table)) AND inhparent NOT IN (SELECT fencepost.guard_tree(p_table)) LIMIT 1);
  ELSIF EXISTS (SELECT FROM pg_class WHERE oid IN (SELECT fencepost.guard_tree(p_table)) AND relkind NOT IN ('r', 'p')) THEN
    RETURN 'has a foreign table as a partition or child, whose writes triggers cannot fully see';
  ELSIF EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid WHERE tgrelid IN (SELECT fencepost.guard_tree(p_table))
      AND tgname IN ('fencepost_insert', 'fencepost_update', 'fencepost_delete', 'fencepost_truncate')
      AND pronamespace <> 'fencepost'::regnamespace) THEN
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
      RETURN format('has a column %I that may be NULL, which names no resource: SET NOT NULL', part ->> 'column');
    ELSIF a.attgenerated NOT IN ('', 's') THEN
      RETURN format('has a column %I that is a virtual generated column', part ->> 'column');
    ELSIF a.attgenerated = 's' AND c.relkind = 'p' THEN
      RETURN format('is partitioned and has a column %I that is generated: triggers see a row as it was before its partition generated the column', part ->> 'column');
    ELSIF NOT (a.typtype = 'e' OR a.typoid IN ('text'::regtype, 'varchar'::regtype, 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype)) THEN
      RETURN format('has a column %1$I of type %2$s; only text, varchar, smallint, integer, bigint, uuid and enums have one text for equal values under every setting. Add a column of one of these that has the value, such as text GENERATED ALWAYS AS (%3$I::text) STORED for numeric, or int GENERATED ALWAYS AS (extract(year FROM %3$I)::int * 100 + extract(month FROM %3$I)::int) STORED for the month of a date, and name the resource by it', part ->> 'column', a.typname, part ->> 'column');
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

-- guard_triggers lists the triggers of a guard: the kind of each (pg_trigger.tgtype)
-- and its definition after CREATE TRIGGER and the name, with places for the table
-- and the function. Row triggers of a partitioned table are made on its root, and
-- the server gives them to its partitions, later ones included.
CREATE FUNCTION fencepost.guard_triggers()
RETURNS TABLE (event text, type int, definition text) LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  VALUES ('insert', 5, 'AFTER INSERT ON %s FOR EACH ROW'), ('update', 17, 'AFTER UPDATE ON %s FOR EACH ROW'),
    ('delete', 9, 'AFTER DELETE ON %s FOR EACH ROW'), ('truncate', 32, 'AFTER TRUNCATE ON %s FOR EACH STATEMENT')
$$;

-- guard_problems compares what is installed with what should be.
CREATE FUNCTION fencepost.guard_problems(p_table oid, p_parts jsonb, p_report_only boolean)
RETURNS TABLE (relation text, problem text) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root       text := p_table::regclass::text;
  guard_name text := fencepost.guard_name(p_table);
  s          text;
  t          text;
  g          fencepost.guarded;
  f          pg_proc;
  o          record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_class WHERE oid = p_table) THEN
    RETURN QUERY SELECT root, 'the table does not exist'::text;
    RETURN;
  END IF;
  IF fencepost.guard_obstacle(p_table, p_parts) IS NOT NULL THEN
    RETURN QUERY SELECT root, 'the table ' || fencepost.guard_obstacle(p_table, p_parts);
    RETURN;
  END IF;
  SELECT nspname, relname INTO s, t FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = p_table;
  SELECT * INTO g FROM fencepost.guarded WHERE CASE WHEN guard_name IS NULL THEN schema_name = s AND table_name = t ELSE guard = guard_name END
    AND fencepost.guard_table(guard, schema_name, table_name) = p_table;
  IF g.guard IS NULL THEN
    RETURN QUERY SELECT root, 'the table is not listed in fencepost.guarded'::text;
  ELSIF g.parts <> p_parts OR g.report_only <> p_report_only THEN
    RETURN QUERY SELECT root, 'the table is listed in fencepost.guarded with another resource or mode'::text;
  ELSIF g.columns <> fencepost.guard_columns(p_table, p_parts) THEN
    RETURN QUERY SELECT root, 'the columns of its resource are not those that were guarded: columns were renamed, or the database was restored from a dump'::text;
    RETURN; -- what follows goes by their names
  END IF;
  IF (g.schema_name, g.table_name) <> (s, t) THEN
    RETURN QUERY SELECT root, format('the table was guarded as %I.%I and has been renamed since; what has that name now may not be guarded', g.schema_name, g.table_name);
  END IF;
  SELECT * INTO f FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname = coalesce(g.guard, guard_name) AND pronargs = 0;
  IF NOT FOUND THEN
    RETURN QUERY SELECT root, 'the trigger function is missing'::text;
    RETURN;
  END IF;
  IF f.prosrc <> fencepost.guard_body(f.proname, p_parts, p_report_only) OR NOT f.prosecdef OR f.provolatile <> 'v'
     OR f.proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp'] THEN
    RETURN QUERY SELECT root, format('the trigger function fencepost.%s is not of this version, or not for this resource or mode', f.proname);
  END IF;
  IF p_report_only AND EXISTS (
      SELECT FROM fencepost.counters(f.proname) WHERE has_sequence_privilege(to_regclass(name), 'USAGE') IS NOT TRUE) THEN
    RETURN QUERY SELECT root, 'counters of report-only mode are missing, or the owner of the schema may not use them, so that some refusals are not counted'::text;
  END IF;
  FOR o IN
    SELECT r.relid, e.event, t.oid AS found, t.tgenabled, t.tgtype = e.type AND t.tgfoid = f.oid AND t.tgattr = '' AND t.tgnargs = 0 AND t.tgconstraint = 0
      AND regexp_replace(lower(substring(pg_get_triggerdef(t.oid) FROM ' WHEN \((.*)\) EXECUTE FUNCTION ')), '::"?text"?|[()"[:space:]]', '', 'g')
        IS NOT DISTINCT FROM regexp_replace(lower(fencepost.guard_when(e.event, f.proname, p_parts)), '::"?text"?|[()"[:space:]]', '', 'g') AS matches
    FROM fencepost.guard_tree(p_table) AS r(relid)
    CROSS JOIN fencepost.guard_triggers() e
    LEFT JOIN pg_trigger t ON t.tgrelid = r.relid AND t.tgname = 'fencepost_' || e.event
    WHERE e.event <> 'truncate' OR r.relid NOT IN (SELECT fencepost.guard_late(p_table))
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
  RETURN QUERY SELECT root, format('partitions that were attached after the triggers, such as %s, let the TRUNCATE of %s through, as nothing else: REVOKE TRUNCATE, or install the triggers again whenever one was attached',
      min(c.oid::regclass::text), string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END, ', '))
    FROM fencepost.guard_late(p_table) l JOIN pg_class c ON c.oid = l, aclexplode(c.relacl) a WHERE a.privilege_type = 'TRUNCATE' AND a.grantee <> c.relowner HAVING count(*) > 0;
END $$;

-- drop_guard_function drops a trigger function, and its counters, once nothing uses it.
CREATE FUNCTION fencepost.drop_guard_function(p_guard text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  f       oid := to_regprocedure(format('fencepost.%I()', p_guard));
  counter text;
BEGIN
  IF EXISTS (SELECT FROM pg_trigger WHERE tgfoid = f) THEN
    RETURN;
  ELSIF f IS NOT NULL THEN
    EXECUTE format('DROP FUNCTION fencepost.%I()', p_guard);
  END IF;
  FOR counter IN SELECT name FROM fencepost.counters(p_guard) WHERE to_regclass(name) IS NOT NULL LOOP
    EXECUTE 'DROP SEQUENCE ' || counter;
  END LOOP;
END $$;

-- start_counters sets the counters of a guard to zero. They are not made anew, since
-- whoever has counted locks them until its transaction ends, and not dropped when the
-- mode changes. The owner of the schema counts, whoever installs.
CREATE FUNCTION fencepost.start_counters(p_guard text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  counter text;
BEGIN
  FOR counter IN SELECT name FROM fencepost.counters(p_guard) LOOP
    IF to_regclass(counter) IS NULL THEN
      EXECUTE 'CREATE SEQUENCE ' || counter;
      EXECUTE 'REVOKE ALL ON SEQUENCE ' || counter || ' FROM PUBLIC';
      EXECUTE 'GRANT ALL ON SEQUENCE ' || counter || ' TO ' || (SELECT relowner::regrole FROM pg_class WHERE oid = 'fencepost.guarded'::regclass);
    END IF;
    PERFORM setval(counter, 1, false);
  END LOOP;
END $$;

-- lock_guards lets one installation run at a time and removes entries of tables
-- that are gone. The others, which have no lock yet, wait in their queue for six times as
-- long as for a table.
CREATE FUNCTION fencepost.lock_guards(p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.set_timeouts(6 * p_lock_timeout_ms, 0);
  PERFORM pg_advisory_xact_lock(hashtextextended('fencepost.guarded', 0));
  PERFORM fencepost.set_timeouts(p_lock_timeout_ms, 0);
  PERFORM fencepost.drop_guard_function(guard) FROM fencepost.guarded WHERE fencepost.guard_table(guard, schema_name, table_name) IS NULL;
  DELETE FROM fencepost.guarded WHERE fencepost.guard_table(guard, schema_name, table_name) IS NULL;
END $$;

-- install_guard puts a table, its partitions and children under triggers. It
-- changes nothing, and takes no lock on the table, if everything is in place.
-- It runs with the rights of its caller, who must own the table and be allowed
-- to write in schema fencepost. A trigger function that another table also has is
-- left to that one.
CREATE FUNCTION fencepost.install_guard(p_table regclass, p_parts jsonb, p_report_only boolean, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  obstacle text := fencepost.guard_obstacle(p_table, p_parts);
  old      text;
  guard    text;
  relation oid;
  made     record;
  gone     text[];
BEGIN
  IF obstacle IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('fencepost: %s cannot be guarded: it %s', p_table, obstacle);
  END IF;
  PERFORM set_config('jit', 'off', true); -- to compile the checks takes ten times as long as they do
  IF NOT EXISTS (SELECT FROM fencepost.guard_problems(p_table, p_parts, p_report_only)) AND NOT EXISTS (SELECT FROM fencepost.guard_late(p_table)) THEN
    RETURN;
  END IF;
  PERFORM fencepost.lock_guards(p_lock_timeout_ms);
  IF NOT EXISTS (SELECT FROM fencepost.guard_problems(p_table, p_parts, p_report_only)) AND NOT EXISTS (SELECT FROM fencepost.guard_late(p_table)) THEN -- another one has done it
    RETURN;
  END IF;
  WITH d AS (DELETE FROM fencepost.guarded WHERE fencepost.guard_table(guarded.guard, schema_name, table_name) = p_table RETURNING guarded.guard)
    SELECT array_agg(d.guard) INTO gone FROM d; -- also that of a dropped table of this name
  old := fencepost.guard_name(p_table);
  guard := old;
  IF guard IS NULL OR EXISTS (SELECT FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid
      WHERE pronamespace = 'fencepost'::regnamespace AND proname = guard AND tgrelid NOT IN (SELECT fencepost.guard_tree(p_table))) THEN
    guard := 'guard_' || replace(gen_random_uuid()::text, '-', '');
  END IF;
  EXECUTE format('CREATE OR REPLACE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
    guard, fencepost.guard_body(guard, p_parts, p_report_only));
  EXECUTE format('REVOKE ALL ON FUNCTION fencepost.%I() FROM PUBLIC', guard);
  -- The lock on the root keeps partitions from being attached until the end. It is at
  -- once the one that dropping a trigger needs: a writer that has read the table and
  -- waits for a weaker one would be a deadlock.
  EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', p_table, CASE WHEN old IS NULL THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END);
  PERFORM fencepost.drop_guards(p_table);
  IF p_report_only THEN
    PERFORM fencepost.start_counters(guard);
  END IF;
  FOR relation IN SELECT fencepost.guard_tree(p_table) LOOP
    FOR made IN SELECT * FROM fencepost.guard_triggers() LOOP
      IF made.event = 'truncate' OR NOT (SELECT relispartition FROM pg_class WHERE oid = relation) THEN
        EXECUTE format('CREATE TRIGGER fencepost_%s %s %s EXECUTE FUNCTION fencepost.%I()', made.event, format(made.definition, relation::regclass),
          coalesce('WHEN (' || fencepost.guard_when(made.event, guard, p_parts) || ')', ''), guard);
      END IF;
      EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER fencepost_%s', relation::regclass, made.event);
    END LOOP;
  END LOOP;
  INSERT INTO fencepost.guarded (guard, schema_name, table_name, parts, report_only, columns)
    SELECT guard, nspname, relname, p_parts, p_report_only, fencepost.guard_columns(p_table, p_parts)
      FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = p_table;
  PERFORM fencepost.drop_guard_function(name) FROM unnest(gone || old) name WHERE name <> guard;
END $$;

-- drop_guards drops every trigger of a table, its partitions and children whose
-- function is one of the schema's. Those that a partition has from its root go
-- with the root's.
CREATE FUNCTION fencepost.drop_guards(p_table oid)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  relation oid;
  name     text;
BEGIN
  FOR relation, name IN
    SELECT tgrelid, tgname FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid
      WHERE tgrelid IN (SELECT fencepost.guard_tree(p_table)) AND tgparentid = 0 AND pronamespace = 'fencepost'::regnamespace AND starts_with(proname, 'guard_')
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', name, relation::regclass);
  END LOOP;
END $$;

-- remove_guard removes the triggers. A NULL table only removes the entries of
-- tables that are gone.
CREATE FUNCTION fencepost.remove_guard(p_table regclass, p_lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  names text[];
BEGIN
  PERFORM fencepost.lock_guards(p_lock_timeout_ms);
  IF NOT EXISTS (SELECT FROM pg_class WHERE oid = p_table) THEN
    RETURN;
  END IF;
  WITH gone AS (DELETE FROM fencepost.guarded WHERE fencepost.guard_table(guard, schema_name, table_name) = p_table RETURNING guard)
    SELECT array_agg(guard) INTO names FROM gone;
  names := array_remove(names || fencepost.guard_name(p_table), NULL);
  PERFORM fencepost.drop_guards(p_table);
  PERFORM fencepost.drop_guard_function(name) FROM unnest(names) name;
END $$;

-- guard_status lists every guarded table, and every table that has triggers of
-- this schema but is not listed, with what is wrong with it, and in report-only mode
-- with what would have been refused since the installation, by reason.
CREATE FUNCTION fencepost.guard_status()
RETURNS TABLE (schema_name text, table_name text, parts jsonb, report_only boolean, refusals jsonb, relation text, problem text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH listed AS MATERIALIZED (
    SELECT g.*, fencepost.guard_table(g.guard, g.schema_name, g.table_name) AS relid FROM fencepost.guarded g
  )
  SELECT coalesce(n.nspname, g.schema_name), coalesce(c.relname, g.table_name), g.parts, g.report_only,
      CASE WHEN g.report_only THEN (SELECT jsonb_object_agg(reason, coalesce(pg_sequence_last_value(to_regclass(name)), 0))
        FROM fencepost.counters(g.guard) WHERE has_sequence_privilege(to_regclass(name), 'USAGE')) END,
      coalesce(p.relation, format('%I.%I', g.schema_name, g.table_name)),
      CASE WHEN c.oid IS NULL THEN 'the table does not exist' ELSE p.problem END
    FROM listed g
    LEFT JOIN pg_class c ON c.oid = g.relid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL fencepost.guard_problems(c.oid, g.parts, g.report_only) p ON c.oid IS NOT NULL
  UNION ALL
  SELECT DISTINCT n.nspname::text, c.relname::text, NULL::jsonb, NULL::boolean, NULL::jsonb, c.oid::regclass::text, 'the table has triggers and is not listed in fencepost.guarded'
    FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid JOIN pg_class c ON c.oid = tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pronamespace = 'fencepost'::regnamespace AND starts_with(p.proname, 'guard_') AND tgparentid = 0
      AND NOT EXISTS (SELECT FROM listed g WHERE c.oid IN (SELECT fencepost.guard_tree(g.relid)))
$$;

REVOKE ALL ON fencepost.guarded FROM PUBLIC;
REVOKE ALL ON FUNCTION
  fencepost.require, fencepost.report, fencepost.start_counters, fencepost.refuse_truncate, fencepost.guard_when, fencepost.guard_key, fencepost.refuse_swapped, fencepost.replicated, fencepost.guard_body, fencepost.guard_name, fencepost.guard_table,
  fencepost.guard_tree, fencepost.guard_late, fencepost.guard_columns, fencepost.guard_obstacle, fencepost.guard_triggers, fencepost.guard_problems,
  fencepost.drop_guard_function, fencepost.lock_guards, fencepost.install_guard, fencepost.drop_guards, fencepost.remove_guard,
  fencepost.guard_status
  FROM PUBLIC;
