package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

const insertSQL = "INSERT INTO written VALUES ($1)"

// hasPipeline reports that Exec takes one round trip.
func hasPipeline(db fence) bool {
	f, is := db.(pgxFence)
	if !is {
		return false
	}
	mode := f.pool.Config().ConnConfig.DefaultQueryExecMode
	return mode != pgx.QueryExecModeSimpleProtocol && mode != pgx.QueryExecModeDescribeExec
}

// TestExec (P1, P4): one statement under each claim: stale, conflict, current and newer, which
// raises the mark. The control is a function that does not compare.
func TestExec(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		exec := func(claim guard.Claim) (int64, error) {
			return db.fencedExec(t.Context(), claim, insertSQL+", (7)", int64(claim.Token))
		}
		for _, c := range []struct {
			claim guard.Claim
			want  guard.Reason
		}{
			{claimOf("r", 5), guard.ReasonNone}, {claimOf("r", 5), guard.ReasonNone}, {claimOf("r", 6), guard.ReasonNone},
			{claimOf("r", 5), guard.ReasonStale}, {guard.Claim{Resource: "r", Token: 6, LeaseID: "other"}, guard.ReasonConflict},
			{guard.Claim{Resource: "r"}, guard.ReasonInvalid},
		} {
			e.exec("TRUNCATE written")
			rows, err := exec(c.claim)
			wantReason(t, err, c.want, "%+v", c.claim)
			if want := map[bool]int64{true: 2}[err == nil]; rows != want || e.written() != want {
				t.Errorf("%+v: %d rows, %d are there, want %d", c.claim, rows, e.written(), want)
			}
			var rejected *guard.RejectedError
			if errors.As(err, &rejected) && (rejected.Claim != c.claim || rejected.Mark.Token != 6) {
				t.Errorf("%+v: got %+v", c.claim, rejected)
			}
		}
		wantMark(t, e.db, "r", 6)
		e.exec("TRUNCATE written")
		undo := e.mutate("enter", "IF NOT FOUND THEN", "IF false THEN")
		if rows, err := exec(claimOf("r", 5)); err != nil || rows != 2 || e.written() != 2 {
			t.Errorf("the control: %d rows, %v", rows, err)
		}
		undo()
	})
}

// TestExecWaits (P1, P2): a raise waits for a statement that is under way, and a statement that
// comes while a raise waits is compared with the raised mark.
func TestExecWaits(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		exec := func() error {
			_, err := db.fencedExec(context.Background(), claimOf("r", 5), insertSQL, 5)
			return err
		}
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		blocker := e.begin("LOCK TABLE written IN SHARE MODE")
		both := []chan error{e.start(func(func()) error { return exec() }), e.start(func(func()) error { return exec() })}
		must(t, blocker.Commit(t.Context()))
		for _, prepared := range both { // on two connections, since neither could go on
			must(t, testkit.Receive(t, "a statement", prepared))
		}
		e.exec("TRUNCATE written")
		blocker = e.begin("LOCK TABLE written IN SHARE MODE")
		first := e.start(func(func()) error { return exec() })
		raised := e.start(func(func()) error { return e.db.Raise(context.Background(), claimOf("r", 6)) })
		second := e.start(func(func()) error { return exec() })
		if len(first)+len(raised)+len(second) > 0 {
			t.Error("they do not wait for each other")
		}
		must(t, blocker.Commit(t.Context()))
		noError(t, testkit.Receive(t, "the statement", first))
		noError(t, testkit.Receive(t, "the raise", raised))
		wantReason(t, testkit.Receive(t, "the later statement", second), guard.ReasonStale)
		e.wantInt(1, "rows", "SELECT count(*) FROM written")
	})
}

