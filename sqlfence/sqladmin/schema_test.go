package sqladmin

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestMarksReadsARange: listing a prefix reads the index from there to its end.
func TestMarksReadsARange(t *testing.T) {
	pool := pgtest.Pool(t)
	testkit.Must(t, Pgx(pool).Migrate(t.Context()))
	if _, err := pool.Exec(t.Context(), "INSERT INTO fencepost.marks SELECT 'k' || n, 1 FROM generate_series(1, 20000) AS n; ANALYZE fencepost.marks"); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), "EXPLAIN ANALYZE "+marksSQL, 10, "k777", "", beyond("k777"))
	testkit.Must(t, err)
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		testkit.Must(t, rows.Scan(&line))
		plan.WriteString(line + "\n")
	}
	if text := plan.String(); !strings.Contains(text, "Index Scan using marks_pkey") || strings.Contains(text, "Rows Removed") {
		t.Error(text)
	}
}

// TestExpectedObjects: Verify knows every function, table, column and trigger of the schema, and
// who may call it.
func TestExpectedObjects(t *testing.T) {
	pool := pgtest.Pool(t)
	testkit.Must(t, Pgx(pool).Migrate(t.Context()))
	kinds := map[string]int{}
	for _, o := range schema().Objects() {
		kinds[o.Kind]++
		if o.Guarded {
			kinds["guarded"]++
		}
	}
	for kind, sql := range map[string]string{
		"function": "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace",
		"guarded":  "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND NOT has_function_privilege('public', oid, 'EXECUTE')",
		"table":    "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'r' AND relname <> 'migrations'",
		"column":   "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'r' AND relname <> 'migrations' AND attnum > 0",
		"trigger":  "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = 'fencepost'::regnamespace AND NOT tgisinternal",
	} {
		var n int
		testkit.Must(t, pool.QueryRow(t.Context(), sql).Scan(&n))
		if n != kinds[kind] {
			t.Errorf("%s: %d are expected, the database has %d", kind, kinds[kind], n)
		}
	}
}
