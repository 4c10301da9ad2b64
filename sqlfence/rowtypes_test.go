package sqlfence

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestKeyTypes: keys of several columns and types, a table in a schema with
// names that need quotes, a domain, and generated columns that a write fires.
func TestKeyTypes(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE SCHEMA "My ""schema";
			CREATE DOMAIN period AS text CHECK (VALUE ~ '^\d{4}-\d{2}$');
			CREATE TYPE mood AS ENUM ('good', 'bad');
			CREATE TABLE "My ""schema"."select.from" (u uuid, d date, n numeric, j jsonb, p period, m mood, t timestamptz, b bytea,
				"a.b" int NOT NULL DEFAULT 0, twice int GENERATED ALWAYS AS ("a.b" * 2) STORED, tags text[], note period,
				mark bigint NOT NULL DEFAULT 0, gone timestamptz, PRIMARY KEY (u, d, n, j, p, m, t, b))`)
		table, err := anyTable([]string{`My "schema`, "select.from"}, []string{"u", "d", "n", "j", "p", "m", "t", "b"},
			&TableOptions{TokenColumn: "mark", DeletedColumn: "gone", Rule: guard.SameOrNewer})
		must(t, err)
		at := time.Date(2026, 4, 30, 12, 0, 0, 123000, time.UTC)
		keyOf := func(n string) Key {
			return Key{"8c8f0b6e-6f0a-4f6a-9c39-0a4b1c9f5a01", at, n, `{"a": 1}`, "2026-04", "good", at, []byte{1, 0, 255}}
		}
		key, other := keyOf("1.50"), keyOf("2")
		for i, key := range []Key{key, other} {
			must(t, table.Upsert(t.Context(), e.db, claimOf("r", 1), key, Set{"a.b": i}))
		}
		noError(t, table.Update(t.Context(), e.db, claimOf("r", 2), key, Set{"a.b": sqlrow.Raw(`"a.b" + $1`, 20), "note": "2026-05"}))
		noError(t, table.Update(t.Context(), e.db, claimOf("r", 3), key, Set{"a.b": sqlrow.Raw(`"a.b" + $1`, 1), "note": "2026-06"}))
		var u, note string
		var n, twice int
		var day time.Time
		noError(t, table.Raise(t.Context(), e.db, claimOf("r", 4), keyOf("1.500"), Dest{"u": &u, "a.b": &n, "twice": &twice, "note": &note, "d": &day}))
		if u != key[0] || n != 21 || twice != 42 || note != "2026-06" || day.Format(time.DateOnly) != "2026-04-30" {
			t.Errorf("read %q, %d, %d, %q, %v", u, n, twice, note, day)
		}
		noError(t, table.Delete(t.Context(), e.db, claimOf("r", 4), other, nil))
		// Errors that only the server can detect: nothing is written, and the
		// claim is not used up.
		for what, set := range map[string]Set{"a generated column": {"twice": 1}, "another type": {"tags": sqlrow.Raw("1")}, "no column": {"none": 1}} {
			for way, err := range map[string]error{
				"Update":   table.Update(t.Context(), e.db, claimOf("r", 9), key, set),
				"Upsert":   table.Upsert(t.Context(), e.db, claimOf("r", 9), key, set),
				"Takeover": table.Raise(t.Context(), e.db, claimOf("r", 9), key, Dest{"none": &n}),
			} {
				if guard.ReasonOf(err) != guard.ReasonInvalid {
					t.Errorf("%s, %s: got %v, want ErrInvalid", way, what, err)
				}
			}
		}
		wantState(t, table.Update(t.Context(), e.db, claimOf("r", 9), key, Set{"note": "April"}), "23514", "a value outside the domain")
		e.wantInt(0, "rows were written", `SELECT count(*) FROM "My ""schema"."select.from" WHERE mark > 4`)
	})
}