// TestExecFails (P5, P6): the statement's own error is passed on unchanged, with nothing written,
// and so is what pgx cannot send. Arguments that do not fit are the caller's error, which is not
// transient, and so is a COPY, which has no stream. The next statement on the connection works.
func TestExecFails(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		e.exec(`DROP TABLE IF EXISTS strict, late, small; CREATE TABLE strict (id int PRIMARY KEY); INSERT INTO strict VALUES (1);
			CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO late VALUES (1); CREATE TABLE small (i int)`)
		db := open(1, nil)
		for what, c := range map[string]struct {
			sql   string
			args  []any
			state string // "" for any
			want  guard.Reason
		}{
			"a duplicate":           {"INSERT INTO strict VALUES ($1)", []any{1}, "23505", guard.ReasonOther},
			"a duplicate at COMMIT": {"INSERT INTO late VALUES ($1)", []any{1}, "23505", guard.ReasonOther},
			"no table":              {"INSERT INTO nothing VALUES ($1)", []any{1}, "42P01", guard.ReasonOther},
			"half a statement":      {"INSERT", nil, "42601", guard.ReasonOther},
			"a division by zero":    {"INSERT INTO written SELECT 1 / $1::int", []any{0}, "22012", guard.ReasonOther},
			"too many":              {insertSQL, []any{1, 2}, "", guard.ReasonOther},
			"too few":               {insertSQL, nil, "", guard.ReasonOther},
			"another type":          {insertSQL, []any{"five"}, "", guard.ReasonOther},
			"not encoded":           {insertSQL, []any{make(chan int)}, "", guard.ReasonOther},
			"out of range":          {"INSERT INTO small VALUES ($1)", []any{int64(1) << 40}, "", guard.ReasonOther},
			"COPY FROM STDIN":       {"COPY written FROM STDIN", nil, "", guard.ReasonInvalid},
		} {
			if c.want == guard.ReasonInvalid && !hasPipeline(db) {
				continue // pgx waits for a stream until the context ends
			}
			for range 2 {
				rows, err := db.fencedExec(t.Context(), claimOf("r", 5), c.sql, c.args...)
				wantReason(t, err, c.want, "%s", what)
				var own *pgconn.PgError
				if is := errors.As(err, &own) && own.Code == c.state; rows != 0 || c.state != "" && !is {
					t.Errorf("%s: got %d rows and %v, want SQLSTATE %s", what, rows, err, c.state)
				}
				for _, next := range []string{"UPDATE written SET token = $1", "UPDATE strict SET id = id WHERE id = $1"} {
					_, err = db.fencedExec(t.Context(), claimOf("r", 5), next, 1)
					noError(t, err, "after %s", what)
				}
			}
		}
		e.wantInt(0, "rows", "SELECT (SELECT count(*) FROM written) + (SELECT count(*) FROM small)")
	})
}

// TestExecEnds (P1, P5): a statement that begins or ends a transaction is no success, and
// writes nothing by itself.
func TestExecEnds(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(1, nil)
		pipelines := hasPipeline(db)
		for _, sql := range []string{"COMMIT", "commit and chain", "/* UPDATE */ END", "ROLLBACK", "ABORT", "ROLLBACK AND CHAIN", "BEGIN", "START TRANSACTION"} {
			_, err := db.fencedExec(t.Context(), claimOf("r", 5), sql)
			switch {
			case pipelines:
				wantSays(t, err, guard.ReasonInvalid, "sql", "%s", sql)
			case sql != "BEGIN" && sql != "START TRANSACTION": // where it is a mere warning, and InTx goes on
				wantReason(t, err, guard.ReasonOutcomeUnknown, "%s", sql)
			}
		}
		_, err := db.fencedExec(t.Context(), claimOf("r", 5), "DO $$ BEGIN INSERT INTO written VALUES (5); COMMIT; END $$")
		wantState(t, err, "2D000")
		_, err = db.fencedExec(t.Context(), claimOf("r", 5), "INSERT INTO written VALUES (5); COMMIT; INSERT INTO written VALUES (6)")
		if pipelines {
			wantState(t, err, "42601")
		} else {
			wantReason(t, err, guard.ReasonOutcomeUnknown)
			return // of the simple protocol: the first is fenced, and committed
		}
		e.wantInt(0, "rows", "SELECT count(*) FROM written")
		e.wantInt(0, "transactions that are open", "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'")
	})
}

