package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
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
		if err := table.Update(ctx, e.db, claimOf("r", 5), Key{1}, Set{"v": Raw("v + $1", 2)}, dest); err != nil || v != 42 || w != "a" {
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
		if err := table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, wrong); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
			t.Errorf("a dest that does not fit: %v", err)
		}
		err := e.db.plain(ctx, func(ctx context.Context, tx testTx) error {
			return table.Update(ctx, tx.in(), claimOf("r", 8), Key{1}, Set{"v": 1}, wrong)
		})
		if guard.ReasonOf(err) != guard.ReasonOther {
			t.Errorf("the same in a transaction: %v", err)
		}
	})
}

// TestRefused (P6): the application's own UPDATE with the fence in its text, as
// with sqlc, is admitted and refused like Table.Update.
func TestRefused(t *testing.T) {
	const own = "UPDATE n SET v = $2, last_fencing_token = $3::bigint WHERE id = $1 AND $3::bigint > last_fencing_token"
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 0, 5)")
		table := e.table("n", []string{"id"}, nil)
		for token, want := range map[guard.Token]guard.Reason{4: guard.ReasonStale, 5: guard.ReasonSpent, 6: guard.ReasonNone} {
			err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if rows, err := tx.exec(ctx, own, 1, 9, int64(token)); err != nil || (rows == 1) != (want == guard.ReasonNone) {
					t.Errorf("token %v: %d rows, %v", token, rows, err)
				}
				if want == guard.ReasonNone {
					return errors.New("rolled back")
				}
				return table.Refused(ctx, tx.in(), claimOf("r", token), Key{1})
			})
			if want != guard.ReasonNone && guard.ReasonOf(err) != want {
				t.Errorf("token %v: %v, want %s", token, err, want)
			}
		}
		for what, c := range map[string]struct {
			token guard.Token
			id    int
			want  guard.Reason
		}{"absent": {6, 2, guard.ReasonNotFound}, "admitted": {6, 1, guard.ReasonUnavailable}} {
			if err := table.Refused(t.Context(), e.db, claimOf("r", c.token), Key{c.id}); guard.ReasonOf(err) != c.want {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// opaque hides everything of a transaction except ExecContext.
type opaque struct{ tx Execer }

func (o opaque) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return o.tx.ExecContext(ctx, query, args...)
}

// TestEnterOn (P1): a transaction that can only run statements is fenced,
// whatever text is in the claim, and anything that is not a transaction is
// refused. The control is the same without EnterOn: a raise does not wait for
// it.
func TestEnterOn(t *testing.T) {
	t.Run("std", func(t *testing.T) {
		e := newEnvOf(t, "std")
		db := e.db.(stdFence)
		ctx, impatient := t.Context(), e.open(&Options{RaiseTimeout: 200 * 1e6, TerminateAfter: -1})
		for _, resource := range []string{"r", `it's \' $1 ? é`} {
			old, newer := claimOf(resource, 5), claimOf(resource, 6)
			for _, fenced := range []bool{true, false} {
				e.exec("DELETE FROM fencepost.marks")
				if err := db.Raise(ctx, old); err != nil {
					t.Fatal(err)
				}
				tx, err := db.pool.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				if fenced {
					if err := db.EnterOn(ctx, opaque{tx}, old); err != nil {
						t.Errorf("%q: %v", resource, err)
					}
				}
				err = impatient.Raise(ctx, newer)
				if waited := pgerr.State(err) == pgerr.LockTimeout; waited != fenced {
					t.Errorf("%q, fenced %v: the raise got %v", resource, fenced, err)
				}
				tx.Rollback()
			}
			if err := db.Raise(ctx, newer); err != nil {
				t.Fatal(err)
			}
			tx, err := db.pool.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			var rejected *guard.RejectedError
			if err := db.EnterOn(ctx, opaque{tx}, old); !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Mark.Token != 6 {
				t.Errorf("%q: a stale one: %v", resource, err)
			}
			tx.Rollback()
			wantInvalid(t, "a pool", db.EnterOn(ctx, db.pool, newer), "Execer", "sql.DB")
		}
		tx, err := db.pool.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("SAVEPOINT s"); err != nil {
			t.Fatal(err)
		}
		wantInvalid(t, "in a savepoint", db.EnterOn(ctx, opaque{tx}, claimOf("r", 6)), "Enter", "savepoint")
	})
}

// TestUpdateManyStatements (P5): more writes than a statement has parameters for
// become several statements in one transaction: verdicts for all, or nothing
// written, even if two keys of different statements are equal only to the
// database. In the caller's transaction it is refused.
func TestUpdateManyStatements(t *testing.T) {
	const rows = 23001 // of three parameters each
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE wide (id numeric PRIMARY KEY, v int CHECK (v >= 0), last_fencing_token bigint NOT NULL DEFAULT 0)")
		e.exec("INSERT INTO wide SELECT i, 0, CASE WHEN i % 100 = 0 THEN 9 ELSE 0 END FROM generate_series(1, $1::int) i", rows)
		table, ctx := e.table("wide", []string{"id"}, nil), t.Context()
		writes := make([]RowUpdate, rows)
		for i := range writes {
			writes[i] = RowUpdate{claimOf("r", 5), Key{i + 1}, Set{"v": 1}}
		}
		writes[rows-1].Set = Set{"v": -1}
		if _, err := table.UpdateMany(ctx, e.db, writes); pgerr.State(err) != "23514" {
			t.Errorf("a violated constraint: %v", err)
		}
		writes[rows-1] = RowUpdate{claimOf("r", 6), Key{"1.0"}, Set{"v": 1}}
		_, err := table.UpdateMany(ctx, e.db, writes)
		wantInvalid(t, "one key twice", err, "writes[23000]: key", "an earlier write")
		writes[rows-1] = RowUpdate{claimOf("r", 5), Key{rows + 1}, Set{"v": 1}}
		err = e.db.plain(ctx, func(ctx context.Context, tx testTx) error {
			_, err := table.UpdateMany(ctx, tx.in(), writes)
			return err
		})
		wantInvalid(t, "in a transaction", err, "writes", "65535")
		if n := e.int("SELECT count(*) FROM wide WHERE v <> 0"); n != 0 {
			t.Fatalf("%d rows were written", n)
		}
		verdicts, err := table.UpdateMany(ctx, e.db, writes)
		if err != nil || len(verdicts) != rows {
			t.Fatalf("%d verdicts, %v", len(verdicts), err)
		}
		for i, verdict := range verdicts {
			want := guard.ReasonNone
			switch {
			case i == rows-1:
				want = guard.ReasonNotFound
			case (i+1)%100 == 0:
				want = guard.ReasonStale
			}
			if guard.ReasonOf(verdict) != want {
				t.Fatalf("writes[%d]: %v, want %q", i, verdict, want)
			}
		}
		if n := e.int("SELECT count(*) FROM wide WHERE v = 1"); n != rows-1-rows/100 {
			t.Errorf("%d rows are written", n)
		}
	})
}
