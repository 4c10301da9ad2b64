package sqlkit

// RowTable is what the fence needs of a table of package sqlrow, with names as in the
// catalog.
type RowTable struct {
	Name string // quoted, as in SQL
	Key  []string
	// Token and Lease are columns; Lease is empty if there is none.
	Token, Lease string
	// Bound has the columns and types of the template's variables, as JSON.
	Bound string
}

// RowTableOf describes a *sqlrow.Table. Package sqlrow sets it, so that sqladmin can
// verify tables and users do not see how.
var RowTableOf func(table any) RowTable

// LookSQL says what a table, $1, is, whether it has rules or inheritance children,
// and whether one of its partitions or children is a foreign table. It names
// the schema of everything: it runs in the caller's transactions, whose
// search_path is not changed and may lead to functions and operators of another
// role. It also says which columns of $2, [RowTable].Bound, have a type that does not
// keep a resource's name exactly, and the type of the token column, $3, if that is
// another one than bigint.
const LookSQL = `WITH RECURSIVE tree AS (
	SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid AS oid
	UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) tree.oid
), kinds AS (
	SELECT c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p']::"char"[]) AS keeps,
		EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid) AS ruled,
		NOT c.relispartition AND c.oid OPERATOR(pg_catalog.<>) pg_catalog.to_regclass($1::pg_catalog.text) AS inherits
	FROM tree JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tree.oid
)
SELECT CASE WHEN pg_catalog.bool_and(keeps) IS FALSE THEN 'is or has a view or foreign table'
		WHEN pg_catalog.bool_or(ruled) THEN 'has rules'
		WHEN pg_catalog.bool_or(inherits) THEN 'has inheritance children, across which no index keeps the key unique' ELSE '' END,
	pg_catalog.count(*) OPERATOR(pg_catalog.>) 0,
	(SELECT coalesce(pg_catalog.string_agg(pg_catalog.concat(a.attname, ' is ', pg_catalog.format_type(a.atttypid, a.atttypmod)), ', '), '')
		FROM pg_catalog.jsonb_to_recordset(CASE WHEN $2::pg_catalog.text OPERATOR(pg_catalog.=) 'null' THEN '[]' ELSE $2::pg_catalog.text END::pg_catalog.jsonb) AS b ("column" pg_catalog.text, type pg_catalog.text)
		JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1::pg_catalog.text)
			AND a.attname OPERATOR(pg_catalog.=) b."column" AND NOT a.attisdropped
		JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
		LEFT JOIN pg_catalog.pg_collation l ON l.oid OPERATOR(pg_catalog.=) a.attcollation
		WHERE CASE WHEN t.typtype OPERATOR(pg_catalog.=) 'd' THEN t.typbasetype ELSE t.oid END OPERATOR(pg_catalog.<>) ALL (
			CASE WHEN b.type OPERATOR(pg_catalog.=) 'int' THEN ARRAY['pg_catalog.int2', 'pg_catalog.int4', 'pg_catalog.int8']
				WHEN b.type OPERATOR(pg_catalog.=) 'uuid' THEN ARRAY['pg_catalog.uuid'] ELSE ARRAY['pg_catalog.text', 'pg_catalog.varchar'] END::pg_catalog.regtype[]::pg_catalog.oid[])
			OR NOT coalesce(l.collisdeterministic, true)),
	(SELECT coalesce(pg_catalog.max(pg_catalog.format_type(a.atttypid, a.atttypmod)), '') FROM pg_catalog.pg_attribute a
		JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
		WHERE a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1::pg_catalog.text) AND a.attname OPERATOR(pg_catalog.=) $3::pg_catalog.text AND NOT a.attisdropped
			AND CASE WHEN t.typtype OPERATOR(pg_catalog.=) 'd' THEN t.typbasetype ELSE t.oid END OPERATOR(pg_catalog.<>) 'pg_catalog.int8'::pg_catalog.regtype::pg_catalog.oid)
FROM kinds`
