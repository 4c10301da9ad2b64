package sqlkit

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/jackc/pgx/v5"
)

// fuzzConn is a connection for a fuzz target.
func fuzzConn(f *testing.F) *pgx.Conn {
	conn, err := pgx.Connect(context.Background(), pgtest.Database(f))
	testkit.Must(f, err)
	f.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// FuzzQuoteIdentifier asks PostgreSQL to read a quoted name back.
func FuzzQuoteIdentifier(f *testing.F) {
	for _, seed := range []string{"a", "A b", `"`, `""`, "a.b", "select", "é", "$1", `\`, strings.Repeat("x", 63), strings.Repeat("x", 64), "", "\x00", "\xff", "a\n"} {
		f.Add(seed)
	}
	conn := fuzzConn(f)
	f.Fuzz(func(t *testing.T, name string) {
		quoted, err := QuoteIdentifier("name", name)
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
