package sqlfence

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// serverDefault opens a DB whose sessions have a setting from the beginning, as
// they have the server's default.
func (e *env) serverDefault(setting, value string) fence {
	return e.open(nil, func(c *pgx.ConnConfig) { c.RuntimeParams[setting] = value })
}

// staleEnter lets enterStale enter under token 5 while token 6 is being
// raised, so that it waits for the lock, and returns how it ended and how many
// rows it got committed.
func (e *env) staleEnter(enterStale func() error) (rows int64, err error) {
	e.Helper()
	ctx := context.Background()
	e.exec("DROP TABLE IF EXISTS written; CREATE TABLE written (token bigint); DELETE FROM fencepost.marks; INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('r', 5, 'lease-5')")
	tx := e.begin("SELECT fencepost.raise('r', 6, 'lease-6', 5000)")
	done := make(chan error, 1)
	go func() { done <- enterStale() }()
	testkit.Eventually(e, "the stale holder to wait, or to end", func() bool { return e.int(waitersSQL) > 0 || len(done) > 0 })
	must(e, tx.Commit(ctx))
	err = <-done
	return e.written(), err
}

func write5(ctx context.Context, tx testTx) error {
	_, err := tx.exec(ctx, "INSERT INTO written VALUES (5)")
	return err
}

// plainEnter is a transaction of the server's default level that enters by
// itself.
func plainEnter(db fence) func() error {
	return func() error {
		return db.plain(context.Background(), inTurn(running("SELECT "+enterCall, "r", 5, "lease-5", 5000, 5000), write5))
	}
}

// TestDefaultIsolation (P1, P2): a server whose transactions are REPEATABLE
// READ or SERIALIZABLE by default changes nothing for InTx, which names its
// level; a transaction of such a level that enters by itself is refused.
func TestDefaultIsolation(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, e *env) {
				db := e.serverDefault("default_transaction_isolation", level)
				rows, err := e.staleEnter(func() error {
					return db.fenced(context.Background(), claimOf("r", 5), write5)
				})
				if !errors.Is(err, guard.ErrStale) || rows != 0 {
					t.Errorf("InTx of the older holder: %v, %d rows", err, rows)
				}
				rows, err = e.staleEnter(plainEnter(db))
				if pgerr.State(err) != pgerr.Isolation || rows != 0 {
					t.Errorf("a plain BEGIN and enter: %v, %d rows; want SQLSTATE %s", err, rows, pgerr.Isolation)
				}
				err = db.plain(t.Context(), running(raiseSQL, "r", 7, "", 1000))
				if pgerr.State(err) != pgerr.Isolation {
					t.Errorf("a plain BEGIN and raise: %v, want SQLSTATE %s", err, pgerr.Isolation)
				}
			})
		})
	}
}

// TestDefaultIsolationControls: without the check a stale commit is possible
// under REPEATABLE READ, and also if the mark is read with the snapshot of the
// statement that waited.
func TestDefaultIsolationControls(t *testing.T) {
	e := someEnv(t)
	e.exec("ALTER FUNCTION fencepost.enter STABLE")
	if rows, err := e.staleEnter(func() error {
		return e.db.fenced(context.Background(), claimOf("r", 5), write5)
	}); err != nil || rows != 1 {
		t.Errorf("one snapshot for lock and read: %v, %d rows", err, rows)
	}
	e.exec("ALTER FUNCTION fencepost.enter VOLATILE")
	e.mutate("enter", "pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'", "false")
	db := e.serverDefault("default_transaction_isolation", "repeatable read")
	if rows, err := e.staleEnter(plainEnter(db)); err != nil || rows != 1 {
		t.Errorf("no check of the level: %v, %d rows", err, rows)
	}
}

