package sqladmin

import "github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"

// qualifiedSQL puts the schema before a table's name, $1, if the table exists. It
// runs under the caller's search_path, and so names the schema of everything.
const qualifiedSQL = `SELECT coalesce((SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
	WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1::pg_catalog.text)), $1::pg_catalog.text)`

// The queries below run with names resolved in pg_catalog only ([Admin.inspect]).

// verifyTableSQL checks a table that single statements write: $1 its quoted name,
// $2 the token column, $3 the lease column or "", $4 the key, a JSON array. Whether a trigger changes the mark can only be
// guessed: from an assignment in PL/pgSQL, or a column named in its arguments.
const verifyTableSQL = `
	WITH t AS (SELECT to_regclass($1::text)::oid AS oid),
	tree AS (SELECT oid FROM t WHERE oid IS NOT NULL UNION SELECT relid FROM t, pg_partition_tree(t.oid)),
	token AS (SELECT a.* FROM t JOIN pg_attribute a ON attrelid = t.oid WHERE attname = $2::text AND attnum > 0 AND NOT attisdropped),
	lease AS (SELECT a.* FROM t JOIN pg_attribute a ON attrelid = t.oid WHERE attname = $3::text AND attnum > 0 AND NOT attisdropped),
	key AS (SELECT array_agg(attnum) AS columns FROM t JOIN pg_attribute ON attrelid = t.oid WHERE attname = ANY (ARRAY(SELECT json_array_elements_text($4::text::json))) AND attnum > 0 AND NOT attisdropped)
	SELECT $1::text, 'the table does not exist' FROM t WHERE oid IS NULL
	UNION ALL
	SELECT c.oid::regclass::text, 'it is unlogged or temporary: a crash or the end of a session empties it, and the marks with it' FROM tree JOIN pg_class c USING (oid) WHERE relkind = 'r' AND relpersistence <> 'p'
	UNION ALL
	SELECT g.tgrelid::regclass::text, format('the trigger %I runs before the row is written and puts a value of its own into the column %I, so that older claims may be admitted', tgname, col)
		FROM tree JOIN pg_trigger g ON g.tgrelid = tree.oid JOIN pg_proc p ON p.oid = tgfoid, unnest(ARRAY[$2::text, nullif($3::text, '')]) col,
			format(E'\\mnew\\s*\\.\\s*"?%s"?\\s*', regexp_replace(col, E'(\\W)', E'\\\\\\1', 'g')) name
		WHERE NOT tgisinternal AND tgparentid = 0 AND tgenabled <> 'D' AND tgtype & 3 = 3 AND tgtype & 20 <> 0
			AND (prosrc ~* format(E'%1$s:=|(;|\\mbegin|\\mthen|\\melse)\\s+%1$s=|\\minto\\s+%1$s', name)
				OR encode(convert_to(col, getdatabaseencoding()), 'escape') = ANY (string_to_array(encode(tgargs, 'escape'), E'\\000')))
	UNION ALL
	SELECT $1::text, format('the token column %I is missing', $2::text) FROM t WHERE oid IS NOT NULL AND NOT EXISTS (SELECT FROM token)
	UNION ALL
	SELECT $1::text, format('the column %I is generated and cannot be written', attname) FROM (SELECT * FROM token UNION ALL SELECT * FROM lease) AS a WHERE attgenerated <> '' OR attidentity = 'a'
	UNION ALL
	SELECT $1::text, format('the token column %I may be NULL, and a row in which it is refuses every claim', $2::text) FROM token WHERE NOT attnotnull
	UNION ALL
	SELECT i.indrelid::regclass::text, format('the token column %I is in index %s, which turns every update of a row into an index write (no HOT updates)', $2::text, i.indexrelid::regclass)
		FROM tree JOIN pg_index i ON i.indrelid = tree.oid
		WHERE EXISTS (SELECT FROM pg_depend d JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
			WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND a.attname = $2::text)
	UNION ALL
	SELECT $1::text, format('the lease column %I is missing', $3::text) FROM t WHERE $3::text <> '' AND oid IS NOT NULL AND NOT EXISTS (SELECT FROM lease)
	UNION ALL
	SELECT $1::text, format('the lease column %I is of type %s and must be text', $3::text, format_type(atttypid, atttypmod)) FROM lease WHERE atttypid <> 'text'::regtype
	UNION ALL
	SELECT $1::text, format('the lease column %I may be NULL, and a row in which it is conflicts with every lease', $3::text) FROM lease WHERE NOT attnotnull
	UNION ALL
	SELECT $1::text, format('the key column %I is missing', k) FROM t, json_array_elements_text($4::text::json) k
		WHERE oid IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = t.oid AND attname = k AND attnum > 0 AND NOT attisdropped)
	UNION ALL
	SELECT $1::text, format('no unique index covers the key (%s), so that one claim could write several rows', array_to_string(ARRAY(SELECT json_array_elements_text($4::text::json)), ', ')) FROM t, key
		WHERE oid IS NOT NULL AND cardinality(key.columns) = cardinality(ARRAY(SELECT json_array_elements_text($4::text::json))) AND NOT EXISTS (
			SELECT FROM pg_index i WHERE i.indrelid = t.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
				AND (i.indkey::int2[])[0:i.indnkeyatts - 1] <@ key.columns)`