// TestUnfitTables (P5, P6): a table without the key's index, without the
// columns, with columns of other types, or with NULL in them: the error says what
// is wrong, whatever the name of the table, and nothing is written.
func TestUnfitTables(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE fencepost_rows (id int, v text CHECK (v <> 'bad'), last_fencing_token bigint, lease text, deleted_at timestamptz, n int);
			INSERT INTO fencepost_rows VALUES (1, 'old', NULL, ''), (2, 'old', 0, ''), (2, 'old', 0, ''), (3, 'old', 5, NULL), (4, 'old', 0, '')`)
		of := func(o TableOptions) *Table {
			o.Rule = guard.SameOrNewer
			return e.table("fencepost_rows", []string{"id"}, &o)
		}
		good, leases := of(TableOptions{DeletedColumn: "deleted_at"}), of(TableOptions{LeaseColumn: "lease"})
		claim, set := claimOf("r", 5), Set{"v": "new"}
		gone, err := anyTable([]string{"fencepost_gone"}, []string{"id"}, nil)
		must(t, err)
		for what, c := range map[string]struct {
			err  error
			want guard.Reason
			says string
		}{
			"Update of a NULL mark":           {good.Update(t.Context(), e.db, claim, Key{1}, set), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Delete of a NULL mark":           {good.Delete(t.Context(), e.db, claim, Key{1}, set), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Takeover of a NULL mark":         {good.Raise(t.Context(), e.db, claim, Key{1}, nil), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Update of a NULL lease":          {leases.Update(t.Context(), e.db, claim, Key{3}, set), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Upsert without the key's index":  {good.Upsert(t.Context(), e.db, claim, Key{9}, set), guard.ReasonInvalid, "42P10"},
			"no such table":                   {gone.Update(t.Context(), e.db, claim, Key{1}, set), guard.ReasonInvalid, "fencepost_gone"},
			"no token column":                 {of(TableOptions{TokenColumn: "token"}).Update(t.Context(), e.db, claim, Key{4}, set), guard.ReasonInvalid, "must be bigint NOT NULL DEFAULT 0"},
			"no lease column":                 {of(TableOptions{LeaseColumn: "l"}).Update(t.Context(), e.db, claim, Key{4}, set), guard.ReasonInvalid, `"l"`},
			"no deleted column":               {of(TableOptions{DeletedColumn: "gone"}).Delete(t.Context(), e.db, claim, Key{4}, nil), guard.ReasonInvalid, `"gone"`},
			"a token column of text":          {of(TableOptions{TokenColumn: "v"}).Update(t.Context(), e.db, claim, Key{4}, Set{"lease": "x"}), guard.ReasonInvalid, "bigint"},
			"a deleted column of int":         {of(TableOptions{DeletedColumn: "n"}).Delete(t.Context(), e.db, claim, Key{4}, nil), guard.ReasonInvalid, "integer"},
			"no such column":                  {good.Update(t.Context(), e.db, claim, Key{4}, Set{"fencepost": 1}), guard.ReasonInvalid, "fencepost"},
			"no such function":                {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": sqlrow.Raw("fencepost_nothing()")}), guard.ReasonInvalid, "fencepost_nothing"},
			"a value that no driver can send": {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": make(chan int)}), guard.ReasonInvalid, "chan int"},
			"a key that no driver can send":   {good.Update(t.Context(), e.db, claim, Key{struct{}{}}, set), guard.ReasonInvalid, "args[0]"},
			// The statement's own errors are the caller's, with the driver's inside.
			"a violated constraint": {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": "bad"}), guard.ReasonOther, "23514"},
		} {
			if wantReason(t, c.err, c.want, what); c.err == nil || !strings.Contains(c.err.Error(), c.says) {
				t.Errorf("%s: %v does not say %q", what, c.err, c.says)
			}
		}
		// A key that is not unique is detected only afterwards, and the error does not
		// promise that nothing was written; a caller's transaction can still be rolled
		// back.
		for what, write := range map[string]func(q Querier) error{
			"Update":   func(q Querier) error { return good.Update(t.Context(), q, claim, Key{2}, set) },
			"Takeover": func(q Querier) error { return good.Raise(t.Context(), q, claim, Key{2}, Dest{"v": new(string)}) },
		} {
			err := e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return write(tx.in()) })
			if guard.ReasonOf(err) != guard.ReasonOther || !strings.Contains(err.Error(), "2 rows were written") {
				t.Errorf("%s of two rows with one key: %v", what, err)
			}
		}
		e.wantInt(0, "rows that were written", "SELECT count(*) FROM fencepost_rows WHERE v <> 'old' OR last_fencing_token NOT IN (0, 5)")
	})
}
