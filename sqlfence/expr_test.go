package sqlfence

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

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

// TestSpareArguments: an argument that the expression does not use is refused,
// even if the statement is known from an expression that uses all of its
// arguments.
func TestSpareArguments(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE spare (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO spare VALUES (1)")
		table := e.table("spare", []string{"id"}, nil)
		update := func(token guard.Token, args ...any) error {
			return table.Update(t.Context(), e.db, claimOf("r", token), Key{1}, Set{"v": sqlrow.Raw("$1::text", args...)})
		}
		must(t, update(1, "a"))
		err := update(2, "b", "spare")
		if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "has 2 arguments and does not use $2") {
			t.Errorf("a spare argument: %v", err)
		}
		e.wantText("a1", "the row", "SELECT concat(v, last_fencing_token) FROM spare")
	})
}
