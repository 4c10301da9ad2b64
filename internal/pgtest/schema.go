package pgtest

import (
	_ "embed"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schemaSQL string

// CheckSchema compares a schema with a file that lists its tables, with their
// columns, constraints, indexes, triggers and storage, and its functions with
// what surrounds their bodies, a line each. So nothing in it changes by
// accident. With update it writes the file.
func CheckSchema(t testing.TB, pool *pgxpool.Pool, schema, file string, update bool) {
	t.Helper()
	rows, err := pool.Query(t.Context(), schemaSQL, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(lines, "\n") + "\n"
	if update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("schema %s is\n%swant (%s)\n%s", schema, got, file, want)
	}
}
