package sqlfence

import (
	"maps"
	"slices"
	"strconv"
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

// statement returns the text of a statement and its parameters: the key's come
// first, then the claim's, then the set's in the order of their columns, then
// the predicates', so that one list of columns is one statement, here and in
// the driver's cache.
func (t *Table) statement(k kind, claim guard.Claim, key Key, set Set) (string, []any, error) {
	switch {
	case k == updates && len(set) == 0:
		return "", nil, guard.Invalid("set", "", "names no column")
	case k == deletes && t.deleted == "":
		return "", nil, guard.Invalid("TableOptions.DeletedColumn", "", "must be set for a delete")
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
	if sql, known := t.statements.get(shape); known {
		return sql, args, nil
	}
	var b builder
	if err := b.write(t, k, columns, set); err != nil {
		return "", nil, err
	}
	t.statements.put(string(shape), b.String())
	return b.String(), args, nil
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

// appendShape writes s with its length, so that no two lists read alike.
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

// maxStatements bounds what a table remembers. Who makes up more sets than
// that pays for building their statements.
const maxStatements = 512

// statements remembers the text of statements by their shape. It is copied to
// be changed, so that reading, which every write does, takes no lock.
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
		return "NULL::text"
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
// the row, whose columns have the given prefix. The collation is named because
// under the column's own two lease IDs may be one.
func (t *Table) admits(prefix, token, lease string) string {
	mark := prefix + t.token
	switch {
	case t.rule == guard.OncePerToken:
		return token + " > " + mark
	case t.lease == "":
		return token + " >= " + mark
	}
	return "(" + token + " > " + mark + " OR (" + token + " = " + mark + " AND " + lease + " = " + prefix + t.lease + ` COLLATE pg_catalog."C"))`
}