// TestReadInTheRaise: what is read in the statement that raises has a snapshot
// from before the wait and misses the predecessor's rows. Hence a raise is a
// transaction of its own, and reading comes after it.
func TestReadInTheRaise(t *testing.T) {
	e := someEnv(t)
	e.createWritten()
	end := e.holding(claimOf("r", 5))
	seen := make(chan int64, 1)
	go func() {
		var n int64
		e.admin.QueryRow(context.Background(), "SELECT count(*) FROM (SELECT fencepost.raise('r', 6, '', 5000) OFFSET 0) AS raised, written").Scan(&n)
		seen <- n
	}()
	e.waitForWaiters(1)
	must(t, end())
	if n := <-seen; n != 0 {
		t.Errorf("the control saw %d rows", n)
	}
	e.wantInt(1, "rows that a statement after the raise sees", "SELECT count(*) FROM written")
}

// TestDefaultReadOnly: pgx asks for a READ WRITE transaction; database/sql has
// no option for it, and the refusal says what is wrong.
func TestDefaultReadOnly(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		db := e.serverDefault("default_transaction_read_only", "on")
		err := db.fenced(t.Context(), claimOf("r", 5), write5)
		if e.driver == "pgx" {
			noError(t, err, "InTx")
			return
		}
		wantSays(t, err, guard.ReasonUnavailable, "read-only", "InTx")
		must(t, e.db.Raise(t.Context(), claimOf("r", 5))) // a session from before
		wantState(t, db.fenced(t.Context(), claimOf("r", 5), write5), "25006", "InTx under the mark")
	})
}

// TestDefaultSynchronousCommit: only raises override it, and not the transactions after
// them.
func TestDefaultSynchronousCommit(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		db := e.serverDefault("synchronous_commit", "off")
		noError(t, db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			n, err := tx.int(ctx, "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'")
			if n != 1 {
				t.Error("the caller's transaction was made synchronous")
			}
			return err
		}))
	})
}

// TestOldStrings: a session whose standard_conforming_strings is off gets the
// same verdicts from triggers and from Verify, whose texts contain backslashes.
func TestOldStrings(t *testing.T) {
	e := someEnv(t)
	old := e.open(nil, func(c *pgx.ConnConfig) { c.RuntimeParams["standard_conforming_strings"] = "off" })
	e.exec(unfitSQL + "; ALTER TABLE unfit ADD resource text NOT NULL DEFAULT 'r'; CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep()")
	guarded := triggerOn([]string{"unfit"}, `{resource}:a\'b`)
	must(t, old.InstallTrigger(t.Context(), guarded))
	v := Verification{Tables: []*Table{e.table("unfit", []string{"id"}, nil)}, Triggers: []Trigger{guarded}}
	for name, db := range map[string]fence{"off": old, "on": e.db} {
		if found, err := db.Verify(t.Context(), v); err != nil || len(found) != 1 || !strings.Contains(found[0].Problem, "the trigger keep") {
			t.Errorf("%s: found %v, %v", name, found, err)
		}
		claim := guard.Claim{Resource: `r:a\'b`, Token: 5}
		noError(t, db.Raise(t.Context(), claim))
		write := func(claims ...guard.Claim) error {
			return presenting(db, "UPDATE unfit SET v = v + 1", claims...)
		}
		noError(t, write(claim), "%s", name)
		wantReason(t, write(guard.Claim{Resource: `r:a'b`, Token: 5}), guard.ReasonMissing, "%s, another resource", name)
	}
}

