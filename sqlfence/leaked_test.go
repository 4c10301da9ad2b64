package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
)

// TestLeakedPgxHandles (P1): nothing that a callback of InTx got from its
// transaction writes once the transaction is over, on a connection that may be in
// a newer holder's transaction by then. The control is pgx's own handle, which
// does not know of a COMMIT that bypassed it.
func TestLeakedPgxHandles(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	single := e.single().(pgxFence)
	var tx, savepoint pgx.Tx
	var objects, savepointsObjects pgx.LargeObjects
	var object, savepointsObject *pgx.LargeObject
	must(t, single.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, in pgx.Tx) (err error) {
		tx = in
		if savepoint, err = in.Begin(ctx); err != nil {
			return err
		}
		objects, savepointsObjects = tx.LargeObjects(), savepoint.LargeObjects()
		oid, err := objects.Create(ctx, 0)
		if err != nil {
			return err
		}
		if object, err = objects.Open(t.Context(), oid, pgx.LargeObjectModeWrite); err != nil {
			return err
		}
		savepointsObject, err = savepointsObjects.Open(t.Context(), oid, pgx.LargeObjectModeWrite)
		return err
	}))
	const write = "INSERT INTO written VALUES (5)"
	table := e.table("written", []string{"token"}, &TableOptions{TokenColumn: "mark"})
	uses := map[string]func(ctx context.Context) error{
		"Exec":                func(ctx context.Context) error { _, err := tx.Exec(ctx, write); return err },
		"Exec of a savepoint": func(ctx context.Context) error { _, err := savepoint.Exec(ctx, write); return err },
		"Query":               func(ctx context.Context) error { _, err := tx.Query(ctx, write); return err },
		"QueryRow":            func(ctx context.Context) error { return tx.QueryRow(ctx, write+" RETURNING 1").Scan(new(int)) },
		"Begin":               func(ctx context.Context) error { _, err := tx.Begin(ctx); return err },
		"Prepare":             func(ctx context.Context) error { _, err := tx.Prepare(ctx, "p", write); return err },
		"Commit":              func(ctx context.Context) error { return tx.Commit(ctx) },
		"Rollback":            func(ctx context.Context) error { return tx.Rollback(ctx) },
		"CopyFrom": func(ctx context.Context) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"written"}, []string{"token"}, pgx.CopyFromRows([][]any{{5}}))
			return err
		},
		"SendBatch": func(ctx context.Context) error {
			b := &pgx.Batch{}
			b.Queue(write)
			return tx.SendBatch(ctx, b).Close()
		},
		"LargeObjects":              func(ctx context.Context) error { _, err := objects.Create(ctx, 0); return err },
		"LargeObjects afterwards":   func(ctx context.Context) error { o := tx.LargeObjects(); _, err := o.Create(ctx, 0); return err },
		"LargeObjects of savepoint": func(ctx context.Context) error { _, err := savepointsObjects.Create(ctx, 0); return err },
		"LargeObject":               func(context.Context) error { _, err := object.Write([]byte("x")); return err },
		"LargeObject of savepoint":  func(context.Context) error { _, err := savepointsObject.Write([]byte("x")); return err },
		"Enter":                     func(ctx context.Context) error { return single.Enter(ctx, tx, claimOf("r", 6)) },
		"Present":                   func(ctx context.Context) error { return single.Present(ctx, tx, claimOf("r", 6)) },
		"Table": func(ctx context.Context) error {
			return table.Update(ctx, single.rows.In(tx), claimOf("r", 6), Key{5}, Set{"v": 5})
		},
	}
	for what, use := range uses {
		if err := use(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s after the transaction: %v, want pgx.ErrTxClosed", what, err)
		}
		noError(t, single.InTx(t.Context(), claimOf("r", 6), func(ctx context.Context, _ pgx.Tx) error {
			if err := use(ctx); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s in a newer holder's transaction: %v, want pgx.ErrTxClosed", what, err)
			}
			return nil
		}), "%s: the newer holder's transaction", what)
	}
	e.wantInt(0, "rows that were written", "SELECT count(*) FROM written")
	var control pgx.Tx
	must(t, single.InTx(t.Context(), claimOf("r", 6), func(_ context.Context, in pgx.Tx) error { control = in.(*pgxHandle).Tx; return nil }))
	if _, err := control.Exec(t.Context(), write); err != nil || e.written() != 1 {
		t.Errorf("pgx's own handle, the control: %v", err)
	}
}