// TestExecLost (P5): a pipeline whose response is lost is an unknown outcome, whether it was
// executed or not, and is sent once. If InTx runs the statement, the result is that of InTx.
func TestExecLost(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		for what, c := range map[string]struct {
			fate fate
			rows int64
		}{"not forwarded": {cutBefore, 0}, "answer cut": {cutAfter, 1}} {
			e.exec("TRUNCATE written")
			p, through := e.newProxy()
			db := open(1, nil, through)
			must(t, db.plain(t.Context(), running("SELECT 1")))
			_, err := db.fencedExec(t.Context(), claimOf("r", 5), "UPDATE written SET token = $1", 5)
			must(t, err)
			_, err = db.fencedExec(t.Context(), claimOf("r", 5), insertSQL, 4) // it is prepared from now on
			must(t, err)
			e.exec("TRUNCATE written")
			pipelines := hasPipeline(db)
			var bound atomic.Bool
			var lost atomic.Int32
			p.set(func(message string) fate { // the server executes what comes before a Sync
				last := !pipelines && message[0] == 'Q' && strings.Contains(strings.ToLower(message), "commit\x00")
				switch {
				case message[0] == 'B':
					bound.Store(true)
					last = pipelines && c.fate == cutBefore
				case message[0] == 'S' && bound.Load():
					last = pipelines && c.fate == cutAfter
				}
				if !last || lost.Add(1) > 1 {
					return forward
				}
				return c.fate
			})
			_, err = db.fencedExec(t.Context(), claimOf("r", 5), insertSQL, 5)
			p.set(nil)
			p.CutAll()
			must(t, e.db.Raise(t.Context(), claimOf("r", 6))) // the server is done with it
			e.exec("TRUNCATE fencepost.marks")
			must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
			rows := e.written()
			if rows != c.rows || lost.Load() == 0 {
				t.Errorf("%s: %d rows, lost %d: the test is not what it says", what, rows, lost.Load())
			}
			want := guard.ReasonOutcomeUnknown
			if !pipelines {
				want = map[int64]guard.Reason{0: guard.ReasonUnavailable, 1: guard.ReasonNone}[rows]
				if _, is := db.(pgxFence); is && rows == 1 {
					want = guard.ReasonOutcomeUnknown // the marker was lost as well
				}
			}
			wantReason(t, err, want, "%s", what)
		}
	})
}

// TestExecEnded (P6): a statement whose session a raise ends learns that it is stale, or else
// that nothing was written.
func TestExecEnded(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(1, nil) // on which the statement is prepared
		for _, raised := range []bool{true, false} {
			e.exec("DELETE FROM fencepost.marks")
			_, err := db.fencedExec(t.Context(), claimOf("r", 5), insertSQL, 5) // it is prepared from now on
			must(t, err)
			e.exec("TRUNCATE written")
			blocker := e.begin("LOCK TABLE written IN SHARE MODE")
			ended := e.start(func(func()) error {
				_, err := db.fencedExec(context.Background(), claimOf("r", 5), insertSQL, 5)
				return err
			})
			pid := pgtest.Blocked(t, e.admin, "INSERT INTO written", 1)[0]
			var raising chan error
			if raised {
				raising = e.start(func(func()) error { return e.db.Raise(context.Background(), claimOf("r", 6)) })
			}
			e.terminate(int64(pid))
			must(t, blocker.Rollback(t.Context()))
			want := guard.ReasonUnavailable
			if raised {
				must(t, testkit.Receive(t, "the raise", raising))
				want = guard.ReasonStale
			}
			wantReason(t, testkit.Receive(t, "the statement", ended), want, "raised %t", raised)
			e.wantInt(0, "rows", "SELECT count(*) FROM written")
		}
	})
}

// TestExecInside: Exec in a callback would be another transaction, and is refused.
func TestExecInside(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		must(t, db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, _ testTx) error {
			_, err := db.fencedExec(ctx, claimOf("r", 5), insertSQL, 5)
			wantInvalid(t, "inside", err, "Exec", `"r"`)
			return nil
		}))
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := db.fencedExec(over, claimOf("r", 5), insertSQL, 5)
		wantReason(t, err, guard.ReasonUnavailable, "after the context's end")
		e.wantInt(0, "rows", "SELECT count(*) FROM written")
		must(t, db.fenced(t.Context(), claimOf("r", 5), write5))
	})
}

// panics is an argument that panics when a driver asks for its value.
type panics struct{}

func (panics) Value() (driver.Value, error) { panic("the argument's own") }

