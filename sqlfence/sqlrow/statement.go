package sqlrow

import (
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// statement is a text with its parameters, and where the row that it returns goes.
type statement struct {
	sql  string
	args []any
	dest []any
	kept bool    // a raise's row has the claim as its mark
	void *string // what a setting returns
}

// kind is what a statement on one row does.
type kind int

const (
	updates kind = iota
	upserts
	raises
)

// op names the statement in errors.
func (t *Table) op(k kind) string {
	switch k {
	case upserts:
		return "upsert into " + t.label
	case raises:
		return "raise the mark in " + t.label
	}
	return "update " + t.label
}

// columnsOf returns the columns of a set or a dest in order.
func columnsOf[V any, M ~map[string]V](m M, into []string) []string {
	for column := range m {
		into = append(into, column)
	}
	slices.Sort(into)
	return into
}

// statement returns a statement and its parameters: the key's come first, then
// the claim's, then the set's in the order of their columns, then the
// predicates', so that each list of columns gives one text, which the driver
// prepares once. bounded is for one that commits by itself.
func (t *Table) statement(k kind, claim guard.Claim, key Key, set Set, dest []Dest, bounded bool) (*statement, error) {
	returning, into, err := pointers(dest)
	if err != nil {
		return nil, err
	}
	if k == updates && len(set) == 0 {
		return nil, guard.Invalid("set", "", "names no column")
	}
	s := &statement{dest: into}
	if k == raises {
		s.dest = append([]any{&s.void, &s.kept}, into...)
	}
	session := sessionSQL
	if bounded {
		session += boundedSQL
	}
	b := builder{args: make([]any, 0, len(key)+2+len(set))}
	b.Grow(256)
	b.args = append(append(b.args, key...), int64(claim.Token))
	if t.lease != "" {
		b.args = append(b.args, claim.LeaseID)
	}
	if err := b.write(t, k, set, returning, session); err != nil {
		return nil, err
	}
	s.sql, s.args = b.String(), b.args
	return s, nil
}

// What every statement asks of its session, in the statement itself, so that it holds
// behind any driver: that a key's bytes are taken for the characters that were meant, and,
// if nothing else bounds it, that the wait for a locked row ends.
const (
	sessionSQL = sqlkit.EncodedSQL + " IS NOT NULL"
	boundedSQL = " AND CASE WHEN pg_catalog.current_setting('lock_timeout') OPERATOR(pg_catalog.=) '0' THEN pg_catalog.set_config('lock_timeout', '20s', true) ELSE '' END IS NOT NULL"
)

// verdict returns the statement that reads why a row was not written: its
// mark, and whether it satisfies the predicates.
func (t *Table) verdict(key Key) (*statement, error) {
	b := builder{args: slices.Clone([]any(key))}
	lease := t.lease
	if lease == "" {
		lease = "NULL::pg_catalog.text"
	}
	b.add("SELECT ", t.token, ", ", lease, ", ")
	if err := b.predicates(t); err != nil {
		return nil, err
	}
	b.add(" FROM ", t.name, " WHERE ", t.where, " AND ", sessionSQL)
	return &statement{sql: b.String(), args: b.args}, nil
}

// liftCommit makes the commit of the statement that returns it wait for the
// disk where the server's default would not: what counts is the setting at the
// commit (PostgreSQL documentation, 20.5.1, synchronous_commit).
const liftCommit = "CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY (ARRAY['off', 'local'])" +
	" THEN pg_catalog.set_config('synchronous_commit', 'on', true) END"

// raised is the condition that a written row has the claim as its mark.
func (t *Table) raised() string {
	raised := t.token + equals + t.offeredToken
	if t.lease != "" {
		raised += " AND " + t.lease + equals + t.offeredLease + ` COLLATE pg_catalog."C"`
	}
	return raised
}

// leavesOutSQL reports whether something may leave a row of a table, $1, out of a
// statement: a BEFORE trigger for rows, also one of a partition, or a policy.
const leavesOutSQL = `WITH RECURSIVE tree AS (
	SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid AS oid
	UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) tree.oid
)
SELECT coalesce(pg_catalog.row_security_active(pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid), false) OR EXISTS (
	SELECT FROM tree JOIN pg_catalog.pg_trigger g ON g.tgrelid OPERATOR(pg_catalog.=) tree.oid
	WHERE (g.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 3) OPERATOR(pg_catalog.=) 3 AND g.tgenabled OPERATOR(pg_catalog.<>) 'D')` // 3: for each row, before

// lockersSQL names the session whose transaction has locked the row with a key. One that
// only shares a lock with others is not seen.
func (t *Table) lockersSQL() string {
	return `SELECT coalesce(pg_catalog.string_agg(pg_catalog.format('pid %s, application "%s", %s', a.pid, a.application_name, coalesce(a.state, 'not visible')), '; '), '') FROM ` +
		t.name + ` AS r JOIN pg_catalog.pg_locks AS l ON l.locktype OPERATOR(pg_catalog.=) 'transactionid' AND l.granted AND l.transactionid OPERATOR(pg_catalog.=) r.xmax` +
		` JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) l.pid WHERE ` + t.keysEqual("r.", func(i int) string { return placeholder(i + 1) })
}

// admits compares the token and lease that a statement offers with those of
// the row, whose columns have the given prefix: guard.Decide in SQL, for both rules. The
// collation is explicit because two lease IDs may be equal under the column's own.
func (t *Table) admits(prefix, token, lease string) string {
	mark := prefix + t.token
	switch {
	case t.rule == guard.OncePerToken:
		return token + " OPERATOR(pg_catalog.>) " + mark
	case t.lease == "":
		return token + " OPERATOR(pg_catalog.>=) " + mark
	}
	return "(" + token + " OPERATOR(pg_catalog.>) " + mark + " OR (" + token + equals + mark + " AND " + lease + equals + prefix + t.lease + ` COLLATE pg_catalog."C"))`
}

// builder writes one statement and gathers its parameters.
type builder struct {
	strings.Builder
	args []any
}

func (b *builder) add(texts ...string) {
	for _, text := range texts {
		b.WriteString(text)
	}
}

// write builds a statement for one row, after the key's parameters and the
// claim's.
func (b *builder) write(t *Table, k kind, set Set, returning []string, session string) error {
	var few [8]string // most sets fit
	columns := columnsOf(set, few[:0])
	var err error
	if k == upserts {
		err = b.insert(t, columns, set, session)
		b.add(t.admits(t.row+".", t.offeredToken, t.offeredLease)) // EXCLUDED is there too
	} else {
		err = b.update(t, columns, set)
		b.add(t.admits("", t.offeredToken, t.offeredLease), " AND ", session)
	}
	if err != nil {
		return err
	}
	if len(t.predicates) > 0 {
		b.add(" AND ")
		if err := b.predicates(t); err != nil {
			return err
		}
	}
	separator := " RETURNING "
	if k == raises {
		b.add(separator, liftCommit, ", ", t.raised())
		separator = ", "
	}
	for _, column := range returning {
		quoted, err := sqlkit.QuoteIdentifier("dest column", column)
		if err != nil {
			return err
		}
		b.add(separator, quoted)
		separator = ", "
	}
	return nil
}

// update writes the statement up to the comparison.
func (b *builder) update(t *Table, columns []string, set Set) error {
	b.add("UPDATE ", t.name, " SET ", t.offered)
	for _, column := range columns {
		quoted, err := t.settable(column)
		if err != nil {
			return err
		}
		b.add(", ", quoted, " = ")
		if err := b.value(column, set[column]); err != nil {
			return err
		}
	}
	b.add(" WHERE ", t.where, " AND ")
	return nil
}

// insert writes the statement up to the comparison. The row's own values come
// from EXCLUDED, so that each parameter or expression occurs once; but not the
// token and the lease, because a trigger may have changed the row to be inserted.
func (b *builder) insert(t *Table, columns []string, set Set, session string) error {
	keys, names, assigned := strings.Join(t.keyColumns, ", "), "", ""
	for _, column := range columns {
		quoted, err := t.settable(column)
		if err != nil {
			return err
		}
		names += ", " + quoted
		assigned += ", " + quoted + " = EXCLUDED." + quoted
	}
	b.add("INSERT INTO ", t.name, " (", keys, ", ", t.token)
	if t.lease != "" {
		b.add(", ", t.lease)
	}
	b.add(names, ") VALUES (")
	for i := range t.keys {
		b.add(placeholder(i+1), ", ")
	}
	b.add("CASE WHEN ", session, " THEN ", t.offeredToken, " END")
	if t.lease != "" {
		b.add(", ", t.offeredLease)
	}
	for _, column := range columns {
		b.add(", ")
		if err := b.value(column, set[column]); err != nil {
			return err
		}
	}
	b.add(") ON CONFLICT (", keys, ") DO UPDATE SET ", t.offered, assigned)
	// A trigger may have changed the key of the row to be inserted, so that it meets
	// another resource's row.
	b.add(" WHERE ", t.keysEqual(t.row+".", func(i int) string { return placeholder(i + 1) }), " AND ")
	return nil
}

// value writes what a set assigns to a column.
func (b *builder) value(column string, v any) error {
	if expr, computed := v.(Expr); computed {
		return b.expr("set column "+column, expr)
	}
	b.args = append(b.args, v)
	b.add(placeholder(len(b.args)))
	return nil
}

func (b *builder) expr(field string, e Expr) error {
	text, err := e.render(field, len(b.args))
	b.args = append(b.args, e.args...)
	b.add(text)
	return err
}

// predicates writes the predicates of Where: true or false, never NULL.
func (b *builder) predicates(t *Table) error {
	if len(t.predicates) == 0 {
		b.add("true")
		return nil
	}
	separator := "("
	for _, p := range t.predicates {
		b.add(separator)
		if err := b.expr("predicate", p); err != nil {
			return err
		}
		separator = " AND "
	}
	b.add(") IS TRUE")
	return nil
}

// settable quotes a column that a Set names.
func (t *Table) settable(column string) (string, error) {
	if what, reserved := t.reserved[column]; reserved {
		return "", guard.Invalid("set column", column, "is the "+what+", which only the fence writes")
	}
	return sqlkit.QuoteIdentifier("set column", column)
}
