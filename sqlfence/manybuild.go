package sqlfence

import (
	"strconv"
	"strings"
)

// width is how many parameters a write takes.
func (b *batch) width() int {
	n := len(b.t.keys) + 1 + len(b.values())
	if b.t.lease != "" {
		n++
	}
	return n
}

// values returns the columns whose values are parameters.
func (b *batch) values() (columns []string) {
	for _, column := range b.columns {
		if _, computed := b.writes[0].Set[column].(Expr); !computed {
			columns = append(columns, column)
		}
	}
	return columns
}

// shared returns the parameters that are there once, behind those of the rows.
func (b *batch) shared() (args []any) {
	for _, column := range b.columns {
		if expr, computed := b.writes[0].Set[column].(Expr); computed {
			args = append(args, expr.args...)
		}
	}
	_, args = b.t.appendPredicates(nil, args)
	return args
}

// padded rounds the number of rows up, by a quarter at most, so that a driver
// prepares a few statements and not one for each size. What is added has no key
// and meets no row.
func padded(rows, width, others int) int {
	step := 1
	for rows > 8*step {
		step *= 2
	}
	n := (rows + step - 1) / step * step
	if n*width+others > maxParameters {
		return rows
	}
	return n
}

// statement returns the text and the parameters for the writes with the given
// indices.
func (b *batch) statement(indices []int) (string, []any, error) {
	t, values, shared := b.t, b.values(), b.shared()
	width := b.width()
	rows := padded(len(indices), width, len(shared))
	args := make([]any, 0, rows*width+len(shared))
	for _, i := range indices {
		w := b.writes[i]
		args = append(append(args, w.Key...), int64(w.Claim.Token))
		if t.lease != "" {
			args = append(args, w.Claim.LeaseID)
		}
		for _, column := range values {
			args = append(args, w.Set[column])
		}
	}
	args = append(args[:rows*width], shared...)
	shape := strconv.AppendInt(strconv.AppendBool([]byte{'m'}, b.later), int64(rows), 10)
	for _, column := range b.columns {
		shape = appendShape(shape, column)
		if expr, computed := b.writes[0].Set[column].(Expr); computed {
			shape = appendExpr(shape, expr)
		}
	}
	shape, _ = t.appendPredicates(shape, nil)
	if sql, known := t.statements.get(shape); known {
		return sql, args, nil
	}
	var text builder
	if err := text.many(b, rows); err != nil {
		return "", nil, err
	}
	t.statements.put(string(shape), text.String())
	return text.String(), args, nil
}

// many writes the statement. No name in it can be one of the table's but on
// purpose, so that expressions find their columns.
//
//   - "fence in" is the writes. Its first row gives each parameter the type of
//     its column, and has no key.
//   - "fence twice" finds keys that are equal to the database. Then nothing is
//     locked or written.
//   - "fence row" locks the rows in the order of their keys and reads what the
//     verdict needs, from the locked version.
//   - "fence out" compares with the row itself and writes. Its own snapshot is
//     from before the lock, but PostgreSQL compares again with the version
//     that it finds locked (PostgreSQL documentation, 13.2.1). A comparison
//     with a token that was read elsewhere in the statement would not be.
func (b *builder) many(of *batch, rows int) error {
	t, values := of.t, of.values()
	b.WriteString(`WITH "fence in" ("fence n"`)
	for i := range t.keys {
		b.WriteString(", " + own("k", i))
	}
	b.WriteString(`, "fence token"`)
	if t.lease != "" {
		b.WriteString(`, "fence lease"`)
	}
	for i := range values {
		b.WriteString(", " + own("v", i))
	}
	b.WriteString(") AS (VALUES (0")
	null := func(column string) { b.WriteString(", (NULL::" + t.name + ")." + column) }
	for _, column := range t.keyColumns {
		null(column)
	}
	b.WriteString(", NULL::bigint")
	if t.lease != "" {
		b.WriteString(", NULL::text")
	}
	for _, column := range values {
		quoted, err := t.settable(column)
		if err != nil {
			return err
		}
		null(quoted)
	}
	b.WriteString(")")
	b.rows(rows, of.width())
	b.WriteString(")")
	return b.manyRest(of)
}

// rows writes the parameters of VALUES, after the number of each row.
func (b *builder) rows(rows, width int) {
	for i := range rows {
		b.WriteString(", (" + itoa(i+1))
		for range width {
			b.n++
			b.WriteString(", " + placeholder(b.n))
		}
		b.WriteString(")")
	}
}

