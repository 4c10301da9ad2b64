package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// countingQuerier counts what is sent.
type countingQuerier struct {
	Querier
	sent *int
}

func (c countingQuerier) exec(ctx context.Context, sql string, args []any) (int64, error) {
	*c.sent++
	return c.Querier.exec(ctx, sql, args)
}

func (c countingQuerier) query(ctx context.Context, sql string, args []any, each eachRow) error {
	*c.sent++
	return c.Querier.query(ctx, sql, args, each)
}

func (e *env) manyTable(opts *TableOptions) *Table {
	e.exec(`DROP TABLE IF EXISTS items; CREATE TABLE items (a int, b numeric, v text, n bigint NOT NULL DEFAULT 0 CHECK (n < 100),
		last_fencing_token bigint NOT NULL DEFAULT 0, last_lease_id text NOT NULL DEFAULT '', PRIMARY KEY (a, b))`)
	e.exec("INSERT INTO items (a, b, v) SELECT i, 1, 'old' FROM generate_series(1, 200) i")
	return e.table("items", []string{"a", "b"}, opts)
}

func writesOf(token guard.Token, ids ...int) (writes []RowUpdate) {
	for _, id := range ids {
		writes = append(writes, RowUpdate{claimOf(fmt.Sprint("item:", id), token), Key{id, 1}, Set{"v": fmt.Sprint("new", id), "n": Raw("n + $1", 2)}})
	}
	return writes
}

// TestUpdateMany: verdicts in the order of the writes, each row its own value
// and claim, an expression of the row's columns, and one statement.
func TestUpdateMany(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, lease := range []string{"", "last_lease_id"} {
			table := e.manyTable(&TableOptions{LeaseColumn: lease})
			for _, size := range []int{1, 3, 9, 200} {
				ids, sent := rand.Perm(200)[:size], 0
				for i := range ids {
					ids[i]++
				}
				e.exec("UPDATE items SET v = 'old', n = 0, last_fencing_token = a % 10")
				verdicts, err := table.UpdateMany(t.Context(), countingQuerier{e.db, &sent}, writesOf(5, ids...))
				if err != nil || len(verdicts) != size || sent != 1 {
					t.Fatalf("%d rows: %d verdicts, %v, %d statements", size, len(verdicts), err, sent)
				}
				applied := 0
				for i, id := range ids {
					mark := guard.Mark{Token: guard.Token(id % 10)}
					if want := guard.Decide(guard.OncePerToken, guard.Mark{Token: mark.Token, LeaseID: map[bool]string{true: "lease-5"}[mark.Token == 5 && lease == ""]},
						claimOf(fmt.Sprint("item:", id), 5)); guard.ReasonOf(verdicts[i]) != guard.ReasonOf(want) {
						t.Errorf("row %d: %v, want %v", id, verdicts[i], want)
					}
					if verdicts[i] == nil {
						applied++
					}
				}
				if n := e.int("SELECT count(*) FROM items WHERE v = 'new' || a AND n = 2 AND last_fencing_token = 5 AND last_lease_id = $1",
					map[bool]string{true: "lease-5"}[lease != ""]); n != int64(applied) {
					t.Errorf("%d rows were applied, %d are written", applied, n)
				}
			}
		}
		if verdicts, err := e.manyTable(nil).UpdateMany(t.Context(), e.db, nil); verdicts != nil || err != nil {
			t.Errorf("no writes: %v, %v", verdicts, err)
		}
	})
}

