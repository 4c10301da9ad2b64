package sqlfence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// Upsert writes set to the row with the given key as [Table.Update] does, or
// inserts the row, with the claim as its mark, if there is none. It is one
// statement, INSERT ... ON CONFLICT DO UPDATE, with the errors of Update; the
// key must be the columns of a unique index, else it is ErrInvalid. set holds
// for both cases, so that an [Expr] in it cannot refer to the row's columns; it
// may be empty. Columns that set does not name get their default in a row that
// is inserted and keep what they have in one that is there.
//
// A row that is not there has no mark: whoever inserts it is admitted, under
// any token. So P1 holds from the row's first insert on, and it ends with a
// DELETE, after which an older holder's Upsert brings the row back. Delete with
// [Table.Delete] instead, which keeps the mark. Upsert under a newer claim
// brings such a row back: DeletedColumn is NULL again, and columns that set
// does not name have what they had.
//
// A predicate of [Table.Where] is compared with a row that is there.
func (t *Table) Upsert(ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) error {
	return t.write(ctx, q, upserts, claim, key, set)
}
