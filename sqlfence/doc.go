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
// effect, by any way that compares with that mark. P2, no lost takeover: a
// holder that raised before it read, or reads inside InTx, loses no acknowledged
// update of an older one. P4, P5, P6 and P9 as the README says; P4 on a [Table] only
// with a lease column.
//
// # What it does not
//
//   - Writers that do not go through it are stopped by triggers alone. Who owns
//     a table may disable its triggers; the application's role must not.
//   - P1 and P2 do not hold across a failover to a standby that lost the raise,
//     nor P2 if what is read after the raise is read on a replica.
//   - A row that is not there has no mark, and one that was deleted other than
//     by [Table.Delete] has forgotten it.
//   - A trigger BEFORE UPDATE that changes the token column undoes a row's mark.
//     Takeover notices; [Admin.Verify] shows what it can recognise. Views, foreign
//     tables and tables with rules are refused at their first use, but not if a
//     table becomes one later.
//   - A writer that only presents its claim locks its rows first and the resource
//     at the end of each statement; InTx and Enter lock the resource first. Both
//     on the same rows may deadlock: one gets 40P01 ([ErrorFrom]: ErrUnavailable)
//     and has written nothing. Where all enter, the fence adds no deadlock.
//   - The key of a resource's lock is a hash of its name and of a secret, but
//     pg_locks shows the keys of held locks to any login role. One that polls it
//     can take such a lock, too, and delay the resource's next raise for as long as
//     its session lasts; it cannot enter, raise or write. The raise names it in its
//     log and its error, for an operator to end: PostgreSQL has no rights on
//     advisory locks, only CONNECT on the database.
//   - What a callback of InTx does outside its transaction is not fenced.
//   - The apply process of a logical subscription, and pg_restore of data with
//     --disable-triggers, fire no triggers.
//
// # Use
//
// Choose one way per resource: each compares with one mark, and a raise
// protects only the writes that are compared with the mark it raised.
//
// A single statement on a table of your own, [Table]: the row is the resource
// and one of its columns its mark. It costs what the plain UPDATE costs and
// fences that one row. The template names the row's resource, so that a claim
// for another one is refused before anything is sent.
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
// A fenced transaction, [DB.InTx]: everything that is written in it under the
// resource is fenced, sets of rows, rows that do not exist yet and several
// tables. Its marks, and those of the next two ways, are in the schema
// fencepost, which [DB.Migrate] creates.
//
//	err := db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "INSERT INTO invoices ...")
//		return err
//	})
//
// Triggers on a table, [Admin.InstallTrigger]: every writer is refused that does
// not present a current claim in its transaction, an ORM or a person at psql as
// well. [Options].PresentClaims makes InTx present its claim, other code calls
// [DB.Present], and [ErrorFrom] makes guard's errors of the driver's.
//
// A [guard.Store], which a [DB] is, for what writes elsewhere: replicas of an
// HTTP service, with [DB.Transactor], share the marks of fenced transactions.
//
// # Taking over
//
// A new holder raises the mark before it reads: [Table.Takeover] for a row,
// [DB.Raise] for the schema's marks, or it reads inside InTx, which raises
// first. Comparing at write time alone is not enough: between the new holder's
// read and its write the old one, whose token is still the highest that wrote,
// may write once more, and the new one would write over that.
//
// # Transactions in other shapes
//
// Several resources, another isolation level, retries, asking what became of a
// lost COMMIT: [DB.InTxAll]. Writes that are known beforehand, in one round trip
// on pgx: [DB.Batch]. A transaction begun by sqlc, GORM or the driver:
// [DB.Enter]; by code that hides the driver's transaction, ent and bun:
// [DB.EnterOn]. An UPDATE of your own with the fence in its text:
// [Table.Refused].
//
// There is no Begin beside the callback: statements that go past the transaction
// would not be noticed. Who must begin it uses Enter and keeps its COMMIT.
//
// # How a transaction is fenced
//
// fencepost.raise takes the resource's advisory lock exclusively and puts the
// claim in the place of a lower mark, in a transaction of its own.
// fencepost.enter takes the lock in shared mode as the first statement of the
// work's transaction and compares the claim with the mark as it is under the
// lock. So transactions of one holder run side by side, a raise waits for all
// that entered before it, and whatever enters after it sees the new mark.
//
// enter also sets a marker that lives as long as the transaction, and COMMIT's
// round trip looks for it (on database/sql, which has no pipeline, the one
// before it). So a callback that ended the transaction in SQL, or by COMMIT AND
// CHAIN, gets ErrOutcomeUnknown, and what it wrote after that is not committed.
//
// A stopped holder delays its successor by at most 2 s, because a raise that
// waits has the server end the sessions in its way ([Options].TerminateAfter). It
// logs and observes for whom it waits; who was ended gets ErrStale. Without a
// successor [Options].IdleTimeout ends them.
//
// # Failure by failure
//
//   - A lower token: ErrStale. The same token under another lease: ErrConflict
//     (on a Table only with a LeaseColumn). The same token twice on a Table:
//     ErrSpent, unless its rule is [guard.SameOrNewer].
//   - A claim for another row's resource: a [*guard.MisdirectedError].
//   - The answer to a COMMIT, or to a statement that commits by itself, was
//     lost: ErrOutcomeUnknown, never success; [DB.Resolve] can ask.
//   - The context ended before anything was sent: ErrUnavailable, or
//     ErrLeaseLost if it ended with its lease.
//   - A deadlock, a lock timeout, a lost connection before COMMIT:
//     ErrUnavailable, nothing was written. Nothing is retried unless asked for.
//   - A server whose default isolation is not READ COMMITTED, or whose
//     synchronous_commit is off: no difference for the schema's marks. A raise
//     and a takeover survive a crash once they returned; a Table's plain write
//     is as durable as its commit.
//
// # Operating
//
// [Admin.Verify] compares a database with what is described here, at start-up
// and in tests. [RolesSQL] makes the roles; PUBLIC has no right on the schema. A
// poisoned mark is put right by [Admin.Reset], which compares and records;
// [DB.Retire] forgets marks of resources that are gone.
//
// A fenced transaction costs the server about 20 us of processor time, of which 8
// are two timeouts: negative [Options].LockTimeout and IdleTimeout save them.
//
// # Compatibility
//
// Until version 1 exported names may change. The schema is migrated forward only.
package sqlfence
