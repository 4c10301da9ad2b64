package sqlfence

import (
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// claimsOf returns the claims of some clients, with future tokens.
func claimsOf(clients int) func(client, i int) guard.Claim {
	resources := make([]string, clients)
	for i := range resources {
		resources[i] = fmt.Sprint("job:", i)
	}
	return func(client, i int) guard.Claim {
		return guard.Claim{Resource: resources[client], Token: guard.Token(i + 1)}
	}
}

// BenchmarkTakeover: against an UPDATE of another column ... RETURNING. With
// synchronous_commit=off the takeover waits for the disk all the same, and
// the UPDATE does not.
func BenchmarkTakeover(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		e.exec("ALTER TABLE jobs ADD n bigint")
		table, claim := e.table("jobs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}), claimsOf(clients)
		paired(b, clients, func(client, i int) error {
			var v int64
			return table.Raise(b.Context(), db, claim(client, i), Key{client}, Dest{"v": &v})
		}, func(client, i int) error {
			var v int64
			_, err := db.row(b.Context(), "UPDATE jobs SET n = $2 WHERE id = $1 RETURNING v", []any{client, i}, &v)
			return err
		})
	})
}

// BenchmarkUpsert: existing rows, against the same without a fence.
func BenchmarkUpsert(b *testing.B) {
	benchmark(b, func(b *testing.B, e *env, db fence, clients int) {
		table, claim := e.table("jobs", []string{"id"}, nil), claimsOf(clients)
		paired(b, clients, func(client, i int) error {
			return table.Upsert(b.Context(), db, claim(client, i), Key{client}, Set{"v": i})
		}, func(client, i int) error {
			return db.unfenced(b.Context(), "INSERT INTO jobs (id, v) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v", client, i)
		})
	})
}
