package sqlfence

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// RowUpdate is one row of [Table.UpdateMany]. Claim, Key and Set mean the same as
// for [Table.Update].
type RowUpdate struct {
	Claim guard.Claim
	Key   Key
	Set   Set
}

// UpdateMany updates many rows, each under its own claim, in one statement: it
// writes each row as [Table.Update] would, all rows whose marks admit their
// claims, and no others. It returns a verdict for each write, in order: nil if
// it was applied, else the [*guard.RejectedError] that Update would return, or
// ErrUnavailable if a trigger or policy prevented it.
//
// All sets must name the same columns. A value may differ from row to row; an
// [Expr] must be the same, with the same arguments, in all of them. No two
// writes may have the same key: keys that the database finds equal (such as 1
// and 1.0) are ErrInvalid, and nothing is written. If there are no writes, the
// error is nil. Writes with more than 65535 parameters in all (each row's key,
// claim and values) take several statements in one transaction, so that they
// too are written together or not at all; inside a transaction of the caller
// that is refused, because two writes with one key could not be detected there.
//
// If err is not nil there are no verdicts, and nothing was written, unless it
// is ErrOutcomeUnknown or says that the key is not unique. The same holds if
// one row violates a constraint. A transaction must then be rolled back.
//
// Rows are locked in the order of their keys, so that single-statement calls do
// not deadlock with each other. Rows that were replaced while the statement ran
// take another statement. If that fails, its error is the verdict of the rows
// that it covers.
func (t *Table) UpdateMany(ctx context.Context, q Querier, writes []RowUpdate) (verdicts []error, err error) {
	if len(writes) == 0 {
		return nil, nil
	}
	start := time.Now()
	b := batch{t: t, q: q, writes: writes, verdicts: make([]error, len(writes)), marks: make([]guard.Mark, len(writes))}
	if err = b.check(ctx); err == nil {
		err = interrupted(ctx, b.runAll(ctx))
	}
	took := time.Since(start)
	for i, w := range writes {
		e := guard.Event{Op: guard.OpWrite, Claim: w.Claim, Mark: b.marks[i], Duration: took, Err: err}
		if err == nil {
			e.Err = b.verdicts[i]
		}
		q.observe(ctx, e)
	}
	if err != nil {
		return nil, err
	}
	return b.verdicts, nil
}

// batch is one call of UpdateMany.
type batch struct {
	t        *Table
	q        Querier
	writes   []RowUpdate
	keys     []Key    // of the writes, as they are sent
	columns  []string // of every set
	verdicts []error
	marks    []guard.Mark // the marks that the claims were compared with
	later    bool         // the transaction has written rows of an earlier statement
}

// runAll sends as many statements as it takes.
func (b *batch) runAll(ctx context.Context) error {
	all := make([]int, len(b.writes))
	for i := range all {
		all[i] = i
	}
	most := (maxParameters - len(b.shared())) / b.width()
	switch {
	case most < 1:
		return guard.Invalid("writes[0]", itoa(b.width()+len(b.shared())), "parameters are more than a statement's "+itoa(maxParameters))
	case len(all) <= most:
		return b.run(ctx, all)
	}
	if err := b.q.usable(ctx, b.t); err != nil { // asked of the DB, not of its new transaction
		return err
	}
	return b.q.atomically(ctx, b.op(), func(q Querier) error {
		of := b.q
		defer func() { b.q = of }()
		b.q = q
		for chunk := range slices.Chunk(all, most) {
			if err := b.run(ctx, chunk); err != nil {
				return err
			}
			b.later = true
		}
		return nil
	})
}

// run sends a statement, and sends again the writes that were neither applied
// nor refused: such a row was changed or replaced while the statement waited
// for it.
func (b *batch) run(ctx context.Context, open []int) error {
	for try := 1; len(open) > 0; try++ {
		left, err := b.send(ctx, open, try)
		switch {
		case err == nil:
			open = left
		case try == 1 || !b.q.autocommit():
			return err
		default: // the other rows have their verdicts
			for _, i := range open {
				b.verdicts[i] = err
			}
			return nil
		}
	}
	return nil
}

