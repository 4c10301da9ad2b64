// Package sqlfence makes PostgreSQL refuse the writes of a stale lock holder.
//
// A write carries a claim: resource, fencing token, lease ID. The database
// compares it with the resource's mark, the highest claim admitted so far,
// inside the write. pgx ([Pgx]) and database/sql ([Std]) run the same
// statements.
//
// # What it guarantees
//
// P1, no stale write: once a mark is T, no write under a lower token takes
// effect, by any way that compares with that mark. P2, no lost takeover: a holder
// that raised before it read, or reads inside InTx, loses no acknowledged update
// of an older holder. P4, P5, P6 and P9 as the README says; P4 on a [Table] only
// with a lease column.
//
// # What it does not
//
//   - Only triggers stop writers that do not use this package. The owner of a
//     table may disable its triggers, and a role with the privilege TRIGGER on it,
//     as by GRANT ALL, replace them; the application's role must be neither.
//   - P1 and P2 do not hold across a failover to a standby that lost the raise,
//     nor does P2 if the reads after the raise go to a replica.
//   - A row that does not exist has no mark, and a row deleted other than by
//     [Table.Delete] has lost it.
//   - A BEFORE UPDATE trigger that changes the token column undoes a row's mark.
//     Takeover detects this; [Admin.Verify] reports what it can recognise. Views,
//     foreign tables and tables with rules are refused at first use, not later.
//   - A writer that only presents its claim locks its rows first and the resource
//     at the end of each statement; InTx and Enter lock the resource first. On
//     the same rows the two may deadlock: one gets 40P01 ([ErrorFrom]:
//     ErrUnavailable) and has written nothing.
//   - The key of a resource's lock is a hash of its name and a secret, but
//     pg_locks shows the keys of held locks to any login role. A role that polls
//     it can take such a lock, too, and delay the resource's next raise for as
//     long as its session lasts; it cannot enter, raise or write. The raise names
//     the session in its log and its error, for an operator to end.
//   - What a callback of InTx does outside its transaction is not fenced.
//   - What a logical subscription applies was checked where it was published, and
//     pg_restore of data with --disable-triggers fires no triggers.
//   - A session that sets the triggers' own settings (fencepost.guard_...), or makes
//     up claims, deceives them: they are against mistakes, not against attackers.
//
// # Use
//
// Choose one way per resource: each compares with one mark, and a raise
// protects only the writes that are compared with the mark it raised.
//
// A single statement on a table of your own, [Table]: the row is the resource
// and one of its columns is its mark. It costs what the plain UPDATE costs and
// fences that one row. The template names the row's resource, so that a claim
// for another resource is refused before anything is sent.
//
//	ALTER TABLE tenant_billing_close ADD last_fencing_token bigint NOT NULL DEFAULT 0;
//
//	db, err := sqlfence.Pgx(pool, nil)
//	name := guard.Must(guard.NewTemplate("{tenant_id}:billing-close:{period}"))
//	closes, err := sqlfence.NewTable([]string{"tenant_billing_close"}, []string{"tenant_id", "period"}, name, nil)
//	err = closes.Update(ctx, db, claim, sqlfence.Key{"tenant_123", "2026-04"},
//		sqlfence.Set{"status": "closed", "closed_at": sqlfence.Raw("now()")})
//	if errors.Is(err, guard.ErrStale) {
//		return err // succeeded by a newer holder: stop
//	}
//
// A fenced transaction, [DB.InTx]: everything written in it under the resource
// is fenced: sets of rows, rows that do not exist yet, several tables. Its
// marks, and those of the next two ways, are in the schema fencepost, which
// [DB.Migrate] creates.
//
//	err := db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "INSERT INTO invoices ...")
//		return err
//	})
//
// Triggers on a table, [Admin.InstallTrigger]: every writer that does not
// present a current claim in its transaction is refused, even an ORM or a
// person at psql. [Options].PresentClaims makes InTx present its claim, other
// code calls [DB.Present], and [ErrorFrom] turns driver errors into guard's.
//
// A [guard.Store], which [DB] implements, for writes elsewhere: replicas of an
// HTTP service, with [DB.Transactor], share the marks of fenced transactions.
//
// # Taking over
//
// A new holder raises the mark before it reads: [Table.Takeover] for a row,
// [DB.Raise] for the schema's marks, or it reads inside InTx, which raises
// first. Comparing at write time alone is not enough: between the new holder's
// read and its write, the old holder, whose token is still the highest that
// wrote, may write once more, and the new holder would overwrite that write.
//
// # Transactions in other shapes
//
// Several resources, another isolation level, retries, finding out what became
// of a lost COMMIT: [DB.InTxAll]. Writes that are known in advance, in one round
// trip on pgx: [DB.Batch]. A transaction begun by sqlc, GORM or the driver:
// [DB.Enter]; by code that hides the driver's transaction, such as ent and bun:
// [DB.EnterOn].
//
// There is no Begin besides the callback: code that must begin uses Enter.
//
// # How a transaction is fenced
//
// fencepost.raise takes the resource's advisory lock exclusively and replaces a
// lower mark with the claim, in a transaction of its own. fencepost.enter takes
// the lock in shared mode as the first statement of the work's transaction and
// compares the claim with the mark as it is under the lock. So transactions of
// one holder run concurrently, a raise waits for all transactions that entered
// before it, and whatever enters after it sees the new mark.
//
// enter also sets a marker that lives as long as the transaction, and COMMIT's
// round trip checks for it (on database/sql, which has no pipeline, the one
// before it). So a callback that ended the transaction in SQL, or by COMMIT AND
// CHAIN, gets ErrOutcomeUnknown. What it wrote after that was not fenced.
//
// A stopped holder delays a successor that waits by at most 2 s: after half a
// second a raise looks for the sessions in its way, which the server terminates
// ([Options].TerminateAfter). A raise with a shorter deadline ends nobody. A
// terminated holder gets ErrStale from its next statement, ErrOutcomeUnknown if
// that is COMMIT. Otherwise [Options].IdleTimeout ends the sessions.
//
// # Failure by failure
//
//   - A lower token: ErrStale. The same token under another lease: ErrConflict
//     (on a Table, only with a LeaseColumn). The same token twice on a Table:
//     ErrSpent, unless its rule is [guard.SameOrNewer].
//   - A claim for another row's resource: a [*guard.MisdirectedError].
//   - The answer to a COMMIT, or to a statement that commits by itself, was
//     lost: ErrOutcomeUnknown, never success; [DB.Resolve] can find out.
//   - The context ended and nothing was written: ErrUnavailable, or
//     ErrLeaseLost if it ended with its lease.
//   - A deadlock, a lock timeout, a lost connection before COMMIT:
//     ErrUnavailable, nothing was written. Nothing is retried unless requested.
//   - A server whose default isolation is not READ COMMITTED, or whose
//     synchronous_commit is off: no difference for the schema's marks. A raise
//     and a takeover survive a crash once they have returned; a Table's plain
//     write is as durable as its commit.
//
// # Operating
//
// [Admin.Verify] compares a database with what is described here, at start-up
// and in tests, to which package sqltest gives a database. [RolesSQL] creates the
// roles; PUBLIC has no rights on the schema. [Admin.Reset] repairs a poisoned mark
// and [Admin.ResetFloor] a floor; both compare and record. [DB.Retire] removes
// marks of resources that are gone.
//
// A fenced transaction costs the server about 20 us; 8 of them are for two
// timeouts, which negative [Options].LockTimeout and IdleTimeout turn off.
//
// # Compatibility
//
// Until version 1 exported names may change. The schema is migrated forward only.
package sqlfence