// TestExecModesOfTheSchema: what needs schema fencepost works in every exec
// mode of pgx, with a resource and a lease that would end a literal, and still
// refuses stale claims; in the simple protocol BEGIN, enter and the rest are
// one text.
func TestExecModesOfTheSchema(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE written (resource text NOT NULL, token bigint NOT NULL)")
		table := triggerOn([]string{"written"}, `{resource}`)
		for i, mode := range e.execModes() {
			db := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			of := func(token guard.Token) guard.Claim {
				return guard.Claim{Resource: `it's \ $1 ` + itoa(i), Token: token, LeaseID: `l'\` + token.String()}
			}
			e.exec("TRUNCATE written")
			must(t, db.InstallTrigger(t.Context(), table))
			write := func(token guard.Token) func(context.Context, testTx) error {
				return running("INSERT INTO written VALUES ($1, $2)", of(token).Resource, int64(token))
			}
			for what, err := range []error{
				db.fenced(t.Context(), of(1), write(1)),
				db.fencedAll(t.Context(), []guard.Claim{of(2)}, &TxOptions{Isolation: RepeatableRead}, write(2)),
				db.fencedAll(t.Context(), []guard.Claim{of(3)}, &TxOptions{Isolation: Serializable}, write(3)),
				db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
					return errors.Join(tx.enter(ctx, of(4)), write(4)(ctx, tx))
				}),
				db.Raise(t.Context(), of(5)),
			} {
				noError(t, err, "%v, %d", mode, what)
			}
			noError(t, db.fenced(t.Context(), of(6), write(6)), "%v: above the mark", mode)
			if mark, err := db.Admit(t.Context(), of(6)); err != nil || mark.Token != 6 || mark.LeaseID != of(6).LeaseID {
				t.Errorf("%v: Admit: %+v, %v", mode, mark, err)
			}
			for what, err := range []error{
				db.fenced(t.Context(), of(5), write(5)), db.Raise(t.Context(), of(5)),
				ErrorFrom(db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
					return errors.Join(tx.present(ctx, of(5)), write(5)(ctx, tx))
				})),
			} {
				var r *guard.RejectedError
				if !errors.As(err, &r) || r.Reason != guard.ReasonStale || r.Claim != of(5) || r.Mark.Token != 6 || r.Mark.LeaseID != of(6).LeaseID {
					t.Errorf("%v, stale %d: %v", mode, what, err)
				}
			}
			mark := guard.Mark{Token: 6, LeaseID: of(6).LeaseID}
			noError(t, db.Reset(t.Context(), of(6).Resource, mark, guard.Mark{Token: 2, LeaseID: `b\'`}, 6, `o'\`, `it's \`), "%v: Reset", mode)
			if all, err := collect(db.Marks(t.Context(), `it's \ $1 `+itoa(i))); err != nil || len(all) != 1 || all[0].LeaseID != `b\'` {
				t.Errorf("%v: Marks: %+v, %v", mode, all, err)
			}
			_, err := db.Retire(t.Context(), time.Now().Add(-time.Hour))
			noError(t, err, "%v: Retire", mode)
			if found, err := db.Verify(t.Context(), Verification{Triggers: []Trigger{table}, Role: "nobody"}); err != nil || len(found) != 1 {
				t.Errorf("%v: Verify: %v, %v", mode, found, err)
			}
			e.wantText("1 2 3 4 6", mode.String()+": written are", "SELECT string_agg(token::text, ' ' ORDER BY token) FROM written")
			noError(t, db.RemoveTrigger(t.Context(), table.Table))
		}
	})
}

// TestExecModes: the statements work in every exec mode of pgx, including those
// without prepared statements, which poolers need; in these the key's Go type
// must match the column's.
func TestExecModes(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "last_lease_id"})
		for _, mode := range e.execModes() {
			db := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			e.exec("TRUNCATE docs")
			claim, older := claimOf("r", 5), claimOf("r", 4)
			narrow := table.Where(sqlrow.Raw("docs.v <> $1 OR docs.v IS NULL", "never"))
			for id := range 3 {
				noError(t, narrow.Upsert(t.Context(), db, claim, Key{id}, Set{"v": "new"}), "%v: Upsert", mode)
			}
			var v string
			if err := narrow.Raise(t.Context(), db, claim, Key{1}, Dest{"v": &v}); err != nil || v != "new" {
				t.Errorf("%v: Table.Raise: %q, %v", mode, v, err)
			}
			noError(t, narrow.Update(t.Context(), db, claim, Key{0}, Set{"v": "a", "w": sqlrow.Raw("v || $1::text", "!")}), "%v: Update", mode)
			wantReason(t, narrow.Update(t.Context(), db, older, Key{1}, Set{"v": "b"}), guard.ReasonStale, "%v: a stale Update", mode)
			e.wantText("0 a new!, 1 new default, 2 new default", mode.String()+": the rows", "SELECT string_agg(concat_ws(' ', id, v, w), ', ' ORDER BY id) FROM docs")
		}
	})
}

