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
)

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

// TestParameterInAWord: servers before 15 read $1a as two words, so that a text
// would mean something else there.
func TestParameterInAWord(t *testing.T) {
	for text, bad := range map[string]bool{"$1a": true, "$1_": true, "$1 a": false, "$1+1": false} {
		if _, err := (Expr{text, []any{1}}).render("x", 0); bad != (err != nil && strings.Contains(err.Error(), "uses "+strings.Fields(text)[0]+" and has 1")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestRawText: what PostgreSQL cannot store is refused before it is sent.
func TestRawText(t *testing.T) {
	for text, bad := range map[string]bool{"v || 'a\x00'": true, "v || '\xff'": true, "v || '\x01'": false} {
		if _, err := (Expr{text, nil}).render("x", 0); bad != errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestOneExpression: what would end the expression, or be read in another way, is
// refused before it is sent.
func TestOneExpression(t *testing.T) {
	for _, text := range []string{"", " ", "1)", "(1", "')", `"a`, "1; DROP TABLE x", "1 -- x", "1 /* x */", `E'\' || 1`, "$$x$$", "$a$x$a$", "$2", "$0", "1"} {
		if got, err := (Expr{text, []any{1}}).render("x", 3); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%q is rendered as %q, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"$1 + 1": "($4 + 1)", "'$1' || $1": "('$1' || $4)", `"col$1" || a$1 || $1`: `("col$1" || a$1 || $4)`, "')' || $01": "(')' || $4)"} {
		if got, err := (Expr{text, []any{1}}).render("x", 3); got != want || err != nil {
			t.Errorf("%q is rendered as %q, %v; want %q", text, got, err, want)
		}
	}
}
