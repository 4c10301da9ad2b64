package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
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
				mark bigint NOT NULL DEFAULT 0, PRIMARY KEY (u, d, n, j, p, m, t, b))`)
		table, err := anyTable([]string{`My "schema`, "select.from"}, []string{"u", "d", "n", "j", "p", "m", "t", "b"},
			&TableOptions{TokenColumn: "mark", Rule: guard.SameOrNewer})
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
	})
}

// TestUnfitTables (P5, P6): a table without the key's index, without the
// columns, with columns of other types, or with NULL in them: the error says what
// is wrong, whatever the name of the table, and nothing is written.
func TestUnfitTables(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE fencepost_rows (id int, v text CHECK (v <> 'bad'), last_fencing_token bigint, lease text);
			INSERT INTO fencepost_rows VALUES (1, 'old', NULL, ''), (2, 'old', 0, ''), (2, 'old', 0, ''), (3, 'old', 5, NULL), (4, 'old', 0, '')`)
		of := func(o TableOptions) *Table {
			o.Rule = guard.SameOrNewer
			return e.table("fencepost_rows", []string{"id"}, &o)
		}
		good, leases := of(TableOptions{}), of(TableOptions{LeaseColumn: "lease"})
		claim, set := claimOf("r", 5), Set{"v": "new"}
		gone, err := anyTable([]string{"fencepost_gone"}, []string{"id"}, nil)
		must(t, err)
		for what, c := range map[string]struct {
			err  error
			want guard.Reason
			says string
		}{
			"Update of a NULL mark":           {good.Update(t.Context(), e.db, claim, Key{1}, set), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Table.Raise of a NULL mark":      {good.Raise(t.Context(), e.db, claim, Key{1}, nil), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Update of a NULL lease":          {leases.Update(t.Context(), e.db, claim, Key{3}, set), guard.ReasonUnfenced, "the mark must be NOT NULL"},
			"Upsert without the key's index":  {good.Upsert(t.Context(), e.db, claim, Key{9}, set), guard.ReasonInvalid, "42P10"},
			"no such table":                   {gone.Update(t.Context(), e.db, claim, Key{1}, set), guard.ReasonInvalid, "fencepost_gone"},
			"no token column":                 {of(TableOptions{TokenColumn: "token"}).Update(t.Context(), e.db, claim, Key{4}, set), guard.ReasonInvalid, "must be bigint NOT NULL DEFAULT 0"},
			"no lease column":                 {of(TableOptions{LeaseColumn: "l"}).Update(t.Context(), e.db, claim, Key{4}, set), guard.ReasonInvalid, `"l"`},
			"a token column of text":          {of(TableOptions{TokenColumn: "v"}).Update(t.Context(), e.db, claim, Key{4}, Set{"lease": "x"}), guard.ReasonInvalid, "bigint"},
			"no such column":                  {good.Update(t.Context(), e.db, claim, Key{4}, Set{"fencepost": 1}), guard.ReasonInvalid, "fencepost"},
			"no such function":                {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": sqlrow.Raw("fencepost_nothing()")}), guard.ReasonInvalid, "fencepost_nothing"},
			"a value that no driver can send": {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": make(chan int)}), guard.ReasonInvalid, "chan int"},
			"a key that no driver can send":   {good.Update(t.Context(), e.db, claim, Key{struct{}{}}, set), guard.ReasonInvalid, "args[0]"},
			// The statement's own errors are the caller's, with the driver's inside.
			"a violated constraint":  {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": "bad"}), guard.ReasonOther, "23514"},
			"an update names itself": {good.Update(t.Context(), e.db, claim, Key{4}, Set{"v": "bad"}), guard.ReasonOther, "update fencepost_rows: "},
			"an upsert names itself": {good.Upsert(t.Context(), e.db, claim, Key{9}, set), guard.ReasonInvalid, "upsert into fencepost_rows: "},
			"a raise names itself":   {good.Raise(t.Context(), e.db, claim, Key{4}, Dest{"gone": new(int)}), guard.ReasonInvalid, "raise the mark in fencepost_rows: "},
		} {
			wantSays(t, c.err, c.want, c.says, what)
		}
		// A key that is not unique is detected only afterwards, and the error does not
		// promise that nothing was written; a caller's transaction can still be rolled
		// back.
		for what, write := range map[string]func(q Querier) error{
			"Update":      func(q Querier) error { return good.Update(t.Context(), q, claim, Key{2}, set) },
			"Table.Raise": func(q Querier) error { return good.Raise(t.Context(), q, claim, Key{2}, Dest{"v": new(string)}) },
		} {
			err := e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return write(tx.in()) })
			wantSays(t, err, guard.ReasonOther, "2 rows were written", "%s of two rows with one key", what)
		}
		e.wantInt(0, "rows that were written", "SELECT count(*) FROM fencepost_rows WHERE v <> 'old' OR last_fencing_token NOT IN (0, 5)")
	})
}

// TestRowSecurity (P5, P6): on a table with row-level security and rights by
// column a row that the role may not write is never success and never stale; a
// row that it may not see does not exist. No rights are needed except on the
// named columns, the key and the fence's columns.
func TestRowSecurity(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		role, db := e.as("rls")
		e.exec(`CREATE TABLE docs (id int PRIMARY KEY, tenant text NOT NULL DEFAULT 'mine', v int, secret int,
				last_fencing_token bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '');
			INSERT INTO docs (id, tenant) VALUES (1, 'mine'), (2, 'shown'), (3, 'hidden'), (4, 'mine');
			ALTER TABLE docs ENABLE ROW LEVEL SECURITY;
			CREATE POLICY sees ON docs FOR SELECT USING (tenant <> 'hidden');
			CREATE POLICY writes ON docs FOR UPDATE USING (tenant = 'mine');
			CREATE POLICY adds ON docs FOR INSERT WITH CHECK (tenant = 'mine');
			GRANT SELECT (id, v, last_fencing_token, lease), UPDATE (v, last_fencing_token, lease),
				INSERT (id, v, last_fencing_token, lease) ON docs TO ` + role)
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "lease"})
		var v *int
		ways := []struct {
			name string
			call func(id int) error
		}{
			{"Update", func(id int) error { return table.Update(t.Context(), db, claimOf("r", 5), Key{id}, Set{"v": 1}) }},
			{"Table.Raise", func(id int) error {
				return table.Raise(t.Context(), db, claimOf("r", 5), Key{id}, Dest{"v": &v})
			}},
			{"Upsert", func(id int) error { return table.Upsert(t.Context(), db, claimOf("r", 5), Key{id}, Set{"v": 1}) }},
		}
		for id, want := range map[int]guard.Reason{1: guard.ReasonNone, 2: guard.ReasonSetup, 3: guard.ReasonNotFound} {
			for _, way := range ways {
				expect := want
				if way.name == "Upsert" && id > 1 { // it is in the way of the row to be inserted, and the server says so
					expect = guard.ReasonSetup
				}
				wantReason(t, way.call(id), expect, "%s of row %d", way.name, id)
			}
		}
		noError(t, table.Upsert(t.Context(), db, claimOf("r", 5), Key{9}, Set{"v": 1}), "Upsert of a new row")
		if err := table.Update(t.Context(), db, claimOf("r", 5), Key{4}, Set{"secret": 1}); guard.ReasonOf(err) != guard.ReasonSetup || pgerr.State(err) != "42501" || strings.Contains(err.Error(), "RolesSQL") {
			t.Errorf("a column without the right: %v", err)
		}
		e.exec("CREATE TRIGGER quiet BEFORE UPDATE ON docs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()")
		wantSays(t, table.Update(t.Context(), db, claimOf("r", 5), Key{9}, Set{"v": 1}), guard.ReasonSetup, "suppress_redundant", "an update that changes nothing, under a trigger that leaves it out")
		noError(t, table.Update(t.Context(), db, claimOf("r", 5), Key{9}, Set{"v": 2}), "an update that changes something under that trigger")
		e.exec("CREATE POLICY stays ON docs AS RESTRICTIVE FOR UPDATE WITH CHECK (v < 100)")
		if err := table.Update(t.Context(), db, claimOf("r", 6), Key{4}, Set{"v": 100}); guard.ReasonOf(err) != guard.ReasonSetup || pgerr.State(err) != "42501" || !strings.Contains(err.Error(), "policies") {
			t.Errorf("a row that a policy's WITH CHECK refuses: %v", err)
		}
		err := db.fenced(t.Context(), claimOf("r", 6), func(context.Context, testTx) error { return nil })
		wantSays(t, err, guard.ReasonSetup, "RolesSQL", "InTx without rights on schema fencepost")
		e.wantText("1 5, 2 0, 3 0, 4 0, 9 5", "the marks are", "SELECT string_agg(id || ' ' || last_fencing_token, ', ' ORDER BY id) FROM docs")
	})
}

// TestRowMovesBetweenPartitions (P1): a row that a write moves into another
// partition keeps its mark, and a write that meets it while it moves is neither
// a success nor stale.
func TestRowMovesBetweenPartitions(t *testing.T) {
	e := someEnv(t)
	e.exec(`CREATE TABLE docs (id int, year int NOT NULL, v int, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY LIST (year);
		CREATE TABLE docs_25 PARTITION OF docs FOR VALUES IN (25);
		CREATE TABLE docs_26 PARTITION OF docs FOR VALUES IN (26);
		INSERT INTO docs VALUES (1, 25)`)
	table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	must(t, table.Update(t.Context(), e.db, claimOf("r", 6), Key{1}, Set{"year": 26}))
	wantReason(t, table.Update(t.Context(), e.db, claimOf("r", 5), Key{1}, Set{"year": 25}), guard.ReasonStale, "an older holder moves it back")
	noError(t, table.Update(t.Context(), e.db, claimOf("r", 7), Key{1}, Set{"year": 25}))
	tx := e.begin("UPDATE docs SET year = 51 - year WHERE id = 1")
	done := e.start(func(func()) error { return table.Update(t.Context(), e.db, claimOf("r", 8), Key{1}, Set{"v": 8}) })
	must(t, tx.Commit(t.Context()))
	wantRefused(t, <-done, guard.ReasonUnavailable, pgerr.Serialization, "a write that met the move")
	e.wantInt(7, "the mark", "SELECT last_fencing_token FROM docs WHERE id = 1 AND v IS NULL")
}

// TestTableRaiseLiftsCommit (P2): a raise of a row makes only its own commit
// synchronous: not that of a refused raise's transaction, not the next
// one's, and it changes nothing if the setting is already stronger.
func TestTableRaiseLiftsCommit(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'old', NULL, 4)")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		for setting, want := range map[string]string{"off": "on", "local": "on", "remote_write": "remote_write", "on": "on"} {
			db := e.serverDefault("synchronous_commit", setting)
			is := func(ctx context.Context, tx testTx, want string) {
				n, err := tx.int(ctx, "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = $1", want)
				if err != nil || n != 1 {
					t.Errorf("default %s: the setting is not %s, %v", setting, want, err)
				}
			}
			noError(t, db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				wantReason(t, table.Raise(ctx, tx.in(), claimOf("r", 3), Key{1}, nil), guard.ReasonStale, "the old holder")
				is(ctx, tx, setting)
				err := table.Raise(ctx, tx.in(), claimOf("r", 5), Key{1}, nil)
				is(ctx, tx, want)
				return err
			}))
			noError(t, table.Raise(t.Context(), db, claimOf("r", 5), Key{1}, nil))
			noError(t, db.plain(t.Context(), func(ctx context.Context, tx testTx) error { is(ctx, tx, setting); return nil }))
		}
	})
}

// TestTableRaiseInTx (P2): until the transaction of a raise of a row ends, an older
// holder's write waits; then it is refused, or applied if it was rolled back.
func TestTableRaiseInTx(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'old', NULL, 4)")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		rollback := errors.New("rolled back")
		for _, c := range []struct {
			end  error
			want guard.Reason
			row  string
		}{{rollback, guard.ReasonNone, "by 4"}, {nil, guard.ReasonStale, "by 4, then 5"}} {
			written := make(chan error, 1)
			err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				var v string
				if err := table.Raise(ctx, tx.in(), claimOf("r", 5), Key{1}, Dest{"v": &v}); err != nil {
					return err
				}
				go func() {
					written <- table.Update(context.Background(), e.db, claimOf("r", 4), Key{1}, Set{"v": "by 4"})
				}()
				e.waitForBlocked(1)
				return errors.Join(c.end, table.Update(ctx, tx.in(), claimOf("r", 5), Key{1}, Set{"v": v + ", then 5"}))
			})
			if !errors.Is(err, c.end) {
				t.Errorf("the transaction: %v", err)
			}
			wantReason(t, <-written, c.want, "the older holder")
			e.wantText(c.row, "the row", "SELECT v FROM docs")
		}
	})
}

// TestUpsertRaces (P1): holders that insert one row at the same time leave the
// newest one's, and a deleted row loses its mark.
func TestUpsertRaces(t *testing.T) {
	e := someEnv(t)
	e.createDocs()
	table := e.table("docs", []string{"id"}, nil)
	for id := range longtest.ByLength(20, 300) {
		const holders = 6
		verdicts := make(chan error, holders)
		for token := 1; token <= holders; token++ {
			go func() {
				verdicts <- table.Upsert(t.Context(), e.db, guard.Claim{Resource: "r", Token: guard.Token(token)}, Key{id}, Set{"v": fmt.Sprint(token)})
			}()
		}
		for range holders {
			if err := <-verdicts; err != nil && !errors.Is(err, guard.ErrStale) {
				t.Error(err)
			}
		}
	}
	if n := e.int("SELECT count(*) FROM docs WHERE last_fencing_token <> 6 OR v <> '6'"); n != 0 {
		t.Errorf("%d rows are not the newest holder's", n)
	}
	old := claimOf("r", 5)
	if err := table.Upsert(t.Context(), e.db, old, Key{0}, Set{"v": "back"}); !errors.Is(err, guard.ErrStale) {
		t.Errorf("a row that is there: got %v, want ErrStale", err)
	}
	e.exec("DELETE FROM docs WHERE id = 0") // the control
	noError(t, table.Upsert(t.Context(), e.db, old, Key{0}, Set{"v": "back"}), "a row that is gone remembers")
}

// TestExpr: PostgreSQL computes the same from an expression inside an Update,
// with other parameters before and after it, as from the expression alone.
func TestExpr(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE odd (id int PRIMARY KEY, v text, w text, "col$1" text DEFAULT 'c', "we""ird" text DEFAULT 'w', é$1 text DEFAULT 'é',
			last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO odd (id) VALUES (1)`)
		table := e.table("odd", []string{"id"}, nil)
		token := guard.Token(0)
		for _, c := range []struct {
			sql  string
			args []any
		}{
			{`$1::text || $2::text || $1::text`, []any{"a", "b"}},
			{`$2::text || $1::text`, []any{"a", "b"}},
			{`'$1 is ''$2''' || $1`, []any{"a"}},
			{"E'a\n' || $1::text || E'b\n'", []any{"a"}},
			{`N'$1' || B'1'::text || X'F'::text || $1::text`, []any{"a"}},
			{`"col$1" || col$1 || "we""ird" || é$1 || $1`, []any{"a"}},
			{`upper('''' || $1) || ("odd"."col$1")`, []any{"a"}},
			{`CASE WHEN $1::int > 0 THEN ')' ELSE '(' END`, []any{1}},
			{`(SELECT string_agg(x::text, '$1') FROM unnest(ARRAY[$1::int, $2::int, $1::int]) x)`, []any{4, 5}},
			{`$01::text`, []any{"a"}},
			{`to_jsonb($1::text) #>> '{}'`, []any{"a"}},
		} {
			var want string
			if err := e.admin.QueryRow(t.Context(), "SELECT "+c.sql+" FROM odd", c.args...).Scan(&want); err != nil {
				t.Fatalf("%s alone: %v", c.sql, err)
			}
			token++
			err := table.Update(t.Context(), e.db, claimOf("r", token), Key{1}, Set{"v": sqlrow.Raw(c.sql, c.args...), "w": sqlrow.Raw("$1::text || $2", "after", "wards")})
			if err != nil {
				t.Errorf("%s: %v", c.sql, err)
			} else if got := e.text("SELECT v || ' ' || w FROM odd"); got != want+" afterwards" {
				t.Errorf("%s: got %q, want %q", c.sql, got, want)
			}
		}
	})
}
