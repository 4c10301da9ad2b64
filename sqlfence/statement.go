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

// updateSQL returns the statement of an update and its parameters: the key's
// come first, then the claim's, then the set's in the order of their columns,
// so that one list of columns is one statement, here and in the driver's cache.
func (t *Table) updateSQL(claim guard.Claim, key Key, set Set) (string, []any, error) {
	if len(set) == 0 {
		return "", nil, guard.Invalid("set", "", "names no column")
	}
	var few [8]string // most sets fit
	columns := few[:0]
	for column := range set {
		columns = append(columns, column)
	}
	slices.Sort(columns)

	args := make([]any, 0, len(key)+2+len(set))
	args = append(args, key...)
	args = append(args, int64(claim.Token))
	if t.lease != "" {
		args = append(args, claim.LeaseID)
	}
	var some [256]byte
	shape := some[:0]
	for _, column := range columns {
		shape = appendShape(shape, column)
		if expr, computed := set[column].(Expr); computed {
			shape = strconv.AppendInt(append(shape, '='), int64(len(expr.args)), 10)
			shape = appendShape(shape, expr.sql)
			args = append(args, expr.args...)
		} else {
			args = append(args, set[column])
		}
	}
	if sql, known := t.statements.get(shape); known {
		return sql, args, nil
	}
	sql, err := t.buildUpdate(columns, set)
	if err != nil {
		return "", nil, err
	}
	t.statements.put(string(shape), sql)
	return sql, args, nil
}

// appendShape writes s with its length, so that no two lists read alike.
func appendShape(shape []byte, s string) []byte {
	shape = strconv.AppendInt(append(shape, ' '), int64(len(s)), 10)
	return append(append(shape, ':'), s...)
}

func (t *Table) buildUpdate(columns []string, set Set) (string, error) {
	n := len(t.keys) + 1 // the parameters so far
	token := placeholder(n) + "::bigint"
	var b strings.Builder
	b.WriteString("UPDATE " + t.name + " SET " + t.token + " = " + token)
	admitted := token + " > " + t.token
	if t.rule == guard.SameOrNewer && t.lease == "" {
		admitted = token + " >= " + t.token
	}
	if t.lease != "" {
		n++
		lease := placeholder(n) + "::text"
		b.WriteString(", " + t.lease + " = " + lease)
		if t.rule == guard.SameOrNewer {
			admitted = "(" + admitted + " OR (" + token + " = " + t.token + " AND " + lease + " = " + t.lease + "))"
		}
	}
	for _, column := range columns {
		if what, reserved := t.reserved[column]; reserved {
			return "", guard.Invalid("set column", column, "is the "+what+", which only the fence writes")
		}
		quoted, err := quoteIdentifier("set column", column)
		if err != nil {
			return "", err
		}
		b.WriteString(", " + quoted + " = ")
		expr, computed := set[column].(Expr)
		if !computed {
			n++
			b.WriteString(placeholder(n))
			continue
		}
		text, err := expr.render("set column "+column, n)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
		n += len(expr.args)
	}
	b.WriteString(" WHERE " + t.where + " AND " + admitted)
	return b.String(), nil
}

// maxStatements bounds what a table remembers. Who makes up more sets than
// that pays for building their statements.
const maxStatements = 128

// statements remembers the text of statements by their shape. It is copied to
// be changed, so that reading, which every update does, takes no lock.
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