// TestUpdateManyMissing (P6): a missing row is reported as not found, in the
// same statement, also in a transaction.
func TestUpdateManyMissing(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		table, sent := e.manyTable(nil), 0
		check := func(q Querier) error {
			verdicts, err := table.UpdateMany(t.Context(), countingQuerier{q, &sent}, writesOf(5, 7, 500, 3, 501))
			if err != nil {
				return err
			}
			got := []guard.Reason{}
			for _, v := range verdicts {
				got = append(got, guard.ReasonOf(v))
			}
			if want := []guard.Reason{"", guard.ReasonNotFound, "", guard.ReasonNotFound}; !slices.Equal(got, want) || sent != 1 {
				t.Errorf("got %q in %d statements, want %q in 1", got, sent, want)
			}
			return nil
		}
		rollback := errors.New("rolled back")
		err := e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return errors.Join(check(tx.in()), rollback) })
		if !errors.Is(err, rollback) || e.int("SELECT count(*) FROM items WHERE v <> 'old'") != 0 {
			t.Errorf("a transaction that was rolled back: %v", err)
		}
		sent = 0
		if err := check(e.db); err != nil || e.int("SELECT count(*) FROM items WHERE v <> 'old'") != 2 {
			t.Errorf("alone: %v", err)
		}
	})
}

// TestUpdateManyReplaced (P6): rows that are deleted and inserted again while
// the statement waits for them count as existing: written, or refused by the
// new mark.
func TestUpdateManyReplaced(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		table, ctx := e.manyTable(nil), context.Background()
		tx, err := e.admin.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, `WITH d AS (DELETE FROM items WHERE a IN (1, 2, 3) RETURNING *) INSERT INTO items SELECT a, b, v, n, CASE a WHEN 2 THEN 9 ELSE 0 END FROM d WHERE a < 3`); err != nil {
			t.Fatal(err)
		}
		done := make(chan []error, 1)
		go func() {
			verdicts, err := table.UpdateMany(ctx, e.db, writesOf(5, 3, 2, 1, 4))
			done <- append(verdicts, err)
		}()
		e.waitForBlocked(1)
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		got := []guard.Reason{}
		for _, v := range <-done {
			got = append(got, guard.ReasonOf(v))
		}
		if want := []guard.Reason{guard.ReasonNotFound, guard.ReasonStale, "", "", ""}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if n := e.int("SELECT count(*) FROM items WHERE v <> 'old'"); n != 2 {
			t.Errorf("%d rows were written", n)
		}
	})
}

// TestUpdateManyAllOrNothing: what fails for one row of the statement fails for
// all, and a row that a trigger holds back is reported.
func TestUpdateManyAllOrNothing(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		table := e.manyTable(nil)
		e.exec("UPDATE items SET n = 99 WHERE a = 3")
		_, err := table.UpdateMany(t.Context(), e.db, writesOf(5, 1, 2, 3))
		if pgerr.State(err) != "23514" || guard.ReasonOf(err) != guard.ReasonOther {
			t.Errorf("a violated constraint: %v", err)
		}
		// 1.0 equals 1 only to the database.
		writes := writesOf(5, 1, 2, 2)
		writes[2].Key[1] = "1.0"
		_, err = table.UpdateMany(t.Context(), e.db, writes)
		wantInvalid(t, "one key twice", err, "writes[2]: key", "is that of writes[1], too")
		writes = writesOf(5, 1, 2)
		delete(writes[1].Set, "n")
		_, err = table.UpdateMany(t.Context(), e.db, writes)
		wantInvalid(t, "a column less", err, `writes[1]: set`, "is missing here but set in writes[0]")
		if n := e.int("SELECT count(*) FROM items WHERE v <> 'old'"); n != 0 {
			t.Errorf("%d rows were written", n)
		}
		e.exec(`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER hold BEFORE UPDATE ON items FOR EACH ROW WHEN (OLD.a = 2) EXECUTE FUNCTION hold()`)
		verdicts, err := table.UpdateMany(t.Context(), e.db, writesOf(5, 1, 2))
		if err != nil || verdicts[0] != nil || guard.ReasonOf(verdicts[1]) != guard.ReasonUnavailable {
			t.Errorf("a row held back: %v, %v", verdicts, err)
		}
	})
}

