package sqlfence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// Delete marks the row as deleted: it stays, as a tombstone, with the claim as
// its mark and the server's time in DeletedColumn, so that no older holder can
// bring it back. set, which may be nil, is written with it, to clear columns
// that should not be kept. The table must have a DeletedColumn, else it is
// ErrInvalid, nothing sent; the other errors are those of [Table.Update].
//
// To Update and Delete a tombstone is ErrNotFound, to [Table.Takeover] as well,
// and [Table.Upsert] under a newer claim (or the same, under
// [guard.SameOrNewer]) brings the row back. Readers must look at DeletedColumn
// themselves. A tombstone may be removed by a plain DELETE once no claim below
// its mark can come any more.
func (t *Table) Delete(ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) error {
	return t.write(ctx, q, deletes, claim, key, set)
}