// verifyFirstUseSQL reports what the first use of a table refuses: a relation that keeps no
// marks, another type of the token, and key columns in which different values are equal
// or have other texts than a resource's name is built from.
const verifyFirstUseSQL = `SELECT $1::text, problem FROM (` + sqlkit.LookSQL + `) AS look(obstacle, there, unfit, inexact), LATERAL (VALUES
	(CASE WHEN obstacle <> '' THEN 'the first use refuses it: it ' || obstacle END),
	(CASE WHEN inexact <> '' THEN format('the first use refuses its token column %I, which is of type %s and must be bigint', $3::text, inexact) END),
	(CASE WHEN unfit <> '' THEN format('the first use refuses its key: %s, which is not the type of the variable; {x:int} is for whole numbers, {x:uuid} for uuid, {x} for text and varchar with a deterministic collation', unfit) END)) AS found(problem)
	WHERE problem IS NOT NULL`

// verifyGuardSQL checks a table that triggers must guard: $1 its quoted name,
// $2 the parts, $3 report-only.
const verifyGuardSQL = `
	SELECT coalesce(relation, $1::text), problem FROM fencepost.guard_problems(to_regclass($1::text), $2::text::jsonb, $3::boolean)
	UNION ALL
	SELECT $1::text, 'the triggers are in report-only mode and refuse nobody' WHERE $3::boolean AND to_regclass($1::text) IS NOT NULL
	UNION ALL
	SELECT srrelid::regclass::text, 'a logical subscription writes it, whose changes nothing checks here: guard the publisher' FROM pg_subscription_rel
		WHERE srrelid IN (SELECT to_regclass($1::text) UNION ALL SELECT relid FROM pg_partition_tree(to_regclass($1::text)))`

