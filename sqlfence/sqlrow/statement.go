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
// prepares once. It returns the given columns of the row, if there are any.
func (t *Table) statement(k kind, claim guard.Claim, key Key, set Set, returning []string) (statement, error) {
	if k == updates && len(set) == 0 {
		return statement{}, guard.Invalid("set", "", "names no column")
	}
	b := builder{args: make([]any, 0, len(key)+2+len(set))}
	b.Grow(256)
	b.args = append(append(b.args, key...), int64(claim.Token))
	if t.lease != "" {
		b.args = append(b.args, claim.LeaseID)
	}
	if err := b.write(t, k, set, returning); err != nil {
		return statement{}, err
	}
	return statement{sql: b.String(), args: b.args}, nil
}

// verdict returns the statement that reads why a row was not written: its
// mark, and whether it satisfies the predicates.
func (t *Table) verdict(key Key) (statement, error) {
	b := builder{args: slices.Clone([]any(key))}
	lease := t.lease
	if lease == "" {
		lease = "NULL::pg_catalog.text"
	}
	b.add("SELECT ", t.token, ", ", lease, ", ")
	if err := b.predicates(t); err != nil {
		return statement{}, err
	}
	b.add(" FROM ", t.name, " WHERE ", t.where)
	return statement{sql: b.String(), args: b.args}, nil
}

// admits compares the token and lease that a statement offers with those of
// the row, whose columns have the given prefix. The collation is explicit
// because two lease IDs may be equal under the column's own.
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
func (b *builder) write(t *Table, k kind, set Set, returning []string) error {
	var few [8]string // most sets fit
	columns := columnsOf(set, few[:0])
	admits := t.admitted
	var err error
	if k == upserts {
		admits = t.admits(t.row+".", t.offeredToken, t.offeredLease) // EXCLUDED is there too
		err = b.insert(t, columns, set)
	} else {
		err = b.update(t, columns, set)
	}
	if err != nil {
		return err
	}
	b.add(admits)
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
func (b *builder) insert(t *Table, columns []string, set Set) error {
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
	b.add(t.offeredToken)
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