// TestUpdateManyOrder: batches of the same rows in different orders do not
// deadlock: at random, and when one that begins with row 1 and one that begins
// with row 40 both are in the middle. The control locks in the order in which
// the writes are given; there each holds what the other waits for.
func TestUpdateManyOrder(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		db := e.serverDefault("deadlock_timeout", "10ms")
		update := func(q Querier, table *Table, ids ...int) error {
			writes := writesOf(5, ids...)
			for i := range writes {
				writes[i].Set["n"] = 1
			}
			_, err := table.UpdateMany(context.Background(), q, writes)
			return err
		}
		var ascending, descending []int
		for id := range 40 {
			ascending, descending = append(ascending, 1+id), append(descending, 40-id)
		}
		crossed := func(q Querier) error {
			table := e.manyTable(&TableOptions{Rule: guard.SameOrNewer})
			tx, err := e.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(t.Context(), "SELECT FROM items WHERE a = 20 FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			up := e.start(func(func()) error { return update(q, table, ascending...) })
			down := e.start(func(func()) error { return update(q, table, descending...) })
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			return errors.Join(<-up, <-down)
		}
		if err := crossed(db); err != nil {
			t.Error(err)
		}
		inTheirOrder := mutantQuerier{db, func(sql string) string {
			return strings.Replace(sql, `ORDER BY "items"."a", "items"."b"`, `ORDER BY "fence in"."fence n"`, 1)
		}}
		if err := crossed(inTheirOrder); pgerr.State(err) != "40P01" {
			t.Errorf("in the order of the writes, the control: got %v, want a deadlock", err)
		}
		table := e.manyTable(&TableOptions{Rule: guard.SameOrNewer})
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				for range longtest.ByLength(8, 100) {
					ids := rand.Perm(40)
					for i := range ids {
						ids[i]++
					}
					if err := update(db, table, ids...); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestUpdateManyChangedMeanwhile (P6): a row that satisfies the predicate only
// since the statement waits for it is written. The control is one that does not.
func TestUpdateManyChangedMeanwhile(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		table, ctx := e.manyTable(nil).Where(Raw("b = 1 AND n = $1", 7)), context.Background()
		tx, err := e.admin.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, "UPDATE items SET n = CASE a WHEN 1 THEN 7 ELSE 8 END WHERE a IN (1, 2)"); err != nil {
			t.Fatal(err)
		}
		done := make(chan []error, 1)
		go func() {
			verdicts, err := table.UpdateMany(ctx, e.db, writesOf(5, 2, 1))
			done <- append(verdicts, err)
		}()
		e.waitForBlocked(1)
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if got := <-done; !errors.Is(got[0], ErrPredicate) || got[1] != nil || got[2] != nil {
			t.Errorf("got %v, want the predicate's refusal and a write", got)
		}
		if n := e.int("SELECT count(*) FROM items WHERE v <> 'old'"); n != 1 {
			t.Errorf("%d rows were written", n)
		}
	})
}

// TestUpdateManyEqualInTheColumn (P5): whole numbers that the key's column
// cannot tell apart are one key twice.
func TestUpdateManyEqualInTheColumn(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE reals (id real PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO reals VALUES (16777216, 0), (1, 0)")
		table := e.table("reals", []string{"id"}, nil)
		write := func(id int64, token guard.Token) RowUpdate {
			return RowUpdate{claimOf("r", token), Key{id}, Set{"v": id}}
		}
		_, err := table.UpdateMany(t.Context(), e.db, []RowUpdate{write(16777216, 5), write(16777217, 6)})
		wantInvalid(t, "one key twice", err, "writes[1]: key", "is that of writes[0], too")
		if n := e.int("SELECT count(*) FROM reals WHERE v <> 0"); n != 0 {
			t.Errorf("%d rows were written", n)
		}
		if verdicts, err := table.UpdateMany(t.Context(), e.db, []RowUpdate{write(16777216, 5), write(1, 6)}); err != nil || errors.Join(verdicts...) != nil {
			t.Errorf("the control, two keys: %v, %v", verdicts, err)
		}
	})
}
