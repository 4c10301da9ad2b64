package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestReturning: Update and Upsert read the row as they wrote it; a refusal
// reads nothing and has its reason, and a dest that does not fit its column is
// an unknown outcome outside a transaction and an error inside one.
func TestReturning(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, w text DEFAULT 'd', last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 40, 'a', 3)")
		table, ctx := e.table("n", []string{"id"}, nil), t.Context()
		var v int
		var w string
		dest := Dest{"w": &w, "v": &v}
		if err := table.Update(ctx, e.db, claimOf("r", 5), Key{1}, Set{"v": sqlrow.Raw("v + $1", 2)}, dest); err != nil || v != 42 || w != "a" {
			t.Errorf("update: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 5), Key{2}, Set{"v": 7}, dest); err != nil || v != 7 || w != "d" {
			t.Errorf("insert: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 6), Key{2}, Set{"v": 8}, dest); err != nil || v != 8 {
			t.Errorf("upsert: %v, %d", err, v)
		}
		v = -1
		if err := table.Update(ctx, e.db, claimOf("r", 4), Key{1}, Set{"v": 1}, dest); !errors.Is(err, guard.ErrStale) || v != -1 {
			t.Errorf("stale: %v, %d", err, v)
		}
		wantInvalid(t, "two dests", table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, dest, dest), "dest", "2")
		wantInvalid(t, "no pointer", table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, Dest{"v": 1}), "dest column v", "int")
		wrong := Dest{"w": &v}
		wantReason(t, table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, wrong), guard.ReasonOutcomeUnknown, "a dest that does not fit")
		wantReason(t, e.db.plain(ctx, func(ctx context.Context, tx testTx) error {
			return table.Update(ctx, tx.in(), claimOf("r", 8), Key{1}, Set{"v": 1}, wrong)
		}), guard.ReasonOther, "the same in a transaction")
	})
}

// opaque hides everything of a transaction except ExecContext.
type opaque struct{ tx Execer }

func (o opaque) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return o.tx.ExecContext(ctx, query, args...)
}

// TestEnterOn (P1, P5): a transaction that can only run statements is fenced,
// whatever text is in the claim, and anything that is not a transaction is
// refused and sent nothing. The control is the same without EnterOn: a raise does
// not wait for it.
func TestEnterOn(t *testing.T) {
	e := newEnvOf(t, "std")
	db := e.db.(stdFence)
	ctx, impatient := t.Context(), e.open(&Options{RaiseTimeout: 200 * time.Millisecond, TerminateAfter: -1})
	begin := func() *sql.Tx {
		t.Helper()
		tx, err := db.pool.BeginTx(ctx, nil)
		must(t, err)
		t.Cleanup(func() { tx.Rollback() })
		return tx
	}
	for _, resource := range []string{"r", `it's \' $1 ? é`} {
		old, newer := claimOf(resource, 5), claimOf(resource, 6)
		for _, fenced := range []bool{true, false} {
			e.exec("DELETE FROM fencepost.marks")
			must(t, db.Raise(ctx, old))
			tx := begin()
			if fenced {
				noError(t, db.EnterOn(ctx, opaque{tx}, old), "%q", resource)
			}
			err := impatient.Raise(ctx, newer)
			if waited := pgerr.State(err) == pgerr.LockTimeout; waited != fenced {
				t.Errorf("%q, fenced %v: the raise got %v", resource, fenced, err)
			}
			tx.Rollback()
		}
		must(t, db.Raise(ctx, newer))
		var rejected *guard.RejectedError
		if err := db.EnterOn(ctx, opaque{begin()}, old); !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Mark.Token != 6 {
			t.Errorf("%q: a stale one: %v", resource, err)
		}
	}
	conn, err := db.pool.Conn(ctx)
	must(t, err)
	defer conn.Close()
	for _, none := range []Execer{db.pool, conn} {
		wantInvalid(t, "a pool or connection", db.EnterOn(ctx, none, claimOf("s", 6)), "Execer", "sql.")
	}
	e.wantInt(0, "marks that were raised on a pool", "SELECT count(*) FROM fencepost.marks WHERE resource = 's'")
	tx := begin()
	_, err = tx.Exec("SAVEPOINT s")
	must(t, err)
	wantInvalid(t, "in a savepoint", db.EnterOn(ctx, opaque{tx}, claimOf("r", 6)), "Enter", "savepoint")
}
