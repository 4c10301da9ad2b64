package sqlfence

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fencepost-go/fencepost/guard"
)

// kind is what a statement on one row does.
type kind byte

const (
	updates kind = 'u'
	deletes kind = 'd'
	upserts kind = 'i'
	takes   kind = 't'
)

// op names the statement in errors.
func (t *Table) op(k kind) string {
	switch k {
	case deletes:
		return "delete from " + t.label
	case upserts:
		return "upsert into " + t.label
	case takes:
		return "take over " + t.label
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
// predicates', so that each list of columns gives one statement, here and in
// the driver's cache. It returns the given columns of the row, if there are
// any.
func (t *Table) statement(k kind, claim guard.Claim, key Key, set Set, returning []string) (statement, error) {
	switch {
	case k == updates && len(set) == 0:
		return statement{}, guard.Invalid("set", "", "names no column")
	case k == deletes && t.deleted == "":
		return statement{}, guard.Invalid("TableOptions.DeletedColumn", "", "must be set for a delete")
	}
	var few [8]string // most sets fit
	columns := columnsOf(set, few[:0])
	args := make([]any, 0, len(key)+2+len(set))
	args = append(args, key...)
	args = append(args, int64(claim.Token))
	if t.lease != "" {
		args = append(args, claim.LeaseID)
	}
	var some [256]byte
	shape := append(some[:0], byte(k))
	for _, column := range columns {
		shape = appendShape(shape, column)
		if expr, computed := set[column].(Expr); computed {
			shape = appendExpr(shape, expr)
			args = append(args, expr.args...)
		} else {
			args = append(args, set[column])
		}
	}
	shape, args = t.appendPredicates(shape, args)
	for _, column := range returning {
		shape = appendShape(append(shape, '>'), column)
	}
	if sql, known := t.statements.get(shape); known {
		return statement{sql: sql, args: args}, nil
	}
	var b builder
	if err := b.write(t, k, columns, set, returning); err != nil {
		return statement{}, err
	}
	t.statements.put(string(shape), b.String())
	return statement{sql: b.String(), args: args}, nil
}

// verdict returns the statement that reads why a row was not written: its
// mark, whether it is a tombstone, and whether it satisfies the predicates.
func (t *Table) verdict(key Key) (string, []any, error) {
	var some [256]byte
	shape, args := t.appendPredicates(append(some[:0], 'v'), slices.Clone([]any(key)))
	if sql, known := t.statements.get(shape); known {
		return sql, args, nil
	}
	b := builder{n: len(key)}
	satisfied, err := b.predicates(t)
	if err != nil {
		return "", nil, err
	}
	sql := "SELECT " + t.token + ", " + t.leaseOrNull(t.lease) + ", " + t.isDeleted() + ", " + satisfied + " FROM " + t.name + " WHERE " + t.where
	t.statements.put(string(shape), sql)
	return sql, args, nil
}

// appendShape writes s with its length, so that different lists give different
// shapes.
func appendShape(shape []byte, s string) []byte {
	shape = strconv.AppendInt(append(shape, ' '), int64(len(s)), 10)
	return append(append(shape, ':'), s...)
}

func appendExpr(shape []byte, e Expr) []byte {
	shape = strconv.AppendInt(append(shape, '='), int64(len(e.args)), 10)
	return appendShape(shape, e.sql)
}

func (t *Table) appendPredicates(shape []byte, args []any) ([]byte, []any) {
	for _, p := range t.predicates {
		shape = appendExpr(append(shape, '&'), p)
		args = append(args, p.args...)
	}
	return shape, args
}

// maxStatements bounds what a table remembers. A caller with more sets than
// that pays for building their statements.
const maxStatements = 512

// statements remembers the text of statements by their shape. It is copied on
// change, so that reading, which every write does, takes no lock.
type statements struct {
	known atomic.Pointer[map[string]string]
	mu    sync.Mutex // held to change known
}

func (s *statements) get(shape []byte) (sql string, known bool) {
	if m := s.known.Load(); m != nil {
		sql, known = (*m)[string(shape)]
	}
	return sql, known
}

func (s *statements) put(shape, sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]string{}
	if old := s.known.Load(); old != nil {
		if len(*old) >= maxStatements {
			return
		}
		m = maps.Clone(*old)
	}
	m[shape] = sql
	s.known.Store(&m)
}

func (t *Table) leaseOrNull(lease string) string {
	if t.lease == "" {
		return "NULL::pg_catalog.text"
	}
	return lease
}

func (t *Table) isDeleted() string {
	if t.deleted == "" {
		return "false"
	}
	return t.deleted + " IS NOT NULL"
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

// builder writes one statement. n is how many parameters it has so far.
type builder struct {
	strings.Builder
	n int
}

// write builds a statement for one row from the key's parameters, the claim's
// and the set's.
func (b *builder) write(t *Table, k kind, columns []string, set Set, returning []string) error {
	b.n = len(t.keys) + 1
	token, lease := placeholder(b.n)+"::bigint", ""
	if t.lease != "" {
		b.n++
		lease = placeholder(b.n) + "::pg_catalog.text"
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
		row = t.row + "." // EXCLUDED is there too
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
	var read []string
	if k == takes {
		read = []string{liftCommit, t.raised(), t.isDeleted()}
	}
	for _, column := range returning {
		quoted, err := quoteIdentifier("dest column", column)
		if err != nil {
			return err
		}
		read = append(read, quoted)
	}
	if len(read) > 0 {
		b.WriteString(" RETURNING " + strings.Join(read, ", "))
	}
	return nil
}

// upsert writes the statement up to the comparison. The row's own values come
// from EXCLUDED, so that each parameter or expression occurs once.
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

// predicates writes the predicates of Where: true or false, never NULL.
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