// send sends the writes with the given indices, notes their verdicts, and
// returns those that have none yet: neither written nor refused. The database
// answers with how many were applied and with the rest.
func (b *batch) send(ctx context.Context, indices []int, try int) (open []int, err error) {
	sql, args, err := b.statement(indices)
	if err == nil {
		err = b.q.usable(ctx, b.t)
	}
	if err != nil {
		return indices, err
	}
	var applied, others int
	var same error
	rest := make(map[int]rowState) // by index
	err = b.q.query(ctx, sql, args, func(scan func(dest ...any) error) error {
		var n, other int
		var r rowState
		if err := scan(&n, &other, &r.there, &r.locked, &r.token, &r.lease, &r.deleted, &r.satisfied); err != nil {
			return err
		}
		switch {
		case n == 0:
			applied = other
			return nil
		case other < 0:
			same = guard.Invalid(fmt.Sprintf("writes[%d]: key", indices[n-1]), fmt.Sprint(b.writes[indices[n-1]].Key...), "duplicates the key of an earlier write, or a trigger of an earlier write has changed its row")
			return nil
		case other > 0:
			same = guard.Invalid(fmt.Sprintf("writes[%d]: key", indices[other-1]), fmt.Sprint(b.writes[indices[other-1]].Key...), fmt.Sprintf("is that of writes[%d], too", indices[n-1]))
			return nil
		}
		rest[indices[n-1]] = r
		others++
		return nil
	})
	switch {
	case err != nil:
		return indices, b.t.failure(b.op(), guard.Claim{}, err, b.q.autocommit())
	case same != nil:
		return indices, same
	case applied+others > len(indices):
		return indices, fmt.Errorf("sqlfence: %s: the key is not unique: for %d keys, %d rows were written and %d were not", b.op(), len(indices), applied, others)
	}
	for _, i := range indices {
		claim := b.writes[i].Claim
		switch r, refused := rest[i]; {
		case !refused:
			b.verdicts[i], b.marks[i] = nil, guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}
		case !r.there:
			b.verdicts[i] = &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim}
		default:
			b.verdicts[i] = nil
			if r.locked { // else it was replaced while the statement waited for it
				b.marks[i], b.verdicts[i] = b.t.decide(updates, r, claim)
			}
			// The row as it was locked tells why it was not written. If it does
			// not, the version in the statement's older snapshot was the one
			// that refused.
			switch {
			case b.verdicts[i] != nil:
			case try == maxReplaced:
				b.verdicts[i] = guard.Unavailable(b.op(), claim, errHeldBack)
			default:
				open = append(open, i)
			}
		}
	}
	return open, nil
}

func (b *batch) op() string { return "update many of " + b.t.label }

// maxParameters is the most a statement may have: the protocol counts them in
// 16 bits (PostgreSQL documentation, 55.7, Bind).
const maxParameters = 65535

