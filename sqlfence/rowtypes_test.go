package sqlfence

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
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
		if err != nil {
			t.Fatal(err)
		}
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
// columns, or with NULL in them.
func TestUnfitTables(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE unfit (id int, v int, last_fencing_token bigint, deleted_at timestamptz, txt text);
			INSERT INTO unfit VALUES (1, 0, NULL), (2, 0, 0), (2, 0, 0)`)
		opts := func(o TableOptions) *Table {
			o.Rule = guard.SameOrNewer
			return e.table("unfit", []string{"id"}, &o)
		}
		good := opts(TableOptions{DeletedColumn: "deleted_at"})
		for way, err := range map[string]error{
			"Update":   good.Update(t.Context(), e.db, claimOf("r", 5), Key{1}, Set{"v": 1}),
			"Delete":   good.Delete(t.Context(), e.db, claimOf("r", 5), Key{1}, Set{"v": 1}),
			"Takeover": good.Raise(t.Context(), e.db, claimOf("r", 5), Key{1}, nil),
		} {
			if guard.ReasonOf(err) != guard.ReasonUnfenced {
				t.Errorf("%s of a NULL mark: got %v, want ErrUnfenced", way, err)
			} else if !strings.Contains(err.Error(), "the mark must be NOT NULL") {
				t.Errorf("%s of a NULL mark: %v does not say what to do", way, err)
			}
		}
		if err := good.Upsert(t.Context(), e.db, claimOf("r", 5), Key{3}, Set{"v": 1}); guard.ReasonOf(err) != guard.ReasonInvalid || pgerr.State(err) != "42P10" {
			t.Errorf("Upsert without the key's index: %v", err)
		}
		for what, table := range map[string]*Table{
			"no token column":         opts(TableOptions{TokenColumn: "token"}),
			"no lease column":         opts(TableOptions{LeaseColumn: "lease"}),
			"no deleted column":       opts(TableOptions{DeletedColumn: "gone"}),
			"a token column of text":  opts(TableOptions{TokenColumn: "txt"}),
			"a deleted column of int": opts(TableOptions{DeletedColumn: "v"}),
		} {
			wantReason(t, table.Delete(t.Context(), e.db, claimOf("r", 5), Key{2}, nil), guard.ReasonInvalid, "%s", what)
		}
		e.wantInt(0, "rows were written", "SELECT count(*) FROM unfit WHERE v <> 0 OR last_fencing_token <> 0")
		// A key that is not unique is detected only afterwards; a caller's
		// transaction can still be rolled back.
		err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			var v int
			var err error
			if err = good.Raise(ctx, tx.in(), claimOf("r", 5), Key{2}, Dest{"v": &v}); guard.ReasonOf(err) != guard.ReasonOther {
				t.Errorf("Takeover of two rows with one key: %v", err)
			}
			return err
		})
		if err == nil || e.int("SELECT count(*) FROM unfit WHERE v <> 0") != 0 {
			t.Errorf("not rolled back: %v", err)
		}
	})
}
