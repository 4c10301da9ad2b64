package sqlrow

import (
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/jackc/pgx/v5"
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