// check validates the writes and finds the columns that they have in common.
func (b *batch) check(ctx context.Context) error {
	for i, w := range b.writes {
		at := fmt.Sprintf("writes[%d]: ", i)
		key, err := b.t.check(ctx, w.Claim, w.Key)
		if err != nil {
			return fmt.Errorf("%s%w", at, err)
		}
		b.keys = append(b.keys, key)
		if len(w.Set) == 0 {
			return guard.Invalid(at+"set", "", "names no column")
		}
		if i == 0 {
			b.columns = columnsOf(w.Set, nil)
			continue
		}
		if err := b.sameColumns(at, w.Set); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) sameColumns(at string, set Set) error {
	for column := range set {
		if !slices.Contains(b.columns, column) {
			return guard.Invalid(at+"set column", column, "is not in writes[0]: all sets must name the same columns")
		}
	}
	for _, column := range b.columns {
		v, named := set[column]
		if !named {
			return guard.Invalid(at+"set", column, "is missing here but set in writes[0]: all sets must name the same columns")
		}
		first, computed := b.writes[0].Set[column].(Expr)
		other, also := v.(Expr)
		if computed != also || computed && !reflect.DeepEqual(first, other) {
			return guard.Invalid(at+"set column "+column, other.sql, "must be the same expression with the same arguments in all writes")
		}
	}
	return nil
}

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

// shared returns the parameters that occur once, after those of the rows.
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
// prepares a few statements and not one for each size. An added row has no key,
// so it matches no row, and no token.
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
		args = append(append(args, b.keys[i]...), int64(w.Claim.Token))
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

// many writes the statement. Its own names collide with the table's only if
// chosen on purpose, so that expressions find their columns.
//
//   - "fence in" has the writes. Its first row gives each parameter the type of
//     its column, and is recognised by having no token: a NULL key would not
//     do, since a composite value with a NULL in it is not NOT NULL.
//   - "fence twice" finds keys that the database considers equal. Then nothing
//     is locked or written.
//   - "fence row" locks the rows in the order of their keys and reads what the
//     verdict needs, from the locked version.
//   - "fence out" compares with the row itself and writes. Its own snapshot is
//     from before the lock, but PostgreSQL compares again with the version
//     that it finds locked (PostgreSQL documentation, 13.2.1). A comparison
//     with a token read elsewhere in the statement would not be repeated.
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
		b.WriteString(", NULL::pg_catalog.text")
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
	keys, order := make([]string, len(t.keys)), make([]string, len(t.keys))
	for i, column := range t.keyColumns {
		keys[i], order[i] = own("k", i), t.row+"."+column
	}
	key, meet := strings.Join(keys, ", "), t.keysEqual(t.row+".", func(i int) string { return keys[i] })
	b.WriteString(`, "fence twice" AS (SELECT pg_catalog.min("fence n") AS "fence n", pg_catalog.max("fence n") AS "fence other" FROM "fence in"` +
		` WHERE "fence token" IS NOT NULL GROUP BY ` + key + " HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1)")
	again, other := "false", "0"
	if of.later { // a row that this same transaction wrote
		again, other = t.row+`.xmin`+equals+`pg_catalog.pg_current_xact_id()::pg_catalog.xid`, `CASE WHEN "fence again" THEN -1 ELSE 0 END`
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
	there := t.keysEqual(t.row+".", func(i int) string { return `"fence i".` + keys[i] })
	b.WriteString(` SELECT 0 AS "fence n", pg_catalog.count(*)::int AS "fence other", false AS "fence there", false AS "fence found",` +
		` NULL::bigint AS "fence mark", NULL::pg_catalog.text AS "fence whose", false AS "fence deleted", false AS "fence satisfied" FROM "fence out"` +
		` UNION ALL SELECT "fence i"."fence n", ` + other + `, EXISTS (SELECT FROM ` + t.name + " WHERE " + there + `), "fence r"."fence n" IS NOT NULL,` +
		` "fence mark", "fence whose", coalesce("fence deleted", false), coalesce("fence satisfied", false)` +
		` FROM "fence in" AS "fence i" LEFT JOIN "fence out" AS "fence o" ON "fence o"."fence n"` + equals + `"fence i"."fence n"` +
		` LEFT JOIN "fence row" AS "fence r" ON "fence r"."fence n"` + equals + `"fence i"."fence n"` +
		` WHERE "fence o"."fence n" IS NULL AND "fence i"."fence token" IS NOT NULL`)
	b.WriteString(` UNION ALL SELECT "fence n", "fence other", false, false, NULL, NULL, false, false FROM "fence twice"`)
	return nil
}

// own returns the name of one of the statement's own columns.
func own(kind string, i int) string { return `"fence ` + kind + strconv.Itoa(i) + `"` }
