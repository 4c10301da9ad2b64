package sqlfence

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
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
	if n := e.written(); n != 1 {
		t.Errorf("a statement after the raise saw %d rows", n)
	}
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
			if _, err := db.Retire(t.Context(), time.Now().Add(-time.Hour)); err != nil {
				t.Errorf("%v: Retire: %v", mode, err)
			}
			if found, err := db.Verify(t.Context(), Verification{Triggers: []Trigger{table}, Role: "nobody"}); err != nil || len(found) != 1 {
				t.Errorf("%v: Verify: %v, %v", mode, found, err)
			}
			if n := e.text("SELECT string_agg(token::text, ' ' ORDER BY token) FROM written"); n != "1 2 3 4 6" {
				t.Errorf("%v: written are %s", mode, n)
			}
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
			if got := e.text("SELECT string_agg(concat_ws(' ', id, v, w), ', ' ORDER BY id) FROM docs"); got != "0 a new!, 1 new default, 2 new default" {
				t.Errorf("%v: the rows are %s", mode, got)
			}
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