func (b *builder) manyRest(of *batch) error {
	t, value := of.t, 0
	sets := []string{t.token + ` = "fence token"`}
	if t.lease != "" {
		sets = append(sets, t.lease+` = "fence lease"`)
	}
	for _, column := range of.columns {
		quoted, err := t.settable(column)
		if err != nil {
			return err
		}
		expr, computed := of.writes[0].Set[column].(Expr)
		text := own("v", value)
		if !computed {
			value++
		} else if text, err = b.expr("set column "+column, expr); err != nil {
			return err
		}
		sets = append(sets, quoted+" = "+text)
	}
	satisfied, err := b.predicates(t)
	if err != nil {
		return err
	}
	keys, meets, order := make([]string, len(t.keys)), make([]string, len(t.keys)), make([]string, len(t.keys))
	for i, column := range t.keyColumns {
		keys[i], order[i] = own("k", i), t.row+"."+column
		meets[i] = order[i] + " = " + keys[i]
	}
	key, meet := strings.Join(keys, ", "), strings.Join(meets, " AND ")
	b.WriteString(`, "fence twice" AS (SELECT pg_catalog.min("fence n") AS "fence n", pg_catalog.max("fence n") AS "fence other" FROM "fence in" WHERE ` +
		keys[0] + " IS NOT NULL GROUP BY " + key + " HAVING pg_catalog.count(*) > 1)")
	again, other := "false", "0"
	if of.later { // a row that this very transaction wrote
		again, other = t.row+`.xmin = pg_catalog.pg_current_xact_id()::xid`, `CASE WHEN "fence again" THEN -1 ELSE 0 END`
	}
	b.WriteString(`, "fence row" AS MATERIALIZED (SELECT "fence in".*, ` + t.token + ` AS "fence mark", ` + t.leaseOrNull(t.lease) + ` AS "fence whose", ` +
		t.isDeleted() + ` AS "fence deleted", ` + satisfied + ` AS "fence satisfied", ` + again + ` AS "fence again" FROM "fence in" JOIN ` + t.name + " ON " + meet +
		` WHERE NOT EXISTS (SELECT FROM "fence twice") ORDER BY ` + strings.Join(order, ", ") + " FOR NO KEY UPDATE OF " + t.row + ")")
	b.WriteString(`, "fence out" AS (UPDATE ` + t.name + " SET " + strings.Join(sets, ", ") + ` FROM "fence row" WHERE ` + meet + " AND " +
		t.admits("", `"fence token"`, `"fence lease"`) + ` AND NOT "fence again"`)
	if t.deleted != "" {
		b.WriteString(" AND " + t.deleted + " IS NULL")
	}
	if len(t.predicates) > 0 {
		b.WriteString(" AND " + satisfied)
	}
	b.WriteString(` RETURNING "fence n")`)
	b.WriteString(` SELECT 0 AS "fence n", pg_catalog.count(*)::int AS "fence other", false AS "fence found", NULL::bigint AS "fence mark",` +
		` NULL::text AS "fence whose", false AS "fence deleted", false AS "fence satisfied" FROM "fence out"` +
		` UNION ALL SELECT i."fence n", ` + other + `, r."fence n" IS NOT NULL, "fence mark", "fence whose", coalesce("fence deleted", false), coalesce("fence satisfied", false)` +
		` FROM "fence in" AS i LEFT JOIN "fence out" AS o USING ("fence n") LEFT JOIN "fence row" AS r ON r."fence n" = i."fence n"` +
		` WHERE o."fence n" IS NULL AND i.` + keys[0] + " IS NOT NULL")
	b.WriteString(` UNION ALL SELECT "fence n", "fence other", false, NULL, NULL, false, false FROM "fence twice"`)
	return nil
}

// existingSQL asks which of the rows are there.
func (b *batch) existingSQL(indices []int) (string, []any) {
	t := b.t
	args := make([]any, 0, len(indices)*len(t.keys))
	for _, i := range indices {
		args = append(args, b.writes[i].Key...)
	}
	var text builder
	names, nulls, meets := make([]string, len(t.keys)), make([]string, len(t.keys)), make([]string, len(t.keys))
	for i, column := range t.keyColumns {
		names[i] = own("k", i)
		nulls[i] = "(NULL::" + t.name + ")." + column
		meets[i] = t.row + "." + column + " = " + names[i]
	}
	text.WriteString("SELECT \"fence n\" FROM (VALUES (0, " + strings.Join(nulls, ", ") + ")")
	text.rows(len(indices), len(t.keys))
	text.WriteString(`) AS "fence in" ("fence n", ` + strings.Join(names, ", ") + ") JOIN " + t.name + " ON " + strings.Join(meets, " AND "))
	return text.String(), args
}

// own is a name that the statement gives a column of its own.
func own(kind string, i int) string { return `"fence ` + kind + strconv.Itoa(i) + `"` }
