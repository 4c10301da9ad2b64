package sqlfence

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencepost-go/fencepost/guard"
)

// TestUpdateManyOddKeys (P1, P5): in SQL a composite value with a NULL in it is
// neither NULL nor NOT NULL, and it equals itself as a key: two writes to one row
// are still detected, and a refused one gets its verdict. A key that the driver
// sends as NULL without looking like NULL matches no row.
func TestUpdateManyOddKeys(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TYPE pair AS (a int, b int);
			CREATE TABLE n (id pair PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0);
			INSERT INTO n VALUES ('(1,)', 'old', 5), ('(,)', 'old', 5), ('(1,2)', 'old', 5)`)
		table := e.table("n", []string{"id"}, nil)
		many := func(token guard.Token, keys ...any) ([]error, error) {
			var writes []RowUpdate
			for _, key := range keys {
				writes = append(writes, RowUpdate{claimOf("r", token), Key{key}, Set{"v": "new"}})
			}
			return table.UpdateMany(t.Context(), e.db, writes)
		}
		for _, key := range []string{"(1,)", "(,)", "(1,2)"} {
			if _, err := many(6, key, key); guard.ReasonOf(err) != guard.ReasonInvalid {
				t.Errorf("%s twice: got %v, want ErrInvalid", key, err)
			}
			if verdicts, err := many(5, key); err != nil || guard.ReasonOf(verdicts[0]) != guard.ReasonSpent {
				t.Errorf("%s under a token that was used: %v, %v", key, verdicts, err)
			}
			if n := e.int("SELECT count(*) FROM n WHERE v = 'new'"); n != 0 {
				t.Fatalf("%s: %d rows were written", key, n)
			}
		}
		if verdicts, err := many(6, "(1,)", "(,)", "(3,)"); err != nil || verdicts[0] != nil || verdicts[1] != nil || guard.ReasonOf(verdicts[2]) != guard.ReasonNotFound {
			t.Errorf("three keys: %v, %v", verdicts, err)
		}
		if e.driver == "pgx" { // database/sql has no such value
			e.exec("CREATE TABLE ranges (id int4range PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0)")
			table = e.table("ranges", []string{"id"}, nil)
			if verdicts, err := many(6, pgtype.Range[pgtype.Int4]{}); err != nil || guard.ReasonOf(verdicts[0]) != guard.ReasonNotFound {
				t.Errorf("a range that is NULL: %v, %v", verdicts, err)
			}
		}
	})
}

// TestInheritedRows (P1): no index keeps a key unique across a table and its
// inheritance children, so that an upsert by an older holder inserted a second
// row next to the newer holder's: such a table is refused at its first use. The
// control is the child, which is an ordinary table.
func TestInheritedRows(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE parent (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0);
			CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent); INSERT INTO child VALUES (1, 'new', 11)`)
		parent, child := e.table("parent", []string{"id"}, nil), e.table("child", []string{"id"}, nil)
		wantInvalid(t, "Upsert", parent.Upsert(t.Context(), e.db, claimOf("r", 10), Key{1}, Set{"v": "old"}), "table", "inheritance children")
		if err := child.Upsert(t.Context(), e.db, claimOf("r", 10), Key{1}, Set{"v": "old"}); guard.ReasonOf(err) != guard.ReasonStale {
			t.Errorf("the child: %v", err)
		}
		if err := child.Upsert(t.Context(), e.db, claimOf("r", 12), Key{1}, Set{"v": "newer"}); err != nil {
			t.Errorf("the child, newer: %v", err)
		}
		if got := e.text("SELECT string_agg(v, ' ') FROM parent"); got != "newer" {
			t.Errorf("the rows are %q", got)
		}
	})
}
