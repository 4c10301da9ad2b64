package sqlrow

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// fuzzConn is a connection for a fuzz target.
func fuzzConn(f *testing.F) *pgx.Conn {
	conn, err := pgx.Connect(context.Background(), pgtest.Database(f))
	testkit.Must(f, err)
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

// TestOneExpression: what would end the expression, be read in another way, or what
// PostgreSQL cannot store, is refused before it is sent, and the error says why;
// servers before 15 read $1a as two words, so that a text would mean something else
// there.
func TestOneExpression(t *testing.T) {
	for text, why := range map[string]string{
		"": "empty expression", " \n": "empty expression", "1)": "one expression", "1) WHERE (true": "one expression", "(1": "open parenthesis",
		"')": "open quote", `"a`: "open quote", `'a''`: "open quote", "1; DROP TABLE x": "one expression", "1 -- x": "comments", "1 /* x */": "comments",
		`E'\' || 1`: "backslashes", `E'a\''`: "backslashes", "$$x$$": "dollar quotes", "$a$x$a$": "dollar quotes",
		"$2": "uses $2 and has 1", "$0": "uses $0", "$99999999999999999999": "uses $999", "1": "has 1 arguments and does not use $1",
		"$1a": "uses $1a and has 1", "$1_": "uses $1_ and has 1", "v || 'a\x00'": "NUL", "1)\x00": "NUL", "v || '\xff'": "valid UTF-8",
	} {
		if got, err := (Expr{text, []any{1}}).render("x", 3); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q is rendered as %q, %v; want an error that says %q", text, got, err, why)
		}
	}
	for text, want := range map[string]string{"$1 + 1": "($4 + 1)", "$1 a": "($4 a)", "$1+1": "($4+1)", "'$1' || $1": "('$1' || $4)", `"col$1" || a$1 || $1`: `("col$1" || a$1 || $4)`,
		"')' || $01": "(')' || $4)", "'\x01' || $1": "('\x01' || $4)"} {
		if got, err := (Expr{text, []any{1}}).render("x", 3); got != want || err != nil {
			t.Errorf("%q is rendered as %q, %v; want %q", text, got, err, want)
		}
	}
}