// verifyRoleSQL checks what a role may do: $1 its name, $2 the tables, a JSON
// array. The rights of the roles that it is a member of are its own even if it
// does not inherit them, because it may SET ROLE. From PostgreSQL 16 on,
// CREATEROLE lets it grant only roles that it administers, and so is a member of.
const verifyRoleSQL = `
	WITH RECURSIVE may AS (SELECT m.* FROM pg_roles me JOIN pg_roles m ON pg_has_role(me.oid, m.oid, 'MEMBER') WHERE me.rolname = $1::text),
	r AS (SELECT oid, rolname, EXISTS (SELECT FROM may WHERE rolsuper) AS rolsuper FROM pg_roles WHERE rolname = $1::text),
	tree AS (SELECT to_regclass(n)::oid AS oid FROM json_array_elements_text($2::text::json) n UNION SELECT inhrelid FROM tree JOIN pg_inherits ON inhparent = oid)
	SELECT 'role ' || $1::text, 'does not exist' WHERE NOT EXISTS (SELECT FROM r)
	UNION ALL
	SELECT 'role ' || rolname, 'is a superuser, or a member of one, whom nothing stops' FROM r WHERE rolsuper
	UNION ALL
	SELECT 'role ' || l.rolname, format('may not see and end the sessions of other logins that write as %s, such as %s, so that a raise waits for one that has stopped until an administrator ends it: grant pg_read_all_stats and pg_signal_backend', r.rolname, min(o.rolname))
		FROM r, pg_roles l, pg_roles o WHERE l.rolcanlogin AND o.rolcanlogin AND NOT l.rolsuper AND NOT o.rolsuper
			AND pg_has_role(l.oid, r.oid, 'MEMBER') AND pg_has_role(o.oid, r.oid, 'MEMBER') AND NOT pg_has_role(l.oid, o.oid, 'USAGE')
			AND NOT (pg_has_role(l.oid, 'pg_read_all_stats', 'USAGE') AND pg_has_role(l.oid, 'pg_signal_backend', 'USAGE'))
		GROUP BY l.rolname, r.rolname
	UNION ALL
	SELECT 'role ' || rolname, 'may grant itself any role, also that of an owner: before PostgreSQL 16 CREATEROLE includes that' FROM r
		WHERE NOT rolsuper AND current_setting('server_version_num')::int < 160000 AND EXISTS (SELECT FROM may WHERE rolcreaterole)
	UNION ALL
	SELECT 'role ' || rolname, format('owns %s, or is a member of its owner %s, and so may disable its triggers', c.oid::regclass, pg_get_userbyid(relowner))
		FROM r, tree JOIN pg_class c USING (oid) WHERE NOT rolsuper AND pg_has_role(r.oid, relowner, 'MEMBER')
	UNION ALL
	SELECT 'role ' || rolname, format('may create and replace triggers of %s, by the privilege TRIGGER, which GRANT ALL includes', c.oid::regclass)
		FROM r, tree JOIN pg_class c USING (oid) WHERE NOT rolsuper AND NOT pg_has_role(r.oid, relowner, 'MEMBER')
			AND EXISTS (SELECT FROM may m WHERE has_table_privilege(m.oid, c.oid, 'TRIGGER'))
	UNION ALL
	SELECT DISTINCT 'role ' || rolname, format('owns schema %s, or is a member of its owner %s, and so may drop the tables in it and make others of their names', nspname, pg_get_userbyid(nspowner))
		FROM r, tree JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = relnamespace WHERE NOT rolsuper AND pg_has_role(r.oid, nspowner, 'MEMBER')
	UNION ALL
	SELECT 'role ' || r.rolname, format('is a member of %s, and so may do on the server whatever its operating system user may', m.rolname)
		FROM r, may m WHERE NOT r.rolsuper AND m.rolname IN ('pg_execute_server_program', 'pg_write_server_files')
	UNION ALL
	SELECT 'role ' || rolname, 'owns schema fencepost, or is a member of its owner' FROM r, pg_namespace WHERE NOT rolsuper AND nspname = 'fencepost' AND pg_has_role(r.oid, nspowner, 'MEMBER')
	UNION ALL
	SELECT 'role ' || rolname, 'may create in schema fencepost' FROM r, pg_namespace n WHERE NOT rolsuper AND nspname = 'fencepost'
		AND EXISTS (SELECT FROM may m WHERE has_schema_privilege(m.oid, n.oid, 'CREATE')) AND NOT pg_has_role(r.oid, nspowner, 'MEMBER')
	UNION ALL
	SELECT 'role ' || rolname, format('may write fencepost.%s, and so %s', relname, CASE relname WHEN 'lock_salt' THEN 'change which locks exclude each other'
			WHEN 'mark_resets' THEN 'forge or hide the record of a reset' ELSE 'lower a mark or hide a table' END) FROM r, pg_class c
		WHERE NOT rolsuper AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relname IN ('marks', 'guarded', 'migrations', 'lock_salt', 'mark_resets')
			AND EXISTS (SELECT FROM may m WHERE has_table_privilege(m.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') OR has_any_column_privilege(m.oid, c.oid, 'INSERT, UPDATE'))
	UNION ALL
	SELECT 'role ' || rolname, format('owns %s, or is a member of its owner %s, and so may replace it', what, pg_get_userbyid(owner)) FROM r, (
		SELECT proowner AS owner, 'function ' || oid::regprocedure AS what, pronamespace AS schema FROM pg_proc
		UNION ALL SELECT relowner, 'table ' || oid::regclass, relnamespace FROM pg_class WHERE relkind = 'r') AS o, pg_namespace n
		WHERE NOT rolsuper AND n.oid = o.schema AND nspname = 'fencepost' AND owner <> nspowner AND pg_has_role(r.oid, owner, 'MEMBER')
	UNION ALL
	SELECT 'role ' || rolname, format('may call fencepost.%s, and so %s', proname, CASE proname WHEN 'reset' THEN 'lower a mark' ELSE 'raise the floor' END) FROM r, pg_proc p
		WHERE NOT rolsuper AND pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND proname IN ('reset', 'retire')
			AND EXISTS (SELECT FROM may m WHERE has_function_privilege(m.oid, p.oid, 'EXECUTE'))
	UNION ALL
	SELECT 'role ' || r.rolname, format('may not call %s, as an enforcer may: run what RolesSQL returns (fencectl roles)', string_agg(DISTINCT 'fencepost.' || proname, ', '))
		FROM r, pg_proc p WHERE NOT rolsuper AND pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost')
			AND proname IN ('raise', 'enter', 'enter_row', 'enter_snapshot', 'holders', 'session', 'mark', 'present', 'join_resource')
			AND EXISTS (SELECT FROM may m, pg_proc h
				WHERE h.pronamespace = p.pronamespace AND h.proname IN ('raise', 'enter', 'enter_row', 'enter_snapshot', 'holders', 'session') AND has_function_privilege(m.oid, h.oid, 'EXECUTE'))
			AND NOT EXISTS (SELECT FROM may m WHERE has_function_privilege(m.oid, p.oid, 'EXECUTE'))
		GROUP BY r.rolname`
