package sqladmin

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestMarksReadsARange: listing a prefix reads the index from there to its end.
func TestMarksReadsARange(t *testing.T) {
	pool := pgtest.Pool(t)
	if err := Pgx(pool).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "INSERT INTO fencepost.marks SELECT 'k' || n, 1 FROM generate_series(1, 20000) AS n; ANALYZE fencepost.marks"); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), "EXPLAIN ANALYZE "+marksSQL, 10, "k777", "", beyond("k777"))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan.WriteString(line + "\n")
	}
	if text := plan.String(); !strings.Contains(text, "Index Scan using marks_pkey") || strings.Contains(text, "Rows Removed") {
		t.Error(text)
	}
}

// TestExpectedFunctions: Verify knows every function of the schema.
func TestExpectedFunctions(t *testing.T) {
	pool := pgtest.Pool(t)
	if err := Pgx(pool).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != len(expectedFunctions()) {
		t.Errorf("%d functions are expected, the database has %d", len(expectedFunctions()), n)
	}
}
