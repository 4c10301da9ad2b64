// Package sqlfence makes PostgreSQL refuse the writes of a stale lock holder.
//
// A write carries a claim: resource, fencing token, lease ID. The database
// compares it with the resource's mark, the highest claim admitted so far,
// inside the write. pgx ([Pgx]) and database/sql ([Std]) run the same
// statements.
//
// # Choosing a way
//
// A single statement on a table of your own, [Table.Update] and its siblings
// (see Statements below): the row is the resource and one of its columns its
// mark. It costs what the plain UPDATE costs and needs nothing but the column.
// It fences that one row.
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
// resource is fenced, also sets of rows, rows that do not exist yet, and
// several tables. Marks are in the schema fencepost, which [DB.Migrate]
// creates.
//
//	err := db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "INSERT INTO invoices ...")
//		return err
//	})
//
// Triggers on a table, [Admin.InstallTrigger]: every writer is refused that does
// not present a current claim in its transaction, an ORM, generated code or a
// person at psql as well. With [Options].PresentClaims InTx presents its claim by
// itself; other code calls [DB.Present], or fencepost.present in SQL, and
// [ErrorFrom] makes guard's errors of its driver's. The marks are those of fenced transactions.
//
//	err := db.Admin().InstallTrigger(ctx, sqlfence.Trigger{
//		Table:    []string{"invoices"},
//		Resource: guard.Must(guard.NewTemplate("{tenant}:invoices")),
//		Columns:  map[string]string{"tenant": "tenant_id"},
//	})
//
// A [guard.Store], which a [DB] is, for what writes elsewhere: replicas of an
// HTTP service share the marks of fenced transactions.
//
// Choose one way per resource: each compares with one mark, and a raise protects
// only the writes that are compared with the mark it raised. Statements on a
// [Table] have the marks of its rows; the other ways share those of schema
// fencepost.
//
// # Statements
//
// All compare the claim with the row's mark in the statement that writes, and
// all run by themselves or in a transaction of the caller's ([DB.In]), on pgx
// and database/sql.
//
// Update writes a row that is there; Where narrows it:
//
//	open := closes.Where(sqlfence.Raw("status = $1 OR status IS NULL", "open"))
//	err := open.Update(ctx, db, claim, key, sqlfence.Set{"status": "closed"})
//	if errors.Is(err, sqlfence.ErrPredicate) {
//		return nil // the row is there, the claim is good, and it is closed already
//	}
//
// Takeover raises the mark and reads the row as it is under that mark. Its
// table has the rule [guard.SameOrNewer], because a holder writes under the
// token that it took over with:
//
//	var position int64
//	err := cursors.Takeover(ctx, db, claim, key, sqlfence.Dest{"position": &position})
//	if err != nil {
//		return err
//	}
//	next := work(position) // no older holder can write the row any more
//	err = cursors.Update(ctx, db, claim, key, sqlfence.Set{"position": next})
//
// Upsert inserts the row if it is not there, with the claim as its mark:
//
//	err := sessions.Upsert(ctx, db, claim, sqlfence.Key{id}, sqlfence.Set{"node": host})
//
// Delete leaves a tombstone, so that the mark is not forgotten with the row: an
// older holder's Upsert would bring back a row that was deleted physically.
// The table names a timestamptz column for it:
//
//	sessions, err := sqlfence.NewTable([]string{"sessions"}, []string{"id"},
//		guard.Must(guard.NewTemplate("session:{id}")), &sqlfence.TableOptions{DeletedColumn: "deleted_at"})
//	err = sessions.Delete(ctx, db, claim, sqlfence.Key{id}, sqlfence.Set{"node": nil})
//
// UpdateMany writes many rows in one statement, each under its own claim, and
// returns a verdict for each; those that their marks refuse do not keep the
// others back:
//
//	verdicts, err := parts.UpdateMany(ctx, db, []sqlfence.RowWrite{
//		{Claim: c1, Key: sqlfence.Key{1}, Set: sqlfence.Set{"state": "done"}},
//		{Claim: c2, Key: sqlfence.Key{2}, Set: sqlfence.Set{"state": "done"}},
//	})
//	for i, verdict := range verdicts {
//		if errors.Is(verdict, guard.ErrStale) { ... }
//	}
//
// A row that is not there has no mark. Takeover of it raises nothing, and
// whoever upserts it first is admitted under any token.
//
// # Taking over
//
// A new holder that reads before it writes must raise the mark before it
// reads: [Table.Takeover] for a row, [DB.Raise] for the marks of schema
// fencepost, or simply read inside InTx, which raises first. Comparing
// at write time alone is not enough: between the new holder's read and its
// write the old one, whose token is still the highest that wrote, may write
// once more, and the new one would write over that.
//
// # Fenced transactions
//
// fencepost.raise takes the resource's advisory lock exclusively and puts the
// claim in the place of a lower mark, in a transaction of its own.
// fencepost.enter takes the same lock in shared mode as the first statement of
// the work's transaction and compares the claim with the mark as it is under
// the lock. So transactions of one holder run side by side, a raise waits for
// all that entered before it, and whatever enters after it sees the new mark.
// Advisory locks queue fairly: under a stream of transactions of the old
// holder a raise waits for those that are open, not for a gap. The lock's key
// is a 64-bit hash of the resource and of a secret of the database; two
// resources that share one wait for each other and are otherwise unaffected.
// PostgreSQL lets every login role take any advisory lock whose key it knows.
// The secret keeps keys from being computed; pg_locks still shows those that are
// held, so a role that watches it can delay raises, and never admits a write.
//
// On pgx, BEGIN and enter travel in one round trip, so that a fenced
// transaction takes as many as a plain one.
//
// A paused holder cannot block its successor for ever: the server ends its
// transaction after [Options].IdleTimeout. That timeout does not reach a client
// that is stopped while it receives a result, so a raise that waits has the
// server end the sessions whose transactions entered under a lower token more
// than [Options].TerminateAfter ago. It does so with the rights of its own role,
// and only to sessions of that role.
//
// The functions that run with their owner's rights resolve no name on the
// caller's search_path.
//
// # Other shapes of transactions
//
// Several resources, another isolation level, retries: [DB.InTxAll]. It locks
// resources in one order, so that transactions do not wait for each other in a
// circle. Under REPEATABLE READ and SERIALIZABLE it also locks the mark's row,
// because there the snapshot may be older than the advisory lock. Nothing is
// run twice unless [TxOptions].Retries asks for it.
//
// Writes that are known beforehand: [DB.Batch], one round trip on pgx with BEGIN
// and COMMIT in it.
//
// A transaction begun elsewhere, by sqlc, gorm or the driver: [DB.Enter], as its
// first statement. It holds P1 like InTx, and P2 for what that transaction reads
// after it. It writes the mark's row, so transactions of one holder that use it
// run one after another.
//
//	tx, err := pool.Begin(ctx)
//	defer tx.Rollback(ctx)
//	if err := db.Enter(ctx, tx, claim); err != nil {
//		return err
//	}
//	queries.New(tx).CloseBilling(ctx, tenant)
//	return tx.Commit(ctx)
//
// One idle connection in place of a pool: [PgxConn], [StdConn].
//
// A COMMIT whose answer was lost is ErrOutcomeUnknown. With [TxOptions].Resolve
// the server is asked what became of it, then or later by [DB.Resolve].
//
// # The store
//
// [DB.Admit] raises the mark as InTx does and costs one SELECT if the claim is
// the mark already; [DB.Mark] reads it. A standby is refused. Admit protects what
// its caller writes elsewhere only as far as that compares, too.
//
// A mark above everything that its issuer issued, after a restore of the issuer
// or by a made-up token, refuses every holder. [Admin.Reset] puts another in its
// place, compares before it sets, and records who did it and why; [Admin.Marks] and
// [Admin.Resets] list both. Marks of resources that are gone are forgotten by
// [DB.Retire], which lifts the floor instead, so that the table does not grow
// for ever.
//
// # Enforcement by triggers
//
// Each statement that writes a guarded table is checked once for each resource
// that its rows belonged to before or belong to after it, when everything that
// may change the rows is done, BEFORE triggers included: the claim presented
// for the resource must be its mark, under the lock that [DB.InTx] takes and
// that a raise waits for. So a stale writer is refused even if it read long ago,
// and a holder that raised before it read loses nothing. There is no check to
// be remembered: rolling back to a savepoint frees the lock with the write. Under
// REPEATABLE READ and SERIALIZABLE the mark's row is locked too, and what was
// raised since the transaction's snapshot is a serialization failure (40001).
//
// A writer that only presents its claim locks its rows first and the resource at
// the end of its statement; InTx and Enter lock the resource first. Where both
// write the same rows they may wait for each other until one gets a deadlock
// (40P01) and tries again. Writers that can should enter.
//
// Covered are INSERT, UPDATE, DELETE, COPY, MERGE, ON CONFLICT, changes of the
// key, writes straight into a partition or child, actions of foreign keys, and
// sessions in replica mode. TRUNCATE is refused where a table has many
// resources. What cannot be covered is refused at installation: views and
// foreign tables, columns that may be NULL, types with several texts for equal
// values. They are statement triggers: row triggers cost a check for each row,
// and a check that remembers can be told so by the writer. A partition that is
// attached later is covered when it is written through its root; direct writes,
// for which a role needs rights on the partition itself, are covered after the
// next InstallTrigger, and [Admin.Verify] finds it until then.
//
// Who owns a table may disable its triggers: the application's role must not
// ([RolesSQL], [Verification].Role). A claim is no secret and no proof of a lease;
// triggers stop writers that are late or know nothing of fences, not an
// attacker who may read the marks.
//
// The apply process of a logical subscription fires no statement triggers: on a
// subscriber, replicated changes pass, as they should, since the publisher
// checked them, and local writers are refused. The initial copy of a table does
// fire them; install after it. So does a restore of data alone into guarded
// tables, which pg_restore --disable-triggers is for; a full restore makes the
// triggers after the data.
//
// # Verifying
//
// [Admin.Verify] compares a database with what is described here and says what is
// wrong: columns, keys and indexes of a Table, triggers and partitions, the
// functions' text, a role that could get around the fence. It is for start-up
// and for users' own tests. [Admin.Triggers] lists what is under triggers.
//
// # Roles
//
// [RolesSQL], or [Admin.MigrateRoles], makes three roles to be granted to others: an
// enforcer that may raise, enter and present, an operator who may also retire
// and reset, and a reader, which Mark and Admit need too. PUBLIC has no right on
// schema fencepost.
//
// # What it guarantees
//
//   - P1: once a resource's mark is T, no write under a lower token takes
//     effect there, by any of the ways that compare with that mark.
//   - P2: a holder that raised or took over, or that reads inside InTx, loses
//     no acknowledged update of an older holder.
//   - P4: the same token under another lease ID is a conflict; on tables only
//     with a lease column ([TableOptions].LeaseColumn).
//   - P5, P6: what could not be learned is ErrOutcomeUnknown and never success;
//     every refusal says stale, spent, conflict, not found or unfenced, with
//     the token and the mark.
//   - An acknowledged raise or takeover survives a crash of the server,
//     whatever its synchronous_commit default is.
//   - The isolation level is named in every BEGIN: a server whose default is
//     REPEATABLE READ or SERIALIZABLE changes nothing. Statements on a Table
//     through [DB.In] are atomic under any level.
//
// # What it does not
//
//   - Writers that do not go through it are not stopped, except by triggers.
//   - P1 and P2 do not hold across a failover to a standby that lost the raise,
//     and P2 not if what is read after the raise is read on a replica.
//   - A single statement is as durable as its commit. Where synchronous_commit
//     is off, a crash of the server may undo an acknowledged write together
//     with its mark, and an older claim is then admitted again. Marks of the
//     schema fencepost and marks that Takeover raised are always durable; set
//     synchronous_commit for the writes of a Table that must be, too.
//   - A row that was deleted other than by [Table.Delete] has forgotten its
//     mark.
//   - A trigger BEFORE UPDATE or a rule that puts another value into the token
//     column undoes the mark of a row. Takeover notices, the other statements
//     do not; [Admin.Verify] shows what it can recognise.
//   - A key of [NewTable] that is not unique in the table is found out after
//     the fact, unless [Admin.Verify] was asked.
//   - What a callback of InTx does outside its transaction is not fenced, nor
//     what it writes after it ended the transaction itself and began another.
//
// # What it costs
//
// On the server a fenced transaction costs one statement more, about 20 us of
// processor time where BEGIN, an UPDATE by key and COMMIT take 40 (PostgreSQL 15,
// no disk). Of that 8 are the two timeouts, 6 the read of the mark, 2 the lock.
// Who sets lock_timeout and idle_in_transaction_session_timeout for the whole
// session, in the pool's RuntimeParams, saves those 8 with negative
// [Options].LockTimeout and IdleTimeout.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The schema
// is migrated forward only; a build refuses a schema newer than itself.
package sqlfence
