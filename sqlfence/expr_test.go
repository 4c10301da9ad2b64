package sqlfence

import (
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