// TestLeakedResults (P1, P5): a callback that returns with rows or a batch's
// results open has not let the driver see whether they worked: nothing is
// committed, and what is read afterwards is an error.
func TestLeakedResults(t *testing.T) {
	const write = "INSERT INTO written SELECT i FROM generate_series(1, 10000) i RETURNING token"
	t.Run("pgx", func(t *testing.T) {
		e := newEnvOf(t, "pgx")
		e.createWritten()
		var rows pgx.Rows
		var results pgx.BatchResults
		for what, leak := range map[string]struct {
			leave func(ctx context.Context, tx pgx.Tx) error
			use   func() error
		}{
			"rows": {func(ctx context.Context, tx pgx.Tx) (err error) { rows, err = tx.Query(ctx, write); return err },
				func() error {
					for rows.Next() {
					}
					return rows.Err()
				}},
			"results": {func(ctx context.Context, tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue(write)
				b.Queue(write)
				results = tx.SendBatch(ctx, b)
				return nil
			}, func() error { _, err := results.Exec(); return errors.Join(err, results.Close()) }},
		} {
			wantReason(t, e.db.(pgxFence).InTx(t.Context(), claimOf("r", 5), leak.leave), guard.ReasonUnavailable, "%s", what)
			if err := leak.use(); err == nil {
				t.Errorf("%s can be read after the transaction", what)
			}
			e.waitFor("the transaction's end", "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle')")
			if n := e.written(); n != 0 {
				t.Errorf("%s: %d rows were written", what, n)
			}
		}
	})
	t.Run("std", func(t *testing.T) {
		e := newEnvOf(t, "std")
		e.createWritten()
		var rows *sql.Rows
		var tx *sql.Tx
		var prepared *sql.Stmt
		err := e.db.(stdFence).InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, in *sql.Tx) (err error) {
			if tx = in; err == nil {
				prepared, err = tx.PrepareContext(ctx, "INSERT INTO written VALUES (5)")
			}
			if err == nil {
				rows, err = tx.QueryContext(ctx, "SELECT generate_series(1, 10000)")
			}
			return err
		})
		if err == nil {
			for rows.Next() {
			}
			err = rows.Err()
		}
		if err == nil {
			t.Error("rows can be read after the transaction")
		}
		_, execErr := tx.Exec("INSERT INTO written VALUES (5)")
		_, preparedErr := prepared.Exec()
		if execErr == nil || preparedErr == nil || e.written() != 0 {
			t.Errorf("after the transaction: %v, %v, %d rows", execErr, preparedErr, e.written())
		}
	})
}

// TestLeakedRowsOfEndedContext: database/sql closes rows that a callback has left
// open when their context ends, while InTx looks at the connection. The race
// detector sees it if InTx does so without database/sql's lock.
func TestLeakedRowsOfEndedContext(t *testing.T) {
	e := newEnvOf(t, "std")
	for n := range longtest.ByLength(6, 40) {
		fail := errors.New("fn's own")
		err := e.db.(stdFence).InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			rows, err := tx.QueryContext(ctx, "SELECT generate_series(1, 100000)")
			if err != nil {
				return err
			}
			rows.Next()
			cancel()
			time.Sleep(time.Duration(n%5) * 200 * time.Microsecond)
			return fail
		})
		if !errors.Is(err, fail) {
			t.Errorf("got %v, want fn's own error", err)
		}
	}
}
