package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
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
	tx, err := e.admin.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	must(e, err)
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "SELECT fencepost.raise('r', 6, 'lease-6', 5000)"); err != nil {
		e.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- enterStale() }()
	for e.int(waitersSQL) == 0 && len(done) == 0 {
		time.Sleep(time.Millisecond)
	}
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
		return db.plain(context.Background(), func(ctx context.Context, tx testTx) error {
			if _, err := tx.exec(ctx, enterSQL, "r", 5, "lease-5", 5000, 5000); err != nil {
				return err
			}
			return write5(ctx, tx)
		})
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
				e.takenOver("Raise, InTx", after(db.Raise, db.fenced))
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
	someDriver(t, func(t *testing.T, e *env) {
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
	})
}

// TestReadInTheRaise: what is read in the statement that raises has a snapshot
// from before the wait and misses the predecessor's rows. Hence a raise is a
// transaction of its own, and reading comes after it.
func TestReadInTheRaise(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
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
	})
}

// TestDefaultReadOnly: pgx asks for a READ WRITE transaction; database/sql has
// no option for it, and the refusal says what is wrong.
func TestDefaultReadOnly(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		db := e.serverDefault("default_transaction_read_only", "on")
		err := db.fenced(t.Context(), claimOf("r", 5), write5)
		if e.driver == "pgx" {
			if err != nil {
				t.Errorf("InTx: %v", err)
			}
			return
		}
		if guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("InTx: got %v, want ErrUnavailable that says read-only", err)
		}
		must(t, e.db.Raise(t.Context(), claimOf("r", 5))) // a session from before
		wantState(t, db.fenced(t.Context(), claimOf("r", 5), write5), "25006", "InTx under the mark")
	})
}

// TestDefaultSynchronousCommit: only raises override it; the marks behave as
// usual.
func TestDefaultSynchronousCommit(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		db := e.serverDefault("synchronous_commit", "off")
		e.takenOver("Raise, InTx", after(db.Raise, db.fenced))
		noError(t, db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			n, err := tx.int(ctx, "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'")
			if n != 1 {
				t.Error("the caller's transaction was made synchronous")
			}
			return err
		}))
	})
}
