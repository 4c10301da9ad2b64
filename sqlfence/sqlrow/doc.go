// Package sqlrow makes PostgreSQL refuse a stale lock holder's write of one row.
//
// The row is the resource, and one of its columns is its mark: the highest claim
// that was admitted so far. A write compares its claim with it in the same statement.
// It runs on a pool, a connection or a transaction of pgx ([Pgx]) or database/sql ([Std]);
// nothing else of sqlfence is needed, and nothing in the database but a column.
//
//	ALTER TABLE tenant_billing_close ADD last_fencing_token bigint NOT NULL DEFAULT 0;
//
//	name := guard.Must(guard.NewTemplate("{tenant_id}:billing-close:{period}"))
//	closes, err := sqlrow.NewTable([]string{"tenant_billing_close"}, []string{"tenant_id", "period"}, name, nil)
//	err = closes.Update(ctx, sqlrow.Pgx(pool), claim, sqlrow.Key{"tenant_123", "2026-04"},
//		sqlrow.Set{"status": "closed", "closed_at": sqlrow.Raw("now()")})
//	if errors.Is(err, guard.ErrStale) {
//		return err // superseded by a newer holder: stop
//	}
//
// # What it guarantees
//
// P1, no stale write: once a row's mark is T, no [Table] writes it under a lower
// token. P2, no lost takeover: a holder that calls [Table.Raise] before it reads loses
// no acknowledged update of an older holder. P4, one lease for each token, needs
// [TableOptions].LeaseColumn. P5: what could not be seen is an error. P6: each refusal has
// its reason. P9: a claim for another row is refused.
//
// # What it does not
//
//   - It stops only writers that use a [Table]. Triggers stop the others, see package
//     sqlfence; their mark is another one, so do not mix the two on one table.
//   - It fences one row. It cannot stop an older holder from adding another row to a
//     set: use sqlfence's InTx for sets.
//   - A row that does not exist has no mark, and a row that is deleted loses it: keep it,
//     with a column that says that it is deleted. A BEFORE trigger that changes the token column undoes
//     a row's mark; sqladmin's Verify reports what it can recognise.
//   - Marks do not survive a failover to a standby that lost them, and reads after a
//     raise must not go to a replica. With synchronous_commit off a crash may lose an
//     acknowledged update and its mark; it loses no [Table.Raise].
//   - A [Table] is looked at once. If several tables have its name, by a search_path that
//     changes, name the schema; for another database make another Table.
//   - A raise ends no session. A statement waits up to 20 s for a row that another
//     transaction has locked, or as long as the session's lock_timeout says, and then names
//     the session; in a transaction of yours that setting is yours.
//   - If a person or a driver cancels a COMMIT that waits for a synchronous standby, the
//     server reports success with a warning. A pool made with sqlfence.WatchWarnings
//     turns it into ErrOutcomeUnknown.
//
// # Use
//
// A table whose rows are written once per token without reading, such as a status,
// needs only [Table.Update] or, if the row may not exist, [Table.Upsert]. A holder that
// reads first, a total or a cursor, takes over by [Table.Raise], which raises the row's
// mark and reads the row in one statement; the table's rule is then guard.SameOrNewer.
// Otherwise the old holder may write between the read and the write, and that write
// would be lost. [Table.Where] adds a condition.
//
// sqlrow.Pgx(tx) runs the same statements in a transaction. A row's mark and the mark that
// sqlfence's InTx and Raise use are different marks: a sqlfence.DB is no [Executor].
//
// # Errors
//
// A lower token is ErrStale; the same token under another lease ErrConflict; a token a
// second time ErrSpent, unless the rule is guard.SameOrNewer; no such row ErrNotFound;
// a claim for another row ErrMisdirected, before anything is sent. A lost response is
// ErrOutcomeUnknown, and the row's mark shows what happened. ErrUnavailable and
// ErrLeaseLost mean that the row was not written. No statement is sent a second time, and
// what a trigger of the table wrote elsewhere stays, also where it left the row out.
//
// # Where to read on
//
// write.go has the path of a write: it checks the input, sends the statement, and finds
// out why a row was not written; failure.go has the errors. statement.go builds the
// statements, table.go describes a table and looks at it once, executor.go is where
// statements go, key.go names the resource of a key, expr.go checks a user's SQL.
package sqlrow