// TestRoundTrips: on pgx a fenced transaction takes as many round trips as an unfenced one,
// and one statement with all that fences it takes one.
func TestRoundTrips(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	for _, mode := range e.execModes() {
		p, through := e.newProxy()
		db := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
		described, single := int32(0), int32(1)
		switch mode {
		case pgx.QueryExecModeDescribeExec: // each statement, before it is sent
			described, single = 1, 5
		case pgx.QueryExecModeSimpleProtocol:
			single = 3 // it is InTx
		}
		one := running("INSERT INTO written VALUES ($1)", 5)
		for what, c := range map[string]struct {
			trips int32
			call  func() error
		}{
			"unfenced": {3 + described, func() error { return db.plain(t.Context(), one) }},
			"InTx":     {3 + 2*described, func() error { return db.fenced(t.Context(), claimOf("r", 5), one) }},
			"InTx of nothing": {2 + described, func() error {
				return db.fenced(t.Context(), claimOf("r", 5), func(context.Context, testTx) error { return nil })
			}},
			"Exec": {single, func() error {
				_, err := db.fencedExec(t.Context(), claimOf("r", 5), "INSERT INTO written VALUES ($1)", 5)
				return err
			}},
		} {
			must(t, c.call()) // statements are prepared
			var trips atomic.Int32
			p.set(func(message string) fate {
				// Sync, Query; not the ping of a pool that was not used for a second.
				if message[0] == 'S' || message[0] == 'Q' && !strings.Contains(message, "-- ping") {
					trips.Add(1)
				}
				return forward
			})
			err := c.call()
			p.set(nil)
			if err != nil || trips.Load() != c.trips {
				t.Errorf("%v, %s: %d round trips, %v, want %d", mode, what, trips.Load(), err, c.trips)
			}
		}
	}
}

// work runs fn in some kind of transaction.
type work func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error

// unfenced is a plain transaction: the control.
func unfenced(e *env) work {
	return func(ctx context.Context, _ guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return e.db.plain(ctx, fn)
	}
}

// after raises the mark before each transaction.
func after(raise func(context.Context, guard.Claim) error, in work) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		if err := raise(ctx, claim); err != nil {
			return err
		}
		return in(ctx, claim, fn)
	}
}

// TestEveryWayControls: plain transactions lose the update of an
// aimed schedule, and the harness of the torture finds damage by itself: most of
// its updates are lost without a fence, so no chance is needed.
func TestEveryWayControls(t *testing.T) {
	e := someEnv(t)
	e.freshLedger()
	if acked, lost, stale := e.interleaved(unfenced(e), true, false); acked != 2 || lost != 1 || stale != 1 {
		t.Errorf("aimed: %d were acknowledged, %d lost, %d inserts stale; want 2, 1, 1", acked, lost, stale)
	}
	testkit.Eventually(t, "damage of each kind by plain transactions", func() bool {
		e.freshLedger()
		d := e.torturedLedger(unfenced(e), 15)
		return d.lost > 0 && d.stale > 0 && d.backwards > 0
	})
}

// staleEntries counts the entries of older tokens that a newer token's entries
// did not see. The entries of every newer token must have seen them.
const staleEntries = `SELECT count(*) FROM entries old WHERE EXISTS (
	SELECT FROM entries new WHERE new.token > old.token AND new.seen < (SELECT count(*) FROM entries o WHERE o.token < new.token))`

// freshLedger recreates the tables of a ledger, and deletes the marks.
func (e *env) freshLedger() {
	e.Helper()
	e.exec("DROP TABLE IF EXISTS counter, entries; DELETE FROM fencepost.marks;" + ledger)
}

