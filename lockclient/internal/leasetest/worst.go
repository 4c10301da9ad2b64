package leasetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// worst are the values, by column, at which a row that an issuer's role can write
// is hardest to read or to change.
var worst = []struct{ column, value string }{
	{"acquired_at", "'infinity'"}, {"acquired_at", "'-infinity'"}, {"acquired_at", "'294276-12-31 23:59:59+00'"}, {"acquired_at", "'4714-11-24 00:00:00+00 BC'"},
	{"acquired_at", "clock_timestamp() + interval '293 years'"}, {"acquired_at", "clock_timestamp() - interval '293 years'"}, {"acquired_at", "'10000-01-01 00:00:00+00'"},
	{"expires_at", "'-infinity'"}, {"expires_at", "'4714-11-24 00:00:00+00 BC'"}, {"expires_at", "clock_timestamp() + interval '25 hours'"},
	{"wake_until", "'-infinity'"},
	{"waiters", "ARRAY[repeat('x', 100)]"}, {"waiters", "ARRAY['']"}, {"waiters", "'{NULL}'"}, {"waiters", "'{{a,b},{c,d}}'"}, {"waiters", "array_fill('w'::text, ARRAY[2000])"},
	{"kept_for", "repeat('x', 2000)"}, {"not_after", "'infinity'"}, {"not_after", "'-infinity'"}, {"spent_until", "'-infinity'"}, {"reclaimed", "true"},
	{"lease_id", `E'\x01'`}, {"lease_id", "repeat('x', 128)"}, {"owner", `E'\x1b[2J\n'`}, {"owner", "repeat('x', 128)"}, {"metadata", `E'\x1b[2J' || repeat(E'\n', 900)`},
	{"resource", `E'worst\n'`}, {"resource", `E'worst\x1b[2J'`}, {"resource", "'*'"}, {"resource", "repeat('x', 512)"},
}

// WorstColumns are the columns of fencepost.leases that have a worst value.
func WorstColumns() (columns []string) {
	for _, w := range worst {
		columns = append(columns, w.column)
	}
	return columns
}

// Worst writes a held lease that somebody waits for, once with each of the worst
// values of each column, and returns the names.
func Worst(t testing.TB, issuer *pgxpool.Pool) (names []string) {
	t.Helper()
	for i, w := range worst {
		values := map[string]string{
			"resource": fmt.Sprintf("'worst-%02d-%s'", i, w.column), "lease_id": "'lease'", "owner": "'owner'", "acquired_at": "clock_timestamp()",
			"expires_at": "clock_timestamp() + interval '1 hour'", "wake_until": "clock_timestamp() + interval '59 seconds'", "waiters": "ARRAY['a']",
			"kept_for": "NULL", "not_after": "NULL", "spent_until": "NULL", "reclaimed": "NULL", "metadata": "''",
		}
		values[w.column] = w.value
		var name string
		err := issuer.QueryRow(t.Context(), "INSERT INTO fencepost.leases (resource, token) VALUES ("+values["resource"]+", 1) RETURNING resource").Scan(&name)
		if err != nil {
			t.Fatalf("%s %s: %v", w.column, w.value, err)
		}
		delete(values, "resource")
		var set []string
		for column, value := range values {
			set = append(set, column+" = "+value)
		}
		if _, err := issuer.Exec(t.Context(), "UPDATE fencepost.leases SET "+strings.Join(set, ", ")+" WHERE resource = $1", name); err != nil {
			t.Fatalf("%s %s: %v", w.column, w.value, err)
		}
		names = append(names, name)
	}
	return names
}
