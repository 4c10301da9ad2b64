package sqladmin

import (
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

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
