package sqlfence

import (
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
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
			{`E'it\'s $1' || $1::text`, []any{"a"}},
			{`e'\\' || $1::text || '\'`, []any{"a"}},
			{`E'a''b\'c $2' || $1::text`, []any{"a"}},
			{"E'a' \n 'b\\'c $2' || $1::text", []any{"a"}},
			{"E'a\n' || $1::text || E'b\n'", []any{"a"}},
			{`U&'d\0061t $1' || $1::text`, []any{"a"}},
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
			err := table.Update(t.Context(), e.db, claimOf("r", token), Key{1}, Set{"v": Raw(c.sql, c.args...), "w": Raw("$1::text || $2", "after", "wards")})
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
			return table.Update(t.Context(), e.db, claimOf("r", token), Key{1}, Set{"v": Raw("$1::text", args...)})
		}
		if err := update(1, "a"); err != nil {
			t.Fatal(err)
		}
		err := update(2, "b", "spare")
		if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "has 2 arguments and does not use $2") {
			t.Errorf("a spare argument: %v", err)
		}
		if got := e.text("SELECT concat(v, last_fencing_token) FROM spare"); got != "a1" {
			t.Errorf("the row is %s", got)
		}
	})
}

// fuzzConn is a connection for a fuzz target.
func fuzzConn(f *testing.F) *pgx.Conn {
	conn, err := pgx.Connect(context.Background(), pgtest.Database(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// FuzzExpr asks PostgreSQL's own parser: an expression that render accepts and
// the server parses has, with its placeholders moved up, the same parameters
// and result as without, and does not affect those in front of it.
func FuzzExpr(f *testing.F) {
	for _, seed := range []string{
		"$1::int + $2::int", "'$1' || $1", `E'\'$1' || $1`, `E'''\'$1' || $1`, "E'a'\n'\\'$1' || $1::text", `"$1"`, "1$1", "$1a", "a$1",
		"U&'$1' UESCAPE '$'", "$1::text || '--' || '/*'", "(($1::int))", "'", "$$1$$", "$a$b$a$", "1 -- $1", "a.\"b\"\"$1\"", "1E'\\'$1'",
	} {
		f.Add(seed)
	}
	conn := fuzzConn(f)
	args := []any{1, 2, 3}
	f.Fuzz(func(t *testing.T, sql string) {
		moved, err := Expr{sql, args}.render("x", 2)
		if err != nil {
			return
		}
		if !utf8.ValidString(moved) || strings.Contains(moved, "\x00") || !strings.HasPrefix(moved, "(") || !strings.HasSuffix(moved, ")") {
			t.Fatalf("rendered as %q", moved)
		}
		alone, err := conn.PgConn().Prepare(t.Context(), "", "SELECT ("+sql+")", nil)
		if err != nil {
			return // not an expression to PostgreSQL
		}
		inside, err := conn.PgConn().Prepare(t.Context(), "", "SELECT $1::point, $2::circle, "+moved, nil)
		if err != nil {
			t.Fatalf("%q alone is SQL, rendered as %q it is not: %v", sql, moved, err)
		}
		if want := append([]uint32{600, 718}, alone.ParamOIDs...); !slices.Equal(inside.ParamOIDs, want) {
			t.Fatalf("%q has parameters %v alone, and %v as %q", sql, alone.ParamOIDs, inside.ParamOIDs, moved)
		}
		if len(inside.Fields) != 2+len(alone.Fields) || inside.Fields[2].DataTypeOID != alone.Fields[0].DataTypeOID {
			t.Fatalf("%q is another expression as %q", sql, moved)
		}
	})
}

// FuzzQuoteIdentifier asks PostgreSQL to read a quoted name back.
func FuzzQuoteIdentifier(f *testing.F) {
	for _, seed := range []string{"a", "A b", `"`, `""`, "a.b", "select", "é", "$1", `\`, strings.Repeat("x", 63), strings.Repeat("x", 64), "", "\x00", "\xff", "a\n"} {
		f.Add(seed)
	}
	conn := fuzzConn(f)
	f.Fuzz(func(t *testing.T, name string) {
		quoted, err := quoteIdentifier("name", name)
		bad := name == "" || len(name) > 63 || !utf8.ValidString(name) || strings.Contains(name, "\x00")
		if (err != nil) != bad {
			t.Fatalf("%q: %v", name, err)
		}
		if err != nil {
			return
		}
		rows, err := conn.Query(t.Context(), "SELECT 1 AS "+quoted, pgx.QueryExecModeExec)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		got := rows.FieldDescriptions()[0].Name
		rows.Close()
		if got != name || rows.Err() != nil {
			t.Fatalf("%q came back as %q, %v", name, got, rows.Err())
		}
	})
}
