// Package sqlfence makes PostgreSQL refuse the writes of a stale lock holder.
//
// A write carries a claim: resource, fencing token, lease ID. The database compares
// it with the resource's mark, the highest claim admitted so far, inside the write.
// [Pgx] is for pgx, [Std] for database/sql.
//
//	err := sqladmin.Pgx(pool).Migrate(ctx) // schema fencepost, once
//	db, err := sqlfence.Pgx(pool, nil)
//	err = db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE invoices SET status = 'closed' WHERE tenant = $1", tenant)
//		return err
//	})
//	if errors.Is(err, guard.ErrStale) {
//		return err // superseded by a newer holder: stop
//	}
//
// The callback does not run for a stale claim. One statement is shorter, and on pgx one
// round trip: db.Exec(ctx, claim, "UPDATE ...", tenant).
//
// This package has the schema's marks and the transactions that compare with them; sqlrow
// keeps a row's mark in the row, sqladmin is for operators, sqltest for tests.
//
// # What it guarantees
//
// P1, no stale write: once a mark is T, no write under a lower token takes effect, by
// any way that compares with that mark. P2, no lost takeover: a holder that raised
// before it read, or reads in InTx's transaction, loses no acknowledged update of an older
// holder. P4: one token under two leases is a conflict. P5: what could not be seen is an
// error. P6: each refusal has its reason. P9: a claim for another resource is refused.
//
// # What it does not
//
//   - Only triggers stop writers that do not use this package, and sqladmin says whom
//     they do not stop.
//   - P1 and P2 do not hold across a failover to a standby that lost the raise, nor P2
//     if the reads after the raise go to a replica. If a person or a driver cancels a
//     COMMIT that waits for a synchronous standby, the server reports success with a
//     warning. A pool made with [WatchWarnings] turns it into ErrOutcomeUnknown.
//   - The fence needs advisory locks that exclude and READ COMMITTED that sees what was
//     committed, as PostgreSQL 13 to 18 have. sqladmin's Migrate and Verify try them out,
//     and refuse servers that only speak PostgreSQL's protocol; opening a [DB] does not.
//   - A writer that only presents its claim locks its rows first, and the resource at
//     the end of each statement. InTx locks the resource first. On the same rows the two may
//     deadlock; then one of them gets 40P01, which [ErrorFrom] makes ErrUnavailable.
//   - Any login role sees the keys of held locks in pg_locks, may take such a lock, and
//     so delay raises. A raise names the session, for an operator to end.
//   - With synchronous_commit off a crash may lose an acknowledged transaction, but no mark.
//   - What a callback of InTx does outside its transaction is not fenced. What it calls on
//     the [DB] takes another connection: with as many callbacks as connections, they wait
//     for each other until their contexts end.
//
// # Use
//
// Choose one way per resource: each compares with one mark, and a raise protects
// only the writes that are compared with the mark it raised.
//
//   - One row of a table of your own: package sqlrow, which needs no schema.
//   - A fenced transaction, [DB.InTx], or [DB.Exec] of one statement: everything written
//     in it under the resource, including rows that do not exist yet.
//   - Triggers on a table, by sqladmin's InstallTrigger: every writer that presents no
//     current claim in its transaction is refused, even an ORM or a person at psql.
//     InTx, Exec and Enter present their claims, other code calls [DB.Present], and
//     [ErrorFrom] turns driver errors into guard's.
//   - A [guard.Store], which [DB] implements, for writes elsewhere: replicas of an
//     HTTP service, with [DB.Transactor], share the marks of fenced transactions.
//
// Several resources, another isolation level: [DB.InTxAll]. A transaction begun by sqlc, GORM,
// ent, Bun or the driver: [DB.Enter].
//
// # Taking over
//
// A new holder raises the mark before it reads, by [DB.Raise], or it reads in the transaction
// of InTx, which raises first. Otherwise the old holder, whose token is still the highest
// that wrote, may write between its successor's read and write, and that write would be lost.
//
// # How a transaction is fenced
//
// fencepost.raise takes the resource's advisory lock exclusively and replaces a lower
// mark with the claim, in a transaction of its own. fencepost.enter takes the lock in
// shared mode as the first statement of the work's transaction and compares the claim
// with the mark as it is under the lock. So transactions of one holder run side by
// side, a raise waits for those that entered before it, and later ones see the mark.
//
// On pgx BEGIN and enter are one round trip, COMMIT another, and Exec is one. On database/sql
// enter and a check before COMMIT are a round trip each.
//
// Enter sets a marker that lives as long as the transaction, and COMMIT looks for it. Unless
// COMMIT succeeded, the server is asked by the transaction's ID what became of it. If a callback
// ends the transaction in SQL all the same, what it writes after that is not fenced, and InTx
// returns ErrOutcomeUnknown. Not seen is a ROLLBACK if the session is lost after it, behind a
// driver that hides pgx's or in another transaction by then, or if a statement of that one
// failed: there the errors speak of the entered transaction alone. A COMMIT on pgx that got no
// response is ErrOutcomeUnknown unless nothing was committed. Sessions are checked in SQL.
//
// While a raise waits it looks for the sessions in its way, on a second connection if
// there is one, and has the server end those of its login role (session_user) that are idle
// for a second or work for 15 ([Options].TerminateAfter). So a holder that is stopped between
// statements delays its successor by at most 2 s, even one with short deadlines, if the
// pool has a connection to spare. InTx then returns ErrStale; statements and an Enter of the
// caller's get 57P01. A raise whose caller gives up may still end a session that it has seen.
// What it does not end, it waits for: idle transactions of other roles, and an Enter that
// itself raised, end by [Options].IdleTimeout; writers that only present a claim by their
// session's own settings, which by default are none; prepared transactions by a person.
//
// # Errors and operation
//
// A lower token is ErrStale; the same token under another lease ErrConflict. ErrUnavailable and
// ErrLeaseLost mean that nothing of the caller's work was written; the mark may have been raised.
// ErrOutcomeUnknown means that it may have been; [DB.Resolve] can find out. A closed pool is ErrSetup.
// No callback is called twice and no COMMIT sent twice. Until version 1 exported names may change.
//
// # Where to read on
//
// fence.go is what users call. tx.go goes from InTx and Exec to enter and COMMIT, outcome.go finds
// out what became of a transaction that was not simply committed; pgx.go and std.go send what
// they say. enter, refuse_entry, judge and verdict in sqladmin/migrations/0001_marks.sql decide.
// errors.go, internal/sqlkit (drivers.go, failure.go, querier.go, identifier.go) and package
// pgerr make guard's errors. raise.go raises, waits, and ends sessions. Then enter.go for
// transactions begun elsewhere and store.go for guard.Store. SQL.md is for other languages.
package sqlfence
