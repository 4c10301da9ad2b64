package sqlfence

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// RowWrite is one row of [Table.UpdateMany], with the meaning that Claim, Key and
// Set have for [Table.Update].
type RowWrite struct {
	Claim guard.Claim
	Key   Key
	Set   Set
}

// UpdateMany updates many rows, each under its own claim, in one statement: each
// row as [Table.Update] would, all those that their marks admit, and none else.
// It returns a verdict for each write, in their order: nil if it was applied,
// else the [*guard.RejectedError] that Update would return, or ErrUnavailable
// if a trigger or policy held it back.
//
// All sets must name the same columns. A value may differ from row to row; an
// [Expr] must be the same, with the same arguments, in all of them. No two
// writes may have one key: what looks equal is ErrInvalid before anything is
// sent, what only the database finds equal (1 and 1.0) is ErrInvalid, too, and
// nothing is written. No writes are no error. A statement has at most 65535
// parameters, of which each row takes one for each key column, one or two for
// its claim, and one for each value; more writes than that take several
// statements in one transaction, so that they too are written together or not at
// all. That is refused inside a transaction of the caller's, where the package
// could not see that two writes have one key.
//
// If err is not nil there are no verdicts, and nothing was written, unless it
// is ErrOutcomeUnknown or says that the key is not unique; that is also so for
// a constraint that one row violates. A transaction must then be rolled back.
//
// Rows are locked in the order of their keys, so that calls of one statement do
// not deadlock with each other. A row that was replaced while the statement ran takes
// another one; so does finding out that a row is not there. If that one fails,
// the rows that it is about have its error as their verdict.
func (t *Table) UpdateMany(ctx context.Context, q Querier, writes []RowWrite) (verdicts []error, err error) {
	if len(writes) == 0 {
		return nil, nil
	}
	start := time.Now()
	b := batch{t: t, q: q, writes: writes, verdicts: make([]error, len(writes)), marks: make([]guard.Mark, len(writes))}
	if err = b.check(ctx); err == nil {
		err = b.runAll(ctx)
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
	writes   []RowWrite
	columns  []string // of every set
	verdicts []error
	marks    []guard.Mark // what each was compared with
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

// run sends a statement, and again what neither was written nor refused, if it
// is there: such a row was changed or replaced while the statement waited for it.
func (b *batch) run(ctx context.Context, all []int) error {
	open, err := b.send(ctx, all)
	if err != nil {
		return err
	}
	for try := 1; len(open) > 0; try++ {
		there, err := b.existing(ctx, open)
		if err == nil {
			for _, i := range open {
				b.verdicts[i] = &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: b.writes[i].Claim}
			}
			if try == maxReplaced {
				for _, i := range there {
					b.verdicts[i] = guard.Unavailable(b.op(), b.writes[i].Claim, errHeldBack)
				}
				return nil
			}
			if open = there; len(there) > 0 {
				open, err = b.send(ctx, there)
			}
		}
		switch {
		case err == nil:
		case !b.q.autocommit():
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
// returns those that have none: their row was not found, or neither written nor
// refused. The database answers with how many were applied and with the rest.
func (b *batch) send(ctx context.Context, indices []int) (open []int, err error) {
	sql, args, err := b.statement(indices)
	if err == nil {
		err = b.q.usable(ctx, b.t)
	}
	if err != nil {
		return indices, err
	}
	var applied, others int
	var same error
	rest := make(map[int]*rowState) // by index; nil for a row that was not found
	err = b.q.query(ctx, sql, args, func(scan func(dest ...any) error) error {
		var n, other int
		var found bool
		var r rowState
		if err := scan(&n, &other, &found, &r.token, &r.lease, &r.deleted, &r.satisfied); err != nil {
			return err
		}
		switch {
		case n == 0:
			applied = other
			return nil
		case other < 0:
			same = guard.Invalid(fmt.Sprintf("writes[%d]: key", indices[n-1]), fmt.Sprint(b.writes[indices[n-1]].Key...), "is that of a write before it, too")
			return nil
		case other > 0:
			same = b.twice(indices[other-1], indices[n-1])
			return nil
		case found:
			rest[indices[n-1]] = &r
		default:
			rest[indices[n-1]] = nil
		}
		others++
		return nil
	})
	switch {
	case err != nil:
		return indices, tableFailure(b.op(), b.claim(), err, b.q.autocommit())
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
		case r == nil:
			open = append(open, i)
		default:
			// The row as it was locked says why it was not written. If it does
			// not, the one that the statement's older snapshot saw refused.
			if b.marks[i], b.verdicts[i] = b.t.decide(updates, *r, claim); b.verdicts[i] == nil {
				open = append(open, i)
			}
		}
	}
	return open, nil
}

// twice is the error of two writes with one key.
func (b *batch) twice(i, first int) error {
	return guard.Invalid(fmt.Sprintf("writes[%d]: key", i), fmt.Sprint(b.writes[i].Key...), fmt.Sprintf("is that of writes[%d], too", first))
}

// existing returns those of the writes whose row is there now.
func (b *batch) existing(ctx context.Context, indices []int) (there []int, err error) {
	sql, args := b.existingSQL(indices)
	err = b.q.query(ctx, sql, args, func(scan func(dest ...any) error) error {
		var n int
		if err := scan(&n); err != nil {
			return err
		}
		there = append(there, indices[n-1])
		return nil
	})
	if err != nil {
		return nil, tableFailure(b.op(), b.claim(), err, false)
	}
	return there, nil
}

func (b *batch) op() string { return "update many of " + b.t.label }

// claim is shown with an error of the whole batch.
func (b *batch) claim() guard.Claim {
	if len(b.writes) == 1 {
		return b.writes[0].Claim
	}
	return guard.Claim{}
}
