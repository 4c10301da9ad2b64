package sqlfence

import (
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// builder writes one statement. n is how many parameters it has so far.
type builder struct {
	strings.Builder
	n int
}

// write builds a statement for one row from the key's parameters, the claim's
// and the set's.
func (b *builder) write(t *Table, k kind, columns []string, set Set) error {
	b.n = len(t.keys) + 1
	token, lease := placeholder(b.n)+"::bigint", ""
	if t.lease != "" {
		b.n++
		lease = placeholder(b.n) + "::text"
	}
	names, values := []string{t.token}, []string{token}
	if t.lease != "" {
		names, values = append(names, t.lease), append(values, lease)
	}
	for _, column := range columns {
		quoted, err := t.settable(column)
		if err != nil {
			return err
		}
		value, err := b.value(column, set[column])
		if err != nil {
			return err
		}
		names, values = append(names, quoted), append(values, value)
	}
	satisfied, err := b.predicates(t)
	if err != nil {
		return err
	}
	row := ""
	if k == upserts {
		row = t.row + "." // there is EXCLUDED besides
		b.upsert(t, names, values)
	} else {
		b.WriteString("UPDATE " + t.name + " SET ")
		for i, name := range names {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(name + " = " + values[i])
		}
		if k == deletes {
			b.WriteString(", " + t.deleted + " = pg_catalog.clock_timestamp()")
		}
		b.WriteString(" WHERE " + t.where + " AND ")
	}
	b.WriteString(t.admits(row, token, lease))
	if t.deleted != "" && (k == updates || k == deletes) {
		b.WriteString(" AND " + t.deleted + " IS NULL")
	}
	if len(t.predicates) > 0 {
		b.WriteString(" AND " + satisfied)
	}
	return nil
}

// upsert writes up to the comparison. The row's own values come from EXCLUDED,
// so that a parameter or an expression is there once.
func (b *builder) upsert(t *Table, names, values []string) {
	keys := strings.Join(t.keyColumns, ", ")
	b.WriteString("INSERT INTO " + t.name + " (" + keys + ", " + strings.Join(names, ", ") + ") VALUES (")
	for i := range t.keys {
		b.WriteString(placeholder(i+1) + ", ")
	}
	b.WriteString(strings.Join(values, ", ") + ") ON CONFLICT (" + keys + ") DO UPDATE SET ")
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		if name == t.token || name == t.lease { // a trigger may have changed the row to be inserted
			b.WriteString(name + " = " + values[i])
		} else {
			b.WriteString(name + " = EXCLUDED." + name)
		}
	}
	if t.deleted != "" {
		b.WriteString(", " + t.deleted + " = NULL")
	}
	b.WriteString(" WHERE ")
}

// value writes what a set assigns to a column.
func (b *builder) value(column string, v any) (string, error) {
	expr, computed := v.(Expr)
	if !computed {
		b.n++
		return placeholder(b.n), nil
	}
	return b.expr("set column "+column, expr)
}

func (b *builder) expr(field string, e Expr) (string, error) {
	text, err := e.render(field, b.n)
	b.n += len(e.args)
	return text, err
}

// predicates writes those of Where: true or false, never NULL.
func (b *builder) predicates(t *Table) (string, error) {
	if len(t.predicates) == 0 {
		return "true", nil
	}
	all := make([]string, len(t.predicates))
	for i, p := range t.predicates {
		var err error
		if all[i], err = b.expr("predicate", p); err != nil {
			return "", err
		}
	}
	return "(" + strings.Join(all, " AND ") + ") IS TRUE", nil
}

// settable quotes a column that a Set names.
func (t *Table) settable(column string) (string, error) {
	if what, reserved := t.reserved[column]; reserved {
		return "", guard.Invalid("set column", column, "is the "+what+", which only the fence writes")
	}
	return quoteIdentifier("set column", column)
}
