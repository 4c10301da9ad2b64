// Package sqlfence makes PostgreSQL refuse the writes of a stale lock holder.
//
// A write carries a claim: resource, fencing token, lease ID. The database
// compares it with the resource's mark, the highest claim admitted so far,
// inside the write. pgx ([Pgx]) and database/sql ([Std]) run the same
// statements.
//
// # Two ways
//
// A single statement on a table of your own, [Table.Update]: the row is the
// resource and one of its columns its mark. It costs what the plain UPDATE
// costs and needs nothing but the column. It fences that one row.
//
//	ALTER TABLE tenant_billing_close ADD last_fencing_token bigint NOT NULL DEFAULT 0;
//
//	db, err := sqlfence.Pgx(pool, nil)
//	closes, err := sqlfence.NewTable([]string{"tenant_billing_close"}, []string{"tenant_id", "period"}, nil)
//	err = closes.Update(ctx, db, claim, sqlfence.Key{"tenant_123", "2026-04"},
//		sqlfence.Set{"status": "closed", "closed_at": sqlfence.Raw("now()")})
//	if errors.Is(err, guard.ErrStale) {
//		return err // succeeded by a newer holder: stop
//	}
//
// A fenced transaction, [DB.InTx]: everything that is written in it under the
// resource is fenced, also sets of rows, rows that do not exist yet, and
// several tables. Marks are in the schema fencepost, which [DB.Migrate]
// creates.
//
//	err := db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "INSERT INTO invoices ...")
//		return err
//	})
//
// Choose one way per resource: each compares with a mark of its own, and a
// raise protects only the writes that are compared with the mark it raised.
//
// # Taking over
//
// A new holder that reads before it writes must raise the mark before it
// reads: [DB.Raise], or simply read inside InTx, which raises first. Comparing
// at write time alone is not enough: between the new holder's read and its
// write the old one, whose token is still the highest that wrote, may write
// once more, and the new one would write over that.
//
// # What it guarantees
//
//   - P1: once a resource's mark is T, no write under a lower token takes
//     effect there, by any of the ways that compare with that mark.
//   - P2: a holder that raised, or that reads inside InTx, loses no
//     acknowledged update of an older holder.
//   - P4: the same token under another lease ID is a conflict; on tables only
//     with a lease column ([TableOptions].LeaseColumn).
//   - P5, P6: what could not be learned is ErrOutcomeUnknown and never success;
//     every refusal says stale, spent, conflict, not found or unfenced, with
//     the token and the mark.
//   - An acknowledged raise survives a crash of the server, whatever its
//     synchronous_commit default is.
//   - The isolation level is named in every BEGIN: a server whose default is
//     REPEATABLE READ or SERIALIZABLE changes nothing. Statements on a Table
//     through [DB.In] are atomic under any level.
//
// # What it does not
//
//   - Writers that do not go through it are not stopped.
//   - P1 and P2 do not hold across a failover to a standby that lost the raise,
//     and P2 not if what is read after the raise is read on a replica.
//   - A single statement is as durable as its commit. Where synchronous_commit
//     is off, a crash of the server may undo an acknowledged write together
//     with its mark, and an older claim is then admitted again. Marks of the
//     schema fencepost are always durable; set synchronous_commit for the
//     writes of a Table that must be, too.
//   - A key of [NewTable] that is not unique in the table is found out after
//     the fact.
//   - What a callback of InTx does outside its transaction is not fenced.
//
// # How a fenced transaction works
//
// fencepost.raise takes the resource's advisory lock exclusively and puts the
// claim in the place of a lower mark, in a transaction of its own.
// fencepost.enter takes the same lock in shared mode as the first statement of
// the work's transaction and compares the claim with the mark as it is under
// the lock. So transactions of one holder run side by side, a raise waits for
// all that entered before it, and whatever enters after it sees the new mark.
// Advisory locks queue fairly: under a stream of transactions of the old
// holder a raise waits for those that are open, not for a gap. The lock's key
// is a 64-bit hash of the resource; two resources that share one wait for each
// other and are otherwise unaffected.
//
// On pgx, BEGIN and enter travel in one round trip, so that a fenced
// transaction takes as many as a plain one.
//
// A paused holder cannot block its successor for ever: the server ends its
// transaction after [Options].IdleTimeout. That timeout does not reach a client
// that is stopped while it receives a result; its transaction ends with its
// TCP connection, and until then a raise returns ErrUnavailable after
// [Options].RaiseTimeout.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The schema
// is migrated forward only; a build refuses a schema newer than itself.
package sqlfence