// interleaved runs holders 5 and 6 through the schedule in which a fence with a
// gap loses data: holder 5 has read, or, if written, has written and not
// committed; holder 6 takes over and reads, unless something keeps it waiting;
// holder 5 continues to the end of its transaction; holder 6 writes. Each adds
// one to a counter, if adds, and inserts an entry that says how many of lower
// tokens it saw. It returns how many were acknowledged, how many of their
// additions are missing, and how many entries holder 6 did not see.
func (e *env) interleaved(in work, adds, written bool) (acked, lost, stale int64) {
	e.Helper()
	hold := func(token guard.Token, afterRead, afterWrite func()) error {
		tried := false
		return in(context.Background(), claimOf("ledger", token), func(ctx context.Context, tx testTx) error {
			once := func(f func()) {
				if !tried { // another attempt is not scheduled
					f()
				}
			}
			defer func() { tried = true }()
			seen, err := tx.int(ctx, "SELECT count(*) FROM entries WHERE token < $1::bigint", int64(token))
			if err != nil {
				return err
			}
			v, err := tx.int(ctx, "SELECT v FROM counter")
			if err != nil {
				return err
			}
			once(afterRead)
			if adds {
				if _, err := tx.exec(ctx, "UPDATE counter SET v = $1", v+1); err != nil {
					return err
				}
			}
			if _, err := tx.exec(ctx, "INSERT INTO entries (token, seen) VALUES ($1::bigint, $2::bigint)", int64(token), seen); err != nil {
				return err
			}
			once(afterWrite)
			return nil
		})
	}
	var err6 chan error
	done5 := make(chan struct{})
	successor := func() {
		err6 = e.start(func(paused func()) error {
			return hold(6, func() { paused(); <-done5 }, func() {})
		})
	}
	pauses := [2]func(){successor, func() {}}
	if written {
		pauses[0], pauses[1] = pauses[1], pauses[0]
	}
	err5 := hold(5, pauses[0], pauses[1])
	close(done5)
	if err6 == nil {
		e.Fatalf("holder 5 did not come to its pause: %v", err5)
	}
	for _, err := range []error{err5, <-err6} {
		switch guard.ReasonOf(err) {
		case guard.ReasonNone:
			acked++
		case guard.ReasonStale:
		default:
			e.Error(err)
		}
	}
	if adds {
		lost = acked - e.int("SELECT v FROM counter")
	}
	if n := e.int("SELECT count(*) FROM entries"); n != acked { // a false verdict
		e.Errorf("%d entries were acknowledged, %d are there", acked, n)
	}
	return acked, lost, e.int(staleEntries)
}

// atLevel is InTxAll at a level, retried.
func atLevel(db fence, level Isolation) work {
	return retrying(func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return db.fencedAll(ctx, []guard.Claim{claim}, &TxOptions{Isolation: level}, fn)
	})
}

// retrying repeats work that the server rolled back because of other
// transactions.
func retrying(in work) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		for {
			err := in(ctx, claim, fn)
			if state := pgerr.State(err); ctx.Err() != nil || state != pgerr.Serialization && state != pgerr.Deadlock || errors.Is(err, guard.ErrOutcomeUnknown) {
				return err
			}
			time.Sleep(rand.N(5 * time.Millisecond)) // else those that failed together meet again
		}
	}
}

// TestEveryWayUnderEveryDefault (P1, P2) is about the ways that compare with the
// marks of schema fencepost. Single statements compare with their row's own
// mark, so that Admit protects none of them: see TestRowTorture. Whatever the
// server's default level, no way loses an acknowledged update of a set of rows, admits a
// stale insert, or refuses what it wrote; at random, and in the schedules in which
// TestBrokenShapes finds damage: a new holder that takes over reads every write that was
// acknowledged to the old one, although that was still writing. That a comparison in the
// write alone is not enough is one of the traps of TestRowTraps. The drivers take turns,
// except in the long form.
func TestEveryWayUnderEveryDefault(t *testing.T) {
	t.Parallel()
	turn := rand.IntN(len(openers))
	for _, level := range []Isolation{ReadCommitted, RepeatableRead, Serializable} {
		turn++
		for i := range openers {
			if i == turn%len(openers) || longtest.Long {
				t.Run(levels[level]+"/"+openers[i].driver, func(t *testing.T) {
					t.Parallel()
					newEnv(t, i).everyWay(t, level)
				})
			}
		}
	}
}