// TestExecGivesBack: the pool's only connection is given back after a panic of an argument's,
// and a text that is no statement is refused. The panic is the caller's.
func TestExecGivesBack(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(1, nil)
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		for range 2 {
			func() {
				defer func() {
					if p := recover(); p == nil {
						t.Error("the panic was hidden")
					}
				}()
				db.fencedExec(t.Context(), claimOf("r", 5), insertSQL, panics{})
			}()
			testkit.Eventually(t, "the connection to be given back", func() bool {
				f, is := db.(pgxFence)
				return !is || f.pool.Stat().AcquiredConns() == 0
			})
			for _, empty := range []string{"", " \n"} {
				_, err := db.fencedExec(t.Context(), claimOf("r", 5), empty)
				wantInvalid(t, "an empty text", err, "sql", "")
			}
		}
		_, err := db.fencedExec(t.Context(), claimOf("r", 5), insertSQL, 5)
		must(t, err)
	})
}

// TestExecUnsent (P6): a statement whose context ends when it has a connection, and nothing was
// sent, is unavailable.
func TestExecUnsent(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	for _, mode := range e.execModes() {
		acquired := func() {}
		config := e.db.(pgxFence).pool.Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { acquired(); return true, nil }
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		defer pool.Close()
		db, err := Pgx(pool, &e.defaults)
		must(t, err)
		for range 2 { // the second time it is prepared
			ctx, cancel := context.WithCancel(t.Context())
			acquired = cancel
			_, err = db.Exec(ctx, claimOf("r", 5), insertSQL, 5)
			wantReason(t, err, guard.ReasonUnavailable, "%v", mode)
			acquired = func() {}
			_, err = db.Exec(t.Context(), claimOf("r", 5), insertSQL, 6)
			must(t, err)
		}
	}
	e.wantInt(0, "rows that were not sent", "SELECT count(*) FROM written WHERE token = 5")
}

// TestExecRefusedThenLost (P6): the statement's own error is passed on if the connection is lost
// at the ROLLBACK after it.
func TestExecRefusedThenLost(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		p, through := e.newProxy()
		db := open(1, nil, through)
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		var lost atomic.Int32
		p.set(func(message string) fate {
			if message[0] == 'Q' && strings.Contains(strings.ToLower(message), "rollback") && lost.Add(1) == 1 {
				return cutBefore
			}
			return forward
		})
		_, err := db.fencedExec(t.Context(), claimOf("r", 5), "INSERT INTO written SELECT 1 / $1::int", 0)
		wantState(t, err, "22012")
		if wantReason(t, err, guard.ReasonOther); lost.Load() == 0 {
			t.Error("no ROLLBACK was lost")
		}
	})
}

// TestExecPrepares: a statement that prepares the transaction is not said to have done nothing.
func TestExecPrepares(t *testing.T) {
	e := newEnvOn(t, 0, mortalServer(t))
	e.createWritten()
	onEachWay(t, e, func(t *testing.T, e *env, open opened) {
		db := open(1, nil)
		_, err := db.fencedExec(t.Context(), claimOf("r", 5), "PREPARE TRANSACTION 'left'")
		e.wantInt(1, "prepared transactions", "SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'left'")
		e.exec("ROLLBACK PREPARED 'left'")
		if hasPipeline(db) {
			wantSays(t, err, guard.ReasonInvalid, "ROLLBACK PREPARED")
		} else {
			wantReason(t, err, guard.ReasonOutcomeUnknown)
		}
	})
}

// TestExecArguments: what pgx takes as arguments of a statement, Exec takes.
func TestExecArguments(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	for what, args := range map[string][]any{
		"by name": {pgx.NamedArgs{"token": 5}}, "by a mode": {pgx.QueryExecModeExec, 5}, "by a mode, simple": {pgx.QueryExecModeSimpleProtocol, 5},
	} {
		sql := insertSQL
		if what == "by name" {
			sql = "INSERT INTO written VALUES (@token)"
		}
		rows, err := e.db.fencedExec(t.Context(), claimOf("r", 5), sql, args...)
		if err != nil || rows != 1 {
			t.Errorf("%s: %d rows, %v", what, rows, err)
		}
	}
	e.wantInt(3, "rows", "SELECT count(*) FROM written WHERE token = 5")
}