func (e *env) everyWay(t *testing.T, level Isolation) {
	db := e.serverDefault("default_transaction_isolation", levels[level])
	admit := func(ctx context.Context, claim guard.Claim) error { _, err := db.Admit(ctx, claim); return err }
	ways := map[string]work{
		"InTx":            db.fenced,
		"Raise, InTx":     after(db.Raise, db.fenced),
		"Admit, InTx":     after(admit, db.fenced),
		"REPEATABLE READ": atLevel(db, RepeatableRead), "SERIALIZABLE": atLevel(db, Serializable),
		"Raise, Enter": retrying(after(db.Raise, entering(db))),
	}
	if level == ReadCommitted {
		ways["Enter"] = entering(db)
	}
	for name, in := range ways {
		e.freshLedger()
		e.ledgerTorture(name, in, campaign(3))
		for _, written := range []bool{false, true} {
			e.freshLedger()
			if acked, lost, stale := e.interleaved(in, true, written); acked != 2 || lost != 0 || stale != 0 {
				t.Errorf("%s, aimed, written %v: %d were acknowledged, %d lost, %d inserts stale", name, written, acked, lost, stale)
			}
		}
	}
}

// TestBrokenShapes: each variant that is known to lose data loses it in the
// schedule in which TestEveryWayUnderEveryDefault runs the correct ones.
func TestBrokenShapes(t *testing.T) {
	shapes := map[string]func(e *env) work{
		"read and write, then enter": func(e *env) work {
			return func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
				return e.db.plain(ctx, inTurn(fn, enters(claim)))
			}
		},
		"enter in a savepoint that is rolled back": func(e *env) work {
			return after(e.db.Raise, func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
				enter := running("SELECT "+enterCall, claim.Resource, int64(claim.Token), claim.LeaseID, 5000, 5000)
				return e.db.plain(ctx, inTurn(running("SAVEPOINT s"), enter, running("ROLLBACK TO s"), fn))
			})
		},
		"raise without the lock": func(e *env) work {
			e.mutate("raise", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
			return e.db.fenced
		},
		"enter without the lock": func(e *env) work {
			e.mutate("enter", "pg_catalog.pg_advisory_xact_lock_shared(", "(")
			return e.db.fenced
		},
		"admit, then write without a fence": func(e *env) work {
			return after(func(ctx context.Context, claim guard.Claim) error { _, err := e.db.Admit(ctx, claim); return err }, unfenced(e))
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			e := someEnv(t)
			e.freshLedger()
			if acked, lost, stale := e.interleaved(shape(e), true, false); acked != 2 || lost != 1 || stale != 1 {
				t.Errorf("%d were acknowledged, %d lost, %d inserts stale; want 2, 1, 1", acked, lost, stale)
			}
		})
	}
}

// TestSnapshotControls: above READ COMMITTED the lock alone is not enough. An
// older holder that waits for it while the mark is raised reads the old mark
// from its snapshot; it is refused only if it locks or writes the row.
func TestSnapshotControls(t *testing.T) {
	e := someEnv(t)
	each := func(level Isolation, check func(what string, rows int64, err error)) {
		db := e.serverDefault("default_transaction_isolation", levels[level])
		for name, in := range map[string]work{"InTxAll": atLevel(db, level), "Enter": entering(db)} {
			rows, err := e.staleEnter(func() error { return in(context.Background(), claimOf("r", 5), write5) })
			check(level.String()+", "+name, rows, err)
		}
	}
	for _, level := range []Isolation{RepeatableRead, Serializable} {
		each(level, func(what string, rows int64, err error) {
			if reason := guard.ReasonOf(err); rows != 0 || reason != guard.ReasonStale && reason != guard.ReasonUnavailable {
				t.Errorf("%s: %v, %d rows", what, err, rows)
			}
		})
	}
	e.mutate("enter_snapshot", "FOR SHARE", "")
	e.mutate("enter_row", "UPDATE fencepost.marks AS x SET lease_id = p_lease\n", "mine := pg_current_xact_id()::xid; UPDATE fencepost.marks AS x SET lease_id = p_lease\n")
	e.mutate("enter_row", "x.token = p_token AND", "false AND")
	e.mutate("enter_row", `COLLATE "C" RETURNING x.xmin INTO mine;`, `COLLATE "C";`)
	each(RepeatableRead, func(what string, rows int64, err error) {
		if err != nil || rows != 1 {
			t.Errorf("%s, the control: %v, %d rows", what, err, rows)
		}
	})
}
